//! The state that the workers of a server share, and the state of one worker: pooled buffers, the
//! date, its connections.
//!
//! Only fibers of one worker touch the state of that worker, and a fiber never leaves its thread.
//! Hence `Rc` and `Cell`.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use osier::fiber::Trimmed;
use osier::memory::Account;
use osier::net::Stream;
use osier::sync::Event;
use osier::time::Stamp;
use osier_http::Limits;

use crate::ClientNetwork;
use crate::conn::client_addr::ClientAddr;
use crate::conn::clients::Clients;
use crate::conn::close::{CloseReason, ConnectionEvent, ConnectionHook};
use crate::conn::date::DateCache;
#[cfg(feature = "upgrade")]
use crate::conn::handover::dialog::Leaving;
#[cfg(feature = "tls")]
use crate::conn::handshake_queue::HandshakeQueue;
use crate::conn::listed::{ConnectionInfo, ConnectionState};
use crate::conn::log::record::{Level, Record};
use crate::conn::protocol::Protocol;
use crate::conn::rates::Rates;
use crate::conn::settings::{Log, Timeouts, Trusted};
use crate::conn::shelf::Shelf;
use crate::conn::slow::Watch;
use crate::conn::stalled::{self, Stalled};
use crate::conn::transport::Transport;
use crate::listen::NOWHERE;

/// Most bytes that a burst reads at once. A larger head gets a buffer of its own.
pub(crate) const INPUT_BYTES: usize = 16 << 10;

/// Time for which a drain waits for the first request of an accepted connection. Its client could
/// not know of the drain.
pub(crate) const FRESH_GRACE: Duration = Duration::from_secs(1);

/// Buffer pairs kept for later bursts. Many are in use at once only while handlers are suspended,
/// behind a proxy for example.
const POOLED: usize = 64;

/// Largest output buffer that is kept, in bytes.
const OUTPUT_KEPT: usize = 128 << 10;

/// Fewest connections above the mean at which a worker hands new ones to another worker.
const UNEVEN: usize = 8;

/// Connections among which [`Worker::evict`] chooses.
const SAMPLE: usize = 64;

/// The memory of a connection at rest: its box, its slot, its entry in the table of sockets, its link.
const CONNECTION_BYTES: usize = 400;

/// The memory of a TLS session at rest.
const TLS_BYTES: usize = 1400;

/// Read timeout between requests. A connection is woken to read available bytes. If there are none,
/// it rests again instead of waiting on a stack.
pub(crate) const RESTING: Duration = Duration::from_millis(1);

pub(crate) struct Worker {
    pub(crate) server: Arc<ServerState>,
    pub(crate) index: usize,
    pub(crate) date: RefCell<DateCache>,
    buffers: RefCell<Shelf<Buffers>>,
    /// Buffers for what streams and their connections send.
    #[cfg(feature = "h2")]
    outputs: RefCell<Shelf<Vec<u8>>>,
    #[cfg(feature = "tls")]
    pub(crate) handshakes: Rc<HandshakeQueue>,
    /// Connections of this worker. Each link knows its index.
    links: RefCell<Vec<Rc<Link>>>,
    pub(crate) draining: Cell<bool>,
    /// The connections that end with their next response, before a graceful shutdown begins.
    #[cfg(feature = "upgrade")]
    pub(crate) closes: Cell<Closes>,
    /// The destination of connections at rest, during an upgrade.
    #[cfg(feature = "upgrade")]
    pub(crate) leaving: RefCell<Option<Rc<Leaving>>>,
    /// Index in `links` at which [`evict`](Worker::evict) continues.
    hand: Cell<usize>,
    /// Index in `links` at which [`wake_with_streams`](Worker::wake_with_streams) continues.
    woken: Cell<usize>,
    /// The age in milliseconds of the connection whose burst has begun last, if that is its first burst; otherwise 0.
    age: Cell<u32>,
    /// The requests that have a limit of time.
    pub(crate) slow: Rc<Watch>,
    stalled: RefCell<Stalled<Link>>,
    /// The zero of [`Worker::now`].
    epoch: Stamp,
}

