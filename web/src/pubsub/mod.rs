//! Rooms that span processes: each process has a [`Topic`] per room, and a Redis server passes
//! messages between the processes.
//!
//! ```no_run
//! use osier::pubsub::Policy;
//! use osier_web::{pubsub::Redis, ws};
//!
//! osier::run(|| {
//!     let redis = Redis::connect("127.0.0.1:6379".parse().unwrap());
//!     let lobby = redis.room::<ws::Frame>("lobby");
//!     let mut everybody = lobby.subscribe(16, Policy::DropOldest);
//!     lobby.publish(ws::Frame::text("hello, all of you")); // reaches every process that has this room
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
//! - No caller waits for the broker. While it is unreachable, rooms work within each process.
//!   Messages to publish wait in a queue of [`Options::queue`]. When the queue is full the oldest
//!   message is dropped, and the log counts it. They are sent a second after the broker is back, when the
//!   other processes have subscribed again.
//! - Reconnecting starts after 50 ms, and the delay doubles up to 1 s. It is 50 ms again after a
//!   connection that has lived for 5 s. Each delay is shorter by up to a quarter, at random, so that processes come back one by one.
//! - A message is dropped, and logged, if the broker rejects it (too large, or the user may not
//!   write to that channel) or closes the connection at it five times. The next message follows. A
//!   room whose subscription the broker rejects works within this process only.
//! - On the wire each message carries the number of its process and a sequence number. A process
//!   thus discards its own messages and those it has received before. A publisher may repeat a
//!   message whose reply is missing, so a broker that is killed and restarted causes neither echoes
//!   nor duplicates. A message without these numbers, for example from `redis-cli`, is delivered as
//!   it is.
//! - Redis stores no messages: a process does not receive messages that were published while it was
//!   disconnected. [`Options::on_gap`] tells it that. Messages of one process arrive in their order. Messages of different processes
//!   may arrive in different orders at different processes.
//! - A room that has neither a [`Room`] nor a subscriber any more is unsubscribed from within 15 s. One that is asked for again is subscribed
//!   to again.
//! - A [`Redis`] has two fibers, the publisher and the listener. They end with its last clone and
//!   its last room.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, mem, str};

use osier::fiber::say;
use osier::pubsub::{Inlet, Policy, Subscriber, Topic};
use osier::sync::Event;
use osier::{Cancelled, JoinHandle};

use crate::Address;
use crate::conn::transport::Transport;

mod client;
pub(crate) mod connection;
mod payload;
mod publisher;
pub(crate) mod resp;
mod wire;

pub use client::{Client, Refused, Reply};
use connection::{Connection, LONGEST_WAIT, Outage, PATIENCE, Tls};
pub use payload::Payload;
use wire::Received;

/// Received messages for each turn of the worker. Its readers then take theirs, or a burst would fill the queue of one that keeps up.
const TURN: usize = 8;

/// Interval of PING to a silent broker. The connection has failed after twice this time without a
/// reply.
const PING_EVERY: Duration = Duration::from_secs(15);

/// Connection settings of a broker.
pub struct Options {
    /// Address of the broker.
    pub address: Address,
    /// Password, sent with AUTH.
    pub password: Option<String>,
    /// Maximum messages that wait to be published while the broker is unreachable; 1,024.
    pub queue: usize,
    /// Receives log lines for the operator.
    pub log: Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>,
    /// Called with the name of a room when this process is subscribed to it again after an outage. Messages that
    /// others have published meanwhile may be missing: fetch them from where you store them. It runs on the
    /// listener's fiber, so let it only notify another fiber. It does nothing by default.
    ///
    /// ```no_run
    /// use osier::sync::Event;
    /// use osier_web::pubsub::Options;
    /// use std::sync::Arc;
    ///
    /// let fetch = Arc::new(Event::new()); // a fiber waits for it, and fetches what is missing
    /// let gap = fetch.clone();
    /// osier::run(|| {
    ///     let redis = Options {
    ///         on_gap: Box::new(move |_room| gap.set()),
    ///         ..Options::new("127.0.0.1:6379".parse().unwrap())
    ///     }
    ///     .connect();
    /// });
    /// ```
    pub on_gap: Box<dyn Fn(&str) + Send + Sync>,
    /// Speaks TLS to the broker, whose certificate must have the host of the address.
    #[cfg(feature = "tls")]
    pub tls: Option<osier_tls::Connector>,
}

