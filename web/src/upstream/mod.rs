//! Upstreams: groups of backends, the choice of a backend, and the connections to them.
//!
//! A gateway takes a [`Lease`], which is a connection to the backend that the [`Balance`] chooses: an
//! idle one that was kept, or a new one. The gateway speaks its protocol over the lease and
//! reports [`answered`](Lease::answered) or [`failed`](Lease::failed). Then it [keeps](Lease::keep)
//! the connection, or drops the lease, which closes it.
//!
//! Any worker may take, use and return a lease, at the same time as others. The number of leases and the health of a
//! backend are atomics. A search that finds a backend takes no lock and allocates nothing. Where leases are limited, or
//! the choice depends on them, a claim counts itself with a compare-and-swap that fails if the backend has more leases
//! than the choice allows, so two workers never take the same place. Everything else that a request writes belongs to
//! its worker.
//!
//! Idle connections lie on one shelf per worker. A lock guards each shelf; it is held for a push or
//! a pop and never across a suspension. Usually a connection stays on the worker whose poller knows it. A
//! worker whose shelf is empty takes a connection of another worker, which costs two system calls, less than
//! connecting.

//   affinity.rs: what the request says
//     ▼
//   lease ─▶ claim (claim.rs) ─▶ shelf of this worker (shelves.rs) ─▶ Lease (lease.rs)
//              │ health.rs: in, out, due for a trial     └ empty: dial (backend.rs)
//              │ pick.rs: weights, loads and keys
//   keeper.rs: one fiber an upstream: active checks, idle timeout

pub(crate) mod affinity;
pub(crate) mod attempt;
mod backend;
mod balance;
mod builder;
#[cfg(feature = "proxy")]
pub(crate) mod carrier;
mod check;
mod claim;
pub(crate) mod client;
mod counts;
#[cfg(all(feature = "h2", feature = "proxy"))]
mod h2;
mod health;
mod keeper;
mod lease;
mod limit;
pub(crate) mod named;
mod names;
mod per_worker;
pub(crate) mod pick;
mod shelves;
pub(crate) mod ticket;
mod unavailable;

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io};

use osier::Cancelled;
use osier::sync::Event;
use rustix::io::Errno;
#[cfg(all(feature = "proxy", feature = "upgrade"))]
use rustix::net::SocketAddrAny;

use crate::conn::log::record::{Level, Record};
use crate::conn::settings::Log;
use crate::{Address, Request};
use backend::Backend;
#[cfg(feature = "proxy")]
use carrier::Carrier;
use claim::{Attempted, Claim, Search};
use health::{FailureKind, Policy};
use per_worker::PerWorker;
use pick::BACKENDS_MAX;
#[cfg(all(feature = "proxy", feature = "upgrade"))]
use ticket::Ticket;

pub use backend::BackendStats;
pub use balance::{BackendOptions, Balance, HashKey, Sticky};
pub use builder::Builder;
pub use check::Check;
pub use counts::Latency;
pub use lease::Lease;
pub use unavailable::Unavailable;
pub(crate) use unavailable::Unreached;

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
///     (&lease).read_to_string(&mut greeting)?;
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
pub struct Upstream(Arc<Handle>);

/// A reference to an upstream that does not keep it.
#[cfg(all(feature = "proxy", feature = "upgrade"))]
#[derive(Clone)]
pub(crate) struct WeakUpstream(Weak<Handle>);

#[cfg(all(feature = "proxy", feature = "upgrade"))]
impl WeakUpstream {
    pub(crate) fn upgrade(&self) -> Option<Upstream> {
        self.0.upgrade().map(Upstream)
    }
}

/// A reference to an upstream that lasts as long as its clones and leases: after a reload of a server's configuration, its leases alone.
#[doc(hidden)]
pub struct Leftover(Weak<Inner>);

impl Leftover {
    /// Same as [`Upstream::stats`]. `None` once the last clone and the last lease have ended.
    pub fn stats(&self) -> Option<Vec<BackendStats>> {
        self.0.upgrade().map(|inner| inner.stats())
    }

    /// Whether it refers to this upstream.
    pub fn is_of(&self, upstream: &Upstream) -> bool {
        self.0.as_ptr() == Arc::as_ptr(&upstream.0.inner)
    }
}

/// The part that the clones share.
struct Handle {
    inner: Arc<Inner>,
    /// The reference that the claims of each worker hold.
    anchors: PerWorker<Arc<Anchor>>,
}

/// The state of one worker's choices. If all workers took turns together, each choice would write a cache line that
/// they share. The state has no pointers, because memory behind them could lie on a cache line with that of another
/// worker.
struct Turns {
    /// The credits of the backends in the round robin; see `pick.rs`.
    credits: [AtomicI64; BACKENDS_MAX],
    /// The state of [`pick::random`].
    random: AtomicU64,
}

