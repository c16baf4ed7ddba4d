//! Coroutines: a closure on its own stack that can stop in the middle and go on later.
//!
//! The switch itself, unwinding across it and backtraces through it are corosensei's; here is what surrounds it: reuse
//! of the stack and generators. The runtime builds its fibers on
//! [`Coroutine::new_unchecked`]; programs use [`Coroutine::new`] for generators and state machines.
//!
//! # Safety
//!
//! An unsafe island for two things: the constructor without `'static` bounds, whose duty is the caller's, and the [`Yielder`],
//! which holds a pointer to corosensei's. Invariant: a `Yielder` is made only in the first frame of the coroutine it
//! belongs to, is lent to the closure and never moves, so the pointee, which lies above it on the same stack, outlives it.
#![allow(unsafe_code)]

use crate::stack::Stack;
use std::fmt;
use std::iter::FusedIterator;
use std::mem;
use std::ptr::NonNull;

/// corosensei writes the closure into the stack's first page and refuses larger ones; those are boxed.
const MAX_INLINE_BYTES: usize = 1024;

/// A closure that runs on a stack of its own.
///
/// It takes an `Input` at each [`resume`](Coroutine::resume), gives a `Yield` at each [`Yielder::suspend`] and ends with a `Return`.
///
/// ```
/// use osier_coro::{Coroutine, CoroutineResult, Stack};
///
/// let mut average = Coroutine::new(Stack::new(0)?, |y, first: f64| {
///     let (mut sum, mut next) = (first, 1.0);
///     for n in 1..3 {
///         next = y.suspend(sum / f64::from(n));
///         sum += next;
///     }
///     (sum, next)
/// });
/// assert_eq!(average.resume(4.0), CoroutineResult::Yield(4.0));
/// assert_eq!(average.resume(8.0), CoroutineResult::Yield(6.0));
/// assert_eq!(average.resume(3.0), CoroutineResult::Return((15.0, 3.0)));
/// let stack = average.into_stack();
/// # let _ = stack;
/// # std::io::Result::Ok(())
/// ```
///
/// # Dropping
///
/// - Never resumed: the closure is dropped, nothing runs.
/// - Ended: the stack is given up (see [`Stack`]); [`into_stack`](Coroutine::into_stack) saves it.
/// - Suspended: the stack is unwound from the point of suspension, so that everything on it is dropped. This is a panic
///   with a payload of its own, without message, and has its limits:
///   - a destructor that *suspends* while the stack is unwound in this way **aborts the process**; so does one that panics;
///   - code that catches the unwinding and suspends again is unwound again: a loop around `catch_unwind` **never
///     returns**, and neither does the drop.
///
///   Where either can happen, end the coroutine by resuming it with a value that tells it to, or give it up by
///   [`leak`](Coroutine::leak). The runtime never drops a started fiber.
///
/// # Threads
///
/// A coroutine stays on its thread, because what lies on its stack may:
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<osier_coro::Coroutine<(), (), ()>>();
/// ```
pub struct Coroutine<Input, Yield, Return> {
    /// `None` only inside `reset` and while being taken apart.
    raw: Option<corosensei::Coroutine<Input, Yield, Return, Stack>>,
}

/// What a [`Coroutine::resume`] came back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoroutineResult<Yield, Return> {
    /// The coroutine suspended itself and can be resumed.
    Yield(Yield),
    /// The coroutine has ended.
    Return(Return),
}

const _: () = assert!(size_of::<Coroutine<[u64; 9], [u64; 9], [u64; 9]>>() == 32 || cfg!(feature = "sanitizer"));

impl<Input, Yield, Return> Coroutine<Input, Yield, Return> {
    /// A coroutine that will run `f` on `stack`. Nothing runs before the first [`resume`](Coroutine::resume), whose input is `f`'s second
    /// argument. Allocates only if `f` captures more than 1,024 bytes.
    pub fn new<F>(stack: Stack, f: F) -> Self
    where
        F: FnOnce(&Yielder<Input, Yield>, Input) -> Return + 'static,
        Input: 'static,
        Yield: 'static,
        Return: 'static,
    {
        // SAFETY: nothing in `f` or in the values that pass the switch is borrowed.
        unsafe { Self::new_unchecked(stack, f) }
    }

    /// As [`new`](Coroutine::new) for a closure or values that borrow.
    ///
    /// # Safety
    ///
    /// Whatever `f` borrows must stay valid until the coroutine has ended or was dropped; for ever, if it is leaked
    /// or forgotten.
    #[inline]
    pub unsafe fn new_unchecked<F>(stack: Stack, f: F) -> Self
    where
        F: FnOnce(&Yielder<Input, Yield>, Input) -> Return,
    {
        // SAFETY: the caller's promise, passed on.
        let raw = unsafe {
            if const { size_of::<F>() <= MAX_INLINE_BYTES } {
                corosensei::Coroutine::with_stack_unchecked(stack, |y, input| f(&Yielder::new(y), input))
            } else {
                let f = Box::new(f);
                corosensei::Coroutine::with_stack_unchecked(stack, |y, input| f(&Yielder::new(y), input))
            }
        };
        Coroutine { raw: Some(raw) }
    }

