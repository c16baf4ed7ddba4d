//! The builder of an upstream: its backends, and the settings that all of them share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;
use std::{fmt, io};

use super::backend::Backend;
use super::health::Policy;
use super::{Check, Inner, Upstream};
use crate::Address;
use crate::conn::settings::Log;

/// Maximum backends of an upstream: `find` keeps the tried ones in a set of 64 bits.
const BACKENDS_MAX: usize = 64;
/// Builder of an upstream; see [`Upstream::builder`].
pub struct Builder {
    name: String,
    backends: Vec<Address>,
    policy: Policy,
    connect_timeout: Duration,
    resolve_every: Duration,
    keep: usize,
    idle_timeout: Duration,
    max_leases: usize,
    check: Option<Check>,
    log: Log,
}

impl Builder {
    pub(super) fn new(name: String) -> Builder {
        let s = Duration::from_secs;
        Builder {
            name,
            backends: Vec::new(),
            policy: Policy::default(),
            connect_timeout: s(3),
            resolve_every: s(30),
            keep: 64,
            idle_timeout: s(30),
            max_leases: usize::MAX,
            check: None,
            log: Box::new(|line| eprintln!("osier-web: {line}")),
        }
    }

    /// Adds a backend. A name with several addresses is one backend, whose addresses are tried in
    /// order.
    pub fn backend(mut self, address: Address) -> Self {
        self.backends.push(address);
        self
    }

    /// Adds backends.
    pub fn backends(mut self, addresses: impl IntoIterator<Item = Address>) -> Self {
        self.backends.extend(addresses);
        self
    }

    /// Sets the timeout of connecting to one backend, including the name lookup; 3 s by default.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets how long the addresses of a name are used before the next lookup; 30 s by default.
    /// After a failed connection they are used for at most one more second. If a lookup fails the
    /// old addresses stay in use.
    pub fn resolve_every(mut self, time: Duration) -> Self {
        self.resolve_every = time;
        self
    }

    /// Sets the maximum number of idle connections kept to one backend, over all workers; 64 by
    /// default, and 0 keeps none.
    pub fn keep(mut self, connections: usize) -> Self {
        self.keep = connections;
        self
    }

    /// Sets the idle timeout of kept connections; 30 s by default. It should be shorter than the
    /// backend's.
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.idle_timeout = time;
        self
    }

    /// Sets the maximum number of concurrent leases of one backend; unlimited by default.
    pub fn max_leases(mut self, count: usize) -> Self {
        self.max_leases = count;
        self
    }

    /// Sets the number of consecutive failures that put a backend out; 3 by default. Failures to
    /// connect count, and [`Lease::failed`] does if the backend gives no response for a second. The
    /// last backend that is in is never put out.
    pub fn failures(mut self, count: u32) -> Self {
        self.policy.failures = count.max(1);
        self
    }

    /// Sets how long a backend is out before one request tries it, and the longest such time;
    /// 250 ms and 10 s by default. The time doubles with each failed trial.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.policy.first = first;
        self.policy.longest = longest.max(first);
        self
    }

    /// Adds an active check of every backend.
    pub fn check(mut self, check: Check) -> Self {
        self.check = Some(check);
        self
    }

    /// Sets the receiver of log lines, for example when a backend goes out or comes back; standard
    /// error by default.
    pub fn on_log(mut self, log: impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static) -> Self {
        self.log = Box::new(log);
        self
    }

    /// Makes the upstream, without connecting yet.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if there is no backend, or more than 64.
    pub fn build(self) -> io::Result<Upstream> {
        let count = self.backends.len();
        if count == 0 || count > BACKENDS_MAX {
            let error = format!(
                "upstream {} has {count} backends: give it 1 to {BACKENDS_MAX}",
                self.name
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let resolve_every = self.resolve_every;
        let backends = self.backends.into_iter();
        Ok(Upstream(Arc::new(Inner {
            name: self.name,
            backends: backends.map(|address| Backend::new(address, resolve_every)).collect(),
            turn: AtomicUsize::new(0),
            born: osier::time::now(),
            policy: self.policy,
            connect_timeout: self.connect_timeout,
            keep: self.keep,
            idle_timeout: self.idle_timeout,
            max_leases: self.max_leases,
            check: self.check,
            log: self.log,
            kept: AtomicBool::new(false),
            gone: Arc::default(),
        })))
    }
}

osier_queue::impl_debug!(Builder, self => { name: self.name, backends: self.backends, .. });
