//! The fast path for the usual head of a response, as [`Outline`](crate::Outline) is for that of a request.
//!
//! It refuses nothing. It accepts only heads that [`ReplyScanner`](crate::ReplyScanner) and [`Reply::parse`](crate::Reply::parse)
//! accept as far as the syntax goes, and finds the same parts. For any other head, also an incomplete one, it returns `None`, and the
//! caller uses these two.

use crate::message::{LONGEST, Limits, Places, Version, printable};

/// The places of the parts of one response head.
///
/// ```
/// use osier_http::{Limits, Method, Reply, ReplyLength, ReplyOutline};
///
/// let mut outline = ReplyOutline::new();
/// let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
/// let len = outline.find(bytes, &Limits::default()).unwrap();
/// let reply = Reply::outlined(&bytes[..len], &outline, Method::Get)?;
/// assert_eq!((reply.status(), reply.body()), (200, ReplyLength::Known(5)));
/// assert_eq!(outline.find(b"HTTP/1.1 200 OK\r\n", &Limits::default()), None);
/// # Ok::<(), osier_http::Reject>(())
/// ```
#[derive(Debug)]
pub struct ReplyOutline {
    pub(super) status: u16,
    pub(super) version: Version,
    pub(super) fields: Places,
}

impl Default for ReplyOutline {
    fn default() -> Self {
        ReplyOutline::new()
    }
}

impl ReplyOutline {
    /// Makes an empty outline.
    pub const fn new() -> ReplyOutline {
        ReplyOutline {
            status: 0,
            version: Version::Http10,
            fields: Places::new(),
        }
    }

    /// Returns the length of the head at the beginning of `buf` if the head is complete and usual: ASCII, at most 32 fields.
    /// `None` does not mean that the head is malformed.
    // Inlined into its caller, its loops lack registers, as those of `Outline::find` do.
    #[inline(never)]
    pub fn find(&mut self, buf: &[u8], limits: &Limits) -> Option<usize> {
        let buf = &buf[..buf.len().min(limits.head_bytes).min(LONGEST)];
        let (line, reason) = buf.split_first_chunk::<13>()?;
        let [
            protocol @ ..,
            b' ',
            hundreds @ b'1'..=b'9',
            tens @ b'0'..=b'9',
            ones @ b'0'..=b'9',
            b' ',
        ] = line
        else {
            return None;
        };
        // Compared as words.
        self.version = if protocol == b"HTTP/1.1" {
            Version::Http11
        } else if protocol == b"HTTP/1.0" {
            Version::Http10
        } else {
            return None;
        };
        let digit = |byte: &u8| u16::from(byte - b'0');
        self.status = digit(hundreds) * 100 + digit(tens) * 10 + digit(ones);
        let end = line.len() + printable(reason);
        if buf.get(end..end + 2)? != b"\r\n" {
            return None;
        }
        self.fields.find(buf, end + 2, limits)
    }
}
