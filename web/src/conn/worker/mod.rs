//! The state of one worker: pooled buffers, the date, its connections.
//!
//! Only fibers of one worker touch the state of that worker, and a fiber never leaves its thread.
//! Hence `Rc` and `Cell`.

mod link;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use osier::fiber::Trimmed;
use osier::memory::Account;
use osier::net::PackedAddr;
use osier::time::Stamp;

use crate::conn::close::CloseReason;
use crate::conn::date::DateCache;
#[cfg(feature = "upgrade")]
use crate::conn::handover::dialog::Leaving;
#[cfg(feature = "tls")]
use crate::conn::handshake_queue::HandshakeQueue;
use crate::conn::protocol::Protocol;
#[cfg(feature = "fibers")]
use crate::conn::resting::RestingRequests;
use crate::conn::server_state::ServerState;
use crate::conn::shelf::Shelf;
use crate::conn::slow::Watch;
use crate::conn::stalled::Stalled;
use crate::conn::transport::Transport;

pub(crate) use self::link::Link;
use self::link::{Ending, Millis, Phase};

/// Most bytes that a burst reads at once. A larger head gets a buffer of its own.
pub(crate) const INPUT_BYTES: usize = 16 << 10;

/// Time for which a drain waits for the first request of an accepted connection. Its client could
/// not know of the drain.
pub(crate) const FRESH_GRACE: Duration = Duration::from_secs(1);

/// Time that a client has to read the last response, until its connection, which lingers, may be closed for another.
const LINGER_GRACE: Duration = Duration::from_secs(1);

/// Buffer pairs kept for later bursts. Many are in use at once only while handlers are suspended,
/// behind a proxy for example.
const POOLED: usize = 64;

/// Largest output buffer that is kept, in bytes.
const OUTPUT_KEPT: usize = 128 << 10;

/// Connections among which [`Worker::evict`] chooses.
const SAMPLE: usize = 64;

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
    pub(super) age: Cell<u32>,
    /// The requests that have a limit of time.
    pub(crate) slow: Rc<Watch>,
    #[cfg(feature = "fibers")]
    pub(crate) resting: Rc<RestingRequests>,
    stalled: RefCell<Stalled<Link>>,
    /// The zero of [`Worker::now`].
    epoch: Stamp,
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
            #[cfg(feature = "fibers")]
            resting: Rc::default(),
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
            peer: PackedAddr::new(peer, false),
            phase: Cell::new(Phase::Fresh),
            streams: Cell::new(0),
            idle_since: Cell::new(Millis::of(now)),
            ending: Cell::new(Ending::Open),
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
        link.peer.set(record.peer, record.is_proxied);
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
        // The program's hook may suspend.
        drop(links);
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

    pub(super) fn count_protocol(&self, protocol: Protocol) -> &AtomicU32 {
        &self.server.connections[self.index].protocols[protocol as usize]
    }

    /// The time in milliseconds, of which links remember the lower bytes.
    pub(super) fn now(&self) -> u32 {
        (Stamp::coarse().nanos_since(self.epoch) / 1_000_000) as u32
    }

    /// Whether connections at rest move to another process now.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        #[cfg(feature = "upgrade")]
        {
            self.leaving.borrow().is_some()
        }
        #[cfg(not(feature = "upgrade"))]
        false
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
        self.evict_where(count, Link::is_idle)
    }

    /// The connection that [`evict`](Worker::evict) would close next, with the milliseconds for which it has been idle. One whose client
    /// has just been accepted is left in peace.
    pub(crate) fn idle_longest(&self) -> Option<(u32, Rc<Link>)> {
        let links = self.links.borrow();
        let link = self.waiting_longest(&links, |link| link.is_idle() && !link.is_just_accepted())?;
        Some((link.idle_since.get().until(self.now()), Rc::clone(link)))
    }

    /// Same as [`evict`](Worker::evict), but connections that wait for the rest of a head leave, too.
    pub(crate) fn evict_with_heads(&self, count: usize) -> usize {
        self.evict_where(count, |link| link.is_idle() || link.phase.get() == Phase::Other)
    }

    /// Closes up to `count` connections whose bursts have long waited for bytes of a body, and returns how many. Their handlers keep stacks.
    pub(crate) fn evict_silent(&self, count: usize) -> usize {
        self.evict_where(count, Link::is_silent)
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

    fn evict_where(&self, count: usize, may_leave: impl Fn(&Link) -> bool + Copy) -> usize {
        let links = self.links.borrow();
        let evicted = (0..count).map_while(|_| self.waiting_longest(&links, may_leave));
        evicted.map(|link| link.evict()).count()
    }

    /// The connection that has waited longest in the next [`SAMPLE`] links that hold one which may leave.
    fn waiting_longest<'l>(&self, links: &'l [Rc<Link>], may_leave: impl Fn(&Link) -> bool) -> Option<&'l Rc<Link>> {
        let (now, mut looked) = (self.now(), 0);
        while looked < links.len() {
            let size = SAMPLE.min(links.len());
            let hand = self.hand.get() % links.len();
            self.hand.set(hand + size);
            looked += size;
            let sample = links[hand..].iter().chain(&links[..hand]).take(size);
            let waiting = sample.filter(|link| may_leave(link));
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
