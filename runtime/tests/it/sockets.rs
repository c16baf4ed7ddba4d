//! Rules for sockets of every family: default options, closing, clones, descriptors, buffers.

use std::io::{BufWriter, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::colours::in_every_colour;
use crate::given::on;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use osier::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixStream};
use osier::spawn;

const GENEROUS: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(5);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(GENEROUS)).unwrap();
    }
    (client, server)
}

fn udp() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(GENEROUS)).unwrap();
    socket
}

#[test]
fn both_ends_of_a_connection_agree_on_its_addresses() {
    on(1).run(|| {
        let (client, server) = pair();
        assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
    });
}

#[test]
fn version_6_works_as_version_4_does() {
    let check = || {
        let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else {
            return println!("skipped: no ::1 here");
        };
        let addr = listener.local_addr().unwrap();
        assert!(addr.is_ipv6());
        let mut client = TcpStream::connect(addr).unwrap();
        let (mut server, peer) = listener.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        client.write_all(b"six").unwrap();
        let mut text = [0; 3];
        server.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"six");

        let [one, two] = [(); 2].map(|()| UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap());
        two.set_read_timeout(Some(GENEROUS)).unwrap();
        one.send_to(b"six", two.local_addr().unwrap()).unwrap();
        assert_eq!(two.recv_from(&mut text).unwrap(), (3, one.local_addr().unwrap()));
        assert!(two.multicast_loop_v6().unwrap());
        two.set_multicast_loop_v6(false).unwrap();
        assert!(!two.multicast_loop_v6().unwrap());
    };
    on(1).run(check);
    check();
}

#[test]
fn options_nobody_has_set_are_the_systems() {
    on(1).run(|| {
        let plain = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (stream, _peer) = pair();
        assert!(!stream.nodelay().unwrap());
        assert_eq!(stream.ttl().unwrap(), listener.ttl().unwrap());
        assert_eq!(stream.linger().unwrap(), None);
        let socket = udp();
        assert_eq!(socket.ttl().unwrap(), plain.ttl().unwrap());
        assert_eq!(socket.broadcast().unwrap(), plain.broadcast().unwrap());
        assert_eq!(socket.multicast_loop_v4().unwrap(), plain.multicast_loop_v4().unwrap());
        assert_eq!(socket.multicast_ttl_v4().unwrap(), plain.multicast_ttl_v4().unwrap());
        assert_eq!(
            TcpListener::bind("127.0.0.1:0").unwrap().ttl().unwrap(),
            listener.ttl().unwrap()
        );
    });
}

/// Shuts down one direction or both. Returns what a read here and a write there then do.
fn shut(mut here: impl Read + Write, mut there: impl Read + Write, how: Shutdown) {
    if how != Shutdown::Write {
        assert_eq!(here.read(&mut [0; 8]).unwrap(), 0);
    }
    if how != Shutdown::Read {
        assert_eq!(here.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut rest = Vec::new();
        there.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"before");
    }
    if how == Shutdown::Write {
        there.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        here.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
    }
}

#[test]
fn each_direction_is_shut_by_itself_and_both_together() {
    let check = || {
        for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
            let (mut here, there) = pair();
            here.write_all(b"before").unwrap();
            here.shutdown(how).unwrap();
            shut(here, there, how);
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(b"before").unwrap();
            here.shutdown(how).unwrap();
            shut(here, there, how);
        }
    };
    on(1).run(check);
    check();
}

#[test]
fn what_was_written_before_a_drop_arrives() {
    on(2).run(|| {
        const LEN: usize = 1 << 20;
        let (mut client, mut server) = pair();
        let writing = spawn(move || {
            client.write_all(&vec![3; LEN]).unwrap();
            drop(client);
        });
        let mut all = Vec::new();
        server.read_to_end(&mut all).unwrap();
        assert!(all.len() == LEN && all.iter().all(|&byte| byte == 3));
        writing.join().unwrap();
    });
}

