//! Header fields as ready lines: checked once, when they are added, and then written as often as one likes.
//!
//! A framework keeps a response's fields like this until it knows the response's length; [`HeadWriter::lines`] appends them
//! in one piece. What framing is made of cannot get in, as with [`HeadWriter::header`].
//!
//! [`HeadWriter::lines`]: crate::HeadWriter::lines
//! [`HeadWriter::header`]: crate::HeadWriter::header

use std::fmt;

use crate::HeaderError;
use crate::response::{UPGRADE_OPTION, check_name, check_value};

/// Fields in the form in which they are sent. Empty ones hold no memory.
///
/// ```
/// use osier_http::{FieldLines, HeaderError};
///
/// let mut fields = FieldLines::new();
/// fields.push("etag", b"\"a\"")?;
/// assert_eq!(fields.push("x", b"a\r\nset-cookie: b"), Err(HeaderError::Value));
/// assert_eq!(fields.push("content-length", b"5"), Err(HeaderError::Reserved));
/// assert_eq!(fields.as_bytes(), b"etag: \"a\"\r\n");
/// assert_eq!(fields.first("ETag"), Some(&b"\"a\""[..]));
/// # Ok::<(), HeaderError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FieldLines(Vec<u8>);

impl FieldLines {
    /// No fields.
    pub const fn new() -> FieldLines {
        FieldLines(Vec::new())
    }

    /// Makes room for lines of so many bytes in all: a name, a value and four bytes more each.
    pub fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    /// Adds a field. Fields of one name are all kept, in order.
    ///
    /// # Errors
    /// [`HeaderError`] for what may not be written; nothing is added.
    pub fn push(&mut self, name: &str, value: &[u8]) -> Result<(), HeaderError> {
        check_name(name)?;
        check_value(value)?;
        self.0.reserve(name.len() + value.len() + 4);
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b": ");
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Names the protocols of a 426 response, with the connection option that belongs to the field (RFC 9110 7.8, 15.5.22).
    ///
    /// # Errors
    /// [`HeaderError::Value`] for what may not be written; nothing is added.
    pub fn upgrade(&mut self, protocols: &[u8]) -> Result<(), HeaderError> {
        self.push("upgrade", protocols)?;
        self.0.extend_from_slice(UPGRADE_OPTION);
        Ok(())
    }

    /// Takes out every field of that name, which is compared without regard to case.
    pub fn remove(&mut self, name: &str) {
        if self.first(name).is_some() {
            let kept = self.iter().filter(|(known, _)| !known.eq_ignore_ascii_case(name));
            let kept = kept.flat_map(|(name, value)| [name.as_bytes(), b": ", value, b"\r\n"]);
            self.0 = kept.collect::<Vec<_>>().concat();
        }
    }

    /// The first value of that name, which is compared without regard to case.
    pub fn first(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Every field in the order added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        // A name has no colon, a value no line break: `push` has checked both.
        self.0.split(|&byte| byte == b'\n').filter_map(|line| {
            let (name, value) = line.strip_suffix(b"\r")?.split_at(memchr::memchr(b':', line)?);
            Some((str::from_utf8(name).ok()?, &value[2..]))
        })
    }

    /// Whether there is no field.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lines, each with its CRLF.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for FieldLines {
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
        let mut fields = FieldLines::new();
        assert!(fields.is_empty() && fields.iter().next().is_none());
        let added: [(&str, &[u8]); 4] = [("A", b"1: 2"), ("b", b""), ("a", b"\xff\t"), ("c", b"x")];
        for (name, value) in added {
            fields.push(name, value).unwrap();
        }
        assert_eq!(fields.iter().collect::<Vec<_>>(), added);
        assert_eq!(fields.first("a"), Some(&b"1: 2"[..]));
        fields.remove("a");
        assert_eq!(fields.as_bytes(), b"b: \r\nc: x\r\n");
        fields.remove("none");
        assert_eq!(fields.as_bytes(), b"b: \r\nc: x\r\n");
    }

    #[test]
    fn an_upgrade_has_its_connection_option() {
        let mut fields = FieldLines::new();
        assert_eq!(fields.upgrade(b"a\r\nb"), Err(HeaderError::Value));
        assert!(fields.is_empty());
        fields.upgrade(b"websocket").unwrap();
        assert_eq!(fields.as_bytes(), b"upgrade: websocket\r\nconnection: upgrade\r\n");
    }

    #[test]
    fn what_may_not_be_written_leaves_no_byte() {
        let mut fields = FieldLines::new();
        let refused = [
            ("", "a"),
            ("a b", "a"),
            ("a:", "a"),
            ("a", "a\rb"),
            ("a", "a\nb"),
            ("a", "\0"),
            ("Connection", "close"),
        ];
        for (name, value) in refused {
            assert!(fields.push(name, value.as_bytes()).is_err(), "{name:?}: {value:?}");
        }
        assert!(fields.is_empty());
    }
}
