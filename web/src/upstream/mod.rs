//! Groups of backends, and connections to them: what `proxy` and `fastcgi` stand on.
//!
//! A handler takes a [`Lease`]: the backend with the fewest leases is chosen, a kept connection of it is reused or a new one
//! made. It speaks its protocol over [`Lease::stream`], says [`answered`](Lease::answered) or [`failed`](Lease::failed), and
//! then either [keeps](Lease::keep) the connection or drops it, which closes.
//!
//! ```text
//!   lease ─▶ claim (this file) ─▶ shelf of this worker (shelves.rs) ─▶ Lease (lease.rs)
//!              │ health.rs: in, out, due for a trial     └ nothing there: dial (backend.rs)
//!   keeper.rs: one fiber an upstream: active checks, idle connections that are too old
//! ```
//!
//! Who may touch what: a lease may be taken, used and given back on any worker, at the same time as others. The number of
//! leases and the health of a backend are atomics; a claim counts itself in by a compare-and-swap on the very number it
//! chose by, so two workers never take the same place. Kept connections lie on one shelf a worker, each behind a lock that is
//! held for a push or a pop and never across a suspension: a connection stays on the worker whose poller knows it, and only
//! a worker whose own shelf is empty takes from another's, which costs two system calls where connecting would cost more.

pub(crate) mod attempt;
mod backend;
mod check;
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
use health::{Admits, Policy};

pub use backend::BackendStats;
pub use check::Check;
pub use lease::Lease;

/// What has been tried is a set of bits.
const BACKENDS_MAX: usize = 64;

/// A named group of backends that serve the same thing. Cloning it shares it.
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
/// With the last clone and the last lease of it end its fiber and its kept connections.
#[derive(Clone)]
pub struct Upstream(Arc<Inner>);

struct Inner {
    name: String,
    backends: Vec<Backend>,
    /// Where the next search begins, so that backends with equally many leases take turns.
    turn: AtomicUsize,
    /// What times of health are counted from.
    born: Instant,
    policy: Policy,
    connect_timeout: Duration,
    keep: usize,
    idle_timeout: Duration,
    max_leases: usize,
    check: Option<Check>,
    log: Log,
    /// Whether the keeper runs; see `keeper.rs`.
    kept: AtomicBool,
    /// Set when this is dropped: ends the keeper.
    gone: Arc<Event>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.gone.set();
    }
}

/// Why there is no lease.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unavailable {
    /// Every backend has failed lately, and no trial is due.
    Out {
        /// The upstream's name.
        upstream: String,
    },
    /// Every backend has as many leases as it may.
    Busy {
        /// The upstream's name.
        upstream: String,
    },
    /// No connection could be made; this is what the last backend tried said.
    Connect {
        /// The backend.
        backend: String,
        /// Why.
        error: io::Error,
    },
    /// No connection was made in time.
    TimedOut {
        /// The backend that was tried last.
        backend: String,
    },
    /// The fiber has been cancelled: its client is gone.
    Cancelled(io::Error),
}

impl Unavailable {
    /// What a gateway answers: 503, 502, 504.
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
            Unavailable::Out { upstream } => write!(
                f,
                "upstream {upstream}: every backend is out; they are tried again by and by"
            ),
            Unavailable::Busy { upstream } => write!(
                f,
                "upstream {upstream}: every backend has all the connections it may have; raise the limit or add a backend"
            ),
            Unavailable::Connect { backend, error } => write!(f, "cannot connect to {backend}: {error}"),
            Unavailable::TimedOut { backend } => write!(f, "no connection to {backend} in time"),
            Unavailable::Cancelled(_) => f.write_str("cancelled while connecting"),
        }
    }
}

impl error::Error for Unavailable {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Unavailable::Connect { error, .. } | Unavailable::Cancelled(error) => Some(error),
            _ => None,
        }
    }
}

/// A cancellation stays one.
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

/// An upstream that is being described; see [`Upstream::builder`].
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
    /// Adds a backend. A name that stands for several addresses is one backend, whose addresses are tried in order.
    pub fn backend(mut self, address: Address) -> Self {
        self.backends.push(address);
        self
    }

    /// Adds backends.
    pub fn backends(mut self, addresses: impl IntoIterator<Item = Address>) -> Self {
        self.backends.extend(addresses);
        self
    }

    /// How long connecting to one backend may take, looking up its name included. 3 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long the addresses of a name are used before it is looked up again. After a connection that could not be made
    /// they are used for another second at most. When the name is not found the old ones stay. 30 s.
    pub fn resolve_every(mut self, time: Duration) -> Self {
        self.resolve_every = time;
        self
    }

    /// The most idle connections kept to one backend, over all workers; 0 keeps none. 64.
    pub fn keep(mut self, connections: usize) -> Self {
        self.keep = connections;
        self
    }

    /// How long a connection is kept idle. Should be shorter than the backend's own. 30 s.
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.idle_timeout = time;
        self
    }

    /// The most leases of one backend at a time. No bound unless set.
    pub fn max_leases(mut self, count: usize) -> Self {
        self.max_leases = count;
        self
    }

    /// How many failures in a row, connections that could not be made and [`Lease::failed`] alike, put a backend out. 3.
    pub fn failures(mut self, count: u32) -> Self {
        self.policy.failures = count.max(1);
        self
    }

    /// How long a backend is out before one request tries it, and up to what that time doubles with each trial that fails.
    /// 250 ms and 10 s.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.policy.first = first;
        self.policy.longest = longest.max(first);
        self
    }

    /// Asks every backend by itself whether it is well.
    pub fn check(mut self, check: Check) -> Self {
        self.check = Some(check);
        self
    }

    /// Takes the lines meant for the operator: a backend is out, or in again. Standard error unless set.
    pub fn on_log(mut self, log: impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static) -> Self {
        self.log = Box::new(log);
        self
    }

    /// The upstream. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// `InvalidInput` without a backend, or with more than 64.
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

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("backends", &self.backends)
            .finish_non_exhaustive()
    }
}

