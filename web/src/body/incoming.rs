//! The body of a request. The handler reads it, first from the connection's input buffer and then
//! from the socket.
//!
//! A request's body borrows the part of the input buffer that follows the head. Bytes beyond the
//! body belong to the next request and stay in the buffer. Unread bytes of the body are drained
//! after the response, or the connection closes.

use std::cell::Cell;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops;
use std::rc::Rc;
use std::sync::Arc;
#[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
use std::time::Instant;

use http::StatusCode;
use osier::sync::Event;
use osier_http::{BodyDecoder, BodyLength, CONTINUE, Reject};

use crate::conn::close::CloseReason;
use crate::conn::output::Output;
use crate::conn::peer::{Pace, Peer};
use crate::conn::trailers::Trailers;
use crate::conn::worker::Worker;

/// The body of a request as a [`Read`].
///
/// A client that expects `100 Continue` gets it at the first read. After the response a small
/// unread remainder is skipped; a larger one closes the connection.
///
/// # Suspends
///
/// Until the client has sent more bytes, at most for [`Timeouts::body`](crate::Timeouts::body).
///
/// # Errors
///
/// - `TimedOut`: no bytes came within the timeout.
/// - `UnexpectedEof`: the client ended within the body.
/// - `InvalidData`: the body is malformed or larger than the limit.
///
/// A handler that returns one of them causes the matching 4xx response.
pub struct RequestBody<'a> {
    client: Peer<'a>,
    output: &'a Output<'a>,
    decoder: BodyDecoder,
    length: BodyLength,
    /// The input buffer after the head. It is never empty unless it holds the whole body.
    buffer: &'a mut [u8],
    /// Received bytes that are not yet decoded.
    unread: ops::Range<usize>,
    /// Whether the client waits for `100 Continue`.
    awaited: bool,
    failed: Option<BodyError>,
    /// The bound of [`limit`](RequestBody::limit).
    most: u64,
    trailers: Option<Trailers>,
    /// Bytes read by `preview`, which are read again.
    ahead: Option<Box<Ahead>>,
    pace: Pace,
    /// Whether the client may be silent for any time.
    may_pause: bool,
    /// Counts the decoded bytes.
    count: &'a Cell<u64>,
}

/// The state of a body whose request rests: all but the buffer and the client.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) struct Paused {
    decoder: BodyDecoder,
    length: BodyLength,
    /// Received bytes that are not yet decoded.
    unread: Box<[u8]>,
    failed: Option<BodyError>,
    most: u64,
    pace: Pace,
}

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
impl Paused {
    /// Goes on with the body. The bytes that are not yet decoded are copied to the beginning of `buffer`.
    pub(crate) fn resume<'a>(
        &self,
        client: Peer<'a>,
        output: &'a Output<'a>,
        buffer: &'a mut [u8],
        count: &'a Cell<u64>,
    ) -> RequestBody<'a> {
        let received = self.unread.len();
        buffer[..received].copy_from_slice(&self.unread);
        self.resume_at(client, output, (buffer, received), count)
    }

    /// Goes on with the body. `buffer` begins with the bytes that are not yet decoded, and holds `received` bytes.
    pub(crate) fn resume_at<'a>(
        &self,
        client: Peer<'a>,
        output: &'a Output<'a>,
        (buffer, received): (&'a mut [u8], usize),
        count: &'a Cell<u64>,
    ) -> RequestBody<'a> {
        let decoder = (self.decoder.clone(), self.length);
        let body = RequestBody::new(client, output, decoder, buffer, received, false, count);
        RequestBody {
            failed: self.failed,
            most: self.most,
            pace: self.pace.resumed(),
            ..body
        }
    }

    /// The received bytes that are not yet decoded.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.unread
    }

    /// A number that changes when bytes arrive that are not data: the framing of chunks.
    pub(crate) fn progress(&self) -> usize {
        self.unread.len()
    }

    /// Adds a wait of the request for its client.
    #[cfg(feature = "h2")]
    pub(crate) fn waited(&mut self, since: Instant) {
        self.pace.waited(since);
    }

    /// Ends the body with an error, which it returns: no bytes have come in time.
    pub(crate) fn time_out(&mut self) -> io::Error {
        self.failed = Some(BodyError::TimedOut);
        BodyError::TimedOut.into()
    }
}