#[test]
fn a_dropped_stream_ends_its_connection_although_it_was_waited_for() {
    on(1).run(|| {
        let (client, mut server) = pair();
        client.set_read_timeout(Some(SHORT)).unwrap();
        assert_eq!((&client).read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(client);
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_clone_reads_and_writes_the_same_connection() {
    let check = || {
        let (mut client, server) = pair();
        let mut clone = server.try_clone().unwrap();
        client.write_all(b"ab").unwrap();
        let mut byte = [0];
        (&server).read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"a");
        clone.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"b");
        (&server).write_all(b"1").unwrap();
        clone.write_all(b"2").unwrap();
        let mut both = [0; 2];
        client.read_exact(&mut both).unwrap();
        assert_eq!(&both, b"12");
    };
    on(1).run(check);
    check();
}

#[test]
fn a_socket_made_a_descriptor_and_back_keeps_what_waits_in_it() {
    let check = || {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"queued").unwrap();
        let mut far = UnixStream::from(OwnedFd::from(far));
        let mut text = [0; 6];
        far.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"queued");

        let (near, far) = UnixDatagram::pair().unwrap();
        near.send(b"one").unwrap();
        near.send(b"second").unwrap();
        let far = UnixDatagram::from(OwnedFd::from(far));
        assert_eq!(far.recv(&mut text).unwrap(), 3);
        assert_eq!(far.recv(&mut text).unwrap(), 6);

        let (near, far) = (udp(), udp());
        near.send_to(b"queued", far.local_addr().unwrap()).unwrap();
        let far = UdpSocket::from(OwnedFd::from(far));
        far.set_read_timeout(Some(GENEROUS)).unwrap();
        assert_eq!(far.recv(&mut text).unwrap(), 6);
    };
    on(1).run(check);
    check();
}

#[test]
fn sixteen_pairs_play_ping_pong() {
    on(2).run(|| {
        osier::scope(|scope| {
            for number in 0..16_u8 {
                let (mut ping, mut pong) = UnixStream::pair().unwrap();
                for stream in [&ping, &pong] {
                    stream.set_read_timeout(Some(GENEROUS)).unwrap();
                }
                scope.spawn(move || {
                    for round in 0..20 {
                        ping.write_all(&[number, round]).unwrap();
                        let mut reply = [0; 2];
                        ping.read_exact(&mut reply).unwrap();
                        assert_eq!(reply, [round, number]);
                    }
                });
                scope.spawn(move || {
                    for _ in 0..20 {
                        let mut message = [0; 2];
                        pong.read_exact(&mut message).unwrap();
                        message.reverse();
                        pong.write_all(&message).unwrap();
                    }
                });
            }
        });
    });
}

