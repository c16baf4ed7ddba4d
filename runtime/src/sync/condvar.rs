//! A condition variable for this module's [`Mutex`](super::Mutex): a wait for a change of the value that the lock
//! guards.
//!
//! It is a wait list. A waiter enters the list before it unlocks, so it misses no notifier that locks afterwards. A
//! waiter keeps its notification until it has the lock again. Dropped before that, it passes a `notify_one` on.

use std::future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use osier_queue as queue;
use queue::{WaitList, Waiter};

use super::{MutexGuard, block};
use crate::wait::sleep::Sleep;

/// A condition variable. A fiber, thread or future that holds a lock waits here until the guarded value has changed.
///
/// It works as [`std::sync::Condvar`] does, with a [`Mutex`](super::Mutex) that cannot be poisoned. There are no
/// spurious wake-ups. But the condition may have changed again before the waiter has the lock, so the waiter must
/// check it, best with [`wait_while`](Condvar::wait_while). The longest waiter is notified first.
///
/// ```
/// use osier::sync::{Condvar, Mutex};
///
/// let (ready, changed) = (Mutex::new(false), Condvar::new());
/// osier::run(|| {
///     osier::scope(|s| {
///         s.spawn(|| {
///             let ready = changed.wait_while(ready.lock(), |ready| !*ready);
///             assert!(*ready);
///         });
///         s.spawn(|| {
///             *ready.lock() = true;
///             changed.notify_one();
///         });
///     });
/// });
/// ```
#[derive(Default)]
pub struct Condvar(WaitList);

impl Condvar {
    /// Makes a condition variable without waiters.
    pub const fn new() -> Condvar {
        Condvar(WaitList::new())
    }

    /// Wakes the waiter that came first. Has no effect without waiters.
    pub fn notify_one(&self) {
        self.0.wake_one();
    }

    /// Wakes all present waiters. They continue one after the other, each when it gets the lock.
    pub fn notify_all(&self) {
        self.0.wake_all();
    }

    /// Unlocks, waits until notified, and locks again.
    ///
    /// # Suspends
    ///
    /// Always. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds, without the lock. A `notify_one` that this waiter got goes to the next.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker: use [`wait_async`](Condvar::wait_async) there.
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        block(self.wait_async(guard))
    }

    /// Waits as [`wait`](Condvar::wait) does, in a future. The first poll unlocks. Dropped before it is ready, the
    /// future passes a `notify_one` on.
    pub async fn wait_async<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let (holder, mutex) = (guard.held.holder(), tokio::sync::MutexGuard::mutex(&guard.inner));
        let mut waiter = pin!(self.0.waiter());
        notified(waiter.as_mut(), guard).await;
        let guard = MutexGuard::new(holder, mutex.lock().await);
        waiter.remove();
        guard
    }

    /// Waits while `condition` holds. The condition is checked with the lock held: at once, and after each
    /// notification.
    ///
    /// # Suspends
    ///
    /// Unless the condition is false at once. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The same as for [`wait`](Condvar::wait).
    ///
    /// # Panics
    ///
    /// If `condition` does. Also in a future or callback on a worker, if it would have to wait: use
    /// [`wait_while_async`](Condvar::wait_while_async) there.
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        block(self.wait_while_async(guard, condition))
    }

    /// Waits as [`wait_while`](Condvar::wait_while) does, in a future. Dropped before it is ready, it leaves the lock
    /// unlocked.
    pub async fn wait_while_async<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut *guard) {
            guard = self.wait_async(guard).await;
        }
        guard
    }

    /// Waits as [`wait`](Condvar::wait) does, but only for a notification within `timeout`. It always returns with
    /// the lock, and waits for the lock as long as necessary.
    ///
    /// # Suspends
    ///
    /// Always. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The same as for [`wait`](Condvar::wait).
    ///
    /// # Precision
    ///
    /// The precision of [`sleep`](crate::sleep). A notification counts as in time if it comes before the lock is held
    /// again.
    ///
    /// # Panics
    ///
    /// The panics of [`wait`](Condvar::wait).
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        block(self.wait_timeout_async(guard, timeout))
    }

    /// Waits as [`wait_timeout`](Condvar::wait_timeout) does, in a future.
    pub async fn wait_timeout_async<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        self.wait_until(guard, pin!(Sleep::new(timeout))).await
    }

    /// Waits as [`wait_while`](Condvar::wait_while) does, for `timeout` in total. The condition may still hold when
    /// it returns.
    ///
    /// # Suspends
    ///
    /// Unless the condition is false at once. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The same as for [`wait`](Condvar::wait).
    ///
    /// # Panics
    ///
    /// The panics of [`wait_while`](Condvar::wait_while).
    pub fn wait_timeout_while<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        block(self.wait_timeout_while_async(guard, timeout, condition))
    }

    /// Waits as [`wait_timeout_while`](Condvar::wait_timeout_while) does, in a future.
    pub async fn wait_timeout_while_async<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let mut sleep = pin!(Sleep::new(timeout));
        let mut result = WaitTimeoutResult(false);
        while condition(&mut *guard) {
            if result.timed_out() {
                return (guard, result);
            }
            (guard, result) = self.wait_until(guard, sleep.as_mut()).await;
        }
        (guard, WaitTimeoutResult(false))
    }

    async fn wait_until<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        mut sleep: Pin<&mut Sleep>,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let (holder, mutex) = (guard.held.holder(), tokio::sync::MutexGuard::mutex(&guard.inner));
        let mut waiter = pin!(self.0.waiter());
        {
            let mut notified = pin!(notified(waiter.as_mut(), guard));
            future::poll_fn(|cx| match notified.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => sleep.as_mut().poll(cx),
            })
            .await;
        }
        let guard = MutexGuard::new(holder, mutex.lock().await);
        let notified = waiter.remove();
        (guard, WaitTimeoutResult(!notified))
    }
}

/// Enters the list, unlocks, and waits until notified. The waiter keeps the notification.
async fn notified<T: ?Sized>(mut waiter: Pin<&mut Waiter<'_>>, guard: MutexGuard<'_, T>) {
    let mut guard = Some(guard);
    future::poll_fn(|cx| {
        let waits = waiter.as_mut().register(cx.waker());
        drop(guard.take());
        match waits {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
}

osier_queue::impl_debug!(Condvar, self => { .. });

/// The reason why a wait with a timeout ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was up before a notification came. For `wait_timeout_while`: whether the condition still held
    /// as well.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}
