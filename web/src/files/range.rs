//! The Range and If-Range fields: which bytes of a file of known length a GET asks for.
//!
//! Ranges that overlap or nearly touch are joined, so that nothing is sent twice. A request with
//! more than [`MOST`] ranges gets the whole file, which RFC 9110 section 14.2 allows.
//!
//! Source: RFC 9110 sections 14.1.2, 14.2, 15.3.7.2, 13.1.5.

use super::conditional::{Validators, strong_match};
use crate::conn::ignoring_case::strip_prefix;

/// Most ranges of one request. Media players and PDF viewers ask for two or three.
const MOST: usize = 16;

/// Largest gap, in bytes, between two ranges that are sent as one. The head of a part is about as
/// long.
const GAP: u64 = 80;

/// The part of a file that is sent.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Selection {
    /// The whole file, with 200.
    Whole,
    /// Bytes `first..=last`, with 206 and Content-Range.
    Part {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte, at least `first` and below the length.
        last: u64,
    },
    /// At least two ranges, as first and last byte, with 206 and multipart/byteranges. They neither
    /// overlap nor touch. They are in the order in which the client asked.
    Parts(Vec<(u64, u64)>),
    /// None, because no range exists in the file: 416 with `Content-Range: bytes */length`.
    Unsatisfiable,
}

/// Reads a Range field against a file of `length` bytes. A field that is not understood is ignored,
/// as RFC 9110 section 14.2 demands.
pub fn select(range: &[u8], length: u64) -> Selection {
    let Some(set) = range_set(range) else {
        return Selection::Whole;
    };
    let specs = set
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|spec| !spec.is_empty());
    let mut parts: Vec<(u64, u64)> = Vec::new();
    let mut count = 0;
    for spec in specs {
        count += 1;
        if count > MOST {
            return Selection::Whole;
        }
        match read(spec, length) {
            None => return Selection::Whole,
            Some(Spec::Part(first, last)) => join(&mut parts, first, last),
            Some(Spec::Nothing) => {}
            // Content-Range cannot describe an empty file.
            Some(Spec::Empty) => return Selection::Whole,
        }
    }
    match parts.as_slice() {
        [] if count == 0 => Selection::Whole,
        [] => Selection::Unsatisfiable,
        &[(first, last)] => Selection::Part { first, last },
        _ => Selection::Parts(parts),
    }
}

/// One range of the list.
enum Spec {
    Part(u64, u64),
    /// A range beyond the end, or of no byte.
    Nothing,
    /// A suffix of an empty file.
    Empty,
}

/// Reads one range. `None` if it is malformed.
fn read(spec: &[u8], length: u64) -> Option<Spec> {
    let dash = spec.iter().position(|&byte| byte == b'-')?;
    Some(match (&spec[..dash], &spec[dash + 1..]) {
        (b"", suffix) => match number(suffix)? {
            0 => Spec::Nothing,
            _ if length == 0 => Spec::Empty,
            count => Spec::Part(length.saturating_sub(count), length - 1),
        },
        (first, last) => {
            let first = number(first)?;
            let last = if last.is_empty() { u64::MAX } else { number(last)? };
            match first {
                _ if last < first => return None,
                _ if first >= length => Spec::Nothing,
                _ => Spec::Part(first, last.min(length - 1)),
            }
        }
    })
}

/// Adds a range, joined with all ranges that it nearly touches. The result takes the place of the first of
/// them.
fn join(parts: &mut Vec<(u64, u64)>, mut first: u64, mut last: u64) {
    let mut place = parts.len();
    // The joined range may touch others.
    while let Some(at) = parts
        .iter()
        .position(|&(theirs, end)| theirs <= last.saturating_add(GAP + 1) && first <= end.saturating_add(GAP + 1))
    {
        let (theirs, end) = parts.remove(at);
        (first, last) = (first.min(theirs), last.max(end));
        place = place.min(at);
    }
    parts.insert(place.min(parts.len()), (first, last));
}

/// Whether the Range field counts: there is no If-Range field, or it still holds.
pub fn still_valid(if_range: Option<&[u8]>, validators: &Validators<'_>) -> bool {
    let Some(value) = if_range.map(<[u8]>::trim_ascii) else {
        return true;
    };
    if value.starts_with(b"\"") || value.starts_with(b"W/") {
        return strong_match(value, validators.etag);
    }
    // Only the exact date that the server sent counts. A later date proves nothing about the bytes
    // that the client has. No date counts if the client may have a part of another form: the two
    // parts would be of different encodings.
    !validators.varies && validators.modified.is_some() && super::conditional::date(value) == validators.modified
}

/// Returns the part after `bytes=`. Other units are not supported.
fn range_set(range: &[u8]) -> Option<&[u8]> {
    strip_prefix(range, b"bytes=")
}

