//! The listeners of sites: bound, accepting, given other settings, gone.
//!
//! Called by `sites.rs` only, on the first fiber. A [`Bound`] has everything but connections: nothing is lost by dropping it. [`Running`] is
//! one that accepts. A server's settings do not change under its connections: for other ones a second server is bound to clones of the same
//! sockets, takes whoever comes, and the first is closed, which keeps its connections until they go or the listener does.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use osier::JoinHandle;
use osier_web::{Connections, Limits, Listener, Listening, Request, Router, Server, ShutdownHandle, Timeouts};

use crate::config::{self, Bind, Config};
use crate::opened::cannot_listen;
use crate::say::Say;
use crate::site::live::Live;

/// A listener that is bound and does not accept yet.
pub struct Bound {
    pub settings: config::Listener,
    pub slot: usize,
    drain: Duration,
    /// Filled before it accepts.
    live: Arc<OnceLock<Arc<Live>>>,
    pub listening: Listening,
    sockets: Vec<Listener>,
}

/// A listener that accepts.
pub struct Running {
    settings: config::Listener,
    drain: Duration,
    /// Its number in snapshots: never used again.
    slot: usize,
    /// For a server with other settings.
    sockets: Vec<Listener>,
    /// The last one accepts; those before it keep the connections they have.
    servers: Vec<Serving>,
}

struct Serving {
    stop: ShutdownHandle,
    fiber: JoinHandle<usize>,
    connections: Connections,
}

/// The sockets a listener begins with.
pub enum From {
    /// None: they are opened now.
    Nothing,
    /// Those that were opened before privileges were given up.
    Opened(Vec<Listener>),
    /// Those of the same listener with other settings; and whether the mode of its file is to change.
    Sockets(Vec<Listener>, bool),
}

impl Bound {
    /// Binds a listener. `root` is the root folder that this process has taken.
    pub fn new(
        config: &Config,
        settings: &config::Listener,
        slot: usize,
        from: From,
        root: Option<&Path>,
        say: &Say,
    ) -> Result<Bound, String> {
        let live: Arc<OnceLock<Arc<Live>>> = Arc::default();
        let server = server(config, settings, slot, &live, say);
        let sets_mode = matches!(from, From::Nothing | From::Sockets(_, true));
        let file = match &settings.bind {
            Bind::Unix(path) => config::inside(root, path),
            _ => None,
        };
        let listening = match (from, &settings.bind, &file) {
            (From::Opened(sockets) | From::Sockets(sockets, _), ..) => server.listeners(sockets),
            (From::Nothing, Bind::Tcp(address), _) => server.bind(address),
            (From::Nothing, Bind::Unix(_), Some(file)) => server.bind_unix(file),
            (From::Nothing, bind, _) => Err(io::Error::other(format!(
                "{bind} can be taken at the start only: restart the server"
            ))),
        };
        let listening = listening.map_err(|error| cannot_listen(&error))?;
        if let (true, Some(file), Some(mode)) = (sets_mode, file, settings.mode) {
            fs::set_permissions(&file, Permissions::from_mode(mode))
                .map_err(|error| format!("cannot change the mode of '{}': {error}", file.display()))?;
        }
        let sockets = clones(listening.listeners(), settings)?;
        Ok(Bound {
            settings: settings.clone(),
            slot,
            drain: config.drain,
            live,
            listening,
            sockets,
        })
    }

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
            servers: vec![Bound::serve(&self.live, self.listening, site)],
            settings: self.settings,
            drain: self.drain,
            slot: self.slot,
            sockets: self.sockets,
        }
    }
}

fn clones(sockets: &[Listener], settings: &config::Listener) -> Result<Vec<Listener>, String> {
    let clones = sockets.iter().map(Listener::try_clone).collect::<io::Result<_>>();
    clones.map_err(|error| format!("cannot copy the sockets of '{}': {error}", settings.name))
}

impl Running {
    pub fn bind(&self) -> &Bind {
        &self.settings.bind
    }

    pub fn slot(&self) -> usize {
        self.slot
    }

    /// The keys whose values are others than those this listener has.
    pub fn changed(&self, config: &Config, settings: &config::Listener) -> Vec<&'static str> {
        let old = &self.settings;
        let keys = [
            ("proxy_protocol", old.proxy_protocol != settings.proxy_protocol),
            ("max_connections", old.max_connections != settings.max_connections),
            ("mode", old.mode != settings.mode),
            ("timeouts", old.timeouts != settings.timeouts),
            ("head", old.head != settings.head),
            ("drain", self.drain != config.drain),
        ];
        keys.into_iter()
            .filter(|(_, differs)| *differs)
            .map(|(key, _)| key)
            .collect()
    }

    /// The same listener with other settings, not accepting yet.
    pub fn renewed(
        &self,
        config: &Config,
        settings: &config::Listener,
        root: Option<&Path>,
        say: &Say,
    ) -> Result<Bound, String> {
        let sockets = clones(&self.sockets, settings)?;
        let from = From::Sockets(sockets, self.settings.mode != settings.mode);
        Bound::new(config, settings, self.slot, from, root, say)
    }

    /// Has `renewed` accept from now on. What has ended by that is given back.
    pub fn renew(&mut self, renewed: Bound, site: &Arc<Live>) -> Vec<JoinHandle<usize>> {
        let serving = Bound::serve(&renewed.live, renewed.listening, site);
        (self.settings, self.drain) = (renewed.settings, renewed.drain);
        for server in &self.servers {
            server.stop.close();
        }
        let mut ended = Vec::new();
        // The first of a Unix socket removes its file at its end.
        if !matches!(self.settings.bind, Bind::Unix(_)) {
            for server in self.servers.extract_if(.., |server| server.connections.count() == 0) {
                server.stop.shutdown();
                ended.push(server.fiber);
            }
        }
        self.servers.push(serving);
        ended
    }

    /// Takes nobody new, and lets running requests finish; the fibers say how many had to be cut.
    pub fn end(self) -> impl Iterator<Item = JoinHandle<usize>> {
        self.servers.into_iter().map(|server| {
            server.stop.shutdown();
            server.fiber
        })
    }
}

fn server(
    config: &Config,
    settings: &config::Listener,
    slot: usize,
    live: &Arc<OnceLock<Arc<Live>>>,
    say: &Say,
) -> Server {
    let (answering, recording) = (Arc::clone(live), Arc::clone(live));
    let router = Router::new().fallback(move |request: &mut Request<'_>| {
        // Set before the first connection is accepted.
        let live = answering.get().expect("a listener accepts after Bound::serve");
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
        server = server.proxy_protocol(move |peer| trusted.iter().any(|trusted| trusted.is(peer)));
    }
    if let Some(count) = settings.max_connections {
        server = server.max_connections(count);
    }
    server
}
