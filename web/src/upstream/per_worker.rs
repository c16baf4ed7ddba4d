//! A value for each worker, on cache lines of its own. Cores that write the same line wait for each other, so values
//! that every request writes are here.

use std::sync::OnceLock;

/// Most values. If there are more workers, some share a value.
const MOST: usize = 64;

/// The values of all workers, made at the first use.
pub(super) struct PerWorker<T>(OnceLock<Box<[CachePadded<T>]>>);

/// A value that shares no cache line with another one. Processors fetch two lines of 64 bytes at a time.
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub(super) T);

impl<T> PerWorker<T> {
    pub(super) const fn new() -> PerWorker<T> {
        PerWorker(OnceLock::new())
    }

    /// The value of this worker. A thread that is not a worker gets the first value. The first use makes all values by
    /// `make`, which gets the number of the worker.
    #[inline]
    pub(super) fn own(&self, make: impl Fn(usize) -> T) -> &T {
        let values = self.0.get_or_init(|| all(make));
        let index = osier::fiber::worker().unwrap_or(0);
        let value = values.get(index).unwrap_or_else(|| &values[index % values.len()]);
        &value.0
    }

    /// All values; none before the first use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.get().into_iter().flatten().map(|line| &line.0)
    }
}

#[cold]
fn all<T>(make: impl Fn(usize) -> T) -> Box<[CachePadded<T>]> {
    let workers = osier::fiber::worker().map_or(1, |_| osier::fiber::workers());
    (0..workers.min(MOST)).map(|index| CachePadded(make(index))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn each_worker_has_its_own_value() {
        let values = Arc::new(PerWorker::new());
        assert_eq!(values.iter().count(), 0);
        let add_on = |index: usize| {
            let values = values.clone();
            let add = move || values.own(AtomicUsize::new).fetch_add(index + 1, Relaxed);
            osier::fiber::Builder::new().worker(index).spawn(add).join().unwrap()
        };
        let runtime = osier::Runtime::builder().workers(3).build().unwrap();
        runtime.run(|| (0..3).for_each(|index| assert_eq!(add_on(index), index)));
        let sums: Vec<usize> = values.iter().map(|value| value.load(Relaxed)).collect();
        assert_eq!(sums, [1, 3, 5], "each began with its number");
        // This thread is no worker.
        assert_eq!(values.own(AtomicUsize::new).load(Relaxed), 1);
    }
}
