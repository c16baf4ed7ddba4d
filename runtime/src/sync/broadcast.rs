//! A channel in which every receiver gets every value.
//!
//! It is `tokio::sync::broadcast`: one ring of slots; each value is stored once and cloned by each receiver, whose position is
//! its own. A receiver that falls behind by more than the ring holds is told how much it missed. A receive that is dropped
//! has taken nothing.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pin_project_lite::pin_project;
pub use std::sync::mpsc::SendError;
use tokio::sync::broadcast as tokio;

use super::block;

/// A channel that keeps at least the last `capacity` values for receivers that have not taken them yet.
///
/// The capacity is rounded up to a power of two.
///
/// ```
/// use osier::sync::broadcast;
///
/// osier::run(|| {
///     let (sender, mut first) = broadcast::channel(8);
///     let mut second = sender.subscribe();
///     assert_eq!(sender.send("news").unwrap(), 2);
///     assert_eq!((first.recv(), second.recv()), (Ok("news"), Ok("news")));
/// });
/// ```
///
/// # Panics
///
/// If `capacity` is 0 or more than half of `usize::MAX`.
pub fn channel<T: Clone>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::channel(capacity);
    (Sender(sender), Receiver(receiver))
}

/// The sending half. A clone sends to the same receivers.
#[derive(Debug)]
pub struct Sender<T>(tokio::Sender<T>);

impl<T> Sender<T> {
    /// Sends a value to every receiver that exists at this moment, and gives their number. Never waits: the oldest value
    /// makes room.
    ///
    /// # Errors
    ///
    /// With the value, if there is no receiver. There may be one later.
    pub fn send(&self, value: T) -> Result<usize, SendError<T>> {
        self.0
            .send(value)
            .map_err(|tokio::error::SendError(value)| SendError(value))
    }

    /// A receiver of what will be sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver(self.0.subscribe())
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.0.receiver_count()
    }

    /// How many values are kept, for the slowest receiver.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether every receiver has taken every value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender(self.0.clone())
    }
}

/// A receiving half: it gets every value that was sent since it was made.
#[derive(Debug)]
pub struct Receiver<T>(tokio::Receiver<T>);

impl<T: Clone> Receiver<T> {
    /// Waits for the next value.
    ///
    /// # Suspends
    ///
    /// While there is none. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; no value is lost.
    ///
    /// # Errors
    ///
    /// `Lagged` once after values were missed, with their number; the next call gives the oldest that is left. `Disconnected` if
    /// there is no sender any more and every value was taken.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`recv_async`](Receiver::recv_async) there.
    pub fn recv(&mut self) -> Result<T, RecvError> {
        block(self.recv_async())
    }

    /// Waits as [`recv`](Receiver::recv) does, in a future. A future that is dropped has taken nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`recv`](Receiver::recv).
    pub async fn recv_async(&mut self) -> Result<T, RecvError> {
        self.0.recv().await.map_err(|error| match error {
            tokio::error::RecvError::Lagged(missed) => RecvError::Lagged(missed),
            tokio::error::RecvError::Closed => RecvError::Disconnected,
        })
    }

    /// The next value, if it is there.
    ///
    /// # Errors
    ///
    /// `Empty`, or as [`recv`](Receiver::recv).
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            tokio::error::TryRecvError::Empty => TryRecvError::Empty,
            tokio::error::TryRecvError::Lagged(missed) => TryRecvError::Lagged(missed),
            tokio::error::TryRecvError::Closed => TryRecvError::Disconnected,
        })
    }

    /// A receiver of what will be sent from now on, beside this one.
    pub fn resubscribe(&self) -> Receiver<T> {
        Receiver(self.0.resubscribe())
    }
}

impl<T> Receiver<T> {
    /// How many values this receiver has not taken; more than the capacity if it has missed some.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether this receiver has taken every value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Clone + Send + 'static> Receiver<T> {
    /// The receiver as a stream of values, and of how many were missed where some were. It allocates once.
    pub fn into_stream(self) -> Messages<T> {
        let next = |mut receiver: Receiver<T>| async move { (receiver.recv_async().await, receiver) };
        Messages {
            slot: Box::pin(Slot {
                future: next(self),
                next,
            }),
        }
    }
}

/// Why a receiver has no value to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvError {
    /// There is no sender any more, and every value was taken.
    Disconnected,
    /// This many values were overwritten before the receiver came to take them.
    Lagged(u64),
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvError::Disconnected => f.write_str("receiving on a broadcast channel without senders"),
            RecvError::Lagged(missed) => Lagged(*missed).fmt(f),
        }
    }
}

impl Error for RecvError {}

/// Why a receiver has no value to give at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryRecvError {
    /// Every value was taken; there may be more.
    Empty,
    /// There is no sender any more, and every value was taken.
    Disconnected,
    /// This many values were overwritten before the receiver came to take them.
    Lagged(u64),
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TryRecvError::Empty => f.write_str("receiving on an empty broadcast channel"),
            TryRecvError::Disconnected => RecvError::Disconnected.fmt(f),
            TryRecvError::Lagged(missed) => Lagged(*missed).fmt(f),
        }
    }
}

impl Error for TryRecvError {}

/// This many values were overwritten before the receiver came to take them: an item of [`Messages`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagged(pub u64);

impl fmt::Display for Lagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the receiver of a broadcast channel missed {} values", self.0)
    }
}

impl Error for Lagged {}

/// A receiver as a stream: see [`Receiver::into_stream`]. It ends when there is no sender any more.
pub struct Messages<T> {
    slot: Pin<Box<dyn Receiving<T> + Send>>,
}

impl<T> Stream for Messages<T> {
    type Item = Result<T, Lagged>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.slot.as_mut().poll_next(cx)) {
            Ok(value) => Some(Ok(value)),
            Err(RecvError::Lagged(missed)) => Some(Err(Lagged(missed))),
            Err(RecvError::Disconnected) => None,
        })
    }
}

impl<T> fmt::Debug for Messages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Messages")
    }
}

/// A receive whose future has no name.
trait Receiving<T> {
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>>;
}

pin_project! {
    /// A future that owns its receiver, and what makes the next one, in its place.
    struct Slot<F, N> {
        #[pin]
        future: F,
        next: N,
    }
}

impl<T, F, N> Receiving<T> for Slot<F, N>
where
    F: Future<Output = (Result<T, RecvError>, Receiver<T>)>,
    N: Fn(Receiver<T>) -> F,
{
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        let mut this = self.project();
        let (received, receiver) = ready!(this.future.as_mut().poll(cx));
        this.future.set((this.next)(receiver));
        Poll::Ready(received)
    }
}
