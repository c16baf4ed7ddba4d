//! Pinning a thread to a processor.
//!
//! Threads and child processes inherit the affinity of the thread that starts them. Ours are started by [`start_thread`] and [`unpinned`], and
//! run where the process may.

use std::io;
use std::num::NonZero;
use std::thread;

/// The number of processors that this process may use, as [`std::thread::available_parallelism`] gives it. The answer is the same on a
/// worker that is [pinned](crate::Builder::pin) to one of them.
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
    pub(super) fn unpin_child() -> impl FnOnce() + Send + 'static {
        let before = BEFORE.get();
        move || {
            if let Some((allowed, _)) = before {
                let _ = sched_setaffinity(None, &allowed);
            }
        }
    }

    /// Runs `start`, which starts a child process. The child may run where this thread could before it was pinned.
    ///
    /// This thread may run there too during the call. That costs a pinned thread three system calls. A pre-exec hook would need `unsafe` and
    /// disable std's fast spawn.
    #[cfg(feature = "process")]
    pub(crate) fn unpinned<T>(start: impl FnOnce() -> T) -> T {
        struct Pins(CpuSet);
        impl Drop for Pins {
            fn drop(&mut self) {
                let _ = sched_setaffinity(None, &self.0);
            }
        }
        let _pins = BEFORE.get().and_then(|(allowed, _)| {
            let pinned = sched_getaffinity(None).ok()?;
            sched_setaffinity(None, &allowed).ok()?;
            Some(Pins(pinned))
        });
        start()
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

    pub(super) fn unpin_child() -> impl FnOnce() + Send + 'static {
        || ()
    }

    #[cfg(feature = "process")]
    pub(crate) fn unpinned<T>(start: impl FnOnce() -> T) -> T {
        start()
    }

    pub(super) fn before() -> Option<NonZero<usize>> {
        None
    }
}

pub(crate) use pinned::pin_thread;
#[cfg(feature = "process")]
pub(crate) use pinned::unpinned;

/// Starts a thread that may run where the calling one could before it was pinned.
///
/// # Errors
///
/// The system's.
pub(crate) fn start_thread<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    let unpin = pinned::unpin_child();
    thread::Builder::new().name(name.into()).spawn(move || {
        unpin();
        body()
    })
}
