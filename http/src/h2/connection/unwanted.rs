//! Request bodies that nobody reads: the response is whole, and the client may still be sending (RFC 9113 8.1).
//!
//! ```text
//!   HEADERS, DATA with END_STREAM, PING ─▶ client        may send what the window of the stream lets through
//!                               PING ACK ◀─ client        has read the response
//!                   RST_STREAM(NO_ERROR) ─▶ client        need not send the rest
//! ```
//!
//! A client that gets the reset together with the response may take it for a failure and drop the response, as curl 7.88 does. So the
//! reset waits until the client has answered a PING behind the response. There is no deadline: a client that reads answers, and one
//! that does not read would not read the reset either. No reset follows if the client ends the body or resets the stream before.
//! Only a connection that is over but for such resets waits no longer than a second for the answers.
//!
//! The streams that wait are marked among the [forgotten](crate::h2::stream::Forgotten) ones. One that is remembered no more is reset
//! at once. A stream that waits is over for everything else: it keeps no connection from being idle or from moving to another process,
//! which sends the reset then.
//!
//! DATA within the window of a forgotten stream costs no more than DATA that a handler reads: the client could not know.

use std::time::Instant;

use super::Connection;
use super::ending::ANSWER_TIME;
use crate::h2::ErrorCode;
use crate::h2::frame;
use crate::h2::stream::StreamId;

impl Connection {
    /// Drops a stream whose body the client may still be sending, as far as `window` allows.
    pub(super) fn forget(&mut self, stream: StreamId, window: i64) {
        let oldest = self.forgotten.push(stream, window);
        self.reset_unwanted(oldest);
    }

    /// Drops a stream as [`forget`](Self::forget) does, and resets it when the client has read the response.
    pub(super) fn reset_when_read(&mut self, stream: StreamId, window: i64) {
        self.forget(stream, window);
        if self.failed.is_none() {
            self.forgotten.wait(stream);
            frame::ping(self.output.frames(), payload(stream));
        }
    }

    /// The client has answered a PING. Returns whether it was one behind a response. The reset may have become needless meanwhile.
    pub(super) fn has_read(&mut self, answered: [u8; 8]) -> bool {
        if !answered.starts_with(READ) || !self.forgotten.takes_answer() {
            return false;
        }
        let stream = self.forgotten.waiting().find(|&stream| payload(stream) == answered);
        if let Some(stream) = stream {
            self.forgotten.stop_waiting(stream);
        }
        self.reset_unwanted(stream);
        true
    }

    /// Whether the connection is over but for resets that wait.
    pub(super) fn is_over_but_for_resets(&self) -> bool {
        self.is_over() && self.forgotten.waiting().next().is_some()
    }

    /// The time at which a connection that is over sends the resets that wait. Its owner calls [`expire`](Self::expire) at once to begin
    /// the time: the end of the last stream has no time of its own.
    pub(super) fn answers_deadline(&self) -> Option<Instant> {
        let deadline = self.answers_until.unwrap_or(self.progress.0);
        self.is_over_but_for_resets().then_some(deadline)
    }

    /// Begins that time, or sends the resets if it has passed.
    pub(super) fn expire_answers(&mut self, now: Instant) {
        if !self.is_over_but_for_resets() {
            return;
        }
        if *self.answers_until.get_or_insert(now + ANSWER_TIME) > now {
            return;
        }
        for stream in self.forgotten.waiting().collect::<Vec<_>>() {
            self.forgotten.stop_waiting(stream);
            self.reset_unwanted(Some(stream));
        }
    }

    /// Whether the peer may still be sending bodies of streams that this endpoint has dropped. An owner that closes the transport then
    /// reads on for a while: a transport that is closed before all is read may discard what was written.
    pub fn has_unread_bodies(&self) -> bool {
        self.forgotten.has_open()
    }

    fn reset_unwanted(&mut self, stream: Option<StreamId>) {
        if let Some(stream) = stream.filter(|_| self.failed.is_none()) {
            frame::reset(self.output.frames(), stream, ErrorCode::NO_ERROR);
        }
    }
}

/// The payload of the PING behind the response of a stream.
fn payload(stream: StreamId) -> [u8; 8] {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(READ);
    payload[4..].copy_from_slice(&stream.to_be_bytes());
    payload
}

/// The beginning of such a payload.
const READ: &[u8; 4] = b"read";