impl Options {
    /// Makes options without a password, which log to standard error.
    pub fn new(address: Address) -> Options {
        Options {
            address,
            password: None,
            queue: 1024,
            log: Box::new(|line| say(format_args!("osier-web: {line}"))),
            on_gap: Box::new(|_| ()),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    fn open(&self) -> io::Result<Connection> {
        let tls = Tls {
            #[cfg(feature = "tls")]
            connector: self.tls.clone(),
        };
        Connection::open(&self.address, self.password.as_deref(), &tls)
    }

    /// Starts the two fibers. Returns at once and cannot fail: the connections are made later.
    ///
    /// # Panics
    ///
    /// If called outside of a runtime.
    pub fn connect(self) -> Redis {
        let queue = Subscriber::new(self.queue, Policy::DropOldest);
        let mut node = [0; wire::NODE_BYTES];
        getrandom::fill(&mut node).expect("the system has random numbers");
        let shared = Arc::new(RedisState {
            options: self,
            node,
            outbound: queue.inlet(),
            rooms: Mutex::default(),
            changed: Event::new(),
            lost: Mutex::default(),
        });
        let (publishing, listening) = (shared.clone(), shared.clone());
        let fibers = [
            osier::spawn(move || publisher::run(&publishing, queue)),
            osier::spawn(move || listen(&listening)),
        ];
        Redis(Arc::new(Handle { shared, fibers }))
    }
}

osier_queue::impl_debug!(Options, self => { address: self.address, queue: self.queue, .. });

/// A connection to a broker that passes messages to other processes. Clones share it.
#[derive(Clone)]
pub struct Redis(Arc<Handle>);

/// The owner of the two fibers, which it cancels when it is dropped.
struct Handle {
    shared: Arc<RedisState>,
    fibers: [JoinHandle<()>; 2],
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.fibers.iter().for_each(JoinHandle::cancel);
    }
}

/// The state that the fibers and all rooms share.
struct RedisState {
    options: Options,
    /// Random number of this process on the wire.
    node: [u8; wire::NODE_BYTES],
    outbound: Inlet<Outbound>,
    rooms: Mutex<Rooms>,
    /// Set when a room was added.
    changed: Event,
    /// When the listener last found the broker unreachable.
    lost: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Rooms {
    table: HashMap<Arc<str>, Known>,
    /// The names of rooms that came into the table since the listener last looked. Some may have left it.
    added: Vec<Arc<str>>,
}

/// A message on its way to the broker.
#[derive(Clone)]
struct Outbound {
    room: Arc<str>,
    bytes: Arc<[u8]>,
}

type Deliver = dyn Fn(&[u8]) -> bool + Send + Sync;

/// A room without its message type.
#[derive(Clone)]
struct Known {
    /// The room's `Topic<T>`.
    topic: Arc<dyn Any + Send + Sync>,
    /// Publishes a message of another process to the topic. Returns `false` if the bytes are not of
    /// the room's type.
    deliver: Arc<Deliver>,
    /// Counts the subscribers of this process.
    subscribers: Arc<dyn Fn() -> usize + Send + Sync>,
    /// Whether the broker has confirmed the subscription. Each `Room` has a clone.
    is_subscribed: Arc<AtomicBool>,
    /// Whether it has confirmed one before.
    was_subscribed: Arc<AtomicBool>,
}

impl Redis {
    /// Same as [`Options::connect`], with default options.
    ///
    /// # Panics
    ///
    /// If called outside of a runtime.
    pub fn connect(address: Address) -> Redis {
        Options::new(address).connect()
    }

    /// Returns the room of that name. The name is also the broker's channel, which is subscribed to as long as this process has a clone
    /// of the [`Room`] or a subscriber of it. A clone of its [topic](Room::topic) alone does not count.
    ///
    /// # Panics
    ///
    /// If the room was created with another message type.
    pub fn room<T: Payload>(&self, name: &str) -> Room<T> {
        let shared = &self.0.shared;
        let mut rooms = shared.rooms();
        let name: Arc<str> = name.into();
        let is_new = !rooms.table.contains_key(&name);
        if is_new {
            rooms.added.push(name.clone());
        }
        let known = rooms.table.entry(name.clone()).or_insert_with(Known::new::<T>).clone();
        drop(rooms);
        if is_new {
            shared.changed.set();
        }
        let topic = known.topic.downcast_ref::<Topic<T>>();
        let topic = topic.unwrap_or_else(|| panic!("the room {name:?} has messages of another type"));
        Room {
            topic: topic.clone(),
            is_subscribed: known.is_subscribed,
            name,
            redis: self.clone(),
        }
    }
}

osier_queue::impl_debug!(Redis, self => { options: self.0.shared.options, .. });

impl Known {
    fn new<T: Payload>() -> Known {
        let topic = Topic::<T>::new();
        let (into, of) = (topic.clone(), topic.clone());
        Known {
            topic: Arc::new(topic),
            deliver: Arc::new(move |bytes| T::from_bytes(bytes).map(|message| into.publish(message)).is_some()),
            subscribers: Arc::new(move || of.subscribers()),
            is_subscribed: Arc::default(),
            was_subscribed: Arc::default(),
        }
    }

