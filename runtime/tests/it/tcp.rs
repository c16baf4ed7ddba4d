//! TCP streams and listeners with std's behaviour, on fibers, on threads and between both.

use std::collections::HashSet;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::given::{fibers_wait, on, pass, settle, timeless};
use osier::Runtime;
use osier::net::{SocketAddr, Stream, TcpListener, TcpStream, UnixStream};
use testkit::ThreadWatch;

/// A limit that only a broken runtime reaches.
const GENEROUS: Duration = Duration::from_secs(30);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(GENEROUS)).unwrap();
        stream.set_write_timeout(Some(GENEROUS)).unwrap();
    }
    (client, server)
}

/// An address where nobody listens, and the socket that reserves it.
fn refusing() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, addr)
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buf = [0; 1024];
    loop {
        match stream.read(&mut buf)? {
            0 => return Ok(()),
            count => stream.write_all(&buf[..count])?,
        }
    }
}

fn spawn_on<T: Send + 'static>(worker: usize, body: impl FnOnce() -> T + Send + 'static) -> osier::JoinHandle<T> {
    osier::fiber::Builder::new().worker(worker).spawn(move || {
        assert_eq!(osier::fiber::worker(), Some(worker));
        body()
    })
}

/// Raises this process's limit of open files. Returns how many connections to itself that allows.
fn room_for_connections() -> u32 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    // Each connection has two ends, and the other tests of this file need descriptors too.
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u32::try_from(files.saturating_sub(500) / 2).unwrap_or(u32::MAX)
}

#[test]
fn a_thousand_connections_echo_at_once() {
    let connections = room_for_connections().min(1000);
    if connections < 1000 {
        println!("skipped in part: the limit of open files allows {connections} connections");
    }
    on(2).run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let accepting = osier::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream?;
                osier::spawn(move || echo(stream));
            }
            io::Result::Ok(())
        });
        let clients: Vec<_> = (0..connections)
            .map(|number| {
                osier::spawn(move || {
                    let mut stream = TcpStream::connect(addr)?;
                    for round in 0..5 {
                        let message = (number * 10 + round).to_be_bytes();
                        stream.write_all(&message)?;
                        let mut reply = [0; 4];
                        stream.read_exact(&mut reply)?;
                        assert_eq!(reply, message);
                        osier::yield_now();
                    }
                    stream.shutdown(Shutdown::Write)?;
                    stream.read(&mut [0; 1])
                })
            })
            .collect();
        for client in clients {
            assert_eq!(client.join().unwrap().unwrap(), 0);
        }
        accepting.cancel();
        // Cancelled while it waited: it returned an error or unwound.
        assert!(!matches!(accepting.join(), Ok(Ok(()))));
    });
}

#[test]
fn a_plain_accept_loop_uses_every_worker() {
    on(2).run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(HashSet::new()));
        let theirs = Arc::clone(&seen);
        osier::spawn(move || {
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                let seen = Arc::clone(&theirs);
                osier::spawn(move || {
                    seen.lock().unwrap().insert(osier::fiber::worker().unwrap());
                    // Work: the other worker has time to come and take the next.
                    let until = Instant::now() + Duration::from_millis(2);
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    stream.write_all(b"x")
                });
            }
        });
        let begin = Instant::now();
        while seen.lock().unwrap().len() < 2 && begin.elapsed() < GENEROUS {
            let mut batch: Vec<_> = (0..32).map(|_| TcpStream::connect(addr).unwrap()).collect();
            for stream in &mut batch {
                stream.read_exact(&mut [0]).unwrap();
            }
        }
        assert_eq!(seen.lock().unwrap().len(), 2);
    });
}

