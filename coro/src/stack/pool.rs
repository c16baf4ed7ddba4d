//! The pool: stacks that one worker keeps warm.
//!
//! Per size class a LIFO shelf: the stack given last is taken first, since its top page is in the cache. In front of the
//! usual class's shelf lies one more stack, the newest: a worker mostly gives one and takes it again, and this saves the
//! chain of loads through a queue. Everything slow is in `region.rs` (no stack at hand) or in [`Pool::trim`].
//!
//! Trimming watches nothing per use. The shelf remembers the fewest stacks it held since the last trim: those at the
//! bottom were not touched in all that time, so their memory can go without hurting anybody.

use super::{CLASSES, Class, Config, Guard, Stack, region};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;

/// Stacks that stay on a shelf through a quiet spell, with their top page.
const KEEP: usize = 64;

/// Stacks one call of [`Pool::trim`] works on per size class at most: about a millisecond.
const TRIM_BATCH: usize = 512;

/// A worker's stacks. Not `Sync`: each thread has its own.
///
/// ```compile_fail,E0277
/// fn sync<T: Sync>() {}
/// sync::<osier_coro::stack::Pool>();
/// ```
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
pub struct Pool {
    class: Class,
    region_bytes: usize,
    guard: Guard,
    /// The stack of `class` given last, unless it was taken.
    newest: Cell<Option<Stack>>,
    shelves: [RefCell<Shelf>; CLASSES],
    /// Stacks taken from the process-wide list and not handed back to it: the live and the pooled.
    owned: Cell<usize>,
    /// The most there ever were of `owned`. All of a class are live whenever one more is fetched, so this is
    /// the most that were live, and no warm `take` or `give` need count.
    most_owned: Cell<usize>,
}

/// How many stacks a [`Pool`] has to do with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Taken and not given back. A stack that was leaked or dropped elsewhere counts for ever.
    pub live: usize,
    /// Waiting in the pool.
    pub pooled: usize,
    /// The most that were ever live at once; with several sizes, the sum of the most of each.
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
            newest: Cell::new(None),
            shelves: [const { RefCell::new(Shelf::new()) }; CLASSES],
            owned: Cell::new(0),
            most_owned: Cell::new(0),
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
            None => match self.newest.take() {
                Some(stack) => return Ok(stack),
                None => self.class,
            },
            Some(bytes) => Class::holding(bytes)?,
        };
        self.take_from_shelf(class)
    }

    fn take_from_shelf(&self, class: Class) -> io::Result<Stack> {
        // Whoever asks for the usual size by its number finds the newest too.
        let newest = if class == self.class { self.newest.take() } else { None };
        match newest.or_else(|| self.shelf(class).borrow_mut().pop()) {
            Some(stack) => Ok(stack),
            None => self.fetch(class),
        }
    }

    #[cold]
    fn fetch(&self, class: Class) -> io::Result<Stack> {
        let stack = region::take(class, self.region_bytes, self.guard)?;
        self.owned.set(self.owned.get() + 1);
        self.most_owned.set(self.most_owned.get().max(self.owned.get()));
        Ok(stack)
    }

    /// How many stacks it has, in use or waiting: what [`counters`](Pool::counters) says of both together, for one load.
    #[inline]
    pub fn owned(&self) -> usize {
        self.owned.get()
    }

    /// Keeps `stack` for the next [`take`](Pool::take).
    #[inline]
    pub fn give(&self, stack: Stack) {
        if stack.class() != self.class {
            self.give_to_shelf(stack);
        } else if let Some(older) = self.newest.replace(Some(stack)) {
            self.give_to_shelf(older);
        }
    }

    fn give_to_shelf(&self, stack: Stack) {
        self.shelf(stack.class()).borrow_mut().stacks.push_back(stack);
    }

    fn shelf(&self, class: Class) -> &RefCell<Shelf> {
        &self.shelves[usize::from(class.0)]
    }

    /// Gives back memory of stacks that nobody took since the last call: some stay with their top page, the rest go to the
    /// process-wide free list, where other workers find them. Returns how many stacks it worked on. To be called
    /// rarely, say once a second: one call is one quiet spell.
    ///
    /// # Blocks the thread
    ///
    /// For at most about a millisecond per size class in use.
    pub fn trim(&self) -> usize {
        let (given, trimmed) = self.shelves.iter().fold((0, 0), |(given, trimmed), shelf| {
            let now = shelf.borrow_mut().trim();
            (given + now.0, trimmed + now.1)
        });
        self.owned.set(self.owned.get().saturating_sub(given));
        // Its spell begins now, with the others of its shelf.
        if let Some(newest) = self.newest.take() {
            let mut shelf = self.shelf(self.class).borrow_mut();
            shelf.stacks.push_back(newest);
            shelf.fewest += 1;
        }
        given + trimmed
    }

    /// The pool's figures.
    pub fn counters(&self) -> Counters {
        let newest = self.newest.take();
        let pooled = usize::from(newest.is_some());
        self.newest.set(newest);
        let pooled = pooled
            + self
                .shelves
                .iter()
                .map(|shelf| shelf.borrow().stacks.len())
                .sum::<usize>();
        Counters {
            live: self.owned.get().saturating_sub(pooled),
            pooled,
            high_water: self.most_owned.get(),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = self.class.stack_bytes();
        f.debug_struct("Pool")
            .field("stack_bytes", &class)
            .field("counters", &self.counters())
            .finish()
    }
}

/// The pooled stacks of one class.
#[derive(Debug)]
struct Shelf {
    /// Coldest first.
    stacks: VecDeque<Stack>,
    /// The fewest that lay here since the last trim: so many at the front are quiet.
    fewest: usize,
    /// How many at the front had nothing but their top page at the last trim; of these, `fewest` still lie there.
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

    /// Returns how many stacks were given to the process-wide list, and how many lost all but their top page.
    fn trim(&mut self) -> (usize, usize) {
        let quiet = self.fewest;
        let given = quiet.saturating_sub(KEEP).min(TRIM_BATCH);
        self.stacks.drain(..given);
        let quiet = quiet - given;
        let shallow = self.shallow.saturating_sub(given).min(quiet);
        let trimmed = (quiet - shallow).min(TRIM_BATCH - given);
        self.stacks.range_mut(shallow..shallow + trimmed).for_each(Stack::trim);
        self.shallow = shallow + trimmed;
        self.fewest = self.stacks.len();
        (given, trimmed)
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
