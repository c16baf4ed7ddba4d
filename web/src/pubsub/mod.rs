//! Rooms that span processes: a topic here, and a Redis server that tells the other processes.
//!
//! ```no_run
//! use osier::pubsub::Policy;
//! use osier_web::{pubsub::Redis, ws};
//!
//! osier::run(|| {
//!     let redis = Redis::connect("127.0.0.1:6379".parse().unwrap());
//!     let lobby = redis.room::<ws::Frame>("lobby");
//!     let mut everybody = lobby.subscribe(16, Policy::DropOldest);
//!     lobby.publish(ws::Frame::text("hello, all of you")); // in every process that has this room
//!     everybody.recv().unwrap();
//! });
//! ```
//!
//! # Protocol
//!
//! ```text
//!   publish ─┬─▶ Topic of this process, at once                       other processes
//!            └─▶ bounded queue ─▶ publisher fiber ─ PUBLISH ─▶ Redis ─ message ─▶ listener fiber ─▶ their Topic
//! ```
//!
//! - Nothing waits for the broker. While it is away rooms go on in each process; what is to be passed on waits in a queue of
//!   [`Options::queue`] messages, the oldest of which make room and are counted in the log. The connections are made again, after
//!   50 ms and then ever more slowly, every 5 s at most; from 50 ms again once one has lived for 5 s.
//! - A message that the broker refuses (its users may not write to that channel, it is too large), or at which it hangs up five times,
//!   is dropped with a line in the log, and the next one's turn comes. A room that it refuses to tell of stays this process's alone.
//! - On the wire each message carries the number of its process and a number of its own. So a process knows its own messages
//!   and those it has had, and a publisher may repeat what it does not know to have arrived: a broker that is killed and comes back neither
//!   echoes nor doubles. A message without these numbers, of `redis-cli` for example, is delivered as it is.
//! - Redis keeps nothing for those who are away: what is published elsewhere while this process is cut off does not come later.
//!   Messages of one process arrive in its order; processes may see those of different ones in different orders.
//! - Two fibers belong to a [`Redis`], and end with its last clone and its last room.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, str};

use osier::JoinHandle;
use osier::net::Stream;
use osier::pubsub::{Inlet, Policy, Subscriber, Topic};
use osier::sync::Event;

use crate::Address;

mod connection;
mod payload;
mod publisher;
mod wire;

use connection::{Connection, Outage};
pub use payload::Payload;
use wire::Received;

/// A silent broker is asked so often whether it is there; twice as long without an answer is an end.
const PING_EVERY: Duration = Duration::from_secs(15);

/// How to reach a broker.
pub struct Options {
    /// Where it listens.
    pub address: Address,
    /// What it wants to hear first.
    pub password: Option<String>,
    /// Messages that wait to be passed on while it is away; 1,024.
    pub queue: usize,
    /// Takes the lines meant for the operator.
    pub log: Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>,
}

impl Options {
    /// Without a password; logs to the standard error stream.
    pub fn new(address: Address) -> Options {
        Options {
            address,
            password: None,
            queue: 1024,
            log: Box::new(|line| eprintln!("osier-web: {line}")),
        }
    }

    /// Starts the two fibers. Does not wait until the broker answers, and does not fail.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn connect(self) -> Redis {
        let queue = Subscriber::new(self.queue, Policy::DropOldest);
        let mut node = [0; wire::NODE_BYTES];
        getrandom::fill(&mut node).expect("the system has random numbers");
        let shared = Arc::new(Shared {
            options: self,
            node,
            outbound: queue.inlet(),
            rooms: Mutex::default(),
            changed: Event::new(),
        });
        let (publishing, listening) = (shared.clone(), shared.clone());
        let fibers = [
            osier::spawn(move || publisher::run(&publishing, queue)),
            osier::spawn(move || listen(&listening)),
        ];
        Redis(Arc::new(Handle { shared, fibers }))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("address", &self.address)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// A broker that tells other processes. A clone is the same one.
#[derive(Clone)]
pub struct Redis(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    fibers: [JoinHandle<()>; 2],
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.fibers.iter().for_each(JoinHandle::cancel);
    }
}

