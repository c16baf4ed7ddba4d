//! A lock for many readers or one writer that may be held across a suspension. It is fair and never poisoned.
//!
//! It wraps `tokio::sync::RwLock`: readers and writers share one queue in order of arrival, so a stream of readers
//! does not starve a writer. A waiter that is dropped between the grant and its next poll hands the grant on.

use super::block_for_lock;
use super::guard::{guard_traits, lock_traits};
use crate::wait::budget::counted;
use crate::wait::holder::{Held, Holder, Shared};

/// A lock for many readers or one writer. Its guards may be held while their holders wait for something else.
///
/// It works as [`std::sync::RwLock`], with three differences. A fiber that has to wait suspends, and its worker runs
/// others. All waiters are in one queue, so a reader that comes after a waiting writer waits for that writer too. A
/// writer that unwinds unlocks it and does not poison it; the value stays as it was at that moment.
///
/// ```
/// use osier::sync::RwLock;
///
/// let names = RwLock::new(vec!["willow"]);
/// osier::run(|| {
///     let (first, second) = (names.read(), names.read());
///     assert_eq!(first.len() + second.len(), 2);
///     assert!(names.try_write().is_none());
///     drop((first, second));
///     names.write().push("osier");
/// });
/// assert_eq!(names.into_inner(), ["willow", "osier"]);
/// ```
///
/// A holder of a read guard that asks for a second one waits for ever if a writer came in between.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    holder: Holder,
    inner: tokio::sync::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Makes an unlocked lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock {
            holder: Holder::new(),
            inner: tokio::sync::RwLock::const_new(value),
        }
    }

    /// Returns the value. It needs no lock, because it owns the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the lock or is ahead in line, and takes the lock for reading.
    ///
    /// # Suspends
    ///
    /// While a writer has precedence. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. A lock that was already granted goes to the next in line.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`read_async`](RwLock::read_async) there.
    #[doc(alias = "blocking_read")]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        block_for_lock(&self.holder, self.read_async())
    }

    /// Waits until nobody holds the lock or is ahead in line, and takes the lock for writing.
    ///
    /// # Suspends
    ///
    /// While another has precedence. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. A lock that was already granted goes to the next in line.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`write_async`](RwLock::write_async) there.
    #[doc(alias = "blocking_write")]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        block_for_lock(&self.holder, self.write_async())
    }

    /// Waits as [`read`](RwLock::read) does, in a future. A future that is dropped leaves the queue.
    pub async fn read_async(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard::new(&self.holder, counted(self.inner.read()).await)
    }

    /// Waits as [`write`](RwLock::write) does, in a future. A future that is dropped leaves the queue.
    pub async fn write_async(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard::new(&self.holder, counted(self.inner.write()).await)
    }

    /// Takes the lock for reading if it is free for that.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read().ok()?;
        Some(RwLockReadGuard::new(&self.holder, inner))
    }

    /// Takes the lock for writing if it is free for that.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write().ok()?;
        Some(RwLockWriteGuard::new(&self.holder, inner))
    }

    /// Borrows the value. It needs no lock, because the borrow is exclusive.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

lock_traits!(RwLock);

/// The read guard of a [`RwLock`]. Dropping it unlocks. It may be sent to another thread and dropped there.
#[must_use = "a guard that is not kept unlocks at once"]
#[clippy::has_significant_drop]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    // Dropped before `inner`: the note ends before the lock.
    _shared: Shared<'a>,
    inner: tokio::sync::RwLockReadGuard<'a, T>,
}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    #[inline]
    fn new(holder: &'a Holder, inner: tokio::sync::RwLockReadGuard<'a, T>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard {
            _shared: holder.shared(),
            inner,
        }
    }
}

guard_traits!(RwLockReadGuard);

/// The write guard of a [`RwLock`]. Dropping it unlocks. It may be sent to another thread and dropped there.
#[must_use = "a guard that is not kept unlocks at once"]
#[clippy::has_significant_drop]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    // Dropped before `inner`: the note ends before the lock.
    held: Held<'a>,
    inner: tokio::sync::RwLockWriteGuard<'a, T>,
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Becomes a read guard. No other writer can get in between. Never waits.
    pub fn downgrade(guard: RwLockWriteGuard<'a, T>) -> RwLockReadGuard<'a, T> {
        let RwLockWriteGuard { held, inner } = guard;
        let holder = held.holder();
        drop(held);
        RwLockReadGuard::new(holder, inner.downgrade())
    }

    #[inline]
    fn new(holder: &'a Holder, inner: tokio::sync::RwLockWriteGuard<'a, T>) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard {
            held: holder.held(),
            inner,
        }
    }
}

guard_traits!(RwLockWriteGuard mut);
