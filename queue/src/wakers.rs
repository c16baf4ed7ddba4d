//! Functions that wake several wakers. A waker is foreign code and may panic; the others are woken all the same.
//!
//! Their callers hold no lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes each waker, and returns how many. If one panics the others are woken all the same, and then the first panic continues. The
/// iterator may take locks, and must not panic.
pub(crate) fn wake_each(wakers: impl Iterator<Item = Waker>) -> usize {
    let mut left = Left(wakers);
    let mut count = 0;
    for waker in left.0.by_ref() {
        count += 1;
        waker.wake();
    }
    count
}

/// Does the same as [`wake_each`] during unwinding: every panic ends here.
pub(crate) fn wake_each_unwinding(wakers: impl Iterator<Item = Waker>) {
    drop(Left(wakers));
}

/// Runs `first` and then `second`, even if a waker panics in `first`. That panic then continues; a panic of `second` ends here.
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

/// The wakers that are not woken yet. None are left unless a waker panics.
struct Left<I: Iterator<Item = Waker>>(I);

impl<I: Iterator<Item = Waker>> Drop for Left<I> {
    fn drop(&mut self) {
        for waker in &mut self.0 {
            // A second panic during the first would abort the process.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}
