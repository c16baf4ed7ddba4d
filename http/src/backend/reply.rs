//! Finds, parses and checks the head of a backend's response, and decides the framing of its body.
//!
//! The parser is as strict as `request/head.rs`. It refuses what two parsers could read in two ways; the gateway then answers 502
//! and closes the backend's connection. The steps of a gateway are
//!
//! ```text
//!   bytes ─▶ ReplyScanner::scan ─▶ Reply::parse ─▶ BodyDecoder::of_reply ─▶ decode … ─▶ done: kept if keep_alive
//!     ▲                               │                                       └─ the connection ends: at_end
//!     └───────────────────────────────┘ interim (1xx but 101): the final head is still to come
//! ```
//!
//! A usual head takes a shorter way to the same result, without a scanner: `outline.rs`.
//!
//! The backend's framing is never passed on: [`HeadWriter`](crate::HeadWriter) makes that of the client's response.

use std::fmt;

use memchr::memchr;

use super::ReplyOutline;
use crate::message::{Fields, Headers, Limits, Method, Reject, Slots, Version, is_field_name};
use crate::request::framing::{self, CLOSE, KEEP_ALIVE, OTHER, UPGRADE};

/// The incremental search for the end of one response head.
///
/// ```
/// use osier_http::{Limits, Reject, ReplyScanner};
///
/// let limits = Limits::default();
/// let mut scanner = ReplyScanner::new();
/// assert_eq!(scanner.scan(b"HTTP/1.1 200 OK\r\nA: b\r", &limits), Ok(None));
/// assert_eq!(scanner.scan(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody", &limits), Ok(Some(25)));
/// assert_eq!(ReplyScanner::new().scan(b"HTTP/1.1 200 OK\n", &limits), Err(Reject::BareLf));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReplyScanner {
    /// The start of the line whose end has not arrived.
    line: usize,
    /// All line feeds before this place have been checked.
    searched: usize,
}

impl ReplyScanner {
    /// Makes a scanner at the beginning of a head.
    pub const fn new() -> ReplyScanner {
        ReplyScanner { line: 0, searched: 0 }
    }

    /// Searches the new bytes of `buf`, which begins with the head's first byte and may extend beyond the head.
    ///
    /// Returns the length of the head with its empty line, or `None` if its end has not arrived.
    ///
    /// # Errors
    /// A line feed without its carriage return, a beginning that is not HTTP, and a head beyond [`Limits::head_bytes`].
    /// [`Reply::parse`] checks the rest.
    pub fn scan(&mut self, buf: &[u8], limits: &Limits) -> Result<Option<usize>, Reject> {
        let protocol = b"HTTP/1.";
        let seen = buf.len().min(protocol.len());
        if buf[..seen] != protocol[..seen] {
            return Err(Reject::StatusLine);
        }
        let head = &buf[..buf.len().min(limits.head_bytes)];
        while let Some(found) = memchr(b'\n', head.get(self.searched..).unwrap_or_default()) {
            let lf = self.searched + found;
            if lf == 0 || head[lf - 1] != b'\r' {
                return Err(Reject::BareLf);
            }
            if lf - 1 == self.line {
                return Ok(Some(lf + 1));
            }
            (self.line, self.searched) = (lf + 1, lf + 1);
        }
        self.searched = head.len();
        if buf.len() >= limits.head_bytes {
            return Err(Reject::HeadTooLarge);
        }
        Ok(None)
    }
}

/// The framing of the bytes after a response's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyLength {
    /// No body: the response to HEAD, and 1xx, 204 and 304.
    None,
    /// Content-Length, which may be 0.
    Known(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// All bytes up to the end of the connection. A broken connection looks the same.
    UntilClose,
}

