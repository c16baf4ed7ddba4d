//! A semaphore: a number of permits that limits how many may do something at once.
//!
//! It wraps `tokio::sync::Semaphore`: a counter and an intrusive queue in order of arrival. A waiter that is dropped
//! returns the permits that it had gathered. Nothing here closes the inner semaphore, so waiting has no error.

use std::sync::Arc;

use super::block_for_permit;
use crate::wait::budget::counted;

/// A number of permits. A caller that wants one waits until one is free.
///
/// Waiters are served in order of arrival, so a small request behind a large one waits for it.
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

const _: () = assert!(
    Semaphore::MAX_PERMITS == 2305843009213693951,
    "the message of Semaphore::new names it"
);

impl Semaphore {
    /// The most permits that a semaphore can have.
    pub const MAX_PERMITS: usize = tokio::sync::Semaphore::MAX_PERMITS;

    /// Makes a semaphore with this many permits.
    ///
    /// # Panics
    ///
    /// If `permits` is more than [`MAX_PERMITS`](Semaphore::MAX_PERMITS).
    #[track_caller]
    pub const fn new(permits: usize) -> Semaphore {
        // A `const fn` cannot put `permits` into the message.
        assert!(
            permits <= Semaphore::MAX_PERMITS,
            "a semaphore has at most Semaphore::MAX_PERMITS permits, which is 2305843009213693951"
        );
        Semaphore(tokio::sync::Semaphore::const_new(permits))
    }

    /// The number of permits that are free at this moment.
    pub fn available_permits(&self) -> usize {
        self.0.available_permits()
    }

    /// Adds new permits. They go to the waiters, in order.
    ///
    /// # Panics
    ///
    /// If there would be more than [`MAX_PERMITS`](Semaphore::MAX_PERMITS).
    pub fn add_permits(&self, permits: usize) {
        self.0.add_permits(permits);
    }

