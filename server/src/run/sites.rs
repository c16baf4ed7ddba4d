//! Serves the sites of a configuration file, from reading it to the end, with every reload between.
//!
//! Called by `main.rs`. Order of a start: read and check the file; bind every listener, or none, and give up privileges (`opened.rs`);
//! start the workers; open what is served; say where; accept. Nothing is served before all of that has worked.
//!
//! # Reload
//! SIGHUP wakes the first fiber. The file is read and checked again: with a mistake in it everything stays as it is, and the
//! mistakes are said. Otherwise new listeners are bound, the snapshot is built (keeping what has not changed, see
//! `site/build.rs`) and put in place of the old one, new listeners accept, and those that are gone drain on their own. No connection of a
//! listener that stays is touched: a WebSocket, a long answer and an idle client go on, and other settings count for those who come
//! (`listeners.rs`). Log files are opened anew in any case.
//!
//! Only the first fiber changes anything; workers read (`site/live.rs`).

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use osier::sync::Event;
use osier_web::Connections;
use osier_web::files::CacheLimits;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{self, Bind, Config, Report};
use crate::log::operator::{self, Say};
use crate::metrics::Admin;
use crate::process::systemd::Notify;
use crate::run::admin;
use crate::run::folder::raise_descriptor_limit;
use crate::run::listeners::{Bound, Ending, From as Sockets, Modes, Running, wait_closed};
use crate::run::startup::{self, Opened};
use crate::site::live::Live;
use crate::site::{Means, Snapshot, build};

/// Memory for small files of each `files` route, over all workers.
const CACHE_BYTES: usize = 64 << 20;
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

/// What the signals ask for.
#[derive(Default)]
struct Asked {
    event: Event,
    end: AtomicBool,
}

/// The file as it was at the start.
struct Started(Config);

impl Started {
    /// The keys of a later file that count only from another start on.
    fn changed(&self, now: &Config) -> impl Iterator<Item = &'static str> {
        let began = &self.0;
        let keys = [
            ("workers", began.workers != now.workers),
            ("user", began.user != now.user),
            ("group", began.group != now.group),
            ("chroot", began.chroot != now.chroot),
            ("landlock", began.landlock != now.landlock),
        ];
        keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key)
    }
}

struct Sites {
    file: PathBuf,
    /// The root folder that this process has taken.
    root: Option<PathBuf>,
    /// The permissions of a Unix socket for which no `mode` is named.
    made_mode: u32,
    /// What counts until the end, whatever the file says.
    started: Started,
    config: Config,
    live: Arc<Live>,
    running: Vec<Running>,
    /// Servers of listeners that are gone or have other settings, until their last connection is.
    draining: Vec<Ending>,
    slots: usize,
    means: Means,
    admin: Option<admin::Running>,
    notify: Notify,
    say: Say,
}

/// Serves until a signal ends it.
pub fn run(file: &Path) -> Result<(), Failure> {
    let mut config = config::load(file, None).map_err(Failure::Mistakes)?;
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
    let say = operator::to_stderr();
    // Nobody has started a thread yet.
    let opened = startup::open(&file, &mut config, workers, &say)?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
    let signals = signals.map_err(|error| format!("cannot watch for signals: {error}"))?;
    let runtime = osier::Runtime::builder().workers(workers).name("osier").build();
    let runtime = runtime.map_err(|error| format!("cannot start {workers} workers: {error}; try fewer ('workers')"))?;
    let outcome = runtime.run(move || -> Result<(usize, Duration, Arc<Live>), Failure> {
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
                return Ok((sites.end(), sites.config.drain, sites.live));
            }
            sites.notify.reloading();
            sites.reload();
            sites.notify.ready(&sites.config.summary());
        }
    });
    drop(runtime);
    let (cut, drain, live) = outcome?;
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

impl Sites {
    fn start(
        file: PathBuf,
        config: Config,
        cache: CacheLimits,
        opened: Opened,
        say: Say,
    ) -> Result<(Sites, Vec<Bound>), Failure> {
        let mut bound = Vec::new();
        let root = opened.root;
        for ((slot, settings), opened) in config.listeners.iter().enumerate().zip(opened.listeners) {
            let from = opened.map_or(Sockets::Nothing, Sockets::Opened);
            bound.push(Bound::new(&config, settings, slot, from, root.as_deref(), &say)?);
        }
        let connections: Arc<Mutex<Vec<Connections>>> = Arc::default();
        let mut means = Means {
            cache,
            admin: None,
            workers: osier::workers(),
            connections,
            say: Arc::clone(&say),
        };
        let mut serving = None;
        if let (Some(settings), Some(listeners)) = (&config.admin, opened.admin) {
            let admin = means.admin.insert(new_admin(&means.connections));
            serving = Some(admin::Bound::new(admin, &settings.bind, listeners, &say)?.accept(None, &say));
        }
        let slots: Vec<usize> = (0..bound.len()).collect();
        let snapshot = build(&config, &slots, None, &means)?;
        snapshot.start();
        let live = Live::new(snapshot);
        let sites = Sites {
            file,
            root,
            made_mode: opened.made_mode,
            slots: slots.len(),
            started: Started(config.clone()),
            config,
            live,
            running: Vec::new(),
            draining: Vec::new(),
            means,
            admin: serving,
            notify: opened.notify,
            say,
        };
        Ok((sites, bound))
    }

