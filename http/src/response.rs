//! Writes the heads of responses into a byte vector: the status line, checked fields, and the framing.
//!
//! A server begins a [`HeadWriter`] on its output buffer, adds fields, and finishes it with the length of the body. The returned
//! [`Sent`] has the form of the body and whether the connection is kept. Content-Length, Transfer-Encoding and Connection never
//! come from a handler: [`HeadWriter::header`] refuses them, so no handler can make two parsers disagree about the end of its
//! response. A head that is dropped unfinished leaves no byte.

use std::fmt;

use crate::message::{
    Asked, CONTENT_LENGTH, Exchange, FieldLines, HeaderError, Reject, UPGRADE_OPTION, Version, check_name, check_value,
    is_bodiless, write_content_length, write_length, write_status_line,
};

/// The length of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// Exactly that many bytes.
    Known(u64),
    /// Unknown until the end of the body.
    Stream,
}

/// The form in which the body must follow the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// No body byte may follow.
    None,
    /// Exactly that many bytes must follow. Close the connection if fewer are available.
    Plain(u64),
    /// Chunks, ended by [`LAST_CHUNK`](crate::LAST_CHUNK).
    Chunked,
    /// The bytes themselves. Closing the connection ends them (a stream to an HTTP/1.0 client), or the end of the HTTP/2 stream.
    UntilClose,
    /// The connection is no longer HTTP (101, or 2xx to CONNECT).
    Tunnel,
}

/// The result of a finished head: what must follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The form in which the body must follow.
    pub transfer: Transfer,
    /// Whether the connection serves another request after the body.
    pub keep_alive: bool,
}

/// The Date field as a complete line, which a server makes once a second.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DateLine([u8; 37]);

impl DateLine {
    /// Makes the line from a date in the IMF-fixdate format, `Sun, 06 Nov 1994 08:49:37 GMT`.
    ///
    /// # Errors
    /// [`HeaderError::Value`] if `date` is not a valid field value.
    pub fn new(date: &[u8; 29]) -> Result<DateLine, HeaderError> {
        check_value(date)?;
        let mut line = *b"date: -----------------------------\r\n";
        line[6..35].copy_from_slice(date);
        Ok(DateLine(line))
    }

    /// The line's bytes with the CRLF.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for DateLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.0.trim_ascii_end()))
    }
}

/// The head of a 200 as bytes, for responses that differ in nothing but the length of the body. It keeps the last length.
///
/// ```
/// use osier_http::{DateLine, Exchange, FieldLines, HeadTemplate, Method, Transfer, Version};
///
/// let mut fields = FieldLines::new();
/// fields.push("content-type", b"text/plain")?;
/// let mut template = HeadTemplate::new(&fields, &DateLine::new(b"Sun, 06 Nov 1994 08:49:37 GMT")?);
/// let mut out = Vec::new();
/// let sent = template.write(&mut out, Exchange::new(Method::Get, Version::Http11, true), 5).unwrap();
/// assert_eq!((sent.transfer, sent.keep_alive), (Transfer::Plain(5), true));
/// assert!(out.ends_with(b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: 5\r\n\r\n"));
/// assert_eq!(template.write(&mut out, Exchange::new(Method::Head, Version::Http11, true), 5), None);
/// # Ok::<(), osier_http::HeaderError>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeadTemplate {
    bytes: Vec<u8>,
    /// Where the length begins in `bytes`.
    end: usize,
    /// The length in `bytes`.
    length: u64,
}

impl HeadTemplate {
    /// Makes a template with these fields and this date.
    pub fn new(fields: &FieldLines, date: &DateLine) -> HeadTemplate {
        let mut bytes = Vec::new();
        write_status_line(&mut bytes, 200);
        bytes.extend_from_slice(fields.as_bytes());
        bytes.extend_from_slice(date.as_bytes());
        bytes.extend_from_slice(CONTENT_LENGTH);
        let end = bytes.len();
        let mut template = HeadTemplate { bytes, end, length: 0 };
        template.set_length(0);
        template
    }

    #[inline]
    fn set_length(&mut self, length: u64) {
        self.bytes.truncate(self.end);
        write_length(&mut self.bytes, length);
        self.bytes.extend_from_slice(b"\r\n");
        self.length = length;
    }

    /// Appends the head of a response with a body of `length` bytes, as a [`HeadWriter`] does. Returns `None`, and appends
    /// nothing, for an exchange that needs another head: HEAD, CONNECT, another version than HTTP/1.1, or a connection that closes.
    #[inline]
    pub fn write(&mut self, out: &mut Vec<u8>, exchange: Exchange, length: u64) -> Option<Sent> {
        const USUAL: Exchange = Exchange {
            asked: Asked::Usual,
            version: Version::Http11,
            keep_alive: true,
        };
        if exchange != USUAL {
            return None;
        }
        if length != self.length {
            self.set_length(length);
        }
        out.extend_from_slice(&self.bytes);
        Some(Sent {
            transfer: Transfer::Plain(length),
            keep_alive: true,
        })
    }
}

