//! Moves a chat to a new process: rooms with their histories, and guests with their places.
//!
//! ```text
//!   old process                                       new process
//!   Begin, Room …                               ──▶   has every room, before it has a guest
//!   Line … , guests, in one order               ──▶   adds the lines; a guest gets those behind its place, then joins
//!   says the line, sends it back as a Line      ◀──   Say: a guest there has said something
//!   End: the last guest has moved               ──▶   says its lines itself from now on, first the unanswered ones
//! ```
//!
//! The old process alone orders lines until its last guest has left. So the place of a line is the same number in both processes. If one
//! process ends early, the other goes on alone.
//!
//! Lock order: a room's history, then [`Pending`].

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::rooms::{History, Room, Rooms, Seat};
use super::way::{News, Pending, Spoken, Way, send};
use super::{Guest, House, line};
use crate::Session;
use crate::lock;
use crate::upgrade::{Link, Part, Saved};
use crate::ws::{Frame, Sender};

/// Bytes of lines in one message, about.
const PIECE: usize = 1 << 20;

/// The state of a house during an upgrade.
#[derive(Debug, Default)]
pub(super) struct Handover {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    way: Way,
    /// The number of the old process at the broker.
    before: Option<u64>,
    /// Seats that keep rooms while all of their guests are in the other process.
    seats: Vec<Seat>,
}

/// A guest that moves.
#[derive(Debug, Serialize, Deserialize)]
struct MovedGuest {
    room: String,
    name: String,
    /// The place of the last line that the guest has received.
    place: u64,
    lines_left: u32,
}

impl Handover {
    /// Whether this process ignores broker messages from the server numbered `from`: the old process receives them too, or has sent them.
    pub(super) fn ignores(&self, from: u64) -> bool {
        let state = lock(&self.state);
        matches!(state.way, Way::Follows(..)) || state.before == Some(from)
    }
}

impl House {
    /// Sends a line to the other process if that one orders the lines. Returns whether it does.
    pub(super) fn asks(&self, room: &Room, name: &str, text: &str, at: u64) -> bool {
        let mut state = lock(&self.handover.state);
        let State { way, seats, .. } = &mut *state;
        let Way::Follows(link, pending) = &*way else {
            return false;
        };
        // Under the same lock: the end of the handover gives up every seat that it finds.
        let room = keep(seats, &self.rooms, &room.name);
        let spoken = Spoken {
            name: name.to_owned(),
            text: text.to_owned(),
            at,
        };
        let mut asked = lock(pending);
        asked.next += 1;
        let id = asked.next;
        let name = room.name.clone();
        asked.lines.push_back((id, name.clone(), spoken.clone()));
        send(link, &News::Say { room: name, id, spoken });
        true
    }

    /// Keeps a room until the end of the handover, and returns it.
    fn keep(&self, name: &str) -> Arc<Room> {
        keep(&mut lock(&self.handover.state).seats, &self.rooms, name)
    }

    fn set_way(&self, way: &Way, also: impl FnMut(&Room, &mut History)) {
        lock(&self.handover.state).way = way.clone();
        self.rooms.set_way(way, also);
    }

    /// Goes on without the other process.
    fn go_on_alone(&self) {
        // New lines wait for this lock, so the unanswered lines come first.
        let mut state = lock(&self.handover.state);
        let remembered = self.options.history;
        self.rooms.set_way(&Way::Alone, |_, history| {
            while history.lines.len() > remembered {
                history.lines.pop_front();
            }
        });
        if let Way::Follows(_, pending) = std::mem::take(&mut state.way) {
            let lines = std::mem::take(&mut lock(&pending).lines);
            for (_, room, Spoken { name, text, at }) in lines {
                if let Some(seat) = state.seats.iter().find(|seat| seat.room.name == room) {
                    seat.room.say(&line(&name, &text, at), remembered);
                    self.relay(&seat.room, &name, &text, at);
                }
            }
        }
        let seats = std::mem::take(&mut state.seats);
        drop(state);
        // This removes rooms without guests.
        drop(seats);
    }

