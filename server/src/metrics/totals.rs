//! The counters of the whole process: connections and reloads. They count from its start on, even without an admin
//! listener.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use osier_web::{CloseReason, ConnectionEvent};

use super::process::Files;

const REASONS: usize = CloseReason::ALL.len();

/// The counters of the process.
pub struct Totals {
    /// The connections of each worker.
    connections: Box<[Connections]>,
    reloads: Reloads,
    /// The files of /proc. None where there is no /proc.
    pub files: Option<Files>,
}

/// The connections of one worker, on cache lines of their own.
#[derive(Default)]
#[repr(align(64))]
struct Connections {
    accepted: AtomicU64,
    closed: [AtomicU64; REASONS],
}

/// The sums of all workers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ConnectionSums {
    pub accepted: u64,
    /// Ended connections in the order of [`CloseReason::ALL`].
    pub closed: [u64; REASONS],
}

struct Reloads {
    succeeded: AtomicU64,
    failed: AtomicU64,
    last_succeeded: AtomicBool,
    /// When the current configuration was loaded, in milliseconds since 1970.
    loaded: AtomicU64,
}

/// The reloads so far.
#[derive(Debug, PartialEq)]
pub struct ReloadNumbers {
    pub succeeded: u64,
    pub failed: u64,
    /// True before the first reload, too.
    pub last_succeeded: bool,
    /// When the current configuration was loaded, in seconds since 1970.
    pub loaded_seconds: f64,
}

impl Totals {
    /// Begins to count, for `workers` workers.
    pub fn new(workers: usize) -> Totals {
        Totals {
            connections: (0..workers.max(1)).map(|_| Connections::default()).collect(),
            reloads: Reloads {
                succeeded: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                last_succeeded: AtomicBool::new(true),
                loaded: AtomicU64::new(now()),
            },
            files: Files::open().ok(),
        }
    }

    /// Counts the beginning or the end of a connection.
    pub fn count(&self, event: ConnectionEvent) {
        let worker = osier::fiber::worker().unwrap_or(0);
        let counters = &self.connections[worker % self.connections.len()];
        match event {
            ConnectionEvent::Opened => counters.accepted.fetch_add(1, Relaxed),
            ConnectionEvent::Closed(reason) => counters.closed[reason as usize].fetch_add(1, Relaxed),
            _ => return,
        };
    }

    /// The connections so far.
    pub fn connections(&self) -> ConnectionSums {
        let mut sums = ConnectionSums::default();
        for counters in &self.connections {
            for (sum, count) in sums.closed.iter_mut().zip(&counters.closed) {
                *sum += count.load(Relaxed);
            }
            sums.accepted += counters.accepted.load(Relaxed);
        }
        sums
    }

    /// Notes the outcome of a reload.
    pub fn reloaded(&self, succeeded: bool) {
        let reloads = &self.reloads;
        match succeeded {
            true => {
                reloads.succeeded.fetch_add(1, Relaxed);
                reloads.loaded.store(now(), Relaxed);
            }
            false => {
                reloads.failed.fetch_add(1, Relaxed);
            }
        }
        reloads.last_succeeded.store(succeeded, Relaxed);
    }

    /// The reloads so far.
    pub fn reloads(&self) -> ReloadNumbers {
        let reloads = &self.reloads;
        ReloadNumbers {
            succeeded: reloads.succeeded.load(Relaxed),
            failed: reloads.failed.load(Relaxed),
            last_succeeded: reloads.last_succeeded.load(Relaxed),
            loaded_seconds: reloads.loaded.load(Relaxed) as f64 / 1000.0,
        }
    }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_reason_and_reloads_by_result() {
        let totals = Totals::new(2);
        for _ in 0..3 {
            totals.count(ConnectionEvent::Opened);
        }
        totals.count(ConnectionEvent::Closed(CloseReason::Client));
        totals.count(ConnectionEvent::Closed(CloseReason::Evicted));
        let sums = totals.connections();
        assert_eq!((sums.accepted, sums.closed.iter().sum::<u64>()), (3, 2));
        assert_eq!(sums.closed[CloseReason::Evicted as usize], 1);
        let at_start = totals.reloads();
        assert!(at_start.last_succeeded && at_start.loaded_seconds > 1.7e9);
        totals.reloaded(false);
        let failed = totals.reloads();
        assert_eq!((failed.succeeded, failed.failed, failed.last_succeeded), (0, 1, false));
        assert_eq!(failed.loaded_seconds, at_start.loaded_seconds);
        totals.reloaded(true);
        assert!(totals.reloads().last_succeeded && totals.reloads().succeeded == 1);
    }
}
