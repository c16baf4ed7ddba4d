//! A channel in which every receiver gets every value.
//!
//! It wraps `tokio::sync::broadcast`: a ring of slots. Each value is stored once, and each receiver clones it at a
//! position of its own. A receiver that falls behind by more than the ring holds learns how many values it missed. A
//! receive that is dropped has taken nothing.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pin_project_lite::pin_project;
pub use std::sync::mpsc::SendError;
use tokio::sync::broadcast as tokio;

use super::block;
use crate::wait::budget::counted;

/// Makes a channel that keeps at least the last `capacity` values for receivers that have not taken them yet.
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
#[track_caller]
pub fn channel<T: Clone>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let most = usize::MAX / 2;
    assert!(
        (1..=most).contains(&capacity),
        "a channel capacity of {capacity}: it must be 1 to {most}"
    );
    let (sender, receiver) = tokio::channel(capacity);
    (Sender(sender), Receiver(receiver))
}

/// The sending half. A clone sends to the same receivers.
#[derive(Debug)]
pub struct Sender<T>(tokio::Sender<T>);

impl<T> Sender<T> {
    /// Sends a value to all receivers that exist at this moment, and returns their number. Never waits: the oldest
    /// value makes room.
    ///
    /// # Errors
    ///
    /// The error holds the value, if there is no receiver. A later send may find one.
    pub fn send(&self, value: T) -> Result<usize, SendError<T>> {
        self.0
            .send(value)
            .map_err(|tokio::error::SendError(value)| SendError(value))
    }

    /// Makes a receiver of the values that are sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver(self.0.subscribe())
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.0.receiver_count()
    }

    /// The number of values that are kept for the slowest receiver.
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

/// A receiving half. It gets every value that was sent after it was made.
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
    /// Unwinds. No value is lost.
    ///
    /// # Errors
    ///
    /// `Lagged` once after values were missed, with their number; the next call gives the oldest value that is left.
    /// `Disconnected` if all senders are gone and every value was taken.
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
        counted(self.0.recv()).await.map_err(|error| match error {
            tokio::error::RecvError::Lagged(missed) => RecvError::Lagged(missed),
            tokio::error::RecvError::Closed => RecvError::Disconnected,
        })
    }

    /// Takes the next value, if there is one.
    ///
    /// # Errors
    ///
    /// `Empty`, or an error of [`recv`](Receiver::recv).
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            tokio::error::TryRecvError::Empty => TryRecvError::Empty,
            tokio::error::TryRecvError::Lagged(missed) => TryRecvError::Lagged(missed),
            tokio::error::TryRecvError::Closed => TryRecvError::Disconnected,
        })
    }

    /// Makes another receiver, of the values that are sent from now on.
    pub fn resubscribe(&self) -> Receiver<T> {
        Receiver(self.0.resubscribe())
    }
}

impl<T> Receiver<T> {
    /// The number of values that this receiver has not taken. It exceeds the capacity if the receiver has missed
    /// some.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether this receiver has taken every value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Clone + Send + 'static> Receiver<T> {
    /// Makes the receiver a stream of values. An item reports missed values. Allocates once.
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

/// The reason why a receiver has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvError {
    /// All senders are gone, and every value was taken.
    Disconnected,
    /// This many values were overwritten before the receiver took them.
    Lagged(u64),
}

osier_queue::impl_error!(RecvError {
    RecvError::Disconnected => "receiving on a broadcast channel without senders";
    RecvError::Lagged(missed) => "{}", Lagged(*missed);
});

/// The reason why a receiver has no value at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryRecvError {
    /// Every value was taken. There may be more later.
    Empty,
    /// All senders are gone, and every value was taken.
    Disconnected,
    /// This many values were overwritten before the receiver took them.
    Lagged(u64),
}

osier_queue::impl_error!(TryRecvError {
    TryRecvError::Empty => "receiving on an empty broadcast channel";
    TryRecvError::Disconnected => "{}", RecvError::Disconnected;
    TryRecvError::Lagged(missed) => "{}", Lagged(*missed);
});

/// The number of values that were overwritten before the receiver took them. An item of [`Messages`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagged(pub u64);

osier_queue::impl_error!(Lagged, self => "the receiver of a broadcast channel missed {} values", self.0);

/// The stream of [`Receiver::into_stream`]. It ends when all senders are gone.
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

osier_queue::impl_debug!(Messages<T>, self => { .. });

/// A receive whose future type has no name.
trait Receiving<T> {
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>>;
}

pin_project! {
    /// A future that owns its receiver. `N` makes the next future in the same place.
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
