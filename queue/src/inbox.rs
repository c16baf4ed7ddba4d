//! The inbox of a worker: the slot numbers that other threads have woken. It has no lock and allocates nothing.
//!
//! Wakers on any thread push; only the owner drains. It is a Treiber stack (R. K. Treiber, IBM RJ 5118, 1986) whose links are slot
//! numbers instead of pointers. They are kept beside the slots in the owner's table:
//!
//! ```text
//!   head ──> 7 ──> 2 ──> 5 ──> END          table: [.., Link 2 {next: 5}, .., Link 5 {next: END}, .., Link 7 {next: 2}]
//!          newest        oldest             drain: swap head with END, turn the list round, hand over 5, 2, 7
//! ```
//!
//! # Protocol
//! - Nothing is ever popped: the owner takes the whole list with one swap. A head that went away and came back means the same list
//!   again, so ABA is harmless.
//! - `queued` admits a slot once. The push that turns it from false to true owns `next` until its compare-exchange on `head` has
//!   published it. From the swap of `head` until it clears `queued`, the owner of the inbox owns `next`.
//! - The owner clears `queued` *before* it hands the slot over. A later push queues the slot again. An earlier push that was refused
//!   is covered by this hand-over. Both sides use a read-modify-write on `queued` (AcqRel), so the hand-over sees everything that
//!   the refused pusher wrote before.
//! - Sleep: see [`crate::parker`]; a push comes before `unpark`, `is_empty` after `prepare`.

use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// The end of the list: no slot.
const END: u32 = u32::MAX;

/// The inbox's part of a slot. It lies in the owner's table, at an address that never changes.
#[derive(Debug)]
pub struct Link {
    /// Slot pushed before this one. The module's protocol says who may touch it.
    next: AtomicU32,
    /// Whether the slot is in the inbox, or about to be.
    queued: AtomicBool,
}

