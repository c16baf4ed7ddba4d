//! [`Interval`]: a series of ticks, one each period.
//!
//! An interval is a [`Sleep`] that is set to the next tick when one has come. While nobody waits for a tick, no timer
//! is set. Ticks that nobody took in time are skipped, and later ticks keep their times. So ticks
//! neither come in a row to catch up nor drift.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;

use super::{Sleep, now};
use crate::block_on;

/// Makes ticks every `period`. The first tick is at once.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// osier::run(|| {
///     let start = Instant::now();
///     let mut ticks = osier::time::interval(Duration::from_millis(5));
///     for _ in 0..3 {
///         ticks.tick();
///     }
///     assert!(start.elapsed() >= Duration::from_millis(10));
/// });
/// ```
///
/// # Panics
///
/// If `period` is zero.
#[track_caller]
#[doc(alias("ticker", "every"))]
pub fn interval(period: Duration) -> Interval {
    interval_at(now(), period)
}

/// Makes ticks at `start`, and every `period` after it.
///
/// ```
/// use osier::time::{interval_at, now};
/// use std::time::Duration;
///
/// osier::run(|| {
///     // The first tick is not at once, as that of `interval` is.
///     let start = now() + Duration::from_millis(5);
///     let mut ticks = interval_at(start, Duration::from_millis(5));
///     assert_eq!(ticks.tick(), start);
/// });
/// ```
///
/// # Panics
///
/// If `period` is zero.
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval's period must be longer than zero");
    Interval {
        sleep: Sleep::until(start),
        period,
    }
}

/// Ticks at a fixed distance. It is also a stream of them, which does not end.
///
/// # Missed ticks
///
/// A waiter that is late for a tick gets it at once, and after it the next tick that is still to come. Several
/// missed ticks are delivered as one, and the ticks stay on their grid. Each tick comes up to a few milliseconds late,
/// never early; the delays do not add up.
///
/// Dropping an interval ends it.
#[derive(Debug)]
#[must_use = "an interval ticks when it is waited for"]
#[doc(alias("Ticker", "MissedTickBehavior"))]
pub struct Interval {
    /// Until the next tick.
    sleep: Sleep,
    period: Duration,
}

impl Interval {
    /// Waits for the next tick, and gives the time for which it was meant.
    ///
    /// # Suspends
    ///
    /// Until it is time. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. The tick is not lost.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, where nothing may wait: use [`tick_async`](Interval::tick_async) there.
    pub fn tick(&mut self) -> Instant {
        block_on(self.tick_async())
    }

    /// Waits as [`tick`](Interval::tick) does, in a future. A future that is dropped has taken no tick.
    pub fn tick_async(&mut self) -> Tick<'_> {
        Tick(self)
    }

    /// The distance between two ticks.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Sets the next tick to one period from now. The others follow it.
    pub fn reset(&mut self) {
        self.reset_to(now().checked_add(self.period));
    }

    fn reset_to(&mut self, deadline: Option<Instant>) {
        match deadline {
            Some(deadline) => self.sleep.reset(deadline),
            None => self.sleep = Sleep::forever(),
        }
    }

    fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(cx));
        let due = self.sleep.deadline().expect("what never comes has not come");
        self.reset_to(next(due, self.period, now()));
        Poll::Ready(due)
    }
}

/// The first tick after `now` on the grid of `due`; `None` if it is beyond the range of the clock.
fn next(due: Instant, period: Duration, now: Instant) -> Option<Instant> {
    let late = now.saturating_duration_since(due);
    let past = late.as_nanos() % period.as_nanos();
    // Less than the period, which fits.
    let past = Duration::new((past / 1_000_000_000) as u64, (past % 1_000_000_000) as u32);
    due.checked_add(late - past)?.checked_add(period)
}

impl Stream for Interval {
    type Item = Instant;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        self.get_mut().poll_tick(cx).map(Some)
    }
}

/// Waits for the next tick: the future of [`Interval::tick_async`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Tick<'a>(&'a mut Interval);

impl Future for Tick<'_> {
    type Output = Instant;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Instant> {
        self.0.poll_tick(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_tick_is_the_first_to_come_on_the_same_grid() {
        let due = Instant::now();
        let period = Duration::from_millis(10);
        let after = |late| next(due, period, due + Duration::from_micros(late)).unwrap() - due;
        assert_eq!(after(0), period);
        assert_eq!(after(1), period);
        assert_eq!(after(9_999), period);
        // The tick at `now` itself has come: the next is the one after it.
        assert_eq!(after(10_000), 2 * period);
        assert_eq!(after(34_567), 4 * period);
        assert_eq!(next(due, Duration::MAX, due), None);
    }
}