/// A reference to an upstream for the claims of one worker. Claims are counted here, as references to it. One count of
/// all claims would be a cache line that all workers write.
#[repr(align(128))]
struct Anchor(Arc<Inner>);

/// The state that all clones and leases of an upstream share.
struct Inner {
    name: String,
    /// A number that no other upstream of this process has.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    id: u64,
    backends: Vec<Backend>,
    /// The set of the backups.
    backups: u64,
    balance: Balance,
    sticky: Option<Sticky>,
    /// The time of the slow start, in milliseconds.
    slow_start: u64,
    /// The state of the choices, for each worker.
    turns: PerWorker<Turns>,
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
    has_keeper: AtomicBool,
    /// Set when the upstream is dropped, to end the keeper and the shared connections.
    gone: Arc<Event>,
}

impl Deref for Handle {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl Deref for Anchor {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.gone.set();
    }
}

impl Upstream {
    fn new(inner: Inner) -> Upstream {
        Upstream(Arc::new(Handle {
            inner: Arc::new(inner),
            anchors: PerWorker::new(),
        }))
    }

    /// Starts building an upstream. Log lines and metrics use the name.
    pub fn builder(name: impl Into<String>) -> Builder {
        Builder::new(name.into())
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

    /// Takes a connection to the backend that the [balance](Builder::balance) chooses among those that
    /// are in service: an idle one that was kept, or a new one. A backend that refuses the connection
    /// counts a failure, and another one is chosen. Each is tried once.
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
        self.find(deadline, Search::default(), Kept::Taken)
    }

    /// Takes a connection as [`lease`](Upstream::lease) does, to the backend that `request` belongs to
    /// by [`Balance::Hash`] or by its [sticky](Builder::sticky) cookie.
    ///
    /// # Suspends
    ///
    /// Same as [`lease`](Upstream::lease).
    ///
    /// # Errors
    ///
    /// Same as [`lease`](Upstream::lease).
    pub fn lease_for(&self, request: &Request<'_>, deadline: Option<Instant>) -> Result<Lease, Unavailable> {
        let search = Search {
            affinity: self.affinity(request),
            ..Search::default()
        };
        self.find(deadline, search, Kept::Taken)
    }

    /// Takes a new connection for the second attempt at a request. The backend of the first attempt, `before`
    /// ([`Lease::backend`]), gets it only if there is no other.
    ///
    /// # Suspends
    ///
    /// Same as [`lease`](Upstream::lease).
    ///
    /// # Errors
    ///
    /// Same as [`lease`](Upstream::lease).
    pub fn lease_anew(&self, deadline: Option<Instant>, before: Option<usize>) -> Result<Lease, Unavailable> {
        let after = before.map(|backend| Attempted { backend, reused: false });
        let search = Search {
            after,
            ..Search::default()
        };
        self.find(deadline, search, Kept::Never)
    }

    /// Logs a line for the operator.
    pub(crate) fn say(&self, line: fmt::Arguments<'_>) {
        (self.0.log)(&Record::new(Level::Warning, line));
    }

    /// Logs that no file can be made for the response of a slow client.
    pub(crate) fn lacks_file(&self, error: &io::Error) {
        self.0
            .log(format_args!("a response waits for its client at the backend: {error}"));
    }

    /// Starts the active checks now instead of with the first lease. Does nothing without checks,
    /// or outside of a runtime.
    pub fn start(&self) {
        if self.0.check.is_some() {
            keeper::ensure(&self.0.inner);
        }
    }

    /// Statistics of each backend, in the order in which they were added.
    pub fn stats(&self) -> Vec<BackendStats> {
        self.0.stats()
    }

    /// A reference that does not keep the upstream, for the statistics of what is left of it.
    #[doc(hidden)]
    pub fn leftover(&self) -> Leftover {
        Leftover(Arc::downgrade(&self.0.inner))
    }

    /// A reference that does not keep the upstream.
    #[cfg(all(feature = "proxy", feature = "upgrade"))]
    pub(crate) fn downgrade(&self) -> WeakUpstream {
        WeakUpstream(Arc::downgrade(&self.0))
    }

    /// Counts a tunnel that another process has begun, with the backend at this address, if it has one.
    ///
    /// # Suspends
    ///
    /// While a name is looked up.
    #[cfg(all(feature = "proxy", feature = "upgrade"))]
    pub(crate) fn adopt_tunnel(&self, peer: &SocketAddrAny) -> Option<Ticket> {
        let limit = self.0.connect_timeout;
        let at = self.0.backends.iter().position(|backend| backend.is_at(peer, limit))?;
        let anchor = self.0.anchors.own(|_| Arc::new(Anchor(self.0.inner.clone())));
        let ticket = Ticket::new(anchor.claim_extra(at), true);
        ticket.begin_tunnel();
        Some(ticket)
    }

