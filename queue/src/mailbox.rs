//! The mailbox: 32 flags in one word, and a list of those who wait for any or all of a set of flags.
//!
//! ```text
//!   bit 63       33   32    31                0
//!   ┌─────────────┬───────┬────────────────────┐
//!   │      0      │ AWAIT │       flags        │
//!   └─────────────┴───────┴────────────────────┘
//! ```
//!
//! # Protocol
//! - While AWAIT is clear nobody is linked, and a raise is one compare-exchange. While it is set, a raise happens under the list's
//!   lock. AWAIT changes only under that lock. It may be set although nobody is linked; the next raise then clears it.
//! - So a raise and a link never overlap: **a raise judges exactly those who wait at that moment, by the flags of that moment**. Each
//!   waiter whose condition holds is granted those very flags. A take needs no lock: a later one cannot undo the grant, an
//!   earlier one is part of the flags that were judged.
//! - A condition becomes true only by a raise, so a linked waiter need not look again.
//! - Every change of the word is a read-modify-write (release), and every look an acquire. So a reader of a flag sees everything that
//!   each thread did before it raised the flag.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::sync::{AtomicU64, Ordering};
use crate::waiters::{Entered, WaitList, Waiter};

/// The bit that says that somebody may wait.
const AWAIT: u64 = 1 << 32;

/// The condition of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flags {
    /// At least one of these flags. With no flags it always holds.
    Any(u32),
    /// Every one of these flags. With no flags it always holds.
    All(u32),
}

impl Flags {
    /// Whether the condition holds in this state of a mailbox.
    pub fn hold_in(self, state: u32) -> bool {
        match self {
            Flags::Any(set) => set == 0 || state & set != 0,
            Flags::All(set) => state & set == set,
        }
    }

    /// The condition as a word of the wait list.
    fn to_word(self) -> u64 {
        match self {
            Flags::Any(set) => u64::from(set),
            Flags::All(set) => 1 << 32 | u64::from(set),
        }
    }

    fn from_word(word: u64) -> Flags {
        match word >> 32 {
            0 => Flags::Any(word as u32),
            _ => Flags::All(word as u32),
        }
    }
}

/// A set of 32 flags, with those who wait for them.
///
/// ```
/// use osier_queue::{Flags, Mailbox};
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// let mailbox = Mailbox::new();
/// let mut waiter = pin!(mailbox.waiter());
/// let mut cx = Context::from_waker(Waker::noop());
/// mailbox.raise(1);
/// assert!(mailbox.poll_wait(Flags::All(3), waiter.as_mut(), &mut cx).is_pending());
/// mailbox.raise(2);
/// assert_eq!(mailbox.poll_wait(Flags::All(3), waiter.as_mut(), &mut cx), Poll::Ready(3));
/// assert_eq!(mailbox.take(1), 3);
/// assert_eq!(mailbox.state(), 2);
/// ```
#[derive(Default)]
pub struct Mailbox {
    word: AtomicU64,
    waiters: WaitList,
}

impl Mailbox {
    crate::sync::const_unless_loom! {
        /// A mailbox with no flag raised.
        pub fn new() -> Self {
            Self { word: AtomicU64::new(0), waiters: WaitList::new() }
        }
    }

    /// Raises the flags of `set` and releases every waiter whose condition then holds.
    #[inline]
    pub fn raise(&self, set: u32) {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & AWAIT == 0 {
            let raised = word | u64::from(set);
            // Also done where it changes nothing: a reader of the flags must see everything done before this raise.
            match self
                .word
                .compare_exchange_weak(word, raised, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
        self.raise_awaited(set);
    }

    #[cold]
    fn raise_awaited(&self, set: u32) {
        let raise = |nobody| {
            let before = self.word.fetch_or(u64::from(set), Ordering::AcqRel);
            if nobody {
                self.word.fetch_and(!AWAIT, Ordering::AcqRel);
            }
            before as u32 | set
        };
        self.waiters.wake_where(raise, |state, wanted| {
            Flags::from_word(wanted).hold_in(state).then_some(u64::from(state))
        });
    }

    /// Clears the flags of `clear` and leaves the others. Returns the whole state before.
    #[inline]
    pub fn take(&self, clear: u32) -> u32 {
        self.word.fetch_and(!u64::from(clear), Ordering::AcqRel) as u32
    }

    /// The raised flags.
    #[inline]
    pub fn state(&self) -> u32 {
        self.word.load(Ordering::Acquire) as u32
    }

    /// A node for [`poll_wait`](Mailbox::poll_wait). Dropping it stops the wait and loses nothing: flags stay.
    pub fn waiter(&self) -> Waiter<'_> {
        self.waiters.waiter()
    }

    /// Waits until `flags` hold, and returns the state that satisfied them. Clears no flag. While a waiter waits, another `flags` value
    /// is ignored.
    pub fn poll_wait(&self, flags: Flags, waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<u32> {
        if waiter.is_idle() {
            let state = self.state();
            if flags.hold_in(state) {
                return Poll::Ready(state);
            }
        }
        let announce = || {
            let mut word = self.word.load(Ordering::Acquire);
            if word & AWAIT == 0 {
                word = self.word.fetch_or(AWAIT, Ordering::AcqRel);
            }
            let state = word as u32;
            flags.hold_in(state).then_some(state)
        };
        match waiter.enter(cx.waker(), flags.to_word(), announce) {
            Entered::Holds(state) => Poll::Ready(state),
            Entered::Granted(state) => Poll::Ready(state as u32),
            Entered::Waits => Poll::Pending,
        }
    }
}

crate::impl_debug!(Mailbox, self => { state: format_args!("{:#x}", self.state()), .. });
