//! Fills the table with the files of earlier processes, on a fiber, while requests are answered already.
//!
//! A response that becomes invalid meanwhile must not come back. A purge waits for the end. An unsafe method notes the hash of its key
//! before it takes the lock of the shard, and a file is looked up among the notes under that lock, so one of the two
//! finds the other.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::super::disk::Disk;
use super::super::entry::{Entry, Meta, Stored};
use super::super::key::Wanted;
use super::super::record::Record;
use super::Store;

/// Most keys that may become invalid while the index is rebuilt, before their requests wait for that.
const INVALID: usize = 1 << 16;

/// Files that are read in one go.
const BATCH: usize = 64;

impl Store {
    /// Looks for the files of earlier processes, on a fiber of its own, unless that has begun.
    #[inline]
    pub(in super::super) fn begin(self: &Arc<Self>) {
        if !self.has_begun.load(Ordering::Relaxed) {
            self.begin_now();
        }
    }

    #[cold]
    fn begin_now(self: &Arc<Self>) {
        if !self.has_begun.swap(true, Ordering::Relaxed)
            && let Some(disk) = self.disk.clone()
        {
            let rebuilding = Rebuilding(Arc::clone(self));
            drop(osier::spawn_local(move || rebuilding.0.rebuild(&disk)));
        }
    }

    /// Waits until the files of earlier processes are in the table.
    ///
    /// # Suspends
    ///
    /// While the index is rebuilt.
    pub(in super::super) fn wait_for_files(&self) {
        if self.invalid().is_some() {
            self.is_rebuilt.wait();
        }
    }

    /// Keeps the files of earlier processes for a key out. Returns `false` if there is no room for that.
    pub(super) fn note_invalid(&self, hash: u64) -> bool {
        self.invalid().as_mut().is_none_or(|invalid| {
            (invalid.len() < INVALID || invalid.contains(&hash)) && {
                invalid.insert(hash);
                true
            }
        })
    }

    fn invalid(&self) -> MutexGuard<'_, Option<HashSet<u64>>> {
        self.invalid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rebuild(&self, disk: &Arc<Disk>) {
        let lister = Arc::clone(disk);
        let mut paths = match osier::unblock(move || lister.list()) {
            Ok(paths) => paths,
            Err(error) => return self.complain(&error),
        };
        while !paths.is_empty() {
            let batch = paths.split_off(paths.len().saturating_sub(BATCH));
            let loader = Arc::clone(disk);
            let loaded: Vec<_> = osier::unblock(move || batch.iter().filter_map(|path| loader.load(path)).collect());
            for (record, file) in loaded {
                self.adopt(record, Stored::Disk(Arc::new(file)));
            }
        }
    }

    /// Stores the response of an earlier process.
    fn adopt(&self, record: Record, body: Stored) {
        let passed = SystemTime::now().duration_since(record.received).unwrap_or_default();
        let mut freshness = record.freshness;
        freshness.initial_age = freshness.initial_age.saturating_add(passed);
        let meta = Meta {
            status: record.status,
            fields: record.fields,
            freshness,
            received: osier::time::coarse_now(),
            particular: record.particular,
            varies: record.varies,
            of_backend: record.of_backend,
        };
        let hash = self.hash(&record.key);
        let wanted = Wanted {
            hash,
            key: &record.key,
            particular: &meta.particular.clone(),
        };
        let is_useless = freshness.is_over(freshness.initial_age) && !meta.has_validator();
        let bytes = meta.bytes(record.key.len());
        let entry = Arc::new(Entry::new(self.number(), hash, Arc::new(meta), body));
        let file = match &entry.body {
            Stored::Disk(file) => file.bytes(),
            _ => 0,
        };
        if is_useless || !self.reserve_on_disk(file) {
            return self.dispose(vec![entry]);
        }
        let mut gone = Vec::new();
        let is_stored = {
            let mut table = self.shard(hash).lock();
            let entries = table.resources.get(&hash).map_or(&[][..], |resource| &resource.entries);
            // This process has made the file since the search began.
            if entries.iter().any(|known| has_same_file(known, &entry)) {
                return self.release_on_disk(file);
            }
            // What this process has fetched is newer.
            let is_known = entries
                .iter()
                .any(|known| known.meta.particular == entry.meta.particular && known.meta.varies == entry.meta.varies);
            let is_invalid = self.invalid().as_ref().is_some_and(|invalid| invalid.contains(&hash));
            !is_known && !is_invalid && table.make_room(bytes, &mut gone) && {
                table.insert(wanted, &entry, bytes);
                true
            }
        };
        self.release_on_disk(file);
        match is_stored {
            true => self.add_file(&entry),
            false => gone.push(entry),
        }
        self.dispose(gone);
    }
}

/// The rebuilding of a store's index. Dropping it lets go those who wait for the end.
struct Rebuilding(Arc<Store>);

impl Drop for Rebuilding {
    fn drop(&mut self) {
        *self.0.invalid() = None;
        self.0.is_rebuilt.set();
    }
}

/// Whether the files of two entries have one name.
fn has_same_file(one: &Entry, other: &Entry) -> bool {
    matches!((&one.body, &other.body), (Stored::Disk(one), Stored::Disk(other)) if one.has_name_of(other))
}
