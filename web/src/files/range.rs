//! The Range and If-Range fields: which bytes of a file of known length a GET asks for.
//!
//! Called by `answer.rs` once the conditional fields let the request proceed. One range is served; a list of several is
//! answered with the whole file, which RFC 9110 section 14.2 allows and which leaves nothing to attack (no multipart,
//! no overlap, no range bombs).
//!
//! Source: RFC 9110 sections 14.1.2, 14.2, 13.1.5.

use super::conditional::{Validators, strong_match};

/// What to send.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Selection {
    /// The whole file, 200.
    Whole,
    /// `first..=last`, 206 with Content-Range.
    Part {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte, at least `first` and below the length.
        last: u64,
    },
    /// Nothing of it exists, 416 with `Content-Range: bytes */length`.
    Unsatisfiable,
}

/// Reads a Range field against a file of `length` bytes. What is not understood is ignored, as the RFC demands.
pub fn select(range: &[u8], length: u64) -> Selection {
    let Some(set) = range_set(range) else {
        return Selection::Whole;
    };
    let mut specs = set
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|spec| !spec.is_empty());
    let (Some(spec), None) = (specs.next(), specs.next()) else {
        return Selection::Whole;
    };
    let Some(dash) = spec.iter().position(|&byte| byte == b'-') else {
        return Selection::Whole;
    };
    match (&spec[..dash], &spec[dash + 1..]) {
        (b"", suffix) => match number(suffix) {
            None => Selection::Whole,
            Some(0) => Selection::Unsatisfiable,
            // Nothing can be said with Content-Range about an empty file.
            Some(_) if length == 0 => Selection::Whole,
            Some(count) => Selection::Part {
                first: length.saturating_sub(count),
                last: length - 1,
            },
        },
        (first, last) => {
            let Some(first) = number(first) else {
                return Selection::Whole;
            };
            let last = if last.is_empty() { Some(u64::MAX) } else { number(last) };
            match last {
                Some(last) if last >= first && first < length => Selection::Part {
                    first,
                    last: last.min(length - 1),
                },
                Some(last) if last >= first => Selection::Unsatisfiable,
                _ => Selection::Whole,
            }
        }
    }
}

/// Whether an If-Range field, when there is one, lets the Range field count.
pub fn still_valid(if_range: Option<&[u8]>, validators: &Validators<'_>) -> bool {
    let Some(value) = if_range.map(<[u8]>::trim_ascii) else {
        return true;
    };
    if value.starts_with(b"\"") || value.starts_with(b"W/") {
        return strong_match(value, validators.etag);
    }
    // Only the very date we sent counts: a later one is no evidence about the bytes the client holds. Nor is any date,
    // where the client may hold a part of another form: it would put together two encodings.
    !validators.varies && validators.modified.is_some() && super::conditional::date(value) == validators.modified
}

/// The part after `bytes=`; other units are none of ours.
fn range_set(range: &[u8]) -> Option<&[u8]> {
    let (unit, set) = range.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

/// One or more digits; a number too large for the type is as good as the largest.
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
    use Selection::{Part, Unsatisfiable, Whole};

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
            ("bytes=0-1,3-4", Whole),
            ("bytes=0-5,2-9", Whole),
            ("bytes=20-,30-", Whole),
        ] {
            assert_eq!(select(range.as_bytes(), 10), expected, "{range}");
        }
        assert_eq!(select(format!("bytes={}", "0-1,".repeat(5000)).as_bytes(), 10), Whole);
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
        fn a_part_lies_inside(range in "(bytes=)?[-0-9, =]{0,24}", length in 0u64..200) {
            if let Part { first, last } = select(range.as_bytes(), length) {
                assert!(first <= last && last < length, "{range} of {length}");
            }
        }
    }
}
