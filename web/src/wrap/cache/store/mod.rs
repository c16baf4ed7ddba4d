//! The table of stored responses, shared by all workers.
//!
//! ```text
//!   hash of the key ─▶ Shard ─▶ Resource ─▶ entries, one for each variant
//!                        │         ├──▶ flights: fetches that other requests may wait for
//!                        │         └──▶ marks: not storable, failing
//!                        └─▶ Queue: what leaves next
//! ```
//!
//! # Locks
//!
//! Each shard has a lock, which is held for a look-up and never while anybody waits. The queue of the
//! disk has another. Under it the lock of a shard may be taken, never the other way round. The set of
//! invalid keys has a third, the innermost. Files are opened and removed outside of all.
//!
//! # Bounds
//!
//! A shard holds at most its part of [`StoreOptions::memory`]: keys, fields, bodies and the parts around
//! them. A response in a file has its head in memory. Bodies that are being received count apart, up to as
//! much again. The number of variants of a resource is bounded, and so is that of marks.

mod rebuild;
mod table;

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use osier::memory::{self, Pressure};
use osier::sync::Event;
use osier_http::Headers;

use self::table::Table;
use super::audience::{Member, Places};
use super::disk::Disk;
use super::entry::{Entry, Meta, Stored};
use super::flight::Flight;
use super::key::{self, Wanted};
use super::queue::{Queue, Slot};
use crate::lock;
use crate::{ClientNetwork, Request};

/// Most shards, so that two workers seldom want the same lock.
const SHARDS: u64 = 16;

/// Least bytes of a shard, if there are several.
const SHARD_LEAST: u64 = 4 << 20;

/// Longest key of a resource that has marks alone.
const MARKED_KEY: usize = 512;

/// Time in which requests for a resource do not wait for each other, after a response that cannot be stored.
const PASSES: Duration = Duration::from_secs(5);

/// Time in which a stale response is sent at once, after a fetch has failed.
const FAILING: Duration = Duration::from_secs(1);

/// Groups of clients. Where an error may be due to one client, the others of its group alone are sent the stale response at once.
const GROUPS: u64 = u64::BITS as u64;

/// Where responses are stored, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Bytes in memory. Default: 64 MiB.
    pub memory: u64,
    /// The longest body that is stored in memory, in bytes. At most a quarter of what one of up to 16 shards holds.
    /// Default: 1 MiB.
    pub memory_entry: usize,
    /// The folder of longer bodies. It belongs to the store alone. None by default: longer bodies are not stored.
    pub disk: Option<PathBuf>,
    /// Bytes in that folder. Default: 1 GiB.
    pub disk_size: u64,
    /// The longest body that is stored, in bytes. Default: 128 MiB.
    pub most_entry: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            memory: 64 << 20,
            memory_entry: 1 << 20,
            disk: None,
            disk_size: 1 << 30,
            most_entry: 128 << 20,
        }
    }
}

/// The counters of a store, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests answered by a fresh stored response.
    pub hits: u64,
    /// Requests answered by a stale one.
    pub stale: u64,
    /// Requests that nothing stored could answer.
    pub misses: u64,
    /// Requests that waited for the fetch of another.
    pub collapsed: u64,
    /// Requests that the cache has passed on without a look.
    pub bypassed: u64,
    /// Responses that a backend has confirmed by 304.
    pub validated: u64,
    /// Responses that were stored.
    pub stored: u64,
    /// Responses that have left to make room.
    pub evicted: u64,
    /// Responses that a purge or an unsafe method has removed.
    pub purged: u64,
    /// Stored responses.
    pub entries: u64,
    /// Their bytes in memory.
    pub bytes: u64,
    /// Stored responses in files.
    pub disk_entries: u64,
    /// Their bytes.
    pub disk_bytes: u64,
}

/// An event that is counted.
#[derive(Clone, Copy)]
pub enum Count {
    Hit,
    Stale,
    Miss,
    Collapsed,
    Bypassed,
    Validated,
    Stored,
    Evicted,
    Purged,
}

const COUNTS: usize = Count::Purged as usize + 1;

type Log = Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

