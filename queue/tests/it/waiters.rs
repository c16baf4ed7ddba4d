//! The wait list on one thread, step by step, and on several under load. All interleavings: tests/loom/.

use crate::wakers::{Counter, Unpark};
use osier_queue::{WaitList, Waiter};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self};
use std::time::Duration;

fn waiting<'a>(list: &'a WaitList, waker: &Waker) -> Pin<Box<Waiter<'a>>> {
    let mut waiter = Box::pin(list.waiter());
    assert!(waiter.as_mut().register(waker));
    waiter
}

#[test]
fn is_first_in_first_out() {
    let list = WaitList::new();
    assert!(list.is_empty() && !list.wake_one());
    let (counter, waker) = Counter::new();
    let waiters: Vec<_> = (0..3).map(|_| waiting(&list, &waker)).collect();
    for granted in 1..=3 {
        assert!(!list.is_empty());
        assert!(list.wake_one());
        let notified: Vec<bool> = waiters.iter().map(|waiter| waiter.is_notified()).collect();
        assert_eq!(notified, [true, granted > 1, granted > 2]);
        assert_eq!(counter.wakes(), granted);
    }
    assert!(list.is_empty() && !list.wake_one());
}

#[test]
fn any_of_them_may_leave() {
    for leaving in 0..3 {
        let list = WaitList::new();
        let mut waiters: Vec<_> = (0..3).map(|_| waiting(&list, Waker::noop())).collect();
        drop(waiters.remove(leaving));
        assert!(list.wake_one());
        assert_eq!([waiters[0].is_notified(), waiters[1].is_notified()], [true, false]);
        assert!(!waiters[1].as_mut().remove(), "waiting, not notified");
        assert!(list.is_empty());
    }
}

#[test]
fn registering_again_keeps_the_place_and_takes_the_new_waker() {
    let list = WaitList::new();
    let (old, old_waker) = Counter::new();
    let (new, new_waker) = Counter::new();
    let mut first = waiting(&list, &old_waker);
    let second = waiting(&list, &old_waker);
    assert!(first.as_mut().register(&new_waker));
    assert_eq!(
        Arc::strong_count(&old),
        3,
        "the first one's clone is gone: ours, the waker, the second one's"
    );
    assert!(list.wake_one());
    assert_eq!((first.is_notified(), second.is_notified()), (true, false));
    assert_eq!((old.wakes(), new.wakes()), (0, 1));
}

#[test]
fn a_notification_is_consumed_once_and_the_waiter_serves_again() {
    let list = WaitList::new();
    let mut waiter = pin!(list.waiter());
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..2 {
        assert_eq!(waiter.as_mut().poll_notified(&mut cx), Poll::Pending);
        assert_eq!(waiter.as_mut().poll_notified(&mut cx), Poll::Pending);
        assert!(list.wake_one());
        assert!(!waiter.as_mut().register(Waker::noop()), "a notification is there");
        assert!(list.is_empty(), "and it does not wait");
        assert_eq!(waiter.as_mut().poll_notified(&mut cx), Poll::Ready(()));
        assert!(!waiter.is_notified());
    }
    assert!(!waiter.as_mut().remove());
    assert!(std::ptr::eq(waiter.list(), &list));
}

#[test]
fn a_grant_that_is_dropped_goes_to_the_next() {
    let list = WaitList::new();
    let (counter, waker) = Counter::new();
    let first = waiting(&list, Waker::noop());
    let second = waiting(&list, Waker::noop());
    let third = waiting(&list, &waker);
    assert!(list.wake_one());
    drop(first);
    assert!(second.is_notified());
    drop(second);
    assert!(third.is_notified());
    assert_eq!(counter.wakes(), 1);
}

