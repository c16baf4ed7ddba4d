//! A value that many may watch: receivers see its latest state, and wait for the next change.
//!
//! It wraps `tokio::sync::watch`: one value behind a lock, and a version that each receiver compares with the one that it
//! has seen. A receiver that is slow misses states, never the latest one.

use std::ops::Deref;

use tokio::sync::watch as tokio;

use super::block;
use crate::wait::budget::counted;

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
    let (sender, receiver) = tokio::channel(value);
    (Sender(sender), Receiver(receiver))
}

/// Every sender is gone, so the value changes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed(());

osier_queue::impl_error!(Closed, self => "every sender is gone");

/// The half that changes the value. A clone changes the same value.
#[derive(Debug)]
pub struct Sender<T>(tokio::Sender<T>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender(self.0.clone())
    }
}

impl<T> Sender<T> {
    /// Sets the value, and wakes all receivers. Returns the old value. It needs no receiver.
    pub fn send(&self, value: T) -> T {
        self.0.send_replace(value)
    }

    /// Changes the value in its place, and wakes all receivers. A panic of `change` wakes nobody.
    ///
    /// Receivers that [borrow](Receiver::borrow) the value wait meanwhile on their threads: `change` must not wait.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.0.send_modify(change);
    }

    /// Changes the value in its place, and wakes all receivers if `change` returns `true`. Returns the same.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        self.0.send_if_modified(change)
    }

    /// Borrows the value. See [`Receiver::borrow`].
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.0.borrow())
    }

    /// Makes a receiver that has seen the present value.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver(self.0.subscribe())
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.0.receiver_count()
    }

    /// Whether there is no receiver at this moment. [`subscribe`](Sender::subscribe) makes one.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
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
        counted(self.0.closed()).await;
    }
}

/// The half that watches the value. A clone has seen the same state.
#[derive(Debug)]
pub struct Receiver<T>(tokio::Receiver<T>);

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        Receiver(self.0.clone())
    }
}

impl<T> Receiver<T> {
    /// Borrows the value. The present state still counts as unseen.
    ///
    /// The borrow is a lock of the thread: drop it before anything that waits.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.0.borrow())
    }

    /// Borrows the value, and has then seen its present state.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        Ref(self.0.borrow_and_update())
    }

    /// Whether there is a state that this receiver has not seen.
    ///
    /// # Errors
    ///
    /// If every sender is gone.
    pub fn has_changed(&self) -> Result<bool, Closed> {
        self.0.has_changed().map_err(|_| Closed(()))
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
        counted(self.0.changed()).await.map_err(|_| Closed(()))
    }

    /// Waits until `condition` holds for the value, the present one included, and borrows that value.
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
        block(self.wait_for_async(condition))
    }

    /// Waits as [`wait_for`](Receiver::wait_for) does, in a future.
    ///
    /// # Errors
    ///
    /// Same as [`wait_for`](Receiver::wait_for).
    pub async fn wait_for_async(&mut self, condition: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        counted(self.0.wait_for(condition))
            .await
            .map(Ref)
            .map_err(|_| Closed(()))
    }
}

/// A borrow of the watched value. Senders wait on their threads while it lives.
#[derive(Debug)]
pub struct Ref<'a, T>(tokio::Ref<'a, T>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
