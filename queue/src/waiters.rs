//! The wait list: threads, fibers and tasks that wait for a condition, first in, first out. It allocates nothing.
//!
//! Every primitive that one can wait for owns a [`WaitList`]. Every waiter keeps its own [`Waiter`] node, pinned on its stack or in
//! its future. The list knows no condition. The condition's owner changes it and then calls
//! [`wake_one`](WaitList::wake_one) or [`wake_all`](WaitList::wake_all). A waiter registers and then looks at it.
//!
//! ```text
//!   WaitList { head ─┐ }         on the waiters' stacks:
//!                    v
//!                  node A <──> node B <──> node C        oldest first, circular: A.previous is C
//!                    ^───────────────────────^
//! ```
//!
//! A node's life:
//! ```text
//!   IDLE ── register ──> WAITING ── wake_one / wake_all ──> GRANTED_ONE / GRANTED_ALL ── poll_notified / remove ──> IDLE
//!     ^──── remove ─────────┘
//!   dropped while WAITING: unlinked        dropped while GRANTED_ONE: the grant goes to the next in the list
//! ```
//!
//! # Protocol
//! - The lock is the lowest bit of `head`. It guards all links and tickets, and the wakers of nodes in WAITING. Taking it is one
//!   compare-exchange; releasing it is the store that publishes the new head anyway. So a wait and its wake cost two
//!   read-modify-writes where a `std::sync::Mutex` takes four, and the list is two words. The price: a thread that finds the lock
//!   taken spins, then yields, then sleeps a little, so that a preempted holder gets to run under real-time priorities too.
//!   Holders execute a few dozen instructions and no foreign code: wakers are cloned before, woken and dropped after.
//! - A node that is not WAITING belongs to its owner alone. A granting thread first takes the waker out and unlinks the node, and
//!   stores the granted state (release) as its very last access. The owner may see that state (acquire) and free the node without
//!   the lock.
//! - Lost wake-ups: `register` ends in a SeqCst fence, before the waiter looks at the condition. `wake_one` and `wake_all` begin with
//!   one, after the condition was changed and before they look at `head`. One of the two sees the other. So a wake on an
//!   empty list is a fence and a load.
//! - An owner whose condition becomes true only under the lock needs no fence. It takes the lock, changes the condition and grants in
//!   one step (`hand_over` to one, `wake_where` to all who are satisfied), and its waiters look at the condition under the lock
//!   before they link (`enter`). Such a grant *is* the condition, handed over. A node carries a word for it: before the grant it
//!   says what the node waits for, after the grant what it was granted.
//! - An owner that keeps the condition under its own lock needs no fence either. It links (`standing`, then `join`) and grants
//!   (`grant_one`) while it holds that lock, and wakes after it has released it. Its lock comes before the list's.
//! - `wake_all` wakes the waiters that were in the list when it began. Nodes carry tickets, drawn in order under the lock, and it stops
//!   at the first younger one. It releases the lock between batches, so the list is whole at any time.
//!
//! # Safety
//! This file is an unsafe island: the list reaches nodes by raw pointer. They are valid because a node links itself only through
//! `Pin<&mut Waiter>`: it neither moves nor has its memory reused before its `Drop`, which unlinks it. It borrows its list, which
//! therefore exists when `Drop` needs it. All fields that others touch are in cells or atomics, and the node is `!Unpin`, so no
//! exclusive reference claims them.
#![allow(unsafe_code)]

use crate::sync::{AtomicPtr, AtomicUsize, Ordering, Passage, Turnstile, UnsafeCell, fence, relax};
use crate::wakers::wake_each;
use std::iter;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::slice;
use std::task::{Context, Poll, Waker};

/// The node is in no list and has no grant.
const IDLE: usize = 0;
/// The node is in the list. Only the lock's holder may end this state.
const WAITING: usize = 1;
/// The node was unlinked and woken by `wake_one`, `hand_over` or `grant_one`. Another waiter could have had the grant.
const GRANTED_ONE: usize = 2;
/// The node was unlinked and woken by `wake_all`, `wake_linked` or `wake_where`.
const GRANTED_ALL: usize = 3;

/// The number of wakers that `wake_all` takes out under one hold of the lock.
const BATCH: usize = 16;

