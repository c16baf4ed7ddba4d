//! Topics and feeds: a topic clones each published message into the queue of every subscriber, its feed.
//!
//! ```text
//!                              ┌─▶ Feed { first │ rest… }  ◀── its one receiver
//!   publish ─▶ Topic { slots } ┼─▶ Feed
//!                              └─▶ Feed  ◀── a feed may be in several topics, and be pushed to directly
//! ```
//!
//! # Protocol
//! - Both locks are held for a few instructions for each feed. No foreign code runs under them except `T::clone`, which must not
//!   publish. Wakers are woken and displaced values dropped after both locks are released. The topic's lock comes before the
//!   feed's.
//! - A publication pushes to all feeds under the topic's lock. So **all subscribers of a topic see its messages in one order**, and a
//!   feed that joins or leaves gets all of a publication or nothing of it.
//! - A feed has one receiver, hence one waker, kept under the feed's lock. It is registered when the queue is found empty, and taken by
//!   the push that fills it. A receiver that gives up may leave its waker; that costs a needless wake-up.
//! - The messages are in an [`InlineQueue`]. So the queue of a receiver that keeps up never allocates, and the queue of an idle one is
//!   no larger than the feed itself.
//! - A feed knows its topics, and a topic its feeds. [`Feed::join`] and [`Feed::part`] change both under both locks. So a feed is in a topic
//!   at most once, and a join that comes after [`Feed::leave`] does nothing.
//! - A feed counts its sources: topics that are not closed, and direct pushers. Without sources it has ended. The receiver learns that
//!   when the queue is empty.

use std::mem;
use std::sync::Arc;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use crate::InlineQueue;
use crate::sync::{Mutex, MutexGuard};
use crate::wakers::{wake_each, wake_each_unwinding};

/// The behaviour of a feed that has no room for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The oldest message makes room. The receiver sees the latest messages.
    #[default]
    DropOldest,
    /// The message is refused. The receiver sees the first messages.
    DropNewest,
    /// The feed ends. Its receiver gets the messages in the queue, and then learns that it was too slow.
    Disconnect,
}

/// The reason why a feed gives no more messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// No source is left.
    Closed,
    /// There was no room for a message, and the policy is to disconnect.
    TooSlow,
}

/// The fate of a pushed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// It is in the queue.
    Queued,
    /// It is in the queue, and displaced the oldest message.
    Displaced,
    /// There was no room for it.
    Dropped,
    /// The feed has ended, now or before, or its receiver is gone.
    Ended,
}

/// Wakers for which room is kept between publications. A topic that once had more subscribers frees the rest.
const KEPT_WAKERS: usize = 16 << 10;

/// The queue of one subscriber.
pub struct Feed<T> {
    state: Mutex<FeedState<T>>,
}

struct FeedState<T> {
    messages: InlineQueue<T>,
    /// Waker of the receiver that found the queue empty.
    waker: Option<Waker>,
    /// Limit of messages in the queue.
    bound: usize,
    policy: Policy,
    /// Whether the receiver is gone. Once true, always true.
    left: bool,
    /// Whether the feed was disconnected because a message found no room. Once true, always true.
    too_slow: bool,
    /// Number of sources.
    sources: usize,
    /// Messages that the receiver did not get.
    dropped: u64,
    /// Topics that it is subscribed to, with its slot in each.
    topics: Vec<(Arc<Topic<T>>, usize)>,
}

impl<T> FeedState<T> {
    fn pop(&mut self) -> Option<T> {
        let value = self.messages.pop()?;
        self.messages.give_back_room();
        Some(value)
    }

    fn end(&self) -> Option<End> {
        match self.too_slow {
            true => Some(End::TooSlow),
            false => (self.sources == 0).then_some(End::Closed),
        }
    }

    /// Counts one source less. Returns the waker to wake after all locks are released.
    fn lose_source(&mut self) -> Option<Waker> {
        self.sources -= 1;
        match self.sources {
            0 => self.waker.take(),
            _ => None,
        }
    }