/// Whether the client has sent nothing for a while. The kernel's own ETIMEDOUT means that the connection is dead.
fn is_silence(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
}

/// Bytes read ahead by `preview`, and how many of them are read again.
struct Ahead {
    bytes: Vec<u8>,
    at: usize,
}

/// The reason why a request body could not be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyError {
    Refused(Reject),
    TimedOut,
    Ended,
}

impl BodyError {
    /// The reason that made this error, if it is that of a request body.
    pub(crate) fn of(error: &io::Error) -> Option<BodyError> {
        error.get_ref()?.downcast_ref().copied()
    }

    /// Whether the error says that a limit or HTTP forbids a request body.
    #[cfg(feature = "proxy")]
    pub(crate) fn is_refusal(error: &io::Error) -> bool {
        matches!(BodyError::of(error), Some(BodyError::Refused(_)))
    }

    pub(crate) fn status(self) -> StatusCode {
        match self {
            BodyError::Refused(reject) => StatusCode::from_u16(reject.status()).unwrap_or(StatusCode::BAD_REQUEST),
            BodyError::TimedOut => StatusCode::REQUEST_TIMEOUT,
            BodyError::Ended => StatusCode::BAD_REQUEST,
        }
    }
}

osier_queue::impl_error!(BodyError {
    BodyError::Refused(reject) => "{}", reject.reason();
    BodyError::TimedOut => "the request's body timed out";
    BodyError::Ended => "the connection ended inside the request's body";
});

impl From<BodyError> for io::Error {
    fn from(error: BodyError) -> io::Error {
        let kind = match error {
            BodyError::Refused(_) => io::ErrorKind::InvalidData,
            BodyError::TimedOut => io::ErrorKind::TimedOut,
            BodyError::Ended => io::ErrorKind::UnexpectedEof,
        };
        io::Error::new(kind, error)
    }
}

impl<'a> RequestBody<'a> {
    /// Makes the body of a request. `buffer` begins after the head and holds `received` bytes.
    #[inline]
    pub(crate) fn new(
        client: Peer<'a>,
        output: &'a Output<'a>,
        (decoder, length): (BodyDecoder, BodyLength),
        buffer: &'a mut [u8],
        received: usize,
        awaited: bool,
        count: &'a Cell<u64>,
    ) -> Self {
        RequestBody {
            client,
            output,
            decoder,
            length,
            buffer,
            unread: 0..received,
            awaited,
            failed: None,
            most: u64::MAX,
            trailers: None,
            ahead: None,
            pace: Pace::BEGINS,
            may_pause: false,
            count,
        }
    }

    #[inline]
    pub(crate) fn is_proxied(&self) -> bool {
        self.client.is_proxied()
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.client.peer()
    }

