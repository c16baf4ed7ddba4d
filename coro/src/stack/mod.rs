//! Stacks: fixed slots of address space with a guard at the low end and a label at the top.
//!
//! ```text
//!   low                                                                            high
//!   ├── guard 64 KiB ──┼─────────── usable, grows down ──────────┼─ colour ─┼─ label ─┤
//!   limit                                                       base       │        top
//!                                                                        top - 64
//! ```
//!
//! The colour is an unused gap of 0 to 15 cache lines, chosen by the slot's number. Without it the busiest lines of all stacks would
//! lie at the same distance from a page's end, and share one set of the first-level cache, which holds a dozen of them.
//! Resuming 100 coroutines in turn took 4.8 ns each without and 2.4 ns with it.
//!
//! A slot is carved once from a region (`region.rs`) and keeps its guard for the life of the process. A [`Stack`] is the only right to
//! use the slot. It moves between a [`Pool`] (warm, pages kept), a coroutine, and the process-wide free list (cold, pages given
//! back). Only [`Stack::leak`] takes it out of use.
//!
//! The label names the fiber on the stack. Only the stack's owner writes it, and the overflow handler reads it (`slots.rs`).
//!
//! # Safety
//!
//! This file is an unsafe island: it implements corosensei's `Stack`, and accesses the label through a raw address. Both rest on one
//! invariant, kept by `region.rs`: a [`Stack`] is made once per carved slot, and its slot stays mapped for ever.
#![allow(unsafe_code)]

mod platform;
mod pool;
mod region;

use std::fmt;
use std::io;
use std::mem;
use std::num::NonZeroUsize;
use std::panic::Location;

use crate::slots::slot_of;

pub use crate::slots::{GUARD_BYTES, Label};
pub use platform::{pointer, prefetch};
pub use pool::{Counters, Pool};

/// The smallest stack: half guard, half usable.
pub const MIN_STACK_BYTES: usize = 2 * GUARD_BYTES;

/// The largest stack.
pub const MAX_STACK_BYTES: usize = MIN_STACK_BYTES << (CLASSES - 1);

/// The number of size classes: powers of two from [`MIN_STACK_BYTES`] to 4 GiB, as many as four bits hold.
const CLASSES: usize = 16;

/// The configuration of a pool's stacks.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address space of one stack in bytes, its guard of [`GUARD_BYTES`] included; rounded up to a power of two
    /// between [`MIN_STACK_BYTES`] and [`MAX_STACK_BYTES`]. A stack costs memory only for the pages it has touched.
    pub stack_bytes: usize,
    /// Address space that is mapped at a time, in bytes, rounded up to a power of two that holds at least one stack. Under a limit of
    /// the address space (RLIMIT_AS) a region takes at most 1/64 of it and all stacks half, because a failed allocation ends the process and
    /// a missing stack is only an error.
    pub region_bytes: usize,
    /// Kind of the guards.
    pub guard: Guard,
}

impl Default for Config {
    /// Stacks of 256 KiB (192 KiB usable) cut from regions of 1 GiB, guarded as the kernel allows.
    fn default() -> Config {
        Config {
            stack_bytes: 256 * 1024,
            region_bytes: 1 << 30,
            guard: Guard::Auto,
        }
    }
}

/// The kind of guard below each stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// `MADV_GUARD_INSTALL` where the kernel has it (Linux 6.13). It costs no mapping, so only memory limits the number of stacks.
    /// Elsewhere, and for memory locked by `mlockall`, it is the same as [`Guard::Mprotect`].
    Auto,
    /// `mprotect`, which needs two mappings per stack. So the default `vm.max_map_count` of 65,530 allows about 32,000 stacks.
    Mprotect,
}

/// The right to use one stack.
///
/// Dropping it gives its memory back to the system, and its address space to the next [`Pool`] or [`Stack::new`] of this process.
/// [`Pool::give`] keeps it warm instead. A stack may outlive its pool.
// One word, because it goes through a pool at every spawn: the slot's end, which is a multiple of the page size, with these in its low bits:
//
//   11 10 │ 9      6 │  5 │   4   │ 3    0
//     0   │  colour  │  0 │ guard │ class        the colour is in bytes there: each resumption needs it
pub struct Stack(NonZeroUsize);

