//! One request on one connection to the application: the opening out, its records in.
//!
//! Made by the handler for each try, and moved into the response's body when that is streamed. Only one fiber reads; the body
//! may go out on another meanwhile (`sender`), whose [`Progress`] tells how long to be patient.
//!
//! An exchange that has ended well gives its connection back; any other closes it, by which the application learns that
//! nobody waits any more. FCGI_ABORT_REQUEST would say the same on a connection that goes on, which only an application that
//! answers several requests at once reads meanwhile; php-fpm and its like look at the next record when they are done with this
//! request, and so would keep the connection from everybody until then.

use std::fmt;
use std::io::{self, Read, Write};
use std::mem;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use osier::Cancelled;
use osier_http::cgi;
use osier_http::fastcgi::{Decoder, Event, Malformed};

use super::sender::{Failed, Progress};
use super::stderr::Stderr;
use crate::conn::buffers::{self, Size};
use crate::upstream::Lease;

/// How long the application may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the end of the request to the first byte of the answer.
    pub first_byte: Duration,
    /// From one piece to the next, and for it to take the next piece of the request.
    pub between: Duration,
}

/// Why there is no answer, or no more of it.
#[derive(Debug)]
pub enum Failure {
    /// The fiber's cancellation: the client is gone.
    Cancelled(io::Error),
    /// The request's body: the client's fault.
    Client(io::Error),
    /// Ours.
    Spool(io::Error),
    TimedOut(&'static str),
    /// The connection broke or ended; whether any of the answer had come.
    Broken {
        why: io::Error,
        answered: bool,
    },
    Malformed(Malformed),
    Head(cgi::Malformed, String),
    /// It ended without a head; its status.
    Nothing(u32),
    Overloaded,
    /// It does not do what every application does: protocol status.
    Unwilling(u8),
}

impl Failure {
    /// What a gateway answers.
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
            Failure::TimedOut(what) => write!(f, "the application {what} in time"),
            Failure::Broken { why, answered: false } => write!(f, "the connection ended before an answer: {why}"),
            Failure::Broken { why, .. } => write!(f, "the connection ended inside the answer: {why}"),
            Failure::Malformed(why) => write!(f, "the application sent {why}"),
            Failure::Head(why, detail) => write!(f, "{why}{detail}"),
            Failure::Nothing(status) => write!(f, "the application ended without an answer, with status {status}"),
            Failure::Overloaded => f.write_str("the application says it is overloaded"),
            Failure::Unwilling(status) => write!(f, "the application refused the request, protocol status {status}"),
        }
    }
}

/// What the application says next.
pub enum Said {
    /// A piece of its answer: a range of [`Exchange::bytes`].
    Piece(Range<usize>),
    /// It has ended, well.
    End,
}

pub struct Exchange {
    /// Taken when this is dropped. The sender has another while it sends.
    lease: Option<Rc<Lease>>,
    decoder: Decoder,
    input: Box<[u8]>,
    /// What of it has not been decoded.
    unread: Range<usize>,
    answered: bool,
    ended: Option<u32>,
    /// The request asks the application to leave the connection open.
    keep: bool,
    /// The connection is at the beginning of another request.
    reusable: bool,
    patience: Patience,
    sending: Rc<Progress>,
    stderr: Stderr,
}