/// A counter on a cache line of its own. Each worker writes only its own counter.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ConnectionCount {
    all: AtomicUsize,
    /// A number for each of [`Protocol::ALL`]. A connection counts once the worker has got it.
    protocols: [AtomicU32; Protocol::ALL.len()],
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
    pub(crate) on_connection: Option<ConnectionHook>,
    /// Set when the graceful shutdown begins.
    pub(crate) shutdown: Arc<Event>,
    /// Number of open connections of each worker. A connection is counted as soon as its worker is
    /// chosen. Relaxed: a stale value only makes the distribution less even.
    pub(crate) connections: Box<[ConnectionCount]>,
}

impl ServerState {
    #[cold]
    pub(crate) fn log(&self, record: &Record<'_>) {
        (self.log)(record);
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

    fn report(&self, event: ConnectionEvent) {
        if let Some(hook) = &self.on_connection {
            hook(event);
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
    fn is_counted(&self, peer: SocketAddr) -> bool {
        peer != NOWHERE && !self.is_trusted(peer)
    }

    /// Whether a connection from `peer` begins with a PROXY header.
    pub(crate) fn is_trusted(&self, peer: SocketAddr) -> bool {
        let ip = (peer != NOWHERE).then(|| peer.ip().to_canonical());
        self.trusted.as_ref().is_some_and(|trusted| trusted(ip))
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

/// Connections that end with their next response, during an upgrade.
#[cfg(feature = "upgrade")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closes {
    None,
    /// Connections that can never move to the new process. Their clients reconnect there.
    Fixed,
    All,
}

/// The buffers of one burst.
pub(crate) struct Buffers {
    pub(crate) input: Box<[u8]>,
    pub(crate) output: Vec<u8>,
}

impl Buffers {
    fn bytes(&self) -> usize {
        self.input.len() + self.output.capacity()
    }
}

impl Worker {
    /// Makes the state of worker `index`.
    pub(crate) fn new(server: &Arc<ServerState>, index: usize) -> Rc<Worker> {
        Rc::new(Worker {
            server: server.clone(),
            index,
            date: RefCell::new(DateCache::new(osier::time::coarse_now())),
            buffers: RefCell::new(Shelf::new()),
            #[cfg(feature = "h2")]
            outputs: RefCell::new(Shelf::new()),
            #[cfg(feature = "tls")]
            handshakes: Rc::default(),
            links: RefCell::new(Vec::new()),
            draining: Cell::new(false),
            #[cfg(feature = "upgrade")]
            closes: Cell::new(Closes::None),
            #[cfg(feature = "upgrade")]
            leaving: RefCell::new(None),
            hand: Cell::new(0),
            woken: Cell::new(0),
            age: Cell::new(0),
            slow: Rc::default(),
            stalled: RefCell::default(),
            epoch: Stamp::coarse(),
        })
    }

    /// Has the runtime's worker of this thread trim the buffers.
    pub(crate) fn let_trim(self: &Rc<Self>) {
        let trimmed = Rc::downgrade(self);
        osier::fiber::on_trim(move || trimmed.upgrade().map(|worker| worker.trim()));
    }

    #[inline]
    pub(crate) fn take_buffers(&self) -> Buffers {
        let pooled = self.buffers.borrow_mut().take();
        pooled.unwrap_or_else(|| Buffers {
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            output: Vec::new(),
        })
    }

    #[inline]
    pub(crate) fn give_buffers(&self, mut buffers: Buffers) {
        if buffers.input.len() == INPUT_BYTES {
            if buffers.output.capacity() > OUTPUT_KEPT {
                buffers.output = Vec::new();
            }
            self.buffers.borrow_mut().give(buffers, POOLED);
        }
    }

    /// Drops all buffers that are kept for later bursts.
    pub(crate) fn drop_buffers(&self) {
        self.buffers.replace(Shelf::new());
        #[cfg(feature = "h2")]
        self.outputs.replace(Shelf::new());
    }

    /// Drops buffers that no burst has needed lately.
    fn trim(&self) -> Trimmed {
        let mut pool = self.buffers.borrow_mut();
        let (unused, left) = pool.trim();
        let trimmed = Trimmed {
            given: unused.iter().map(Buffers::bytes).sum(),
            left: left * INPUT_BYTES,
        };
        #[cfg(feature = "h2")]
        let trimmed = self.trim_outputs(trimmed);
        trimmed
    }

    /// Drops buffers that no stream has needed lately.
    #[cfg(feature = "h2")]
    fn trim_outputs(&self, before: Trimmed) -> Trimmed {
        let (unused, left) = self.outputs.borrow_mut().trim();
        Trimmed {
            given: before.given + unused.iter().map(Vec::capacity).sum::<usize>(),
            left: before.left + left * INPUT_BYTES,
        }
    }

    /// Takes an empty buffer for output.
    #[cfg(feature = "h2")]
    pub(crate) fn take_output(&self) -> Vec<u8> {
        self.outputs.borrow_mut().take().unwrap_or_default()
    }

    /// Gives such a buffer back.
    #[cfg(feature = "h2")]
    pub(crate) fn give_output(&self, mut buffer: Vec<u8>) {
        if (1..=OUTPUT_KEPT).contains(&buffer.capacity()) {
            buffer.clear();
            self.outputs.borrow_mut().give(buffer, POOLED);
        }
    }

    /// Adds a connection to the list.
    pub(crate) fn link(self: &Rc<Self>, transport: Transport, peer: SocketAddr) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        let place = u32::try_from(links.len()).expect("a process has fewer descriptors than that");
        let protocol = match &transport {
            Transport::Plain(_) => Protocol::Http1,
            #[cfg(feature = "tls")]
            Transport::Tls(stream) if stream.is_established() => {
                Protocol::over(stream.version(), stream.protocol() == Some(b"h2"))
            }
            #[cfg(feature = "tls")]
            Transport::Tls(_) => Protocol::Handshake,
        };
        self.count_protocol(protocol).fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        let link = Rc::new(Link {
            transport,
            worker: self.clone(),
            peer: Cell::new(ClientAddr::pack(peer, false)),
            phase: Cell::new(Phase::Fresh),
            streams: Cell::new(0),
            idle_since: Cell::new(Millis::of(now)),
            began: now,
            protocol: Cell::new(protocol),
            place: Cell::new(place),
        });
        links.push(link.clone());
        link.charged(Account::add);
        link
    }

    /// Adds a connection of another process to the list.
    #[cfg(feature = "upgrade")]
    pub(crate) fn adopt(
        self: &Rc<Self>,
        transport: Transport,
        record: &crate::conn::handover::record::Record,
    ) -> Rc<Link> {
        let link = self.link(transport, record.peer);
        link.peer.set(ClientAddr::pack(record.peer, record.is_proxied));
        if !record.is_fresh {
            link.end();
            if record.received.is_empty() {
                link.rest();
            }
        }
        link
    }

    /// Removes a connection from the list and from the counter.
    pub(crate) fn unlink(&self, link: &Link) {
        link.charged(Account::subtract);
        let mut links = self.links.borrow_mut();
        let place = link.place.get();
        links.swap_remove(place as usize);
        if let Some(moved) = links.get(place as usize) {
            moved.place.set(place);
        }
        let reason = match link.phase.get() {
            Phase::Ended(reason @ CloseReason::Moved) => reason,
            _ if self.draining.get() => CloseReason::Shutdown,
            Phase::Ended(reason) => reason,
            // The handler was cancelled, or the connection could not be watched.
            _ => CloseReason::Failed,
        };
        self.count_protocol(link.protocol.get()).fetch_sub(1, Ordering::Relaxed);
        self.server.left(self.index, reason);
        if let Some(clients) = &self.server.clients
            && let Some(client) = link.counted()
        {
            clients.left(client);
        }
    }

    fn count_protocol(&self, protocol: Protocol) -> &AtomicU32 {
        &self.server.connections[self.index].protocols[protocol as usize]
    }

    /// The time in milliseconds, of which links remember the lower bytes.
    fn now(&self) -> u32 {
        (Stamp::coarse().nanos_since(self.epoch) / 1_000_000) as u32
    }

    /// Takes the age of the connection whose first burst has just begun, in milliseconds.
    #[inline]
    pub(crate) fn take_age(&self) -> u32 {
        self.age.take()
    }

    /// Closes up to `count` connections that wait for their next request, and returns how many. Each
    /// is the one that has been idle longest among a sample of [`SAMPLE`], so the cost does not depend
    /// on the number of connections. A request that has just arrived is still served.
    pub(crate) fn evict(&self, count: usize) -> usize {
        self.evict_where(count, Phase::is_idle)
    }

    /// Same as [`evict`](Worker::evict), but connections that wait for the rest of a head leave, too.
    pub(crate) fn evict_with_heads(&self, count: usize) -> usize {
        self.evict_where(count, |phase| phase.is_idle() || phase == Phase::Other)
    }

    /// Looks for connections whose clients take nothing, and closes up to `count` of them. See [`Stalled`].
    pub(crate) fn evict_stalled(&self, count: usize) -> usize {
        self.stalled.borrow_mut().close(&self.links.borrow(), count)
    }

    /// Wakes the next connections in turn whose streams have not ended, up to `count`. Near the limit of memory they reset those streams
    /// whose client takes nothing.
    pub(crate) fn wake_with_streams(&self, count: usize) {
        let links = self.links.borrow();
        let (first, mut left) = (self.woken.get(), count);
        for at in (first..first + links.len()).map(|at| at % links.len()) {
            if left == 0 {
                return self.woken.set(at);
            }
            if links[at].streams.get() > 0 {
                osier::dormant::wake(links[at].socket());
                left -= 1;
            }
        }
    }

    fn evict_where(&self, count: usize, may_leave: impl Fn(Phase) -> bool + Copy) -> usize {
        let links = self.links.borrow();
        let evicted = (0..count).map_while(|_| self.waiting_longest(&links, may_leave));
        evicted
            .map(|link| {
                link.phase.set(Phase::Ended(CloseReason::Evicted));
                let _ = link.socket().shutdown(Shutdown::Read);
            })
            .count()
    }

    /// The connection that has waited longest in the next [`SAMPLE`] links that hold one which may leave.
    fn waiting_longest<'l>(&self, links: &'l [Rc<Link>], may_leave: impl Fn(Phase) -> bool) -> Option<&'l Rc<Link>> {
        let (now, mut looked) = (self.now(), 0);
        while looked < links.len() {
            let size = SAMPLE.min(links.len());
            let hand = self.hand.get() % links.len();
            self.hand.set(hand + size);
            looked += size;
            let sample = links[hand..].iter().chain(&links[..hand]).take(size);
            let waiting = sample.filter(|link| may_leave(link.phase.get()));
            let longest = waiting.max_by_key(|link| link.idle_since.get().until(now));
            if longest.is_some() {
                return longest;
            }
        }
        None
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.borrow().is_empty()
    }

    pub(crate) fn links(&self) -> Vec<Rc<Link>> {
        self.links.borrow().clone()
    }
}

/// A connection as its worker sees it. It is small, because there is one for each idle client.
pub(crate) struct Link {
    pub(crate) transport: Transport,
    pub(crate) worker: Rc<Worker>,
    /// The client's address. Until the PROXY header has arrived it is the balancer's.
    peer: Cell<ClientAddr>,
    phase: Cell<Phase>,
    protocol: Cell<Protocol>,
    /// Streams of HTTP/2 that have begun and not ended.
    streams: Cell<u16>,
    /// When it began to wait for a request, in the time of [`Worker::now`].
    idle_since: Cell<Millis>,
    /// When it began, in that time.
    began: u32,
    /// Index in `Worker::links`. Only the owner of that list writes it.
    place: Cell<u32>,
}

impl Link {
    /// Changes what the accounts have for the connection.
    fn charged(&self, change: fn(Account, usize)) {
        change(Account::CONNECTIONS, CONNECTION_BYTES);
        if self.transport.plain().is_none() {
            change(Account::TLS, TLS_BYTES);
        }
    }

