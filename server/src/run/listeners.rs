//! The listeners of sites: bound, then running, perhaps renewed with other settings, then ending.
//!
//! Only the first fiber touches listeners. A [`Bound`] has no connections yet, so dropping it loses nothing. A
//! [`Running`] accepts.
//!
//! The settings of a server never change under its connections. To change the settings of a listener, a second server
//! is bound to clones of the same sockets and accepts the new connections. The first server stops accepting, and keeps
//! its connections until they end or the listener does. The same happens to a listener whose socket file somebody has removed, but the
//! second server is bound to a new socket.
//!
//! A server is ended only after its accept loops have stopped. Before that its connection count may read 0 while a
//! client is being accepted, and that client would be dropped.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use osier::JoinHandle;
use osier_tls::{Acceptor, Hello, Identity, Resolver, Tickets, Version};
use osier_web::{
    Connections, Handler, Limits, Listener, Listening, Request, Server, ShutdownHandle, SocketFile, Sockets, Timeouts,
};

use crate::certificates::challenges::PROTOCOL;
use crate::config::{self, Bind, ClientTls, Config, ListenTls, TlsVersion};
use crate::log::operator::Say;
use crate::process::handed;
use crate::process::root::inside;
use crate::reader::Reason;
use crate::site::live::Live;

use super::names;
use super::startup::{Given, Process, cannot_listen};

/// The longest time that a reload waits until a server accepts no more. A busy worker delays its accepting fiber.
const CLOSING: Duration = Duration::from_secs(1);

/// How often the reload checks that. An idle worker needs less time than this.
const CLOSING_TICK: Duration = Duration::from_millis(1);

/// A listener that is bound and does not accept yet.
pub struct Bound {
    pub settings: config::Listener,
    pub slot: usize,
    drain: Duration,
    /// The snapshots that answer. Set before the listener accepts.
    live: Arc<OnceLock<Arc<Live>>>,
    pub listening: Listening,
    file: Option<SocketFile>,
    /// Permissions for the socket file, if it exists already: the listener is taken over or renewed.
    mode: Option<u32>,
}

/// A listener that accepts.
pub struct Running {
    settings: config::Listener,
    drain: Duration,
    /// The listener's number in snapshots. No later listener gets the same one.
    slot: usize,
    /// The sockets of the last server, for one with other settings.
    sockets: Sockets,
    /// The socket file. It belongs to the listener and not to one of its servers.
    file: Option<SocketFile>,
    /// Whether the new process of an upgrade serves, and does not have this listener.
    is_given_up: bool,
    /// The last server accepts. Earlier ones keep the connections that they have.
    servers: Vec<Serving>,
}

/// One server of a listener.
struct Serving {
    stop: ShutdownHandle,
    fiber: JoinHandle<usize>,
    connections: Connections,
}

/// A server that is ending.
pub struct Ending {
    pub stop: ShutdownHandle,
    /// Returns how many connections had to be cut.
    pub fiber: JoinHandle<usize>,
    /// The connections of clients. None for `[admin]`, whose connections are not counted.
    pub connections: Option<Connections>,
}

/// Permissions of socket files that a reload has changed. Dropping it without [`Modes::keep`] restores the old ones.
#[derive(Default)]
pub struct Modes(Vec<(PathBuf, u32)>);

impl Bound {
    /// Binds a listener, or takes over the sockets in `given`.
    pub fn new(
        config: &Config,
        settings: &config::Listener,
        slot: usize,
        given: Given,
        process: &Process,
    ) -> Result<Bound, Reason> {
        let live: Arc<OnceLock<Arc<Live>>> = Arc::default();
        let server = server(config, settings, slot, &live, process)?;
        let is_new = matches!(given, Given::Nothing);
        let is_taken_over = matches!(given, Given::Inherited(_) | Given::Arrived(_));
        let is_there = matches!(given, Given::Opened(_) | Given::Arrived(_));
        let file = match &settings.bind {
            Bind::Unix(path) => process.inside(path),
            _ => None,
        };
        let listening = match (given, &settings.bind, &file) {
            (Given::Opened(sockets) | Given::Arrived(sockets) | Given::Inherited(sockets), ..) => {
                server.listeners(sockets)
            }
            (Given::Nothing, Bind::Tcp(address), _) => server.bind(address),
            (Given::Nothing, Bind::Unix(_), Some(file)) => server.bind_unix(file),
            (Given::Nothing, bind, _) => Err(io::Error::other(format!(
                "{bind} can be taken over only at start: restart the server"
            ))),
        };
        let mut listening =
            listening.map_err(|error| cannot_listen(&error, &settings.bind, process.spelling.address))?;
        if let (true, Some(file), Some(mode)) = (is_new, &file, settings.mode) {
            handed::set_socket_mode(file, mode).map_err(|error| no_mode(file, &error))?;
        }
        Ok(Bound {
            settings: settings.clone(),
            slot,
            drain: config.drain,
            live,
            file: match &file {
                Some(file) if is_there => SocketFile::of(file),
                _ => listening.take_file(),
            },
            listening,
            mode: settings.mode.filter(|_| is_taken_over),
        })
    }

