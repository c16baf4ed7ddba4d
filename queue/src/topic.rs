//! The topic: what is published goes to every subscriber's own queue; the feed is that queue.
//!
//! ```text
//!                              ┌─▶ Feed { first │ rest… }  ◀── its one receiver
//!   publish ─▶ Topic { slots } ┼─▶ Feed
//!                              └─▶ Feed  ◀── a feed may be in several topics, and be pushed to directly
//! ```
//!
//! # Protocol
//! - Both locks are held for a few instructions a feed, and no foreign code runs under them but `T::clone` (which must not
//!   publish): wakers are woken, and values that were displaced are dropped, after both are released. The topic's lock comes
//!   before the feed's.
//! - A publication pushes to all feeds under the topic's lock. So **all subscribers of a topic see its messages in one order**,
//!   and who subscribes or leaves meanwhile is before or after the whole of it.
//! - A feed has one receiver, hence one waker, which is kept under the feed's lock: registered when the queue is found empty and
//!   taken by the push that makes it not so. A receiver that gives up may leave its waker: a wake-up too many.
//! - The messages are in an [`InlineQueue`]. So the queue of a receiver that keeps up never allocates, and that of an idle one
//!   is no more than the feed itself.
//! - A feed knows the topics it is in, and a topic its feeds. [`Feed::join`] enters the topic first and notes it in the feed
//!   second; [`Feed::leave`] forbids the second and undoes what was noted, so a join that comes too late undoes itself.
//! - A feed counts its sources (topics that are not closed, and whoever pushes directly). Without any it has ended, which the
//!   receiver hears when the queue is empty.

use std::mem;
use std::sync::Arc;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use crate::InlineQueue;
use crate::sync::{Mutex, MutexGuard};
use crate::wakers::{wake_each, wake_each_unwinding};

/// What a feed does with a message for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The oldest message makes room: the receiver sees the latest ones.
    #[default]
    DropOldest,
    /// The message is not taken: the receiver sees the first ones.
    DropNewest,
    /// The feed ends: its receiver gets what is in the queue, and then hears that it was too slow.
    Disconnect,
}

/// Why a feed gives no more messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Nobody can push any more.
    Closed,
    /// There was no room for a message, and the policy is to disconnect.
    TooSlow,
}

/// What became of a message that was pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// It is in the queue.
    Queued,
    /// It is in the queue, and the oldest one is not any more.
    Displaced,
    /// There was no room for it.
    Dropped,
    /// The feed has ended, now or before, or its receiver is gone.
    Ended,
}

/// Wakers kept for the next publication; a topic that once had more subscribers gives the memory back.
const KEPT_WAKERS: usize = 16 << 10;

/// The queue of one subscriber.
pub struct Feed<T> {
    state: Mutex<FeedState<T>>,
}

struct FeedState<T> {
    messages: InlineQueue<T>,
    /// Of the receiver that found the queue empty.
    waker: Option<Waker>,
    /// The most messages in the queue.
    bound: usize,
    policy: Policy,
    /// The receiver is gone. Never false again.
    left: bool,
    /// A message found no room, and the policy was to disconnect. Never false again.
    too_slow: bool,
    /// How many there are who may push.
    sources: usize,
    /// Messages that the receiver did not get.
    dropped: u64,
    /// Where it is subscribed, and in which slot.
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

    /// Takes the message or does not; what is to be woken and dropped when all locks are released is returned.
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
    /// An empty queue for at most `bound` messages (at least one), with `sources` that push to it beside the topics it joins.
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
        // A panic of `T::clone` comes before any change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message into this queue alone.
    pub fn push(&self, value: T) -> Pushed {
        let (outcome, waker, _displaced) = self.lock().push(value);
        if let Some(waker) = waker {
            waker.wake();
        }
        outcome
    }

    /// The next message, if there is one; else why there will be none, if there will be none.
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

    /// Waits until there is a message, or the end, and takes nothing.
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

    /// Forgets who waits.
    pub fn stop_waiting(&self) {
        let _old = self.lock().waker.take();
    }

