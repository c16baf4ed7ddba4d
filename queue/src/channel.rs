//! The channel: values in a queue, from any number of senders to any number of receivers, bounded or not.
//!
//! It is the core of the runtime's channels and used by them alone; they count its senders and receivers and wrap the
//! `poll_` functions into futures.
//!
//! ```text
//!   senders: WaitList     state: Mutex { queue }     receivers: WaitList     watchers: WaitList
//!   for room              │ a │ b │ c │ d │ · │      for a value             for the end
//!                          promised  free   held
//! ```
//!
//! # Protocol
//! - The mutex guards everything; it is held for a few instructions and while the queue's buffer grows (to the bound at most;
//!   that of an unbounded one like a `VecDeque`, and it does not shrink). No foreign code runs under it: wakers are cloned
//!   before and woken after, values are dropped after. A send and a receive that need not wait take it once each, and nothing
//!   else is atomic.
//! - Waiters enter the lists under the mutex, when what they wait for is not there, and are granted under it, so that nobody
//!   who waits is missed and no fence is needed to see that nobody does. It comes before the lists' own locks.
//! - A grant to a receiver is the promise of one value: the value stays in the queue, but nobody else takes the last
//!   `promised` ones. A grant to a sender is a place: `held`, as those of permits are. So nobody overtakes those who wait, and a waiter
//!   that is dropped gives back a number, not a value; it goes to the next in the list.
//! - Who sends a value or frees a place grants once at most. Hence: receivers wait only while every value is promised,
//!   senders only while no place is free.
//! - The end of either side is a flag under the mutex, behind which nobody enters; then those who are in the list are woken with
//!   the word `ENDED`, and look again. Receivers are told only when the queue is empty: as long as a value is promised, who waits
//!   behind may still get it.

use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::waiters::{Standing, WaitList, Waiter};
use crate::wakers::wake_both;

/// The word of a waiter that was woken to see that there is nothing more to wait for. That of all others is 0.
const ENDED: u64 = 1;

/// Nobody can send any more: there is no receiver, or it was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// The queue is empty, and nobody can send any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained;

/// Why a value was not sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no free place.
    Full,
    /// Nobody can send any more.
    Closed,
}

/// Why no value was received at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nothing {
    /// There is none for this receiver now.
    Yet,
    /// There will be none.
    Drained,
}

/// A queue of values, and those who wait for one, or for room.
///
/// ```
/// use osier_queue::Channel;
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// let channel = Channel::new(Some(1));
/// let mut waiter = pin!(channel.receiver());
/// let mut cx = Context::from_waker(Waker::noop());
/// assert!(channel.poll_receive(waiter.as_mut(), &mut cx).is_pending());
/// assert!(channel.try_send(&mut Some("willow")).is_ok());
/// assert_eq!(channel.poll_receive(waiter, &mut cx), Poll::Ready(Ok("willow")));
/// ```
pub struct Channel<T> {
    state: Mutex<State<T>>,
    /// Who waits for a value.
    receivers: WaitList,
    /// Who waits for room.
    senders: WaitList,
    /// Who waits until nobody can send any more.
    watchers: WaitList,
    /// Handles, not waiters. The thread that makes one of them zero says so in the state.
    sender_count: AtomicUsize,
    receiver_count: AtomicUsize,
    bound: Option<usize>,
}

struct State<T> {
    queue: VecDeque<T>,
    /// How many of the values are for receivers that were granted one and have not come for it yet.
    promised: usize,
    /// How many places are for permits, and for senders that were granted one.
    held: usize,
    /// How many values and held places there may be.
    places: usize,
    /// No more sends, but by permits. Never false again.
    closed: bool,
    /// There is no sender. Never false again.
    without_senders: bool,
    /// There is no receiver. Never false again.
    without_receivers: bool,
}

impl<T> State<T> {
    #[inline]
    fn has_room(&self) -> bool {
        self.queue.len() + self.held < self.places
    }

    #[inline]
    fn has_value(&self) -> bool {
        self.queue.len() > self.promised
    }

