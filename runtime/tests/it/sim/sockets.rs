//! Simulated sockets keep the promises of the system's.

use super::{SECOND, echo, echo_server};
use osier::io::{HalfClose, while_connected};
use osier::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use osier::sim::{self, Link};
use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
#[cfg(target_os = "linux")]
use std::{os::fd::AsFd, rc::Rc};

/// A connection between the program and a host that keeps its end until the program drops it.
fn pair(world: &sim::World) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let address = (world.here().ip(), listener.local_addr().unwrap().port());
    let client = TcpStream::connect(address).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn large_messages_arrive_whole_and_in_order() {
    sim::run(3, |world| {
        world.host("server", echo_server);
        osier::sleep(SECOND);
        let bytes: Vec<u8> = (0..1_000_000u32).map(|at| (at >> 8) as u8 ^ at as u8).collect();
        assert!(echo("server", &bytes).unwrap() == bytes);
        assert!(echo(&world.find("server").ip().to_string(), b"by address").unwrap() == b"by address");
    });
}

#[test]
fn addresses_are_those_of_the_hosts() {
    sim::run(1, |world| {
        let host = world.host("server", || {
            let listener = TcpListener::bind("0.0.0.0:80")?;
            let (stream, peer) = listener.accept()?;
            assert_eq!(stream.peer_addr()?, peer);
            assert_eq!(stream.local_addr()?.port(), 80);
            stream.set_nodelay(true)?;
            (&stream).write_all(peer.to_string().as_bytes())
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:80").unwrap();
        assert_eq!(stream.peer_addr().unwrap(), (host.ip(), 80).into());
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, stream.local_addr().unwrap().to_string());
        assert_eq!(stream.local_addr().unwrap().ip(), world.here().ip());
    });
}

#[test]
fn the_time_of_a_close_counts_in_whole_seconds() {
    sim::run(1, |world| {
        let (client, _server) = pair(world);
        client.set_linger(Some(SECOND / 2)).unwrap();
        assert_eq!(client.linger().unwrap(), Some(SECOND));
    });
}

#[test]
fn a_port_has_one_listener_unless_they_share_it() {
    sim::run(1, |_| {
        let first = TcpListener::bind("0.0.0.0:80").unwrap();
        assert_eq!(
            TcpListener::bind("127.0.0.1:80").unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
        assert_eq!(
            TcpListener::bind("10.9.9.9:80").unwrap_err().kind(),
            ErrorKind::AddrNotAvailable
        );
        drop(first);
        let _one = TcpListener::bind_reuseport("0.0.0.0:80").unwrap();
        let _two = TcpListener::bind_reuseport("0.0.0.0:80").unwrap();
        assert_eq!(
            TcpListener::bind("0.0.0.0:80").unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
    });
}

#[test]
fn a_connect_without_a_listener_is_refused_and_without_a_host_fails() {
    sim::run(1, |world| {
        world.host("server", || ());
        osier::sleep(SECOND);
        let refused = TcpStream::connect("server:80").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(TcpStream::connect("nobody:80").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(
            TcpStream::connect("10.7.7.7:80").unwrap_err().kind(),
            ErrorKind::HostUnreachable
        );
        assert_eq!(
            TcpStream::connect("127.0.0.1:80").unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
    });
}

#[test]
fn a_writer_waits_for_its_reader() {
    sim::run(1, |world| {
        let (client, server) = pair(world);
        client.set_write_timeout(Some(5 * SECOND)).unwrap();
        let full = (&client).write_all(&[1; 1 << 20]).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::TimedOut);
        let mut room = [0; 1000];
        (&server).read_exact(&mut room).unwrap();
        assert!((&client).write(&[1; 2000]).unwrap() <= 1000);
        assert_eq!(client.try_write(&[1; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn a_half_close_ends_one_direction() {
    sim::run(1, |world| {
        let (mut client, mut server) = pair(world);
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut question = String::new();
        server.read_to_string(&mut question).unwrap();
        server.write_all(b"answer").unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!((question.as_str(), answer.as_str()), ("question", "answer"));
        assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_close_with_unread_bytes_is_a_reset() {
    sim::run(1, |world| {
        let (mut client, server) = pair(world);
        client.write_all(b"nobody reads it").unwrap();
        osier::sleep(SECOND);
        drop(server);
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn bytes_for_a_closed_end_reset_the_connection() {
    sim::run(1, |world| {
        let (mut client, server) = pair(world);
        drop(server);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        client.write_all(b"x").unwrap();
        osier::sleep(SECOND);
        assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn reads_have_their_timeouts_and_a_peek_takes_nothing() {
    sim::run(1, |world| {
        let (mut client, mut server) = pair(world);
        client.set_read_timeout(Some(SECOND)).unwrap();
        let before = world.elapsed();
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(world.elapsed() - before >= SECOND);
        server.write_all(b"hello").unwrap();
        let mut buf = [0; 8];
        assert_eq!(client.peek(&mut buf).unwrap(), 5);
        assert_eq!(client.read(&mut buf).unwrap(), 5);
        assert_eq!(&buf[..5], b"hello");
        assert_eq!(client.try_read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn a_client_that_leaves_ends_the_work_for_it() {
    sim::run(1, |world| {
        let (client, server) = pair(world);
        osier::spawn(move || {
            osier::sleep(SECOND);
            drop(client);
        });
        assert!(while_connected(&server, HalfClose::IsGone, || osier::sleep(3600 * SECOND)).is_err());
        assert!(world.elapsed() < 2 * SECOND);
    });
}

#[test]
fn bandwidth_is_a_bound() {
    sim::run(1, |world| {
        let host = world.host("server", echo_server);
        let link = Link {
            bandwidth: Some(10_000),
            ..Link::default()
        };
        world.link(&world.here(), &host, link);
        osier::sleep(SECOND);
        let before = world.elapsed();
        echo("server", &[7; 50_000]).unwrap();
        let took = world.elapsed() - before;
        assert!((5 * SECOND..12 * SECOND).contains(&took), "{took:?}");
    });
}

#[test]
fn datagrams_arrive_and_nobody_at_home_is_told() {
    sim::run(1, |world| {
        world.host("server", || {
            let socket = UdpSocket::bind("0.0.0.0:53")?;
            let mut buf = [0; 100];
            let (count, from) = socket.recv_from(&mut buf)?;
            socket.send_to(&buf[..count], from).map(drop)
        });
        osier::sleep(SECOND);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("server:53").unwrap();
        socket.send(b"hello").unwrap();
        let mut buf = [0; 3];
        assert_eq!((socket.recv(&mut buf).unwrap(), &buf), (3, b"hel"));
        socket.send(b"again").unwrap();
        assert_eq!(socket.recv(&mut buf).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn futures_use_the_same_sockets() {
    sim::run(5, |world| {
        world.host("server", || {
            osier::block_on(async {
                let listener = TcpListener::bind_async("0.0.0.0:9").await?;
                let (stream, _) = listener.accept_async().await?;
                stream.write_more_async(b"hello").await.map(drop)
            })
        });
        osier::sleep(SECOND);
        let text = osier::block_on(async {
            let stream = TcpStream::connect_async("server:9").await?;
            stream.readable_async().await?;
            let mut text = String::new();
            (&stream).read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        });
        // A blocking call in a future fails; the bytes are there.
        assert!(text.is_err() || text.unwrap() == "hello");
    });
}

#[test]
fn sendfile_and_splice_copy() {
    let folder = testkit::Folder::new();
    let path = folder.path().join("file");
    std::fs::write(&path, "0123456789").unwrap();
    sim::run(1, move |world| {
        let file = std::fs::File::open(&path).unwrap();
        let (client, server) = pair(world);
        assert_eq!(osier::io::sendfile(&file, 2, 5, &client).unwrap(), 5);
        let (to, mut end) = pair(world);
        let mut rest = Vec::new();
        let spliced = osier::io::splice(&server, &to, 100, &mut rest).unwrap();
        assert_eq!((spliced.taken, spliced.sent.unwrap()), (5, 5));
        let mut text = [0; 5];
        end.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"23456");
    });
}

#[test]
fn unix_sockets_join_hosts_and_cost_little_time() {
    sim::run(1, |world| {
        let (mut near, far) = UnixStream::pair().unwrap();
        let far = RefCell::new(Some(far));
        let answering = world.host("answering", move || {
            let mut far = far.take().expect("the host runs once");
            let mut bytes = [0; 5];
            far.read_exact(&mut bytes)?;
            osier::sleep(SECOND);
            far.write_all(&bytes)
        });
        let start = world.elapsed();
        osier::sleep(SECOND);
        near.write_all(b"hello").unwrap();
        let mut text = String::new();
        near.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        let took = world.elapsed() - start;
        assert!((2 * SECOND..2 * SECOND + SECOND / 100).contains(&took), "{took:?}");
        answering.wait();
    });
}

/// A descriptor that goes to another process keeps the connection when its first process dies.
#[test]
#[cfg(target_os = "linux")]
fn the_descriptor_of_a_simulated_socket_leads_back_to_it() {
    sim::run(1, |world| {
        let given = Rc::new(RefCell::new(None));
        let place = Rc::clone(&given);
        let first = world.host("first", move || {
            let listener = TcpListener::bind("0.0.0.0:7")?;
            let (stream, _) = listener.accept()?;
            let listener = TcpListener::from(listener.as_fd().try_clone_to_owned()?);
            *place.borrow_mut() = Some((listener, stream));
            std::io::Result::Ok(())
        });
        osier::sleep(SECOND);
        let mut old = TcpStream::connect("first:7").unwrap();
        first.wait();
        let second = world.host("second", move || {
            let (listener, stream) = given.take().expect("the host runs once");
            let descriptor = stream.as_fd().try_clone_to_owned()?;
            let mut stream = {
                let adopted = TcpStream::from(descriptor);
                let listener = TcpListener::from(listener.as_fd().try_clone_to_owned()?);
                osier::sleep(SECOND);
                drop(stream);
                osier::spawn(move || listener.accept()?.0.write_all(b"new"));
                adopted
            };
            stream.write_all(b"old")
        });
        osier::sleep(SECOND / 2);
        assert!(second.open_sockets() >= 2);
        first.kill();
        second.wait();
        let mut bytes = [0; 3];
        old.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"old");
        TcpStream::connect("first:7").unwrap().read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"new");
        second.kill();
        let refused = TcpStream::connect("first:7").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}
