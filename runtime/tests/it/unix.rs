//! Unix sockets: streams, listeners, datagrams, their addresses.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as plain;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::given::{on, others_wait, settle, timeless};
use osier::net::{UnixDatagram, UnixListener, UnixSocketAddr, UnixStream};

const GENEROUS: Duration = Duration::from_secs(30);

/// The path of a socket file, removed when dropped.
struct Name(PathBuf);

impl Name {
    fn new(name: &str) -> Name {
        let name = Name(std::env::temp_dir().join(format!("osier-{name}-{}", std::process::id())));
        let _ = std::fs::remove_file(&name.0);
        name
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn connect_accept_and_echo() {
    let name = Name::new("echo");
    on(2).run(|| {
        let listener = UnixListener::bind(&name.0).unwrap();
        assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(name.0.as_path()));
        assert_eq!(UnixListener::bind(&name.0).unwrap_err().kind(), ErrorKind::AddrInUse);
        osier::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                osier::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        let clients: Vec<_> = (0..50u8)
            .map(|number| {
                let path = name.0.clone();
                osier::spawn(move || {
                    let mut client = UnixStream::connect(&path).unwrap();
                    assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(path.as_path()));
                    client.write_all(&[number; 100]).unwrap();
                    client.shutdown(Shutdown::Write).unwrap();
                    let mut reply = Vec::new();
                    client.read_to_end(&mut reply).unwrap();
                    assert_eq!(reply, [number; 100]);
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
    });
}

#[test]
fn names_of_all_kinds() {
    let (path, other) = (Name::new("named"), Name::new("client"));
    on(1).run(|| {
        let listener = UnixListener::bind(&path.0).unwrap();
        let _unnamed = UnixStream::connect(&path.0).unwrap();
        assert!(listener.accept().unwrap().1.is_unnamed());

        // A client that has bound itself first.
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        socket.bind(&socket2::SockAddr::unix(&other.0).unwrap()).unwrap();
        socket.connect(&socket2::SockAddr::unix(&path.0).unwrap()).unwrap();
        assert_eq!(listener.accept().unwrap().1.as_pathname(), Some(other.0.as_path()));

        // A client whose name leaves no room for a NUL.
        let longest = format!("{}{}", other.0.display(), "x".repeat(108 - other.0.as_os_str().len()));
        let longest = Name(longest.into());
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&longest.0).unwrap()).unwrap();
        rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(&path.0).unwrap()).unwrap();
        listener.accept().unwrap();

        let addr = UnixSocketAddr::from_abstract_name(format!("osier-names-{}", std::process::id())).unwrap();
        let listener = UnixListener::bind_addr(&addr).unwrap();
        assert_eq!(
            listener.local_addr().unwrap().as_abstract_name(),
            addr.as_abstract_name()
        );
        let client = UnixStream::connect_addr(&addr).unwrap();
        assert_eq!(client.peer_addr().unwrap().as_abstract_name(), addr.as_abstract_name());

        assert_eq!(
            UnixStream::connect("/nowhere/at/all").unwrap_err().kind(),
            ErrorKind::NotFound
        );
    });
}

#[test]
fn a_path_that_names_no_socket_is_invalid_input_that_says_why() {
    on(1).run(|| {
        let long = "x".repeat(200);
        let datagrams = UnixDatagram::unbound().unwrap();
        for error in [
            UnixStream::connect(&long).unwrap_err(),
            osier::block_on(UnixStream::connect_async(&long)).unwrap_err(),
            UnixListener::bind(&long).unwrap_err(),
            UnixDatagram::bind(&long).unwrap_err(),
            datagrams.connect(&long).unwrap_err(),
            datagrams.send_to(b"lost", &long).unwrap_err(),
            osier::block_on(datagrams.send_to_async(b"lost", &long)).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            let text = error.to_string();
            assert!(text.contains(&long) && text.contains("200 bytes"), "{text}");
        }
        let error = UnixStream::connect("a\0b").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(r"a\0b"), "{error}");
        for error in [
            UnixStream::connect("").unwrap_err(),
            UnixListener::bind("").unwrap_err(),
            UnixDatagram::bind("").unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains("is empty"), "{error}");
        }
    });
}

#[test]
fn a_full_queue_makes_a_client_wait() {
    let name = Name::new("queue");
    timeless(2).run(|| {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        socket.bind(&socket2::SockAddr::unix(&name.0).unwrap()).unwrap();
        socket.listen(0).unwrap();
        let listener = UnixListener::from(std::os::fd::OwnedFd::from(socket));
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let path = name.0.clone();
                osier::spawn(move || UnixStream::connect(path).map(drop))
            })
            .collect();
        settle();
        for _ in 0..8 {
            listener.accept().unwrap();
        }
        for client in clients {
            client.join().unwrap().unwrap();
        }
    });
}

