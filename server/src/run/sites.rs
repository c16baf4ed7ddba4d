//! The sites that are served now, and each reload that changes them.
//!
//! # Reload
//! The log files are opened again, and the configuration is read and checked. If it has a mistake, everything else
//! stays as it is and the mistakes are logged. Otherwise new listeners are bound and a snapshot is built, which keeps
//! unchanged parts (`site/build.rs`). The snapshot replaces the old one, new listeners accept, and removed listeners
//! finish their in-flight requests.
//!
//! Connections of a listener that stays are not touched: a WebSocket, a long response and an idle client go on. Changed
//! settings of a listener apply to new connections (`listeners.rs`).
//!
//! Only the first fiber changes anything. Workers read through `site/live.rs`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use osier_web::files::CacheLimits;
use osier_web::{Connections, Level, Listener, SocketFile};

use crate::config::{self, Bind, Config, Loaded};
use crate::handler;
use crate::metrics::{Admin, Held, Open};
use crate::reader::Reason;
use crate::site::live::Live;
use crate::site::{Resources, Snapshot, build};

use super::listeners::{Bound, Ending, Modes, Running, is_gone, wait_closed};
use super::paths;
use super::startup::{self, Given, Opened, Process};
use super::{Failure, Origin, admin, url};

/// The configuration of the start. Some of its keys stay in effect until the end.
struct Started(Config);

impl Started {
    /// The keys with changed values that take effect only at the next start.
    fn changed(&self, now: &Config) -> impl Iterator<Item = &'static str> {
        let began = &self.0;
        let keys = [
            ("workers", began.workers != now.workers),
            ("memory", began.memory != now.memory),
            ("user", began.user != now.user),
            ("group", began.group != now.group),
            ("chroot", began.chroot != now.chroot),
            ("landlock", began.landlock != now.landlock),
            ("state", began.state != now.state),
            ("ticket_keys", began.ticket_keys != now.ticket_keys),
            ("pid_file", began.pid_file != now.pid_file),
            ("shared", began.shared != now.shared),
        ];
        keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key)
    }
}

/// The sites that are served, with their listeners.
pub struct Sites {
    pub origin: Origin,
    pub process: Process,
    started: Started,
    /// The configuration in use.
    pub config: Config,
    pub live: Arc<Live>,
    running: Vec<Running>,
    /// Ending servers of removed or renewed listeners. Each is kept until its last connection has ended.
    draining: Vec<Ending>,
    /// The number of slots that were given to listeners so far.
    slots: usize,
    resources: Resources,
    admin: Option<admin::Running>,
}

/// The outcome of a graceful shutdown.
pub struct End {
    /// The number of connections that had to be cut.
    pub cut: usize,
    /// The time that the connections had.
    pub drain: Duration,
    /// The last snapshot, whose access logs may have lines to write.
    pub live: Arc<Live>,
}

/// The listeners that a reload has bound.
#[derive(Default)]
struct BoundListeners {
    /// The slot of each listener of the configuration, new or not.
    slots: Vec<usize>,
    fresh: Vec<Bound>,
    /// Running listeners with other settings, and the keys that have changed.
    renewed: Vec<(Bound, String)>,
}

