//! One response of the backend: its head, read and checked, then its body on the way to the client.
//!
//! The handler's fiber reads the head. A response that is complete by then (that of a small script) becomes a response
//! of known length at once. Any other is passed on while it arrives (`body::relay`), and read ahead of a client that is slow, so that it does not hold
//! the backend. The output is sent whenever its fiber waits for the backend, so events and half pages need no flush.
//! While the backend still reads the request, nothing is read ahead, and a client that does not read stops the backend.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use osier::sync::Semaphore;
use osier_http::cgi::{self, Scanner, longest_field};

use super::exchange::{Exchange, Failure, Said};
use crate::body::ahead::Source;
use crate::conn::waited::Beginning;
use crate::response::broken::Broken;

/// The most bytes that a backend may still write when its body is no longer wanted: after the last byte of its
/// Content-Length, and where HTTP allows no body.
const DRAIN_BYTES: usize = 16 << 20;

/// The longest time that a backend may still run then.
const DRAIN_TIME: Duration = Duration::from_secs(60);

/// The most backends of a handler that may still run then. No limit for clients counts them.
pub const DRAINS: usize = 128;

/// The longest time that a HEAD waits for the end of the body, which HTTP does not allow. Any client can ask so for any
/// script, so the request stays in flight meanwhile, and what limits clients counts it.
const HEAD_TIME: Duration = Duration::from_secs(1);

/// The received bytes above which the end is looked for before they are copied: a longer body is copied again on its way to the client.
const LOOK_FIRST: usize = 4 << 10;

/// A response of the backend whose head has been read.
pub struct BackendResponse {
    exchange: Box<Exchange>,
    /// The head, and the part of the body that came with it.
    bytes: Vec<u8>,
    /// The length of the head.
    head: usize,
    /// How many of `bytes` have been passed on.
    taken: usize,
    /// The range of [`Exchange::bytes`] that has not been passed on.
    piece: Range<usize>,
    /// The handler's [`DRAINS`].
    drains: Arc<Semaphore>,
}

impl BackendResponse {
    /// Reads until the head is complete. Returns the bytes read and the length of the head.
    ///
    /// # Suspends
    ///
    /// Until the backend has written it.
    pub fn read_head(exchange: &mut Exchange, limit: usize) -> Result<(Vec<u8>, usize), Failure> {
        let mut scanner = Scanner::new(limit);
        let mut bytes = Vec::new();
        loop {
            match exchange.next()? {
                Said::Piece(piece) => bytes.extend_from_slice(exchange.bytes(piece)),
                Said::End if bytes.is_empty() => return Err(Failure::Nothing(exchange.app_status())),
                Said::End => {
                    return Err(Failure::Head(
                        cgi::Malformed::Empty,
                        ": it ends before its empty line".into(),
                    ));
                }
            }
            match scanner.scan(&bytes) {
                Ok(Some(head)) => return Ok((bytes, head)),
                Ok(None) => {}
                Err(why) => {
                    let longest = longest_field(&bytes);
                    let detail = longest.map(|(name, len)| format!("; its longest field is {name:?} of {len} bytes"));
                    return Err(Failure::Head(why, detail.unwrap_or_default()));
                }
            }
        }
    }

    /// `drains` has a permit for each response that may be [forgotten](BackendResponse::forget) at the same time.
    pub fn new(exchange: Box<Exchange>, (bytes, head): (Vec<u8>, usize), drains: Arc<Semaphore>) -> BackendResponse {
        BackendResponse {
            exchange,
            bytes,
            head,
            taken: head,
            piece: 0..0,
            drains,
        }
    }

