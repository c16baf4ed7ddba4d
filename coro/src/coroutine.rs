//! Coroutines: a closure on its own stack that can stop in the middle and continue later.
//!
//! The `corosensei` crate does the switch itself, unwinding across it and backtraces through it. This file adds reuse of the stack and
//! generators. The runtime builds its fibers on [`Coroutine::new_unchecked`]; programs use [`Coroutine::new`] for generators and
//! state machines.
//!
//! # Safety
//!
//! This file is an unsafe island for three things: the constructor without `'static` bounds, whose caller makes a promise;
//! [`Coroutine::reset`], which replaces a coroutine by one on the same stack; and the [`Yielder`], which is corosensei's under another
//! name. Invariant: a `Yielder` has the layout of corosensei's and nothing beside it, so a reference to one is a reference to the other.
#![allow(unsafe_code)]

use crate::stack::Stack;
#[cfg(osier_tsan)]
use crate::strand::Strand;
use std::fmt;
use std::iter::FusedIterator;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

/// Bytes of the largest closure stored inline, and the largest alignment of one. corosensei writes it into the stack's first page. It refuses
/// larger ones, and moves down as far as an alignment asks, out of the stack. Both are boxed.
const MAX_INLINE_BYTES: usize = 1024;

/// A closure that runs on a stack of its own.
///
/// Each [`resume`](Coroutine::resume) gives it an `Input`, each [`Yielder::suspend`] returns a `Yield`, and it ends with a `Return`.
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
/// - A coroutine that was never resumed: the closure is dropped, nothing runs. If that panics, the process **aborts**.
/// - An ended coroutine: its stack is given up (see [`Stack`]); [`into_stack`](Coroutine::into_stack) saves it.
/// - A suspended coroutine: its stack is unwound from the point of suspension, so that everything on it is dropped. The unwinding is a
///   panic with a special payload and without message. It has limits:
///   - A destructor that *suspends* during this unwinding **aborts the process**. A destructor that panics does too.
///   - Code that catches the unwinding and suspends again is unwound again: a loop around `catch_unwind` **never returns**, and
///     neither does the drop.
///
///   If either can happen, end the coroutine by resuming it with a value that tells it to end, or give it up by
///   [`leak`](Coroutine::leak). The runtime never drops a started fiber.
///
/// # Threads
///
/// A coroutine stays on its thread, because the values on its stack may not be `Send`:
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<osier_coro::Coroutine<(), (), ()>>();
/// ```
#[doc(alias = "Generator")]
pub struct Coroutine<Input, Yield, Return> {
    raw: corosensei::Coroutine<Input, Yield, Return, Stack>,
    #[cfg(osier_tsan)]
    strand: Strand,
}

/// The result of [`Coroutine::resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoroutineResult<Yield, Return> {
    /// The coroutine has suspended itself and can be resumed.
    Yield(Yield),
    /// The coroutine has ended.
    Return(Return),
}

const _: () = assert!(
    size_of::<Option<Coroutine<[u64; 9], [u64; 9], [u64; 9]>>>() == 32 || cfg!(any(feature = "sanitizer", osier_tsan))
);

impl<Input, Yield, Return> Coroutine<Input, Yield, Return> {
    /// A coroutine that will run `f` on `stack`. Nothing runs before the first [`resume`](Coroutine::resume), whose input is `f`'s second
    /// argument. Allocates only if `f` captures more than 1,024 bytes, or a value with a larger alignment than that.
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

    /// Does the same as [`new`](Coroutine::new) for a closure or values that borrow.
    ///
    /// # Safety
    ///
    /// Everything that `f` borrows must stay valid until the coroutine has ended or was dropped, and for ever if it is leaked or
    /// forgotten.
    #[inline]
    pub unsafe fn new_unchecked<F>(stack: Stack, f: F) -> Self
    where
        F: FnOnce(&Yielder<Input, Yield>, Input) -> Return,
    {
        // SAFETY: the caller's promise, passed on.
        let raw = unsafe {
            if const { size_of::<F>() <= MAX_INLINE_BYTES && align_of::<F>() <= MAX_INLINE_BYTES } {
                corosensei::Coroutine::with_stack_unchecked(stack, |y, input| f(Yielder::of(y), input))
            } else {
                let f = Box::new(f);
                corosensei::Coroutine::with_stack_unchecked(stack, |y, input| f(Yielder::of(y), input))
            }
        };
        Coroutine {
            raw,
            #[cfg(osier_tsan)]
            strand: Strand::new(),
        }
    }

    /// Runs the coroutine until it suspends itself or ends.
    ///
    /// # Panics
    ///
    /// With the coroutine's own panic, if it ends with one, and if it had ended before.
    #[inline]
    pub fn resume(&mut self, input: Input) -> CoroutineResult<Yield, Return> {
        match self.on_strand(|raw| raw.resume(input)) {
            corosensei::CoroutineResult::Yield(value) => CoroutineResult::Yield(value),
            corosensei::CoroutineResult::Return(value) => CoroutineResult::Return(value),
        }
    }

