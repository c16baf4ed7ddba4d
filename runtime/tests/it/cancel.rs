//! Cancellation by handle, timeout, scope and shutdown; shields; the calls that unwinding fibers may make.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::given::{forever, on, others_wait, pair, settle, timeless};
use osier::Cancelled;
use osier::net::UnixStream;

const GENEROUS: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_cancelled_read_fails_first_and_unwinds_afterwards() {
    timeless(2).run(|| {
        let (_client, mut server) = pair();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&seen);
        let handle = osier::spawn(move || {
            let first = server.read(&mut [0; 8]).unwrap_err();
            theirs.lock().unwrap().push((Cancelled::is(&first), first.kind()));
            let unwound = catch_unwind(AssertUnwindSafe(|| server.read(&mut [0; 8])));
            theirs.lock().unwrap().push((unwound.is_err(), io::ErrorKind::Other));
            // Swallowed; met again.
            forever();
            unreachable!("cancelled for good");
        });
        settle();
        handle.cancel();
        assert!(Cancelled::is_payload(&*handle.join().unwrap_err()));
        assert_eq!(
            *seen.lock().unwrap(),
            [(true, io::ErrorKind::Other), (true, io::ErrorKind::Other)]
        );
    });
}

/// The memory of a fiber is used again.
#[test]
fn a_fiber_inherits_no_cancellation_of_an_ended_one() {
    timeless(1).run(|| {
        for _ in 0..3 {
            let handle = osier::spawn_local(|| {
                let (_client, mut server) = pair();
                // A second delivery would unwind.
                let first = server.read(&mut [0; 8]).unwrap_err();
                Cancelled::is(&first)
            });
            settle();
            handle.cancel();
            assert!(handle.join().unwrap());
        }
    });
}

#[test]
fn read_exact_and_friends_do_not_retry_a_cancelled_read() {
    timeless(1).run(|| {
        let (_client, mut server) = pair();
        let handle = osier::spawn_local(move || {
            server
                .read_to_end(&mut Vec::new())
                .map_err(|error| Cancelled::is(&error))
        });
        settle();
        handle.cancel();
        assert_eq!(handle.join().unwrap(), Err(true));
    });
}