/// A list of waiters, first in, first out. It is two words, usable from any thread, and can be made in a constant.
///
/// ```
/// use osier_queue::WaitList;
/// use std::pin::pin;
/// use std::task::Waker;
///
/// let list = WaitList::new();
/// let mut waiter = pin!(list.waiter());
/// assert!(waiter.as_mut().register(Waker::noop()));
/// // … look at the condition here: it may have come true meanwhile …
/// assert!(list.wake_one());
/// assert!(waiter.is_notified());
/// assert!(!list.wake_one(), "nobody waits any more");
/// ```
pub struct WaitList {
    /// Oldest node, or null. Its lowest bit is the lock. Written under the lock; read without it as a hint.
    head: AtomicPtr<Node>,
    /// Ticket of the next node. Only touched under the lock.
    next_ticket: UnsafeCell<u64>,
    /// Gate for the models. It has no bytes outside of them.
    turnstile: Turnstile,
}

/// The result of [`Waiter::enter`].
pub(crate) enum Entered<T> {
    /// No need to wait, for this reason.
    Holds(T),
    Waits,
    /// A grant of this word, now consumed.
    Granted(u64),
}

/// A [`Waiter`]'s relation to its list.
pub(crate) enum Standing {
    Idle,
    Waits,
    /// A grant of this word, now consumed.
    Granted(u64),
}

/// A node of a wait list. Pin it where it lives, best with [`std::pin::pin!`].
///
/// It borrows the list and so cannot outlive it. It may be used again after it was notified or removed.
///
/// # Cancellation
/// Dropping a waiter that waits takes it out of the list. Dropping one with an unconsumed grant of [`wake_one`](WaitList::wake_one)
/// wakes the next waiter instead. If nobody waits, the grant is lost; a primitive that counts its grants calls
/// [`remove`](Self::remove) in its own `Drop` and takes the grant back.
pub struct Waiter<'list> {
    list: &'list WaitList,
    node: Node,
}

struct Node {
    /// State, as drawn above. Stored by the owner (IDLE, and WAITING under the lock) and by the granting thread (under the lock).
    ///
    /// It is a whole word, for speed: a new node is often moved, and padding made the compiler copy it by wide loads of what narrow
    /// stores had just written, for which the processor waits.
    state: AtomicUsize,
    /// Guarded by the lock while WAITING. Owner's otherwise.
    links: UnsafeCell<Links>,
    _pinned: PhantomPinned,
}

struct Links {
    next: *const Node,
    previous: *const Node,
    ticket: u64,
    /// Before a grant what the node waits for, after it what it was granted. Only the list's owner gives it a meaning.
    word: u64,
    /// Some if and only if the node is WAITING.
    waker: Option<Waker>,
}

// SAFETY: the head is atomic, the ticket is touched only under the lock; nodes are Send + Sync.
unsafe impl Sync for WaitList {}

// SAFETY: a node is reached from other threads only as the protocol says; a Waker is Send + Sync; the raw pointers are
// followed only under the lock.
unsafe impl Send for Node {}
// SAFETY: as above; through a shared reference the public API reads only the atomic state.
unsafe impl Sync for Node {}

const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<WaitList>();
    send_sync::<Waiter<'static>>();
    #[cfg(all(target_pointer_width = "64", not(loom)))]
    assert!(size_of::<WaitList>() == 16);
};

impl WaitList {
    crate::sync::const_unless_loom! {
        /// An empty list.
        pub fn new() -> Self {
            Self { head: AtomicPtr::new(ptr::null_mut()), next_ticket: UnsafeCell::new(0), turnstile: Turnstile::new() }
        }
    }

    /// A list whose lock has no turnstile, for the model of the lock.
    #[cfg(loom)]
    pub fn without_turnstile() -> Self {
        Self {
            turnstile: Turnstile::open(),
            ..Self::new()
        }
    }

