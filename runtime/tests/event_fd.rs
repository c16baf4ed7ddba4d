//! `EventFd`: foreign event loops, signal handlers and the runtime's own waiters.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use osier::sync::{Event, EventFd, EventFdWait, SignalSetter};
use osier::{Cancelled, Runtime};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const GENEROUS: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(10);

fn on<T: Send>(workers: usize, body: impl FnOnce() -> T + Send) -> T {
    Runtime::builder().workers(workers).build().unwrap().run(body)
}

/// Polls again where a signal interrupts: `a_signal_handler_sets_it` sends signals to the whole process.
fn poll_uninterrupted(fds: &mut [PollFd<'_>], timeout: Duration) -> usize {
    let timeout = Timespec::try_from(timeout).unwrap();
    rustix::io::retry_on_intr(|| poll(fds, Some(&timeout))).unwrap()
}

fn readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    poll_uninterrupted(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], timeout) == 1
}

fn readable_now(event: &EventFd) -> bool {
    readable(event.as_fd(), Duration::ZERO)
}

#[test]
fn the_types_go_to_other_threads() {
    fn all<T: Send + Sync>() {}
    all::<EventFd>();
    all::<SignalSetter>();
    fn sent<T: Send>() {}
    sent::<EventFdWait<'static>>();
}

#[test]
fn it_is_readable_exactly_while_it_is_set() {
    let event = Event::with_fd().unwrap();
    assert!(!readable_now(&event) && !event.is_set() && !event.try_wait());
    for _ in 0..3 {
        event.set();
        assert!(readable_now(&event) && event.is_set());
    }
    event.wait().unwrap();
    assert!(
        !readable_now(&event) && !event.is_set(),
        "three sets are one, and taken"
    );
    event.set();
    assert!(event.try_wait() && !event.try_wait() && !readable_now(&event));
    event.set();
    assert!(event.reset() && !event.reset() && !readable_now(&event));
}

