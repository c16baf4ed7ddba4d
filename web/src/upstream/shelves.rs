//! Idle connections to one backend, kept for the next lease.
//!
//! There is one shelf per worker, last in first out: used connections stay warm, and unused ones
//! reach the idle timeout. A shelf's lock is held only to move a connection. No call under it
//! suspends or closes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use rustix::net::RecvFlags;

use crate::conn::transport::Transport;
use crate::lock;

/// Number of shelves. More workers than this share them.
const SHELVES: usize = 16;

/// The idle connections of one backend.
pub(super) struct Shelves {
    shelves: [Mutex<Vec<Idle>>; SHELVES],
    /// Number of connections on all shelves.
    count: AtomicUsize,
}

struct Idle {
    transport: Transport,
    until: Instant,
}

impl Shelves {
    pub(super) fn new() -> Shelves {
        Shelves {
            shelves: Default::default(),
            count: AtomicUsize::new(0),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Keeps the connection, or closes it if `bound` are kept already. Returns whether it is kept.
    pub(super) fn put(&self, transport: Transport, bound: usize, until: Instant) -> bool {
        let room = |count| (count < bound).then_some(count + 1);
        if self.count.fetch_update(Relaxed, Relaxed, room).is_err() {
            return false;
        }
        lock(&self.shelves[own()]).push(Idle { transport, until });
        true
    }

    /// Takes the most recently used connection of this worker, or one of another worker if there is
    /// none. Connections past their time, and those with unexpected bytes or an end, are closed on
    /// the way and counted in `stale`.
    pub(super) fn take(&self, now: Instant, stale: &AtomicUsize) -> Option<Transport> {
        if self.count() == 0 {
            return None;
        }
        let own = own();
        (own..own + SHELVES).find_map(|shelf| self.take_from(shelf % SHELVES, now, stale))
    }

    fn take_from(&self, shelf: usize, now: Instant, stale: &AtomicUsize) -> Option<Transport> {
        loop {
            let idle = lock(&self.shelves[shelf]).pop()?;
            self.count.fetch_sub(1, Relaxed);
            if now < idle.until && is_quiet(&idle.transport) {
                return Some(idle.transport);
            }
            stale.fetch_add(1, Relaxed);
        }
    }

    /// Closes connections that are past their time or were closed by the backend.
    pub(super) fn sweep(&self, now: Instant, stale: &AtomicUsize) {
        for shelf in &self.shelves {
            let swept: Vec<Idle> = {
                let mut shelf = lock(shelf);
                shelf
                    .extract_if(.., |idle| idle.until <= now || !is_quiet(&idle.transport))
                    .collect()
            };
            self.count.fetch_sub(swept.len(), Relaxed);
            stale.fetch_add(swept.len(), Relaxed);
        }
    }
}

/// Whether an idle connection is usable. A backend sends nothing between two requests: bytes, an
/// end or an error make the connection unusable. Bytes would be read as the response to the next
/// request. The worker's poller may not have reported them yet, so the kernel is asked.
///
/// The readiness that the poller has reported would do without a system call, but only for bytes from before the last look at the
/// poller. Used where that look was at most 100 us old, and followed the end of the last request, it saved all calls of one client,
/// and 8 of 100 with 64 clients, whose connections mostly come and go within one turn of the loop. The processor time of a request
/// stayed the same (within 5 %), and a late response within those 100 us would have passed.
pub(super) fn is_quiet(transport: &Transport) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let is_silent = matches!(
        rustix::net::recv(transport.socket(), &mut [0], flags),
        Err(rustix::io::Errno::AGAIN)
    );
    is_silent && !transport.has_unread() && !transport.is_mid_record()
}

/// The index of the current worker's shelf.
fn own() -> usize {
    osier::fiber::worker().unwrap_or(0) % SHELVES
}
