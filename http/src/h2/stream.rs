//! One stream, and the table of a connection's streams (RFC 9113 5.1).
//!
//! A stream is in the table from its head until the owner of the connection calls `finish` for it. So a stream that is closed for
//! the peer still counts while its handler runs.
//!
//! ```text
//!               receiving                        sending
//!    server:    Body ──▶ Ended                   Head ──▶ Body ──▶ Ended
//!    client:    Head ──▶ Body ──▶ Ended          Body ──▶ Ended
//!               idle = above the highest id;  closed = both Ended, or reset, or not in the table
//! ```

use std::collections::VecDeque;
use std::time::Instant;

use super::Priority;
use super::export::{Reader, Writer};
use super::growth::Pace;
use super::window::{ReceiveWindow, SendWindow};
use crate::message::FieldSection;

/// The number of a stream. The client's are odd.
pub type StreamId = u32;

/// How far one direction of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// The final head has not come yet.
    Head,
    /// The body, or the bytes of a tunnel.
    Body,
    Ended,
}

/// The endpoint that has reset a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResetBy {
    Peer,
    /// This endpoint. The peer may not know yet.
    Us,
}

/// The state of one stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) receiving: Direction,
    pub(super) sending: Direction,
    pub(super) reset: Option<ResetBy>,
    /// A CONNECT request: after a 2xx response only DATA may follow.
    pub(super) is_connect: bool,
    /// A tunnel: the 2xx response to a CONNECT request has been sent or received.
    pub(super) is_tunnel: bool,
    /// A response to HEAD, a 204 or a 304: no body may follow, whatever its Content-Length.
    pub(super) is_bodiless: bool,
    pub(super) is_head: bool,
    pub(super) send_window: SendWindow,
    pub(super) receive_window: ReceiveWindow,
    /// Bytes of the body that the owner has and has not consumed.
    pub(super) held: u32,
    /// How fast the owner consumes them.
    pub(super) pace: Pace,
    /// Bytes that Content-Length still announces.
    pub(super) length_left: Option<u64>,
    /// Bytes of memory that the received heads and the received trailer take.
    pub(super) head_bytes: u32,
    pub(super) priority: Priority,
    pub(super) turn: Turn,
    /// Begin of the time in which the body made too little progress.
    pub(super) waiting_since: Option<Instant>,
    /// Bytes sent in that time.
    pub(super) progress: u32,
    /// Since when the body waits without one more byte sent.
    pub(super) held_since: Option<Instant>,
    /// Whether any progress in that time is enough.
    pub(super) may_be_slow: bool,
}

/// Where a stream is between wanting to send and sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The owner has nothing to send, as far as the connection knows.
    None,
    /// The owner has more bytes than it could send.
    Waits,
    /// The owner has been told to go on, with room for so many bytes.
    Granted(u32),
}

impl Stream {
    /// Makes a stream with the states of receiving and sending.
    pub(super) fn new(
        id: StreamId,
        (receiving, sending): (Direction, Direction),
        send_window: SendWindow,
        receive_window: ReceiveWindow,
    ) -> Stream {
        Stream {
            id,
            receiving,
            sending,
            reset: None,
            is_connect: false,
            is_tunnel: false,
            is_bodiless: false,
            is_head: false,
            send_window,
            receive_window,
            held: 0,
            pace: Pace::default(),
            length_left: None,
            head_bytes: 0,
            priority: UNSIGNALLED,
            turn: Turn::None,
            waiting_since: None,
            progress: 0,
            held_since: None,
            may_be_slow: false,
        }
    }

    /// Counts received fields, of which all streams of the connection hold `all` bytes. Returns false if that would exceed `most`.
    pub(super) fn holds(&mut self, fields: &FieldSection, all: &mut usize, most: usize) -> bool {
        let bytes = fields.memory();
        let fits = *all + bytes <= most;
        if fits {
            *all += bytes;
            self.head_bytes += bytes as u32;
        }
        fits
    }

    /// Whether no frame of the peer belongs to the stream any more.
    pub(super) fn is_closed(&self) -> bool {
        self.reset.is_some() || (self.receiving == Direction::Ended && self.sending == Direction::Ended)
    }
}

/// The priority of a stream without any signal: its response shares the connection with others, for nothing says that the peer
/// wants one after the other.
const UNSIGNALLED: Priority = Priority {
    urgency: 3,
    incremental: true,
};

