//! Leases of connections to groups of backends: the choice of backend and connection, and the
//! effect of failures.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, eventually, eventually_on_fiber};
use osier_web::http::StatusCode;
use osier_web::upstream::{Builder, Check, Lease, Unavailable, Upstream};
use testkit::nobody;

/// Returns every byte, on any number of connections.
struct Backend {
    addr: SocketAddr,
    open: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Backend {
    fn start() -> Backend {
        Backend::at("127.0.0.1:0".parse().unwrap())
    }

    fn at(addr: SocketAddr) -> Backend {
        let listener = TcpListener::bind(addr).expect("a port on loopback");
        let backend = Backend {
            addr: listener.local_addr().unwrap(),
            open: Arc::default(),
            accepted: Arc::default(),
            connections: Arc::default(),
        };
        let (open, accepted) = (backend.open.clone(), backend.accepted.clone());
        let connections = backend.connections.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                accepted.fetch_add(1, Ordering::SeqCst);
                open.fetch_add(1, Ordering::SeqCst);
                connections.lock().unwrap().push(stream.try_clone().unwrap());
                let open = open.clone();
                thread::spawn(move || {
                    let mut byte = [0];
                    while let Ok(1) = stream.read(&mut byte) {
                        if stream.write_all(&byte).is_err() {
                            break;
                        }
                    }
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        backend
    }

    /// Ends every connection from this side.
    fn hang_up(&self) {
        for stream in self.connections.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        eventually("all are closed", || self.open() == 0);
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn group(addrs: &[SocketAddr]) -> Builder {
    let addresses = addrs.iter().map(|addr| addr.to_string().parse().expect("an address"));
    Upstream::builder("test").backends(addresses).on_log(|_| {})
}

/// Sends one request of one byte.
fn ask(lease: &Lease, byte: u8) {
    let mut stream = lease;
    stream.write_all(&[byte]).expect("the backend takes it");
    let mut answer = [0];
    stream.read_exact(&mut answer).expect("the backend answers");
    assert_eq!(answer[0], byte);
    lease.answered();
}

fn run<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    osier::Runtime::builder()
        .workers(1)
        .build()
        .expect("a runtime")
        .run(body)
}

#[test]
fn the_backend_with_the_fewest_leases_is_chosen_and_equal_ones_take_turns() {
    let backends = [Backend::start(), Backend::start(), Backend::start()];
    let upstream = group(&[backends[0].addr, backends[1].addr, backends[2].addr])
        .build()
        .unwrap();
    run(|| {
        let mut held: Vec<Lease> = (0..9).map(|_| upstream.lease(None).unwrap()).collect();
        let leases = || upstream.stats().iter().map(|stats| stats.leases).collect::<Vec<_>>();
        assert_eq!(leases(), [3, 3, 3]);
        // Two leases of backend 1 end, so the next two go there.
        for _ in 0..2 {
            let at = held.iter().position(|lease| lease.backend() == 1).unwrap();
            held.remove(at);
        }
        assert_eq!(leases(), [3, 1, 3]);
        assert!((0..2).all(|_| {
            held.push(upstream.lease(None).unwrap());
            held.last().unwrap().backend() == 1
        }));
        held.clear();
        assert_eq!(leases(), [0, 0, 0]);
        // One lease at a time: all backends are equal each time, so each gets its share. What happened before moves a turn.
        let mut turns = HashMap::new();
        for _ in 0..30 {
            *turns.entry(upstream.lease(None).unwrap().backend()).or_insert(0) += 1;
        }
        assert!(
            turns.len() == 3 && turns.values().all(|count| (9..=11).contains(count)),
            "{turns:?}"
        );
    });
}

#[test]
fn a_kept_connection_is_used_again_until_the_backend_closes_it() {
    let backend = Backend::start();
    let upstream = group(&[backend.addr]).build().unwrap();
    run(|| {
        for round in 0..100 {
            let lease = upstream.lease(None).unwrap();
            assert_eq!(lease.is_reused(), round > 0);
            ask(&lease, 7);
            lease.keep();
        }
        assert_eq!(backend.accepted(), 1);
        assert_eq!(upstream.stats()[0].reused, 99);

        backend.hang_up();
        let mut lease = upstream.lease(None).unwrap();
        // The kernel may deliver the end a moment later.
        let start = Instant::now();
        while lease.is_reused() && start.elapsed() < PATIENCE {
            lease.keep();
            osier::sleep(Duration::from_millis(1));
            lease = upstream.lease(None).unwrap();
        }
        assert!(!lease.is_reused(), "the closed one is seen before it is used");
        ask(&lease, 8);
        // Unexpected bytes make a connection useless too.
        (&lease).write_all(b"?").unwrap();
        eventually_on_fiber("the bytes are there", || {
            upstream.stats()[0].stale != 1 || lease_is_readable(&lease)
        });
        lease.keep();
        assert!(!upstream.lease(None).unwrap().is_reused());
        assert_eq!(upstream.stats()[0].stale, 2);
    });
}

fn lease_is_readable(lease: &Lease) -> bool {
    osier::io::readable(lease.stream(), Some(Instant::now() + PATIENCE)).is_ok()
}

#[test]
fn no_more_connections_are_kept_than_the_bound_and_none_longer_than_its_time() {
    let backend = Backend::start();
    let upstream = group(&[backend.addr])
        .keep(3)
        // They are counted before.
        .idle_timeout(Duration::from_secs(2))
        .build()
        .unwrap();
    run(|| {
        let held: Vec<Lease> = (0..5).map(|_| upstream.lease(None).unwrap()).collect();
        held.into_iter().for_each(|lease| {
            ask(&lease, 1);
            lease.keep();
        });
        assert_eq!(upstream.stats()[0].kept, 3);
        // No lease touches these connections. The upstream's own fiber closes them.
        eventually_on_fiber("they are closed", || backend.open() == 0);
        assert_eq!((upstream.stats()[0].kept, upstream.stats()[0].stale), (0, 3));
    });
}

#[test]
fn with_the_upstream_end_its_fiber_and_its_connections() {
    let backend = Backend::start();
    let upstream = group(&[backend.addr]).build().unwrap();
    run(move || {
        let lease = upstream.lease(None).unwrap();
        ask(&lease, 1);
        lease.keep();
        let named = || osier::dump().to_string().contains("upstream test");
        eventually_on_fiber("the fiber runs while something is kept", named);
        drop(upstream);
        eventually_on_fiber("both are gone", || backend.open() == 0 && !named());
    });
}

#[test]
fn a_backend_that_refuses_is_passed_over_and_out_after_some_failures() {
    let backend = Backend::start();
    let gone = nobody();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = lines.clone();
    let upstream = group(&[gone, backend.addr])
        .failures(2)
        // It is over after the leases below.
        .backoff(Duration::from_secs(2), Duration::from_secs(2))
        .on_log(move |line| log.lock().unwrap().push(line.to_string()))
        .build()
        .unwrap();
    run(|| {
        for _ in 0..20 {
            let lease = upstream.lease(None).unwrap();
            assert_eq!(lease.backend(), 1, "every request finds the backend that is there");
            ask(&lease, 1);
        }
        let stats = upstream.stats();
        assert_eq!((stats[0].is_in, stats[1].is_in), (false, true));
        assert_eq!(stats[0].failures, 2, "and then nobody tries it any more");
        assert_eq!(lines.lock().unwrap().len(), 1);
        assert!(lines.lock().unwrap()[0].contains(&format!("backend {gone} is out for 2s")));

        let back = Backend::at(gone);
        eventually_on_fiber("it comes back", || {
            let lease = upstream.lease(None).unwrap();
            ask(&lease, 1);
            upstream.stats()[0].is_in
        });
        assert!(back.accepted() >= 1);
        assert!(lines.lock().unwrap()[1].contains(&format!("backend {gone} is in again")));
    });
}

#[test]
fn what_cannot_be_had_is_said_with_the_status_for_it() {
    run(|| {
        // A refused connection is a 502, however often: the last backend stays in.
        let upstream = group(&[nobody(), nobody()])
            .failures(1)
            .backoff(PATIENCE, PATIENCE)
            .build()
            .unwrap();
        for _ in 0..3 {
            let error = upstream.lease(None).unwrap_err();
            assert!(matches!(error, Unavailable::Connect { .. }), "{error}");
            assert_eq!(error.status(), StatusCode::BAD_GATEWAY);
        }
        let stats = upstream.stats();
        assert_eq!(stats.iter().filter(|backend| backend.is_in).count(), 1);
        assert_eq!(
            stats[0].failures + stats[1].failures,
            4,
            "one is tried once, the other always"
        );

        // Backends that fail their checks: 503 without an attempt.
        let ms = Duration::from_millis;
        let check = Check::connect().every(ms(10)).limit(PATIENCE);
        let upstream = group(&[nobody()]).check(check).build().unwrap();
        upstream.start();
        eventually_on_fiber("it is unhealthy", || !upstream.stats()[0].is_in);
        let error = upstream.lease(None).unwrap_err();
        assert!(matches!(error, Unavailable::Out { .. }), "{error}");
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);

        // At the limit of connections: 503.
        let backend = Backend::start();
        let upstream = group(&[backend.addr]).max_leases(2).build().unwrap();
        let held = [upstream.lease(None).unwrap(), upstream.lease(None).unwrap()];
        let error = upstream.lease(None).unwrap_err();
        assert!(matches!(error, Unavailable::Busy { .. }), "{error}");
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(held);
        assert!(upstream.lease(None).is_ok());
    });
}

#[test]
fn a_unix_socket_whose_file_is_gone_is_a_502_until_there_is_another() {
    let folder = testkit::Folder::new();
    let path = folder.join("app.sock");
    let bind = || std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (_old, address) = (bind(), format!("unix:{}", path.display()));
    run(|| {
        let builder = Upstream::builder("app").backend(address.parse().unwrap());
        let upstream = builder.on_log(|_| {}).build().unwrap();
        drop(upstream.lease(None).unwrap());
        // The application still listens, but nobody finds it.
        std::fs::remove_file(&path).unwrap();
        for failures in 1..3 {
            let error = upstream.lease(None).unwrap_err();
            assert!(matches!(error, Unavailable::Connect { .. }), "{error}");
            assert_eq!(error.status(), StatusCode::BAD_GATEWAY);
            assert!(error.to_string().contains("No such file"), "{error}");
            assert_eq!(upstream.stats()[0].failures, failures);
        }
        let _new = bind();
        drop(upstream.lease(None).unwrap());
        assert_eq!(upstream.stats()[0].connects, 2);
    });
}

#[test]
fn connecting_has_a_limit_and_a_deadline() {
    let dir = std::env::temp_dir().join(format!("osier-upstream-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("full.sock");
    let _ = std::fs::remove_file(&path);
    // A backlog of one place, from which nothing is accepted.
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    socket.listen(0).unwrap();
    let _first = std::os::unix::net::UnixStream::connect(&path).unwrap();

    let address = || format!("unix:{}", path.display()).parse().unwrap();
    run(|| {
        let limited = Upstream::builder("full").backend(address()).on_log(|_| {});
        let upstream = limited.connect_timeout(Duration::from_millis(50)).build().unwrap();
        let error = upstream.lease(None).unwrap_err();
        assert!(matches!(error, Unavailable::TimedOut { .. }), "{error}");
        assert_eq!(error.status(), StatusCode::GATEWAY_TIMEOUT);

        let patient = Upstream::builder("full").backend(address()).on_log(|_| {});
        let upstream = patient.connect_timeout(PATIENCE * 10).build().unwrap();
        let error = upstream
            .lease(Some(Instant::now() + Duration::from_millis(50)))
            .unwrap_err();
        assert!(matches!(error, Unavailable::TimedOut { .. }), "{error}");

        // A waiting lease can be cancelled. That is no failure of a backend.
        let waiting = upstream.clone();
        let fiber = osier::spawn(move || match waiting.lease(None) {
            Err(Unavailable::Cancelled(_)) => "cancelled",
            _ => "something else",
        });
        eventually_on_fiber("it waits for a connection", || upstream.stats()[0].leases == 1);
        fiber.cancel();
        assert_eq!(fiber.join().unwrap(), "cancelled");
        assert!(upstream.stats()[0].is_in);
        assert_eq!(upstream.stats()[0].leases, 0);
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_second_attempt_gets_a_new_connection_to_another_backend_if_there_is_one() {
    let backends = [Backend::start(), Backend::start()];
    let upstream = group(&[backends[0].addr, backends[1].addr]).build().unwrap();
    run(|| {
        for _ in 0..4 {
            let leases = [upstream.lease(None).unwrap(), upstream.lease(None).unwrap()];
            leases.into_iter().for_each(|lease| {
                ask(&lease, 1);
                lease.keep();
            });
            let first = upstream.lease(None).unwrap();
            assert!(first.is_reused());
            let second = upstream.lease_anew(None, Some(first.backend())).unwrap();
            assert!(!second.is_reused());
            assert_ne!(second.backend(), first.backend());
        }
        let alone = group(&[backends[0].addr]).build().unwrap();
        assert_eq!(alone.lease_anew(None, Some(0)).unwrap().backend(), 0);
    });
}

#[test]
fn leases_of_many_workers_never_share_a_connection_and_are_counted_right() {
    let backends = [Backend::start(), Backend::start()];
    let upstream = group(&[backends[0].addr, backends[1].addr]).keep(16).build().unwrap();
    // Four workers, eight fibers each. Every byte must return to its sender.
    let runtime = osier::Runtime::builder().workers(4).build().unwrap();
    runtime.run(|| {
        let fibers: Vec<_> = (0..32u8)
            .map(|fiber| {
                let upstream = upstream.clone();
                osier::spawn(move || {
                    for _ in 0..60 {
                        let lease = upstream.lease(None).unwrap();
                        ask(&lease, fiber);
                        osier::yield_now();
                        ask(&lease, fiber);
                        lease.keep();
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
    let stats = upstream.stats();
    assert_eq!(stats.iter().map(|stats| stats.leases).sum::<usize>(), 0);
    assert_eq!(stats.iter().map(|stats| stats.total).sum::<u64>(), 32 * 60);
    let reused: u64 = stats.iter().map(|stats| stats.reused).sum();
    let connects: u64 = stats.iter().map(|stats| stats.connects).sum();
    assert_eq!(reused + connects, 32 * 60);
    assert!(reused > connects, "{stats:?}");
    assert!(stats.iter().all(|stats| stats.kept <= 16));
    // Both backends are used. The one with fewer leases is chosen, which on a busy machine is
    // mostly the same one.
    assert!(stats.iter().all(|stats| stats.total > 32), "{stats:?}");
}

#[test]
fn a_kept_connection_serves_another_worker() {
    let backend = Backend::start();
    let upstream = group(&[backend.addr]).build().unwrap();
    let runtime = osier::Runtime::builder().workers(2).build().unwrap();
    runtime.run(|| {
        let on = |worker| {
            let upstream = upstream.clone();
            let fiber = osier::fiber::Builder::new().worker(worker).spawn(move || {
                let lease = upstream.lease(None).unwrap();
                ask(&lease, 5);
                let reused = lease.is_reused();
                lease.keep();
                reused
            });
            fiber.join().unwrap()
        };
        assert!(!on(0));
        assert!(on(1), "nothing lies on this worker's shelf, but on the other's");
        assert!(on(0));
    });
    assert_eq!(backend.accepted(), 1);
}

#[test]
fn a_name_is_looked_up() {
    let backend = Backend::start();
    let name = format!("localhost:{}", backend.addr.port());
    let upstream = Upstream::builder("name")
        .backend(name.parse().unwrap())
        .build()
        .unwrap();
    run(|| {
        ask(&upstream.lease(None).unwrap(), 1);
        ask(&upstream.lease(None).unwrap(), 1);
        let unknown = Upstream::builder("nowhere")
            .backend("name.invalid:80".parse().unwrap())
            .on_log(|_| {})
            .build()
            .unwrap();
        assert!(upstream.stats()[0].connects == 2 && unknown.lease(None).is_err());
    });
}

#[test]
fn active_checks_take_a_backend_out_and_bring_it_back_without_a_request() {
    let lost = nobody();
    let backend = Backend::start();
    let upstream = group(&[lost, backend.addr])
        .check(Check::connect().every(Duration::from_millis(20)).fall(2).rise(2))
        .build()
        .unwrap();
    run(|| {
        upstream.start();
        let until = |what: &str, is_in: bool| {
            eventually_on_fiber(what, || upstream.stats()[0].is_in == is_in);
        };
        until("it is found unwell", false);
        let failures = upstream.stats()[0].failures;
        assert!((0..10).all(|_| upstream.lease(None).unwrap().backend() == 1));
        assert!(failures >= 2, "found by the checks: {failures}");
        let _back = Backend::at(lost);
        until("it is found well again", true);
        let both: std::collections::HashSet<_> = (0..4).map(|_| upstream.lease(None).unwrap().backend()).collect();
        assert_eq!(both.len(), 2);
    });
}

#[test]
fn a_check_goes_by_the_status_behind_interim_responses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, checks) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let begun = Arc::clone(&checks);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            begun.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 1024]);
            for piece in [
                "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 1",
                "02 Processing\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            ] {
                let _ = stream.write_all(piece.as_bytes());
            }
        }
    });
    let check = Check::http("/")
        .every(Duration::from_millis(10))
        .limit(PATIENCE)
        .fall(1);
    let upstream = group(&[addr]).check(check).build().unwrap();
    run(|| {
        upstream.start();
        // By then two have ended.
        eventually_on_fiber("the third check", || checks.load(Ordering::SeqCst) >= 3);
        assert!(upstream.stats()[0].is_in);
    });
}

#[test]
fn an_upstream_without_backends_or_with_too_many_is_refused() {
    let error = group(&[]).build().unwrap_err();
    assert_eq!(error.to_string(), "upstream test has 0 backends: give it 1 to 64");
    let many = vec![nobody(); 65];
    assert!(group(&many).build().is_err());
}

#[test]
fn failures_are_counted_by_kind_and_responses_by_their_time() {
    let backend = Backend::start();
    let upstream = group(&[backend.addr]).failures(100).build().unwrap();
    let silent = group(&[nobody()]).failures(100).build().unwrap();
    run(|| {
        for byte in 0..3 {
            let lease = upstream.lease(None).unwrap();
            ask(&lease, byte);
            lease.keep();
        }
        let lease = upstream.lease(None).unwrap();
        lease.timed_out("late");
        lease.timed_out("late again");
        lease.failed("odd");
        drop(lease);
        let stats = upstream.stats().swap_remove(0);
        assert_eq!((stats.total, stats.failures, stats.connect_timeouts), (4, 0, 0));
        assert_eq!((stats.response_timeouts, stats.response_failures), (2, 1));
        assert_eq!(stats.latency.counts.iter().sum::<u64>(), 3);
        assert!(stats.latency.sum > Duration::ZERO && stats.latency.sum < PATIENCE);

        assert!(silent.lease(None).is_err());
        // The deadline has passed.
        assert!(silent.lease(Some(osier::time::now())).is_err());
        let stats = silent.stats().swap_remove(0);
        assert_eq!((stats.failures, stats.connect_timeouts), (2, 1));
        assert_eq!((stats.response_timeouts, stats.response_failures), (0, 0));
    });
}