#[test]
fn a_datagram_needs_an_address_until_it_is_connected() {
    let check = || {
        let (one, two, three) = (udp(), udp(), udp());
        let nowhere = one.send(b"x").unwrap_err();
        assert_eq!(
            nowhere.raw_os_error(),
            Some(rustix::io::Errno::DESTADDRREQ.raw_os_error())
        );
        assert_eq!(one.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
        let mut buf = [0; 8];
        // Receiving needs no peer.
        two.send_to(b"hi", one.local_addr().unwrap()).unwrap();
        assert_eq!((one.peek(&mut buf).unwrap(), one.recv(&mut buf).unwrap()), (2, 2));

        one.connect(two.local_addr().unwrap()).unwrap();
        one.send(b"two").unwrap();
        assert_eq!(two.recv_from(&mut buf).unwrap(), (3, one.local_addr().unwrap()));
        // A datagram of a stranger is not received.
        three.send_to(b"stranger", one.local_addr().unwrap()).unwrap();
        two.send_to(b"2", one.local_addr().unwrap()).unwrap();
        assert_eq!(one.recv_from(&mut buf).unwrap(), (1, two.local_addr().unwrap()));
        // Connected again, to another peer.
        one.connect(three.local_addr().unwrap()).unwrap();
        one.send(b"three").unwrap();
        assert_eq!(three.recv(&mut buf).unwrap(), 5);
        two.send_to(b"former", one.local_addr().unwrap()).unwrap();
        three.send_to(b"3", one.local_addr().unwrap()).unwrap();
        assert_eq!(one.recv(&mut buf).unwrap(), 1);
    };
    on(1).run(check);
    check();
}

#[test]
fn members_of_a_group_hear_what_is_sent_to_it() {
    on(1).run(|| {
        let group = Ipv4Addr::new(239, 7, 41, 9);
        let (sender, member) = (udp(), UdpSocket::bind("0.0.0.0:0").unwrap());
        if let Err(error) = member.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST) {
            return println!("skipped: no multicast on the loopback here: {error}");
        }
        member.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let port = member.local_addr().unwrap().port();
        let mut buf = [0; 8];
        let heard = sender
            .send_to(b"all", (group, port))
            .and_then(|_| member.recv_from(&mut buf));
        match heard {
            Ok(heard) => assert_eq!(heard, (3, sender.local_addr().unwrap())),
            Err(error) => return println!("skipped: no way to a group from the loopback here: {error}"),
        }
        member.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
        member.set_read_timeout(Some(SHORT)).unwrap();
        sender.send_to(b"left", (group, port)).unwrap();
        assert_eq!(member.recv(&mut buf).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn buffered_writers_of_std_and_of_futures_io_write_through_us() {
    on(1).run(|| {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.set_read_timeout(Some(SHORT)).unwrap();
        let mut buf = [0; 64];
        let mut writer = BufWriter::with_capacity(4, near);
        writer.write_all(b"abc").unwrap();
        assert_eq!(
            far.read(&mut buf).unwrap_err().kind(),
            ErrorKind::TimedOut,
            "it is in the buffer"
        );
        writer.write_all(b"de").unwrap();
        assert_eq!(far.read(&mut buf).unwrap(), 3, "what had no room any more");
        writer.write_all(b"larger than all of it").unwrap();
        let mut all = [0; 2 + 21];
        far.read_exact(&mut all).unwrap();
        assert_eq!(&all, b"delarger than all of it");
        writer.write_all(b"x").unwrap();
        let near = writer.into_inner().unwrap();
        assert_eq!(far.read(&mut buf).unwrap(), 1, "taking it apart flushes");
        drop(near);
    });
    in_every_colour(|| async {
        let (near, far) = UnixStream::pair().unwrap();
        let mut far = far.into_async();
        let mut writer = futures_lite::io::BufWriter::with_capacity(4, near.into_async());
        writer.write_all(b"abcdefgh").await.unwrap();
        writer.write_all(b"ij").await.unwrap();
        writer.close().await.unwrap();
        let mut all = String::new();
        far.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "abcdefghij");
    });
}

#[test]
fn several_futures_read_one_stream_through_clones_of_its_arc() {
    in_every_colour(|| async {
        let (near, far) = UnixStream::pair().unwrap();
        let near = Arc::new(near);
        let mut readers: Vec<_> = (0..3)
            .map(|_| osier::adapters::AsyncStream::new(Arc::clone(&near)))
            .collect();
        far.as_async().write_all(b"123").await.unwrap();
        for (reader, expected) in readers.iter_mut().zip(b"123") {
            let mut byte = [0];
            reader.read_exact(&mut byte).await.unwrap();
            assert_eq!(&byte[0], expected);
        }
    });
}

#[test]
fn a_read_into_no_slices_is_empty_at_once() {
    let check = || {
        let (mut tcp, _server) = pair();
        let (mut unix, _far) = UnixStream::pair().unwrap();
        unix.set_read_timeout(Some(GENEROUS)).unwrap();
        assert_eq!(tcp.read_vectored(&mut []).unwrap(), 0);
        assert_eq!(unix.read_vectored(&mut []).unwrap(), 0);
        let mut none = std::io::IoSliceMut::new(&mut []);
        assert_eq!(unix.read_vectored(std::slice::from_mut(&mut none)).unwrap(), 0);
    };
    check();
    on(1).run(check);
}

#[test]
fn a_limit_of_zero_for_acknowledgements_is_refused() {
    let (client, _server) = pair();
    let client = osier::net::Stream::from(client);
    client.set_user_timeout(Some(Duration::from_secs(2))).unwrap();
    let zero = client.set_user_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidInput, "{zero}");
    assert_eq!(rustix::net::sockopt::tcp_user_timeout(&client).unwrap(), 2000);
    client.set_user_timeout(None).unwrap();
    assert_eq!(rustix::net::sockopt::tcp_user_timeout(&client).unwrap(), 0);
}