    #[inline]
    pub(crate) fn socket(&self) -> &Stream {
        self.transport.socket()
    }

    /// Counts the connection for another protocol.
    #[cfg(any(feature = "h2", feature = "tls"))]
    pub(crate) fn speaks(&self, protocol: Protocol) {
        let before = self.protocol.replace(protocol);
        self.worker.count_protocol(before).fetch_sub(1, Ordering::Relaxed);
        self.worker.count_protocol(protocol).fetch_add(1, Ordering::Relaxed);
    }

    /// Marks the beginning of a burst.
    #[inline]
    pub(crate) fn begin(&self) {
        let before = self.phase.replace(Phase::Busy);
        let age = match before {
            Phase::Fresh => self.idle_since.get().until(self.worker.now()),
            _ => 0,
        };
        self.worker.age.set(age);
    }

    /// Marks the end of a burst.
    #[inline]
    pub(crate) fn end(&self) {
        self.phase.set(Phase::Other);
    }

    /// Marks the beginning of a rest, if it does not rest already.
    #[inline]
    pub(crate) fn rest(&self) {
        if !self.phase.get().is_idle() {
            self.phase.set(Phase::Resting);
            self.idle_since.set(Millis::of(self.worker.now()));
        }
    }

    /// Marks the beginning of a rest of a connection whose requests come on streams. A drain tells it by the event of the shutdown.
    #[cfg(feature = "h2")]
    pub(crate) fn rest_without_streams(&self) {
        self.phase.set(Phase::WithoutStreams);
        self.idle_since.set(Millis::of(self.worker.now()));
    }

