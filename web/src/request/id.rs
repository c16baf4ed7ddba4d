//! Request ids: 64 random bits for each request that is logged or forwarded, made at the first use.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The id of a request, for the logs of this server and of its backends. It is written as 16
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

thread_local! {
    /// State of a SplitMix64 generator (Steele, Lea, Flood 2014), seeded by std's random keys. An
    /// id is not a secret.
    static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish());
}

impl RequestId {
    /// Makes an id for an event that is logged like a request.
    pub fn random() -> RequestId {
        let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        RequestId(mixed ^ mixed >> 31)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