    /// Takes the message or refuses it. Returns what to wake and what to drop after all locks are released.
    fn push(&mut self, value: T) -> (Pushed, Option<Waker>, Option<T>) {
        if self.left || self.too_slow {
            return (Pushed::Ended, None, Some(value));
        }
        let mut outcome = Pushed::Queued;
        let mut displaced = None;
        if self.messages.len() >= self.bound {
            self.dropped += 1;
            match self.policy {
                Policy::DropOldest => {
                    outcome = Pushed::Displaced;
                    displaced = self.pop();
                }
                Policy::DropNewest => return (Pushed::Dropped, None, Some(value)),
                Policy::Disconnect => {
                    self.too_slow = true;
                    return (Pushed::Ended, self.waker.take(), Some(value));
                }
            }
        }
        self.messages.push(value);
        (outcome, self.waker.take(), displaced)
    }
}

impl<T> Feed<T> {
    /// An empty queue for at most `bound` messages (at least one). `sources` counts the direct pushers, besides topics.
    pub fn new(bound: usize, policy: Policy, sources: usize) -> Self {
        let state = FeedState {
            messages: InlineQueue::default(),
            waker: None,
            bound: bound.max(1),
            policy,
            left: false,
            too_slow: false,
            sources,
            dropped: 0,
            topics: Vec::new(),
        };
        Feed {
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FeedState<T>> {
        // `T::clone` may panic, but only before anything is changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes a message into this queue alone.
    pub fn push(&self, value: T) -> Pushed {
        let (outcome, waker, _displaced) = self.lock().push(value);
        if let Some(waker) = waker {
            waker.wake();
        }
        outcome
    }

    /// Takes the next message, if there is one.
    ///
    /// # Errors
    ///
    /// The reason why the feed has ended, after its last message.
    pub fn try_receive(&self) -> Result<Option<T>, End> {
        let mut state = self.lock();
        match state.pop() {
            Some(value) => Ok(Some(value)),
            None => state.end().map_or(Ok(None), Err),
        }
    }

    /// Takes the next message, or waits for it.
    pub fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<T, End>> {
        self.poll(cx, |state| state.pop())
    }

    /// Waits until there is a message or the end. Takes nothing.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll(cx, |state| (!state.messages.is_empty()).then_some(()))
            .map(drop)
    }

    fn poll<R>(&self, cx: &mut Context<'_>, look: impl FnOnce(&mut FeedState<T>) -> Option<R>) -> Poll<Result<R, End>> {
        let waker = cx.waker().clone(); // cloned before and dropped after: it is foreign code
        let mut state = self.lock();
        if let Some(found) = look(&mut state) {
            return Poll::Ready(Ok(found));
        }
        if let Some(end) = state.end() {
            return Poll::Ready(Err(end));
        }
        let _old = state.waker.replace(waker);
        drop(state);
        Poll::Pending
    }

    /// Forgets the waiting receiver.
    pub fn stop_waiting(&self) {
        let _old = self.lock().waker.take();
    }

    /// Subscribes to a topic. Returns false if the receiver is gone, or it is subscribed already.
    pub fn join(self: &Arc<Self>, topic: &Arc<Topic<T>>) -> bool {
        let mut entered = topic.lock();
        let mut state = self.lock();
        if state.left || state.topics.iter().any(|(joined, _)| Arc::ptr_eq(joined, topic)) {
            return false;
        }
        // A topic that was closed adds nothing.
        if !entered.closed {
            state.sources += 1;
            state.topics.push((Arc::clone(topic), entered.place(self)));
        }
        true
    }

    /// Unsubscribes from a topic. Queued messages of the topic stay. Returns false if the feed was not subscribed.
    pub fn part(self: &Arc<Self>, topic: &Arc<Topic<T>>) -> bool {
        let mut entered = topic.lock();
        let mut state = self.lock();
        let Some(index) = state.topics.iter().position(|(joined, _)| Arc::ptr_eq(joined, topic)) else {
            return false;
        };
        let (_, slot) = state.topics.swap_remove(index);
        let waker = entered.take(slot, self).and_then(|_| state.lose_source());
        drop((state, entered));
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Ends the receiver: leaves every topic and drops the messages in the queue.
    pub fn leave(self: &Arc<Self>) {
        let mut state = self.lock();
        state.left = true;
        let topics = mem::take(&mut state.topics);
        let _messages = mem::take(&mut state.messages);
        let _waker = state.waker.take();
        drop(state);
        for (topic, slot) in topics {
            topic.remove(slot, self);
        }
    }

    /// Counts one more direct pusher.
    pub fn add_source(&self) {
        self.lock().sources += 1;
    }

    /// Counts one source less.
    pub fn remove_source(&self) {
        if let Some(waker) = self.lose_source() {
            waker.wake();
        }
    }

    /// Does the same, and returns the waker to wake after all locks are released.
    fn lose_source(&self) -> Option<Waker> {
        self.lock().lose_source()
    }

    /// Changes the limit of messages in the queue (at least one). Those beyond a smaller one stay.
    pub fn set_bound(&self, bound: usize) {
        self.lock().bound = bound.max(1);
    }

    /// The number of messages in the queue.
    pub fn len(&self) -> usize {
        self.lock().messages.len()
    }

    /// Whether no message is in the queue.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of messages that the receiver did not get for lack of room.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Whether pushed messages can no longer be received.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.left || state.too_slow
    }

    /// The reason why no more messages will come. Some may still be in the queue.
    pub fn ended(&self) -> Option<End> {
        self.lock().end()
    }
}

impl<T> std::fmt::Debug for Feed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("Feed")
            .field("len", &state.messages.len())
            .field("bound", &state.bound)
            .field("policy", &state.policy)
            .field("dropped", &state.dropped)
            .finish_non_exhaustive()
    }
}

