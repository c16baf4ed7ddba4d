//! The slots of a worker: the tenant of each, and whether it is queued.
//!
//! Slots never move, so a fiber is resumed where it lies. Only the owner thread uses them.
//!
//! ```text
//!   Free ── occupy ──▶ Running ◀── resume ──┐
//!    ▲                   │  │               │
//!    └──── vacate ───────┘  ├─ suspends ──▶ Suspended(coroutine in place)
//!                           └─ rest ──────▶ Resting(connection in place)
//! ```
//!
//! # Safety
//!
//! This file may use `unsafe` to follow the pointers of the two queues and of the free list, which lead to slots of the same table, and to reach
//! a slot's body while the slot is shared. Only [`Slot::resume`] and the calls that store or take a tenant touch the
//! body. While a coroutine runs in place, its slot's state is `Running`, and every other call looks at the state first.
//! Slots are not `Sync`, so there is no other thread.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::Ordering;

use osier_coro::stack::{Label, prefetch};
use osier_coro::{Coroutine, CoroutineResult};

use crate::worker::Worker;
use crate::worker::context;
use crate::worker::remote::{Remote, RemoteSlot};
use crate::worker::resting::Resting;
use crate::worker::stamp::Stamp;
use crate::worker::table::Table;
use crate::worker::waker::{SLOTS_MAX, next_generation};

pub(crate) type Fiber = Coroutine<Resume, (), Exit>;

/// The reason to resume a fiber.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resume {
    /// The fiber goes on.
    Run,
    /// The fiber shows where it is, and suspends again as it was.
    Show,
}

/// The end of a fiber's coroutine: for good, or with a connection to leave at rest.
pub(crate) type Exit = Option<Box<Resting>>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    Free,
    Running,
    Suspended,
    Resting,
}

enum Body {
    Fiber(Fiber),
    /// A connection, or nothing. Both in one variant, because a fiber has room beside itself for one more.
    Resting(Option<Box<Resting>>),
}

impl Body {
    const EMPTY: Body = Body::Resting(None);
}

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// The numbers of cache lines that are loaded ahead: of the frames of a wait and its caller, and of the fiber's core.
const FRAME_LINES: usize = 12;
const CORE_LINES: usize = 3;

/// So few fibers share the first-level cache, and nothing is loaded ahead for them.
const FEW: u32 = 4;

/// One cache line, and two slots share none: a resumption and its wake-up touch it, at a time when it has left the caches.
#[repr(align(64))]
pub(crate) struct Slot {
    pub(crate) generation: Cell<u32>,
    /// Set while the slot is in one of the queues, never in both. `next` is the slot behind it.
    queued: Cell<bool>,
    /// Set while the time of the next wake-up is asked for, and until the slot leaves the queue.
    noted: Cell<bool>,
    next: Cell<*const Slot>,
    index: u32,
    /// Where the fiber's stack pointer was at its last suspension: the number of the cache line, without the highest bits.
    line: Cell<u32>,
    /// The number of cache lines from there to the fiber's core, at most 255.
    depth: Cell<u8>,
    state: Cell<SlotState>,
    /// The part of this slot that other threads see; made with its first tenant.
    remote: Cell<Option<&'static RemoteSlot>>,
    /// `Fiber` if Suspended, or Running on a fiber, or vacated and not yet [taken out](Slot::take_ended); a connection if Resting; else empty.
    body: UnsafeCell<Body>,
}

impl Slot {
    fn new(index: u32) -> Slot {
        Slot {
            generation: Cell::new(0),
            queued: Cell::new(false),
            noted: Cell::new(false),
            next: Cell::new(ptr::null()),
            index,
            line: Cell::new(0),
            depth: Cell::new(0),
            state: Cell::new(SlotState::Free),
            remote: Cell::new(None),
            body: UnsafeCell::new(Body::EMPTY),
        }
    }

