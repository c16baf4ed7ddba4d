//! The builder of an upstream: its backends, and the settings that all of them share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
#[cfg(all(feature = "h2", feature = "proxy"))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use osier::sync::Event;

use super::backend::Backend;
use super::health::Policy;
use super::per_worker::PerWorker;
use super::pick::BACKENDS_MAX;
use super::{BackendOptions, Balance, Check, HashKey, Inner, Sticky, Upstream};
use crate::Address;
use crate::conn::log::record::{Record, to_stderr};
#[cfg(feature = "tls")]
use crate::conn::secured::Secured;
use crate::conn::settings::Log;

/// The id of the next upstream.
#[cfg(all(feature = "h2", feature = "proxy"))]
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Builder of an upstream; see [`Upstream::builder`].
pub struct Builder {
    name: String,
    backends: Vec<(Address, BackendOptions)>,
    balance: Balance,
    sticky: Option<Sticky>,
    slow_start: Duration,
    policy: Policy,
    connect_timeout: Duration,
    resolve_every: Duration,
    keep: usize,
    idle_timeout: Duration,
    max_leases: usize,
    check: Option<Check>,
    #[cfg(feature = "tls")]
    tls: Option<osier_tls::Connector>,
    #[cfg(feature = "tls")]
    tls_name: Option<String>,
    #[cfg(all(feature = "h2", feature = "proxy"))]
    http2: bool,
    log: Log,
}

