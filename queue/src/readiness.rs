//! The readiness of one descriptor: the bits that pollers have reported, the waiters, and for each direction its *owner*, the
//! worker whose poller reports it. The poller itself stays outside, behind a closure.
//!
//! ```text
//!   word:   63        48 47    34 33         21 20        8 7        0
//!          │ generation │  epoch  │ write owner │ read owner │ readiness │       owner = worker + 1, 0 = nobody
//! ```
//!
//! A bit is sticky: it stays set until a call on the descriptor would block. A set bit is a hint, and may be wrong. A clear bit must
//! be right, because a waiter sleeps on it. A *generation* is one use of this state, from the opening of a descriptor to its close. An
//! *epoch* lasts until the next change of an owner. A clear names the epoch in which it looked, and does nothing in a later one.
//!
//! # Protocol
//! The poller is edge-triggered. It reports an arrival to the registered worker when it happens. When a worker registers, or
//! registers again, it reports what is there already.
//! - **Event.** A worker that gets an event sets the bits ([`set`](Readiness::set)) and then wakes the waiters
//!   ([`wake`](Readiness::wake)). It may be the direction's owner, the other direction's owner, or a former owner that took the event
//!   from its poller before it lost the direction.
//! - **Clear.** Only the direction's owner clears a bit, after a call that would block or was short, and only if the epoch is the same
//!   as *before* the call ([`clear`](Readiness::clear)). Within one epoch that is right: the owner's events are dispatched on the
//!   same thread, so none is dispatched between call and clear, and an arrival in that time is still to be reported.
//! - **Move.** A worker whose fiber is about to wait makes itself the owner ([`own`](Readiness::own)). Under the lock `moving` it
//!   begins a new epoch, clears the direction's bit, and registers again with its poller. The poller then reports what is there.
//! - **Wait.** A wait links its waiter, owns the direction, and then looks at the bit ([`poll_ready`](Readiness::poll_ready)). Linking
//!   ends in a fence, and a move has one too. So the waiter sees that the direction was moved away, and moves it back; or the new
//!   owner's thread sees the waiter when it dispatches an event, although it looks at the list without a fence.
//! - Closed bits are never cleared within a generation.
//! - A poller watches only the directions that its worker owns ([`Move::owned`]), because each edge wakes a worker.
//!
//! # Level-triggered pollers
//! Some pollers know only one-shot level triggering. There a waiter arms the poller for those directions of its worker whose bit is
//! not set ([`Move::wanted`]). Both directions share one registration, and its event disarms both. So the worker that dispatches the
//! event wakes the waiters of both directions, and a waiter that the event does not concern arms the poller again
//! ([`arm`](Readiness::arm)). A wrong clear does no harm there: the next arming reports what there is.
//!
//! An epoch has 14 bits. A clear is wrong only if exactly 2¹⁴ moves, each several system calls, happen between its two looks.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence};
use crate::waiters::{WaitList, Waiter};
use crate::wakers::wake_both;

/// A read would not block.
pub const READABLE: u64 = 1;
/// A write would not block.
pub const WRITABLE: u64 = 1 << 1;
/// The peer has ended its sending direction.
pub const READ_CLOSED: u64 = 1 << 2;
/// Both directions are closed.
pub const HUP: u64 = 1 << 3;
/// An error is pending on the descriptor.
pub const ERROR: u64 = 1 << 4;
/// Urgent data is there: a read may stop before it, and be short although more follows.
pub const PRIORITY: u64 = 1 << 5;
/// The bits that are never cleared within a generation.
pub const CLOSED: u64 = READ_CLOSED | HUP | ERROR;

const OWNER_MASK: u64 = (1 << 13) - 1;
const READ_OWNER: u32 = 8;
const WRITE_OWNER: u32 = 21;
const EPOCH: u64 = 1 << 34;
const EPOCH_MASK: u64 = GENERATION - EPOCH;
const GENERATION: u64 = 1 << 48;

/// A direction of transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Bytes from the peer to this process.
    Read,
    /// Bytes from this process to the peer.
    Write,
}

impl Direction {
    /// The bit that says that the direction is ready.
    #[inline]
    pub fn bit(self) -> u64 {
        match self {
            Direction::Read => READABLE,
            Direction::Write => WRITABLE,
        }
    }

