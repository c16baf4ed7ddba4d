//! The current snapshot, and how each worker notices that it was replaced.
//!
//! There is one [`Live`] in a process. [`Live::replace`] stores the new snapshot under the lock and raises the number.
//! Each worker keeps the snapshot that it saw last, with its number. For each request it loads one atomic, and takes
//! the lock only when the number has changed. A request holds its snapshot through an `Rc` of the worker, so no two
//! workers write one cache line.
//!
//! Memory ordering: `replace` raises the number with Release, under the lock and after the snapshot is in place. A
//! worker loads the number with Acquire, and reads the snapshot and the number again under the lock. A request that
//! runs during a replacement keeps the old snapshot.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use osier_web::Served;

use super::Snapshot;

/// The current snapshot, with its number.
pub struct Live {
    number: AtomicU64,
    current: Mutex<Arc<Snapshot>>,
}

/// The snapshot that a worker has seen, with its number.
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

    /// The current snapshot.
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes `snapshot` current. It answers new requests from now on.
    pub fn replace(&self, snapshot: Snapshot) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(snapshot);
        self.number.fetch_add(1, Ordering::Release);
    }

    /// The current snapshot, from the worker's own copy unless that is stale.
    #[inline]
    pub fn here(&self) -> Rc<Here> {
        let number = self.number.load(Ordering::Acquire);
        HERE.with_borrow_mut(|here| match here {
            Some(here) if here.number == number => Rc::clone(here),
            stale => Rc::clone(stale.insert(self.look())),
        })
    }

    /// Writes a served request of a listener to its log, if the log is on, and counts it.
    pub fn record(&self, listener: usize, served: &Served<'_>) {
        let here = self.here();
        if let Some(log) = here.snapshot.log(served.label()) {
            let site = match log.has_site {
                true => here.snapshot.site_name(listener, served.host()),
                false => None,
            };
            log.record_served(served, site);
        }
        here.snapshot.record(served);
        if let Some(series) = here.snapshot.series(served.label()) {
            series.record_served(served);
        }
    }

    /// Replaces this worker's copy of an older snapshot, which is dropped.
    pub fn refresh(&self) {
        drop(self.here());
    }

    /// Takes the current snapshot with its number.
    #[cold]
    fn look(&self) -> Rc<Here> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Rc::new(Here {
            number: self.number.load(Ordering::Acquire),
            snapshot: Arc::clone(&current),
        })
    }
}