impl Exchange {
    /// `keep`: the request asks the application to leave the connection open.
    pub fn new(lease: Lease, keep: bool, patience: Patience, sending: Rc<Progress>, stderr: Stderr) -> Exchange {
        Exchange {
            lease: Some(Rc::new(lease)),
            decoder: Decoder::new(),
            input: buffers::take(Size::K32),
            unread: 0..0,
            answered: false,
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

    /// Sends `opening`; how much of it is out when that fails.
    pub fn open(&self, opening: &[u8]) -> Result<(), (usize, Failure)> {
        let lease = self.lease();
        let mut stream = lease.stream();
        let mut sent = 0;
        let limited = stream.set_write_timeout(Some(self.patience.between));
        limited.map_err(|why| (0, Failure::Broken { why, answered: false }))?;
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
        // The answer takes its time: the read is to wait for it at once. An error is met again by that read.
        if !lease.is_reused() {
            let _ = stream.watch();
        }
        Ok(())
    }

    /// The bytes that [`Said::Piece`] is a range of, until the next call of `next`.
    pub fn bytes(&self, piece: Range<usize>) -> &[u8] {
        &self.input[piece]
    }

    /// What the application says next, without waiting for it: `None` when it has not come.
    pub fn next_here(&mut self) -> Result<Option<Said>, Failure> {
        while self.ended.is_none() && !self.unread.is_empty() {
            let step = self
                .decoder
                .decode(&self.input[self.unread.clone()])
                .map_err(Failure::Malformed)?;
            self.unread.start += step.consumed;
            match step.event {
                Some(Event::Stdout(piece)) => {
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

    /// What the application says next.
    pub fn next(&mut self) -> Result<Said, Failure> {
        loop {
            if let Some(said) = self.next_here()? {
                return Ok(said);
            }
            self.fill()?;
        }
    }

    fn end(&mut self, app_status: u32, protocol_status: u8) -> Result<Said, Failure> {
        self.ended = Some(app_status);
        self.stderr.end();
        match protocol_status {
            0 => {}
            2 => return Err(Failure::Overloaded),
            other => return Err(Failure::Unwilling(other)),
        }
        if app_status != 0 {
            self.stderr.say(format_args!("ended with status {app_status}"));
        }
        // Padding to come, bytes of nobody, or a body that was not wanted: the next request would meet them.
        let is_clean = self.decoder.is_done() && self.unread.is_empty() && self.sending.is_done();
        self.reusable = self.keep && is_clean;
        Ok(Said::End)
    }

    /// How it ended, for an answer without a head.
    pub fn app_status(&self) -> u32 {
        self.ended.unwrap_or(0)
    }

    /// Reads more; all that has come is decoded.
    fn fill(&mut self) -> Result<(), Failure> {
        debug_assert!(self.unread.is_empty());
        let lease = self.lease();
        let mut stream = lease.stream();
        loop {
            // While the body is on its way nobody knows when the answer begins; the sender has limits of its own.
            let limit = match self.answered {
                true => self.patience.between,
                false => self.patience.first_byte,
            };
            let was_sent = self.sending.is_done();
            let read = stream
                .set_read_timeout(Some(limit))
                .and_then(|()| stream.read(&mut self.input));
            if let Some(failed) = self.sending.failure() {
                return Err(match failed {
                    Failed::Client(why) => Failure::Client(why),
                    Failed::Spool(why) => Failure::Spool(why),
                    Failed::TimedOut => Failure::TimedOut("did not take the request's body"),
                });
            }
            match read {
                Ok(0) => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    (self.unread, self.answered) = (0..count, true);
                    return Ok(());
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                // The body has been on its way, so the answer has all its time yet.
                Err(why) if why.kind() == io::ErrorKind::TimedOut && !was_sent => {}
                Err(why) if why.kind() == io::ErrorKind::TimedOut => {
                    let what = if self.answered {
                        "did not go on"
                    } else {
                        "did not answer"
                    };
                    return Err(Failure::TimedOut(what));
                }
                Err(why) => return Err(self.broken(why)),
            }
        }
    }

    fn broken(&self, why: io::Error) -> Failure {
        if Cancelled::is(&why) {
            return Failure::Cancelled(why);
        }
        let answered = self.answered;
        Failure::Broken { why, answered }
    }

    /// Reads up to the end, of which nobody waits for: so that the application may end in peace, and the connection be kept.
    pub fn drain_in_background(mut self, bytes: usize, time: Duration) {
        // Mostly the end has come with the last piece.
        loop {
            match self.next_here() {
                Ok(Some(Said::Piece(_))) => {}
                Ok(Some(Said::End)) | Err(_) => return,
                Ok(None) => break,
            }
        }
        // It may wait for a body that nobody sends any more.
        if !self.sending.is_done() {
            return;
        }
        let until = osier::time::now() + time;
        osier::spawn_local(move || {
            let mut left = bytes;
            while let Ok(Said::Piece(piece)) = self.next() {
                match left.checked_sub(piece.len()) {
                    Some(rest) if osier::time::now() < until => left = rest,
                    _ => break,
                }
            }
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        buffers::give(mem::take(&mut self.input));
        // The sender has been joined, so this is the only one.
        if self.reusable
            && let Some(lease) = self.lease.take().and_then(Rc::into_inner)
        {
            lease.keep();
        }
    }
}
