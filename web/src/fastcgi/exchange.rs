//! An exchange is one request on one connection to the backend. It sends the opening records and reads the backend's
//! records.
//!
//! The handler makes one exchange for each attempt and moves it into the body of a streamed response. Only one fiber
//! reads. Meanwhile another fiber may send the request body (`sender`); its [`Progress`] decides how long the reader
//! waits.
//!
//! An exchange that ends without an error gives its connection back. Any other closes the connection, which tells the
//! backend that nobody waits for it. FCGI_ABORT_REQUEST would not do: php-fpm and similar servers read the next
//! record only after the current request, so the connection would stay blocked until then.

use std::fmt;
use std::io::{self, Read, Write};
use std::mem;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::StatusCode;
use osier::Cancelled;
use osier::fiber::shrink_stack;
use osier_http::cgi;
use osier_http::fastcgi::{Decoder, Event, Malformed};

use super::sender::{Failed, Progress};
use super::stderr::Stderr;
use crate::conn::buffers::{self, Size};
use crate::conn::log::record::Level;
use crate::conn::peer::SLOW_AFTER;
use crate::conn::waited::{Beginning, Waited};
use crate::upstream::Lease;

/// The time limits for the backend.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The longest time from the end of the request to the first byte of the response.
    pub first_byte: Duration,
    /// The longest time between two pieces of the response, and for the backend to take the next piece of the request.
    pub between: Duration,
}

/// How far the backend has responded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    Nothing,
    /// Records without a byte of the response, such as those of the standard error. The script may run.
    Records,
    /// Some bytes of the response.
    Response,
}

/// The reason why there is no response, or an incomplete one.
#[derive(Debug)]
pub enum Failure {
    /// The fiber was cancelled, as the client is gone.
    Cancelled(io::Error),
    /// The client did not send its body.
    Client(io::Error),
    /// The spooled body could not be read: a fault of this server.
    Spool(io::Error),
    /// The backend did not do something in time. The text says what: "did not answer".
    TimedOut(&'static str),
    /// The connection broke or ended.
    Broken { why: io::Error, heard: Heard },
    /// The records are malformed.
    Malformed(Malformed),
    /// The head is malformed. The text is a detail for the log.
    Head(cgi::Malformed, String),
    /// The backend ended without a head, with this status.
    Nothing(u32),
    /// The backend has reported FCGI_OVERLOADED.
    Overloaded,
    /// The backend refused the request with this protocol status.
    Unwilling(u8),
}

impl Failure {
    /// The status of the error response.
    pub fn status(&self) -> StatusCode {
        match self {
            Failure::Spool(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Failure::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
            Failure::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Cancelled(_) => f.write_str("the client is gone"),
            Failure::Client(why) => write!(f, "{why}"),
            Failure::Spool(why) => write!(f, "the request's body could not be kept: {why}"),
            Failure::TimedOut(what) => write!(f, "the backend {what} in time"),
            Failure::Broken { why, heard } if *heard < Heard::Response => {
                write!(f, "the connection ended before the response: {why}")
            }
            Failure::Broken { why, .. } => write!(f, "the connection ended inside the response: {why}"),
            Failure::Malformed(why) => write!(f, "the backend sent {why}"),
            Failure::Head(why, detail) => write!(f, "{why}{detail}"),
            Failure::Nothing(status) => write!(f, "the backend ended without a response, with status {status}"),
            Failure::Overloaded => f.write_str("the backend says it is overloaded"),
            Failure::Unwilling(status) => write!(f, "the backend refused the request, protocol status {status}"),
        }
    }
}

/// The next event from the backend.
pub enum Said {
    /// A piece of the response: a range of [`Exchange::bytes`].
    Piece(Range<usize>),
    /// The backend has ended the request without an error.
    End,
}

/// One request on one connection to the backend.
pub struct Exchange {
    /// `Some` until the drop. The sending fiber holds a clone while it sends.
    lease: Option<Rc<Lease>>,
    decoder: Decoder,
    /// Empty, without memory, while the backend is waited for.
    input: Box<[u8]>,
    /// The part of `input` that has not been decoded.
    unread: Range<usize>,
    heard: Heard,
    /// When the wait for the next bytes of the response began. Other records do not extend it. `None` while the request
    /// is being sent, and when bytes have come.
    waits_since: Option<Instant>,
    /// The backend's status, once the backend has ended the request.
    ended: Option<u32>,
    /// Whether the request asks the backend to leave the connection open.
    keep: bool,
    /// Whether the connection can carry another request.
    reusable: bool,
    patience: Patience,
    sending: Rc<Progress>,
    stderr: Stderr,
}

impl Exchange {
    /// Makes the exchange of one attempt. `keep`: the request asks the backend to leave the connection open.
    pub fn new(lease: Lease, keep: bool, patience: Patience, sending: Rc<Progress>, stderr: Stderr) -> Exchange {
        Exchange {
            lease: Some(Rc::new(lease)),
            decoder: Decoder::new(),
            input: Box::default(),
            unread: 0..0,
            heard: Heard::Nothing,
            waits_since: None,
            ended: None,
            keep,
            reusable: false,
            patience,
            sending,
            stderr,
        }
    }

