//! Deferred callbacks: a stack of closures that run when their owner ends, the latest first.
//!
//! `Drop` is the norm in Rust; this is for what it cannot express: an action registered by a callee that must outlast the callee, run
//! back to a mark, taken back, or fired early. A [`Yielder`](crate::Yielder) has one for its coroutine; the runtime may hold one per fiber.
//!
//! Every callback has a serial number, and numbers only grow. Hence a handle to a callback that is gone finds nothing
//! rather than its successor, and a generation is a serial number too: everything from there on is newer.

use std::cell::{Cell, RefCell};
use std::fmt;

/// Callbacks that run when this is dropped. Empty, it owns no memory.
///
/// ```
/// use osier_coro::Defers;
/// use std::{cell::RefCell, rc::Rc};
///
/// let log = Rc::new(RefCell::new(Vec::new()));
/// let note = |word| { let log = log.clone(); move || log.borrow_mut().push(word) };
///
/// let defers = Defers::new();
/// defers.defer(note("connection"));
/// let request = defers.generation();
/// defers.defer(note("request"));
/// let rollback = defers.defer(note("rollback"));
/// assert!(defers.disarm(rollback));
/// defers.run(request);
/// drop(defers);
/// assert_eq!(*log.borrow(), ["request", "connection"]);
/// ```
#[derive(Default)]
pub struct Defers {
    /// Ascending by serial number. The last one is always armed.
    entries: RefCell<Vec<Entry>>,
    next: Cell<u64>,
}

/// Names one deferred callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred(u64);

/// A mark in the order of deferred callbacks: what is deferred later is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

struct Entry {
    serial: u64,
    /// `None` once disarmed or fired.
    callback: Option<Box<dyn FnOnce()>>,
}

impl Defers {
    /// None yet.
    pub const fn new() -> Defers {
        Defers {
            entries: RefCell::new(Vec::new()),
            next: Cell::new(0),
        }
    }

    /// Runs `f` when the owner ends, before everything deferred earlier.
    pub fn defer(&self, f: impl FnOnce() + 'static) -> Deferred {
        let serial = self.next.get();
        self.next.set(serial + 1);
        self.entries.borrow_mut().push(Entry {
            serial,
            callback: Some(Box::new(f)),
        });
        Deferred(serial)
    }

    /// The present mark: everything deferred from now on is newer.
    pub fn generation(&self) -> Generation {
        Generation(self.next.get())
    }

    /// Runs what was deferred since `generation` and still is, the latest first; also what those callbacks defer.
    ///
    /// # Panics
    ///
    /// With a callback's panic, after the others have run; a second panic aborts, as in destructors.
    pub fn run(&self, generation: Generation) {
        struct Rest<'a>(&'a Defers, Generation);
        impl Drop for Rest<'_> {
            fn drop(&mut self) {
                while let Some(callback) = self.0.pop(self.1) {
                    callback();
                }
            }
        }
        let rest = Rest(self, generation);
        while let Some(callback) = self.pop(generation) {
            callback();
        }
        drop(rest);
    }

    /// Takes a callback back: it will not run. False if it is gone already.
    pub fn disarm(&self, deferred: Deferred) -> bool {
        self.remove(deferred).is_some()
    }

    /// Runs a callback now, and so not again. False if it is gone already.
    pub fn fire(&self, deferred: Deferred) -> bool {
        self.remove(deferred).map(|callback| callback()).is_some()
    }

    fn pop(&self, generation: Generation) -> Option<Box<dyn FnOnce()>> {
        let mut entries = self.entries.borrow_mut();
        let last = entries.pop_if(|entry| entry.serial >= generation.0)?;
        forget_disarmed(&mut entries);
        last.callback
    }

    fn remove(&self, deferred: Deferred) -> Option<Box<dyn FnOnce()>> {
        let mut entries = self.entries.borrow_mut();
        let index = entries.binary_search_by_key(&deferred.0, |entry| entry.serial).ok()?;
        let callback = entries[index].callback.take();
        forget_disarmed(&mut entries);
        callback
    }
}

/// Keeps the promise that the last entry is armed, so that `pop` always finds one to run.
fn forget_disarmed(entries: &mut Vec<Entry>) {
    while entries.pop_if(|entry| entry.callback.is_none()).is_some() {}
}

impl Drop for Defers {
    #[inline]
    fn drop(&mut self) {
        if !self.entries.get_mut().is_empty() {
            self.run(Generation(0));
        }
    }
}

impl fmt::Debug for Defers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Defers")
            .field("len", &self.entries.borrow().len())
            .finish()
    }
}
