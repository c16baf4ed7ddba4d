//! The configuration that counts now, and how each worker learns of the next.
//!
//! One [`Live`] a process. [`Live::replace`] puts the new snapshot behind the lock, then raises the number. Each worker keeps
//! the snapshot it saw last with its number, and compares one atomic for each request; only when that differs is the lock taken.
//! A request holds its snapshot by a counter of the worker's own, so that no cache line is written by two workers.
//!
//! Ordering: the number is stored with Release after the snapshot is in place, under the lock; a worker loads it with Acquire
//! and reads snapshot and number again under the lock. A request that runs while the snapshot changes ends on its own.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use osier_web::Served;

use super::Snapshot;

pub struct Live {
    number: AtomicU64,
    current: Mutex<Arc<Snapshot>>,
}

/// The snapshot that a worker has seen.
pub struct Here {
    number: u64,
    pub snapshot: Arc<Snapshot>,
}

thread_local! {
    static HERE: RefCell<Option<Rc<Here>>> = const { RefCell::new(None) };
}

impl Live {
    pub fn new(snapshot: Snapshot) -> Arc<Live> {
        Arc::new(Live {
            number: AtomicU64::new(1),
            current: Mutex::new(Arc::new(snapshot)),
        })
    }

    /// The snapshot that counts.
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// New requests are answered by `snapshot` from now on.
    pub fn replace(&self, snapshot: Snapshot) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(snapshot);
        self.number.fetch_add(1, Ordering::Release);
    }

    /// The snapshot that this worker has seen last, or the one that counts if that is newer.
    #[inline]
    pub fn here(&self) -> Rc<Here> {
        let number = self.number.load(Ordering::Acquire);
        HERE.with_borrow_mut(|here| match here {
            Some(here) if here.number == number => Rc::clone(here),
            stale => Rc::clone(stale.insert(self.look())),
        })
    }

    /// Writes the line of an answered request, if its log is on, and counts it.
    pub fn record(&self, served: &Served<'_>) {
        let here = self.here();
        if let Some(log) = here.snapshot.log(served.label()) {
            log.record_served(served);
        }
        here.snapshot.record(served);
        if let Some(series) = here.snapshot.series(served.label()) {
            series.record(served.status().as_u16(), served.bytes(), served.duration());
        }
    }

    /// Lets go of what this worker holds of an older snapshot.
    pub fn refresh(&self) {
        drop(self.here());
    }

    #[cold]
    fn look(&self) -> Rc<Here> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Rc::new(Here {
            number: self.number.load(Ordering::Acquire),
            snapshot: Arc::clone(&current),
        })
    }
}