impl Sites {
    /// Binds the remaining listeners and opens every handler. Nothing accepts yet.
    pub fn start(
        origin: Origin,
        config: Config,
        cache: CacheLimits,
        process: Process,
        opened: Opened,
    ) -> Result<(Sites, Vec<Bound>), Failure> {
        let mut bound = Vec::new();
        for ((slot, settings), given) in config.listeners.iter().enumerate().zip(opened.listeners) {
            let has_arrived = matches!(given, Given::Arrived(_));
            let mut new = Bound::new(&config, settings, slot, given, &process)?;
            if has_arrived {
                // This process may still fail, and then the old one goes on there.
                new.leave_file();
            }
            bound.push(new);
        }
        let mut resources = Resources {
            handlers: handler::Resources {
                cache,
                workers: osier::workers(),
                connections: Arc::default(),
                say: process.say.clone(),
                upgrade: process.upgrade.clone(),
            },
            admin: None,
            certificates: Arc::clone(&process.certificates),
        };
        let mut serving = None;
        if let (Some(settings), Some(given)) = (&config.admin, opened.admin) {
            let sockets = match given {
                Given::Opened(sockets) => (sockets, process.socket_file(&settings.bind)),
                Given::Arrived(sockets) | Given::Inherited(sockets) => (sockets, None),
                Given::Nothing => (Vec::new(), None),
            };
            let admin = resources
                .admin
                .insert(new_admin(&process, &resources.handlers.connections));
            let bound = admin::Bound::new(admin, &settings.bind, sockets, &process.say, &process.upgrade)?;
            serving = Some(bound.accept(None, &process.say));
        }
        let slots: Vec<usize> = (0..bound.len()).collect();
        let snapshot = build(&config, &slots, None, &resources)?;
        snapshot.start(&process.upgrade);
        resources.show(&snapshot);
        let sites = Sites {
            origin,
            process,
            slots: slots.len(),
            started: Started(config.clone()),
            config,
            live: Live::new(snapshot),
            running: Vec::new(),
            draining: Vec::new(),
            resources,
            admin: serving,
        };
        Ok((sites, bound))
    }

    /// Lets bound listeners accept.
    pub fn accept(&mut self, bound: Vec<Bound>) {
        let running = bound.into_iter().map(|bound| bound.accept(&self.live));
        self.running.extend(running);
        self.recount();
    }

    /// Takes over the files of Unix sockets, once no other process serves on them.
    pub fn own_files(&mut self) {
        for running in &mut self.running {
            running.own_file(&self.process);
        }
        if let Some(admin) = &mut self.admin {
            admin.own_file(&self.process);
        }
    }

    /// Updates the list of connections that metrics and the welcome site read.
    fn recount(&self) {
        let connections = self.resources.handlers.connections.lock();
        let mut connections = connections.unwrap_or_else(PoisonError::into_inner);
        connections.clear();
        connections.extend(self.running.iter().flat_map(Running::connections));
        connections.extend(self.draining.iter().filter_map(|ending| ending.connections.clone()));
    }

    /// Opens the log files again, after somebody has renamed them.
    pub fn reopen(&self) {
        self.process.log.reopen();
        for log in self.live.current().logs() {
            if let Err(error) = log.reopen() {
                self.process.say.error(format_args!(
                    "cannot reopen the access log {error}; it continues in the old file"
                ));
            }
        }
    }

    /// Reads and applies the configuration again.
    ///
    /// # Errors
    /// One line: why the configuration cannot be used. The log has the whole reason.
    pub fn reload(&mut self) -> Result<(), String> {
        self.reopen();
        let (origin, root) = (self.origin.clone(), self.process.root.clone());
        let loaded = osier::unblock(move || origin.load(root.as_deref()));
        let outcome = match loaded {
            Err(report) => Err(Failure::Mistakes(report)),
            Ok(Loaded { config, warnings }) => {
                let applied = self.apply(config).map_err(Failure::Start);
                if let (Ok(()), Some(warnings)) = (&applied, warnings) {
                    let text = format_args!("{} has warnings:", self.origin.name());
                    self.process.say.report(Level::Warning, text, &warnings);
                }
                applied
            }
        };
        self.process.totals.reloaded(outcome.is_ok());
        match outcome {
            Ok(()) => {
                self.warn_of_missing_folder();
                self.process
                    .say
                    .info(format_args!("reloaded {}", self.origin.describe(&self.config)));
                Ok(())
            }
            Err(failure) => Err(self.say_not_reloaded(failure)),
        }
    }

    /// Warns if the folder of a command line does not exist.
    fn warn_of_missing_folder(&self) {
        let origin = self.origin.clone();
        let missing = osier::unblock(move || {
            let missing = origin.check_folder().err();
            missing.map(|(folder, error)| handler::cannot_serve(folder, &error))
        });
        if let Some(why) = missing {
            self.process
                .say
                .warning(format_args!("{why}; requests get 503 until it is there"));
        }
    }

