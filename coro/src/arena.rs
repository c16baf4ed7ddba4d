//! Memory with one lifetime: values that stay where they are until the arena goes.
//!
//! Used by [`Yielder`](crate::Yielder) for memory tied to a coroutine. It only grows, so references into it stay good while it is
//! shared. Cells lie in chunks that double in size and never move, all made when first needed:
//!
//! ```text
//!   chunk 0: [0]   chunk 1: [1 2]   chunk 2: [3 4 5 6]   …        cell n is in chunk ⌊log₂(n+1)⌋
//! ```

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::fmt;

/// An append-only store of values of any types. Empty, it owns no memory.
#[derive(Default)]
pub struct Arena {
    chunks: OnceCell<Box<Chunks>>,
    len: Cell<u32>,
}

/// 32 chunks hold 2³² - 1 values, the range of `len`.
type Chunks = [OnceCell<Box<[OnceCell<Box<dyn Any>>]>>; 32];

impl Arena {
    /// An arena without values.
    pub const fn new() -> Arena {
        Arena {
            chunks: OnceCell::new(),
            len: Cell::new(0),
        }
    }

    /// Keeps `value` as long as the arena. Values are dropped in no promised order.
    ///
    /// ```
    /// let arena = osier_coro::arena::Arena::new();
    /// let host: &str = arena.alloc(format!("{}.example", "www"));
    /// let port: &u16 = arena.alloc(80);
    /// assert_eq!((host, *port), ("www.example", 80));
    /// ```
    ///
    /// # Panics
    ///
    /// If it holds 2³² - 1 values.
    pub fn alloc<T: 'static>(&self, value: T) -> &T {
        let index = self
            .len
            .get()
            .checked_add(1)
            .expect("an arena holds at most 2^32 - 1 values");
        self.len.set(index);
        let chunk = index.ilog2();
        let chunks = self.chunks.get_or_init(Default::default);
        let cells = chunks[chunk as usize].get_or_init(|| (0..1usize << chunk).map(|_| OnceCell::new()).collect());
        let cell = &cells[(index - (1 << chunk)) as usize];
        cell.get_or_init(|| Box::new(value))
            .downcast_ref()
            .expect("each cell is filled once, here, with a T")
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("len", &self.len.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn values_stay_in_place_and_go_with_the_arena() {
        let arena = Arena::new();
        let shared = Rc::new(());
        let first = arena.alloc(7u64);
        let later: Vec<&(usize, Rc<()>)> = (0..1000).map(|n| arena.alloc((n, shared.clone()))).collect();
        assert_eq!(*first, 7);
        assert!(later.iter().enumerate().all(|(n, value)| value.0 == n));
        assert_eq!(Rc::strong_count(&shared), 1001);
        drop(arena);
        assert_eq!(Rc::strong_count(&shared), 1);
    }
}
