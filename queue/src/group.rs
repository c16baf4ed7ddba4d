//! The children of a scope: their number, the words of the running ones, their cancellation, and the parent's wait for them.
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
//! - Cancel and start meet in the lock. If the child's start came first, the canceller finds its word; otherwise the child sees the
//!   flag that was set before. So the flag itself needs no ordering.
//! - A parent that reads zero sees everything that every child did before it left: the decrements are one chain of
//!   read-modify-writes, each released. That is what lets a child borrow from the parent's stack.
//! - Leave and wait use the wait list's pair of fences: the parent sees zero, or the last child sees the parent.
//! - **The last child touches the group after the parent may have gone on**: its wake-up comes after the decrement. So the group must
//!   not live on the parent's stack. The runtime holds it in an `Arc`, with one count for the parent and one in each child's
//!   ticket. After the decrement nothing else of the parent is touched.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::waiters::{WaitList, Waiter};

/// A count of children, and the parent who waits for them.
#[derive(Default)]
pub struct Group {
    children: AtomicUsize,
    cancelled: AtomicBool,
    /// Words of the running children. They are woken in this order, which a simulation repeats.
    running: Mutex<BTreeSet<u64>>,
    parent: WaitList,
}

impl Group {
    /// Counts one more child. The caller is the parent, or a child of the group.
    pub fn enter(&self) {
        self.children.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts a child as `word`. Returns false if the group was cancelled. The canceller may have missed this word, so the child must not
    /// run.
    pub fn start(&self, word: u64) -> bool {
        self.running().insert(word);
        !self.is_cancelled()
    }

    /// Counts one child less. `word` is `None` if it never started. It must have given up everything that it borrowed.
    pub fn leave(&self, word: Option<u64>) {
        if let Some(word) = word {
            self.running().remove(&word);
        }
        if self.children.fetch_sub(1, Ordering::Release) == 1 {
            self.parent.wake_all();
        }
    }

    /// Asks all present and future children to end. Calls `wake` with the word of each running child, which may have left by then.
    pub fn cancel(&self, wake: impl FnMut(u64)) {
        self.cancelled.store(true, Ordering::Relaxed);
        let running: Vec<u64> = self.running().iter().copied().collect();
        running.into_iter().for_each(wake);
    }

    /// Whether the children are asked to end. The answer is certain after a wake-up by the canceller.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The number of children left. At 0, everything that they did has happened before.
    pub fn children(&self) -> usize {
        self.children.load(Ordering::Acquire)
    }

    /// A node for the parent's [`poll_empty`](Group::poll_empty).
    pub fn waiter(&self) -> Waiter<'_> {
        self.parent.waiter()
    }

    /// Waits until every child has left.
    pub fn poll_empty(&self, mut waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<()> {
        while waiter.as_mut().poll_notified(cx).is_ready() {}
        match self.children() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
