//! Channels from many senders to one receiver, bounded or not.
//!
//! The queue is `tokio::sync::mpsc`: linked blocks of slots; the bound is a fair semaphore, whose waiters are intrusive. A
//! receive that is dropped has taken nothing. A send that is dropped while it waits drops its value; [`Sender::reserve`]
//! waits without one.

use std::fmt;
use std::pin::Pin;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::mpsc as tokio;

use super::{block, block_for};

/// A channel that holds at most `bound` values: who sends more waits until one is received.
///
/// As [`std::sync::mpsc::sync_channel`], with its errors; but receiving takes the receiver exclusively.
///
/// ```
/// use osier::sync::mpsc;
///
/// osier::run(|| {
///     let (sender, mut receiver) = mpsc::channel(2);
///     osier::spawn(move || (1..=10).try_for_each(|n| sender.send(n)));
///     assert_eq!(receiver.iter().sum::<i32>(), 55);
/// });
/// ```
///
/// # Panics
///
/// If `bound` is 0 or more than [`Semaphore::MAX_PERMITS`](super::Semaphore::MAX_PERMITS).
pub fn channel<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::channel(bound);
    (
        Sender(SendHalf::Bounded(sender)),
        Receiver(ReceiveHalf::Bounded(receiver)),
    )
}

/// A channel that holds as many values as there is memory for: sending never waits.
///
/// ```
/// use osier::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::unbounded();
/// sender.send("willow").unwrap();
/// drop(sender);
/// assert_eq!(receiver.recv(), Ok("willow"));
/// assert_eq!(receiver.recv(), Err(mpsc::RecvError));
/// ```
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::unbounded_channel();
    (
        Sender(SendHalf::Unbounded(sender)),
        Receiver(ReceiveHalf::Unbounded(receiver)),
    )
}

/// The sending half of a channel. A clone sends to the same receiver.
pub struct Sender<T>(SendHalf<T>);

enum SendHalf<T> {
    Bounded(tokio::Sender<T>),
    Unbounded(tokio::UnboundedSender<T>),
}

