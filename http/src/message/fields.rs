//! Header fields as complete lines, checked once when they are added.
//!
//! A framework keeps a response's fields in this form until it knows the length of the body. [`HeadWriter::lines`] then appends
//! them at once. A field that frames the message is refused, as in [`HeadWriter::header`].
//!
//! [`HeadWriter::lines`]: crate::HeadWriter::lines
//! [`HeadWriter::header`]: crate::HeadWriter::header

use std::fmt;

use super::byte::{are_tokens, is_value};
use super::{is_field, printable};

/// Header fields in the form in which they are sent. An empty list allocates no memory.
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
pub struct FieldLines(pub(super) Vec<u8>);

impl FieldLines {
    /// Makes an empty list.
    pub const fn new() -> FieldLines {
        FieldLines(Vec::new())
    }

    /// Reserves `bytes` bytes. A line takes the bytes of its name and its value, and four more.
    pub fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    /// Adds a field. Several fields may have the same name; their order is kept.
    ///
    /// # Errors
    /// [`HeaderError`] for an invalid name or value and for the fields that frame a message. Nothing is added then.
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

    /// Adds all fields of `others`, after those that are here.
    pub fn extend(&mut self, others: &FieldLines) {
        self.0.extend_from_slice(&others.0);
    }

    /// Adds the Upgrade field of a 426 response and its connection option (RFC 9110 7.8, 15.5.22).
    ///
    /// # Errors
    /// [`HeaderError::Value`] if `protocols` is not a valid field value. Nothing is added then.
    pub fn upgrade(&mut self, protocols: &[u8]) -> Result<(), HeaderError> {
        self.push("upgrade", protocols)?;
        self.0.extend_from_slice(UPGRADE_OPTION);
        Ok(())
    }

    /// Removes every field with that name. Names are compared without regard to case.
    pub fn remove(&mut self, name: &str) {
        if self.first(name).is_some() {
            let kept = self.iter().filter(|(known, _)| !known.eq_ignore_ascii_case(name));
            let kept = kept.flat_map(|(name, value)| [name.as_bytes(), b": ", value, b"\r\n"]);
            self.0 = kept.collect::<Vec<_>>().concat();
        }
    }

    /// The value of the first field with that name. Names are compared without regard to case.
    pub fn first(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// All fields, in the order added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        // A name has no colon and a value has no line break: `push` has checked both.
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

/// Why a field or a status is refused. Nothing has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The name is not a token.
    Name,
    /// The value has CR, LF, NUL or another control character: an attempt at response splitting, or a bug.
    Value,
    /// The field is written by the codec: Content-Length, Transfer-Encoding, Connection, Keep-Alive, and Host in a request.
    Reserved,
    /// The status does not have three digits.
    Status,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeaderError::Name => "a header name must be a non-empty token (RFC 9110 5.6.2)",
            HeaderError::Value => "a header value must hold no control character such as CR, LF or NUL",
            HeaderError::Reserved => "this header frames the message and is written by the server itself",
            HeaderError::Status => "a status code must lie between 100 and 999",
        })
    }
}

impl std::error::Error for HeaderError {}

/// The connection option of an Upgrade field. `close` may follow in a second Connection field, which means the same as one list
/// (RFC 9110 5.3).
pub(crate) const UPGRADE_OPTION: &[u8] = b"connection: upgrade\r\n";

/// Checks that the name is a token and not that of a field that frames the message. The length is compared first.
#[inline]
pub(crate) fn check_name(name: &str) -> Result<(), HeaderError> {
    if name.is_empty() || !are_tokens(name.as_bytes()) {
        return Err(HeaderError::Name);
    }
    if is_framing(name) {
        Err(HeaderError::Reserved)
    } else {
        Ok(())
    }
}

/// Whether the name, which is a token, is that of a field that frames the message.
#[inline]
pub(crate) fn is_framing(name: &str) -> bool {
    match name.len() {
        10 => is_field(name, "connection") || is_field(name, "keep-alive"),
        14 => is_field(name, "content-length"),
        17 => is_field(name, "transfer-encoding"),
        _ => false,
    }
}

/// Whether a request writer refuses the name. For constants, where names cannot be compared as above.
pub(crate) const fn is_reserved_in_requests(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"host")
        || name.eq_ignore_ascii_case(b"connection")
        || name.eq_ignore_ascii_case(b"keep-alive")
        || name.eq_ignore_ascii_case(b"content-length")
        || name.eq_ignore_ascii_case(b"transfer-encoding")
}

#[inline]
pub(crate) fn check_value(value: &[u8]) -> Result<(), HeaderError> {
    // Nearly all values are visible ASCII, which is looked at in words.
    let rest = &value[printable(value)..];
    if rest.iter().all(|&byte| is_value(byte)) {
        Ok(())
    } else {
        Err(HeaderError::Value)
    }
}

/// The beginning of a Content-Length field.
pub(crate) const CONTENT_LENGTH: &[u8] = b"content-length: ";

#[inline]
pub(crate) fn write_content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(CONTENT_LENGTH);
    write_length(out, length);
}

/// Appends the value of a Content-Length field, and the end of its line.
#[inline]
pub(crate) fn write_length(out: &mut Vec<u8>, length: u64) {
    let digit = |power: u64| b'0' + (length / power % 10) as u8;
    // Few digits are written straight to their place: copying bytes that were just written one by one stalls on them.
    match length {
        0..=9 => out.extend_from_slice(&[digit(1), b'\r', b'\n']),
        10..=99 => out.extend_from_slice(&[digit(10), digit(1), b'\r', b'\n']),
        100..=999 => out.extend_from_slice(&[digit(100), digit(10), digit(1), b'\r', b'\n']),
        _ => write_long(out, length),
    }
}

#[inline(never)]
fn write_long(out: &mut Vec<u8>, length: u64) {
    let mut line = *b"....................\r\n";
    let mut at = 20;
    let mut rest = length;
    while rest > 0 {
        at -= 1;
        line[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.extend_from_slice(&line[at..]);
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
