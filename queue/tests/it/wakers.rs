//! Wakers that the tests share: one counts, one panics, one unparks a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::thread::Thread;

/// Counts its wake-ups.
#[derive(Default)]
pub struct Counter(pub AtomicUsize);

impl Counter {
    pub fn new() -> (Arc<Counter>, Waker) {
        let counter = Arc::new(Counter::default());
        (counter.clone(), counter.into())
    }

    pub fn wakes(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A waker whose owner has a fault. Its panic runs no hook: to print takes an interpreter seconds.
pub struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("a waker's own"));
    }
}

/// Wakes a thread that blocks as a plain thread does.
pub struct Unpark(pub Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