    /// Whether somebody of this process may publish to the room or hear it. Asked under the lock of the rooms, without which nobody gets
    /// one that nobody has.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.is_subscribed) > 1 || (self.subscribers)() > 0
    }
}

/// A topic that is shared with other processes.
pub struct Room<T> {
    topic: Topic<T>,
    name: Arc<str>,
    is_subscribed: Arc<AtomicBool>,
    redis: Redis,
}

impl<T: Payload> Room<T> {
    /// Publishes the message to this process's subscribers at once, and queues it for the other
    /// processes. Returns the number of local subscribers that took it. Never waits.
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
    /// Subscribes in this process, with the semantics of [`Topic::subscribe`].
    pub fn subscribe(&self, bound: usize, policy: Policy) -> Subscriber<T> {
        self.topic.subscribe(bound, policy)
    }

    /// The topic of this process. Messages published directly to it stay in this process. Keep the room as long as somebody may
    /// [join](crate::ws::Sender::join) the topic.
    pub fn topic(&self) -> &Topic<T> {
        &self.topic
    }

    /// Whether this process receives messages of other processes at this moment.
    pub fn is_shared(&self) -> bool {
        self.is_subscribed.load(Ordering::Acquire)
    }
}

impl<T> Clone for Room<T> {
    fn clone(&self) -> Self {
        Room {
            topic: self.topic.clone(),
            name: self.name.clone(),
            is_subscribed: self.is_subscribed.clone(),
            redis: self.redis.clone(),
        }
    }
}

osier_queue::impl_debug!(Room<T>, self => { name: self.name, topic: self.topic, shared: self.is_shared() });

impl RedisState {
    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self, name: &str) -> Option<Known> {
        self.rooms().table.get(name).cloned()
    }

    /// Counts all rooms as added: a new connection is subscribed to none.
    fn add_all_rooms(&self) {
        let rooms = &mut *self.rooms();
        rooms.added = rooms.table.keys().cloned().collect();
    }

    /// Returns the names of the rooms that were added since the last call.
    fn added_rooms(&self) -> Vec<Arc<str>> {
        let mut rooms = self.rooms();
        let mut added = mem::take(&mut rooms.added);
        added.retain(|name| rooms.table.contains_key(name));
        added
    }

    /// Removes the rooms that nobody has, and returns their names. A room stays that is `asked` for at the broker and not confirmed: the
    /// reply would count for the next room of that name.
    fn forget_unused(&self, asked: &HashSet<Arc<str>>) -> Vec<Arc<str>> {
        let mut unused = Vec::new();
        self.rooms().table.retain(|name, room| {
            let awaits_reply = asked.contains(name) && !room.is_subscribed.load(Ordering::Acquire);
            let stays = awaits_reply || room.is_used();
            if !stays {
                unused.push(name.clone());
            }
            stays
        });
        unused
    }

    fn lost(&self) -> MutexGuard<'_, Option<Instant>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the listener has lately lost the broker. The listeners of other processes have then, too.
    fn was_away(&self) -> bool {
        let since = |at: Instant| osier::time::now().saturating_duration_since(at);
        self.lost().is_some_and(|at| since(at) <= PATIENCE + LONGEST_WAIT)
    }

    /// Calls the program's `on_gap`, whose panic ends no listener.
    fn tell_gap(&self, room: &str) {
        match catch_unwind(AssertUnwindSafe(|| (self.options.on_gap)(room))) {
            Err(payload) if Cancelled::is_payload(&*payload) => resume_unwind(payload),
            Err(_) => self.log(format_args!("'on_gap' panicked for the room {room}")),
            Ok(()) => {}
        }
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        (self.options.log)(line);
    }
}

