//! Serves the sites of a configuration file, from reading it to the end, with every reload between.
//!
//! Called by `main.rs`. Order of a start: read and check the file; bind every listener, or none, and give up privileges (`opened.rs`);
//! start the workers; open what is served; say where; accept. Nothing is served before all of that has worked.
//!
//! # Reload
//! SIGHUP wakes the first fiber. The file is read and checked again: with a mistake in it everything stays as it is, and the
//! mistakes are said. Otherwise new listeners are bound, the snapshot is built (keeping what has not changed, see
//! `site/build.rs`) and put in place of the old one, new listeners accept, and those that are gone drain on their own. A listener that stays
//! is not touched, nor is any connection of it: a WebSocket, a long answer and an idle client go on. Log files are opened
//! anew in any case.
//!
//! Only the first fiber changes anything; workers read (`site/live.rs`).

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use osier::JoinHandle;
use osier::sync::Event;
use osier_web::files::CacheLimits;
use osier_web::{Connections, Limits, Listener, Listening, Router, Server, ShutdownHandle, Timeouts};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{self, Bind, Config, Report, Trusted};
use crate::metrics::Admin;
use crate::opened::{self, Opened, cannot_listen};
use crate::say::{self, Say};
use crate::serve::raise_descriptor_limit;
use crate::site::live::Live;
use crate::site::{Snapshot, build};
use crate::sockets::Notify;

/// Memory for small files of each `files` route, over all workers.
const CACHE_BYTES: usize = 64 << 20;
/// Paths remembered by each worker for each route.
const CACHE_ENTRIES: usize = 8192;
/// Large files held open by each worker for each route, at most.
const CACHE_FILES: usize = 256;
/// What a scrape that is being answered at the end may still take.
const ADMIN_DRAIN: Duration = Duration::from_secs(1);

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

/// A listener that runs.
struct Running {
    settings: config::Listener,
    /// Its number in snapshots: never used again.
    slot: usize,
    stop: ShutdownHandle,
    fiber: JoinHandle<usize>,
}

/// What the signals ask for.
#[derive(Default)]
struct Asked {
    event: Event,
    end: AtomicBool,
}

struct Sites {
    file: PathBuf,
    config: Config,
    live: Arc<Live>,
    running: Vec<Running>,
    /// Listeners that are gone, until their last connection is.
    draining: Vec<JoinHandle<usize>>,
    slots: usize,
    cache: CacheLimits,
    admin: Option<(Arc<Admin>, ShutdownHandle, JoinHandle<usize>)>,
    /// Of every listener there has been.
    connections: Arc<Mutex<Vec<Connections>>>,
    notify: Notify,
    say: Say,
}

/// Serves until a signal ends it.
pub fn run(file: &Path) -> Result<(), Failure> {
    let mut config = config::load(file).map_err(Failure::Mistakes)?;
    // The working directory may be another one at a reload.
    let file = std::path::absolute(file).map_err(|error| format!("there is no working directory: {error}"))?;
    let workers = config
        .workers
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let descriptors = usize::try_from(raise_descriptor_limit()).unwrap_or(usize::MAX);
    let cache = CacheLimits {
        entries: CACHE_ENTRIES * workers,
        bytes: CACHE_BYTES,
        files: (CACHE_FILES * workers).min(descriptors / 8),
        ..CacheLimits::default()
    };
    let say = say::to_stderr();
    // Nobody has started a thread yet.
    let opened = opened::open(&file, &mut config, workers, &say)?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
    let signals = signals.map_err(|error| format!("cannot watch for signals: {error}"))?;
    let runtime = osier::Runtime::builder().workers(workers).name("osier").build();
    let runtime = runtime.map_err(|error| format!("cannot start {workers} workers: {error}; try fewer ('workers')"))?;
    let drain = config.drain;
    let outcome = runtime.run(move || -> Result<(usize, Arc<Live>), Failure> {
        let (mut sites, listening) = Sites::start(file, config, cache, opened, say)?;
        let asked = Arc::new(Asked::default());
        watch(signals, Arc::clone(&asked)).map_err(|error| format!("cannot start a thread: {error}"))?;
        announce(&sites, &listening);
        sites.accept(listening);
        sites.notify.ready(&sites.config.summary());
        loop {
            asked.event.wait();
            if asked.end.load(Ordering::Acquire) {
                sites.notify.stopping("finishing what has begun");
                return Ok((sites.end(), sites.live));
            }
            sites.notify.reloading();
            sites.reload();
            sites.notify.ready(&sites.config.summary());
        }
    });
    drop(runtime);
    let (cut, live) = outcome?;
    for log in live.current().logs() {
        // Not left to Drop: a fiber that would not end may still hold it.
        log.finish();
    }
    if cut > 0 {
        eprintln!(
            "osier: {cut} connections were cut, still busy after {} s ('drain')",
            drain.as_secs()
        );
    }
    Ok(())
}

