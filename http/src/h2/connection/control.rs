//! Frames of the connection itself, and RST_STREAM: settings, pings, windows, priorities and GOAWAY (RFC 9113 6.3 to 6.9).

use std::time::Instant;

use super::Connection;
use super::data::CLOSED_COST;
use super::ending::{Ending, LAST_PING};
use crate::h2::event::Event;
use crate::h2::frame::{self, Role, Setting};
use crate::h2::limits::INITIAL_WINDOW;
use crate::h2::stream::{Direction, ResetBy, StreamId};
use crate::h2::{Error, ErrorCode, Priority};

/// The cost of a frame that asks for an answer, or changes nothing.
const CONTROL_COST: u32 = 10;

/// The cost of a small DATA frame that the peer's windows have cut: it wakes the owner of its stream, and the next stream is looked for.
const CRUMB_COST: u32 = 5;

const WINDOW_OVERFLOW: Error = Error::new(ErrorCode::FLOW_CONTROL_ERROR, "a window above 2^31-1");

type Reported<'i> = Result<Option<Event<'i>>, Error>;

impl Connection {
    pub(super) fn setting<'i>(&mut self, setting: Setting, now: Instant) -> Reported<'i> {
        self.spend(1, now)?;
        match setting {
            Setting::InitialWindowSize(size) => {
                self.pay_crumbs(now)?;
                let by = i64::from(size) - i64::from(self.peer.initial_window_size);
                for stream in self.streams.iter_mut() {
                    stream.send_window.add(by).map_err(|_| WINDOW_OVERFLOW)?;
                }
            }
            Setting::HeaderTableSize(bytes) => self.encoder.set_max_table_size(bytes),
            Setting::EnablePush(true) if self.role == Role::Client => {
                return Err(Error::protocol("a server enabled push"));
            }
            // RFC 8441 3: a sender "MUST NOT send a SETTINGS_ENABLE_CONNECT_PROTOCOL parameter with the value of 0 after previously
            // sending a value of 1".
            Setting::EnableConnectProtocol(false) if self.peer.enable_connect_protocol => {
                return Err(Error::protocol("the peer withdrew extended CONNECT"));
            }
            _ => {}
        }
        self.peer.apply(setting);
        Ok(None)
    }

    pub(super) fn settings_end<'i>(&mut self, now: Instant) -> Reported<'i> {
        self.spend(CONTROL_COST, now)?;
        self.greeting = None;
        self.output.answer(frame::settings_ack);
        Ok(None)
    }

    /// The peer knows our settings: they hold from here on (RFC 9113 6.5.3).
    pub(super) fn settings_acknowledged<'i>(&mut self, now: Instant) -> Reported<'i> {
        if self.acknowledgement.take().is_none() {
            match self.room.is_acknowledged() {
                true => self.announce_room(),
                false => self.spend(CONTROL_COST, now)?,
            }
            return Ok(None);
        }
        self.reader.set_max_frame_size(self.limits.max_frame);
        self.decoder.set_max_table_size(self.limits.decoder_table);
        let by = i64::from(self.limits.stream_window) - i64::from(INITIAL_WINDOW);
        for stream in self.streams.iter_mut() {
            stream.receive_window.adjust(by);
        }
        self.forgotten.adjust(by);
        self.announce_room();
        Ok(None)
    }

    pub(super) fn ping_received<'i>(&mut self, payload: [u8; 8], now: Instant) -> Reported<'i> {
        self.spend(CONTROL_COST, now)?;
        self.output.answer(|out| frame::pong(out, payload));
        Ok(None)
    }

    pub(super) fn pong_received<'i>(&mut self, payload: [u8; 8], now: Instant) -> Reported<'i> {
        match (self.ending, payload) {
            (Ending::Announced(_), LAST_PING) => self.end_finally(),
            (_, PING) if self.pings > 0 => {
                self.pings -= 1;
                return Ok(Some(Event::Pong));
            }
            _ if self.has_read(payload) => {}
            _ => self.spend(CONTROL_COST, now)?,
        }
        Ok(None)
    }

    /// Sends a PING. [`Event::Pong`] reports the answer.
    pub fn ping(&mut self) {
        self.pings = self.pings.saturating_add(1);
        frame::ping(self.output.frames(), PING);
    }

