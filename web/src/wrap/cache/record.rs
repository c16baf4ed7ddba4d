//! The head of a stored file, as bytes: everything that the table of entries needs after a restart.
//!
//! ```text
//!   "osier cache 1\n" · length of the head, 4 bytes · checksum of the rest, 8 bytes · rest
//!   rest: length of the body · time · status · flags · four times · key · particular · fields · varies · spare zeros
//! ```
//!
//! Numbers are little-endian. A text has its length in four bytes in front. The spare bytes let a later head of other fields take the place
//! of this one. The functions are pure, and bytes that are not a whole head give `None`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use osier_http::FieldLines;

use super::freshness::Freshness;
use super::key::Varies;
use crate::upstream::pick::fnv1a;

const MAGIC: &[u8] = b"osier cache 1\n";

/// Bytes before the rest.
const FRONT: usize = MAGIC.len() + 4 + 8;

/// The least spare bytes of a new head.
const SPARE: usize = 256;

/// The length of a text that is empty. Spare bytes begin with one, in the place of the name of a field, so there are none or as many.
const EMPTY: usize = 4;

/// A stored response without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Length of the body.
    pub len: u64,
    /// When the response was received or validated, in whole seconds.
    pub received: SystemTime,
    pub status: StatusCode,
    pub of_backend: bool,
    pub freshness: Freshness,
    pub key: Vec<u8>,
    pub particular: Box<[u8]>,
    pub fields: FieldLines,
    pub varies: Varies,
}

/// The length of a head that begins with these bytes.
pub fn head_len(bytes: &[u8]) -> Option<u64> {
    let len = bytes.strip_prefix(MAGIC)?.first_chunk()?;
    Some(u64::from(u32::from_le_bytes(*len)))
}

impl Record {
    /// The head. Its length does not depend on the length of the body.
    pub fn encode(&self) -> Vec<u8> {
        let mut head = self.encode_rest();
        let len = head.len() + SPARE;
        seal(&mut head, len);
        head
    }

    /// The head with this length. `None` if it is longer.
    pub fn encode_within(&self, len: u64) -> Option<Vec<u8>> {
        let mut head = self.encode_rest();
        let len = usize::try_from(len).ok()?;
        let fits = head.len() == len || head.len() + EMPTY <= len;
        fits.then(|| {
            seal(&mut head, len);
            head
        })
    }

    /// Everything but the length and the checksum.
    fn encode_rest(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        out.extend_from_slice(MAGIC);
        out.resize(FRONT, 0);
        let seconds = self.received.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for number in [self.len, seconds] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.status.as_u16().to_le_bytes());
        let known = &self.freshness;
        let flags = [self.of_backend, known.may_be_stale, known.no_cache];
        out.extend(flags.map(u8::from));
        for time in [
            known.lifetime,
            known.initial_age,
            known.while_revalidate,
            known.if_error,
        ] {
            out.extend_from_slice(&time.as_secs().to_le_bytes());
        }
        for text in [&self.key, &*self.particular, self.fields.as_bytes()] {
            put(&mut out, text);
        }
        for (name, value) in &self.varies {
            put(&mut out, name.as_bytes());
            out.push(u8::from(value.is_some()));
            put(&mut out, value.as_deref().unwrap_or_default());
        }
        out
    }

    /// Reads a head.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        if head_len(bytes)? != bytes.len() as u64 {
            return None;
        }
        let sum = u64::from_le_bytes(bytes.get(MAGIC.len() + 4..FRONT)?.try_into().ok()?);
        let mut rest = &bytes[FRONT..];
        if checksum(rest) != sum {
            return None;
        }
        let rest = &mut rest;
        let (len, seconds) = (number(rest)?, number(rest)?);
        let status = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?);
        let flags: [u8; 3] = take(rest, 3)?.try_into().ok()?;
        let mut time = || number(rest).map(Duration::from_secs);
        let freshness = Freshness {
            lifetime: time()?,
            initial_age: time()?,
            while_revalidate: time()?,
            if_error: time()?,
            may_be_stale: flags[1] != 0,
            no_cache: flags[2] != 0,
        };
        let (key, particular, lines) = (text(rest)?, text(rest)?, text(rest)?);
        let mut varies = Vec::new();
        while !rest.is_empty() {
            let name = str::from_utf8(text(rest)?).ok()?;
            if name.is_empty() {
                break;
            }
            let is_there = take(rest, 1)? == [1];
            let value = text(rest)?;
            varies.push((name.into(), is_there.then(|| value.into())));
        }
        Some(Record {
            len,
            received: UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?,
            status: StatusCode::from_u16(status).ok()?,
            of_backend: flags[0] != 0,
            freshness,
            key: key.to_vec(),
            particular: particular.into(),
            fields: fields(lines)?,
            varies: varies.into(),
        })
    }
}