    /// Begins a new generation, for a new tenant or none. Words of the former tenant are stale from here on.
    #[inline]
    fn next_generation(&self) {
        let generation = next_generation(self.generation.get());
        self.generation.set(generation);
        if let Some(remote) = self.remote.get() {
            remote.generation.store(generation, Ordering::Relaxed);
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Starts to load the cache lines that the slot's tenant touches first.
    #[inline(always)]
    fn prefetch(&self) {
        match self.state.get() {
            SlotState::Suspended => self.prefetch_frames(),
            SlotState::Resting => {
                // SAFETY: Resting, so no coroutine is in place, and nobody takes the connection during this call.
                if let Body::Resting(Some(resting)) = unsafe { &*self.body.get() } {
                    resting.prefetch();
                }
            }
            SlotState::Free | SlotState::Running => {}
        }
    }

    #[inline(always)]
    fn prefetch_frames(&self) {
        let high = context::suspended_at() & !(LINE * (1 << 32) - 1);
        let frames = high + self.line.get() as usize * LINE;
        for line in 0..FRAME_LINES {
            prefetch(frames + line * LINE);
        }
        let core = frames + usize::from(self.depth.get()) * LINE;
        for line in 0..CORE_LINES {
            prefetch(core + line * LINE);
        }
    }

    /// Notes what [`prefetch`](Slot::prefetch) needs, of the fiber that has just suspended.
    #[inline(always)]
    fn note_stack(&self) {
        let (pointer, core) = context::suspended();
        self.line.set((pointer / LINE) as u32);
        self.depth
            .set((core / LINE).wrapping_sub(pointer / LINE).min(255) as u8);
    }

    pub(crate) fn state(&self) -> SlotState {
        self.state.get()
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.queued.get()
    }

    /// Asks for the time of the next wake-up. Returns false if the slot is queued already.
    pub(crate) fn note_next_wake(&self) -> bool {
        let is_asleep = !self.queued.get();
        if is_asleep {
            self.noted.set(true);
        }
        is_asleep
    }

    /// Notes for other threads which fiber runs in this slot, on which stack.
    #[inline]
    pub(crate) fn set_tenant(&self, id: u64, stack: usize) {
        if let Some(remote) = self.remote.get() {
            remote.fiber.store(id, Ordering::Relaxed);
            remote.stack.store(stack, Ordering::Relaxed);
        }
    }

    /// The part that other threads see. The slot has a tenant, or has had one.
    pub(crate) fn remote(&self) -> &'static RemoteSlot {
        self.remote.get().expect("made with the first tenant")
    }

    /// The id of the fiber that was last started here, and the label of its stack.
    pub(crate) fn tenant(&self) -> Option<(u64, &'static Label)> {
        self.remote.get()?.tenant()
    }

    /// Puts a coroutine that has not run, or not to its end, into the slot.
    pub(crate) fn set_fiber(&self, fiber: Fiber) {
        debug_assert!(self.state.get() == SlotState::Running);
        // SAFETY: Running, and its own caller is the one who runs: no coroutine is in place (occupied or taken before).
        unsafe { *self.body.get() = Body::Fiber(fiber) };
        self.state.set(SlotState::Suspended);
    }

    /// Runs the coroutine until it suspends (`None`) or ends. Then the caller takes it out by
    /// [`take_ended`](Slot::take_ended).
    #[inline(always)]
    fn resume(&self) -> Option<Exit> {
        debug_assert!(self.state.get() == SlotState::Suspended);
        self.state.set(SlotState::Running);
        // SAFETY: the state was Suspended, so a coroutine is in place and nobody uses it; now Running, so nobody will until
        // the switch comes back.
        let Body::Fiber(fiber) = (unsafe { &mut *self.body.get() }) else {
            unreachable!("a suspended slot holds a coroutine")
        };
        match fiber.resume(Resume::Run) {
            CoroutineResult::Yield(()) => {
                self.note_stack();
                self.state.set(SlotState::Suspended);
                None
            }
            CoroutineResult::Return(exit) => Some(exit),
        }
    }

    /// Lets a suspended fiber show where it is (`Core::suspend` does so). Returns false if there is no started fiber.
    pub(crate) fn show(&self) -> bool {
        if self.state.get() != SlotState::Suspended {
            return false;
        }
        self.state.set(SlotState::Running);
        // SAFETY: as in `resume`.
        let Body::Fiber(fiber) = (unsafe { &mut *self.body.get() }) else {
            unreachable!("a suspended slot holds a coroutine")
        };
        let started = fiber.is_started();
        if started && !matches!(fiber.resume(Resume::Show), CoroutineResult::Yield(())) {
            unreachable!("a fiber that is shown suspends again")
        }
        self.state.set(SlotState::Suspended);
        started
    }

    /// Takes the coroutine out that has just ended. The slot may be vacated already, but nobody has occupied it since.
    pub(crate) fn take_ended(&self) -> Fiber {
        debug_assert!(matches!(self.state.get(), SlotState::Running | SlotState::Free));
        // SAFETY: the coroutine in place has ended, so it is not on the CPU. Its caller is the one who ran it, on the one thread that
        // occupies slots, and has occupied none since.
        match std::mem::replace(unsafe { &mut *self.body.get() }, Body::EMPTY) {
            Body::Fiber(fiber) => fiber,
            Body::Resting(_) => unreachable!("it held the coroutine that has just ended"),
        }
    }

    pub(crate) fn set_resting(&self, resting: Box<Resting>) {
        debug_assert!(self.state.get() == SlotState::Running);
        // SAFETY: Running, and its own caller is the one who runs: no coroutine is in place.
        unsafe { *self.body.get() = Body::Resting(Some(resting)) };
        self.state.set(SlotState::Resting);
    }

    /// Takes the connection at rest out. The slot is Running then.
    pub(crate) fn take_resting(&self) -> Option<Box<Resting>> {
        match self.take(SlotState::Resting)? {
            Body::Resting(Some(resting)) => Some(resting),
            Body::Resting(None) | Body::Fiber(_) => unreachable!("a resting slot holds a connection"),
        }
    }

    /// Takes the suspended fiber out. The slot is Running then.
    pub(crate) fn take_fiber(&self) -> Option<Fiber> {
        match self.take(SlotState::Suspended)? {
            Body::Fiber(fiber) => Some(fiber),
            Body::Resting(_) => unreachable!("a suspended slot holds a coroutine"),
        }
    }

    fn take(&self, state: SlotState) -> Option<Body> {
        if self.state.get() != state {
            return None;
        }
        self.state.set(SlotState::Running);
        // SAFETY: not Running before, so nobody uses the body; Running now, so nobody will.
        Some(std::mem::replace(unsafe { &mut *self.body.get() }, Body::EMPTY))
    }
}

pub(crate) struct Slots {
    table: Table<Slot>,
    /// The free slots. They are pointers, because the way through the table takes three loads, each of which waits for the one before.
    free: std::cell::RefCell<Vec<*const Slot>>,
    /// The number of slots that were ever occupied.
    made: Cell<u32>,
    live: Cell<usize>,
    /// The ready queue.
    ready: SlotQueue,
    /// Slots of fibers that give way: one of them is resumed in each turn of the worker, when all others have run.
    giving_way: SlotQueue,
    /// The slot whose fiber was switched to last.
    current: Cell<*const Slot>,
    /// The times when the noted slots of the ready queue were queued, in the order of that queue.
    wakes: std::cell::RefCell<VecDeque<Stamp>>,
    /// The slot that has left the queue last among the noted ones, and when it was queued.
    woken: Cell<Option<(u32, Stamp)>>,
}

/// A queue of slots of the table that it stands beside, in [`Slots`]. It leads through the slots, so it is never full and allocates nothing.
struct SlotQueue {
    head: Cell<*const Slot>,
    tail: Cell<*const Slot>,
    len: Cell<u32>,
}

impl SlotQueue {
    fn new() -> SlotQueue {
        SlotQueue {
            head: Cell::new(ptr::null()),
            tail: Cell::new(ptr::null()),
            len: Cell::new(0),
        }
    }

