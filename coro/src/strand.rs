//! The strand of a coroutine: its calls, as ThreadSanitizer counts them. For builds with `-Zsanitizer=thread --cfg osier_tsan`; in any other
//! build a strand is nothing.
//!
//! Instrumented code notes the begin and the end of each function on a stack that the sanitizer keeps for the thread. A coroutine needs one of
//! its own: otherwise its calls stay on the stack of whoever resumed it, and reports name functions that nobody has called. The
//! functions between [`Strand::run`] and the switch note their begin on the coroutine's stack and their end there, too, where the coroutine's
//! innermost functions were. So a report about a suspended coroutine leaves these out, and the counts are right.
//!
//! A strand also orders: what a resumer has done happens before what its coroutine does next, and the other way round.
//!
//! # Safety
//!
//! This file is an unsafe island for calls of the sanitizer's runtime. Invariant: a strand is destroyed once, after its coroutine has ended,
//! by whoever has resumed it last, and nothing runs on it then.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

unsafe extern "C" {
    fn __tsan_get_current_fiber() -> *mut c_void;
    fn __tsan_create_fiber(flags: c_uint) -> *mut c_void;
    fn __tsan_switch_to_fiber(fiber: *mut c_void, flags: c_uint);
    fn __tsan_destroy_fiber(fiber: *mut c_void);
}

/// Null before the first resumption and after the end. The strand of a coroutine that is leaked stays.
pub(crate) struct Strand(Cell<*mut c_void>);

impl Strand {
    pub(crate) fn new() -> Strand {
        Strand(Cell::new(ptr::null_mut()))
    }

    /// Runs `resume`, which switches to the coroutine and comes back, on this strand. `resume` returns whether the coroutine has ended,
    /// which it has too if it unwinds.
    // Inlined, because the two switches must see the same caller.
    #[inline(always)]
    pub(crate) fn run<T>(&self, resume: impl FnOnce() -> (T, bool)) -> T {
        if self.0.get().is_null() {
            // SAFETY: a plain call.
            self.0.set(unsafe { __tsan_create_fiber(0) });
        }
        // SAFETY: a plain call.
        let resumer = unsafe { __tsan_get_current_fiber() };
        // SAFETY: the strand exists, and runs nowhere else, because its coroutine does not.
        unsafe { __tsan_switch_to_fiber(self.0.get(), 0) };
        let resumed = catch_unwind(AssertUnwindSafe(resume));
        // SAFETY: this code runs on the resumer's strand, which was left above.
        unsafe { __tsan_switch_to_fiber(resumer, 0) };
        if resumed.as_ref().map_or(true, |(_, is_ended)| *is_ended) {
            // SAFETY: the coroutine has ended, and its strand was left above (module invariant).
            unsafe { __tsan_destroy_fiber(self.0.replace(ptr::null_mut())) };
        }
        resumed.map_or_else(|payload| resume_unwind(payload), |(value, _)| value)
    }
}
