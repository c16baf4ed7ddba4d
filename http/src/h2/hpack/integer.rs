//! Integers with a prefix (RFC 7541 5.1).

use super::lost;
use crate::h2::Error;

/// The most bytes after the prefix. Four carry 28 bits, more than any length or index that is accepted.
const MORE_BYTES: usize = 4;

/// Reads an integer whose prefix is the low `prefix` bits of the first byte. Returns the integer and its length in bytes, or `None`
/// if the input ends inside it.
#[inline]
pub(super) fn read(input: &[u8], prefix: u32) -> Result<Option<(u32, usize)>, Error> {
    let Some(&first) = input.first() else { return Ok(None) };
    let most = (1 << prefix) - 1;
    let value = u32::from(first) & most;
    if value < most {
        return Ok(Some((value, 1)));
    }
    read_more(value, &input[1..])
}

fn read_more(mut value: u32, input: &[u8]) -> Result<Option<(u32, usize)>, Error> {
    for (i, &byte) in input.iter().take(MORE_BYTES).enumerate() {
        value += u32::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Ok(Some((value, 2 + i)));
        }
    }
    if input.len() < MORE_BYTES {
        return Ok(None);
    }
    Err(lost("an integer of a field block is too large"))
}

/// Appends an integer. The bits of `first` above the prefix are kept.
#[inline]
pub(super) fn write(to: &mut Vec<u8>, value: usize, prefix: u32, first: u8) {
    let most = (1 << prefix) - 1;
    if value < most {
        to.push(first | value as u8);
        return;
    }
    to.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        to.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    to.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::{read, write};

    /// The examples of RFC 7541 C.1.
    #[test]
    fn examples_of_the_rfc() {
        for (value, prefix, bytes) in [(10, 5, &[0x0a][..]), (1337, 5, &[0x1f, 0x9a, 0x0a]), (42, 8, &[0x2a])] {
            let mut written = Vec::new();
            write(&mut written, value, prefix, 0);
            assert_eq!(written, bytes);
            assert_eq!(read(bytes, prefix), Ok(Some((value as u32, bytes.len()))));
        }
    }

    #[test]
    fn every_size_is_read_as_it_was_written() {
        for prefix in 1..=8 {
            for value in (0..300).chain([16_383, 16_384, 1 << 20, (1 << 28) - 1]) {
                let mut written = Vec::new();
                write(&mut written, value, prefix, 0);
                for end in 0..written.len() {
                    assert_eq!(read(&written[..end], prefix), Ok(None));
                }
                assert_eq!(read(&written, prefix), Ok(Some((value as u32, written.len()))));
            }
        }
    }

    #[test]
    fn too_large_integers_are_refused() {
        assert_eq!(
            read(&[0x1f, 0xff, 0xff, 0xff, 0x7f], 5),
            Ok(Some(((1 << 28) - 1 + 31, 5)))
        );
        assert!(read(&[0x1f, 0x80, 0x80, 0x80, 0x80], 5).is_err());
        assert!(read(&[0xff; 20], 7).is_err());
    }
}
