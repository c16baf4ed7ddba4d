//! Waking many. A waker is foreign code and may panic; nobody else loses a wake-up by that.
//!
//! Called by the lists and queues of this crate when their locks are released.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes each of them, and returns how many. If one panics the others are woken all the same, and then the panic goes on; of
/// several the first. The iterator may take locks, and must not panic.
pub(crate) fn wake_each(wakers: impl Iterator<Item = Waker>) -> usize {
    let mut left = Left(wakers);
    let mut count = 0;
    for waker in left.0.by_ref() {
        count += 1;
        waker.wake();
    }
    count
}

/// As [`wake_each`], for who unwinds already: every panic ends here.
pub(crate) fn wake_each_unwinding(wakers: impl Iterator<Item = Waker>) {
    drop(Left(wakers));
}

/// Those who are not woken yet; none, unless a waker panics.
struct Left<I: Iterator<Item = Waker>>(I);

impl<I: Iterator<Item = Waker>> Drop for Left<I> {
    fn drop(&mut self) {
        for waker in &mut self.0 {
            // A second panic at a time would end the process.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}
