//! A field section (RFC 9110 5 and 6.5): the fields of one head or one trailer, owned, in two allocations.
//!
//! ```text
//!   text:   ":method" values and names and ASCII values, one after the other      "GEThttps/hostexample.orgaccept*/*"
//!   opaque: values with bytes beyond ASCII; nearly always empty
//!   spans:  for each field, the places of its name and its value
//! ```

use std::fmt;
use std::ops::Range;

/// The fields of a head or of a trailer, in the order received, owned.
///
/// Names are in lower case. A value has no control characters except tabs, and no white space around it. Crumbs of a cookie
/// (RFC 9113 8.2.3) are one field.
///
/// ```
/// let fields = osier_http::h2::FieldSection::new();
/// assert_eq!((fields.len(), fields.first("grpc-status")), (0, None));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FieldSection {
    text: String,
    opaque: Vec<u8>,
    spans: Vec<Span>,
}

/// The place of one field.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span {
    name: Place,
    value: Place,
    /// Whether the value lies in `opaque`.
    is_opaque: bool,
}

/// A range of `text` or `opaque`. A block has a bound far below 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    start: u32,
    end: u32,
}

impl Place {
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl FieldSection {
    /// Makes an empty section, which allocates no memory.
    pub const fn new() -> FieldSection {
        FieldSection {
            text: String::new(),
            opaque: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// All fields, in the order received.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.spans.iter().map(|span| self.cut(span))
    }

    /// The value of the first field with that name, which must be in lower case.
    pub fn first(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|&(known, _)| known == name).map(|(_, value)| value)
    }

    /// The field at `at`.
    pub(crate) fn get(&self, at: usize) -> Option<(&str, &[u8])> {
        self.spans.get(at).map(|span| self.cut(span))
    }

    /// The text at `place`.
    pub(crate) fn text(&self, place: Place) -> &str {
        &self.text[place.range()]
    }

    fn cut(&self, span: &Span) -> (&str, &[u8]) {
        let value = match span.is_opaque {
            false => self.text[span.value.range()].as_bytes(),
            true => &self.opaque[span.value.range()],
        };
        (self.text(span.name), value)
    }

    /// The bytes of memory that the fields take.
    pub(crate) fn memory(&self) -> usize {
        self.text.capacity() + self.opaque.capacity() + self.spans.capacity() * size_of::<Span>()
    }

    /// Makes room for a usual head.
    pub(crate) fn reserve(&mut self, bytes: usize, fields: usize) {
        self.text.reserve(bytes);
        self.spans.reserve(fields);
    }

    /// Appends text that belongs to no field: the value of a pseudo-field.
    pub(crate) fn push_text(&mut self, text: &str) -> Place {
        let start = self.text.len() as u32;
        self.text.push_str(text);
        let end = self.text.len() as u32;
        Place { start, end }
    }

    /// Appends a field. The caller has checked the name and the value.
    pub(crate) fn push(&mut self, name: &str, value: &[u8]) {
        let name = self.push_text(name);
        let (value, is_opaque) = self.push_value(value);
        self.spans.push(Span { name, value, is_opaque });
    }

    /// Puts a field whose value is `value` before all others.
    pub(crate) fn insert_first(&mut self, name: &str, value: Place) {
        let name = self.push_text(name);
        let span = Span {
            name,
            value,
            is_opaque: false,
        };
        self.spans.insert(0, span);
    }

    fn push_value(&mut self, value: &[u8]) -> (Place, bool) {
        match std::str::from_utf8(value) {
            Ok(value) => (self.push_text(value), false),
            Err(_) => {
                let start = self.opaque.len() as u32;
                self.opaque.extend_from_slice(value);
                let end = self.opaque.len() as u32;
                (Place { start, end }, true)
            }
        }
    }

    /// Joins all fields with that name into the first one.
    pub(crate) fn join(&mut self, name: &str, separator: &[u8]) {
        let mut values = self.iter().filter(|&(known, _)| known == name).map(|(_, value)| value);
        let Some(mut joined) = values.next().map(<[u8]>::to_vec) else {
            return;
        };
        for value in values {
            joined.extend_from_slice(separator);
            joined.extend_from_slice(value);
        }
        let (value, is_opaque) = self.push_value(&joined);
        let text = &self.text;
        let mut is_first = true;
        self.spans.retain_mut(|span| {
            if text[span.name.range()] != *name {
                return true;
            }
            (span.value, span.is_opaque) = (value, is_opaque);
            std::mem::take(&mut is_first)
        });
    }
}

impl fmt::Debug for FieldSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Field values may be secrets: names only.
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_as_they_were_added() {
        let mut section = FieldSection::new();
        let host = section.push_text("example.org");
        section.push("cookie", b"a=1");
        section.push("x", b"\xff\xfe");
        section.push("cookie", b"b=2");
        section.push("y", "é".as_bytes());
        section.push("cookie", b"c=\xff");
        section.insert_first("host", host);
        assert_eq!(section.first("x"), Some(&b"\xff\xfe"[..]));
        section.join("cookie", b"; ");
        let fields: Vec<_> = section.iter().collect();
        let expected: [(&str, &[u8]); 4] = [
            ("host", b"example.org"),
            ("cookie", b"a=1; b=2; c=\xff"),
            ("x", b"\xff\xfe"),
            ("y", "é".as_bytes()),
        ];
        assert_eq!(fields, expected);
        assert_eq!(section.get(3), Some(expected[3]));
        assert_eq!(section.get(4), None);
    }
}
