//! Lingering: a worker that other threads wake as soon as it has fallen asleep stays awake for a moment instead. *To
//! ring* a worker is to end its sleep, by a write to its poller.
//!
//! Two fibers on two workers that signal each other in turn pay for each signal a system call to ring and a wake-up of
//! the processor: some microseconds. A look at the inbox costs nanoseconds. So, after [`ENOUGH`] sleeps in a row that a
//! ring ended within [`QUICK`], the worker looks at its queues for [`LINGER`] before the next sleep. If nobody comes
//! meanwhile, it falls asleep and lingers no more until it has been rung so quickly again. A descriptor or a timer that
//! ends a sleep does not count.

use std::cell::Cell;
use std::hint;
use std::time::{Duration, Instant};

/// This many quick sleeps in a row make the next sleep not worth it.
const ENOUGH: u8 = 3;
/// A quick sleep is at most this long: several times the cost of a sleep and a ring.
const QUICK: Duration = Duration::from_micros(50);
/// A worker stays awake for nothing at most this long.
const LINGER: Duration = Duration::from_micros(20);
/// The number of looks at the queues between two looks at the clock.
const LOOKS: u32 = 32;

/// The record of how the last sleeps of a worker ended.
#[derive(Default)]
pub(crate) struct Linger {
    quick: Cell<u8>,
}

impl Linger {
    /// Waits for `something` if that is worth it. Returns whether it came.
    #[inline]
    pub(crate) fn before_sleep(&self, something: impl Fn() -> bool) -> bool {
        self.quick.get() >= ENOUGH && self.look_for(something)
    }

    #[cold]
    fn look_for(&self, something: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if something() {
                    return true;
                }
                hint::spin_loop();
            }
            if start.elapsed() >= LINGER {
                self.quick.set(0);
                return false;
            }
        }
    }

    /// Notes that a sleep of this length has ended, by a ring or otherwise.
    #[inline]
    pub(crate) fn slept(&self, length: Duration, rung: bool) {
        self.quick.set(match rung && length < QUICK {
            true => (self.quick.get() + 1).min(ENOUGH),
            false => 0,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lingers_after_quick_sleeps_and_gives_up_when_nobody_comes() {
        let linger = Linger::default();
        let quick = || linger.slept(Duration::ZERO, true);
        let lingers = || {
            let looked = Cell::new(false);
            linger.before_sleep(|| {
                looked.set(true);
                false
            });
            looked.get()
        };
        quick();
        quick();
        assert!(!lingers());
        quick();
        assert!(lingers());
        assert!(!lingers(), "nobody came");
        (0..3).for_each(|_| quick());
        assert!(
            (0..100).all(|_| linger.before_sleep(|| true)),
            "somebody comes each time"
        );
        linger.slept(QUICK, true);
        assert!(!lingers(), "a long sleep");
        (0..3).for_each(|_| quick());
        linger.slept(Duration::ZERO, false);
        assert!(!lingers(), "a descriptor ended it");
    }
}
