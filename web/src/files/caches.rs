//! The caches of one thread: one `cache` for each [`Files`](super::Files) that the thread serves.
//! No lock is taken.
//!
//! A site has a cache index: a small number that no other living site has. It is the place of the
//! site's cache in the list of every thread. A weak pointer in the list names the owner of each cache.
//! When the owner is gone, its cache is dropped by the next turn, or when another site with the same index
//! caches something. No cache is borrowed across a call that may suspend.
//!
//! On each worker that caches anything, one fiber turns the generations, so that descriptors of
//! removed files do not stay open for ever. The fiber ends when nothing is left to turn.

use std::cell::RefCell;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use std::time::Instant;

use super::Site;
use super::cache::{Cache, Limits, Weigh};
use super::resource::Resource;
use crate::lock;

/// An entry of a cache.
pub struct Remembered {
    pub resource: Arc<Resource>,
    /// When the file system last confirmed the entry.
    pub checked: Instant,
    /// The generation of the folder that the file was found in.
    pub generation: u64,
}

impl Weigh for Remembered {
    fn bytes(&self) -> usize {
        self.resource.bytes()
    }

    fn files(&self) -> usize {
        self.resource.files()
    }
}

/// Time between two turns. An entry, with its descriptors, outlives its last use by at most twice
/// this.
const UNUSED: Duration = Duration::from_secs(10);

/// The index of a site in the list of every thread.
#[derive(Debug)]
pub struct CacheIndex {
    index: usize,
}

/// The indices that are free again, and the first one that was never taken.
static INDICES: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

impl CacheIndex {
    /// Takes a free index.
    pub fn take() -> Arc<CacheIndex> {
        let mut free = lock(&INDICES);
        let index = free.0.pop().unwrap_or_else(|| {
            free.1 += 1;
            free.1 - 1
        });
        Arc::new(CacheIndex { index })
    }
}

impl Drop for CacheIndex {
    fn drop(&mut self) {
        lock(&INDICES).0.push(self.index);
    }
}

/// The caches of one thread.
struct Caches {
    /// Caches by index. The weak pointer keeps the address of its owner from being reused, so the
    /// address tells owners apart.
    list: Vec<Option<(Weak<CacheIndex>, Cache<Remembered>)>>,
    /// Whether a fiber of this thread turns the generations.
    is_tidied: bool,
}

thread_local! {
    static CACHES: RefCell<Caches> = const { RefCell::new(Caches { list: Vec::new(), is_tidied: false }) };
}

/// Runs `work` on this thread's cache for `site`. `None` if there is no such cache, or `work`
/// returns `None`.
#[inline]
pub fn known<T>(site: &Site, work: impl FnOnce(&mut Cache<Remembered>) -> Option<T>) -> Option<T> {
    CACHES.with_borrow_mut(|caches| work(caches.of(&site.cache_index)?))
}

/// Runs `work` on this thread's cache for `site`. Makes the cache if there is none.
pub fn remember(site: &Site, work: impl FnOnce(&mut Cache<Remembered>)) {
    let is_tidied = CACHES.with_borrow_mut(|caches| {
        if caches.of(&site.cache_index).is_none() {
            caches.add(site);
        }
        caches.of(&site.cache_index).map(work);
        // No fiber can be spawned outside a runtime. A thread that serves files there keeps its
        // cache.
        osier::fiber::worker().is_none() || std::mem::replace(&mut caches.is_tidied, true)
    });
    if !is_tidied {
        let tidied = Tidied;
        drop(
            osier::fiber::Builder::new()
                .name("tidy files")
                .spawn_local(move || tidied.run()),
        );
    }
}

/// Forgets the files of this thread, because memory is short.
pub fn relieve() {
    // Two turns drop both generations. The list is already gone while a thread ends.
    let _ = CACHES.try_with(|caches| {
        let mut caches = caches.borrow_mut();
        (caches.turn(), caches.turn())
    });
}

