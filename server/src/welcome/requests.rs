//! Counts requests by worker and by latency, for the charts of the built-in site.
//!
//! Each worker writes its own counts with plain loads and stores. A reader may see slightly different moments.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The bound of the first bucket is 2^10 ns, about a microsecond.
const FIRST_POWER: u32 = 10;

/// The number of buckets. Each bound is twice the one before, up to 2^36 ns (69 seconds). The last bucket has no bound.
const BUCKETS: usize = 28;

/// The counts of all workers.
pub struct Requests(Box<[Counts]>);

/// The counts of one worker, on cache lines of their own.
#[derive(Default)]
#[repr(align(64))]
struct Counts([AtomicU64; BUCKETS]);

impl Requests {
    pub fn new(workers: usize) -> Requests {
        Requests((0..workers.max(1)).map(|_| Counts::default()).collect())
    }

    /// The requests that a worker has served, by latency. All zero for an unknown worker.
    pub fn of_worker(&self, index: usize) -> [u64; BUCKETS] {
        let counts = self.0.get(index);
        std::array::from_fn(|bucket| counts.map_or(0, |counts| counts.0[bucket].load(Relaxed)))
    }

    /// Counts a served request. It must run on a worker: counts from other threads may be lost.
    pub fn record(&self, took: Duration) {
        let worker = osier::fiber::worker().unwrap_or(0);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let count = &self.0[worker % self.0.len()].0[bucket(nanos)];
        count.store(count.load(Relaxed) + 1, Relaxed);
    }
}

/// The first bucket whose bound is not below `nanos`.
fn bucket(nanos: u64) -> usize {
    let power = nanos.checked_next_power_of_two().map_or(u64::BITS, u64::ilog2);
    (power.saturating_sub(FIRST_POWER) as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two_that_hold_their_bound() {
        for (nanos, expected) in [
            (0, 0),
            (1, 0),
            (1024, 0),
            (1025, 1),
            (2048, 1),
            (2049, 2),
            (1 << 36, 26),
            ((1 << 36) + 1, 27),
            (1 << 40, 27),
            (u64::MAX, 27),
        ] {
            assert_eq!(bucket(nanos), expected, "{nanos}");
        }
        let requests = Requests::new(1);
        requests.record(Duration::from_nanos(1025));
        assert_eq!((requests.of_worker(0)[1], requests.of_worker(1)[1]), (1, 0));
    }
}
