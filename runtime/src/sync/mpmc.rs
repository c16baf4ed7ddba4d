//! Channels from many senders to many receivers, bounded or not: each value goes to one of them.
//!
//! The channel and its senders are those of [`mpsc`](super::mpsc); only the receiver differs: it is cloned, and receives through
//! a shared reference. Receivers that wait are served in order, and so are senders. A value that was on its way to a receiver
//! that gives up goes to the next.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use osier_queue as queue;
use pin_project_lite::pin_project;
use queue::channel::{Channel, Drained, Nothing};
use queue::{OwnedWaiter, Waiter};

use super::mpsc::with_bound;
pub use super::mpsc::{Permit, RecvError, RecvTimeoutError, SendError, Sender, Sending, TryRecvError, TrySendError};
use super::{block, block_for};

/// A channel that holds at most `bound` values: who sends more waits until one is received.
///
/// ```
/// use osier::sync::mpmc;
///
/// osier::run(|| {
///     let (sender, jobs) = mpmc::channel(2);
///     let workers = [jobs.clone(), jobs].map(|jobs| osier::spawn(move || jobs.iter().sum::<i32>()));
///     (1..=10).try_for_each(|n| sender.send(n)).unwrap();
///     drop(sender);
///     assert_eq!(workers.map(|worker| worker.join().unwrap()).iter().sum::<i32>(), 55);
/// });
/// ```
///
/// # Panics
///
/// If `bound` is 0 or more than [`Semaphore::MAX_PERMITS`](super::Semaphore::MAX_PERMITS).
pub fn channel<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    halves(Some(bound))
}

/// A channel that holds as many values as there is memory for: sending never waits.
///
/// ```
/// use osier::sync::mpmc;
///
/// let (sender, receiver) = mpmc::unbounded();
/// let other = receiver.clone();
/// sender.send("osier").unwrap();
/// sender.send("willow").unwrap();
/// drop(sender);
/// assert_eq!(receiver.recv(), Ok("osier"));
/// assert_eq!(other.recv(), Ok("willow"));
/// assert_eq!(receiver.recv(), Err(mpmc::RecvError));
/// ```
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    halves(None)
}

fn halves<T>(bound: Option<usize>) -> (Sender<T>, Receiver<T>) {
    let channel = with_bound(bound);
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

/// A receiving half of a channel. A clone receives from the same senders; each value goes to one of the receivers. The last
/// one drops what was not received.
pub struct Receiver<T>(Arc<Channel<T>>);

impl<T> Receiver<T> {
    /// Waits for a value, the oldest in the channel.
    ///
    /// # Suspends
    ///
    /// While the channel is empty, or others wait for what is in it. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; no value is lost: one that was promised to this receiver goes to the next.
    ///
    /// # Errors
    ///
    /// If the channel is empty and there is no sender any more, or it was closed.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`recv_async`](Receiver::recv_async) there.
    pub fn recv(&self) -> Result<T, RecvError> {
        block(self.recv_async())
    }

    /// As [`recv`](Receiver::recv), for at most `timeout`.
    ///
    /// # Suspends
    ///
    /// As [`recv`](Receiver::recv). Blocks the thread when called on a plain one.
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
    /// The panics of [`recv`](Receiver::recv).
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        match block_for(timeout, self.recv_async()) {
            Some(Ok(value)) => Ok(value),
            Some(Err(RecvError)) => Err(RecvTimeoutError::Disconnected),
            None => Err(RecvTimeoutError::Timeout),
        }
    }

    /// Waits as [`recv`](Receiver::recv) does, in a future. A future that is dropped has taken nothing.
    #[inline]
    pub fn recv_async(&self) -> Recv<'_, T> {
        Recv {
            channel: &self.0,
            waiter: self.0.receiver(),
        }
    }

    /// The next value, if there is one that nobody waits for.
    ///
    /// # Errors
    ///
    /// `Empty`, or `Disconnected` if it is empty and there is no sender any more, or it was closed.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.try_receive().map_err(|nothing| match nothing {
            Nothing::Yet => TryRecvError::Empty,
            Nothing::Drained => TryRecvError::Disconnected,
        })
    }

    /// Values, waiting for each, until the channel is empty and has no sender any more.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter(self)
    }

    /// The values that are there. Never waits.
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter(self)
    }

    /// The receiver as a stream of values. It allocates once.
    ///
    /// A stream that has been polled stays in line until it is dropped: a value that was promised to it meanwhile waits for its
    /// next poll. That is why a receiver, which is shared, is not a stream by itself.
    pub fn into_stream(self) -> Messages<T> {
        let waiter = OwnedWaiter::new(Arc::clone(&self.0), Channel::receivers);
        Messages {
            waiter,
            _receiver: self,
        }
    }

    /// Ends sending. Values in the channel, and values for permits that were granted, can still be received.
    pub fn close(&self) {
        self.0.close();
    }

    /// Whether nobody can send any more: no sender is left, or it was closed. There may still be values.
    pub fn is_closed(&self) -> bool {
        self.0.is_ending()
    }

    /// How many values are in the channel.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no value is in the channel.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.0.add_receiver();
        Receiver(Arc::clone(&self.0))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.remove_receiver();
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

pin_project! {
    /// Waits for a value: the future of [`Receiver::recv_async`].
    ///
    /// # Cancellation
    ///
    /// Dropped before it is ready, it has taken nothing.
    #[must_use = "futures do nothing unless polled"]
    pub struct Recv<'a, T> {
        channel: &'a Channel<T>,
        #[pin]
        waiter: Waiter<'a>,
    }
    impl<T> PinnedDrop for Recv<'_, T> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.channel.cancel_receive(this.waiter);
        }
    }
}

impl<T> Future for Recv<'_, T> {
    type Output = Result<T, RecvError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.channel.poll_receive(this.waiter, cx).map_err(|Drained| RecvError)
    }
}

impl<T> fmt::Debug for Recv<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recv")
    }
}

/// A receiver as a stream: see [`Receiver::into_stream`]. It ends when the channel is empty and has no sender any more.
pub struct Messages<T> {
    waiter: OwnedWaiter<Channel<T>>,
    /// Dropped last: the waiter counts as this receiver's.
    _receiver: Receiver<T>,
}

impl<T> Stream for Messages<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let poll = self.waiter.with(|channel, waiter| channel.poll_receive(waiter, cx));
        poll.map(Result::ok)
    }
}

impl<T> Drop for Messages<T> {
    fn drop(&mut self) {
        self.waiter.with(|channel, waiter| channel.cancel_receive(waiter));
    }
}

impl<T> fmt::Debug for Messages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Messages")
    }
}

/// The iterator of [`Receiver::iter`]: each step waits for a value, as [`Receiver::recv`] does.
#[derive(Debug)]
pub struct Iter<'a, T>(&'a Receiver<T>);

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

/// The iterator of [`Receiver::try_iter`]: it ends where it would have to wait.
#[derive(Debug)]
pub struct TryIter<'a, T>(&'a Receiver<T>);

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

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}
