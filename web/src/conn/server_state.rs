//! The state that the workers of a server share.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use osier::memory::{self, Pressure};
use osier::net::Stream;
use osier::sync::Event;
use osier_http::Limits;

use crate::conn::clients::Clients;
use crate::conn::close::{CloseReason, ConnectionEvent, ConnectionHook};
use crate::conn::log::record::{Level, Record, how_it_panicked};
use crate::conn::log::seldom::Seldom;
use crate::conn::protocol::Protocol;
use crate::conn::rates::Rates;
use crate::conn::settings::{Log, Timeouts, Trusted};
use crate::conn::transport::Transport;
use crate::listen::NOWHERE;

/// Fewest connections above the mean at which a worker hands new ones to another worker.
const UNEVEN: usize = 8;

/// A counter on a cache line of its own. Each worker writes only its own counter.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ConnectionCount {
    all: AtomicUsize,
    /// A number for each of [`Protocol::ALL`]. A connection counts once the worker has got it.
    pub(super) protocols: [AtomicU32; Protocol::ALL.len()],
}

/// The state that the workers of a server share. It is read-only but for the connection counters.
/// These change when a connection opens or closes and never per request.
pub(crate) struct ServerState {
    pub(crate) limits: Limits,
    /// `None` if the server does not speak HTTP/2.
    #[cfg(feature = "h2")]
    pub(crate) http2: Option<osier_http::h2::Limits>,
    pub(crate) timeouts: Timeouts,
    pub(crate) rates: Rates,
    pub(crate) max_connections: usize,
    /// Whether it serves although the limit of memory is near.
    pub(crate) is_for_operators: bool,
    /// Connections by client, if there is a limit for each.
    pub(crate) clients: Option<Clients>,
    /// Local address of every connection, if the listeners have only one. It saves a system call
    /// per connection.
    pub(crate) bound: Option<SocketAddr>,
    pub(crate) trusted: Option<Trusted>,
    /// Makes the server's end of TLS, if the clients speak TLS.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<osier_tls::Acceptor>,
    pub(crate) log: Log,
    /// Lines that say why new connections wait. Each worker meets the same reason.
    pub(crate) waits: Seldom,
    /// Lines about WebSockets in streams of HTTP/2 that cannot begin, or leave no stream.
    #[cfg(feature = "h2")]
    pub(crate) tunnels: Seldom,
    pub(crate) on_connection: Option<ConnectionHook>,
    /// Set when the graceful shutdown begins.
    pub(crate) shutdown: Arc<Event>,
    /// Number of open connections of each worker. A connection is counted as soon as its worker is
    /// chosen. Relaxed: a stale value only makes the distribution less even.
    pub(crate) connections: Box<[ConnectionCount]>,
}

impl ServerState {
    /// Calls the hook for the log, which may wait as that of [`report`](ServerState::report).
    #[cold]
    pub(crate) fn log(&self, record: &Record<'_>) {
        osier::shield(|| (self.log)(record));
    }

    /// Whether memory is too short for further connections and requests.
    pub(crate) fn lacks_memory(&self) -> bool {
        memory::pressure() == Pressure::Critical && !self.is_for_operators
    }

    /// Makes the byte stream of a new connection.
    pub(crate) fn transport(&self, stream: Stream) -> Transport {
        #[cfg(feature = "tls")]
        if let Some(acceptor) = &self.tls {
            return Transport::Tls(Box::new(acceptor.accept(stream)));
        }
        stream.into()
    }

