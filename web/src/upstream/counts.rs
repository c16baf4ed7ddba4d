//! Counters of a backend: leases, failures by kind, and the time to the head of the response.
//!
//! Each worker has a tally of the counters that every request changes, and a reader adds the tallies up. All counters
//! are relaxed and unordered among each other, so a reader may see only some of the counts of one request.

use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use osier::time::Stamp;

use super::per_worker::PerWorker;

/// The number of buckets of a [`Latency`].
const BUCKETS: usize = Latency::BOUNDS.len() + 1;

/// A histogram of times, with bounds that suit requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// The number of times up to each bound and above the bound before. The last number counts the times above all
    /// bounds.
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
pub(super) struct Counts {
    connect_timeouts: AtomicU64,
    response_timeouts: AtomicU64,
    response_failures: AtomicU64,
    body_failures: AtomicU64,
    tunnels: AtomicUsize,
    tunnels_ended: AtomicU64,
    /// The sum of the times of the tunnels that have ended.
    tunnel_nanos: AtomicU64,
    /// Bytes of tunnels: to the backend, and to clients.
    tunnelled: [AtomicU64; 2],
    tallies: PerWorker<Tally>,
    /// The zero of [`Tally::answered_at`]. No time is before it.
    epoch: Stamp,
}

/// The counters of the requests of one worker.
#[derive(Default)]
struct Tally {
    /// Leases that began on this worker less those that ended on it. Only the sum over all workers is a number of
    /// leases, because a lease may end on another worker.
    leases: AtomicIsize,
    /// Leases on a new connection.
    new: AtomicU64,
    /// Leases on a connection that was used before.
    reused: AtomicU64,
    /// The sum of the times to the head of a response.
    nanos: AtomicU64,
    latency: [AtomicU64; BUCKETS],
    /// Time of the last response, in nanoseconds. Only the worker writes it.
    answered_at: AtomicU64,
}

impl Counts {
    pub(super) fn new() -> Counts {
        Counts {
            connect_timeouts: AtomicU64::new(0),
            response_timeouts: AtomicU64::new(0),
            response_failures: AtomicU64::new(0),
            body_failures: AtomicU64::new(0),
            tunnels: AtomicUsize::new(0),
            tunnels_ended: AtomicU64::new(0),
            tunnel_nanos: AtomicU64::new(0),
            tunnelled: Default::default(),
            tallies: PerWorker::new(),
            epoch: Stamp::now() - Duration::MAX,
        }
    }

    /// The tally of this worker.
    #[inline]
    fn own(&self) -> &Tally {
        self.tallies.own(|_| Tally::default())
    }

    #[inline]
    pub(super) fn lease_begins(&self) {
        self.own().leases.fetch_add(1, Relaxed);
    }

    #[inline]
    pub(super) fn lease_ends(&self) {
        self.own().leases.fetch_sub(1, Relaxed);
    }

