//! Topics: every subscriber gets every published message, each at its own pace.
//!
//! ```
//! use osier::pubsub::{Policy, Topic};
//!
//! osier::run(|| {
//!     let news = Topic::new();
//!     let mut reader = news.subscribe(16, Policy::DropOldest);
//!     let reading = osier::spawn(move || reader.recv());
//!     std::thread::spawn(move || news.publish("osier")); // any thread will do
//!     assert_eq!(reading.join().unwrap(), Ok("osier"));
//! });
//! ```
//!
//! # Slow subscribers
//!
//! A publisher never waits. Each subscriber has a queue of its own with a bound, and a [`Policy`] for a message that
//! finds it full. The messages that a subscriber misses are counted. A message is cloned for each subscriber, so let it
//! be cheap to clone: an `Arc`. A publication allocates nothing as long as subscribers keep up.
//!
//! # Waiting
//!
//! A subscriber is a leaf: [`recv`](Subscriber::recv) on a fiber or thread, [`recv_async`](Subscriber::recv_async) in a
//! future, in `select!` or in [`Handle::when`](crate::callbacks::Handle::when) for a callback, and
//! [`with_fd`](Subscriber::with_fd) for somebody else's loop that polls descriptors. A subscriber has one owner, so
//! nothing is handed on: a wait that ends leaves the messages where they are.

// `osier_queue::topic` has the queues and the order of wake-ups, which models check. This module has the faces.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_core::Stream;
use osier_queue::topic as queue;
pub use osier_queue::topic::{Policy, Pushed};
use queue::{End, Feed};

use crate::sync::{Event, EventFd, block, block_for};
use crate::wait::budget;

/// A topic, to publish on and to subscribe to. A clone is the same topic. Dropping the last clone ends the subscribers,
/// after the messages in their queues.
///
/// All subscribers see the messages in the same order, whoever publishes.
#[doc(alias = "EventBus")]
pub struct Topic<T>(Arc<Handle<T>>);

/// The part that the topic's clones share and its subscribers do not. Dropping it closes the topic.
struct Handle<T>(Arc<queue::Topic<T>>);

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Topic<T> {
    /// Makes a topic without subscribers.
    pub fn new() -> Topic<T> {
        Topic(Arc::new(Handle(Arc::new(queue::Topic::new()))))
    }

    /// Subscribes, with a queue for at most `bound` messages (0 counts as 1).
    pub fn subscribe(&self, bound: usize, policy: Policy) -> Subscriber<T> {
        let feed = Arc::new(Feed::new(bound, policy, 0));
        feed.join(self.core());
        Subscriber { feed }
    }

    /// The number of subscribers. A disconnected one does not count.
    pub fn subscribers(&self) -> usize {
        self.core().subscribers()
    }

    /// The number of published messages.
    pub fn published(&self) -> u64 {
        self.core().published()
    }

    /// The number of messages that subscribers did not get because their queues were full, counted for each subscriber.
    pub fn dropped(&self) -> u64 {
        self.core().dropped()
    }

    fn core(&self) -> &Arc<queue::Topic<T>> {
        &self.0.0
    }
}

impl<T: Clone> Topic<T> {
    /// Gives a clone of `message` to every subscriber. Returns how many took it. It never waits, and any thread, a
    /// callback or a destructor may call it.
    ///
    /// The clones are made under the topic's lock, so `T::clone` must not use the topic.
    pub fn publish(&self, message: T) -> usize {
        self.core().publish(message)
    }
}

impl<T> Default for Topic<T> {
    fn default() -> Self {
        Topic::new()
    }
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Self {
        Topic(Arc::clone(&self.0))
    }
}

osier_queue::impl_debug!(Topic<T>, self => self.core());

/// A subscriber, which receives the messages of its topics. A dropped one is subscribed nowhere.
pub struct Subscriber<T> {
    feed: Arc<Feed<T>>,
}

