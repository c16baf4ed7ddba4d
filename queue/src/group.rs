//! The children of a scope: how many are left, which of them run, whether they are to end, and their parent's wait.
//!
//! ```text
//!   parent                                      child
//!     enter                                       start:  running += word   (lock)
//!     cancel: cancelled = true                            load cancelled: set, do not run
//!             copy running   (lock), wake those   leave:  running -= word   (lock)
//!     wait:   link, fence                                 children -= 1     (release)
//!             load children   (acquire): 0, done          it was the last: fence, wake the parent
//! ```
//!
//! # Protocol
//! - Cancel and start meet in the lock: if the child's turn came first the canceller finds its word, otherwise the child
//!   sees the flag that was set before. So the flag itself needs no ordering.
//! - The parent that reads zero has acquired what every child did before it left: the decrements are one chain of
//!   read-modify-writes, each released. That is what lets a child borrow from the parent's stack.
//! - Leave and wait are the wait list's pair of fences: the parent sees zero, or the last child sees the parent.
//! - **The last child touches the group after the parent may have gone on**: the wake-up comes after the decrement. So the
//!   group must not live on the parent's stack; the runtime holds it in an `Arc`, a count for the parent and one in each
//!   child's ticket. Nothing else of the parent is touched after the decrement.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::waiters::{WaitList, Waiter};

/// Children, and the parent who waits for them.
#[derive(Default)]
pub struct Group {
    children: AtomicUsize,
    cancelled: AtomicBool,
    /// The words of the children that run.
    running: Mutex<HashSet<u64>>,
    parent: WaitList,
}

impl Group {
    /// One child more, by the parent or by a child that is in the group itself.
    pub fn enter(&self) {
        self.children.fetch_add(1, Ordering::Relaxed);
    }

    /// A child starts as `word`. `false`: the group was cancelled before, and nobody may have woken this word.
    pub fn start(&self, word: u64) -> bool {
        self.running().insert(word);
        !self.is_cancelled()
    }

    /// A child, started as `word` or never, is gone with all that it borrowed.
    pub fn leave(&self, word: Option<u64>) {
        if let Some(word) = word {
            self.running().remove(&word);
        }
        if self.children.fetch_sub(1, Ordering::Release) == 1 {
            self.parent.wake_all();
        }
    }

    /// Asks all children to end, those to come too: calls `wake` with the word of each that runs. A child may have left
    /// by then.
    pub fn cancel(&self, wake: impl FnMut(u64)) {
        self.cancelled.store(true, Ordering::Relaxed);
        let running: Vec<u64> = self.running().iter().copied().collect();
        running.into_iter().for_each(wake);
    }

    /// Whether the children are to end. Certain after a wake-up by the one who asked.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// How many children are left. At 0 all that they did has happened.
    pub fn children(&self) -> usize {
        self.children.load(Ordering::Acquire)
    }

    /// The parent's node for [`poll_empty`](Group::poll_empty).
    pub fn waiter(&self) -> Waiter<'_> {
        self.parent.waiter()
    }

    /// Whether every child has left; if not, wakes when the last does.
    pub fn poll_empty(&self, mut waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<()> {
        while waiter.as_mut().poll_notified(cx).is_ready() {}
        match self.children() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    fn running(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
