//! A channel for a single value.
//!
//! It wraps `tokio::sync::oneshot`: both halves share one allocation with an atomic state. There is no lock.

use std::pin::Pin;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot as tokio;

use super::{block, block_for};
use crate::wait::budget::{self, counted};

/// Makes a channel for one value.
///
/// ```
/// use osier::sync::oneshot;
///
/// osier::run(|| {
///     let (sender, receiver) = oneshot::channel();
///     osier::spawn(move || sender.send(6 * 7));
///     assert_eq!(receiver.recv(), Ok(42));
/// });
/// ```
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::channel();
    (Sender(sender), Receiver(receiver))
}

/// The sending half.
#[derive(Debug)]
pub struct Sender<T>(tokio::Sender<T>);

impl<T> Sender<T> {
    /// Sends the value. Never waits.
    ///
    /// # Errors
    ///
    /// The error holds the value, if the receiver is gone or has closed the channel.
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        self.0.send(value).map_err(SendError)
    }

    /// Waits until the channel is closed: the receiver is dropped or has called `close`. The value is of no use then.
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
    pub fn closed(&mut self) {
        block(self.closed_async());
    }

    /// Waits as [`closed`](Sender::closed) does, in a future.
    pub async fn closed_async(&mut self) {
        counted(self.0.closed()).await;
    }

    /// Whether the channel is closed: the receiver is dropped or has called `close`.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// The receiving half. It is also a future, with the result of [`recv`](Receiver::recv). Polling it after that result
/// panics.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Receiver<T>(tokio::Receiver<T>);

impl<T> Receiver<T> {
    /// Waits for the value.
    ///
    /// # Suspends
    ///
    /// Until it has been sent. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds and drops the receiver.
    ///
    /// # Errors
    ///
    /// An error if the sender was dropped without sending.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: await the receiver there.
    pub fn recv(self) -> Result<T, RecvError> {
        block(self)
    }

    /// Waits for the value for at most `timeout`.
    ///
    /// # Suspends
    ///
    /// Until it has been sent. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. The value is not lost.
    ///
    /// # Errors
    ///
    /// `Timeout`, or `Disconnected` if the sender was dropped without sending or the value was already received.
    ///
    /// # Panics
    ///
    /// The panics of [`recv`](Receiver::recv).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        if self.0.is_terminated() {
            return Err(RecvTimeoutError::Disconnected);
        }
        match block_for(timeout, self) {
            Some(Ok(value)) => Ok(value),
            Some(Err(RecvError)) => Err(RecvTimeoutError::Disconnected),
            None => Err(RecvTimeoutError::Timeout),
        }
    }

    /// The receiver itself, which is a future. This method exists for symmetry with the other channels.
    pub fn recv_async(self) -> Receiver<T> {
        self
    }

    /// Takes the value, if it has been sent.
    ///
    /// # Errors
    ///
    /// `Empty`, or `Disconnected` if the sender was dropped without sending or the value was already received.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            tokio::error::TryRecvError::Empty => TryRecvError::Empty,
            tokio::error::TryRecvError::Closed => TryRecvError::Disconnected,
        })
    }

    /// Closes the channel for the sender. A value that was sent before can still be received, also by
    /// [`try_recv`](Receiver::try_recv).
    pub fn close(&mut self) {
        self.0.close();
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        budget::poll(cx, |cx| Pin::new(&mut self.0).poll(cx)).map_err(|_| RecvError)
    }
}