#[test]
fn its_descriptor_does_not_block_and_is_not_inherited() {
    let event = Event::with_fd().unwrap();
    let flags = rustix::fs::fcntl_getfl(&event).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
    let flags = rustix::io::fcntl_getfd(&event).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn a_full_counter_is_a_set_event() {
    let event = Event::with_fd().unwrap();
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    event.set(); // neither blocks nor fails
    assert!(event.is_set() && event.try_wait() && !event.try_wait());
    event.set();
    assert!(event.try_wait());
}

#[test]
fn a_bare_poll_loop_takes_its_signals_beside_other_descriptors() {
    let event = Event::with_fd().unwrap();
    let (reader, mut writer) = io::pipe().unwrap();
    let (mut signals, mut bytes) = (0, 0);
    thread::scope(|s| {
        let acknowledge = Arc::new(Event::new());
        let seen = Arc::clone(&acknowledge);
        let event = &event;
        s.spawn(move || {
            for _ in 0..100 {
                event.set();
                acknowledge.wait();
                writer.write_all(b"x").unwrap();
            }
        });
        while signals < 100 || bytes < 100 {
            let mut fds = [PollFd::new(event, PollFlags::IN), PollFd::new(&reader, PollFlags::IN)];
            assert!(poll_uninterrupted(&mut fds, GENEROUS) > 0, "nothing came");
            let ready = fds.each_ref().map(|fd| fd.revents().contains(PollFlags::IN));
            if ready[0] {
                assert!(event.try_wait(), "readable, and not set");
                signals += 1;
                seen.set();
            }
            if ready[1] {
                bytes += rustix::io::read(&reader, &mut [0; 16]).unwrap();
            }
        }
    });
    assert_eq!((signals, bytes), (100, 100));
    assert!(!readable_now(&event));
}

#[test]
fn a_signal_taken_before_a_wait_does_not_end_it() {
    // What the counter held before is gone: nobody is woken by what another took.
    let event = Event::with_fd().unwrap();
    on(1, || {
        for _ in 0..3 {
            event.set();
            event.wait().unwrap();
            event.set();
            assert!(event.try_wait());
            let outcome = osier::timeout(SHORT, || event.wait());
            assert!(!matches!(outcome, Ok(Ok(()))), "a stale wake-up: {outcome:?}");
        }
    });
}

#[test]
fn fibers_threads_and_futures_wait_for_the_same_one() {
    let event = Event::with_fd().unwrap();
    let released = AtomicUsize::new(0);
    let note = || {
        released.fetch_add(1, Ordering::SeqCst);
    };
    on(2, || {
        thread::scope(|threads| {
            threads.spawn(|| {
                event.wait().unwrap();
                note();
            });
            threads.spawn(|| {
                osier::block_on(event.wait_async()).unwrap();
                note();
            });
            threads.spawn(|| {
                futures_lite::future::block_on(event.wait_async()).unwrap();
                note();
            });
            osier::scope(|s| {
                s.spawn(|| {
                    event.wait().unwrap();
                    note();
                });
                for expected in 1..=4 {
                    event.set();
                    let start = Instant::now();
                    while released.load(Ordering::SeqCst) < expected {
                        assert!(start.elapsed() < GENEROUS, "{expected} sets did not release as many");
                        osier::yield_now();
                    }
                    // A second release has its chance.
                    osier::sleep(Duration::from_millis(1));
                    assert_eq!(released.load(Ordering::SeqCst), expected, "one set released two");
                }
            });
        });
    });
    assert!(!event.is_set());
}

#[test]
fn waiters_are_served_in_order_one_for_each_set() {
    on(1, || {
        let event = Rc::new(Event::with_fd().unwrap());
        let order = Rc::new(RefCell::new(Vec::new()));
        let waiters: Vec<_> = (0..20)
            .map(|id| {
                let (event, order) = (Rc::clone(&event), Rc::clone(&order));
                osier::spawn_local(move || {
                    event.wait().unwrap();
                    order.borrow_mut().push(id);
                })
            })
            .collect();
        osier::yield_now();
        for released in 1..=20 {
            assert_eq!(order.borrow().len(), released - 1);
            event.set();
            let start = Instant::now();
            while order.borrow().len() < released {
                assert!(start.elapsed() < GENEROUS);
                osier::yield_now();
            }
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert!(order.borrow().is_sorted(), "{order:?}");
    });
}

#[test]
fn whoever_leaves_lets_the_next_go_on() {
    fn poll_once(wait: &mut Pin<Box<EventFdWait<'_>>>) -> bool {
        matches!(
            wait.as_mut().poll(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(Ok(()))
        )
    }
    let event = Event::with_fd().unwrap();
    let [mut first, mut second, mut third] = [(); 3].map(|()| Box::pin(event.wait_async()));
    assert!(![&mut first, &mut second, &mut third].into_iter().any(poll_once));
    event.set();
    assert!(!poll_once(&mut second), "it is the first one's turn");
    drop(first); // it had the turn, and took no signal
    drop(third);
    let start = Instant::now();
    while !poll_once(&mut second) {
        assert!(start.elapsed() < GENEROUS, "the signal is lost");
        thread::yield_now();
    }
    assert!(!event.is_set());
    event.set();
    event.wait().unwrap(); // the turn was given back
}

#[test]
fn a_cancelled_wait_has_an_error_and_leaves_the_signal() {
    on(1, || {
        let event = Rc::new(Event::with_fd().unwrap());
        let wait = |event: &Rc<EventFd>| {
            let event = Rc::clone(event);
            osier::spawn_local(move || event.wait())
        };
        let (first, second) = (wait(&event), wait(&event));
        osier::yield_now();
        first.cancel();
        let error = first.join().unwrap().unwrap_err();
        assert!(Cancelled::is(&error), "{error}");
        event.set();
        second.join().unwrap().unwrap();
        assert!(!event.is_set());
    });
}

#[test]
fn a_setter_keeps_the_descriptor_beyond_the_event() {
    let event = Event::with_fd().unwrap();
    let watched = event.as_fd().try_clone_to_owned().unwrap();
    let setter = event.signal_setter();
    let clone = setter.clone();
    setter.set();
    assert!(event.try_wait());
    drop((event, setter));
    clone.set();
    assert!(readable(watched.as_fd(), Duration::ZERO));
}

#[test]
#[allow(unsafe_code)]
fn a_signal_handler_sets_it() {
    use rustix::process::{Signal, getpid, kill_process};
    let event = Event::with_fd().unwrap();
    let setter = event.signal_setter();
    // SAFETY: the handler does one write(2), which is async-signal-safe.
    let id = unsafe { signal_hook_registry::register(Signal::USR1.as_raw(), move || setter.set()) }.unwrap();
    on(1, || {
        let seen = Rc::new(Cell::new(0));
        osier::scope(|_| {
            for round in 1..=5 {
                kill_process(getpid(), Signal::USR1).unwrap();
                event.wait().unwrap();
                seen.set(seen.get() + 1);
                assert_eq!(seen.get(), round);
            }
        });
        // The signal also arrives during a wait, and in another thread than the waiter's.
        let waits = testkit::ThreadWatch::current();
        let killer = thread::spawn(move || {
            waits.until_it_waits();
            kill_process(getpid(), Signal::USR1).unwrap();
        });
        event.wait().unwrap();
        killer.join().unwrap();
    });
    signal_hook_registry::unregister(id);
    assert!(!event.is_set());
}

#[test]
fn sets_from_everywhere_lose_nothing() {
    const SETTERS: usize = 3;
    const EACH: usize = 3000;
    let (event, done) = (Event::with_fd().unwrap(), AtomicUsize::new(0));
    on(2, || {
        osier::scope(|s| {
            let set_often = || {
                for _ in 0..EACH {
                    done.fetch_add(1, Ordering::Relaxed);
                    event.set();
                }
            };
            thread::scope(|threads| {
                threads.spawn(set_often);
                for _ in 1..SETTERS {
                    s.spawn(set_often);
                }
                while done.load(Ordering::Relaxed) < SETTERS * EACH {
                    event.wait().unwrap(); // for ever, if the last set was lost
                }
            });
        });
    });
}
