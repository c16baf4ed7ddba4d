//! A bounded cache of the files that a worker serves for one site, in two generations.
//!
//! A cache belongs to one thread, so there is no lock. New and used entries live in the young
//! generation. When the young generation reaches half of any bound, it becomes the old one, and the
//! previous old one is dropped. This approximates "least recently used" at the cost of one move per
//! entry and generation. A hit in the young generation costs nothing.

use std::collections::HashMap;

use osier::memory::{Account, Charge};

/// Bounds of what may be cached of the files that are served, over all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Paths.
    pub entries: usize,
    /// Bytes of memory, paths included.
    pub bytes: usize,
    /// Open descriptors.
    pub files: usize,
    /// Bytes of the encoded forms that the server makes. With less than 2 KiB it makes none. A form takes 1 KiB besides its bytes, and half
    /// of the store at most: with fewer places than there are popular files, requests make forms that are thrown away.
    pub compressed: usize,
}

impl Default for Limits {
    /// 16,384 paths, 64 MiB of files, 32 MiB of encoded forms and 256 descriptors. A process
    /// usually may have 1,024 descriptors.
    fn default() -> Self {
        Limits {
            entries: 16 << 10,
            bytes: 64 << 20,
            files: 256,
            compressed: 32 << 20,
        }
    }
}

/// The cost of an entry.
pub trait Weigh {
    /// Bytes of memory.
    fn bytes(&self) -> usize;
    /// Descriptors held open.
    fn files(&self) -> usize;
}

/// The cache of one site. `answer.rs` makes the keys: mostly a key is the path of a request as it was sent.
#[derive(Debug)]
pub struct Cache<V> {
    young: Generation<V>,
    old: Generation<V>,
    half: Limits,
}

#[derive(Debug)]
struct Generation<V> {
    entries: HashMap<Box<[u8]>, V>,
    bytes: usize,
    files: usize,
    charge: Charge,
}

impl<V: Weigh> Cache<V> {
    /// Makes an empty cache. Each of its two generations gets half of `limits`.
    pub fn new(limits: Limits) -> Cache<V> {
        let half = Limits {
            entries: limits.entries / 2,
            bytes: limits.bytes / 2,
            files: limits.files / 2,
            ..limits
        };
        Cache {
            young: Generation::new(),
            old: Generation::new(),
            half,
        }
    }

    /// Returns the entry of `key` and marks it as used.
    pub fn find(&mut self, key: &[u8]) -> Option<&V> {
        // A site that fits into one generation has no old one, so its keys are hashed once.
        if !self.old.entries.is_empty() && !self.young.entries.contains_key(key) {
            let (key, value) = self.old.take(key)?;
            self.put(key, value);
        }
        self.young.entries.get(key)
    }

    /// Caches `value` in place of the entry of `key`. A value that alone fills a generation is not
    /// cached.
    pub fn insert(&mut self, key: &[u8], value: V) {
        self.remove(key);
        if key.len() + value.bytes() <= self.half.bytes && value.files() <= self.half.files && self.half.entries > 0 {
            self.put(key.into(), value);
        }
    }

    /// Drops the entry of `key`.
    pub fn remove(&mut self, key: &[u8]) {
        drop((self.young.take(key), self.old.take(key)));
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.young.entries.is_empty() && self.old.entries.is_empty()
    }

    /// Begins a new generation. Entries that are not used before the next turn are dropped then.
    pub fn turn(&mut self) {
        self.old = std::mem::replace(&mut self.young, Generation::new());
    }

    fn put(&mut self, key: Box<[u8]>, value: V) {
        let full = self.young.entries.len() >= self.half.entries
            || self.young.bytes + key.len() + value.bytes() > self.half.bytes
            || self.young.files + value.files() > self.half.files;
        if full {
            self.turn();
        }
        self.young.put(key, value);
    }
}

impl<V: Weigh> Generation<V> {
    fn new() -> Self {
        Generation {
            entries: HashMap::new(),
            bytes: 0,
            files: 0,
            charge: Account::CACHES.charge(0),
        }
    }

