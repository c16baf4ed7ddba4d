//! The log of slow requests: a request over its limit is logged once, at that moment, while it goes on.
//!
//! A request enters the list of its worker with its first suspension, if it has a limit. One fiber of the worker, the watch,
//! sleeps until the first of them is due. It then asks the runtime where the fiber of that request waits
//! (`osier::inspect::dump_fiber`). The watch ends with the last request.
//!
//! ```text
//!   burst: set_slow ─▶ suspends ─▶ Watch::add ───────────────┐           ends in time ─▶ Watch::remove
//!   watch:                          sleep until the first is due ─▶ dump its fiber ─▶ a line of the log
//! ```
//!
//! A request that never suspends blocks its worker, and the watch with it. It is logged when it ends or first suspends. The
//! runtime's watchdog reports such a worker meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use osier::sync::Event;
use osier::time::Stamp;

use crate::RequestId;
use crate::conn::log::record::{Level, Record};
use crate::conn::times::Timing;

/// The most frames of a backtrace that a line shows.
#[cfg(feature = "fibers")]
const FRAMES: usize = 16;

/// The part of a request's notes that the log of slow requests needs.
#[derive(Clone, Default)]
pub(crate) struct Slow {
    /// When the request is over its limit.
    due: Cell<Option<Stamp>>,
    watched: RefCell<Option<Watched>>,
}

impl Slow {
    #[inline]
    pub(crate) fn clear(&self) {
        if self.due.take().is_some() {
            self.watched.take();
        }
    }

    pub(crate) fn set(&self, other: &Slow) {
        self.due.set(other.due.get());
        self.watched.replace(other.watched.borrow().clone());
    }

    #[inline]
    pub(crate) fn set_due(&self, due: Stamp) {
        self.due.set(Some(due));
    }

    #[inline]
    pub(crate) fn due(&self) -> Option<Stamp> {
        self.due.get()
    }

    /// Adds the request to the list of its worker.
    pub(crate) fn watch(&self, watched: Watched) {
        self.watched.replace(Some(watched));
    }

    /// Notes that the request, which these words describe, goes on without a fiber.
    pub(crate) fn leave_fiber(&self, words: impl FnOnce() -> String) {
        if let Some(watched) = &*self.watched.borrow() {
            watched.0.words.replace(words());
        }
    }

    /// Notes that the request goes on on this fiber.
    pub(crate) fn enter_fiber(&self) {
        if let (Some(watched), Some(fiber)) = (&*self.watched.borrow(), osier::fiber::id()) {
            watched.0.fiber.set(fiber);
        }
    }

    /// Ends the watch. Returns whether the request is logged.
    #[inline]
    pub(crate) fn end(&self) -> bool {
        self.due.set(None);
        self.watched.borrow().is_some() && self.leave()
    }

    #[cold]
    fn leave(&self) -> bool {
        self.watched.take().is_some_and(|watched| watched.0.is_logged.get())
    }
}

/// A request in the list of its worker, until the last copy is dropped.
#[derive(Clone)]
pub(crate) struct Watched(Rc<Entry>);

/// A request as the watch sees it.
pub(crate) struct Entry {
    pub(crate) fiber: Cell<u64>,
    /// The request in words, once it has left its fiber.
    pub(crate) words: RefCell<String>,
    pub(crate) timing: Timing,
    pub(crate) id: RequestId,
    pub(crate) client: (SocketAddr, bool),
    pub(crate) log: Box<dyn Fn(&Record<'_>)>,
    pub(crate) is_logged: Cell<bool>,
    pub(crate) place: Cell<Option<(Stamp, u64)>>,
    pub(crate) list: Weak<Watch>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let (Some(place), Some(list)) = (self.place.get(), self.list.upgrade()) {
            list.waiting.borrow_mut().remove(&place);
        }
    }
}

