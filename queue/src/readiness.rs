//! Sticky readiness of a descriptor: what pollers have said of it, which worker's poller speaks for which direction, and
//! who waits. The runtime's sources are built on it; the poller itself stays outside, behind a closure.
//!
//! ```text
//!   word:   63        48 47    34 33         21 20        8 7        0
//!          │ generation │  epoch  │ write owner │ read owner │ readiness │       owner = worker + 1, 0 = nobody
//! ```
//!
//! # Protocol
//! The poller is edge-triggered: it reports to who is registered, an arrival when it happens, and what is there already
//! when it registers (or registers again).
//! - Whoever is told sets the bits and then wakes ([`set`](State::set), [`wake`](State::wake)): the owner, but also the
//!   other direction's, and a former owner who had taken the event before it lost the direction. Bits may be too many.
//! - A bit is cleared only by a would-block or short read on the direction's owner, against the word seen *before* the
//!   call ([`clear`](State::clear)). The owner's events are dispatched by the same thread, so none comes between call and
//!   clear, and an arrival in that time is still to be reported to it. If the direction was moved meanwhile that is no
//!   longer so: a move begins a new epoch, and then the clear does nothing.
//! - A worker whose fiber is about to wait makes itself the owner ([`own`](State::own)), under `moving`: a new epoch, the
//!   direction's bit forgotten, then the poller asked anew, here. So what is there is reported here, as an edge.
//! - Waiting is: link the waiter, own, look at the bit ([`poll_ready`](State::poll_ready)). Linking ends in a fence, a move
//!   has one too. Whichever comes first: the waiter sees that the direction was moved away and moves it back, or the new
//!   owner's thread sees the waiter when it dispatches, though it looks at the list without a fence.
//! - Closed bits are never cleared while the generation lasts.
//! - A poller is asked for the directions that its worker owns and no others ([`Move::owned`]): each edge wakes a worker.
//!
//! # Without edges
//! A poller that knows only one-shot level triggering is armed by whoever is about to wait, for those directions of its
//! worker whose bit is not set ([`Move::wanted`]); they share one registration. Its event disarms both. So who dispatches it wakes
//! the waiters of both, and those that it does not concern [`arm`](State::arm) again. A clear too many costs nothing there: the
//! next arming reports what there is.
//!
//! An epoch has 14 bits: a clear is fooled if exactly 2¹⁴ moves, each several system calls, fit between its two reads.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence};
use crate::waiters::{WaitList, Waiter};
use crate::wakers::wake_both;

/// A read would not block.
pub const READABLE: u64 = 1;
/// A write would not block.
pub const WRITABLE: u64 = 1 << 1;
/// The peer sends no more.
pub const READ_CLOSED: u64 = 1 << 2;
/// Closed both ways.
pub const HUP: u64 = 1 << 3;
/// The descriptor has an error to tell.
pub const ERROR: u64 = 1 << 4;
/// Urgent data: a read may stop before it, and be short although more follows.
pub const PRIORITY: u64 = 1 << 5;
/// What does not go away again.
pub const CLOSED: u64 = READ_CLOSED | HUP | ERROR;

const OWNER_MASK: u64 = (1 << 13) - 1;
const READ_OWNER: u32 = 8;
const WRITE_OWNER: u32 = 21;
const EPOCH: u64 = 1 << 34;
const EPOCH_MASK: u64 = GENERATION - EPOCH;
const GENERATION: u64 = 1 << 48;

/// The two ways bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Towards us.
    Read,
    /// Away from us.
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

    /// The bits that a would-block takes back.
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

    /// The worker whose poller speaks for the direction.
    #[inline]
    pub fn owner(self, direction: Direction) -> Option<u16> {
        ((self.0 >> direction.owner_shift() & OWNER_MASK) as u16).checked_sub(1)
    }

    /// Which tenant of the slot this is about.
    #[inline]
    pub fn generation(self) -> u16 {
        (self.0 / GENERATION) as u16
    }

    /// The bits of the directions that `owner` speaks for.
    fn owned(self, owner: u16) -> u64 {
        let owned = |direction: Direction| match self.owner(direction) == Some(owner) {
            true => direction.bit(),
            false => 0,
        };
        owned(Direction::Read) | owned(Direction::Write)
    }

    /// What is to be told to `owner`.
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