/// The streams of a connection, by id. Ids only grow, so a new stream goes to the end. Most streams end in their order.
#[derive(Debug, Default)]
pub(super) struct Streams(VecDeque<Stream>);

impl Streams {
    pub(super) const fn new() -> Streams {
        Streams(VecDeque::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, id: StreamId) -> Option<&Stream> {
        self.0.get(self.place(id)?)
    }

    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        let place = self.place(id)?;
        self.0.get_mut(place)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.0.iter_mut()
    }

    /// Adds a stream whose id is higher than all others.
    pub(super) fn push(&mut self, stream: Stream) {
        debug_assert!(self.0.back().is_none_or(|last| last.id < stream.id));
        self.0.push_back(stream);
    }

    pub(super) fn remove(&mut self, id: StreamId) -> Option<Stream> {
        match self.place(id)? {
            // Without looking for what to move.
            0 => self.0.pop_front(),
            place => self.0.remove(place),
        }
    }

    /// Frees the memory of an empty table.
    pub(super) fn rest(&mut self) {
        if self.0.is_empty() {
            self.0 = VecDeque::new();
        }
    }

    /// The place of a stream. The oldest one is asked for most often, and the next one that comes.
    #[inline]
    fn place(&self, id: StreamId) -> Option<usize> {
        match self.0.front()?.id == id {
            true => Some(0),
            false => self.place_behind_first(id),
        }
    }

    fn place_behind_first(&self, id: StreamId) -> Option<usize> {
        let last = self.0.back()?.id;
        match id < last {
            true => self.0.binary_search_by_key(&id, |stream| stream.id).ok(),
            false => (id == last).then(|| self.0.len() - 1),
        }
    }
}

/// The last streams that this endpoint has dropped before their peer ended them, most with a reset. The peer may still send frames for
/// them, which are ignored (RFC 9113 5.1, "closed").
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    /// At most [`FORGOTTEN`], the oldest first.
    streams: Vec<Dropped>,
    /// Answers that the peer still owes, at most 255: one for each stream that has ever waited.
    due: u8,
    /// The highest id that is remembered no more. Below it, a stream may have been dropped or not.
    below: StreamId,
}

/// The most streams that are remembered.
const FORGOTTEN: usize = 16;

/// A stream that this endpoint has dropped.
#[derive(Debug)]
struct Dropped {
    id: StreamId,
    /// The bytes that the peer may send without a larger window. Negative as that of a [`ReceiveWindow`].
    window: i64,
    /// Whether the peer has not ended the stream, as far as this endpoint knows.
    is_open: bool,
    /// Whether the stream is to be reset when its peer has read the response. It is open then.
    waits: bool,
}

impl Forgotten {
    /// Adds a stream with the window that its peer has. Returns the one that is remembered no more, if it waits for its reset.
    pub(super) fn push(&mut self, id: StreamId, window: i64) -> Option<StreamId> {
        let oldest = (self.streams.len() == FORGOTTEN).then(|| self.streams.remove(0));
        self.below = self.below.max(oldest.as_ref().map_or(0, |oldest| oldest.id));
        self.streams.push(Dropped {
            id,
            window,
            is_open: true,
            waits: false,
        });
        oldest.filter(|oldest| oldest.waits).map(|oldest| oldest.id)
    }

    /// Notes that a stream waits for its reset, until the peer answers.
    pub(super) fn wait(&mut self, id: StreamId) {
        if let Some(stream) = self.open(id) {
            stream.waits = true;
            self.due = self.due.saturating_add(1);
        }
    }

    /// Notes that the peer has answered. Returns whether it owed an answer.
    pub(super) fn takes_answer(&mut self) -> bool {
        let due = self.due.checked_sub(1);
        self.due = due.unwrap_or(0);
        due.is_some()
    }

    /// Notes that a stream waits no more.
    pub(super) fn stop_waiting(&mut self, id: StreamId) {
        if let Some(stream) = self.open(id) {
            stream.waits = false;
        }
    }

    /// The streams that wait for their reset.
    pub(super) fn waiting(&self) -> impl Iterator<Item = StreamId> {
        self.streams
            .iter()
            .filter(|stream| stream.waits)
            .map(|stream| stream.id)
    }

    /// A DATA frame has arrived. Returns whether its peer had a window for it, and had not ended the stream.
    pub(super) fn expects(&mut self, id: StreamId, length: u32) -> bool {
        let stream = self.open(id).filter(|stream| stream.window >= i64::from(length));
        stream.map(|stream| stream.window -= i64::from(length)).is_some()
    }

