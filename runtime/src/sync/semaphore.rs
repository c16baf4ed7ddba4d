//! Permits that are taken and given back: how many may do something at once.
//!
//! The counter and its queue are `tokio::sync::Semaphore`: intrusive, served in order of arrival. A waiter that is dropped
//! gives back what it had gathered. Nothing here ever closes the semaphore, so waiting for it has no error.

use std::sync::Arc;

use super::block;

/// A number of permits; who wants one waits until one is free.
///
/// Waiters are served in the order in which they came, so a small request behind a large one waits for it.
///
/// ```
/// use osier::sync::Semaphore;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let (two_at_once, inside) = (Semaphore::new(2), AtomicUsize::new(0));
/// osier::run(|| {
///     osier::scope(|s| {
///         for _ in 0..10 {
///             s.spawn(|| {
///                 let _permit = two_at_once.acquire();
///                 assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
///                 osier::yield_now();
///                 inside.fetch_sub(1, Ordering::SeqCst);
///             });
///         }
///     });
/// });
/// assert_eq!(two_at_once.available_permits(), 2);
/// ```
#[derive(Debug)]
pub struct Semaphore(tokio::sync::Semaphore);

impl Semaphore {
    /// The most permits a semaphore can have.
    pub const MAX_PERMITS: usize = tokio::sync::Semaphore::MAX_PERMITS;

    /// A semaphore with this many permits.
    ///
    /// # Panics
    ///
    /// If `permits` is more than [`MAX_PERMITS`](Semaphore::MAX_PERMITS).
    pub const fn new(permits: usize) -> Semaphore {
        Semaphore(tokio::sync::Semaphore::const_new(permits))
    }

    /// How many permits are free at this moment.
    pub fn available_permits(&self) -> usize {
        self.0.available_permits()
    }

    /// Adds permits that nobody has taken: they go to those who wait, in order.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_PERMITS`](Semaphore::MAX_PERMITS) then.
    pub fn add_permits(&self, permits: usize) {
        self.0.add_permits(permits);
    }

    /// Waits for a permit; it is given back when it is dropped.
    ///
    /// # Suspends
    ///
    /// While none is free or somebody has asked earlier. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; permits that were already granted go to the next in the queue.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`acquire_async`](Semaphore::acquire_async) there.
    pub fn acquire(&self) -> SemaphorePermit<'_> {
        self.acquire_many(1)
    }

    /// Waits for `permits` at once; otherwise as [`acquire`](Semaphore::acquire).
    ///
    /// # Suspends
    ///
    /// While there are too few or somebody has asked earlier. Blocks the thread when called on a plain one.
    ///
    /// # Panics
    ///
    /// As [`acquire`](Semaphore::acquire), and if `permits` is more than [`MAX_PERMITS`](Semaphore::MAX_PERMITS).
    pub fn acquire_many(&self, permits: u32) -> SemaphorePermit<'_> {
        block(self.acquire_many_async(permits))
    }

    /// Waits as [`acquire`](Semaphore::acquire) does, in a future. A future that is dropped leaves the queue.
    pub async fn acquire_async(&self) -> SemaphorePermit<'_> {
        self.acquire_many_async(1).await
    }

    /// Waits as [`acquire_many`](Semaphore::acquire_many) does, in a future. A future that is dropped leaves the queue and gives back what
    /// it had gathered.
    pub async fn acquire_many_async(&self, permits: u32) -> SemaphorePermit<'_> {
        SemaphorePermit(self.0.acquire_many(permits).await.expect("never closed"))
    }

    /// A permit, if one is free and nobody waits.
    pub fn try_acquire(&self) -> Option<SemaphorePermit<'_>> {
        self.try_acquire_many(1)
    }

    /// `permits` at once, if they are free and nobody waits.
    pub fn try_acquire_many(&self, permits: u32) -> Option<SemaphorePermit<'_>> {
        self.0.try_acquire_many(permits).ok().map(SemaphorePermit)
    }

    /// As [`acquire`](Semaphore::acquire), with a permit that borrows nothing: it can move into a fiber that is spawned.
    ///
    /// ```
    /// use osier::sync::Semaphore;
    /// use std::sync::Arc;
    ///
    /// osier::run(|| {
    ///     let limit = Arc::new(Semaphore::new(8));
    ///     for _ in 0..100 {
    ///         let permit = Arc::clone(&limit).acquire_owned();
    ///         osier::spawn(move || {
    ///             // At most eight are here at once.
    ///             drop(permit);
    ///         });
    ///     }
    /// });
    /// ```
    ///
    /// # Suspends
    ///
    /// As [`acquire`](Semaphore::acquire). Blocks the thread when called on a plain one.
    ///
    /// # Panics
    ///
    /// The panics of [`acquire`](Semaphore::acquire).
    pub fn acquire_owned(self: Arc<Self>) -> OwnedSemaphorePermit {
        block(self.acquire_owned_async())
    }

    /// Waits as [`acquire_owned`](Semaphore::acquire_owned) does, in a future. A future that is dropped leaves the queue.
    pub async fn acquire_owned_async(self: Arc<Self>) -> OwnedSemaphorePermit {
        self.acquire_async().await.forget();
        OwnedSemaphorePermit { semaphore: self }
    }

    /// As [`try_acquire`](Semaphore::try_acquire), with a permit that borrows nothing.
    pub fn try_acquire_owned(self: Arc<Self>) -> Option<OwnedSemaphorePermit> {
        self.try_acquire()?.forget();
        Some(OwnedSemaphorePermit { semaphore: self })
    }
}

/// One or more permits of a [`Semaphore`], given back when dropped.
#[must_use = "a permit that is not kept is given back at once"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct SemaphorePermit<'a>(tokio::sync::SemaphorePermit<'a>);

impl SemaphorePermit<'_> {
    /// Drops the permit without giving it back: there is one fewer.
    pub fn forget(self) {
        self.0.forget();
    }

    /// How many permits this is.
    pub fn permits(&self) -> usize {
        self.0.num_permits()
    }
}

/// One permit of a shared [`Semaphore`], given back when dropped.
#[must_use = "a permit that is not kept is given back at once"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct OwnedSemaphorePermit {
    semaphore: Arc<Semaphore>,
}

impl Drop for OwnedSemaphorePermit {
    fn drop(&mut self) {
        self.semaphore.add_permits(1);
    }
}
