//! The pool: the stacks that one worker keeps warm.
//!
//! Each size class has a LIFO shelf: the stack given last is taken first, because its top page is in the cache. In front of the
//! configured class's shelf lies one more stack, the newest. A worker mostly gives one stack and takes it again, and this saves the
//! chain of loads through a queue. All slow paths are in `region.rs` (no stack in the pool) or in [`Pool::trim`].
//!
//! Trimming needs no work per use. A shelf remembers the fewest stacks that it held since the last trim. That many stacks at the bottom
//! were not touched in all that time, so their memory can be given back.

use super::{CLASSES, Class, Config, Guard, Stack, region};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;

/// Stacks that stay on a shelf, with their top page, however long they are not used.
const KEEP: usize = 64;

/// The most stacks of a size class that one call of [`Pool::trim`] handles. They take about a millisecond.
const TRIM_BATCH: usize = 512;

/// The stacks of a worker. It is not `Sync`: each thread has its own.
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
    /// Last given stack of `class`, unless it was taken.
    newest: Cell<Option<Stack>>,
    shelves: [RefCell<Shelf>; CLASSES],
    /// Number of stacks taken from the process-wide list and not handed back, live and pooled.
    owned: Cell<usize>,
    /// Maximum of `owned`. All stacks of a class are live whenever another is fetched, so this is the maximum of live ones, and no warm
    /// `take` or `give` has to count.
    most_owned: Cell<usize>,
}

/// The stack counts of a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Stacks taken and not given back. A stack that was leaked or dropped elsewhere counts for ever.
    pub live: usize,
    /// Stacks in the pool.
    pub pooled: usize,
    /// Maximum of stacks live at once. With several sizes, the sum of the maximum of each.
    pub high_water: usize,
}

impl Pool {
    /// An empty pool. It also prepares this thread for reporting stack overflows, so call it on the thread that will run the coroutines.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a `stack_bytes` beyond [`MAX_STACK_BYTES`](super::MAX_STACK_BYTES), and the errors of
    /// [`install_for_thread`](crate::overflow::install_for_thread).
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

    /// Takes a stack of the configured size, or of at least `stack_bytes`, guard included. It still holds what its last user left.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` when address space or mappings are exhausted: the text names the limit and the setting.
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
        // A caller that passes the configured size as a number gets the newest stack too.
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

    /// The number of stacks that it owns, live and pooled together. It costs one load.
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

    /// Gives back memory of stacks that were not taken since the last call. Some stay with their top page; the others go to the process-wide
    /// free list, where other workers find them. Returns the number of stacks handled. Call it rarely, about once a second.
    ///
    /// # Blocks the thread
    ///
    /// Up to about a millisecond per size class in use.
    pub fn trim(&self) -> usize {
        let (given, trimmed) = self.shelves.iter().fold((0, 0), |(given, trimmed), shelf| {
            let now = shelf.borrow_mut().trim();
            (given + now.0, trimmed + now.1)
        });
        self.owned.set(self.owned.get().saturating_sub(given));
        // The newest stack goes to its shelf, so that its quiet time begins now.
        if let Some(newest) = self.newest.take() {
            let mut shelf = self.shelf(self.class).borrow_mut();
            shelf.stacks.push_back(newest);
            shelf.fewest += 1;
        }
        given + trimmed
    }

    /// Whether another call of [`trim`](Pool::trim) would find nothing to give back, while no stack is taken.
    pub fn is_trimmed(&self) -> bool {
        let newest = self.newest.take();
        let is_none = newest.is_none();
        self.newest.set(newest);
        is_none && self.shelves.iter().all(|shelf| shelf.borrow().is_trimmed())
    }

    /// The counts of the pool.
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
    /// Stacks, coldest first.
    stacks: VecDeque<Stack>,
    /// Fewest stacks here since the last trim: that many at the front were not used.
    fewest: usize,
    /// Stacks at the front that had only their top page at the last trim. The first `fewest` of them are still there.
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

    fn is_trimmed(&self) -> bool {
        self.stacks.len() <= KEEP && self.shallow == self.stacks.len()
    }

    /// Returns how many stacks were given to the process-wide list, and how many lost all pages except the topmost.
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
        // Three at the top are busy. The ten coldest go; the other unused ones lose all pages except the topmost.
        let busy: Vec<_> = (0..3).map(|_| pool.take(None).unwrap()).collect();
        busy.into_iter().for_each(|s| pool.give(s));
        assert_eq!(pool.trim(), KEEP + 7);
        assert_eq!(shelf(&pool), (KEEP + 3, KEEP));
        // Nothing is left to do for the unused ones, except for the three beyond the number to keep.
        assert_eq!(pool.trim(), 3 + 3);
        assert_eq!(shelf(&pool), (KEEP, KEEP));
        assert_eq!(pool.trim(), 0);
    }

    #[test]
    fn a_pool_that_is_left_alone_is_trimmed_after_a_few_calls() {
        let pool = Pool::new(Config::default()).unwrap();
        assert!(pool.is_trimmed());
        let many = 2 * TRIM_BATCH;
        let stacks: Vec<_> = (0..many).map(|_| pool.take(None).unwrap()).collect();
        stacks.into_iter().for_each(|s| pool.give(s));
        let mut calls = 0;
        while !pool.is_trimmed() {
            pool.trim();
            calls += 1;
            assert!(calls <= 5, "{:?}", shelf(&pool));
        }
        assert_eq!(shelf(&pool), (KEEP, KEEP));
        pool.give(pool.take(None).unwrap());
        assert!(!pool.is_trimmed(), "a stack was used");
    }
}
