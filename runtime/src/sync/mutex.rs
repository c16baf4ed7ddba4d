//! A mutex that may be held across a suspension. It is fair, is never poisoned, and serves fibers, threads and
//! futures.
//!
//! It wraps `tokio::sync::Mutex`: a semaphore of one permit with an intrusive queue in order of arrival. A waiter
//! that is dropped between the grant and its next poll hands the lock on.

use super::block_for_lock;
use super::guard::{guard_traits, lock_traits};
use crate::wait::budget::counted;
use crate::wait::holder::{Held, Holder};

/// A mutual exclusion lock. Its guard may be held while the holder waits for something else.
///
/// It works as [`std::sync::Mutex`], with three differences. A fiber that has to wait suspends, and its worker runs
/// others. Waiters get the lock in order of arrival. A holder that unwinds unlocks it and does not poison it; the
/// value stays as it was at that moment.
///
/// ```
/// use osier::sync::Mutex;
/// use std::time::Duration;
///
/// let counter = Mutex::new(0);
/// osier::run(|| {
///     osier::scope(|s| {
///         for _ in 0..10 {
///             s.spawn(|| {
///                 let mut counter = counter.lock();
///                 osier::sleep(Duration::from_millis(1));
///                 *counter += 1;
///             });
///         }
///     });
/// });
/// assert_eq!(counter.into_inner(), 10);
/// ```
///
/// It is not reentrant: a holder that locks it again waits for ever.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    holder: Holder,
    inner: tokio::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Makes an unlocked mutex.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex {
            holder: Holder::new(),
            inner: tokio::sync::Mutex::const_new(value),
        }
    }

    /// Returns the value. It needs no lock, because it owns the mutex.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the lock is free, and takes it.
    ///
    /// # Suspends
    ///
    /// While another holder or an earlier waiter has precedence. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. A lock that was already granted goes to the next in line.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`lock_async`](Mutex::lock_async) there.
    #[doc(alias = "blocking_lock")]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        block_for_lock(&self.holder, self.lock_async())
    }

    /// Waits as [`lock`](Mutex::lock) does, in a future. A future that is dropped leaves the queue and hands on a
    /// granted lock.
    pub async fn lock_async(&self) -> MutexGuard<'_, T> {
        MutexGuard::new(&self.holder, counted(self.inner.lock()).await)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock().ok()?;
        Some(MutexGuard::new(&self.holder, inner))
    }

    /// Borrows the value. It needs no lock, because the borrow is exclusive.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

lock_traits!(Mutex);

/// The guard of a [`Mutex`]. Dropping it unlocks. It may be sent to another thread and dropped there.
#[must_use = "a guard that is not kept unlocks at once"]
#[clippy::has_significant_drop]
pub struct MutexGuard<'a, T: ?Sized> {
    // Dropped before `inner`: the note ends before the lock.
    pub(super) held: Held<'a>,
    pub(super) inner: tokio::sync::MutexGuard<'a, T>,
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    #[inline]
    pub(super) fn new(holder: &'a Holder, inner: tokio::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard {
            held: holder.held(),
            inner,
        }
    }
}

guard_traits!(MutexGuard mut);
