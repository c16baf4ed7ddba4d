//! Waking many. A waker is foreign code and may panic; nobody else loses a wake-up by that.
//!
//! No lock is held while these functions run.

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

/// Runs `first` and then `second`, also if a waker panics in `first`; then its panic goes on, and another of `second` ends here.
#[inline]
pub(crate) fn wake_both(first: impl FnOnce(), second: impl FnOnce()) {
    struct Second<F: FnOnce()>(Option<F>);
    impl<F: FnOnce()> Drop for Second<F> {
        fn drop(&mut self) {
            if let Some(second) = self.0.take() {
                let _ = catch_unwind(AssertUnwindSafe(second));
            }
        }
    }
    let mut second = Second(Some(second));
    first();
    if let Some(second) = second.0.take() {
        second();
    }
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
