//! The holder of a lock, noted for dumps and the watchdog.
//!
//! # Protocol
//! A holder writes its id when it has the lock, and 0 before it unlocks. All loads and stores are relaxed: a
//! report may be out of date by one change of hands. Nothing but reports depends on the note. Without the feature `inspect` nobody
//! reads it, and nothing is written.

#[cfg(feature = "inspect")]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(feature = "inspect")]
use crate::worker::context::running_id;

/// The id of the fiber that holds a lock; the id of a task with [`TASK`](crate::worker::desk::TASK);
/// [`THREAD`](crate::worker::context::THREAD); or 0 for nobody.
#[derive(Default)]
pub(crate) struct Holder(#[cfg(feature = "inspect")] AtomicU64);

#[cfg(not(feature = "inspect"))]
fn running_id() -> u64 {
    0
}

impl Holder {
    pub(crate) const fn new() -> Holder {
        Holder(
            #[cfg(feature = "inspect")]
            AtomicU64::new(0),
        )
    }

    /// Notes that the caller holds the lock alone.
    #[inline]
    pub(crate) fn held(&self) -> Held<'_> {
        self.set(running_id());
        Held(self)
    }

    /// Notes that the caller is one of the readers that hold the lock. The note keeps the last that came.
    #[inline]
    pub(crate) fn shared(&self) -> Shared<'_> {
        let id = running_id();
        self.set(id);
        Shared(self, id)
    }

    #[cfg(feature = "inspect")]
    pub(crate) fn id(&self) -> u64 {
        self.0.load(Relaxed)
    }

    #[cfg(feature = "inspect")]
    #[inline]
    fn set(&self, id: u64) {
        self.0.store(id, Relaxed);
    }

    #[cfg(not(feature = "inspect"))]
    fn id(&self) -> u64 {
        0
    }

    #[cfg(not(feature = "inspect"))]
    fn set(&self, _: u64) {}
}

/// The part of a guard that notes the caller as the holder. A guard drops it before it unlocks.
pub(crate) struct Held<'a>(&'a Holder);

impl<'a> Held<'a> {
    pub(crate) fn holder(&self) -> &'a Holder {
        self.0
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// The same part of a reader's guard. It takes the note back unless another reader has come since.
pub(crate) struct Shared<'a>(&'a Holder, u64);

impl Drop for Shared<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.id() == self.1 {
            self.0.set(0);
        }
    }
}
