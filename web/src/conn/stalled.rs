//! Clients that take nothing while memory is short.
//!
//! Such a client keeps the stack and the buffers of its response until the write timeout. Near the limit of memory, no other client is
//! served meanwhile. So while memory is short, the worker notes how many bytes each client has not acknowledged. Near the limit it closes
//! the connections of those who have not acknowledged one byte since then, the oldest connections first:
//!
//! ```text
//!   memory is short: note ── PATIENCE ──▶ close, a few at a time, near the limit ── PATIENCE ──▶ note again
//! ```
//!
//! The numbers are the kernel's, so nothing is noted for a response while there is enough memory.

use std::rc::{Rc, Weak};
use std::time::Duration;

use osier::time::Stamp;

/// Time in which a client must take a byte while memory is short.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection, as this module sees it.
pub(crate) trait Connection {
    /// The bytes that the client has not acknowledged. 0 where the system does not say it.
    fn unacknowledged(&self) -> usize;

    /// The milliseconds since it began.
    fn age(&self) -> u32;

    /// Ends it with whatever it does, because memory is short.
    fn evict_at_once(&self);
}

/// The clients of one worker that had bytes to take at the last look.
pub(crate) struct Stalled<C> {
    /// Each with the number of these bytes, the oldest connection last.
    noted: Vec<(Weak<C>, usize)>,
    /// When they were noted.
    since: Option<Stamp>,
    /// When it was last asked.
    asked: Option<Stamp>,
}

impl<C> Default for Stalled<C> {
    fn default() -> Stalled<C> {
        Stalled {
            noted: Vec::new(),
            since: None,
            asked: None,
        }
    }
}

impl<C: Connection> Stalled<C> {
    /// Looks at the connections of the worker, and closes up to `count` whose clients have taken nothing. Called every few milliseconds
    /// while memory is short. Returns how many it has closed.
    pub(crate) fn close(&mut self, links: &[Rc<C>], count: usize) -> usize {
        let now = Stamp::coarse();
        let asked = self.asked.replace(now);
        // What was noted when memory was short before says nothing.
        let is_old = asked.is_none_or(|asked| now.since(asked) >= PATIENCE);
        let age = match self.since {
            Some(since) if !is_old => now.since(since),
            _ => Duration::MAX,
        };
        if age >= 2 * PATIENCE {
            self.note(links);
            self.since = Some(now);
            return 0;
        }
        let mut closed = 0;
        while age >= PATIENCE
            && closed < count
            && let Some((link, before)) = self.noted.pop()
        {
            if let Some(link) = link.upgrade()
                && link.unacknowledged() >= before
            {
                link.evict_at_once();
                closed += 1;
            }
        }
        closed
    }

    fn note(&mut self, links: &[Rc<C>]) {
        let mut links: Vec<_> = links
            .iter()
            .map(|link| (link, link.unacknowledged()))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        links.sort_unstable_by_key(|(link, _)| link.age());
        self.noted = links
            .iter()
            .map(|(link, bytes)| (Rc::downgrade(link), *bytes))
            .collect();
    }
}
