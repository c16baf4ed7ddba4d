//! Runs user code and swallows its panic: destructors at the end of a fiber, dormant connections, wakers. Nobody
//! waits for their result.
//!
//! A panic's payload is a value with a destructor, which may panic as well. All code that swallows a panic does so
//! here. So nothing unwinds out of a fiber's first frame, into the worker's loop, or out of a scope that has children
//! left.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `run`. Returns `None` if it panicked; the panic hook has reported that.
pub(crate) fn isolate<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).map_err(discard).ok()
}

/// Drops a payload. A destructor that panics leaves another payload, which is leaked.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(again);
    }
}
