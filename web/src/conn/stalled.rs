//! Clients that take nothing while memory is short.
//!
//! Such a client keeps the stack and the buffers of its response until the write timeout. Near the limit of memory, no other client is
//! served meanwhile. So while memory is short, the worker looks several times a second how many bytes each client has not acknowledged.
//! Near the limit it closes the connections for which that number has long been the same, the oldest connections first:
//!
//! ```text
//!   memory is short: look ── LOOK ──▶ look ── LOOK ──▶ look …     the number is the same for STALLED_AFTER, near the limit: close,
//!                    note what has changed, and when              a few at a time
//! ```
//!
//! The numbers are the kernel's, so nothing is noted for a response while there is enough memory. A client that reads a long response has
//! as many bytes to take after a while, because the server sends more: one look before and one after would not tell it from the others.

use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use osier::time::Stamp;

/// Time in which a client must take a byte while memory is short.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(2);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(200);

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
    /// The oldest connection first.
    noted: Vec<Noted<C>>,
    /// When the worker looked last.
    looked: Option<Stamp>,
}

struct Noted<C> {
    link: Weak<C>,
    unacknowledged: usize,
    /// Since when that is the number.
    since: Stamp,
}

impl<C> Default for Stalled<C> {
    fn default() -> Stalled<C> {
        Stalled {
            noted: Vec::new(),
            looked: None,
        }
    }
}

impl<C: Connection> Stalled<C> {
    /// Looks at the connections of the worker, and closes up to `count` whose clients take nothing. Called every few milliseconds while
    /// memory is short. Returns how many it has closed.
    pub(crate) fn close(&mut self, links: &[Rc<C>], count: usize) -> usize {
        self.close_at(Stamp::coarse(), links, count)
    }

    fn close_at(&mut self, now: Stamp, links: &[Rc<C>], count: usize) -> usize {
        let pause = self.looked.map_or(Duration::MAX, |looked| now.since(looked));
        if pause >= LOOK {
            if pause >= STALLED_AFTER {
                // The notes are of an earlier shortage of memory.
                self.noted.clear();
            }
            self.look(now, links);
            self.looked = Some(now);
        }
        let stalled = self
            .noted
            .iter_mut()
            .filter(|noted| now.since(noted.since) >= STALLED_AFTER)
            .filter_map(|noted| {
                // The measurement begins anew, whether or not this connection is closed.
                noted.since = now;
                let link = noted.link.upgrade()?;
                (link.unacknowledged() == noted.unacknowledged).then_some(link)
            });
        stalled.take(count).inspect(|link| link.evict_at_once()).count()
    }

    fn look(&mut self, now: Stamp, links: &[Rc<C>]) {
        // The memory of a link is not used again while there is a weak reference to it.
        let before: HashMap<_, _> = self
            .noted
            .iter()
            .map(|noted| (noted.link.as_ptr(), (noted.unacknowledged, noted.since)))
            .collect();
        let mut found: Vec<_> = links
            .iter()
            .map(|link| (link, link.unacknowledged()))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        found.sort_unstable_by_key(|(link, _)| std::cmp::Reverse(link.age()));
        self.noted = found
            .into_iter()
            .map(|(link, unacknowledged)| Noted {
                link: Rc::downgrade(link),
                unacknowledged,
                since: match before.get(&Rc::as_ptr(link)) {
                    Some((bytes, since)) if *bytes == unacknowledged => *since,
                    _ => now,
                },
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[derive(Default)]
    struct Client {
        unacknowledged: Cell<usize>,
        age: u32,
        is_closed: Cell<bool>,
    }

    impl Connection for Client {
        fn unacknowledged(&self) -> usize {
            self.unacknowledged.get()
        }

        fn age(&self) -> u32 {
            self.age
        }

        fn evict_at_once(&self) {
            self.is_closed.set(true);
            self.unacknowledged.set(0);
        }
    }

    /// Clients of which the first is the oldest.
    fn clients(count: u32) -> Vec<Rc<Client>> {
        let client = |age| Client {
            age,
            unacknowledged: Cell::new(1000),
            ..Client::default()
        };
        (0..count).rev().map(|age| Rc::new(client(age))).collect()
    }

    /// Runs the checks of `time` in a runtime whose clock stands still otherwise. `before` runs before each.
    fn checks(stalled: &mut Stalled<Client>, links: &[Rc<Client>], time: Duration, before: impl Fn()) -> usize {
        const TICK: Duration = Duration::from_millis(10);
        let ticks = time.as_millis() / TICK.as_millis();
        (0..ticks)
            .map(|_| {
                osier::sleep(TICK);
                before();
                stalled.close(links, 1)
            })
            .sum()
    }

    fn with_clock(test: impl FnOnce() + Send + 'static) {
        let clock = osier::time::VirtualClock::new();
        osier::Runtime::builder().clock(clock).build().unwrap().run(test);
    }

    #[test]
    fn clients_that_take_nothing_are_closed_the_oldest_first_and_others_stay() {
        with_clock(|| {
            let (links, mut stalled) = (clients(3), Stalled::default());
            // The first one takes a byte now and then; as much is sent again.
            let turn = Cell::new(0);
            let reads = || {
                turn.set(turn.get() + 1);
                links[0].unacknowledged.set(1000 + turn.get() / 100 % 2);
            };
            assert_eq!(checks(&mut stalled, &links, STALLED_AFTER, reads), 0);
            assert_eq!(checks(&mut stalled, &links, LOOK, reads), 2);
            let closed = [0, 1, 2].map(|at: usize| links[at].is_closed.get());
            assert_eq!(closed, [false, true, true]);
            assert_eq!(checks(&mut stalled, &links, 10 * STALLED_AFTER, reads), 0);
            assert_eq!(checks(&mut stalled, &links, STALLED_AFTER + LOOK, || {}), 1);
        });
    }

    #[test]
    fn one_that_comes_later_is_noted_soon_and_old_notes_say_nothing() {
        with_clock(|| {
            let (links, mut stalled) = (clients(2), Stalled::default());
            assert_eq!(checks(&mut stalled, &links[..1], STALLED_AFTER / 2, || {}), 0);
            assert_eq!(checks(&mut stalled, &links, STALLED_AFTER / 2 + LOOK, || {}), 1);
            assert!(links[0].is_closed.get());
            assert_eq!(checks(&mut stalled, &links, STALLED_AFTER / 2 + LOOK, || {}), 1);

            let (links, mut stalled) = (clients(1), Stalled::default());
            assert_eq!(checks(&mut stalled, &links, STALLED_AFTER / 2, || {}), 0);
            osier::sleep(2 * STALLED_AFTER);
            assert_eq!(checks(&mut stalled, &links, STALLED_AFTER / 2, || {}), 0);
        });
    }
}
