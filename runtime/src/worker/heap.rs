//! Gives free memory of the C library's allocator back to the system.
//!
//! glibc keeps what is freed in the middle of its heaps for ever. After many connections have gone, that is most of a
//! process's memory, and so it is after many fibers have ended whose connections rest: their buffers have gone. A worker counts both.
//! Once half of at least [`LEAST`] have gone for a while, it asks for a trim, on the pool for blocking work: a trim takes some
//! milliseconds for 100 MB. It asks again each time half of those that were left have gone, until few are left. It also asks once
//! the program's pools have given back [`MUCH`], and give no more: what they give under load is taken again soon.
//!
//! glibc also reserves 64 MB of address space for the heap of a thread. Where the address space is limited, threads share few heaps, or
//! nothing would be left for what they hold.
//!
//! # Safety
//!
//! This file may use `unsafe` for two calls that no crate wraps: `malloc_trim` and `mallopt` may be called at any time, on any thread.
#![allow(unsafe_code)]

use std::cell::Cell;

use async_task::Task;
use osier_queue::ledger::{self, Account};

use crate::worker::trimmers::Trimmed;

/// The fewest tenants whose memory is worth a trim.
const LEAST: usize = 256;

/// Fewer tenants than this count as few. A trim that leaves more is repeated.
const FEW: usize = 16;

/// The bytes from pools that are worth a trim.
const MUCH: usize = 1 << 20;

/// The charge for the stack of a fiber: the pages that most fibers touch.
const STACK_BYTES: usize = 8 << 10;

/// A number that a worker counts.
#[derive(Default)]
struct Count {
    /// The most since the last trim.
    most: Cell<usize>,
    /// The most since the last look.
    lately: Cell<usize>,
    /// Whether there was a trim, and many are left whose memory may go too.
    goes_on: Cell<bool>,
}

impl Count {
    #[inline]
    fn note(&self, number: usize) {
        if number > self.lately.get() {
            self.lately.set(number);
        }
    }

    /// Whether a trim is worth it: the number has stayed at or below half of its maximum since the last look.
    fn is_due(&self, number: usize) -> bool {
        let lately = self.lately.replace(number).max(number);
        let most = self.most.get().max(lately);
        let is_due = (most >= LEAST || self.goes_on.get()) && lately <= most / 2;
        if is_due {
            self.goes_on.set(lately >= FEW);
        }
        self.most.set(if is_due { lately } else { most });
        is_due
    }
}

/// The tenants of a worker, and the fibers among them.
#[derive(Default)]
pub(crate) struct Heap {
    tenants: Count,
    fibers: Count,
    /// The bytes that pools have given back since the last trim.
    given: Cell<usize>,
    /// The fibers whose stacks are charged.
    charged: Cell<usize>,
}

impl Heap {
    /// Notes the numbers of a turn.
    #[inline]
    pub(crate) fn note(&self, tenants: usize, fibers: usize) {
        self.tenants.note(tenants);
        self.fibers.note(fibers);
        if fibers != self.charged.get() {
            self.charge(fibers);
        }
    }

    /// Charges the stacks of so many fibers.
    fn charge(&self, fibers: usize) {
        let before = self.charged.replace(fibers);
        match fibers.checked_sub(before) {
            Some(more) => Account::STACKS.add(more * STACK_BYTES),
            None => Account::STACKS.subtract((before - fibers) * STACK_BYTES),
        }
    }

    /// Asks for a trim if few are left, or if the pools have given back much before and nothing now. Called about once a second.
    /// Returns false if it would ask at a later call in which the pools give nothing.
    pub(crate) fn trim(&self, tenants: usize, fibers: usize, pools: Trimmed) -> bool {
        ledger::settle();
        let (tenants, fibers) = (self.tenants.is_due(tenants), self.fibers.is_due(fibers));
        let given = self.given.get() + pools.given;
        let is_much = given >= MUCH && pools.given == 0;
        let is_asked = (tenants || fibers || is_much)
            // Where the system starts no thread, a later second tries again.
            && crate::wait::pool::try_spawn(trim).map(Task::detach).is_ok();
        self.given.set(if is_asked { 0 } else { given });
        is_asked || given < MUCH
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        self.charge(0);
    }
}

/// Gives free memory back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
pub(crate) fn trim() {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    // SAFETY: malloc_trim(3) takes a number and locks the allocator itself.
    unsafe { malloc_trim(0) };
}

/// Bounds the number of heaps if the address space of the process is limited (`ulimit -v`).
#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
pub(crate) fn share_heaps() {
    use rustix::process::{Resource, getrlimit};
    unsafe extern "C" {
        fn mallopt(param: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
    }
    const M_ARENA_MAX: std::ffi::c_int = -8;
    if getrlimit(Resource::As).current.is_some() {
        // SAFETY: mallopt(3) takes two numbers and locks the allocator itself.
        unsafe { mallopt(M_ARENA_MAX, 2) };
    }
}

/// Other allocators reserve nothing.
#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
pub(crate) fn share_heaps() {}

/// Other allocators give memory back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
pub(crate) fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trim_is_due_when_half_of_many_have_gone_for_a_while() {
        let count = Count::default();
        count.note(LEAST - 1);
        assert!(!count.is_due(0) && !count.is_due(0), "too few");
        count.note(2 * LEAST);
        assert!(!count.is_due(LEAST), "there were more lately");
        count.note(LEAST + 1);
        assert!(!count.is_due(LEAST));
        assert!(count.is_due(LEAST));
        assert!(!count.is_due(LEAST), "trimmed");
        assert!(!count.is_due(LEAST / 2));
        assert!(count.is_due(LEAST / 2));
        assert!(!count.is_due(FEW) && count.is_due(FEW), "those that were left");
        assert!(!count.is_due(1) && count.is_due(1));
        count.note(FEW);
        assert!(!count.is_due(0) && !count.is_due(0), "few");
    }
}
