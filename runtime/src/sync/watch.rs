//! A value that many may watch: receivers see its latest state, and wait for the next change.
//!
//! It is one value behind a lock, and a version that each receiver compares with the one that it has seen. A receiver that is slow misses
//! states, never the latest one. Receivers that wait are woken in the order in which they began: tokio's watch draws lots, and a simulation
//! would not repeat.
//!
//! # Protocol
//! - The version changes under the lock of the value, with the value. So a borrow, which holds that lock, has one state and its version.
//! - The lowest bit of the version says that no sender is left. It is in one word with the version: who sees it has seen the last state.
//! - Lost wake-ups: a receiver enters the wait list and then looks at the version, a sender changes the version and then wakes
//!   ([`WaitList`]). Senders that wait for the last receiver to leave do the same with the number of receivers.
//! - Nobody is woken under the lock.

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll};

use osier_queue::{WaitList, Waiter};

use super::block;
use crate::block_on;
use crate::wait::budget;

/// The bit of a version that says that every sender is gone.
const CLOSED: u64 = 1;
/// The difference between two versions.
const STEP: u64 = 2;

/// Makes a value to watch. The receiver has seen `value`.
///
/// ```
/// use osier::sync::watch;
///
/// osier::run(|| {
///     let (sender, mut receiver) = watch::channel("starting");
///     let watches = osier::spawn(move || receiver.wait_for(|state| *state == "ready").is_ok());
///     sender.send("loading");
///     sender.send("ready");
///     assert!(watches.join().unwrap());
/// });
/// ```
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        value: RwLock::new(value),
        version: AtomicU64::new(0),
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
        changes: WaitList::new(),
        leaving: WaitList::new(),
    });
    let receiver = Receiver {
        shared: Arc::clone(&shared),
        seen: 0,
    };
    (Sender(shared), receiver)
}

struct Shared<T> {
    value: RwLock<T>,
    /// A multiple of [`STEP`], and [`CLOSED`].
    version: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    /// Receivers that wait for a change.
    changes: WaitList,
    /// Senders that wait until there is no receiver.
    leaving: WaitList,
}

impl<T> Shared<T> {
    fn read(&self) -> RwLockReadGuard<'_, T> {
        // A change that panics leaves what it has made of the value.
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version, and whether every sender is gone.
    fn state(&self) -> (u64, bool) {
        let word = self.version.load(Ordering::Acquire);
        (word & !CLOSED, word & CLOSED != 0)
    }

    fn receiver_count(&self) -> usize {
        self.receivers.load(Ordering::Acquire)
    }

    /// Another receiver that has seen `seen`.
    fn receiver(shared: &Arc<Shared<T>>, seen: u64) -> Receiver<T> {
        shared.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver {
            shared: Arc::clone(shared),
            seen,
        }
    }

    /// One poll of a wait for a state after `seen`, which is then seen, or for the end.
    fn poll_changed(
        &self,
        seen: &mut u64,
        waiter: Pin<&mut Waiter<'_>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Closed>> {
        poll_until(waiter, cx, || {
            let (version, is_closed) = self.state();
            if version != *seen {
                *seen = version;
                return Some(Ok(()));
            }
            is_closed.then_some(Err(Closed(())))
        })
    }
}

/// Polls until `look` finds something. It looks once more after it has entered the list.
fn poll_until<R>(
    mut waiter: Pin<&mut Waiter<'_>>,
    cx: &mut Context<'_>,
    mut look: impl FnMut() -> Option<R>,
) -> Poll<R> {
    if let Some(found) = look() {
        return Poll::Ready(found);
    }
    // A notification says that something has changed, perhaps before this wait.
    while waiter.as_mut().poll_notified(cx).is_ready() {}
    look().map_or(Poll::Pending, Poll::Ready)
}

/// Every sender is gone, so the value changes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed(());

osier_queue::impl_error!(Closed, self => "every sender is gone");

/// The half that changes the value. A clone changes the same value.
pub struct Sender<T>(Arc<Shared<T>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.version.fetch_or(CLOSED, Ordering::Release);
            self.0.changes.wake_all();
        }
    }
}

impl<T> Sender<T> {
    /// Sets the value, and wakes all receivers. Returns the old value. It needs no receiver.
    pub fn send(&self, mut value: T) -> T {
        self.send_modify(|present| mem::swap(present, &mut value));
        value
    }

