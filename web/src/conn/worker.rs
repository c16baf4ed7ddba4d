//! The state that the workers of a server share, and the state of one worker: warm buffers, the date, its connections.
//!
//! A worker leads to what serves requests, which may upgrade a connection, which leads to the worker: `worker`, `serve` and
//! `upgrade` name each other, and nothing else in this crate does.
//!
//! Everything of one worker is touched by fibers of this worker only (a fiber never leaves its thread), hence `Rc` and `Cell`.
//! Fibers that are sent here, with a fresh socket or to end the server, find it through the thread-local list.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::{Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use osier::net::Stream;
use osier_http::Limits;

use crate::conn::date::DateCache;
use crate::conn::serve::Serve;
use crate::conn::settings::{Log, Timeouts, Trusted};

/// Bytes that a burst reads at once. A larger head gets a buffer of its own.
pub(crate) const INPUT_BYTES: usize = 16 << 10;

/// How long a drain waits for the first request of an accepted connection, whose client could not know of it.
pub(crate) const FRESH_GRACE: Duration = Duration::from_secs(1);

/// Buffers kept for the next burst; more than a few are used at once only while handlers are suspended, behind a proxy for
/// example.
const POOLED: usize = 64;

/// An output buffer that has grown beyond this is not kept.
const OUTPUT_KEPT: usize = 128 << 10;

/// A worker takes at least this many connections above the mean before fresh ones go to another worker.
const UNEVEN: usize = 8;

/// The read timeout between requests. A connection is woken to read what is there; should there be nothing after all, it
/// goes back to sleep instead of waiting on a stack.
pub(crate) const RESTING: Duration = Duration::from_millis(1);