/// Stored responses, in memory and in files. Caches may share a store; each has a space of its own in it.
pub struct Store {
    options: StoreOptions,
    hasher: RandomState,
    shards: Box<[Shard]>,
    next: AtomicU64,
    /// Bytes in memory of bodies that are being received.
    held: AtomicU64,
    disk: Option<Arc<Disk>>,
    on_disk: Mutex<Queue>,
    /// Whether the search for the files of earlier processes has begun.
    has_begun: AtomicBool,
    /// Hashes of the keys that became invalid while that search goes on. `None` when it has ended.
    invalid: Mutex<Option<HashSet<u64>>>,
    /// Set when that search has ended, and never reset.
    is_rebuilt: Event,
    log: Option<Log>,
}

struct Shard {
    table: Mutex<Table>,
    counts: [AtomicU64; COUNTS],
}

/// The result of a look-up.
#[derive(Default)]
pub struct Look {
    pub entry: Option<Arc<Entry>>,
    /// The last fetch has failed, or one for a client of the same group.
    pub is_failing: bool,
}

/// How a request gets the response that is not stored.
pub enum Join {
    /// The request begins a fetch. Others may wait for it, unless it is [alone](Flight::is_alone).
    Lead(Arc<Flight>, Member),
    /// The request waits for the fetch of another.
    Follow(Arc<Flight>, Member),
    /// The request goes to the handler itself: the response cannot be stored, or too many fetches are in flight.
    Pass,
}

impl Store {
    /// Opens a store.
    ///
    /// # Errors
    ///
    /// The errors of the folder.
    ///
    /// # Blocks the thread
    ///
    /// For as long as the disk takes.
    pub fn open(options: StoreOptions) -> io::Result<Store> {
        let disk = options.disk.as_deref().map(Disk::open).transpose()?.map(Arc::new);
        let count = (options.memory / SHARD_LEAST).clamp(1, SHARDS);
        let part = options.memory / count;
        let shard = || Shard {
            table: Mutex::new(Table::new(part)),
            counts: Default::default(),
        };
        let memory_entry = options
            .memory_entry
            .min(usize::try_from(part / 4).unwrap_or(usize::MAX));
        Ok(Store {
            shards: (0..count).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            next: AtomicU64::new(0),
            held: AtomicU64::new(0),
            on_disk: Mutex::new(Queue::new(options.disk_size)),
            has_begun: AtomicBool::new(disk.is_none()),
            invalid: Mutex::new(disk.as_ref().map(|_| HashSet::new())),
            is_rebuilt: Event::manual(),
            disk,
            options: StoreOptions {
                memory_entry,
                ..options
            },
            log: None,
        })
    }

    /// Sets the function that gets a line when the disk fails. A response is then not stored.
    #[must_use]
    pub fn on_log(mut self, log: impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static) -> Store {
        self.log = Some(Box::new(log));
        self
    }

