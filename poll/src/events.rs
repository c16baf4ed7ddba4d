//! The buffer that a wait fills with events.
//!
//! Events of epoll stay as the kernel wrote them and are translated when they are read. Events of other back-ends are stored
//! translated, behind them.

use crate::{Event, epoll};

/// The buffer for events that [`Poller::wait`](crate::Poller::wait) fills. It can be reused, with any poller.
pub struct Events {
    pub(crate) epoll: epoll::RawEvents,
    pub(crate) others: Vec<Event>,
    pub(crate) capacity: usize,
}

impl Events {
    /// A buffer for `capacity` events, at least one. More events come with the next wait. A notification takes one place.
    pub fn with_capacity(capacity: usize) -> Self {
        // epoll_wait(2) refuses more than INT_MAX / size_of::<epoll_event>().
        let capacity = capacity.clamp(1, 1 << 20);
        Self {
            epoll: epoll::RawEvents(Vec::with_capacity(capacity)),
            others: Vec::new(),
            capacity,
        }
    }

    /// The events of the last wait.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            epoll: self.epoll.0.iter(),
            others: self.others.iter(),
        }
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.epoll.0.len() + self.others.len()
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of events that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Removes the events.
    pub fn clear(&mut self) {
        self.epoll.0.clear();
        self.others.clear();
    }
}

impl<'a> IntoIterator for &'a Events {
    type Item = Event;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// An iterator over [`Events`].
pub struct Iter<'a> {
    epoll: std::slice::Iter<'a, epoll::RawEvent>,
    others: std::slice::Iter<'a, Event>,
}

impl Iterator for Iter<'_> {
    type Item = Event;

    #[inline]
    fn next(&mut self) -> Option<Event> {
        match self.epoll.next() {
            Some(raw) => Some(epoll::event(raw)),
            None => self.others.next().copied(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.epoll.len() + self.others.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Iter<'_> {}
