//! The table of one shard: the entries and the flights under each key. The lock of the shard guards it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use super::super::entry::{Entry, Meta};
use super::super::flight::Flight;
use super::super::key::{Wanted, sent_part};
use super::super::queue::{Queue, Slot};

/// Most entries of one resource.
const VARIANTS: usize = 16;

/// Most entries of one resource that have particulars.
const PARTICULAR: usize = 4;

/// Most flights of one resource at once that other requests may wait for, and as many that are alone.
const FLIGHTS: usize = VARIANTS;

/// Most resources in a shard that have marks alone.
const MARKED: usize = 2048;

/// Most resources that a purge looks at in one step, while nobody else has the table. With tags, each costs about a microsecond.
const STEP: usize = 256;

#[derive(Default)]
pub struct Table {
    pub resources: HashMap<u64, Resource, BuildHasherDefault<IdentityHasher>>,
    /// The keys of all resources in order, for those that look for keys with the same beginning.
    keys: BTreeMap<Arc<[u8]>, u64>,
    pub queue: Queue,
    /// Resources that were marked, the oldest first.
    marked: VecDeque<u64>,
}

/// The entries, the flights and the marks of one key.
pub struct Resource {
    pub key: Arc<[u8]>,
    /// The oldest first.
    pub entries: Vec<Arc<Entry>>,
    pub flights: Vec<Arc<Flight>>,
    /// Until then, requests do not wait for each other.
    pub passes: Option<Instant>,
    /// Until then, requests with cookies do not wait for each other.
    pub passes_with_cookie: Option<Instant>,
    /// Until then, a stale response is sent without a fetch, if it may take the place of an error.
    pub failing: Option<Instant>,
    /// Until then, the same holds for the clients of these groups.
    doubtful: Option<(Instant, u64)>,
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
pub struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys of the table are numbers")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl Resource {
    fn marks(&self) -> [Option<Instant>; 4] {
        let doubtful = self.doubtful.map(|(until, _)| until);
        [self.passes, self.passes_with_cookie, self.failing, doubtful]
    }

    pub fn clear_marks(&mut self) {
        (self.passes, self.passes_with_cookie) = (None, None);
        (self.failing, self.doubtful) = (None, None);
    }

    /// Notes a failure that may be due to a client of `group`. The time is that of the first one, so each group asks once in it.
    pub fn doubt(&mut self, until: Instant, group: u64, now: Instant) {
        let known = self.doubtful.filter(|(until, _)| now < *until);
        let (until, groups) = known.unwrap_or((until, 0));
        self.doubtful = Some((until, groups | group));
    }

    /// Whether there was such a failure for a client of the same group.
    pub fn is_doubtful(&self, now: Instant, group: impl FnOnce() -> u64) -> bool {
        let known = self.doubtful.filter(|(until, _)| now < *until);
        known.is_some_and(|(_, groups)| groups & group() != 0)
    }

    /// Whether there are as many flights as there may be, of those that are alone or of the others.
    pub fn has_most_flights(&self, is_alone: bool) -> bool {
        let same = self.flights.iter().filter(|flight| flight.is_alone() == is_alone);
        same.count() >= FLIGHTS
    }

    /// Moves the last entry, which an earlier process has stored, in front of those that are not older. The last one that fits answers a request.
    pub fn move_by_age(&mut self, now: Instant) {
        if let Some(last) = self.entries.pop() {
            let age = last.meta.age(now);
            let newer = self.entries.iter().position(|known| known.meta.age(now) <= age);
            self.entries.insert(newer.unwrap_or(self.entries.len()), last);
        }
    }

