//! Runs a server from its start to its end, whatever the origin of its configuration.
//!
//! ```text
//!   Origin ─▶ Config ─▶ startup: listeners, privileges ─▶ workers ─▶ sites: handlers ─▶ announce ─▶ accept
//!                ▲                                                      │
//!                └────────────────── SIGHUP (signals) ──────────────────┘   SIGTERM ─▶ graceful shutdown
//! ```
//!
//! The server accepts connections only after every step before has succeeded. [`serve_requests`] is the loop of the
//! first fiber.

mod admin;
mod arrival;
pub mod ask;
mod listeners;
mod memory;
mod names;
mod paths;
mod signals;
mod sites;
mod startup;
mod upgrade;
mod watchdog;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use osier_tls::Tickets;
use osier_web::Level;
use osier_web::files::CacheLimits;
use osier_web::upgrade::Upgrade;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::certificates;
use crate::config::origin::Spelling;
use crate::config::{Bind, Loaded, Report};
use crate::handler::cannot_serve;
use crate::log::errors::ErrorLog;
use crate::log::operator::Say;
use crate::reader::Reason;

pub use crate::config::origin::Origin;

pub use self::paths::unreadable_to_user;

use self::arrival::Confinement;
use self::listeners::Bound;
use self::signals::{Asked, Caught, Requests};
use self::sites::{End, Sites};
use self::upgrade::Upgrading;

/// Bytes of cached small files for each `files` route, over all workers.
const CACHE_BYTES: usize = 64 << 20;
/// Bytes of cached compressed files for each `files` route, over all workers.
const CACHE_COMPRESSED: usize = 64 << 20;
/// Paths that each worker remembers for each route.
const CACHE_ENTRIES: usize = 8192;
/// The most large files that each worker holds open for each route.
const CACHE_FILES: usize = 256;

/// The longest time that the end takes after `drain`: the last requests of `[admin]`, and logs whose outputs are stuck.
const LAST_STEPS: Duration = Duration::from_secs(15);

/// The remedy for a folder that cannot be served.
const HINT: &str = "give a folder, or a configuration file; see osier --help";

/// The reason why nothing was served.
pub enum Failure {
    /// Mistakes in the configuration.
    Mistakes(Report),
    /// One line: what could not be started, and what to do.
    Start(Reason),
}

impl<R: Into<Reason>> From<R> for Failure {
    fn from(why: R) -> Failure {
        Failure::Start(why.into())
    }
}

/// Serves until a signal ends the server.
///
/// # Errors
/// When the configuration has mistakes, or the server cannot start.
///
/// # Blocks the thread
/// Until the server has shut down.
pub fn run(origin: Origin) -> Result<(), Failure> {
    let log = ErrorLog::new();
    let outcome = serve(origin, &log);
    log.finish();
    outcome
}

fn serve(origin: Origin, log: &Arc<ErrorLog>) -> Result<(), Failure> {
    let upgrade = Upgrade::new().map_err(|error| format!("cannot take over from the old process: {error}"))?;
    let outcome = serve_with(origin, log, upgrade.clone());
    if let Err(failure) = &outcome {
        // The old process logs the reason.
        upgrade.refuse(&match failure {
            Failure::Mistakes(report) => report.first_mistake().unwrap_or_default(),
            Failure::Start(why) => why.to_string(),
        });
    }
    outcome
}

fn serve_with(origin: Origin, log: &Arc<ErrorLog>, upgrade: Upgrade) -> Result<(), Failure> {
    let inherited = Confinement::inherited(&upgrade)?;
    let root = inherited.as_ref().and_then(|inherited| inherited.chroot.clone());
    let Loaded { mut config, warnings } = origin.load(root.as_deref()).map_err(Failure::Mistakes)?;
    if let Some(inherited) = &inherited {
        inherited.check(&config)?;
    }
    if let Err((folder, error)) = origin.check_folder() {
        return Err(cannot_serve(folder, &error)
            .reworded(|why| format!("{why}; {HINT}"))
            .into());
    }
    let origin = absolute(origin)?;
    let spelling = origin.spelling();
    let workers = config
        .workers
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let cache = cache_limits(workers, raise_descriptor_limit());
    // Privileges belong to threads, so no other thread may exist yet.
    log.set(&config.error_log);
    let (process, opened) = startup::open(&origin, &mut config, workers, Arc::clone(log), (upgrade, inherited))?;
    let say = log.say();
    if let Some(warnings) = &warnings {
        let text = format_args!("{} has warnings:", origin.name());
        // Each warning has lines of its own, in the format of 'osier check'.
        say.report(Level::Warning, text, warnings);
    }
    let signals = Caught::catch()?;
    let runtime = osier::Runtime::builder().workers(workers).name("osier").build();
    let runtime = runtime.map_err(|error| {
        format!(
            "cannot start {workers} workers: {error}; try fewer ({})",
            spelling.workers
        )
    })?;
    let outcome = runtime.run(move || -> Result<End, Failure> {
        let (mut sites, listening) = Sites::start(origin, config, cache, process, opened)?;
        let requests = signals.watch()?;
        begin(&mut sites, listening, &requests)?;
        Ok(serve_requests(sites, &requests))
    });
    drop(runtime);
    finish(outcome?, spelling, &say);
    Ok(())
}

/// The origin whose file a reload finds even if the working directory has changed.
fn absolute(origin: Origin) -> Result<Origin, String> {
    match origin {
        Origin::File(file) => {
            let absolute = std::path::absolute(file);
            absolute
                .map(Origin::File)
                .map_err(|error| format!("there is no working directory: {error}"))
        }
        line @ Origin::Line(_) => Ok(line),
    }
}