thread_local! {
    static HERE: RefCell<Vec<Rc<Worker>>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Worker {
    pub(crate) server: Arc<Shared>,
    pub(crate) index: usize,
    pub(crate) date: RefCell<DateCache>,
    buffers: RefCell<Vec<Buffers>>,
    /// Each link knows its place.
    links: RefCell<Vec<Rc<Link>>>,
    pub(crate) draining: Cell<bool>,
    /// Where [`evict`](Worker::evict) goes on in `links`.
    hand: Cell<usize>,
}

/// A counter on a cache line of its own: each worker writes its own.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ConnectionCount(AtomicUsize);

/// The state that the workers of a server share. Read-only, apart from the counters of connections, which change when a
/// connection opens or closes and never per request.
pub(crate) struct Shared {
    /// Answers requests.
    pub(crate) app: Box<dyn Serve>,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    pub(crate) max_connections: usize,
    /// The local address of every connection, when the listeners have only one. Saves a system call for each connection.
    pub(crate) bound: Option<SocketAddr>,
    pub(crate) trusted: Option<Trusted>,
    pub(crate) log: Log,
    /// Open connections of each worker, counted in where they are placed. Relaxed: a stale reading only makes the spread
    /// a little less even.
    pub(crate) connections: Box<[ConnectionCount]>,
}

impl Shared {
    #[cold]
    pub(crate) fn log(&self, line: fmt::Arguments<'_>) {
        (self.log)(line);
    }

    /// A connection becomes one of worker `index`.
    pub(crate) fn arrived(&self, index: usize) {
        self.connections[index].0.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection of worker `index` has closed.
    pub(crate) fn left(&self, index: usize) {
        self.connections[index].0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, index: usize) -> usize {
        self.connections[index].0.load(Ordering::Relaxed)
    }

    pub(crate) fn total(&self) -> usize {
        (0..self.connections.len()).map(|index| self.count(index)).sum()
    }

    /// The worker that a connection goes to which worker `here` has accepted.
    pub(crate) fn place(&self, here: usize) -> usize {
        let workers = self.connections.len();
        let mean = self.total() / workers;
        if self.count(here) < mean + (mean / 4).max(UNEVEN) {
            return here;
        }
        (0..workers).min_by_key(|&index| self.count(index)).unwrap_or(here)
    }
}

/// The buffers of one burst.
pub(crate) struct Buffers {
    pub(crate) input: Box<[u8]>,
    pub(crate) output: Vec<u8>,
}

impl Worker {
    /// The worker of this thread for `server`, made at the first use.
    pub(crate) fn here(server: &Arc<Shared>) -> Rc<Worker> {
        HERE.with_borrow_mut(|here| {
            if let Some(worker) = here.iter().find(|worker| Arc::ptr_eq(&worker.server, server)) {
                return worker.clone();
            }
            let worker = Rc::new(Worker {
                server: server.clone(),
                index: osier::fiber::worker().expect("only fibers come here"),
                date: RefCell::new(DateCache::new(osier::time::coarse_now())),
                buffers: RefCell::new(Vec::new()),
                links: RefCell::new(Vec::new()),
                draining: Cell::new(false),
                hand: Cell::new(0),
            });
            here.push(worker.clone());
            worker
        })
    }

    /// A worker that nobody else finds, for one request without a connection.
    pub(crate) fn alone(server: &Arc<Shared>) -> Rc<Worker> {
        Rc::new(Worker {
            server: server.clone(),
            index: 0,
            date: RefCell::new(DateCache::new(osier::time::coarse_now())),
            buffers: RefCell::new(Vec::new()),
            links: RefCell::new(Vec::new()),
            draining: Cell::new(false),
            hand: Cell::new(0),
        })
    }

    /// Forgets `server` on this thread; what still runs keeps its worker alive.
    pub(crate) fn leave(server: &Arc<Shared>) {
        HERE.with_borrow_mut(|here| here.retain(|worker| !Arc::ptr_eq(&worker.server, server)));
    }

    #[inline]
    pub(crate) fn take_buffers(&self) -> Buffers {
        let pooled = self.buffers.borrow_mut().pop();
        pooled.unwrap_or_else(|| Buffers {
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            output: Vec::new(),
        })
    }

    #[inline]
    pub(crate) fn give_buffers(&self, mut buffers: Buffers) {
        let mut pool = self.buffers.borrow_mut();
        if pool.len() < POOLED && buffers.input.len() == INPUT_BYTES {
            if buffers.output.capacity() > OUTPUT_KEPT {
                buffers.output = Vec::new();
            }
            pool.push(buffers);
        }
    }

    /// Counts the connection in.
    pub(crate) fn link(self: &Rc<Self>, stream: Stream, peer: SocketAddr) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        let place = u32::try_from(links.len()).expect("a process has fewer descriptors than that");
        let link = Rc::new(Link {
            stream,
            worker: self.clone(),
            peer: Cell::new(ClientAddr::pack(peer)),
            busy: Cell::new(false),
            resting: Cell::new(true),
            used: Cell::new(false),
            fresh: Cell::new(true),
            place: Cell::new(place),
        });
        links.push(link.clone());
        link
    }

    /// Counts the connection out.
    pub(crate) fn unlink(&self, link: &Link) {
        let mut links = self.links.borrow_mut();
        let place = link.place.get();
        links.swap_remove(place as usize);
        if let Some(moved) = links.get(place as usize) {
            moved.place.set(place);
        }
        self.server.left(self.index);
    }

    /// Closes up to `count` connections that wait for their next request, the longest unused first, as a second-chance
    /// sweep finds them; returns how many. A request that has just come is still answered.
    pub(crate) fn evict(&self, count: usize) -> usize {
        let links = self.links.borrow();
        let mut evicted = 0;
        // Once around takes every second chance away, the second time closes.
        for _ in 0..2 * links.len() {
            if evicted == count {
                break;
            }
            let hand = self.hand.get() % links.len();
            self.hand.set(hand + 1);
            let link = &links[hand];
            if link.resting.get() && !link.used.replace(false) {
                link.resting.set(false);
                let _ = link.stream.shutdown(Shutdown::Read);
                evicted += 1;
            }
        }
        evicted
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.borrow().is_empty()
    }

    pub(crate) fn links(&self) -> Vec<Rc<Link>> {
        self.links.borrow().clone()
    }
}

/// A connection as its worker sees it. Kept small: there is one for each idle client.
pub(crate) struct Link {
    pub(crate) stream: Stream,
    pub(crate) worker: Rc<Worker>,
    /// The client's address; the balancer's until its PROXY header has come.
    peer: Cell<ClientAddr>,
    /// A burst is running.
    pub(crate) busy: Cell<bool>,
    /// Waits for a request of which no byte has come.
    pub(crate) resting: Cell<bool>,
    /// Has had a request since [`Worker::evict`] last came by.
    used: Cell<bool>,
    /// Has had no request yet.
    pub(crate) fresh: Cell<bool>,
    /// Index in `Worker::links`; only that list's owner writes it.
    place: Cell<u32>,
}

impl Link {
    /// A burst begins.
    #[inline]
    pub(crate) fn begin(&self) {
        self.busy.set(true);
        self.resting.set(false);
        self.used.set(true);
        self.fresh.set(false);
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer.get().unpack()
    }

    /// Takes the client's address from a balancer.
    pub(crate) fn set_proxied(&self, client: SocketAddr) {
        let proxied = ClientAddr {
            is_proxied: true,
            ..ClientAddr::pack(client)
        };
        self.peer.set(proxied);
    }

    /// True if a balancer has named the client.
    pub(crate) fn is_proxied(&self) -> bool {
        self.peer.get().is_proxied
    }
}

/// A `SocketAddr` without its padding and without the flow label.
#[derive(Clone, Copy)]
struct ClientAddr {
    /// An IPv4 address is mapped.
    ip: [u8; 16],
    scope: u32,
    port: u16,
    is_v4: bool,
    /// A balancer has named the client. The flag lies in what would be padding.
    is_proxied: bool,
}

impl ClientAddr {
    fn pack(addr: SocketAddr) -> Self {
        let (ip, scope) = match addr {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        ClientAddr {
            ip: ip.octets(),
            scope,
            port: addr.port(),
            is_v4: addr.is_ipv4(),
            is_proxied: false,
        }
    }

    fn unpack(self) -> SocketAddr {
        let ip = Ipv6Addr::from_octets(self.ip);
        match ip.to_ipv4_mapped() {
            Some(v4) if self.is_v4 => SocketAddr::V4(SocketAddrV4::new(v4, self.port)),
            _ => SocketAddr::V6(SocketAddrV6::new(ip, self.port, 0, self.scope)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_peer_is_the_same_peer() {
        for text in ["127.0.0.1:80", "[::1]:65535", "[fe80::1%7]:9", "[::ffff:10.0.0.1]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(ClientAddr::pack(addr).unpack(), addr);
        }
    }

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Link>() <= 72, "{}", size_of::<Link>());
    }
}
