//! Request ids: made at the first use, or taken from the `X-Request-ID` of a trusted proxy.
//!
//! An id that is made has 64 bits of a SplitMix64 generator, one for each thread, seeded by std's random keys. Making one is a few
//! instructions and no system call. The ids of one thread never repeat. An id is not a secret.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::num::NonZeroU8;

/// The field that carries a request id between servers.
pub(crate) const FIELD: &str = "x-request-id";

/// The longest id that is taken from a proxy, in bytes.
const LONGEST: usize = 64;

/// The id of a request, for the logs of this server and of its backends. An id that this server has
/// made has 16 hexadecimal digits. An id of a [trusted proxy](crate::Request::trust_hops) has 1 to 64
/// letters, digits and characters of `-_.:+/=@~`.
#[derive(Clone, Copy)]
pub struct RequestId {
    /// ASCII, and zeros behind it.
    bytes: [u8; LONGEST],
    len: NonZeroU8,
}

thread_local! {
    /// State of the generator (Steele, Lea, Flood 2014).
    static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish());
}

impl RequestId {
    /// Makes an id for an event that is logged like a request.
    pub fn random() -> RequestId {
        let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let number = mixed ^ mixed >> 31;
        let mut bytes = [0; LONGEST];
        bytes[..8].copy_from_slice(&digits((number >> 32) as u32));
        bytes[8..16].copy_from_slice(&digits(number as u32));
        RequestId {
            bytes,
            len: const { NonZeroU8::new(16).expect("not zero") },
        }
    }

    /// The id that a trusted proxy has sent. `None` if it is too long, or holds other characters.
    pub(crate) fn given(value: &[u8]) -> Option<RequestId> {
        let is_fine = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:+/=@~".contains(byte);
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        let len = NonZeroU8::new(u8::try_from(value.len()).ok()?)?;
        value.iter().all(is_fine).then_some(RequestId { bytes, len })
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len.get().into()]).expect("ASCII, see `bytes`")
    }
}

/// The hexadecimal digits of a number, made at once: each half of a byte moves into a byte of its own, and those beyond 9 get the distance
/// to the letters.
fn digits(number: u32) -> [u8; 8] {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let mut halves = u64::from(number);
    halves = (halves << 16 | halves) & 0x0000_ffff_0000_ffff;
    halves = (halves << 8 | halves) & 0x00ff_00ff_00ff_00ff;
    halves = (halves << 4 | halves) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (halves + 6 * ONES) >> 4 & ONES;
    let to_letters = u64::from(b'a' - b'9' - 1);
    (halves + u64::from(b'0') * ONES + letters * to_letters).to_be_bytes()
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RequestId {}

impl Hash for RequestId {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.as_str().hash(hasher);
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_ids_are_16_digits_and_differ() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let id = RequestId::random();
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            assert!(id.as_str().len() == 16 && id.as_str().bytes().all(is_digit), "{id}");
            assert!(seen.insert(id), "twice: {id}");
        }
    }

    #[test]
    fn digits_are_those_of_format() {
        for number in [0, 0x0123_4567, 0x89ab_cdef, 0xf0e1_d2c3, u32::MAX] {
            assert_eq!(digits(number), *format!("{number:08x}").as_bytes());
        }
    }

    #[test]
    fn only_short_and_plain_ids_are_taken() {
        let longest = "x".repeat(LONGEST);
        for fine in [
            "1",
            "7f3c8f2e-6d3f-4f9b-9d0e-0b3f5b9f2c11",
            "Root=1-67891233:a/b+c~@_.",
            &longest,
        ] {
            assert_eq!(RequestId::given(fine.as_bytes()).unwrap().as_str(), fine);
        }
        let long = "x".repeat(LONGEST + 1);
        let huge = "x".repeat(300);
        for bad in ["", "a b", "a\nb", "a\"b", "a\\b", "a,b", "é", "a\0", &long, &huge] {
            assert_eq!(RequestId::given(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
