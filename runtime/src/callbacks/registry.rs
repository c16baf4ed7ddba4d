//! The registry of a queue: its outstanding requests, and whether it accepts new ones.
//!
//! One lock guards all of it. The registry only keeps requests alive; the state of each request decides how it ends.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Wake;

use slab::Slab;

use super::run_queue::{Run, WorkQueue};
use crate::worker::remote::Remote;

/// The part of a queue that its requests use.
pub(super) struct QueueState {
    pub(super) remote: &'static Remote,
    pub(super) work: Arc<WorkQueue>,
    pub(super) registry: Mutex<Registry>,
}

/// The outstanding requests.
pub(super) struct Registry {
    pub(super) open: bool,
    pub(super) requests: Slab<Arc<dyn Run>>,
}

impl QueueState {
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a request. Returns `None` if the queue is closed.
    pub(super) fn enter(&self, request: Arc<dyn Run>) -> Option<usize> {
        let mut registry = self.registry();
        registry.open.then(|| registry.requests.insert(request))
    }

    /// Removes a request that has ended.
    pub(super) fn leave(&self, key: usize) {
        let mut registry = self.registry();
        let request = registry.requests.try_remove(key);
        drop(registry);
        drop(request);
    }

    /// Refuses requests from now on.
    pub(super) fn close(&self) -> MutexGuard<'_, Registry> {
        let mut registry = self.registry();
        registry.open = false;
        registry
    }
}

impl Wake for QueueState {
    fn wake(self: Arc<Self>) {
        self.work.notify();
    }
}