    /// Logs why a reload has failed. Returns the reason in one line.
    fn say_not_reloaded(&self, failure: Failure) -> String {
        let (name, say) = (self.origin.name(), &self.process.say);
        let is_denied = match &failure {
            Failure::Start(why) => why.is_denied(),
            Failure::Mistakes(report) => report.is_denied(),
        };
        if self.started.0.landlock && is_denied {
            say.warning(format_args!(
                "'landlock' limits this process to the paths that the file named at start; restart the server to use others"
            ));
        }
        match failure {
            Failure::Start(why) => {
                let within = self.process.root.as_ref();
                let within = within.map_or(String::new(), |root| {
                    format!(" (in the root folder '{}')", root.display())
                });
                // The reason names the folder of a command line.
                let subject = self
                    .origin
                    .file()
                    .map_or(String::new(), |_| format!("{name} cannot be used: "));
                say.error(format_args!("{subject}{why}{within}; the old configuration stays"));
                why.to_string()
            }
            Failure::Mistakes(report) => {
                let what = if report.len() == 1 { "a mistake" } else { "mistakes" };
                // Each mistake has lines of its own, in the format of 'osier check'.
                let text = format_args!("{name} has {what}; the old configuration stays:");
                say.report(Level::Error, text, &report);
                report.first_mistake().unwrap_or(what.to_owned())
            }
        }
    }

    /// Puts a configuration into use.
    ///
    /// # Errors
    /// One line: why it cannot be used. Everything is as it was then.
    fn apply(&mut self, config: Config) -> Result<(), Reason> {
        self.apply_with(config, Vec::new())
    }

    /// Same as [`apply`](Sites::apply), with sockets that are open already.
    fn apply_with(&mut self, config: Config, mut opened: Vec<(Bind, Vec<Listener>)>) -> Result<(), Reason> {
        let config = self.permitted(config, &opened)?;
        let BoundListeners {
            slots,
            mut fresh,
            renewed,
        } = self.bind(&config, &mut opened)?;
        let tickets = self.process.tickets.clone();
        if let Err(error) = osier::unblock(move || tickets.reload()) {
            self.process
                .say
                .error(format_args!("'ticket_keys': {error}; the old keys stay"));
        }
        let (resources, admin) = self.prepare_admin(&config, opened)?;
        let (old, building) = (self.live.current(), resources.clone());
        let kept = slots.clone();
        let (config, snapshot) = osier::unblock(move || {
            let snapshot: Result<Snapshot, Reason> = build(&config, &slots, Some(&old), &building);
            (config, snapshot)
        });
        let snapshot = snapshot?;
        let mut modes = Modes::default();
        for bound in fresh.iter().chain(renewed.iter().map(|(bound, _)| bound)) {
            bound.set_mode(self.process.root.as_deref(), &mut modes)?;
        }
        modes.keep();
        // Every step that can fail is done.
        snapshot.start(&self.process.upgrade);
        for key in self.started.changed(&config) {
            self.process.say.warning(format_args!(
                "'{key}' has changed: the change takes effect at the next start"
            ));
        }
        resources.show(&snapshot);
        self.live.replace(snapshot);
        let (log, settings) = (Arc::clone(&self.process.log), config.error_log.clone());
        osier::unblock(move || log.open(&settings));
        self.resources = resources;
        self.end_gone(&config, &kept, &mut fresh, admin);
        self.slots += fresh.len();
        for bound in &fresh {
            self.process.say.info(format_args!("listening on {}", url(bound)));
        }
        self.accept(fresh);
        self.renew(renewed);
        self.draining.extend(self.running.iter_mut().flat_map(Running::reap));
        self.draining.retain(|ending| !ending.fiber.is_finished());
        self.recount();
        self.config = config;
        self.process
            .certificates
            .keep(self.config.subjects(), self.config.on_demand());
        self.refresh_workers();
        Ok(())
    }

