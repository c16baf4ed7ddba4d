//! The order in which entries leave a full cache: S3-FIFO, three queues and a few bits of history.
//!
//! ```text
//!   new ──▶ small, a tenth of the bytes ──used again──▶ main ◀─┐ used since it came round
//!               │ never used                             │ └───┘
//!               ▼                                        ▼ not used
//!             gone, its hash remembered ──────────▶    gone
//!               └── comes back: straight to main
//! ```
//!
//! A scan of objects that are asked for once passes through `small` and leaves `main` alone. The queue
//! knows entries by number. It does not own them: the caller says how often an entry was used.
//!
//! Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.

use std::collections::{HashMap, HashSet, VecDeque};

use osier::memory::{Account, Charge};

/// The greatest number of uses that counts.
pub const MOST_USES: u8 = 3;

/// The number of dead slots, beyond one for each entry, at which the queues are cleaned.
const DEAD_MOST: usize = 64;

/// The least number of hashes that are remembered.
const GHOSTS_LEAST: usize = 64;

/// An entry in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Number of the entry.
    pub id: u64,
    /// Hash of the key of the entry.
    pub hash: u64,
}

#[derive(Debug, Default)]
pub struct Queue {
    most: u64,
    /// The bytes of each entry, and whether it is in `main`. A slot whose entry is not here is dead: the entry was
    /// removed.
    entries: HashMap<u64, (u64, bool)>,
    small: VecDeque<Slot>,
    small_bytes: u64,
    main: VecDeque<Slot>,
    main_bytes: u64,
    /// Hashes of entries that have left `small` unused, the oldest first.
    ghosts: VecDeque<u64>,
    /// The same hashes, but for those that have come back.
    known: HashSet<u64>,
    /// Charges the bytes to the account of caches, if they are in memory.
    charge: Option<Charge>,
}

impl Queue {
    /// Makes a queue for `most` bytes.
    pub fn new(most: u64) -> Queue {
        Queue {
            most,
            ..Queue::default()
        }
    }

    /// Makes a queue for `most` bytes of memory.
    pub fn in_memory(most: u64) -> Queue {
        Queue {
            charge: Some(Account::CACHES.charge(0)),
            ..Queue::new(most)
        }
    }

    /// Adjusts the charge to the bytes.
    fn settle(&mut self) {
        let bytes = usize::try_from(self.bytes()).unwrap_or(usize::MAX);
        if let Some(charge) = &mut self.charge {
            charge.resize(bytes);
        }
    }

    pub fn bytes(&self) -> u64 {
        self.small_bytes + self.main_bytes
    }