    /// A node for this list, not yet waiting.
    #[inline(always)]
    pub fn waiter(&self) -> Waiter<'_> {
        let links = Links {
            next: ptr::null(),
            previous: ptr::null(),
            ticket: 0,
            word: 0,
            waker: None,
        };
        let node = Node {
            state: AtomicUsize::new(IDLE),
            links: UnsafeCell::new(links),
            _pinned: PhantomPinned,
        };
        Waiter { list: self, node }
    }

    /// Whether nobody waits: one load, and nothing more. It orders nothing. Use it to skip work only where the waiters register on the same
    /// thread. Between threads, [`wake_one`](Self::wake_one) and [`wake_all`](Self::wake_all) check it themselves, behind the
    /// necessary fence.
    pub fn is_empty(&self) -> bool {
        unlocked(self.head.load(Ordering::Acquire)).is_null()
    }

    /// Grants to the oldest waiter and wakes it. Returns false if nobody waits.
    pub fn wake_one(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.is_empty() {
            return false;
        }
        let waker = self.lock().grant_first(GRANTED_ONE, |_| true);
        waker.map(Waker::wake).is_some()
    }

    /// Grants to all present waiters and wakes them, but none that comes meanwhile. Returns how many.
    ///
    /// If a waker panics, the others are woken all the same, and then the panic continues.
    pub fn wake_all(&self) -> usize {
        fence(Ordering::SeqCst);
        match self.is_empty() {
            true => 0,
            false => self.wake_linked(),
        }
    }

    /// Does the same for a caller that has seen a waiter in the list. So it needs no fence.
    pub(crate) fn wake_linked(&self) -> usize {
        let (first, end, more) = {
            let mut list = self.lock();
            let first = list.grant_first(GRANTED_ALL, |_| true);
            (first, list.next_ticket(), !list.head.is_null())
        };
        let Some(first) = first else { return 0 };
        if !more {
            first.wake(); // mostly
            return 1;
        }
        let rest = Batches::new(|batch| {
            let mut list = self.lock();
            for place in batch {
                *place = list.grant_first(GRANTED_ALL, |ticket| ticket < end);
            }
        });
        wake_each(iter::once(first).chain(rest))
    }

    /// Grants to the oldest waiter and wakes it. If nobody waits, runs `keep` under the lock and returns false.
    pub(crate) fn hand_over(&self, keep: impl FnOnce()) -> bool {
        let waker = {
            let mut list = self.lock();
            let waker = list.grant_first(GRANTED_ONE, |_| true);
            if waker.is_none() {
                keep();
            }
            waker
        };
        waker.map(Waker::wake).is_some()
    }

    /// Grants to the oldest waiter and returns its waker. The caller wakes it after it has released its own lock, under which all waiters
    /// of this list [`join`](Waiter::join).
    #[inline]
    pub(crate) fn grant_one(&self) -> Option<Waker> {
        if self.is_empty() {
            return None;
        }
        self.lock().grant_first(GRANTED_ONE, |_| true)
    }

    /// Runs `change` under the lock, with whether nobody waits. Then grants to and wakes all present waiters for whose words `judge` returns
    /// a grant; `judge` also gets the result of `change`. Returns how many.
    ///
    /// It judges under the lock, and some waiters more than once. If a waker panics, the others are woken all the same, and then the panic
    /// continues.
    pub(crate) fn wake_where<C: Copy>(
        &self,
        change: impl FnOnce(bool) -> C,
        judge: impl Fn(C, u64) -> Option<u64>,
    ) -> usize {
        let mut first = None;
        let (changed, end, more) = {
            let mut list = self.lock();
            let changed = change(list.head.is_null());
            let end = list.next_ticket();
            list.grant_where(end, |word| judge(changed, word), slice::from_mut(&mut first));
            (changed, end, !list.head.is_null())
        };
        let Some(first) = first else { return 0 };
        if !more {
            first.wake();
            return 1;
        }
        let rest = Batches::new(|batch| {
            self.lock().grant_where(end, |word| judge(changed, word), batch);
        });
        wake_each(iter::once(first).chain(rest))
    }

    fn lock(&self) -> Locked<'_> {
        let turn = self.turnstile.enter();
        let mut tries = 0;
        let mut free = unlocked(self.head.load(Ordering::Relaxed));
        loop {
            match self
                .head
                .compare_exchange(free, locked(free), Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(head) => {
                    return Locked {
                        list: self,
                        head,
                        _passage: turn,
                    };
                }
                Err(head) => {
                    free = unlocked(head);
                    if free != head {
                        relax(&mut tries);
                    }
                }
            }
        }
    }
}

