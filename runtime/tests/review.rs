//! What goes wrong at the edges: panics out of destructors, hooks that panic, starvation, and marks in a stream.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use osier::dormant::{self, Cause, Dormant, Next};
use osier::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixStream};
use osier::{Cancelled, Runtime, fiber};

const LIMIT: Duration = Duration::from_secs(30);

fn on(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A panic's payload that panics again when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a payload panics when it is dropped");
        }
    }
}

#[test]
fn a_scope_holds_its_frame_although_a_hook_panics() {
    on(1).run(|| {
        let ended = AtomicBool::new(false);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let armed = AtomicBool::new(false);
            let hook = || {
                if armed.load(Ordering::SeqCst) {
                    panic_any(Bomb);
                }
            };
            fiber::before_suspend(&hook, || {
                osier::scope(|s| {
                    drop(s.spawn(|| {
                        osier::shield(|| osier::sleep(Duration::from_millis(20)));
                        ended.store(true, Ordering::SeqCst);
                    }));
                    osier::yield_now();
                    armed.store(true, Ordering::SeqCst);
                });
            });
        }));
        assert!(ended.load(Ordering::SeqCst), "the scope returned before its child did");
        let payload = outcome.expect_err("the hook's panic was swallowed");
        assert!(payload.is::<Bomb>(), "the hook's panic became something else");
        std::mem::forget(payload);
    });
}

#[test]
fn a_panic_of_a_scoped_value_that_never_ran_counts_once() {
    struct Loud;
    impl Drop for Loud {
        fn drop(&mut self) {
            panic!("a captured value panics");
        }
    }
    on(1).run(|| {
        osier::scope(|s| {
            let loud = Loud;
            let child = s.spawn(move || drop(loud));
            child.cancel();
            let payload = child.join().unwrap_err();
            assert!(!Cancelled::is_payload(&*payload));
        });
    });
}

struct Conn<F>(TcpStream, F);

impl<F: FnMut(&mut TcpStream, Cause) -> Next + 'static> Dormant for Conn<F> {
    fn source(&self) -> &dyn osier::io::Source {
        &self.0
    }
    fn wake(&mut self, cause: Cause) -> Next {
        (self.1)(&mut self.0, cause)
    }
}

#[test]
fn a_dormant_connection_that_panics_harms_nobody() {
    on(1).run(|| {
        for bomb in [false, true] {
            let (mut client, server) = pair();
            let wake = move |_: &mut TcpStream, _| -> Next {
                match bomb {
                    true => panic_any(Bomb),
                    false => panic!("a connection panics"),
                }
            };
            dormant::park_local(Box::new(Conn(server, wake)), None).unwrap();
            client.write_all(b"x").unwrap();
            let _ = client.set_read_timeout(Some(LIMIT));
            assert!(!matches!(client.read(&mut [0]), Ok(1..)), "its socket is closed");
        }
    });
}

#[test]
fn a_dormant_connection_whose_destructor_blocks_at_shutdown_does_so_on_a_fiber() {
    struct Slow(Arc<AtomicUsize>, Arc<AtomicUsize>);
    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            osier::shield(|| osier::sleep(Duration::from_millis(1)));
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let causes = Arc::new(AtomicUsize::new(0));
    let clients = on(1).run(|| {
        let mut clients = Vec::new();
        for _ in 0..3 {
            let (client, server) = pair();
            let slow = Slow(Arc::clone(&begun), Arc::clone(&done));
            let causes = Arc::clone(&causes);
            let wake = move |_: &mut TcpStream, cause| {
                let _slow = &slow;
                causes.fetch_add(usize::from(cause == Cause::Shutdown), Ordering::SeqCst);
                Next::Sleep(None)
            };
            dormant::park_local(Box::new(Conn(server, wake)), None).unwrap();
            clients.push(client);
        }
        clients
    });
    assert_eq!(causes.load(Ordering::SeqCst), 3);
    assert_eq!((begun.load(Ordering::SeqCst), done.load(Ordering::SeqCst)), (3, 3));
    drop(clients);
}

#[test]
fn a_dormant_socket_rests_after_its_error_was_taken() {
    struct Probe(UdpSocket, Arc<AtomicUsize>);
    impl Dormant for Probe {
        fn source(&self) -> &dyn osier::io::Source {
            &self.0
        }
        fn wake(&mut self, _: Cause) -> Next {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            while !matches!(self.0.recv(&mut [0]), Err(error) if error.kind() == io::ErrorKind::TimedOut) {}
            Next::Sleep(None)
        }
    }
    on(1).run(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.connect(nobody).unwrap();
        let wakes = Arc::new(AtomicUsize::new(0));
        socket.send(b"x").unwrap();
        dormant::park_local(Box::new(Probe(socket, Arc::clone(&wakes))), None).unwrap();
        osier::sleep(Duration::from_millis(200));
        let wakes = wakes.load(Ordering::SeqCst);
        assert!((1..10).contains(&wakes), "{wakes} wake-ups for one error");
    });
}