    fn accept(&mut self, bound: Vec<Bound>) {
        let running = bound.into_iter().map(|bound| bound.accept(&self.live));
        self.running.extend(running);
        self.recount();
    }

    /// Has the connections counted of all servers there are.
    fn recount(&self) {
        let connections = self.means.connections.lock();
        let mut connections = connections.unwrap_or_else(PoisonError::into_inner);
        connections.clear();
        connections.extend(self.running.iter().flat_map(Running::connections));
        connections.extend(self.draining.iter().filter_map(|ending| ending.connections.clone()));
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
        let root = self.root.clone();
        let loaded = osier::unblock(move || config::load(&file, root.as_deref()));
        let outcome = match loaded {
            Err(report) => Err(Failure::Mistakes(report)),
            Ok(config) => self.take(config).map_err(Failure::Start),
        };
        let shown = self.file.display();
        let denied = match &outcome {
            Err(Failure::Start(why)) => is_denied(why),
            Err(Failure::Mistakes(report)) => is_denied(&report.to_string()),
            Ok(()) => false,
        };
        if self.started.0.landlock && denied {
            (self.say)(format_args!(
                "this process may touch only what the file named when it started; restart it for others ('landlock')"
            ));
        }
        match outcome {
            Ok(()) => (self.say)(format_args!("reloaded {shown} ({})", self.config.summary())),
            Err(Failure::Start(why)) => {
                let within = self.root.as_ref();
                let within = within.map_or(String::new(), |root| {
                    format!(" (in the root folder '{}')", root.display())
                });
                (self.say)(format_args!(
                    "{shown} cannot be used: {why}{within}; the old configuration stays"
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
        let root = self.root.as_deref();
        let mut slots = Vec::new();
        let (mut fresh, mut renewed) = (Vec::new(), Vec::new());
        for settings in &config.listeners {
            let known = self.running.iter().find(|running| *running.bind() == settings.bind);
            let Some(running) = known else {
                let slot = self.slots + fresh.len();
                let from = match &self.admin {
                    Some(admin) if *admin.bind() == settings.bind => Sockets::Sockets(admin.sockets()?),
                    _ => Sockets::Nothing,
                };
                fresh.push(Bound::new(&config, settings, slot, from, root, &self.say)?);
                slots.push(slot);
                continue;
            };
            slots.push(running.slot());
            let keys = running.changed(&config, settings);
            if !keys.is_empty() {
                renewed.push((
                    running.renewed(&config, settings, self.made_mode, root, &self.say)?,
                    keys.join("', '"),
                ));
            }
        }
        let (means, admin) = self.admin_of(&config)?;
        let (old, building) = (self.live.current(), means.clone());
        let (config, snapshot) = osier::unblock(move || {
            let snapshot: Result<Snapshot, String> = build(&config, &slots, Some(&old), &building);
            (config, snapshot)
        });
        let snapshot = snapshot?;
        let mut modes = Modes::default();
        for bound in fresh.iter().chain(renewed.iter().map(|(bound, _)| bound)) {
            bound.set_mode(root, &mut modes)?;
        }
        modes.keep();
        snapshot.start();
        // Nothing can fail from here on.
        for key in self.started.changed(&config) {
            (self.say)(format_args!("'{key}' has changed: that counts from the next start on"));
        }
        self.live.replace(snapshot);
        self.means = means;
        self.end_gone(&config, &mut fresh, admin);
        self.slots += fresh.len();
        for bound in &fresh {
            (self.say)(format_args!("listening on {}", url(bound)));
        }
        self.accept(fresh);
        for (bound, keys) in renewed {
            let name = bound.settings.name.clone();
            let running = self.running.iter_mut().find(|running| running.slot() == bound.slot);
            let running = running.expect("it was found by its address before, and nothing has gone since");
            running.renew(bound, &self.live);
            (self.say)(format_args!(
                "'{keys}' of listener '{name}' counts for the connections that come from now on"
            ));
        }
        self.draining.extend(self.running.iter_mut().flat_map(Running::reap));
        self.draining.retain(|ending| !ending.fiber.is_finished());
        self.recount();
        self.config = config;
        // A worker without requests would hold the old snapshot, and what only that has, until the next one.
        for worker in 0..osier::workers() {
            let live = Arc::clone(&self.live);
            let refresh = osier::fiber::Builder::new().name("refresh").worker(worker);
            drop(refresh.spawn(move || live.refresh()));
        }
        Ok(())
    }

    /// Ends the listeners that `config` has no more, and has its `[admin]` accept. An address of theirs may be somebody else's now, with
    /// its sockets, on which nobody of before is to accept then, and with its file.
    ///
    /// # Suspends
    ///
    /// Until those accept no more, for a second at most.
    fn end_gone(&mut self, config: &Config, fresh: &mut [Bound], admin: Option<admin::Bound>) {
        let stays = |running: &Running| config.listeners.iter().any(|settings| settings.bind == *running.bind());
        let (kept, gone): (Vec<_>, Vec<_>) = self.running.drain(..).partition(stays);
        self.running = kept;
        let has_moved = |bind: &Bind| {
            let to_site = fresh.iter().any(|bound| bound.settings.bind == *bind);
            to_site || admin.as_ref().is_some_and(|admin| admin.bind() == bind)
        };
        let (mut moving, mut files) = (Vec::new(), Vec::new());
        for mut running in gone {
            (self.say)(format_args!("no longer listening on {}", running.bind()));
            let bind = running.bind().clone();
            let file = running.take_file().map(|file| (bind.clone(), file));
            let endings = running.end();
            match has_moved(&bind) {
                true => moving.extend(endings),
                false => self.draining.extend(endings),
            }
            files.extend(file);
        }
        let was_admin = self.admin.take_if(|_| self.config.admin != config.admin);
        if let Some(mut running) = was_admin {
            let bind = running.bind().clone();
            files.extend(running.take_file().map(|file| (bind.clone(), file)));
            match has_moved(&bind) {
                true => moving.push(running.end()),
                false => self.draining.push(running.end()),
            }
        }
        wait_closed(moving.iter().map(|ending| &ending.stop));
        self.draining.extend(moving);
        let mut file_of = |bind: &Bind| {
            let at = files.iter().position(|(of, _)| of == bind)?;
            Some(files.swap_remove(at).1)
        };
        for bound in fresh {
            if let Some(file) = file_of(&bound.settings.bind) {
                bound.take_over(file);
            }
        }
        if let Some(admin) = admin {
            let file = file_of(admin.bind());
            self.admin = Some(admin.accept(file, &self.say));
        }
    }

    /// What the next snapshot is built with, and what `[admin]` listens on if that is to be something else.
    fn admin_of(&self, config: &Config) -> Result<(Means, Option<admin::Bound>), String> {
        let mut means = self.means.clone();
        if self.config.admin == config.admin {
            return Ok((means, None));
        }
        let Some(settings) = &config.admin else {
            means.admin = None;
            return Ok((means, None));
        };
        let listeners = match self.running.iter().find(|running| *running.bind() == settings.bind) {
            Some(running) => running.sockets()?,
            None => startup::open_now(&settings.bind, self.root.as_deref(), means.workers)?,
        };
        let admin = means.admin.get_or_insert_with(|| new_admin(&means.connections));
        let bound = admin::Bound::new(admin, &settings.bind, listeners, &self.say)?;
        Ok((means, Some(bound)))
    }

    /// How many connections had to be cut.
    fn end(&mut self) -> usize {
        if let Some(admin) = &self.means.admin {
            admin.drain();
        }
        self.live.current().stop();
        let running = self.running.drain(..).flat_map(Running::end);
        let endings: Vec<_> = running.chain(self.draining.drain(..)).collect();
        let cut = endings.into_iter().map(|ending| ending.fiber.join().unwrap_or(0)).sum();
        // Up to here it says that this server drains.
        if let Some(admin) = self.admin.take() {
            let _ = admin.end().fiber.join();
        }
        cut
    }
}

/// Whether a mistake may be that something new is named that this process is kept from.
fn is_denied(why: &str) -> bool {
    why.contains("Permission denied") || why.contains("may not read")
}

fn new_admin(connections: &Arc<Mutex<Vec<Connections>>>) -> Arc<Admin> {
    let connections = Arc::clone(connections);
    let count = move || {
        let connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.iter().map(Connections::count).sum()
    };
    Arc::new(Admin::new(osier::workers(), count))
}

fn url(bound: &Bound) -> String {
    match &bound.settings.bind {
        Bind::Unix(path) => format!("unix:{}", path.display()),
        _ => format!("http://{}/", bound.listening.local_addr()),
    }
}

/// The one line that says where to look. Nobody may be reading it.
fn announce(sites: &Sites, bound: &[Bound]) {
    let addresses: Vec<String> = bound.iter().map(url).collect();
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