/// Adds spare bytes up to `len`, the length and the checksum.
fn seal(head: &mut Vec<u8>, len: usize) {
    head.resize(len, 0);
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    head[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&len.to_le_bytes());
    let sum = checksum(&head[FRONT..]);
    head[MAGIC.len() + 4..FRONT].copy_from_slice(&sum.to_le_bytes());
}

/// Reads encoded lines. Each is checked again.
fn fields(mut lines: &[u8]) -> Option<FieldLines> {
    let mut fields = FieldLines::new();
    fields.reserve(lines.len());
    while !lines.is_empty() {
        let end = lines.windows(2).position(|pair| pair == b"\r\n")?;
        let line = &lines[..end];
        let colon = line.windows(2).position(|pair| pair == b": ")?;
        let name = str::from_utf8(&line[..colon]).ok()?;
        fields.push(name, &line[colon + 2..]).ok()?;
        lines = &lines[end + 2..];
    }
    Some(fields)
}

fn put(out: &mut Vec<u8>, text: &[u8]) {
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text);
}

fn take<'b>(rest: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    take(rest, 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)))
}

fn text<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = u32::from_le_bytes(take(rest, 4)?.try_into().ok()?);
    take(rest, usize::try_from(len).ok()?)
}

/// A hash that finds accidents, not forgeries. Only this user writes the folder.
pub fn checksum(bytes: &[u8]) -> u64 {
    fnv1a(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Record {
        let mut fields = FieldLines::new();
        fields.push("content-type", b"text/plain").unwrap();
        fields.push("x", b"").unwrap();
        Record {
            len: 12_345,
            received: UNIX_EPOCH + Duration::from_secs(784_111_777),
            status: StatusCode::OK,
            of_backend: true,
            freshness: Freshness {
                lifetime: Duration::from_secs(60),
                may_be_stale: true,
                ..Freshness::default()
            },
            key: b"key\0".to_vec(),
            particular: (*b"p").into(),
            fields,
            varies: Box::new([("a".into(), None), ("b".into(), Some((*b"1").into()))]),
        }
    }

    #[test]
    fn a_head_comes_back() {
        let record = sample();
        let head = record.encode();
        assert_eq!(head_len(&head), Some(head.len() as u64));
        assert_eq!(Record::decode(&head), Some(record.clone()));
        let other = Record { len: 0, ..record };
        assert_eq!(other.encode().len(), head.len());
    }

    #[test]
    fn a_head_takes_the_place_of_another_if_it_fits() {
        let len = sample().encode().len() as u64;
        let mut longer = sample();
        longer.fields.push("y", &[b'y'; SPARE - 9]).unwrap();
        let exact = longer.encode_within(len - EMPTY as u64).unwrap();
        assert_eq!(exact.len() as u64, len - EMPTY as u64, "no byte is spare");
        for spare in 0..=EMPTY as u64 {
            let head = longer.encode_within(exact.len() as u64 + spare);
            assert_eq!(head.is_some(), matches!(spare, 0 | 4), "{spare}");
            if let Some(head) = head {
                assert_eq!(Record::decode(&head), Some(longer.clone()));
            }
        }
        assert_eq!(longer.encode_within(exact.len() as u64 - 1), None);
    }

    #[test]
    fn no_changed_byte_goes_unnoticed() {
        let head = sample().encode();
        for at in 0..head.len() {
            for bit in [1, 0x80] {
                let mut other = head.clone();
                other[at] ^= bit;
                assert_eq!(Record::decode(&other), None, "byte {at}");
            }
            assert_eq!(Record::decode(&head[..at]), None, "cut at {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::decode(&bytes);
            let mut head = MAGIC.to_vec();
            head.extend_from_slice(&((FRONT + bytes.len()) as u32).to_le_bytes());
            head.extend_from_slice(&checksum(&bytes).to_le_bytes());
            head.extend_from_slice(&bytes);
            let _ = Record::decode(&head);
        }
    }
}