    /// Waits for a permit. Dropping the permit returns it.
    ///
    /// # Suspends
    ///
    /// While none is free or others are ahead in line. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. Permits that were already granted go to the next in line.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`acquire_async`](Semaphore::acquire_async) there.
    pub fn acquire(&self) -> SemaphorePermit<'_> {
        self.acquire_many(1)
    }

    /// Waits for several permits together, as [`acquire`](Semaphore::acquire) does for one.
    ///
    /// # Suspends
    ///
    /// While too few are free or others are ahead in line. Blocks the thread when called on a plain one.
    ///
    /// # Panics
    ///
    /// Same as [`acquire`](Semaphore::acquire).
    pub fn acquire_many(&self, permits: u32) -> SemaphorePermit<'_> {
        block_for_permit(self.acquire_many_async(permits))
    }

    /// Waits as [`acquire`](Semaphore::acquire) does, in a future. A future that is dropped leaves the queue.
    pub async fn acquire_async(&self) -> SemaphorePermit<'_> {
        self.acquire_many_async(1).await
    }

    /// Waits as [`acquire_many`](Semaphore::acquire_many) does, in a future. A future that is dropped leaves the
    /// queue and returns the permits that it had gathered.
    pub async fn acquire_many_async(&self, permits: u32) -> SemaphorePermit<'_> {
        SemaphorePermit(counted(self.0.acquire_many(permits)).await.expect("never closed"))
    }

    /// Takes a permit, if one is free and nobody waits.
    pub fn try_acquire(&self) -> Option<SemaphorePermit<'_>> {
        self.try_acquire_many(1)
    }

    /// Takes several permits together, if they are free and nobody waits.
    pub fn try_acquire_many(&self, permits: u32) -> Option<SemaphorePermit<'_>> {
        self.0.try_acquire_many(permits).ok().map(SemaphorePermit)
    }

    /// Waits as [`acquire`](Semaphore::acquire) does, for a permit that borrows nothing and can move into a spawned
    /// fiber.
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
    /// The same as for [`acquire`](Semaphore::acquire).
    ///
    /// # Panics
    ///
    /// The panics of [`acquire`](Semaphore::acquire).
    pub fn acquire_owned(self: Arc<Self>) -> OwnedSemaphorePermit {
        self.acquire_many_owned(1)
    }

    /// Waits as [`acquire_many`](Semaphore::acquire_many) does, for permits that borrow nothing.
    ///
    /// ```
    /// use osier::sync::Semaphore;
    /// use std::sync::Arc;
    ///
    /// osier::run(|| {
    ///     let megabytes = Arc::new(Semaphore::new(64));
    ///     let permit = Arc::clone(&megabytes).acquire_many_owned(48);
    ///     assert_eq!((permit.permits(), megabytes.available_permits()), (48, 16));
    ///     osier::spawn(move || drop(permit)).join().unwrap();
    ///     assert_eq!(megabytes.available_permits(), 64);
    /// });
    /// ```
    ///
    /// # Suspends
    ///
    /// The same as for [`acquire_many`](Semaphore::acquire_many).
    ///
    /// # Panics
    ///
    /// The panics of [`acquire`](Semaphore::acquire).
    pub fn acquire_many_owned(self: Arc<Self>, permits: u32) -> OwnedSemaphorePermit {
        block_for_permit(self.acquire_many_owned_async(permits))
    }

    /// Waits as [`acquire_owned`](Semaphore::acquire_owned) does, in a future. A future that is dropped leaves the queue.
    pub async fn acquire_owned_async(self: Arc<Self>) -> OwnedSemaphorePermit {
        self.acquire_many_owned_async(1).await
    }

    /// Waits as [`acquire_many_owned`](Semaphore::acquire_many_owned) does, in a future. A future that is dropped leaves the
    /// queue and returns the permits that it had gathered.
    pub async fn acquire_many_owned_async(self: Arc<Self>, permits: u32) -> OwnedSemaphorePermit {
        self.acquire_many_async(permits).await.forget();
        OwnedSemaphorePermit {
            semaphore: self,
            permits,
        }
    }

    /// Takes a permit as [`try_acquire`](Semaphore::try_acquire) does, one that borrows nothing.
    pub fn try_acquire_owned(self: Arc<Self>) -> Option<OwnedSemaphorePermit> {
        self.try_acquire_many_owned(1)
    }

    /// Takes several permits as [`try_acquire_many`](Semaphore::try_acquire_many) does, which borrow nothing.
    pub fn try_acquire_many_owned(self: Arc<Self>, permits: u32) -> Option<OwnedSemaphorePermit> {
        self.try_acquire_many(permits)?.forget();
        Some(OwnedSemaphorePermit {
            semaphore: self,
            permits,
        })
    }
}

/// One or more permits of a [`Semaphore`]. Dropping it returns them.
#[must_use = "a permit that is not kept is given back at once"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct SemaphorePermit<'a>(tokio::sync::SemaphorePermit<'a>);

impl SemaphorePermit<'_> {
    /// Destroys the permit without returning it: the semaphore has fewer permits from then on.
    pub fn forget(self) {
        self.0.forget();
    }

    /// The number of permits that this holds.
    pub fn permits(&self) -> usize {
        self.0.num_permits()
    }
}

/// One or more permits of a shared [`Semaphore`]. Dropping it returns them.
#[must_use = "a permit that is not kept is given back at once"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct OwnedSemaphorePermit {
    semaphore: Arc<Semaphore>,
    permits: u32,
}

impl OwnedSemaphorePermit {
    /// Destroys the permit without returning it: the semaphore has fewer permits from then on.
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// The number of permits that this holds.
    pub fn permits(&self) -> usize {
        self.permits as usize
    }

    /// The semaphore that it is a permit of.
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        &self.semaphore
    }
}

impl Drop for OwnedSemaphorePermit {
    fn drop(&mut self) {
        self.semaphore.add_permits(self.permits());
    }
}