/// Writes the last lines of the access logs, and logs how many connections were closed.
fn finish(end: End, spelling: &Spelling, say: &Say) {
    let End { cut, drain, live } = end;
    let last = live.current();
    // Logs whose outputs are stuck have the same few seconds.
    last.logs().for_each(|log| log.close());
    // Drop does not wait for the last lines.
    last.logs().for_each(|log| log.finish());
    listeners::log_cut(cut, "", drain, spelling.drain, say);
}

/// Accepts connections, and starts what goes on beside them. [`Asked::Alone`] follows.
fn begin(sites: &mut Sites, listening: Vec<Bound>, requests: &Arc<Requests>) -> Result<(), Failure> {
    let gone = |error: io::Error| format!("cannot take over from the old process: {error}");
    sites.process.upgrade.wait_for_turn().map_err(gone)?;
    announce(sites, &listening);
    sites.accept(listening);
    sites.own_files();
    sites.process.upgrade.adopt_connections();
    let (upgrade, asked) = (sites.process.upgrade.clone(), Arc::clone(requests));
    let waits = osier::fiber::Builder::new().name("upgrade: alone");
    drop(waits.spawn(move || {
        upgrade.wait_until_alone();
        asked.add(Asked::Alone);
    }));
    sites.process.watchdog.start(&sites.process.notify)?;
    memory::keep(
        sites.process.memory.clone(),
        &sites.process.totals,
        &sites.live,
        &sites.process.say,
    );
    sites.process.log.count_in_time();
    certificates::watch(&sites.process.certificates);
    if sites.config.ticket_keys.is_some() {
        watch_ticket_keys(sites.process.tickets.clone(), sites.process.say.clone());
    }
    let subjects = sites.config.subjects();
    sites.process.certificates.keep(subjects, sites.config.on_demand());
    Ok(())
}

/// Starts the fiber that logs, once, why a changed file of ticket keys is not used. Handshakes read it by themselves.
fn watch_ticket_keys(tickets: Tickets, say: Say) {
    let watch = osier::fiber::Builder::new().name("ticket keys");
    drop(watch.spawn(move || {
        let mut said = String::new();
        loop {
            osier::sleep(certificates::LOOK);
            let tickets = tickets.clone();
            let why =
                osier::unblock(move || tickets.reload()).map_or_else(|error| error.to_string(), |_| String::new());
            if !why.is_empty() && why != said {
                say.error(format_args!("'ticket_keys': {why}; the old keys stay"));
            }
            said = why;
        }
    }));
}

/// Serves the requests that signals and upgrades make, until the end of the server.
fn serve_requests(mut sites: Sites, requests: &Arc<Requests>) -> End {
    let mut upgrading = Upgrading::default();
    loop {
        match requests.next() {
            Asked::Alone => {
                // The PID file tells an operator that the old process is out of the way.
                sites.write_pid_file();
                sites.process.notify.ready(&sites.config.summary());
            }
            Asked::Shutdown if upgrading.finish(&sites) => {
                return sites.end_after_upgrade(|name| upgrading.takes(name));
            }
            Asked::Shutdown => return shut_down(sites),
            Asked::Reload if upgrading.is_busy() => {
                sites.process.say.info(format_args!(
                    "SIGHUP waits: an upgrade is under way, whose process reads the configuration"
                ));
                upgrading.delay_reload();
            }
            Asked::Reload => {
                sites.process.notify.reloading();
                match sites.reload() {
                    Ok(()) => sites.process.notify.ready(&sites.config.summary()),
                    Err(why) => sites.process.notify.not_reloaded(&why),
                }
            }
            Asked::Reopen => {
                sites.reopen();
                sites.process.say.info(format_args!("the log files are open anew"));
            }
            Asked::Upgrade => {
                if let Err(why) = upgrading.begin(&sites, requests) {
                    sites.say_not_upgraded(&why, upgrading.is_busy());
                }
            }
            Asked::Prepared => {
                if let Err(why) = upgrading.hand_over(&mut sites, requests) {
                    sites.say_not_upgraded(&why, upgrading.is_busy());
                }
            }
            Asked::TakenOver => {
                sites.process.watchdog.silence();
                sites.give_up(|name| upgrading.gives_up(name));
            }
            Asked::HandedOver => match upgrading.end() {
                Ok(()) => return sites.end_after_upgrade(|name| upgrading.takes(name)),
                Err(why) => {
                    sites.process.watchdog.resume();
                    sites.regain(upgrading.take_files());
                    sites.say_not_upgraded(&why, upgrading.is_busy());
                }
            },
        }
        if !upgrading.is_busy() && upgrading.take_reload() {
            requests.add(Asked::Reload);
        }
    }
}

/// Shuts down gracefully.
fn shut_down(mut sites: Sites) -> End {
    // An old process would take the end of this one for a failure.
    sites.process.upgrade.stopping();
    let most = sites.config.drain + LAST_STEPS;
    sites.process.notify.stopping("finishing in-flight requests", most);
    sites.announce_end();
    if let Some(file) = sites.process.pid_file.take() {
        file.remove();
    }
    sites.end()
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

/// Raises the limit of open descriptors to the system's maximum, because each connection needs one. Returns the new
/// limit.
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

/// Prints what is served, and where. Standard output may be closed.
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
        _ => {
            let scheme = match bound.settings.tls {
                Some(_) => "https",
                None => "http",
            };
            format!("{scheme}://{}/", bound.listening.local_addr())
        }
    }
}
