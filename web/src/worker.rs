//! What one worker keeps for one server: warm buffers, the date, and the list of its connections.
//!
//! Everything here is touched by fibers of this worker only (a fiber never leaves its thread), hence `Rc` and `Cell`.
//! Fibers that are sent here, with a fresh socket or to end the server, find it through the thread-local list.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use osier::net::TcpStream;

use crate::date::DateCache;
use crate::server::Shared;

/// Bytes that a burst reads at once. A larger head gets a buffer of its own.
pub(crate) const INPUT_BYTES: usize = 16 << 10;

/// Buffers kept for the next burst; more are used at once only while handlers are suspended.
const POOLED: usize = 16;

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
    pub(crate) fn link(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        let place = Cell::new(links.len());
        let link = Rc::new(Link {
            stream,
            peer,
            worker: self.clone(),
            place,
            busy: Cell::new(false),
        });
        links.push(link.clone());
        link
    }

    /// Counts the connection out.
    pub(crate) fn unlink(&self, link: &Link) {
        let mut links = self.links.borrow_mut();
        let place = link.place.get();
        links.swap_remove(place);
        if let Some(moved) = links.get(place) {
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

/// A connection as its worker sees it.
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) worker: Rc<Worker>,
    /// Index in `Worker::links`; only that list's owner writes it.
    place: Cell<usize>,
    /// A burst is running.
    pub(crate) busy: Cell<bool>,
}
