//! `Event`: its two states, order, hand-over, cancellation, threads.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::colours::Count;
use crate::given::{on, settle, timeless, until};
use osier::Cancelled;
use osier::sync::{Event, EventWait};

const GENEROUS: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(10);

fn poll(future: Pin<&mut impl Future<Output = ()>>, waker: &Waker) -> bool {
    future.poll(&mut Context::from_waker(waker)).is_ready()
}

fn waiting<'e>(event: &'e Event, waker: &Waker) -> Pin<Box<EventWait<'e>>> {
    let mut wait = Box::pin(event.wait_async());
    assert!(!poll(wait.as_mut(), waker));
    wait
}

#[test]
fn the_types_go_to_other_threads() {
    fn all<T: Send + Sync>() {}
    all::<Event>();
    all::<EventWait<'static>>();
}

#[test]
fn it_starts_unset_and_several_sets_are_one() {
    let event = Event::new();
    assert!(!event.is_set() && !event.try_wait());
    for _ in 0..3 {
        event.set();
    }
    assert!(event.is_set());
    event.wait();
    assert!(!event.is_set() && !event.try_wait(), "the wait unset it");
    event.set();
    assert!(event.reset() && !event.reset() && !event.is_set());
}

#[test]
fn a_set_event_suspends_nobody() {
    on(1).run(|| {
        let event = Event::new();
        let others = Rc::new(Cell::new(0));
        let other = osier::spawn_local({
            let others = Rc::clone(&others);
            move || others.set(1)
        });
        event.set();
        event.wait();
        assert_eq!(others.get(), 0, "another fiber ran meanwhile");
        assert!(!event.is_set());
        other.join().unwrap();
        assert_eq!(others.get(), 1);
    });
}

#[test]
fn a_fiber_that_waits_goes_on_when_it_is_set_and_not_before() {
    on(1).run(|| {
        let (event, done) = (Rc::new(Event::new()), Rc::new(Cell::new(false)));
        let waiter = osier::spawn_local({
            let (event, done) = (Rc::clone(&event), Rc::clone(&done));
            move || {
                event.wait();
                done.set(true);
            }
        });
        for _ in 0..10 {
            osier::yield_now();
        }
        assert!(!done.get());
        event.set();
        assert!(!done.get(), "it becomes runnable, and does not run inside of the set");
        waiter.join().unwrap();
        assert!(done.get() && !event.is_set());
    });
}

#[test]
fn fibers_threads_and_futures_wait_for_the_same_one() {
    let event = Arc::new(Event::new());
    let released = Arc::new(AtomicUsize::new(0));
    let wait = {
        let (event, released) = (Arc::clone(&event), Arc::clone(&released));
        move || {
            event.wait();
            released.fetch_add(1, Ordering::SeqCst);
        }
    };
    let wait_async = {
        let (event, released) = (Arc::clone(&event), Arc::clone(&released));
        async move {
            event.wait_async().await;
            released.fetch_add(1, Ordering::SeqCst);
        }
    };
    on(2).run(|| {
        let thread = thread::spawn(wait.clone());
        let fiber = osier::spawn(wait);
        let future = thread::spawn(|| osier::block_on(wait_async));
        for released_by_now in 1..=3 {
            event.set();
            until(|| released.load(Ordering::SeqCst) == released_by_now);
        }
        fiber.join().unwrap();
        thread.join().unwrap();
        future.join().unwrap();
    });
    assert!(!event.is_set());
}

#[test]
fn foreign_executors_poll_it() {
    let event = Event::new();
    thread::scope(|s| {
        s.spawn(|| futures_lite::future::block_on(event.wait_async()));
        s.spawn(|| event.set());
    });
    assert!(!event.is_set());
}