    /// Finds a lease, before `deadline`.
    fn find(&self, deadline: Option<Instant>, search: Search, kept: Kept) -> Result<Lease, Unavailable> {
        self.reach(deadline, search, |claim| self.0.open(claim, deadline, kept))
    }

    /// Finds a carrier for a request. `upgrades` says that the request may leave HTTP.
    #[cfg(feature = "proxy")]
    fn find_carrier(&self, search: Search, kept: Kept, upgrades: bool) -> Result<Carrier, Unavailable> {
        let _ = upgrades;
        self.reach(None, search, |claim| {
            #[cfg(all(feature = "h2", feature = "proxy"))]
            if claim.backend().takes_streams(upgrades) {
                let reached = h2::reach(claim, self.0.connect_timeout, kept == Kept::Taken);
                return reached.map(|reach| match reach {
                    h2::Reach::Stream(stream) => Carrier::Stream(stream),
                    h2::Reach::Bytes(claim, transport, reused) => Carrier::Bytes(Lease::new(claim, transport, reused)),
                });
            }
            self.0.open(claim, None, kept).map(Carrier::Bytes)
        })
    }

    /// Whether requests may go to a backend on streams of HTTP/2.
    #[cfg(feature = "proxy")]
    pub(crate) fn speaks_http2(&self) -> bool {
        self.0.backends.iter().any(Backend::speaks_http2)
    }

    /// Claims a place at one backend after the other, until `open` succeeds or `deadline` has passed.
    fn reach<T>(
        &self,
        deadline: Option<Instant>,
        mut search: Search,
        mut open: impl FnMut(Claim) -> Result<T, (Claim, io::Error)>,
    ) -> Result<T, Unavailable> {
        let inner = &self.0.inner;
        let anchor = self.0.anchors.own(|_| Arc::new(Anchor(inner.clone())));
        self.start();
        let mut last = None;
        loop {
            let claim = match anchor.claim(&search) {
                Ok(claim) => claim,
                Err(nobody) => return Err(last.unwrap_or(nobody)),
            };
            search.tried |= 1 << claim.backend;
            let (claim, error) = match open(claim) {
                Ok(opened) => return Ok(opened),
                Err(failed) => failed,
            };
            if Cancelled::is(&error) {
                return Err(Unavailable::Cancelled(error));
            }
            // A lack of this process's own resources is not the backend's failure.
            if !is_out_of_resources(&error) {
                claim.failed(FailureKind::Connecting, &error);
            }
            let backend = claim.backend().label.clone();
            last = Some(match error.kind() {
                io::ErrorKind::TimedOut => Unavailable::TimedOut { backend },
                _ => Unavailable::Connect { backend, error },
            });
            if deadline.is_some_and(|deadline| deadline <= osier::time::now()) {
                return Err(last.expect("an attempt has just failed"));
            }
        }
    }
}

/// Whether this process or system had no descriptor or memory left for a connection. The system's error is the source of that of a lookup,
/// or of a connect to several addresses.
fn is_out_of_resources(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    let is_lack = |error: &io::Error| Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno));
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    is_lack(error) || source.is_some_and(is_lack)
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
    /// Takes a kept connection to the backend of `claim`, or makes one.
    fn open(&self, claim: Claim, deadline: Option<Instant>, kept: Kept) -> Result<Lease, (Claim, io::Error)> {
        let backend = claim.backend();
        if kept == Kept::Taken
            && let Some(transport) = backend.take_kept()
        {
            return Ok(Lease::new(claim, transport, true));
        }
        let dialed = backend.dial(self.connect_timeout, deadline);
        claim.has_dialed();
        match dialed {
            Ok(transport) => Ok(Lease::new(claim, transport, false)),
            Err(error) => Err((claim, error)),
        }
    }

    fn stats(&self) -> Vec<BackendStats> {
        let now = self.now();
        self.backends.iter().map(|backend| backend.stats(now)).collect()
    }

    /// Milliseconds since the upstream was built.
    fn now(&self) -> u64 {
        let since = osier::time::coarse_now().saturating_duration_since(self.born);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Logs a line about the upstream.
    fn log(&self, line: fmt::Arguments<'_>) {
        let text = format_args!("upstream {}: {line}", self.name);
        (self.log)(&Record::new(Level::Warning, text));
    }
}