/// A listener that is bound and does not accept yet.
struct Bound {
    settings: config::Listener,
    slot: usize,
    /// Filled before it accepts.
    live: Arc<std::sync::OnceLock<Arc<Live>>>,
    listening: Listening,
}

impl Sites {
    fn start(
        file: PathBuf,
        config: Config,
        cache: CacheLimits,
        opened: Opened,
        say: Say,
    ) -> Result<(Sites, Vec<Bound>), Failure> {
        let mut bound = Vec::new();
        for ((slot, settings), opened) in config.listeners.iter().enumerate().zip(opened.listeners) {
            bound.push(bind(&config, settings, slot, opened, &say)?);
        }
        let connections: Arc<Mutex<Vec<Connections>>> = Arc::default();
        let admin = opened.admin.map(|listeners| serve_admin(listeners, &connections, &say));
        let admin = admin.transpose()?;
        let slots: Vec<usize> = (0..bound.len()).collect();
        let of_routes = admin.as_ref().map(|(admin, ..)| &**admin);
        let live = Live::new(build(&config, &slots, None, cache, of_routes, &say)?);
        let sites = Sites {
            file,
            slots: slots.len(),
            config,
            live,
            running: Vec::new(),
            draining: Vec::new(),
            cache,
            admin,
            connections,
            notify: opened.notify,
            say,
        };
        Ok((sites, bound))
    }

    fn accept(&mut self, bound: Vec<Bound>) {
        for Bound {
            settings,
            slot,
            live,
            listening,
        } in bound
        {
            let _ = live.set(Arc::clone(&self.live));
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.push(listening.connections());
            self.running.push(Running {
                settings,
                slot,
                stop: listening.handle(),
                fiber: osier::spawn(move || listening.run()),
            });
        }
    }

    /// Takes the file as it is now, or says why not.
    fn reload(&mut self) {
        for log in self.live.current().logs() {
            if let Err(error) = log.reopen() {
                (self.say)(format_args!(
                    "the access log cannot be opened anew: {error}; it goes on in the old file"
                ));
            }
        }
        let file = self.file.clone();
        let loaded = osier::unblock(move || config::load(&file));
        let outcome = match loaded {
            Err(report) => Err(Failure::Mistakes(report)),
            Ok(config) => self.take(config).map_err(Failure::Start),
        };
        let shown = self.file.display();
        match outcome {
            Ok(()) => (self.say)(format_args!("reloaded {shown} ({})", self.config.summary())),
            Err(Failure::Start(why)) => {
                (self.say)(format_args!(
                    "{shown} cannot be used: {why}; the old configuration stays"
                ));
            }
            Err(Failure::Mistakes(report)) => {
                let count = report.len();
                let what = if count == 1 { "a mistake" } else { "mistakes" };
                // Every mistake has its own lines, as 'osier check' prints them.
                (self.say)(format_args!(
                    "{shown} has {what}; the old configuration stays:\n{report}"
                ));
            }
        }
    }

