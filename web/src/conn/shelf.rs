//! A shelf of buffers of one kind that a worker keeps for later: last in, first out, bounded.
//!
//! The shelf remembers the fewest buffers that it held since the last trim. Nobody needed that many in all that time, so a trim
//! removes them.

pub(crate) struct Shelf<T> {
    /// The buffers, the coldest first.
    buffers: Vec<T>,
    /// The fewest since the last trim.
    fewest: usize,
}

impl<T> Shelf<T> {
    pub(crate) const fn new() -> Shelf<T> {
        Shelf {
            buffers: Vec::new(),
            fewest: 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.buffers.len()
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        let buffer = self.buffers.pop();
        self.fewest = self.fewest.min(self.buffers.len());
        buffer
    }

    /// Keeps the buffer, or drops it if there are `most` already.
    #[inline]
    pub(crate) fn give(&mut self, buffer: T, most: usize) {
        if self.buffers.len() < most {
            self.buffers.push(buffer);
        }
    }

    /// Removes the buffers that nobody has needed since the last trim. Returns them, and the number of those that are left.
    pub(crate) fn trim(&mut self) -> (Vec<T>, usize) {
        let unused = self.buffers.drain(..self.fewest).collect();
        self.fewest = self.buffers.len();
        (unused, self.fewest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trim_drops_what_was_not_needed() {
        let mut shelf = Shelf::new();
        (0..20).for_each(|buffer| shelf.give(buffer, 10));
        assert_eq!(shelf.trim(), (vec![], 10), "they have just come");
        let taken = [(); 4].map(|()| shelf.take());
        assert_eq!(taken, [Some(9), Some(8), Some(7), Some(6)]);
        taken.into_iter().flatten().for_each(|buffer| shelf.give(buffer, 10));
        assert_eq!(shelf.trim(), (vec![0, 1, 2, 3, 4, 5], 4));
        assert_eq!(shelf.trim(), (vec![9, 8, 7, 6], 0));
        assert_eq!((shelf.trim(), shelf.take()), ((vec![], 0), None));
    }
}