    /// Notes that the peer has ended or reset a stream, which needs no reset then. Returns whether it was open.
    pub(super) fn peer_ends(&mut self, id: StreamId) -> bool {
        let stream = self.open(id);
        stream
            .map(|stream| (stream.is_open, stream.waits) = (false, false))
            .is_some()
    }

    /// Whether the peer may still be sending a body of one of these streams.
    pub(super) fn has_open(&self) -> bool {
        self.streams.iter().any(|stream| stream.is_open)
    }

    /// The peer has learned of a setting that makes the windows larger or smaller by `by` bytes.
    pub(super) fn adjust(&mut self, by: i64) {
        self.streams.iter_mut().for_each(|stream| stream.window += by);
    }

    /// Frees memory that nothing needs.
    pub(super) fn rest(&mut self) {
        self.streams.shrink_to_fit();
    }

    fn open(&mut self, id: StreamId) -> Option<&mut Dropped> {
        self.streams.iter_mut().find(|stream| stream.id == id && stream.is_open)
    }

    pub(super) fn export(&self, to: &mut Writer) {
        to.number(self.due);
        to.number(self.below);
        to.number(self.streams.len() as u64);
        for stream in &self.streams {
            let Dropped {
                id,
                window,
                is_open,
                waits,
            } = *stream;
            to.number(id);
            to.number(window as u64);
            to.number(is_open);
            to.number(waits);
        }
    }

    pub(super) fn import(from: &mut Reader<'_>) -> Option<Forgotten> {
        let (due, below) = (from.number()?, from.stream()?);
        let count = from.number().filter(|count| *count <= FORGOTTEN)?;
        let mut streams = Vec::with_capacity(count);
        for _ in 0..count {
            let (id, window) = (from.stream()?, from.window()?);
            let (is_open, waits) = (from.flag()?, from.flag()?);
            streams.push(Dropped {
                id,
                window,
                is_open,
                waits: waits && is_open,
            });
        }
        Some(Forgotten { streams, due, below })
    }

    /// Whether this endpoint may have dropped the stream.
    pub(super) fn may_hold(&self, id: StreamId) -> bool {
        id <= self.below || self.streams.iter().any(|stream| stream.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_remembered_exactly_until_there_are_many() {
        let mut forgotten = Forgotten::default();
        assert!(!forgotten.may_hold(1));
        (0..16).for_each(|n| assert_eq!(forgotten.push(4 * n + 1, 0), None));
        assert!(forgotten.may_hold(1) && forgotten.may_hold(61) && !forgotten.may_hold(3));
        forgotten.push(65, 0);
        assert!(forgotten.may_hold(1) && forgotten.may_hold(65) && !forgotten.may_hold(3));
        forgotten.push(69, 0);
        assert!(forgotten.may_hold(3) && forgotten.may_hold(5) && !forgotten.may_hold(7));
    }

    #[test]
    fn a_stream_that_waits_is_reported_when_it_is_remembered_no_more() {
        let mut forgotten = Forgotten::default();
        for id in (0..16).map(|n| 2 * n + 1) {
            assert_eq!(forgotten.push(id, 0), None);
            forgotten.wait(id);
        }
        forgotten.wait(99);
        assert_eq!((forgotten.waiting().count(), forgotten.due), (16, 16), "99 is unknown");
        assert!(forgotten.peer_ends(1) && !forgotten.peer_ends(1) && !forgotten.peer_ends(0));
        assert_eq!(forgotten.push(33, 0), None);
        assert_eq!(forgotten.push(35, 0), Some(3));
        assert!(!forgotten.waiting().any(|id| [1, 3, 33, 35].contains(&id)));
    }

    #[test]
    fn the_window_of_a_dropped_stream_is_known_until_its_end() {
        let mut forgotten = Forgotten::default();
        forgotten.push(1, 10);
        assert!(forgotten.expects(1, 9) && !forgotten.expects(1, 2) && !forgotten.expects(3, 0));
        forgotten.adjust(1);
        assert!(forgotten.expects(1, 2) && forgotten.expects(1, 0));
        forgotten.adjust(-1);
        assert!(!forgotten.expects(1, 0), "below zero");
        forgotten.adjust(1);
        assert!(forgotten.peer_ends(1) && !forgotten.expects(1, 0) && !forgotten.has_open());
    }
}
