//! A barrier: a number of parties wait for one another, any number of times.
//!
//! tokio's barrier does not fit: there a party that is cancelled while it waits stays counted, and the others pass
//! without it.
//!
//! The lock is held for a few instructions, never while waiting or waking. The last party increments the generation
//! under the lock, and notifies after unlocking. Every other party creates its `Notified` before it looks at the
//! generation; from then on that `Notified` receives each `notify_waiters`. So the party either sees the new
//! generation or is notified. It may also be notified of an earlier round.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::block;
use crate::wait::budget;

/// A barrier for `n` parties. When all have arrived, all pass, and the next round begins.
///
/// It corresponds to [`std::sync::Barrier`]. A party does not count if it is cancelled, times out, or its future is
/// dropped while it waits.
///
/// ```
/// use osier::sync::Barrier;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let (barrier, leaders) = (Barrier::new(3), AtomicUsize::new(0));
/// osier::run(|| {
///     osier::scope(|s| {
///         for _ in 0..3 {
///             s.spawn(|| {
///                 if barrier.wait().is_leader() {
///                     leaders.fetch_add(1, Ordering::SeqCst);
///                 }
///             });
///         }
///     });
/// });
/// assert_eq!(leaders.into_inner(), 1);
/// ```
#[derive(Debug)]
pub struct Barrier {
    parties: usize,
    round: Mutex<Round>,
    turned: Notify,
}

#[derive(Debug)]
struct Round {
    /// The number of parties that have arrived. Less than `n` whenever the lock is free.
    arrived: usize,
    /// The number of the round. No party waits long enough to see it wrap.
    generation: usize,
}

impl Barrier {
    /// Makes a barrier for `n` parties. With 0 or 1 every party passes at once.
    pub const fn new(n: usize) -> Barrier {
        Barrier {
            parties: n,
            round: Mutex::new(Round {
                arrived: 0,
                generation: 0,
            }),
            turned: Notify::const_new(),
        }
    }

    /// Waits until all parties have arrived. The last one to arrive is the leader of the round.
    ///
    /// # Suspends
    ///
    /// Until the last party has arrived. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. This party does not count, unless the round was already complete.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_async`](Barrier::wait_async) there.
    pub fn wait(&self) -> BarrierWaitResult {
        block(self.wait_async())
    }

    /// Waits as [`wait`](Barrier::wait) does, in a future. The first poll counts the party, or a later one in a task
    /// whose [turn is over](crate::spawn_future#fairness). Dropping the future before the round is complete takes it back.
    pub async fn wait_async(&self) -> BarrierWaitResult {
        budget::call().await;
        let Some(arrival) = self.arrive() else {
            self.turned.notify_waiters();
            return BarrierWaitResult(true);
        };
        loop {
            let turned = self.turned.notified();
            if self.round().generation != arrival.generation {
                return BarrierWaitResult(false);
            }
            turned.await;
        }
    }

    /// Counts one more party. Returns `None` for the last one, after which the next round has begun.
    fn arrive(&self) -> Option<Arrival<'_>> {
        let mut round = self.round();
        round.arrived += 1;
        if round.arrived < self.parties {
            return Some(Arrival {
                barrier: self,
                generation: round.generation,
            });
        }
        round.arrived = 0;
        round.generation = round.generation.wrapping_add(1);
        None
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        // No panic is possible under the lock, so a poisoned lock holds a valid state.
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A party that has arrived. Dropped before its round is complete, it does not count.
struct Arrival<'a> {
    barrier: &'a Barrier,
    generation: usize,
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        let mut round = self.barrier.round();
        if round.generation == self.generation {
            round.arrived -= 1;
        }
    }
}

/// The result of passing a [`Barrier`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Whether this party was the last to arrive. True for exactly one party of each round.
    pub fn is_leader(&self) -> bool {
        self.0
    }
}