    fn put(&mut self, key: Box<[u8]>, value: V) {
        self.bytes += key.len() + value.bytes();
        self.files += value.files();
        self.charge.resize(self.bytes);
        self.entries.insert(key, value);
    }

    fn take(&mut self, key: &[u8]) -> Option<(Box<[u8]>, V)> {
        let (key, value) = self.entries.remove_entry(key)?;
        self.bytes -= key.len() + value.bytes();
        self.files -= value.files();
        self.charge.resize(self.bytes);
        Some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Item {
        bytes: usize,
        files: usize,
    }

    impl Weigh for Item {
        fn bytes(&self) -> usize {
            self.bytes
        }

        fn files(&self) -> usize {
            self.files
        }
    }

    const LIMITS: Limits = Limits {
        entries: 8,
        bytes: 1000,
        files: 6,
        compressed: 0,
    };

    fn held(cache: &Cache<Item>) -> (usize, usize, usize) {
        let both = [&cache.young, &cache.old];
        (
            both.iter().map(|half| half.entries.len()).sum(),
            both.iter()
                .flat_map(|half| &half.entries)
                .map(|(key, item)| key.len() + item.bytes)
                .sum(),
            both.iter()
                .flat_map(|half| half.entries.values())
                .map(|item| item.files)
                .sum(),
        )
    }

    #[test]
    fn bounds_hold_whatever_is_put_in() {
        let mut cache = Cache::new(LIMITS);
        // A fixed pseudo-random sequence, which mixes keys and weights.
        let mut state = 1u64;
        let mut hits = 0;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            let key = format!("/{}", random % 13);
            hits += usize::from(cache.find(key.as_bytes()).is_some());
            if random.is_multiple_of(3) {
                let (bytes, files) = ((random / 64 % 400) as usize, (random / 1024 % 3) as usize);
                cache.insert(key.as_bytes(), Item { bytes, files });
            }
            let (entries, bytes, files) = held(&cache);
            assert!(
                entries <= LIMITS.entries && bytes <= LIMITS.bytes && files <= LIMITS.files,
                "{entries} {bytes} {files}"
            );
            let counted = [&cache.young, &cache.old].map(|half| (half.bytes, half.files));
            assert_eq!(counted[0].0 + counted[1].0, bytes);
            assert_eq!(counted[0].1 + counted[1].1, files);
        }
        assert!(hits > 1000, "only {hits} hits: it remembers nothing");
    }

    #[test]
    fn what_is_used_stays() {
        let mut cache = Cache::new(LIMITS);
        cache.insert(b"hot", Item { bytes: 1, files: 0 });
        for n in 0..100 {
            cache.insert(format!("cold{n}").as_bytes(), Item { bytes: 1, files: 0 });
            assert!(cache.find(b"hot").is_some(), "forgotten after {n}");
        }
        assert!(cache.find(b"cold0").is_none());
    }

    #[test]
    fn what_is_not_used_between_two_turns_is_forgotten() {
        let mut cache = Cache::new(LIMITS);
        cache.insert(b"used", Item { bytes: 1, files: 1 });
        cache.insert(b"unused", Item { bytes: 1, files: 1 });
        cache.turn();
        assert!(cache.find(b"used").is_some());
        cache.turn();
        assert_eq!(held(&cache), (1, 5, 1));
        assert!(cache.find(b"used").is_some() && cache.find(b"unused").is_none());
        cache.turn();
        cache.turn();
        assert_eq!(held(&cache), (0, 0, 0));
    }

    #[test]
    fn replaced_removed_refused() {
        let mut cache = Cache::new(LIMITS);
        cache.insert(b"a", Item { bytes: 1, files: 0 });
        cache.insert(b"a", Item { bytes: 2, files: 1 });
        assert_eq!(cache.find(b"a"), Some(&Item { bytes: 2, files: 1 }));
        cache.remove(b"a");
        assert_eq!(held(&cache), (0, 0, 0));
        cache.insert(b"large", Item { bytes: 600, files: 0 });
        assert_eq!(cache.find(b"large"), None);
        let mut none = Cache::new(Limits { entries: 0, ..LIMITS });
        none.insert(b"a", Item { bytes: 1, files: 0 });
        assert_eq!(none.find(b"a"), None);
    }
}