impl<T> Sender<T> {
    /// Sends a value, after waiting for room if the channel is full. Senders that wait are served in order.
    ///
    /// # Suspends
    ///
    /// While the channel is full. # Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; the value is not sent but dropped. To keep it, [`reserve`](Sender::reserve) first.
    ///
    /// # Errors
    ///
    /// With the value, if there is no receiver any more, or it was closed.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`send_async`](Sender::send_async) there.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        block(self.send_async(value))
    }

    /// As [`send`](Sender::send), for futures. A future that is dropped before it is ready drops the value.
    ///
    /// # Errors
    ///
    /// As [`send`](Sender::send).
    pub async fn send_async(&self, value: T) -> Result<(), SendError<T>> {
        match &self.0 {
            SendHalf::Bounded(sender) => sender.send(value).await,
            SendHalf::Unbounded(sender) => sender.send(value),
        }
        .map_err(|tokio::error::SendError(value)| SendError(value))
    }

    /// Sends a value if there is room for it.
    ///
    /// # Errors
    ///
    /// With the value: `Full`, or `Disconnected` if there is no receiver any more or it was closed.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        match &self.0 {
            SendHalf::Bounded(sender) => sender.try_send(value).map_err(|error| match error {
                tokio::error::TrySendError::Full(value) => TrySendError::Full(value),
                tokio::error::TrySendError::Closed(value) => TrySendError::Disconnected(value),
            }),
            SendHalf::Unbounded(sender) => sender
                .send(value)
                .map_err(|tokio::error::SendError(value)| TrySendError::Disconnected(value)),
        }
    }

    /// Waits for room for one value, and holds it.
    ///
    /// ```
    /// use osier::sync::mpsc;
    ///
    /// let (sender, mut receiver) = mpsc::channel(1);
    /// let room = sender.reserve().unwrap();
    /// assert!(sender.try_send("late").is_err());
    /// room.send("first").unwrap();
    /// assert_eq!(receiver.recv(), Ok("first"));
    /// ```
    ///
    /// # Suspends
    ///
    /// While the channel is full. # Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; room that was already granted goes to the next in the queue.
    ///
    /// # Errors
    ///
    /// If there is no receiver any more, or it was closed.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`reserve_async`](Sender::reserve_async) there.
    pub fn reserve(&self) -> Result<Permit<'_, T>, SendError<()>> {
        block(self.reserve_async())
    }

    /// As [`reserve`](Sender::reserve), for futures. A future that is dropped leaves the queue.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Sender::reserve).
    pub async fn reserve_async(&self) -> Result<Permit<'_, T>, SendError<()>> {
        match &self.0 {
            SendHalf::Bounded(sender) => match sender.reserve().await {
                Ok(permit) => Ok(Permit(Room::Bounded(permit))),
                Err(_) => Err(SendError(())),
            },
            SendHalf::Unbounded(sender) if sender.is_closed() => Err(SendError(())),
            SendHalf::Unbounded(sender) => Ok(Permit(Room::Unbounded(sender))),
        }
    }

    /// Waits until there is no receiver any more, or it was closed.
    ///
    /// # Suspends
    ///
    /// Unless it is so already. # Blocks the thread when called on a plain one.
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

    /// As [`closed`](Sender::closed), for futures.
    pub async fn closed_async(&self) {
        match &self.0 {
            SendHalf::Bounded(sender) => sender.closed().await,
            SendHalf::Unbounded(sender) => sender.closed().await,
        }
    }

    /// Whether there is no receiver any more, or it was closed.
    pub fn is_closed(&self) -> bool {
        match &self.0 {
            SendHalf::Bounded(sender) => sender.is_closed(),
            SendHalf::Unbounded(sender) => sender.is_closed(),
        }
    }

    /// How many values there is room for at this moment; `None`: any number.
    pub fn capacity(&self) -> Option<usize> {
        match &self.0 {
            SendHalf::Bounded(sender) => Some(sender.capacity()),
            SendHalf::Unbounded(_) => None,
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender(match &self.0 {
            SendHalf::Bounded(sender) => SendHalf::Bounded(sender.clone()),
            SendHalf::Unbounded(sender) => SendHalf::Unbounded(sender.clone()),
        })
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("capacity", &self.capacity())
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// Room for one value in a channel, given back if it is dropped.
#[must_use = "room that is not used is given back"]
pub struct Permit<'a, T>(Room<'a, T>);

enum Room<'a, T> {
    Bounded(tokio::Permit<'a, T>),
    Unbounded(&'a tokio::UnboundedSender<T>),
}

impl<T> Permit<'_, T> {
    /// Sends a value. Never waits.
    ///
    /// # Errors
    ///
    /// With the value, if the channel is unbounded and its receiver has gone since. In a bounded one a value that was sent
    /// with a permit may never be received either, but is not given back.
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        match self.0 {
            Room::Bounded(permit) => {
                permit.send(value);
                Ok(())
            }
            Room::Unbounded(sender) => sender
                .send(value)
                .map_err(|tokio::error::SendError(value)| SendError(value)),
        }
    }
}

impl<T> fmt::Debug for Permit<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}

/// The receiving half of a channel. There is one; dropped, it drops the values that it has not received.
pub struct Receiver<T>(ReceiveHalf<T>);

enum ReceiveHalf<T> {
    Bounded(tokio::Receiver<T>),
    Unbounded(tokio::UnboundedReceiver<T>),
}

impl<T> Receiver<T> {
    /// Waits for a value, the one that was sent first.
    ///
    /// # Suspends
    ///
    /// While the channel is empty. # Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; no value is lost.
    ///
    /// # Errors
    ///
    /// If the channel is empty and there is no sender any more, or it was closed.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`recv_async`](Receiver::recv_async) there.
    pub fn recv(&mut self) -> Result<T, RecvError> {
        block(self.recv_async())
    }

