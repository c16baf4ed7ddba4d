//! The channel: a queue of values from any number of senders to any number of receivers, bounded or unbounded.
//!
//! It is the core of the runtime's channels. They count senders and receivers, and wrap the `poll_` functions into futures.
//!
//! ```text
//!   senders: WaitList     state: Mutex { queue }     receivers: WaitList     watchers: WaitList
//!   for room              │ a │ b │ c │ d │ · │      for a value             for the end
//!                          promised  free   held
//! ```
//!
//! # Protocol
//! - The mutex guards everything. It is held for a few instructions, and while the queue's buffer grows: up to the bound, or as a
//!   `VecDeque` grows if there is no bound. The buffer does not shrink. No foreign code runs under the mutex: wakers are cloned
//!   before and woken after, values are dropped after. A send or a receive that does not wait takes the mutex once.
//! - The part of a send or a receive that does not wait is inlined into the caller. The parts around a wait are functions of their own.
//!   An attempt (`try_send`, `receive_now`) that fails has taken the mutex, and the poll behind it takes it again.
//! - A receiver that finds no value by the hint `has_values` makes its waker ready and takes the mutex once, to enter the list. It decides
//!   nothing by the hint: under the mutex it looks again. A hint that is late costs a second take of the mutex or a waker.
//! - A waiter enters a list under the mutex, when it finds no value or no room, and is granted under it. So no waiter is missed, and
//!   no fence is needed to see that nobody waits. The mutex comes before the lists' own locks.
//! - A grant to a receiver promises one value. The value stays in the queue, but nobody else takes one of the last `promised`
//!   values. A grant to a sender is a place, counted in `held` like the places of permits. So nobody overtakes a waiter, and a
//!   dropped waiter gives back a number, not a value; it goes to the next in the list.
//! - A sent value or a freed place makes one grant at most. Hence receivers wait only while every value is promised, and senders
//!   only while no place is free.
//! - The end of either side is a flag under the mutex. After it is set nobody enters a list. Then the waiters in the list are woken
//!   with the word `ENDED` and look again. Receivers are woken only when the queue is empty: while a value is promised, a
//!   receiver further back may still get it.

use std::collections::VecDeque;
use std::hint;
use std::mem;
use std::pin::Pin;
use std::sync::TryLockError;
use std::task::{Context, Poll, Waker};

use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::waiters::{Standing, WaitList, Waiter};
use crate::wakers::wake_both;

/// The word of a waiter that was woken because the other side has ended. Every other waiter has the word 0.
const ENDED: u64 = 1;

/// How often a thread tries a held mutex before it blocks. It spins 16 times before the first try and twice as long before each next. Loom
/// does not spin.
const TRIES: u32 = if cfg!(loom) { 0 } else { 7 };

/// The channel takes no more values: it has no receiver, or it was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// The queue is empty, and no more values will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained;

/// The reason why a value was not sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no free place.
    Full,
    /// The channel takes no more values.
    Closed,
}

/// The reason why no value was received at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nothing {
    /// There is no value for this receiver now.
    Yet,
    /// There will be no more values.
    Drained,
}

/// A queue of values, with lists of those who wait for a value or for room.
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
    /// Whether the queue has values: a hint. Written under the mutex, read without it.
    has_values: AtomicBool,
    /// Receivers that wait for a value.
    receivers: WaitList,
    /// Senders that wait for room.
    senders: WaitList,
    /// Watchers that wait until the channel takes no more values.
    watchers: WaitList,
    /// Sender handles, not waiters. The thread that makes this or the receivers' count zero records it in the state.
    sender_count: AtomicUsize,
    receiver_count: AtomicUsize,
    bound: Option<usize>,
}

