//! A table that grows and never moves: 2²⁴ entries, in pages of 256 that are made when they are first asked for.
//!
//! ```text
//!   index  23     16 15      8 7       0
//!         │  branch │   page  │  entry  │        an entry costs its own bytes and 1/256 of a page's pointer
//! ```
//!
//! A table of chunks of doubling sizes would find an entry in fewer steps. But half of its last chunk would be
//! initialised, and so resident, without use. That was 100 of 430 bytes per idle connection. Any thread may reach the
//! entries of a table of `Sync` entries. The slots of a worker are not `Sync`, so the compiler keeps them on its
//! thread.

use std::sync::OnceLock;

const FANOUT: usize = 256;

// Arrays: an index below their length needs no check.
type Page<T> = Box<[T; FANOUT]>;
type Branch<T> = Box<[OnceLock<Page<T>>; FANOUT]>;

pub(crate) struct Table<T> {
    branches: [OnceLock<Branch<T>>; FANOUT],
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Table<T> {
        Table {
            branches: [const { OnceLock::new() }; FANOUT],
        }
    }

    /// The entry, if its page was made.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let [branch, page, entry] = split(index);
        Some(&self.branches.get(branch)?.get()?[page].get()?[entry])
    }

    /// The entry. `make` makes its page and is given the index of each entry.
    ///
    /// # Panics
    ///
    /// If the index is 2²⁴ or more.
    pub(crate) fn get_or_make(&self, index: u32, make: impl Fn(u32) -> T) -> &T {
        let [branch, page, entry] = split(index);
        let branch = self.branches[branch].get_or_init(|| boxed(|_| OnceLock::new()));
        let first = index - entry as u32;
        &branch[page].get_or_init(|| boxed(|entry| make(first + entry)))[entry]
    }
}

/// An array in a box, which never lies on the stack.
fn boxed<T>(make: impl Fn(u32) -> T) -> Box<[T; FANOUT]> {
    let entries: Box<[T]> = (0..FANOUT as u32).map(make).collect();
    match entries.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("there are as many as it holds"),
    }
}

#[inline]
fn split(index: u32) -> [usize; 3] {
    let index = index as usize;
    [index >> 16, index >> 8 & (FANOUT - 1), index & (FANOUT - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_entry() {
        let table = Table::new();
        for index in [0, 1, 255, 256, 65_535, 65_536, 1_000_000, (1 << 24) - 1] {
            assert!(table.get(index).is_none_or(|entry| *entry == index));
            assert_eq!(*table.get_or_make(index, |index| index), index);
            assert_eq!(table.get(index), Some(&index));
        }
        assert_eq!(table.get(1 << 24), None);
        assert_eq!(table.get(u32::MAX), None);
    }
}
