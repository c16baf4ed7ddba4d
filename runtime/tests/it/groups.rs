//! Many fibers as one: sets that give values as they come, scopes that end at the first error, values to watch.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use osier::Cancelled;
use osier::fiber::{Builder, JoinSet};
use osier::sync::{Event, watch};

use crate::colours::Count;
use crate::given::{forever, on, settle, timeless};

/// Counts the closures that were dropped.
struct Counts(Arc<AtomicUsize>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A value that a fiber has taken along. Its destructor waits.
struct Slow(Arc<Event>);

impl Drop for Slow {
    fn drop(&mut self) {
        osier::shield(|| self.0.wait());
    }
}

#[test]
fn a_set_tries_without_waiting_and_takes_fibers_of_its_worker() {
    on(1).run(|| {
        let mut set = JoinSet::new();
        assert!(set.try_join_next().is_none());
        let shared = std::rc::Rc::new(3);
        let theirs = std::rc::Rc::clone(&shared);
        set.spawn_local(move || *theirs);
        set.spawn(|| {
            osier::sleep(Duration::from_secs(3600));
            0
        });
        assert!(set.try_join_next().is_none(), "neither has run");
        osier::yield_now();
        assert_eq!(set.try_join_next().unwrap().unwrap(), 3);
        assert!(set.try_join_next().is_none());
        set.spawn_local(|| panic!("on purpose"));
        set.cancel_all();
        let mut cancelled = 0;
        while let Some(outcome) = set.join_next() {
            cancelled += usize::from(Cancelled::is_payload(&*outcome.unwrap_err()));
        }
        assert_eq!((cancelled, std::rc::Rc::strong_count(&shared)), (2, 1));
    });
}

/// The function is dropped, and reports that. No later fiber of the set may be taken for it.
#[test]
fn a_spawn_that_panics_leaves_no_outcome_in_the_set() {
    on(1).run(|| {
        let mut set = JoinSet::new();
        let nowhere = Builder::new().worker(99);
        let spawned = catch_unwind(AssertUnwindSafe(|| set.spawn_with(nowhere, || 0)));
        assert!(spawned.is_err() && set.is_empty());
        set.spawn(|| 1);
        assert_eq!(set.join_next().unwrap().unwrap(), 1);
    });
}

#[test]
fn a_fiber_of_a_set_that_cannot_start_tells_why() {
    osier::run(|| {
        let too_large = || Builder::new().stack_bytes(usize::MAX);
        let why = |outcome: Option<std::thread::Result<i32>>| {
            let payload = outcome.expect("a fiber is in the set").unwrap_err();
            let error: Box<io::Error> = payload.downcast().expect("no cancellation");
            error.to_string()
        };
        let mut set = JoinSet::new();
        set.spawn_with(too_large().name("a"), || 1);
        assert!(why(set.join_next()).contains("'a'"));
        set.spawn_with(too_large().name("b"), || 2);
        assert!(why(osier::block_on(set.join_next_async())).contains("'b'"));
        set.spawn_with(too_large().name("c"), || 3);
        set.spawn(|| 4);
        let mut outcomes = Vec::new();
        while outcomes.len() < 2 {
            osier::yield_now();
            outcomes.extend(set.try_join_next());
        }
        let place = outcomes.iter().position(Result::is_err).expect("one has not run");
        assert!(why(Some(outcomes.remove(place))).contains("'c'"));
        assert_eq!(outcomes.remove(0).unwrap(), 4);
        set.spawn_with(too_large(), || 5);
        set.detach_all();
        set.spawn(|| 6);
        assert_eq!(set.join_next().unwrap().unwrap(), 6);
        assert!(set.join_next().is_none());
    });
}

#[test]
fn a_join_that_is_cancelled_loses_no_fiber_that_never_ran() {
    // One worker: nobody starts the fiber before it is cancelled.
    on(1).run(|| {
        let go = Arc::new(Event::new());
        let slow = Slow(Arc::clone(&go));
        let mut set = JoinSet::new();
        set.spawn(move || {
            let _slow = &slow;
            7
        });
        set.cancel_all();
        osier::yield_now();
        assert!(set.try_join_next().is_none(), "its values have not ended");
        let joined = osier::timeout(Duration::from_millis(1), || set.join_next().is_none());
        assert!(joined.is_err());
        go.set();
        let payload = set.join_next().expect("it is still in the set").unwrap_err();
        assert!(osier::Cancelled::is_payload(&*payload));
        assert!(set.join_next().is_none());
    });
}

/// Cancelled fibers that never ran. The values of each end once its event is set.
fn cancelled(go: &[Arc<Event>]) -> JoinSet<()> {
    let mut set = JoinSet::new();
    for go in go {
        let slow = Slow(Arc::clone(go));
        set.spawn_local(move || _ = &slow);
    }
    set.cancel_all();
    settle();
    set
}

/// The wake-up names the fiber that has ended: nobody looks at all of them.
#[test]
fn a_join_leaves_its_waker_once_for_all_fibers_that_never_ran() {
    const FIBERS: usize = 50;
    timeless(1).run(|| {
        let go: Vec<_> = (0..FIBERS).map(|_| Arc::new(Event::new())).collect();
        let mut set = cancelled(&go);
        let (count, waker) = Count::new();
        let mut cx = Context::from_waker(&waker);
        assert!(pin!(set.join_next_async()).poll(&mut cx).is_pending());
        assert_eq!(Arc::strong_count(&count), 3, "the test has two");
        go.iter().for_each(|go| go.set());
        settle();
        assert_eq!(count.wakes(), 1);
        let ended = std::iter::from_fn(|| set.try_join_next());
        assert_eq!(ended.filter(|outcome| outcome.is_err()).count(), FIBERS);
        assert!(set.is_empty());
    });
}

#[test]
fn a_join_waits_for_all_fibers_that_never_ran() {
    timeless(1).run(|| {
        let go = [(); 2].map(|()| Arc::new(Event::new()));
        let mut set = cancelled(&go);
        assert!(set.try_join_next().is_none(), "the values of both have not ended");
        go[0].set();
        settle();
        let first = set.try_join_next().expect("the first to report has ended");
        assert!(first.is_err());
        assert_eq!(set.len(), 1);
        go[1].set();
        assert!(set.join_next().unwrap().is_err());
        assert!(set.join_next().is_none());
    });
}

#[test]
fn a_sender_of_states_waits_until_nobody_watches() {
    on(2).run(|| {
        let (sender, receiver) = watch::channel(0);
        let other = sender.subscribe();
        let watching = osier::spawn(move || {
            sender.closed();
            sender
        });
        drop(receiver);
        osier::sleep(Duration::from_millis(1));
        assert!(!watching.is_finished());
        drop(other);
        let sender = watching.join().unwrap();
        assert!(sender.is_closed());
        let _receiver = sender.subscribe();
        assert!(!sender.is_closed());
    });
}

#[test]
fn a_set_gives_values_as_they_come_panics_and_cancellations_included() {
    osier::run(|| {
        let mut set = JoinSet::new();
        assert!(set.join_next().is_none());
        let gate = Arc::new(Event::new());
        let behind = Arc::clone(&gate);
        set.spawn(move || {
            behind.wait();
            1
        });
        set.spawn(|| 2);
        assert_eq!(set.join_next().unwrap().unwrap(), 2);
        assert_eq!(set.len(), 1);
        gate.set();
        assert_eq!(set.join_next().unwrap().unwrap(), 1);
        set.spawn(|| panic!("on purpose"));
        let payload = set.join_next().unwrap().unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
        for _ in 0..3 {
            set.spawn(|| {
                forever();
                3
            });
        }
        set.cancel_all();
        for _ in 0..3 {
            assert!(Cancelled::is_payload(&*set.join_next().unwrap().unwrap_err()));
        }
        assert!(set.is_empty());
        (0..10).for_each(|n| set.spawn(move || n));
        let mut all = set.join_all();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    });
}

#[test]
fn a_set_that_is_dropped_cancels_its_fibers() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&dropped);
    osier::run(move || {
        let mut set = JoinSet::new();
        for _ in 0..5 {
            let counts = Counts(Arc::clone(&counts));
            set.spawn(move || {
                let _counts = counts;
                forever();
            });
        }
        osier::yield_now();
        drop(set);
        // A fiber that will never be cancelled would keep the loop going.
        while counts.load(Ordering::SeqCst) < 5 {
            osier::sleep(Duration::from_millis(1));
        }
    });
    assert_eq!(dropped.load(Ordering::SeqCst), 5);
}