    #[cfg_attr(
        not(feature = "fastcgi"),
        allow(dead_code, reason = "only a log of FastCGI outlives the request")
    )]
    pub(crate) fn worker(&self) -> &Rc<Worker> {
        self.client.worker
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.client.local_addr()
    }

    /// Writes the `100 Continue` that the client waits for. Called before a response begins whose
    /// body still reads the request's.
    pub(crate) fn welcome(&mut self) {
        if std::mem::take(&mut self.awaited) {
            self.output.write(CONTINUE);
        }
    }

    /// Sends the `100 Continue` that the client waits for, after the earlier responses. Must be
    /// called before the body is passed to another fiber: the output belongs to the connection's
    /// own fiber, which may be in the middle of a write then.
    pub(crate) fn invite(&mut self) -> io::Result<()> {
        if self.awaited {
            self.welcome();
            self.output.flush()?;
        }
        Ok(())
    }

    /// The connection's output, for an interim response, which leaves at the latest when the
    /// connection's own fiber suspends. The client must have been [invited](RequestBody::invite)
    /// before the body is passed to another fiber.
    #[cfg(feature = "proxy")]
    pub(crate) fn output(&self) -> &'a Output<'a> {
        self.output
    }

    /// Whether received bytes of the body, or perhaps only of its framing, are unread.
    #[cfg(feature = "proxy")]
    pub(crate) fn has_received(&self) -> bool {
        self.ahead.is_some() || (!self.unread.is_empty() && !self.is_done())
    }

    /// Whether the rest of a body of known length has been received.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn has_all_received(&self) -> bool {
        let is_known = self.ahead.is_none() && self.announced().is_some();
        self.is_done() || (is_known && self.decoder.plain() <= self.unread.len() as u64)
    }

    /// The announced length in bytes: 0 without a body, `None` for a chunked body.
    pub fn announced(&self) -> Option<u64> {
        match self.length {
            BodyLength::None => Some(0),
            BodyLength::Known(bytes) => Some(bytes),
            BodyLength::Chunked => None,
        }
    }

    /// The trailer of the body. It is empty until the body has been read to its end, where a read returns 0 bytes.
    ///
    /// ```
    /// use osier_web::{Request, Router};
    /// use std::io::Read;
    ///
    /// let router = Router::new().post("/upload", |request: &mut Request<'_>| -> std::io::Result<String> {
    ///     let mut bytes = Vec::new();
    ///     request.body().read_to_end(&mut bytes)?;
    ///     let sum = request.body().trailers().get("x-checksum").map(String::from_utf8_lossy);
    ///     Ok(format!("{} bytes, checksum {sum:?}", bytes.len()))
    /// });
    /// ```
    pub fn trailers(&mut self) -> &Trailers {
        const NONE: &Trailers = &Trailers::new();
        if !self.is_done() {
            return NONE;
        }
        let (client, decoder) = (self.client, &mut self.decoder);
        self.trailers.get_or_insert_with(|| {
            let of_stream = client.take_trailers();
            of_stream.unwrap_or_else(|| Trailers::of(decoder.take_trailers().iter()))
        })
    }

    /// Limits the body to `most` bytes; a lower [limit](crate::Limits::body) of the server stays.
    /// Must be called before the first read. A chunked body fails at the first byte beyond the
    /// limit.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the announced length is larger. As a response it is 413.
    pub fn limit(&mut self, most: u64) -> io::Result<()> {
        self.most = self.most.min(most);
        let ahead = self.ahead.as_ref().map_or(0, |ahead| ahead.bytes.len() as u64);
        let refused = |reject| io::Error::from(BodyError::Refused(reject));
        if ahead > most {
            return Err(refused(Reject::BodyTooLarge));
        }
        self.decoder.limit(most - ahead).map_err(refused)
    }

    /// The value of the limit that the body is beyond, if it was refused for this reason.
    pub(crate) fn limit_of(&self, reject: Reject) -> Option<u64> {
        let limit = reject.limit(&self.client.worker.server.limits)?;
        Some(match reject {
            Reject::BodyTooLarge => limit.min(self.most),
            _ => limit,
        })
    }

    /// Returns the whole body, if it has at most `most` bytes, and leaves it to be read again. It
    /// serves code that chooses by the body which handler reads it. `None` means that the body is
    /// larger or could not be read; the later reads then return the error.
    ///
    /// # Suspends
    ///
    /// Until the body is received.
    pub fn preview(&mut self, most: usize) -> Option<Vec<u8>> {
        if self.announced().is_some_and(|announced| announced > most as u64) {
            return None;
        }
        let mut bytes = Vec::new();
        let read = self.by_ref().take(most as u64 + 1).read_to_end(&mut bytes);
        let whole = (read.is_ok() && bytes.len() <= most).then(|| bytes.clone());
        // An earlier preview may have left unread bytes.
        if let Some(Ahead { bytes: rest, at }) = self.ahead.take().map(|ahead| *ahead) {
            bytes.extend_from_slice(&rest[at..]);
        }
        if !bytes.is_empty() {
            self.ahead = Some(Box::new(Ahead { bytes, at: 0 }));
        }
        whole
    }

    /// The bytes of the buffer that are not decoded. They begin the next request once the body is
    /// done.
    pub(crate) fn unread(&self) -> ops::Range<usize> {
        self.unread.clone()
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.decoder.is_done() && self.ahead.is_none()
    }

    /// Whether the whole of a body that is not empty has been read.
    #[cfg(any(feature = "forms", feature = "json"))]
    pub(crate) fn has_been_read(&self) -> bool {
        self.is_done() && self.count.get() > 0
    }

    /// The event of the server's graceful shutdown.
    pub(crate) fn shutdown(&self) -> &Arc<Event> {
        &self.client.worker.server.shutdown
    }

    /// Whether the client left before it had sent the whole body.
    pub(crate) fn has_lost_its_client(&self) -> bool {
        matches!(self.failed, Some(BodyError::Ended))
    }

    /// The reason for closing the connection after a response that nothing may follow.
    pub(crate) fn close_reason(&self) -> CloseReason {
        match self.failed {
            Some(BodyError::Refused(_)) => CloseReason::ProtocolError,
            Some(BodyError::TimedOut) => CloseReason::BodyTimeout,
            Some(BodyError::Ended) => CloseReason::Client,
            None => CloseReason::LastResponse,
        }
    }

    /// Lets the body come at any rate.
    pub(crate) fn allow_slow(&mut self) {
        self.pace.may_be_slow = true;
    }

    /// Lets the client be silent for any time. Something else must bound the request.
    #[cfg(feature = "proxy")]
    pub(crate) fn allow_pauses(&mut self) {
        self.allow_slow();
        (self.may_pause, self.pace.may_pause) = (true, true);
        self.client.allow_pauses();
    }

    #[inline]
    pub(crate) fn may_be_slow(&self) -> bool {
        self.pace.may_be_slow
    }

    /// The connection of the request.
    pub(crate) fn client(&self) -> Peer<'a> {
        self.client
    }

    /// Whether draining the body to keep the connection is worthwhile: the client is sending it,
    /// and at most `bound` bytes are known to remain.
    pub(crate) fn is_drainable(&self, bound: u64) -> bool {
        // The rest of a stream's body stands in no other request's way.
        let is_sending = || !self.awaited && self.failed.is_none() && !self.client.is_stream();
        self.is_done() || (is_sending() && self.decoder.plain() <= bound)
    }

    /// Reads and discards the remaining body, at most `bound` bytes. Returns whether that was all.
    pub(crate) fn drain(&mut self, bound: u64) -> bool {
        self.ahead = None;
        self.is_done() || (self.is_drainable(bound) && self.throw_away(bound))
    }

    /// Apart, so that no other frame has the room of the scratch buffer.
    #[inline(never)]
    fn throw_away(&mut self, mut bound: u64) -> bool {
        let mut scratch = [0; 4096];
        loop {
            match self.read(&mut scratch) {
                Ok(0) => return true,
                Ok(count) if count as u64 <= bound => bound -= count as u64,
                _ => return false,
            }
        }
    }

    fn fail(&mut self, error: BodyError) -> io::Error {
        self.failed = Some(error);
        error.into()
    }

    /// Reads from the socket into `into`, or into the buffer behind `unread`. `None` if no bytes have
    /// arrived, and this is not to wait.
    fn receive(&mut self, into: Option<&mut [u8]>, how: How) -> io::Result<Option<usize>> {
        self.invite()?;
        let client = self.client;
        let into = into.unwrap_or(&mut self.buffer[self.unread.end..]);
        let read = match how {
            How::Waiting => loop {
                match client.read_body(into, &mut self.pace) {
                    Err(error) if self.may_pause && is_silence(&error) => {}
                    read => break read.map(Some),
                }
            },
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            How::Arrived => client.read_arrived(into),
        };
        match read {
            Ok(Some(count @ 1..)) => {
                self.pace.received(count);
                Ok(Some(count))
            }
            // The end of its stream ends an HTTP/2 body.
            Ok(Some(0)) if self.decoder.at_end().is_err() => Err(self.fail(BodyError::Ended)),
            Err(error) => Err(self.broken(error)),
            other => other,
        }
    }

    fn broken(&mut self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::TimedOut => self.fail(BodyError::TimedOut),
            // A client of TLS may leave without a close_notify.
            io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => self.fail(BodyError::Ended),
            _ => error,
        }
    }

    /// Reads bytes of the body that have arrived. Returns 0 at the end, and `None` if more have to
    /// arrive.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn read_arrived(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        self.read_some(into, How::Arrived)
    }

    /// The state of the body, for a request that rests. All bytes of a [`preview`](RequestBody::preview) must have been read.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn pause(&self) -> Paused {
        debug_assert!(self.ahead.is_none() && (!self.awaited || self.is_done()));
        Paused {
            decoder: self.decoder.clone(),
            length: self.length,
            unread: self.buffer[self.unread.clone()].into(),
            failed: self.failed,
            most: self.most,
            pace: self.pace.resumed(),
        }
    }

    /// Whether the client is slower than its rate, before one more wait.
    #[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
    pub(crate) fn is_too_slow(&mut self) -> bool {
        self.pace.is_too_slow(&self.client.worker.server)
    }

    /// Ends the body with an error, which it returns: too few bytes have come in time.
    #[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
    pub(crate) fn time_out(&mut self) -> io::Error {
        self.fail(BodyError::TimedOut)
    }

    /// Waits until the client has sent more bytes. Nothing that has arrived may be unread.
    ///
    /// # Suspends
    ///
    /// Until they arrive.
    ///
    /// # Errors
    ///
    /// As for [`read`](Read::read).
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn arrives(&mut self) -> io::Result<()> {
        self.invite()?;
        let arrived = self.client.body_arrives(&mut self.pace);
        arrived.map_err(|error| self.broken(error))
    }

    fn read_some(&mut self, into: &mut [u8], how: How) -> io::Result<Option<usize>> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        if into.is_empty() {
            return Ok(Some(0));
        }
        if let Some(ahead) = &mut self.ahead {
            let rest = &ahead.bytes[ahead.at..];
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            ahead.at += count;
            if count == rest.len() {
                self.ahead = None;
            }
            return Ok(Some(count));
        }
        while !self.decoder.is_done() {
            if self.unread.is_empty() {
                self.unread = 0..0;
                let plain = usize::try_from(self.decoder.plain())
                    .unwrap_or(usize::MAX)
                    .min(into.len());
                if plain > 0 {
                    let count = self.receive(Some(&mut into[..plain]), how)?;
                    self.decoder.advance(count.unwrap_or(0) as u64);
                    self.count.update(|sum| sum + count.unwrap_or(0) as u64);
                    return Ok(count);
                }
            } else {
                match self.decoder.decode(&self.buffer[self.unread.clone()], into.len()) {
                    Err(reject) => return Err(self.fail(BodyError::Refused(reject))),
                    Ok(piece) => {
                        self.unread.start += piece.consumed;
                        if !piece.data.is_empty() {
                            into[..piece.data.len()].copy_from_slice(piece.data);
                            self.count.update(|sum| sum + piece.data.len() as u64);
                            return Ok(Some(piece.data.len()));
                        }
                        if piece.consumed > 0 {
                            continue;
                        }
                    }
                }
            }
            if self.unread.end == self.buffer.len() {
                self.buffer.copy_within(self.unread.clone(), 0);
                self.unread = 0..self.unread.len();
            }
            match self.receive(None, how)? {
                Some(count) => self.unread.end += count,
                None => return Ok(None),
            }
        }
        Ok(Some(0))
    }
}

/// How a read treats bytes that have not arrived.
#[derive(Clone, Copy)]
enum How {
    /// It waits for them.
    Waiting,
    /// It returns without them.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    Arrived,
}

impl Read for RequestBody<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // It has waited, so there is a count.
        self.read_some(into, How::Waiting).map(Option::unwrap_or_default)
    }
}

osier_queue::impl_debug!(RequestBody<'a>, self => { length: self.length, done: self.is_done(), .. });
