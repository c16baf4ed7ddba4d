//! A server from its start to its end, whatever it was started from.
//!
//! ```text
//!   Origin ─▶ Config ─▶ startup: listeners, privileges ─▶ workers ─▶ sites: handlers ─▶ announce ─▶ accept
//!                ▲                                                      │
//!                └────────────────── SIGHUP (signals) ──────────────────┘   SIGTERM ─▶ graceful shutdown
//! ```
//!
//! Nothing is served before everything that can fail has worked.

mod admin;
mod listeners;
mod signals;
mod sites;
mod startup;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use osier_web::files::CacheLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{Bind, Report};
use crate::log::operator;
use crate::site::live::Live;

pub use crate::config::origin::Origin;

use self::listeners::Bound;
use self::signals::{Asked, Caught};
use self::sites::Sites;

/// Memory for small files of each `files` route, over all workers.
const CACHE_BYTES: usize = 64 << 20;
/// Memory for files in encoded form of each `files` route, over all workers.
const CACHE_COMPRESSED: usize = 64 << 20;
/// Paths remembered by each worker for each route.
const CACHE_ENTRIES: usize = 8192;
/// Large files held open by each worker for each route, at most.
const CACHE_FILES: usize = 256;

/// Why nothing was served.
pub enum Failure {
    /// The file has mistakes.
    Mistakes(Report),
    /// One line.
    Start(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Start(why)
    }
}

/// Serves until a signal ends the server.
pub fn run(origin: Origin) -> Result<(), Failure> {
    let mut config = origin.load(None).map_err(Failure::Mistakes)?;
    let origin = match origin {
        // The working directory may be another one at a reload.
        Origin::File(file) => {
            Origin::File(std::path::absolute(file).map_err(|error| format!("there is no working directory: {error}"))?)
        }
        line => line,
    };
    let spelling = origin.spelling();
    let workers = config
        .workers
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let cache = cache_limits(workers, raise_descriptor_limit());
    // No other thread may exist yet: privileges belong to threads.
    let (process, opened) = startup::open(&origin, &mut config, workers, operator::to_stderr())?;
    let signals = Caught::catch()?;
    let runtime = osier::Runtime::builder().workers(workers).name("osier").build();
    let runtime = runtime.map_err(|error| {
        format!(
            "cannot start {workers} workers: {error}; try fewer ({})",
            spelling.workers
        )
    })?;
    let outcome = runtime.run(move || -> Result<(usize, Duration, Arc<Live>), Failure> {
        let (mut sites, listening) = Sites::start(origin, config, cache, process, opened)?;
        let requests = signals.watch()?;
        announce(&sites, &listening);
        sites.accept(listening);
        sites.process.notify.ready(&sites.config.summary());
        loop {
            match requests.next() {
                Asked::Shutdown => {
                    sites.process.notify.stopping("finishing what has begun");
                    return Ok((sites.end(), sites.config.drain, sites.live));
                }
                Asked::Reload => {
                    sites.process.notify.reloading();
                    sites.reload();
                    sites.process.notify.ready(&sites.config.summary());
                }
            }
        }
    });
    drop(runtime);
    let (cut, drain, live) = outcome?;
    for log in live.current().logs() {
        // Not left to Drop: a fiber that would not end may still hold it.
        log.finish();
    }
    if cut > 0 {
        let seconds = drain.as_secs();
        eprintln!(
            "osier: {cut} connections were cut, still busy after {seconds} s ({})",
            spelling.drain
        );
    }
    Ok(())
}

fn cache_limits(workers: usize, descriptors: u64) -> CacheLimits {
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    CacheLimits {
        entries: CACHE_ENTRIES * workers,
        bytes: CACHE_BYTES,
        compressed: CACHE_COMPRESSED,
        files: (CACHE_FILES * workers).min(descriptors / 8),
    }
}

/// Raises the limit of open descriptors as far as the system allows, for each connection needs one. Returns the limit.
fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised,
        Err(_) => limit,
    };
    now.current.unwrap_or(u64::MAX)
}

/// Prints the line that says what is served where. Nobody may be reading it.
fn announce(sites: &Sites, bound: &[Bound]) {
    let addresses: Vec<String> = bound.iter().map(url).collect();
    let (what, addresses) = (sites.origin.describe(&sites.config), addresses.join(" and "));
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "osier: serving {what} on {addresses}").and_then(|()| out.flush());
}

/// The address of a listener as a user types it into a browser.
fn url(bound: &Bound) -> String {
    match &bound.settings.bind {
        Bind::Unix(path) => format!("unix:{}", path.display()),
        _ => format!("http://{}/", bound.listening.local_addr()),
    }
}
