//! Random numbers, which a simulation draws from its seed.

use std::hash::{BuildHasher, RandomState};

use crate::wait::simulated;

/// A random number: in a [simulation](crate#features) from the seed, elsewhere from the keys that std makes for its maps. Use it for
/// jitter, shuffling and unique numbers, and not for secrets.
///
/// ```
/// let dice = osier::random() % 6 + 1;
/// assert!((1..=6).contains(&dice));
/// ```
///
/// # Suspends
///
/// Never.
pub fn random() -> u64 {
    simulated::random().unwrap_or_else(|| RandomState::new().hash_one(()))
}