/// Runs the listener's fiber: reconnects forever.
fn listen(shared: &RedisState) {
    let mut outage = Outage::none();
    let mut seen = wire::Seen::default();
    loop {
        let error = match shared.options.open() {
            Ok(connection) => receive(shared, connection, &mut outage, &mut seen),
            Err(error) => error,
        };
        shared
            .rooms()
            .table
            .values()
            .for_each(|room| room.is_subscribed.store(false, Ordering::Release));
        *shared.lost() = Some(osier::time::now());
        if outage.failed() {
            shared.log(format_args!(
                "redis {} is unreachable ({error}): rooms work within this process only until it is back",
                shared.options.address
            ));
        }
        outage.sleep();
    }
}

/// Subscribes to the rooms and delivers their messages until the connection fails.
fn receive(shared: &RedisState, mut connection: Connection, outage: &mut Outage, seen: &mut wire::Seen) -> io::Error {
    if let Err(error) = connection.transport.socket().set_read_timeout(Some(2 * PING_EVERY)) {
        return error;
    }
    let Connection { transport, replies } = &mut connection;
    let mut delivered = 0_usize;
    osier::scope(|scope| {
        let transport = &**transport;
        let subscribing = scope.spawn_local(|| {
            if subscribe(shared, transport).is_err() {
                let _ = transport.socket().shutdown(Shutdown::Both); // ends the read below
            }
        });
        let error = loop {
            let reply = match replies.next() {
                Ok(reply) => reply,
                Err(error) => break error,
            };
            let address = &shared.options.address;
            if let Some(time) = outage.over() {
                shared.log(format_args!("redis {address} is back after {time:.1?}"));
            }
            // A rejected subscription does not affect the other rooms.
            let reply = match reply.accepted() {
                Ok(reply) => reply,
                Err(error) => {
                    shared.log(format_args!("redis {address} rejects a subscription: {error}"));
                    continue;
                }
            };
            match wire::received(&reply) {
                Received::Subscribed(name) => {
                    let Some(room) = shared.room(name) else { continue };
                    room.is_subscribed.store(true, Ordering::Release);
                    if room.was_subscribed.swap(true, Ordering::Relaxed) {
                        shared.tell_gap(name);
                    }
                }
                Received::Message { room, bytes } => {
                    deliver(shared, seen, room, bytes);
                    delivered += 1;
                    if delivered.is_multiple_of(TURN) {
                        osier::yield_now();
                    }
                }
                Received::Other => {}
            }
        };
        subscribing.cancel();
        error
    })
}

/// Publishes a received message locally, unless it is this process's own or a repetition.
fn deliver(shared: &RedisState, seen: &mut wire::Seen, name: &str, bytes: &[u8]) {
    let message = match wire::unpack(bytes) {
        Some((node, ..)) if node == shared.node => return, // was delivered locally by `publish`
        Some((node, sequence, _)) if !seen.is_new(node, sequence) => return,
        Some((.., message)) => message,
        None => bytes,
    };
    let Some(room) = shared.room(name) else { return };
    if !(room.deliver)(message) {
        shared.log(format_args!(
            "redis {}: dropped a message of {} bytes in {name:?}: it is not of the room's type",
            shared.options.address,
            message.len()
        ));
    }
}

/// Subscribes to all rooms, also those added later, and leaves those that nobody has. Sends a PING when there is nothing else to send.
fn subscribe(shared: &RedisState, mut transport: &Transport) -> io::Result<()> {
    let mut known: HashSet<Arc<str>> = HashSet::new();
    shared.add_all_rooms();
    let mut sweep_at = osier::time::now();
    loop {
        let mut bytes = Vec::new();
        let now = osier::time::now();
        if now >= sweep_at {
            sweep_at = now + PING_EVERY;
            for name in shared.forget_unused(&known) {
                if known.remove(&name) {
                    resp::encode(&mut bytes, &[b"UNSUBSCRIBE", name.as_bytes()]);
                }
            }
        }
        for name in shared.added_rooms() {
            if known.insert(name.clone()) {
                resp::encode(&mut bytes, &[b"SUBSCRIBE", name.as_bytes()]);
            }
        }
        if bytes.is_empty() {
            resp::encode(&mut bytes, &[b"PING"]);
        }
        transport.write_all(&bytes)?;
        transport.flush()?;
        shared.changed.wait_timeout(PING_EVERY);
    }
}