fn locked(head: *mut Node) -> *mut Node {
    head.map_addr(|address| address | 1)
}

fn unlocked(head: *mut Node) -> *mut Node {
    head.map_addr(|address| address & !1)
}

/// Iterates over the wakers that `grant` takes out. Each call of `grant` fills one batch under one hold of the lock, until one is not full.
struct Batches<F> {
    grant: F,
    batch: [Option<Waker>; BATCH],
    next: usize,
}

impl<F: FnMut(&mut [Option<Waker>; BATCH])> Batches<F> {
    fn new(grant: F) -> Self {
        Batches {
            grant,
            batch: [const { None }; BATCH],
            next: BATCH,
        }
    }
}

impl<F: FnMut(&mut [Option<Waker>; BATCH])> Iterator for Batches<F> {
    type Item = Waker;

    fn next(&mut self) -> Option<Waker> {
        if self.next == BATCH {
            (self.grant)(&mut self.batch);
            self.next = 0;
        }
        let waker = self.batch[self.next].take()?;
        self.next += 1;
        Some(waker)
    }
}

/// The list while its lock is held. Dropping it writes the head, which releases the lock.
struct Locked<'list> {
    list: &'list WaitList,
    head: *mut Node,
    _passage: Passage<'list>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.list.head.store(self.head, Ordering::Release);
    }
}

impl Locked<'_> {
    fn next_ticket(&self) -> u64 {
        // SAFETY: the lock is held.
        self.list.next_ticket.with(|ticket| unsafe { *ticket })
    }

    /// Unlinks the first node if `will_do` accepts its ticket, grants it, and returns its waker.
    fn grant_first(&mut self, grant: usize, will_do: impl Fn(u64) -> bool) -> Option<Waker> {
        let first = NonNull::new(self.head)?;
        // SAFETY: a linked node is alive (its Drop unlinks it, for which it needs the lock that is held here).
        let node = unsafe { first.as_ref() };
        // SAFETY: the links of a linked node are ours under the lock.
        let waker = node.links.with_mut(|links| unsafe {
            if will_do((*links).ticket) {
                (*links).waker.take()
            } else {
                None
            }
        })?;
        self.unlink(node);
        node.state.store(grant, Ordering::Release); // the last access: the owner may free the node now
        Some(waker)
    }

    /// Grants, in one walk from the oldest node on, to nodes with tickets before `end` for whose words `judge` returns a grant. It grants to
    /// as many as there are places for their wakers.
    fn grant_where(&mut self, end: u64, judge: impl Fn(u64) -> Option<u64>, places: &mut [Option<Waker>]) {
        let mut places = places.iter_mut();
        let mut place = places.next();
        let mut at: *const Node = self.head;
        // The walk ends after the node that is last now. That node may be granted and unlinked, so its successor is read before.
        let mut left = !at.is_null();
        while left && let Some(free) = &mut place {
            // SAFETY: a linked node is alive (its Drop unlinks it, for which it needs the lock that is held here).
            let node = unsafe { &*at };
            // SAFETY: the links of a linked node are ours under the lock.
            let (next, ticket, word) = node
                .links
                .with(|links| unsafe { ((*links).next, (*links).ticket, (*links).word) });
            left = !ptr::eq(next, self.head) && ticket < end;
            at = next;
            if ticket < end
                && let Some(granted) = judge(word)
            {
                // SAFETY: as above.
                **free = node.links.with_mut(|links| unsafe {
                    (*links).word = granted;
                    (*links).waker.take()
                });
                place = places.next();
                self.unlink(node);
                node.state.store(GRANTED_ALL, Ordering::Release); // the last access: the owner may free the node now
            }
        }
    }

    /// Appends a node that is in no list.
    fn link(&mut self, node: &Node, waker: Waker, word: u64) {
        let this: *const Node = node;
        let head: *const Node = self.head;
        let ticket = self.next_ticket();
        // SAFETY: the lock is held.
        self.list.next_ticket.with_mut(|next| unsafe { *next = ticket + 1 });
        let (previous, next) = if head.is_null() {
            self.head = this.cast_mut();
            (this, this)
        } else {
            // SAFETY: linked nodes are alive and their links ours under the lock.
            unsafe {
                let last = (*head).links.with(|links| (*links).previous);
                (*last).links.with_mut(|links| (*links).next = this);
                (*head).links.with_mut(|links| (*links).previous = this);
                (last, head)
            }
        };
        // SAFETY: the node is the caller's own until the lock is released.
        node.links.with_mut(|links| unsafe {
            *links = Links {
                next,
                previous,
                ticket,
                word,
                waker: Some(waker),
            }
        });
    }

    /// Takes a linked node out of the list.
    fn unlink(&mut self, node: &Node) {
        let this: *const Node = node;
        // SAFETY: linked nodes are alive and their links ours under the lock.
        unsafe {
            let (next, previous) = node.links.with(|links| ((*links).next, (*links).previous));
            if ptr::eq(next, this) {
                self.head = ptr::null_mut();
                return;
            }
            (*previous).links.with_mut(|links| (*links).next = next);
            (*next).links.with_mut(|links| (*links).previous = previous);
            if ptr::eq(self.head, this) {
                self.head = next.cast_mut();
            }
        }
    }
}