/// A set of feeds, each of which gets every published message.
///
/// ```
/// use osier_queue::topic::{Feed, Policy, Topic};
/// use std::sync::Arc;
///
/// let topic = Arc::new(Topic::new());
/// let feed = Arc::new(Feed::new(8, Policy::DropOldest, 0));
/// assert!(feed.join(&topic));
/// assert_eq!(topic.publish("willow"), 1);
/// assert_eq!(feed.try_receive(), Ok(Some("willow")));
/// feed.leave(); // until then the two hold each other
/// ```
pub struct Topic<T> {
    state: Mutex<TopicState<T>>,
}

struct TopicState<T> {
    /// Feeds by slot. A free slot is None, and listed in `free`.
    slots: Vec<Option<Arc<Feed<T>>>>,
    free: Vec<usize>,
    /// Whether publishing has ended. Once true, always true.
    closed: bool,
    published: u64,
    /// Messages that a feed refused or displaced, counted once for each feed.
    dropped: u64,
    /// Wakers of the publication under way. Empty otherwise, and kept for its room.
    wakers: Vec<Waker>,
}

impl<T> Topic<T> {
    /// A topic without subscribers.
    pub fn new() -> Self {
        let state = TopicState {
            slots: Vec::new(),
            free: Vec::new(),
            closed: false,
            published: 0,
            dropped: 0,
            wakers: Vec::new(),
        };
        Topic {
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TopicState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empties the slot, if it still holds this feed.
    fn remove(&self, slot: usize, feed: &Arc<Feed<T>>) {
        let mut state = self.lock();
        let removed = state.take(slot, feed);
        drop(state);
        if let Some(feed) = removed {
            feed.remove_source();
        }
    }

    /// Ends all feeds that have no other source. Their queued messages can still be received.
    pub fn close(self: &Arc<Self>) {
        let mut state = self.lock();
        state.closed = true;
        let slots = mem::take(&mut state.slots);
        state.free = Vec::new();
        drop(state);
        wake_each(slots.into_iter().flatten().filter_map(|feed| {
            feed.lock().topics.retain(|(joined, _)| !Arc::ptr_eq(joined, self));
            feed.lose_source()
        }));
    }

    /// The number of subscribed feeds.
    pub fn subscribers(&self) -> usize {
        let state = self.lock();
        state.slots.len() - state.free.len()
    }

    /// The number of published messages.
    pub fn published(&self) -> u64 {
        self.lock().published
    }

    /// The number of messages that a subscriber did not get, counted once for each subscriber.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }
}

impl<T> TopicState<T> {
    /// Gives the feed a slot.
    fn place(&mut self, feed: &Arc<Feed<T>>) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(Arc::clone(feed));
        slot
    }

    fn take(&mut self, slot: usize, feed: &Arc<Feed<T>>) -> Option<Arc<Feed<T>>> {
        let place = self.slots.get_mut(slot)?;
        if !place.as_ref().is_some_and(|there| Arc::ptr_eq(there, feed)) {
            return None;
        }
        self.free.push(slot);
        place.take()
    }
}

impl<T: Clone> Topic<T> {
    /// Pushes a clone of `value` into every feed. Returns the number of feeds that took it, including those that dropped another message for
    /// it.
    ///
    /// # Panics
    ///
    /// If `T::clone` panics: the feeds before it have the message, and their receivers are woken. If a receiver's waker panics: all feeds
    /// have the message, and all receivers are woken.
    pub fn publish(&self, value: T) -> usize {
        let mut owed = Owed::default(); // declared before the lock is held, so settled after it is released
        let mut state = self.lock();
        if state.closed {
            return 0;
        }
        let state_now = &mut *state;
        state_now.published += 1;
        owed.wakers = mem::take(&mut state_now.wakers);
        let mut taken = 0;
        for slot in 0..state_now.slots.len() {
            let Some(feed) = &state_now.slots[slot] else { continue };
            let copy = value.clone();
            let (outcome, waker, left_over) = feed.lock().push(copy);
            owed.wakers.extend(waker);
            owed.displaced.extend(left_over);
            match outcome {
                Pushed::Queued => taken += 1,
                Pushed::Displaced => {
                    taken += 1;
                    state_now.dropped += 1;
                }
                Pushed::Dropped => state_now.dropped += 1,
                Pushed::Ended => {
                    state_now.dropped += 1;
                    owed.ended.extend(state_now.slots[slot].take());
                    state_now.free.push(slot);
                }
            }
        }
        drop(state);
        owed.settle();
        if (1..=KEPT_WAKERS).contains(&owed.wakers.capacity()) {
            let mut state = self.lock();
            if state.wakers.capacity() < owed.wakers.capacity() {
                state.wakers = mem::take(&mut owed.wakers);
            }
        }
        taken
    }
}

/// The work that a publication must do after both locks are released, even if a panic of `T::clone` has cut it short.
struct Owed<T> {
    wakers: Vec<Waker>,
    /// Displaced messages. Like `ended`, it allocates only for slow receivers.
    displaced: Vec<T>,
    ended: Vec<Arc<Feed<T>>>,
}

impl<T> Owed<T> {
    fn settle(&mut self) {
        self.displaced.clear();
        wake_each(self.sleepers());
    }

    fn sleepers(&mut self) -> impl Iterator<Item = Waker> {
        let ended = self.ended.drain(..).filter_map(|feed| feed.lose_source());
        self.wakers.drain(..).chain(ended)
    }
}

impl<T> Default for Owed<T> {
    fn default() -> Self {
        Owed {
            wakers: Vec::new(),
            displaced: Vec::new(),
            ended: Vec::new(),
        }
    }
}

impl<T> Drop for Owed<T> {
    fn drop(&mut self) {
        // Something is left only after a panic of `T::clone` or `T::drop`.
        wake_each_unwinding(self.sleepers());
    }
}

impl<T> Default for Topic<T> {
    fn default() -> Self {
        Topic::new()
    }
}

impl<T> std::fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("Topic")
            .field("subscribers", &(state.slots.len() - state.free.len()))
            .field("published", &state.published)
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}
