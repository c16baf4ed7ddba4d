//! A chat: rooms over WebSockets, with a history, for as many as come.
//!
//! ```
//! use osier_web::{Request, Router, chat::{Chat, Options}};
//!
//! let chat = Chat::new(Options::default());
//! let router = Router::new().get("/chat", move |request: &mut Request<'_>| chat.join(request));
//! ```
//!
//! A guest connects to `/chat?room=lobby&name=Ada` and sends JSON texts, `{"text": "…"}`. It gets
//!
//! | message | when |
//! |---|---|
//! | `{"is": "history", "lines": […]}` | first: the last lines of the room |
//! | `{"is": "line", "name": "…", "text": "…", "at": …}` | somebody has said something, at this time in milliseconds since 1970 |
//! | `{"is": "here", "count": …}` | somebody has come or gone; of a crowd, now and then |
//! | `{"is": "notice", "text": "…"}` | for this guest alone: its line was not taken, and why |
//!
//! # Protocol
//!
//! A guest is a [`Handler`] and holds no stack while it is silent. A line is encoded once and published to the room's topic, which puts
//! it into the queue of each connection; nothing polls. The room's lock is held while a line enters both history and
//! topic, and while a guest is given the history and joins: so everybody sees every line once, in one order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use osier::pubsub::{Policy, Topic};
use serde::Deserialize;
use serde_json::json;

use crate::ws::{self, Close, Frame, Handler, Message, Origins, Sender};
use crate::{Request, Response};

/// The room of who names none.
const LOBBY: &str = "lobby";

/// Letters of a room's name and of a guest's.
const NAME_MAX: usize = 32;

/// What JSON adds to a text: a name, quotes and, at the worst, six bytes for one.
const JSON_FACTOR: usize = 6;
const JSON_ROOM: usize = 64;

/// In a room of fewer everybody hears of each who comes and goes; above it, of every 32nd part. Else a crowd that comes hears of
/// little but itself.
const CROWD: usize = 64;

/// What a chat allows.
#[derive(Clone, Debug)]
pub struct Options {
    /// Lines that a newcomer is shown; 50.
    pub history: usize,
    /// Bytes of a line; 4,096.
    pub line_bytes: usize,
    /// Rooms at once; 256. For one more an empty room is given up.
    pub rooms: usize,
    /// Lines that a guest may say at once; 10.
    pub burst: u32,
    /// And after them one in this time; 500 ms.
    pub line_every: Duration,
    /// Whose pages may connect.
    pub origins: Origins,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            history: 50,
            line_bytes: 4096,
            rooms: 256,
            burst: 10,
            line_every: Duration::from_millis(500),
            origins: Origins::Same,
        }
    }
}

/// The rooms. A clone has the same ones.
#[derive(Clone, Debug)]
pub struct Chat(Arc<House>);

#[derive(Debug)]
struct House {
    options: Options,
    socket: ws::Options,
    rooms: Mutex<HashMap<String, Arc<Room>>>,
}

#[derive(Debug)]
struct Room {
    topic: Topic<Frame>,
    /// The last lines, as JSON.
    history: Mutex<VecDeque<Arc<str>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chat {
    /// A house without rooms; they are made as guests come.
    pub fn new(options: Options) -> Chat {
        let message = options.line_bytes.saturating_mul(JSON_FACTOR).saturating_add(JSON_ROOM);
        let socket = ws::Options {
            message_bytes: message,
            frame_bytes: message,
            origins: options.origins.clone(),
            policy: Policy::Disconnect,
            ..ws::Options::default()
        };
        Chat(Arc::new(House {
            options,
            socket,
            rooms: Mutex::default(),
        }))
    }

    /// Answers a guest: the parameters `room` (lower-case letters, digits, `-`; `lobby` if there is none) and `name` of the query say where
    /// it goes and who it is.
    pub fn join(&self, request: &Request<'_>) -> Response {
        let room = request.query_param("room").unwrap_or_default();
        let room = if room.is_empty() { LOBBY } else { &room };
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if room.len() > NAME_MAX || !room.bytes().all(is_name) {
            let why = "the name of a room is up to 32 letters a to z, digits and '-'\n";
            return Response::new(StatusCode::BAD_REQUEST).body(why);
        }
        let Some(room) = self.room(room) else {
            return Response::new(StatusCode::SERVICE_UNAVAILABLE).body("all rooms are taken\n");
        };
        let guest = Guest {
            name: name(&request.query_param("name").unwrap_or_default()),
            house: self.0.clone(),
            room,
            sender: None,
            lines_left: self.0.options.burst,
            counted: osier::time::coarse_now(),
        };
        self.0.socket.upgrade_dormant(request, guest)
    }

    /// The room of that name; `None` if there are too many with somebody in them.
    fn room(&self, name: &str) -> Option<Arc<Room>> {
        let mut rooms = lock(&self.0.rooms);
        if let Some(room) = rooms.get(name) {
            return Some(room.clone());
        }
        if rooms.len() >= self.0.options.rooms {
            // One whom nobody else has in hand, either: a guest that is about to join holds it.
            let is_empty = |room: &Arc<Room>| Arc::strong_count(room) == 1;
            let empty = rooms
                .iter()
                .find(|(_, room)| is_empty(room))
                .map(|(name, _)| name.clone())?;
            rooms.remove(&empty);
        }
        let room = Arc::new(Room {
            topic: Topic::new(),
            history: Mutex::default(),
        });
        rooms.insert(name.to_owned(), room.clone());
        Some(room)
    }
}

/// A guest's name as others see it.
fn name(wanted: &str) -> String {
    let kept = wanted.chars().filter(|letter| !letter.is_control());
    let name: String = kept.take(NAME_MAX).collect();
    match name.trim() {
        "" => "guest".into(),
        name => name.into(),
    }
}

impl Room {
    /// Says it to everybody, and remembers it.
    fn say(&self, line: &str, remembered: usize) {
        let frame = Frame::text(line);
        let mut history = lock(&self.history);
        history.push_back(line.into());
        while history.len() > remembered {
            history.pop_front();
        }
        self.topic.publish(frame);
    }

