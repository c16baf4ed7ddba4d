//! The queue of a worker's handshakes.
//!
//! A TLS handshake signs, which costs as much as twenty short requests. So a worker makes only [`PER_TURN`] steps before it runs its
//! other fibers and reads from other clients. Further handshakes wait in the queue, at rest, until a fiber calls them. That fiber exists
//! while there are steps.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

/// Handshake steps that a worker makes before other fibers have their turn.
const PER_TURN: usize = 4;

/// The handshakes of a worker that wait for others.
#[derive(Default)]
pub(crate) struct HandshakeQueue {
    /// Steps made since the fiber that calls has had its turn.
    made: Cell<usize>,
    /// Whether the calling fiber exists. It does while steps are made.
    is_calling: Cell<bool>,
    /// The number of called handshakes: all numbers below this one.
    called: Cell<u64>,
    /// The handshakes that have not been called, in the order of their numbers. Some may have ended.
    waiting: RefCell<VecDeque<Waker>>,
    /// Handshakes that wait for their certificates, outside of the queue.
    pub(super) deferred: Cell<usize>,
}

impl HandshakeQueue {
    /// Whether a handshake may make a step now. Counts the step if so.
    pub(super) fn admits(self: &Rc<Self>) -> bool {
        if self.made.get() >= PER_TURN || !self.waiting.borrow().is_empty() {
            return false;
        }
        self.made.set(self.made.get() + 1);
        if !self.is_calling.replace(true) {
            let calling = Calling(self.clone());
            drop(osier::spawn_local(move || calling.0.call_all()));
        }
        true
    }

    pub(super) fn has_called(&self, number: u64) -> bool {
        number < self.called.get()
    }

    /// Adds a handshake and returns its number.
    pub(super) fn join(&self, waker: &Waker) -> u64 {
        let mut waiting = self.waiting.borrow_mut();
        waiting.push_back(waker.clone());
        self.called.get() + waiting.len() as u64 - 1
    }

    /// Calls the handshakes in the queue, a few each time that the other fibers have had their turn.
    ///
    /// # Suspends
    ///
    /// Until none is left.
    fn call_all(&self) {
        loop {
            osier::fiber::yield_now();
            if self.waiting.borrow().is_empty() {
                return;
            }
            self.made.set(PER_TURN);
            self.call(PER_TURN);
        }
    }

    fn call(&self, most: usize) {
        let mut waiting = self.waiting.borrow_mut();
        let count = most.min(waiting.len());
        self.called.set(self.called.get() + count as u64);
        let called: Vec<_> = waiting.drain(..count).collect();
        if waiting.is_empty() {
            *waiting = VecDeque::new();
        }
        drop(waiting);
        called.into_iter().for_each(Waker::wake);
    }
}

/// The calling fiber. Its drop calls all that are left, also if there was no stack for the fiber.
struct Calling(Rc<HandshakeQueue>);

impl Drop for Calling {
    fn drop(&mut self) {
        let queue = &self.0;
        queue.is_calling.set(false);
        queue.made.set(0);
        queue.call(usize::MAX);
    }
}
