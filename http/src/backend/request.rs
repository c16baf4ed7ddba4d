//! Writes the heads of requests to a backend into a byte vector, and makes their framing.
//!
//! A gateway begins a [`RequestWriter`], adds the fields that may pass, and finishes it with the length of the body. As with
//! [`HeadWriter`](crate::HeadWriter), no caller can write a field that frames the message, and a head that is dropped unfinished
//! leaves no byte.

use super::LineTemplate;
use crate::message::byte::are_tokens;
use crate::message::{FieldLines, HeaderError, Headers, check_name, check_value, is_field, run, write_content_length};
use crate::request::BodyLength;

/// One HTTP/1.1 request head being written at the end of a buffer.
///
/// ```
/// use osier_http::{BodyLength, RequestWriter};
///
/// let mut out = Vec::new();
/// let mut head = RequestWriter::begin(&mut out, "PUT", "/a?b", "example.org")?;
/// head.header("accept", b"*/*")?;
/// assert!(head.header("transfer-encoding", b"chunked").is_err());
/// assert!(head.header("x", b"a\r\nhost: b").is_err());
/// head.finish(BodyLength::Known(5));
/// assert_eq!(out, b"PUT /a?b HTTP/1.1\r\nhost: example.org\r\naccept: */*\r\ncontent-length: 5\r\n\r\n");
/// # Ok::<(), osier_http::HeaderError>(())
/// ```
#[derive(Debug)]
pub struct RequestWriter<'o> {
    out: &'o mut Vec<u8>,
    /// The start of this head in `out`.
    start: usize,
    /// A request with this method and without a body gets `content-length: 0` (RFC 9110 8.6).
    means_content: bool,
    finished: bool,
}

impl<'o> RequestWriter<'o> {
    /// Writes the request line and the Host field, which may be empty.
    ///
    /// # Errors
    /// [`HeaderError::Name`] for a method that is not a token. [`HeaderError::Value`] for a target that is empty or not visible
    /// ASCII, and for a host with a control character.
    pub fn begin(
        out: &'o mut Vec<u8>,
        method: &str,
        target: &str,
        host: &str,
    ) -> Result<RequestWriter<'o>, HeaderError> {
        if method.is_empty() || !are_tokens(method.as_bytes()) {
            return Err(HeaderError::Name);
        }
        if target.is_empty() || run::<0x21>(target.as_bytes()) != target.len() {
            return Err(HeaderError::Value);
        }
        check_value(host.as_bytes())?;
        let start = out.len();
        for part in [method, " ", target, " HTTP/1.1\r\nhost: ", host, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        Ok(RequestWriter {
            out,
            start,
            means_content: matches!(method, "POST" | "PUT" | "PATCH"),
            finished: false,
        })
    }

    /// Adds a field. Several fields may have the same name; their order is kept.
    ///
    /// # Errors
    /// [`HeaderError`] for an invalid name or value, for the fields that frame the message, and for Host. The head continues
    /// without the field.
    pub fn header(&mut self, name: &str, value: &[u8]) -> Result<(), HeaderError> {
        self.joined(name, &[value])
    }

    /// Adds a field whose value is the concatenation of `pieces`.
    ///
    /// # Errors
    /// The errors of [`header`](Self::header).
    pub fn joined(&mut self, name: &str, pieces: &[&[u8]]) -> Result<(), HeaderError> {
        check_name(name)?;
        if name.eq_ignore_ascii_case("host") {
            return Err(HeaderError::Reserved);
        }
        let line = self.out.len();
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
        let value = self.out.len();
        pieces.iter().for_each(|piece| self.out.extend_from_slice(piece));
        // One look at the whole costs less than one at each piece.
        let checked = check_value(&self.out[value..]);
        match checked {
            Ok(()) => self.out.extend_from_slice(b"\r\n"),
            Err(_) => self.out.truncate(line),
        }
        checked
    }

    /// Adds those fields of a received head that `passes` takes, by name and value. They are not checked again. Host and the fields
    /// that frame the message are left out, whatever `passes` says.
    #[inline]
    pub fn pass(&mut self, fields: Headers<'_>, mut passes: impl FnMut(&str, &[u8]) -> bool) {
        fields.write_lines(self.out, |name, value| passes(name, value) && !is_field(name, "host"));
    }

    /// Adds the lines of a template, with `values` in its gaps, over and over until all gaps are filled.
    ///
    /// # Errors
    /// [`HeaderError::Value`] for an invalid value, and for a number of gaps that is no multiple of the number of values. The head
    /// continues without the lines.
    pub fn filled<const PARTS: usize>(
        &mut self,
        template: &LineTemplate<PARTS>,
        values: &[&[u8]],
    ) -> Result<(), HeaderError> {
        let [first, rest @ ..] = &template.0[..] else {
            return Err(HeaderError::Value);
        };
        let is_filled = match values.len() {
            0 => rest.is_empty(),
            count => !rest.is_empty() && rest.len() % count == 0,
        };
        if !is_filled {
            return Err(HeaderError::Value);
        }
        for value in values {
            check_value(value)?;
        }
        self.out.extend_from_slice(first.as_bytes());
        for (value, part) in values.iter().cycle().zip(rest) {
            self.out.extend_from_slice(value);
            self.out.extend_from_slice(part.as_bytes());
        }
        Ok(())
    }

    /// Adds fields that [`FieldLines`] has checked. Host, which they may have, is left out.
    pub fn lines(&mut self, fields: &FieldLines) {
        match fields.first("host") {
            None => self.out.extend_from_slice(fields.as_bytes()),
            Some(_) => {
                let mut others = fields.clone();
                others.remove("host");
                self.out.extend_from_slice(others.as_bytes());
            }
        }
    }

    /// Asks the backend to switch this connection to `protocol`.
    ///
    /// # Errors
    /// [`HeaderError::Value`] if `protocol` is not a valid field value.
    pub fn upgrade(&mut self, protocol: &[u8]) -> Result<(), HeaderError> {
        self.header("upgrade", protocol)?;
        self.out.extend_from_slice(b"connection: upgrade\r\n");
        Ok(())
    }

    /// Adds `TE: trailers`: the sender takes trailers (RFC 9110 10.1.4).
    pub fn take_trailers(&mut self) {
        self.out.extend_from_slice(b"te: trailers\r\nconnection: te\r\n");
    }

    /// Writes the framing field and the empty line. The body must follow in the form of `body`: exactly that many bytes, or
    /// [chunks](crate::ChunkHead).
    pub fn finish(mut self, body: BodyLength) {
        self.finished = true;
        match body {
            BodyLength::None if !self.means_content => {}
            BodyLength::None => write_content_length(self.out, 0),
            BodyLength::Known(length) => write_content_length(self.out, length),
            BodyLength::Chunked => self.out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

impl Drop for RequestWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.out.truncate(self.start);
        }
    }
}
