//! Short-lived copies of responses by number: a reader keeps what it has read from the database, and a writer forgets it.
//!
//! A reader that misses takes a ticket, asks the database, and keeps the answer by the ticket. If a writer has forgotten something in
//! between, the answer may be of the time before, and is not kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Parts with locks of their own, so that workers seldom wait for each other.
const SHARDS: usize = 64;

/// Most copies of a shard.
const MOST: usize = 1024;

pub struct Cache {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    copies: HashMap<i32, Copy>,
    /// How often something was forgotten.
    forgotten: u64,
}

struct Copy {
    bytes: Arc<Vec<u8>>,
    until: Instant,
}

/// The right to keep the answer of a question that was asked after the ticket was taken.
pub struct Ticket {
    key: i32,
    forgotten: u64,
}

impl Default for Cache {
    fn default() -> Self {
        Cache {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl Cache {
    pub fn find(&self, key: i32, now: Instant) -> Result<Arc<Vec<u8>>, Ticket> {
        let shard = self.shard(key);
        match shard.copies.get(&key) {
            Some(copy) if now < copy.until => Ok(copy.bytes.clone()),
            _ => Err(Ticket {
                key,
                forgotten: shard.forgotten,
            }),
        }
    }

    pub fn keep(&self, Ticket { key, forgotten }: Ticket, bytes: Arc<Vec<u8>>, now: Instant, until: Instant) {
        let mut shard = self.shard(key);
        if shard.forgotten != forgotten {
            return;
        }
        if shard.copies.len() >= MOST {
            shard.copies.retain(|_, copy| now < copy.until);
        }
        if shard.copies.len() < MOST {
            shard.copies.insert(key, Copy { bytes, until });
        }
    }

    /// Forgets a copy. Must be called after the database has changed.
    pub fn forget(&self, key: i32) {
        let mut shard = self.shard(key);
        shard.copies.remove(&key);
        shard.forgotten += 1;
    }

    /// Never held across a wait.
    fn shard(&self, key: i32) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[key.unsigned_abs() as usize % SHARDS];
        shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn bytes(text: &str) -> Arc<Vec<u8>> {
        Arc::new(text.into())
    }

    #[test]
    fn a_copy_lasts_until_its_time_or_a_change() {
        let (cache, start) = (Cache::default(), Instant::now());
        let end = start + Duration::from_millis(200);
        let ticket = cache.find(7, start).unwrap_err();
        cache.keep(ticket, bytes("a"), start, end);
        assert_eq!(cache.find(7, start).ok(), Some(bytes("a")));
        assert!(cache.find(7, end).is_err());
        assert!(cache.find(7 + SHARDS as i32, start).is_err());

        cache.forget(7);
        assert!(cache.find(7, start).is_err());
    }

    #[test]
    fn an_answer_of_before_a_change_is_not_kept() {
        let (cache, start) = (Cache::default(), Instant::now());
        let ticket = cache.find(7, start).unwrap_err();
        cache.forget(7);
        cache.keep(ticket, bytes("old"), start, start + Duration::from_secs(1));
        assert!(cache.find(7, start).is_err());
    }

    #[test]
    fn a_full_shard_keeps_what_is_not_over() {
        let (cache, start) = (Cache::default(), Instant::now());
        let [soon, late] = [1, 2].map(|second| start + Duration::from_secs(second));
        for n in 0..MOST {
            let ticket = cache.find((n * SHARDS) as i32, start).unwrap_err();
            cache.keep(ticket, bytes("a"), start, if n == 0 { late } else { soon });
        }
        let more = |now| {
            cache
                .find((MOST * SHARDS) as i32, now)
                .map_err(|ticket| cache.keep(ticket, bytes("b"), now, late))
        };
        assert!(more(start).is_err() && more(start).is_err(), "there is no room");
        assert!(more(soon).is_err() && more(soon).is_ok());
        assert!(cache.find(0, soon).is_ok() && cache.find(SHARDS as i32, soon).is_err());
    }
}
