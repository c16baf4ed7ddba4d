//! One backend: its address, its kept connections, its health, and how it is connected to.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use osier::net::{TcpStream, ToSocketAddrs, UnixStream};

use super::health::Health;
use super::shelves::Shelves;
use crate::{Address, Stream};

pub(super) struct Backend {
    pub(super) address: Address,
    /// The address as text.
    pub(super) label: String,
    /// Leases that are out. Counted up by `claim` alone.
    pub(super) leases: AtomicUsize,
    pub(super) health: Health,
    pub(super) shelves: Shelves,
    names: Names,
    total: AtomicU64,
    reused: AtomicU64,
    connects: AtomicU64,
    failures: AtomicU64,
    stale: AtomicUsize,
}

/// What has been counted of one backend; see [`Upstream::stats`](super::Upstream::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendStats {
    /// Where it is.
    pub address: Address,
    /// It is neither out nor unwell.
    pub is_in: bool,
    /// Leases that are out now.
    pub leases: usize,
    /// Idle connections that are kept now.
    pub kept: usize,
    /// Leases ever.
    pub total: u64,
    /// Those on a connection that was used before.
    pub reused: u64,
    /// Connections made.
    pub connects: u64,
    /// Connections that could not be made.
    pub failures: u64,
    /// Kept connections that were closed, by age or because the backend had.
    pub stale: usize,
}

impl Backend {
    pub(super) fn new(address: Address, resolve_every: Duration) -> Backend {
        Backend {
            label: address.to_string(),
            leases: AtomicUsize::new(0),
            health: Health::default(),
            shelves: Shelves::new(matches!(address, Address::Unix(_))),
            names: Names {
                every: resolve_every,
                known: Mutex::default(),
            },
            total: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            connects: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            stale: AtomicUsize::new(0),
            address,
        }
    }

    pub(super) fn stats(&self, now: u64) -> BackendStats {
        BackendStats {
            address: self.address.clone(),
            is_in: self.health.is_in(now),
            leases: self.leases.load(Relaxed),
            kept: self.shelves.count(),
            total: self.total.load(Relaxed),
            reused: self.reused.load(Relaxed),
            connects: self.connects.load(Relaxed),
            failures: self.failures.load(Relaxed),
            stale: self.stale.load(Relaxed),
        }
    }

    pub(super) fn count_lease(&self, reused: bool) {
        self.total.fetch_add(1, Relaxed);
        if reused {
            self.reused.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn take_kept(&self, trusting: bool) -> Option<Stream> {
        self.shelves.take(osier::time::coarse_now(), trusting, &self.stale)
    }

    /// Closes idle connections that are too old.
    pub(super) fn sweep(&self, now: Instant) {
        self.shelves.sweep(now, &self.stale);
    }

    /// Makes a connection, within `limit` and before `deadline`.
    pub(super) fn dial(&self, limit: Duration, deadline: Option<Instant>) -> io::Result<Stream> {
        let now = Instant::now();
        let limit = match deadline {
            Some(deadline) => limit.min(deadline.saturating_duration_since(now)),
            None => limit,
        };
        let connected = match &self.address {
            _ if limit.is_zero() => Err(io::ErrorKind::TimedOut.into()),
            Address::Unix(path) => within(limit, || UnixStream::connect(path)).map(Stream::from),
            Address::Tcp(host) => self.dial_tcp(host, limit, now).map(Stream::from),
        };
        match &connected {
            Ok(_) => self.connects.fetch_add(1, Relaxed),
            Err(_) => self.failures.fetch_add(1, Relaxed),
        };
        connected
    }

    fn dial_tcp(&self, host: &str, limit: Duration, began: Instant) -> io::Result<TcpStream> {
        let addrs = within(limit, || self.names.addrs(host))?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
        for addr in addrs.iter() {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                last = io::ErrorKind::TimedOut.into();
                break;
            }
            match TcpStream::connect_timeout(addr, left) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) if osier::Cancelled::is(&error) => return Err(error),
                Err(error) => last = error,
            }
        }
        self.names.doubt();
        Err(last)
    }
}

/// A call that has no timeout of its own.
fn within<T>(limit: Duration, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if osier::fiber::current().is_none() {
        return call();
    }
    osier::timeout(limit, call).unwrap_or_else(|elapsed| Err(io::Error::new(io::ErrorKind::TimedOut, elapsed)))
}

/// How long addresses are used after one that nobody answers at: a lookup for each failure is not worth more.
const DOUBTED: Duration = Duration::from_secs(1);

/// The addresses of a name, for as long as they may be used.
struct Names {
    every: Duration,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    addrs: Arc<[SocketAddr]>,
    /// When to look it up again.
    until: Option<Instant>,
}

impl Names {
    /// # Suspends
    ///
    /// While the name is looked up. Whoever comes meanwhile uses what was known before, if anything was.
    fn addrs(&self, host: &str) -> io::Result<Arc<[SocketAddr]>> {
        let now = osier::time::coarse_now();
        let old = {
            let mut known = self.lock();
            if known.until.is_some_and(|until| now < until) {
                return Ok(known.addrs.clone());
            }
            if !known.addrs.is_empty() {
                known.until = now.checked_add(self.every);
            }
            known.addrs.clone()
        };
        match host.to_socket_addrs() {
            Ok(addrs) => {
                let addrs: Arc<[SocketAddr]> = addrs.collect();
                let mut known = self.lock();
                known.addrs = addrs.clone();
                known.until = now.checked_add(self.every);
                Ok(addrs)
            }
            Err(error) if osier::Cancelled::is(&error) || old.is_empty() => Err(error),
            Err(_) => Ok(old),
        }
    }

    /// Nobody answered there: perhaps the name has moved. Not looked up again at once, as a backend that is down would have
    /// every request do that.
    fn doubt(&self) {
        let mut known = self.lock();
        let soon = osier::time::coarse_now().checked_add(DOUBTED);
        known.until = known.until.min(soon);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        // Nothing under the lock panics half way.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
