//! Requests that call a callback when they end, for code that neither blocks nor awaits.
//!
//! Callbacks run on the threads of a pool and on the thread that iterates their queue.
//!
//! ```
//! use osier::callbacks::{IoQueue, Status, Timer};
//! use osier::sync::Mailbox;
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! const DONE: u32 = 1;
//! const TICK: Duration = Duration::from_millis(5);
//!
//! /// Counts to three, a tick at a time: each callback asks for the next.
//! fn count(timer: Timer, n: u32, done: Arc<Mailbox>) {
//!     let next = move |timer, status| match status {
//!         Status::Done if n < 3 => count(timer, n + 1, done),
//!         _ => done.raise(DONE),
//!     };
//!     // Refused only once the queue shuts down.
//!     let _ = timer.wait(TICK, next);
//! }
//!
//! let queue = IoQueue::new(1)?; // one thread in the background
//! let done = Arc::new(Mailbox::new());
//! count(Timer::new(&queue), 1, Arc::clone(&done));
//! while done.take(Mailbox::ALL) == 0 {
//!     queue.iterate()?;
//! }
//! # std::io::Result::Ok(())
//! ```
//!
//! # One request, one callback
//!
//! An accepted request calls its callback exactly once, however it ends. The callback's [`Status`] says how it ended.
//! Three rules hold for every callback:
//!
//! - It never runs inside the call that makes the request, even if the event has already happened.
//! - It never runs while the queue holds a lock.
//! - It runs after its object is idle again, so it may begin the next request with that object.
//!
//! A request that is [`Refused`] calls no callback.
//!
//! | object | why one request at a time | callback |
//! |---|---|---|
//! | [`Timer`], [`FdMonitor`] | a request takes the object by value, and its callback gives it back | `(object, status, …)` |
//! | [`File`], [`Socket`] | a second request of the same direction is [`Refused`] as busy | `(status, result, …)` |
//! | [`Resolver`], [`when`](Handle::when) | no limit: each request is an object of its own | `(status, result)` |
//!
//! # Cancellation
//!
//! A [`CancelHandle`] makes the callback come sooner. It never prevents it, because the callback may already be
//! running. A handle names one request: it has no effect when used late, used twice, or used after its object has
//! begun another request. An event that came before the cancellation is reported as that event. [`Status::Cancelled`]
//! therefore means that nothing has happened.
//!
//! # Threads
//!
//! Any thread may make and cancel requests. Callbacks start in the order of their events, and run in parallel if
//! several threads run them. A chain of requests, each made by the callback of the one before, never has two
//! callbacks at once and needs no lock.
//!
//! A callback may block: it runs on a plain thread, or on the fiber that iterates. A panic ends only that callback.

// # Parts
//   io_queue.rs    IoQueue, Handle: a driver (wait/driver.rs) with its own poller; graceful shutdown
//      │  run_queue.rs   RunQueue: the order of callbacks, the threads that run them
//      │  registry.rs    the outstanding requests
//      │  request.rs     a leaf, its callback, and the state of osier_queue::request; CancelHandle
//      └─ timer.rs  monitor.rs  file.rs  socket.rs  resolver.rs     callbacks for the leaves of time/, wait/descriptor.rs and net/

mod file;
mod io_queue;
mod monitor;
mod registry;
mod request;
mod resolver;
mod run_queue;
mod socket;
mod timer;

use std::{error, fmt, io};

pub use file::File;
pub use io_queue::{Handle, IoQueue};
pub use monitor::FdMonitor;
pub use osier_queue::request::Status;
pub use request::CancelHandle;
pub use resolver::Resolver;
pub use run_queue::RunQueue;
pub use socket::Socket;
pub use timer::Timer;

/// A request that was not accepted: its callback is not called. Holds what was to be waited with.
pub struct Refused<T = ()> {
    reason: Reason,
    object: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Busy,
    Closed,
}

impl<T> Refused<T> {
    /// Because one of the same kind is outstanding; otherwise because the queue was shut down or dropped.
    pub fn is_busy(&self) -> bool {
        self.reason == Reason::Busy
    }

    /// The object that was to wait.
    pub fn into_inner(self) -> T {
        self.object
    }

    fn map<U>(self, with: impl FnOnce(T) -> U) -> Refused<U> {
        Refused {
            reason: self.reason,
            object: with(self.object),
        }
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            Reason::Busy => "a request of this kind is outstanding: wait for its callback first",
            Reason::Closed => "the queue was shut down: it takes no new requests",
        })
    }
}

osier_queue::impl_debug!(Refused<T>, self => { reason: self.reason, .. });

impl<T> error::Error for Refused<T> {}

impl<T> From<Refused<T>> for io::Error {
    /// `ResourceBusy`, or `BrokenPipe` for a queue that was shut down.
    fn from(refused: Refused<T>) -> io::Error {
        let kind = match refused.reason {
            Reason::Busy => io::ErrorKind::ResourceBusy,
            Reason::Closed => io::ErrorKind::BrokenPipe,
        };
        io::Error::new(kind, refused.to_string())
    }
}

/// The result of an operation that did not take place: an error, which cannot be taken for an end of file.
fn result<T>(status: Status, output: Option<io::Result<T>>) -> io::Result<T> {
    output.unwrap_or_else(|| {
        Err(match status {
            Status::Shutdown => io::Error::other("the queue was shut down before the request was done"),
            Status::Done | Status::Cancelled => crate::Cancelled.into(),
        })
    })
}
