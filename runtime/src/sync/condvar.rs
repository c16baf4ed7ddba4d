//! A condition variable over this module's [`Mutex`](super::Mutex): waits until somebody changes what the lock guards.
//!
//! It is a wait list. A waiter enters it before it unlocks, so it misses nobody who locks after it. It keeps what it was notified
//! of until it has the lock again: dropped before that, it passes a `notify_one` on.

use std::future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use osier_queue as queue;
use queue::{WaitList, Waiter};

use super::{MutexGuard, block};
use crate::wait::sleep::Sleep;

/// A condition variable: a fiber, thread or future that holds a lock waits here until the guarded value has changed.
///
/// It works as [`std::sync::Condvar`] does, over [`Mutex`](super::Mutex), which nothing poisons. Nobody wakes without a
/// notification. But the condition may be gone again before the waiter has the lock, so look at it again, best with
/// [`wait_while`](Condvar::wait_while). The longest waiter is notified first.
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

    /// Wakes the waiter that came first. Without waiters nothing happens.
    pub fn notify_one(&self) {
        self.0.wake_one();
    }

    /// Wakes all present waiters. They go on one after the other, as they get the lock.
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
    /// Unwinds, without the lock; a notification meant for this waiter alone goes to the next.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker: use [`wait_async`](Condvar::wait_async) there.
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        block(self.wait_async(guard))
    }

    /// Waits as [`wait`](Condvar::wait) does, in a future. It unlocks when it is first polled. Dropped before it is ready, it passes a
    /// notification meant for it alone on.
    pub async fn wait_async<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let mutex = tokio::sync::MutexGuard::mutex(&guard.0);
        let mut waiter = pin!(self.0.waiter());
        notified(waiter.as_mut(), guard).await;
        let guard = MutexGuard(mutex.lock().await);
        waiter.remove();
        guard
    }

    /// Waits while `condition` holds, which it asks with the lock held: first at once, then after each notification.
    ///
    /// # Suspends
    ///
    /// Unless the condition does not hold. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// As [`wait`](Condvar::wait).
    ///
    /// # Panics
    ///
    /// If `condition` does; and in a future or callback on a worker, if it would have to wait: use
    /// [`wait_while_async`](Condvar::wait_while_async) there.
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        block(self.wait_while_async(guard, condition))
    }

    /// Waits as [`wait_while`](Condvar::wait_while) does, in a future. Dropped before it is ready, it has unlocked.
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

    /// As [`wait`](Condvar::wait), but for a notification that comes within `timeout`. It always returns with the lock, for which
    /// it waits as long as it takes.
    ///
    /// # Suspends
    ///
    /// Always. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// As [`wait`](Condvar::wait).
    ///
    /// # Precision
    ///
    /// That of [`sleep`](crate::sleep). A notification that comes before the lock is there again counts as in time.
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

    /// As [`wait_while`](Condvar::wait_while), for `timeout` in all; then the condition may still hold.
    ///
    /// # Suspends
    ///
    /// Unless the condition does not hold. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// As [`wait`](Condvar::wait).
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
        let mutex = tokio::sync::MutexGuard::mutex(&guard.0);
        let mut waiter = pin!(self.0.waiter());
        {
            let mut notified = pin!(notified(waiter.as_mut(), guard));
            future::poll_fn(|cx| match notified.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => sleep.as_mut().poll(cx),
            })
            .await;
        }
        let guard = MutexGuard(mutex.lock().await);
        let notified = waiter.remove();
        (guard, WaitTimeoutResult(!notified))
    }
}

/// Enters the list, unlocks, and waits until notified; the notification stays with the waiter.
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

impl std::fmt::Debug for Condvar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Condvar")
    }
}

/// Whether a wait ended because its time was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was up before a notification came; for `wait_timeout_while`, and its condition still held.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}