/// What a worker that becomes an owner has to tell the pollers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The worker whose registration nobody needs any more: to be removed, first.
    pub leaves: Option<u16>,
    /// It is registered here already, for the other direction: to be registered again, which reports what is there.
    pub again: bool,
    /// For the event's token.
    pub generation: u16,
    /// The bits, of [`READABLE`] and [`WRITABLE`], of its directions: what a poller with edges has to tell.
    pub owned: u64,
    /// Of these, those not set: what a poller without edges has to tell.
    pub wanted: u64,
}

/// The word, the lock that moves are made under, and the two lists of waiters.
pub struct State {
    word: AtomicU64,
    moving: Mutex<()>,
    readers: WaitList,
    writers: WaitList,
}

impl State {
    /// Not ready, owned by nobody, of generation 0.
    pub fn new() -> State {
        State {
            word: AtomicU64::new(0),
            moving: Mutex::new(()),
            readers: WaitList::new(),
            writers: WaitList::new(),
        }
    }

    /// The word now: what a call that may block is made upon, and [`clear`](State::clear)ed against.
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.word.load(Ordering::Acquire))
    }

    /// Who waits for the direction.
    #[inline]
    pub fn list(&self, direction: Direction) -> &WaitList {
        match direction {
            Direction::Read => &self.readers,
            Direction::Write => &self.writers,
        }
    }

    /// Sets what an event for `generation` says; `false`, and nothing, if that tenant is gone. Then [`wake`](State::wake).
    #[inline]
    pub fn set(&self, generation: u16, bits: u64) -> bool {
        let same = |word| (Snapshot(word).generation() == generation).then_some(word | bits);
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, same)
            .is_ok()
    }

    /// Wakes those whom `bits`, set before, concern: on the worker that was told of them.
    #[inline]
    pub fn wake(&self, bits: u64) {
        let readers = || {
            if bits & (READABLE | CLOSED) != 0 && !self.readers.is_empty() {
                self.readers.wake_all();
            }
        };
        let writers = || {
            if bits & WRITABLE != 0 && !self.writers.is_empty() {
                self.writers.wake_all();
            }
        };
        wake_both(readers, writers);
    }

    /// Worker `here` has met a would-block or a short read: clears `bits`, if it owned the direction when it saw `seen`,
    /// before the call, and nothing has moved since.
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
                // An event of another worker, for its direction: ours stands as it was seen.
                Err(changed) if changed / EPOCH == seen.0 / EPOCH => word = changed,
                Err(_) => return,
            }
        }
    }

    /// Makes worker `here`, whose thread this is, the owner of the direction, unless it is. The caller has linked its waiter
    /// before.
    ///
    /// Nothing bounds how often two fibers that read one socket on two workers take the direction from each other. Each
    /// take-over looks at the socket, so none of them misses bytes; a bound would make every wait pay for this rare use.
    ///
    /// # Errors
    /// What `register` says; then nobody owns the direction, and who waited on the former owner is woken to own it anew.
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

    /// Makes `here`, whose thread need not be this one, the owner of the direction, also if it is: forgets the bit and has
    /// the poller asked anew. For who may not [`clear`](State::clear), since events are dispatched while it calls. It has
    /// linked its waiter, and met a would-block before that or does not trust the bit for other reasons.
    ///
    /// # Errors
    /// As [`own`](State::own).
    pub fn renew<E>(
        &self,
        direction: Direction,
        here: u16,
        register: impl FnOnce(Move) -> Result<(), E>,
    ) -> Result<(), E> {
        self.take_over(direction, here, register)
    }

    /// [`own`](State::own) for a poller without edges: asks it anew unless the bit is set.
    ///
    /// # Errors
    /// As [`own`](State::own).
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

    /// Has a poller without edges asked for what is not set, perhaps for nothing but a hang-up: for who owns a direction
    /// that is ready, and waits for its end.
    ///
    /// # Errors
    /// What `register` says.
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
        // The other side of the fence that linking a waiter ends in.
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

    /// Gives the direction to another owner, forgets its bit and begins an epoch; returns what was. Under `moving`.
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

    /// The body of a wait: links the waiter (of the direction's [`list`](State::list)), makes this worker the owner by
    /// `own`, which calls [`own`](State::own), and looks.
    ///
    /// # Errors
    /// What `own` says.
    pub fn poll_ready<E>(
        &self,
        direction: Direction,
        mut waiter: Pin<&mut Waiter<'_>>,
        cx: &mut Context<'_>,
        own: impl FnOnce() -> Result<(), E>,
    ) -> Poll<Result<(), E>> {
        // A notification says that something changed; what, the bits say.
        while waiter.as_mut().poll_notified(cx).is_ready() {}
        match own() {
            Ok(()) if !self.snapshot().has(direction.bit()) => Poll::Pending,
            owned => Poll::Ready(owned),
        }
    }

    /// Takes away what `worker`, which has ended, owned: its successor of this number knows none of it. Who still waits
    /// there owns anew.
    pub fn forget_worker(&self, worker: u16) {
        let forget = |direction| {
            // Only the worker itself could become the owner now.
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

    /// Ends this tenant: the next generation, owned by nobody. `last` runs before, and no move does meanwhile.
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

impl Default for State {
    fn default() -> State {
        State::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use Direction::{Read, Write};

    fn own(state: &State, direction: Direction, here: u16) -> Option<Move> {
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
        let state = State::new();
        state.set(0, WRITABLE | READ_CLOSED);
        // More often than the epoch has numbers: it must not run over into the generation. (miri is too slow for that.)
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
        let state = State::new();
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
        let state = State::new();
        own(&state, Read, 1);
        state.set(0, READABLE);
        let moved = own(&state, Write, 1).expect("it was nobody's");
        assert_eq!((moved.owned, moved.wanted), (READABLE | WRITABLE, WRITABLE));
    }

    #[test]
    fn a_clear_against_what_has_moved_does_nothing() {
        let state = State::new();
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
        let state = State::new();
        own(&state, Write, 1);
        state.set(0, READABLE | WRITABLE | PRIORITY);
        state.clear(state.snapshot(), Write.all_bits(), Write, 1);
        assert!(state.snapshot().has(PRIORITY) && !state.snapshot().has(WRITABLE));
    }

    #[test]
    fn who_waited_on_the_former_owner_hears_of_a_failed_move() {
        let state = State::new();
        own(&state, Read, 1);
        let mut waiter = std::pin::pin!(state.list(Read).waiter());
        assert!(waiter.as_mut().register(std::task::Waker::noop()));
        assert_eq!(state.own(Read, 2, |_| Err("full")), Err("full"));
        assert_eq!(state.snapshot().owner(Read), None);
        assert!(waiter.is_notified());
    }

    #[test]
    fn a_panicking_reader_does_not_cost_the_writer_its_wake_up() {
        struct Bomb;
        impl std::task::Wake for Bomb {
            fn wake(self: std::sync::Arc<Self>) {
                panic!("a waker's own");
            }
        }
        let bomb = std::task::Waker::from(std::sync::Arc::new(Bomb));
        let (both, nobody) = (READABLE | WRITABLE, || Ok::<(), ()>(()));
        let causes: [fn(&State); 2] = [|state| state.wake(READABLE | WRITABLE), |state| state.forget_worker(1)];
        for cause in causes {
            let state = State::new();
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
        let state = State::new();
        own(&state, Read, 1);
        state.retire(|| ());
        assert!(!state.set(0, READABLE));
        assert!(state.set(1, READABLE));
        assert_eq!(state.snapshot().owner(Read), None);
    }
}
