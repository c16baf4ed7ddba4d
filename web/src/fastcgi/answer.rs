//! From an application's answer to the response: its head, read and checked, and its body on the way to the client.
//!
//! The handler's fiber reads the head. An answer that has come whole by then, as those of small scripts do, becomes a
//! response of known length at once; any other is passed on piece by piece by the same fiber. What has been written goes out
//! to the client whenever that fiber waits for more, so events and half pages are on their way without a flush; and a client
//! that does not read stops it, and the application in turn.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::time::Duration;

use http::StatusCode;
use osier_http::cgi::{self, Scanner, longest_field};

use super::exchange::{Exchange, Failure, Said};
use crate::response::broken::Broken;

/// What an application may still write and how long it may run when nobody waits for it: after the last byte that it has
/// announced, and where HTTP has no room for a body.
const DRAIN_BYTES: usize = 16 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(60);

/// An answer whose head is there.
pub struct Answer {
    exchange: Exchange,
    /// The head, and what came of the body with it.
    bytes: Vec<u8>,
    head: usize,
    /// What of `bytes` is on its way.
    taken: usize,
    /// What of the exchange's bytes is not.
    piece: Range<usize>,
}

impl Answer {
    /// Reads until the head is there.
    ///
    /// # Suspends
    ///
    /// Until the application has written it.
    pub fn read(exchange: &mut Exchange, limit: usize) -> Result<(Vec<u8>, usize), Failure> {
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

    pub fn new(exchange: Exchange, (bytes, head): (Vec<u8>, usize)) -> Answer {
        Answer {
            exchange,
            bytes,
            head,
            taken: head,
            piece: 0..0,
        }
    }

    /// # Errors
    ///
    /// What the application writes is no head.
    pub fn head(&self) -> Result<cgi::Head<'_>, Failure> {
        cgi::Head::parse(&self.bytes[..self.head]).map_err(|why| Failure::Head(why, String::new()))
    }

    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Whether all of the body has come already; then [`into_body`](Answer::into_body) is it.
    pub fn is_whole(&mut self) -> Result<bool, Failure> {
        loop {
            match self.exchange.next_here()? {
                Some(Said::Piece(piece)) => self.bytes.extend_from_slice(self.exchange.bytes(piece)),
                Some(Said::End) => return Ok(true),
                None => return Ok(false),
            }
        }
    }

    /// What has come of the body.
    pub fn into_body(self) -> Vec<u8> {
        let mut bytes = self.bytes;
        bytes.drain(..self.head);
        bytes
    }

    /// Passes all of the body on.
    ///
    /// # Suspends
    ///
    /// While the application writes, and while the client reads.
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

    /// A body that is not wanted.
    pub fn forget(self) {
        self.exchange.drain_in_background(DRAIN_BYTES, DRAIN_TIME);
    }
}

impl Read for Answer {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let here = match self.bytes.get(self.taken..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => self.exchange.bytes(self.piece.clone()),
            };
            let count = here.len().min(into.len());
            if count > 0 || into.is_empty() {
                into[..count].copy_from_slice(&here[..count]);
                match self.taken < self.bytes.len() {
                    true => self.taken += count,
                    false => self.piece.start += count,
                }
                return Ok(count);
            }
            match self.exchange.next()? {
                Said::Piece(piece) => self.piece = piece,
                Said::End => return Ok(0),
            }
        }
    }
}

/// A body of the length that the application has announced.
pub struct Announced {
    answer: Option<Answer>,
    left: u64,
}

impl Announced {
    pub fn new(answer: Answer, length: u64) -> Announced {
        Announced {
            answer: Some(answer),
            left: length,
        }
    }
}

impl Read for Announced {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(answer) = &mut self.answer else { return Ok(0) };
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let count = answer.read(&mut into[..room])?;
        self.left -= count as u64;
        if count == 0 && self.left > 0 && room > 0 {
            let why = format!(
                "the application ended {} bytes before the Content-Length it had announced",
                self.left
            );
            return Err(Broken::error(StatusCode::BAD_GATEWAY, why));
        }
        Ok(count)
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // The client has all of it; the application may have something to do yet, and its connection may be kept.
        if let (0, Some(answer)) = (self.left, self.answer.take()) {
            answer.forget();
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
