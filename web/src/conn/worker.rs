//! What one worker keeps for one server: warm buffers, the date, and the list of its connections.
//!
//! Everything here is touched by fibers of this worker only (a fiber never leaves its thread), hence `Rc` and `Cell`.
//! Fibers that are sent here, with a fresh socket or to end the server, find it through the thread-local list.

use std::cell::{Cell, RefCell};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::rc::Rc;
use std::sync::Arc;

use osier::net::Stream;

use crate::conn::date::DateCache;
use crate::server::accept::Shared;

/// Bytes that a burst reads at once. A larger head gets a buffer of its own.
pub(crate) const INPUT_BYTES: usize = 16 << 10;

/// Buffers kept for the next burst; more than a few are used at once only while handlers are suspended, behind a proxy for
/// example.
const POOLED: usize = 64;

/// An output buffer that has grown beyond this is not kept.
const OUTPUT_KEPT: usize = 128 << 10;

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
}

/// What a burst needs.
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
            peer: Cell::new(Peer::pack(peer)),
            busy: Cell::new(false),
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
    /// The client's, as far as it is known: a balancer's until that has told.
    peer: Cell<Peer>,
    /// A burst is running.
    pub(crate) busy: Cell<bool>,
    /// Index in `Worker::links`; only that list's owner writes it.
    place: Cell<u32>,
}

impl Link {
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer.get().unpack()
    }

    /// A balancer speaks for this client.
    pub(crate) fn set_told(&self, client: SocketAddr) {
        let told = Peer {
            is_told: true,
            ..Peer::pack(client)
        };
        self.peer.set(told);
    }

    /// Whether the peer is one that a balancer has told.
    pub(crate) fn is_told(&self) -> bool {
        self.peer.get().is_told
    }
}

/// A `SocketAddr` without its padding and without the flow label.
#[derive(Clone, Copy)]
struct Peer {
    /// An IPv4 address is mapped.
    ip: [u8; 16],
    scope: u32,
    port: u16,
    is_v4: bool,
    /// By a balancer; here because there is room.
    is_told: bool,
}

impl Peer {
    fn pack(addr: SocketAddr) -> Self {
        let (ip, scope) = match addr {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        Peer {
            ip: ip.octets(),
            scope,
            port: addr.port(),
            is_v4: addr.is_ipv4(),
            is_told: false,
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
            assert_eq!(Peer::pack(addr).unpack(), addr);
        }
    }

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Link>() <= 72, "{}", size_of::<Link>());
    }
}
