//! A chat server: rooms over WebSockets, each with a history.
//!
//! ```
//! use osier_web::{Router, chat::Chat};
//!
//! let router = Router::new().get("/chat", Chat::new().handler());
//! ```
//!
//! A guest connects to `/chat?room=lobby&name=Ada` and sends JSON texts, `{"text": "…"}`. It
//! receives:
//!
//! | message | when |
//! |---|---|
//! | `{"is": "history", "lines": […]}` | first: the last lines of the room |
//! | `{"is": "line", "name": "…", "text": "…", "at": …}` | a guest has sent a line; `at` is in milliseconds since 1970 |
//! | `{"is": "here", "count": …}` | the number of guests has changed; rarely sent in large rooms |
//! | `{"is": "notice", "text": "…"}` | this guest's line was rejected, for the given reason |
//!
//! A chat may be [shared](Chat::shared) with other processes over Redis. Lines and histories are
//! then common to all processes. The number of guests is counted in each process alone.

// # Protocol
//
// A guest is a [`Callbacks`] and holds no stack while it is silent. A line is encoded once and
// published to the room's topic, which queues it for each connection.
//
// `rooms` has the rooms, and `handover` moves them to a new process. The lock of the room's history is held while a line enters
// the history and the topic, and while a guest is sent the history and joins. Every guest thus sees every line once, in one order.
// Lines of different processes may be ordered differently in each process.
//
// A shared chat uses one channel of the broker for all its rooms. A line goes to the local room at
// once and to the channel. The relay, a fiber, delivers lines of other processes to the local
// rooms, and creates the rooms that are missing. The channel also carries which rooms have guests in
// which process, so that a room leaves when it has guests nowhere.

#[cfg(feature = "upgrade")]
mod handover;
mod rooms;
#[cfg(feature = "upgrade")]
mod way;

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use osier::JoinHandle;
use osier::pubsub::{Policy, Subscriber};
use serde::{Deserialize, Serialize};
use serde_json::json;

use self::rooms::{Full, History, LOBBY, REPEAT, Room, Rooms, Seat};
use crate::lock;
use crate::pubsub::{self, Payload};
use crate::ws::{self, Callbacks, Close, Frame, Message, Origins, Sender};
use crate::{Request, Response};

/// Maximum length of a room's name and of a guest's, in characters.
const NAME_MAX: usize = 32;

/// Bounds for the JSON encoding of a line: at most six bytes per byte of text, and 64 bytes for the
/// key and the quotes.
const JSON_FACTOR: usize = 6;
const JSON_ROOM: usize = 64;

/// Number of guests from which a room counts as a crowd. Below it every change of the number is
/// sent to everybody. In a crowd only multiples of a 32nd part are sent; otherwise an arriving
/// crowd would receive little but its own arrivals.
const CROWD: usize = 64;

/// Messages that the relay takes for each turn of the worker. The guests there then take theirs, or a burst would fill the queue of one that
/// keeps up. More than the listener's, which fills the relay's queue.
const RELAYED_A_TURN: usize = 16;

/// Maximum messages of other processes queued for the relay.
const RELAYED: usize = 1024;

/// Limits of a chat.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Lines of history that a new guest receives; 50.
    pub history: usize,
    /// Maximum bytes of a line; 4,096.
    pub line_bytes: usize,
    /// Maximum rooms besides the lobby; 256. When it is reached, a new room replaces an empty one.
    pub rooms: usize,
    /// Maximum rooms in use that the guests of one client have opened, besides the lobby; 16. A
    /// client is an IPv4 address or an IPv6 network of 64 bits. Clients of Unix sockets have no limit.
    pub rooms_per_client: usize,
    /// Lines that a guest may send at once; 10.
    pub burst: u32,
    /// Time after which a guest may send one more line; 500 ms.
    pub line_every: Duration,
    /// Origins whose pages may connect.
    pub origins: Origins,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            history: 50,
            line_bytes: 4096,
            rooms: 256,
            rooms_per_client: 16,
            burst: 10,
            line_every: Duration::from_millis(500),
            origins: Origins::Same,
        }
    }
}