    pub(super) fn window_update<'i>(&mut self, id: StreamId, increment: u32, now: Instant) -> Reported<'i> {
        // A peer that receives bodies sends some for each DATA frame, as its reader goes on.
        match self.updates_due.checked_sub(1) {
            Some(due) => self.updates_due = due,
            None => self.spend(1, now)?,
        }
        self.pay_crumbs(now)?;
        if id == 0 {
            self.send_window
                .add(i64::from(increment))
                .map_err(|_| WINDOW_OVERFLOW)?;
            return Ok(None);
        }
        if self.is_idle_id(id) {
            return Err(Error::protocol("WINDOW_UPDATE for an idle stream"));
        }
        match self.streams.get_mut(id) {
            Some(stream) if !stream.is_closed() => match stream.send_window.add(i64::from(increment)) {
                Ok(()) => Ok(None),
                Err(_) => self.stream_error(id, ErrorCode::FLOW_CONTROL_ERROR, now),
            },
            // RFC 9113 5.1: such a frame may arrive for a while after the end of a stream.
            _ => Ok(None),
        }
    }

    /// Small DATA frames that the peer's windows have cut are paid for when the peer opens a window again: a peer that opens windows
    /// byte by byte makes more work than it has.
    fn pay_crumbs(&mut self, now: Instant) -> Result<(), Error> {
        match std::mem::take(&mut self.crumbs) {
            0 => Ok(()),
            crumbs => self.spend(crumbs.saturating_mul(CRUMB_COST), now),
        }
    }

    pub(super) fn peer_resets<'i>(&mut self, id: StreamId, code: ErrorCode, now: Instant) -> Reported<'i> {
        if self.is_idle_id(id) {
            return Err(Error::protocol("RST_STREAM for an idle stream"));
        }
        let Some(stream) = self.streams.get_mut(id).filter(|stream| !stream.is_closed()) else {
            return match self.forgotten.peer_ends(id) {
                true => Ok(None),
                false => self.spend(CLOSED_COST, now).map(|()| None),
            };
        };
        stream.reset = Some(ResetBy::Peer);
        // The handler has worked for nothing. Once the response has begun, the request costs the client as much as any other.
        let counts = self.role == Role::Server && stream.sending == Direction::Head;
        self.release(id);
        if counts {
            self.spend_reset(now)?;
        }
        Ok(Some(Event::Reset {
            stream: id,
            code,
            by_peer: true,
        }))
    }

    pub(super) fn priority_update<'i>(&mut self, id: StreamId, priority: Priority, now: Instant) -> Reported<'i> {
        self.spend(5, now)?;
        if let Some(stream) = self.streams.get_mut(id) {
            stream.priority = priority;
            self.has_priorities = true;
        } else if id > self.highest && !id.is_multiple_of(2) {
            if let Some(early) = self.early.iter_mut().find(|(known, _)| *known == id) {
                early.1 = priority;
                return Ok(None);
            }
            // RFC 9218 7.1: idle streams with a priority and active streams together have the limit of streams.
            if self.early.len() + self.active() >= self.most_streams() {
                return Err(Error::protocol("priorities for more streams than the limit"));
            }
            self.early.push((id, priority));
        }
        Ok(None)
    }

    /// GOAWAY has arrived. At a client, streams above `last` have failed.
    pub(super) fn peer_ends<'i>(&mut self, last: StreamId, code: ErrorCode, now: Instant) -> Reported<'i> {
        self.spend(CONTROL_COST, now)?;
        self.peer_goes_away = true;
        if self.role == Role::Client {
            let unread = self
                .streams
                .iter()
                .filter(|stream| stream.id > last && stream.reset.is_none());
            for id in unread.map(|stream| stream.id).collect::<Vec<_>>() {
                if let Some(stream) = self.streams.get_mut(id) {
                    stream.reset = Some(ResetBy::Peer);
                }
                self.release(id);
                self.events.push_back(Event::Reset {
                    stream: id,
                    code: ErrorCode::REFUSED_STREAM,
                    by_peer: true,
                });
            }
        }
        Ok(Some(Event::GoAway { last, code }))
    }
}

const PING: [u8; 8] = *b"osier-up";
