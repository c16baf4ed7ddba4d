//! The pool: stacks that one worker keeps warm.
//!
//! Per size class a LIFO shelf: the stack given last is taken first, since its top page is in the cache. `take` and
//! `give` are a pop and a push; everything slow is in `region.rs` (no stack at hand) or in [`Pool::trim`].
//!
//! Trimming watches nothing per use. The shelf remembers the fewest stacks it held since the last trim: those at the
//! bottom were not touched in all that time, so their memory can go without hurting anybody.

use super::{CLASSES, Class, Config, Guard, Stack, region};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;

/// Stacks that stay on a shelf through a quiet spell, with their top page.
const KEEP: usize = 64;

/// Stacks one call of [`Pool::trim`] works on per size class at most: about a millisecond.
const TRIM_BATCH: usize = 512;

/// A worker's stacks. Not `Sync`: each thread has its own.
///
/// ```
/// use osier_coro::stack::{Config, Pool};
///
/// let pool = Pool::new(Config::default())?;
/// let stack = pool.take(None)?;
/// let large = pool.take(Some(1 << 20))?;
/// assert_eq!((stack.stack_bytes(), large.stack_bytes()), (256 * 1024, 1 << 20));
/// pool.give(stack);
/// pool.give(large);
/// assert_eq!(pool.counters().high_water, 2);
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Pool {
    class: Class,
    region_bytes: usize,
    guard: Guard,
    shelves: [RefCell<Shelf>; CLASSES],
    live: Cell<usize>,
    high_water: Cell<usize>,
}

/// How many stacks a [`Pool`] has to do with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Taken and not given back. A stack that was leaked or dropped elsewhere counts for ever.
    pub live: usize,
    /// Waiting in the pool.
    pub pooled: usize,
    /// The most that were ever live at once.
    pub high_water: usize,
}

impl Pool {
    /// An empty pool; it also prepares this thread for reporting stack overflows, so call it on the thread that
    /// will run the coroutines.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a `stack_bytes` beyond [`MAX_STACK_BYTES`](super::MAX_STACK_BYTES); what
    /// [`install_for_thread`](crate::overflow::install_for_thread) says.
    pub fn new(config: Config) -> io::Result<Pool> {
        crate::overflow::install_for_thread()?;
        Ok(Pool {
            class: Class::holding(config.stack_bytes)?,
            region_bytes: config.region_bytes,
            guard: config.guard,
            shelves: [const { RefCell::new(Shelf::new()) }; CLASSES],
            live: Cell::new(0),
            high_water: Cell::new(0),
        })
    }

    /// A stack of the configured size, or of at least `stack_bytes`, guard included. Its contents are whatever the last
    /// user left.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` when address space or mappings are exhausted; the text names the limit and the setting.
    /// `InvalidInput` for a size beyond [`MAX_STACK_BYTES`](super::MAX_STACK_BYTES).
    #[inline]
    pub fn take(&self, stack_bytes: Option<usize>) -> io::Result<Stack> {
        let class = match stack_bytes {
            None => self.class,
            Some(bytes) => Class::holding(bytes)?,
        };
        let warm = self.shelves[usize::from(class.0)].borrow_mut().pop();
        let stack = match warm {
            Some(stack) => stack,
            None => region::take(class, self.region_bytes, self.guard)?,
        };
        self.live.set(self.live.get() + 1);
        self.high_water.set(self.high_water.get().max(self.live.get()));
        Ok(stack)
    }

    /// Keeps `stack` for the next [`take`](Pool::take).
    #[inline]
    pub fn give(&self, stack: Stack) {
        self.live.set(self.live.get().saturating_sub(1));
        self.shelves[usize::from(stack.class.0)]
            .borrow_mut()
            .stacks
            .push_back(stack);
    }

    /// Gives back memory of stacks that nobody took since the last call: some stay with their top page, the rest go to the
    /// process-wide free list, where other workers find them. Returns how many stacks it worked on. To be called
    /// rarely, say once a second: one call is one quiet spell.
    ///
    /// # Blocks the thread
    ///
    /// For at most about a millisecond per size class in use.
    pub fn trim(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.borrow_mut().trim()).sum()
    }

    /// The pool's figures.
    pub fn counters(&self) -> Counters {
        let pooled = self.shelves.iter().map(|shelf| shelf.borrow().stacks.len()).sum();
        Counters {
            live: self.live.get(),
            pooled,
            high_water: self.high_water.get(),
        }
    }
}

/// The pooled stacks of one class. Invariant: `shallow <= stacks.len()` is only trusted up to `fewest`.
#[derive(Debug)]
struct Shelf {
    /// Coldest first.
    stacks: VecDeque<Stack>,
    /// The fewest that lay here since the last trim: so many at the front are quiet.
    fewest: usize,
    /// Of those at the front of the last trim, how many have nothing but their top page.
    shallow: usize,
}

impl Shelf {
    const fn new() -> Shelf {
        Shelf {
            stacks: VecDeque::new(),
            fewest: 0,
            shallow: 0,
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<Stack> {
        let stack = self.stacks.pop_back();
        self.fewest = self.fewest.min(self.stacks.len());
        stack
    }

    fn trim(&mut self) -> usize {
        let quiet = self.fewest;
        let given = quiet.saturating_sub(KEEP).min(TRIM_BATCH);
        self.stacks.drain(..given);
        let quiet = quiet - given;
        let shallow = self.shallow.saturating_sub(given).min(quiet);
        let trimmed = (quiet - shallow).min(TRIM_BATCH - given);
        self.stacks.range_mut(shallow..shallow + trimmed).for_each(Stack::trim);
        self.shallow = shallow + trimmed;
        self.fewest = self.stacks.len();
        given + trimmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf(pool: &Pool) -> (usize, usize) {
        let shelf = pool.shelves[usize::from(pool.class.0)].borrow();
        (shelf.stacks.len(), shelf.shallow)
    }

    #[test]
    fn trimming_leaves_alone_what_was_used_in_the_spell() {
        let pool = Pool::new(Config::default()).unwrap();
        let stacks: Vec<_> = (0..KEEP + 10).map(|_| pool.take(None).unwrap()).collect();
        stacks.into_iter().for_each(|s| pool.give(s));
        assert_eq!(pool.trim(), 0, "all were in use since the pool began");
        // Three at the top are busy; the ten coldest go, the rest of the quiet ones lose all but the top page.
        let busy: Vec<_> = (0..3).map(|_| pool.take(None).unwrap()).collect();
        busy.into_iter().for_each(|s| pool.give(s));
        assert_eq!(pool.trim(), KEEP + 7);
        assert_eq!(shelf(&pool), (KEEP + 3, KEEP));
        // Nothing to do again for the quiet ones but the three above the number to keep.
        assert_eq!(pool.trim(), 3 + 3);
        assert_eq!(shelf(&pool), (KEEP, KEEP));
        assert_eq!(pool.trim(), 0);
    }
}
