//! The keys of session tickets that several machines share: when a key begins to seal, and when the next one follows.
//!
//! A new key is published [`NOTICE`] before it seals, so that every machine can open its tickets by then. All functions
//! are pure: the time is an argument.

use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

/// Seconds for which a key seals.
const PERIOD: i64 = 12 * 3600;

/// Seconds between the publication of a key and its first ticket. Machines poll the keys every ten seconds.
const NOTICE: i64 = 60;

/// Seconds after which a key must not seal any more, even if no machine has published another one.
pub const STALE: i64 = 2 * PERIOD;

/// The most keys: one that will seal, one that seals, and two that only open tickets.
const KEYS_MAX: usize = 4;

/// Bytes of a key, as `osier_tls::Tickets` wants it.
const KEY_BYTES: usize = 48;

/// Keys, the newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rotation(Vec<Key>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    bytes: Vec<u8>,
    /// The time at which the key begins to seal, in seconds since 1970.
    from: i64,
}

impl Rotation {
    /// Reads what [`to_text`](Rotation::to_text) has written. Any other text holds no key.
    pub fn from_text(text: &str) -> Rotation {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let keys = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let key = |value: &Value| {
            let bytes = data_encoding::BASE64.decode(value["key"].as_str()?.as_bytes()).ok()?;
            let from = value["from"].as_i64()?;
            (bytes.len() == KEY_BYTES).then_some(Key { bytes, from })
        };
        Rotation(keys.iter().take(KEYS_MAX).filter_map(key).collect())
    }

    /// The keys as text, for Redis.
    pub fn to_text(&self) -> String {
        let key = |key: &Key| json!({ "key": data_encoding::BASE64.encode(&key.bytes), "from": key.from });
        Value::Array(self.0.iter().map(key).collect()).to_string()
    }

    /// Adds a key if it is time for another one. Returns whether it did.
    pub fn change(&mut self, now: i64) -> bool {
        let from = match self.0.first() {
            // A key from far ahead comes from a clock that was wrong.
            Some(newest) if newest.from + PERIOD > now && newest.from <= now + PERIOD => return false,
            Some(_) => now + NOTICE,
            None => now,
        };
        self.0.insert(
            0,
            Key {
                bytes: random_keys(),
                from,
            },
        );
        self.0.truncate(KEYS_MAX);
        true
    }

    /// The time from which the newest key seals, in seconds since 1970.
    pub fn newest(&self) -> Option<i64> {
        self.0.first().map(|newest| newest.from)
    }

    /// All keys, the one that seals at this time first.
    pub fn keys(&self, now: i64) -> Vec<u8> {
        let sealing = self.0.iter().position(|key| key.from <= now).unwrap_or(0);
        let others = (0..self.0.len()).filter(|&index| index != sealing);
        let order = self
            .0
            .get(sealing)
            .into_iter()
            .chain(others.map(|index| &self.0[index]));
        order.flat_map(|key| key.bytes.iter().copied()).collect()
    }
}

/// One random key.
pub fn random_keys() -> Vec<u8> {
    let mut bytes = vec![0; KEY_BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the system has random numbers");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_before_it_seals_and_opens_for_a_day_afterwards() {
        let (mut rotation, began) = (Rotation::default(), 1_800_000_000);
        assert!(rotation.change(began) && !rotation.change(began + PERIOD - 1));
        let first = rotation.keys(began);
        assert_eq!(first.len(), KEY_BYTES);
        let later = began + PERIOD;
        assert!(rotation.change(later));
        let before = rotation.keys(later + NOTICE - 1);
        assert_eq!((&before[..KEY_BYTES], before.len()), (&first[..], 2 * KEY_BYTES));
        let after = rotation.keys(later + NOTICE);
        assert_eq!(&after[KEY_BYTES..], first);
        for count in 2..=5 {
            assert!(rotation.change(later + count * (PERIOD + NOTICE)));
        }
        let keys = rotation.keys(later + 9 * PERIOD);
        assert_eq!(keys.len(), KEYS_MAX * KEY_BYTES);
        assert!(!keys.windows(KEY_BYTES).any(|key| key == first), "old keys go");
    }

    #[test]
    fn what_is_written_is_read_and_anything_else_is_no_key() {
        let mut rotation = Rotation::default();
        rotation.change(1000);
        rotation.change(1000 + PERIOD);
        assert_eq!(Rotation::from_text(&rotation.to_text()), rotation);
        for text in ["", "{}", "[1]", "[{\"key\":\"AAAA\",\"from\":1}]"] {
            assert_eq!(Rotation::from_text(text), Rotation::default(), "{text}");
        }
    }

    #[test]
    fn keys_of_a_wrong_clock_and_of_a_dead_redis_do_not_stay() {
        let mut rotation = Rotation::default();
        rotation.change(1_900_000_000);
        assert!(rotation.change(1_800_000_000), "a key from far ahead");
        assert!(rotation.newest() > Some(1_800_000_000) && Rotation::default().newest().is_none());
    }
}