/// The numbers of a chat, in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Rooms that have guests here now.
    pub rooms: usize,
    /// Guests that are in them.
    pub guests: usize,
    /// Lines that guests have sent, without the rejected ones and those of other processes.
    pub lines: u64,
    /// Lines that were rejected because they were too long or came too fast.
    pub rejected: u64,
    /// Guests that were disconnected because they did not take what others said.
    pub slow: u64,
}

/// A set of rooms. Clones share it.
#[derive(Clone, Debug)]
pub struct Chat(Arc<House>);

/// The shared state of all clones of a [`Chat`].
#[derive(Debug)]
struct House {
    options: Options,
    socket: ws::Options,
    rooms: Arc<Rooms>,
    bridge: Option<Bridge>,
    counts: Counts,
    #[cfg(feature = "upgrade")]
    handover: handover::Handover,
}

/// The counts of [`Stats`]. They order nothing.
#[derive(Debug, Default)]
struct Counts {
    lines: AtomicU64,
    rejected: AtomicU64,
    slow: AtomicU64,
}

fn count(number: &AtomicU64) {
    number.fetch_add(1, Ordering::Relaxed);
}

/// The connection of a chat to other processes.
#[derive(Debug)]
struct Bridge {
    /// Random number of this house, to recognise its own messages.
    id: u64,
    /// Broker's options, until the link is started.
    broker: Mutex<Option<pubsub::Options>>,
    channel: String,
    link: OnceLock<Link>,
}

/// The connection to the broker, and the fiber that relays its lines.
#[derive(Debug)]
struct Link {
    channel: pubsub::Room<Relayed>,
    relay: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.relay.cancel();
    }
}

/// A message to other processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Relayed {
    /// [`Bridge::id`] of the sender.
    from: u64,
    room: String,
    #[serde(flatten)]
    news: News,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum News {
    Line {
        name: String,
        text: String,
        at: u64,
    },
    /// Whether the room has guests in the sender's process.
    Guests {
        guests: bool,
    },
}

impl Payload for Relayed {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Relayed> {
        let message: Relayed = serde_json::from_slice(bytes).ok()?;
        is_room(&message.room).then_some(message)
    }
}

impl Chat {
    /// Makes a chat with the default [`Options`]. Rooms are created as guests join.
    pub fn new() -> Chat {
        Chat::with(Options::default())
    }

    /// Makes a chat with `options`.
    pub fn with(options: Options) -> Chat {
        let message = options.line_bytes.saturating_mul(JSON_FACTOR).saturating_add(JSON_ROOM);
        let socket = ws::Options {
            message_bytes: message,
            frame_bytes: message,
            origins: options.origins.clone(),
            policy: Policy::Disconnect,
            ..ws::Options::default()
        };
        let rooms = Rooms::new(options.rooms, options.rooms_per_client);
        Chat(Arc::new(House {
            options,
            socket,
            rooms: Arc::new(rooms),
            bridge: None,
            counts: Counts::default(),
            #[cfg(feature = "upgrade")]
            handover: handover::Handover::default(),
        }))
    }

    /// Shares the chat with other processes: all chats on the same channel of a Redis server are
    /// one. Nothing waits for the broker; while it is unreachable, each process continues alone.
    /// Every client with the right to publish on that channel can write in every room.
    ///
    /// # Panics
    ///
    /// If the chat has been cloned or has guests.
    #[must_use]
    pub fn shared(self, broker: pubsub::Options, channel: &str) -> Chat {
        let mut id = [0; 8];
        getrandom::fill(&mut id).expect("the system has random numbers");
        let mut house = Arc::into_inner(self.0).expect("a chat is shared before it is used");
        assert_eq!(
            Arc::strong_count(&house.rooms),
            1,
            "a chat is shared before it has guests"
        );
        house.bridge = Some(Bridge {
            id: u64::from_le_bytes(id),
            broker: Mutex::new(Some(broker)),
            channel: channel.to_owned(),
            link: OnceLock::new(),
        });
        Chat(Arc::new(house))
    }

