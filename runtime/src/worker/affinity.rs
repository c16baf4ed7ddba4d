//! Pinning a thread to a processor. Threads inherit that from the thread that starts them.

use std::io;
use std::num::NonZero;
use std::thread;

/// The number of processors that this process may use, as [`std::thread::available_parallelism`] gives it, and that also on a worker that
/// is [pinned](crate::Builder::pin) to one of them.
///
/// ```
/// assert!(osier::available_parallelism()?.get() >= 1);
/// # std::io::Result::Ok(())
/// ```
///
/// # Errors
///
/// Those of std.
pub fn available_parallelism() -> io::Result<NonZero<usize>> {
    pinned::before().map_or_else(thread::available_parallelism, Ok)
}

#[cfg(all(feature = "pin", not(target_vendor = "apple")))]
mod pinned {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::cell::Cell;

    thread_local! {
        /// The processors on which this thread could run before it was pinned, and how many std counted.
        static BEFORE: Cell<Option<(CpuSet, NonZero<usize>)>> = const { Cell::new(None) };
    }

    /// Pins the calling thread to the `index`-th processor (modulo their number) that it may run on.
    pub(crate) fn pin_thread(index: usize) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        let (Some(&cpu), Ok(count)) = (cpus.get(index % cpus.len().max(1)), thread::available_parallelism()) else {
            return;
        };
        let mut set = CpuSet::new();
        set.set(cpu);
        // Not being pinned costs speed, nothing else.
        if sched_setaffinity(None, &set).is_ok() {
            BEFORE.set(Some((allowed, count)));
        }
    }

    /// The first thing for a thread that the calling one starts: it is to run where that one could before it was pinned.
    pub(crate) fn unpin_child() -> impl FnOnce() + Send + 'static {
        let before = BEFORE.get();
        move || {
            if let Some((allowed, _)) = before {
                let _ = sched_setaffinity(None, &allowed);
            }
        }
    }

    pub(super) fn before() -> Option<NonZero<usize>> {
        BEFORE.get().map(|(_, count)| count)
    }
}

/// Does nothing: without the feature nobody asks for it, and Apple's system pins no threads.
#[cfg(not(all(feature = "pin", not(target_vendor = "apple"))))]
mod pinned {
    use super::*;

    pub(crate) fn pin_thread(_: usize) {}

    pub(crate) fn unpin_child() -> impl FnOnce() + Send + 'static {
        || ()
    }

    pub(super) fn before() -> Option<NonZero<usize>> {
        None
    }
}

pub(crate) use pinned::{pin_thread, unpin_child};
