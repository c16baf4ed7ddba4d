//! The budget: a sum of held bytes, its distance from a limit, and the tasks that wait for that to change.
//!
//! ```text
//!   held + unaccounted   0 ───────────── high ──────── critical ─── limit
//!                          NORMAL         │   HIGH        │   CRITICAL
//!                                        80 %            95 %
//! ```
//!
//! # Protocol
//! - `held` changes only by read-modify-writes. They have one order, so each change of level belongs to exactly one of them, and the
//!   thread that made it wakes the waiters.
//! - The level is computed from the numbers and never stored. Two threads could store levels in another order than they changed `held`.
//! - A waiter registers and then computes the level; a changer changes and then wakes. The wait list's pair of fences lets at least one
//!   of them see the other.
//! - The limit and `unaccounted` are set rarely. Each set wakes all waiters, who look again.
//! - A sum may be below zero for a moment, when one thread subtracts before another adds. It counts as zero.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::sync::{AtomicUsize, Ordering};
use crate::waiters::{WaitList, Waiter};

/// How close the held bytes are to the limit of their budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Below 80 % of the limit, or no limit.
    Normal,
    /// At least 80 % of the limit. Caches give way.
    High,
    /// At least 95 % of the limit. Refuse new work.
    Critical,
}

/// A sum of bytes with a limit.
///
/// ```
/// use osier_queue::{Budget, Pressure};
///
/// let budget = Budget::new();
/// budget.set_limit(1000);
/// budget.add(900);
/// assert_eq!((budget.held(), budget.pressure()), (900, Pressure::High));
/// budget.add(-200);
/// assert_eq!(budget.pressure(), Pressure::Normal);
/// ```
pub struct Budget {
    /// The sum of all changes, in two's complement.
    held: AtomicUsize,
    /// Measured bytes beyond all changes.
    unaccounted: AtomicUsize,
    /// The least number of bytes of each level. `usize::MAX` without a limit.
    high: AtomicUsize,
    critical: AtomicUsize,
    limit: AtomicUsize,
    waiters: WaitList,
}

impl Budget {
    crate::sync::const_unless_loom! {
        /// A budget that holds nothing and has no limit.
        pub fn new() -> Self {
            Self {
                held: AtomicUsize::new(0),
                unaccounted: AtomicUsize::new(0),
                high: AtomicUsize::new(usize::MAX),
                critical: AtomicUsize::new(usize::MAX),
                limit: AtomicUsize::new(usize::MAX),
                waiters: WaitList::new(),
            }
        }
    }

    /// Adds bytes, or subtracts them.
    pub fn add(&self, change: isize) {
        let before = self.held.fetch_add(change as usize, Ordering::Relaxed);
        let after = before.wrapping_add(change as usize);
        if self.level(before) != self.level(after) {
            self.waiters.wake_all();
        }
    }

    /// Sets how many bytes are held besides the added ones.
    pub fn set_unaccounted(&self, bytes: usize) {
        self.unaccounted.store(bytes, Ordering::Relaxed);
        self.waiters.wake_all();
    }

    /// Sets the limit. `usize::MAX` is none.
    pub fn set_limit(&self, limit: usize) {
        let part = |percent: usize| match limit {
            usize::MAX => usize::MAX,
            limit => limit / 100 * percent + limit % 100 * percent / 100,
        };
        self.limit.store(limit, Ordering::Relaxed);
        self.high.store(part(80), Ordering::Relaxed);
        self.critical.store(part(95), Ordering::Relaxed);
        self.waiters.wake_all();
    }

    /// The limit. `usize::MAX` is none.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// The held bytes, with the unaccounted ones.
    pub fn held(&self) -> usize {
        self.sum(self.held.load(Ordering::Relaxed))
    }

    /// The bytes that were added and not subtracted.
    pub fn accounted(&self) -> usize {
        usize::try_from(self.held.load(Ordering::Relaxed) as isize).unwrap_or(0)
    }

    /// The level now.
    #[inline]
    pub fn pressure(&self) -> Pressure {
        self.level(self.held.load(Ordering::Relaxed))
    }

    #[inline]
    fn level(&self, held: usize) -> Pressure {
        let sum = self.sum(held);
        if sum < self.high.load(Ordering::Relaxed) {
            Pressure::Normal
        } else if sum < self.critical.load(Ordering::Relaxed) {
            Pressure::High
        } else if self.critical.load(Ordering::Relaxed) == usize::MAX {
            Pressure::Normal
        } else {
            Pressure::Critical
        }
    }

    #[inline]
    fn sum(&self, held: usize) -> usize {
        let held = if (held as isize) < 0 { 0 } else { held };
        held.saturating_add(self.unaccounted.load(Ordering::Relaxed))
    }

    /// A node for [`poll_change`](Budget::poll_change).
    pub fn waiter(&self) -> Waiter<'_> {
        self.waiters.waiter()
    }

    /// Waits until the level is not `from`. Returns the level then.
    pub fn poll_change(
        &self,
        from: Pressure,
        mut waiter: Pin<&mut Waiter<'_>>,
        cx: &mut Context<'_>,
    ) -> Poll<Pressure> {
        // Register, then look. Repeat if the notification was for an earlier change.
        while waiter.as_mut().poll_notified(cx).is_ready() {}
        match self.pressure() {
            now if now == from => Poll::Pending,
            now => {
                waiter.remove();
                Poll::Ready(now)
            }
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget::new()
    }
}

crate::impl_debug!(Budget, self => { held: self.held(), pressure: self.pressure(), .. });

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn levels_follow_the_sum_and_the_limit() {
        let budget = Budget::new();
        budget.add(isize::MAX);
        assert_eq!(budget.pressure(), Pressure::Normal, "no limit");
        budget.add(-isize::MAX);
        budget.set_limit(1000);
        for (change, level) in [
            (799, Pressure::Normal),
            (1, Pressure::High),
            (149, Pressure::High),
            (1, Pressure::Critical),
            (-1, Pressure::High),
            (-950, Pressure::Normal),
        ] {
            budget.add(change);
            assert_eq!(budget.pressure(), level, "{budget:?}");
        }
        assert_eq!((budget.held(), budget.accounted()), (0, 0), "below zero counts as zero");
        budget.set_unaccounted(800);
        assert_eq!(budget.pressure(), Pressure::High);
        budget.set_limit(usize::MAX);
        assert_eq!(budget.pressure(), Pressure::Normal);
    }
}