    pub fn lease(&self) -> Rc<Lease> {
        self.lease.clone().expect("it is there until the drop")
    }

    /// Sends `opening`.
    ///
    /// # Errors
    ///
    /// How many bytes have been sent, and the failure.
    pub fn open(&self, opening: &[u8]) -> Result<(), (usize, Failure)> {
        let lease = self.lease();
        let mut stream = lease.transport();
        let mut sent = 0;
        let limited = lease.stream().set_write_timeout(Some(self.patience.between));
        limited.map_err(|why| (0, self.broken(why)))?;
        while sent < opening.len() {
            match stream.write(&opening[sent..]) {
                Ok(count @ 1..) => sent += count,
                Ok(0) => return Err((sent, self.broken(io::ErrorKind::WriteZero.into()))),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) if why.kind() == io::ErrorKind::TimedOut => {
                    return Err((sent, Failure::TimedOut("did not take the request")));
                }
                Err(why) => return Err((sent, self.broken(why))),
            }
        }
        self.sending.sent.update(|before| before + sent as u64);
        // The response takes a while, so the next read should wait at once. It meets the error of this call, if there
        // is one.
        if !lease.is_reused() {
            let _ = stream.socket().watch();
        }
        Ok(())
    }

    /// The bytes of a [`Said::Piece`], valid until the next call of [`next`](Exchange::next).
    pub fn bytes(&self, piece: Range<usize>) -> &[u8] {
        &self.input[piece]
    }

    /// The next event among the received bytes; `None` if more bytes are needed.
    pub fn next_here(&mut self) -> Result<Option<Said>, Failure> {
        while self.ended.is_none() && !self.unread.is_empty() {
            let step = self
                .decoder
                .decode(&self.input[self.unread.clone()])
                .map_err(Failure::Malformed)?;
            self.unread.start += step.consumed;
            match step.event {
                Some(Event::Stdout(piece)) => {
                    (self.heard, self.waits_since) = (Heard::Response, None);
                    let end = self.unread.start;
                    return Ok(Some(Said::Piece(end - piece.len()..end)));
                }
                Some(Event::Stderr(piece)) => self.stderr.add(piece),
                Some(Event::End {
                    app_status,
                    protocol_status,
                }) => return self.end(app_status, protocol_status).map(Some),
                None => {}
            }
        }
        Ok(self.ended.map(|_| Said::End))
    }

    /// The number of received bytes that have not been decoded.
    pub fn unread(&self) -> usize {
        self.unread.len()
    }

    /// Whether the next event may have to come from the backend.
    pub fn may_wait(&self) -> bool {
        self.ended.is_none() && self.unread.is_empty()
    }

    /// Whether the end of the response is among them, or what no backend sends.
    pub fn ends_here(&self) -> bool {
        let (mut decoder, mut rest) = (self.decoder.clone(), &self.input[self.unread.clone()]);
        loop {
            match decoder.decode(rest).map(|step| (step.event, step.consumed)) {
                Ok((Some(Event::Stdout(_) | Event::Stderr(_)), consumed)) => rest = &rest[consumed..],
                Ok((None, _)) => return false,
                Ok((Some(Event::End { .. }), _)) | Err(_) => return true,
            }
        }
    }

    /// The next event.
    ///
    /// # Suspends
    ///
    /// Until the backend has sent it.
    pub fn next(&mut self) -> Result<Said, Failure> {
        loop {
            if let Some(said) = self.next_here()? {
                return Ok(said);
            }
            self.fill(&mut Beginning {
                lasts: SLOW_AFTER,
                goes_on: &mut || {
                    shrink_stack();
                    true
                },
            })?;
        }
    }

    /// Notes that the backend has ended the request.
    fn end(&mut self, app_status: u32, protocol_status: u8) -> Result<Said, Failure> {
        self.ended = Some(app_status);
        self.stderr.end();
        match protocol_status {
            0 => {}
            2 => return Err(Failure::Overloaded),
            other => return Err(Failure::Unwilling(other)),
        }
        if app_status != 0 {
            let what = format_args!("ended with status {app_status}");
            self.stderr.say(Level::Warning, what);
        }
        // Otherwise padding to come, unexpected bytes or an unsent rest of the body would end up in the next request.
        let is_clean = self.decoder.is_done() && self.unread.is_empty() && self.sending.is_done();
        self.reusable = self.keep && is_clean;
        Ok(Said::End)
    }

    /// The status that the backend has ended with, or 0.
    pub fn app_status(&self) -> u32 {
        self.ended.unwrap_or(0)
    }