    /// Tells who is here, after one has come or gone.
    fn count(&self) {
        let count = self.topic.subscribers();
        if count < CROWD || count.is_multiple_of(count / 32) {
            self.topic.publish(here(count));
        }
    }
}

fn here(count: usize) -> Frame {
    Frame::text(json!({"is": "here", "count": count}).to_string())
}

/// What a guest sends.
#[derive(Deserialize)]
struct Said {
    text: String,
}

struct Guest {
    name: String,
    house: Arc<House>,
    room: Arc<Room>,
    sender: Option<Sender>,
    /// It may say so many at once, counted at this time.
    lines_left: u32,
    counted: Instant,
}

impl Guest {
    fn may_speak(&mut self) -> bool {
        let options = &self.house.options;
        let now = osier::time::coarse_now();
        let every = options.line_every.max(Duration::from_millis(1));
        let earned = now.duration_since(self.counted).as_millis() / every.as_millis();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.lines_left = self.lines_left.saturating_add(earned).min(options.burst);
            self.counted = now;
        }
        let may = self.lines_left > 0;
        self.lines_left = self.lines_left.saturating_sub(1);
        may
    }
}

fn notice(sender: &Sender, text: &str) {
    sender.send(json!({"is": "notice", "text": text}).to_string());
}

impl Handler for Guest {
    fn on_open(&mut self, sender: &Sender) {
        self.sender = Some(sender.clone());
        {
            let history = lock(&self.room.history);
            let lines: Vec<&str> = history.iter().map(|line| &**line).collect();
            sender.send(format!(r#"{{"is":"history","lines":[{}]}}"#, lines.join(",")));
            sender.join(&self.room.topic);
        }
        self.room.count();
        if self.room.topic.subscribers() >= CROWD {
            sender.send(here(self.room.topic.subscribers()));
        }
    }

    fn on_message(&mut self, message: Message, sender: &Sender) {
        let said = message
            .as_text()
            .and_then(|text| serde_json::from_str::<Said>(text).ok());
        let Some(Said { text }) = said else {
            return sender.close(Close::UNSUPPORTED, r#"a line is {"text": "..."}"#);
        };
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        if text.len() > self.house.options.line_bytes {
            return notice(
                sender,
                &format!("A line has at most {} bytes.", self.house.options.line_bytes),
            );
        }
        if !self.may_speak() {
            return notice(sender, "Not so fast: this line was not sent.");
        }
        let at = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let line = json!({"is": "line", "name": self.name, "text": text, "at": at}).to_string();
        self.room.say(&line, self.house.options.history);
    }

    fn on_close(&mut self, _: Option<&Close>) {
        if let Some(sender) = self.sender.take()
            && sender.leave(&self.room.topic)
        {
            self.room.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_visible() {
        assert_eq!(name("  Ada \n"), "Ada");
        assert_eq!(name("\u{0}\u{7}"), "guest");
        assert_eq!(name(&"ä".repeat(50)).chars().count(), NAME_MAX);
    }
}