    /// Whether it rests and its requests come on streams.
    pub(crate) fn is_without_streams(&self) -> bool {
        self.phase.get() == Phase::WithoutStreams
    }

    /// Sets why the connection ends, unless that is set. A request that arrives nevertheless is served, and another reason may
    /// follow.
    pub(crate) fn ends(&self, reason: CloseReason) {
        if !matches!(self.phase.get(), Phase::Ended(_)) {
            self.phase.set(Phase::Ended(reason));
        }
    }

    /// Whether it ends with all that the client should get.
    pub(crate) fn ends_well(&self) -> bool {
        use CloseReason::{Failed, WriteTimeout};
        matches!(self.phase.get(), Phase::Ended(reason) if !matches!(reason, Failed | WriteTimeout))
    }

    /// Notes that the connection now belongs to another process.
    #[cfg(feature = "upgrade")]
    pub(crate) fn moves(&self) {
        self.phase.set(Phase::Ended(CloseReason::Moved));
    }

    /// Whether the connection belongs to another process.
    pub(crate) fn has_moved(&self) -> bool {
        self.phase.get() == Phase::Ended(CloseReason::Moved)
    }

    /// Whether a burst is running.
    pub(crate) fn is_busy(&self) -> bool {
        self.phase.get() == Phase::Busy
    }

