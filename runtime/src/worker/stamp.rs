//! A moment as a number of nanoseconds: what is measured for each request, turn or wait is a difference of two of these.
//!
//! `Instant` keeps seconds and nanoseconds apart, and its subtraction is a call of some forty instructions. A stamp is the same moment of
//! the same clock in eight bytes. The first stamp of the process fixes which `Instant` belongs to which number. An `Instant` made from a
//! stamp is never after the moment that the stamp was taken at. The number is never 0, so an `Option<Stamp>` has eight bytes, too.

use std::num::NonZero;
use std::ops::{Add, Sub};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A moment of the caller's clock, to measure how long something takes: eight bytes, and a difference is one subtraction.
///
/// ```
/// use osier::time::{Stamp, VirtualClock};
/// use std::time::Duration;
///
/// let runtime = osier::Runtime::builder().clock(VirtualClock::new()).build()?;
/// runtime.run(|| {
///     let (start, instant) = (Stamp::now(), osier::time::now());
///     assert_eq!(start.instant(), instant);
///     osier::sleep(Duration::from_secs(3600));
///     assert_eq!(Stamp::now().since(start), Duration::from_secs(3600));
/// });
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(NonZero<u64>);

/// An `Instant`, and the number of the same moment or of one shortly after it.
static ANCHOR: LazyLock<(Instant, u64)> = LazyLock::new(|| (Instant::now(), Stamp::of_machine().0.get()));

/// The number of the moment at which the clock of the machine begins: a clock of a test may begin a hundred years before it.
const ZERO: u64 = 1 << 62;

/// The time of the clock of `Instant`, in nanoseconds. That clock begins when the machine starts.
#[cfg(target_os = "linux")]
#[inline]
fn nanos_now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
        .wrapping_add(ZERO)
}

/// The time of the clock of `Instant`, in nanoseconds since the first call.
#[cfg(not(target_os = "linux"))]
fn nanos_now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    ZERO + nanos(START.elapsed())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Stamp {
    /// The present of the machine's clock.
    #[inline]
    pub(crate) fn of_machine() -> Stamp {
        Stamp::with(nanos_now())
    }

    /// The stamp that is 1 larger than `number`. Only the last one is not.
    #[inline]
    fn with(number: u64) -> Stamp {
        Stamp(NonZero::<u64>::MIN.saturating_add(number))
    }

    /// The stamp of a moment.
    pub(crate) fn of(moment: Instant) -> Stamp {
        let (instant, number) = *ANCHOR;
        // The anchor's number is at least 1.
        let before = number - 1;
        Stamp::with(match moment.checked_duration_since(instant) {
            Some(after) => before.saturating_add(nanos(after)),
            None => before.saturating_sub(nanos(instant.saturating_duration_since(moment))),
        })
    }

    /// The moment as an `Instant`.
    #[inline]
    pub fn instant(self) -> Instant {
        let (instant, number) = *ANCHOR;
        match self.0.get().checked_sub(number) {
            Some(after) => instant + Duration::from_nanos(after),
            None => instant - Duration::from_nanos(number - self.0.get()),
        }
    }

    /// The time since `earlier`. Zero if that is the later one.
    #[inline]
    pub fn since(self, earlier: Stamp) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// The time since `earlier` in nanoseconds. 0 if that is the later one.
    #[inline]
    pub fn nanos_since(self, earlier: Stamp) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }
}

impl Sub<Duration> for Stamp {
    type Output = Stamp;

    /// The moment `time` before. Saturates 146 years before the machine has started.
    #[inline]
    fn sub(self, time: Duration) -> Stamp {
        // `with` adds 1.
        Stamp::with((self.0.get() - 1).saturating_sub(nanos(time)))
    }
}

impl Add<Duration> for Stamp {
    type Output = Stamp;

    /// The moment after `time`. Saturates after 438 years.
    #[inline]
    fn add(self, time: Duration) -> Stamp {
        let seconds = time.as_secs().saturating_mul(1_000_000_000);
        let nanos = seconds.saturating_add(u64::from(time.subsec_nanos()));
        Stamp(self.0.saturating_add(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_and_its_instant_are_the_same_moment() {
        let start = Instant::now();
        for moment in [
            start,
            start + Duration::from_secs(86_400),
            start - Duration::from_nanos(1),
            // Before the machine started.
            start - Duration::from_secs(100 * 365 * 86_400),
        ] {
            assert_eq!(Stamp::of(moment).instant(), moment);
        }
        assert_eq!(
            Stamp::of(start) + Duration::from_nanos(7),
            Stamp::of(start + Duration::from_nanos(7))
        );
        assert_eq!(
            Stamp::of(start) - Duration::from_nanos(7),
            Stamp::of(start - Duration::from_nanos(7))
        );
    }

    #[test]
    fn an_instant_of_a_stamp_is_not_in_the_future() {
        for _ in 0..1000 {
            let stamp = Stamp::of_machine();
            assert!(stamp.instant() <= Instant::now());
            // Both clocks are one: the difference is what the anchor has missed, and the time of two calls.
            assert!(stamp.instant().elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn a_difference_never_wraps() {
        let (early, late) = (Stamp::of_machine(), Stamp::of_machine() + Duration::from_secs(1));
        assert!(late.since(early) >= Duration::from_secs(1));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!((late + Duration::MAX).nanos_since(Stamp::with(0)), u64::MAX - 1);
        assert_eq!(late - Duration::MAX, Stamp::with(0));
    }

    #[test]
    fn a_stamp_that_may_be_missing_is_as_small_as_one() {
        assert_eq!(size_of::<Option<Stamp>>(), 8);
    }
}