    /// Whether it was ever resumed.
    pub fn is_started(&self) -> bool {
        self.raw.started()
    }

    /// Whether it has ended, by returning or by a panic.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.raw.done()
    }

    /// Ends the coroutine, as dropping it would. Then prepares `f` to run on the same stack at the next [`resume`](Coroutine::resume).
    /// Allocates nothing, except for an `f` that [`new`](Coroutine::new) would allocate for.
    ///
    /// # Panics
    ///
    /// With the panic of a destructor that panics while the coroutine is unwound, or while a closure that has never run is dropped. The
    /// coroutine has then ended. If the value was one that the coroutine has yielded while it was unwound, it is still suspended.
    pub fn reset<F>(&mut self, f: F)
    where
        F: FnOnce(&Yielder<Input, Yield>, Input) -> Return + 'static,
        Input: 'static,
        Yield: 'static,
        Return: 'static,
    {
        let is_started = self.is_started();
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.on_strand(|raw| raw.force_unwind()))) {
            if !is_started {
                // corosensei would drop the closure once more.
                // SAFETY: the stack held the closure alone, which is dropped.
                unsafe { self.raw.force_reset() };
            }
            resume_unwind(payload);
        }
        // SAFETY: the coroutine is moved out and another one into its place. In between nothing unwinds: the coroutine has ended, so
        // that its stack can be taken, and preparing a closure runs none of it.
        unsafe {
            let ended = ptr::read(&self.raw);
            ptr::write(self, Coroutine::new(ended.into_stack(), f));
        }
    }

    /// Takes the stack of a coroutine that has ended.
    ///
    /// # Panics
    ///
    /// If it has not ended.
    #[inline]
    pub fn into_stack(self) -> Stack {
        assert!(self.is_finished(), "into_stack on a coroutine that has not ended");
        #[cfg(not(osier_tsan))]
        return self.raw.into_stack();
        // SAFETY: the coroutine, which has a destructor here, is not dropped, so its part is moved out once.
        #[cfg(osier_tsan)]
        return unsafe { ptr::read(&mem::ManuallyDrop::new(self).raw) }.into_stack();
    }

    /// Runs `switch`, which may run the coroutine.
    #[inline(always)]
    fn on_strand<T>(&mut self, switch: impl FnOnce(&mut corosensei::Coroutine<Input, Yield, Return, Stack>) -> T) -> T {
        #[cfg(not(osier_tsan))]
        return switch(&mut self.raw);
        #[cfg(osier_tsan)]
        return self.strand.run(|| {
            let value = switch(&mut self.raw);
            (value, self.raw.done())
        });
    }

    /// Gives up the coroutine where it stands: nothing on its stack is dropped. The stack is never unmapped and never used again.
    pub fn leak(self) {
        mem::forget(self);
    }
}

/// The unwinding of a suspended coroutine runs its code.
#[cfg(osier_tsan)]
impl<Input, Yield, Return> Drop for Coroutine<Input, Yield, Return> {
    fn drop(&mut self) {
        if self.is_started() && !self.is_finished() {
            self.on_strand(|raw| raw.force_unwind());
        }
    }
}

/// A coroutine without input and return value is a generator.
impl<Yield> Iterator for Coroutine<(), Yield, ()> {
    type Item = Yield;

    /// Runs the coroutine to its next suspension. None once it has ended.
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

/// The running coroutine's side of the switch.
// No pointer to corosensei's: a suspension would load one more cache line of a stack that has left the caches.
#[repr(transparent)]
pub struct Yielder<Input, Yield> {
    raw: corosensei::Yielder<Input, Yield>,
}

impl<Input, Yield> Yielder<Input, Yield> {
    fn of(raw: &corosensei::Yielder<Input, Yield>) -> &Self {
        // SAFETY: the layouts are the same (module invariant), and the lifetime too.
        unsafe { &*ptr::from_ref(raw).cast() }
    }

    /// Suspends the coroutine and returns `value` from [`Coroutine::resume`]. Returns the input of the next resume.
    ///
    /// # Suspends
    ///
    /// Always.
    ///
    /// # Panics
    ///
    /// Unwinds without message if the coroutine is dropped instead of being resumed: see [`Coroutine`], "Dropping".
    #[inline(always)]
    #[doc(alias = "yield_")]
    pub fn suspend(&self, value: Yield) -> Input {
        self.raw.suspend(value)
    }
}

impl<Input, Yield> fmt::Debug for Yielder<Input, Yield> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Yielder").finish_non_exhaustive()
    }
}
