//! A hierarchical timer wheel: insert and cancel in O(1), next deadline in O(1). A timer never fires early.
//!
//! Each worker owns one; nothing here is shared. It follows G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP
//! 1987), scheme 7. The level is found by the highest bit in which deadline and present differ.
//!
//! ```text
//!                 bits 65..   ...   17..12          11..6           5..0       of the deadline
//!   level          10         ...     2               1              0
//!   64 slots of    2^60 ticks ...   4096 ticks      64 ticks        1 tick
//! ```
//!
//! # Invariants
//! - An entry's deadline is at or after `now`. A deadline in the past is stored as `now`, and so is due at once.
//! - An entry sits in level `L` = (highest bit of `deadline ^ now`) / 6, in the slot that its own six bits name. On levels above 0 that
//!   slot lies after the slot of `now`. So the earliest entry is in the first occupied slot of the lowest occupied level, and two
//!   bit scans find that slot.
//! - `now` never passes the start of an occupied slot. It stops there, and the slot's entries move to lower levels (once per level, so
//!   at most ten times in an entry's life). Hence an entry's place follows from its deadline and `now` at any time and is not
//!   stored. Eleven levels cover all 64 bits, so there is no overflow list.
//! - A slot is a circular list in order of insertion, with its head in `heads`. Entries that move keep their order, and arrive before any
//!   younger entry of the same tick can be inserted there: equal deadlines fire first in, first out.
//!
//! Entries are stored in one slab, with 24 bytes plus `Option<T>` for each. It grows to the most timers ever live and never shrinks.

use std::num::NonZeroU32;

/// Bits of the deadline that one level resolves.
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = (u64::BITS).div_ceil(LEVEL_BITS) as usize;
/// No entry: the end of the free list, or an empty slot.
const NONE: u32 = u32::MAX;

/// The name of one timer of one [`Wheel`]. After the timer has fired or was removed the key is stale, and harmless: its place has a
/// generation, which repeats only after 2^32 - 1 timers in that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    index: u32,
    generation: NonZeroU32,
}

/// Timers that each carry a `T`, ordered by deadline in ticks.
///
/// ```
/// use osier_queue::Wheel;
///
/// let mut wheel = Wheel::new(0);
/// let idle = wheel.insert(60_000, "idle");
/// wheel.insert(250, "retry");
/// assert_eq!(wheel.remove(idle), Some("idle"));
///
/// assert_eq!(wheel.pop_expired(249), None);
/// assert_eq!(wheel.pop_expired(250), Some("retry"));
/// assert_eq!(wheel.next_wakeup(), None);
/// ```
#[derive(Debug)]
#[doc(alias("TimerWheel", "DelayQueue"))]
pub struct Wheel<T> {
    /// Tick up to which the wheel has turned.
    now: u64,
    /// Bit `L` says that level `L` has an occupied slot.
    levels: u16,
    /// Bit `s` of word `L` says that slot `s` of level `L` is occupied.
    occupied: [u64; LEVELS],
    /// First entry of each slot. Its `previous` is the last one.
    heads: [[u32; SLOTS]; LEVELS],
    entries: Vec<Entry<T>>,
    /// First vacant entry. Vacant entries are linked by `next`.
    vacant: u32,
    live: u32,
}

#[derive(Debug)]
struct Entry<T> {
    /// Deadline, never before the wheel's `now`.
    deadline: u64,
    next: u32,
    previous: u32,
    /// Number of timers that this place has had.
    generation: NonZeroU32,
    /// Value of the timer. None for a vacant entry.
    value: Option<T>,
}

impl<T> Wheel<T> {
    /// An empty wheel that stands at tick `now`.
    pub fn new(now: u64) -> Self {
        Self {
            now,
            levels: 0,
            occupied: [0; LEVELS],
            heads: [[NONE; SLOTS]; LEVELS],
            entries: Vec::new(),
            vacant: NONE,
            live: 0,
        }
    }

    /// Sets a timer. It expires at the first [`pop_expired`](Self::pop_expired) whose `now` is `deadline` or later. A deadline in the past
    /// expires at the next one. O(1).
    ///
    /// # Panics
    /// If there are `u32::MAX - 1` live timers already.
    pub fn insert(&mut self, deadline: u64, value: T) -> Key {
        let deadline = deadline.max(self.now);
        let index = self.occupy(deadline, value);
        self.link(index);
        self.live += 1;
        Key {
            index,
            generation: self.entries[index as usize].generation,
        }
    }

    /// Cancels a timer and returns its value. None if it has fired or was removed. O(1).
    pub fn remove(&mut self, key: Key) -> Option<T> {
        if !self.contains(key) {
            return None;
        }
        self.unlink(key.index);
        self.vacate(key.index)
    }

    /// Whether the timer has not fired yet.
    pub fn contains(&self, key: Key) -> bool {
        let entry = self.entries.get(key.index as usize);
        entry.is_some_and(|entry| entry.generation == key.generation && entry.value.is_some())
    }

