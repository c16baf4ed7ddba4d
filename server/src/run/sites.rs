//! The sites that are served now, and each reload that changes them.
//!
//! # Reload
//! The configuration is read and checked again. With a mistake in it everything stays as it is, and the mistakes are printed.
//! Otherwise new listeners are bound, a snapshot is built (which keeps what has not changed, see `site/build.rs`) and takes the place of the
//! old one, new listeners accept, and removed listeners finish their in-flight requests on their own. Connections of a listener that stays
//! are not touched: a WebSocket, a long response and an idle client go on, and changed settings count for new connections
//! (`listeners.rs`). Log files are opened anew in any case.
//!
//! Only the first fiber changes anything; workers read (`site/live.rs`).

use std::sync::{Arc, Mutex, PoisonError};

use osier_web::Connections;
use osier_web::files::CacheLimits;

use crate::config::{Bind, Config};
use crate::handler;
use crate::metrics::Admin;
use crate::site::live::Live;
use crate::site::{Means, Snapshot, build};

use super::listeners::{Bound, Ending, Given, Modes, Running, wait_closed};
use super::startup::{self, Opened, Process};
use super::{Failure, Origin, admin, url};

/// The configuration as it was at the start.
struct Started(Config);

impl Started {
    /// The keys of a later configuration that count only from another start on.
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

pub struct Sites {
    pub origin: Origin,
    pub process: Process,
    /// The configuration of the start, which decides some keys until the end.
    started: Started,
    pub config: Config,
    pub live: Arc<Live>,
    running: Vec<Running>,
    /// Servers of listeners that are gone or have other settings, until their last connection is.
    draining: Vec<Ending>,
    slots: usize,
    means: Means,
    admin: Option<admin::Running>,
}

impl Sites {
    /// Binds what is not bound yet and opens every handler; accepts nothing.
    pub fn start(
        origin: Origin,
        config: Config,
        cache: CacheLimits,
        process: Process,
        opened: Opened,
    ) -> Result<(Sites, Vec<Bound>), Failure> {
        let mut bound = Vec::new();
        for ((slot, settings), opened) in config.listeners.iter().enumerate().zip(opened.listeners) {
            let given = opened.map_or(Given::Nothing, Given::Opened);
            bound.push(Bound::new(&config, settings, slot, given, &process)?);
        }
        let mut means = Means {
            handlers: handler::Means {
                cache,
                workers: osier::workers(),
                connections: Arc::default(),
                say: Arc::clone(&process.say),
            },
            admin: None,
        };
        let mut serving = None;
        if let (Some(settings), Some(listeners)) = (&config.admin, opened.admin) {
            let admin = means.admin.insert(new_admin(&means.handlers.connections));
            let bound = admin::Bound::new(admin, &settings.bind, listeners, &process.say)?;
            serving = Some(bound.accept(None, &process.say));
        }
        let slots: Vec<usize> = (0..bound.len()).collect();
        let snapshot = build(&config, &slots, None, &means)?;
        snapshot.start();
        let sites = Sites {
            origin,
            process,
            slots: slots.len(),
            started: Started(config.clone()),
            config,
            live: Live::new(snapshot),
            running: Vec::new(),
            draining: Vec::new(),
            means,
            admin: serving,
        };
        Ok((sites, bound))
    }

    /// Has bound listeners accept.
    pub fn accept(&mut self, bound: Vec<Bound>) {
        let running = bound.into_iter().map(|bound| bound.accept(&self.live));
        self.running.extend(running);
        self.recount();
    }

    /// Has the connections counted of all servers there are.
    fn recount(&self) {
        let connections = self.means.handlers.connections.lock();
        let mut connections = connections.unwrap_or_else(PoisonError::into_inner);
        connections.clear();
        connections.extend(self.running.iter().flat_map(Running::connections));
        connections.extend(self.draining.iter().filter_map(|ending| ending.connections.clone()));
    }