#[test]
fn an_event_awaited_six_times_and_set_eight_times_lets_the_last_two_stand() {
    on(1).run(|| {
        let (event, passed) = (Rc::new(Event::new()), Rc::new(Cell::new(0)));
        let waiter = osier::spawn_local({
            let (event, passed) = (Rc::clone(&event), Rc::clone(&passed));
            move || {
                for _ in 0..6 {
                    event.wait();
                    passed.set(passed.get() + 1);
                }
            }
        });
        for set in 1..=8 {
            event.set();
            for _ in 0..3 {
                osier::yield_now();
            }
            assert_eq!(passed.get(), set.min(6));
        }
        waiter.join().unwrap();
        assert!(event.try_wait(), "the two that nobody waited for are one");
        assert!(!event.wait_timeout(SHORT));
    });
}

#[test]
fn events_awaited_in_turn_may_be_set_in_any_order() {
    on(2).run(|| {
        let events: [Event; 3] = Default::default();
        osier::scope(|s| {
            let waiter = s.spawn(|| events.iter().for_each(Event::wait));
            for event in events.iter().rev() {
                event.set();
                osier::yield_now();
            }
            waiter.join().unwrap();
        });
        assert!(!events.iter().any(Event::is_set));
    });
}

#[test]
fn each_set_releases_the_one_who_waits_longest() {
    timeless(1).run(|| {
        let (event, order) = (Rc::new(Event::new()), Rc::new(RefCell::new(Vec::new())));
        let waiters: Vec<_> = (0..20)
            .map(|id| {
                let (event, order) = (Rc::clone(&event), Rc::clone(&order));
                osier::spawn_local(move || {
                    event.wait();
                    order.borrow_mut().push(id);
                })
            })
            .collect();
        settle(); // all wait now
        assert!(order.borrow().is_empty());
        for released in 1..=20 {
            event.set();
            assert!(!event.try_wait(), "it is not for one who comes now");
            until(|| order.borrow().len() == released);
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert!(order.borrow().is_sorted(), "{order:?}");
    });
}

#[test]
fn sets_before_a_waiter_has_run_release_as_many() {
    let event = Event::new();
    let (counter, waker) = Count::new();
    let mut waits: Vec<_> = (0..3).map(|_| waiting(&event, &waker)).collect();
    event.set();
    event.set();
    assert_eq!(counter.wakes(), 2);
    let ready: Vec<bool> = waits.iter_mut().map(|wait| poll(wait.as_mut(), &waker)).collect();
    assert_eq!(ready, [true, true, false]);
    assert!(!event.is_set());
}

#[test]
fn a_future_dropped_between_release_and_poll_passes_the_signal_on() {
    let event = Event::new();
    let (counter, waker) = Count::new();
    let first = waiting(&event, Waker::noop());
    let mut second = waiting(&event, &waker);
    event.set();
    assert_eq!(counter.wakes(), 0);
    drop(first);
    assert_eq!(counter.wakes(), 1);
    assert!(poll(second.as_mut(), &waker) && !event.is_set());

    let last = waiting(&event, Waker::noop());
    event.set();
    assert!(!event.is_set());
    drop(last);
    assert!(event.try_wait(), "nobody waits: it is set again");

    drop(event.wait_async());
    drop(waiting(&event, Waker::noop()));
    assert!(!event.is_set(), "a wait without a signal leaves none");
}

#[test]
fn a_fiber_cancelled_while_it_waits_takes_no_signal_with_it() {
    timeless(1).run(|| {
        let event = Rc::new(Event::new());
        let wait = |event: &Rc<Event>| {
            let event = Rc::clone(event);
            osier::spawn_local(move || event.wait())
        };
        let (first, second) = (wait(&event), wait(&event));
        settle();
        first.cancel();
        assert!(first.join().unwrap_err().is::<Cancelled>());
        event.set();
        second.join().unwrap();
        assert!(!event.is_set());
    });
}

#[test]
fn a_signal_and_a_cancellation_at_once_leave_the_signal_with_one() {
    // Both orders are right: the fiber has the signal and may use it, or the next waiter has it.
    for signal_first in [true, false] {
        timeless(1).run(|| {
            let (event, had) = (Rc::new(Event::new()), Rc::new(Cell::new(0)));
            let wait = |event: &Rc<Event>| {
                let (event, had) = (Rc::clone(event), Rc::clone(&had));
                osier::spawn_local(move || {
                    event.wait();
                    had.set(had.get() + 1);
                    osier::yield_now();
                })
            };
            let (first, second) = (wait(&event), wait(&event));
            settle();
            if signal_first {
                event.set();
                first.cancel();
            } else {
                first.cancel();
                event.set();
            }
            assert!(first.join().unwrap_err().is::<Cancelled>());
            settle();
            assert_eq!(had.get(), 1, "one signal");
            event.set();
            settle();
            assert_eq!(had.get() + usize::from(event.is_set()), 2);
            second.join().unwrap();
        });
    }
}

#[test]
fn one_signal_survives_any_number_of_timeouts() {
    let (event, taken, elapsed) = (Event::new(), AtomicUsize::new(0), AtomicUsize::new(0));
    event.set();
    on(2).run(|| {
        osier::scope(|s| {
            for id in 0..16_u64 {
                let (event, taken, elapsed) = (&event, &taken, &elapsed);
                s.spawn(move || {
                    let mut random = id + 1;
                    for _ in 0..100 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let limit = Duration::from_micros((random >> 33) % 3000);
                        let outcome = osier::timeout(limit, || {
                            event.wait();
                            // Exclusive until the event is set again, maybe beyond this waiter's own time.
                            assert!(!event.is_set());
                            if random >> 40 & 7 == 0 {
                                // Work that overruns some of the timeouts.
                                thread::sleep(Duration::from_micros(200));
                            }
                            taken.fetch_add(1, Ordering::Relaxed);
                            event.set();
                        });
                        match outcome {
                            Ok(()) => osier::yield_now(),
                            Err(_) => {
                                elapsed.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        });
    });
    assert!(event.try_wait(), "the signal is lost");
    assert!(!event.try_wait());
    let (taken, elapsed) = (taken.into_inner(), elapsed.into_inner());
    assert_eq!(taken + elapsed, 1600);
    assert!(taken > 0);
}

#[test]
fn five_thousand_waiters_are_released_one_by_one() {
    const WAITERS: usize = 5000;
    on(2).run(|| {
        let (event, released) = (Event::new(), AtomicUsize::new(0));
        osier::scope(|s| {
            for _ in 0..WAITERS {
                s.spawn(|| {
                    event.wait();
                    released.fetch_add(1, Ordering::SeqCst);
                });
            }
            // Two sets without a wait between them may count as one, so each set waits until the one before was seen.
            for set in 1..=WAITERS {
                event.set();
                if set % 100 == 0 {
                    until(|| !event.is_set());
                } else {
                    while event.is_set() {
                        osier::yield_now();
                    }
                }
            }
        });
        assert_eq!(released.load(Ordering::SeqCst), WAITERS);
        assert!(!event.is_set());
    });
}

#[test]
fn a_manual_one_releases_five_thousand_at_once_and_stays_set() {
    timeless(2).run(|| {
        let (open, released) = (Event::manual(), AtomicUsize::new(0));
        osier::scope(|s| {
            for _ in 0..5000 {
                s.spawn(|| {
                    open.wait();
                    released.fetch_add(1, Ordering::SeqCst);
                });
            }
            settle();
            assert_eq!(released.load(Ordering::SeqCst), 0);
            open.set();
        });
        assert_eq!(released.load(Ordering::SeqCst), 5000);
        open.wait();
        assert!(open.try_wait() && open.is_set());
        assert!(open.reset());
        assert!(!open.wait_timeout(SHORT));
    });
}

#[test]
fn whom_a_manual_one_released_stays_released_though_it_is_reset() {
    let event = Event::manual();
    let mut waits: Vec<_> = (0..3).map(|_| waiting(&event, Waker::noop())).collect();
    event.set();
    event.reset();
    let mut late = waiting(&event, Waker::noop());
    drop(waits.pop());
    assert!(!event.is_set());
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut(), Waker::noop())));
    assert!(!poll(late.as_mut(), Waker::noop()));
}

#[test]
fn a_timed_wait_ends_and_costs_no_signal() {
    let event = Event::new();
    let start = Instant::now();
    assert!(!event.wait_timeout(SHORT));
    assert!(start.elapsed() >= SHORT);
    event.set();
    assert!(
        event.wait_timeout(Duration::ZERO),
        "a signal that is there is taken first"
    );
    on(1).run(|| {
        assert!(!event.wait_timeout(SHORT));
        event.set();
        assert!(event.wait_timeout(GENEROUS));
    });
    assert!(!event.is_set());
}

#[test]
fn a_fiber_and_a_thread_play_ping_pong() {
    const ROUNDS: usize = 10_000;
    let (ping, pong, rounds) = (Event::new(), Event::new(), AtomicUsize::new(0));
    on(2).run(|| {
        osier::scope(|s| {
            s.spawn(|| {
                for _ in 0..ROUNDS {
                    ping.wait();
                    rounds.fetch_add(1, Ordering::Relaxed);
                    pong.set();
                }
            });
            thread::scope(|threads| {
                threads.spawn(|| {
                    for round in 0..ROUNDS {
                        ping.set();
                        pong.wait();
                        assert_eq!(rounds.load(Ordering::Relaxed), round + 1);
                    }
                });
                until(|| rounds.load(Ordering::Relaxed) == ROUNDS);
            });
        });
    });
    assert!(!ping.is_set() && !pong.is_set());
}

#[test]
fn two_fibers_play_ping_pong() {
    for workers in [1, 2] {
        let (ping, pong) = (Event::new(), Event::new());
        on(workers).run(|| {
            osier::scope(|s| {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        ping.wait();
                        pong.set();
                    }
                });
                s.spawn(|| {
                    for _ in 0..10_000 {
                        ping.set();
                        pong.wait();
                    }
                });
            });
        });
        assert!(!ping.is_set() && !pong.is_set());
    }
}

