//! Packed wakers: a `std::task::Waker` whose data pointer *is* the address of what it wakes.
//!
//! ```text
//!  63        52 51                28 27                     0
//! ┌────────────┬────────────────────┬────────────────────────┐
//! │ worker  12 │ slot            24 │ generation          28 │   one word, no pointer
//! └────────────┴────────────────────┴────────────────────────┘
//! ```
//!
//! Clone and drop are free, and waking is a table look-up ([`crate::worker::remote`]). A word is stale when the slot
//! was freed, its generation moved on, or the worker is gone. A stale word wakes nothing, or, after 2²⁷ reuses of one
//! slot (a tenant takes two generations), wakes the wrong tenant spuriously. Every leaf tolerates a spurious wake-up.
//!
//! # Safety
//!
//! This file may use `unsafe` for one thing: building a `Waker` from a vtable that never dereferences its data pointer.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::task::{RawWaker, RawWakerVTable, Waker};

const GENERATION_BITS: u32 = 28;
const SLOT_BITS: u32 = 24;
const WORKER_BITS: u32 = 12;

/// The number of workers that a process may have at once.
pub(crate) const WORKERS_MAX: usize = 1 << WORKER_BITS;
/// The number of slots (fibers and dormant connections) that a worker may have at once.
pub(crate) const SLOTS_MAX: usize = 1 << SLOT_BITS;

const _: () = assert!(
    GENERATION_BITS + SLOT_BITS + WORKER_BITS == usize::BITS,
    "a waker's word is 64 bits wide"
);

const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

/// The generation after this one: 28 bits, never 0.
pub(crate) fn next_generation(generation: u32) -> u32 {
    (generation.wrapping_add(1) & GENERATION_MASK).max(1)
}

/// The address of a slot of a worker, with the generation of its tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(NonZeroUsize);

impl Word {
    /// Makes a word. `generation` is [one that fits](next_generation).
    pub(crate) fn new(worker: u16, slot: u32, generation: u32) -> Word {
        debug_assert!((worker as usize) < WORKERS_MAX && (slot as usize) < SLOTS_MAX);
        debug_assert!(generation > 0 && generation <= GENERATION_MASK);
        let high = (worker as usize) << (SLOT_BITS + GENERATION_BITS) | (slot as usize) << GENERATION_BITS;
        Word::from_bits((high | generation as usize) as u64)
    }

    pub(crate) fn worker(self) -> u16 {
        (self.0.get() >> (SLOT_BITS + GENERATION_BITS)) as u16
    }

    pub(crate) fn slot(self) -> u32 {
        (self.0.get() >> GENERATION_BITS) as u32 & (SLOTS_MAX as u32 - 1)
    }

    pub(crate) fn is_generation(self, generation: u32) -> bool {
        self.0.get() as u32 & GENERATION_MASK == generation
    }

    /// The word as a number that an atomic can hold; never 0.
    pub(crate) fn to_bits(self) -> u64 {
        self.0.get() as u64
    }

    /// The inverse of [`to_bits`](Word::to_bits).
    pub(crate) fn from_bits(bits: u64) -> Word {
        Word(NonZeroUsize::new(bits as usize).expect("a word holds a generation, and they begin at 1"))
    }

    pub(crate) fn waker(self) -> Waker {
        // SAFETY: the vtable's functions take the data pointer as a number and never dereference it, so any value is
        // valid for any time on any thread, and clone and drop have nothing to keep.
        unsafe { Waker::from_raw(raw(self)) }
    }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| raw(Word::from_bits(data.addr() as u64)),
    |data| crate::worker::remote::wake(Word::from_bits(data.addr() as u64)),
    |data| crate::worker::remote::wake(Word::from_bits(data.addr() as u64)),
    |_| {},
);

fn raw(word: Word) -> RawWaker {
    RawWaker::new(std::ptr::without_provenance(word.0.get()), &VTABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_three_parts() {
        for (worker, slot, generation) in [(0, 0, 1), (4095, (1 << 24) - 1, (1 << 28) - 1), (7, 1_000_000, 12_345)] {
            let word = Word::new(worker, slot, generation);
            assert_eq!((word.worker(), word.slot()), (worker, slot));
            assert!(word.is_generation(generation));
            assert!(!word.is_generation(next_generation(generation)));
            assert_eq!(Word::from_bits(word.to_bits()), word);
        }
    }

    #[test]
    fn a_waker_of_nobody_is_harmless() {
        let waker = Word::new(4095, 3, 9).waker();
        let clone = waker.clone();
        clone.wake();
        waker.wake_by_ref();
        assert!(waker.will_wake(&waker.clone()));
    }
}
