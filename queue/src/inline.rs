//! A first-in, first-out queue that stores its first value inline.
//!
//! Most of these queues hold at most one value: a subscriber that keeps up, a connection with one frame to send. So the first
//! value costs no allocation, and an idle queue owns no memory.

use std::collections::VecDeque;
use std::iter;

/// Values for which [`InlineQueue::give_back_room`] keeps allocated room.
const KEPT_ROOM: usize = 4;

/// A queue that allocates only for the second and later values.
///
/// ```
/// let mut queue = osier_queue::InlineQueue::default();
/// queue.push(1);
/// queue.push(2);
/// assert_eq!((queue.len(), queue.first()), (2, Some(&1)));
/// assert_eq!(queue.iter().sum::<i32>(), 3);
/// assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(2), None));
/// ```
#[derive(Debug)]
pub struct InlineQueue<T> {
    first: Option<T>,
    /// Later values. Empty unless there is a first value.
    rest: VecDeque<T>,
}

impl<T> InlineQueue<T> {
    /// Appends a value.
    #[inline]
    pub fn push(&mut self, value: T) {
        match self.first {
            None => self.first = Some(value),
            Some(_) => self.rest.push_back(value),
        }
    }

    /// Takes the oldest value. Allocated room is kept.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let value = self.first.take()?;
        self.first = self.rest.pop_front();
        Some(value)
    }

    /// Frees the allocated room, if no later value is there and the room is larger than a few values.
    #[inline]
    pub fn give_back_room(&mut self) {
        if self.rest.is_empty() && self.rest.capacity() > KEPT_ROOM {
            self.rest = VecDeque::new();
        }
    }

    /// The oldest value.
    #[inline]
    pub fn first(&self) -> Option<&T> {
        self.first.as_ref()
    }

    /// Iterates over the values, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        iter::chain(&self.first, &self.rest)
    }

    /// The number of values.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Whether there is no value.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl<T> Default for InlineQueue<T> {
    fn default() -> Self {
        InlineQueue {
            first: None,
            rest: VecDeque::new(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn is_first_in_first_out_and_gives_its_room_back() {
        let mut queue = InlineQueue::default();
        for round in 1..20 {
            (0..round).for_each(|n| queue.push(n));
            assert!(queue.iter().copied().eq(0..round));
            assert_eq!((queue.len(), queue.first()), (round, Some(&0)));
            assert!((0..round).all(|n| queue.pop() == Some(n)));
            assert!(queue.is_empty() && queue.pop().is_none());
            queue.give_back_room();
            assert!(queue.rest.capacity() <= KEPT_ROOM);
        }
    }
}
