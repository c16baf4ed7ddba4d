//! Pinning a thread to a processor. Threads inherit that from the thread that starts them.

#[cfg(all(feature = "pin", not(target_vendor = "apple")))]
mod pinned {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::cell::Cell;

    thread_local! {
        /// The processors on which this thread could run before it was pinned.
        static BEFORE: Cell<Option<CpuSet>> = const { Cell::new(None) };
    }

    /// Pins the calling thread to the `index`-th processor (modulo their number) that it may run on.
    pub(crate) fn pin_thread(index: usize) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        if let Some(&cpu) = cpus.get(index % cpus.len().max(1)) {
            let mut set = CpuSet::new();
            set.set(cpu);
            // Not being pinned costs speed, nothing else.
            if sched_setaffinity(None, &set).is_ok() {
                BEFORE.set(Some(allowed));
            }
        }
    }

    /// The first thing for a thread that the calling one starts: it is to run where that one could before it was pinned.
    pub(crate) fn unpin_child() -> impl FnOnce() + Send + 'static {
        let before = BEFORE.get();
        move || {
            if let Some(before) = before {
                let _ = sched_setaffinity(None, &before);
            }
        }
    }
}

/// Does nothing: without the feature nobody asks for it, and Apple's system pins no threads.
#[cfg(not(all(feature = "pin", not(target_vendor = "apple"))))]
mod pinned {
    pub(crate) fn pin_thread(_: usize) {}

    pub(crate) fn unpin_child() -> impl FnOnce() + Send + 'static {
        || ()
    }
}

pub(crate) use pinned::{pin_thread, unpin_child};