#[test]
fn a_call_without_errors_unwinds_at_once_and_runs_destructors() {
    struct Flag(Rc<Cell<bool>>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    on(1).run(|| {
        let dropped = Rc::new(Cell::new(false));
        let flag = Flag(Rc::clone(&dropped));
        let handle = osier::spawn_local(move || {
            let _flag = flag;
            forever();
        });
        osier::yield_now();
        handle.cancel();
        assert!(Cancelled::is_payload(&*handle.join().unwrap_err()));
        assert!(dropped.get());
    });
}

#[test]
fn a_fiber_cancelled_before_it_starts_never_does() {
    on(1).run(|| {
        let ran = Rc::new(Cell::new(false));
        let theirs = Rc::clone(&ran);
        let handle = osier::spawn_local(move || theirs.set(true));
        handle.cancel();
        assert!(Cancelled::is_payload(&*handle.join().unwrap_err()));
        assert!(!ran.get());
    });
}

#[test]
fn cancelling_what_has_ended_changes_nothing() {
    on(1).run(|| {
        let handle = osier::spawn_local(|| 5);
        while !handle.is_finished() {
            osier::yield_now();
        }
        handle.cancel();
        assert_eq!(handle.join().unwrap(), 5);
    });
}

#[test]
fn a_timeout_ends_io_sleep_and_join() {
    on(1).run(|| {
        let (_client, mut server) = pair();
        let limit = Duration::from_millis(10);
        let start = Instant::now();
        assert!(osier::timeout(limit, || server.read(&mut [0; 1])).is_err());
        // Real time: the virtual clock stands while the fiber below yields.
        assert!(osier::timeout(limit, || osier::sleep(LONG)).is_err());
        let never = osier::spawn_local(forever);
        assert!(osier::timeout(limit, || never.join()).is_err());
        assert!(
            osier::timeout(limit, || loop {
                osier::yield_now()
            })
            .is_err() as u32
                == 1
        );
        assert!(start.elapsed() >= 4 * limit);
        // The frame is left: nothing lingers.
        // A call that could meet what lingers.
        osier::sleep(Duration::from_millis(1));
        assert_eq!(osier::timeout(LONG, || 7), Ok(7));
        assert_eq!(
            io::Error::from(osier::timeout(limit, forever).unwrap_err()).kind(),
            io::ErrorKind::TimedOut
        );
    });
}

#[test]
fn of_nested_timeouts_each_ends_its_own() {
    timeless(1).run(|| {
        let short = Duration::from_millis(10);
        let outer = osier::timeout(LONG, || osier::timeout(short, forever).is_err());
        assert_eq!(outer, Ok(true));
        let reached = Cell::new(false);
        let inner = osier::timeout(short, || {
            let _ = osier::timeout(LONG, forever);
            reached.set(true);
        });
        assert!(inner.is_err() && !reached.get());
    });
}

#[test]
fn a_timeout_whose_error_is_swallowed_still_says_elapsed() {
    on(1).run(|| {
        let (_client, mut server) = pair();
        let outcome = osier::timeout(Duration::from_millis(10), || server.read(&mut [0; 1]).is_err());
        assert!(outcome.is_err());
    });
}

#[test]
fn a_shield_defers_cancellation_but_not_its_own_timeouts() {
    timeless(1).run(|| {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let theirs = Rc::clone(&seen);
        let handle = osier::spawn_local(move || {
            osier::shield(|| {
                settle();
                theirs.borrow_mut().push("slept");
                assert!(osier::timeout(Duration::from_millis(5), forever).is_err());
                theirs.borrow_mut().push("timed out");
            });
            forever();
            theirs.borrow_mut().push("never");
        });
        osier::yield_now();
        handle.cancel();
        assert!(Cancelled::is_payload(&*handle.join().unwrap_err()));
        assert_eq!(*seen.borrow(), ["slept", "timed out"]);
    });
}

#[test]
fn destructors_may_block_while_their_fiber_unwinds_and_neighbours_notice_nothing() {
    struct Farewell(Arc<AtomicBool>);
    impl Drop for Farewell {
        fn drop(&mut self) {
            assert!(std::thread::panicking());
            let (mut client, mut server) = pair();
            let writer = osier::spawn_local(move || {
                assert!(!std::thread::panicking(), "a neighbour's panic shows");
                osier::yield_now();
                io::Write::write_all(&mut client, b"farewell")
            });
            let mut text = [0; 8];
            server.read_exact(&mut text).unwrap();
            writer.join().unwrap().unwrap();
            assert_eq!(&text, b"farewell");
            assert!(std::thread::panicking());
            self.0.store(true, Ordering::SeqCst);
        }
    }
    for workers in [1, 2] {
        on(workers).run(|| {
            let stop = Rc::new(Cell::new(false));
            let theirs = Rc::clone(&stop);
            let neighbour = osier::spawn_local(move || {
                let lock = Mutex::new(0u64);
                while !theirs.get() {
                    *lock.lock().expect("no neighbour poisons this lock") += 1;
                    assert!(!std::thread::panicking());
                    osier::yield_now();
                }
                assert!(!lock.is_poisoned());
            });
            let said = Arc::new(AtomicBool::new(false));
            let farewell = Farewell(Arc::clone(&said));
            let failed = osier::spawn_local(move || {
                let _farewell = farewell;
                panic!("with a destructor that does I/O");
            });
            assert_eq!(
                failed.join().unwrap_err().downcast_ref::<&str>(),
                Some(&"with a destructor that does I/O")
            );
            assert!(said.load(Ordering::SeqCst));
            let said = Arc::new(AtomicBool::new(false));
            let farewell = Farewell(Arc::clone(&said));
            let cancelled = osier::spawn_local(move || {
                let _farewell = farewell;
                forever();
            });
            osier::yield_now();
            cancelled.cancel();
            assert!(Cancelled::is_payload(&*cancelled.join().unwrap_err()));
            assert!(said.load(Ordering::SeqCst));
            stop.set(true);
            neighbour.join().unwrap();
        });
    }
}

#[test]
fn a_shutdown_cancels_and_joins_every_fiber() {
    let ended = Arc::new(AtomicUsize::new(0));
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let runtime = on(2);
    runtime.run(|| {
        for n in 0..100 {
            let count = Count(Arc::clone(&ended));
            drop(osier::spawn(move || {
                let _count = count;
                match n % 2 {
                    // Half of them wait for a timer, half for a socket.
                    0 => osier::sleep(LONG),
                    _ => {
                        let (_client, mut server) = pair();
                        let _ = server.read(&mut [0; 1]);
                    }
                }
            }));
        }
    });
    drop(runtime);
    assert_eq!(ended.load(Ordering::SeqCst), 100);
}

#[test]
fn a_timeout_in_a_destructor_of_an_unwinding_fiber_works() {
    struct Goodbye(Arc<AtomicUsize>);
    impl Drop for Goodbye {
        fn drop(&mut self) {
            let (_client, mut server) = pair();
            let start = Instant::now();
            let outcome = osier::timeout(Duration::from_millis(30), || {
                // Both reads return an error. Unwinding would abort the process.
                let first = server.read(&mut [0; 1]).map_err(|error| Cancelled::is(&error));
                let second = server.read(&mut [0; 1]).map_err(|error| Cancelled::is(&error));
                assert_eq!((first, second), (Err(true), Err(true)));
            });
            assert!(outcome.is_err());
            assert!(
                start.elapsed() < Duration::from_secs(4),
                "the grace period ended it, not the timeout"
            );
            // Calls without an error continue, whatever is requested.
            // Longer than its timeout: the timer is met while the fiber unwinds.
            let _ = osier::timeout(Duration::from_millis(1), || osier::sleep(Duration::from_millis(20)));
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    on(1).run(|| {
        let ended = Arc::new(AtomicUsize::new(0));
        for by_panic in [true, false] {
            let goodbye = Goodbye(Arc::clone(&ended));
            let handle = osier::spawn_local(move || {
                let _goodbye = goodbye;
                if by_panic {
                    panic!("unwinds");
                }
                forever();
            });
            osier::yield_now();
            handle.cancel();
            assert!(handle.join().is_err());
        }
        assert_eq!(ended.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_cancelled_fiber_leaves_every_kind_of_wait() {
    on(2).run(|| {
        let (reader, _writer) = io::pipe().unwrap();
        let (one, _two) = UnixStream::pair().unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let waits: Vec<Box<dyn FnOnce() -> bool + Send>> = vec![
            Box::new(move || Cancelled::is(&osier::io::readable(&reader, None).unwrap_err())),
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
            others_wait();
            fiber.cancel();
            match osier::timeout(GENEROUS, || fiber.join()).unwrap() {
                Ok(cancelled) => assert!(cancelled, "wait {number}"),
                Err(payload) => assert!(Cancelled::is_payload(&*payload), "wait {number}"),
            }
        }
        drop(release);
    });
}
