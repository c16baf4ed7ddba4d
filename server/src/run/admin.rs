//! The listener of `[admin]`: bound, then running, then ending.
//!
//! Only the first fiber touches it. When an address moves between `[admin]` and `[[listen]]`, its sockets and its Unix
//! socket file move with it, because a second bind would fail while the old listener holds the address.

use std::sync::Arc;
use std::time::Duration;

use osier::JoinHandle;
use osier_web::upgrade::Upgrade;
use osier_web::{Listener, Listening, Request, Server, ShutdownHandle, SocketFile, Sockets, Timeouts};

use crate::config::Bind;
use crate::log::operator::Say;
use crate::metrics::Admin;
use crate::metrics::guard;
use crate::run::listeners::{Ending, clones};
use crate::run::names;
use crate::run::startup::Process;

/// The time that in-flight scrapes get at shutdown.
const DRAIN: Duration = Duration::from_secs(1);

/// The most connections: they are served although the limit of memory is near.
const CONNECTIONS: usize = 128;

/// The listener, bound. It does not accept yet.
pub struct Bound {
    bind: Bind,
    /// The socket file that was made for it.
    file: Option<SocketFile>,
    listening: Listening,
}

/// The listener, accepting.
pub struct Running {
    bind: Bind,
    /// A `[[listen]]` at the same address takes them over.
    sockets: Sockets,
    file: Option<SocketFile>,
    is_given_up: bool,
    stop: ShutdownHandle,
    fiber: JoinHandle<usize>,
}

impl Bound {
    /// Sets up a server for /health, /metrics and /fibers on these sockets. `file` is the socket file that was made for them.
    pub fn new(
        admin: &Arc<Admin>,
        bind: &Bind,
        (listeners, file): (Vec<Listener>, Option<SocketFile>),
        say: &Say,
        upgrade: &Upgrade,
    ) -> Result<Bound, String> {
        let log = say.clone();
        let timeouts = Timeouts {
            drain: DRAIN,
            ..Timeouts::default()
        };
        let is_local = matches!(bind, Bind::Tcp(address) if address.ip().to_canonical().is_loopback());
        let may_see = move |request: &Request<'_>| match is_local {
            true => guard::check_name(request),
            false => Ok(()),
        };
        let server = Server::new(admin.router(may_see))
            .for_operators()
            .max_connections(CONNECTIONS)
            .upgradable(upgrade, &names::of_admin(bind))
            .timeouts(timeouts)
            .on_log(move |record| log.record(record, None));
        let listening = server.listeners(listeners).map_err(|error| error.to_string())?;
        Ok(Bound {
            bind: bind.clone(),
            file,
            listening,
        })
    }

    pub fn bind(&self) -> &Bind {
        &self.bind
    }

    /// Begins to accept. `file` is the socket file of the former listener at this address, if there was one. It
    /// belongs to this one if that has the same sockets.
    pub fn accept(self, file: Option<SocketFile>, say: &Say) -> Running {
        let listening = self.listening;
        say.info(format_args!(
            "/health, /metrics and /fibers are on {}",
            listening.address()
        ));
        Running {
            bind: self.bind,
            sockets: listening.sockets(),
            file: self.file.or(file),
            is_given_up: false,
            stop: listening.handle(),
            fiber: osier::spawn(move || listening.run()),
        }
    }
}

impl Running {
    pub fn bind(&self) -> &Bind {
        &self.bind
    }

    /// Its name in upgrades.
    pub fn name_in_upgrades(&self) -> String {
        names::of_admin(&self.bind)
    }

    /// Clones of the sockets, for another listener at this address.
    pub fn sockets(&self) -> Result<Vec<Listener>, String> {
        clones(&self.sockets, &self.bind)
    }

    /// Notes that the new process of an upgrade serves without this listener. Its sockets are closed, or close soon.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
    }

    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Keeps the socket file from being removed, because the new process serves on it.
    pub fn leave_file(&mut self) {
        if let Some(file) = self.file.take() {
            file.keep();
        }
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
        self.file = self.file.take().or_else(|| process.socket_file(&self.bind));
    }

    /// Stops accepting and lets in-flight requests finish.
    pub fn end(self) -> Ending {
        self.stop.shutdown();
        Ending {
            stop: self.stop,
            fiber: self.fiber,
            connections: None,
        }
    }
}