    /// Starts receiving lines of the other processes of a shared chat. Otherwise the first guest
    /// starts it. A second call does nothing.
    ///
    /// # Panics
    ///
    /// If the chat is shared and this is called outside of a runtime.
    pub fn start(&self) {
        if let Some(bridge) = &self.0.bridge {
            bridge.start(&self.0);
        }
    }

    /// Registers the chat for upgrades under this name, so that guests move to the new process with their room, their name and their place
    /// in the history. Every chat of a program has a name of its own.
    ///
    /// While guests are in two processes, the old one puts the lines of both in order. So no guest misses a line or gets one twice. In
    /// a [shared](Chat::shared) chat that holds for the lines of guests of the two; a line of another server may be missed or come twice
    /// at the moment at which the new process begins to listen to the broker itself.
    ///
    /// # Panics
    ///
    /// With an empty name.
    #[cfg(feature = "upgrade")]
    pub fn upgradable(&self, upgrade: &crate::upgrade::Upgrade, name: &str) {
        upgrade.part(name, &self.0);
    }

    /// Returns the chat's numbers, for metrics. It takes a time in proportion to the number of rooms.
    ///
    /// ```
    /// let chat = osier_web::chat::Chat::new();
    /// let handler = chat.clone().handler();
    /// # drop(handler);
    /// assert_eq!(chat.stats().guests, 0);
    /// ```
    pub fn stats(&self) -> Stats {
        let (rooms, guests) = self.0.rooms.count();
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let counts = &self.0.counts;
        Stats {
            rooms,
            guests,
            lines: number(&counts.lines),
            rejected: number(&counts.rejected),
            slow: number(&counts.slow),
        }
    }