/// A parsed and checked response head, borrowed from the gateway's buffer.
///
/// ```
/// use osier_http::{Limits, Method, Reply, ReplyLength, Slots};
///
/// let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close, x-hop\r\nX-Hop: 1\r\n\r\n";
/// let mut slots: Slots = Slots::new();
/// let reply = Reply::parse(bytes, &mut slots, &Limits::default(), Method::Get)?;
/// assert_eq!((reply.status(), reply.body(), reply.keep_alive()), (200, ReplyLength::Known(5), false));
/// assert!(reply.connection_names("X-Hop"));
/// # Ok::<(), osier_http::Reject>(())
/// ```
#[derive(Clone)]
pub struct Reply<'a> {
    status: u16,
    version: Version,
    body: ReplyLength,
    declared: Option<u64>,
    keep_alive: bool,
    upgrade: Option<&'a [u8]>,
    /// The connection options, as bits of a set.
    options: u8,
    fields: Headers<'a>,
}

impl<'a> Reply<'a> {
    /// Parses one whole head, of the response to a request with the method `asked`.
    ///
    /// `bytes` must end where [`ReplyScanner::scan`] found the end.
    ///
    /// # Errors
    /// The first [`Reject`]. Answer 502 to the client, whatever its status is, and close the backend's connection.
    pub fn parse<'b: 'a, const N: usize>(
        bytes: &'b [u8],
        slots: &'a mut Slots<'b, N>,
        limits: &Limits,
        asked: Method<'_>,
    ) -> Result<Reply<'a>, Reject> {
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let parsed = config.parse_response_with_uninit_headers(&mut response, bytes, slots.room(limits.header_count));
        match parsed {
            Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
            Ok(_) => return Err(Reject::StatusLine),
            Err(error) => return Err(reject_of(error)),
        }
        let (Some(status), Some(version)) = (response.code, response.version) else {
            return Err(Reject::StatusLine);
        };
        if !(100..=999).contains(&status) {
            return Err(Reject::StatusLine);
        }
        let fields: &'a [httparse::Header<'a>] = response.headers;
        let version = if version == 1 { Version::Http11 } else { Version::Http10 };
        Reply::of(status, version, asked, Headers(Fields::Parsed(fields)))
    }

    /// Makes a reply from the bytes of a successful [`ReplyOutline::find`], cut to the length that it has returned.
    ///
    /// # Errors
    /// The errors of [`Reply::parse`].
    ///
    /// # Panics
    /// Panics for bytes that are not ASCII or too short. Other bytes than those of the outline give a wrong reply.
    pub fn outlined(bytes: &'a [u8], outline: &'a ReplyOutline, asked: Method<'_>) -> Result<Reply<'a>, Reject> {
        let head = std::str::from_utf8(bytes).expect("an outline takes nothing but ASCII");
        let fields = Fields::Outlined(head, outline.fields.as_slice());
        Reply::of(outline.status, outline.version, asked, Headers(fields))
    }

    /// Makes a reply from its parts.
    #[inline]
    fn of(status: u16, version: Version, asked: Method<'_>, fields: Headers<'a>) -> Result<Reply<'a>, Reject> {
        Seen::of(fields.clone())?.verdict(status, version, asked, fields)
    }

    /// Makes a reply without framing of its own, which `fields` do not have.
    #[cfg(feature = "h2")]
    pub(crate) fn unframed(status: u16, body: ReplyLength, declared: Option<u64>, fields: Headers<'a>) -> Reply<'a> {
        Reply {
            status,
            version: Version::Http2,
            body,
            declared,
            keep_alive: true,
            upgrade: None,
            options: 0,
            fields,
        }
    }

    /// The status, a number of three digits.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether this is an interim response, so another head follows. 101 is final: the bytes after it are not HTTP.
    pub fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The framing of the bytes after the head.
    pub fn body(&self) -> ReplyLength {
        self.body
    }

    /// The value of Content-Length, also where no body follows: a response to HEAD has the length of the one to GET.
    pub fn content_length(&self) -> Option<u64> {
        self.declared
    }

    /// Whether the connection can be used for another request once the body has been read.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// The Upgrade field of a 101 with `Connection: upgrade`.
    pub fn upgrade(&self) -> Option<&'a [u8]> {
        self.upgrade
    }

    /// The value of the first field with that name. Names are compared without regard to case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        let mut fields = self.headers();
        fields
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// All fields, in the order received.
    pub fn headers(&self) -> Headers<'a> {
        self.fields.clone()
    }

    /// Whether a Connection field lists `name`, which makes that field hop-by-hop (RFC 9110 7.6.1).
    #[inline]
    pub fn connection_names(&self, name: &str) -> bool {
        framing::lists(self.options, self.headers(), name)
    }

    /// Whether a Connection field lists a name other than `close`, `keep-alive` and `upgrade`.
    #[inline]
    pub fn connection_names_others(&self) -> bool {
        self.options & OTHER != 0
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Field values may be secrets: names only.
        f.debug_struct("Reply")
            .field("status", &self.status)
            .field("version", &self.version)
            .field("body", &self.body)
            .field("keep_alive", &self.keep_alive)
            .field("names", &self.headers().map(|(name, _)| name).collect::<Vec<_>>())
            .finish()
    }
}

