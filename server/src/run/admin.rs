//! The listener of `[admin]`: bound, accepting, gone.
//!
//! Only the first fiber touches it. An address that moves between `[admin]` and `[[listen]]` takes its sockets along, and the
//! file of a Unix one: nobody could bind it anew while the other still has it.

use std::sync::Arc;
use std::time::Duration;

use osier::JoinHandle;
use osier_web::{Listener, Listening, Server, ShutdownHandle, SocketFile, Timeouts};

use crate::config::Bind;
use crate::log::operator::Say;
use crate::metrics::Admin;
use crate::run::listeners::{Ending, clones};

/// The time for a scrape that is being answered at the end.
const DRAIN: Duration = Duration::from_secs(1);

/// Does not accept yet.
pub struct Bound {
    bind: Bind,
    sockets: Vec<Listener>,
    listening: Listening,
}

pub struct Running {
    bind: Bind,
    /// Clones of the sockets, for a listener of sites at the same address.
    sockets: Vec<Listener>,
    file: Option<SocketFile>,
    stop: ShutdownHandle,
    fiber: JoinHandle<usize>,
}

impl Bound {
    /// Is to serve /health and /metrics.
    pub fn new(admin: &Arc<Admin>, bind: &Bind, listeners: Vec<Listener>, say: &Say) -> Result<Bound, String> {
        let log = Arc::clone(say);
        let timeouts = Timeouts {
            drain: DRAIN,
            ..Timeouts::default()
        };
        let server = Server::new(admin.router())
            .timeouts(timeouts)
            .on_log(move |line| log(line));
        let listening = server.listeners(listeners).map_err(|error| error.to_string())?;
        Ok(Bound {
            bind: bind.clone(),
            sockets: clones(listening.listeners(), bind)?,
            listening,
        })
    }

    pub fn bind(&self) -> &Bind {
        &self.bind
    }

    /// Begins to accept. `file` goes with it, if there is one that somebody else has made.
    pub fn accept(self, file: Option<SocketFile>, say: &Say) -> Running {
        let listening = self.listening;
        say(format_args!("/health and /metrics are on {}", listening.address()));
        Running {
            bind: self.bind,
            sockets: self.sockets,
            file,
            stop: listening.handle(),
            fiber: osier::spawn(move || listening.run()),
        }
    }
}

impl Running {
    pub fn bind(&self) -> &Bind {
        &self.bind
    }

    /// Others for the same address.
    pub fn sockets(&self) -> Result<Vec<Listener>, String> {
        clones(&self.sockets, &self.bind)
    }

    pub fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// Takes nobody new, and lets running requests finish.
    pub fn end(self) -> Ending {
        self.stop.shutdown();
        Ending {
            stop: self.stop,
            fiber: self.fiber,
            connections: None,
        }
    }
}