    /// Makes a handler that gives [`Chat::answer`].
    pub fn handler(self) -> impl Fn(&mut Request<'_>) -> Response + Send + Sync + 'static {
        move |request| self.answer(request)
    }

    /// Upgrades a guest's request to a WebSocket. The query parameters are `room` (lower-case
    /// letters, digits and `-`; `lobby` by default) and `name`.
    ///
    /// A bad room name gets status 400. A client that has opened as many rooms as it may gets 429 for
    /// another one. If every room is in use, a new one gets 503.
    pub fn answer(&self, request: &Request<'_>) -> Response {
        let room = request.query_param("room").unwrap_or_default();
        let room = if room.is_empty() { LOBBY } else { &room };
        self.start();
        if !is_room(room) {
            let why = "a room's name is 1 to 32 characters: a to z, digits and '-'\n";
            return Response::new(StatusCode::BAD_REQUEST).body(why);
        }
        self.0
            .socket
            .upgrade_dormant_with(request, || self.guest(room, request))
    }

    /// Takes a seat for a guest. The error is the response if there is none.
    fn guest(&self, room: &str, request: &Request<'_>) -> Result<Guest, Response> {
        let seat = self
            .0
            .rooms
            .seat(room, request.client_ip())
            .map_err(|full| match full {
                Full::Client => Response::new(StatusCode::TOO_MANY_REQUESTS).body("you have opened too many rooms\n"),
                Full::House => Response::new(StatusCode::SERVICE_UNAVAILABLE).body("no more rooms can be opened\n"),
            })?;
        Ok(Guest {
            name: name(&request.query_param("name").unwrap_or_default()),
            house: self.0.clone(),
            seat,
            sender: None,
            lines_left: self.0.options.burst,
            counted: osier::time::coarse_now(),
            #[cfg(feature = "upgrade")]
            place: 0,
        })
    }
}

impl Default for Chat {
    fn default() -> Chat {
        Chat::new()
    }
}

impl From<Chat> for crate::Handler {
    fn from(chat: Chat) -> crate::Handler {
        chat.handler().into()
    }
}

impl Bridge {
    fn start(&self, house: &Arc<House>) {
        if self.link.get().is_some() {
            return;
        }
        // The lock is held until the link is set, so that a concurrent caller finds it set.
        let mut broker = lock(&self.broker);
        let Some(mut broker) = broker.take() else { return };
        let log: Arc<Log> = Arc::from(broker.log);
        let of_broker = log.clone();
        broker.log = Box::new(move |line| of_broker(line));
        let channel = broker.connect().room::<Relayed>(&self.channel);
        let (told, from) = (channel.clone(), self.id);
        house.rooms.announce_with(Box::new(move |room, guests| {
            told.publish(Relayed {
                from,
                room: room.to_owned(),
                news: News::Guests { guests },
            });
        }));
        let lines = channel.subscribe(RELAYED, Policy::DropOldest);
        let weak = Arc::downgrade(house);
        let relay = osier::fiber::Builder::new().name("chat relay");
        let relay = relay.spawn(move || relay_messages(&weak, lines, &*log));
        let _ = self.link.set(Link { channel, relay });
    }
}

/// Receives log lines for the operator.
type Log = dyn Fn(fmt::Arguments<'_>) + Send + Sync;

/// Runs the relay's fiber, which ends with its house.
fn relay_messages(house: &Weak<House>, mut messages: Subscriber<Relayed>, log: &Log) {
    let (mut lost, mut relayed) = (0, 0_usize);
    let mut repeat_at = osier::time::now() + REPEAT;
    loop {
        let now = osier::time::now();
        if now >= repeat_at {
            repeat_at = now + REPEAT;
            let Some(house) = house.upgrade() else { return };
            house.rooms.repeat(osier::time::coarse_now());
        }
        let message = match messages.recv_timeout(repeat_at.saturating_duration_since(now)) {
            Ok(Some(message)) => message,
            Ok(None) => continue,
            Err(_) => return,
        };
        if messages.dropped() > lost {
            let more = messages.dropped() - lost;
            log(format_args!(
                "chat: up to {more} lines of other processes were dropped: more than {RELAYED} arrived at once"
            ));
            lost += more;
        }
        let Some(house) = house.upgrade() else { return };
        if house.bridge.as_ref().is_none_or(|bridge| bridge.id != message.from) {
            house.hear(message);
        }
        drop(house);
        relayed += 1;
        if relayed.is_multiple_of(RELAYED_A_TURN) {
            osier::yield_now();
        }
    }
}

impl House {
    /// Takes a message of another process.
    fn hear(&self, Relayed { from, room, news }: Relayed) {
        // The old process receives it too, and sends its lines here.
        #[cfg(feature = "upgrade")]
        if self.handover.ignores(from) {
            return;
        }
        match news {
            // If no more room can be created, nobody here is in it.
            News::Line { name: by, text, at } => {
                if let Some(room) = self.rooms.entered(&room, from) {
                    room.say(&line(&name(&by), &text, at), self.options.history);
                }
            }
            News::Guests { guests: true } => drop(self.rooms.entered(&room, from)),
            News::Guests { guests: false } => self.rooms.left(&room, from),
        }
    }
}

impl House {
    /// Says a line of a guest, here and in the other processes.
    fn say(&self, room: &Room, name: &str, text: &str, at: u64) {
        count(&self.counts.lines);
        #[cfg(feature = "upgrade")]
        if self.asks(room, name, text, at) {
            return;
        }
        room.say(&line(name, text, at), self.options.history);
        self.relay(room, name, text, at);
    }

    /// Passes a line on to the other processes of a shared chat.
    fn relay(&self, room: &Room, name: &str, text: &str, at: u64) {
        if let Some(bridge) = &self.bridge
            && let Some(link) = bridge.link.get()
        {
            link.channel.publish(Relayed {
                from: bridge.id,
                room: room.name.clone(),
                news: News::Line {
                    name: name.to_owned(),
                    text: text.to_owned(),
                    at,
                },
            });
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

/// A guest's name as other guests see it.
fn name(wanted: &str) -> String {
    let kept = wanted.chars().filter(|letter| !letter.is_control());
    let name: String = kept.take(NAME_MAX).collect();
    match name.trim() {
        "" => "guest".into(),
        name => name.into(),
    }
}

impl Room {
    /// Publishes a line and adds it to the history.
    fn say(&self, line: &str, remembered: usize) {
        let mut history = lock(&self.history);
        #[cfg(feature = "upgrade")]
        history.way.copy(&self.name, line, None);
        self.add(&mut history, line, remembered);
    }

    /// Adds a line to the history, and publishes it under the lock of the history.
    fn add(&self, history: &mut History, line: &str, remembered: usize) {
        history.lines.push_back(line.into());
        history.said += 1;
        #[cfg(feature = "upgrade")]
        let remembered = history.way.kept(remembered);
        while history.lines.len() > remembered {
            history.lines.pop_front();
        }
        self.topic.publish(Frame::text(line));
    }

    /// Publishes the number of guests, after one has joined or left.
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

/// A line as a guest sends it.
#[derive(Deserialize)]
struct Said {
    text: String,
}

/// The handler of one guest's WebSocket.
struct Guest {
    name: String,
    house: Arc<House>,
    seat: Seat,
    sender: Option<Sender>,
    /// Lines that the guest may send at once, as of `counted`.
    lines_left: u32,
    counted: Instant,
    /// The place of the last line that the guest received in its former process.
    #[cfg(feature = "upgrade")]
    place: u64,
}

impl Guest {
    /// Takes one line from the guest's allowance. Returns whether there was one.
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

    /// Tells this guest alone that its line was rejected.
    fn reject(&self, sender: &Sender, why: &str) {
        count(&self.house.counts.rejected);
        sender.send(json!({"is": "notice", "text": why}).to_string());
    }
}

impl Callbacks for Guest {
    fn on_open(&mut self, sender: &Sender) {
        self.sender = Some(sender.clone());
        {
            let history = lock(&self.seat.room.history);
            let more = history.lines.len().saturating_sub(self.house.options.history);
            let lines: Vec<&str> = history.lines.iter().skip(more).map(|line| &**line).collect();
            sender.send(format!(r#"{{"is":"history","lines":[{}]}}"#, lines.join(",")));
            sender.join(&self.seat.room.topic);
        }
        self.seat.room.count();
        if self.seat.room.topic.subscribers() >= CROWD {
            sender.send(here(self.seat.room.topic.subscribers()));
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
            let why = format!("A line has at most {} bytes.", self.house.options.line_bytes);
            return self.reject(sender, &why);
        }
        if !self.may_speak() {
            return self.reject(sender, "Not so fast: this line was not sent.");
        }
        let at = osier::time::system_now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        self.house.say(&self.seat.room, &self.name, text, at);
        // Many guests may speak at once. Those who only listen take a turn in between, or the lines would fill their queues.
        osier::yield_now();
    }

    #[cfg(feature = "upgrade")]
    fn save(&mut self, sender: &Sender) -> Option<crate::upgrade::Saved> {
        self.save_place(sender)
    }

    #[cfg(feature = "upgrade")]
    fn on_restore(&mut self, sender: &Sender) {
        self.return_to_place(sender);
    }

    fn on_close(&mut self, end: &ws::End) {
        if *end == ws::End::TooSlow {
            count(&self.house.counts.slow);
        }
        if let Some(sender) = self.sender.take()
            && sender.leave(&self.seat.room.topic)
        {
            self.seat.room.count();
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
