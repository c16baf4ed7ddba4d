//! The cache of verified credentials.
//!
//! It holds no passwords, and no data to test passwords against. Its keys are a keyed hash over user, password and stored hash,
//! with a random key for each process. The stored hash is part of it, so a changed password is not found.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{Credentials, Hash, locked};

/// How long credentials stay after their last use.
pub const REMEMBERED: Duration = Duration::from_secs(60);
/// The most credentials in the cache.
pub const REMEMBERED_MAX: usize = 16_384;

/// Verified credentials.
#[derive(Default)]
pub struct Verified {
    /// Hashers for the keys of `until`: two of them make 128 bits.
    hashers: [RandomState; 2],
    /// The time at which each entry expires.
    pub until: Mutex<HashMap<Key, Instant>>,
}

/// Credentials with the hash that they were compared with.
pub type Key = [u64; 2];

impl Verified {
    pub fn key(&self, credentials: &Credentials, hash: &Hash) -> Key {
        let parts = (&credentials.user, &credentials.password, hash.text());
        self.hashers.each_ref().map(|by| by.hash_one(parts))
    }

    /// A secret number of a user name.
    pub fn number(&self, user: &str) -> u64 {
        self.hashers[0].hash_one(user)
    }

    /// Whether these credentials are in the cache. Then they stay for longer.
    pub fn has(&self, key: Key) -> bool {
        let now = osier::time::now();
        let mut until = locked(&self.until);
        let entry = until.get_mut(&key).filter(|until| now < **until);
        entry.map(|until| *until = now + REMEMBERED).is_some()
    }

    pub fn remember(&self, key: Key) {
        let now = osier::time::now();
        let mut until = locked(&self.until);
        if until.len() >= REMEMBERED_MAX {
            until.retain(|_, until| now < *until);
        }
        if until.len() >= REMEMBERED_MAX {
            until.clear();
        }
        until.insert(key, now + REMEMBERED);
    }
}
