//! Duties of every back-end of the poller: timeouts, wake-ups, other threads.

use crate::common::*;
use osier_poll::{Driver, Events, Interest, Mode, Poller, Ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

on_every_driver! {
    a_timeout_is_never_early
    a_timeout_beyond_the_system_s_range_is_taken
    notifications_before_a_wait_become_one_and_are_not_shown
    a_notification_comes_beside_events
    a_notification_from_another_thread_ends_the_wait_and_none_is_lost
    many_notifiers_at_once_lose_nothing
    another_thread_may_register_during_a_wait
}

fn a_timeout_is_never_early(driver: Driver) {
    let mut bench = Bench::new(driver);
    for timeout in [1, 999_999, 1_000_000, 1_000_001, 7_300_000].map(Duration::from_nanos) {
        let start = Instant::now();
        assert_eq!(bench.wait(timeout), []);
        assert!(start.elapsed() >= timeout, "{timeout:?}: {:?}", start.elapsed());
    }
    let start = Instant::now();
    bench.expect_nothing();
    assert!(start.elapsed() < SOON, "a timeout of zero does not wait");
}

fn a_timeout_beyond_the_system_s_range_is_taken(driver: Driver) {
    let mut bench = Bench::new(driver);
    bench.poller.notify().unwrap();
    assert_eq!(bench.wait(Duration::MAX), []);
}

fn notifications_before_a_wait_become_one_and_are_not_shown(driver: Driver) {
    let mut bench = Bench::new(driver);
    for _ in 0..3 {
        for _ in 0..1000 {
            bench.poller.notify().unwrap();
        }
        assert_eq!(bench.poller.wait(&mut bench.events, None).unwrap(), 0);
        let start = Instant::now();
        assert_eq!(bench.wait(Duration::from_millis(5)), []);
        assert!(
            start.elapsed() >= Duration::from_millis(5),
            "one notification ends one wait"
        );
    }
}

fn a_notification_comes_beside_events(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Level);
    write(&writer, b"x");
    bench.poller.notify().unwrap();
    bench.expect(A, Ready::READABLE);
    read(&reader);
    let start = Instant::now();
    assert_eq!(bench.wait(Duration::from_millis(5)), []);
    assert!(
        start.elapsed() >= Duration::from_millis(5),
        "the notification is used up"
    );
}

fn a_notification_from_another_thread_ends_the_wait_and_none_is_lost(driver: Driver) {
    const ROUNDS: usize = 2000;
    let poller = Arc::new(Poller::with_driver(driver).unwrap());
    let (sent, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let notifier = thread::spawn({
        let (poller, sent, seen) = (poller.clone(), sent.clone(), seen.clone());
        move || {
            for round in 1..=ROUNDS {
                sent.store(round, Ordering::Relaxed);
                poller.notify().unwrap();
                while seen.load(Ordering::Relaxed) < round {
                    thread::yield_now();
                }
            }
        }
    });
    let mut events = Events::with_capacity(4);
    while seen.load(Ordering::Relaxed) < ROUNDS {
        let start = Instant::now();
        poller.wait(&mut events, Some(SOON)).unwrap();
        assert!(start.elapsed() < SOON, "a notification was lost");
        seen.store(sent.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    notifier.join().unwrap();
}

fn many_notifiers_at_once_lose_nothing(driver: Driver) {
    const EACH: usize = 5000;
    let poller = Poller::with_driver(driver).unwrap();
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    sent.fetch_add(1, Ordering::Relaxed);
                    poller.notify().unwrap();
                }
            });
        }
        let mut events = Events::with_capacity(4);
        let mut seen = 0;
        while seen < 3 * EACH {
            let start = Instant::now();
            poller.wait(&mut events, Some(SOON)).unwrap();
            assert!(start.elapsed() < SOON, "a notification was lost at {seen}");
            seen = sent.load(Ordering::Relaxed);
        }
    });
}

fn another_thread_may_register_during_a_wait(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    thread::scope(|scope| {
        let poller = &bench.poller;
        scope.spawn(|| {
            write(&writer, b"x");
            poller.add(&reader, A, Interest::READABLE, Mode::Oneshot).unwrap();
        });
        assert_eq!(poller.wait(&mut bench.events, Some(SOON)).unwrap(), 1);
    });
    assert_eq!(bench.events.iter().next().unwrap().token, A);
}
