//! The event on one thread, step by step. All interleavings: tests/loom/event.rs.

use crate::wakers::{Bomb, Counter};
use osier_queue::{Event, Waiter};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread;

/// A waiter that leaves when it is dropped, as every future that holds one does.
struct Wait<'e>(&'e Event, Pin<Box<Waiter<'e>>>);

impl<'e> Wait<'e> {
    fn new(event: &'e Event) -> Self {
        Wait(event, Box::pin(event.waiter()))
    }

    fn poll(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.0.poll_wait(self.1.as_mut(), &mut cx).is_ready()
    }

    fn waiting(event: &'e Event) -> Self {
        let mut wait = Wait::new(event);
        assert!(!wait.poll());
        wait
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1.as_mut());
    }
}

#[test]
fn starts_unset_and_is_set_once_however_often() {
    let event = Event::new();
    assert!(!event.is_set() && !event.try_wait() && !event.reset());
    event.set();
    event.set();
    assert!(event.is_set());
    assert!(event.try_wait(), "set before");
    assert!(!event.is_set() && !event.try_wait(), "two sets are one");
    event.set();
    assert!(event.reset() && !event.reset() && !event.is_set());
}

#[test]
fn a_wait_for_a_set_event_takes_it_at_once() {
    let event = Event::new();
    event.set();
    assert!(Wait::new(&event).poll());
    assert!(!event.is_set());
}

#[test]
fn each_set_releases_one_in_order() {
    let event = Event::new();
    let mut waits: Vec<_> = (0..3).map(|_| Wait::waiting(&event)).collect();
    for turn in 0..3 {
        event.set();
        assert!(!event.is_set() && !event.try_wait(), "it is the waiter's already");
        let released: Vec<bool> = waits.iter().map(|wait| wait.1.is_notified()).collect();
        assert_eq!(released, [true, turn > 0, turn > 1]);
    }
    assert!(waits.iter_mut().all(Wait::poll));
    event.set();
    assert!(event.is_set(), "nobody waits any more");
}

#[test]
fn a_wait_may_be_used_again() {
    let event = Event::new();
    let mut wait = Wait::new(&event);
    for _ in 0..3 {
        assert!(!wait.poll() && !wait.poll(), "a second poll keeps its place");
        event.set();
        assert!(wait.poll());
    }
}

#[test]
fn whoever_leaves_passes_its_signal_on() {
    let event = Event::new();
    let first = Wait::waiting(&event);
    let mut second = Wait::waiting(&event);
    event.set();
    assert!(first.1.is_notified() && !second.1.is_notified());
    drop(first);
    assert!(second.1.is_notified() && !event.is_set());
    assert!(second.poll());

    let last = Wait::waiting(&event);
    event.set();
    drop(last);
    assert!(event.try_wait() && !event.try_wait());

    drop(Wait::waiting(&event));
    assert!(!event.is_set(), "who had no signal leaves none");
}

#[test]
fn a_manual_one_releases_all_until_it_is_reset() {
    let event = Event::manual();
    let mut waits: Vec<_> = (0..40).map(|_| Wait::waiting(&event)).collect();
    event.set();
    assert!(event.try_wait() && event.try_wait() && event.is_set());
    assert!(Wait::new(&event).poll());
    assert!(event.reset());
    assert!(!event.try_wait());
    let mut late = Wait::waiting(&event);
    drop(waits.pop());
    assert!(!event.is_set(), "a release is nothing to pass on");
    assert!(waits.iter_mut().all(Wait::poll), "released before the reset");
    assert!(!late.poll());
}

#[test]
fn sets_that_were_one_show_what_came_before_each() {
    let each = if cfg!(miri) { 50 } else { 20_000 };
    let (event, work) = (Event::new(), AtomicUsize::new(0));
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for _ in 0..each {
                    work.fetch_add(1, Ordering::Relaxed);
                    event.set();
                }
            });
        }
        let mut taken = 0;
        while taken < 2 * each {
            if event.try_wait() {
                // Not a read-modify-write: it may see something old, unless the event says otherwise.
                taken = work.load(Ordering::Relaxed);
            }
            thread::yield_now();
        }
    });
}

#[test]
fn a_panicking_waker_costs_nobody_else_the_signal() {
    let counter = Arc::new(Counter::default());
    let wakers = [Waker::from(Arc::new(Bomb)), Waker::from(counter.clone())];
    for bombs in [&[0][..], &[20], &[0, 20, 39]] {
        let event = Event::manual();
        let mut waits: Vec<_> = (0..40).map(|_| Wait::new(&event)).collect();
        for (place, wait) in waits.iter_mut().enumerate() {
            let mut cx = Context::from_waker(&wakers[usize::from(!bombs.contains(&place))]);
            assert!(event.poll_wait(wait.1.as_mut(), &mut cx).is_pending());
        }
        let set = AssertUnwindSafe(|| event.set());
        std::panic::catch_unwind(set).expect_err("it goes on");
        assert_eq!(counter.0.swap(0, Ordering::SeqCst), 40 - bombs.len(), "{bombs:?}");
        assert!(waits.iter_mut().all(Wait::poll));
    }
}