#[test]
fn the_first_error_cancels_the_others_and_is_returned_when_all_have_ended() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let outcome = osier::run(|| {
        osier::try_scope(|s| {
            for _ in 0..4 {
                let counts = Counts(Arc::clone(&dropped));
                s.spawn(move || -> io::Result<()> {
                    let _counts = counts;
                    forever();
                    Ok(())
                });
            }
            let failed = s.spawn(|| Err::<u8, _>(io::Error::other("the fifth failed")));
            assert!(failed.join().unwrap().is_none());
            Ok(())
        })
    });
    assert_eq!(outcome.unwrap_err().to_string(), "the fifth failed");
    assert_eq!(dropped.load(Ordering::SeqCst), 4);
}

#[test]
fn values_and_the_body_of_a_scope_with_errors() {
    osier::run(|| {
        let words = ["a", "bc"];
        let sum = osier::try_scope(|s| {
            let lengths = words.map(|word| s.spawn_local(move || Ok::<_, String>(word.len())));
            Ok(lengths
                .into_iter()
                .map(|length| length.join().unwrap().unwrap())
                .sum::<usize>())
        });
        assert_eq!(sum, Ok(3));
        let failed: Result<(), &str> = osier::try_scope(|s| {
            s.spawn(|| {
                forever();
                Ok(())
            });
            Err("the body failed")
        });
        assert_eq!(failed, Err("the body failed"));
        let panicked = osier::spawn(|| {
            let _: Result<(), ()> = osier::try_scope(|s| {
                s.spawn(|| {
                    forever();
                    Ok(())
                });
                s.spawn(|| -> Result<(), ()> { panic!("on purpose") });
                Ok(())
            });
        });
        assert!(panicked.join().is_err());
    });
}