    /// The bits that a would-block clears.
    #[inline]
    pub fn all_bits(self) -> u64 {
        match self {
            Direction::Read => READABLE | PRIORITY,
            Direction::Write => WRITABLE,
        }
    }

    fn owner_shift(self) -> u32 {
        match self {
            Direction::Read => READ_OWNER,
            Direction::Write => WRITE_OWNER,
        }
    }

    fn other(self) -> Direction {
        match self {
            Direction::Read => Direction::Write,
            Direction::Write => Direction::Read,
        }
    }
}

/// The word at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot(u64);

impl Snapshot {
    /// Whether one of `bits` is set.
    #[inline]
    pub fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }

    /// The worker whose poller reports the direction.
    #[inline]
    pub fn owner(self, direction: Direction) -> Option<u16> {
        ((self.0 >> direction.owner_shift() & OWNER_MASK) as u16).checked_sub(1)
    }

    /// The generation: it identifies the descriptor that uses the slot.
    #[inline]
    pub fn generation(self) -> u16 {
        (self.0 / GENERATION) as u16
    }

    /// The bits of the directions that `owner` owns.
    fn owned(self, owner: u16) -> u64 {
        let owned = |direction: Direction| match self.owner(direction) == Some(owner) {
            true => direction.bit(),
            false => 0,
        };
        owned(Direction::Read) | owned(Direction::Write)
    }

    /// The change to make at the poller of `owner`.
    fn asking(self, owner: u16, leaves: Option<u16>, again: bool) -> Move {
        let owned = self.owned(owner);
        Move {
            leaves,
            again,
            generation: self.generation(),
            owned,
            wanted: owned & !self.0,
        }
    }

    fn with_owner(self, direction: Direction, owner: Option<u16>) -> Snapshot {
        let shift = direction.owner_shift();
        let epoch = self.0.wrapping_add(EPOCH) & EPOCH_MASK;
        let kept = self.0 & !(OWNER_MASK << shift | EPOCH_MASK | direction.bit());
        Snapshot(kept | epoch | owner.map_or(0, |owner| u64::from(owner) + 1) << shift)
    }
}

/// The change to make at the pollers when a worker becomes an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Worker whose registration is no longer needed. Remove it first.
    pub leaves: Option<u16>,
    /// Whether this worker has a registration for the other direction. Register it again, so that the poller reports what is there.
    pub again: bool,
    /// Generation for the event's token.
    pub generation: u16,
    /// Bits of the owned directions, of [`READABLE`] and [`WRITABLE`]: the interest for an edge-triggered poller.
    pub owned: u64,
    /// The owned bits that are not set: the interest for a level-triggered poller.
    pub wanted: u64,
}

/// The word, the lock for moves, and the two lists of waiters.
#[derive(Default)]
pub struct Readiness {
    word: AtomicU64,
    moving: Mutex<()>,
    readers: WaitList,
    writers: WaitList,
}

impl Readiness {
    /// A state of generation 0 that is not ready and has no owner.
    pub fn new() -> Readiness {
        Readiness {
            word: AtomicU64::new(0),
            moving: Mutex::new(()),
            readers: WaitList::new(),
            writers: WaitList::new(),
        }
    }

