//! Channels from many senders to many receivers, bounded or unbounded. Each value goes to one receiver.
//!
//! The channel and its senders are those of [`mpsc`](super::mpsc). Only the receiver differs: it can be cloned, and
//! it receives through a shared reference. Waiting receivers are served in order, and so are waiting senders. If a
//! receiver gives up after a value was assigned to it, the value goes to the next receiver.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use osier_queue as queue;
use pin_project_lite::pin_project;
use queue::channel::{Channel, Drained};
use queue::{OwnedWaiter, Waiter};

use super::mpsc::with_bound;
pub use super::mpsc::{
    Permit, RecvError, RecvTimeoutError, SendError, SendTimeoutError, Sender, Sending, TryRecvError, TrySendError,
};
use super::receiver::{receiver, try_receive};
use crate::wait::budget;

/// Makes a channel that holds at most `bound` values. A send to a full channel waits until a value is received.
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
#[track_caller]
#[doc(alias("bounded", "chan", "crossbeam_channel", "flume", "async_channel"))]
pub fn channel<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    halves(Some(bound))
}

/// Makes a channel without a bound. A send never waits.
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
#[doc(alias = "unbounded_channel")]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    halves(None)
}

#[track_caller]
fn halves<T>(bound: Option<usize>) -> (Sender<T>, Receiver<T>) {
    let channel = with_bound(bound);
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

/// A receiving half of a channel. A clone receives from the same senders. Each value goes to one of the receivers.
/// Dropping the last receiver drops the values that were not received.
pub struct Receiver<T>(Arc<Channel<T>>);

receiver!();

impl<T> Receiver<T> {
    /// Waits as [`recv`](Receiver::recv) does, in a future. A future that is dropped has taken nothing.
    #[inline(always)]
    pub fn recv_async(&self) -> Recv<'_, T> {
        Recv {
            channel: &self.0,
            waiter: self.0.receiver(),
        }
    }

    /// Takes the next value, if there is one that is not assigned to a waiting receiver.
    ///
    /// # Errors
    ///
    /// `Empty`, or `Disconnected` if it is empty, and all senders are gone or it was closed.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        try_receive(self.channel())
    }

    /// Makes the receiver a stream of values. Allocates once.
    ///
    /// A stream that has been polled stays in line until it is dropped. A value that is assigned to it meanwhile
    /// waits for its next poll. That is why a shared receiver is not a stream by itself.
    pub fn into_stream(self) -> Messages<T> {
        let waiter = OwnedWaiter::new(Arc::clone(&self.0), Channel::receivers);
        Messages {
            waiter,
            _receiver: self,
        }
    }

    #[inline(always)]
    fn receive_now(&self) -> Option<T> {
        self.0.receive_now()
    }

    fn channel(&self) -> &Channel<T> {
        &self.0
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

pin_project! {
    /// The future of [`Receiver::recv_async`], which waits for a value.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped before it is ready has taken nothing.
    #[must_use = "futures do nothing unless polled"]
    pub struct Recv<'a, T> {
        channel: &'a Channel<T>,
        #[pin]
        waiter: Waiter<'a>,
    }
    impl<T> PinnedDrop for Recv<'_, T> {
        #[inline(always)]
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.channel.cancel_receive(this.waiter);
        }
    }
}

impl<T> Future for Recv<'_, T> {
    type Output = Result<T, RecvError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        budget::poll(cx, |cx| this.channel.poll_receive(this.waiter, cx)).map_err(|Drained| RecvError)
    }
}

osier_queue::impl_debug!(Recv<'a, T>, self => { .. });

/// The stream of [`Receiver::into_stream`]. It ends when the channel is empty and all senders are gone.
pub struct Messages<T> {
    waiter: OwnedWaiter<Channel<T>>,
    /// Dropped last: the waiter above uses this receiver's channel.
    _receiver: Receiver<T>,
}

impl<T> Stream for Messages<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let waiter = &mut self.waiter;
        budget::poll(cx, |cx| waiter.with(|channel, waiter| channel.poll_receive(waiter, cx))).map(Result::ok)
    }
}

impl<T> Drop for Messages<T> {
    fn drop(&mut self) {
        self.waiter.with(|channel, waiter| channel.cancel_receive(waiter));
    }
}

osier_queue::impl_debug!(Messages<T>, self => { .. });