/// The interim response `100 Continue`, for a client that waits for it before it sends its body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// One response head being written at the end of a buffer.
///
/// ```
/// use osier_http::{Exchange, HeadWriter, Method, ResponseBody, Transfer, Version};
///
/// let exchange = Exchange::new(Method::Get, Version::Http11, true);
/// let mut out = Vec::new();
/// let mut head = HeadWriter::begin(&mut out, 200, exchange)?;
/// head.header("content-type", b"text/plain")?;
/// assert!(head.header("x-name", b"a\r\nset-cookie: b").is_err());
/// let sent = head.finish(ResponseBody::Known(5));
/// assert_eq!(sent.transfer, Transfer::Plain(5));
/// out.extend_from_slice(b"hello");
/// assert_eq!(out, b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello");
/// # Ok::<(), osier_http::HeaderError>(())
/// ```
#[derive(Debug)]
pub struct HeadWriter<'o> {
    out: &'o mut Vec<u8>,
    /// The start of this head in `out`; the bytes before it belong to earlier responses.
    start: usize,
    status: u16,
    exchange: Exchange,
    finished: bool,
}

impl<'o> HeadWriter<'o> {
    /// Writes the status line.
    ///
    /// # Errors
    /// [`HeaderError::Status`] unless the status has three digits.
    #[inline]
    pub fn begin(out: &'o mut Vec<u8>, status: u16, exchange: Exchange) -> Result<HeadWriter<'o>, HeaderError> {
        if !(100..=999).contains(&status) {
            return Err(HeaderError::Status);
        }
        let start = out.len();
        write_status_line(out, status);
        Ok(HeadWriter {
            out,
            start,
            status,
            exchange,
            finished: false,
        })
    }

    /// Adds a field. Several fields may have the same name; their order is kept.
    ///
    /// # Errors
    /// [`HeaderError`] for an invalid name or value and for the fields that frame the message. The head continues without the
    /// field.
    #[inline]
    pub fn header(&mut self, name: &str, value: &[u8]) -> Result<(), HeaderError> {
        check_name(name)?;
        check_value(value)?;
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Adds fields that [`FieldLines`] has checked.
    #[inline]
    pub fn lines(&mut self, fields: &FieldLines) {
        if !fields.is_empty() {
            self.out.extend_from_slice(fields.as_bytes());
        }
    }

    /// Adds the Date field.
    #[inline]
    pub fn date(&mut self, date: &DateLine) {
        self.out.extend_from_slice(&date.0);
    }

    /// Closes the connection after this response.
    pub fn close(&mut self) {
        self.exchange.keep_alive = false;
    }

    /// Adds the fields of a 101 response that name its protocol. For a 426 use [`FieldLines::upgrade`].
    ///
    /// # Errors
    /// [`HeaderError::Value`] if `protocol` is not a valid field value.
    pub fn upgrade(&mut self, protocol: &[u8]) -> Result<(), HeaderError> {
        self.header("upgrade", protocol)?;
        self.out.extend_from_slice(UPGRADE_OPTION);
        Ok(())
    }

    /// Writes the framing fields and the empty line, and returns the form in which the body must follow.
    ///
    /// After an interim response (1xx other than 101) the final response must still be written.
    #[inline]
    pub fn finish(mut self, body: ResponseBody) -> Sent {
        self.finished = true;
        let Exchange {
            asked,
            version,
            mut keep_alive,
        } = self.exchange;
        let transfer = if self.exchange.switches(self.status) {
            keep_alive = false;
            Transfer::Tunnel
        } else if is_bodiless(self.status) {
            Transfer::None
        } else {
            match body {
                ResponseBody::Known(length) => {
                    write_content_length(self.out, length);
                    if asked == Asked::Head {
                        Transfer::None
                    } else {
                        Transfer::Plain(length)
                    }
                }
                ResponseBody::Stream if asked == Asked::Head => Transfer::None,
                ResponseBody::Stream if version == Version::Http11 => {
                    self.out.extend_from_slice(b"transfer-encoding: chunked\r\n");
                    Transfer::Chunked
                }
                // The last DATA frame ends the body.
                ResponseBody::Stream if version == Version::Http2 => Transfer::UntilClose,
                ResponseBody::Stream => {
                    keep_alive = false;
                    Transfer::UntilClose
                }
            }
        };
        // RFC 9112 9.3: HTTP/1.1 keeps the connection unless `close` is sent, HTTP/1.0 closes it unless `keep-alive` is sent.
        // A tunnel, an interim response and HTTP/2 send neither.
        let interim = self.status < 200;
        match (version, keep_alive) {
            (Version::Http11, true) | (Version::Http2, _) => {}
            _ if interim || transfer == Transfer::Tunnel => {}
            (Version::Http10, true) => self.out.extend_from_slice(b"connection: keep-alive\r\n"),
            (_, false) => self.out.extend_from_slice(b"connection: close\r\n"),
        }
        self.out.extend_from_slice(b"\r\n");
        Sent { transfer, keep_alive }
    }
}

impl Drop for HeadWriter<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.finished {
            self.out.truncate(self.start);
        }
    }
}

/// Appends the whole response to a refused request: its status, `connection: close`, and one line of text, unless the request was a HEAD.
/// Returns the number of bytes of that line. [`Exchange::rejected`] is the exchange of a request without a parsed head.
pub fn write_reject(out: &mut Vec<u8>, reject: Reject, exchange: Exchange, date: &DateLine) -> usize {
    let length = reject.reason().len() + 1;
    write_status_line(out, reject.status());
    date_and_type(out, date);
    write_content_length(out, length as u64);
    out.extend_from_slice(b"connection: close\r\n\r\n");
    if !exchange.has_body(reject.status()) {
        return 0;
    }
    out.extend_from_slice(reject.reason().as_bytes());
    out.push(b'\n');
    length
}

fn date_and_type(out: &mut Vec<u8>, date: &DateLine) {
    out.extend_from_slice(date.as_bytes());
    out.extend_from_slice(b"content-type: text/plain; charset=utf-8\r\n");
}