    /// Sets how many bytes of a response the client must take within the write timeout.
    pub(crate) fn set_pace(&self, socket: &Stream) {
        let bytes = self.rates.response_bytes(self.timeouts.write);
        socket.set_write_progress(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Makes the byte stream of a connection whose TLS state another process has exported. `None` if the state cannot be read.
    #[cfg(feature = "upgrade")]
    pub(crate) fn import(&self, stream: Stream, exported: &[u8]) -> Option<Transport> {
        #[cfg(feature = "tls")]
        if let Some(acceptor) = &self.tls {
            return Transport::import(acceptor, stream, exported);
        }
        let _ = (stream, exported);
        None
    }

    /// Counts a connection of another process for worker `index` and for its client. The client may exceed its limit then.
    #[cfg(feature = "upgrade")]
    pub(crate) fn adopted(&self, index: usize, peer: SocketAddr, is_proxied: bool) {
        self.arrived(index);
        if let Some(clients) = &self.clients
            && (is_proxied || self.is_counted(peer))
        {
            clients.add(peer.ip().into());
        }
    }

    /// Stops counting such a connection, which could not be served.
    #[cfg(feature = "upgrade")]
    #[cold]
    pub(crate) fn not_adopted(&self, index: usize, peer: SocketAddr, is_proxied: bool) {
        self.left(index, CloseReason::Failed);
        if let Some(clients) = &self.clients
            && (is_proxied || self.is_counted(peer))
        {
            clients.left(peer.ip().into());
        }
    }

    /// Counts a connection for worker `index`.
    pub(crate) fn arrived(&self, index: usize) {
        self.connections[index].all.fetch_add(1, Ordering::Relaxed);
        self.report(ConnectionEvent::Opened);
    }

    /// Stops counting a connection for worker `index`.
    pub(crate) fn left(&self, index: usize, reason: CloseReason) {
        self.connections[index].all.fetch_sub(1, Ordering::Relaxed);
        self.report(ConnectionEvent::Closed(reason));
    }

    /// Logs that a client has too many connections, though not for each of them.
    #[cold]
    pub(crate) fn complain_of(&self, client: SocketAddr) {
        if let Some(clients) = &self.clients {
            clients.complain(client, |text| self.log(&Record::new(Level::Warning, text)));
        }
    }

    /// Reports a connection that is closed at once, because its client has too many.
    #[cold]
    pub(crate) fn refused(&self) {
        self.report(ConnectionEvent::Opened);
        self.report(ConnectionEvent::Closed(CloseReason::ClientLimit));
    }

    /// Calls the hook.
    fn report(&self, event: ConnectionEvent) {
        if let Some(hook) = &self.on_connection {
            self.call("the hook of 'on_connection'", || hook(event));
        }
    }

    /// Calls a function of the program. Its panic goes no further than the log, because the caller has counted the connection and must go on
    /// to serve it, or runs in a destructor. A shutdown cancels the fiber that accepts, and that must not unwind from a function that waits,
    /// either: it would lose the connection, and those in the backlog.
    fn call<T>(&self, what: &str, function: impl FnOnce() -> T) -> Option<T> {
        let called = osier::shield(|| {
            let called = catch_unwind(AssertUnwindSafe(function));
            called.map_err(|payload| how_it_panicked(&*payload))
        });
        match called {
            Ok(value) => Some(value),
            Err(how) => {
                let text = format_args!("{what} {how}");
                // The hook for the log may panic, too.
                let _ = catch_unwind(AssertUnwindSafe(|| self.log(&Record::new(Level::Error, text))));
                None
            }
        }
    }

    pub(crate) fn count(&self, index: usize) -> usize {
        self.connections[index].all.load(Ordering::Relaxed)
    }

    /// The connections of all workers that speak `protocol`.
    pub(crate) fn count_of(&self, protocol: Protocol) -> usize {
        let counts = self.connections.iter();
        let counts = counts.map(|count| count.protocols[protocol as usize].load(Ordering::Relaxed));
        counts.map(|count| count as usize).sum()
    }

    pub(crate) fn total(&self) -> usize {
        (0..self.connections.len()).map(|index| self.count(index)).sum()
    }

    /// Counts a connection of `peer`. Returns false at the limit of that client.
    pub(crate) fn admit(&self, peer: SocketAddr) -> bool {
        match &self.clients {
            Some(clients) if self.is_counted(peer) => clients.admit(peer.ip().into()),
            _ => true,
        }
    }

    /// Stops counting a connection of `peer` that worker `index` never took.
    #[cold]
    pub(crate) fn lost(&self, index: usize, peer: SocketAddr) {
        self.left(index, CloseReason::Shutdown);
        if let Some(clients) = &self.clients
            && self.is_counted(peer)
        {
            clients.left(peer.ip().into());
        }
    }

    /// Whether a connection from `peer` counts for that client. A trusted peer is a balancer, whose
    /// clients are counted instead.
    pub(super) fn is_counted(&self, peer: SocketAddr) -> bool {
        peer != NOWHERE && !self.is_trusted(peer)
    }

    /// Whether a connection from `peer` begins with a PROXY header. A panic of the program's function is a no.
    pub(crate) fn is_trusted(&self, peer: SocketAddr) -> bool {
        let ip = (peer != NOWHERE).then(|| peer.ip().to_canonical());
        let trusted = self.trusted.as_ref();
        trusted.is_some_and(|trusted| {
            self.call("the function of 'proxy_protocol'", || trusted(ip))
                .unwrap_or(false)
        })
    }

    /// Chooses the worker for a connection that worker `here` has accepted.
    pub(crate) fn place(&self, here: usize) -> usize {
        let workers = self.connections.len();
        let mean = self.total() / workers;
        if self.count(here) < mean + (mean / 4).max(UNEVEN) {
            return here;
        }
        (0..workers).min_by_key(|&index| self.count(index)).unwrap_or(here)
    }
}