    /// Runs the coroutine until it suspends itself or ends.
    ///
    /// # Panics
    ///
    /// With the coroutine's own panic, if that is how it ends. If it had ended before.
    #[inline]
    pub fn resume(&mut self, input: Input) -> CoroutineResult<Yield, Return> {
        match self.raw().resume(input) {
            corosensei::CoroutineResult::Yield(value) => CoroutineResult::Yield(value),
            corosensei::CoroutineResult::Return(value) => CoroutineResult::Return(value),
        }
    }

    /// Whether it was ever resumed.
    pub fn is_started(&self) -> bool {
        self.raw.as_ref().is_none_or(corosensei::Coroutine::started)
    }

    /// Whether it has ended, by returning or by a panic.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.raw.as_ref().is_none_or(corosensei::Coroutine::done)
    }

    /// Ends the coroutine now, as dropping it would; then runs `f` instead, on the same stack, from the next [`resume`](Coroutine::resume) on.
    /// Allocates nothing (but for an `f` of more than 1,024 bytes).
    ///
    /// # Panics
    ///
    /// With the panic of a destructor that panics while the coroutine is unwound; it has ended then.
    pub fn reset<F>(&mut self, f: F)
    where
        F: FnOnce(&Yielder<Input, Yield>, Input) -> Return + 'static,
        Input: 'static,
        Yield: 'static,
        Return: 'static,
    {
        self.raw().force_unwind();
        if let Some(raw) = self.raw.take() {
            *self = Coroutine::new(raw.into_stack(), f);
        }
    }

    /// The stack of a coroutine that has ended.
    ///
    /// # Panics
    ///
    /// If it has not ended.
    #[inline]
    pub fn into_stack(mut self) -> Stack {
        assert!(self.is_finished(), "into_stack on a coroutine that has not ended");
        self.raw
            .take()
            .expect("only `reset`, `leak` and this empty it, and none of them hands it on")
            .into_stack()
    }

    /// Gives up the coroutine where it stands: nothing on its stack is dropped, the stack is never unmapped and
    /// never used again.
    pub fn leak(mut self) {
        mem::forget(self.raw.take());
    }

    #[inline]
    fn raw(&mut self) -> &mut corosensei::Coroutine<Input, Yield, Return, Stack> {
        self.raw
            .as_mut()
            .expect("only `reset`, `leak` and `into_stack` empty it, and none of them hands it on")
    }
}

/// A coroutine that takes nothing and returns nothing is a generator.
impl<Yield> Iterator for Coroutine<(), Yield, ()> {
    type Item = Yield;

    /// Runs the coroutine to its next suspension; `None` once it has ended.
    fn next(&mut self) -> Option<Yield> {
        if self.is_finished() {
            return None;
        }
        match self.resume(()) {
            CoroutineResult::Yield(value) => Some(value),
            CoroutineResult::Return(()) => None,
        }
    }
}

impl<Yield> FusedIterator for Coroutine<(), Yield, ()> {}

impl<Input, Yield, Return> fmt::Debug for Coroutine<Input, Yield, Return> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.is_started(), self.is_finished()) {
            (_, true) => "finished",
            (true, _) => "suspended",
            (false, _) => "new",
        };
        f.debug_tuple("Coroutine").field(&state).finish()
    }
}

/// A running coroutine's own side of the switch.
pub struct Yielder<Input, Yield> {
    raw: NonNull<corosensei::Yielder<Input, Yield>>,
}

impl<Input, Yield> Yielder<Input, Yield> {
    fn new(raw: &corosensei::Yielder<Input, Yield>) -> Self {
        Yielder {
            raw: NonNull::from(raw),
        }
    }

    /// Stops here and hands `value` to whoever resumed the coroutine; returns what the next [`Coroutine::resume`] brings.
    ///
    /// # Suspends
    ///
    /// Always.
    ///
    /// # Panics
    ///
    /// Unwinds, without message, if the coroutine is dropped instead of being resumed: see [`Coroutine`], "Dropping".
    #[inline(always)]
    pub fn suspend(&self, value: Yield) -> Input {
        // SAFETY: the pointee outlives `self` (module invariant).
        unsafe { self.raw.as_ref() }.suspend(value)
    }
}

impl<Input, Yield> fmt::Debug for Yielder<Input, Yield> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Yielder").finish_non_exhaustive()
    }
}
