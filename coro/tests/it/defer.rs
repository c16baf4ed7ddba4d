//! Deferred callbacks: order, marks, taking back, firing early.

use osier_coro::Defers;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

type Log = Rc<RefCell<Vec<u32>>>;

fn note(log: &Log, n: u32) -> impl FnOnce() + 'static {
    let log = log.clone();
    move || log.borrow_mut().push(n)
}

#[test]
fn the_latest_runs_first() {
    let (defers, log) = (Defers::new(), Log::default());
    for n in 1..=4 {
        defers.defer(note(&log, n));
    }
    assert!(log.borrow().is_empty());
    drop(defers);
    assert_eq!(*log.borrow(), [4, 3, 2, 1]);
}

#[test]
fn a_generation_runs_only_what_is_newer() {
    let (defers, log) = (Defers::new(), Log::default());
    defers.defer(note(&log, 1));
    let outer = defers.generation();
    for request in [10, 20] {
        let inner = defers.generation();
        defers.defer(note(&log, request));
        defers.defer(note(&log, request + 1));
        defers.run(inner);
    }
    assert_eq!(*log.borrow(), [11, 10, 21, 20]);
    defers.defer(note(&log, 30));
    defers.run(outer);
    defers.run(outer);
    assert_eq!(*log.borrow(), [11, 10, 21, 20, 30]);
    drop(defers);
    assert_eq!(log.borrow().last(), Some(&1));
}

#[test]
fn disarmed_and_fired_callbacks_do_not_run_again() {
    let (defers, log) = (Defers::new(), Log::default());
    let [a, b, c, d] = [1, 2, 3, 4].map(|n| defers.defer(note(&log, n)));
    assert!(defers.disarm(d), "the last one");
    assert!(!defers.disarm(d) && !defers.fire(d));
    assert!(defers.disarm(b), "one in the middle");
    assert!(defers.fire(a));
    assert!(!defers.fire(a) && !defers.disarm(a));
    assert_eq!(*log.borrow(), [1]);
    // A handle never finds the successor of what it named.
    let e = defers.defer(note(&log, 5));
    assert!(!defers.disarm(d) && e != d);
    defers.run(defers.generation());
    drop(defers);
    assert_eq!(*log.borrow(), [1, 5, 3]);
    let _ = c;
}

#[test]
fn disarming_frees_what_the_callback_holds() {
    let (defers, held) = (Defers::new(), Rc::new(()));
    let copy = held.clone();
    let deferred = defers.defer(move || drop(copy));
    assert_eq!(Rc::strong_count(&held), 2);
    defers.disarm(deferred);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_callback_may_defer_fire_and_disarm() {
    let (defers, log) = (Rc::new(Defers::new()), Log::default());
    let generation = defers.generation();
    let never = defers.defer(note(&log, 0));
    let early = defers.defer(note(&log, 1));
    let (inner, note3) = (Rc::downgrade(&defers), note(&log, 3));
    defers.defer(move || {
        let defers = inner.upgrade().expect("the test holds it");
        assert!(defers.disarm(never) && defers.fire(early));
        defers.defer(note3);
    });
    defers.run(generation);
    assert_eq!(*log.borrow(), [1, 3]);
}

#[test]
fn a_panicking_callback_does_not_keep_the_others_from_running() {
    let (defers, log) = (Defers::new(), Log::default());
    defers.defer(note(&log, 1));
    defers.defer(|| std::panic::resume_unwind(Box::new("deferred")));
    defers.defer(note(&log, 2));
    let payload = catch_unwind(AssertUnwindSafe(|| drop(defers))).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&"deferred"));
    assert_eq!(*log.borrow(), [2, 1]);
}
