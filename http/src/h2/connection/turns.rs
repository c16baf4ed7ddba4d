//! The order in which streams send (RFC 9218 10): streams that wait for room are granted some, the most urgent first.
//!
//! ```text
//!   send_data takes less than all ──▶ Waits (in the queue) ──▶ next_writable: Granted(room) ──▶ send_data
//! ```
//!
//! Streams of one urgency: first those that are not incremental, one after the other by their ids, then the incremental ones by
//! turns. A stream whose client has sent no priority counts as incremental.

use super::Connection;
use crate::h2::stream::{Stream, StreamId, Turn};

/// The most bytes that an incremental stream sends in one turn.
pub(super) const QUANTUM: usize = 16 << 10;

impl Connection {
    /// The next stream that waits with bytes to send and may go on. The owner calls it until it returns `None`: after `receive`,
    /// `advance`, `reset`, `finish` and `expire`.
    ///
    /// Room is reserved for each stream that it returns, until the owner calls `send_data`, `reset` or `finish` for that stream.
    pub fn next_writable(&mut self) -> Option<StreamId> {
        if self.queue.is_empty() {
            return None;
        }
        let free = self.free();
        // Less than half of the output would come back in crumbs.
        if free == 0 || self.output.len() > self.limits.output_bytes / 2 {
            return None;
        }
        let waiting = self.queue.iter().enumerate().filter_map(|(at, &id)| {
            let stream = self.streams.get(id)?;
            let priority = stream.priority;
            let turn = if priority.incremental { at } else { id as usize };
            (stream.send_window.left() > 0).then_some(((priority.urgency, priority.incremental, turn), at))
        });
        let (_, at) = waiting.min()?;
        let id = self.queue.remove(at);
        let stream = self.streams.get_mut(id)?;
        let quantum = if stream.priority.incremental {
            QUANTUM
        } else {
            usize::MAX
        };
        let room = free.min(stream.send_window.left()).min(quantum);
        stream.turn = Turn::Granted(room as u32);
        self.reserved += room;
        Some(id)
    }

    /// Whether the output has room for more. Without room, an owner need not begin to serve further streams.
    pub fn has_room(&self) -> bool {
        self.output.len() < self.limits.output_bytes
    }

    /// How many streams that wait for room, and could send, come before a stream that begins now.
    pub fn ahead_of(&self, stream: StreamId) -> usize {
        // Nothing moves until the peer opens the window of the connection.
        let may_move = self.send_window.left() > self.reserved;
        match may_move && !self.queue.is_empty() {
            true => self.waiting_before(stream).count(),
            false => 0,
        }
    }

    /// The place among `streams`, in the order of their ids, of the one to serve first by the priorities that the peer has sent.
    /// `None` if there are no streams.
    pub fn most_urgent(&self, streams: impl Iterator<Item = StreamId>) -> Option<usize> {
        let mut places = streams.enumerate();
        if !self.has_priorities {
            return places.next().map(|(at, _)| at);
        }
        let order = |id| {
            let priority = self.priority(id);
            (priority.urgency, priority.incremental)
        };
        places.min_by_key(|&(_, id)| order(id)).map(|(at, _)| at)
    }

    /// The number of bytes that [`send_data`](Self::send_data) would take now.
    pub fn room(&self, stream: StreamId) -> usize {
        self.streams.get(stream).map_or(0, |state| self.room_of(state))
    }

    pub(super) fn room_of(&self, state: &Stream) -> usize {
        let window = state.send_window.left();
        match state.turn {
            Turn::Granted(room) => window.min(room as usize),
            _ if self.has_to_queue(state.id) => 0,
            _ => window.min(self.free()),
        }
    }

    /// The room in the output and in the connection's window that is not reserved. Where the output has any, it has that for a turn: a
    /// stream that gets all but a few bytes out would wait again for these.
    fn free(&self) -> usize {
        let output = match self
            .limits
            .output_bytes
            .saturating_sub(self.output.len() + self.reserved)
        {
            0 => 0,
            left => left.max(QUANTUM),
        };
        output.min(self.send_window.left().saturating_sub(self.reserved))
    }

    /// Whether another stream that could send comes first.
    fn has_to_queue(&self, stream: StreamId) -> bool {
        !self.queue.is_empty() && self.waiting_before(stream).next().is_some()
    }

    /// The streams in the queue that could send and come before this one.
    fn waiting_before(&self, stream: StreamId) -> impl Iterator<Item = &Stream> {
        let urgency = self.priority(stream).urgency;
        let others = self.queue.iter().filter(move |&&id| id != stream);
        let others = others.filter_map(|&id| self.streams.get(id));
        others.filter(move |other| other.priority.urgency <= urgency && other.send_window.left() > 0)
    }

    /// Ends a stream's turn or its waiting, and gives the room back.
    pub(super) fn take_turn(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get_mut(stream) else {
            return;
        };
        match std::mem::replace(&mut state.turn, Turn::None) {
            Turn::None => {}
            Turn::Waits => self.queue.retain(|&id| id != stream),
            Turn::Granted(room) => self.reserved -= room as usize,
        }
    }
}
