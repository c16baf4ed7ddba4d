//! The rooms of a chat, by name. Their number is bounded, in sum and for each client.
//!
//! A guest holds a [`Seat`]. A room without guests leaves at once, with its history. The lobby stays.
//!
//! In a shared chat a room also has guests in other processes, and it stays for them: its history
//! is theirs too. Each process [announces](Rooms::announce_with) when a room gets its first guest there
//! and when it loses its last, and repeats the former every [`REPEAT`]. A process that has not repeated
//! it for [`FORGET`] has ended, or cannot reach the broker. A room without guests here gives its
//! place to a new room when all places are taken. The lobby has a place of its own.
//!
//! The lock of the table and the lock of a history are never held together. Announcements are made
//! under the lock of the table, so that they leave in the order of the changes.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use osier::pubsub::Topic;

#[cfg(feature = "upgrade")]
use super::way::Way;
use crate::ClientNetwork;
use crate::lock;
use crate::ws::Frame;

/// Room of a guest that names none.
pub(super) const LOBBY: &str = "lobby";

/// Interval at which a process repeats which rooms have guests there.
pub(super) const REPEAT: Duration = Duration::from_secs(30);

/// Time after which the guests of a silent process count no longer.
const FORGET: Duration = Duration::from_secs(100);

/// Tells the other processes whether the room of that name has guests in this one. It must not wait
/// or use the rooms.
pub(super) type Announce = dyn Fn(&str, bool) + Send + Sync;

/// A room's topic and history.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) name: String,
    pub(super) topic: Topic<Frame>,
    pub(super) history: Mutex<History>,
}

/// The last lines of a room.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The lines, as JSON.
    pub(super) lines: VecDeque<Arc<str>>,
    /// The number of lines so far: the place of the last one.
    pub(super) said: u64,
    /// The part of the other process, during an upgrade.
    #[cfg(feature = "upgrade")]
    pub(super) way: Way,
}

impl Room {
    fn new(name: &str, history: History) -> Arc<Room> {
        Arc::new(Room {
            name: name.into(),
            topic: Topic::new(),
            history: Mutex::new(history),
        })
    }
}

pub(super) struct Rooms {
    table: Mutex<HashMap<String, Entry>>,
    /// Most rooms besides the lobby.
    most: usize,
    /// Most rooms in use that one client has opened.
    most_per_client: usize,
    /// Set once, in a shared chat.
    announce: OnceLock<Box<Announce>>,
    /// The way of new rooms.
    #[cfg(feature = "upgrade")]
    way: Mutex<Way>,
}

osier_queue::impl_debug!(Rooms, self => { table: self.table, .. });

#[derive(Debug)]
struct Entry {
    room: Arc<Room>,
    /// Guests in this process.
    seats: usize,
    /// Other processes where the room has guests, and when each has last said so.
    elsewhere: HashMap<u64, Instant>,
    /// The client whose guest has opened the room.
    opener: Option<ClientNetwork>,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.seats == 0 && self.elsewhere.is_empty()
    }
}

