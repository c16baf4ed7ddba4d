//! The result cell of a join handle: one producer, one consumer, one value and at most one waker. It allocates nothing.
//!
//! A task's memory holds the cell. The worker that ends the task completes it, and the join handle polls it. The cell also decides
//! which of the two frees that memory, so no reference count is needed. A spawn, its end and its join cost two atomic
//! read-modify-writes together, or one if the task ends before it is joined. For that the caller must guarantee that each end
//! is unique. Both ends are held by unique types anyway, so the cell does not check it.
//!
//! ```text
//!            poll: store waker, CAS            finish: swap             waker moved out: store
//!   EMPTY ──────────────────────────> WAITING ──────────────> READY ─────────────────────────> DONE
//!    │ ^ └─────────────────────────────────────────────────────^ finish: swap, and never again
//!    │ └── poll with another waker, detach: CAS back ──┘
//!    └── detach: CAS ──> DETACHED ── finish: swap ──> READY, and the memory is the producer's
//! ```
//!
//! The value is there in READY and in DONE. They differ in the waker. A `finish` that finds WAITING swaps in READY, moves the waker out
//! of the cell, and stores DONE: after that the producer does not touch the cell again. A `finish` that finds another state has no
//! waker to move out, so its READY is final.
//!
//! # Protocol
//! - `value` belongs to the producer until it swaps in READY (release), and then to the consumer (acquire).
//! - `waker` belongs to the consumer while the state is EMPTY. While it is WAITING the slot is full, and both sides may only read
//!   it: the consumer to compare, and the producer, whose swap returned WAITING, to move it out bytewise.
//! - Only the consumer touches `registered` and `taken`. Without a consumer, in DETACHED, `taken` is the producer's.
//! - The side that comes last frees the memory. If the consumer detaches before the value is there, that is the producer, and
//!   `finish` returns true. Otherwise it is the consumer, after the producer's last access: the swap to READY, or the store of DONE
//!   if a waker was registered. `detach` waits out the few instructions between these two.
//!
//! This file is an unsafe island. One producer calls `set` and `finish` once. One consumer at a time calls `poll`, `take` and
//! `detach`. The cell cannot check that, so all of them are `unsafe fn`.
#![allow(unsafe_code)]

use crate::sync::{AtomicU8, Ordering, UnsafeCell};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::task::{Context, Poll, Waker};

/// No value, no waker.
const EMPTY: u8 = 0;
/// No value; the waker slot is full.
const WAITING: u8 = 1;
/// No value, no waker, no consumer.
const DETACHED: u8 = 2;
/// The value is there. A waker that was registered may still be in its slot, which belongs to the producer.
const READY: u8 = 3;
/// The value is there, the waker was moved out, and the producer does not touch the cell again.
const DONE: u8 = 4;

/// A value that one side leaves and the other side takes.
///
/// It is `Sync` only if `T: Send`. A completion of another `T` can be used on its own thread.
pub struct Completion<T> {
    state: AtomicU8,
    /// Full if and only if the state is WAITING, until the producer moves it out.
    waker: UnsafeCell<MaybeUninit<Waker>>,
    /// Full from `set` until it is taken.
    value: UnsafeCell<MaybeUninit<T>>,
    /// Consumer's: its waker is in the slot, or the producer has it.
    registered: Cell<bool>,
    /// Consumer's: the value has been moved out.
    taken: Cell<bool>,
}

// SAFETY: the value is written by one thread and moved out by another (needs T: Send), never shared; the waker is
// Send + Sync; who may access a slot is decided by `state`, as the module's protocol says; `registered` and `taken` are one
// side's alone.
unsafe impl<T: Send> Sync for Completion<T> {}
// SAFETY: it owns a T and a Waker, nothing else.
unsafe impl<T: Send> Send for Completion<T> {}

impl<T> Completion<T> {
    crate::sync::const_unless_loom! {
        /// A cell without a value and without a waiting consumer.
        pub fn new() -> Self {
            Self {
                state: AtomicU8::new(EMPTY),
                waker: UnsafeCell::new(MaybeUninit::uninit()),
                value: UnsafeCell::new(MaybeUninit::uninit()),
                registered: Cell::new(false),
                taken: Cell::new(false),
            }
        }
    }

    /// Leaves the value and wakes the consumer. Returns true if there is no consumer any more.
    ///
    /// # Safety
    /// It is called at most once in the completion's life, and neither [`set`](Self::set) nor [`finish`](Self::finish) is called.
    pub unsafe fn complete(&self, value: T) -> bool {
        // SAFETY: the caller is the one producer, and this is its one call.
        unsafe {
            self.set(value);
            self.finish()
        }
    }