/// The reason why there will be no more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// Every topic it was subscribed to is gone, and so is every [`Inlet`].
    Closed,
    /// Its queue was full, and its policy is [`Policy::Disconnect`].
    TooSlow,
}

impl From<End> for RecvError {
    fn from(end: End) -> RecvError {
        match end {
            End::Closed => RecvError::Closed,
            End::TooSlow => RecvError::TooSlow,
        }
    }
}

osier_queue::impl_error!(RecvError {
    RecvError::Closed => "the topic is gone";
    RecvError::TooSlow => "the subscriber was too slow and has been disconnected";
});

/// The reason why there is no message now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// No message has come yet.
    Empty,
    /// No message will come.
    Ended(RecvError),
}

osier_queue::impl_error!(TryRecvError {
    TryRecvError::Empty => "there is no message yet";
    TryRecvError::Ended(why) => "{why}";
});

impl<T> Subscriber<T> {
    /// Makes a subscriber without a topic: see [`join`](Subscriber::join) and [`inlet`](Subscriber::inlet). Until then
    /// it has ended.
    pub fn new(bound: usize, policy: Policy) -> Subscriber<T> {
        Subscriber {
            feed: Arc::new(Feed::new(bound, policy, 0)),
        }
    }

    /// Waits for a message, the oldest in the queue.
    ///
    /// # Suspends
    ///
    /// While the queue is empty. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. No message is lost.
    ///
    /// # Errors
    ///
    /// An error once the queue is empty and no more messages will come.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`recv_async`](Subscriber::recv_async) there.
    pub fn recv(&mut self) -> Result<T, RecvError> {
        block(self.recv_async())
    }

    /// Waits as [`recv`](Subscriber::recv) does, at most for `timeout`. `None` says that nothing has come by then.
    ///
    /// # Suspends
    ///
    /// As [`recv`](Subscriber::recv) does, for `timeout` at most.
    ///
    /// # Cancellation
    ///
    /// Unwinds. No message is lost.
    ///
    /// # Errors
    ///
    /// The errors of [`recv`](Subscriber::recv).
    ///
    /// # Panics
    ///
    /// The panics of [`recv`](Subscriber::recv).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<T>, RecvError> {
        block_for(timeout, self.recv_async()).transpose()
    }

    /// Waits as [`recv`](Subscriber::recv) does, in a future or `select!`. A future that is dropped has taken nothing.
    pub fn recv_async(&mut self) -> Recv<'_, T> {
        Recv(&self.feed)
    }

    /// Takes the next message, if there is one. Never waits.
    ///
    /// # Errors
    ///
    /// `Empty`, or the reason why no more messages will come.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        match self.feed.try_receive() {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(TryRecvError::Empty),
            Err(end) => Err(TryRecvError::Ended(end.into())),
        }
    }

    /// Gives every message, and waits for each, until no more will come. [`ended`](Subscriber::ended) tells the reason.
    pub fn iter(&mut self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Gives every message that is there. Never waits.
    pub fn try_iter(&mut self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }

    /// Whether [`try_recv`](Subscriber::try_recv) has a message or the end to report; otherwise wakes `cx` when it has.
    /// Takes nothing. It is for waits without a future, such as a dormant connection's. A later call replaces the
    /// waker.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.feed.poll_ready(cx)
    }

    /// Subscribes to one more topic, into the same queue. Returns false if it was subscribed there already.
    pub fn join(&mut self, topic: &Topic<T>) -> bool {
        self.feed.join(topic.core())
    }

    /// Unsubscribes from a topic. The messages from there stay in the queue. Returns false if it was not subscribed
    /// there.
    pub fn leave(&mut self, topic: &Topic<T>) -> bool {
        self.feed.part(topic.core())
    }

    /// Makes a handle that puts messages into this queue alone, from anywhere.
    pub fn inlet(&self) -> Inlet<T> {
        Inlet::to(&self.feed)
    }

    /// Changes the bound of the queue (0 counts as 1). Messages beyond a smaller one stay.
    ///
    /// A subscriber that keeps up has not run yet when a burst comes, so [`Policy::Disconnect`] with a small bound ends it. With a
    /// large bound while it keeps up, and a small one while it waits for something else, it ends only if it is slow.
    ///
    /// ```
    /// use osier::pubsub::{Policy, Pushed, Subscriber};
    ///
    /// let slow = Subscriber::new(100, Policy::Disconnect);
    /// let inlet = slow.inlet();
    /// assert_eq!([inlet.push(1), inlet.push(2)], [Pushed::Queued; 2]);
    /// slow.set_bound(1);
    /// assert_eq!((inlet.push(3), slow.len()), (Pushed::Ended, 2));
    /// ```
    pub fn set_bound(&self, bound: usize) {
        self.feed.set_bound(bound);
    }

    /// The number of messages in the queue.
    pub fn len(&self) -> usize {
        self.feed.len()
    }

    /// Whether no message is in the queue.
    pub fn is_empty(&self) -> bool {
        self.feed.is_empty()
    }

    /// The number of messages that it did not get because its queue was full.
    pub fn dropped(&self) -> u64 {
        self.feed.dropped()
    }

    /// The reason why no more messages will come, though there may be some in the queue.
    pub fn ended(&self) -> Option<RecvError> {
        self.feed.ended().map(RecvError::from)
    }
}

