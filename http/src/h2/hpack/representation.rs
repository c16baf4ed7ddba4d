//! One instruction of a field block (RFC 7541 6), found without decoding its strings.
//!
//! ```text
//!   1 index                                an indexed field
//!   01 name value                          a literal field that enters the table
//!   0000 name value, 0001 name value       a literal field that does not; 0001: and must not on any later hop
//!   001 size                               a new largest size of the table
//!
//!   name:  an index, or 0 and a string     string:  H, length (7), bytes; H: the bytes are a Huffman code
//! ```

use super::{integer, lost};
use crate::h2::Error;

#[derive(Clone, Copy, Debug)]
pub(super) enum Representation<'i> {
    Indexed(usize),
    Literal {
        name: Name<'i>,
        value: Text<'i>,
        /// The field enters the dynamic table.
        indexed: bool,
    },
    MaxSize(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Name<'i> {
    Index(usize),
    Text(Text<'i>),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'i> {
    pub bytes: &'i [u8],
    pub huffman: bool,
}

/// The result of a search.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'i> {
    /// An instruction, and the bytes that it takes.
    Whole(Representation<'i>, usize),
    /// The instruction needs at least so many bytes more.
    Missing(usize),
    /// A string is longer than the caller wants to hold.
    Long(LongText),
}

/// A string that is too long to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongText {
    /// The bytes of the instruction before the string.
    pub before: usize,
    pub length: usize,
    pub is_name: bool,
    pub indexed: bool,
}

/// Finds the instruction at the beginning of a non-empty input. `longest` is the most bytes that a string may have.
#[inline]
pub(super) fn find(input: &[u8], longest: usize) -> Result<Found<'_>, Error> {
    let first = input[0];
    let (prefix, indexed) = match first {
        0x80.. => {
            return Ok(integer::read(input, 7)?.map_or(Found::Missing(1), |(index, used)| {
                Found::Whole(Representation::Indexed(index as usize), used)
            }));
        }
        0x40..0x80 => (6, true),
        0x20..0x40 => {
            return Ok(integer::read(input, 5)?.map_or(Found::Missing(1), |(size, used)| {
                Found::Whole(Representation::MaxSize(size as usize), used)
            }));
        }
        _ => (4, false),
    };
    let Some((index, mut at)) = integer::read(input, prefix)? else {
        return Ok(Found::Missing(1));
    };
    let long = |before, length, is_name| {
        Ok(Found::Long(LongText {
            before,
            length,
            is_name,
            indexed,
        }))
    };
    let name = match index {
        0 => match text(input, at, longest)? {
            FoundText::Whole(text, end) => {
                at = end;
                Name::Text(text)
            }
            FoundText::Missing(missing) => return Ok(Found::Missing(missing)),
            FoundText::Long(before, length) => return long(before, length, true),
        },
        _ => Name::Index(index as usize),
    };
    match text(input, at, longest)? {
        FoundText::Whole(value, end) => Ok(Found::Whole(Representation::Literal { name, value, indexed }, end)),
        FoundText::Missing(missing) => Ok(Found::Missing(missing)),
        FoundText::Long(before, length) => long(before, length, false),
    }
}

enum FoundText<'i> {
    /// The string and the place after it.
    Whole(Text<'i>, usize),
    /// The missing bytes.
    Missing(usize),
    /// The place of the string and its length.
    Long(usize, usize),
}

#[inline]
fn text(input: &[u8], at: usize, longest: usize) -> Result<FoundText<'_>, Error> {
    let input_from = &input[at..];
    let Some((length, used)) = integer::read(input_from, 7)? else {
        return Ok(FoundText::Missing(1));
    };
    let length = length as usize;
    if length > longest {
        return Ok(FoundText::Long(at + used, length));
    }
    let rest = &input_from[used..];
    Ok(match rest.get(..length) {
        Some(bytes) => FoundText::Whole(
            Text {
                bytes,
                huffman: input_from[0] & 0x80 != 0,
            },
            at + used + length,
        ),
        None => FoundText::Missing(length - rest.len()),
    })
}

/// The error for an index that names no entry.
pub(super) const NO_ENTRY: Error = lost("an index of a field block names no entry");