struct Shared {
    options: Options,
    /// This process, as others know it.
    node: [u8; wire::NODE_BYTES],
    outbound: Inlet<Outbound>,
    rooms: Mutex<HashMap<Arc<str>, Known>>,
    /// A room was added.
    changed: Event,
}

/// A message on its way to the broker.
#[derive(Clone)]
struct Outbound {
    room: Arc<str>,
    bytes: Arc<[u8]>,
}

type Deliver = dyn Fn(&[u8]) -> bool + Send + Sync;

/// A room, whatever its messages are.
#[derive(Clone)]
struct Known {
    /// A `Topic<T>`.
    topic: Arc<dyn Any + Send + Sync>,
    /// Gives a message of another process to the topic. `false`: it is none of this type.
    deliver: Arc<Deliver>,
    /// The broker has said that it will tell of this room.
    is_heard: Arc<AtomicBool>,
}

impl Redis {
    /// As [`Options::connect`] with the defaults.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn connect(address: Address) -> Redis {
        Options::new(address).connect()
    }

    /// The room of that name, which is the broker's channel. It is subscribed to from now on and as long as this `Redis` is there.
    ///
    /// # Panics
    ///
    /// If the room was made for another type of message before.
    pub fn room<T: Payload>(&self, name: &str) -> Room<T> {
        let shared = &self.0.shared;
        let mut rooms = shared.rooms();
        let name: Arc<str> = name.into();
        let is_new = !rooms.contains_key(&name);
        let known = rooms.entry(name.clone()).or_insert_with(Known::new::<T>).clone();
        drop(rooms);
        if is_new {
            shared.changed.set();
        }
        let topic = known.topic.downcast_ref::<Topic<T>>();
        let topic = topic.unwrap_or_else(|| panic!("the room {name:?} has messages of another type"));
        Room {
            topic: topic.clone(),
            is_heard: known.is_heard,
            name,
            redis: self.clone(),
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redis").field(&self.0.shared.options).finish()
    }
}

impl Known {
    fn new<T: Payload>() -> Known {
        let topic = Topic::<T>::new();
        let into = topic.clone();
        Known {
            topic: Arc::new(topic),
            deliver: Arc::new(move |bytes| T::from_bytes(bytes).map(|message| into.publish(message)).is_some()),
            is_heard: Arc::default(),
        }
    }
}

/// A topic that other processes have too.
pub struct Room<T> {
    topic: Topic<T>,
    name: Arc<str>,
    is_heard: Arc<AtomicBool>,
    redis: Redis,
}

impl<T: Payload> Room<T> {
    /// Gives the message to the subscribers of this process, at once, and to those of the others when the broker has it.
    /// Returns how many took it here. Never waits.
    pub fn publish(&self, message: T) -> usize {
        let shared = &self.redis.0.shared;
        shared.outbound.push(Outbound {
            room: self.name.clone(),
            bytes: message.to_bytes().into(),
        });
        self.topic.publish(message)
    }
}

impl<T> Room<T> {
    /// Subscribes in this process; as [`Topic::subscribe`].
    pub fn subscribe(&self, bound: usize, policy: Policy) -> Subscriber<T> {
        self.topic.subscribe(bound, policy)
    }

    /// The topic of this process: what is published to it stays here.
    pub fn topic(&self) -> &Topic<T> {
        &self.topic
    }

    /// Whether messages of other processes come at this moment.
    pub fn is_shared(&self) -> bool {
        self.is_heard.load(Ordering::Acquire)
    }
}

impl<T> Clone for Room<T> {
    fn clone(&self) -> Self {
        Room {
            topic: self.topic.clone(),
            name: self.name.clone(),
            is_heard: self.is_heard.clone(),
            redis: self.redis.clone(),
        }
    }
}

