//! Upstreams: groups of backends, the choice of a backend, and the connections to them.
//!
//! A gateway takes a [`Lease`], which is a connection to the backend with the fewest leases: an
//! idle one that was kept, or a new one. The gateway speaks its protocol over [`Lease::stream`] and
//! reports [`answered`](Lease::answered) or [`failed`](Lease::failed). Then it [keeps](Lease::keep)
//! the connection, or drops the lease, which closes it.
//!
//! ```text
//!   lease ─▶ claim (this file) ─▶ shelf of this worker (shelves.rs) ─▶ Lease (lease.rs)
//!              │ health.rs: in, out, due for a trial     └ empty: dial (backend.rs)
//!   keeper.rs: one fiber an upstream: active checks, idle timeout
//! ```
//!
//! Any worker may take, use and return a lease, at the same time as others. The number of leases
//! and the health of a backend are atomics. A claim counts itself with a compare-and-swap on the
//! number that it chose the backend by, so two workers never take the same place.
//!
//! Idle connections lie on one shelf per worker. A lock guards each shelf; it is held for a push or
//! a pop and never across a suspension. A connection stays on the worker whose poller knows it. A
//! worker whose shelf is empty takes one of another worker, which costs two system calls, less than
//! connecting.

pub(crate) mod attempt;
mod backend;
mod check;
pub(crate) mod client;
mod counts;
mod health;
mod keeper;
mod lease;
mod names;
mod shelves;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{error, fmt, io};

use http::StatusCode;
use osier::Cancelled;
use osier::sync::Event;
use rustix::io::Errno;

use crate::Address;
use crate::conn::settings::Log;
use backend::Backend;
use health::{Admits, Failed, Policy};

pub use backend::BackendStats;
pub use check::Check;
pub use counts::Latency;
pub use lease::Lease;

/// Maximum backends of an upstream: `find` keeps the tried ones in a set of 64 bits.
const BACKENDS_MAX: usize = 64;

/// A named group of equivalent backends. Clones share it.
///
/// ```
/// use osier_web::upstream::Upstream;
/// use std::io::{Read, Write};
///
/// # let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr()?.to_string();
/// # std::thread::spawn(move || listener.accept().map(|(mut stream, _)| stream.write_all(b"hello")));
/// let upstream = Upstream::builder("app").backend(address.parse()?).build()?;
/// osier::run(|| {
///     let lease = upstream.lease(None)?;
///     let mut greeting = String::new();
///     lease.stream().read_to_string(&mut greeting)?;
///     assert_eq!(greeting, "hello");
///     lease.answered();
///     std::io::Result::Ok(())
/// })?;
/// assert_eq!(upstream.stats()[0].connects, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Its fiber and its idle connections end with the last clone and the last lease.
#[derive(Clone)]
pub struct Upstream(Arc<Inner>);

/// The state that all clones and leases of an upstream share.
struct Inner {
    name: String,
    backends: Vec<Backend>,
    /// Index at which the next search begins, so that backends with equally many leases take turns.
    turn: AtomicUsize,
    /// Origin of the times in [`health`].
    born: Instant,
    policy: Policy,
    connect_timeout: Duration,
    keep: usize,
    idle_timeout: Duration,
    max_leases: usize,
    check: Option<Check>,
    log: Log,
    /// Whether the keeper's fiber runs; see `keeper.rs`.
    kept: AtomicBool,
    /// Set when the upstream is dropped, to end the keeper.
    gone: Arc<Event>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.gone.set();
    }
}

/// The reason why no lease is available.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unavailable {
    /// The active checks have found every backend unhealthy.
    Out {
        /// The upstream's name.
        upstream: String,
    },
    /// Every backend has reached its limit of leases.
    Busy {
        /// The upstream's name.
        upstream: String,
    },
    /// No connection could be made. The fields describe the last attempt.
    Connect {
        /// The backend's label.
        backend: String,
        /// The error of connecting.
        error: io::Error,
    },
    /// No connection was made within the connect timeout or the deadline.
    TimedOut {
        /// The label of the backend that was tried last.
        backend: String,
    },
    /// The fiber was cancelled because its client has disconnected.
    Cancelled(io::Error),
}

impl Unavailable {
    /// The status of a gateway's response: 502, 503 or 504.
    pub fn status(&self) -> StatusCode {
        match self {
            Unavailable::Out { .. } | Unavailable::Busy { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Unavailable::Connect { .. } | Unavailable::Cancelled(_) => StatusCode::BAD_GATEWAY,
            Unavailable::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Out { upstream } => write!(f, "upstream {upstream}: every backend fails its health check"),
            Unavailable::Busy { upstream } => write!(
                f,
                "upstream {upstream}: every backend has reached its connection limit; raise the limit or add a backend"
            ),
            Unavailable::Connect { backend, error } => write!(f, "cannot connect to {backend}: {error}"),
            Unavailable::TimedOut { backend } => write!(f, "connecting to {backend} timed out"),
            Unavailable::Cancelled(_) => f.write_str("cancelled while connecting"),
        }
    }
}

impl error::Error for Unavailable {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            // The text of `Connect` ends with its error. As the source too, a report would print it twice.
            Unavailable::Connect { error, .. } => error::Error::source(error),
            Unavailable::Cancelled(error) => Some(error),
            _ => None,
        }
    }
}