    /// Takes the configuration as it is now, or says why not.
    pub fn reload(&mut self) {
        for log in self.live.current().logs() {
            if let Err(error) = log.reopen() {
                (self.process.say)(format_args!(
                    "the access log cannot be opened anew: {error}; it goes on in the old file"
                ));
            }
        }
        let (origin, root) = (self.origin.clone(), self.process.root.clone());
        let loaded = osier::unblock(move || origin.load(root.as_deref()));
        let outcome = match loaded {
            Err(report) => Err(Failure::Mistakes(report)),
            Ok(config) => self.take(config).map_err(Failure::Start),
        };
        let name = self.origin.name();
        let denied = match &outcome {
            Err(Failure::Start(why)) => is_denied(why),
            Err(Failure::Mistakes(report)) => is_denied(&report.to_string()),
            Ok(()) => false,
        };
        if self.started.0.landlock && denied {
            (self.process.say)(format_args!(
                "this process may touch only what the file named when it started; restart it for others ('landlock')"
            ));
        }
        match outcome {
            Ok(()) => (self.process.say)(format_args!("reloaded {}", self.origin.describe(&self.config))),
            Err(Failure::Start(why)) => {
                let within = self.process.root.as_ref();
                let within = within.map_or(String::new(), |root| {
                    format!(" (in the root folder '{}')", root.display())
                });
                (self.process.say)(format_args!(
                    "{name} cannot be used: {why}{within}; the old configuration stays"
                ));
            }
            Err(Failure::Mistakes(report)) => {
                let what = if report.len() == 1 { "a mistake" } else { "mistakes" };
                // Every mistake has its own lines, as 'osier check' prints them.
                (self.process.say)(format_args!(
                    "{name} has {what}; the old configuration stays:\n{report}"
                ));
            }
        }
    }

    fn take(&mut self, config: Config) -> Result<(), String> {
        let mut slots = Vec::new();
        let (mut fresh, mut renewed) = (Vec::new(), Vec::new());
        for settings in &config.listeners {
            let known = self.running.iter().find(|running| *running.bind() == settings.bind);
            let Some(running) = known else {
                let slot = self.slots + fresh.len();
                let given = match &self.admin {
                    Some(admin) if *admin.bind() == settings.bind => Given::Inherited(admin.sockets()?),
                    _ => Given::Nothing,
                };
                fresh.push(Bound::new(&config, settings, slot, given, &self.process)?);
                slots.push(slot);
                continue;
            };
            slots.push(running.slot());
            let keys = running.changed(&config, settings);
            if !keys.is_empty() {
                renewed.push((running.renewed(&config, settings, &self.process)?, keys.join("', '")));
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
            bound.set_mode(self.process.root.as_deref(), &mut modes)?;
        }
        modes.keep();
        snapshot.start();
        // Nothing can fail from here on.
        for key in self.started.changed(&config) {
            (self.process.say)(format_args!("'{key}' has changed: that counts from the next start on"));
        }
        self.live.replace(snapshot);
        self.means = means;
        self.end_gone(&config, &mut fresh, admin);
        self.slots += fresh.len();
        for bound in &fresh {
            (self.process.say)(format_args!("listening on {}", url(bound)));
        }
        self.accept(fresh);
        for (bound, keys) in renewed {
            let name = bound.settings.name.clone();
            let running = self.running.iter_mut().find(|running| running.slot() == bound.slot);
            let running = running.expect("it was found by its address before, and nothing has gone since");
            running.renew(bound, &self.live);
            (self.process.say)(format_args!(
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
            (self.process.say)(format_args!("no longer listening on {}", running.bind()));
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
            self.admin = Some(admin.accept(file, &self.process.say));
        }
    }

    /// The means for the next snapshot, and the bound `[admin]` listener if that changes.
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
            None => startup::open_now(&settings.bind, &self.process, means.handlers.workers)?,
        };
        let admin = means
            .admin
            .get_or_insert_with(|| new_admin(&means.handlers.connections));
        let bound = admin::Bound::new(admin, &settings.bind, listeners, &self.process.say)?;
        Ok((means, Some(bound)))
    }

    /// Shuts down gracefully. Returns how many connections had to be cut.
    pub fn end(&mut self) -> usize {
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
