//! The callback face: requests whose callbacks run on the threads of a pool, and on whichever thread iterates their queue.
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
//! A request that was accepted calls its callback exactly once, however it ends, and says with a [`Status`] how that was.
//! Never in the call that makes the request, also where what it waits for is there already; never with a lock held; and always
//! after its object is idle again, so that the callback may begin the next request with it. A request that is [`Refused`] is none.
//!
//! | object | one request at a time, because | callback |
//! |---|---|---|
//! | [`Timer`], [`FdMonitor`] | a request takes the object by value, and its callback gives it back | `(object, status, …)` |
//! | [`File`], [`Socket`] | a second of the same direction is [`Refused`] as busy | `(status, result, …)` |
//! | [`Resolver`], [`when`](Handle::when) | each request is an object of its own | `(status, result)` |
//!
//! # Cancellation
//!
//! A [`CancelHandle`] hastens the callback; it never prevents it, which would be impossible: it may be running already. It
//! names one request: used late, twice, or after the object has begun another one, it does nothing. An event that came first
//! is told as what it is: [`Status::Cancelled`] means that nothing has happened.
//!
//! # Threads
//!
//! Requests are made and cancelled from any thread. Callbacks start in the order in which what they waited for has happened, and run
//! in parallel if there is more than one thread to run them. A strand of requests each of which is made by the callback of the one
//! before has no two callbacks at once, and needs no lock.
//!
//! A callback may block: it runs on a plain thread, or on the fiber that iterates. A panic in it ends nothing else.
//!
//! # Parts
//! ```text
//!   io_queue.rs    IoQueue, Handle: a driver (wait/driver.rs) with a poller of its own, what is outstanding, how it ends
//!      │  run_queue.rs   RunQueue: the order of callbacks, the threads that run them
//!      │  registry.rs    the outstanding requests
//!      │  request.rs     a leaf, its callback and osier_queue::request, the word that decides; CancelHandle
//!      └─ timer.rs  monitor.rs  file.rs  socket.rs  resolver.rs     the leaves of time/, wait/descriptor.rs and net/, nothing of their own
//! ```

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

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

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