    /// Changes the permissions of an existing socket file. `modes` can undo it.
    pub fn set_mode(&self, root: Option<&Path>, modes: &mut Modes) -> Result<(), String> {
        match (&self.settings.bind, self.mode) {
            (Bind::Unix(path), Some(mode)) => modes.change(path, root, mode),
            _ => Ok(()),
        }
    }

    /// Whether it has made its socket file itself.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Keeps the socket file from being removed, because the process before an upgrade serves on it still.
    pub fn leave_file(&mut self) {
        self.file.take().into_iter().for_each(SocketFile::keep);
    }

    /// Takes over the socket file of another listener at this address.
    pub fn take_over(&mut self, file: SocketFile) {
        self.file = Some(file);
    }

    /// Starts a server: `site` answers its requests.
    fn serve(live: &Arc<OnceLock<Arc<Live>>>, listening: Listening, site: &Arc<Live>) -> Serving {
        let _ = live.set(Arc::clone(site));
        Serving {
            stop: listening.handle(),
            connections: listening.connections(),
            fiber: osier::spawn(move || listening.run()),
        }
    }

    /// Begins to accept.
    pub fn accept(self, site: &Arc<Live>) -> Running {
        Running {
            sockets: self.listening.sockets(),
            servers: vec![Bound::serve(&self.live, self.listening, site)],
            settings: self.settings,
            drain: self.drain,
            slot: self.slot,
            file: self.file,
            is_given_up: false,
        }
    }
}

impl Modes {
    fn change(&mut self, path: &Path, root: Option<&Path>, mode: u32) -> Result<(), String> {
        let Some(file) = inside(root, path) else {
            let why = "it lies outside of the root folder of this process";
            return Err(no_mode(path, &why));
        };
        let changed = fs::metadata(&file).and_then(|found| {
            handed::set_socket_mode(&file, mode)?;
            Ok(found.permissions().mode())
        });
        let old = changed.map_err(|error| no_mode(path, &error))?;
        self.0.push((file, old));
        Ok(())
    }

    /// Keeps the changes.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        for (file, old) in self.0.drain(..) {
            // The same call has just succeeded, so an error is unlikely. There is no remedy for one.
            let _ = handed::set_socket_mode(&file, old & 0o7777);
        }
    }
}

fn no_mode(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("cannot change the mode of '{}': {why}", path.display())
}

/// Clones the sockets of an address.
pub fn clones(sockets: &Sockets, bind: &Bind) -> Result<Vec<Listener>, String> {
    let clones = sockets.try_clone();
    clones.map_err(|error| format!("cannot copy the sockets of '{bind}': {error}"))
}

/// Whether somebody has removed the socket file of an address, so that no client finds it any more.
pub fn is_gone(bind: &Bind, process: &Process) -> bool {
    let Bind::Unix(path) = bind else { return false };
    let found = process.inside(path).map(fs::symlink_metadata);
    found.is_some_and(|found| found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound))
}

/// Waits until servers that were closed accept no more.
///
/// # Suspends
/// Until then, for [`CLOSING`] at most.
pub fn wait_closed<'s>(servers: impl Iterator<Item = &'s ShutdownHandle> + Clone) {
    let asked = Instant::now();
    while !servers.clone().all(ShutdownHandle::is_closed) && asked.elapsed() < CLOSING {
        osier::sleep(CLOSING_TICK);
    }
}

impl Running {
    pub fn bind(&self) -> &Bind {
        &self.settings.bind
    }

    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Its name in upgrades.
    pub fn name_in_upgrades(&self) -> String {
        names::of_listener(&self.settings)
    }

    pub fn slot(&self) -> usize {
        self.slot
    }

