//! Synchronisation between fibers, threads, futures and callbacks: locks, channels, events.
//!
//! | type | what it holds | who goes on |
//! |---|---|---|
//! | [`Event`] | one signal, or none | one waiter per signal, or with [`Event::manual`] all until it is reset |
//! | [`EventFd`] | the same, in a descriptor that any loop can poll | one waiter per signal |
//! | [`Mailbox`] | 32 flags | everyone whose flags are raised |
//! | [`Notify`] | nothing; one notification is remembered | the first waiter, or all |
//! | [`Mutex`], [`RwLock`] | a value | one at a time, or many readers, in order of arrival |
//! | [`Condvar`] | nothing; it goes with a `Mutex` | the first waiter, or all, as they get the lock |
//! | [`Semaphore`] | a number of permits | whoever has one, in order of arrival |
//! | [`Barrier`] | who has come | all, when the last has come |
//! | [`mpsc`] | a queue of values, bounded or not | one receiver |
//! | [`mpmc`] | a queue of values, bounded or not | any of several receivers, in order of arrival |
//! | [`oneshot`] | one value | one receiver |
//! | [`broadcast`] | the latest values | every receiver |
//!
//! All of them are used from any thread, on a runtime or not. Each call that waits comes in two: `wait` suspends a fiber and
//! blocks a plain thread, `wait_async` is the same wait as a future.

use std::pin::pin;
use std::time::{Duration, Instant};

use crate::wait;
use crate::worker::context::now;

mod barrier;
pub mod broadcast;
mod condvar;
mod event;
mod event_fd;
mod mailbox;
pub mod mpmc;
pub mod mpsc;
mod mutex;
mod notify;
pub mod oneshot;
mod rwlock;
mod semaphore;

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use event::{Event, EventWait};
pub use event_fd::{EventFd, EventFdWait, SignalSetter};
pub use mailbox::{Mailbox, MailboxWait};
pub use mutex::{Mutex, MutexGuard};
pub use notify::{Notified, Notify};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// The blocking face of a leaf whose call has no error.
pub(crate) fn block<T>(leaf: impl Future<Output = T>) -> T {
    block_until(None, leaf).expect("no deadline was set")
}

/// As [`block`], at most for this long.
pub(crate) fn block_for<T>(timeout: Duration, leaf: impl Future<Output = T>) -> Option<T> {
    // Beyond what the clock can tell is for ever.
    block_until(now().checked_add(timeout), leaf)
}

fn block_until<T>(deadline: Option<Instant>, leaf: impl Future<Output = T>) -> Option<T> {
    let mut leaf = pin!(leaf);
    wait::wait_or_unwind(deadline, |cx| leaf.as_mut().poll(cx))
}