const CLASS_BITS: usize = 0xf;
const GUARD_BIT: usize = 0x10;
const COLOUR_BITS: usize = (COLOURS - 1) * size_of::<Label>();
const TAG_BITS: usize = CLASS_BITS | GUARD_BIT | COLOUR_BITS;
const _: () = assert!(COLOUR_BITS & (CLASS_BITS | GUARD_BIT) == 0 && TAG_BITS < 4096);

/// The number of colours: distances between a slot's label and its first frame, a cache line apart. They are so few that the frames of a
/// waiting coroutine still fit its topmost page.
const COLOURS: usize = 16;

impl Stack {
    /// A stack of at least `stack_bytes`, guard included, carved as [`Config::default`] says. It is for single coroutines. For many, keep a
    /// [`Pool`].
    ///
    /// # Errors
    ///
    /// The errors of [`Pool::new`] and [`Pool::take`].
    pub fn new(stack_bytes: usize) -> io::Result<Stack> {
        crate::overflow::install_for_thread()?;
        let config = Config::default();
        region::take(Class::holding(stack_bytes)?, config.region_bytes, config.guard)
    }

    /// Address space of this stack in bytes, its guard included.
    pub fn stack_bytes(&self) -> usize {
        self.class().stack_bytes()
    }

    /// Labels the stack for the report of an overflow. A name longer than 48 bytes is cut.
    #[inline]
    pub fn label(&self, place: &'static Location<'static>, name: Option<&str>) {
        self.label_words().set(place, name);
    }

    /// An address inside of the stack, for [`Label::at`].
    #[inline]
    pub fn address(&self) -> usize {
        self.top() - size_of::<Label>()
    }

    /// The number of bytes that were touched since the stack was fresh or last measured, in whole pages. Gives back all pages except the
    /// topmost. It takes some microseconds, and the next coroutine must fault its pages in again.
    ///
    /// # Errors
    ///
    /// The errors of mincore(2), and `Unsupported` on other systems than Linux.
    pub fn measure(&mut self) -> io::Result<usize> {
        let untouched = region::untouched_pages(self.low(), self.top())? * rustix::param::page_size();
        self.trim();
        Ok(self.top() - self.low() - untouched)
    }

    /// Gives up this stack for ever: it stays mapped and is never used again. It is for a coroutine that will not end while others may
    /// hold pointers into its frames.
    pub fn leak(self) {
        mem::forget(self);
    }

    #[inline]
    fn label_words(&self) -> &Label {
        // SAFETY: the slot is carved, and the handle to it keeps it so; see `Label::of`.
        unsafe { Label::of(self.top()) }
    }

    /// The stack of the slot that ends at `top`. It is made once per slot.
    fn of_slot(top: NonZeroUsize, class: Class, guard: Guard) -> Stack {
        debug_assert_eq!(top.get() & TAG_BITS, 0);
        // By the slot's number in its region, plus an offset. The offset grows by one after so many slots as pages make up a slot,
        // because a page lies between two slots.
        let colour = top.get() / class.stack_bytes() % COLOURS * size_of::<Label>();
        Stack(top | usize::from(class.0) | colour | if guard == Guard::Auto { 0 } else { GUARD_BIT })
    }

    /// The address after the highest byte of the slot.
    #[inline]
    fn top(&self) -> usize {
        self.0.get() & !TAG_BITS
    }

    /// The lowest address above the guard.
    fn low(&self) -> usize {
        self.top() - self.stack_bytes() + GUARD_BYTES
    }

    #[inline]
    fn class(&self) -> Class {
        Class((self.0.get() & CLASS_BITS) as u8)
    }

    /// The colour: the distance of the first frame from the label.
    #[inline]
    fn colour_bytes(&self) -> usize {
        self.0.get() & COLOUR_BITS
    }

    fn guard(&self) -> Guard {
        if self.0.get() & GUARD_BIT == 0 {
            Guard::Auto
        } else {
            Guard::Mprotect
        }
    }