impl<T: Send + 'static> Subscriber<T> {
    /// Adds a descriptor, for a loop that polls descriptors.
    ///
    /// # Errors
    ///
    /// An error when the process or the system has no descriptor left.
    pub fn with_fd(self) -> io::Result<FdSubscriber<T>> {
        let signal = Arc::new(Signal(Event::with_fd()?));
        let mut subscriber = FdSubscriber {
            waker: Waker::from(Arc::clone(&signal)),
            subscriber: self,
            signal,
        };
        subscriber.arm();
        Ok(subscriber)
    }
}

impl<T> Drop for Subscriber<T> {
    fn drop(&mut self) {
        self.feed.leave();
    }
}

impl<T> Stream for Subscriber<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        budget::poll(cx, |cx| self.feed.poll_receive(cx)).map(Result::ok)
    }
}

osier_queue::impl_debug!(Subscriber<T>, self => self.feed);

/// Waits for a message: the future of [`Subscriber::recv_async`].
///
/// # Cancellation
///
/// Dropped before it is ready, it has taken nothing.
#[must_use = "futures do nothing unless polled"]
pub struct Recv<'a, T>(&'a Feed<T>);

impl<T> Future for Recv<'_, T> {
    type Output = Result<T, RecvError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        budget::poll(cx, |cx| self.0.poll_receive(cx)).map_err(RecvError::from)
    }
}

impl<T> Drop for Recv<'_, T> {
    fn drop(&mut self) {
        self.0.stop_waiting();
    }
}