struct State<T> {
    queue: VecDeque<T>,
    /// Values promised to receivers that have not taken them yet.
    promised: usize,
    /// Places held by permits, and by senders that were granted one.
    held: usize,
    /// Limit of values and held places together.
    places: usize,
    /// Whether only permits may send. Once true, always true.
    closed: bool,
    /// Whether there is no sender. Once true, always true.
    without_senders: bool,
    /// Whether there is no receiver. Once true, always true.
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
    /// A channel with one sender and one receiver. It holds at most `bound` values, or any number.
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
            has_values: AtomicBool::new(false),
            receivers: WaitList::new(),
            senders: WaitList::new(),
            watchers: WaitList::new(),
            sender_count: AtomicUsize::new(1),
            receiver_count: AtomicUsize::new(1),
            bound,
        }
    }

    #[inline(always)]
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        match self.state.try_lock() {
            Ok(state) => state,
            Err(taken) => self.lock_contended(taken),
        }
    }

    /// Waits for the mutex, longer with each try. Backing off lets the holder take it several times in a row, so the cache lines move less.
    #[cold]
    fn lock_contended<'a>(&'a self, taken: TryLockError<MutexGuard<'a, State<T>>>) -> MutexGuard<'a, State<T>> {
        drop(taken);
        for round in 0..TRIES {
            for _ in 0..16 << round {
                hint::spin_loop();
            }
            if let Ok(state) = self.state.try_lock() {
                return state;
            }
        }
        self.state.lock().expect("nothing panics while it is held")
    }

    /// A node for [`poll_receive`](Self::poll_receive).
    #[inline(always)]
    pub fn receiver(&self) -> Waiter<'_> {
        self.receivers.waiter()
    }

    /// A node for [`poll_send`](Self::poll_send) and [`poll_reserve`](Self::poll_reserve).
    #[inline(always)]
    pub fn sender(&self) -> Waiter<'_> {
        self.senders.waiter()
    }

    /// A node for [`poll_closed`](Self::poll_closed). Dropping it stops the wait, and there is nothing to give back.
    pub fn watcher(&self) -> Waiter<'_> {
        self.watchers.waiter()
    }

    /// The list that [`receiver`](Self::receiver) nodes join.
    pub fn receivers(&self) -> &WaitList {
        &self.receivers
    }

    /// Takes the oldest value, or waits for one.
    #[inline(always)]
    pub fn poll_receive(&self, waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<Result<T, Drained>> {
        if waiter.is_idle()
            && let Some(value) = self.receive_now()
        {
            return Poll::Ready(Ok(value));
        }
        self.poll_promised(waiter, cx)
    }

    /// Takes a value as the first poll of a wait does, if there is one that is not promised. It goes by the hint: a value that has only just
    /// been sent may be left to the poll.
    #[inline(always)]
    pub fn receive_now(&self) -> Option<T> {
        // Without a value the mutex is taken once, behind this, where the waker is there.
        if !self.has_values.load(Ordering::Relaxed) {
            return None;
        }
        self.try_receive().ok()
    }

    /// The rest of [`poll_receive`](Self::poll_receive): takes a promised value, or waits.
    #[inline(never)]
    fn poll_promised(&self, mut waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<Result<T, Drained>> {
        match waiter.as_mut().standing(cx.waker()) {
            Standing::Waits => Poll::Pending,
            Standing::Granted(ENDED) | Standing::Idle => self.wait_for_value(waiter, cx),
            Standing::Granted(_) => Poll::Ready(Ok(self.take_promised())),
        }
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

    /// Takes a value, if there is one that is not promised.
    ///
    /// # Errors
    ///
    /// When there is none.
    #[inline(always)]
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

    /// Gives up a receiver's wait, so that its promised value goes to the next receiver. Call it before the waiter is dropped or reused.
    #[inline(always)]
    pub fn cancel_receive(&self, waiter: Pin<&mut Waiter<'_>>) {
        if !waiter.is_idle() {
            self.give_back_value(waiter);
        }
    }

    #[inline(never)]
    fn give_back_value(&self, waiter: Pin<&mut Waiter<'_>>) {
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

    /// Sends the value, or waits for room. The value stays in `value` unless it is sent.
    ///
    /// # Panics
    ///
    /// If there is no value.
    #[inline(always)]
    pub fn poll_send(
        &self,
        value: &mut Option<T>,
        waiter: Pin<&mut Waiter<'_>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Closed>> {
        assert!(
            value.is_some(),
            "a send without a value: it was polled again after it was ready"
        );
        if waiter.is_idle() && self.try_send(value).is_ok() {
            return Poll::Ready(Ok(()));
        }
        self.poll_granted(value, waiter, cx)
    }

    /// The rest of [`poll_send`](Self::poll_send): uses a granted place, or waits.
    #[inline(never)]
    fn poll_granted(
        &self,
        value: &mut Option<T>,
        mut waiter: Pin<&mut Waiter<'_>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Closed>> {
        match waiter.as_mut().standing(cx.waker()) {
            Standing::Waits => Poll::Pending,
            Standing::Granted(ENDED) | Standing::Idle => self.wait_for_room(waiter, cx, |state| self.put(state, value)),
            Standing::Granted(_) => {
                let mut state = self.lock();
                if state.closed {
                    self.release(state);
                    return Poll::Ready(Err(Closed));
                }
                state.held -= 1;
                self.put(state, value);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Takes a place, or waits for one. The place is for [`send_held`](Self::send_held) or [`release_held`](Self::release_held).
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

    /// Sends the value if there is room. The value stays in `value` unless it is sent.
    ///
    /// # Errors
    ///
    /// When there is no room, or the channel takes no more values.
    ///
    /// # Panics
    ///
    /// If there is no value.
    #[inline(always)]
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

    /// Sends the value to a reserved place, even if the channel was closed since. The value stays in `value` unless it is sent.
    ///
    /// # Errors
    ///
    /// When there is no receiver any more. The place is given back.
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

    /// Gives a reserved place back.
    pub fn release_held(&self) {
        self.release(self.lock());
    }

    /// Gives up a sender's wait, so that its granted place goes to the next sender. Call it before the waiter is dropped.
    #[inline(always)]
    pub fn cancel_send(&self, waiter: Pin<&mut Waiter<'_>>) {
        if !waiter.is_idle() {
            self.give_back_place(waiter);
        }
    }

    #[inline(never)]
    fn give_back_place(&self, waiter: Pin<&mut Waiter<'_>>) {
        if let Some(word) = waiter.take_back()
            && word != ENDED
        {
            self.release(self.lock());
        }
    }

    /// Waits until the channel takes no more values.
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

    /// Closes the channel: only holders of a place may still send. Values in the queue can still be received.
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

    /// Counts one more sender. The caller is a sender itself, so the count is not zero before.
    pub fn add_sender(&self) {
        self.sender_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one sender less. That sender must neither send, wait nor hold a place any more.
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

    /// Counts one more receiver. The caller is a receiver itself, so the count is not zero before.
    pub fn add_receiver(&self) {
        self.receiver_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one receiver less. That receiver must neither receive nor wait any more. The last one closes the channel and drops its
    /// values.
    pub fn remove_receiver(&self) {
        if self.receiver_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut state = self.lock();
            state.without_receivers = true;
            let _values = mem::take(&mut state.queue); // dropped last: a value's destructor may panic
            self.close_locked(state);
        }
    }

    /// Whether the channel takes no more values: it has no receiver, or it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether no more values will be sent, as a receiver sees it: there is no sender, or the channel was closed.
    pub fn is_ending(&self) -> bool {
        let state = self.lock();
        state.closed || state.without_senders
    }

    /// The number of values in the queue, including promised ones.
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of values that the channel can hold. None if it is unbounded.
    pub fn bound(&self) -> Option<usize> {
        self.bound
    }

    /// The number of places that are free and not held. None if the channel is unbounded.
    pub fn room(&self) -> Option<usize> {
        let bound = self.bound?;
        let state = self.lock();
        Some(bound - state.queue.len() - state.held)
    }

    #[inline(always)]
    fn pop(&self, state: &mut State<T>) -> Option<T> {
        let value = state.queue.pop_front();
        if state.queue.is_empty() {
            self.has_values.store(false, Ordering::Relaxed);
        }
        value
    }

    /// Takes the oldest value and grants its place to a sender.
    #[inline(always)]
    fn take(&self, mut state: MutexGuard<'_, State<T>>) -> T {
        let value = self.pop(&mut state).expect("there is a value");
        let next = self.grant_place(&mut state);
        drop(state);
        wake(next);
        value
    }

    fn take_promised(&self) -> T {
        let mut state = self.lock();
        state.promised -= 1;
        let value = self.pop(&mut state).expect("a promised value is there");
        let next = self.grant_place(&mut state);
        let drained = state.is_drained();
        drop(state);
        match drained {
            true => wake_both(|| wake(next), || end(&self.receivers)), // who waited behind this promise
            false => wake(next),
        }
        value
    }

    /// Appends the value to the queue, in a place that belongs to the caller, and promises it to a receiver.
    #[inline(always)]
    fn put(&self, mut state: MutexGuard<'_, State<T>>, value: &mut Option<T>) {
        if let Some(value) = value.take() {
            // Always present: the callers check before they take the lock.
            state.queue.push_back(value);
            self.has_values.store(true, Ordering::Relaxed);
        }
        let next = self.promise(&mut state);
        drop(state);
        wake(next);
    }

    /// Frees a held place and grants it to the next sender.
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

    /// Promises a free value to the receiver that has waited longest.
    #[inline(always)]
    fn promise(&self, state: &mut State<T>) -> Option<Waker> {
        let waker = self.receivers.grant_one()?;
        state.promised += 1;
        Some(waker)
    }

    /// Grants a free place to the sender that has waited longest.
    #[inline(always)]
    fn grant_place(&self, state: &mut State<T>) -> Option<Waker> {
        let waker = self.senders.grant_one()?;
        state.held += 1;
        Some(waker)
    }
}

#[inline(always)]
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Wakes all waiters, so that they see the end.
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