    /// Reads more bytes. All received bytes must have been decoded. Returns false if the wait for them is stopped.
    ///
    /// # Suspends
    ///
    /// Until the backend has sent some.
    pub fn fill(&mut self, beginning: &mut Beginning<'_>) -> Result<bool, Failure> {
        debug_assert!(self.unread.is_empty());
        let lease = self.lease();
        buffers::give(mem::take(&mut self.input));
        loop {
            let was_sent = self.sending.is_done();
            let read = match self.time_left(was_sent) {
                Some(left) => match self.read(&lease, left, beginning) {
                    Ok(None) => return Ok(false),
                    read => read.map(Option::unwrap_or_default),
                },
                None => Err(io::ErrorKind::TimedOut.into()),
            };
            if let Some(failed) = self.sending.failure() {
                return Err(match failed {
                    Failed::Client(why) => Failure::Client(why),
                    Failed::Spool(why) => Failure::Spool(why),
                    Failed::TimedOut => Failure::TimedOut("did not take the request's body"),
                });
            }
            match read {
                Ok(0) => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) if self.heard == Heard::Nothing && lease.is_too_early(self.sending.sent.get()) => {
                    let why = "the backend has answered the request before this one twice";
                    return Err(self.broken(io::Error::new(io::ErrorKind::InvalidData, why)));
                }
                Ok(count) => {
                    (self.unread, self.heard) = (0..count, self.heard.max(Heard::Records));
                    return Ok(true);
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                // The body was still being sent, so the time for the response begins now.
                Err(why) if why.kind() == io::ErrorKind::TimedOut && !was_sent => {}
                Err(why) if why.kind() == io::ErrorKind::TimedOut => {
                    return Err(Failure::TimedOut(match self.heard {
                        Heard::Response => "did not go on",
                        Heard::Nothing | Heard::Records => "did not answer",
                    }));
                }
                Err(why) => return Err(self.broken(why)),
            }
        }
    }

    /// Waits on as [`fill`](Exchange::fill) does, after it was stopped. The next `fill` reads, or says what is wrong.
    pub async fn fill_async(&mut self) {
        let left = self.time_left(true).unwrap_or_default();
        let _ = self.lease().wait_readable_async(left).await;
    }

    /// The time that is left for the next bytes of the response. `None` if there is none. The time does not run while
    /// the body is being sent: the sender has its own limits.
    fn time_left(&mut self, was_sent: bool) -> Option<Duration> {
        let limit = match self.heard {
            Heard::Response => self.patience.between,
            Heard::Nothing | Heard::Records => self.patience.first_byte,
        };
        if !was_sent {
            return Some(limit);
        }
        let now = osier::time::now();
        let since = *self.waits_since.get_or_insert(now);
        let left = limit.saturating_sub(now.saturating_duration_since(since));
        Some(left).filter(|left| !left.is_zero())
    }

    /// Reads bytes that arrive within `limit`. `None` if the wait for them is stopped.
    fn read(&mut self, lease: &Lease, limit: Duration, beginning: &mut Beginning<'_>) -> io::Result<Option<usize>> {
        match lease.wait_readable(limit, beginning)? {
            Waited::Readable => {}
            Waited::Late => return Err(io::ErrorKind::TimedOut.into()),
            Waited::Stopped => return Ok(None),
        }
        if self.input.is_empty() {
            self.input = buffers::take(Size::K32);
        }
        lease.stream().set_read_timeout(Some(limit))?;
        lease.transport().read(&mut self.input).map(Some)
    }

    fn broken(&self, why: io::Error) -> Failure {
        if Cancelled::is(&why) {
            return Failure::Cancelled(why);
        }
        let heard = self.heard;
        Failure::Broken { why, heard }
    }

    /// Discards the received bytes. Returns whether the rest is worth [draining](Exchange::drain).
    pub fn discard(&mut self) -> bool {
        // Mostly, the end has arrived with the last piece.
        loop {
            match self.next_here() {
                Ok(Some(Said::Piece(_))) => {}
                Ok(Some(Said::End)) | Err(_) => return false,
                // The backend may wait for the rest of the request's body, which nobody sends any more.
                Ok(None) => return self.sending.is_done(),
            }
        }
    }

    /// Reads and discards the rest, so that the backend can finish and the connection can be kept. Stops after `bytes`
    /// bytes or after `time`.
    ///
    /// # Suspends
    ///
    /// While the backend writes.
    pub fn drain(&mut self, bytes: usize, time: Duration) {
        let until = osier::time::now() + time;
        let (mut left, between) = (bytes, self.patience.between);
        loop {
            let time = until.saturating_duration_since(osier::time::now());
            // A backend that says nothing has no more time than one that writes.
            let patience = time.min(between);
            self.patience = Patience {
                first_byte: patience,
                between: patience,
            };
            left = match self.next() {
                Ok(Said::Piece(piece)) if piece.len() <= left && !time.is_zero() => left - piece.len(),
                _ => return,
            };
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        buffers::give(mem::take(&mut self.input));
        // The sending fiber has been joined, so this is the only clone.
        if self.reusable
            && let Some(lease) = self.lease.take().and_then(Rc::into_inner)
        {
            lease.keep();
        }
    }
}