    /// Whether it waits for its first request, of which no byte has arrived.
    pub(crate) fn is_fresh(&self) -> bool {
        self.phase.get() == Phase::Fresh
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer.get().unpack()
    }

    /// Notes how many streams have begun and not ended.
    #[cfg(feature = "h2")]
    #[inline]
    pub(crate) fn has_streams(&self, count: usize) {
        self.streams.set(u16::try_from(count).unwrap_or(u16::MAX));
    }

    /// The connection as a list shows it.
    pub(crate) fn info(&self) -> ConnectionInfo {
        let protocol = self.protocol.get();
        let state = match self.phase.get() {
            Phase::Ended(CloseReason::Upgraded) => ConnectionState::Upgraded,
            Phase::Ended(_) => ConnectionState::Closing,
            _ if protocol == Protocol::Handshake => ConnectionState::Handshake,
            Phase::Fresh => ConnectionState::New,
            Phase::Busy => ConnectionState::Serving,
            Phase::Other => ConnectionState::Head,
            Phase::Resting | Phase::WithoutStreams => ConnectionState::Idle,
        };
        let age = stalled::Connection::age(self);
        ConnectionInfo {
            peer: self.peer(),
            protocol,
            state,
            streams: usize::from(self.streams.get()),
            age: Duration::from_millis(u64::from(age)),
        }
    }