/// Reads one or more digits. A number that is too large for the type counts as the largest.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0u64, |value, digit| {
        value.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Selection::{Part, Parts, Unsatisfiable, Whole};

    #[test]
    fn ranges_of_ten_bytes() {
        for (range, expected) in [
            ("bytes=0-3", Part { first: 0, last: 3 }),
            ("Bytes=0-3", Part { first: 0, last: 3 }),
            ("bytes= 0-3 ", Part { first: 0, last: 3 }),
            ("bytes=0-3,", Part { first: 0, last: 3 }),
            ("bytes=3-", Part { first: 3, last: 9 }),
            ("bytes=9-9", Part { first: 9, last: 9 }),
            ("bytes=5-500", Part { first: 5, last: 9 }),
            ("bytes=0-99999999999999999999999", Part { first: 0, last: 9 }),
            ("bytes=-3", Part { first: 7, last: 9 }),
            ("bytes=-10", Part { first: 0, last: 9 }),
            ("bytes=-1000", Part { first: 0, last: 9 }),
            ("bytes=10-", Unsatisfiable),
            ("bytes=10-20", Unsatisfiable),
            ("bytes=99999999999999999999999-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=", Whole),
            ("bytes", Whole),
            ("", Whole),
            ("bytes=-", Whole),
            ("bytes=a-b", Whole),
            ("bytes=3-2", Whole),
            ("bytes=1-2-3", Whole),
            ("bytes=--1", Whole),
            ("bytes=+1-2", Whole),
            ("bytes=0x1-2", Whole),
            ("bytes=1 - 2", Whole),
            ("bytes 0-3", Whole),
            ("items=0-3", Whole),
            ("bytes=0-1,3-4", Part { first: 0, last: 4 }),
            ("bytes=0-5,2-9", Part { first: 0, last: 9 }),
            ("bytes=20-,30-", Unsatisfiable),
            ("bytes=20-,0-1", Part { first: 0, last: 1 }),
            ("bytes=0-1,x", Whole),
            ("bytes=,", Whole),
        ] {
            assert_eq!(select(range.as_bytes(), 10), expected, "{range}");
        }
        assert_eq!(select(format!("bytes={}", "0-1,".repeat(5000)).as_bytes(), 10), Whole);
    }

    #[test]
    fn several_ranges() {
        let flood = |count: usize| {
            (0..count)
                .map(|n| format!("{}-{},", n * 1000, n * 1000 + 1))
                .collect::<String>()
        };
        for (range, expected) in [
            ("0-0,500-509", Parts(vec![(0, 0), (500, 509)])),
            ("500-509,0-0", Parts(vec![(500, 509), (0, 0)])),
            ("0-99,-100", Parts(vec![(0, 99), (99_900, 99_999)])),
            ("0-0, 1000000-, 500-509 ,", Parts(vec![(0, 0), (500, 509)])),
            // Gaps of 80 bytes and of 81.
            ("0-9,90-99", Part { first: 0, last: 99 }),
            ("0-9,91-99", Parts(vec![(0, 9), (91, 99)])),
            // The third range joins the first two. They keep the place of the earlier one.
            (
                "1000-1099,5000-5099,1200-1299,1050-1250",
                Parts(vec![(1000, 1299), (5000, 5099)]),
            ),
            ("5000-5099,1000-1099,0-", Part { first: 0, last: 99_999 }),
            (&"0-,".repeat(16), Part { first: 0, last: 99_999 }),
            (&"0-,".repeat(17), Whole),
            (&flood(17), Whole),
        ] {
            assert_eq!(
                select(format!("bytes={range}").as_bytes(), 100_000),
                expected,
                "{range}"
            );
        }
        assert!(
            matches!(select(format!("bytes={}", flood(16)).as_bytes(), 100_000), Parts(parts) if parts.len() == 16)
        );
    }

    #[test]
    fn ranges_of_nothing() {
        for (range, expected) in [
            ("bytes=0-", Unsatisfiable),
            ("bytes=0-0", Unsatisfiable),
            ("bytes=-5", Whole),
        ] {
            assert_eq!(select(range.as_bytes(), 0), expected, "{range}");
        }
    }

    #[test]
    fn if_range() {
        let validators = Validators {
            etag: "\"abc\"",
            modified: Some(784_111_777),
            varies: false,
        };
        for (value, expected) in [
            ("\"abc\"", true),
            ("\"abd\"", false),
            ("W/\"abc\"", false),
            ("\"abc", false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
            ("Sun, 06 Nov 1994 08:49:36 GMT", false),
            ("rubbish", false),
        ] {
            assert_eq!(still_valid(Some(value.as_bytes()), &validators), expected, "{value}");
        }
        assert!(still_valid(None, &validators));
        let varied = Validators {
            varies: true,
            ..validators
        };
        assert!(still_valid(Some(b"\"abc\""), &varied));
        assert!(!still_valid(Some(b"Sun, 06 Nov 1994 08:49:37 GMT"), &varied));
        assert!(!still_valid(
            Some(b"rubbish"),
            &Validators {
                modified: None,
                ..validators
            }
        ));
    }

    proptest::proptest! {
        #[test]
        fn parts_lie_inside_and_apart(range in "(bytes=)?[-0-9, =]{0,40}", length in 0u64..2000) {
            match select(range.as_bytes(), length) {
                Part { first, last } => assert!(first <= last && last < length, "{range} of {length}"),
                Parts(mut parts) => {
                    parts.sort_unstable();
                    assert!(parts.len() > 1 && parts.iter().all(|(first, last)| first <= last && *last < length));
                    assert!(parts.windows(2).all(|pair| pair[0].1 + GAP + 1 < pair[1].0), "{range} of {length}");
                }
                Whole | Unsatisfiable => {}
            }
        }
    }
}
