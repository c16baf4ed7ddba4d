//! Models of everything in this crate that more than one thread touches, run through all their interleavings:
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p osier-queue --release --test loom`
//!
//! Conditions are stored and loaded `Relaxed` wherever the module promises that its own fences are enough. A lost
//! wake-up shows as a deadlock, which loom reports. Each model prints how many executions it took.
//!
//! The harness is here; a module each for what the models are of.
#![cfg(loom)]

use loom::future::block_on;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use loom::sync::{Arc, Notify};
use loom::thread;
use osier_queue::{Completion, Idle, Inbox, Link, Parker, WaitList};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize as Count, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

/// Runs a model through all its interleavings, or those with at most `preemptions`, and prints how many there were.
///
/// The body returns what happened, and each of `outcomes` must have happened: a model that misses the race it is about
/// proves nothing. (loom remembers only the last access to an object: where a thread loads and then exchanges, a load of
/// another thread before is not tried after. Then the roles of the two threads are swapped here.)
fn model(name: &str, preemptions: Option<usize>, outcomes: &[usize], body: impl Fn() -> usize + Send + Sync + 'static) {
    let seen = std::sync::Arc::new(Mutex::new((0, BTreeSet::new())));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check({
        let seen = seen.clone();
        move || {
            let outcome = body();
            let mut seen = seen.lock().unwrap();
            seen.0 += 1;
            seen.1.insert(outcome);
        }
    });
    let (executions, seen) = &*seen.lock().unwrap();
    let bound = preemptions.map_or(String::new(), |most| format!(", at most {most} preemptions"));
    println!("model {name}: {executions} executions{bound}, outcomes {seen:?}");
    assert!(*executions > 1, "{name}: nothing was interleaved");
    assert_eq!(
        seen.iter().copied().collect::<Vec<_>>(),
        outcomes,
        "{name}: other outcomes than foreseen"
    );
}

/// A waker that counts; std's atomics, so that counting adds no interleavings.
#[derive(Default)]
struct Counter(Count);

impl Wake for Counter {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Counter {
    fn new() -> (std::sync::Arc<Self>, Waker) {
        let counter = std::sync::Arc::new(Counter::default());
        (counter.clone(), Waker::from(counter))
    }

    fn wakes(&self) -> usize {
        self.0.load(SeqCst)
    }
}

mod budget;
mod cancel;
mod channel;
mod clock;
mod completion;
mod event;
mod gate;
mod group;
mod mailbox;
mod readiness;
mod request;
mod topic;

mod waiters {
    use super::*;

    /// A condition and those who wait for it.
    #[derive(Default)]
    struct Flag {
        set: AtomicBool,
        list: WaitList,
    }

    impl Flag {
        /// Returns 1 if it had to wait, else 0.
        fn wait(&self) -> usize {
            let mut waiter = pin!(self.list.waiter());
            let mut waited = 0;
            block_on(poll_fn(|cx| {
                // Register first, then look: and again if the notification was for an earlier state.
                while waiter.as_mut().poll_notified(cx).is_ready() {}
                if self.set.load(Relaxed) {
                    return Poll::Ready(());
                }
                waited = 1;
                Poll::Pending
            }));
            waited
        }
    }

    /// Takes one of `permits` or waits for one.
    fn acquire(permits: &AtomicUsize, list: &WaitList) {
        let mut waiter = pin!(list.waiter());
        block_on(poll_fn(|cx| {
            loop {
                if try_take(permits) {
                    return Poll::Ready(());
                }
                if waiter.as_mut().poll_notified(cx).is_pending() {
                    return if try_take(permits) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    };
                }
            }
        }));
    }

    fn try_take(permits: &AtomicUsize) -> bool {
        permits
            .fetch_update(Relaxed, Relaxed, |free| free.checked_sub(1))
            .is_ok()
    }

    #[test]
    fn the_lock_shows_each_holder_what_the_last_one_did() {
        // Two nodes and the list's ticket are in cells: loom finds a holder who touches one without order. The outcome is how
        // many the wake-up finds.
        model("waiters: the lock itself", Some(3), &[1, 2], || {
            let list = Arc::new(WaitList::without_turnstile());
            let other = {
                let list = list.clone();
                thread::spawn(move || {
                    let mut waiter = pin!(list.waiter());
                    assert!(waiter.as_mut().register(Waker::noop()));
                })
            };
            let mut waiter = pin!(list.waiter());
            assert!(waiter.as_mut().register(Waker::noop()));
            let woken = list.wake_all();
            assert!(waiter.is_notified());
            other.join().unwrap();
            woken
        });
    }

    #[test]
    fn no_wake_up_is_lost_by_wake_one() {
        model("waiters: lost wake-up, wake_one", None, &[0, 1], || {
            let flag = Arc::new(Flag::default());
            let setter = thread::spawn({
                let flag = flag.clone();
                move || {
                    flag.set.store(true, Relaxed);
                    flag.list.wake_one();
                }
            });
            let waited = flag.wait();
            setter.join().unwrap();
            assert!(flag.list.is_empty());
            waited
        });
    }

    #[test]
    fn no_wake_up_is_lost_by_wake_all() {
        model(
            "waiters: lost wake-up, wake_all, two waiters",
            Some(2),
            &[0, 1, 2],
            || {
                let flag = Arc::new(Flag::default());
                let other = thread::spawn({
                    let flag = flag.clone();
                    move || flag.wait()
                });
                let setter = thread::spawn({
                    let flag = flag.clone();
                    move || {
                        flag.set.store(true, Relaxed);
                        flag.list.wake_all();
                    }
                });
                let mut waited = flag.wait();
                waited += other.join().unwrap();
                setter.join().unwrap();
                waited
            },
        );
    }

    #[test]
    fn two_grants_reach_two_waiters() {
        model("waiters: two grants, two waiters", Some(2), &[0], || {
            let shared = Arc::new((AtomicUsize::new(0), WaitList::new()));
            let waiter = {
                let shared = shared.clone();
                thread::spawn(move || acquire(&shared.0, &shared.1))
            };
            let giver = {
                let shared = shared.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        shared.0.fetch_add(1, Relaxed);
                        shared.1.wake_one();
                    }
                })
            };
            acquire(&shared.0, &shared.1);
            waiter.join().unwrap();
            giver.join().unwrap();
            0
        });
    }

    #[test]
    fn a_waiter_is_granted_once() {
        model("waiters: double wake", None, &[0, 1], || {
            let list = Arc::new(WaitList::new());
            let (counter, waker) = Counter::new();
            let mut waiter = pin!(list.waiter());
            assert!(waiter.as_mut().register(&waker));
            let other = {
                let list = list.clone();
                thread::spawn(move || list.wake_one() as usize)
            };
            let by_all = list.wake_all();
            let granted = by_all + other.join().unwrap();
            assert_eq!((granted, counter.wakes()), (1, 1));
            assert!(waiter.as_mut().remove());
            assert!(!waiter.remove());
            by_all
        });
    }

    #[test]
    fn a_grant_dropped_unconsumed_goes_to_the_next() {
        model("waiters: granted, then dropped", None, &[0, 1], || {
            let list = Arc::new(WaitList::new());
            let (first_counter, first_waker) = Counter::new();
            let (next_counter, next_waker) = Counter::new();
            let mut first = Box::pin(list.waiter());
            let mut next = pin!(list.waiter());
            assert!(first.as_mut().register(&first_waker));
            assert!(next.as_mut().register(&next_waker));
            let giver = {
                let list = list.clone();
                thread::spawn(move || assert!(list.wake_one()))
            };
            drop(first);
            giver.join().unwrap();
            assert!(next.is_notified() && list.is_empty(), "the grant is lost");
            assert_eq!(next_counter.wakes(), 1);
            first_counter.wakes()
        });
    }

    #[test]
    fn a_cancelled_waiter_never_keeps_the_last_permit_from_another() {
        model(
            "waiters: granted, then dropped, with a condition",
            Some(2),
            &[0],
            || {
                let shared = Arc::new((AtomicUsize::new(0), WaitList::new()));
                let loser = {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let mut waiter = pin!(shared.1.waiter());
                        let _ = waiter.as_mut().register(&Waker::from(Counter::new().0));
                    })
                };
                let giver = {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        shared.0.fetch_add(1, Relaxed);
                        shared.1.wake_one();
                    })
                };
                acquire(&shared.0, &shared.1); // a deadlock if the loser swallowed the wake-up
                loser.join().unwrap();
                giver.join().unwrap();
                0
            },
        );
    }

    #[test]
    fn the_node_may_go_as_soon_as_it_is_granted() {
        model(
            "waiters: a node freed by its owner while it is granted",
            None,
            &[0, 1],
            || {
                let list = Arc::new(WaitList::new());
                let mut boxed = Box::pin(list.waiter());
                assert!(boxed.as_mut().register(&Counter::new().1));
                let waker = {
                    let list = list.clone();
                    thread::spawn(move || list.wake_all())
                };
                drop(boxed);
                let woken = waker.join().unwrap();
                assert!(list.is_empty());
                woken
            },
        );
    }

    #[test]
    fn neighbours_leave_while_the_list_is_woken() {
        model("waiters: neighbours unlink during wake_all", None, &[1, 2], || {
            let list = Arc::new(WaitList::new());
            let (counter, waker) = Counter::new();
            let mut first = Box::pin(list.waiter());
            let mut last = pin!(list.waiter());
            assert!(first.as_mut().register(&waker));
            assert!(last.as_mut().register(&waker));
            let waking = {
                let list = list.clone();
                thread::spawn(move || list.wake_all())
            };
            drop(first);
            let woken = waking.join().unwrap();
            assert!(last.is_notified() && list.is_empty());
            assert_eq!(counter.wakes(), woken);
            woken
        });
    }

    #[test]
    fn a_replaced_waker_is_woken_or_the_grant_is_seen() {
        model("waiters: waker replaced while granted", None, &[0, 1], || {
            let list = Arc::new(WaitList::new());
            let (_, old) = Counter::new();
            let (counter, new) = Counter::new();
            let mut waiter = pin!(list.waiter());
            assert!(waiter.as_mut().register(&old));
            let giver = {
                let list = list.clone();
                thread::spawn(move || assert!(list.wake_one()))
            };
            let waits = waiter.as_mut().register(&new);
            giver.join().unwrap();
            assert!(waiter.is_notified());
            assert_eq!(waits, counter.wakes() == 1);
            waits as usize
        });
    }

    #[test]
    fn shutdown_reaches_who_waits_and_who_is_about_to() {
        model("waiters: shutdown", None, &[0, 1], || {
            let flag = Arc::new(Flag::default());
            let waiting = {
                let flag = flag.clone();
                thread::spawn(move || {
                    let waited = flag.wait();
                    assert_eq!(flag.wait(), 0, "once more, after the end");
                    waited
                })
            };
            flag.set.store(true, Relaxed);
            flag.list.wake_all();
            waiting.join().unwrap()
        });
    }
}

mod inbox {
    use super::*;

    /// A worker as the runtime makes it: inbox, parker, and a `Notify` for its eventfd.
    struct Worker {
        inbox: Inbox,
        links: [Link; 2],
        data: [AtomicU32; 2],
        parker: Parker,
        eventfd: Notify,
        interrupts: Count,
        stop: AtomicBool,
    }

    impl Worker {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                inbox: Inbox::new(),
                links: [Link::new(), Link::new()],
                data: [AtomicU32::new(0), AtomicU32::new(0)],
                parker: Parker::new(),
                eventfd: Notify::new(),
                interrupts: Count::new(0),
                stop: AtomicBool::new(false),
            })
        }

        fn wake(&self, slot: u32) {
            self.data[slot as usize].fetch_add(1, Relaxed);
            if self.inbox.push(&self.links[..], slot) {
                self.interrupt();
            }
        }

        fn interrupt(&self) {
            if self.parker.unpark() {
                self.interrupts.fetch_add(1, SeqCst);
                self.eventfd.notify();
            }
        }

        /// Sleeps at most once, and returns the sum of what the drained slots carried.
        fn turn(&self) -> u32 {
            self.parker.prepare();
            if self.inbox.is_empty() && !self.stop.load(Relaxed) {
                self.eventfd.wait();
            }
            self.parker.unprepare();
            self.drain()
        }

        fn drain(&self) -> u32 {
            let mut sum = 0;
            self.inbox
                .drain(&self.links[..], |slot| sum += self.data[slot as usize].swap(0, Relaxed));
            sum
        }
    }

    #[test]
    fn who_finds_the_owner_awake_has_its_push_seen() {
        // Outcomes: 1, the owner was found awake, plus 2, it has seen the push.
        model("parker: a question instead of a ring", None, &[0, 2, 3], || {
            let shared = Arc::new((Parker::new(), AtomicBool::new(false)));
            let owner = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.0.prepare();
                    shared.1.load(Relaxed)
                })
            };
            shared.1.store(true, Relaxed);
            let awake = !shared.0.is_prepared();
            let seen = owner.join().unwrap();
            assert!(seen || !awake, "nobody rings, and the owner blocks");
            awake as usize + 2 * seen as usize
        });
    }

    #[test]
    fn a_push_wakes_the_sleeper_or_is_seen() {
        model("inbox + parker: lost wake-up", None, &[0, 1], || {
            let worker = Worker::new();
            let waker = {
                let worker = worker.clone();
                thread::spawn(move || worker.wake(0))
            };
            let mut sum = 0;
            while sum < 1 {
                sum += worker.turn();
            }
            waker.join().unwrap();
            worker.interrupts.load(SeqCst)
        });
    }

    #[test]
    fn two_pushers_interrupt_one_sleep_once() {
        model("inbox + parker: double wake", None, &[1], || {
            let worker = Worker::new();
            worker.parker.prepare();
            let wakers = [0, 1].map(|slot| {
                let worker = worker.clone();
                thread::spawn(move || worker.wake(slot))
            });
            for waker in wakers {
                waker.join().unwrap();
            }
            assert_eq!(worker.interrupts.load(SeqCst), 1);
            worker.parker.unprepare();
            assert_eq!(worker.drain(), 2);
            assert!(worker.inbox.is_empty());
            worker.interrupts.load(SeqCst)
        });
    }

    #[test]
    fn a_refused_push_is_covered_by_the_hand_over() {
        model("inbox: one slot pushed twice while drained", None, &[0, 1, 2], || {
            let worker = Worker::new();
            let owner = {
                let worker = worker.clone();
                thread::spawn(move || worker.drain())
            };
            worker.wake(0);
            worker.wake(0);
            let first = owner.join().unwrap();
            assert_eq!(first + worker.drain(), 2);
            assert!(worker.inbox.is_empty());
            first as usize
        });
    }

    #[test]
    fn two_pushers_of_one_slot_lose_nothing() {
        model(
            "inbox: one slot, two pushers, one drain between",
            Some(3),
            &[0, 1, 2],
            || {
                let worker = Worker::new();
                let owner = {
                    let worker = worker.clone();
                    thread::spawn(move || worker.drain())
                };
                let waker = {
                    let worker = worker.clone();
                    thread::spawn(move || worker.wake(0))
                };
                worker.wake(0);
                waker.join().unwrap();
                let first = owner.join().unwrap();
                assert_eq!(first + worker.drain(), 2);
                first as usize
            },
        );
    }

    #[test]
    fn two_slots_from_two_threads_arrive_whole() {
        model(
            "inbox: two slots, two pushers, list kept whole",
            Some(3),
            &[0, 1, 2],
            || {
                let worker = Worker::new();
                let owner = {
                    let worker = worker.clone();
                    thread::spawn(move || worker.drain())
                };
                let waker = {
                    let worker = worker.clone();
                    thread::spawn(move || worker.wake(1))
                };
                worker.wake(0);
                waker.join().unwrap();
                let first = owner.join().unwrap();
                assert_eq!(first + worker.drain(), 2);
                first as usize
            },
        );
    }

    #[test]
    fn a_slot_that_comes_again_does_not_cut_off_the_rest() {
        model(
            "inbox: a slot pushed again in the middle of a drain",
            None,
            &[2, 3],
            || {
                let worker = Worker::new();
                worker.wake(0);
                worker.wake(1);
                let owner = {
                    let worker = worker.clone();
                    thread::spawn(move || worker.drain())
                };
                worker.wake(0);
                let first = owner.join().unwrap();
                assert_eq!(first + worker.drain(), 3);
                first as usize
            },
        );
    }

    #[test]
    fn the_hand_over_sees_what_a_refused_pusher_wrote() {
        model("inbox: what a refused push must show", None, &[0, 1, 2], || {
            let worker = Worker::new();
            let look = |worker: &Worker| {
                let mut last = 0;
                worker.inbox.drain(&worker.links[..], |slot| {
                    last = worker.data[slot as usize].load(Relaxed)
                });
                last
            };
            let owner = {
                let worker = worker.clone();
                thread::spawn(move || look(&worker))
            };
            for value in [1, 2] {
                worker.data[0].store(value, Relaxed);
                worker.inbox.push(&worker.links[..], 0);
            }
            let first = owner.join().unwrap();
            assert_eq!(first.max(look(&worker)), 2);
            first as usize
        });
    }

    #[test]
    fn shutdown_interrupts_the_sleep() {
        model("parker: shutdown", None, &[0, 1], || {
            let worker = Worker::new();
            let closer = {
                let worker = worker.clone();
                thread::spawn(move || {
                    worker.stop.store(true, Relaxed);
                    worker.interrupt();
                })
            };
            while !worker.stop.load(Relaxed) {
                worker.turn();
            }
            closer.join().unwrap();
            worker.interrupts.load(SeqCst)
        });
    }
}

mod idle {
    use super::*;

    /// Stealable work and workers that sleep, each on a `Notify` for its eventfd.
    struct Pool {
        work: AtomicUsize,
        idle: Idle,
        eventfds: Vec<Notify>,
        chosen: Count,
    }

    impl Pool {
        fn new(workers: usize) -> Arc<Self> {
            Arc::new(Self {
                work: AtomicUsize::new(0),
                idle: Idle::new(workers),
                eventfds: (0..workers).map(|_| Notify::new()).collect(),
                chosen: Count::new(0),
            })
        }

        fn push(&self) {
            self.work.fetch_add(1, Relaxed);
            self.wake_another();
        }

        fn wake_another(&self) {
            if let Some(index) = self.idle.wake_candidate() {
                self.chosen.fetch_add(1, SeqCst);
                self.eventfds[index].notify();
            }
        }

        fn steal(&self) -> bool {
            self.work
                .fetch_update(Relaxed, Relaxed, |work| work.checked_sub(1))
                .is_ok()
        }

        /// One worker's turn when it has nothing of its own: search, else sleep. Returns whether it got work.
        fn look_for_work(&self, index: usize) -> bool {
            if self.idle.start_search() {
                let found = self.steal();
                if self.idle.stop_search() && found {
                    self.wake_another();
                }
                if found {
                    return true;
                }
            }
            self.idle.enter_sleep(index);
            if self.work.load(Relaxed) == 0 {
                self.eventfds[index].wait();
            }
            let searching = self.idle.leave_sleep(index);
            let found = self.steal();
            if (!searching || self.idle.stop_search()) && found {
                self.wake_another();
            }
            found
        }
    }

    #[test]
    fn a_push_finds_the_sleeper_or_is_found() {
        model("idle: lost wake-up, one worker", None, &[0, 1], || {
            let pool = Pool::new(2);
            let pusher = {
                let pool = pool.clone();
                thread::spawn(move || pool.push())
            };
            while !pool.look_for_work(0) {}
            pusher.join().unwrap();
            pool.chosen.load(SeqCst)
        });
    }

    #[test]
    fn a_searcher_that_goes_to_sleep_sees_what_relied_on_it() {
        model("idle: a push relies on the last searcher", None, &[0, 1], || {
            let pool = Pool::new(2);
            assert!(pool.idle.start_search());
            let pusher = {
                let pool = pool.clone();
                thread::spawn(move || pool.push())
            };
            pool.idle.stop_search();
            while !pool.look_for_work(0) {}
            pusher.join().unwrap();
            pool.chosen.load(SeqCst)
        });
    }

    #[test]
    fn a_burst_wakes_one_and_that_one_finds_all() {
        model("idle: two pushes, one sleeper", None, &[1], || {
            let pool = Pool::new(1);
            pool.idle.enter_sleep(0);
            let pushers = [(); 2].map(|()| {
                let pool = pool.clone();
                thread::spawn(move || pool.push())
            });
            for pusher in pushers {
                pusher.join().unwrap();
            }
            assert_eq!(pool.chosen.load(SeqCst), 1);
            assert!(pool.idle.leave_sleep(0), "chosen");
            assert!(pool.idle.stop_search(), "it was the only one");
            assert!(pool.steal() && pool.steal());
            pool.chosen.load(SeqCst)
        });
    }

    #[test]
    fn a_worker_that_wakes_by_itself_is_chosen_by_one_or_none() {
        model("idle: own wake-up against the choice", None, &[0, 1], || {
            let pool = Pool::new(2);
            pool.idle.enter_sleep(0);
            let pusher = {
                let pool = pool.clone();
                thread::spawn(move || pool.idle.wake_candidate())
            };
            let searching = pool.idle.leave_sleep(0);
            let chosen = pusher.join().unwrap();
            assert_eq!(searching, chosen.is_some());
            if searching {
                assert!(pool.idle.stop_search());
            }
            assert!(pool.idle.start_search(), "the count is back at zero");
            assert!(pool.idle.stop_search());
            searching as usize
        });
    }

    #[test]
    fn work_is_not_lost_when_the_choice_comes_too_late() {
        // A wakes by itself while a pusher chooses; B goes to sleep and another pusher relies on the first's search.
        model(
            "idle: a choice that finds nobody looks again",
            Some(3),
            &[0, 1, 2],
            || {
                let pool = Pool::new(2);
                pool.idle.enter_sleep(0);
                let late = {
                    let pool = pool.clone();
                    thread::spawn(move || pool.wake_another())
                };
                let sleeper = {
                    let pool = pool.clone();
                    thread::spawn(move || {
                        pool.idle.enter_sleep(1);
                        if pool.work.load(Relaxed) == 0 {
                            pool.eventfds[1].wait();
                        }
                        let _ = pool.idle.leave_sleep(1);
                    })
                };
                let chosen = pool.idle.leave_sleep(0); // by itself: it goes on with work of its own
                if chosen && pool.idle.stop_search() && pool.work.load(Relaxed) > 0 {
                    pool.wake_another();
                }
                pool.push(); // worker 1 is the only one who may sleep: it must come
                late.join().unwrap();
                sleeper.join().unwrap();
                pool.chosen.load(SeqCst)
            },
        );
    }
}