/// Keeps the error of a cancellation, and the kind of a timeout or a connection error.
impl From<Unavailable> for io::Error {
    fn from(unavailable: Unavailable) -> io::Error {
        match unavailable {
            Unavailable::Cancelled(error) => error,
            Unavailable::TimedOut { .. } => io::Error::new(io::ErrorKind::TimedOut, unavailable),
            Unavailable::Connect { ref error, .. } => io::Error::new(error.kind(), unavailable),
            _ => io::Error::other(unavailable),
        }
    }
}

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

impl Upstream {
    /// Starts building an upstream. Log lines and metrics use the name.
    pub fn builder(name: impl Into<String>) -> Builder {
        let s = Duration::from_secs;
        Builder {
            name: name.into(),
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

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The label of the backend with this [number](Lease::backend), as log lines show it.
    pub fn label(&self, backend: usize) -> &str {
        &self.0.backends[backend].label
    }

    /// The backends' addresses, in the order in which they were added.
    pub fn backends(&self) -> impl Iterator<Item = &Address> {
        self.0.backends.iter().map(|backend| &backend.address)
    }

    /// Whether idle connections are kept.
    #[cfg(feature = "fastcgi")]
    pub(crate) fn keeps(&self) -> bool {
        self.0.keep > 0
    }

    /// Takes a connection to the backend with the fewest leases that is not out: an idle one that
    /// was kept, or a new one. A backend that refuses the connection counts a failure, and the next
    /// one is tried. Each is tried once.
    ///
    /// The backend may be closing a kept connection at this very moment: see [`Lease::is_reused`].
    ///
    /// # Suspends
    ///
    /// While a name is looked up and a connection is made, until `deadline` at most.
    ///
    /// # Cancellation
    ///
    /// Returns [`Unavailable::Cancelled`].
    ///
    /// # Errors
    ///
    /// The [`Unavailable`] variant says why there is no lease.
    pub fn lease(&self, deadline: Option<Instant>) -> Result<Lease, Unavailable> {
        self.find(deadline, None, Kept::Taken)
    }

    /// Takes a new connection for the second attempt at a request. It goes to the backend `other`
    /// ([`Lease::backend`]) only if there is no other.
    ///
    /// # Suspends
    ///
    /// Same as [`lease`](Upstream::lease).
    ///
    /// # Errors
    ///
    /// Same as [`lease`](Upstream::lease).
    pub fn lease_anew(&self, deadline: Option<Instant>, other: Option<usize>) -> Result<Lease, Unavailable> {
        self.find(deadline, other, Kept::Never)
    }

    /// Logs a line for the operator.
    #[cfg(feature = "fastcgi")]
    pub(crate) fn say(&self, line: fmt::Arguments<'_>) {
        (self.0.log)(line);
    }

    /// Logs that there is no file for the responses of slow clients.
    pub(crate) fn lacks_file(&self, error: &io::Error) {
        self.0
            .log(format_args!("a response waits for its client at the backend: {error}"));
    }

    /// Starts the active checks now instead of with the first lease. Does nothing without checks,
    /// or outside of a runtime.
    pub fn start(&self) {
        if self.0.check.is_some() {
            keeper::ensure(&self.0);
        }
    }

    /// Statistics of each backend, in the order in which they were added.
    pub fn stats(&self) -> Vec<BackendStats> {
        let now = self.0.now();
        self.0.backends.iter().map(|backend| backend.stats(now)).collect()
    }

    fn find(&self, deadline: Option<Instant>, avoid: Option<usize>, kept: Kept) -> Result<Lease, Unavailable> {
        let inner = &self.0;
        self.start();
        let mut tried = 0u64;
        let mut last = None;
        loop {
            let claim = match inner.claim(tried, avoid) {
                Ok(claim) => claim,
                Err(nobody) => return Err(last.unwrap_or(nobody)),
            };
            tried |= 1 << claim.backend;
            let backend = &inner.backends[claim.backend];
            if kept == Kept::Taken
                && let Some(stream) = backend.take_kept()
            {
                return Ok(Lease::new(claim, stream, true));
            }
            match backend.dial(inner.connect_timeout, deadline) {
                Ok(stream) => return Ok(Lease::new(claim, stream, false)),
                Err(error) if Cancelled::is(&error) => return Err(Unavailable::Cancelled(error)),
                Err(error) => {
                    // A lack of this process's own resources is not the backend's failure.
                    if !is_out_of_resources(&error) {
                        claim.failed(Failed::Connecting, &error);
                    }
                    let backend = backend.label.clone();
                    last = Some(match error.kind() {
                        io::ErrorKind::TimedOut => Unavailable::TimedOut { backend },
                        _ => Unavailable::Connect { backend, error },
                    });
                }
            }
            if deadline.is_some_and(|deadline| deadline <= osier::time::now()) {
                return Err(last.expect("an attempt has just failed"));
            }
        }
    }
}

/// Whether this process or system had no descriptor or memory left for a connection.
fn is_out_of_resources(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}

/// Whether a kept connection may be taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Never,
    Taken,
}

osier_queue::impl_debug!(Upstream, self => {
    name: self.0.name,
    backends: self.0.backends.iter().map(|b| &*b.label).collect::<Vec<_>>(),
    ..
});

impl Inner {
    /// Milliseconds since the upstream was built.
    fn now(&self) -> u64 {
        let since = osier::time::coarse_now().saturating_duration_since(self.born);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        (self.log)(format_args!("upstream {}: {line}", self.name));
    }