#[test]
fn timeouts_and_threads() {
    let check = || {
        let (mut one, mut two) = UnixStream::pair().unwrap();
        let limit = Duration::from_millis(20);
        one.set_read_timeout(Some(limit)).unwrap();
        let begin = Instant::now();
        assert_eq!(one.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(begin.elapsed() >= limit);
        one.set_read_timeout(Some(GENEROUS)).unwrap();
        two.write_all(b"xy").unwrap();
        assert_eq!(one.peek(&mut [0; 8]).unwrap(), 2);
        assert_eq!(one.read(&mut [0; 8]).unwrap(), 2);
        drop(two);
        assert_eq!(one.read(&mut [0; 8]).unwrap(), 0);
        assert_eq!(one.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    };
    on(1).run(check);
    check();
}

#[test]
fn std_types_and_back() {
    let (theirs, mut other) = plain::UnixStream::pair().unwrap();
    let theirs = on(1).run(move || {
        let mut ours = UnixStream::from(theirs);
        let reading = osier::spawn(move || ours.read_exact(&mut [0; 2]).map(|()| ours));
        osier::yield_now();
        other.write_all(b"ab").unwrap();
        let ours = reading.join().unwrap().unwrap();
        (plain::UnixStream::from(ours), other)
    });
    let (mut theirs, other) = theirs;
    theirs.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    // A blocking socket: the call waits, and fails with std's error.
    assert_eq!(theirs.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(other);
}

#[test]
fn datagrams() {
    let (one_name, two_name) = (Name::new("one"), Name::new("two"));
    timeless(2).run(|| {
        let one = UnixDatagram::bind(&one_name.0).unwrap();
        let two = UnixDatagram::bind(&two_name.0).unwrap();
        let path = one_name.0.clone();
        let answering = osier::spawn(move || {
            let mut buf = [0; 16];
            let (count, from) = two.recv_from(&mut buf).unwrap();
            assert_eq!(from.as_pathname(), Some(path.as_path()));
            two.send_to(&buf[..count], from.as_pathname().unwrap()).unwrap();
        });
        settle();
        one.connect(&two_name.0).unwrap();
        one.send(b"ping").unwrap();
        let mut buf = [0; 16];
        assert_eq!(one.recv(&mut buf).unwrap(), 4);
        assert_eq!(&buf[..4], b"ping");
        answering.join().unwrap();

        // A full queue makes the sender wait.
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        let sending = osier::spawn(move || {
            for number in 0..2000u32 {
                sender.send(&number.to_be_bytes()).unwrap();
            }
        });
        for number in 0..2000u32 {
            let mut buf = [0; 4];
            assert_eq!(receiver.recv(&mut buf).unwrap(), 4);
            assert_eq!(u32::from_be_bytes(buf), number);
        }
        sending.join().unwrap();
        let nobody = UnixDatagram::unbound().unwrap();
        nobody.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        assert_eq!(nobody.recv(&mut buf).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn a_datagram_waits_for_room_at_a_receiver_that_it_is_not_connected_to() {
    on(1).run(|| {
        let path = std::env::temp_dir().join(format!("osier-datagram-room-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let receiver = UnixDatagram::bind(&path).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        let to = path.clone();
        let sending = osier::spawn_local(move || {
            for n in 0..2000u32 {
                sender.send_to(&n.to_le_bytes(), &to)?;
            }
            std::io::Result::Ok(())
        });
        crate::given::others_wait();
        receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        for n in 0..2000u32 {
            let mut buf = [0; 4];
            receiver.recv(&mut buf).unwrap();
            assert_eq!(u32::from_le_bytes(buf), n);
        }
        sending.join().unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
    });
}

/// The kernel reports an unconnected socket as writable after each attempt that fails, whether the receiver has room or not.
#[test]
fn a_datagram_for_a_full_receiver_waits_and_keeps_no_worker_busy() {
    let (full, other) = (Name::new("full-receiver"), Name::new("other-receiver"));
    let receiver = UnixDatagram::bind(&full.0).unwrap();
    let others = UnixDatagram::bind(&other.0).unwrap();
    let runtime = on(1);
    runtime.run(|| {
        let socket = UnixDatagram::unbound().unwrap();
        let send = || while socket.send_to(b"x", &full.0).is_ok() {};
        let filled = osier::timeout(Duration::from_millis(20), send);
        assert!(filled.is_err(), "its queue has a bound");
        // It waits for its receiver alone.
        socket.send_to(b"y", &other.0).unwrap();
        assert_eq!(others.recv(&mut [0; 8]).unwrap(), 1);
        osier::scope(|scope| {
            scope.spawn(|| socket.send_to(b"last", &full.0).unwrap());
            scope.spawn(|| osier::block_on(socket.send_to_async(b"last", &full.0)).unwrap());
            others_wait();
            let events = || runtime.metrics().workers[0].events;
            let before = events();
            osier::sleep(Duration::from_millis(20)); // a time in which nothing is to happen
            assert!(events() - before < 10, "{} events", events() - before);
            let mut last = 0;
            while last < 2 {
                let mut bytes = [0; 8];
                let count = receiver.recv(&mut bytes).unwrap();
                last += usize::from(&bytes[..count] == b"last");
            }
        });
    });
}

/// poll(2) takes an unconnected socket for writable, whether the receiver has room or not.
#[test]
fn a_thread_waits_for_the_room_of_a_receiver_no_longer_than_its_timeout() {
    let name = Name::new("full-for-a-thread");
    let _never_read = UnixDatagram::bind(&name.0).unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    socket.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    let (sender, errors) = std::sync::mpsc::channel();
    let path = name.0.clone();
    std::thread::spawn(move || {
        let error = std::iter::repeat_with(|| socket.send_to(b"x", &path)).find_map(Result::err);
        sender.send(error.unwrap().kind())
    });
    let error = errors.recv_timeout(GENEROUS).expect("the timeout ends it");
    assert_eq!(error, ErrorKind::TimedOut);
}