impl<'list> Waiter<'list> {
    /// Begins to wait with `waker`: enters the list at its end. A node that waits already keeps its place and replaces its waker if
    /// necessary. Look at the condition after this call.
    ///
    /// Returns false if the node has an unconsumed notification: then it does not wait and will not be woken again.
    #[must_use = "a waiter that holds an unconsumed notification does not wait"]
    pub fn register(self: Pin<&mut Self>, waker: &Waker) -> bool {
        let this = self.into_ref().get_ref();
        match this.node.state.load(Ordering::Acquire) {
            IDLE => {
                let waker = waker.clone();
                let mut list = this.list.lock();
                this.node.state.store(WAITING, Ordering::Relaxed);
                list.link(&this.node, waker, 0);
            }
            WAITING => {
                if !this.refresh(waker) {
                    return false;
                }
            }
            _ => return false,
        }
        fence(Ordering::SeqCst);
        true
    }

    /// Consumes a notification, or registers. It is the body of a future's `poll`.
    pub fn poll_notified(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.as_mut().register(cx.waker()) {
            return Poll::Pending;
        }
        self.node.state.store(IDLE, Ordering::Relaxed);
        Poll::Ready(())
    }

    /// Begins to wait for the condition in `word`, unless `holds`, called under the lock, says that there is no need to. A node that waits
    /// already keeps its place and replaces its waker if necessary. Consumes a grant.
    ///
    /// It is for lists that are woken with [`hand_over`](WaitList::hand_over) or [`wake_where`](WaitList::wake_where).
    pub(crate) fn enter<T>(
        self: Pin<&mut Self>,
        waker: &Waker,
        word: u64,
        holds: impl FnOnce() -> Option<T>,
    ) -> Entered<T> {
        let this = self.into_ref().get_ref();
        match this.stand(waker) {
            Standing::Waits => Entered::Waits,
            Standing::Granted(word) => Entered::Granted(word),
            Standing::Idle => {
                let waker = waker.clone(); // declared before the lock, so that it is dropped after it
                let mut list = this.list.lock();
                if let Some(value) = holds() {
                    drop(list);
                    return Entered::Holds(value);
                }
                this.node.state.store(WAITING, Ordering::Relaxed);
                list.link(&this.node, waker, word);
                Entered::Waits
            }
        }
    }

    /// Replaces the waker of a waiting node if necessary, and consumes a grant.
    #[inline]
    pub(crate) fn standing(self: Pin<&mut Self>, waker: &Waker) -> Standing {
        self.into_ref().get_ref().stand(waker)
    }

    /// Begins to wait with word 0. The node must be idle. The caller holds the lock under which alone the list's owner grants, and under
    /// which the condition does not hold.
    pub(crate) fn join(self: Pin<&mut Self>, waker: Waker) {
        let this = self.into_ref().get_ref();
        debug_assert!(this.is_idle());
        let mut list = this.list.lock();
        this.node.state.store(WAITING, Ordering::Relaxed);
        list.link(&this.node, waker, 0);
    }

