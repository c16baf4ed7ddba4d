//! The result cell of a join handle: one producer, one consumer, one value, at most one waker, nothing allocated.
//!
//! A task's memory holds one; the worker that ends the task completes it, the join handle polls it. A spawn, its end and
//! its join cost two atomic read-modify-writes together, one if the task ends before it is joined; this is why uniqueness
//! of the two ends is the caller's promise (both are held by types that are unique anyway) and not checked here.
//!
//! ```text
//!            poll: store waker, CAS           complete: store value, swap
//!   EMPTY ──────────────────────────> WAITING ──────────────────────────> READY ──────> TAKEN
//!     ^ └───────────────────────────────────────────────────────────────────^  poll/take
//!     └── poll with another waker: CAS back, replace it ──┘
//! ```
//!
//! # Protocol
//! - `value` is the producer's until it swaps in READY (release), then the consumer's (acquire).
//! - `waker` is the consumer's while the state is EMPTY. While it is WAITING the slot is full, and both sides may only
//!   read it: the consumer to compare, the producer, whose swap returned WAITING, to move it out bytewise. From READY on
//!   the consumer never looks at it.
//!
//! # Safety
//! The island: `complete` has one caller ever, `poll` and `take` have one caller at a time. Both are `unsafe fn` for that.
#![allow(unsafe_code)]

use crate::sync::{AtomicU8, Ordering, UnsafeCell};
use std::mem::MaybeUninit;
use std::task::{Context, Poll, Waker};

/// No value, no waker.
const EMPTY: u8 = 0;
/// No value; the waker slot is full.
const WAITING: u8 = 1;
/// The value is there; the waker slot is the producer's, if it was full.
const READY: u8 = 2;
/// The value has been taken.
const TAKEN: u8 = 3;

/// A value that one side leaves and the other takes.
///
/// `Sync` only if `T: Send`; a completion of another `T` can be used on its own thread.
pub struct Completion<T> {
    state: AtomicU8,
    /// Full iff WAITING, until the producer moves it out.
    waker: UnsafeCell<MaybeUninit<Waker>>,
    /// Full iff READY.
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written by one thread and moved out by another (needs T: Send), never shared; the waker is
// Send + Sync; who may access a slot is decided by `state`, as the module's protocol says.
unsafe impl<T: Send> Sync for Completion<T> {}
// SAFETY: it owns a T and a Waker, nothing else.
unsafe impl<T: Send> Send for Completion<T> {}

impl<T> Completion<T> {
    crate::sync::const_unless_loom! {
        /// Not completed, nobody waiting.
        pub fn new() -> Self {
            Self {
                state: AtomicU8::new(EMPTY),
                waker: UnsafeCell::new(MaybeUninit::uninit()),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            }
        }
    }

    /// The producer leaves the value and wakes the consumer.
    ///
    /// # Safety
    /// It is called at most once in the completion's life.
    pub unsafe fn complete(&self, value: T) {
        debug_assert!(!self.is_complete(), "completed twice");
        self.value.with_mut(|slot| {
            // SAFETY: before READY the value slot is the producer's, and the caller is the only producer.
            unsafe { (*slot).write(value) };
        });
        if self.state.swap(READY, Ordering::AcqRel) == WAITING {
            // SAFETY: WAITING says the slot is full; this swap ends that state, so nobody else moves the waker out, and
            // the consumer does not write the slot again (only in EMPTY). The copy left behind is never dropped.
            let waker = self.waker.with(|slot| unsafe { (*slot).assume_init_read() });
            waker.wake();
        }
    }

    /// The consumer takes the value, or leaves its waker (replacing the one it left before) and is woken once.
    ///
    /// # Safety
    /// No other call of `poll` or [`take`](Self::take) runs at the same time.
    ///
    /// # Panics
    /// If the value was taken before.
    pub unsafe fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.state.load(Ordering::Acquire);
        if state == WAITING {
            let same = self.waker.with(|slot| {
                // SAFETY: the slot is full since WAITING was read, and until this consumer empties it; the producer at
                // most reads it.
                unsafe { (*slot).assume_init_ref() }.will_wake(cx.waker())
            });
            if same {
                return Poll::Pending;
            }
            state = self.reclaim_waker();
        }
        if state == EMPTY && self.leave_waker(cx.waker().clone()) {
            return Poll::Pending;
        }
        // SAFETY: the caller's promise is the same.
        match unsafe { self.take() } {
            Some(value) => Poll::Ready(value),
            None => panic!("a completion was polled after its value was taken"),
        }
    }

    /// The consumer takes the value if it is there.
    ///
    /// # Safety
    /// No other call of [`poll`](Self::poll) or `take` runs at the same time.
    pub unsafe fn take(&self) -> Option<T> {
        if self.state.load(Ordering::Acquire) != READY {
            return None;
        }
        self.state.store(TAKEN, Ordering::Relaxed);
        // SAFETY: READY (acquire) says the value is there and the producer done with it; the only consumer has just
        // left READY, so it is moved out once.
        Some(self.value.with(|slot| unsafe { (*slot).assume_init_read() }))
    }

    /// Whether the value has been left, taken since or not.
    pub fn is_complete(&self) -> bool {
        self.state.load(Ordering::Acquire) >= READY
    }

    /// WAITING back to EMPTY, dropping the old waker; returns the state then found (EMPTY or READY).
    fn reclaim_waker(&self) -> u8 {
        match self
            .state
            .compare_exchange(WAITING, EMPTY, Ordering::Acquire, Ordering::Acquire)
        {
            Ok(_) => {
                // SAFETY: the slot was full and is the consumer's again.
                let old = self.waker.with(|slot| unsafe { (*slot).assume_init_read() });
                drop(old);
                EMPTY
            }
            Err(state) => state,
        }
    }

    /// EMPTY to WAITING with `waker` in the slot; `false`: the value came first.
    fn leave_waker(&self, waker: Waker) -> bool {
        self.waker.with_mut(|slot| {
            // SAFETY: in EMPTY the slot is the consumer's, and empty.
            unsafe { (*slot).write(waker) };
        });
        if self
            .state
            .compare_exchange(EMPTY, WAITING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            return true;
        }
        // SAFETY: the state was never WAITING, so the waker just written is still the consumer's.
        drop(self.waker.with(|slot| unsafe { (*slot).assume_init_read() }));
        false
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        match self.state.load(Ordering::Acquire) {
            // SAFETY: the slot is full, and nobody else has a reference.
            WAITING => self.waker.with_mut(|slot| unsafe { (*slot).assume_init_drop() }),
            // SAFETY: as above.
            READY => self.value.with_mut(|slot| unsafe { (*slot).assume_init_drop() }),
            _ => {}
        }
    }
}

impl<T> Default for Completion<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> std::fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion")
            .field("complete", &self.is_complete())
            .finish_non_exhaustive()
    }
}