#[test]
fn whoever_is_released_sees_what_every_setter_did() {
    const SETTERS: usize = 4;
    const EACH: usize = 5000;
    let (event, done, ended) = (Event::new(), AtomicUsize::new(0), AtomicBool::new(false));
    on(2).run(|| {
        osier::scope(|s| {
            s.spawn(|| {
                while done.load(Ordering::Relaxed) < SETTERS * EACH {
                    event.wait(); // for ever, if a set that was one with another was lost
                }
                ended.store(true, Ordering::SeqCst);
            });
            for _ in 0..SETTERS {
                s.spawn(|| {
                    for turn in 0..EACH {
                        done.fetch_add(1, Ordering::Relaxed);
                        event.set();
                        if turn % 16 == 0 {
                            osier::yield_now();
                        }
                    }
                });
            }
            until(|| ended.load(Ordering::SeqCst));
        });
    });
}

#[test]
fn it_may_be_static_and_set_without_a_runtime() {
    static EVENT: Event = Event::new();
    let waiter = thread::spawn(|| EVENT.wait());
    thread::spawn(|| EVENT.set()).join().unwrap();
    waiter.join().unwrap();
    assert!(!EVENT.is_set());
}

#[test]
fn a_future_serves_again_after_it_was_ready() {
    let event = Event::new();
    let mut wait = pin!(event.wait_async());
    for _ in 0..3 {
        assert!(!poll(wait.as_mut(), Waker::noop()));
        event.set();
        assert!(poll(wait.as_mut(), Waker::noop()));
    }
}

#[test]
fn a_destructor_of_a_cancelled_fiber_may_set_and_wait() {
    struct OnDrop(Rc<Event>, Rc<Event>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.set();
            self.1.wait();
        }
    }
    on(1).run(|| {
        let (ended, may_go) = (Rc::new(Event::new()), Rc::new(Event::new()));
        let fiber = osier::spawn_local({
            let guard = OnDrop(Rc::clone(&ended), Rc::clone(&may_go));
            move || {
                let _guard = guard;
                Event::new().wait();
            }
        });
        osier::yield_now();
        fiber.cancel();
        ended.wait();
        may_go.set();
        assert!(fiber.join().unwrap_err().is::<Cancelled>());
    });
}
