//! UDP sockets.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::given::{on, settle, timeless};
use osier::net::UdpSocket;

const GENEROUS: Duration = Duration::from_secs(30);

fn bound() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(GENEROUS)).unwrap();
    socket
}

#[test]
fn datagrams_come_whole_and_say_from_where() {
    let check = || {
        let (one, two) = (bound(), bound());
        assert_eq!(one.send_to(b"hello", two.local_addr().unwrap()).unwrap(), 5);
        assert_eq!(one.send_to(b"", two.local_addr().unwrap()).unwrap(), 0);
        let mut buf = [0; 16];
        let from = one.local_addr().unwrap();
        assert_eq!(two.peek_from(&mut buf).unwrap(), (5, from));
        // The bytes that do not fit are lost.
        assert_eq!(two.recv_from(&mut buf[..2]).unwrap(), (2, from));
        assert_eq!(two.recv_from(&mut buf).unwrap(), (0, from));
    };
    on(1).run(check);
    check();
}

#[test]
fn several_datagrams_in_one_wake_up() {
    timeless(2).run(|| {
        let receiver = Arc::new(bound());
        let addr = receiver.local_addr().unwrap();
        let theirs = Arc::clone(&receiver);
        let receiving = osier::spawn(move || {
            (0..30u8).all(|number| {
                let mut buf = [0; 16];
                theirs.recv(&mut buf).unwrap() == 1 && buf[0] == number
            })
        });
        settle();
        let sender = bound();
        for number in 0..30u8 {
            // Each is shorter than the receiver's buffer, which says nothing about the next.
            sender.send_to(&[number], addr).unwrap();
        }
        assert!(receiving.join().unwrap());
    });
}

#[test]
fn connected_sockets() {
    on(1).run(|| {
        // An address that only this test uses: no other test can take the port while it is free.
        let two = UdpSocket::bind("127.0.0.77:0").unwrap();
        let one = bound();
        two.set_read_timeout(Some(GENEROUS)).unwrap();
        one.connect(two.local_addr().unwrap()).unwrap();
        two.connect(one.local_addr().unwrap()).unwrap();
        assert_eq!(one.peer_addr().unwrap(), two.local_addr().unwrap());
        one.send(b"ping").unwrap();
        let mut buf = [0; 16];
        assert_eq!(two.peek(&mut buf).unwrap(), 4);
        assert_eq!(two.recv(&mut buf).unwrap(), 4);
        let clone = one.try_clone().unwrap();
        two.send(b"pong").unwrap();
        assert_eq!(clone.recv(&mut buf).unwrap(), 4);

        // Nobody listens any more. The system reports that, and the socket still works.
        let addr = two.local_addr().unwrap();
        drop(two);
        one.send(b"x").unwrap();
        assert_eq!(one.recv(&mut buf).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let again = UdpSocket::bind(addr).unwrap();
        again.send_to(b"back", one.local_addr().unwrap()).unwrap();
        assert_eq!(one.recv(&mut buf).unwrap(), 4);
    });
}

#[test]
fn a_receive_times_out() {
    let check = || {
        let socket = bound();
        let limit = Duration::from_millis(20);
        socket.set_read_timeout(Some(limit)).unwrap();
        assert_eq!(socket.read_timeout().unwrap(), Some(limit));
        let begin = Instant::now();
        assert_eq!(socket.recv_from(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(begin.elapsed() >= limit);
        assert_eq!(
            socket.set_write_timeout(Some(Duration::ZERO)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    };
    on(1).run(check);
    check();
}

#[test]
fn options_and_conversions() {
    on(1).run(|| {
        let socket = bound();
        assert!(!socket.broadcast().unwrap());
        socket.set_broadcast(true).unwrap();
        assert!(socket.broadcast().unwrap());
        socket.set_ttl(9).unwrap();
        assert_eq!(socket.ttl().unwrap(), 9);
        socket.set_multicast_loop_v4(false).unwrap();
        assert!(!socket.multicast_loop_v4().unwrap());
        socket.set_multicast_ttl_v4(3).unwrap();
        assert_eq!(socket.multicast_ttl_v4().unwrap(), 3);
        let error = socket.join_multicast_v4(&Ipv4Addr::new(127, 0, 0, 1), &Ipv4Addr::LOCALHOST);
        assert!(error.is_err(), "127.0.0.1 is no group");
        assert!(socket.take_error().unwrap().is_none());

        let plain = std::net::UdpSocket::from(socket);
        let addr = plain.local_addr().unwrap();
        assert_eq!(plain.read_timeout().unwrap(), Some(GENEROUS));
        let socket = UdpSocket::from(plain);
        assert_eq!(socket.local_addr().unwrap(), addr);
        bound().send_to(b"x", addr).unwrap();
        assert_eq!(socket.recv(&mut [0; 4]).unwrap(), 1);
    });
}
