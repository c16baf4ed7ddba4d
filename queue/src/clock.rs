//! The clock behind the timer wheel: time since the clock's own start, real or set by a test.
//!
//! The wheel counts ticks of one millisecond. Deadlines round up ([`tick_after`]) and the present rounds down
//! ([`tick_at`]), so a timer whose tick has come is never early; it is late by less than one tick plus the sleep's own
//! error. A tick's own time is `Duration::from_millis(tick)`.

use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A source of time that never goes back.
pub trait Clock {
    /// Time since the clock's start.
    fn now(&self) -> Duration;
}

/// The machine's monotonic clock; it starts when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    start: Instant,
}

impl Monotonic {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// The clock that read zero at `start`; turns an [`Instant`] into this clock's time and back.
    pub fn since(start: Instant) -> Self {
        Self { start }
    }

    /// The instant at which this clock read zero.
    pub fn start(&self) -> Instant {
        self.start
    }
}

impl Default for Monotonic {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that stands still until it is moved. Clones are handles on the same clock.
///
/// ```
/// use osier_queue::{Clock, Virtual};
/// use std::time::Duration;
///
/// let clock = Virtual::new();
/// let hand = clock.clone();
/// hand.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now(), Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Virtual {
    nanos: Arc<AtomicU64>,
}

impl Virtual {
    /// A clock that reads zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward by `step`. It stops at its end, 584 years after its start.
    pub fn advance(&self, step: Duration) {
        let step = nanos(step);
        let add = |now: u64| Some(now.saturating_add(step));
        let _ = self.nanos.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    }

    /// Moves the clock to `time`; a time that has passed leaves it where it is, as a [`Clock`] never goes back.
    pub fn set(&self, time: Duration) {
        self.nanos.fetch_max(nanos(time), Ordering::AcqRel);
    }
}

impl Clock for Virtual {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }
}

/// The first tick at or after `time`: a deadline's tick, rounded up so that it is never early.
pub const fn tick_after(time: Duration) -> u64 {
    let part = !time.subsec_nanos().is_multiple_of(1_000_000);
    tick_at(time).saturating_add(part as u64)
}

/// The tick that `time` lies in: the present's tick, rounded down. Saturates at `u64::MAX` (584 million years).
pub const fn tick_at(time: Duration) -> u64 {
    let millis = time.as_millis();
    if millis > u64::MAX as u128 {
        u64::MAX
    } else {
        millis as u64
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn deadlines_round_up_and_the_present_rounds_down() {
        for (nanos, after, at) in [
            (0, 0, 0),
            (1, 1, 0),
            (999_999, 1, 0),
            (1_000_000, 1, 1),
            (1_000_001, 2, 1),
        ] {
            let time = Duration::from_nanos(nanos);
            assert_eq!((tick_after(time), tick_at(time)), (after, at), "{time:?}");
        }
        assert_eq!(
            (tick_after(Duration::MAX), tick_at(Duration::MAX)),
            (u64::MAX, u64::MAX)
        );
    }

    #[test]
    fn a_virtual_clock_moves_only_forward_and_saturates() {
        let clock = Virtual::new();
        clock.set(Duration::from_secs(5));
        clock.set(Duration::from_secs(3));
        assert_eq!(clock.now(), Duration::from_secs(5));
        clock.advance(Duration::MAX);
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.now(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn the_monotonic_clock_starts_at_zero_and_goes_on() {
        let clock = Monotonic::new();
        let first = clock.now();
        assert!(first < Duration::from_secs(60));
        assert!(clock.now() >= first);
        assert_eq!(Monotonic::since(clock.start()).start(), clock.start());
    }
}