/// The result of one pass over the fields.
#[derive(Default)]
struct Seen<'a> {
    length: Option<u64>,
    chunked: bool,
    options: u8,
    upgrade: Option<&'a [u8]>,
}

impl<'a> Seen<'a> {
    #[inline]
    fn of(mut fields: Headers<'a>) -> Result<Seen<'a>, Reject> {
        let mut seen = Seen::default();
        while let Some((name, value)) = fields.next_in_bytes() {
            let is = |known: &'static str| is_field_name(name, known.as_bytes());
            match name.len() {
                7 if is("upgrade") => seen.upgrade = Some(value),
                10 if is("connection") => seen.options |= framing::connection(value)?,
                14 if is("content-length") => {
                    seen.length = Some(framing::content_length(value, seen.length.is_some())?);
                }
                17 if is("transfer-encoding") => {
                    seen.chunked = framing::transfer_encoding(value, seen.chunked)?;
                }
                _ => {}
            }
        }
        Ok(seen)
    }

    /// Decides the framing by RFC 9112 6.3. Unlike there, a response with two lengths is refused.
    fn verdict(
        self,
        status: u16,
        version: Version,
        asked: Method<'_>,
        fields: Headers<'a>,
    ) -> Result<Reply<'a>, Reject> {
        let modern = version == Version::Http11;
        if self.chunked && self.length.is_some() {
            return Err(Reject::LengthAndEncoding);
        }
        if self.chunked && !modern {
            return Err(Reject::TransferEncodingIn10);
        }
        let mut keep_alive = self.options & CLOSE == 0 && (modern || self.options & KEEP_ALIVE != 0);
        let body = match (self.chunked, self.length) {
            _ if status == 101 => {
                keep_alive = false;
                ReplyLength::None
            }
            _ if matches!(status, 100..=199 | 204) => {
                // RFC 9112 6.1 allows neither field. A backend that sends one may also send a body, so the connection is not kept.
                keep_alive &= !self.chunked && self.length.unwrap_or(0) == 0;
                ReplyLength::None
            }
            _ if status == 304 || asked == Method::Head => ReplyLength::None,
            (true, _) => ReplyLength::Chunked,
            (false, Some(length)) => ReplyLength::Known(length),
            (false, None) => {
                keep_alive = false;
                ReplyLength::UntilClose
            }
        };
        Ok(Reply {
            status,
            version,
            body,
            declared: self.length,
            keep_alive,
            upgrade: self.upgrade.filter(|_| status == 101 && self.options & UPGRADE != 0),
            options: self.options,
            fields,
        })
    }
}

#[cold]
fn reject_of(error: httparse::Error) -> Reject {
    match error {
        httparse::Error::HeaderName => Reject::HeaderName,
        httparse::Error::HeaderValue => Reject::HeaderValue,
        httparse::Error::TooManyHeaders => Reject::TooManyHeaders,
        httparse::Error::NewLine => Reject::BareCr,
        _ => Reject::StatusLine,
    }
}
