//! The numbers of a runtime: what its workers have written on their desks.

use std::fmt;
use std::time::Duration;

pub use crate::worker::desk::StackDepth;

use crate::worker::context;
use crate::worker::desk::{BUCKETS, Counter};
use crate::worker::remote::Remote;

/// The numbers of a runtime, from [`Runtime::metrics`](crate::Runtime::metrics).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// Those of each worker.
    pub workers: Vec<WorkerMetrics>,
}

/// The numbers of a worker. Counts are since its start; the rest is as of the end of its last turn, that is when it last
/// looked at its poller.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// The name of its thread.
    pub name: String,
    /// How many turns its loop has made; each ends in one look at the poller.
    pub turns: u64,
    /// How many of those looks were sleeps: there was nothing else to do.
    pub sleeps: u64,
    /// Events that the poller has told of.
    pub events: u64,
    /// Wake-ups of its fibers by other threads.
    pub wakes: u64,
    /// How many times it has resumed a fiber, or a connection at rest.
    pub resumes: u64,
    /// How many times it took work that others had queued: threads outside, or a busy neighbour.
    pub steals: u64,
    /// Fibers that it has started.
    pub fibers_started: u64,
    /// Fibers that have started and not ended.
    pub fibers: usize,
    /// [Connections at rest](crate::dormant), which have no stack.
    pub resting: usize,
    /// Tasks that were spawned on it and have not ended.
    pub tasks: usize,
    /// Length of the run queue: fibers that are ready or not started, and tasks that are ready.
    pub queued: usize,
    /// Timers that are set.
    pub timers: usize,
    /// Stacks that are kept warm for the next fibers.
    pub stacks_pooled: usize,
    /// How long its turns took.
    pub latency: LatencyHistogram,
    /// The depth that fibers reached on their stacks, by the place of their spawn; empty unless
    /// [`Builder::measure_stacks`](crate::Builder::measure_stacks) is set.
    pub stack_depths: Vec<StackDepth>,
}

/// How long turns of a loop took, from one look at the poller to the next, sleep excluded: for so long at most does a fiber
/// wait that has become ready, if the queue is shorter than a turn.
///
/// Buckets are powers of two of nanoseconds.
#[derive(Clone, PartialEq, Eq)]
pub struct LatencyHistogram {
    turns: [u64; BUCKETS],
}

impl LatencyHistogram {
    /// The buckets that are not empty: turns that took less than this long (and at least half of it), and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let all = self.turns.iter().enumerate().filter(|(_, turns)| **turns > 0);
        all.map(|(power, turns)| (Duration::from_nanos(1 << power), *turns))
    }

    /// The bound of the bucket that this share of all turns, from 0.0 to 1.0, stays under; zero if there are none.
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

/// The numbers of the runtime that this thread works for; none outside of every runtime. As [`Runtime::metrics`](crate::Runtime::metrics), for who has
/// no hold of that.
///
/// ```
/// osier::run(|| assert!(osier::inspect::metrics().is_some()));
/// assert!(osier::inspect::metrics().is_none());
/// ```
pub fn metrics() -> Option<Metrics> {
    context::worker(|worker| of(worker.shared.remotes()))
}

/// The numbers on the desks of some workers.
pub(crate) fn of<'r>(remotes: impl Iterator<Item = &'r Remote>) -> Metrics {
    let workers = remotes.filter_map(of_worker).collect();
    Metrics { workers }
}

/// The numbers of one worker; `None` where the remote has none.
fn of_worker(remote: &Remote) -> Option<WorkerMetrics> {
    let desk = &remote.desk;
    let seat = desk.seat()?;
    Some(WorkerMetrics {
        name: seat.name.clone(),
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
        for nanos in [0, 1, 1023, 1024, u64::MAX] {
            desk.turn_begins(Duration::from_nanos(nanos));
        }
        let turns = desk.latency.each_ref().map(Counter::get);
        let histogram = LatencyHistogram { turns };
        let bounds: Vec<_> = histogram
            .buckets()
            .map(|(bound, turns)| (bound.as_nanos() as u64, turns))
            .collect();
        assert_eq!(bounds, [(1, 1), (2, 1), (1024, 1), (2048, 1), (1 << 39, 1)]);
        assert_eq!(histogram.quantile(0.5), Duration::from_nanos(1024));
        assert_eq!(histogram.quantile(1.0), Duration::from_nanos(1 << 39));
    }
}
