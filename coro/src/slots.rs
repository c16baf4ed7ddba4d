//! The table of slots: which addresses belong to stacks, and the label at the top of each.
//!
//! ```text
//!   REGIONS   row 0  row 1  ...                 a region: a mapping that is carved into slots of one size
//!               │      └──▶ ├─ slot ─┼┼─ slot ─┼┼─ slot ─┼─── not carved ───┤
//!               └──▶ ...    start                        start + carved     start + bytes
//! ```
//!
//! Between two slots lies a page that nobody uses, so that slots begin a `pitch` apart. At a distance of a power of two the busiest pages
//! of all stacks would share a few sets of the processor's table of translations. Touching one line in each of 1,000 stacks of 256 KiB in
//! random order took 21 ns a stack on an EPYC 9004, and 6 ns with the page between them.
//!
//! Protocol: `stack/region.rs` maps regions, carves slots and writes the rows, under its lock. Everything else reads them without a lock,
//! the signal handler of `overflow.rs` among others. So a row is filled before [`ROWS`] is raised (release, paired with the readers'
//! acquire). After that only its `carved` changes: it is raised (release) once the slot below it has its guard and may be read.
//! Regions are never unmapped.
//!
//! A label is written by the owner of its stack and read by any thread. So it is made of relaxed atomics, and holds the name itself
//! instead of a pointer that could dangle.
//!
//! # Safety
//!
//! This file is an unsafe island: it accesses labels through raw addresses. It rests on the protocol above: a slot below `carved` stays
//! mapped for ever.
#![allow(unsafe_code)]

use std::panic::Location;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

/// Bytes at the low end of every slot that fault when touched. C code has no stack probes: a C frame can skip a guard of one page without a
/// fault. It can skip this one only if it is larger than 64 KiB.
pub const GUARD_BYTES: usize = 64 * 1024;

/// The most regions of a process. At 1 GiB each they would fill 4 TiB, 16 million stacks of 256 KiB.
pub(crate) const MAX_REGIONS: usize = 4096;

pub(crate) static REGIONS: [Region; MAX_REGIONS] = [const { Region::new() }; MAX_REGIONS];
/// The number of rows that are filled.
pub(crate) static ROWS: AtomicUsize = AtomicUsize::new(0);

/// One mapping. All fields are written under the lock of `stack/region.rs`. `runtime/gdb/osier.py` knows their order.
#[repr(C)]
pub(crate) struct Region {
    pub(crate) start: AtomicUsize,
    pub(crate) bytes: AtomicUsize,
    pub(crate) slot_bytes: AtomicUsize,
    /// Bytes from `start` to the end of the last guarded slot.
    pub(crate) carved: AtomicUsize,
    /// Bytes from one slot's start to the next one's.
    pub(crate) pitch: AtomicUsize,
}

impl Region {
    const fn new() -> Region {
        Region {
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            slot_bytes: AtomicUsize::new(0),
            carved: AtomicUsize::new(0),
            pitch: AtomicUsize::new(0),
        }
    }
}

/// The end and the size of the slot whose guard contains `address`. Lock-free, for the overflow handler.
pub(crate) fn overflowed_slot(address: usize) -> Option<(usize, usize)> {
    slot_of(address).filter(|(top, slot_bytes)| address - (top - slot_bytes) < GUARD_BYTES)
}

/// The end and the size of the slot that contains `address`, guard or not. Lock-free.
pub(crate) fn slot_of(address: usize) -> Option<(usize, usize)> {
    let rows = &REGIONS[..ROWS.load(Acquire)];
    let region = rows
        .iter()
        .find(|r| address.wrapping_sub(r.start.load(Relaxed)) < r.carved.load(Acquire))?;
    let slot_bytes = region.slot_bytes.load(Relaxed);
    let offset = (address - region.start.load(Relaxed)) % region.pitch.load(Relaxed);
    (offset < slot_bytes).then(|| (address - offset + slot_bytes, slot_bytes))
}

/// The topmost 64 bytes of a slot, which name the fiber on the stack. All zero, as in a fresh slot, means no fiber yet.
/// `runtime/gdb/osier.py` reads it, too.
#[repr(C, align(64))]
pub struct Label {
    place: AtomicPtr<Location<'static>>,
    name_bytes: AtomicUsize,
    name: [AtomicU64; 6],
}

const _: () = assert!(size_of::<Label>() == 64);

impl Label {
    /// The label of the slot that ends at `top`.
    ///
    /// # Safety
    ///
    /// `top` must be the end of a carved slot. Slots are never unmapped, so the reference is good for ever, and all
    /// bit patterns the label can hold are written through it or are zero.
    #[inline]
    pub(crate) unsafe fn of(top: usize) -> &'static Label {
        let label = std::ptr::with_exposed_provenance::<Label>(top - size_of::<Label>());
        // SAFETY: in bounds and aligned because slots are larger than a label and end at a page's end; only atomics inside.
        unsafe { &*label }
    }

    /// The label of the stack that contains `address`, from any thread. None outside of all stacks.
    pub fn at(address: usize) -> Option<&'static Label> {
        // SAFETY: what `slot_of` finds is the end of a carved slot.
        slot_of(address).map(|(top, _)| unsafe { Label::of(top) })
    }

    /// Names the fiber that gets the stack. Only the stack's owner calls it.
    #[inline]
    pub(crate) fn set(&self, place: &'static Location<'static>, name: Option<&str>) {
        self.place.store(std::ptr::from_ref(place).cast_mut(), Relaxed);
        match name {
            None => self.name_bytes.store(0, Relaxed),
            Some(name) => self.set_name(name),
        }
    }

    fn set_name(&self, name: &str) {
        let name = &name[..name.floor_char_boundary(8 * self.name.len())];
        for (word, bytes) in self.name.iter().zip(name.as_bytes().chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Relaxed);
        }
        self.name_bytes.store(name.len(), Relaxed);
    }

    /// The place where the fiber was spawned. None if the stack was never labelled. Safe in a signal handler.
    pub fn place(&self) -> Option<&'static Location<'static>> {
        // SAFETY: the pointer is null or came from a `&'static Location` in `set`.
        NonNull::new(self.place.load(Relaxed)).map(|place| unsafe { place.as_ref() })
    }

    /// Copies the name into `buf` and returns its bytes, none for an unnamed fiber. Safe in a signal handler. While the stack goes to another
    /// fiber, the result may be a mixture of both names.
    pub fn name<'b>(&self, buf: &'b mut [u8; 48]) -> &'b [u8] {
        for (bytes, word) in buf.chunks_exact_mut(8).zip(&self.name) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        &buf[..self.name_bytes.load(Relaxed).min(buf.len())]
    }
}