    /// Takes out the oldest entries, so that there is room for one more with these particulars.
    pub fn make_room_for_variant(&mut self, particular: &[u8]) -> Vec<Arc<Entry>> {
        let mut gone = Vec::new();
        if !particular.is_empty() {
            let has_particulars = |entry: &Arc<Entry>| !entry.meta.particular.is_empty();
            let count = self.entries.iter().filter(|entry| has_particulars(entry)).count();
            if count >= PARTICULAR
                && let Some(oldest) = self.entries.iter().position(has_particulars)
            {
                gone.push(self.entries.remove(oldest));
            }
        }
        if self.entries.len() >= VARIANTS {
            gone.push(self.entries.remove(0));
        }
        gone
    }
}

impl Table {
    /// Makes a table for `most` bytes.
    pub fn new(most: u64) -> Table {
        Table {
            queue: Queue::in_memory(most),
            ..Table::default()
        }
    }

    /// The resource of a key. Another key with the same hash, which is next to impossible, loses its resource.
    pub fn resource(&mut self, wanted: Wanted<'_>) -> &mut Resource {
        let is_other = |known: &Resource| *known.key != *wanted.key;
        if self.resources.get(&wanted.hash).is_some_and(is_other) {
            self.clear(wanted.hash);
            self.remove(wanted.hash);
        }
        self.resources.entry(wanted.hash).or_insert_with(|| {
            let key: Arc<[u8]> = wanted.key.into();
            self.keys.insert(Arc::clone(&key), wanted.hash);
            Resource {
                key,
                entries: Vec::new(),
                flights: Vec::new(),
                passes: None,
                passes_with_cookie: None,
                failing: None,
                doubtful: None,
            }
        })
    }

    fn remove(&mut self, hash: u64) {
        if let Some(resource) = self.resources.remove(&hash) {
            self.keys.remove(&resource.key);
        }
    }

    /// Takes out all entries of the resources whose keys have this target that clients have sent, as [`clear`](Table::clear) does.
    pub fn clear_behind_rules(&mut self, sent: &[u8]) -> Vec<Arc<Entry>> {
        let keys = self.keys_from(Bound::Included(sent), sent);
        let keys = keys.filter(|(key, _)| sent_part(key) == Some(sent));
        let hashes: Vec<u64> = keys.map(|(_, hash)| *hash).collect();
        hashes.into_iter().flat_map(|hash| self.clear(hash)).collect()
    }