    /// The bytes that the queue may hold.
    pub fn most(&self) -> u64 {
        self.most
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is room for `more` bytes.
    pub fn fits(&self, more: u64) -> bool {
        self.bytes().saturating_add(more) <= self.most
    }

    /// Adds an entry. The queue may then hold too much: call [`Queue::evict`] before.
    pub fn insert(&mut self, slot: Slot, bytes: u64) {
        let is_main = self.known.remove(&slot.hash);
        self.entries.insert(slot.id, (bytes, is_main));
        match is_main {
            true => {
                self.main_bytes += bytes;
                self.main.push_back(slot);
            }
            false => {
                self.small_bytes += bytes;
                self.small.push_back(slot);
            }
        }
        self.settle();
    }

    /// Takes out an entry that is not evicted.
    pub fn remove(&mut self, id: u64) {
        let Some((bytes, is_main)) = self.entries.remove(&id) else {
            return;
        };
        match is_main {
            true => self.main_bytes -= bytes,
            false => self.small_bytes -= bytes,
        }
        self.settle();
        let slots = self.small.len() + self.main.len();
        if slots > 2 * self.entries.len() + DEAD_MOST {
            self.small.retain(|slot| self.entries.contains_key(&slot.id));
            self.main.retain(|slot| self.entries.contains_key(&slot.id));
        }
    }

    /// Takes out the next entry if the queue holds too much with `more` bytes. `was_used` says whether
    /// an entry was used since it was last asked about, and takes one use off.
    pub fn evict(&mut self, more: u64, mut was_used: impl FnMut(&Slot) -> bool) -> Option<Slot> {
        while self.bytes().saturating_add(more) > self.most {
            let from_small = self.small_bytes > self.most / 10 || self.main.is_empty();
            let slot = match from_small {
                true => self.small.pop_front(),
                false => self.main.pop_front(),
            }?;
            let Some((bytes, is_main)) = self.entries.get_mut(&slot.id) else {
                continue;
            };
            if was_used(&slot) {
                if !*is_main {
                    *is_main = true;
                    self.small_bytes -= *bytes;
                    self.main_bytes += *bytes;
                }
                self.main.push_back(slot);
                continue;
            }
            let was_small = !*is_main;
            self.remove(slot.id);
            if was_small {
                self.remember(slot.hash);
            }
            return Some(slot);
        }
        None
    }

    fn remember(&mut self, hash: u64) {
        if self.known.insert(hash) {
            self.ghosts.push_back(hash);
        }
        while self.ghosts.len() > self.main.len().max(GHOSTS_LEAST) {
            if let Some(oldest) = self.ghosts.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Entries with their uses, beside a queue of them.
    struct Model {
        queue: Queue,
        alive: HashMap<u64, (u8, u64)>,
    }

    impl Model {
        fn new(most: u64) -> Model {
            Model {
                queue: Queue::new(most),
                alive: HashMap::new(),
            }
        }

        fn make_room(&mut self, more: u64) {
            loop {
                let alive = &mut self.alive;
                let victim = self.queue.evict(more, |slot| {
                    let (uses, _) = alive.get_mut(&slot.id).expect("only living entries are asked about");
                    let was_used = *uses > 0;
                    *uses = uses.saturating_sub(1);
                    was_used
                });
                let Some(victim) = victim else { break };
                self.alive.remove(&victim.id).expect("an entry leaves once");
            }
        }

        fn ask(&mut self, id: u64, bytes: u64) {
            if let Some((uses, _)) = self.alive.get_mut(&id) {
                *uses = (*uses + 1).min(MOST_USES);
                return;
            }
            self.make_room(bytes);
            self.alive.insert(id, (0, bytes));
            self.queue.insert(Slot { id, hash: id }, bytes);
        }
    }

    #[test]
    fn a_scan_leaves_what_is_popular() {
        let mut model = Model::new(1000);
        for _ in 0..4 {
            (0..50).for_each(|id| model.ask(id, 10));
        }
        for id in 1000..5000 {
            model.ask(id, 10);
            if id % 20 == 0 {
                (0..50).for_each(|id| model.ask(id, 10));
            }
        }
        let left = (0..50).filter(|id| model.alive.contains_key(id)).count();
        assert_eq!(left, 50);
    }

    #[test]
    fn what_comes_back_soon_stays() {
        let mut model = Model::new(100);
        (0..12).for_each(|id| model.ask(id, 10));
        assert!(!model.alive.contains_key(&0));
        model.ask(0, 10);
        assert_eq!(model.queue.main.len(), 1);
        (20..60).for_each(|id| model.ask(id, 10));
        assert!(model.alive.contains_key(&0), "it left again at once");
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_every_byte_is_counted(
            steps in proptest::collection::vec((0u64..40, 1u64..300, any::<bool>()), 1..400),
        ) {
            let mut model = Model::new(1000);
            for (id, bytes, removes) in steps {
                match removes {
                    true => {
                        model.alive.remove(&id);
                        model.queue.remove(id);
                    }
                    false => model.ask(id, bytes),
                }
                let held: u64 = model.alive.values().map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(model.queue.bytes(), held);
                prop_assert!(held <= 1000);
                let slots = model.queue.small.len() + model.queue.main.len();
                prop_assert!(slots <= 2 * model.alive.len() + DEAD_MOST + 2, "{} slots", slots);
                prop_assert_eq!(model.queue.len(), model.alive.len());
            }
        }
    }
}