#[test]
fn a_busy_worker_starts_what_is_sent_to_it() {
    let runtime = on(1);
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    let busy = runtime.spawn(move || {
        let start = Instant::now();
        while !theirs.load(Ordering::SeqCst) && start.elapsed() < LIMIT {
            osier::yield_now();
        }
        start.elapsed() < LIMIT
    });
    let theirs = Arc::clone(&stop);
    let outside = runtime.spawn(move || theirs.store(true, Ordering::SeqCst));
    outside.join().unwrap();
    assert!(busy.join().unwrap(), "a job from outside waits for an idle worker");

    let runtime = on(2);
    let stop = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&stop);
    let in_time = runtime.run(move || {
        let start = Instant::now();
        let loops: Vec<_> = (0..2)
            .map(|worker| {
                let stop = Arc::clone(&theirs);
                fiber::Builder::new().worker(worker).spawn(move || {
                    while stop.load(Ordering::SeqCst) < 2 && start.elapsed() < LIMIT {
                        osier::yield_now();
                    }
                })
            })
            .collect();
        osier::sleep(Duration::from_millis(20));
        for worker in 0..2 {
            let stop = Arc::clone(&theirs);
            drop(
                fiber::Builder::new()
                    .worker(worker)
                    .spawn(move || stop.fetch_add(1, Ordering::SeqCst)),
            );
        }
        loops.into_iter().for_each(|handle| handle.join().unwrap());
        start.elapsed() < LIMIT
    });
    assert!(in_time, "a job for one worker waits until that is idle");
}

#[test]
fn a_chain_of_local_fibers_lets_other_new_ones_start() {
    fn chain(stop: Arc<AtomicBool>, until: Instant) {
        if !stop.load(Ordering::SeqCst) && Instant::now() < until {
            drop(osier::spawn_local(move || chain(stop, until)));
        }
    }
    on(1).run(|| {
        let start = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let stop = Arc::clone(&stop);
            drop(osier::spawn_local(move || chain(stop, start + LIMIT)));
        }
        let theirs = Arc::clone(&stop);
        osier::spawn(move || theirs.store(true, Ordering::SeqCst))
            .join()
            .unwrap();
        assert!(start.elapsed() < LIMIT);
    });
}

#[test]
fn a_shutdown_that_waits_does_not_burn_its_worker() {
    fn spent() -> Duration {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
    }
    let burnt = Arc::new(std::sync::Mutex::new(None));
    let theirs = Arc::clone(&burnt);
    on(2).run(move || {
        drop(osier::spawn_local(move || {
            osier::shield(|| {
                osier::sleep(Duration::from_millis(20));
                let before = spent();
                osier::sleep(Duration::from_millis(300));
                *theirs.lock().unwrap() = Some(spent() - before);
            });
        }));
        osier::yield_now();
    });
    let burnt = burnt.lock().unwrap().unwrap();
    assert!(burnt < Duration::from_millis(100), "{burnt:?} of 300 ms");
}

#[test]
fn a_full_direction_does_not_hide_an_urgent_mark_of_the_other() {
    on(1).run(|| {
        let (mut client, mut server) = pair();
        server.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!(server.read(&mut [0]).is_err(), "registered");
        server.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        let block = vec![0; 1 << 20];
        while server.write(&block).is_ok() {}
        // Both directions wait at this worker now; room and the mark come together.
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut room = vec![0; 1 << 20];
        while client.read(&mut room).is_ok() {}
        client.write_all(b"before").unwrap();
        rustix::net::send(client.as_fd(), b"!", rustix::net::SendFlags::OOB).unwrap();
        client.write_all(b"after").unwrap();
        osier::sleep(Duration::from_millis(20));
        while server.write(&block).is_ok() {}
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut got = [0; 11];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"beforeafter");
    });
}

