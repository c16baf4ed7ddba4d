//! Gives free memory of the C library's allocator back to the system.
//!
//! glibc keeps what is freed in the middle of its heaps for ever. After many connections have gone, that is most of a
//! process's memory. A worker counts its tenants, fibers and connections at rest. Once half of at least [`LEAST`] have
//! gone, it asks for a trim, on the pool for blocking work: a trim takes some milliseconds for 100 MB.
//!
//! # Safety
//!
//! This file may use `unsafe` for one call that no crate wraps: `malloc_trim` may be called at any time, on any thread.
#![allow(unsafe_code)]

use std::cell::Cell;

/// The fewest tenants whose memory is worth a trim.
const LEAST: usize = 256;

/// The most tenants that a worker has had since the last trim.
#[derive(Default)]
pub(crate) struct Heap {
    most: Cell<usize>,
}

impl Heap {
    /// Notes the number of tenants.
    #[inline]
    pub(crate) fn note(&self, live: usize) {
        if live > self.most.get() {
            self.most.set(live);
        }
    }

    /// Asks for a trim if `live`, the tenants that are left, are few.
    pub(crate) fn trim(&self, live: usize) {
        if self.is_due(live) {
            self.most.set(live);
            crate::wait::pool::spawn(trim).detach();
        }
    }

    fn is_due(&self, live: usize) -> bool {
        self.most.get() >= LEAST && live <= self.most.get() / 2
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
fn trim() {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    // SAFETY: malloc_trim(3) takes a number and locks the allocator itself.
    unsafe { malloc_trim(0) };
}

/// Other allocators give memory back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trim_is_due_when_half_of_many_have_gone() {
        let heap = Heap::default();
        heap.note(LEAST - 1);
        assert!(!heap.is_due(0), "too few");
        heap.note(2 * LEAST);
        heap.note(LEAST);
        assert!(!heap.is_due(LEAST + 1));
        assert!(heap.is_due(LEAST));
        heap.trim(LEAST);
        assert!(!heap.is_due(LEAST), "trimmed");
        assert!(heap.is_due(LEAST / 2));
    }
}