    /// Counts a lease on a connection.
    #[inline]
    pub(super) fn connected(&self, reused: bool) {
        let tally = self.own();
        let counter = if reused { &tally.reused } else { &tally.new };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn connect_timed_out(&self) {
        self.connect_timeouts.fetch_add(1, Relaxed);
    }

    /// Counts a request without a valid response. `timed_out` says that the backend gave none in time.
    pub(super) fn failed(&self, timed_out: bool) {
        let counter = match timed_out {
            true => &self.response_timeouts,
            false => &self.response_failures,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a response that broke off behind its head.
    #[cfg(feature = "proxy")]
    pub(super) fn broke_off(&self) {
        self.body_failures.fetch_add(1, Relaxed);
    }

    #[cfg(feature = "proxy")]
    pub(super) fn tunnel_begins(&self) {
        self.tunnels.fetch_add(1, Relaxed);
    }

    pub(super) fn tunnel_ends(&self) {
        self.tunnels.fetch_sub(1, Relaxed);
    }

    /// Counts bytes that a tunnel has passed on.
    #[cfg(feature = "proxy")]
    pub(super) fn tunnelled(&self, to_backend: u64, to_client: u64) {
        self.tunnelled[0].fetch_add(to_backend, Relaxed);
        self.tunnelled[1].fetch_add(to_client, Relaxed);
    }

    /// Counts a tunnel that has ended after this time.
    #[cfg(feature = "proxy")]
    pub(super) fn tunnel_took(&self, time: Duration) {
        self.tunnels_ended.fetch_add(1, Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.tunnel_nanos.fetch_add(nanos, Relaxed);
    }

    /// Counts a response whose head has come `now`, and took this long.
    #[inline]
    pub(super) fn answered(&self, now: Stamp, time: Duration) {
        let tally = self.own();
        tally.answered_at.store(now.nanos_since(self.epoch), Relaxed);
        tally.latency[Latency::bucket(time)].fetch_add(1, Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        tally.nanos.fetch_add(nanos, Relaxed);
    }

    /// Whether there was a response later than `moment`.
    pub(super) fn has_answered_since(&self, moment: Stamp) -> bool {
        let moment = moment.nanos_since(self.epoch);
        let mut times = self.tallies.iter().map(|tally| tally.answered_at.load(Relaxed));
        times.any(|time| time > moment)
    }

    /// Leases in use now.
    pub(super) fn leases(&self) -> usize {
        let leases = self.tallies.iter().map(|tally| tally.leases.load(Relaxed));
        // A lease may begin and end on two workers meanwhile, and only its end be seen.
        leases.sum::<isize>().max(0).unsigned_abs()
    }

    /// The number of all leases on a connection since the start, and the number of those on one that was used before.
    pub(super) fn connections(&self) -> (u64, u64) {
        let sum = |of: fn(&Tally) -> &AtomicU64| self.tallies.iter().map(|tally| of(tally).load(Relaxed)).sum::<u64>();
        let reused = sum(|tally| &tally.reused);
        (reused + sum(|tally| &tally.new), reused)
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

    pub(super) fn body_failures(&self) -> u64 {
        self.body_failures.load(Relaxed)
    }

    /// Leases in use now whose connections have left HTTP.
    pub(super) fn tunnels(&self) -> usize {
        self.tunnels.load(Relaxed)
    }

    /// The number of tunnels that have ended, the sum of their times, and the bytes of all tunnels to the backend and to clients.
    pub(super) fn tunnelled_so_far(&self) -> (u64, Duration, [u64; 2]) {
        let time = Duration::from_nanos(self.tunnel_nanos.load(Relaxed));
        let bytes = [0, 1].map(|towards: usize| self.tunnelled[towards].load(Relaxed));
        (self.tunnels_ended.load(Relaxed), time, bytes)
    }

    pub(super) fn latency(&self) -> Latency {
        let mut latency = Latency::default();
        for tally in self.tallies.iter() {
            for (sum, count) in latency.counts.iter_mut().zip(&tally.latency) {
                *sum += count.load(Relaxed);
            }
            latency.sum += Duration::from_nanos(tally.nanos.load(Relaxed));
        }
        latency
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
        let counts = Counts::new();
        counts.answered(Stamp::now(), Duration::from_millis(3));
        counts.answered(Stamp::now(), Duration::from_secs(20));
        let latency = counts.latency();
        assert_eq!((latency.counts[6], latency.counts[BUCKETS - 1]), (1, 1));
        assert_eq!(latency.sum, Duration::from_millis(20_003));
    }

    #[test]
    fn a_lease_may_end_on_another_worker() {
        let counts = std::sync::Arc::new(Counts::new());
        let on = |worker, count: fn(&Counts)| {
            let counts = counts.clone();
            let fiber = osier::fiber::Builder::new()
                .worker(worker)
                .spawn(move || count(&counts));
            fiber.join().unwrap();
        };
        let runtime = osier::Runtime::builder().workers(2).build().unwrap();
        runtime.run(|| {
            on(0, Counts::lease_begins);
            on(1, Counts::lease_begins);
            on(1, Counts::lease_ends);
            on(1, |counts| counts.connected(true));
            on(0, |counts| counts.connected(false));
            assert_eq!((counts.leases(), counts.connections()), (1, (2, 1)));
            on(1, Counts::lease_ends);
            assert_eq!(counts.leases(), 0);
        });
    }
}