    fn take(&mut self, config: Config) -> Result<(), String> {
        for (what, before, after) in [
            (
                "workers",
                format!("{:?}", self.config.workers),
                format!("{:?}", config.workers),
            ),
            ("user", format!("{:?}", self.config.user), format!("{:?}", config.user)),
            (
                "group",
                format!("{:?}", self.config.group),
                format!("{:?}", config.group),
            ),
            (
                "chroot",
                format!("{:?}", self.config.chroot),
                format!("{:?}", config.chroot),
            ),
            (
                "admin",
                format!("{:?}", self.config.admin),
                format!("{:?}", config.admin),
            ),
            (
                "drain",
                format!("{:?}", self.config.drain),
                format!("{:?}", config.drain),
            ),
        ] {
            if before != after {
                (self.say)(format_args!("'{what}' has changed: that counts from the next start on"));
            }
        }
        let mut slots = Vec::new();
        let mut fresh = Vec::new();
        for settings in &config.listeners {
            let known = self
                .running
                .iter()
                .find(|running| running.settings.bind == settings.bind);
            if let Some(running) = known {
                if !same_but_name(&running.settings, settings) {
                    (self.say)(format_args!(
                        "the settings of listener '{}' have changed: that counts from the next start on",
                        settings.name
                    ));
                }
                slots.push(running.slot);
                continue;
            }
            let slot = self.slots + fresh.len();
            fresh.push(bind(&config, settings, slot, None, &self.say)?);
            slots.push(slot);
        }
        let old = self.live.current();
        let (cache, say) = (self.cache, Arc::clone(&self.say));
        let admin = self.admin.as_ref().map(|(admin, ..)| Arc::clone(admin));
        let (config, snapshot) = osier::unblock(move || {
            let snapshot: Result<Snapshot, String> = build(&config, &slots, Some(&old), cache, admin.as_deref(), &say);
            (config, snapshot)
        });
        self.live.replace(snapshot?);
        self.slots += fresh.len();
        self.accept(fresh);
        let stays = |running: &Running| {
            config
                .listeners
                .iter()
                .any(|settings| settings.bind == running.settings.bind)
        };
        let (kept, gone): (Vec<_>, Vec<_>) = self.running.drain(..).partition(stays);
        self.running = kept;
        for running in gone {
            running.stop.shutdown();
            self.draining.push(running.fiber);
        }
        self.draining.retain(|fiber| !fiber.is_finished());
        self.config = config;
        // A worker without requests would hold the old snapshot, and what only that has, until the next one.
        for worker in 0..osier::workers() {
            let live = Arc::clone(&self.live);
            let refresh = osier::fiber::Builder::new().name("refresh").worker(worker);
            drop(refresh.spawn(move || live.refresh()));
        }
        Ok(())
    }

    /// How many connections had to be cut.
    fn end(&mut self) -> usize {
        if let Some((admin, ..)) = &self.admin {
            admin.drain();
        }
        self.running.iter().for_each(|running| running.stop.shutdown());
        let running = self.running.drain(..).map(|running| running.fiber);
        let fibers: Vec<_> = running.chain(self.draining.drain(..)).collect();
        let cut = fibers.into_iter().map(|fiber| fiber.join().unwrap_or(0)).sum();
        // Up to here it says that this server drains.
        if let Some((_, stop, fiber)) = self.admin.take() {
            stop.shutdown();
            let _ = fiber.join();
        }
        cut
    }
}

/// Serves /health and /metrics.
fn serve_admin(
    listeners: Vec<Listener>,
    connections: &Arc<Mutex<Vec<Connections>>>,
    say: &Say,
) -> Result<(Arc<Admin>, ShutdownHandle, JoinHandle<usize>), String> {
    let connections = Arc::clone(connections);
    let count = move || {
        let connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.iter().map(Connections::count).sum()
    };
    let admin = Arc::new(Admin::new(osier::workers(), count));
    let log = Arc::clone(say);
    let drain = Timeouts {
        drain: ADMIN_DRAIN,
        ..Timeouts::default()
    };
    let server = Server::new(admin.router())
        .timeouts(drain)
        .on_log(move |line| log(line));
    let listening = server.listeners(listeners).map_err(|error| error.to_string())?;
    say(format_args!("/health and /metrics are on {}", listening.address()));
    Ok((admin, listening.handle(), osier::spawn(move || listening.run())))
}

fn same_but_name(a: &config::Listener, b: &config::Listener) -> bool {
    let name = a.name.clone();
    *a == config::Listener { name, ..b.clone() }
}

