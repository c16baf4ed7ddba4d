//! DATA frames: both windows, Content-Length, and the end of a body (RFC 9113 6.1 and 8.1.1).

use std::time::Instant;

use super::Connection;
use crate::h2::event::Event;
use crate::h2::stream::{Direction, ResetBy, StreamId};
use crate::h2::{Error, ErrorCode};

/// A DATA frame with fewer bytes costs one unit of the budget of frames.
const TINY: u32 = 16;

/// The cost of an empty DATA frame. An end of stream gives it back.
const EMPTY_COST: u32 = 10;

impl Connection {
    /// A DATA frame begins. Both windows pay for the whole payload.
    pub(super) fn data_begins<'i>(
        &mut self,
        id: StreamId,
        length: u32,
        padding: u32,
        now: Instant,
    ) -> Result<Option<Event<'i>>, Error> {
        self.delivers = false;
        if !self.receive_window.charge(length) {
            let reason = "more DATA than the connection's window";
            return Err(Error::new(ErrorCode::FLOW_CONTROL_ERROR, reason));
        }
        let content = length - padding;
        match content {
            0 => self.spend(EMPTY_COST, now)?,
            1..TINY => self.spend(1, now)?,
            _ => {}
        }
        self.give_back(padding);
        let Some(stream) = self.streams.get_mut(id) else {
            return match self.forgotten.expects(id, length) {
                true => Ok(None),
                false => self.closed_frame(id, now).map(|()| None),
            };
        };
        let code = match (stream.reset, stream.receiving) {
            (Some(ResetBy::Peer), _) => return Err(CLOSED),
            (Some(ResetBy::Us), Direction::Body) if stream.receive_window.charge(length) => return Ok(None),
            (Some(ResetBy::Us), _) => return self.spend(CLOSED_COST, now).map(|()| None),
            (None, Direction::Ended) if stream.sending == Direction::Ended => return Err(CLOSED),
            (None, Direction::Ended) => ErrorCode::STREAM_CLOSED,
            (None, Direction::Head) => ErrorCode::PROTOCOL_ERROR,
            (None, Direction::Body) if !stream.receive_window.charge(length) => ErrorCode::FLOW_CONTROL_ERROR,
            (None, Direction::Body) if stream.is_bodiless && content > 0 => ErrorCode::PROTOCOL_ERROR,
            (None, Direction::Body) => match &mut stream.length_left {
                Some(left) if *left < u64::from(content) => ErrorCode::PROTOCOL_ERROR,
                left => {
                    if let Some(left) = left {
                        *left -= u64::from(content);
                    }
                    self.delivers = true;
                    if let Some(increment) = stream.receive_window.give(padding) {
                        crate::h2::frame::window_update(self.output.frames(), id, increment);
                    }
                    return Ok(None);
                }
            },
        };
        self.stream_error(id, code, now)
    }

    /// A piece of the current DATA frame.
    pub(super) fn data_piece<'i>(
        &mut self,
        id: StreamId,
        bytes: &'i [u8],
        end: bool,
        now: Instant,
    ) -> Result<Option<Event<'i>>, Error> {
        let stream = self.streams.get_mut(id).filter(|stream| stream.reset.is_none());
        let Some(stream) = stream.filter(|_| self.delivers) else {
            // Nobody will read these bytes.
            self.give_back(bytes.len() as u32);
            if end && (self.peer_ends_reset(id) || self.forgotten.peer_ends(id)) {
                self.frames.earn(EMPTY_COST);
            }
            return Ok(None);
        };
        stream.held += bytes.len() as u32;
        if end {
            self.frames.earn(EMPTY_COST);
            if stream.length_left.is_some_and(|left| left > 0) {
                return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, now);
            }
            stream.receiving = Direction::Ended;
        } else if bytes.is_empty() {
            return Ok(None);
        }
        Ok(Some(Event::Data { stream: id, bytes, end }))
    }

    /// Notes that the peer has ended a body whose stream this endpoint has reset, while its handler runs. Returns whether it had not.
    pub(super) fn peer_ends_reset(&mut self, id: StreamId) -> bool {
        let stream = self.streams.get_mut(id);
        let stream = stream.filter(|stream| stream.reset == Some(ResetBy::Us) && stream.receiving == Direction::Body);
        stream.map(|stream| stream.receiving = Direction::Ended).is_some()
    }

    /// A DATA or HEADERS frame of a stream that is not in the table. If this endpoint has dropped the stream, the frame is ignored.
    pub(super) fn closed_frame(&mut self, id: StreamId, now: Instant) -> Result<(), Error> {
        if self.is_idle_id(id) {
            return Err(Error::protocol("a frame for an idle stream"));
        }
        if !self.forgotten.may_hold(id) && !self.ending.ignores(id) {
            return Err(if self.was_used(id) { CLOSED } else { SKIPPED });
        }
        self.spend(CLOSED_COST, now)
    }

    /// Whether no frame has opened the stream yet.
    pub(super) fn is_idle_id(&self, id: StreamId) -> bool {
        // A server never opens streams, as push is off.
        id.is_multiple_of(2) || (id > self.highest && !self.ending.ignores(id))
    }

    /// Notes that the client opens the stream.
    pub(super) fn note_opened(&mut self, id: StreamId) {
        let steps = (id - self.highest).div_ceil(2);
        self.used = self.used.checked_shl(steps).unwrap_or(0) | 1;
        self.highest = id;
    }

    /// Whether the client has opened this stream, and not skipped its id. True for ids that are long past.
    fn was_used(&self, id: StreamId) -> bool {
        let steps = (self.highest - id) / 2;
        self.used.checked_shr(steps).is_none_or(|used| used & 1 != 0)
    }
}

/// The cost of a frame for a stream that is closed.
pub(super) const CLOSED_COST: u32 = 5;

pub(super) const CLOSED: Error = Error::new(ErrorCode::STREAM_CLOSED, "a frame for a closed stream");

/// RFC 9113 5.1.1: the first use of a stream closes all idle ones below it.
pub(super) const SKIPPED: Error = Error::protocol("a stream identifier below one that is in use");
