//! Signals and what they ask for. SIGHUP asks for a reload; the first SIGINT or SIGTERM for a graceful shutdown; a second one ends the process.
//!
//! A thread of its own waits for signals, so the second one ends the process even when every worker is stuck.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use osier::sync::Event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Reload,
    Shutdown,
}

/// Signals that are caught, and not looked at yet.
pub struct Caught(Signals);

/// The requests of signals. Several of them may become one.
#[derive(Default)]
pub struct Requests {
    event: Event,
    end: AtomicBool,
}

impl Caught {
    /// Catches the signals. From here on they do not end the process by themselves.
    pub fn catch() -> Result<Caught, String> {
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
        signals
            .map(Caught)
            .map_err(|error| format!("cannot watch for signals: {error}"))
    }

    /// Starts the thread that looks at them.
    pub fn watch(self) -> Result<Arc<Requests>, String> {
        let requests: Arc<Requests> = Arc::default();
        let (asked, Caught(mut signals)) = (Arc::clone(&requests), self);
        let watcher = move || {
            for signal in signals.forever() {
                if signal != SIGHUP && asked.end.swap(true, Ordering::AcqRel) {
                    std::process::exit(128 + signal);
                }
                asked.event.set();
            }
        };
        let thread = thread::Builder::new().name("osier-signals".into()).spawn(watcher);
        let cannot = |error: io::Error| format!("cannot start the thread that waits for signals: {error}");
        thread.map(|_| requests).map_err(cannot)
    }
}

impl Requests {
    /// Waits for the next request.
    ///
    /// # Suspends
    /// Until there is one.
    pub fn next(&self) -> Asked {
        self.event.wait();
        match self.end.load(Ordering::Acquire) {
            true => Asked::Shutdown,
            false => Asked::Reload,
        }
    }
}