impl Caches {
    #[inline]
    fn of(&mut self, at: &Arc<CacheIndex>) -> Option<&mut Cache<Remembered>> {
        match self.list.get_mut(at.index) {
            Some(Some((owner, cache))) if ptr::eq(owner.as_ptr(), Arc::as_ptr(at)) => Some(cache),
            _ => None,
        }
    }

    fn add(&mut self, site: &Site) {
        let index = site.cache_index.index;
        if self.list.len() <= index {
            self.list.resize_with(index + 1, || None);
        }
        let workers = osier::fiber::worker().map_or(1, |_| osier::workers());
        let limits = site.options.cache;
        let share = Limits {
            entries: limits.entries / workers,
            bytes: limits.bytes / workers,
            files: limits.files / workers,
            ..limits
        };
        self.list[index] = Some((Arc::downgrade(&site.cache_index), Cache::new(share)));
    }

    /// Turns every cache once and drops those that are empty or have no owner. Returns whether any
    /// is left.
    fn turn(&mut self) -> bool {
        for place in &mut self.list {
            if let Some((owner, cache)) = place {
                cache.turn();
                if owner.strong_count() == 0 || cache.is_empty() {
                    *place = None;
                }
            }
        }
        self.list.iter().any(Option::is_some)
    }
}

/// The fiber that turns the generations. Its drop notes that it is gone, however it ends.
struct Tidied;

impl Tidied {
    fn run(self) {
        loop {
            osier::sleep(UNUSED);
            if !CACHES.with_borrow_mut(Caches::turn) {
                return;
            }
        }
    }
}

impl Drop for Tidied {
    fn drop(&mut self) {
        // The list is already gone while a thread ends.
        let _ = CACHES.try_with(|caches| caches.borrow_mut().is_tidied = false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::files::Files;
    use crate::files::resource::Resource;

    fn learn(files: &Files, bytes: &[u8]) -> Weak<Resource> {
        let resource = Arc::new(Resource::embedded(bytes, "text/plain", None));
        let weak = Arc::downgrade(&resource);
        let checked = Instant::now();
        remember(&files.site, |cache| {
            cache.insert(
                b"/a",
                super::Remembered {
                    resource,
                    checked,
                    generation: 0,
                },
            )
        });
        weak
    }

    fn knows(files: &Files) -> bool {
        known(&files.site, |cache| cache.find(b"/a").map(drop)).is_some()
    }

    #[test]
    fn sites_keep_apart_and_the_memory_of_one_goes_with_it() {
        let (one, two) = (Files::embedded([]), Files::embedded([]));
        let (of_one, of_two) = (learn(&one, b"one"), learn(&two, b"two"));
        assert!(knows(&one) && knows(&two.clone()));
        let index = one.site.cache_index.index;
        drop(one);
        CACHES.with_borrow_mut(Caches::turn);
        assert!(of_one.upgrade().is_none() && of_two.upgrade().is_some());
        // The next owner of the index begins with an empty cache, even before a turn. Other tests
        // take indices meanwhile.
        drop(two);
        let others: Vec<_> = (0..50).map(|_| Files::embedded([])).collect();
        assert!(!others.iter().any(knows));
        for next in others.iter().filter(|next| next.site.cache_index.index <= index + 1) {
            learn(next, b"next");
            assert!(knows(next));
        }
        drop(others);
        while CACHES.with_borrow_mut(Caches::turn) {}
        assert!(of_two.upgrade().is_none());
    }

    #[test]
    fn a_worker_that_remembers_is_tidied_and_a_plain_thread_is_not() {
        let is_tidied = || CACHES.with_borrow(|caches| caches.is_tidied);
        let files = Files::embedded([]);
        learn(&files, b"one");
        assert!(!is_tidied());
        let runtime = osier::Runtime::builder().workers(1).build().unwrap();
        runtime.run(move || {
            assert!(!is_tidied());
            learn(&files, b"one");
            assert!(is_tidied());
        });
    }
}
