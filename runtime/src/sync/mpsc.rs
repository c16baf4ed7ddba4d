//! Channels from many senders to one receiver, bounded or unbounded.
//!
//! `osier_queue::Channel` has the queue of values and the lists of waiters. A send and a receive take one short lock
//! each. A wait allocates nothing. The buffer grows with its content, up to the bound, and does not shrink.
//!
//! A receive that is dropped has taken nothing. A send that is dropped while it waits drops its value;
//! [`Sender::reserve`] waits without holding a value.
//!
//! [`mpmc`](super::mpmc) is the same channel, with the same senders and several receivers.

use std::fmt;
use std::future;
use std::pin::{Pin, pin};
use std::sync::Arc;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use osier_queue as queue;
use pin_project_lite::pin_project;
use queue::channel::{Channel, Closed, Drained, Refused};
use queue::{OwnedWaiter, Waiter};

use super::receiver::{receiver, try_receive};
use super::{Semaphore, block, block_for};
use crate::wait::{at_once, budget};

/// Makes a channel that holds at most `bound` values. A send to a full channel waits until a value is received.
///
/// It corresponds to [`std::sync::mpsc::sync_channel`] and has its errors, but receiving needs exclusive access to
/// the receiver.
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
#[track_caller]
#[doc(alias("bounded", "sync_channel"))]
pub fn channel<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    halves(Some(bound))
}

/// Makes a channel without a bound. A send never waits.
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
#[doc(alias = "unbounded_channel")]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    halves(None)
}

#[track_caller]
fn halves<T>(bound: Option<usize>) -> (Sender<T>, Receiver<T>) {
    let channel = with_bound(bound);
    (
        Sender(Arc::clone(&channel)),
        Receiver(OwnedWaiter::new(channel, Channel::receivers)),
    )
}

#[track_caller]
pub(super) fn with_bound<T>(bound: Option<usize>) -> Arc<Channel<T>> {
    if let Some(bound) = bound {
        let most = Semaphore::MAX_PERMITS;
        assert!(
            (1..=most).contains(&bound),
            "a channel bound of {bound}: it must be 1 to {most}"
        );
    }
    Arc::new(Channel::new(bound))
}

/// The sending half of a channel. A clone sends to the same receiver.
pub struct Sender<T>(pub(super) Arc<Channel<T>>);

