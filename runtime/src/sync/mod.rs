//! Synchronisation between fibers, threads, futures and callbacks: locks, channels, events.
//!
//! | type | holds | who continues |
//! |---|---|---|
//! | [`Event`] | one signal, or none | one waiter per signal; with [`Event::manual`] all, until it is reset |
//! | [`EventFd`] | the same, in a descriptor that any event loop can poll | one waiter per signal |
//! | [`Mailbox`] | 32 flags | every waiter whose flags are raised |
//! | [`Notify`] | at most one notification | the first waiter, or all |
//! | [`Mutex`], [`RwLock`] | a value | one at a time, or many readers, in order of arrival |
//! | [`OnceCell`], [`Lazy`] | a value that is made once | all, when it is made |
//! | [`Condvar`] | nothing; it goes with a `Mutex` | the first waiter, or all, each when it gets the lock |
//! | [`Semaphore`] | a number of permits | each waiter that gets a permit, in order of arrival |
//! | [`Barrier`] | the number of arrivals | all, when the last has arrived |
//! | [`mpsc`] | a queue of values, bounded or not | the one receiver |
//! | [`mpmc`] | a queue of values, bounded or not | one of several receivers, in order of arrival |
//! | [`oneshot`] | one value | the one receiver |
//! | [`watch`] | the latest value | every receiver, at each change |
//! | [`broadcast`] | the latest values | every receiver |
//!
//! Any thread may use all of them, with or without a runtime. Each call that waits comes in two forms: `wait`
//! suspends a fiber or blocks a plain thread, and `wait_async` is the same wait as a future.

use std::pin::pin;
use std::time::{Duration, Instant};

use crate::wait;
use crate::worker::context::now;

mod barrier;
pub mod broadcast;
mod condvar;
mod event;
mod event_fd;
mod guard;
mod mailbox;
pub mod mpmc;
pub mod mpsc;
mod mutex;
mod notify;
mod once;
pub mod oneshot;
mod receiver;
mod rwlock;
mod semaphore;
pub mod watch;

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use event::{Event, EventWait};
pub use event_fd::{EventFd, EventFdWait, SignalSetter};
pub use mailbox::{Mailbox, MailboxWait};
pub use mutex::{Mutex, MutexGuard};
pub use notify::{Notified, Notify};
pub use once::{Lazy, OnceCell};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Waits for a leaf whose call has no error. Suspends a fiber, or blocks a plain thread.
pub(crate) fn block<T>(leaf: impl Future<Output = T>) -> T {
    block_until(None, leaf).expect("no deadline was set")
}

/// Waits as [`block`] does, for at most `timeout`.
pub(crate) fn block_for<T>(timeout: Duration, leaf: impl Future<Output = T>) -> Option<T> {
    // A deadline that the clock cannot represent means no deadline.
    block_until(now().checked_add(timeout), leaf)
}

fn block_until<T>(deadline: Option<Instant>, leaf: impl Future<Output = T>) -> Option<T> {
    let mut leaf = pin!(leaf);
    wait::wait_or_unwind(deadline, |cx| leaf.as_mut().poll(cx))
}
