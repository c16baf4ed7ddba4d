//! The event: a signal is handed over once, to the first, and is never lost.

use super::*;
use osier_queue::{Event, Waiter};
use std::pin::Pin;

/// Waits, and leaves as a future does; returns 1 if it had to wait, else 0.
fn wait(event: &Event) -> usize {
    let mut waiter = pin!(event.waiter());
    let mut waited = 0;
    block_on(poll_fn(|cx| {
        let polled = event.poll_wait(waiter.as_mut(), cx);
        waited |= polled.is_pending() as usize;
        polled
    }));
    waited
}

fn poll(event: &Event, waiter: Pin<&mut Waiter<'_>>, waker: &Waker) -> bool {
    event.poll_wait(waiter, &mut Context::from_waker(waker)).is_ready()
}

#[test]
fn no_set_is_lost() {
    model("event: set races wait", None, &[0, 1], || {
        let event = Arc::new(Event::new());
        let setter = {
            let event = event.clone();
            thread::spawn(move || event.set())
        };
        let waited = wait(&event);
        setter.join().unwrap();
        assert!(!event.is_set(), "taken and still there");
        waited
    });
}

#[test]
fn no_set_of_a_manual_one_is_lost() {
    model("event: manual set races two waits", Some(3), &[0, 1, 2], || {
        let event = Arc::new(Event::manual());
        let setter = {
            let event = event.clone();
            thread::spawn(move || event.set())
        };
        let other = {
            let event = event.clone();
            thread::spawn(move || wait(&event))
        };
        let waited = wait(&event) + other.join().unwrap();
        setter.join().unwrap();
        assert!(event.is_set());
        waited
    });
}

#[test]
fn one_set_releases_one_of_two() {
    model("event: two waiters, one set", None, &[0, 1], || {
        let event = Arc::new(Event::new());
        let other = {
            let event = event.clone();
            thread::spawn(move || event.set())
        };
        let waker = Counter::new().1;
        let mut first = pin!(event.waiter());
        let mut second = pin!(event.waiter());
        let mut released = poll(&event, first.as_mut(), &waker) as usize;
        let at_once = released;
        released += poll(&event, second.as_mut(), &waker) as usize;
        other.join().unwrap();
        if released == 0 {
            assert!(first.is_notified() && !second.is_notified(), "not the first");
            released += poll(&event, first.as_mut(), &waker) as usize;
            released += poll(&event, second.as_mut(), &waker) as usize;
        }
        assert!(!event.is_set());
        assert_eq!(released, 1, "one signal");
        at_once
    });
}

#[test]
fn two_sets_release_two_who_wait() {
    model("event: two waiters, two setters", None, &[2], || {
        let event = Arc::new(Event::new());
        let (counter, waker) = Counter::new();
        let mut first = pin!(event.waiter());
        let mut second = pin!(event.waiter());
        assert!(!poll(&event, first.as_mut(), &waker) && !poll(&event, second.as_mut(), &waker));
        let other = {
            let event = event.clone();
            thread::spawn(move || event.set())
        };
        event.set();
        other.join().unwrap();
        assert!(first.is_notified() && second.is_notified() && !event.is_set());
        assert_eq!(counter.wakes(), 2);
        poll(&event, first, &waker) as usize + poll(&event, second, &waker) as usize
    });
}

#[test]
fn nobody_overtakes_who_waits() {
    model("event: a set for one who waits, and a stranger", None, &[1], || {
        let event = Arc::new(Event::new());
        let (_, waker) = Counter::new();
        let mut first = pin!(event.waiter());
        assert!(!poll(&event, first.as_mut(), &waker));
        let setter = {
            let event = event.clone();
            thread::spawn(move || event.set())
        };
        assert!(!event.try_wait(), "it was never the stranger's");
        let mut stranger = pin!(event.waiter());
        assert!(!poll(&event, stranger.as_mut(), &waker));
        setter.join().unwrap();
        poll(&event, first, &waker) as usize
    });
}

#[test]
fn a_signal_dropped_unseen_goes_to_the_next() {
    // Outcomes: 1, the first had it; 0, it left before.
    model("event: granted, then dropped, another waits", None, &[0, 1], || {
        let event = Arc::new(Event::new());
        let (first_counter, first_waker) = Counter::new();
        let (next_counter, next_waker) = Counter::new();
        let mut first = pin!(event.waiter());
        let mut next = pin!(event.waiter());
        assert!(!poll(&event, first.as_mut(), &first_waker));
        assert!(!poll(&event, next.as_mut(), &next_waker));
        let setter = {
            let event = event.clone();
            thread::spawn(move || event.set())
        };
        event.leave(first);
        setter.join().unwrap();
        assert!(
            next.is_notified() && !event.is_set(),
            "the signal is lost, or there are two"
        );
        assert_eq!(next_counter.wakes(), 1);
        first_counter.wakes()
    });
}