    fn receive_news(&self, news: News, link: &Link) {
        match news {
            News::Begin(before) => {
                lock(&self.handover.state).before = before;
                self.set_way(&Way::Follows(link.clone(), Pending::default()), |_, _| ());
            }
            News::Room { room, said, lines } => {
                let room = self.keep(&room);
                let mut history = lock(&room.history);
                history.lines.extend(lines.into_iter().map(Arc::from));
                history.said = said;
            }
            News::Line { room, line, id } => {
                let room = self.keep(&room);
                let mut history = lock(&room.history);
                if let (Way::Follows(_, pending), Some(id)) = (&history.way, id) {
                    lock(pending).lines.retain(|(known, ..)| *known != id);
                }
                room.add(&mut history, &line, self.options.history);
            }
            News::Say { room, id, spoken } => {
                let Spoken { name, text, at } = spoken;
                let room = self.keep(&room);
                let text_line = line(&name, &text, at);
                let mut history = lock(&room.history);
                history.way.copy(&room.name, &text_line, Some(id));
                room.add(&mut history, &text_line, self.options.history);
                drop(history);
                self.relay(&room, &name, &text, at);
            }
            News::End => self.go_on_alone(),
        }
    }
}

impl Part for House {
    fn leave(&self, link: &Link) {
        send(link, &News::Begin(self.bridge.as_ref().map(|bridge| bridge.id)));
        let mut names = Vec::new();
        self.set_way(&Way::Leads(link.clone()), |room, history| {
            names.push(room.name.clone());
            send_history(link, room, history);
        });
        for name in names {
            self.keep(&name);
        }
    }

    fn receive(&self, message: &[u8], link: &Link) {
        if let Ok(news) = serde_json::from_slice(message) {
            self.receive_news(news, link);
        }
    }

    fn restore(self: Arc<Self>, saved: &[u8]) -> Option<Box<dyn Session>> {
        let moving: MovedGuest = serde_json::from_slice(saved).ok()?;
        let guest = Guest {
            seat: self.rooms.seat_anyway(&moving.room),
            name: moving.name,
            house: Arc::clone(&self),
            sender: None,
            lines_left: moving.lines_left,
            counted: osier::time::coarse_now(),
            place: moving.place,
        };
        Some(self.socket.restore(guest))
    }

    fn left(&self, link: &Link) {
        // A line sent between these two gets no answer. The new process says it itself at `End`.
        self.go_on_alone();
        send(link, &News::End);
    }

    fn alone(&self) {
        self.go_on_alone();
    }
}

/// Takes a seat that keeps a room, if there is none among `seats`. Returns the room.
fn keep(seats: &mut Vec<Seat>, rooms: &Arc<Rooms>, name: &str) -> Arc<Room> {
    if let Some(seat) = seats.iter().find(|seat| seat.room.name == name) {
        return Arc::clone(&seat.room);
    }
    let seat = rooms.seat_anyway(name);
    let room = Arc::clone(&seat.room);
    seats.push(seat);
    room
}

/// Sends the lines of a room so far.
fn send_history(link: &Link, room: &Room, history: &History) {
    let mut place = history.said - history.lines.len() as u64;
    let (mut piece, mut bytes) = (Vec::new(), 0);
    let send_piece = |lines: Vec<String>, said| {
        let room = room.name.clone();
        send(link, &News::Room { room, said, lines });
    };
    for line in &history.lines {
        place += 1;
        bytes += line.len();
        piece.push(line.to_string());
        if bytes >= PIECE {
            bytes = 0;
            send_piece(std::mem::take(&mut piece), place);
        }
    }
    send_piece(piece, place);
}

impl Guest {
    /// Makes the guest leave its room, and notes its place.
    pub(super) fn save_place(&mut self, sender: &Sender) -> Option<Saved> {
        let room = &self.seat.room;
        let history = lock(&room.history);
        let Way::Leads(link) = &history.way else {
            return None;
        };
        sender.leave(&room.topic);
        let moving = MovedGuest {
            room: room.name.clone(),
            name: self.name.clone(),
            place: history.said,
            lines_left: self.lines_left,
        };
        Some(link.saved(serde_json::to_vec(&moving).ok()?))
    }

    /// Sends the guest the lines after its place, and joins the room.
    pub(super) fn return_to_place(&mut self, sender: &Sender) {
        self.sender = Some(sender.clone());
        let room = &self.seat.room;
        let history = lock(&room.history);
        let missed = usize::try_from(history.said.saturating_sub(self.place)).unwrap_or(usize::MAX);
        let kept = history.lines.len();
        let lines = history.lines.iter().skip(kept.saturating_sub(missed));
        // One frame for all lines: the queue may have fewer places than there are lines.
        if let Some(frame) = Frame::joined(lines.map(|line| Frame::text(&**line))) {
            sender.send(frame);
        }
        sender.join(&room.topic);
    }
}