    /// The value of a timer that has not fired yet.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        (entry.generation == key.generation).then_some(entry.value.as_mut())?
    }

    /// The number of live timers.
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// Whether there is no timer.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The tick of the next call of [`pop_expired`](Self::pop_expired). It is never later than the earliest deadline, and equal to it once
    /// that is in the lowest level (at most 64 ticks ahead). An earlier tick costs the caller one turn that pops nothing, at most
    /// ten in a timer's life. None without timers. O(1).
    pub fn next_wakeup(&self) -> Option<u64> {
        let (level, slot) = self.first_slot()?;
        Some(slot_start(self.now, level, slot))
    }

    /// Takes one timer whose deadline is at or before `now`: the earliest first, equal deadlines in order of insertion. None when no more
    /// are due. Between two calls timers may be inserted and removed at will.
    ///
    /// If `now` is before that of an earlier call, the earlier one counts.
    pub fn pop_expired(&mut self, now: u64) -> Option<T> {
        let now = now.max(self.now);
        while let Some((level, slot)) = self.first_slot() {
            let start = slot_start(self.now, level, slot);
            if start > now {
                break;
            }
            self.now = start;
            if level == 0 {
                let index = self.heads[0][slot];
                self.unlink(index);
                return self.vacate(index);
            }
            self.cascade(level, slot);
        }
        self.now = now;
        None
    }

    /// Takes any timer, due or not, in no particular order. None without timers. Time stands still. It is for emptying a wheel that will be
    /// used again.
    pub fn pop_any(&mut self) -> Option<T> {
        let (level, slot) = self.first_slot()?;
        let index = self.heads[level][slot];
        self.unlink(index);
        self.vacate(index)
    }

    /// Turns an empty wheel to `now`, perhaps back, for another clock with another beginning of time. Keys of former timers stay stale.
    ///
    /// # Panics
    /// If there are timers.
    pub fn restart(&mut self, now: u64) {
        assert!(self.is_empty(), "a wheel with {} timers is not restarted", self.live);
        self.now = now;
    }

    /// The first occupied slot of the lowest occupied level. It holds the earliest deadline.
    fn first_slot(&self) -> Option<(usize, usize)> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// Moves a slot's entries, in order, to their places after `now` has reached the slot's start.
    fn cascade(&mut self, level: usize, slot: usize) {
        let first = self.heads[level][slot];
        let last = self.entries[first as usize].previous;
        self.clear_slot(level, slot);
        let mut index = first;
        loop {
            let next = self.entries[index as usize].next;
            self.link(index);
            if index == last {
                return;
            }
            index = next;
        }
    }

    /// Appends the entry to the slot of its deadline.
    fn link(&mut self, index: u32) {
        let (level, slot) = place(self.now, self.entries[index as usize].deadline);
        let head = self.heads[level][slot];
        let (previous, next) = if head == NONE {
            self.heads[level][slot] = index;
            self.occupied[level] |= 1 << slot;
            self.levels |= 1 << level;
            (index, index)
        } else {
            let last = self.entries[head as usize].previous;
            self.entries[last as usize].next = index;
            self.entries[head as usize].previous = index;
            (last, head)
        };
        let entry = &mut self.entries[index as usize];
        (entry.previous, entry.next) = (previous, next);
    }

    fn unlink(&mut self, index: u32) {
        let Entry {
            deadline,
            next,
            previous,
            ..
        } = self.entries[index as usize];
        let (level, slot) = place(self.now, deadline);
        if next == index {
            return self.clear_slot(level, slot);
        }
        self.entries[previous as usize].next = next;
        self.entries[next as usize].previous = previous;
        if self.heads[level][slot] == index {
            self.heads[level][slot] = next;
        }
    }

    fn clear_slot(&mut self, level: usize, slot: usize) {
        self.heads[level][slot] = NONE;
        self.occupied[level] &= !(1 << slot);
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
    }

    /// Stores a value in a vacant place of the slab.
    fn occupy(&mut self, deadline: u64, value: T) -> u32 {
        let index = self.vacant;
        if index != NONE {
            let entry = &mut self.entries[index as usize];
            self.vacant = entry.next;
            entry.deadline = deadline;
            entry.value = Some(value);
            return index;
        }
        assert!(
            self.entries.len() < NONE as usize,
            "a wheel holds at most {} timers",
            NONE - 1
        );
        let index = self.entries.len() as u32;
        let generation = NonZeroU32::MIN;
        self.entries.push(Entry {
            deadline,
            next: NONE,
            previous: NONE,
            generation,
            value: Some(value),
        });
        index
    }

    /// Takes the value out of an unlinked place, which makes its key stale.
    fn vacate(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        entry.next = self.vacant;
        self.vacant = index;
        self.live -= 1;
        entry.value.take()
    }
}

/// Level and slot of `deadline` when the wheel stands at `now`.
fn place(now: u64, deadline: u64) -> (usize, usize) {
    let highest_bit = (u64::BITS - 1) - ((deadline ^ now) | 1).leading_zeros();
    let level = highest_bit / LEVEL_BITS;
    ((level) as usize, (deadline >> (level * LEVEL_BITS)) as usize % SLOTS)
}

/// The first tick of a slot that lies in the same turn of its level as `now`.
fn slot_start(now: u64, level: usize, slot: usize) -> u64 {
    let low = level as u32 * LEVEL_BITS;
    let turn = (now >> low) & !(SLOTS as u64 - 1);
    (turn | slot as u64) << low
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Entry<std::task::Waker>>() == 24 + size_of::<Option<std::task::Waker>>());
