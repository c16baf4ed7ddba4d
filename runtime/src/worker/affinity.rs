//! Pinning a thread to a processor.

/// Pins the calling thread to the `index`-th processor (modulo their number) that it may run on.
#[cfg(all(feature = "pin", not(target_vendor = "apple")))]
pub(crate) fn pin_thread(index: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    if let Some(&cpu) = allowed.get(index % allowed.len().max(1)) {
        let mut set = CpuSet::new();
        set.set(cpu);
        // Not being pinned costs speed, nothing else.
        let _ = sched_setaffinity(None, &set);
    }
}

/// Does nothing: without the feature nobody asks for it, and Apple's system pins no threads.
#[cfg(not(all(feature = "pin", not(target_vendor = "apple"))))]
pub(crate) fn pin_thread(_: usize) {}