#[test]
fn watchers_see_the_latest_state_and_the_end() {
    osier::run(|| {
        let (sender, mut receiver) = watch::channel(0);
        assert_eq!(receiver.has_changed(), Ok(false));
        assert_eq!(sender.send(1), 0);
        sender.send_modify(|value| *value += 1);
        assert!(receiver.changed().is_ok());
        assert_eq!(*receiver.borrow(), 2);
        assert_eq!(receiver.has_changed(), Ok(false));
        let mut other = receiver.clone();
        let waits = osier::spawn(move || other.wait_for(|value| *value >= 5).map(|value| *value));
        for value in 3..=5 {
            sender.send(value);
            osier::yield_now();
        }
        assert_eq!(waits.join().unwrap(), Ok(5));
        assert!(!sender.send_if_modified(|_| false));
        let cancelled = osier::spawn({
            let mut receiver = sender.subscribe();
            move || receiver.changed()
        });
        osier::yield_now();
        cancelled.cancel();
        assert!(cancelled.join().is_err());
        drop(sender);
        assert!(receiver.changed().is_ok(), "the last state is unseen");
        assert!(receiver.changed().is_err());
    });
}

#[test]
fn the_values_of_detached_fibers_end_while_the_set_lives() {
    on(1).run(|| {
        let drops = Arc::new(AtomicUsize::new(0));
        let mut set = JoinSet::new();
        // The first has ended when it is detached.
        for _ in 0..2 {
            osier::yield_now();
            let value = Counts(Arc::clone(&drops));
            set.spawn(move || value);
        }
        set.detach_all();
        osier::yield_now();
        assert_eq!(drops.load(Ordering::SeqCst), 2);
        assert!(set.is_empty());
    });
}

#[test]
fn a_set_forgets_those_that_it_has_detached() {
    on(1).run(|| {
        let mut set = JoinSet::new();
        set.spawn(|| 1);
        osier::yield_now();
        set.detach_all();
        assert!(set.join_next().is_none());
        set.spawn(|| 2);
        assert_eq!(set.join_next().unwrap().unwrap(), 2, "not the value of the first one");
        assert!(set.join_next().is_none());
    });
}

/// A future that has been dropped when `Counts` says so.
async fn until(event: Arc<Event>, value: u32, counts: Counts) -> u32 {
    event.wait_async().await;
    drop(counts);
    value
}

#[test]
fn a_set_has_futures_beside_fibers() {
    for workers in [1, 2] {
        timeless(workers).run(|| {
            let (go, drops) = ([(); 2].map(|()| Arc::new(Event::new())), Arc::new(AtomicUsize::new(0)));
            let counts = || Counts(Arc::clone(&drops));
            let mut set = JoinSet::new();
            set.spawn_future(until(Arc::clone(&go[0]), 1, counts()));
            set.spawn_future_local(until(Arc::clone(&go[1]), 2, counts()));
            set.spawn(|| 3);
            assert_eq!(set.join_next().unwrap().unwrap(), 3);
            go[1].set();
            assert_eq!(set.join_next().unwrap().unwrap(), 2);
            go[0].set();
            assert_eq!(set.join_next().unwrap().unwrap(), 1);
            assert!(set.is_empty() && set.join_next().is_none());

            set.spawn_future(async { panic!("on purpose") });
            let payload = set.join_next().unwrap().unwrap_err();
            assert_eq!(*payload.downcast::<&str>().unwrap(), "on purpose");

            // A cancellation that comes later hides no panic.
            set.spawn_future_local(async { panic!("before") });
            settle();
            set.cancel_all();
            let payload = set.join_next().unwrap().unwrap_err();
            assert_eq!(*payload.downcast::<&str>().unwrap(), "before");

            // One is cancelled while it waits, the other before its first poll.
            set.spawn_future(until(Arc::clone(&go[0]), 4, counts()));
            settle();
            set.spawn_future_local(until(Arc::clone(&go[0]), 5, counts()));
            set.cancel_all();
            set.cancel_all();
            for _ in 0..2 {
                let payload = set.join_next().unwrap().unwrap_err();
                assert!(Cancelled::is_payload(&*payload));
            }
            assert_eq!((set.len(), drops.load(Ordering::SeqCst)), (0, 4));
        });
    }
}

#[test]
fn a_set_that_is_dropped_ends_its_futures_and_one_that_detaches_does_not() {
    timeless(1).run(|| {
        let (go, drops) = (Arc::new(Event::manual()), Arc::new(AtomicUsize::new(0)));
        let mut set = JoinSet::new();
        set.spawn_future(until(Arc::clone(&go), 1, Counts(Arc::clone(&drops))));
        settle();
        drop(set);
        settle();
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        let mut set = JoinSet::new();
        set.spawn_future(until(Arc::clone(&go), 1, Counts(Arc::clone(&drops))));
        set.detach_all();
        drop(set);
        settle();
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        go.set();
        settle();
        assert_eq!(drops.load(Ordering::SeqCst), 2);
    });
}
