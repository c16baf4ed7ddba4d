//! The room that a wait fills, and how it is read.
//!
//! Events of epoll stay as the kernel wrote them and are translated one by one as they are read; what comes from elsewhere
//! lies behind them, translated already.

use crate::{Event, epoll};

/// The room for events that one [`Poller::wait`](crate::Poller::wait) fills; to be used again and again, with any poller.
pub struct Events {
    pub(crate) epoll: epoll::RawEvents,
    pub(crate) others: Vec<Event>,
    pub(crate) capacity: usize,
}

impl Events {
    /// Room for `capacity` events, at least one. What does not fit comes with the next wait; a notification takes one place.
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

    /// Number of events.
    pub fn len(&self) -> usize {
        self.epoll.0.len() + self.others.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many events fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets the events.
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

/// Iterates over [`Events`].
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
