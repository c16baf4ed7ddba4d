//! A barrier: a number of parties wait for one another, as often as they like.
//!
//! tokio's barrier would not do: there a party that was cancelled while it waited stays counted, and the others pass without it.
//!
//! The lock is held for a few instructions, never while waiting or waking. The last party to come turns the generation
//! under the lock, and notifies after it. Every other party makes its `Notified`, which from then on hears each
//! `notify_waiters`, before it looks at the generation. So it either sees the turn or hears of it; it may hear of an earlier
//! round.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::block;

/// Lets nobody pass until `n` parties have come; then all pass, and the next round begins.
///
/// As [`std::sync::Barrier`]. A party that is cancelled, times out or whose future is dropped while it waits has not come.
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
    /// Less than the number of parties, whenever the lock is free.
    arrived: usize,
    /// Counts the rounds; no party waits long enough to see it come round.
    generation: usize,
}

impl Barrier {
    /// A barrier for `n` parties; 0 is as 1, both let everybody pass.
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

    /// Waits until all parties have come. One of them, the last to come, is the round's leader.
    ///
    /// # Suspends
    ///
    /// Until the last party has come. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; this party has not come, unless the round was complete already.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_async`](Barrier::wait_async) there.
    pub fn wait(&self) -> BarrierWaitResult {
        block(self.wait_async())
    }

    /// Waits as [`wait`](Barrier::wait) does, in a future. The party has come with the first poll, and is gone again if the future is
    /// dropped before the round is complete.
    pub async fn wait_async(&self) -> BarrierWaitResult {
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

    /// Counts one party more; `None`: it was the last one, and the next round has begun.
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
        // Nothing between lock and unlock can leave it half done.
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A party that has come; dropped before its round is complete, it has not.
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
    /// Whether this party was the last to come: true for exactly one of each round.
    pub fn is_leader(&self) -> bool {
        self.0
    }
}