impl<T> Sender<T> {
    /// Sends a value. Waits for room if the channel is full. Waiting senders are served in order.
    ///
    /// # Suspends
    ///
    /// While the channel is full. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. The value is dropped without being sent. A caller that wants to keep it calls
    /// [`reserve`](Sender::reserve) first.
    ///
    /// # Errors
    ///
    /// The error holds the value, if the receiver is gone or has closed the channel.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`send_async`](Sender::send_async) there.
    #[inline]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut value = Some(value);
        if at_once(|| self.0.try_send(&mut value).ok()).is_some() {
            return Ok(());
        }
        block(self.send_async(value.expect("it was not sent")))
    }

    /// Waits as [`send`](Sender::send) does, in a future. A future that is dropped before it is ready drops the value.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Sender::send).
    #[inline(always)]
    pub fn send_async(&self, value: T) -> Sending<'_, T> {
        Sending {
            channel: &self.0,
            value: Some(value),
            waiter: self.0.sender(),
        }
    }

    /// Sends a value if there is room for it.
    ///
    /// # Errors
    ///
    /// The error holds the value: `Full`, or `Disconnected` if the receiver is gone or has closed the channel.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let mut value = Some(value);
        self.0.try_send(&mut value).map_err(|refused| {
            let value = value.expect("it was refused, so it is still here");
            match refused {
                Refused::Full => TrySendError::Full(value),
                Refused::Closed => TrySendError::Disconnected(value),
            }
        })
    }

    /// Sends a value as [`send`](Sender::send) does, and waits for room for at most `timeout`.
    ///
    /// ```
    /// use osier::sync::mpsc::{SendTimeoutError, channel};
    /// use std::time::Duration;
    ///
    /// let (sender, _receiver) = channel(1);
    /// sender.send_timeout("first", Duration::from_millis(1)).unwrap();
    /// let full = sender.send_timeout("second", Duration::from_millis(1));
    /// assert_eq!(full, Err(SendTimeoutError::Timeout("second")));
    /// ```
    ///
    /// # Suspends
    ///
    /// The same as for [`send`](Sender::send).
    ///
    /// # Cancellation
    ///
    /// The same as for [`send`](Sender::send).
    ///
    /// # Errors
    ///
    /// The error holds the value: `Timeout`, or `Disconnected` if the receiver is gone or has closed the channel.
    ///
    /// # Panics
    ///
    /// The panics of [`send`](Sender::send).
    pub fn send_timeout(&self, value: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        match block_for(timeout, self.reserve_async()) {
            Some(Ok(room)) => room
                .send(value)
                .map_err(|SendError(value)| SendTimeoutError::Disconnected(value)),
            Some(Err(SendError(()))) => Err(SendTimeoutError::Disconnected(value)),
            None => Err(SendTimeoutError::Timeout(value)),
        }
    }

    /// Waits for room for one value, and reserves it.
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
    /// While the channel is full. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. Room that was already granted goes to the next sender in line.
    ///
    /// # Errors
    ///
    /// An error if the receiver is gone or has closed the channel.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`reserve_async`](Sender::reserve_async) there.
    pub fn reserve(&self) -> Result<Permit<'_, T>, SendError<()>> {
        block(self.reserve_async())
    }

    /// Waits as [`reserve`](Sender::reserve) does, in a future. A future that is dropped leaves the queue.
    ///
    /// # Errors
    ///
    /// The errors of [`reserve`](Sender::reserve).
    pub async fn reserve_async(&self) -> Result<Permit<'_, T>, SendError<()>> {
        let channel = &self.0;
        let held = match channel.bound() {
            Some(_) => {
                let waiter = channel.sender();
                Reserving { channel, waiter }.await.map_err(|Closed| SendError(()))?;
                true
            }
            None if channel.is_closed() => return Err(SendError(())),
            None => {
                budget::call().await;
                false
            }
        };
        Ok(Permit { channel, held })
    }

    /// Waits until the channel is closed: the receiver is dropped or has called `close`.
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
        let mut waiter = pin!(self.0.watcher());
        future::poll_fn(|cx| budget::poll(cx, |cx| self.0.poll_closed(waiter.as_mut(), cx))).await;
    }

    /// Whether the channel is closed: the receiver is dropped or has called `close`.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// The number of values that there is room for at this moment. `None` if the channel has no bound.
    pub fn capacity(&self) -> Option<usize> {
        self.0.room()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.add_sender();
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.remove_sender();
    }
}

osier_queue::impl_debug!(Sender<T>, self => { capacity: self.capacity(), closed: self.is_closed() });

/// The reason why [`Sender::send_timeout`] has not sent the value, and the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendTimeoutError<T> {
    /// The channel was full for all of the time.
    Timeout(T),
    /// The receiver is gone or has closed the channel.
    Disconnected(T),
}

impl<T> SendTimeoutError<T> {
    /// The value that was not sent.
    pub fn into_inner(self) -> T {
        match self {
            SendTimeoutError::Timeout(value) | SendTimeoutError::Disconnected(value) => value,
        }
    }
}

/// As std's errors of this kind: without the value.
impl<T> fmt::Debug for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::Timeout(_) => "Timeout(..)",
            SendTimeoutError::Disconnected(_) => "Disconnected(..)",
        })
    }
}

impl<T> fmt::Display for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::Timeout(_) => "the channel was full for too long",
            SendTimeoutError::Disconnected(_) => "the channel has no receiver",
        })
    }
}

impl<T> std::error::Error for SendTimeoutError<T> {}

pin_project! {
    /// The future of [`Sender::send_async`], which waits for room and sends the value.
    ///
    /// # Cancellation
    ///
    /// Dropping it drops the value, unless the value was sent.
    #[must_use = "futures do nothing unless polled"]
    pub struct Sending<'a, T> {
        channel: &'a Channel<T>,
        value: Option<T>,
        #[pin]
        waiter: Waiter<'a>,
    }
    impl<T> PinnedDrop for Sending<'_, T> {
        #[inline(always)]
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.channel.cancel_send(this.waiter);
        }
    }
}

