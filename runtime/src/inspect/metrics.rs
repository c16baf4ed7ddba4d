//! Metrics: the counters of a runtime's workers. Each worker writes its counters to its desk (`worker/desk.rs`); this
//! module reads them.

use std::fmt;
use std::time::Duration;

pub use crate::worker::desk::StackDepth;

use crate::worker::context;
use crate::worker::desk::{BUCKETS, Counter};
use crate::worker::remote::Remote;

/// The metrics of a runtime, from [`Runtime::metrics`](crate::Runtime::metrics).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// The metrics of each worker.
    pub workers: Vec<WorkerMetrics>,
}

/// The metrics of a worker. Counters count from its start. Every other value is that of the end of its last turn,
/// when it last looked at its poller.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// The name of its thread.
    pub name: String,
    /// The number of turns of its loop. Each turn ends with one look at the poller.
    pub turns: u64,
    /// The number of looks at the poller that slept, because nothing was ready to run.
    pub sleeps: u64,
    /// The number of events that the poller has reported.
    pub events: u64,
    /// The number of times another thread woke one of its fibers.
    pub wakes: u64,
    /// The number of times it resumed a fiber or a dormant connection.
    pub resumes: u64,
    /// The number of times it took work from the shared queue or from a busy worker.
    pub steals: u64,
    /// The number of fibers that it has started.
    pub fibers_started: u64,
    /// The number of fibers that have started and not ended.
    pub fibers: usize,
    /// The number of [dormant connections](crate::dormant), which have no stack.
    pub resting: usize,
    /// The number of tasks that were spawned on it and have not ended.
    pub tasks: usize,
    /// The length of its run queue: fibers that are ready or not started, and tasks that are ready.
    pub queued: usize,
    /// The number of timers that are set.
    pub timers: usize,
    /// The number of stacks in its pool, which the next fibers take.
    pub stacks_pooled: usize,
    /// The durations of its turns.
    pub latency: LatencyHistogram,
    /// The depths that fibers reached on their stacks, by the place of their spawn. Empty unless
    /// [`Builder::measure_stacks`](crate::Builder::measure_stacks) is set.
    pub stack_depths: Vec<StackDepth>,
}

/// The durations of a loop's turns, from one look at the poller to the next, without sleep. A fiber that becomes
/// ready waits for at most one turn, if a turn can run the whole queue.
///
/// Buckets are powers of two of nanoseconds.
#[derive(Clone, PartialEq, Eq)]
pub struct LatencyHistogram {
    turns: [u64; BUCKETS],
    nanos: u64,
}

impl LatencyHistogram {
    /// The sum of the durations: for how long the worker was busy.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// The buckets that are not empty. Each is an upper bound and the number of turns below it; they took at least
    /// half of the bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let all = self.turns.iter().enumerate().filter(|(_, turns)| **turns > 0);
        all.map(|(power, turns)| (Duration::from_nanos(1 << power), *turns))
    }

    /// The bound of the bucket below which this share of all turns stays, from 0.0 to 1.0. Zero if there were no
    /// turns.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (share * self.turns.iter().sum::<u64>() as f64).ceil() as u64;
        let mut sum = 0;
        let within = self.buckets().find(|(_, turns)| {
            sum += turns;
            sum >= wanted
        });
        within.map_or(Duration::ZERO, |(bound, _)| bound)
    }
}

impl fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.buckets()).finish()
    }
}

/// The metrics of the runtime that this thread works for, or `None` outside of every runtime.
/// [`Runtime::metrics`](crate::Runtime::metrics) gives the same to code that has the runtime.
///
/// ```
/// osier::run(|| assert!(osier::inspect::metrics().is_some()));
/// assert!(osier::inspect::metrics().is_none());
/// ```
#[doc(alias = "RuntimeMetrics")]
pub fn metrics() -> Option<Metrics> {
    context::worker(|worker| of(worker.scheduler.remotes()))
}

/// Reads the desks of some workers.
pub(crate) fn of<'r>(remotes: impl Iterator<Item = &'r Remote>) -> Metrics {
    let workers = remotes.filter_map(of_worker).collect();
    Metrics { workers }
}

/// The metrics of one worker. `None` if the remote belongs to no worker.
fn of_worker(remote: &Remote) -> Option<WorkerMetrics> {
    let desk = &remote.desk;
    let owner = desk.owner()?;
    Some(WorkerMetrics {
        name: owner.name.clone(),
        turns: desk.phase.get().div_ceil(2),
        sleeps: desk.sleeps.get(),
        events: desk.events.get(),
        wakes: desk.wakes.get(),
        resumes: desk.resumed.get(),
        steals: desk.steals.get(),
        fibers_started: desk.started.get(),
        fibers: desk.fibers.get() as usize,
        resting: desk.resting.get() as usize,
        tasks: remote.tasks.len(),
        queued: desk.queued.get() as usize,
        timers: desk.timers.get() as usize + remote.timers.len(),
        stacks_pooled: desk.pooled.get() as usize,
        latency: LatencyHistogram {
            turns: desk.latency.each_ref().map(Counter::get),
            nanos: desk.busy.get(),
        },
        stack_depths: desk.stacks(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::desk::Desk;

    #[test]
    fn a_turn_falls_into_the_bucket_above_it() {
        let desk = Desk::new();
        for nanos in [0, 1, 1023, 1024, u64::MAX >> 1] {
            desk.turn_begins(nanos);
        }
        let turns = desk.latency.each_ref().map(Counter::get);
        let nanos = desk.busy.get();
        let histogram = LatencyHistogram { turns, nanos };
        assert_eq!(histogram.sum(), Duration::from_nanos((u64::MAX >> 1) + 2048));
        let bounds: Vec<_> = histogram
            .buckets()
            .map(|(bound, turns)| (bound.as_nanos() as u64, turns))
            .collect();
        assert_eq!(bounds, [(1, 1), (2, 1), (1024, 1), (2048, 1), (1 << 39, 1)]);
        assert_eq!(histogram.quantile(0.5), Duration::from_nanos(1024));
        assert_eq!(histogram.quantile(1.0), Duration::from_nanos(1 << 39));
    }
}
