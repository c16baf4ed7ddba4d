//! The façade every concurrent module of this crate stands on: std, or loom's checked twins under `--cfg loom`.
//!
//! It differs from std in one place: an `UnsafeCell` is entered through closures, as loom wants it, so that the model
//! sees when an access begins and ends.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// std's cell with loom's way in.
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

/// `const fn` in std's world, a plain one in loom's, whose atomics cannot be made in a constant.
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