    /// The client that [`Clients`] counts this connection for.
    fn counted(&self) -> Option<ClientNetwork> {
        let peer = self.peer();
        let is_counted = (self.is_proxied() && peer != NOWHERE) || self.worker.server.is_counted(peer);
        is_counted.then(|| peer.ip().into())
    }

    /// Makes the close of the socket a reset, because its peer takes no bytes. Otherwise the kernel
    /// would keep the unsent ones for minutes.
    #[cold]
    pub(crate) fn abandon(stream: &Stream) {
        let _ = stream.set_linger(Some(Duration::ZERO));
    }

    /// Sets the client's address that a balancer has named. Returns false, sets nothing and logs that,
    /// at the limit of connections of that client.
    pub(crate) fn set_proxied(&self, client: SocketAddr) -> bool {
        let clients = self.worker.server.clients.as_ref();
        if clients.is_some_and(|clients| !clients.admit(client.ip().into())) {
            self.worker.server.complain_of(client);
            return false;
        }
        let proxied = ClientAddr::pack(client, true);
        self.peer.set(proxied);
        true
    }

    /// Logs that the connection is closed, because its trusted peer has sent no good PROXY header.
    #[cold]
    pub(crate) fn complain_of_header(&self, why: &dyn fmt::Display) {
        let peer = self.peer();
        let log = |text| {
            let record = Record::new(Level::Warning, text).of_client(peer, false);
            self.worker.server.log(&record);
        };
        match peer == NOWHERE {
            true => log(format_args!(
                "closed a connection from a trusted peer on a Unix socket: {why}"
            )),
            false => log(format_args!("closed a connection from the trusted peer {peer}: {why}")),
        }
    }

    /// Whether a balancer has named the client.
    pub(crate) fn is_proxied(&self) -> bool {
        self.peer.get().is_proxied
    }
}

impl stalled::Connection for Link {
    fn unacknowledged(&self) -> usize {
        self.socket().unacknowledged().unwrap_or(0)
    }

    fn age(&self) -> u32 {
        self.worker.now().wrapping_sub(self.began)
    }

    /// Its fiber meets the end of the socket.
    #[cold]
    fn evict_at_once(&self) {
        self.phase.set(Phase::Ended(CloseReason::Evicted));
        Link::abandon(self.socket());
        let _ = self.socket().shutdown(Shutdown::Both);
    }
}

/// The state of a connection as other fibers of its worker see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for its first request, of which no byte has arrived.
    Fresh,
    /// A burst is running.
    Busy,
    /// Waits for its next request, of which no byte has arrived.
    Resting,
    /// Speaks HTTP/2, and no stream runs.
    #[cfg_attr(not(feature = "h2"), allow(dead_code, reason = "only HTTP/2 has streams"))]
    WithoutStreams,
    /// Waits for the rest of a head.
    Other,
    /// Lingers, is no longer HTTP, or is being closed.
    Ended(CloseReason),
}

impl Phase {
    fn is_idle(self) -> bool {
        matches!(self, Phase::Fresh | Phase::Resting | Phase::WithoutStreams)
    }
}

/// A time in milliseconds, in three bytes. It wraps after four and a half hours.
#[derive(Clone, Copy)]
struct Millis([u8; 3]);

impl Millis {
    fn of(millis: u32) -> Millis {
        let [low, middle, high, _] = millis.to_le_bytes();
        Millis([low, middle, high])
    }

    /// The milliseconds from this time to `now`.
    fn until(self, now: u32) -> u32 {
        let [low, middle, high] = self.0;
        now.wrapping_sub(u32::from_le_bytes([low, middle, high, 0])) & 0xff_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_three_bytes_differ_rightly_over_their_end() {
        for (since, now) in [(5, 9), (0xff_fffe, 0x100_0003), (u32::MAX - 1, 3), (7, 7)] {
            assert_eq!(Millis::of(since).until(now), now.wrapping_sub(since));
        }
    }

    #[test]
    fn an_idle_connection_is_small() {
        assert_eq!(size_of::<Phase>(), 1);
        // The sockets of tests are larger, because they may be simulated.
        let sizes = (size_of::<Link>(), size_of::<Transport>());
        assert!(sizes.0 <= sizes.1 + 48, "{sizes:?}");
    }
}