    /// The present word. Take it before a call that may block, and [`clear`](Readiness::clear) against it.
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.word.load(Ordering::Acquire))
    }

    /// The list of those who wait for the direction.
    #[inline]
    pub fn list(&self, direction: Direction) -> &WaitList {
        match direction {
            Direction::Read => &self.readers,
            Direction::Write => &self.writers,
        }
    }

    /// Sets the bits of an event for `generation`. Call [`wake`](Readiness::wake) next. Returns false, and does nothing, if that generation has
    /// ended.
    #[inline]
    pub fn set(&self, generation: u16, bits: u64) -> bool {
        let same = |word| (Snapshot(word).generation() == generation).then_some(word | bits);
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, same)
            .is_ok()
    }

    /// Wakes the waiters that `bits`, set before, concern. Called on the worker that got the event.
    #[inline]
    pub fn wake(&self, bits: u64) {
        let readers = || {
            if bits & (READABLE | CLOSED) != 0 && !self.readers.is_empty() {
                self.readers.wake_linked();
            }
        };
        let writers = || {
            if bits & WRITABLE != 0 && !self.writers.is_empty() {
                self.writers.wake_linked();
            }
        };
        wake_both(readers, writers);
    }

    /// Clears `bits` after a would-block or a short read on worker `here`. It clears only if the worker owned the direction in `seen`, read
    /// before the call, and the direction has not moved since.
    #[inline]
    pub fn clear(&self, seen: Snapshot, bits: u64, direction: Direction, here: u16) {
        if seen.owner(direction) != Some(here) {
            return;
        }
        let mut word = seen.0;
        loop {
            match self
                .word
                .compare_exchange_weak(word, word & !bits, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                // An event of another worker changed the other direction. Ours is as it was seen.
                Err(changed) if changed / EPOCH == seen.0 / EPOCH => word = changed,
                Err(_) => return,
            }
        }
    }

    /// Makes worker `here` the owner of the direction, unless it is. Called on that worker's thread, after the waiter was linked.
    ///
    /// Two fibers on two workers that read one socket may take the direction from each other without limit. Each move looks at the
    /// socket, so neither misses bytes. A limit would cost every wait something, for a rare use.
    ///
    /// # Errors
    /// The error of `register`. Then nobody owns the direction, and those who waited on the former owner are woken to own it again.
    #[inline]
    pub fn own<E>(
        &self,
        direction: Direction,
        here: u16,
        register: impl FnOnce(Move) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.snapshot().owner(direction) == Some(here) {
            return Ok(());
        }
        self.take_over(direction, here, register)
    }

    /// Makes `here` the owner of the direction even if it is already: clears the bit and has the poller report again. It need not be called
    /// on that worker's thread. It is for callers that may not [`clear`](Readiness::clear), because events are dispatched while they call. The
    /// caller has linked its waiter. It has met a would-block before, or does not trust the bit for another reason.
    ///
    /// # Errors
    /// The errors of [`own`](Readiness::own).
    pub fn renew<E>(
        &self,
        direction: Direction,
        here: u16,
        register: impl FnOnce(Move) -> Result<(), E>,
    ) -> Result<(), E> {
        self.take_over(direction, here, register)
    }

    /// Does the same as [`own`](Readiness::own) for a level-triggered poller: it arms the poller unless the bit is set.
    ///
    /// # Errors
    /// The errors of [`own`](Readiness::own).
    pub fn arm<E>(
        &self,
        direction: Direction,
        here: u16,
        register: impl FnOnce(Move) -> Result<(), E>,
    ) -> Result<(), E> {
        let now = self.snapshot();
        if now.owner(direction) == Some(here) && now.has(direction.bit()) {
            return Ok(());
        }
        self.take_over(direction, here, register)
    }

    /// Arms a level-triggered poller for the bits that are not set, perhaps for a hang-up alone. It is for the owner of a ready direction
    /// that waits for its end.
    ///
    /// # Errors
    /// The error of `register`.
    pub fn arm_rest<E>(&self, here: u16, register: impl FnOnce(Move) -> Result<(), E>) -> Result<(), E> {
        let _moving = self.lock();
        register(self.snapshot().asking(here, None, true))
    }

    fn take_over<E>(
        &self,
        direction: Direction,
        here: u16,
        register: impl FnOnce(Move) -> Result<(), E>,
    ) -> Result<(), E> {
        let moving = self.lock();
        let former = self.set_owner(direction, Some(here));
        // This fence pairs with the one at the end of linking a waiter.
        fence(Ordering::SeqCst);
        let (old, other) = (former.owner(direction), former.owner(direction.other()));
        let leaves = old.filter(|_| old != other && old != Some(here));
        let again = other == Some(here) || old == Some(here);
        let registered = register(self.snapshot().asking(here, leaves, again));
        if registered.is_err() {
            self.set_owner(direction, None);
            drop(moving);
            self.list(direction).wake_all();
        }
        registered
    }

    /// Gives the direction to another owner, clears its bit and begins an epoch. Returns the former word. Called under `moving`.
    fn set_owner(&self, direction: Direction, owner: Option<u16>) -> Snapshot {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let moved = Snapshot(word).with_owner(direction, owner);
            match self
                .word
                .compare_exchange(word, moved.0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Snapshot(word),
                Err(changed) => word = changed,
            }
        }
    }

    /// One poll of a wait: links the waiter into the direction's [`list`](Readiness::list), calls `own`, which must call
    /// [`own`](Readiness::own) for this worker, and looks at the bit. A waiter that was notified looks at the bit first: the wait that
    /// is over needs no link. Another worker may own the direction by then; the caller's next call finds out what the bit is worth.
    ///
    /// # Errors
    /// The error of `own`.
    pub fn poll_ready<E>(
        &self,
        direction: Direction,
        mut waiter: Pin<&mut Waiter<'_>>,
        cx: &mut Context<'_>,
        own: impl FnOnce() -> Result<(), E>,
    ) -> Poll<Result<(), E>> {
        // A notification says that something has changed. The bits say what.
        while waiter.as_mut().poll_notified(cx).is_ready() {
            if self.snapshot().has(direction.bit()) {
                return Poll::Ready(Ok(()));
            }
        }
        match own() {
            Ok(()) if !self.snapshot().has(direction.bit()) => Poll::Pending,
            owned => Poll::Ready(owned),
        }
    }

    /// Takes the directions from `worker`, which has ended: its successor with this number has no registrations. The waiters of
    /// these directions are woken, and make another worker the owner. The worker's poller must have gone before: then every attempt to
    /// [`own`](Readiness::own) for it fails, or has made it the owner already.
    pub fn forget_worker(&self, worker: u16) {
        let forget = |direction| {
            // No call makes it the owner any more.
            if self.snapshot().owner(direction) != Some(worker) {
                return;
            }
            let moving = self.lock();
            if self.snapshot().owner(direction) == Some(worker) {
                self.set_owner(direction, None);
            }
            drop(moving);
            self.list(direction).wake_all();
        };
        wake_both(|| forget(Direction::Read), || forget(Direction::Write));
    }

    /// Ends this generation and begins the next, which has no owner. Runs `last` before; no move happens meanwhile.
    pub fn retire(&self, last: impl FnOnce()) {
        let _moving = self.lock();
        last();
        let generation = self.snapshot().generation().wrapping_add(1);
        self.word.store(u64::from(generation) * GENERATION, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use Direction::{Read, Write};

    fn own(state: &Readiness, direction: Direction, here: u16) -> Option<Move> {
        let mut moved = None;
        let owned: Result<(), ()> = state.own(direction, here, |how| {
            moved = Some(how);
            Ok(())
        });
        assert!(owned.is_ok() && state.snapshot().owner(direction) == Some(here));
        moved
    }

    fn how(leaves: Option<u16>, again: bool, owned: u64) -> Option<Move> {
        Some(Move {
            leaves,
            again,
            generation: 0,
            owned,
            wanted: owned,
        })
    }

    #[test]
    fn moving_a_direction_forgets_its_bit_and_nothing_else() {
        let state = Readiness::new();
        state.set(0, WRITABLE | READ_CLOSED);
        // More moves than an epoch has numbers: the epoch must not overflow into the generation. (miri is too slow for that.)
        let moves = if cfg!(miri) { 1 << 6 } else { 1 << 15 };
        for owner in (0..=4095).cycle().take(moves) {
            assert!(state.set(0, READABLE));
            own(&state, Read, owner);
            let now = state.snapshot();
            assert!(!now.has(READABLE) && now.has(WRITABLE) && now.has(READ_CLOSED));
            assert_eq!((now.owner(Write), now.generation()), (None, 0));
        }
    }

    #[test]
    fn a_registration_is_left_when_neither_direction_needs_it() {
        let state = Readiness::new();
        assert_eq!(own(&state, Read, 1), how(None, false, READABLE));
        assert_eq!(own(&state, Read, 1), None);
        assert_eq!(own(&state, Write, 1), how(None, true, READABLE | WRITABLE));
        assert_eq!(own(&state, Read, 2), how(None, false, READABLE));
        assert_eq!(own(&state, Write, 2), how(Some(1), true, READABLE | WRITABLE));
        assert_eq!(own(&state, Write, 0), how(None, false, WRITABLE));
        assert_eq!(own(&state, Write, 3), how(Some(0), false, WRITABLE));
    }

    #[test]
    fn a_direction_that_is_ready_is_owned_and_not_wanted() {
        let state = Readiness::new();
        own(&state, Read, 1);
        state.set(0, READABLE);
        let moved = own(&state, Write, 1).expect("it was nobody's");
        assert_eq!((moved.owned, moved.wanted), (READABLE | WRITABLE, WRITABLE));
    }

    #[test]
    fn a_clear_against_what_has_moved_does_nothing() {
        let state = Readiness::new();
        own(&state, Read, 1);
        state.set(0, READABLE);
        let seen = state.snapshot();
        state.clear(seen, READABLE, Read, 2);
        assert!(state.snapshot().has(READABLE), "not the owner's");
        own(&state, Read, 2);
        own(&state, Read, 1);
        state.set(0, READABLE | WRITABLE);
        state.clear(seen, READABLE, Read, 1);
        assert!(state.snapshot().has(READABLE), "there and back again");
        state.clear(state.snapshot(), READABLE, Read, 1);
        assert!(!state.snapshot().has(READABLE) && state.snapshot().has(WRITABLE));
    }

    #[test]
    fn a_writer_that_would_block_takes_no_urgency_from_the_reader() {
        let state = Readiness::new();
        own(&state, Write, 1);
        state.set(0, READABLE | WRITABLE | PRIORITY);
        state.clear(state.snapshot(), Write.all_bits(), Write, 1);
        assert!(state.snapshot().has(PRIORITY) && !state.snapshot().has(WRITABLE));
    }

    #[test]
    fn who_waited_on_the_former_owner_hears_of_a_failed_move() {
        let state = Readiness::new();
        own(&state, Read, 1);
        let mut waiter = std::pin::pin!(state.list(Read).waiter());
        assert!(waiter.as_mut().register(std::task::Waker::noop()));
        assert_eq!(state.own(Read, 2, |_| Err("full")), Err("full"));
        assert_eq!(state.snapshot().owner(Read), None);
        assert!(waiter.is_notified());
    }

    #[test]
    fn a_wait_that_is_over_neither_links_nor_owns_again() {
        let state = Readiness::new();
        own(&state, Read, 1);
        let mut waiter = std::pin::pin!(state.list(Read).waiter());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let owned = || Ok::<(), ()>(());
        assert!(state.poll_ready(Read, waiter.as_mut(), &mut cx, owned).is_pending());
        state.set(0, READABLE);
        state.wake(READABLE);
        let not_asked = || -> Result<(), ()> { unreachable!("the bit is set") };
        assert!(state.poll_ready(Read, waiter.as_mut(), &mut cx, not_asked).is_ready());
        assert!(state.list(Read).is_empty());
        // The next wait links before it looks, and a notification without a bit is none.
        state.clear(state.snapshot(), READABLE, Read, 1);
        for _ in 0..2 {
            assert!(state.poll_ready(Read, waiter.as_mut(), &mut cx, owned).is_pending());
            assert!(!state.list(Read).is_empty());
            state.wake(READABLE);
        }
    }

    #[test]
    fn a_panicking_reader_does_not_cost_the_writer_its_wake_up() {
        struct Bomb;
        impl std::task::Wake for Bomb {
            fn wake(self: std::sync::Arc<Self>) {
                std::panic::resume_unwind(Box::new("a waker's own"));
            }
        }
        let bomb = std::task::Waker::from(std::sync::Arc::new(Bomb));
        let (both, nobody) = (READABLE | WRITABLE, || Ok::<(), ()>(()));
        let causes: [fn(&Readiness); 2] = [|state| state.wake(READABLE | WRITABLE), |state| state.forget_worker(1)];
        for cause in causes {
            let state = Readiness::new();
            own(&state, Read, 1);
            own(&state, Write, 1);
            let mut reader = std::pin::pin!(state.list(Read).waiter());
            let mut writer = std::pin::pin!(state.list(Write).waiter());
            let mut cx = Context::from_waker(&bomb);
            assert!(state.poll_ready(Read, reader.as_mut(), &mut cx, nobody).is_pending());
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(state.poll_ready(Write, writer.as_mut(), &mut cx, nobody).is_pending());
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                state.set(0, both);
                cause(&state);
            }));
            assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"a waker's own"));
            assert!(writer.is_notified());
        }
    }

    #[test]
    fn an_event_for_a_former_tenant_changes_nothing() {
        let state = Readiness::new();
        own(&state, Read, 1);
        state.retire(|| ());
        assert!(!state.set(0, READABLE));
        assert!(state.set(1, READABLE));
        assert_eq!(state.snapshot().owner(Read), None);
    }
}