    /// The configuration without an optional listener that was not to be had at the start, and is not tried again.
    ///
    /// # Errors
    /// One line: a path that Landlock denies.
    fn permitted(&self, mut config: Config, opened: &[(Bind, Vec<Listener>)]) -> Result<Config, Reason> {
        let is_gone = |listener: &config::Listener| {
            listener.is_optional
                && !self.running.iter().any(|running| *running.bind() == listener.bind)
                && !opened.iter().any(|(bind, _)| *bind == listener.bind)
        };
        if let Some(index) = config.listeners.iter().position(is_gone) {
            config.remove_listener(index);
        }
        if !self.started.0.landlock {
            return Ok(config);
        }
        osier::unblock(move || match paths::denied(&mut config) {
            Some(why) => Err(why),
            None => Ok(config),
        })
    }

    /// Binds the listeners of a configuration that do not run yet, or run with other settings.
    fn bind(&self, config: &Config, opened: &mut Vec<(Bind, Vec<Listener>)>) -> Result<BoundListeners, Reason> {
        let mut bound = BoundListeners::default();
        for settings in &config.listeners {
            let Some(running) = self.counterpart(config, settings, &bound.slots) else {
                let slot = self.slots + bound.fresh.len();
                let given = match &self.admin {
                    Some(admin) if is_one_place(admin.bind(), &settings.bind) => Given::Inherited(admin.sockets()?),
                    _ => take_of(opened, &settings.bind).map_or(Given::Nothing, Given::Arrived),
                };
                bound
                    .fresh
                    .push(Bound::new(config, settings, slot, given, &self.process)?);
                bound.slots.push(slot);
                continue;
            };
            bound.slots.push(running.slot());
            let keys = running.changed(config, settings);
            match running.rebound(config, settings, &self.process) {
                Some(Ok(rebound)) => {
                    bound.renewed.push((rebound, keys.join("', '")));
                    continue;
                }
                Some(Err(why)) => self.say_lost(&settings.bind, &why),
                None => {}
            }
            if !keys.is_empty() {
                let renewed = running.renewed(config, settings, &self.process)?;
                bound.renewed.push((renewed, keys.join("', '")));
            }
        }
        Ok(bound)
    }

    /// Lets listeners with other settings accept the new connections.
    fn renew(&mut self, renewed: Vec<(Bound, String)>) {
        for (bound, keys) in renewed {
            let name = bound.settings.name.clone();
            if bound.has_file() {
                self.process.say.warning(format_args!(
                    "the socket file of {} had been removed: it is made again",
                    bound.settings.bind
                ));
            }
            let running = self.running.iter_mut().find(|running| running.slot() == bound.slot);
            let running = running.expect("it was found by its address before, and nothing has gone since");
            running.renew(bound, &self.live);
            if !keys.is_empty() {
                self.process.say.info(format_args!(
                    "'{keys}' of listener '{name}': new connections get the change"
                ));
            }
        }
    }

    /// Logs that a removed socket file cannot be made again. The reload goes on without it.
    fn say_lost(&self, bind: &Bind, why: &Reason) {
        self.process.say.error(format_args!(
            "the socket file of {bind} has been removed, and no client finds it: {why}; or restart the server"
        ));
    }

    /// Makes each worker drop its copy of the old snapshot, and everything that only this snapshot holds. A worker
    /// without requests would keep it until its next request.
    fn refresh_workers(&self) {
        for worker in 0..osier::workers() {
            let live = Arc::clone(&self.live);
            let refresh = osier::fiber::Builder::new().name("refresh").worker(worker);
            drop(refresh.spawn(move || live.refresh()));
        }
    }

    /// The running listener that goes on with `settings`. The listeners of the slots in `taken` have found their
    /// settings already. Names tell apart several listeners with the same address, whose ports the system chooses.
    fn counterpart(&self, config: &Config, settings: &config::Listener, taken: &[usize]) -> Option<&Running> {
        let is_named =
            |running: &Running, by: &config::Listener| *running.bind() == by.bind && running.name() == by.name;
        let is_free = |running: &&Running| *running.bind() == settings.bind && !taken.contains(&running.slot());
        let mut free = self.running.iter().filter(is_free);
        let named = free.clone().find(|running| is_named(running, settings));
        named.or_else(|| free.find(|running| !config.listeners.iter().any(|other| is_named(running, other))))
    }

