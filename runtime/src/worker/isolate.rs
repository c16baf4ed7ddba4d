//! Code of the user whose panic concerns nobody else: destructors at the end of a fiber, dormant connections.
//!
//! A payload is a value with a destructor, which may panic as well. Whoever swallows a panic does it here, so that nothing
//! unwinds out of a fiber's first frame, into the loop, or out of a scope that has children left.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `run`; `None` if it panicked, which the panic hook has reported.
pub(crate) fn isolate<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).map_err(discard).ok()
}

/// Drops a payload. One that panics when it is dropped leaves another: that is leaked.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(again);
    }
}