    /// Puts a slot of the table at the end.
    #[inline(always)]
    fn push(&self, slot: &Slot) {
        slot.next.set(ptr::null());
        let last = self.tail.replace(slot);
        if last.is_null() {
            self.head.set(slot);
        } else {
            // SAFETY: the queue points to slots of the table, which stay where they are as long as it.
            unsafe { &*last }.next.set(slot);
        }
        self.len.set(self.len.get() + 1);
    }

    /// Takes the first slot.
    #[inline(always)]
    fn pop(&self) -> Option<&Slot> {
        let first = self.head.get();
        if first.is_null() {
            return None;
        }
        // SAFETY: the queue points to slots of the table, which stay where they are as long as it.
        let slot = unsafe { &*first };
        let next = slot.next.get();
        self.head.set(next);
        let len = self.len.get();
        self.len.set(len - 1);
        if next.is_null() {
            self.tail.set(ptr::null());
        } else if len > FEW {
            // SAFETY: as above.
            unsafe { &*next }.prefetch();
        }
        Some(slot)
    }
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots {
            table: Table::new(),
            free: std::cell::RefCell::default(),
            made: Cell::new(0),
            live: Cell::new(0),
            ready: SlotQueue::new(),
            giving_way: SlotQueue::new(),
            current: Cell::new(ptr::null()),
            wakes: std::cell::RefCell::default(),
            woken: Cell::new(None),
        }
    }

    /// The number of slots in the ready queue.
    #[inline]
    pub(crate) fn ready(&self) -> u32 {
        self.ready.len.get()
    }

    /// The number of slots whose fibers have given way.
    #[inline]
    pub(crate) fn giving_way(&self) -> u32 {
        self.giving_way.len.get()
    }