    /// Gives back every page except the topmost, which the next coroutine is sure to touch.
    fn trim(&mut self) {
        region::give_back_pages(self.low(), self.top() - rustix::param::page_size());
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        region::give_back_pages(self.low(), self.top());
        region::give(Stack(self.0));
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack")
            .field("top", &format_args!("{:#x}", self.top()))
            .field("bytes", &self.stack_bytes())
            .finish()
    }
}

// SAFETY: `base` and `limit` bound one slot that nobody else has (module invariant); both are multiples of 16, since the
// slot's ends are multiples of the page size and the label's size of 64. The guard is in place since the slot was carved, and of at least
// `MIN_STACK_BYTES - GUARD_BYTES` bytes above it all but 1 KiB, far over corosensei's minimum of 4 KiB, are usable.
unsafe impl corosensei::stack::Stack for Stack {
    #[inline]
    fn base(&self) -> NonZeroUsize {
        // A slot is larger than its label and colour, so this neither wraps nor reaches zero.
        NonZeroUsize::new(self.top() - size_of::<Label>() - self.colour_bytes()).unwrap_or(self.0)
    }

    #[inline]
    fn limit(&self) -> NonZeroUsize {
        // Slots are mapped memory: none begins at address zero.
        NonZeroUsize::new(self.top() - self.stack_bytes()).unwrap_or(self.0)
    }
}

const _: () = assert!(size_of::<Stack>() == 8 && size_of::<Option<Stack>>() == 8);

/// A stack without a coroutine may go to another thread.
const _: fn() = || {
    fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<Stack>();
};

/// The used and the remaining bytes of the caller's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes from the end of the slot to the caller's frame.
    pub used_bytes: usize,
    /// Bytes from the caller's frame to the guard.
    pub left_bytes: usize,
}

/// The extent of the caller's stack. None if it is not a stack of this crate.
pub fn extent() -> Option<Extent> {
    let variable = 0u8;
    let here = std::hint::black_box(&raw const variable).addr();
    let (top, bytes) = slot_of(here)?;
    let left = (here + bytes).checked_sub(top + GUARD_BYTES)?;
    Some(Extent {
        used_bytes: top - here,
        left_bytes: left,
    })
}

/// The end of the stack that contains `address`: the address after its highest byte. None if it is not a stack of this crate.
pub fn end(address: usize) -> Option<usize> {
    slot_of(address).map(|(top, _)| top)
}

/// Room for the frames of [`shrink`] and of the functions that it calls, in bytes. They are larger in a build that is not optimized.
const SHRINK_ROOM: usize = if cfg!(any(debug_assertions, feature = "sanitizer")) {
    1024
} else {
    512
};

/// Gives back the pages of the caller's stack that lie below its frames. The system zeroes and returns each of them when it is touched
/// again. Does nothing on a stack that is not of this crate.
///
/// It makes one system call, and the next deep calls fault their pages in again. So it pays before a wait that may last.
#[inline(never)]
pub fn shrink() {
    let variable = 0u8;
    let here = std::hint::black_box(&raw const variable).addr();
    let Some((top, bytes)) = slot_of(here) else { return };
    let low = top - bytes + GUARD_BYTES;
    let page_bytes = rustix::param::page_size();
    let unused = here.saturating_sub(SHRINK_ROOM) / page_bytes * page_bytes;
    if unused > low {
        region::give_back_pages(low, unused);
    }
}

/// A size class: stacks of `MIN_STACK_BYTES << class` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class(u8);

