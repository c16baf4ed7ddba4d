//! Synchronisation between fibers, threads, futures and callbacks: locks, channels, events.
//!
//! | type | holds | who continues |
//! |---|---|---|
//! | [`Event`] | one signal, or none | one waiter per signal; with [`Event::manual`] all, until it is reset |
//! | [`EventFd`] | the same, in a descriptor that any event loop can poll | one waiter per signal |
//! | [`Interrupt`] | one signal, for ever | nobody waits: the code that runs under it is cancelled |
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
#[cfg(feature = "sync")]
use crate::wait::holder::Holder;
use crate::worker::context::now;

#[cfg(feature = "sync")]
mod barrier;
#[cfg(feature = "sync")]
pub mod broadcast;
#[cfg(feature = "sync")]
mod condvar;
mod event;
#[cfg(feature = "descriptors")]
mod event_fd;
#[cfg(feature = "sync")]
mod guard;
mod interrupt;
mod mailbox;
#[cfg(feature = "sync")]
pub mod mpmc;
#[cfg(feature = "sync")]
pub mod mpsc;
#[cfg(feature = "sync")]
mod mutex;
#[cfg(feature = "sync")]
mod notify;
#[cfg(feature = "sync")]
mod once;
#[cfg(feature = "sync")]
pub mod oneshot;
#[cfg(feature = "sync")]
mod receiver;
#[cfg(feature = "sync")]
mod rwlock;
#[cfg(feature = "sync")]
mod semaphore;
#[cfg(feature = "sync")]
pub mod watch;

#[cfg(feature = "sync")]
pub use barrier::{Barrier, BarrierWaitResult};
#[cfg(feature = "sync")]
pub use condvar::{Condvar, WaitTimeoutResult};
pub use event::{Event, EventWait};
#[cfg(feature = "descriptors")]
pub use event_fd::{EventFd, EventFdWait, SignalSetter};
pub use interrupt::Interrupt;
pub use mailbox::{Mailbox, MailboxWait};
#[cfg(feature = "sync")]
pub use mutex::{Mutex, MutexGuard};
#[cfg(feature = "sync")]
pub use notify::{Notified, Notify};
#[cfg(feature = "sync")]
pub use once::{Lazy, OnceCell};
#[cfg(feature = "sync")]
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(feature = "sync")]
pub use semaphore::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Waits for a leaf whose call has no error. Suspends a fiber, or blocks a plain thread.
///
/// It is inlined, as everything that leads to a suspension: [`Core::suspend`](crate::worker::core::Core::suspend) says what a frame costs.
#[inline(always)]
pub(crate) fn block<T>(leaf: impl Future<Output = T>) -> T {
    block_until(None, leaf).expect("no deadline was set")
}

/// Waits for a lock as [`block`] does. Dumps show its holder meanwhile.
#[cfg(feature = "sync")]
#[inline(always)]
pub(crate) fn block_for_lock<T>(holder: &Holder, leaf: impl Future<Output = T>) -> T {
    let mut leaf = pin!(leaf);
    wait::wait_for_lock(holder, |cx| leaf.as_mut().poll(cx))
}

/// Waits for a permit as [`block`] does.
#[cfg(feature = "sync")]
pub(crate) fn block_for_permit<T>(leaf: impl Future<Output = T>) -> T {
    let mut leaf = pin!(leaf);
    wait::wait_for_permit(|cx| leaf.as_mut().poll(cx))
}

/// Waits as [`block`] does, for at most `timeout`.
pub(crate) fn block_for<T>(timeout: Duration, leaf: impl Future<Output = T>) -> Option<T> {
    // A deadline that the clock cannot represent means no deadline.
    block_until(now().checked_add(timeout), leaf)
}

#[inline(always)]
fn block_until<T>(deadline: Option<Instant>, leaf: impl Future<Output = T>) -> Option<T> {
    let mut leaf = pin!(leaf);
    wait::wait_or_unwind(deadline, |cx| leaf.as_mut().poll(cx))
}
