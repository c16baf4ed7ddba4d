//! Turns signals into requests.
//!
//! | signal | request |
//! |---|---|
//! | SIGHUP | a reload, which reopens log files too |
//! | SIGUSR1 | reopen log files |
//! | SIGUSR2 | an upgrade |
//! | the first SIGINT or SIGTERM | a graceful shutdown |
//! | another SIGINT or SIGTERM | the process ends at once |
//!
//! A separate thread waits for signals, so the second signal ends the process even when every worker is stuck.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;

use osier::sync::Event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// The name of the thread that waits for signals. `osier upgrade` knows a server by it.
pub const SIGNAL_THREAD: &str = "osier-signals";

/// A request made by a signal, or a step of an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The process before this one, if there is one, accepts no more connections.
    Alone,
    Reload,
    Reopen,
    Upgrade,
    /// The new process of an upgrade is ready, or has failed.
    Prepared,
    /// The new process serves. The addresses that it does not have are free.
    TakenOver,
    /// The handover to the new process has ended.
    HandedOver,
    Shutdown,
}

/// The requests that may be made again before they are served, in the order in which they are served, with their bits
/// in [`Requests::pending`].
const REPEATABLE: [(Asked, u8); 7] = [
    (Asked::Alone, 32),
    (Asked::Reload, 1),
    (Asked::Reopen, 2),
    (Asked::Upgrade, 4),
    (Asked::Prepared, 8),
    (Asked::TakenOver, 64),
    (Asked::HandedOver, 16),
];

/// The signals, caught but not yet waited for by a thread.
pub struct Caught(Signals);

/// The requests that wait. Several signals of one kind become one request.
#[derive(Default)]
pub struct Requests {
    event: Event,
    end: AtomicBool,
    /// Bits of [`REPEATABLE`]. Set before the event.
    pending: AtomicU8,
}

impl Caught {
    /// Catches the signals. From here on they do not end the process by themselves.
    pub fn catch() -> Result<Caught, String> {
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]);
        signals
            .map(Caught)
            .map_err(|error| format!("cannot watch for signals: {error}"))
    }

    /// Starts the thread that waits for signals.
    pub fn watch(self) -> Result<Arc<Requests>, String> {
        let requests: Arc<Requests> = Arc::default();
        let (asked, Caught(mut signals)) = (Arc::clone(&requests), self);
        let watcher = move || {
            for signal in signals.forever() {
                match signal {
                    SIGHUP => asked.add(Asked::Reload),
                    SIGUSR1 => asked.add(Asked::Reopen),
                    SIGUSR2 => asked.add(Asked::Upgrade),
                    _ if asked.end.swap(true, Ordering::AcqRel) => std::process::exit(128 + signal),
                    _ => asked.event.set(),
                }
            }
        };
        let thread = thread::Builder::new().name(SIGNAL_THREAD.into()).spawn(watcher);
        let cannot = |error: io::Error| format!("cannot start the thread that waits for signals: {error}");
        thread.map(|_| requests).map_err(cannot)
    }
}

impl Requests {
    /// Adds a request.
    pub fn add(&self, asked: Asked) {
        let bit = REPEATABLE
            .iter()
            .find(|(known, _)| *known == asked)
            .map_or(0, |(_, bit)| *bit);
        self.pending.fetch_or(bit, Ordering::AcqRel);
        self.event.set();
    }

    /// Waits for the next request. A shutdown comes before all others.
    ///
    /// # Suspends
    /// Until there is one.
    pub fn next(&self) -> Asked {
        loop {
            if self.end.load(Ordering::Acquire) {
                return Asked::Shutdown;
            }
            // One look: a step of an upgrade that was added later than another one is not there without it.
            let pending = self.pending.load(Ordering::Acquire);
            if let Some((asked, bit)) = REPEATABLE.into_iter().find(|(_, bit)| pending & bit != 0) {
                self.pending.fetch_and(!bit, Ordering::AcqRel);
                return asked;
            }
            self.event.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_one_request_and_a_shutdown_is_first() {
        osier::run(|| {
            let requests = Requests::default();
            let alone = Asked::Alone;
            for asked in [Asked::Upgrade, Asked::Reload, alone, Asked::Reopen, Asked::Reload] {
                requests.add(asked);
            }
            let next = [requests.next(), requests.next(), requests.next(), requests.next()];
            assert_eq!(next, [alone, Asked::Reload, Asked::Reopen, Asked::Upgrade]);
            // Two steps that are added while the queue is looked through.
            let requests = Arc::new(requests);
            let adds = Arc::clone(&requests);
            let steps = [Asked::TakenOver, Asked::HandedOver];
            let adding = thread::spawn(move || {
                for _ in 0..5_000 {
                    steps.into_iter().for_each(|step| adds.add(step));
                    while adds.pending.load(Ordering::Acquire) != 0 {
                        thread::yield_now();
                    }
                }
            });
            for _ in 0..5_000 {
                assert_eq!([requests.next(), requests.next()], steps);
            }
            adding.join().unwrap();
            requests.add(Asked::Reload);
            requests.end.store(true, Ordering::Release);
            assert_eq!(requests.next(), Asked::Shutdown);
        });
    }
}