    /// Claims a place at the backend with the fewest leases, among those that are in and not in
    /// `tried`. The backend `avoid` is chosen last. If failures have put all backends out, the first
    /// attempt goes to one of them all the same.
    fn claim(self: &Arc<Self>, tried: u64, avoid: Option<usize>) -> Result<Claim, Unavailable> {
        let count = self.backends.len();
        let begin = if count == 1 { 0 } else { self.turn.fetch_add(1, Relaxed) };
        let mut all_out = false;
        loop {
            let mut best: Option<(bool, usize, usize)> = None;
            let mut busy = false;
            for index in (0..count).map(|offset| begin.wrapping_add(offset) % count) {
                if tried & 1 << index != 0 {
                    continue;
                }
                let backend = &self.backends[index];
                let leases = backend.leases.load(Relaxed);
                if leases >= self.max_leases {
                    busy = true;
                    continue;
                }
                match backend.health.admits(|| self.now()) {
                    Admits::No if all_out && backend.health.is_well() => {}
                    Admits::No => continue,
                    // One request is risked as the trial.
                    Admits::Trial => match backend.health.begin_trial(self.now(), &self.policy) {
                        true => {
                            backend.leases.fetch_add(1, Relaxed);
                            return Ok(Claim::new(self, index, true));
                        }
                        false => continue,
                    },
                    Admits::Yes => {}
                }
                let rank = (avoid == Some(index), leases, index);
                if best.is_none_or(|(avoided, fewest, _)| (rank.0, rank.1) < (avoided, fewest)) {
                    best = Some(rank);
                }
            }
            let upstream = || self.name.clone();
            let Some((_, leases, index)) = best else {
                // Two workers may each have put out what they saw as the last but one.
                if tried == 0 && !busy && !std::mem::replace(&mut all_out, true) {
                    continue;
                }
                return Err(match busy {
                    true => Unavailable::Busy { upstream: upstream() },
                    false => Unavailable::Out { upstream: upstream() },
                });
            };
            // Another worker may have taken the place meanwhile. The comparison is then outdated,
            // and the search starts anew.
            let taken = self.backends[index]
                .leases
                .compare_exchange(leases, leases + 1, Relaxed, Relaxed);
            if taken.is_ok() {
                return Ok(Claim::new(self, index, false));
            }
        }
    }
}

/// A place at a backend. It counts as a lease until it is dropped.
struct Claim {
    upstream: Arc<Inner>,
    backend: usize,
    /// Whether the backend was out and this claim is the trial.
    trial: bool,
}

impl Claim {
    fn new(upstream: &Arc<Inner>, backend: usize, trial: bool) -> Claim {
        Claim {
            upstream: upstream.clone(),
            backend,
            trial,
        }
    }

    fn backend(&self) -> &Backend {
        &self.upstream.backends[self.backend]
    }

    fn failed(&self, what: Failed, why: &dyn fmt::Display) {
        let inner = &self.upstream;
        let backend = self.backend();
        let now = inner.now();
        let is_last = || {
            let mut others = inner
                .backends
                .iter()
                .enumerate()
                .filter(|(index, _)| *index != self.backend);
            !others.any(|(_, other)| other.health.is_in(now))
        };
        if let Some(out) = backend.health.failed(what, self.trial, now, &inner.policy, is_last) {
            let label = &backend.label;
            inner.log(format_args!("backend {label} is out for {out:?}: {why}"));
        }
    }

    fn answered(&self) {
        if self.backend().health.answered() {
            let label = &self.backend().label;
            self.upstream.log(format_args!("backend {label} is in again"));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.backend().leases.fetch_sub(1, Relaxed);
    }
}