/// A guest's seat in a room.
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
            announce: OnceLock::new(),
            #[cfg(feature = "upgrade")]
            way: Mutex::default(),
        }
    }

    /// Sets the way of all rooms, also of later ones. Calls `also` for each room under the lock of its history, before its way changes.
    #[cfg(feature = "upgrade")]
    pub(super) fn set_way(&self, way: &Way, mut also: impl FnMut(&Room, &mut History)) {
        let table = lock(&self.table);
        *lock(&self.way) = way.clone();
        let rooms: Vec<_> = table.values().map(|entry| Arc::clone(&entry.room)).collect();
        drop(table);
        for room in rooms {
            let mut history = lock(&room.history);
            also(&room, &mut history);
            history.way = way.clone();
        }
    }

    /// Takes a seat in the room of that name, and opens it if there is none. No limit applies.
    #[cfg(feature = "upgrade")]
    pub(super) fn seat_anyway(self: &Arc<Self>, name: &str) -> Seat {
        let mut table = lock(&self.table);
        if !table.contains_key(name) {
            self.add(&mut table, name, None);
        }
        let entry = table.get_mut(name).expect("found or added above");
        entry.seats += 1;
        if entry.seats == 1 {
            self.announce(name, true);
        }
        Seat {
            rooms: Arc::clone(self),
            room: Arc::clone(&entry.room),
        }
    }

    /// Sets how this process tells the others which rooms have guests here. A second call does nothing.
    pub(super) fn announce_with(&self, announce: Box<Announce>) {
        let _ = self.announce.set(announce);
    }

    fn announce(&self, name: &str, has_guests: bool) {
        if let Some(announce) = self.announce.get()
            && name != LOBBY
        {
            announce(name, has_guests);
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
        if entry.seats == 1 {
            self.announce(name, true);
        }
        Ok(Seat {
            rooms: Arc::clone(self),
            room: Arc::clone(&entry.room),
        })
    }

    /// The rooms that have guests here, and the guests in them.
    pub(super) fn count(&self) -> (usize, usize) {
        let table = lock(&self.table);
        let seats = table.values().map(|entry| entry.seats).filter(|seats| *seats > 0);
        seats.fold((0, 0), |(rooms, guests), seats| (rooms + 1, guests + seats))
    }

    /// Notes that the room of that name has guests in `process`, and returns the room, which is opened
    /// if need be. `None` if no room can be opened: then nobody here is in it.
    pub(super) fn entered(&self, name: &str, process: u64) -> Option<Arc<Room>> {
        let mut table = lock(&self.table);
        if !table.contains_key(name) && !self.open(&mut table, name, None) {
            return None;
        }
        let entry = table.get_mut(name)?;
        entry.elsewhere.insert(process, osier::time::coarse_now());
        Some(Arc::clone(&entry.room))
    }

    /// Notes that the room of that name has no guests in `process` any more.
    pub(super) fn left(&self, name: &str, process: u64) {
        let mut table = lock(&self.table);
        if let Some(entry) = table.get_mut(name) {
            entry.elsewhere.remove(&process);
            if entry.is_empty() && name != LOBBY {
                table.remove(name);
            }
        }
    }

    /// Announces the rooms with guests once more, and forgets the guests of silent processes.
    pub(super) fn repeat(&self, now: Instant) {
        lock(&self.table).retain(|name, entry| {
            if entry.seats > 0 {
                self.announce(name, true);
            }
            entry
                .elsewhere
                .retain(|_, heard| now.saturating_duration_since(*heard) < FORGET);
            !entry.is_empty() || name == LOBBY
        });
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
        self.add(table, name, opener);
        true
    }

    fn add(&self, table: &mut HashMap<String, Entry>, name: &str, opener: Option<ClientNetwork>) {
        let history = History {
            #[cfg(feature = "upgrade")]
            way: lock(&self.way).clone(),
            ..History::default()
        };
        let entry = Entry {
            room: Room::new(name, history),
            seats: 0,
            elsewhere: HashMap::new(),
            opener,
        };
        table.insert(name.to_owned(), entry);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = lock(&self.rooms.table);
        let Some(entry) = table.get_mut(&self.room.name) else {
            return;
        };
        entry.seats -= 1;
        if entry.seats == 0 {
            self.rooms.announce(&self.room.name, false);
        }
        if entry.is_empty() && self.room.name != LOBBY {
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
    fn a_room_stays_for_guests_elsewhere_and_gives_its_place_when_it_is_needed() {
        let rooms = Arc::new(Rooms::new(2, 2));
        assert!(rooms.entered("a", 7).is_some() && rooms.entered("a", 8).is_some());
        drop(rooms.seat("a", client(1)));
        rooms.left("a", 7);
        assert_eq!(names(&rooms), ["a"]);
        rooms.left("a", 8);
        assert!(names(&rooms).is_empty());

        assert!(rooms.entered("a", 7).is_some() && rooms.entered("b", 7).is_some());
        let (_c, _d) = (rooms.seat("c", client(1)).unwrap(), rooms.seat("d", client(2)).unwrap());
        assert_eq!(names(&rooms), ["c", "d"]);
        assert!(rooms.entered("e", 7).is_none());
        assert!(rooms.entered("c", 7).is_some());
    }

    #[test]
    fn a_process_that_falls_silent_is_forgotten() {
        let rooms = Arc::new(Rooms::new(10, 10));
        let now = osier::time::coarse_now();
        assert!(rooms.entered("a", 7).is_some() && rooms.entered(LOBBY, 7).is_some());
        let seat = rooms.seat("b", client(1));
        rooms.repeat(now + FORGET / 2);
        assert_eq!(names(&rooms), ["a", "b", LOBBY]);
        rooms.repeat(now + 2 * FORGET);
        assert_eq!(names(&rooms), ["b", LOBBY]);
        drop(seat);
        assert_eq!(names(&rooms), [LOBBY]);
    }

    #[test]
    fn the_first_guest_and_the_last_are_announced_in_order() {
        let rooms = Arc::new(Rooms::new(10, 10));
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        rooms.announce_with(Box::new(move |name, has_guests| {
            heard.lock().unwrap().push((name.to_owned(), has_guests));
        }));
        let (one, two, lobby) = (rooms.seat("a", None), rooms.seat("a", None), rooms.seat(LOBBY, None));
        rooms.repeat(osier::time::coarse_now());
        drop((one, two, lobby));
        let expected = [true, true, false].map(|has_guests| ("a".to_owned(), has_guests));
        assert_eq!(*said.lock().unwrap(), expected);
    }
}
