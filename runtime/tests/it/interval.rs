//! Intervals: on fibers, on plain threads and in futures.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::given::on;
use futures_lite::StreamExt;
use osier::time::{Interval, interval, interval_at};

const PERIOD: Duration = Duration::from_millis(4);

/// An interval and its first tick.
fn ticks_of(period: Duration) -> (Instant, Interval) {
    let start = Instant::now();
    (start, interval_at(start, period))
}

/// Polls once with a waker that does nothing.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The ticks are on their grid, in order, and none is early.
fn check(start: Instant, mut tick: impl FnMut() -> Instant) {
    let mut last = None;
    for n in 0..5 {
        let due = tick();
        assert!(Instant::now() >= due, "tick {n} came early");
        assert_eq!(
            (due - start).as_nanos() % PERIOD.as_nanos(),
            0,
            "tick {n} is off the grid"
        );
        assert!(last < Some(due), "tick {n} came twice");
        last = Some(due);
    }
    assert!(start.elapsed() >= 4 * PERIOD);
}

#[test]
fn ticks_come_on_their_grid_and_never_early() {
    let blocking = || {
        let (start, mut ticks) = ticks_of(PERIOD);
        check(start, || ticks.tick());
    };
    let in_a_future = || {
        let (start, mut ticks) = ticks_of(PERIOD);
        check(start, || osier::block_on(ticks.tick_async()));
        let (start, mut ticks) = ticks_of(PERIOD);
        check(start, || osier::block_on(ticks.next()).expect("it does not end"));
    };
    blocking();
    in_a_future();
    let (start, mut ticks) = ticks_of(PERIOD);
    check(start, || futures_lite::future::block_on(ticks.tick_async()));
    on(2).run(|| {
        osier::scope(|s| {
            s.spawn(blocking);
            s.spawn(in_a_future);
        });
    });
}

#[test]
fn the_first_tick_is_at_once_or_at_the_given_time() {
    on(1).run(|| {
        let before = Instant::now();
        let mut ticks = interval(Duration::from_secs(3600));
        let first = ticks.tick();
        assert!(before <= first && first <= Instant::now());
        assert_eq!(ticks.period(), Duration::from_secs(3600));
        let later = Instant::now() + PERIOD;
        assert_eq!(interval_at(later, PERIOD).tick(), later);
        assert!(Instant::now() >= later);
        // A tick that the clock cannot represent never comes.
        let mut never = interval(Duration::MAX);
        never.tick();
        assert!(osier::timeout(PERIOD, || never.tick()).is_err());
    });
}

#[test]
fn of_the_ticks_that_were_missed_one_is_delivered() {
    on(1).run(|| {
        let (start, mut ticks) = ticks_of(PERIOD);
        assert_eq!(ticks.tick(), start);
        let before = Instant::now();
        // The thread of the worker is busy for five periods.
        thread::sleep(5 * PERIOD);
        let woke = Instant::now();
        assert!(ticks.tick() <= before + PERIOD, "it was due while nobody looked");
        let next = ticks.tick();
        assert!(next > woke, "a second one of those that were missed");
        assert_eq!((next - start).as_nanos() % PERIOD.as_nanos(), 0);
    });
}

#[test]
fn a_tick_that_is_given_up_still_comes() {
    on(1).run(|| {
        let due = Instant::now() + 50 * PERIOD;
        let mut ticks = interval_at(due, PERIOD);
        if osier::timeout(PERIOD, || ticks.tick()).is_ok() || poll_once(pin!(ticks.tick_async())).is_ready() {
            println!("skipped: this machine slept through the tick");
            return;
        }
        assert_eq!(ticks.tick(), due);
        let before = Instant::now();
        ticks.reset();
        assert!(ticks.tick() >= before + PERIOD);
    });
}

#[test]
#[should_panic(expected = "longer than zero")]
fn an_interval_without_a_period_is_refused() {
    drop(interval(Duration::ZERO));
}