    /// The options.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        let sum = |count: Count| -> u64 {
            let counts = self.shards.iter().map(|shard| &shard.counts[count as usize]);
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        let mut stats = Stats {
            hits: sum(Count::Hit),
            stale: sum(Count::Stale),
            misses: sum(Count::Miss),
            collapsed: sum(Count::Collapsed),
            bypassed: sum(Count::Bypassed),
            validated: sum(Count::Validated),
            stored: sum(Count::Stored),
            evicted: sum(Count::Evicted),
            purged: sum(Count::Purged),
            ..Stats::default()
        };
        for shard in &self.shards {
            let table = shard.lock();
            stats.entries += table.queue.len() as u64;
            stats.bytes += table.queue.bytes();
        }
        let on_disk = self.on_disk();
        (stats.disk_entries, stats.disk_bytes) = (on_disk.len() as u64, on_disk.bytes());
        stats
    }

    pub(super) fn count(&self, hash: u64, count: Count) {
        self.add(hash, count, 1);
    }

    fn add(&self, hash: u64, count: Count, times: usize) {
        self.shard(hash).counts[count as usize].fetch_add(times as u64, Ordering::Relaxed);
    }

    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// A number for an entry.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn shard(&self, hash: u64) -> &Shard {
        // The table of a shard uses the lower bits.
        &self.shards[((hash >> 32) % self.shards.len() as u64) as usize]
    }

    fn on_disk(&self) -> MutexGuard<'_, Queue> {
        lock(&self.on_disk)
    }

    pub(super) fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.as_ref()
    }

    pub(super) fn complain(&self, error: &io::Error) {
        if let (Some(log), Some(folder)) = (&self.log, &self.options.disk) {
            log(format_args!("cannot keep responses in '{}': {error}", folder.display()));
        }
    }

    /// Finds the newest entry that answers a request.
    #[inline]
    pub(super) fn look(&self, wanted: Wanted<'_>, request: &Request<'_>, now: Instant) -> Look {
        let table = self.shard(wanted.hash).lock();
        let Some(resource) = table
            .resources
            .get(&wanted.hash)
            .filter(|known| *known.key == *wanted.key)
        else {
            return Look::default();
        };
        let mut entries = resource.entries.iter().rev();
        let entry = entries.find(|entry| entry.meta.fits(wanted.particular, request));
        Look {
            entry: entry.map(|entry| {
                entry.used();
                Arc::clone(entry)
            }),
            is_failing: resource.failing.is_some_and(|until| now < until)
                || resource.is_doubtful(now, || self.group(request.client_ip())),
        }
    }

    /// The group of a client. No client can choose it.
    pub(super) fn group(&self, client: Option<IpAddr>) -> u64 {
        1 << (self.hasher.hash_one(client.map(ClientNetwork::from)) % GROUPS)
    }

    /// Whether an entry is in the table.
    pub(super) fn has(&self, entry: &Entry) -> bool {
        let slot = Slot {
            id: entry.id,
            hash: entry.hash,
        };
        self.shard(entry.hash).lock().find(&slot).is_some()
    }

    /// Decides who fetches. A fetch whose clients have left goes on in one of the places `abandoned`.
    pub(super) fn join(&self, wanted: Wanted<'_>, headers: &Headers<'_>, now: Instant, abandoned: &Places) -> Join {
        let mut table = self.shard(wanted.hash).lock();
        let resource = table.resource(wanted);
        let is_marked = |until: Option<Instant>| until.is_some_and(|until| now < until);
        let has_cookie = || headers.clone().any(|(name, _)| name.eq_ignore_ascii_case("cookie"));
        if is_marked(resource.passes) || (is_marked(resource.passes_with_cookie) && has_cookie()) {
            return Join::Pass;
        }
        let flights = resource.flights.iter();
        let mut suitable = flights.filter(|flight| flight.suits(wanted.particular, headers));
        if let Some((flight, member)) = suitable.find_map(|flight| Some((flight, flight.audience.join()?))) {
            return Join::Follow(Arc::clone(flight), member);
        }
        if resource.has_most_flights(false) {
            return Join::Pass;
        }
        let names = resource.entries.iter().flat_map(|entry| &entry.meta.varies);
        let mut names: Vec<Box<str>> = names.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let (flight, member) = Flight::begin(wanted, Some(key::select(names, headers)), abandoned);
        resource.flights.push(Arc::clone(&flight));
        Join::Lead(flight, member)
    }

    /// Begins a fetch for which no other request waits. A purge or an unsafe method finds it as any other.
    pub(super) fn join_alone(&self, wanted: Wanted<'_>, abandoned: &Places) -> Join {
        let mut table = self.shard(wanted.hash).lock();
        let resource = table.resource(wanted);
        if resource.has_most_flights(true) {
            return Join::Pass;
        }
        let (flight, member) = Flight::begin(wanted, None, abandoned);
        resource.flights.push(Arc::clone(&flight));
        Join::Lead(flight, member)
    }

    /// Takes a flight out of the table, so that later requests do not join it, and sets or clears the marks of its
    /// resource.
    pub(super) fn land(&self, flight: &Arc<Flight>, mark: Mark) {
        let now = osier::time::coarse_now();
        let mut table = self.shard(flight.hash).lock();
        let Some(resource) = table.resources.get_mut(&flight.hash) else {
            return;
        };
        resource.flights.retain(|known| !Arc::ptr_eq(known, flight));
        let mark = match mark {
            Mark::Clear => mark,
            // The number of marks is bounded, so their bytes are too.
            _ if resource.key.len() > MARKED_KEY => Mark::Unchanged,
            _ => mark,
        };
        match mark {
            Mark::Passes => resource.passes = Some(now + PASSES),
            Mark::PassesWithCookie => resource.passes_with_cookie = Some(now + PASSES),
            Mark::Failing => resource.failing = Some(now + FAILING),
            Mark::Doubtful(group) => resource.doubt(now + FAILING, group, now),
            Mark::Clear => resource.clear_marks(),
            Mark::Unchanged => {}
        }
        match mark {
            Mark::Passes | Mark::PassesWithCookie | Mark::Failing | Mark::Doubtful(_) => table.mark(flight.hash, now),
            Mark::Clear | Mark::Unchanged => table.tidy(flight.hash),
        }
    }

    /// Stores an entry in the place of those that `request` selects. Returns whether it was stored: an unsafe method or
    /// a purge since the beginning of the fetch forbids it, and so does the lack of room.
    ///
    /// # Suspends
    ///
    /// While files are removed.
    pub(super) fn publish(
        &self,
        wanted: Wanted<'_>,
        entry: &Arc<Entry>,
        request: &Request<'_>,
        flight: &Flight,
    ) -> bool {
        let bytes = entry.meta.bytes(wanted.key.len()) + entry.body.bytes();
        let mut gone = Vec::new();
        let is_stored = {
            let mut table = self.shard(wanted.hash).lock();
            let may_store = !flight.is_invalid();
            if may_store {
                let resource = table.resource(wanted);
                let is_replaced = |old: &Arc<Entry>| old.meta.fits(wanted.particular, request);
                gone.extend(resource.entries.extract_if(.., |old| is_replaced(old)));
                gone.extend(resource.make_room_for_variant(wanted.particular));
                let replaced = gone.len();
                gone.iter().for_each(|old| table.queue.remove(old.id));
                let has_room = table.make_room(bytes, &mut gone);
                self.add(wanted.hash, Count::Evicted, gone.len() - replaced);
                has_room && {
                    table.insert(wanted, entry, bytes);
                    true
                }
            } else {
                false
            }
        };
        if is_stored {
            self.count(wanted.hash, Count::Stored);
            self.add_file(entry);
        } else if let Stored::Disk(_) = &entry.body
            && !gone.iter().any(|old| shares_body(old, entry))
        {
            gone.push(Arc::clone(entry));
        }
        // A validated entry has the file of the one that it replaces.
        gone.retain(|old| {
            let is_shared = is_stored && shares_body(old, entry);
            if is_shared {
                self.on_disk().remove(old.id);
            }
            !is_shared
        });
        self.dispose(gone);
        is_stored
    }

    /// Counts the file of an entry that is in the table.
    fn add_file(&self, entry: &Entry) {
        if let Stored::Disk(file) = &entry.body {
            let slot = Slot {
                id: entry.id,
                hash: entry.hash,
            };
            let mut queue = self.on_disk();
            queue.insert(slot, file.bytes());
            // It may have left the table before it was counted.
            if self.shard(slot.hash).lock().find(&slot).is_none() {
                queue.remove(slot.id);
            }
        }
    }

    /// Takes an entry out, if it is still there.
    ///
    /// # Suspends
    ///
    /// While its file is removed.
    pub(super) fn remove(&self, wanted: Wanted<'_>, entry: &Arc<Entry>) {
        let found = self.shard(wanted.hash).lock().take(entry.hash, entry.id);
        self.dispose(found.into_iter().collect());
    }

    /// Removes everything under a key, and makes its flights store nothing. Returns the number of entries.
    ///
    /// # Suspends
    ///
    /// While files are removed. While the table is rebuilt, if very many keys became invalid meanwhile.
    pub(super) fn invalidate(&self, key: &[u8]) -> usize {
        let hash = self.hash(key);
        if !self.note_invalid(hash) {
            self.wait_for_files();
        }
        let gone = {
            let mut table = self.shard(hash).lock();
            match table.resources.get(&hash) {
                Some(resource) if *resource.key == *key => table.clear(hash),
                _ => Vec::new(),
            }
        };
        let count = gone.len();
        self.add(hash, Count::Purged, count);
        self.dispose(gone);
        count
    }

    /// Does the same for all keys that have this target that clients have sent, whatever code before the cache has made of it.
    ///
    /// # Suspends
    ///
    /// As [`invalidate`](Store::invalidate).
    pub(super) fn invalidate_behind_rules(&self, sent: &[u8]) -> usize {
        if !self.note_invalid(self.hash(sent)) {
            self.wait_for_files();
        }
        let mut all = Vec::new();
        for shard in &self.shards {
            let gone = shard.lock().clear_behind_rules(sent);
            shard.counts[Count::Purged as usize].fetch_add(gone.len() as u64, Ordering::Relaxed);
            all.extend(gone);
        }
        let count = all.len();
        self.dispose(all);
        count
    }

    /// Removes every entry of the resources whose keys begin with `prefix`, and that `is_meant` accepts by one of their entries. Returns
    /// their number. The flights of a resource store nothing if `is_meant` accepts it without an entry.
    ///
    /// Each resource that is there at the beginning is looked at once. The response of one that comes later is younger than the purge.
    ///
    /// # Suspends
    ///
    /// Between steps of a few hundred resources, and while files are removed.
    pub(super) fn purge(&self, prefix: &[u8], mut is_meant: impl FnMut(Option<&Meta>) -> bool) -> usize {
        let mut count = 0;
        for shard in &self.shards {
            let mut last: Option<Arc<[u8]>> = None;
            loop {
                let (gone, next) = shard.lock().purge_step(prefix, last.as_deref(), &mut is_meant);
                count += gone.len();
                shard.counts[Count::Purged as usize].fetch_add(gone.len() as u64, Ordering::Relaxed);
                self.dispose(gone);
                osier::yield_now();
                if next.is_none() {
                    break;
                }
                last = next;
            }
        }
        count
    }

    /// Drops entries that have left the table, and removes their files.
    ///
    /// # Suspends
    ///
    /// While files are removed.
    fn dispose(&self, gone: Vec<Arc<Entry>>) {
        let mut files = Vec::new();
        for entry in &gone {
            if let Stored::Disk(file) = &entry.body {
                self.on_disk().remove(entry.id);
                files.push(Arc::clone(file));
            }
        }
        if !files.is_empty() {
            osier::unblock(move || files.iter().for_each(|file| file.remove()));
        }
    }

    /// Reserves bytes for a file that is being written. Entries leave for it.
    ///
    /// # Suspends
    ///
    /// While files are removed.
    pub(super) fn reserve_on_disk(&self, bytes: u64) -> bool {
        let Some(disk) = &self.disk else { return false };
        let mut gone = Vec::new();
        let has_room = {
            let mut queue = self.on_disk();
            let unfinished = disk.unfinished.load(Ordering::Relaxed);
            let wanted = unfinished.saturating_add(bytes);
            if wanted > self.options.disk_size {
                return false;
            }
            let uses = |slot: &Slot| {
                let table = self.shard(slot.hash).lock();
                table.find(slot).is_some_and(Entry::take_use)
            };
            while let Some(slot) = queue.evict(wanted, uses) {
                gone.extend(self.shard(slot.hash).lock().take(slot.hash, slot.id));
                self.count(slot.hash, Count::Evicted);
            }
            disk.unfinished.fetch_add(bytes, Ordering::Relaxed);
            true
        };
        self.dispose(gone);
        has_room
    }

    /// Gives reserved bytes back.
    pub(super) fn release_on_disk(&self, bytes: u64) {
        if let Some(disk) = &self.disk {
            disk.unfinished.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Drops about half of what is stored in memory, because memory is short. While it is, nothing new is stored.
    ///
    /// # Suspends
    ///
    /// While files are removed.
    pub fn relieve(&self) {
        for shard in &self.shards {
            let mut gone = Vec::new();
            shard.lock().relieve(&mut gone);
            shard.counts[Count::Evicted as usize].fetch_add(gone.len() as u64, Ordering::Relaxed);
            self.dispose(gone);
        }
    }

    /// Counts bytes of a body that is being received, if memory may hold them. Returns whether it may.
    pub(super) fn hold(&self, bytes: u64) -> bool {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed);
        let may_hold = held.saturating_add(bytes) <= self.options.memory && memory::pressure() == Pressure::Normal;
        if !may_hold {
            self.let_go(bytes);
        }
        may_hold
    }

    pub(super) fn let_go(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A hint from one fetch to the next ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The response cannot be stored.
    Passes,
    /// The response cannot be stored, and the request had cookies.
    PassesWithCookie,
    /// The backend has failed.
    Failing,
    /// It has failed for a client of this [group](Store::group), which may be the reason.
    Doubtful(u64),
    /// The marks are cleared.
    Clear,
    /// The marks stay as they are.
    Unchanged,
}

/// Whether two entries share one file.
fn shares_body(one: &Entry, other: &Entry) -> bool {
    matches!((&one.body, &other.body), (Stored::Disk(one), Stored::Disk(other)) if Arc::ptr_eq(one, other))
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

osier_queue::impl_debug!(Store, self => { options: self.options, .. });
