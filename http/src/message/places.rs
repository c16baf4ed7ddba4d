//! The places of the fields of a usual head, found in one pass over its bytes.
//!
//! The fast paths for heads use it: [`Outline`](crate::Outline) for requests and [`ReplyOutline`](crate::ReplyOutline) for responses.
//! A head that is not usual is left to the strict parsers.

use super::{Limits, byte};

/// The most fields of a usual head. Browsers send about fifteen.
const FIELDS: usize = 32;

/// The longest usual head, in bytes, so that a place fits 16 bits.
pub(crate) const LONGEST: usize = u16::MAX as usize;

/// The place of one field in its head. The value excludes the white space around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) name: u16,
    pub(crate) colon: u16,
    pub(crate) value: u16,
    pub(crate) end: u16,
}

impl Place {
    const NOWHERE: Place = Place {
        name: 0,
        colon: 0,
        value: 0,
        end: 0,
    };

    /// The field at this place in `head`.
    #[inline(always)]
    pub(crate) fn cut<'a>(&self, head: &'a str) -> (&'a str, &'a [u8]) {
        let name = &head[usize::from(self.name)..usize::from(self.colon)];
        (name, &head.as_bytes()[usize::from(self.value)..usize::from(self.end)])
    }

    /// The same with the name in bytes.
    #[inline(always)]
    pub(crate) fn cut_bytes<'a>(&self, head: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let name = &head[usize::from(self.name)..usize::from(self.colon)];
        (name, &head[usize::from(self.value)..usize::from(self.end)])
    }

    /// The value at this place in `head`.
    #[inline(always)]
    pub(crate) fn text<'a>(&self, head: &'a str) -> Option<&'a str> {
        head.get(usize::from(self.value)..usize::from(self.end))
    }
}

/// The places of all fields of one head.
#[derive(Debug)]
pub(crate) struct Places {
    count: u16,
    places: [Place; FIELDS],
}

impl Places {
    pub(crate) const fn new() -> Places {
        Places {
            count: 0,
            places: [Place::NOWHERE; FIELDS],
        }
    }

    /// Finds the fields that begin at `at` in `buf`, which is cut to [`LONGEST`]. Returns the end of the head: the place after its
    /// empty line. `None` if that is missing or a field is not usual: ASCII, at most 32 fields.
    #[inline(always)]
    pub(crate) fn find(&mut self, buf: &[u8], mut at: usize, limits: &Limits) -> Option<usize> {
        let most = limits.header_count.min(FIELDS);
        let mut free = self.places[..most].iter_mut();
        while *buf.get(at)? != b'\r' {
            let colon = at + tokens(&buf[at..]);
            if colon == at {
                return None;
            }
            // Nearly everybody writes one space, and no other white space around a value.
            let mut value = match buf.get(colon..)? {
                [b':', b' ', ..] => colon + 2,
                [b':', ..] => colon + 1,
                _ => return None,
            };
            while matches!(buf.get(value)?, b' ' | b'\t') {
                value += 1;
            }
            let mut end = value + printable(&buf[value..]);
            let next = loop {
                match buf.get(end..)? {
                    [b'\r', b'\n', ..] => break end + 2,
                    [b'\t', ..] => end += 1 + printable(&buf[end + 1..]),
                    _ => return None,
                }
            };
            if buf[end - 1] <= b' ' {
                while end > value && matches!(buf[end - 1], b' ' | b'\t') {
                    end -= 1;
                }
            }
            // All of them are at most `LONGEST`.
            *free.next()? = Place {
                name: at as u16,
                colon: colon as u16,
                value: value as u16,
                end: end as u16,
            };
            at = next;
        }
        if *buf.get(at + 1)? != b'\n' {
            return None;
        }
        self.count = (most - free.len()) as u16;
        Some(at + 2)
    }

    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[Place] {
        &self.places[..usize::from(self.count)]
    }
}

/// The number of token bytes at the beginning.
#[inline(always)]
pub(crate) fn tokens(bytes: &[u8]) -> usize {
    let other = bytes.iter().position(|&b| !byte::is_token(b));
    other.unwrap_or(bytes.len())
}

/// The number of bytes at the beginning that are visible or spaces.
#[inline(always)]
pub(crate) fn printable(bytes: &[u8]) -> usize {
    run::<0x20>(bytes)
}

/// The number of bytes at the beginning from `LEAST` to the tilde, looked at eight at a time.
#[inline(always)]
pub(crate) fn run<const LEAST: u64>(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let mut at = 0;
    while let Some(&word) = bytes[at..].first_chunk() {
        let word = u64::from_le_bytes(word);
        // Sets the high bit of each byte that is less than LEAST, beyond ASCII, or 0x7f. A carry from such a byte reaches only
        // later ones.
        let stops = (word.wrapping_sub(LEAST * ONES) | word | word.wrapping_add(ONES)) & HIGH;
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let other = bytes[at..].iter().position(|&b| !(LEAST..0x7f).contains(&u64::from(b)));
    other.map_or(bytes.len(), |other| at + other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_where_its_definition_says() {
        for byte in 0..=255u8 {
            for at in 0..20 {
                // The bytes that follow must not matter.
                for beyond in [b'a', 0, 0xff, 0x7f] {
                    let mut bytes = [b'a'; 20];
                    bytes[at] = byte;
                    bytes[at + 1..].fill(beyond);
                    let expected = |least| {
                        let other = bytes.iter().position(|&b| b < least || b > b'~');
                        other.unwrap_or(bytes.len())
                    };
                    assert_eq!(run::<0x21>(&bytes), expected(0x21), "{byte} at {at}");
                    assert_eq!(run::<0x20>(&bytes), expected(0x20), "{byte} at {at}");
                }
            }
        }
    }
}