    /// The keys that begin with `prefix`, from one of them on, with their hashes.
    fn keys_from<'t>(
        &'t self,
        from: Bound<&'t [u8]>,
        prefix: &'t [u8],
    ) -> impl Iterator<Item = (&'t Arc<[u8]>, &'t u64)> + 't {
        let keys = self.keys.range::<[u8], _>((from, Bound::Unbounded));
        keys.take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// Takes out all entries of the resources that `is_meant` accepts by one of their entries, among the first [`STEP`] resources whose
    /// keys begin with `prefix` and come behind `after`. The flights of a resource store nothing if `is_meant` accepts it without an
    /// entry. Returns the entries, and the last of these keys if there may be more.
    pub fn purge_step(
        &mut self,
        prefix: &[u8],
        after: Option<&[u8]>,
        is_meant: &mut impl FnMut(Option<&Meta>) -> bool,
    ) -> (Vec<Arc<Entry>>, Option<Arc<[u8]>>) {
        let from = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let (mut meant, mut in_flight, mut last) = (Vec::new(), Vec::new(), None);
        for (at, (key, hash)) in self.keys_from(from, prefix).take(STEP).enumerate() {
            last = (at + 1 == STEP).then(|| Arc::clone(key));
            let Some(resource) = self.resources.get(hash) else {
                continue;
            };
            if resource.entries.iter().any(|entry| is_meant(Some(&entry.meta))) {
                meant.push(*hash);
            } else if !resource.flights.is_empty() && is_meant(None) {
                in_flight.push(*hash);
            }
        }
        in_flight.into_iter().for_each(|hash| self.ground(hash));
        (meant.into_iter().flat_map(|hash| self.clear(hash)).collect(), last)
    }

    pub fn find(&self, slot: &Slot) -> Option<&Entry> {
        let entries = &self.resources.get(&slot.hash)?.entries;
        entries.iter().find(|entry| entry.id == slot.id).map(|entry| &**entry)
    }

    /// Takes an entry out of the table and the queue.
    pub fn take(&mut self, hash: u64, id: u64) -> Option<Arc<Entry>> {
        let resource = self.resources.get_mut(&hash)?;
        let at = resource.entries.iter().position(|entry| entry.id == id)?;
        let entry = resource.entries.remove(at);
        self.queue.remove(id);
        self.tidy(hash);
        Some(entry)
    }

    /// Takes out all entries of a resource, and makes its flights store nothing.
    pub fn clear(&mut self, hash: u64) -> Vec<Arc<Entry>> {
        let Some(resource) = self.resources.get_mut(&hash) else {
            return Vec::new();
        };
        let gone = std::mem::take(&mut resource.entries);
        gone.iter().for_each(|entry| self.queue.remove(entry.id));
        self.ground(hash);
        gone
    }

    /// Makes the flights of a resource store nothing. Later requests do not join them.
    pub fn ground(&mut self, hash: u64) {
        if let Some(resource) = self.resources.get_mut(&hash) {
            let flights = std::mem::take(&mut resource.flights);
            flights.iter().for_each(|flight| flight.invalidate());
            self.tidy(hash);
        }
    }

    /// Makes room for `bytes`, and returns whether there is. Entries that leave go to `gone`.
    pub fn make_room(&mut self, bytes: u64, gone: &mut Vec<Arc<Entry>>) -> bool {
        loop {
            let resources = &self.resources;
            let victim = self.queue.evict(bytes, |slot| {
                let resource = resources.get(&slot.hash);
                let mut entries = resource.map_or(&[][..], |resource| &resource.entries).iter();
                entries
                    .find(|entry| entry.id == slot.id)
                    .is_some_and(|entry| entry.take_use())
            });
            let Some(slot) = victim else {
                return self.queue.fits(bytes);
            };
            gone.extend(self.take(slot.hash, slot.id));
        }
    }

    /// Takes out about half of what is stored in memory. Entries that leave go to `gone`.
    pub fn relieve(&mut self, gone: &mut Vec<Arc<Entry>>) {
        let kept = self.queue.bytes() / 2;
        self.make_room(self.queue.most().saturating_sub(kept), gone);
    }

    pub fn insert(&mut self, wanted: Wanted<'_>, entry: &Arc<Entry>, bytes: u64) {
        let slot = Slot {
            id: entry.id,
            hash: entry.hash,
        };
        self.queue.insert(slot, bytes);
        self.resource(wanted).entries.push(Arc::clone(entry));
    }

    /// Remembers that a resource has marks. The oldest marks are forgotten.
    pub fn mark(&mut self, hash: u64, now: Instant) {
        self.marked.push_back(hash);
        while let Some(oldest) = self.marked.front().copied() {
            let is_over = |until: Option<Instant>| until.is_none_or(|until| until <= now);
            let resource = self.resources.get_mut(&oldest);
            let is_fresh = resource.is_some_and(|resource| {
                let is_fresh = !resource.marks().into_iter().all(is_over);
                if !is_fresh || self.marked.len() > MARKED {
                    resource.clear_marks();
                }
                is_fresh
            });
            if is_fresh && self.marked.len() <= MARKED {
                return;
            }
            self.marked.pop_front();
            self.tidy(oldest);
        }
    }

    /// Removes a resource that has neither entries nor flights nor marks.
    pub fn tidy(&mut self, hash: u64) {
        let is_empty = |resource: &Resource| {
            let has_marks = resource.marks() != [None; 4];
            resource.entries.is_empty() && resource.flights.is_empty() && !has_marks
        };
        if self.resources.get(&hash).is_some_and(is_empty) {
            self.remove(hash);
        }
    }
}