impl<T> fmt::Debug for Room<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room")
            .field("name", &self.name)
            .field("topic", &self.topic)
            .field("shared", &self.is_shared())
            .finish()
    }
}

impl Shared {
    fn rooms(&self) -> MutexGuard<'_, HashMap<Arc<str>, Known>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        (self.options.log)(line);
    }
}

/// The listener's fiber.
fn listen(shared: &Shared) {
    let mut outage = Outage::none();
    let mut seen = wire::Seen::default();
    loop {
        let error = match Connection::open(&shared.options) {
            Ok(connection) => hear(shared, connection, &mut outage, &mut seen),
            Err(error) => error,
        };
        shared
            .rooms()
            .values()
            .for_each(|room| room.is_heard.store(false, Ordering::Release));
        if outage.failed() {
            shared.log(format_args!(
                "redis {} is not there ({error}): rooms go on in this process alone until it is",
                shared.options.address
            ));
        }
        outage.sleep();
    }
}

/// Subscribes and delivers until the connection fails.
fn hear(shared: &Shared, mut connection: Connection, outage: &mut Outage, seen: &mut wire::Seen) -> io::Error {
    if let Err(error) = connection.stream.set_read_timeout(Some(2 * PING_EVERY)) {
        return error;
    }
    let Connection { stream, parser } = &mut connection;
    osier::scope(|scope| {
        let stream = &*stream;
        let subscribing = scope.spawn_local(|| {
            if subscribe(shared, stream).is_err() {
                let _ = stream.shutdown(Shutdown::Both); // the reader hears of it
            }
        });
        let error = loop {
            let value = match parser.parse_value(stream) {
                Ok(value) => value,
                Err(error) => break io::Error::other(error),
            };
            let address = &shared.options.address;
            if let Some(time) = outage.over() {
                shared.log(format_args!("redis {address} is back after {time:.1?}"));
            }
            // One room that it does not tell of is no reason to hear nothing of the others.
            let value = match value.extract_error() {
                Ok(value) => value,
                Err(error) => {
                    shared.log(format_args!("redis {address} refuses to tell of a room: {error}"));
                    continue;
                }
            };
            match wire::received(&value) {
                Received::Subscribed(name) => {
                    if let Some(room) = shared.rooms().get(name) {
                        room.is_heard.store(true, Ordering::Release);
                    }
                }
                Received::Message { room, bytes } => deliver(shared, seen, room, bytes),
                Received::Other => {}
            }
        };
        subscribing.cancel();
        error
    })
}

fn deliver(shared: &Shared, seen: &mut wire::Seen, name: &str, bytes: &[u8]) {
    let message = match wire::unpack(bytes) {
        Some((node, ..)) if node == shared.node => return, // was delivered when it was published
        Some((node, sequence, _)) if !seen.is_new(node, sequence) => return,
        Some((.., message)) => message,
        None => bytes,
    };
    let Some(room) = shared.rooms().get(name).cloned() else {
        return;
    };
    if !(room.deliver)(message) {
        shared.log(format_args!(
            "redis {}: a message of {} bytes in {name:?} is none of this room's and was dropped",
            shared.options.address,
            message.len()
        ));
    }
}

/// Subscribes to the rooms there are and to those that come, and asks whether the broker is there.
fn subscribe(shared: &Shared, mut stream: &Stream) -> io::Result<()> {
    let mut known: HashSet<Arc<str>> = HashSet::new();
    loop {
        let names: Vec<Arc<str>> = shared.rooms().keys().cloned().collect();
        let mut bytes = Vec::new();
        for name in names {
            if known.insert(name.clone()) {
                redis::cmd("SUBSCRIBE").arg(&*name).write_packed_command(&mut bytes);
            }
        }
        if bytes.is_empty() {
            bytes = redis::cmd("PING").get_packed_command();
        }
        stream.write_all(&bytes)?;
        shared.changed.wait_timeout(PING_EVERY);
    }
}
