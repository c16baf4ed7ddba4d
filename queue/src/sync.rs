//! The synchronization primitives of all concurrent modules here: std's, or loom's checked twins under `--cfg loom`.
//!
//! They differ from std in one place: an `UnsafeCell` is accessed through closures, as loom demands, so that the model sees where an
//! access begins and ends.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// A wrapper of std's cell with loom's interface.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A `const fn` with std, and a plain one with loom, whose atomics cannot be made in a constant.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis fn $name:ident() -> $ret:ty $body:block) => {
        #[cfg(not(loom))]
        $(#[$meta])*
        $vis const fn $name() -> $ret $body
        #[cfg(loom)]
        $(#[$meta])*
        $vis fn $name() -> $ret $body
    };
}
pub(crate) use const_unless_loom;

/// Waits for another thread to execute its next few instructions. It waits longer with each of its `tries`.
#[cfg(not(loom))]
#[cold]
pub(crate) fn relax(tries: &mut u32) {
    *tries += 1;
    match *tries {
        ..32 => std::hint::spin_loop(),
        32..64 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

/// Lets the model run the other thread.
#[cfg(loom)]
pub(crate) fn relax(_tries: &mut u32) {
    loom::thread::yield_now();
}

/// A gate before a spinning lock. With std it does nothing. With loom it is a mutex, because loom would follow every turn of a spin as
/// a separate interleaving and never end. The mutex gives the same ordering as the lock, so it hides whether the lock gives it. One
/// small model has no mutex before the lock.
#[cfg(not(loom))]
pub(crate) struct Turnstile;

#[cfg(not(loom))]
impl Turnstile {
    pub(crate) const fn new() -> Self {
        Self
    }

    pub(crate) fn enter(&self) -> Passage<'_> {
        Passage(std::marker::PhantomData)
    }
}

/// Passage through the turnstile. It lasts until it is dropped.
#[cfg(not(loom))]
pub(crate) struct Passage<'a>(std::marker::PhantomData<&'a ()>);

#[cfg(loom)]
pub(crate) type Passage<'a> = Option<loom::sync::MutexGuard<'a, ()>>;

#[cfg(loom)]
pub(crate) struct Turnstile(Option<loom::sync::Mutex<()>>);

#[cfg(loom)]
impl Turnstile {
    pub(crate) fn new() -> Self {
        Self(Some(loom::sync::Mutex::new(())))
    }

    /// A gate that is always open.
    pub(crate) fn open() -> Self {
        Self(None)
    }

    pub(crate) fn enter(&self) -> Passage<'_> {
        Some(self.0.as_ref()?.lock().unwrap()) // nothing panics while it is held
    }
}