    #[inline]
    fn stand(&self, waker: &Waker) -> Standing {
        match self.node.state.load(Ordering::Acquire) {
            IDLE => return Standing::Idle,
            WAITING if self.refresh(waker) => return Standing::Waits,
            _ => {}
        }
        self.node.state.store(IDLE, Ordering::Relaxed); // granted, so the node is its owner's again
        Standing::Granted(self.word())
    }

    /// The word that it was granted last.
    fn word(&self) -> u64 {
        debug_assert!(self.is_idle());
        // SAFETY: an IDLE node is its owner's alone.
        self.node.links.with(|links| unsafe { (*links).word })
    }

    /// Whether it neither waits nor has an unconsumed notification. One load.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.node.state.load(Ordering::Relaxed) == IDLE
    }

    /// Whether it has an unconsumed notification. One load.
    pub fn is_notified(&self) -> bool {
        self.node.state.load(Ordering::Acquire) >= GRANTED_ONE
    }

    /// Stops waiting. Returns true if there was an unconsumed notification, which is consumed now. The caller must pass on a grant of
    /// [`wake_one`](WaitList::wake_one) that it has no use for.
    pub fn remove(self: Pin<&mut Self>) -> bool {
        self.into_ref().get_ref().withdraw() >= GRANTED_ONE
    }

    /// Stops waiting. Returns the word of an unconsumed grant, which the caller must take back.
    pub(crate) fn take_back(self: Pin<&mut Self>) -> Option<u64> {
        let this = self.into_ref().get_ref();
        (this.withdraw() >= GRANTED_ONE).then(|| this.word())
    }

    /// The list of this node.
    pub fn list(&self) -> &'list WaitList {
        self.list
    }

    /// Replaces the waker of a waiting node. Returns false if it is not waiting any more.
    fn refresh(&self, waker: &Waker) -> bool {
        {
            let _lock = self.list.lock();
            if self.node.state.load(Ordering::Acquire) != WAITING {
                return false;
            }
            let same = self.node.links.with(|links| {
                // SAFETY: the links are ours under the lock while the node is WAITING.
                unsafe { &(*links).waker }
                    .as_ref()
                    .is_some_and(|old| old.will_wake(waker))
            });
            if same {
                return true;
            }
        }
        let new = waker.clone();
        let old = {
            let _lock = self.list.lock();
            if self.node.state.load(Ordering::Acquire) != WAITING {
                return false;
            }
            // SAFETY: the links are ours under the lock while the node is WAITING.
            self.node.links.with_mut(|links| unsafe { (*links).waker.replace(new) })
        };
        drop(old);
        true
    }

    /// Makes the node IDLE and unlinks it if it was linked. Returns its former state.
    fn withdraw(&self) -> usize {
        let mut state = self.node.state.load(Ordering::Acquire);
        let mut waker = None;
        if state == WAITING {
            let mut list = self.list.lock();
            state = self.node.state.load(Ordering::Acquire);
            if state == WAITING {
                list.unlink(&self.node);
                // SAFETY: the node was WAITING and the lock is held.
                waker = self.node.links.with_mut(|links| unsafe { (*links).waker.take() });
            }
        }
        self.node.state.store(IDLE, Ordering::Relaxed);
        drop(waker);
        state
    }
}

impl Drop for Waiter<'_> {
    #[inline]
    fn drop(&mut self) {
        // Most nodes never waited. Models and debug builds, and so miri, always take the long way, for the check in it.
        if cfg!(any(loom, debug_assertions)) || !self.is_idle() {
            self.leave();
        }
    }
}

impl Waiter<'_> {
    /// Ends the wait for good and passes on a grant.
    fn leave(&mut self) {
        let granted_one = self.withdraw() == GRANTED_ONE;
        if cfg!(any(loom, debug_assertions)) {
            self.node.links.with_mut(|links| {
                // SAFETY: an IDLE node is its owner's alone; an exclusive access, so that models and miri see it if not.
                let links = unsafe { &mut *links };
                assert!(links.waker.is_none(), "only a waiting node holds a waker");
            });
        }
        if granted_one {
            self.list.wake_one();
        }
    }
}

impl Default for WaitList {
    fn default() -> Self {
        Self::new()
    }
}

crate::impl_debug!(WaitList, self => { empty: self.is_empty(), .. });

crate::impl_debug!(Waiter<'a>, self => { notified: self.is_notified(), .. });