impl Class {
    /// The smallest class of at least `stack_bytes`.
    fn holding(stack_bytes: usize) -> io::Result<Class> {
        if stack_bytes > MAX_STACK_BYTES {
            let line = format!("stack_bytes is {stack_bytes}: at most {MAX_STACK_BYTES} is possible");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, line));
        }
        let bytes = stack_bytes.max(MIN_STACK_BYTES).next_power_of_two();
        Ok(Class((bytes / MIN_STACK_BYTES).trailing_zeros() as u8))
    }

    #[inline]
    fn stack_bytes(self) -> usize {
        MIN_STACK_BYTES << self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_round_up_to_a_power_of_two() {
        let bytes = |n| Class::holding(n).map(Class::stack_bytes).map_err(|e| e.kind());
        assert_eq!(bytes(0), Ok(MIN_STACK_BYTES));
        assert_eq!(bytes(MIN_STACK_BYTES), Ok(MIN_STACK_BYTES));
        assert_eq!(bytes(MIN_STACK_BYTES + 1), Ok(2 * MIN_STACK_BYTES));
        assert_eq!(bytes(MAX_STACK_BYTES), Ok(MAX_STACK_BYTES));
        assert_eq!(bytes(MAX_STACK_BYTES + 1), Err(io::ErrorKind::InvalidInput));
    }

    #[test]
    fn a_measure_tells_what_was_touched_since_the_last_one() {
        use crate::Coroutine;
        fn touch(stack: Stack, bytes: usize) -> (Stack, Extent) {
            #[inline(never)]
            fn recurse(left: usize) -> Extent {
                let page = std::hint::black_box([1u8; 4096]);
                match left.checked_sub(4096) {
                    None => extent().unwrap(),
                    Some(left) => {
                        let extent = recurse(left);
                        std::hint::black_box(&page);
                        extent
                    }
                }
            }
            let mut coroutine = Coroutine::new(stack, move |_, ()| recurse(bytes));
            let crate::CoroutineResult::<(), _>::Return(extent) = coroutine.resume(()) else {
                unreachable!()
            };
            (coroutine.into_stack(), extent)
        }
        assert_eq!(extent(), None, "a thread's own stack");
        for bytes in [64 << 10, 1 << 10, 32 << 10] {
            let (mut stack, extent) = touch(Stack::new(0x40000).unwrap(), bytes);
            assert_eq!(extent.used_bytes + extent.left_bytes, stack.stack_bytes() - GUARD_BYTES);
            for deepest in [extent.used_bytes, 0] {
                let touched = stack.measure().unwrap();
                assert!(
                    touched >= deepest && touched <= deepest + 8192,
                    "{touched} bytes of {deepest}"
                );
            }
        }
    }

    #[test]
    fn a_shrunk_stack_keeps_its_frames_and_loses_the_pages_below() {
        use crate::{Coroutine, CoroutineResult};
        #[inline(never)]
        fn touch(left: usize) -> u8 {
            let page = std::hint::black_box([left as u8; 4096]);
            match left {
                0 => page[4095],
                _ => touch(left - 1).wrapping_add(std::hint::black_box(&page)[0]),
            }
        }
        let mut resident = [0; 2];
        for (shrinks, resident) in [false, true].into_iter().zip(&mut resident) {
            let mut coroutine = Coroutine::new(Stack::new(0x40000).unwrap(), move |yielder, ()| {
                let mine = std::hint::black_box([7u8; 9000]);
                touch(20);
                if shrinks {
                    shrink();
                }
                yielder.suspend(std::hint::black_box(&raw const mine).addr());
                touch(20);
                mine.iter().all(|&byte| byte == 7)
            });
            let CoroutineResult::Yield(address) = coroutine.resume(()) else {
                unreachable!()
            };
            let (top, bytes) = slot_of(address).unwrap();
            let low = top - bytes + GUARD_BYTES;
            *resident = top - low - region::untouched_pages(low, top).unwrap() * rustix::param::page_size();
            assert_eq!(coroutine.resume(()), CoroutineResult::Return(true), "the frames stay");
        }
        let [before, after] = resident;
        assert!(before > 80 << 10 && after < 32 << 10, "{before} bytes, then {after}");
        shrink(); // the thread's own stack: nothing
    }

    #[test]
    fn a_label_keeps_the_name_and_cuts_it_between_characters() {
        let stack = Stack::new(0).unwrap();
        let mut buf = [0; 48];
        stack.label(Location::caller(), Some("reader"));
        assert_eq!(stack.label_words().name(&mut buf), b"reader");
        assert_eq!(stack.label_words().place().unwrap().file(), file!());
        let long = "é".repeat(23) + "x€";
        stack.label(Location::caller(), Some(&long));
        assert_eq!(stack.label_words().name(&mut buf), ("é".repeat(23) + "x").as_bytes());
        stack.label(Location::caller(), None);
        assert_eq!(stack.label_words().name(&mut buf), b"");
    }
}