    /// The parsed head.
    ///
    /// # Errors
    ///
    /// [`Failure::Head`] if the bytes are not a CGI head.
    pub fn head(&self) -> Result<cgi::Head<'_>, Failure> {
        cgi::Head::parse(&self.bytes[..self.head]).map_err(|why| Failure::Head(why, String::new()))
    }

    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Whether the whole body has been received. If so, [`into_body`](BackendResponse::into_body) returns it.
    pub fn is_whole(&mut self) -> Result<bool, Failure> {
        let received = self.exchange.unread();
        if received > LOOK_FIRST {
            if !self.exchange.ends_here() {
                return Ok(false);
            }
            self.bytes.reserve(received);
        }
        loop {
            match self.exchange.next_here()? {
                Some(Said::Piece(piece)) => self.bytes.extend_from_slice(self.exchange.bytes(piece)),
                Some(Said::End) => return Ok(true),
                None => return Ok(false),
            }
        }
    }

    /// The received part of the body.
    pub fn into_body(self) -> Vec<u8> {
        let mut bytes = self.bytes;
        bytes.drain(..self.head);
        bytes
    }

    /// Writes the whole body to `out`.
    ///
    /// # Suspends
    ///
    /// While the backend writes, and while the client reads.
    pub fn copy(&mut self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.bytes[self.taken..])?;
        self.taken = self.bytes.len();
        loop {
            match self.exchange.next() {
                Ok(Said::Piece(piece)) => out.write_all(self.exchange.bytes(piece))?,
                Ok(Said::End) => return Ok(()),
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// The received bytes to be passed on next.
    fn here(&self) -> &[u8] {
        match &self.bytes[self.taken..] {
            [] => self.exchange.bytes(self.piece.clone()),
            rest => rest,
        }
    }

    /// Notes that bytes of [`here`](BackendResponse::here) have been passed on.
    fn advance(&mut self, count: usize) {
        match self.taken < self.bytes.len() {
            true => self.taken += count,
            false => self.piece.start += count,
        }
    }

    /// Writes what has arrived to `out`, at most `most` bytes. Returns how many bytes that is, and whether the body has ended.
    fn pass_on(&mut self, most: u64, out: &mut dyn Write) -> io::Result<(u64, bool)> {
        let mut passed = 0;
        loop {
            let here = self.here();
            let left = usize::try_from(most - passed).unwrap_or(usize::MAX);
            let count = here.len().min(left);
            out.write_all(&here[..count])?;
            self.advance(count);
            passed += count as u64;
            if count == left {
                return Ok((passed, false));
            }
            if self.here().is_empty() {
                match self.exchange.next_here()? {
                    Some(Said::Piece(piece)) => self.piece = piece,
                    Some(Said::End) => return Ok((passed, true)),
                    None => return Ok((passed, false)),
                }
            }
        }
    }

    /// Discards the body in the background. If [`DRAINS`] others are being discarded, the connection is closed.
    pub fn forget(self) {
        let mut exchange = self.exchange;
        if exchange.discard()
            && let Some(permit) = self.drains.try_acquire_owned()
        {
            drop(osier::spawn_local(move || {
                let _permit = permit;
                exchange.drain(DRAIN_BYTES, DRAIN_TIME);
            }));
        }
    }

    /// Discards the body of the response to a HEAD.
    ///
    /// # Suspends
    ///
    /// Until the backend has ended, for a second at most.
    pub fn discard(mut self) {
        if self.exchange.discard() {
            self.exchange.drain(DRAIN_BYTES, HEAD_TIME);
        }
    }
}

impl Read for BackendResponse {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let here = self.here();
            let count = here.len().min(into.len());
            if count > 0 || into.is_empty() {
                into[..count].copy_from_slice(&here[..count]);
                self.advance(count);
                return Ok(count);
            }
            match self.exchange.next()? {
                Said::Piece(piece) => self.piece = piece,
                Said::End => return Ok(0),
            }
        }
    }
}

/// A body with the Content-Length that the backend has announced.
pub struct Announced {
    response: Option<BackendResponse>,
    left: u64,
}

impl Announced {
    pub fn new(response: BackendResponse, length: u64) -> Announced {
        Announced {
            response: Some(response),
            left: length,
        }
    }
}

impl Announced {
    /// Notes `count` bytes of the body, or its end.
    fn note(&mut self, count: u64, has_ended: bool) -> io::Result<()> {
        self.left -= count;
        match self.left {
            left @ 1.. if has_ended => {
                let why = format!("the backend ended {left} bytes before the Content-Length it had announced");
                Err(Broken::error(StatusCode::BAD_GATEWAY, why))
            }
            _ => Ok(()),
        }
    }
}

impl Source for BackendResponse {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(self, into)
    }

    fn pass_on(&mut self, out: &mut dyn Write) -> io::Result<(u64, bool)> {
        self.pass_on(u64::MAX, out)
    }

    fn may_wait(&self) -> bool {
        self.here().is_empty() && self.exchange.may_wait()
    }

    fn wait(&mut self, beginning: &mut Beginning<'_>) -> io::Result<bool> {
        while self.here().is_empty() {
            // The bytes go while it waits.
            self.piece = 0..0;
            match self.exchange.next_here()? {
                Some(Said::Piece(piece)) => self.piece = piece,
                Some(Said::End) => break,
                None if self.exchange.fill(beginning)? => {}
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl Source for Announced {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(response) = &mut self.response else {
            return Ok(0);
        };
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let count = response.read(&mut into[..room])?;
        self.note(count as u64, count == 0 && room > 0)?;
        Ok(count)
    }

    fn pass_on(&mut self, out: &mut dyn Write) -> io::Result<(u64, bool)> {
        let Some(response) = &mut self.response else {
            return Ok((0, true));
        };
        let (count, has_ended) = response.pass_on(self.left, out)?;
        self.note(count, has_ended)?;
        Ok((count, self.left == 0))
    }

    fn may_wait(&self) -> bool {
        self.left > 0 && self.response.as_ref().is_some_and(Source::may_wait)
    }

    fn wait(&mut self, beginning: &mut Beginning<'_>) -> io::Result<bool> {
        match &mut self.response {
            Some(response) if self.left > 0 => response.wait(beginning),
            _ => Ok(true),
        }
    }
}

/// A body that waits on without a stack, after its [wait](Source::wait) was stopped.
pub trait Pauses: Source {
    async fn wait_async(&mut self);
}

impl Pauses for BackendResponse {
    async fn wait_async(&mut self) {
        self.exchange.fill_async().await;
    }
}

impl Pauses for Announced {
    async fn wait_async(&mut self) {
        if let Some(response) = &mut self.response {
            response.wait_async().await;
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // The client has the whole body. The backend may still be running, and its connection may be kept afterwards.
        if let (0, Some(response)) = (self.left, self.response.take()) {
            response.forget();
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        match failure {
            Failure::Cancelled(error) | Failure::Client(error) => error,
            other => Broken::error(other.status(), other),
        }
    }
}