#[test]
fn a_grant_that_was_consumed_or_taken_back_goes_nowhere() {
    let list = WaitList::new();
    let mut consumed = waiting(&list, Waker::noop());
    let mut removed = waiting(&list, Waker::noop());
    let last = waiting(&list, Waker::noop());
    assert!(list.wake_one() && list.wake_one());
    assert!(
        consumed
            .as_mut()
            .poll_notified(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    );
    assert!(removed.as_mut().remove(), "the grant is the caller's now");
    drop((consumed, removed));
    assert!(!last.is_notified());
}

#[test]
fn what_wake_all_gave_is_not_passed_on() {
    let list = WaitList::new();
    let first = waiting(&list, Waker::noop());
    assert_eq!(list.wake_all(), 1);
    let late = waiting(&list, Waker::noop());
    drop(first);
    assert!(!late.is_notified());
}

#[test]
fn wake_all_wakes_more_than_one_batch_each_once() {
    for count in [1, 15, 16, 17, 100] {
        let list = WaitList::new();
        let (counter, waker) = Counter::new();
        let waiters: Vec<_> = (0..count).map(|_| waiting(&list, &waker)).collect();
        assert_eq!(list.wake_all(), count);
        assert_eq!((counter.wakes(), list.is_empty(), list.wake_all()), (count, true, 0));
        assert!(waiters.iter().all(|waiter| waiter.is_notified()));
    }
}

/// A waker that runs a closure: the foreign code that a wake-up may be.
struct Run(fn());

impl Wake for Run {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

thread_local! {
    static SCENE: RefCell<Vec<Pin<Box<Waiter<'static>>>>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn those_who_come_during_wake_all_are_not_woken_by_it() {
    static LIST: WaitList = WaitList::new();
    let waker = Waker::from(Arc::new(Run(|| {
        let late = waiting(&LIST, Waker::noop());
        SCENE.with_borrow_mut(|scene| scene.push(late));
    })));
    let early: Vec<_> = (0..20).map(|_| waiting(&LIST, &waker)).collect();
    assert_eq!(LIST.wake_all(), 20);
    SCENE.with_borrow_mut(|scene| {
        assert_eq!(scene.len(), 20);
        assert!(scene.iter().all(|late| !late.is_notified()));
        scene.clear();
    });
    assert!(LIST.is_empty());
    drop(early);
}

#[test]
fn a_waker_may_use_the_list_and_drop_its_neighbours() {
    static LIST: WaitList = WaitList::new();
    let waker = Waker::from(Arc::new(Run(|| {
        LIST.wake_one();
        SCENE.with_borrow_mut(|scene| scene.truncate(1));
    })));
    for _ in 0..2 {
        SCENE.with_borrow_mut(|scene| scene.extend((0..40).map(|_| waiting(&LIST, Waker::noop()))));
        let trigger = waiting(&LIST, &waker);
        SCENE.with_borrow_mut(|scene| scene.extend((0..40).map(|_| waiting(&LIST, Waker::noop()))));
        let woken = LIST.wake_all();
        assert!((41..=81).contains(&woken), "{woken}");
        assert!(trigger.is_notified() && LIST.is_empty());
        SCENE.with_borrow_mut(Vec::clear);
    }
}

/// Its place may be the first, in a batch, or at the edge of one; and there may be more of its kind.
#[test]
fn a_panicking_waker_costs_nobody_else_a_wake_up() {
    let bomb = Waker::from(Arc::new(Run(|| std::panic::resume_unwind(Box::new("a waker's own")))));
    let several: &[&[usize]] = &[&[0], &[1], &[7], &[15], &[16], &[17], &[39], &[0, 1, 2, 16, 17, 39]];
    for places in several {
        let list = WaitList::new();
        let (counter, waker) = Counter::new();
        let waker_of = |place| if places.contains(&place) { &bomb } else { &waker };
        let waiters: Vec<_> = (0..40).map(|place| waiting(&list, waker_of(place))).collect();
        let caught = catch_unwind(AssertUnwindSafe(|| list.wake_all())).expect_err("it goes on");
        assert_eq!(caught.downcast_ref(), Some(&"a waker's own"));
        assert_eq!(counter.wakes(), 40 - places.len(), "{places:?}");
        assert!(list.is_empty() && waiters.iter().all(|waiter| waiter.is_notified()));
    }
}

fn park() {
    const SOON: Duration = Duration::from_secs(60);
    let start = std::time::Instant::now();
    thread::park_timeout(SOON);
    assert!(start.elapsed() < SOON, "a wake-up was lost");
}

/// Permits that threads take, give, and abandon while waiting: whoever is left without one for ever hangs the test.
#[test]
fn threads_hand_permits_on_and_abandoned_grants_are_not_lost() {
    let (threads, rounds) = if cfg!(miri) { (3, 20) } else { (4, 5000) };
    let list = WaitList::new();
    let permits = AtomicUsize::new(1);
    let inside = AtomicUsize::new(0);
    let entered = AtomicUsize::new(0);
    let try_take = || {
        permits
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1))
            .is_ok()
    };
    let work = |thread: usize| {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        for round in 0..rounds {
            let mut waiter = pin!(list.waiter());
            let mut patience = if (round + thread).is_multiple_of(3) {
                1
            } else {
                usize::MAX
            };
            let taken = loop {
                if waiter.as_mut().poll_notified(&mut cx).is_ready() {
                    if try_take() {
                        break true;
                    }
                    continue;
                }
                if try_take() {
                    break true;
                }
                patience -= 1;
                if patience == 0 {
                    break false; // leaves, perhaps with a grant in its hands
                }
                park();
            };
            if taken {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one permit, one inside");
                entered.fetch_add(1, Ordering::Relaxed);
                inside.fetch_sub(1, Ordering::SeqCst);
                permits.fetch_add(1, Ordering::Relaxed);
                list.wake_one();
            }
        }
    };
    thread::scope(|scope| {
        for index in 0..threads {
            let work = &work;
            scope.spawn(move || work(index));
        }
    });
    assert!(entered.load(Ordering::Relaxed) >= threads * rounds * 2 / 3);
    assert!(list.is_empty());
    assert_eq!(permits.into_inner(), 1);
}

#[test]
fn wake_all_ends_every_wait_on_every_thread() {
    let threads = if cfg!(miri) { 2 } else { 8 };
    for _ in 0..if cfg!(miri) { 3 } else { 300 } {
        let (list, value) = (WaitList::new(), OnceLock::new());
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let waker = Waker::from(Arc::new(Unpark(thread::current())));
                    let mut waiter = pin!(list.waiter());
                    while waiter.as_mut().register(&waker) && value.get().is_none() {
                        park();
                    }
                    assert_eq!(value.get(), Some(&7));
                });
            }
            value.set(7).unwrap();
            list.wake_all();
        });
        assert!(list.is_empty());
    }
}