#[test]
fn a_signal_dropped_unseen_by_the_last_stays() {
    model("event: granted, then dropped, nobody waits", None, &[0, 1], || {
        let event = Arc::new(Event::new());
        let (counter, waker) = Counter::new();
        let mut waiter = pin!(event.waiter());
        assert!(!poll(&event, waiter.as_mut(), &waker));
        let setter = {
            let event = event.clone();
            thread::spawn(move || event.set())
        };
        event.leave(waiter);
        setter.join().unwrap();
        assert!(event.try_wait(), "the signal is lost");
        assert!(!event.try_wait());
        counter.wakes()
    });
}

#[test]
fn a_signal_given_back_meets_one_who_comes() {
    model("event: given back while another comes", Some(3), &[0, 1], || {
        let event = Arc::new(Event::new());
        let mut first = pin!(event.waiter());
        assert!(!poll(&event, first.as_mut(), &Counter::new().1));
        event.set();
        let other = {
            let event = event.clone();
            thread::spawn(move || wait(&event)) // a deadlock if the signal is lost
        };
        event.leave(first);
        let waited = other.join().unwrap();
        assert!(!event.is_set());
        waited
    });
}

#[test]
fn who_takes_sees_what_every_setter_did() {
    // A deadlock if a set that was one with another hides what came before it.
    model("event: two sets as one", Some(3), &[1, 2], || {
        let shared = Arc::new((Event::new(), AtomicUsize::new(0), AtomicUsize::new(0)));
        let setters = [0, 1].map(|index| {
            let shared = shared.clone();
            thread::spawn(move || {
                let done = if index == 0 { &shared.1 } else { &shared.2 };
                done.store(1, Relaxed);
                shared.0.set();
            })
        });
        let mut waits = 0;
        while shared.1.load(Relaxed) + shared.2.load(Relaxed) < 2 {
            wait(&shared.0);
            waits += 1;
        }
        for setter in setters {
            setter.join().unwrap();
        }
        waits.max(1)
    });
}

#[test]
fn who_finds_a_manual_one_set_sees_what_its_setter_did() {
    model("event: manual set after an act", None, &[0, 1], || {
        let shared = Arc::new((Event::manual(), AtomicBool::new(false)));
        let setter = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.1.store(true, Relaxed);
                shared.0.set();
            })
        };
        let waited = wait(&shared.0);
        assert!(shared.1.load(Relaxed));
        setter.join().unwrap();
        waited
    });
}

#[test]
fn a_manual_set_releases_all_though_it_is_reset_at_once() {
    model("event: manual, set and reset", None, &[2], || {
        let event = Arc::new(Event::manual());
        let (counter, waker) = Counter::new();
        let mut first = pin!(event.waiter());
        let mut second = pin!(event.waiter());
        assert!(!poll(&event, first.as_mut(), &waker) && !poll(&event, second.as_mut(), &waker));
        let setter = {
            let event = event.clone();
            thread::spawn(move || event.set())
        };
        event.reset();
        setter.join().unwrap();
        event.reset();
        assert_eq!(counter.wakes(), 2);
        poll(&event, first, &waker) as usize + poll(&event, second, &waker) as usize
    });
}

#[test]
fn a_wait_after_the_reset_is_not_released_by_the_set_before() {
    // Outcomes: 1, the reset undid the set, perhaps in its middle; 0, it came before.
    model("event: manual, a wait after the reset", None, &[0, 1], || {
        let event = Arc::new(Event::manual());
        let (_, waker) = Counter::new();
        let mut early = Box::pin(event.waiter());
        assert!(!poll(&event, early.as_mut(), &waker));
        let setter = {
            let event = event.clone();
            thread::spawn(move || event.set())
        };
        let undone = event.reset();
        let mut late = pin!(event.waiter());
        let at_once = poll(&event, late.as_mut(), &waker);
        setter.join().unwrap();
        assert!(early.is_notified());
        assert!(
            !undone || !at_once && !late.is_notified(),
            "released by a set that was undone"
        );
        undone as usize
    });
}
