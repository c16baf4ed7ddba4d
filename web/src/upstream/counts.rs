//! Counters of a backend's responses: failures by kind, and the time to the head of the response.
//!
//! Any worker adds to them. They are relaxed and unordered among each other, so a reader may see a count before its time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The number of buckets of a [`Latency`].
const BUCKETS: usize = Latency::BOUNDS.len() + 1;

/// A histogram of times, with bounds that suit requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// The number of times up to each bound and above the bound before. The last number counts the times above all bounds.
    pub counts: [u64; BUCKETS],
    /// The sum of all times.
    pub sum: Duration,
}

impl Latency {
    /// The upper bounds of the buckets.
    pub const BOUNDS: [Duration; 17] = [
        Duration::from_micros(25),
        Duration::from_micros(100),
        Duration::from_micros(250),
        Duration::from_micros(500),
        Duration::from_millis(1),
        Duration::from_micros(2500),
        Duration::from_millis(5),
        Duration::from_millis(10),
        Duration::from_millis(25),
        Duration::from_millis(50),
        Duration::from_millis(100),
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_secs(1),
        Duration::from_millis(2500),
        Duration::from_secs(5),
        Duration::from_secs(10),
    ];

    /// The index of the bucket for this time.
    pub fn bucket(time: Duration) -> usize {
        Latency::BOUNDS.partition_point(|bound| *bound < time)
    }
}

/// The counters of one backend.
#[derive(Default)]
pub(super) struct Counts {
    connect_timeouts: AtomicU64,
    response_timeouts: AtomicU64,
    response_failures: AtomicU64,
    latency: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Counts {
    pub(super) fn connect_timed_out(&self) {
        self.connect_timeouts.fetch_add(1, Relaxed);
    }

    /// Counts a request without a response. `timed_out`: the backend gave none in time.
    pub(super) fn failed(&self, timed_out: bool) {
        let counter = match timed_out {
            true => &self.response_timeouts,
            false => &self.response_failures,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a response whose head took this long.
    pub(super) fn answered(&self, time: Duration) {
        self.latency[Latency::bucket(time)].fetch_add(1, Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    pub(super) fn connect_timeouts(&self) -> u64 {
        self.connect_timeouts.load(Relaxed)
    }

    pub(super) fn response_timeouts(&self) -> u64 {
        self.response_timeouts.load(Relaxed)
    }

    pub(super) fn response_failures(&self) -> u64 {
        self.response_failures.load(Relaxed)
    }

    pub(super) fn latency(&self) -> Latency {
        Latency {
            counts: self.latency.each_ref().map(|count| count.load(Relaxed)),
            sum: Duration::from_nanos(self.nanos.load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_first_bucket_whose_bound_is_not_below_it() {
        assert!(Latency::BOUNDS.is_sorted());
        let micros = |micros| Latency::bucket(Duration::from_micros(micros));
        assert_eq!([0, 25, 26, 100, 101].map(micros), [0, 0, 1, 1, 2]);
        assert_eq!(Latency::bucket(Duration::from_secs(10)), BUCKETS - 2);
        assert_eq!(Latency::bucket(Duration::MAX), BUCKETS - 1);
        let counts = Counts::default();
        counts.answered(Duration::from_millis(3));
        counts.answered(Duration::from_secs(20));
        let latency = counts.latency();
        assert_eq!((latency.counts[6], latency.counts[BUCKETS - 1]), (1, 1));
        assert_eq!(latency.sum, Duration::from_millis(20_003));
    }
}