    /// Puts the slot at the end of the ready queue, unless it is queued already.
    #[inline]
    pub(crate) fn queue(&self, slot: &Slot) {
        if slot.queued.replace(true) {
            return;
        }
        self.ready.push(slot);
        if slot.noted.get() {
            self.note_wake();
        }
    }

    #[cold]
    fn note_wake(&self) {
        let now = context::worker(Worker::time_of_wake).unwrap_or_else(Stamp::of_machine);
        self.wakes.borrow_mut().push_back(now);
    }

    /// The time when the slot was queued, if that was noted and the slot was the last to leave the queue.
    pub(crate) fn woken(&self, index: u32) -> Option<Stamp> {
        let (slot, woken) = self.woken.take()?;
        (slot == index).then_some(woken)
    }

    /// Queues the slot of the fiber that runs.
    #[inline]
    pub(crate) fn queue_current(&self) {
        let slot = self.current.get();
        if !slot.is_null() {
            // SAFETY: set to a slot of ours, which stays where it is as long as `self`.
            self.queue(unsafe { &*slot });
        }
    }

    /// Makes the fiber that runs wait for a later turn of the worker. It counts as queued until then. Returns false if it is queued already.
    pub(crate) fn give_way_current(&self) -> bool {
        // SAFETY: null, or set to a slot of ours, which stays where it is as long as `self`.
        let Some(slot) = (unsafe { self.current.get().as_ref() }) else {
            return true;
        };
        let is_free = !slot.queued.replace(true);
        if is_free {
            self.giving_way.push(slot);
        }
        is_free
    }

    /// Takes the slot whose fiber gave way first.
    pub(crate) fn pop_that_gave_way(&self) -> Option<&Slot> {
        let slot = self.giving_way.pop()?;
        slot.queued.set(false);
        Some(slot)
    }

    /// Puts the first fiber that has given way at the end of the ready queue. Returns false if there is none.
    pub(crate) fn queue_one_that_gave_way(&self) -> bool {
        let first = self.giving_way.pop();
        first.into_iter().for_each(|slot| self.ready.push(slot));
        first.is_some()
    }

    /// Takes the first slot out of the ready queue.
    #[inline]
    pub(crate) fn pop(&self) -> Option<&Slot> {
        let slot = self.ready.pop()?;
        slot.queued.set(false);
        if slot.noted.replace(false) {
            let woken = self.wakes.borrow_mut().pop_front();
            self.woken.set(woken.map(|woken| (slot.index, woken)));
        }
        Some(slot)
    }

    /// Runs the coroutine of a Suspended slot; see [`Slot::resume`].
    #[inline(always)]
    pub(crate) fn resume(&self, slot: &Slot) -> Option<Exit> {
        self.current.set(slot);
        slot.resume()
    }

    /// The number of occupied slots.
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    /// The number of slots that were ever occupied.
    pub(crate) fn made(&self) -> u32 {
        self.made.get()
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Slot> {
        self.table.get(index)
    }

    /// Gives a new tenant a slot, Running, under a new generation. Returns `None` when [`SLOTS_MAX`] are occupied.
    #[inline]
    pub(crate) fn occupy(&self, remote: &'static Remote) -> Option<&Slot> {
        let slot = match self.free.borrow_mut().pop() {
            // SAFETY: the list points to slots of ours, which stay where they are as long as `self`.
            Some(slot) => unsafe { &*slot },
            None => self.make(remote)?,
        };
        slot.next_generation();
        slot.state.set(SlotState::Running);
        self.live.set(self.live.get() + 1);
        Some(slot)
    }

    /// Makes a slot that no tenant ever had.
    #[cold]
    fn make(&self, remote: &'static Remote) -> Option<&Slot> {
        let index = self.made.get();
        if index as usize >= SLOTS_MAX {
            return None;
        }
        self.made.set(index + 1);
        let slot = self.table.get_or_make(index, Slot::new);
        slot.remote.set(Some(remote.slot_or_make(index)));
        Some(slot)
    }

    /// Ends the tenant of a Running slot. Its word is stale from here on.
    pub(crate) fn vacate(&self, slot: &Slot) {
        debug_assert!(slot.state.get() == SlotState::Running);
        slot.next_generation();
        slot.state.set(SlotState::Free);
        self.free.borrow_mut().push(slot);
        self.live.set(self.live.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million fibers need a million slots.
    #[test]
    fn a_slot_is_a_cache_line() {
        assert_eq!(size_of::<Slot>(), 64);
    }
}
