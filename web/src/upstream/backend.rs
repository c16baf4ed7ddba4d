//! One backend: its address, idle connections, health and counters, and how to connect to it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
#[cfg(all(feature = "h2", feature = "proxy"))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use osier::net::{TcpStream, ToSocketAddrs, UnixStream};
#[cfg(all(feature = "proxy", feature = "upgrade"))]
use rustix::net::{SocketAddrAny, SocketAddrUnix};

use super::balance::BackendOptions;
use super::counts::{Counts, Latency};
use super::health::Health;
use super::limit::within;
use super::names::Names;
use super::per_worker::CachePadded;
use super::pick::hash;
use super::shelves::Shelves;
#[cfg(feature = "tls")]
use crate::conn::secured::Secured;
use crate::conn::transport::Transport;
use crate::{Address, Stream};

/// The weight of a backend with the weight 1. The start of a backend that has come back needs
/// fractions.
pub(super) const WEIGHT: u64 = 1000;

/// One backend of an upstream. Any worker may use it at any time.
pub(super) struct Backend {
    pub(super) address: Address,
    /// The address as text.
    pub(super) label: String,
    /// Whether a network lies between this system and the backend. Over loopback and Unix sockets, the
    /// backend has what was written as soon as the write returns.
    pub(super) is_remote: bool,
    /// The weight of the options, times [`WEIGHT`].
    pub(super) weight: u64,
    is_backup: bool,
    /// The name in sticky cookies and for the choice by a key.
    pub(super) id: String,
    /// The hash of `id`, for the choice by a key.
    pub(super) seed: u64,
    /// Leases in use, if a choice depends on them. All workers write it. Otherwise `counts` has them.
    leases: Option<CachePadded<AtomicUsize>>,
    pub(super) health: Health,
    pub(super) shelves: Shelves,
    /// How TLS with it begins, if it speaks TLS.
    #[cfg(feature = "tls")]
    tls: Option<Secured>,
    /// Whether HTTP/2 is offered to the backend.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    http2: bool,
    /// Whether the backend chose HTTP/1.1 at the last handshake.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    pub(super) chooses_http1: AtomicBool,
    names: Names,
    /// Connections made.
    connects: AtomicU64,
    /// Open HTTP/2 connections. Each holds this counter and not its upstream, because it waits for the end of the
    /// upstream.
    pub(super) shared: Arc<AtomicUsize>,
    /// Connections that could not be made.
    failures: AtomicU64,
    /// Idle connections that were closed because they could not be used any more.
    stale: AtomicUsize,
    pub(super) counts: Counts,
}

/// Statistics of one backend; see [`Upstream::stats`](super::Upstream::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendStats {
    /// The backend's address.
    pub address: Address,
    /// Whether it gets requests: it is neither out after failures nor unhealthy by the checks.
    pub is_in: bool,
    /// Its weight beside others.
    pub weight: u32,
    /// Whether it gets requests only while no other backend is in.
    pub is_backup: bool,
    /// Its name in sticky cookies.
    pub id: String,
    /// Leases in use now.
    pub leases: usize,
    /// The leases among them whose connections have left HTTP: WebSockets and other tunnels of a proxy.
    pub tunnels: usize,
    /// The tunnels that have ended. A tunnel that another process has got has ended here.
    pub tunnels_ended: u64,
    /// The sum of the times of these tunnels.
    pub tunnel_time: Duration,
    /// Bytes that tunnels have passed on to the backend. A tunnel adds its bytes when it passes some on and ten seconds are over, and at
    /// its end.
    pub tunnel_bytes_to_backend: u64,
    /// Bytes that tunnels have passed on to clients, in the same way.
    pub tunnel_bytes_to_clients: u64,
    /// Idle connections now.
    pub kept: usize,
    /// All leases since the start.
    pub total: u64,
    /// Leases on a connection that was used before.
    pub reused: u64,
    /// Connections made.
    pub connects: u64,
    /// HTTP/2 connections that are open now, with or without requests.
    pub http2: usize,
    /// Connections that could not be made, checks included.
    pub failures: u64,
    /// Connections that could not be made in time. `failures` counts them too.
    pub connect_timeouts: u64,
    /// Requests without a response in time.
    pub response_timeouts: u64,
    /// Requests whose response violated the protocol or broke off before its head was whole.
    pub response_failures: u64,
    /// Responses that broke off inside their body, or whose next bytes did not come in time. A proxy counts them.
    pub body_failures: u64,
    /// The time from the lease to the head of the response.
    pub latency: Latency,
    /// Idle connections closed by the idle timeout or by the backend.
    pub stale: usize,
}