    /// The keys whose values in `settings` and `config` differ from those of this listener.
    pub fn changed(&self, config: &Config, settings: &config::Listener) -> Vec<&'static str> {
        let old = &self.settings;
        let keys = [
            ("proxy_protocol", old.proxy_protocol != settings.proxy_protocol),
            ("max_connections", old.max_connections != settings.max_connections),
            (
                "max_connections_per_client",
                old.max_connections_per_client != settings.max_connections_per_client,
            ),
            ("mode", old.mode != settings.mode),
            ("timeouts", old.timeouts != settings.timeouts),
            ("rates", old.rates != settings.rates),
            ("head", old.head != settings.head),
            ("tls", old.tls != settings.tls),
            ("http2", old.http2 != settings.http2),
            ("drain", self.drain != config.drain),
        ];
        keys.into_iter()
            .filter(|(_, differs)| *differs)
            .map(|(key, _)| key)
            .collect()
    }

    /// The connections of all servers of this listener.
    pub fn connections(&self) -> impl Iterator<Item = Connections> {
        self.servers.iter().map(|server| server.connections.clone())
    }

    /// Binds this listener again, with other settings. The result does not accept yet.
    pub fn renewed(&self, config: &Config, settings: &config::Listener, process: &Process) -> Result<Bound, Reason> {
        let sockets = self.sockets()?;
        let mut bound = Bound::new(config, settings, self.slot, Given::Inherited(sockets), process)?;
        bound.mode = (self.settings.mode != settings.mode).then(|| settings.mode.unwrap_or(process.made_mode));
        Ok(bound)
    }

    /// Binds this listener again if somebody has removed its socket file. The result does not accept yet.
    pub fn rebound(
        &self,
        config: &Config,
        settings: &config::Listener,
        process: &Process,
    ) -> Option<Result<Bound, Reason>> {
        is_gone(&self.settings.bind, process).then(|| Bound::new(config, settings, self.slot, Given::Nothing, process))
    }

    /// Lets `renewed` accept, and closes the older servers.
    ///
    /// # Suspends
    ///
    /// Until the older servers have accepted their last connections, for [`CLOSING`] at most.
    pub fn renew(&mut self, renewed: Bound, site: &Arc<Live>) {
        self.sockets = renewed.listening.sockets();
        let serving = Bound::serve(&renewed.live, renewed.listening, site);
        (self.settings, self.drain) = (renewed.settings, renewed.drain);
        if renewed.file.is_some() {
            self.file = renewed.file;
        }
        for server in &self.servers {
            server.stop.close();
        }
        wait_closed(self.servers.iter().map(|server| &server.stop));
        self.servers.push(serving);
    }

    /// Ends the servers that accept no more and have no connection left.
    pub fn reap(&mut self) -> impl Iterator<Item = Ending> {
        let is_over = |server: &mut Serving| server.stop.is_closed() && server.connections.count() == 0;
        self.servers.extract_if(.., is_over).map(Serving::end)
    }

    /// Clones of the sockets, for another listener at this address.
    pub fn sockets(&self) -> Result<Vec<Listener>, String> {
        clones(&self.sockets, &self.settings.bind)
    }

    /// Notes that the new process of an upgrade serves without this listener. Its sockets are closed, or close soon.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
    }

    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Takes the socket file, for the next listener at this address.
    pub fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// Gives the socket file back.
    pub fn put_file(&mut self, file: SocketFile) {
        self.file = Some(file);
    }

    /// Takes over the socket file of the process before an upgrade, if there is one.
    pub fn own_file(&mut self, process: &Process) {
        self.file = self.file.take().or_else(|| process.socket_file(&self.settings.bind));
    }

    /// Keeps the socket file from being removed, because the new process serves on it.
    pub fn leave_file(&mut self) {
        if let Some(file) = self.file.take() {
            file.keep();
        }
    }

    /// Stops accepting and lets in-flight requests finish.
    pub fn end(self) -> impl Iterator<Item = Ending> {
        drop(self.file);
        self.servers.into_iter().map(Serving::end)
    }

    /// Same as [`end`](Running::end), while the process goes on: connections that have to be cut are logged at that moment, and
    /// counted nowhere else.
    pub fn end_logged(self, say: &Say) -> impl Iterator<Item = Ending> {
        let (bind, drain, say) = (self.settings.bind.clone(), self.drain, say.clone());
        self.end().map(move |ending| {
            let (fiber, to, say) = (ending.fiber, format!(" to {bind}"), say.clone());
            let logged = move || {
                log_cut(fiber.join().unwrap_or(0), &to, drain, "'drain'", &say);
                0
            };
            Ending {
                fiber: osier::spawn(logged),
                ..ending
            }
        })
    }
}