#[test]
fn two_readers_of_one_stream_both_wake() {
    for workers in [1, 2] {
        timeless(workers).run(move || {
            let (mut client, server) = pair();
            let server = Arc::new(server);
            let readers: Vec<_> = (0..2)
                .map(|index| {
                    let server = Arc::clone(&server);
                    spawn_on(index % workers, move || {
                        let mut byte = [0];
                        (&*server).read_exact(&mut byte).map(|()| byte[0])
                    })
                })
                .collect();
            settle();
            client.write_all(b"a").unwrap();
            settle();
            client.write_all(b"b").unwrap();
            let mut bytes: Vec<u8> = readers
                .into_iter()
                .map(|reader| reader.join().unwrap().unwrap())
                .collect();
            bytes.sort();
            assert_eq!(bytes, b"ab");
        });
    }
}

#[test]
fn the_end_wakes_every_reader() {
    timeless(2).run(|| {
        let (client, server) = pair();
        let server = Arc::new(server);
        let readers: Vec<_> = (0..8)
            .map(|index| {
                let server = Arc::clone(&server);
                spawn_on(index % 2, move || (&*server).read(&mut [0; 8]))
            })
            .collect();
        settle();
        drop(client);
        for reader in readers {
            assert_eq!(reader.join().unwrap().unwrap(), 0);
        }
    });
}

#[test]
fn a_reader_and_a_writer_on_different_workers() {
    on(2).run(|| {
        const BYTES: usize = 8 << 20;
        let (client, server) = pair();
        let (client, server) = (Arc::new(client), Arc::new(server));
        let send = |stream: &Arc<TcpStream>, worker| {
            let stream = Arc::clone(stream);
            spawn_on(worker, move || {
                let piece = vec![7; 100_000];
                let mut left = BYTES;
                while left > 0 {
                    left -= (&*stream).write(&piece[..left.min(piece.len())])?;
                }
                stream.shutdown(Shutdown::Write)
            })
        };
        let receive = |stream: &Arc<TcpStream>, worker| {
            let stream = Arc::clone(stream);
            spawn_on(worker, move || io::copy(&mut &*stream, &mut io::sink()))
        };
        let senders = [send(&client, 0), send(&server, 1)];
        let receivers = [receive(&client, 1), receive(&server, 0)];
        for sender in senders {
            sender.join().unwrap().unwrap();
        }
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap().unwrap(), BYTES as u64);
        }
    });
}

#[test]
fn a_stream_moves_between_workers_and_threads() {
    on(2).run(|| {
        let (mut client, mut server) = pair();
        let answering = osier::spawn(move || {
            for round in 0..60u8 {
                let mut byte = [0];
                client.read_exact(&mut byte)?;
                assert_eq!(byte[0], round);
                client.write_all(&[round])?;
            }
            io::Result::Ok(())
        });
        for round in 0..60u8 {
            let body = move || {
                // Nothing has come yet: this waits, wherever it runs.
                server.write_all(&[round]).unwrap();
                server.read_exact(&mut [0]).unwrap();
                server
            };
            server = match round % 3 {
                2 => {
                    let thread = thread::spawn(body);
                    osier::unblock(move || thread.join().unwrap())
                }
                worker => spawn_on(worker.into(), body).join().unwrap(),
            };
        }
        answering.join().unwrap().unwrap();
    });
}

#[test]
fn a_stream_outlives_its_runtime() {
    let (client, server) = on(1).run(|| {
        let (mut client, mut server) = pair();
        client.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        server.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        // Registers both.
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        (client, server)
    });
    for _ in 0..3 {
        on(1).run(|| {
            let waits = ThreadWatch::current();
            thread::scope(|scope| {
                scope.spawn(|| {
                    waits.until_it_waits();
                    (&client).write_all(b"!").unwrap();
                });
                server.set_read_timeout(Some(GENEROUS)).unwrap();
                (&server).read_exact(&mut [0]).unwrap();
            });
        });
    }
}