impl Link {
    crate::sync::const_unless_loom! {
        /// A link that is in no inbox.
        pub fn new() -> Self {
            Self { next: AtomicU32::new(END), queued: AtomicBool::new(false) }
        }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

/// The table of links. It must return the same link for the same index for as long as the inbox is used.
pub trait Links {
    /// The link of slot `index`.
    fn link(&self, index: u32) -> &Link;
}

impl Links for [Link] {
    fn link(&self, index: u32) -> &Link {
        &self[index as usize]
    }
}

/// A multi-producer, single-consumer queue of slot numbers. It holds each number at most once.
///
/// ```
/// use osier_queue::{Inbox, Link};
///
/// let links = [Link::new(), Link::new(), Link::new()];
/// let inbox = Inbox::new();
/// assert!(inbox.push(&links[..], 2));
/// assert!(inbox.push(&links[..], 0));
/// assert!(!inbox.push(&links[..], 2), "already queued");
///
/// let mut woken = Vec::new();
/// inbox.drain(&links[..], |slot| woken.push(slot));
/// assert_eq!(woken, [2, 0]);
/// ```
#[derive(Debug)]
pub struct Inbox {
    head: AtomicU32,
}

impl Inbox {
    crate::sync::const_unless_loom! {
        /// An empty inbox.
        pub fn new() -> Self {
            Self { head: AtomicU32::new(END) }
        }
    }

    /// Queues slot `index`, from any thread. Returns false if it was queued already: then the coming hand-over sees everything that this
    /// thread wrote before.
    ///
    /// One inbox and one table belong together. A slot that waits in one inbox cannot be pushed to another inbox with the same table.
    ///
    /// # Panics
    /// If `index` is `u32::MAX`, or outside of the table.
    pub fn push<L: Links + ?Sized>(&self, links: &L, index: u32) -> bool {
        assert_ne!(index, END, "slot u32::MAX is reserved");
        let link = links.link(index);
        if link.queued.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.publish(link, index);
        true
    }

    fn publish(&self, link: &Link, index: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link.next.store(head, Ordering::Relaxed);
            match self
                .head
                .compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all queued slots and hands them over, oldest first. Only the owner calls it. A second thread that drains at the same time
    /// gets a disjoint part.
    ///
    /// `each` may push, also the slot that it was given. If it panics, the slots not yet handed over are queued again.
    pub fn drain<L: Links + ?Sized>(&self, links: &L, mut each: impl FnMut(u32)) {
        if self.is_empty() {
            return; // a load, where the swap would take the cache line from the pushers
        }
        let newest = self.head.swap(END, Ordering::Acquire);
        let mut rest = Rest {
            inbox: self,
            links,
            oldest: reverse(links, newest),
        };
        while let Some(index) = rest.next() {
            each(index);
        }
    }

    /// Whether nothing is queued: one load.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire) == END
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

/// Reverses the list and returns its oldest slot, which is now the first.
fn reverse<L: Links + ?Sized>(links: &L, newest: u32) -> u32 {
    let (mut done, mut index) = (END, newest);
    while index != END {
        let link = links.link(index);
        let next = link.next.load(Ordering::Relaxed);
        link.next.store(done, Ordering::Relaxed);
        done = index;
        index = next;
    }
    done
}

/// The part of a drained list that is not handed over yet. It goes back into the inbox if a hand-over panics.
struct Rest<'a, L: Links + ?Sized> {
    inbox: &'a Inbox,
    links: &'a L,
    oldest: u32,
}

impl<L: Links + ?Sized> Rest<'_, L> {
    fn next(&mut self) -> Option<u32> {
        if self.oldest == END {
            return None;
        }
        let index = self.oldest;
        let link = self.links.link(index);
        self.oldest = link.next.load(Ordering::Relaxed); // before the clear: then the link may be anyone's
        link.queued.swap(false, Ordering::AcqRel);
        Some(index)
    }
}

impl<L: Links + ?Sized> Drop for Rest<'_, L> {
    fn drop(&mut self) {
        while let Some(index) = self.next() {
            self.inbox.push(self.links, index);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn table(slots: usize) -> Vec<Link> {
        (0..slots).map(|_| Link::new()).collect()
    }

    fn drained(inbox: &Inbox, links: &[Link]) -> Vec<u32> {
        let mut slots = Vec::new();
        inbox.drain(links, |slot| slots.push(slot));
        slots
    }

    #[test]
    fn is_first_in_first_out_and_admits_a_slot_once() {
        let (inbox, links) = (Inbox::new(), table(4));
        assert!(inbox.is_empty());
        assert_eq!(
            [3, 1, 3, 0].map(|slot| inbox.push(&links[..], slot)),
            [true, true, false, true]
        );
        assert!(!inbox.is_empty());
        assert_eq!(drained(&inbox, &links), [3, 1, 0]);
        assert_eq!(drained(&inbox, &links), []);
        assert!(inbox.push(&links[..], 3), "a drained slot may come again");
    }

    #[test]
    fn a_slot_may_be_pushed_from_its_own_hand_over() {
        let (inbox, links) = (Inbox::new(), table(2));
        inbox.push(&links[..], 0);
        inbox.push(&links[..], 1);
        let mut seen = Vec::new();
        inbox.drain(&links[..], |slot| {
            seen.push(slot);
            assert!(inbox.push(&links[..], 0) || slot == 1, "cleared before the hand-over");
        });
        assert_eq!(seen, [0, 1], "what is pushed meanwhile waits for the next drain");
        assert_eq!(drained(&inbox, &links), [0]);
    }

    #[test]
    fn a_panicking_hand_over_loses_nothing_but_its_own_slot() {
        let (inbox, links) = (Inbox::new(), table(3));
        for slot in 0..3 {
            inbox.push(&links[..], slot);
        }
        let caught = catch_unwind(AssertUnwindSafe(|| inbox.drain(&links[..], |slot| assert_eq!(slot, 9))));
        assert!(caught.is_err());
        assert_eq!(drained(&inbox, &links), [1, 2]);
    }

    #[test]
    fn many_threads_push_and_every_refused_push_is_covered() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let (inbox, links) = (Inbox::new(), table(8));
        let work: Vec<AtomicU32> = (0..8).map(|_| AtomicU32::new(0)).collect();
        let (mut taken, total) = (0, 3 * rounds);
        std::thread::scope(|scope| {
            for thread in 0..3u32 {
                let (inbox, links, work) = (&inbox, &links, &work);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let slot = (round + thread) % 8;
                        work[slot as usize].fetch_add(1, Ordering::Relaxed);
                        inbox.push(&links[..], slot);
                    }
                });
            }
            while taken < total {
                inbox.drain(&links[..], |slot| {
                    taken += work[slot as usize].swap(0, Ordering::Relaxed)
                });
                std::thread::yield_now();
            }
        });
        // A push may come after its work was taken together with that of an earlier push.
        inbox.drain(&links[..], |slot| {
            taken += work[slot as usize].swap(0, Ordering::Relaxed)
        });
        assert_eq!(taken, total);
        assert!(inbox.is_empty());
    }
}