    /// Subscribes to a topic. `false`: the receiver is gone, or it is subscribed there already.
    pub fn join(self: &Arc<Self>, topic: &Arc<Topic<T>>) -> bool {
        {
            let state = self.lock();
            if state.left || state.topics.iter().any(|(joined, _)| Arc::ptr_eq(joined, topic)) {
                return false;
            }
        }
        let Some(slot) = topic.enter(self) else { return true }; // a topic that was closed adds nothing
        let mut state = self.lock();
        if !state.left {
            state.topics.push((topic.clone(), slot));
            return true;
        }
        drop(state);
        topic.remove(slot, self);
        false
    }

    /// Unsubscribes from a topic; what came from there stays in the queue.
    pub fn part(self: &Arc<Self>, topic: &Arc<Topic<T>>) -> bool {
        let mut state = self.lock();
        let Some(index) = state.topics.iter().position(|(joined, _)| Arc::ptr_eq(joined, topic)) else {
            return false;
        };
        let (topic, slot) = state.topics.swap_remove(index);
        drop(state);
        topic.remove(slot, self);
        true
    }

    /// The receiver goes: out of every topic, and what is in the queue is dropped.
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

    /// There is one more who pushes directly.
    pub fn add_source(&self) {
        self.lock().sources += 1;
    }

    /// There is one source less.
    pub fn remove_source(&self) {
        if let Some(waker) = self.lose_source() {
            waker.wake();
        }
    }

    /// The same; who is to be woken when all locks are released is returned.
    fn lose_source(&self) -> Option<Waker> {
        let mut state = self.lock();
        state.sources -= 1;
        match state.sources {
            0 => state.waker.take(),
            _ => None,
        }
    }

    /// How many messages are in the queue.
    pub fn len(&self) -> usize {
        self.lock().messages.len()
    }

    /// Whether no message is in the queue.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages the receiver did not get because there was no room.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Whether nobody will receive what is pushed.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.left || state.too_slow
    }

    /// Why there will be no more messages, though some may be in the queue.
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

/// Everybody who is to get what is published.
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
    /// A free slot is `None`, and in `free`.
    slots: Vec<Option<Arc<Feed<T>>>>,
    free: Vec<usize>,
    /// Nobody publishes any more. Never false again.
    closed: bool,
    published: u64,
    /// Messages that some feed did not take, or gave up for a later one, one for each feed.
    dropped: u64,
    /// Empty but while somebody publishes; kept for its room.
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

    /// `None`: it is closed.
    fn enter(&self, feed: &Arc<Feed<T>>) -> Option<usize> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        feed.add_source();
        let feed = Some(feed.clone());
        Some(match state.free.pop() {
            Some(slot) => {
                state.slots[slot] = feed;
                slot
            }
            None => {
                state.slots.push(feed);
                state.slots.len() - 1
            }
        })
    }

    /// Empties the slot, if it is still this feed's.
    fn remove(&self, slot: usize, feed: &Arc<Feed<T>>) {
        let mut state = self.lock();
        let removed = state.take(slot, feed);
        drop(state);
        if let Some(feed) = removed {
            feed.remove_source();
        }
    }

    /// Ends all feeds that have no other source. What is in their queues can still be received.
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

    /// How many feeds are subscribed.
    pub fn subscribers(&self) -> usize {
        let state = self.lock();
        state.slots.len() - state.free.len()
    }

    /// How many messages were published.
    pub fn published(&self) -> u64 {
        self.lock().published
    }

    /// How many messages some subscriber did not get, counted once for each.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }
}

impl<T> TopicState<T> {
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
    /// Puts a clone of `value` into every feed. Returns into how many; a feed that dropped another message for it counts.
    ///
    /// # Panics
    ///
    /// If `T::clone` does: the feeds before it have the message, and their receivers are woken. If a receiver's waker does: all have
    /// it, and are woken.
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

/// What a publication owes when both locks are released: also one that a panic of `T::clone` has cut off in the middle.
struct Owed<T> {
    wakers: Vec<Waker>,
    /// Allocates for slow receivers alone, as `ended` does.
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
        // There is something when `T::clone` or `T::drop` has panicked.
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