#[test]
fn one_stream_is_used_by_two_runtimes() {
    let (one, two) = (
        Runtime::builder().workers(1).build().unwrap(),
        Runtime::builder().workers(1).build().unwrap(),
    );
    let (client, server) = one.run(pair);
    let server = Arc::new(server);
    let theirs = Arc::clone(&server);
    let waiting = two.spawn(move || {
        let mut byte = [0];
        (&*theirs).read_exact(&mut byte).map(|()| byte[0])
    });
    fibers_wait(&two);
    one.run(|| {
        // Takes the read side over, and goes away with it.
        let read = osier::timeout(Duration::from_millis(5), || (&*server).read(&mut [0]));
        assert!(read.is_err());
    });
    drop(one);
    (&client).write_all(b"!").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), b'!');
}

#[test]
fn a_plain_thread_blocks() {
    let (mut client, mut server) = pair();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        sender.send(ThreadWatch::current()).unwrap();
        let mut text = String::new();
        server.read_to_string(&mut text).map(|_| text)
    });
    receiver.recv().unwrap().until_it_waits();
    client.write_all(b"hello").unwrap();
    drop(client);
    assert_eq!(thread.join().unwrap().unwrap(), "hello");
}

#[test]
fn timeouts_are_timed_out_and_never_early() {
    fn check() {
        let (mut client, server) = pair();
        let limit = Duration::from_millis(30);
        for zero in [
            server.set_read_timeout(Some(Duration::ZERO)),
            server.set_write_timeout(Some(Duration::ZERO)),
        ] {
            assert_eq!(zero.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        server.set_read_timeout(Some(limit)).unwrap();
        assert_eq!(server.read_timeout().unwrap(), Some(limit));
        let begin = Instant::now();
        assert_eq!((&server).read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(begin.elapsed() >= limit);
        // The stream works on.
        client.write_all(b"x").unwrap();
        server.set_read_timeout(None).unwrap();
        (&server).read_exact(&mut [0]).unwrap();

        server.set_write_timeout(Some(limit)).unwrap();
        let piece = vec![0; 1 << 20];
        let error = loop {
            match (&server).write(&piece) {
                Ok(count) => assert!(count > 0),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
    on(1).run(check);
    check();
}

#[test]
fn a_cancelled_read_loses_no_bytes() {
    timeless(1).run(|| {
        let (mut client, server) = pair();
        let server = Arc::new(server);
        let theirs = Arc::clone(&server);
        let reading = osier::spawn(move || (&*theirs).read(&mut [0; 8]));
        settle();
        client.write_all(b"x").unwrap();
        reading.cancel();
        let got = match reading.join() {
            Ok(Ok(count)) => count,
            _ => 0,
        };
        if got == 0 {
            (&*server).read_exact(&mut [0]).unwrap();
        }
    });
}

#[test]
fn half_close_leaves_the_other_half() {
    on(1).run(|| {
        let (mut client, mut server) = pair();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        server.read_to_string(&mut text).unwrap();
        assert_eq!(text, "question");
        server.write_all(b"answer").unwrap();
        drop(server);
        text.clear();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer");
    });
}

#[test]
fn shutdown_wakes_who_waits_here() {
    timeless(2).run(|| {
        let (_client, server) = pair();
        let server = Arc::new(server);
        let theirs = Arc::clone(&server);
        let reading = osier::spawn(move || (&*theirs).read(&mut [0; 8]));
        settle();
        server.shutdown(Shutdown::Read).unwrap();
        assert_eq!(reading.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn a_reset_is_an_error_and_not_an_end() {
    timeless(1).run(|| {
        let (client, mut server) = pair();
        let reading = osier::spawn(move || server.read(&mut [0; 8]));
        settle();
        client.set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        assert_eq!(reading.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn writing_to_who_has_gone_is_an_error() {
    timeless(1).run(|| {
        let (client, mut server) = pair();
        drop(client);
        let error = loop {
            if let Err(error) = server.write_all(&[0; 4096]) {
                break error;
            }
            settle();
        };
        assert!(
            matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
            "{error}"
        );
    });
}

#[test]
fn an_end_that_comes_while_the_fiber_is_elsewhere_is_found() {
    timeless(1).run(|| {
        let (mut client, mut server) = pair();
        let reading = osier::spawn(move || {
            // Registered, and then asleep when the end comes.
            server.read_exact(&mut [0]).unwrap();
            pass(Duration::from_millis(30));
            server.read(&mut [0; 8])
        });
        settle();
        client.write_all(b"x").unwrap();
        settle();
        drop(client);
        assert_eq!(reading.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn peek_leaves_the_bytes() {
    timeless(1).run(|| {
        let (mut client, mut server) = pair();
        let peeking = osier::spawn(move || {
            let mut buf = [0; 8];
            for _ in 0..2 {
                let count = server.peek(&mut buf).unwrap();
                assert_eq!(&buf[..count], b"hello");
            }
            server.read_exact(&mut buf[..5]).unwrap();
            assert_eq!(server.peek(&mut buf).unwrap(), 0);
        });
        settle();
        client.write_all(b"hello").unwrap();
        settle();
        drop(client);
        peeking.join().unwrap();
    });
}

#[test]
fn vectored_reads_and_writes() {
    timeless(1).run(|| {
        let (mut client, mut server) = pair();
        let parts = [b"one ".as_slice(), b"", b"two ", b"three"];
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        assert_eq!(client.write_vectored(&slices).unwrap(), 13);
        let (mut first, mut second) = ([0; 4], [0; 20]);
        let count = server
            .read_vectored(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)])
            .unwrap();
        assert_eq!((count, &first, &second[..9]), (13, b"one ", b"two three".as_slice()));
        // More slices than the kernel takes in one call.
        let many = vec![IoSlice::new(b"z"); 5000];
        let taken = client.write_vectored(&many).unwrap();
        assert!((1..=5000).contains(&taken));
        server.read_exact(&mut vec![0; taken]).unwrap();
        // It waits like a plain read.
        let reading = osier::spawn(move || {
            let (mut first, mut second) = ([0; 1], [0; 1]);
            server.read_vectored(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)])
        });
        settle();
        assert_eq!(client.write_more(b"ab").unwrap(), 2);
        client.shutdown(Shutdown::Write).unwrap();
        assert!(reading.join().unwrap().unwrap() > 0);
    });
}

#[test]
fn options_are_those_of_std() {
    on(1).run(|| {
        let (client, server) = pair();
        client.set_nodelay(true).unwrap();
        assert!(client.nodelay().unwrap());
        client.set_ttl(17).unwrap();
        assert_eq!(client.ttl().unwrap(), 17);
        client.set_linger(Some(Duration::from_secs(3))).unwrap();
        assert_eq!(client.linger().unwrap(), Some(Duration::from_secs(3)));
        assert!(client.take_error().unwrap().is_none());
        assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
        let text = format!("{client:?}");
        assert!(
            text.contains("TcpStream") && text.contains(&client.local_addr().unwrap().to_string()),
            "{text}"
        );
    });
}

#[test]
fn a_refused_connection_is_refused() {
    on(1).run(|| {
        let (_reserved, unused) = refusing();
        assert_eq!(
            TcpStream::connect(unused).unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        let limited = TcpStream::connect_timeout(&unused, GENEROUS);
        assert_eq!(limited.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
    let (_reserved, unused) = refusing();
    assert_eq!(
        TcpStream::connect(unused).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
}

#[test]
fn the_first_address_that_answers_is_taken() {
    on(1).run(|| {
        let (_reserved, unused) = refusing();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addrs = [unused, listener.local_addr().unwrap(), unused];
        let client = TcpStream::connect(&addrs[..]).unwrap();
        assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
        let none: &[SocketAddr] = &[];
        assert_eq!(TcpStream::connect(none).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_connection_that_nobody_takes_times_out() {
    on(1).run(|| {
        let zero = TcpStream::connect_timeout(&([127, 0, 0, 1], 1).into(), Duration::ZERO).unwrap_err();
        assert_eq!(zero.kind(), ErrorKind::InvalidInput);
        // This call takes no `None`.
        assert!(zero.to_string().contains("TcpStream::connect for no timeout"), "{zero}");
        // A listener whose queue is full drops what comes.
        let fd = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        fd.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        fd.listen(0).unwrap();
        let addr = fd.local_addr().unwrap().as_socket().unwrap();
        let mut queued = Vec::new();
        let begin = Instant::now();
        loop {
            match TcpStream::connect_timeout(&addr, Duration::from_millis(100)) {
                Ok(stream) => queued.push(stream),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::TimedOut);
                    break;
                }
            }
            assert!(
                begin.elapsed() < GENEROUS,
                "a queue of length 0 took {} connections",
                queued.len()
            );
        }
    });
}

/// Linux alone promises that connections inherit the option.
#[cfg(target_os = "linux")]
#[test]
fn connections_of_listeners_that_workers_share_have_nodelay_from_the_start() {
    on(1).run(|| {
        let accepted = |listener: &TcpListener| {
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            listener.accept().unwrap().0.nodelay().unwrap()
        };
        let shared = TcpListener::bind_shared("127.0.0.1:0".parse().unwrap(), 2).unwrap();
        for listener in &shared {
            assert!(listener.nodelay().unwrap());
        }
        drop(shared);
        let shared = TcpListener::bind_shared("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        assert!(accepted(&shared[0]));
        let alone = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!alone.nodelay().unwrap() && !accepted(&alone));
    });
}

/// Other systems have no such option.
#[cfg(target_os = "linux")]
#[test]
fn a_deferring_listener_accepts_who_speaks_before_who_is_silent() {
    on(1).run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_defer_accept(GENEROUS).unwrap();
        let connect = || std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut silent, mut speaks) = (connect(), connect());
        speaks.write_all(b"1").unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, speaks.local_addr().unwrap());
        let mut byte = [0];
        assert_eq!(accepted.try_read(&mut byte).unwrap(), 1);
        silent.write_all(b"2").unwrap();
        assert_eq!(listener.accept().unwrap().1, silent.local_addr().unwrap());
    });
}

#[test]
fn a_port_in_use_is_in_use_unless_it_is_shared() {
    on(2).run(|| {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = one.local_addr().unwrap();
        assert_eq!(TcpListener::bind(addr).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(
            TcpListener::bind_reuseport(addr).unwrap_err().kind(),
            ErrorKind::AddrInUse
        );

        let shared = TcpListener::bind_reuseport("127.0.0.1:0").unwrap();
        let addr = shared.local_addr().unwrap();
        let listeners = [shared, TcpListener::bind_reuseport(addr).unwrap()];
        let served = Arc::new(AtomicUsize::new(0));
        for (worker, listener) in listeners.into_iter().enumerate() {
            let served = Arc::clone(&served);
            drop(spawn_on(worker, move || {
                loop {
                    let (mut stream, _) = listener.accept().unwrap();
                    served.fetch_or(1 << worker, Ordering::Relaxed);
                    stream.write_all(b"x").unwrap();
                }
            }));
        }
        let begin = Instant::now();
        while served.load(Ordering::Relaxed) != 0b11 {
            TcpStream::connect(addr).unwrap().read_exact(&mut [0]).unwrap();
            assert!(begin.elapsed() < GENEROUS, "one of two listeners gets every connection");
        }
    });
}

#[test]
fn several_fibers_accept_from_one_listener() {
    timeless(2).run(|| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let addr = listener.local_addr().unwrap();
        let accepting: Vec<_> = (0..4)
            .map(|index| {
                let listener = Arc::clone(&listener);
                spawn_on(index % 2, move || listener.accept().map(drop))
            })
            .collect();
        settle();
        let _clients: Vec<_> = (0..4).map(|_| TcpStream::connect(addr).unwrap()).collect();
        for fiber in accepting {
            fiber.join().unwrap().unwrap();
        }
    });
}

#[test]
fn std_types_and_back() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut plain = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let std_server = listener.accept().unwrap().0;
    std_server.set_read_timeout(Some(GENEROUS)).unwrap();
    plain.set_nodelay(true).unwrap();
    let listener: TcpListener = listener.into();

    let server = on(1).run(move || {
        let mut server = TcpStream::from(std_server);
        assert_eq!(server.read_timeout().unwrap(), Some(GENEROUS));
        let reading = osier::spawn(move || {
            server.read_exact(&mut [0; 3]).unwrap();
            server
        });
        osier::yield_now();
        plain.write_all(b"abc").unwrap();
        let mut server = reading.join().unwrap();

        let again = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.accept().unwrap();
        drop(again);
        let listener: std::net::TcpListener = listener.into();
        let flags = rustix::fs::fcntl_getfl(&listener).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "a std listener blocks");

        server.write_all(b"x").unwrap();
        server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        plain.read_exact(&mut [0]).unwrap();
        (server, plain)
    });
    let (server, mut plain) = server;
    // Blocking again, with its timeout.
    let mut server: std::net::TcpStream = server.into();
    assert_eq!(server.read_timeout().unwrap(), Some(Duration::from_millis(20)));
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.set_read_timeout(Some(GENEROUS)).unwrap();
    plain.write_all(b"y").unwrap();
    server.read_exact(&mut [0]).unwrap();

    let fd = OwnedFd::from(TcpStream::from(server));
    let mut server = TcpStream::from(fd);
    plain.write_all(b"z").unwrap();
    on(1).run(move || server.read_exact(&mut [0]).unwrap());
}

#[test]
fn a_stream_turned_into_a_descriptor_leaves_no_events_behind() {
    timeless(1).run(|| {
        let (client, server) = pair();
        let server = Arc::new(server);
        let theirs = Arc::clone(&server);
        let reading = osier::spawn(move || (&*theirs).read(&mut [0]));
        settle();
        (&client).write_all(b"x").unwrap();
        reading.join().unwrap().unwrap();
        let fd = OwnedFd::from(Arc::into_inner(server).unwrap());
        // The same number, made into a stream again, registers without a clash.
        let mut server = TcpStream::from(fd);
        let reading = osier::spawn(move || server.read(&mut [0]));
        settle();
        (&client).write_all(b"x").unwrap();
        assert_eq!(reading.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn a_clone_lives_on_when_its_original_is_dropped() {
    timeless(1).run(|| {
        let (mut client, server) = pair();
        let mut clone = server.try_clone().unwrap();
        // The original is registered; its registration must go with it, although its description stays open.
        server.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        assert_eq!((&server).read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(server);
        // Another socket gets its slot in the table, and must not get its events.
        let (mut other_client, mut other) = pair();
        let reading = osier::spawn(move || other.read(&mut [0; 8]));
        let cloned = osier::spawn(move || {
            let mut text = String::new();
            clone.read_to_string(&mut text).map(|_| text)
        });
        settle();
        client.write_all(b"hello").unwrap();
        drop(client);
        assert_eq!(cloned.join().unwrap().unwrap(), "hello");
        assert!(!reading.is_finished());
        other_client.write_all(b"x").unwrap();
        assert_eq!(reading.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn a_blocking_duplicate_does_not_stop_the_worker() {
    on(1).run(|| {
        let (mut client, server) = pair();
        let duplicate = std::net::TcpStream::from(server.as_fd().try_clone_to_owned().unwrap());
        duplicate.set_nonblocking(false).unwrap();
        let (done, finished) = mpsc::channel();
        let reading = osier::spawn_local(move || {
            let mut server = server;
            server.read_exact(&mut [0]).unwrap();
            done.send(()).unwrap();
        });
        osier::yield_now();
        osier::yield_now();
        // Reached only if the read above has suspended.
        client.write_all(b"x").unwrap();
        reading.join().unwrap();
        finished.try_recv().unwrap();
    });
}

#[test]
fn streams_are_send_and_sync() {
    fn check<T: Send + Sync + Unpin>() {}
    check::<TcpStream>();
    check::<TcpListener>();
    check::<osier::net::UdpSocket>();
    check::<osier::net::UnixStream>();
    check::<osier::net::UnixListener>();
    check::<osier::net::UnixDatagram>();
}

#[test]
fn an_io_loop_that_never_blocks_lets_others_run() {
    on(1).run(|| {
        let (mut client, mut server) = pair();
        let stop = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&stop);
        let busy = osier::spawn(move || {
            let mut buf = [1];
            while theirs.load(Ordering::Relaxed) == 0 {
                client.write_all(&buf).unwrap();
                server.read_exact(&mut buf).unwrap();
            }
        });
        (0..10).for_each(|_| osier::yield_now());
        stop.store(1, Ordering::Relaxed);
        busy.join().unwrap();
    });
}

/// accept(2) takes a descriptor before it looks for a connection, and fails without one although nobody waits.
#[test]
fn accepting_lacks_a_descriptor_only_for_a_connection() {
    let child = testkit::in_a_child("tcp::accepting_lacks_a_descriptor_only_for_a_connection", || {
        Runtime::builder().workers(1).build().unwrap().run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let connect = || std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let soon = || osier::timeout(Duration::from_millis(20), || listener.accept());
            assert!(soon().is_err(), "the poller knows the listener from now on");
            let nofile = rustix::process::Resource::Nofile;
            let mut limit = rustix::process::getrlimit(nofile);
            limit.current = Some(64);
            rustix::process::setrlimit(nofile, limit).unwrap();
            let mut files: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
            files.truncate(files.len() - 2);
            let _first = connect();
            let _accepted = soon().expect("a connection is there").unwrap();
            assert!(soon().is_err(), "nobody has connected");
            files.pop();
            let _second = connect();
            let lacking = soon().expect("a connection is there").unwrap_err();
            assert_eq!(
                rustix::io::Errno::from_io_error(&lacking),
                Some(rustix::io::Errno::MFILE)
            );
            files.pop();
            soon().expect("a connection is there").unwrap();
        });
    });
    if let Some(child) = child {
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    }
}

#[test]
fn a_stream_of_either_kind_takes_the_option_for_small_writes() {
    let (client, _server) = pair();
    let either = Stream::from(client.try_clone().unwrap());
    assert!(!client.nodelay().unwrap());
    either.set_nodelay(true).unwrap();
    assert!(client.nodelay().unwrap(), "one socket");
    Stream::from(UnixStream::pair().unwrap().0).set_nodelay(true).unwrap();
}

/// The system counts whole seconds, and zero of them reset the connection.
#[test]
fn a_close_that_lingers_for_less_than_a_second_resets_nothing() {
    let (client, _server) = pair();
    let ms = Duration::from_millis;
    let longest = Duration::from_secs(i32::MAX as u64);
    for (set, had) in [
        (ms(500), ms(1000)),
        (ms(0), ms(0)),
        (ms(1001), ms(2000)),
        (Duration::MAX, longest),
    ] {
        client.set_linger(Some(set)).unwrap();
        assert_eq!(client.linger().unwrap(), Some(had));
    }
    client.set_linger(None).unwrap();
}

#[test]
fn a_limit_for_acknowledgements_that_the_system_cannot_count_is_the_nearest_that_it_can() {
    let (client, _server) = pair();
    let client = Stream::from(client);
    let set = |limit| {
        client.set_user_timeout(Some(limit)).unwrap();
        rustix::net::sockopt::tcp_user_timeout(&client).unwrap()
    };
    assert_eq!(set(Duration::MAX), i32::MAX as u32);
    assert_eq!(set(Duration::from_micros(1)), 1, "zero would be none");
    assert_eq!(set(Duration::from_millis(1500)), 1500);
}