impl Builder {
    pub(super) fn new(name: String) -> Builder {
        let s = Duration::from_secs;
        Builder {
            name,
            backends: Vec::new(),
            balance: Balance::default(),
            sticky: None,
            slow_start: Duration::ZERO,
            policy: Policy::default(),
            connect_timeout: s(3),
            resolve_every: s(30),
            keep: 64,
            idle_timeout: s(30),
            max_leases: usize::MAX,
            check: None,
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "tls")]
            tls_name: None,
            #[cfg(all(feature = "h2", feature = "proxy"))]
            http2: false,
            log: Box::new(to_stderr),
        }
    }

    /// Adds a backend. A name with several addresses is one backend. A connection tries them as
    /// [`TcpStream::connect`](osier::net::TcpStream::connect) does.
    pub fn backend(self, address: Address) -> Self {
        self.backend_with(address, BackendOptions::default())
    }

    /// Adds a backend with a weight, or as a backup.
    pub fn backend_with(mut self, address: Address, options: BackendOptions) -> Self {
        self.backends.push((address, options));
        self
    }

    /// Adds backends.
    pub fn backends(mut self, addresses: impl IntoIterator<Item = Address>) -> Self {
        let backends = addresses.into_iter();
        self.backends
            .extend(backends.map(|address| (address, BackendOptions::default())));
        self
    }

    /// Sets how a backend is chosen; [`Balance::LeastConnections`] by default.
    pub fn balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self
    }

    /// Leads each client back to its backend, by a cookie. Off by default.
    pub fn sticky(mut self, sticky: Sticky) -> Self {
        self.sticky = Some(sticky);
        self
    }

    /// Sets the time in which the weight of a backend that has come back into service grows, from
    /// nothing to its own, in proportion to the time. Zero by default. It has no effect on a single backend,
    /// or while all backends start.
    pub fn slow_start(mut self, time: Duration) -> Self {
        self.slow_start = time;
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

    /// Sets the number of consecutive failures that put a backend out; 3 by default. Failures to connect count.
    /// [`Lease::failed`](super::Lease::failed) counts, too, but puts the backend out only if there was no response for
    /// a second. The last backend that is in is never put out.
    pub fn failures(mut self, count: u32) -> Self {
        self.policy.failures = count.max(1);
        self
    }

    /// Sets the longest time from the first of these failures to the last; at least a second, and
    /// unlimited by default. A later failure counts as the first one again.
    pub fn failure_window(mut self, time: Duration) -> Self {
        self.policy.window = time.max(self.policy.silence);
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

    /// Speaks TLS to all backends. A backend whose certificate `connector` does not trust counts as one that refuses
    /// the connection. A handshake must end within [`connect_timeout`](Builder::connect_timeout). The sessions of a
    /// backend are resumed.
    ///
    /// ```
    /// use osier_web::tls::Connector;
    /// use osier_web::upstream::Upstream;
    ///
    /// let connector = Connector::builder().dangerous_without_verification().build()?;
    /// let app = Upstream::builder("app").backend("10.0.0.7:8443".parse()?).tls(connector).tls_name("app.internal").build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, connector: osier_tls::Connector) -> Self {
        self.tls = Some(connector);
        self
    }

    /// Sets the name that the certificate of every backend must have, and that is sent to the backend (SNI). The
    /// default is the host of the backend's address, and `localhost` for a Unix socket. It has no effect without
    /// [`tls`](Builder::tls).
    #[cfg(feature = "tls")]
    pub fn tls_name(mut self, name: impl Into<String>) -> Self {
        self.tls_name = Some(name.into());
        self
    }

    /// Makes the requests of a [`Proxy`](crate::proxy::Proxy) go over HTTP/2. Each worker has one connection to a
    /// backend, and more while the backend allows fewer concurrent streams than it gets requests. Off by default.
    ///
    /// With TLS, the backend chooses between HTTP/2 and HTTP/1.1 (ALPN), and requests that may leave HTTP, for a
    /// WebSocket, go over HTTP/1.1. If there is no TLS, the backend must speak HTTP/2 from the first byte (prior
    /// knowledge). [`keep`](Builder::keep) has no effect on HTTP/2 connections, and a [`Lease`](super::Lease) is always
    /// a connection of its own.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    pub fn http2(mut self, on: bool) -> Self {
        self.http2 = on;
        self
    }

    /// Sets the receiver of log lines, for example when a backend goes out or comes back; standard
    /// error by default.
    pub fn on_log(mut self, log: impl Fn(&Record<'_>) + Send + Sync + 'static) -> Self {
        self.log = Box::new(log);
        self
    }

    /// Makes the upstream, without connecting yet.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if there is no backend, or more than 64; if all are backups; if a weight is not
    /// from 1 to 1000; if two backends have the same id; if an id or the name of a cookie is not a
    /// token (RFC 9110); and for [`sticky`](Builder::sticky) beside [`Balance::Hash`].
    pub fn build(self) -> io::Result<Upstream> {
        if let Some(mistake) = self.mistake() {
            let error = format!("upstream {} {mistake}", self.name);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let backups = self.backends.iter().enumerate();
        let backups = backups.map(|(index, (_, options))| u64::from(options.backup) << index);
        let backups = backups.fold(0, |set, backup| set | backup);
        let is_round_robin = self.balance == Balance::RoundRobin || self.backends.len() == 1;
        let shares_leases = self.max_leases != usize::MAX || !is_round_robin;
        let backends = self.backends.into_iter();
        let backends: Vec<Backend> = backends
            .map(|(address, options)| {
                #[cfg(feature = "tls")]
                let tls = self
                    .tls
                    .clone()
                    .map(|connector| Secured::new(connector, self.tls_name.as_deref(), &address));
                let backend = Backend::new(address, options, self.resolve_every);
                let backend = match shares_leases {
                    true => backend.with_shared_leases(),
                    false => backend,
                };
                #[cfg(feature = "tls")]
                let backend = backend.secured(tls);
                #[cfg(all(feature = "h2", feature = "proxy"))]
                let backend = backend.multiplexed(self.http2);
                backend
            })
            .collect();
        Ok(Upstream::new(Inner {
            name: self.name,
            #[cfg(all(feature = "h2", feature = "proxy"))]
            id: NEXT_ID.fetch_add(1, Relaxed),
            backups,
            balance: self.balance,
            sticky: self.sticky,
            slow_start: u64::try_from(self.slow_start.as_millis()).unwrap_or(u64::MAX),
            turns: PerWorker::new(),
            backends,
            born: osier::time::now(),
            policy: self.policy,
            connect_timeout: self.connect_timeout,
            keep: self.keep,
            idle_timeout: self.idle_timeout,
            max_leases: self.max_leases,
            check: self.check,
            log: self.log,
            has_keeper: AtomicBool::new(false),
            gone: Arc::new(Event::manual()),
        }))
    }

    /// The first mistake, to complete a sentence about the upstream.
    fn mistake(&self) -> Option<String> {
        let count = self.backends.len();
        if count == 0 || count > BACKENDS_MAX {
            return Some(format!("has {count} backends: give it 1 to {BACKENDS_MAX}"));
        }
        let options = || self.backends.iter().map(|(_, options)| options);
        if options().all(|options| options.backup) {
            return Some("has only backups: make one of them a backend without 'backup'".into());
        }
        let weights = 1..=BackendOptions::WEIGHT_MAX;
        if let Some(options) = options().find(|options| !weights.contains(&options.weight)) {
            let (weight, highest) = (options.weight, weights.end());
            return Some(format!("has a backend of weight {weight}: give it 1 to {highest}"));
        }
        let ids: Vec<&String> = options().filter_map(|options| options.id.as_ref()).collect();
        if let Some(id) = ids.iter().find(|id| !is_token(id)) {
            return Some(format!("has a backend with the id {id:?}: use letters, digits and '-'"));
        }
        let twice = ids.iter().enumerate().find(|(index, id)| ids[..*index].contains(id));
        if let Some((_, id)) = twice {
            return Some(format!("has two backends with the id {id}: give each its own"));
        }
        let key = match &self.balance {
            Balance::Hash(HashKey::Cookie(name)) => Some(name),
            _ => None,
        };
        let mut cookies = key.into_iter().chain(self.sticky.iter().map(|sticky| &sticky.cookie));
        if let Some(name) = cookies.find(|name| !is_token(name)) {
            return Some(format!("names a cookie {name:?}: use letters, digits and '-'"));
        }
        let has_both = self.sticky.is_some() && matches!(self.balance, Balance::Hash(_));
        has_both.then(|| "has a sticky cookie and chooses by a hash: use one of them".into())
    }
}

/// Whether the text is a token (RFC 9110 5.6.2), as the name of a cookie is.
fn is_token(text: &str) -> bool {
    let is_in_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_in_token)
}

osier_queue::impl_debug!(Builder, self => { name: self.name, backends: self.backends, .. });
