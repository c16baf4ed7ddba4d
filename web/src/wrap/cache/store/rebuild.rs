//! Fills the table with the files of earlier processes, on a fiber, while requests are answered already.
//!
//! A response that becomes invalid meanwhile must not come back. A purge waits for the end of the rebuilding. An unsafe
//! method notes the hash of its key, and that of the target that its client has sent, before it takes the lock of the shard. A file is compared with the notes under that
//! lock. So either the file finds the note, or the unsafe method finds the entry.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::SystemTime;

use super::super::disk::Disk;
use super::super::entry::{Entry, Meta, Stored};
use super::super::key::{Wanted, sent_part};
use super::super::record::Record;
use super::Store;
use crate::lock;

/// Most keys that are noted as invalid. A request that makes another key invalid waits for the end of the rebuilding.
const INVALID: usize = 1 << 16;

/// Files that one job of the pool reads.
const BATCH: usize = 64;

impl Store {
    /// Starts the fiber that looks for the files of earlier processes, unless that has begun.
    #[inline]
    pub(in super::super) fn begin_rebuilding(self: &Arc<Self>) {
        if !self.has_begun.load(Ordering::Relaxed) {
            self.begin_rebuilding_now();
        }
    }

    #[cold]
    fn begin_rebuilding_now(self: &Arc<Self>) {
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
    /// While the table is rebuilt.
    pub(in super::super) fn wait_for_files(&self) {
        if self.invalid().is_some() {
            self.is_rebuilt.wait();
        }
    }

    /// Notes that files of earlier processes for this key are invalid. Returns `false` if there is no room for the
    /// note.
    pub(super) fn note_invalid(&self, hash: u64) -> bool {
        self.invalid().as_mut().is_none_or(|invalid| {
            (invalid.len() < INVALID || invalid.contains(&hash)) && {
                invalid.insert(hash);
                true
            }
        })
    }

    fn invalid(&self) -> MutexGuard<'_, Option<HashSet<u64>>> {
        lock(&self.invalid)
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

    /// Takes the response of an earlier process into the table, or removes its file.
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
            // This process has made the file after the search had begun.
            if entries.iter().any(|known| has_same_file(known, &entry)) {
                return self.release_on_disk(file);
            }
            // A response that this process has fetched is newer.
            let is_known = entries
                .iter()
                .any(|known| known.meta.particular == entry.meta.particular && known.meta.varies == entry.meta.varies);
            let sent = sent_part(&record.key).map(|sent| self.hash(sent));
            let is_noted =
                |invalid: &HashSet<u64>| invalid.contains(&hash) || sent.is_some_and(|sent| invalid.contains(&sent));
            let is_invalid = self.invalid().as_ref().is_some_and(is_noted);
            !is_known && !is_invalid && table.make_room(bytes, &mut gone) && {
                table.insert(wanted, &entry, bytes);
                // The `Vary` of the resource may have changed since.
                table.resource(wanted).move_by_age(osier::time::coarse_now());
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

/// The rebuilding of a store's table. Its drop wakes the fibers that wait for the end.
struct Rebuilding(Arc<Store>);

impl Drop for Rebuilding {
    fn drop(&mut self) {
        *self.0.invalid() = None;
        self.0.is_rebuilt.set();
    }
}

/// Whether two entries have the same file, by name.
fn has_same_file(one: &Entry, other: &Entry) -> bool {
    matches!((&one.body, &other.body), (Stored::Disk(one), Stored::Disk(other)) if one.has_name_of(other))
}