    /// As [`recv`](Receiver::recv), for at most `timeout`.
    ///
    /// # Suspends
    ///
    /// While the channel is empty. # Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; no value is lost.
    ///
    /// # Errors
    ///
    /// `Timeout`, or `Disconnected` as in [`recv`](Receiver::recv).
    ///
    /// # Panics
    ///
    /// As [`recv`](Receiver::recv).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        match block_for(timeout, self.recv_async()) {
            Some(Ok(value)) => Ok(value),
            Some(Err(RecvError)) => Err(RecvTimeoutError::Disconnected),
            None => Err(RecvTimeoutError::Timeout),
        }
    }

    /// As [`recv`](Receiver::recv), for futures. A future that is dropped has taken nothing.
    pub fn recv_async(&mut self) -> Recv<'_, T> {
        Recv(self)
    }

    /// The next value, if it is there.
    ///
    /// # Errors
    ///
    /// `Empty`, or `Disconnected` if it is empty and there is no sender any more, or it was closed.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        match &mut self.0 {
            ReceiveHalf::Bounded(receiver) => receiver.try_recv(),
            ReceiveHalf::Unbounded(receiver) => receiver.try_recv(),
        }
        .map_err(|error| match error {
            tokio::error::TryRecvError::Empty => TryRecvError::Empty,
            tokio::error::TryRecvError::Disconnected => TryRecvError::Disconnected,
        })
    }

    /// Every value, waiting for each, until the channel is empty and has no sender any more.
    pub fn iter(&mut self) -> Iter<'_, T> {
        Iter(self)
    }

    /// Every value that is there. Never waits.
    pub fn try_iter(&mut self) -> TryIter<'_, T> {
        TryIter(self)
    }

    /// Lets nobody send any more. What is in the channel, and what holds a permit, can still be received.
    pub fn close(&mut self) {
        match &mut self.0 {
            ReceiveHalf::Bounded(receiver) => receiver.close(),
            ReceiveHalf::Unbounded(receiver) => receiver.close(),
        }
    }

    /// Whether nobody can send any more: no sender is left, or it was closed. There may still be values.
    pub fn is_closed(&self) -> bool {
        match &self.0 {
            ReceiveHalf::Bounded(receiver) => receiver.is_closed(),
            ReceiveHalf::Unbounded(receiver) => receiver.is_closed(),
        }
    }

    /// How many values are in the channel.
    pub fn len(&self) -> usize {
        match &self.0 {
            ReceiveHalf::Bounded(receiver) => receiver.len(),
            ReceiveHalf::Unbounded(receiver) => receiver.len(),
        }
    }

    /// Whether no value is in the channel.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            ReceiveHalf::Bounded(receiver) => receiver.is_empty(),
            ReceiveHalf::Unbounded(receiver) => receiver.is_empty(),
        }
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match &mut self.0 {
            ReceiveHalf::Bounded(receiver) => receiver.poll_recv(cx),
            ReceiveHalf::Unbounded(receiver) => receiver.poll_recv(cx),
        }
    }
}

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.get_mut().poll_recv(cx)
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("len", &self.len())
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// Waits for a value: the future of [`Receiver::recv_async`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Recv<'a, T>(&'a mut Receiver<T>);

impl<T> Future for Recv<'_, T> {
    type Output = Result<T, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(self.0.poll_recv(cx)).ok_or(RecvError))
    }
}

/// What [`Receiver::iter`] gives: each step waits for a value, as [`Receiver::recv`] does.
#[derive(Debug)]
pub struct Iter<'a, T>(&'a mut Receiver<T>);

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

/// What [`Receiver::try_iter`] gives: ends where it would have to wait.
#[derive(Debug)]
pub struct TryIter<'a, T>(&'a mut Receiver<T>);

impl<T> Iterator for TryIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.try_recv().ok()
    }
}

/// A receiver as an iterator: each step waits for a value, as [`Receiver::recv`] does.
#[derive(Debug)]
pub struct IntoIter<T>(Receiver<T>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self)
    }
}

impl<'a, T> IntoIterator for &'a mut Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}