    /// Ends the listeners whose slots are not in `kept`, and lets the new `[admin]` accept. The address of an ended
    /// listener may belong to a new one now. That has taken over the sockets already, and takes over the socket file
    /// here, once the ended one accepts no more.
    ///
    /// # Suspends
    /// Until a listener whose address has moved accepts no more, for a second at most.
    fn end_gone(&mut self, config: &Config, kept: &[usize], fresh: &mut [Bound], admin: Option<admin::Bound>) {
        let stays = |running: &Running| kept.contains(&running.slot());
        let (kept, gone): (Vec<_>, Vec<_>) = self.running.drain(..).partition(stays);
        self.running = kept;
        let has_moved = |bind: &Bind| {
            let to_site = fresh.iter().any(|bound| bound.settings.bind == *bind);
            to_site || admin.as_ref().is_some_and(|admin| admin.bind() == bind)
        };
        let (mut moving, mut files) = (Vec::new(), Vec::new());
        for mut running in gone {
            self.process
                .say
                .info(format_args!("no longer listening on {}", running.bind()));
            let bind = running.bind().clone();
            let file = running.take_file().map(|file| (bind.clone(), file));
            let endings = running.end_logged(&self.process.say);
            match has_moved(&bind) {
                true => moving.extend(endings),
                false => self.draining.extend(endings),
            }
            files.extend(file);
        }
        let was_admin = self.admin.take_if(|_| admin.is_some() || config.admin.is_none());
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

    /// Prepares for an upgrade whose new process has the servers that it `takes`. Returns the names of the others that this process could not
    /// bind again, which it therefore keeps until its end, and the socket files of the rest.
    pub fn leave(&mut self, takes: impl Fn(&str) -> bool) -> (Vec<String>, Vec<(Bind, SocketFile)>) {
        let (mut kept, mut files) = (Vec::new(), Vec::new());
        let running = self.running.iter_mut();
        for running in running.filter(|running| !takes(&running.name_in_upgrades())) {
            let bind = running.bind().clone();
            match startup::may_open_again(&bind, &self.process) {
                true => files.extend(running.take_file().map(|file| (bind, file))),
                false => kept.push(running.name_in_upgrades()),
            }
        }
        let admin = self.admin.as_mut();
        if let Some(admin) = admin.filter(|admin| !takes(&admin.name_in_upgrades())) {
            let bind = admin.bind().clone();
            match startup::may_open_again(&bind, &self.process) {
                true => files.extend(admin.take_file().map(|file| (bind, file))),
                false => kept.push(admin.name_in_upgrades()),
            }
        }
        (kept, files)
    }

    /// Notes that the new process of an upgrade serves. This one no longer listens where it `gives_up`.
    pub fn give_up(&mut self, gives_up: impl Fn(&str) -> bool) {
        let gone = self.running.iter_mut();
        for running in gone.filter(|running| gives_up(&running.name_in_upgrades())) {
            running.give_up();
            self.process
                .say
                .info(format_args!("upgrade: no longer listening on {}", running.bind()));
        }
        let admin = self.admin.as_mut();
        if let Some(admin) = admin.filter(|admin| gives_up(&admin.name_in_upgrades())) {
            admin.give_up();
        }
    }

    /// Listens again where the new process of an upgrade did not, because that process has failed. `files`: the socket files of a process
    /// that has never served.
    pub fn regain(&mut self, files: Vec<(Bind, SocketFile)>) {
        for (bind, file) in files {
            if let Some(running) = self.running.iter_mut().find(|running| *running.bind() == bind) {
                running.put_file(file);
            } else if let Some(admin) = &mut self.admin {
                admin.put_file(file);
            }
        }
        let (gone, kept): (Vec<_>, Vec<_>) = self.running.drain(..).partition(Running::is_given_up);
        self.running = kept;
        let admin = self.admin.take_if(|admin| admin.is_given_up());
        if gone.is_empty() && admin.is_none() {
            return;
        }
        let (mut config, mut opened) = (self.config.clone(), Vec::new());
        for running in gone {
            let (bind, name) = (running.bind().clone(), running.name().to_owned());
            match self.open_again(&bind, running.sockets(), self.process.spelling.address) {
                Some(sockets) => opened.push((bind, sockets)),
                None => {
                    let is_there = |listener: &config::Listener| listener.bind == bind;
                    let is_it = |listener: &config::Listener| is_there(listener) && listener.name == name;
                    // A reload may have given it another name.
                    let listeners = &config.listeners;
                    let index = { listeners.iter().position(is_it) }.or_else(|| listeners.iter().position(is_there));
                    index.into_iter().for_each(|index| config.remove_listener(index));
                }
            }
            self.draining.extend(running.end_logged(&self.process.say));
        }
        if let Some(admin) = admin {
            let bind = admin.bind().clone();
            match self.open_again(&bind, admin.sockets(), self.process.spelling.admin) {
                Some(sockets) => opened.push((bind, sockets)),
                None => config.admin = None,
            }
            self.draining.push(admin.end());
        }
        if let Err(why) = self.apply_with(config, opened) {
            self.process.say.error(format_args!(
                "upgrade: this process no longer listens where the new one did not: {why}; reload or restart the server"
            ));
        }
        self.recount();
    }

    /// The sockets of an address that the new process of an upgrade did not have: `sockets`, if they are not closed yet. Logs why there are
    /// none.
    fn open_again(&self, bind: &Bind, sockets: Result<Vec<Listener>, String>, setting: &str) -> Option<Vec<Listener>> {
        let workers = self.resources.handlers.workers;
        // A worker that is busy may have the old socket, whose file has gone.
        let reachable = sockets.ok().filter(|_| !is_gone(bind, &self.process));
        let opened = reachable.map_or_else(|| startup::open_now(bind, setting, &self.process, workers), Ok);
        let log = |why: &Reason| {
            self.process.say.error(format_args!(
                "upgrade: this process no longer listens on {bind}: {why}; then reload the server"
            ));
        };
        opened.inspect_err(log).ok()
    }

    /// Prepares the means of the next snapshot. Binds the `[admin]` listener if it has changed.
    fn prepare_admin(
        &self,
        config: &Config,
        mut opened: Vec<(Bind, Vec<Listener>)>,
    ) -> Result<(Resources, Option<admin::Bound>), Reason> {
        let mut resources = self.resources.clone();
        let is_there = self.admin.is_some() || config.admin.is_none();
        let is_same = self.config.admin == config.admin && is_there;
        let is_gone = config
            .admin
            .as_ref()
            .is_some_and(|admin| is_gone(&admin.bind, &self.process));
        if is_same && !is_gone {
            return Ok((resources, None));
        }
        let Some(settings) = &config.admin else {
            resources.admin = None;
            return Ok((resources, None));
        };
        let mut running = self.running.iter();
        let sockets = match running.find(|running| is_one_place(running.bind(), &settings.bind)) {
            Some(running) => (running.sockets()?, None),
            None => {
                let setting = self.process.spelling.admin;
                let workers = resources.handlers.workers;
                let opened = take_of(&mut opened, &settings.bind).map_or_else(
                    || startup::open_now(&settings.bind, setting, &self.process, workers),
                    Ok,
                );
                match opened {
                    Err(why) if is_same => {
                        self.say_lost(&settings.bind, &why);
                        return Ok((resources, None));
                    }
                    opened => (opened?, self.process.socket_file(&settings.bind)),
                }
            }
        };
        let admin = resources
            .admin
            .get_or_insert_with(|| new_admin(&self.process, &resources.handlers.connections));
        let bound = admin::Bound::new(admin, &settings.bind, sockets, &self.process.say, &self.process.upgrade)?;
        Ok((resources, Some(bound)))
    }

    /// Writes the id of this process into the PID file, if there is one.
    pub fn write_pid_file(&self) {
        if let Some(file) = &self.process.pid_file
            && let Err(error) = file.write(std::process::id())
        {
            self.process
                .say
                .error(format_args!("cannot write the PID file: {error}"));
        }
    }

    /// Logs why there was no upgrade. Unless another one is under way, reports it to the service manager, and to
    /// `osier upgrade` by writing the PID file again.
    pub fn say_not_upgraded(&self, why: &str, is_busy: bool) {
        self.process
            .say
            .error(format_args!("upgrade: {why}; this process goes on serving"));
        if !is_busy {
            self.process.notify.not_upgraded(why);
            self.write_pid_file();
        }
    }

    /// Shuts down after a new process has taken over. Leaves it the PID file and the files of Unix sockets.
    ///
    /// # Suspends
    /// Until the last connection has ended or was cut.
    pub fn end_after_upgrade(mut self, takes: impl Fn(&str) -> bool) -> End {
        let running = self.running.iter_mut();
        let taken = running.filter(|running| takes(&running.name_in_upgrades()));
        taken.for_each(Running::leave_file);
        let admin = self.admin.as_mut();
        if let Some(admin) = admin.filter(|admin| takes(&admin.name_in_upgrades())) {
            admin.leave_file();
        }
        let left = match self.open() {
            0 => String::new(),
            _ => format!("; {}", self.left()),
        };
        self.process.say.info(format_args!(
            "upgrade: the new process has taken over, and this one ends{left}"
        ));
        self.end()
    }

    /// Logs that a graceful shutdown begins, and how long it may take.
    pub fn announce_end(&self) {
        let left = self.left();
        self.process
            .say
            .info(format_args!("stopping: {left}; a second signal ends at once"));
    }

    /// The number of open connections.
    fn open(&self) -> usize {
        let running = self.running.iter().flat_map(Running::connections);
        let draining = self.draining.iter().filter_map(|ending| ending.connections.clone());
        running.chain(draining).map(|connections| connections.count()).sum()
    }

    /// Says what a graceful shutdown finds at its beginning.
    fn left(&self) -> String {
        let open = self.open();
        let are = if open == 1 { " is" } else { "s are" };
        let seconds = self.config.drain.as_secs_f64();
        format!("{open} connection{are} open; in-flight requests get at most {seconds} s")
    }

    /// Shuts down gracefully.
    ///
    /// # Suspends
    /// Until the last connection has ended or was cut.
    pub fn end(mut self) -> End {
        if let Some(admin) = &self.resources.admin {
            admin.drain();
        }
        self.live.current().stop();
        let running = self.running.drain(..).flat_map(Running::end);
        let endings: Vec<_> = running.chain(self.draining.drain(..)).collect();
        let cut = endings.into_iter().map(|ending| ending.fiber.join().unwrap_or(0)).sum();
        // /health has reported the shutdown up to here.
        if let Some(admin) = self.admin.take() {
            let _ = admin.end().fiber.join();
        }
        End {
            cut,
            drain: self.config.drain,
            live: self.live,
        }
    }
}

/// Whether `[admin]` and a `[[listen]]` have one address, so that sockets move between them.
fn is_one_place(a: &Bind, b: &Bind) -> bool {
    a == b && !a.has_any_port()
}

/// Takes the sockets of an address.
fn take_of(opened: &mut Vec<(Bind, Vec<Listener>)>, bind: &Bind) -> Option<Vec<Listener>> {
    let at = opened.iter().position(|(of, _)| of == bind)?;
    Some(opened.swap_remove(at).1)
}

/// Makes the counters of `[admin]`.
fn new_admin(process: &Process, connections: &Arc<Mutex<Vec<Connections>>>) -> Arc<Admin> {
    let connections = Arc::clone(connections);
    let count = move || {
        let connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
        Open::of(&connections)
    };
    let certificates = Arc::clone(&process.certificates);
    let look = move |count| Held {
        ends: certificates.ends(count),
        missing: certificates.missing(),
        orders: certificates.orders(),
    };
    Arc::new(Admin::new(Arc::clone(&process.totals), count, Box::new(look)))
}
