//! Sleep flags and the choice of whom to wake, step by step. All interleavings: tests/loom/.

use osier_queue::{Idle, Parker};

#[test]
fn one_caller_per_sleep_is_told_to_interrupt() {
    let parker = Parker::new();
    assert!(!parker.unpark());
    for _ in 0..2 {
        parker.prepare();
        assert_eq!([(); 3].map(|()| parker.unpark()), [true, false, false]);
        parker.unprepare();
        assert!(!parker.unpark());
    }
    parker.prepare();
    parker.unprepare();
    assert!(!parker.unpark(), "it found work and did not sleep");
}

#[test]
fn one_sleeper_is_woken_while_none_searches() {
    let idle = Idle::new(4);
    assert_eq!(idle.wake_candidate(), None, "nobody sleeps");
    idle.enter_sleep(2);
    idle.enter_sleep(3);
    let chosen = idle.wake_candidate().expect("two sleep");
    assert_eq!(idle.wake_candidate(), None, "the chosen one is counted as searching");
    assert!(idle.leave_sleep(chosen), "and learns that it was chosen");
    assert!(idle.stop_search(), "the last searcher passes the duty on");
    let other = idle.wake_candidate().expect("one sleeps still");
    assert_eq!(chosen + other, 5);
    assert!(idle.leave_sleep(other) && idle.stop_search());
    assert_eq!(idle.wake_candidate(), None);
}

#[test]
fn a_worker_that_wakes_by_itself_is_not_searching() {
    let idle = Idle::new(2);
    idle.enter_sleep(0);
    assert!(!idle.leave_sleep(0));
    assert_eq!(idle.wake_candidate(), None);
    assert!(idle.start_search(), "nobody was left counted");
}

#[test]
fn half_of_the_workers_may_search() {
    let idle = Idle::new(4);
    assert_eq!([(); 3].map(|()| idle.start_search()), [true, true, false]);
    assert!(!idle.stop_search(), "one searches still");
    assert!(idle.stop_search());
    assert!(Idle::new(1).start_search(), "a single worker may");
}

#[test]
fn all_of_1024_workers_are_found() {
    let idle = Idle::new(Idle::MAX_WORKERS);
    for index in 0..Idle::MAX_WORKERS {
        idle.enter_sleep(index);
    }
    for _ in 0..Idle::MAX_WORKERS {
        let chosen = idle.wake_candidate().expect("some sleep still");
        assert!(idle.leave_sleep(chosen) && idle.stop_search());
    }
    assert_eq!(idle.wake_candidate(), None);
}

#[test]
#[should_panic(expected = "at most 1024")]
fn more_are_refused() {
    Idle::new(Idle::MAX_WORKERS + 1);
}