    /// Changes the value in its place, and wakes all receivers. A panic of `change` wakes nobody.
    ///
    /// Receivers that [borrow](Receiver::borrow) the value wait meanwhile on their threads: `change` must not wait.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Changes the value in its place, and wakes all receivers if `change` returns `true`. Returns the same.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        {
            let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
            if !change(&mut value) {
                return false;
            }
            self.0.version.fetch_add(STEP, Ordering::Release);
        }
        self.0.changes.wake_all();
        true
    }

    /// Borrows the value. See [`Receiver::borrow`].
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.0.read())
    }

    /// Makes a receiver that has seen the present value.
    pub fn subscribe(&self) -> Receiver<T> {
        Shared::receiver(&self.0, self.0.state().0)
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.0.receiver_count()
    }

    /// Whether there is no receiver at this moment. [`subscribe`](Sender::subscribe) makes one.
    pub fn is_closed(&self) -> bool {
        self.receiver_count() == 0
    }

    /// Waits until there is no receiver: nobody wants the value.
    ///
    /// # Suspends
    ///
    /// Until then. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`closed_async`](Sender::closed_async) there.
    pub fn closed(&self) {
        block(self.closed_async());
    }

    /// Waits as [`closed`](Sender::closed) does, in a future.
    pub async fn closed_async(&self) {
        let mut waiter = pin!(self.0.leaving.waiter());
        let is_closed = || self.is_closed().then_some(());
        poll_fn(|cx| budget::poll_if(cx, || self.is_closed(), |cx| poll_until(waiter.as_mut(), cx, is_closed))).await;
    }
}

/// The half that watches the value. A clone has seen the same state.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The version that it has seen.
    seen: u64,
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        Shared::receiver(&self.shared, self.seen)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.shared.receivers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.leaving.wake_all();
        }
    }
}

impl<T> Receiver<T> {
    /// Borrows the value. The present state still counts as unseen.
    ///
    /// The borrow is a lock of the thread: drop it before anything that waits, and before the next borrow. A sender that waits for the first
    /// makes a second one on that thread wait for ever.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.shared.read())
    }

    /// Borrows the value, and has then seen its present state.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.shared.read();
        self.seen = self.shared.state().0;
        Ref(value)
    }

    /// Whether there is a state that this receiver has not seen.
    ///
    /// # Errors
    ///
    /// If every sender is gone.
    pub fn has_changed(&self) -> Result<bool, Closed> {
        match self.shared.state() {
            (version, false) => Ok(version != self.seen),
            (_, true) => Err(Closed(())),
        }
    }

    /// Waits for a state that this receiver has not seen, and has then seen it.
    ///
    /// # Suspends
    ///
    /// Until there is one. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. The state then still counts as unseen.
    ///
    /// # Errors
    ///
    /// If every sender is gone, and this receiver has seen the last state.
    pub fn changed(&mut self) -> Result<(), Closed> {
        block(self.changed_async())
    }

    /// Waits as [`changed`](Receiver::changed) does, in a future.
    ///
    /// # Errors
    ///
    /// Same as [`changed`](Receiver::changed).
    pub async fn changed_async(&mut self) -> Result<(), Closed> {
        changed(&self.shared, &mut self.seen).await
    }

    /// Waits until `condition` holds for the value, the present one included, and borrows that value as [`borrow`](Receiver::borrow) does.
    ///
    /// # Suspends
    ///
    /// Until it holds. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds.
    ///
    /// # Errors
    ///
    /// If every sender is gone, and the condition does not hold for the last state.
    pub fn wait_for(&mut self, condition: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        // As a future: no fiber yields with its output, which is a lock of the thread.
        block_on(self.wait_for_async(condition))
    }

    /// Waits as [`wait_for`](Receiver::wait_for) does, in a future.
    ///
    /// # Errors
    ///
    /// Same as [`wait_for`](Receiver::wait_for).
    pub async fn wait_for_async(&mut self, mut condition: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        let (shared, seen) = (&*self.shared, &mut self.seen);
        budget::call().await;
        loop {
            {
                let value = shared.read();
                *seen = shared.state().0;
                if condition(&value) {
                    return Ok(Ref(value));
                }
            }
            changed(shared, seen).await?;
        }
    }
}

/// Waits for a state after `seen`.
async fn changed<T>(shared: &Shared<T>, seen: &mut u64) -> Result<(), Closed> {
    let mut waiter = pin!(shared.changes.waiter());
    poll_fn(|cx| {
        let is_ready = shared.state() != (*seen, false);
        budget::poll_if(cx, || is_ready, |cx| shared.poll_changed(seen, waiter.as_mut(), cx))
    })
    .await
}

/// A borrow of the watched value. Senders wait on their threads while it lives.
#[derive(Debug)]
pub struct Ref<'a, T>(RwLockReadGuard<'a, T>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("value", &self.0.value)
            .field("receivers", &self.receiver_count())
            .finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("value", &self.shared.value)
            .field("has_changed", &(self.shared.state().0 != self.seen))
            .finish_non_exhaustive()
    }
}
