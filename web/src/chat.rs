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
//! A chat may be [shared](Chat::shared) with other processes over Redis. Lines and histories are then everybody's; who is here is counted in each
//! process alone.
//!
//! # Protocol
//!
//! A guest is a [`Handler`] and holds no stack while it is silent. A line is encoded once and published to the room's topic, which puts
//! it into the queue of each connection; nothing polls. The room's lock is held while a line enters both history and
//! topic, and while a guest is given the history and joins: so everybody sees every line once, in one order (of one process: lines that
//! cross between two may be seen in either).
//!
//! A shared chat has one channel of the broker for all of its rooms. What is said here goes to the room at once and to the channel; a fiber, the
//! relay, puts what others have said into the rooms of this process, and makes those that are not there.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use osier::JoinHandle;
use osier::pubsub::{Policy, Subscriber, Topic};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::pubsub::{self, Payload};
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

/// Lines of other processes that wait for the relay, which waits for nobody.
const RELAYED: usize = 1024;

/// What a chat allows.
#[derive(Clone, Debug, PartialEq)]
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
    shared: Option<Shared>,
}

/// What a chat has with other processes.
#[derive(Debug)]
struct Shared {
    /// This house, as the others know it.
    id: u64,
    /// Until it is started.
    broker: Mutex<Option<pubsub::Options>>,
    channel: String,
    link: OnceLock<Link>,
}

#[derive(Debug)]
struct Link {
    channel: pubsub::Room<Told>,
    relay: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.relay.cancel();
    }
}

/// A line as other processes are told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Told {
    from: u64,
    room: String,
    name: String,
    text: String,
    at: u64,
}

impl Payload for Told {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Told> {
        let told: Told = serde_json::from_slice(bytes).ok()?;
        is_room(&told.room).then_some(told)
    }
}

#[derive(Debug)]
struct Room {
    name: String,
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
        Chat::build(options, None)
    }

    /// The same with other processes: all that name the same channel of a Redis server are one house. Nobody waits for the broker: while it
    /// is away each process goes on alone. Whoever may publish there may speak in every room.
    pub fn shared(options: Options, broker: pubsub::Options, channel: &str) -> Chat {
        let mut id = [0; 8];
        getrandom::fill(&mut id).expect("the system has random numbers");
        let shared = Shared {
            id: u64::from_le_bytes(id),
            broker: Mutex::new(Some(broker)),
            channel: channel.to_owned(),
            link: OnceLock::new(),
        };
        Chat::build(options, Some(shared))
    }

    /// Begins to listen to the other processes of a shared chat; the first guest does so too. A second call does nothing.
    ///
    /// # Panics
    ///
    /// If the chat is shared, outside of a runtime.
    pub fn start(&self) {
        if let Some(shared) = &self.0.shared {
            shared.start(&self.0);
        }
    }

    fn build(options: Options, shared: Option<Shared>) -> Chat {
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
            shared,
        }))
    }

    /// Answers a guest: the parameters `room` (lower-case letters, digits, `-`; `lobby` if there is none) and `name` of the query say where
    /// it goes and who it is.
    pub fn join(&self, request: &Request<'_>) -> Response {
        let room = request.query_param("room").unwrap_or_default();
        let room = if room.is_empty() { LOBBY } else { &room };
        self.start();
        if !is_room(room) {
            let why = "the name of a room is up to 32 letters a to z, digits and '-'\n";
            return Response::new(StatusCode::BAD_REQUEST).body(why);
        }
        let Some(room) = self.0.room(room) else {
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
}

impl House {
    /// The room of that name; `None` if there are too many with somebody in them.
    fn room(&self, name: &str) -> Option<Arc<Room>> {
        let mut rooms = lock(&self.rooms);
        if let Some(room) = rooms.get(name) {
            return Some(room.clone());
        }
        if rooms.len() >= self.options.rooms {
            // One whom nobody else has in hand, either: a guest that is about to join holds it.
            let is_empty = |room: &Arc<Room>| Arc::strong_count(room) == 1;
            let empty = rooms
                .iter()
                .find(|(_, room)| is_empty(room))
                .map(|(name, _)| name.clone())?;
            rooms.remove(&empty);
        }
        let room = Arc::new(Room {
            name: name.into(),
            topic: Topic::new(),
            history: Mutex::default(),
        });
        rooms.insert(name.to_owned(), room.clone());
        Some(room)
    }
}

impl Shared {
    fn start(&self, house: &Arc<House>) {
        if self.link.get().is_some() {
            return;
        }
        // Held until the link is there: who comes second finds it.
        let mut broker = lock(&self.broker);
        let Some(mut broker) = broker.take() else { return };
        let log: Arc<Log> = Arc::from(broker.log);
        let of_broker = log.clone();
        broker.log = Box::new(move |line| of_broker(line));
        let channel = broker.connect().room::<Told>(&self.channel);
        let lines = channel.subscribe(RELAYED, Policy::DropOldest);
        let weak = Arc::downgrade(house);
        let relay = osier::fiber::Builder::new().name("chat relay");
        let relay = relay.spawn(move || relay_lines(&weak, lines, &*log));
        let _ = self.link.set(Link { channel, relay });
    }
}

/// Takes the lines meant for the operator.
type Log = dyn Fn(fmt::Arguments<'_>) + Send + Sync;

/// The relay's fiber; ends with its house.
fn relay_lines(house: &Weak<House>, mut lines: Subscriber<Told>, log: &Log) {
    let mut lost = 0;
    while let Ok(told) = lines.recv() {
        if lines.dropped() > lost {
            let more = lines.dropped() - lost;
            log(format_args!(
                "chat: up to {more} lines of other servers were not shown here: more than {RELAYED} came at once"
            ));
            lost += more;
        }
        let Some(house) = house.upgrade() else { return };
        let is_ours = house.shared.as_ref().is_some_and(|shared| shared.id == told.from);
        // Without a place for one more room nobody here is in it.
        if let (false, Some(room)) = (is_ours, house.room(&told.room)) {
            room.say(&line(&name(&told.name), &told.text, told.at), house.options.history);
        }
    }
}

fn line(name: &str, text: &str, at: u64) -> String {
    json!({"is": "line", "name": name, "text": text, "at": at}).to_string()
}

fn is_room(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_letter)
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
        self.room.say(&line(&self.name, text, at), self.house.options.history);
        if let Some(shared) = &self.house.shared
            && let Some(link) = shared.link.get()
        {
            link.channel.publish(Told {
                from: shared.id,
                room: self.room.name.clone(),
                name: self.name.clone(),
                text: text.to_owned(),
                at,
            });
        }
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