impl Serving {
    fn end(self) -> Ending {
        self.stop.shutdown();
        Ending {
            stop: self.stop,
            fiber: self.fiber,
            connections: Some(self.connections),
        }
    }
}

/// Logs how many connections were closed at the end of a drain. `to` names their listener, after a space. `key` sets the time.
pub fn log_cut(cut: usize, to: &str, drain: Duration, key: &str, say: &Say) {
    let (plural, were) = if cut == 1 { ("", "was") } else { ("s", "were") };
    if cut > 0 {
        let seconds = drain.as_secs_f64();
        say.warning(format_args!(
            "{cut} connection{plural}{to} {were} closed, still busy after {seconds} s ({key})"
        ));
    }
}

/// Builds the server of a listener. The snapshots of `live` answer its requests.
fn server(
    config: &Config,
    settings: &config::Listener,
    slot: usize,
    live: &Arc<OnceLock<Arc<Live>>>,
    process: &Process,
) -> Result<Server, String> {
    let (answering, recording) = (Arc::clone(live), Arc::clone(live));
    let answer = move |request: &mut Request<'_>| {
        let live = answering.get().expect("a listener accepts after Bound::serve");
        live.here().snapshot.answer(slot, request)
    };
    let timeouts = Timeouts {
        drain: config.drain,
        ..settings.timeouts
    };
    let limits = Limits {
        // Each route has its own limit of the body.
        body: u64::MAX,
        ..settings.head
    };
    let (log, logging, totals) = (process.say.clone(), Arc::clone(live), Arc::clone(&process.totals));
    let mut server = Server::new(Handler::answering(answer))
        .upgradable(&process.upgrade, &names::of_listener(settings))
        .timeouts(timeouts)
        .rates(settings.rates)
        .limits(limits)
        .on_log(move |record| {
            let here = logging.get().map(|live| live.here());
            let site = here
                .as_ref()
                .and_then(|here| here.snapshot.site_name(slot, record.host()));
            log.record(record, site);
        })
        .on_connection(move |event| totals.count(event))
        .on_request(move |served| {
            if let Some(live) = recording.get() {
                live.record(slot, served);
            }
        });
    if let Some(tls) = &settings.tls {
        let resolver = Resolving {
            live: Arc::clone(live),
            slot,
        };
        let acceptor = acceptor(resolver, tls, settings.http2.is_some(), &process.tickets);
        let acceptor = acceptor.map_err(|error| format!("cannot speak TLS on {}: {error}", settings.bind))?;
        server = server.tls(acceptor);
    }
    Ok(with_clients(server, settings))
}

/// Sets which protocols clients may speak, and how many there may be.
fn with_clients(mut server: Server, settings: &config::Listener) -> Server {
    server = match settings.http2 {
        Some(limits) => server.http2_limits(limits),
        None => server.http2(false),
    };
    if !settings.proxy_protocol.is_empty() {
        let trusted = settings.proxy_protocol.clone();
        server = server.proxy_protocol(move |peer| trusted.iter().any(|trusted| trusted.is(peer)));
    }
    if let Some(count) = settings.max_connections {
        server = server.max_connections(count);
    }
    if let Some(count) = settings.max_connections_per_client {
        server = server.max_connections_per_client(count);
    }
    server
}

/// Finds the identity for a client among the sites of a listener.
struct Resolving {
    live: Arc<OnceLock<Arc<Live>>>,
    slot: usize,
}

impl Resolver for Resolving {
    fn find(&self, hello: &Hello<'_>) -> Option<Identity> {
        self.live.get()?.here().snapshot.identity(self.slot, hello)
    }
}

fn acceptor(
    resolver: Resolving,
    tls: &ListenTls,
    has_http2: bool,
    tickets: &Tickets,
) -> Result<Acceptor, osier_tls::Error> {
    let clients = tls.client.as_ref().map(ClientTls::certificates).unwrap_or_default();
    let version = match tls.min_version {
        TlsVersion::Tls12 => Version::Tls12,
        TlsVersion::Tls13 => Version::Tls13,
    };
    let http2 = has_http2.then_some(b"h2".as_slice());
    // Validation by ACME offers its own protocol alone, so it comes last.
    let protocols = http2.into_iter().chain([b"http/1.1".as_slice(), PROTOCOL]);
    Acceptor::builder(resolver)
        .alpn(protocols)
        .min_version(version)
        .client_certificates(clients)
        .tickets(tickets.clone())
        .build()
}
