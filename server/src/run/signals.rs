//! Turns signals into requests. SIGHUP requests a reload. The first SIGINT or SIGTERM requests a graceful shutdown, and a second one
//! ends the process at once.
//!
//! A separate thread waits for signals. So the second signal ends the process even when every worker is stuck.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use osier::sync::Event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A request made by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Reload,
    Shutdown,
}

/// Caught signals. No thread looks at them yet.
pub struct Caught(Signals);

/// Requests made by signals. Several signals may become one request.
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

    /// Starts the thread that waits for signals.
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
