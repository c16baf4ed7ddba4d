//! The pool: permits for the connections that may exist, and the idle ones.
//!
//! ```text
//!   get ── permit ──▶ idle? ── is open ──▶ Connection ── drop ──▶ idle      (a call was given up: closed, its query cancelled)
//!                       └── none ─▶ connect ──▲
//! ```
//!
//! The permit is part of the [`Connection`], and goes back once a call that was given up has been cancelled. So there are never more connections in
//! use than permits, unless a server does not take the cancellation in time. Idle ones are taken the latest first.

use std::sync::{Arc, Mutex, MutexGuard};

use osier::sync::Semaphore;
use tokio_postgres::{Client, Config};

use crate::connection::{Connection, Session};
use crate::error::Error;
use crate::server::{self, Reader};

/// A pool of connections to one server. Clones are the same pool.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

pub(crate) struct Shared {
    config: Config,
    permits: Arc<Semaphore>,
    /// Never held across a wait.
    idle: Mutex<Vec<Session>>,
    size: usize,
    /// The runtime on which the pool was made.
    runtime: osier::Handle,
}

impl Pool {
    /// Makes a pool of at most `size` connections by a URL (`postgres://user:password@host:port/database`) or a list of parameters
    /// (`host=/run/postgresql user=app dbname=shop`). Makes the first connection at once, so a mistake is found here.
    ///
    /// # Suspends
    ///
    /// Until the first connection is made.
    ///
    /// # Errors
    ///
    /// If the text is not understood, and those of [`get`](Pool::get).
    ///
    /// # Panics
    ///
    /// If `size` is 0, and outside of a runtime.
    pub fn connect(url: &str, size: usize) -> Result<Pool, Error> {
        Pool::with(url.parse::<Config>()?, size)
    }

    /// Makes a pool as [`connect`](Pool::connect) does, from tokio-postgres' own configuration. Its settings of target sessions have
    /// no effect.
    ///
    /// # Suspends
    ///
    /// Until the first connection is made.
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Pool::get).
    ///
    /// # Panics
    ///
    /// If `size` is 0, and outside of a runtime.
    pub fn with(config: Config, size: usize) -> Result<Pool, Error> {
        assert!(size > 0, "a pool without connections");
        let pool = Pool(Arc::new(Shared {
            config,
            permits: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
            size,
            runtime: osier::Handle::current().expect("a pool is made on a runtime"),
        }));
        drop(pool.get()?);
        Ok(pool)
    }

    /// Takes an idle connection or makes one. It goes back to the pool when it is dropped. A connection that was closed while it was
    /// idle, because its backend has died or the server was started anew, is replaced.
    ///
    /// # Suspends
    ///
    /// While all connections are in use, first come first served, and while one is made.
    ///
    /// # Cancellation
    ///
    /// Unwinds, or returns the error of a connection that was not made.
    ///
    /// # Errors
    ///
    /// If no connection can be made: the server refuses it, or cannot be reached within the `connect_timeout` of the configuration.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn get(&self) -> Result<Connection, Error> {
        let permit = Arc::clone(&self.0.permits).acquire_owned();
        let session = match self.0.take_idle() {
            Some(session) => session,
            None => Session::new(server::connect(&self.0.config, Reader::OfAnyWorker)?),
        };
        Ok(Connection::new(session, Arc::clone(&self.0), permit))
    }

    /// The most connections.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// The number of open connections that nobody uses.
    pub fn idle(&self) -> usize {
        self.0.idle().iter().filter(|session| !session.is_closed()).count()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("size", &self.size())
            .field("idle", &self.idle())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn take_idle(&self) -> Option<Session> {
        let mut idle = self.idle();
        idle.retain(|session| !session.is_closed());
        idle.pop()
    }

    pub(crate) fn give(&self, session: Session) {
        if !session.is_closed() {
            self.idle().push(session);
        }
    }

    pub(crate) fn runtime(&self) -> &osier::Handle {
        &self.runtime
    }

    pub(crate) fn cancel(&self, client: &Client) {
        server::cancel(&self.config, client);
    }
}
