//! A lock for many readers or one writer, which may be held across a suspension: fair, never poisoned.
//!
//! The lock itself is `tokio::sync::RwLock`: one queue for both sides, served in order of arrival, so a stream of readers
//! does not starve a writer. A waiter that is dropped between the grant and its next poll hands on what it was granted.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::block;

/// Many readers or one writer, whose guards may be held while their holders wait for something else.
///
/// As [`std::sync::RwLock`], with three differences. A fiber that has to wait suspends, its worker runs others. All wait in
/// one queue, so a reader that comes after a waiting writer waits for it too. And nothing poisons it: a writer that unwinds
/// unlocks it, and leaves the value as it was at that moment.
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
/// A holder of a read guard that asks for a second one waits for ever if a writer came between.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(tokio::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(tokio::sync::RwLock::const_new(value))
    }

    /// The value, without locking: nobody else is left.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the lock, or has asked for it earlier, and takes it for reading.
    ///
    /// # Suspends
    ///
    /// While it has to wait. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; what was already granted goes to the next in the queue.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`read_async`](RwLock::read_async) there.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        block(self.read_async())
    }

    /// Waits until nobody holds the lock, or has asked for it earlier, and takes it for writing.
    ///
    /// # Suspends
    ///
    /// While it has to wait. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; what was already granted goes to the next in the queue.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`write_async`](RwLock::write_async) there.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        block(self.write_async())
    }

    /// Waits as [`read`](RwLock::read) does, in a future. A future that is dropped leaves the queue.
    pub async fn read_async(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard(self.0.read().await)
    }

    /// Waits as [`write`](RwLock::write) does, in a future. A future that is dropped leaves the queue.
    pub async fn write_async(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard(self.0.write().await)
    }

    /// Takes the lock for reading if that needs no waiting.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok().map(RwLockReadGuard)
    }

    /// Takes the lock for writing if that needs no waiting.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok().map(RwLockWriteGuard)
    }

    /// The value, without locking: the borrow is exclusive.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> RwLock<T> {
        RwLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The right to read a [`RwLock`]'s value, given up when dropped. It may be sent to another thread, and dropped there.
#[must_use = "a guard that is not kept unlocks at once"]
#[clippy::has_significant_drop]
pub struct RwLockReadGuard<'a, T: ?Sized>(tokio::sync::RwLockReadGuard<'a, T>);

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The right to a [`RwLock`]'s value, given up when dropped. It may be sent to another thread, and dropped there.
#[must_use = "a guard that is not kept unlocks at once"]
#[clippy::has_significant_drop]
pub struct RwLockWriteGuard<'a, T: ?Sized>(tokio::sync::RwLockWriteGuard<'a, T>);

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Lets readers in, without a moment in which another writer could come. Never waits.
    pub fn downgrade(guard: RwLockWriteGuard<'a, T>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard(guard.0.downgrade())
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