/// Whether an address may be that of another system: any TCP address that does not spell loopback.
fn is_remote(address: &Address) -> bool {
    let loopback = |host: &str| {
        ["127.", "[::1]:", "localhost:"]
            .iter()
            .any(|start| host.starts_with(start))
    };
    matches!(address, Address::Tcp(host) if !loopback(host))
}

impl Backend {
    pub(super) fn new(address: Address, options: BackendOptions, resolve_every: Duration) -> Backend {
        let label = address.to_string();
        let id = options.id.unwrap_or_else(|| format!("{:016x}", hash(label.as_bytes())));
        Backend {
            label,
            weight: u64::from(options.weight) * WEIGHT,
            is_backup: options.backup,
            seed: hash(id.as_bytes()),
            id,
            is_remote: is_remote(&address),
            leases: None,
            health: Health::default(),
            shelves: Shelves::new(),
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(all(feature = "h2", feature = "proxy"))]
            http2: false,
            #[cfg(all(feature = "h2", feature = "proxy"))]
            chooses_http1: AtomicBool::new(false),
            names: Names::new(resolve_every),
            connects: AtomicU64::new(0),
            shared: Arc::default(),
            failures: AtomicU64::new(0),
            stale: AtomicUsize::new(0),
            counts: Counts::new(),
            address,
        }
    }

    /// Makes all workers count their leases together, so that a choice may depend on them.
    pub(super) fn with_shared_leases(self) -> Backend {
        Backend {
            leases: Some(CachePadded(AtomicUsize::new(0))),
            ..self
        }
    }

    /// Makes it speak TLS, if `tls` says how.
    #[cfg(feature = "tls")]
    pub(super) fn secured(self, tls: Option<Secured>) -> Backend {
        Backend { tls, ..self }
    }

    /// Sets whether HTTP/2 is offered to the backend.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    pub(super) fn multiplexed(self, http2: bool) -> Backend {
        Backend { http2, ..self }
    }

    /// Whether requests may go on streams of HTTP/2.
    #[cfg(feature = "proxy")]
    pub(super) fn speaks_http2(&self) -> bool {
        #[cfg(feature = "h2")]
        return self.http2;
        #[cfg(not(feature = "h2"))]
        false
    }

    /// Whether a request may go on an HTTP/2 stream. A request that may leave HTTP (`upgrades`) goes over HTTP/1.1
    /// where TLS lets both ends choose the version.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    pub(super) fn takes_streams(&self, upgrades: bool) -> bool {
        #[cfg(feature = "tls")]
        let has_choice = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let has_choice = false;
        self.http2 && !(upgrades && has_choice)
    }

    pub(super) fn stats(&self, now: u64) -> BackendStats {
        let (total, reused) = self.counts.connections();
        let (tunnels_ended, tunnel_time, tunnel_bytes) = self.counts.tunnelled_so_far();
        BackendStats {
            address: self.address.clone(),
            is_in: self.health.is_in(now),
            weight: (self.weight / WEIGHT) as u32,
            is_backup: self.is_backup,
            id: self.id.clone(),
            leases: match &self.leases {
                Some(leases) => leases.0.load(Relaxed),
                None => self.counts.leases(),
            },
            tunnels: self.counts.tunnels(),
            tunnels_ended,
            tunnel_time,
            tunnel_bytes_to_backend: tunnel_bytes[0],
            tunnel_bytes_to_clients: tunnel_bytes[1],
            kept: self.shelves.count(),
            total,
            reused,
            connects: self.connects.load(Relaxed),
            http2: self.shared.load(Relaxed),
            failures: self.failures.load(Relaxed),
            connect_timeouts: self.counts.connect_timeouts(),
            response_timeouts: self.counts.response_timeouts(),
            response_failures: self.counts.response_failures(),
            body_failures: self.counts.body_failures(),
            latency: self.counts.latency(),
            stale: self.stale.load(Relaxed),
        }
    }

    /// Leases in use, for a choice that depends on them. 0 if none does.
    #[inline]
    pub(super) fn load(&self) -> usize {
        self.leases.as_ref().map_or(0, |leases| leases.0.load(Relaxed))
    }

    /// Takes a place if fewer than `below` are taken. Another worker may have taken one meanwhile.
    #[inline]
    pub(super) fn take_place(&self, below: usize) -> bool {
        let Some(leases) = &self.leases else {
            self.counts.lease_begins();
            return true;
        };
        let next = |leases| (leases < below).then_some(leases + 1);
        leases.0.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    /// Takes a place, however many are taken.
    pub(super) fn take_extra_place(&self) {
        match &self.leases {
            Some(leases) => _ = leases.0.fetch_add(1, Relaxed),
            None => self.counts.lease_begins(),
        }
    }

    /// Gives a place back.
    #[inline]
    pub(super) fn give_place(&self) {
        match &self.leases {
            Some(leases) => _ = leases.0.fetch_sub(1, Relaxed),
            None => self.counts.lease_ends(),
        }
    }

    /// Takes an idle connection.
    pub(super) fn take_kept(&self) -> Option<Transport> {
        self.shelves.take(osier::time::coarse_now(), &self.stale)
    }

    /// Closes idle connections whose idle timeout has passed.
    pub(super) fn sweep(&self, now: Instant) {
        self.shelves.sweep(now, &self.stale);
    }

    /// Connects within `limit` and before `deadline`, for any protocol but HTTP/2.
    pub(super) fn dial(&self, limit: Duration, deadline: Option<Instant>) -> io::Result<Transport> {
        self.dial_for(limit, deadline, false)
    }

    /// Connects for a check, in the same way as for a request. Also returns whether the connection speaks HTTP/2.
    pub(super) fn dial_checked(&self, limit: Duration, deadline: Option<Instant>) -> io::Result<(Transport, bool)> {
        #[cfg(all(feature = "h2", feature = "proxy"))]
        if self.http2 {
            return self.dial_http(limit);
        }
        Ok((self.dial(limit, deadline)?, false))
    }

    /// Connects within `limit`, and offers HTTP/2. Also returns whether the connection speaks it: without TLS it does,
    /// and with TLS the backend chooses.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    pub(super) fn dial_http(&self, limit: Duration) -> io::Result<(Transport, bool)> {
        let transport = self.dial_for(limit, None, true)?;
        let is_http2 = transport.protocol().is_none_or(|protocol| protocol == b"h2");
        Ok((transport, is_http2))
    }

    fn dial_for(&self, limit: Duration, deadline: Option<Instant>, http2: bool) -> io::Result<Transport> {
        let now = osier::time::now();
        let limit = match deadline {
            Some(deadline) => limit.min(deadline.saturating_duration_since(now)),
            None => limit,
        };
        let connected = match &self.address {
            _ if limit.is_zero() => Err(io::ErrorKind::TimedOut.into()),
            Address::Unix(path) => within(limit, || UnixStream::connect(path)).map(Stream::from),
            Address::Tcp(host) => self.dial_tcp(host, limit, now).map(Stream::from),
        };
        let connected = connected.and_then(|stream| self.secure(stream, limit, now, http2));
        match &connected {
            Ok(_) => {
                self.connects.fetch_add(1, Relaxed);
            }
            // The client has left. The backend has not failed.
            Err(error) if osier::Cancelled::is(error) => {}
            Err(error) => {
                self.failures.fetch_add(1, Relaxed);
                if error.kind() == io::ErrorKind::TimedOut {
                    self.counts.connect_timed_out();
                }
            }
        }
        connected
    }

    /// Makes the TLS handshake on a new connection, if the backend speaks TLS.
    fn secure(&self, stream: Stream, limit: Duration, began: Instant, http2: bool) -> io::Result<Transport> {
        #[cfg(feature = "tls")]
        if let Some(secured) = &self.tls {
            let left = limit.saturating_sub(osier::time::now().saturating_duration_since(began));
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            return within(left, || match http2 {
                #[cfg(all(feature = "h2", feature = "proxy"))]
                true => secured.shake_hands_for_http2(stream, left),
                _ => secured.shake_hands(stream, left),
            });
        }
        let _ = (limit, began, http2);
        Ok(stream.into())
    }

    /// Why the last lookup of its name has left old addresses in use. Told once.
    pub(super) fn take_lookup_failure(&self) -> Option<io::Error> {
        self.names.take_failure()
    }

    /// The addresses of its name.
    fn addrs(&self, host: &str, limit: Duration) -> io::Result<Arc<[SocketAddr]>> {
        let look_up = || host.to_socket_addrs().map(Iterator::collect);
        self.names.addrs(osier::time::coarse_now(), limit, look_up)
    }

    /// Whether a socket with this address at its other end leads to the backend. A name without a known address is looked up once, within
    /// `limit`.
    #[cfg(all(feature = "proxy", feature = "upgrade"))]
    pub(super) fn is_at(&self, peer: &SocketAddrAny, limit: Duration) -> bool {
        match &self.address {
            Address::Unix(path) => {
                let peer = SocketAddrUnix::try_from(peer.clone());
                let peer = peer.as_ref().ok().and_then(SocketAddrUnix::path);
                peer.is_some_and(|peer| peer.to_bytes() == path.as_os_str().as_encoded_bytes())
            }
            Address::Tcp(host) => SocketAddr::try_from(peer.clone()).is_ok_and(|peer| {
                let port = host.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
                port == Some(peer.port()) && self.names.addrs_joined(|| self.addrs(host, limit)).contains(&peer)
            }),
        }
    }

    fn dial_tcp(&self, host: &str, limit: Duration, began: Instant) -> io::Result<TcpStream> {
        let addrs = self.addrs(host, limit)?;
        let left = limit.saturating_sub(osier::time::now().saturating_duration_since(began));
        if left.is_zero() {
            // The lookup has taken all the time. That says nothing about the addresses.
            return Err(io::ErrorKind::TimedOut.into());
        }
        let connected = match addrs.is_empty() {
            true => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{host} has no address"),
            )),
            false => TcpStream::connect_within(&addrs[..], left),
        };
        match connected {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                Ok(stream)
            }
            Err(error) => {
                if !osier::Cancelled::is(&error) {
                    self.names.doubt(osier::time::coarse_now());
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_does_not_answer_does_not_use_up_the_time_to_connect() {
        let alive = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let alive_at = alive.local_addr().unwrap();
        let hole = testkit::BlackHole::new();
        let address = "two.example:80".parse().unwrap();
        let backend = Backend::new(address, BackendOptions::default(), Duration::from_secs(3600));
        let dead_at = hole.address;
        osier::run(move || {
            let (now, limit) = (osier::time::now(), Duration::from_secs(10));
            let found = || Ok(Arc::from([dead_at, alive_at]));
            backend.names.addrs(osier::time::coarse_now(), limit, found).unwrap();
            let stream = backend.dial_tcp("two.example:80", limit, now).unwrap();
            assert_eq!(stream.peer_addr().unwrap(), alive_at);
        });
    }

    #[cfg(all(feature = "proxy", feature = "upgrade"))]
    #[test]
    fn a_socket_leads_to_the_backend_that_has_its_address_its_name_or_its_path() {
        let is_at = |address: &str, peer: &SocketAddrAny| {
            let backend = Backend::new(address.parse().unwrap(), BackendOptions::default(), Duration::ZERO);
            backend.is_at(peer, Duration::from_secs(20))
        };
        let tcp = SocketAddr::from(([127, 0, 0, 1], 3000)).into();
        let unix = SocketAddrUnix::new("/run/app.sock").unwrap().into();
        for (address, leads) in [
            ("127.0.0.1:3000", [true, false]),
            ("localhost:3000", [true, false]),
            ("127.0.0.1:3001", [false; 2]),
            ("127.0.0.2:3000", [false; 2]),
            ("unix:/run/app.sock", [false, true]),
            ("unix:/run/app", [false; 2]),
        ] {
            assert_eq!([is_at(address, &tcp), is_at(address, &unix)], leads, "{address}");
        }
    }

    #[test]
    fn a_name_that_is_not_found_any_more_is_told_once_while_its_old_addresses_are_used() {
        use std::sync::Mutex;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let name = format!("localhost:{}", listener.local_addr().unwrap().port());
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = Arc::clone(&lines);
        let upstream = crate::upstream::Upstream::builder("app")
            .backend(name.parse().unwrap())
            .resolve_every(Duration::from_secs(30))
            .on_log(move |record| told.lock().unwrap().push(record.to_string()))
            .build()
            .unwrap();
        osier::run(|| {
            drop(upstream.lease(None).unwrap());
            // Its next lookup.
            let later = osier::time::coarse_now() + Duration::from_secs(31);
            let gone = || Err(io::Error::other("the name is gone"));
            let backend = &upstream.0.backends[0];
            backend.names.addrs(later, Duration::from_secs(20), gone).unwrap();
            for _ in 0..2 {
                drop(upstream.lease(None).unwrap());
            }
        });
        let line = format!("upstream app: looking up {name} failed: the name is gone; its old addresses stay");
        assert_eq!(*lines.lock().unwrap(), [line]);
    }

    /// Pins two bounds: a backend that is down does not cause a lookup per request, and addresses
    /// that nobody answers at are not used for long.
    #[test]
    fn addresses_are_doubted_when_nobody_answers_there_and_else_used_for_their_time() {
        let hour = Duration::from_secs(3600);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let name = format!("localhost:{}", listener.local_addr().unwrap().port());
        let backend = Backend::new(Address::Tcp(name), BackendOptions::default(), hour);
        let patience = Duration::from_secs(20);
        let is_known_in = |time: Duration| backend.names.known_at(Instant::now() + time).is_some();
        assert!(!is_known_in(Duration::ZERO));
        backend.dial(patience, None).expect("a listener");
        assert!(is_known_in(hour / 2));
        drop(listener);
        backend.dial(patience, None).expect_err("nobody");
        assert!(!is_known_in(Duration::from_secs(5)));
    }
}