osier_queue::impl_debug!(Recv<'a, T>, self => { .. });

/// An inlet puts messages into the queue of one [`Subscriber`], and subscribes it to topics. It works from anywhere; a
/// clone does the same.
///
/// It counts as a source: a subscriber that has an inlet does not end with its topics.
pub struct Inlet<T>(Arc<Feed<T>>);

impl<T> Inlet<T> {
    fn to(feed: &Arc<Feed<T>>) -> Inlet<T> {
        feed.add_source();
        Inlet(Arc::clone(feed))
    }

    /// Puts a message into the queue. Never waits. The subscriber's policy decides about a message that finds no room.
    pub fn push(&self, message: T) -> Pushed {
        self.0.push(message)
    }

    /// Subscribes the subscriber to a topic. Returns false if it is subscribed there already, or gone.
    pub fn join(&self, topic: &Topic<T>) -> bool {
        self.0.join(topic.core())
    }

    /// Unsubscribes the subscriber. Returns false if it is not subscribed there.
    pub fn leave(&self, topic: &Topic<T>) -> bool {
        self.0.part(topic.core())
    }

    /// The number of messages in the queue.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no message is in the queue.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of messages that the subscriber did not get.
    pub fn dropped(&self) -> u64 {
        self.0.dropped()
    }

    /// Whether nobody will receive the messages: the subscriber is gone or was disconnected.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

impl<T> Clone for Inlet<T> {
    fn clone(&self) -> Self {
        Inlet::to(&self.0)
    }
}

impl<T> Drop for Inlet<T> {
    fn drop(&mut self) {
        self.0.remove_source();
    }
}

osier_queue::impl_debug!(Inlet<T>, self => self.0);

/// A [`Subscriber`] with a descriptor, which is readable while there is a message, or the end to report.
///
/// ```
/// use osier::pubsub::{Policy, Topic};
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// let topic = Topic::new();
/// let mut subscriber = topic.subscribe(8, Policy::DropOldest).with_fd()?;
/// std::thread::scope(|s| {
///     s.spawn(|| topic.publish(7));
///     poll(&mut [PollFd::new(&subscriber, PollFlags::IN)], None)?; // a loop that knows nothing of us
///     assert_eq!(subscriber.try_recv(), Ok(7));
///     std::io::Result::Ok(())
/// })
/// # ?; std::io::Result::Ok(())
/// ```
///
/// A message that comes to an empty queue costs a system call here, and so does the one that empties it. The descriptor
/// means nothing while a call of [`recv`](FdSubscriber::recv) waits.
pub struct FdSubscriber<T> {
    subscriber: Subscriber<T>,
    signal: Arc<Signal>,
    /// The waker that sets the signal. It is with the feed whenever the queue is empty and no call waits.
    waker: Waker,
}

/// A waker that is a descriptor.
struct Signal(EventFd);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.0.set();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.set();
    }
}

impl<T> FdSubscriber<T> {
    /// Waits as [`Subscriber::recv`] does.
    ///
    /// # Suspends
    ///
    /// As [`Subscriber::recv`] does.
    ///
    /// # Cancellation
    ///
    /// Unwinds. No message is lost.
    ///
    /// # Errors
    ///
    /// The errors of [`Subscriber::recv`].
    ///
    /// # Panics
    ///
    /// The panics of [`Subscriber::recv`].
    pub fn recv(&mut self) -> Result<T, RecvError> {
        block(self.recv_async())
    }

    /// Waits as [`Subscriber::recv_async`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Subscriber::recv`].
    pub async fn recv_async(&mut self) -> Result<T, RecvError> {
        let armed = Rearm(self);
        armed.0.subscriber.recv_async().await
    }

    /// Takes the next message, as [`Subscriber::try_recv`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Subscriber::try_recv`].
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        let message = self.subscriber.try_recv();
        if self.subscriber.is_empty() {
            self.arm();
        }
        message
    }

    /// Makes the descriptor tell the state of the queue.
    fn arm(&mut self) {
        self.signal.0.reset();
        if self
            .subscriber
            .poll_ready(&mut Context::from_waker(&self.waker))
            .is_ready()
        {
            self.signal.0.set();
        }
    }

    /// Gives the subscriber back, without the descriptor.
    pub fn into_inner(self) -> Subscriber<T> {
        self.subscriber.feed.stop_waiting();
        self.subscriber
    }
}

/// Gives the descriptor its meaning back when a wait has ended.
struct Rearm<'a, T>(&'a mut FdSubscriber<T>);

impl<T> Drop for Rearm<'_, T> {
    fn drop(&mut self) {
        self.0.arm();
    }
}

impl<T> AsFd for FdSubscriber<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.0.as_fd()
    }
}

impl<T> AsRawFd for FdSubscriber<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.signal.0.as_raw_fd()
    }
}

osier_queue::impl_debug!(FdSubscriber<T>, self => { feed: self.subscriber, fd: self.as_raw_fd() });