impl<T> Future for Sending<'_, T> {
    type Output = Result<(), SendError<T>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let outcome = ready!(budget::poll(cx, |cx| this.channel.poll_send(
            this.value,
            this.waiter,
            cx
        )));
        Poll::Ready(outcome.map_err(|Closed| SendError(this.value.take().expect("it was not sent"))))
    }
}

osier_queue::impl_debug!(Sending<'a, T>, self => { .. });

pin_project! {
    /// A wait for room. Dropped before it is ready, it returns the room that it was granted.
    struct Reserving<'a, T> {
        channel: &'a Channel<T>,
        #[pin]
        waiter: Waiter<'a>,
    }
    impl<T> PinnedDrop for Reserving<'_, T> {
        #[inline(always)]
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.channel.cancel_send(this.waiter);
        }
    }
}

impl<T> Future for Reserving<'_, T> {
    type Output = Result<(), Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        budget::poll(cx, |cx| this.channel.poll_reserve(this.waiter, cx))
    }
}

/// Reserved room for one value in a channel. Dropping it returns the room.
#[must_use = "room that is not used is given back"]
pub struct Permit<'a, T> {
    channel: &'a Channel<T>,
    /// Whether it holds room in a bounded channel. An unbounded channel reserves none.
    held: bool,
}

impl<T> Permit<'_, T> {
    /// Sends a value. Never waits.
    ///
    /// # Errors
    ///
    /// The error holds the value: the receiver is gone, or an unbounded channel was closed after the reservation.
    pub fn send(mut self, value: T) -> Result<(), SendError<T>> {
        let mut value = Some(value);
        let sent = match std::mem::take(&mut self.held) {
            true => self.channel.send_held(&mut value).is_ok(),
            false => self.channel.try_send(&mut value).is_ok(),
        };
        match sent {
            true => Ok(()),
            false => Err(SendError(value.expect("it was not sent"))),
        }
    }
}

impl<T> Drop for Permit<'_, T> {
    fn drop(&mut self) {
        if self.held {
            self.channel.release_held();
        }
    }
}

osier_queue::impl_debug!(Permit<'a, T>, self => { .. });

/// The receiving half of a channel. There is one. Dropping it drops the values that it has not received.
pub struct Receiver<T>(OwnedWaiter<Channel<T>>);

receiver!(mut);

impl<T> Receiver<T> {
    /// Waits as [`recv`](Receiver::recv) does, in a future. A future that is dropped has taken nothing.
    pub fn recv_async(&mut self) -> Recv<'_, T> {
        Recv(self)
    }

    /// Takes the next value, if there is one.
    ///
    /// # Errors
    ///
    /// `Empty`, or `Disconnected` if it is empty, and all senders are gone or it was closed.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.stop_waiting();
        try_receive(self.channel())
    }

    #[inline]
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Drained>> {
        budget::poll(cx, |cx| self.0.with(|channel, waiter| channel.poll_receive(waiter, cx)))
    }

    #[inline(always)]
    fn receive_now(&mut self) -> Option<T> {
        self.0
            .with(|channel, waiter| waiter.is_idle().then(|| channel.receive_now())?)
    }

    /// Returns what an abandoned wait was granted.
    #[inline]
    fn stop_waiting(&mut self) {
        self.0.with(|channel, waiter| channel.cancel_receive(waiter));
    }

    fn channel(&self) -> &Channel<T> {
        self.0.owner()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.stop_waiting();
        self.0.owner().remove_receiver();
    }
}

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.get_mut().poll_recv(cx).map(Result::ok)
    }
}

/// The future of [`Receiver::recv_async`], which waits for a value.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Recv<'a, T>(&'a mut Receiver<T>);

impl<T> Drop for Recv<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.stop_waiting();
    }
}

impl<T> Future for Recv<'_, T> {
    type Output = Result<T, RecvError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_recv(cx).map_err(|Drained| RecvError)
    }
}