#[test]
fn a_datagram_waits_for_room_at_a_receiver_that_it_is_not_connected_to() {
    on(1).run(|| {
        let path = std::env::temp_dir().join(format!("osier-review-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let receiver = UnixDatagram::bind(&path).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        let to = path.clone();
        let sending = osier::spawn_local(move || {
            for n in 0..2000u32 {
                sender.send_to(&n.to_le_bytes(), &to)?;
            }
            io::Result::Ok(())
        });
        osier::sleep(Duration::from_millis(20));
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

#[test]
fn ids_of_later_runtimes_are_new() {
    let mut ids: Vec<_> = (0..8).map(|_| on(1).run(|| fiber::current().unwrap().id())).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8);
}

#[test]
fn a_client_that_goes_is_noticed_although_a_hook_has_suspended() {
    if !osier::poll::Poller::new().unwrap().capabilities().read_closed {
        return println!("skipped: this driver does not tell a half-close from bytes");
    }
    on(1).run(|| {
        let (mut client, server) = pair();
        let hooked = AtomicUsize::new(0);
        let start = Instant::now();
        let outcome = fiber::before_suspend(
            &|| {
                if hooked.fetch_add(1, Ordering::SeqCst) == 0 {
                    // Bytes come while the hook waits: an edge that says nothing of the end.
                    client_sends(&client);
                    osier::sleep(Duration::from_millis(20));
                }
            },
            || {
                osier::io::while_connected(&server, osier::io::HalfClose::IsGone, || {
                    osier::sleep(LIMIT);
                })
            },
        );
        fn client_sends(mut client: &TcpStream) {
            client.write_all(b"x").unwrap();
            let leaving = client.try_clone().unwrap();
            drop(osier::spawn_local(move || {
                osier::sleep(Duration::from_millis(100));
                leaving.shutdown(std::net::Shutdown::Both).unwrap();
            }));
        }
        assert!(outcome.is_err() && start.elapsed() < LIMIT, "{outcome:?}");
        let _ = client.flush();
    });
}

#[test]
fn a_grace_period_ends_io_and_a_later_one_is_as_long() {
    struct Wait(UnixStream, Arc<AtomicUsize>);
    impl Drop for Wait {
        fn drop(&mut self) {
            let start = Instant::now();
            let error = (&self.0).read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(start.elapsed() > Duration::from_secs(4), "{:?}", start.elapsed());
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    on(1).run(|| {
        let timed_out = Arc::new(AtomicUsize::new(0));
        for n in 1..=2 {
            let (one, _two) = UnixStream::pair().unwrap();
            let wait = Wait(one, Arc::clone(&timed_out));
            let outcome = osier::timeout(Duration::from_millis(1), move || {
                let _wait = wait;
                osier::sleep(LIMIT);
            });
            assert!(outcome.is_err());
            assert_eq!(timed_out.load(Ordering::SeqCst), n);
        }
    });
}

#[test]
fn a_destructor_may_join_for_longer_than_the_grace_period() {
    struct Join(Option<osier::JoinHandle<u32>>, Arc<AtomicUsize>);
    impl Drop for Join {
        fn drop(&mut self) {
            let value = self.0.take().unwrap().join().unwrap();
            osier::scope(|s| drop(s.spawn(|| osier::sleep(Duration::from_millis(5)))));
            self.1.store(value as usize, Ordering::SeqCst);
        }
    }
    on(1).run(|| {
        let value = Arc::new(AtomicUsize::new(0));
        let slow = osier::spawn(|| {
            osier::sleep(Duration::from_millis(5500));
            42
        });
        let join = Join(Some(slow), Arc::clone(&value));
        let outcome = osier::timeout(Duration::from_millis(1), move || {
            let _join = join;
            osier::sleep(LIMIT);
        });
        assert!(outcome.is_err());
        assert_eq!(value.load(Ordering::SeqCst), 42);
    });
}

#[test]
fn a_fiber_cancelled_while_its_destructor_waits_gets_the_grace_period_too() {
    struct Wait(UnixStream, Arc<AtomicBool>);
    impl Drop for Wait {
        fn drop(&mut self) {
            let error = (&self.0).read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            self.1.store(true, Ordering::SeqCst);
        }
    }
    on(1).run(|| {
        let ended = Arc::new(AtomicBool::new(false));
        let (one, _two) = UnixStream::pair().unwrap();
        let wait = Wait(one, Arc::clone(&ended));
        let fiber = osier::spawn(move || {
            let _wait = wait;
            panic!("with a destructor that waits for ever");
        });
        osier::sleep(Duration::from_millis(50));
        fiber.cancel();
        assert!(osier::timeout(LIMIT, || fiber.join().is_err()).unwrap());
        assert!(ended.load(Ordering::SeqCst));
    });
}

#[test]
fn a_cancelled_fiber_leaves_every_kind_of_wait() {
    on(2).run(|| {
        let (reader, _writer) = io::pipe().unwrap();
        let (one, _two) = UnixStream::pair().unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let waits: Vec<Box<dyn FnOnce() -> bool + Send>> = vec![
            Box::new(move || Cancelled::is(&osier::io::readable(reader.as_fd(), None).unwrap_err())),
            Box::new(move || Cancelled::is(&(&one).read(&mut [0]).unwrap_err())),
            Box::new(move || {
                let _ = osier::unblock(move || released.recv());
                false
            }),
            Box::new(|| {
                osier::block_on(std::future::pending::<()>());
                false
            }),
        ];
        for (number, wait) in waits.into_iter().enumerate() {
            let fiber = osier::spawn(wait);
            osier::sleep(Duration::from_millis(20));
            fiber.cancel();
            match osier::timeout(LIMIT, || fiber.join()).unwrap() {
                Ok(told) => assert!(told, "wait {number}"),
                Err(payload) => assert!(Cancelled::is_payload(&*payload), "wait {number}"),
            }
        }
        drop(release);
    });
}