impl Upstream {
    /// An upstream of that name, which log lines and metrics use.
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

    /// How log lines name a backend, by its [number](Lease::backend).
    pub fn label(&self, backend: usize) -> &str {
        &self.0.backends[backend].label
    }

    /// The addresses, in the order in which they were added.
    pub fn backends(&self) -> impl Iterator<Item = &Address> {
        self.0.backends.iter().map(|backend| &backend.address)
    }

    /// A connection to the backend with the fewest leases that is not out: a kept one, or a new one. A backend that does
    /// not take the connection counts a failure, and the next is tried, each once.
    ///
    /// A kept connection may have been closed by its backend at this very moment: see [`Lease::is_reused`].
    ///
    /// # Suspends
    ///
    /// To look up a name, and to connect: until `deadline` at most, if there is one.
    ///
    /// # Errors
    ///
    /// [`Unavailable`].
    pub fn lease(&self, deadline: Option<Instant>) -> Result<Lease, Unavailable> {
        self.find(deadline, None, Kept::Asked)
    }

    /// As [`lease`](Upstream::lease), for a request that can be repeated: then a kept connection costs no system call to see
    /// whether its backend has closed it, where the worker's loop would have heard of that since it last looked.
    pub(crate) fn lease_to_repeat(&self, deadline: Option<Instant>) -> Result<Lease, Unavailable> {
        self.find(deadline, None, Kept::Trusted)
    }

    /// As [`lease`](Upstream::lease), but always a new connection, and to `other` ([`Lease::backend`]) only if there is no
    /// other backend: for the second attempt at a request.
    ///
    /// # Suspends
    ///
    /// As [`lease`](Upstream::lease).
    ///
    /// # Errors
    ///
    /// As [`lease`](Upstream::lease).
    pub fn lease_anew(&self, deadline: Option<Instant>, other: Option<usize>) -> Result<Lease, Unavailable> {
        self.find(deadline, other, Kept::Never)
    }

    /// Begins the active checks now rather than with the first lease. Does nothing without any, and outside of a runtime.
    pub fn start(&self) {
        if self.0.check.is_some() {
            keeper::ensure(&self.0);
        }
    }

    /// What has been counted, one for each backend in their order.
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
            if kept != Kept::Never
                && let Some(stream) = backend.take_kept(kept == Kept::Trusted)
            {
                return Ok(Lease::new(claim, stream, true));
            }
            match backend.dial(inner.connect_timeout, deadline) {
                Ok(stream) => return Ok(Lease::new(claim, stream, false)),
                Err(error) if Cancelled::is(&error) => return Err(Unavailable::Cancelled(error)),
                Err(error) => {
                    // What this process lacks is no backend's fault.
                    if !is_own_lack(&error) {
                        claim.failed(&error);
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

/// Whether there was no descriptor or memory left for a connection.
fn is_own_lack(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}

/// Whether a kept connection will do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Never,
    /// One that is open at this moment.
    Asked,
    /// One that was open when the worker's loop last looked.
    Trusted,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("name", &self.0.name)
            .field(
                "backends",
                &self.0.backends.iter().map(|b| &*b.label).collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Milliseconds since the upstream was built.
    fn now(&self) -> u64 {
        let since = osier::time::coarse_now().saturating_duration_since(self.born);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        (self.log)(format_args!("upstream {}: {line}", self.name));
    }

    /// A place at the backend with the fewest leases, among those that are in and not in `tried`; `avoid` comes last.
    fn claim(self: &Arc<Self>, tried: u64, avoid: Option<usize>) -> Result<Claim, Unavailable> {
        let count = self.backends.len();
        let begin = if count == 1 { 0 } else { self.turn.fetch_add(1, Relaxed) };
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
                    Admits::No => continue,
                    // One request is risked, so that somebody finds out.
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
                return Err(match busy {
                    true => Unavailable::Busy { upstream: upstream() },
                    false => Unavailable::Out { upstream: upstream() },
                });
            };
            // Another worker may have taken the place since: then what was compared is no longer true.
            let taken = self.backends[index]
                .leases
                .compare_exchange(leases, leases + 1, Relaxed, Relaxed);
            if taken.is_ok() {
                return Ok(Claim::new(self, index, false));
            }
        }
    }
}

/// A place at a backend, counted until it is dropped.
struct Claim {
    upstream: Arc<Inner>,
    backend: usize,
    /// The backend was out, and this is to show whether it is in again.
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

    fn failed(&self, why: &dyn fmt::Display) {
        let inner = &self.upstream;
        let backend = self.backend();
        if let Some(out) = backend.health.failed(self.trial, inner.now(), &inner.policy) {
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