    /// Leaves the value, which the consumer does not see yet.
    ///
    /// # Safety
    /// The one producer calls it once, before [`finish`](Self::finish).
    pub unsafe fn set(&self, value: T) {
        debug_assert!(!self.is_complete(), "completed twice");
        self.value.with_mut(|slot| {
            // SAFETY: before READY the value slot is the producer's, and the caller is the only producer.
            unsafe { (*slot).write(value) };
        });
    }

    /// Drops the value that was [`set`](Self::set), if no consumer could take it. Returns false if there is a consumer.
    ///
    /// # Safety
    /// The one producer calls it between `set` and `finish`.
    pub unsafe fn discard(&self) -> bool {
        let detached = self.is_detached();
        if detached {
            self.taken.set(true);
            // SAFETY: `set` has filled the slot, and without a consumer it is the producer's, as is `taken`.
            self.value.with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
        detached
    }

    /// Whether the consumer has left.
    pub fn is_detached(&self) -> bool {
        self.state.load(Ordering::Acquire) == DETACHED
    }

    /// Shows the value and wakes the consumer. Returns true if there is no consumer any more: the memory then belongs to the producer.
    /// After false the producer must not touch the cell again.
    ///
    /// # Safety
    /// The one producer calls it once, after [`set`](Self::set).
    pub unsafe fn finish(&self) -> bool {
        match self.state.swap(READY, Ordering::AcqRel) {
            WAITING => {
                // SAFETY: WAITING says the slot is full; the swap ended that state, so nobody else moves the waker out, and
                // the consumer does not write the slot again (only in EMPTY). The copy left behind is never dropped.
                let waker = self.waker.with(|slot| unsafe { (*slot).assume_init_read() });
                self.state.store(DONE, Ordering::Release);
                waker.wake();
                false
            }
            DETACHED => true,
            _ => false,
        }
    }

    /// Takes the value, or leaves the consumer's waker, which replaces an earlier one and is woken once.
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
            None => panic!("a join handle was polled after it had given its value"),
        }
    }

    /// Takes the value if it is there.
    ///
    /// # Safety
    /// No other call of [`poll`](Self::poll) or `take` runs at the same time.
    pub unsafe fn take(&self) -> Option<T> {
        if !self.is_complete() || self.taken.replace(true) {
            return None;
        }
        // SAFETY: READY (acquire) says the value is there and the producer done with it; the only consumer has not taken
        // it before.
        Some(self.value.with(|slot| unsafe { (*slot).assume_init_read() }))
    }

    /// Whether the value has been left. It may have been taken since.
    pub fn is_complete(&self) -> bool {
        self.state.load(Ordering::Acquire) >= READY
    }

    /// Ends the consumer's side for good. Returns true if the memory belongs to the consumer; after false the producer frees it.
    ///
    /// # Safety
    /// No other call of the consumer runs at the same time, and none comes after it.
    pub unsafe fn detach(&self) -> bool {
        let mut tries = 0;
        loop {
            match self.state.load(Ordering::Acquire) {
                EMPTY => {
                    if self
                        .state
                        .compare_exchange(EMPTY, DETACHED, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                    {
                        return false;
                    }
                }
                WAITING => {
                    self.reclaim_waker();
                }
                // The producer is about to move the waker out.
                READY if self.registered.get() => crate::sync::relax(&mut tries),
                _ => return true,
            }
        }
    }

    /// Changes WAITING back to EMPTY and drops the old waker. Returns the state found then: EMPTY or READY.
    fn reclaim_waker(&self) -> u8 {
        match self
            .state
            .compare_exchange(WAITING, EMPTY, Ordering::Acquire, Ordering::Acquire)
        {
            Ok(_) => {
                // SAFETY: the slot was full and is the consumer's again.
                let old = self.waker.with(|slot| unsafe { (*slot).assume_init_read() });
                self.registered.set(false);
                drop(old);
                EMPTY
            }
            Err(state) => state,
        }
    }

    /// Changes EMPTY to WAITING with `waker` in the slot. Returns false if the value came first.
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
            self.registered.set(true);
            return true;
        }
        // SAFETY: the state was never WAITING, so the waker just written is still the consumer's.
        drop(self.waker.with(|slot| unsafe { (*slot).assume_init_read() }));
        false
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        if cfg!(loom) {
            self.waker.with_mut(|_| ()); // an exclusive access, so that models see it if the other side may not be done
        }
        match self.state.load(Ordering::Acquire) {
            // SAFETY: the slot is full, and nobody else has a reference.
            WAITING => self.waker.with_mut(|slot| unsafe { (*slot).assume_init_drop() }),
            // SAFETY: it is full, unless taken, and nobody else has a reference.
            READY | DONE if !self.taken.get() => self.value.with_mut(|slot| unsafe { (*slot).assume_init_drop() }),
            _ => {}
        }
    }
}

impl<T> Default for Completion<T> {
    fn default() -> Self {
        Self::new()
    }
}

crate::impl_debug!(Completion<T>, self => { complete: self.is_complete(), .. });
