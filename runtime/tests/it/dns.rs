//! Name lookups, which do not stop the worker. Only `localhost`, which needs no server.

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::given::{on, settle, timeless};
use osier::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};

#[test]
fn localhost_is_this_machine() {
    let check = || {
        let addrs: Vec<SocketAddr> = "localhost:80".to_socket_addrs().unwrap().collect();
        assert!(!addrs.is_empty());
        assert!(addrs.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 80));
        let listener = TcpListener::bind("localhost:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Only one of the name's addresses has a listener.
        TcpStream::connect(("localhost", port)).unwrap();
        TcpStream::connect((String::from("localhost"), port)).unwrap();
        TcpStream::connect(format!("localhost:{port}")).unwrap();
        UdpSocket::bind("localhost:0").unwrap();
    };
    on(1).run(check);
    check();
}

#[test]
fn addresses_need_no_lookup() {
    timeless(1).run(|| {
        let (mut ours, _theirs) = osier::net::UnixStream::pair().unwrap();
        let cancelled = osier::spawn(move || {
            assert!(osier::Cancelled::is(&ours.read(&mut [0]).unwrap_err()));
            // Each wait unwinds from here on.
            let v4 = "127.0.0.1:80".to_socket_addrs().unwrap().count();
            let v6 = ("::1", 80).to_socket_addrs().unwrap().count();
            let pair = (String::from("10.0.0.1"), 80).to_socket_addrs().unwrap().count();
            v4 + v6 + pair + "[::1]:8080".to_socket_addrs().unwrap().count()
        });
        settle();
        cancelled.cancel();
        assert_eq!(cancelled.join().unwrap(), 4);
    });
}

#[test]
fn a_name_that_is_none_is_an_error() {
    on(1).run(|| {
        // Too long for a name: no server is asked.
        let long = format!("{}:80", "x".repeat(300));
        assert!(long.to_socket_addrs().is_err());
        assert!(TcpStream::connect(long).is_err());
        assert_eq!("no port".to_socket_addrs().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!("zero\0byte:80".to_socket_addrs().is_err());
    });
}

#[test]
fn many_lookups_at_once_leave_the_worker_free() {
    on(1).run(|| {
        let turns = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&turns);
        let busy = osier::spawn(move || {
            loop {
                theirs.fetch_add(1, Ordering::Relaxed);
                osier::yield_now();
            }
        });
        let lookups: Vec<_> = (0..200)
            .map(|_| osier::spawn(|| "localhost:1".to_socket_addrs().map(Iterator::count)))
            .collect();
        // Some lookups are cancelled. Their places in line go to the others.
        for (index, lookup) in lookups.iter().enumerate() {
            if index % 5 == 0 {
                lookup.cancel();
            }
        }
        let mut done = 0;
        for lookup in lookups {
            if let Ok(Ok(count)) = lookup.join() {
                assert!(count > 0);
                done += 1;
            }
        }
        assert!(done >= 160, "{done} of 200 lookups");
        assert!(turns.load(Ordering::Relaxed) > 0);
        busy.cancel();
    });
}