/// The requests of one worker that have a limit and have suspended.
#[derive(Default)]
pub(crate) struct Watch {
    /// The key is the time at which each is over its limit. The number tells those of one moment apart.
    waiting: RefCell<BTreeMap<(Stamp, u64), Weak<Entry>>>,
    next: Cell<u64>,
    is_running: Cell<bool>,
    /// When the watch wakes.
    wakes: Cell<Option<Stamp>>,
    /// Set when a request is added that is due before `wakes`.
    earlier: Arc<Event>,
}

impl Watch {
    /// Adds a request that is over its limit at `due`.
    pub(crate) fn add(self: &Rc<Self>, due: Stamp, mut entry: Entry) -> Watched {
        let place = (due, self.next.get());
        self.next.set(place.1 + 1);
        entry.place = Cell::new(Some(place));
        entry.list = Rc::downgrade(self);
        let entry = Rc::new(entry);
        self.waiting.borrow_mut().insert(place, Rc::downgrade(&entry));
        if !self.is_running.replace(true) {
            // Also for a fiber that cannot start for want of a stack.
            let ends = Ends(Rc::clone(self));
            drop(osier::spawn_local(move || ends.0.run()));
        } else if self.wakes.get().is_some_and(|wakes| place.0 < wakes) {
            self.earlier.set();
        }
        Watched(entry)
    }

    fn run(&self) {
        while let Some((due, entry)) = self.first() {
            let now = Stamp::now();
            if now >= due {
                if let Some(entry) = entry.upgrade() {
                    entry.place.set(None);
                    entry.report(now);
                }
                continue;
            }
            self.wakes.set(Some(due));
            self.earlier.wait_timeout(due.since(now));
            self.wakes.set(None);
        }
    }

    /// The first request of the list. It leaves the list if it is due.
    fn first(&self) -> Option<(Stamp, Weak<Entry>)> {
        let mut waiting = self.waiting.borrow_mut();
        let first = waiting.first_entry()?;
        let due = first.key().0;
        match Stamp::now() >= due {
            true => Some((due, first.remove())),
            false => Some((due, Weak::new())),
        }
    }
}

/// A watch that runs, until this is dropped.
struct Ends(Rc<Watch>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.is_running.set(false);
    }
}

impl Entry {
    fn report(&self, now: Stamp) {
        let started = self.timing.started().unwrap_or(now);
        self.is_logged.set(true);
        let taken = now.since(started);
        // Read before the dump, which takes time itself.
        let times = self.timing.times(now.nanos_since(started));
        let current = self.timing.current();
        let (what, place) = self.place();
        let mut text = format!("{what} has taken {taken:.1?} so far ({times})");
        if let Some((phase, since)) = current {
            let for_ = now.since(since);
            let _ = write!(text, "; for the last {for_:.1?} it is in '{}'", phase.as_str());
        }
        text.push_str(&place);
        let (client, is_proxied) = self.client;
        let text = format_args!("{text}");
        let record = Record::new(Level::Warning, text);
        (self.log)(&record.of_client(client, is_proxied).of_request(None, self.id));
    }

    /// The request in words, and where its fiber waits.
    #[cfg(feature = "fibers")]
    fn place(&self) -> (String, String) {
        let Some(fiber) = osier::inspect::dump_fiber(self.fiber.get()) else {
            return (self.words(), ", without a fiber of its own".to_owned());
        };
        let wait = fiber.wait.map(|wait| format!(", {wait}")).unwrap_or_default();
        let frames = fiber.frames.iter().take(FRAMES).map(ToString::to_string);
        let frames = frames.collect::<Vec<_>>().join(" <- ");
        let trace = if frames.is_empty() {
            frames
        } else {
            format!("; backtrace: {frames}")
        };
        (fiber.doing.unwrap_or_else(|| self.words()), wait + &trace)
    }

    #[cfg(not(feature = "fibers"))]
    fn place(&self) -> (String, String) {
        (self.words(), format!("; its fiber has the number {}", self.fiber.get()))
    }

    fn words(&self) -> String {
        let words = self.words.borrow();
        if words.is_empty() {
            "a request".to_owned()
        } else {
            words.clone()
        }
    }
}
