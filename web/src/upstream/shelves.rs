//! Idle connections to one backend, kept for the next lease.
//!
//! One shelf a worker, last in first out, so that what is used is warm and what is not grows old. A lock is held to move a
//! connection and for nothing else: no call under it suspends or closes.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::net::RecvFlags;

use crate::Stream;

/// Workers beyond this many share.
const SHELVES: usize = 16;

pub(super) struct Shelves {
    /// The backend is a Unix socket: see [`is_quiet`].
    local: bool,
    shelves: [Mutex<Vec<Idle>>; SHELVES],
    /// Connections on all of them.
    count: AtomicUsize,
}

struct Idle {
    stream: Stream,
    until: Instant,
}

impl Shelves {
    pub(super) fn new(local: bool) -> Shelves {
        Shelves {
            local,
            shelves: Default::default(),
            count: AtomicUsize::new(0),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Keeps the connection, or closes it where `bound` are kept already; whether it is kept.
    pub(super) fn put(&self, stream: Stream, bound: usize, until: Instant) -> bool {
        let room = |count| (count < bound).then_some(count + 1);
        if self.count.fetch_update(Relaxed, Relaxed, room).is_err() {
            return false;
        }
        lock(&self.shelves[own()]).push(Idle { stream, until });
        true
    }

    /// The connection of this worker that was used last; if there is none, one of another worker. Those that are too old, or
    /// have something to say or an end although nobody has asked, are closed on the way and counted in `stale`.
    /// With `trusting` it is enough that the worker has not been told of any, also over TCP: the request can be repeated.
    pub(super) fn take(&self, now: Instant, trusting: bool, stale: &AtomicUsize) -> Option<Stream> {
        if self.count() == 0 {
            return None;
        }
        let own = own();
        (own..own + SHELVES).find_map(|shelf| self.take_from(shelf % SHELVES, now, trusting, stale))
    }

    fn take_from(&self, shelf: usize, now: Instant, trusting: bool, stale: &AtomicUsize) -> Option<Stream> {
        loop {
            let idle = lock(&self.shelves[shelf]).pop()?;
            self.count.fetch_sub(1, Relaxed);
            if now < idle.until && is_quiet(&idle.stream, self.local || trusting) {
                return Some(idle.stream);
            }
            stale.fetch_add(1, Relaxed);
        }
    }

    /// Closes what is too old, or has been closed by the backend.
    pub(super) fn sweep(&self, now: Instant, stale: &AtomicUsize) {
        for shelf in &self.shelves {
            let swept: Vec<Idle> = {
                let mut shelf = lock(shelf);
                shelf
                    .extract_if(.., |idle| idle.until <= now || !is_quiet(&idle.stream, self.local))
                    .collect()
            };
            self.count.fetch_sub(swept.len(), Relaxed);
            stale.fetch_add(swept.len(), Relaxed);
        }
    }
}

/// Between two requests a backend has nothing to say: bytes, an end or an error there make the connection useless.
///
/// Over a Unix socket it is enough that the worker has not been told of any. An end that it learns of in its next turn is met by the request's
/// first byte, which the kernel then refuses, so that the request is repeated; over TCP it would be gone.
pub(super) fn is_quiet(stream: &Stream, trusting: bool) -> bool {
    if trusting && stream.seen_readable() == Some(false) {
        return true;
    }
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(
        rustix::net::recv(stream, &mut [0], flags),
        Err(rustix::io::Errno::AGAIN)
    )
}

/// The shelf of the worker this runs on.
fn own() -> usize {
    osier::fiber::worker().unwrap_or(0) % SHELVES
}

fn lock(shelf: &Mutex<Vec<Idle>>) -> MutexGuard<'_, Vec<Idle>> {
    // Nothing under the lock panics half way.
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}