    fn is_drained(&self) -> bool {
        self.queue.is_empty() && (self.without_senders || (self.closed && self.held == 0))
    }
}

impl<T> Channel<T> {
    /// A channel with one sender and one receiver that holds at most `bound` values, or any number.
    pub fn new(bound: Option<usize>) -> Self {
        let state = State {
            queue: VecDeque::new(),
            promised: 0,
            held: 0,
            places: bound.unwrap_or(usize::MAX),
            closed: false,
            without_senders: false,
            without_receivers: false,
        };
        Self {
            state: Mutex::new(state),
            receivers: WaitList::new(),
            senders: WaitList::new(),
            watchers: WaitList::new(),
            sender_count: AtomicUsize::new(1),
            receiver_count: AtomicUsize::new(1),
            bound,
        }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("nothing panics while it is held")
    }

    /// A node for [`poll_receive`](Self::poll_receive).
    #[inline]
    pub fn receiver(&self) -> Waiter<'_> {
        self.receivers.waiter()
    }

    /// A node for [`poll_send`](Self::poll_send) and [`poll_reserve`](Self::poll_reserve).
    #[inline]
    pub fn sender(&self) -> Waiter<'_> {
        self.senders.waiter()
    }

    /// A node for [`poll_closed`](Self::poll_closed). Dropping it stops the wait, and there is nothing to give back.
    pub fn watcher(&self) -> Waiter<'_> {
        self.watchers.waiter()
    }

    /// The list of its [`receiver`](Self::receiver)s.
    pub fn receivers(&self) -> &WaitList {
        &self.receivers
    }

    /// Takes a value, the oldest one, or waits for it.
    #[inline]
    pub fn poll_receive(&self, mut waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<Result<T, Drained>> {
        if waiter.is_idle() {
            let state = self.lock();
            if state.has_value() {
                return Poll::Ready(Ok(self.take(state)));
            }
        } else {
            match waiter.as_mut().standing(cx.waker()) {
                Standing::Waits => return Poll::Pending,
                Standing::Granted(ENDED) | Standing::Idle => {}
                Standing::Granted(_) => return Poll::Ready(Ok(self.take_promised())),
            }
        }
        self.wait_for_value(waiter, cx)
    }

    fn wait_for_value(&self, waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<Result<T, Drained>> {
        let waker = cx.waker().clone(); // declared before the lock, so that it is dropped after it
        let state = self.lock();
        if state.has_value() {
            return Poll::Ready(Ok(self.take(state)));
        }
        if state.is_drained() {
            return Poll::Ready(Err(Drained));
        }
        waiter.join(waker);
        Poll::Pending
    }

    /// Takes a value if there is one that is not promised.
    ///
    /// # Errors
    ///
    /// If there is none.
    #[inline]
    pub fn try_receive(&self) -> Result<T, Nothing> {
        let state = self.lock();
        if state.has_value() {
            Ok(self.take(state))
        } else if state.is_drained() {
            Err(Nothing::Drained)
        } else {
            Err(Nothing::Yet)
        }
    }

    /// To be called before a receiver's waiter is dropped, or put to another use: what it was promised goes to the next.
    #[inline]
    pub fn cancel_receive(&self, waiter: Pin<&mut Waiter<'_>>) {
        if waiter.is_idle() {
            return;
        }
        if let Some(word) = waiter.take_back()
            && word != ENDED
        {
            let mut state = self.lock();
            state.promised -= 1;
            let next = self.promise(&mut state);
            drop(state);
            wake(next);
        }
    }

    /// Sends the value, or waits for room. It is left where it is unless it is sent.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[inline]
    pub fn poll_send(
        &self,
        value: &mut Option<T>,
        mut waiter: Pin<&mut Waiter<'_>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Closed>> {
        assert!(
            value.is_some(),
            "a send without a value: it was polled again after it was ready"
        );
        if waiter.is_idle() {
            let state = self.lock();
            if !state.closed && state.has_room() {
                self.put(state, value);
                return Poll::Ready(Ok(()));
            }
        } else {
            match waiter.as_mut().standing(cx.waker()) {
                Standing::Waits => return Poll::Pending,
                Standing::Granted(ENDED) | Standing::Idle => {}
                Standing::Granted(_) => {
                    let mut state = self.lock();
                    if state.closed {
                        self.release(state);
                        return Poll::Ready(Err(Closed));
                    }
                    state.held -= 1;
                    self.put(state, value);
                    return Poll::Ready(Ok(()));
                }
            }
        }
        self.wait_for_room(waiter, cx, |state| self.put(state, value))
    }

    /// Takes a place, or waits for one. It is for [`send_held`](Self::send_held) or [`release_held`](Self::release_held).
    pub fn poll_reserve(&self, mut waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        match waiter.as_mut().standing(cx.waker()) {
            Standing::Waits => return Poll::Pending,
            Standing::Granted(ENDED) | Standing::Idle => {}
            Standing::Granted(_) => {
                let state = self.lock();
                if state.closed {
                    self.release(state);
                    return Poll::Ready(Err(Closed));
                }
                return Poll::Ready(Ok(()));
            }
        }
        self.wait_for_room(waiter, cx, |mut state| state.held += 1)
    }

    fn wait_for_room(
        &self,
        waiter: Pin<&mut Waiter<'_>>,
        cx: &mut Context<'_>,
        use_place: impl FnOnce(MutexGuard<'_, State<T>>),
    ) -> Poll<Result<(), Closed>> {
        let waker = cx.waker().clone(); // declared before the lock, so that it is dropped after it
        let state = self.lock();
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        if state.has_room() {
            use_place(state);
            return Poll::Ready(Ok(()));
        }
        waiter.join(waker);
        Poll::Pending
    }

    /// Sends the value if there is room. It is left where it is unless it is sent.
    ///
    /// # Errors
    ///
    /// If it was not.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[inline]
    pub fn try_send(&self, value: &mut Option<T>) -> Result<(), Refused> {
        assert!(value.is_some(), "a send without a value");
        let state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if !state.has_room() {
            return Err(Refused::Full);
        }
        self.put(state, value);
        Ok(())
    }

    /// Sends the value to a place that was reserved, also if the channel was closed since. It is left where it is unless it
    /// is sent.
    ///
    /// # Errors
    ///
    /// If there is no receiver any more; the place is given back.
    ///
    /// # Panics
    ///
    /// If there is no value.
    pub fn send_held(&self, value: &mut Option<T>) -> Result<(), Closed> {
        assert!(value.is_some(), "a send without a value");
        let mut state = self.lock();
        if state.without_receivers {
            self.release(state);
            return Err(Closed);
        }
        state.held -= 1;
        self.put(state, value);
        Ok(())
    }

    /// Gives a place back that was reserved.
    pub fn release_held(&self) {
        self.release(self.lock());
    }

    /// To be called before a sender's waiter is dropped: the place that it was granted goes to the next.
    #[inline]
    pub fn cancel_send(&self, waiter: Pin<&mut Waiter<'_>>) {
        if waiter.is_idle() {
            return;
        }
        if let Some(word) = waiter.take_back()
            && word != ENDED
        {
            self.release(self.lock());
        }
    }

    /// Waits until nobody can send any more.
    pub fn poll_closed(&self, mut waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<()> {
        if let Standing::Waits = waiter.as_mut().standing(cx.waker()) {
            return Poll::Pending;
        }
        let waker = cx.waker().clone(); // declared before the lock, so that it is dropped after it
        let state = self.lock();
        if state.closed {
            return Poll::Ready(());
        }
        waiter.join(waker);
        Poll::Pending
    }

    /// Lets nobody send any more but those who hold a place. What was sent can still be received.
    pub fn close(&self) {
        self.close_locked(self.lock());
    }

    fn close_locked(&self, mut state: MutexGuard<'_, State<T>>) {
        if mem::replace(&mut state.closed, true) {
            return;
        }
        let drained = state.is_drained();
        drop(state);
        let receivers = || {
            if drained {
                end(&self.receivers);
            }
        };
        let watchers = || {
            self.watchers.wake_all();
        };
        wake_both(|| end(&self.senders), || wake_both(watchers, receivers));
    }

    /// There is one sender more. The caller is one, so there was one before.
    pub fn add_sender(&self) {
        self.sender_count.fetch_add(1, Ordering::Relaxed);
    }

    /// There is one sender less: a caller that no longer sends, nor waits, nor holds a place.
    pub fn remove_sender(&self) {
        if self.sender_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut state = self.lock();
            state.without_senders = true;
            let drained = state.is_drained();
            drop(state);
            if drained {
                end(&self.receivers);
            }
        }
    }

    /// There is one receiver more. The caller is one, so there was one before.
    pub fn add_receiver(&self) {
        self.receiver_count.fetch_add(1, Ordering::Relaxed);
    }

    /// There is one receiver less: a caller that no longer receives nor waits. The last one closes the channel and drops
    /// what is in it.
    pub fn remove_receiver(&self) {
        if self.receiver_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut state = self.lock();
            state.without_receivers = true;
            let _values = mem::take(&mut state.queue); // dropped last: a value's destructor may panic
            self.close_locked(state);
        }
    }

    /// Whether nobody can send any more: there is no receiver, or it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether nobody will send any more, as a receiver sees it: there is no sender, or it was closed.
    pub fn is_ending(&self) -> bool {
        let state = self.lock();
        state.closed || state.without_senders
    }

    /// How many values are in the queue, promised ones among them.
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values it can hold, if not any number.
    pub fn bound(&self) -> Option<usize> {
        self.bound
    }

    /// How many places are free and held by nobody, if not any number.
    pub fn room(&self) -> Option<usize> {
        let bound = self.bound?;
        let state = self.lock();
        Some(bound - state.queue.len() - state.held)
    }

    /// Takes the oldest value and grants its place.
    #[inline]
    fn take(&self, mut state: MutexGuard<'_, State<T>>) -> T {
        let value = state.queue.pop_front().expect("there is a value");
        let next = self.grant_place(&mut state);
        drop(state);
        wake(next);
        value
    }

    fn take_promised(&self) -> T {
        let mut state = self.lock();
        state.promised -= 1;
        let value = state.queue.pop_front().expect("a promised value is there");
        let next = self.grant_place(&mut state);
        let drained = state.is_drained();
        drop(state);
        match drained {
            true => wake_both(|| wake(next), || end(&self.receivers)), // who waited behind this promise
            false => wake(next),
        }
        value
    }

    /// Appends the value, to a place of the caller's, and promises it.
    #[inline]
    fn put(&self, mut state: MutexGuard<'_, State<T>>, value: &mut Option<T>) {
        if let Some(value) = value.take() {
            // always: the callers have looked before they took the lock
            state.queue.push_back(value);
        }
        let next = self.promise(&mut state);
        drop(state);
        wake(next);
    }

    /// Frees a held place and grants it to the next.
    fn release(&self, mut state: MutexGuard<'_, State<T>>) {
        state.held -= 1;
        let next = self.grant_place(&mut state);
        let drained = state.closed && state.is_drained();
        drop(state);
        match drained {
            true => wake_both(|| wake(next), || end(&self.receivers)),
            false => wake(next),
        }
    }

    /// Promises a value that is free to the receiver that waits longest.
    #[inline]
    fn promise(&self, state: &mut State<T>) -> Option<Waker> {
        let waker = self.receivers.grant_one()?;
        state.promised += 1;
        Some(waker)
    }

    /// Grants a place that is free to the sender that waits longest.
    #[inline]
    fn grant_place(&self, state: &mut State<T>) -> Option<Waker> {
        let waker = self.senders.grant_one()?;
        state.held += 1;
        Some(waker)
    }
}

#[inline]
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Wakes all who wait, to see that there is nothing more to wait for.
fn end(waiters: &WaitList) {
    waiters.wake_where(|_| (), |(), _| Some(ENDED));
}

impl<T> std::fmt::Debug for Channel<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("Channel")
            .field("len", &state.queue.len())
            .field("bound", &self.bound)
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}
