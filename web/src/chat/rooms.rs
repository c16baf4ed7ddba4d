//! The rooms of a chat, by name. Their number is bounded, in sum and for each client.
//!
//! A guest holds a [`Seat`]. A room whose last seat is dropped leaves at once, with its history. Two
//! kinds of empty rooms stay: the lobby, and the rooms of a shared chat, whose histories other
//! processes fill. An empty room that stays gives its place to a new room when all places are
//! taken. The lobby has a place of its own.
//!
//! The lock of the table and the lock of a history are never held together.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use osier::pubsub::Topic;

use super::lock;
use crate::ClientNetwork;
use crate::ws::Frame;

/// Room of a guest that names none.
pub(super) const LOBBY: &str = "lobby";

/// A room's topic and history.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) name: String,
    pub(super) topic: Topic<Frame>,
    /// The last lines, as JSON.
    pub(super) history: Mutex<VecDeque<Arc<str>>>,
}

#[derive(Debug)]
pub(super) struct Rooms {
    table: Mutex<HashMap<String, Entry>>,
    /// Most rooms besides the lobby.
    most: usize,
    /// Most rooms in use that one client has opened.
    most_per_client: usize,
    /// Whether empty rooms stay until their place is needed.
    pub(super) keeps_empty: bool,
}

#[derive(Debug)]
struct Entry {
    room: Arc<Room>,
    seats: usize,
    /// The client whose guest has opened the room.
    opener: Option<ClientNetwork>,
}

/// A guest's place in a room.
#[derive(Debug)]
pub(super) struct Seat {
    rooms: Arc<Rooms>,
    pub(super) room: Arc<Room>,
}

/// Why a guest gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// Every room is in use.
    House,
    /// The client has opened as many rooms as it may.
    Client,
}

impl Rooms {
    pub(super) fn new(most: usize, most_per_client: usize) -> Rooms {
        Rooms {
            table: Mutex::default(),
            most,
            most_per_client,
            keeps_empty: false,
        }
    }

    /// Takes a seat for a guest of `client` in the room of that name, which is opened if need be.
    pub(super) fn seat(self: &Arc<Self>, name: &str, client: Option<IpAddr>) -> Result<Seat, Full> {
        let mut table = lock(&self.table);
        if !table.contains_key(name) {
            let opener = client.map(ClientNetwork::from);
            let is_theirs = |entry: &&Entry| entry.seats > 0 && entry.opener == opener && entry.room.name != LOBBY;
            if name != LOBBY && opener.is_some() && table.values().filter(is_theirs).count() >= self.most_per_client {
                return Err(Full::Client);
            }
            if !self.open(&mut table, name, opener) {
                return Err(Full::House);
            }
        }
        let entry = table.get_mut(name).expect("found or opened above");
        entry.seats += 1;
        Ok(Seat {
            rooms: Arc::clone(self),
            room: Arc::clone(&entry.room),
        })
    }

    /// The room of that name for lines of other processes, which is opened if need be. `None` if no
    /// room can be opened: then nobody here is in it.
    pub(super) fn relayed(&self, name: &str) -> Option<Arc<Room>> {
        let mut table = lock(&self.table);
        if !table.contains_key(name) && !self.open(&mut table, name, None) {
            return None;
        }
        table.get(name).map(|entry| Arc::clone(&entry.room))
    }

    /// Opens a room. Returns whether there was a place.
    fn open(&self, table: &mut HashMap<String, Entry>, name: &str, opener: Option<ClientNetwork>) -> bool {
        let others = table.len() - usize::from(table.contains_key(LOBBY));
        if name != LOBBY && others >= self.most {
            let mut empty = table.iter().filter(|(name, entry)| entry.seats == 0 && *name != LOBBY);
            let Some(empty) = empty.next().map(|(name, _)| name.clone()) else {
                return false;
            };
            table.remove(&empty);
        }
        let room = Arc::new(Room {
            name: name.into(),
            topic: Topic::new(),
            history: Mutex::default(),
        });
        let entry = Entry { room, seats: 0, opener };
        table.insert(name.to_owned(), entry);
        true
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = lock(&self.rooms.table);
        let Some(entry) = table.get_mut(&self.room.name) else {
            return;
        };
        entry.seats -= 1;
        if entry.seats == 0 && self.room.name != LOBBY && !self.rooms.keeps_empty {
            table.remove(&self.room.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rooms: &Rooms) -> Vec<String> {
        let mut names: Vec<_> = lock(&rooms.table).keys().cloned().collect();
        names.sort();
        names
    }

    fn client(number: u8) -> Option<IpAddr> {
        Some([192, 0, 2, number].into())
    }

    #[test]
    fn an_empty_room_leaves_at_once_and_the_lobby_stays() {
        let rooms = Arc::new(Rooms::new(10, 10));
        let (one, two) = (rooms.seat("a", client(1)), rooms.seat("a", client(2)));
        let lobby = rooms.seat(LOBBY, client(1));
        drop(one);
        assert_eq!(names(&rooms), ["a", LOBBY]);
        drop((two, lobby));
        assert_eq!(names(&rooms), [LOBBY]);
    }

    #[test]
    fn a_client_opens_so_many_rooms_and_the_lobby_always_has_a_place() {
        let rooms = Arc::new(Rooms::new(4, 2));
        let first: Vec<_> = ["a", "b"].map(|name| rooms.seat(name, client(1)).unwrap()).into();
        assert_eq!(rooms.seat("c", client(1)).err(), Some(Full::Client));
        assert!(rooms.seat("c", client(2)).is_ok(), "another client");
        let others: Vec<_> = ["c", "d"].map(|name| rooms.seat(name, client(2)).unwrap()).into();
        assert_eq!(rooms.seat("e", client(3)).err(), Some(Full::House));
        assert!(rooms.seat("c", client(1)).is_ok(), "a room of somebody else");
        assert!(rooms.seat(LOBBY, client(1)).is_ok());
        drop(first);
        assert!(rooms.seat("e", client(1)).is_ok());
        drop(others);
    }

    #[test]
    fn empty_rooms_that_stay_make_room() {
        let mut rooms = Rooms::new(2, 1);
        rooms.keeps_empty = true;
        let rooms = Arc::new(rooms);
        drop(rooms.seat("a", client(1)));
        let heard = rooms.relayed("b");
        assert!(heard.is_some());
        assert_eq!(names(&rooms), ["a", "b"]);
        let (_c, _d) = (rooms.seat("c", client(1)).unwrap(), rooms.seat("d", client(2)).unwrap());
        assert_eq!(names(&rooms), ["c", "d"]);
        assert!(rooms.relayed("e").is_none());
        assert!(rooms.relayed("c").is_some());
    }
}
