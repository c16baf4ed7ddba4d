//! The children of a scope, as the scope and the children's jobs use them: [`Children`] is `osier_queue`'s group of
//! children with a count of panics. [`Ticket`] is the place of one child.
//!
//! A child enters when it is spawned and leaves when it gives up its [`Ticket`], the last thing that its job does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use osier_queue::Group;

use crate::worker::remote;
use crate::worker::waker::Word;

/// The state that a scope and its children share.
#[derive(Default)]
pub(crate) struct Children {
    /// The reason why this struct is in an `Arc`: the last child wakes the parent after it has left.
    pub(crate) group: Group,
    /// Children that panicked and were not joined.
    pub(crate) panics: AtomicUsize,
}

impl Children {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.group.is_cancelled()
    }

    /// Counts a child. Its [`Ticket`] takes it off again.
    pub(crate) fn add_child(&self) {
        self.group.enter();
    }

    /// Notes that a child starts as `word`. Returns false if the scope was cancelled before.
    pub(crate) fn start(&self, word: Word) -> bool {
        self.group.start(word.to_bits())
    }

    pub(crate) fn child_panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn panic_was_joined(&self) {
        self.panics.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn cancel(&self) {
        self.group.cancel(|word| remote::wake(Word::from_bits(word)));
    }
}

/// A child's place in its scope, given up when everything else of the child is gone.
pub(crate) struct Ticket {
    scope: Arc<Children>,
    word: Option<u64>,
}

impl Ticket {
    /// The ticket of a child that was [counted](Children::add_child), once.
    pub(crate) fn of(scope: Arc<Children>, word: Option<u64>) -> Ticket {
        Ticket { scope, word }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.scope.group.leave(self.word);
    }
}