/// `opened`: listeners that are there already.
fn bind(
    config: &Config,
    settings: &config::Listener,
    slot: usize,
    opened: Option<Vec<Listener>>,
    say: &Say,
) -> Result<Bound, String> {
    let is_fresh = opened.is_none();
    let live: Arc<std::sync::OnceLock<Arc<Live>>> = Arc::default();
    let (answering, recording) = (Arc::clone(&live), Arc::clone(&live));
    let router = Router::new().fallback(move |request: &mut osier_web::Request<'_>| {
        // Set before the first connection is accepted.
        let live = answering.get().expect("a listener accepts after Sites::accept");
        live.answer(slot, request)
    });
    let default = Timeouts::default();
    let timeouts = Timeouts {
        header: settings.timeouts.header.unwrap_or(default.header),
        body: settings.timeouts.body.unwrap_or(default.body),
        idle: settings.timeouts.idle.unwrap_or(default.idle),
        write: settings.timeouts.write.unwrap_or(default.write),
        drain: config.drain,
    };
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let default = Limits::default();
    let limits = Limits {
        request_line: settings.head.request_line.map_or(default.request_line, size),
        head_bytes: settings.head.bytes.map_or(default.head_bytes, size),
        header_count: settings.head.fields.map_or(default.header_count, size),
        // Each route has its own.
        body: u64::MAX,
        ..default
    };
    let log = Arc::clone(say);
    let mut server = Server::new(router)
        .timeouts(timeouts)
        .limits(limits)
        .on_log(move |line| log(line))
        .on_request(move |served| {
            if let Some(live) = recording.get() {
                live.record(served);
            }
        });
    if !settings.proxy_protocol.is_empty() {
        let trusted = settings.proxy_protocol.clone();
        server = server.proxy_protocol(move |peer| {
            trusted.iter().any(|trusted| match (trusted, peer) {
                (Trusted::Net(net), Some(peer)) => net.contains(&peer.to_canonical()),
                (Trusted::Unix, None) => true,
                _ => false,
            })
        });
    }
    if let Some(count) = settings.max_connections {
        server = server.max_connections(count);
    }
    let listening = match (opened, &settings.bind) {
        (Some(listeners), _) => server.listeners(listeners),
        (None, Bind::Tcp(address)) => server.bind(address),
        (None, Bind::Unix(path)) => server.bind_unix(path),
        (None, Bind::Systemd(name)) => Err(io::Error::other(format!(
            "systemd:{name}: sockets of systemd are taken at the start only"
        ))),
    };
    let listening = listening.map_err(|error| cannot_listen(&error))?;
    if let (true, Bind::Unix(path), Some(mode)) = (is_fresh, &settings.bind, settings.mode) {
        fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(|error| format!("cannot change the mode of '{}': {error}", path.display()))?;
    }
    Ok(Bound {
        settings: settings.clone(),
        slot,
        live,
        listening,
    })
}

/// The one line that says where to look. Nobody may be reading it.
fn announce(sites: &Sites, bound: &[Bound]) {
    let addresses: Vec<String> = bound
        .iter()
        .map(|bound| match &bound.settings.bind {
            Bind::Unix(path) => format!("unix:{}", path.display()),
            _ => format!("http://{}/", bound.listening.local_addr()),
        })
        .collect();
    let mut out = io::stdout().lock();
    let (summary, addresses) = (sites.config.summary(), addresses.join(" and "));
    let line = writeln!(
        out,
        "osier: serving {} ({summary}) on {addresses}",
        sites.file.display()
    );
    let _ = line.and_then(|()| out.flush());
}

/// SIGHUP reloads. Of the others, the first drains, the second ends: from a thread of its own, so that it does even when
/// every worker is stuck.
fn watch(mut signals: Signals, asked: Arc<Asked>) -> io::Result<()> {
    let watcher = move || {
        for signal in signals.forever() {
            if signal != SIGHUP && asked.end.swap(true, Ordering::AcqRel) {
                std::process::exit(128 + signal);
            }
            asked.event.set();
        }
    };
    thread::Builder::new()
        .name("osier-signals".into())
        .spawn(watcher)
        .map(drop)
}
