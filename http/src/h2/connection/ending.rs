//! The end of a connection: GOAWAY after an error, and the graceful one in two steps (RFC 9113 6.8).

use std::time::{Duration, Instant};

use super::Connection;
use crate::h2::frame::{self, Role};
use crate::h2::limits::MAX_WINDOW;
use crate::h2::stream::StreamId;
use crate::h2::{Error, ErrorCode};

/// How far a graceful end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Not,
    /// The peer has been asked to open no more streams. At the answer to a PING, or at this time, new ones are refused.
    Announced(Instant),
    /// Streams above this one are ignored.
    Final(StreamId),
}

impl Ending {
    /// Whether frames of this stream are ignored, because it came after the last GOAWAY.
    pub(super) fn ignores(self, id: StreamId) -> bool {
        matches!(self, Ending::Final(last) if id > last)
    }
}

impl Connection {
    /// Begins a graceful end. A server's client learns at once that it should open no more streams. Streams that it has
    /// opened meanwhile are still served: the second GOAWAY, with the last stream, follows the client's answer to a PING, or a second
    /// later. A client only opens no more streams.
    ///
    /// The owner closes the connection when [`is_done`](Self::is_done).
    pub fn shutdown(&mut self, now: Instant) {
        if self.ending != Ending::Not || self.failed.is_some() {
            return;
        }
        if self.role == Role::Client {
            self.end_finally();
            return;
        }
        let out = self.output.frames();
        frame::go_away(out, MAX_WINDOW, ErrorCode::NO_ERROR, b"");
        frame::ping(out, LAST_PING);
        self.ending = Ending::Announced(now + ANSWER_TIME);
    }

    /// Sends the last GOAWAY.
    pub(super) fn end_finally(&mut self) {
        let last = self.last_read();
        frame::go_away(self.output.frames(), last, ErrorCode::NO_ERROR, b"");
        self.ending = Ending::Final(if self.role == Role::Server { last } else { MAX_WINDOW });
    }

    /// Ends the connection at once. GOAWAY is put into the output, and nothing more is read.
    pub fn close(&mut self, code: ErrorCode) {
        if self.failed.is_none() {
            self.fail(Error::new(code, "closed by this endpoint"));
        }
    }

    /// Whether nothing more will happen: the connection has failed, or it is ending, its last stream has ended, and no reset waits for
    /// the client. The owner writes the output and closes the transport.
    pub fn is_done(&self) -> bool {
        self.failed.is_some() || (self.is_over() && !self.is_over_but_for_resets())
    }

    /// Whether the last stream has ended.
    pub(super) fn is_over(&self) -> bool {
        let is_last = matches!(self.ending, Ending::Final(_)) || self.peer_goes_away;
        self.streams.is_empty() && is_last
    }

    /// Notes an error of the connection and sends GOAWAY.
    pub(super) fn fail(&mut self, error: Error) -> Error {
        self.failed = Some(error);
        let last = self.last_read();
        frame::go_away(self.output.frames(), last, error.code, error.reason.as_bytes());
        (self.incoming, self.partial) = (None, None);
        self.events.clear();
        self.queue.clear();
        error
    }

    /// The last stream of the peer that may have been processed. A server opens none.
    fn last_read(&self) -> StreamId {
        match (self.role, self.ending) {
            (Role::Client, _) => 0,
            (Role::Server, Ending::Final(last)) => last,
            (Role::Server, _) => self.highest,
        }
    }
}

/// The payload of the PING whose answer tells that the client has read the first GOAWAY.
pub(super) const LAST_PING: [u8; 8] = *b"goaway-1";

/// The longest time between the two GOAWAY frames, and for the last answers to PINGs behind responses.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(1);
