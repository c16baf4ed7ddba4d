//! Upgrades the running program: a new process takes over the listening sockets, the connections at rest and the state of the
//! application, and no client notices.
//!
//! ```no_run
//! use osier::signal::{Signal, Signals};
//! use osier_web::upgrade::{Program, Upgrade};
//! use osier_web::{Router, Server};
//!
//! let signals = Signals::new([Signal::USR2])?;
//! osier::run(move || {
//!     let upgrade = Upgrade::new()?;
//!     let server = Server::new(Router::new().get("/", |_| "hello\n")).upgradable(&upgrade, "web");
//!     let listening = server.bind("127.0.0.1:8080")?;
//!     let serving = osier::spawn(move || listening.run());
//!     // In a process that an upgrade has started: until the old process hands over.
//!     upgrade.ready()?;
//!     osier::spawn(move || {
//!         while signals.recv().is_ok() {
//!             match upgrade.run(&Program::this()?) {
//!                 Ok(()) => break, // the servers of this process have ended
//!                 Err(why) => eprintln!("the upgrade has failed: {why}"),
//!             }
//!         }
//!         std::io::Result::Ok(())
//!     });
//!     serving.join().expect("it does not panic");
//!     std::io::Result::Ok(())
//! })?;
//! # std::io::Result::Ok(())
//! ```
//!
//! # What moves
//!
//! - Listening sockets.
//! - Connections that wait for a request or for the rest of a head, also with TLS 1.3, and HTTP/2 connections without streams.
//! - WebSockets in callback style whose callbacks [save](crate::ws::Callbacks::save) themselves. A WebSocket in an HTTP/2 stream stays.
//! - The [`Part`]s of the application.
//!
//! In-flight requests and TLS handshakes end in the old process, and their connections move afterwards. An event stream ends as a
//! complete response, its client reconnects with `Last-Event-ID`, and the connection moves. A TLS 1.2 connection stays, because its keys
//! cannot leave the process: it ends with its next response, or gets a GOAWAY. All other connections end as in a graceful shutdown when
//! the [drain](Program::drain) is over.
//!
//! An application with TLS [gives](Program::give) the new process the keys of its session tickets (`Tickets::export` of `osier_tls`), so
//! that clients can resume their sessions there. `examples/news.rs` in the repository is a program that upgrades itself.
//!
//! # Protocol
//!
//! The old process starts the program with one end of a socket as its standard input.
//!
//! ```text
//!   old process                                              new process
//!   Hello, Item …, Start                              ──▶    opens what it needs
//!                                                     ◀──    Hello, Ready, or Refused
//!   Part …, Go                                        ──▶    serves
//!                                                     ◀──    Accepting
//!   Part …, Connections …                             ──▶    answers Taken, then touches the connections
//!   Done                                              ──▶
//! ```
//!
//! After a failure before `Go`, the old process goes on as before. If the new process ends later, while the old one still has
//! connections, the old process serves again, with the connections that were not taken.
//!
//! # Layout
//!
//! `old` starts the new process and hands over, `new` takes over. The messages and the queue are in `conn/handover/`.

#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

mod new;
mod old;
mod part;
#[cfg(test)]
mod sim;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use osier::net::{TcpListener, UnixListener};
use osier::sync::Event;
use rustix::net::{AddressFamily, sockopt};

use crate::conn::handover::line::Line;
use crate::conn::serve::Service;
use crate::conn::upgrade::Session;
use crate::listen::Listener;
use crate::server::ShutdownHandle;

pub use crate::conn::handover::record::Saved;
pub use old::{Program, Successor};
pub use part::{Link, Part};

/// The upgrades of this process: the one that has started it, and later ones that it starts. Clones share one state.
#[derive(Clone)]
pub struct Upgrade(Arc<Shared>);

struct Shared {
    /// The servers that have listeners.
    servers: Mutex<Vec<Registered>>,
    parts: Mutex<Vec<(String, Weak<dyn Part>)>>,
    /// Items of the old process that were not [taken](Upgrade::take) yet.
    given: Mutex<Items>,
    /// The channel to the old process, until [`Upgrade::ready`].
    arriving: Mutex<Option<new::Arriving>>,
    /// The line to the old process, while the old process has connections.
    predecessor: Mutex<Option<Arc<Line>>>,
    /// Whether an upgrade has started this process.
    has_arrived: AtomicBool,
    /// Set while this process may serve.
    serves: Event,
    /// Whether an upgrade runs.
    is_busy: AtomicBool,
    /// The number of adopted connections, for their workers in turn.
    turn: AtomicUsize,
}

/// A server with its listeners.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) name: Arc<str>,
    pub(crate) service: Service,
    pub(crate) stop: ShutdownHandle,
    pub(crate) listeners: Arc<[Listener]>,
}

/// Bytes and open files that the old process gives to the new one.
#[derive(Debug, Default)]
pub struct Item {
    /// Bytes, of at most 8 MiB.
    pub bytes: Vec<u8>,
    /// Open files, of which the new process gets duplicates.
    pub descriptors: Vec<OwnedFd>,
}

/// Items with their names.
type Items = Vec<(String, Item)>;

/// The beginning of the names of items with listening sockets. The name of a server follows.
const LISTENERS: &str = "listeners ";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Upgrade {
    /// Makes the upgrades of this process. In a process that an upgrade has started, it receives the items of the old process.
    ///
    /// Call it once, before the process starts programs. It needs no runtime.
    ///
    /// # Blocks the thread
    ///
    /// Until the old process has sent its items, which it does at once.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the old process speaks another version, and the errors of the socket to the old process.
    pub fn new() -> io::Result<Upgrade> {
        Ok(Upgrade::made(new::Arriving::of_this_process()?))
    }

    fn made(arriving: Option<(new::Arriving, Items)>) -> Upgrade {
        let (arriving, given) = arriving.map_or((None, Vec::new()), |(arriving, given)| (Some(arriving), given));
        let serves = Event::manual();
        if arriving.is_none() {
            serves.set();
        }
        Upgrade(Arc::new(Shared {
            servers: Mutex::default(),
            parts: Mutex::default(),
            given: Mutex::new(given),
            has_arrived: AtomicBool::new(arriving.is_some()),
            arriving: Mutex::new(arriving),
            predecessor: Mutex::default(),
            serves,
            is_busy: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        }))
    }

    /// Whether an upgrade has started this process.
    pub fn has_arrived(&self) -> bool {
        self.0.has_arrived.load(Ordering::Relaxed)
    }

    /// Takes the item that the old process has given under this name, with [`Program::give`].
    pub fn take(&self, name: &str) -> Option<Item> {
        let mut given = lock(&self.0.given);
        let at = given.iter().position(|(known, _)| known == name)?;
        Some(given.swap_remove(at).1)
    }

    /// Takes the listening sockets of the old process's server of this name. `None` if it had no such server.
    pub fn listeners(&self, name: &str) -> Option<Vec<Listener>> {
        let name = format!("{LISTENERS}{name}");
        let mut listeners = Vec::new();
        while let Some(item) = self.take(&name) {
            listeners.extend(item.descriptors.into_iter().filter_map(listener_of));
        }
        (!listeners.is_empty()).then_some(listeners)
    }

    /// Registers a part of the application, under a name that it has in every version of the program. Call it before
    /// [`ready`](Upgrade::ready). If several parts have one name, the last one counts. The upgrades do not keep a part alive.
    pub fn part(&self, name: &str, part: &Arc<impl Part>) {
        let part = Arc::downgrade(part);
        let mut parts = lock(&self.0.parts);
        parts.retain(|(_, part)| part.strong_count() > 0);
        parts.push((name.to_owned(), part));
    }

    fn parts(&self) -> Vec<(String, Arc<dyn Part>)> {
        let parts = lock(&self.0.parts);
        let mut found: Vec<(String, Arc<dyn Part>)> = Vec::new();
        for (name, part) in parts.iter().rev() {
            if let Some(part) = part.upgrade()
                && !found.iter().any(|(known, _)| known == name)
            {
                found.push((name.clone(), part));
            }
        }
        found
    }

    fn find_part(&self, name: &str) -> Option<Arc<dyn Part>> {
        let parts = lock(&self.0.parts);
        let mut named = parts.iter().rev().filter(|(known, _)| known == name);
        named.find_map(|(_, part)| part.upgrade())
    }

    /// Makes the session that a part has saved.
    pub(crate) fn restore(&self, saved: &Saved) -> Option<Box<dyn Session>> {
        self.find_part(&saved.part)?.restore(&saved.bytes)
    }

    /// Adds a server.
    pub(crate) fn register(&self, server: Registered) -> Registration {
        let state = Arc::clone(&server.service.state);
        lock(&self.0.servers).push(server);
        Registration(self.clone(), state)
    }

    fn servers(&self) -> Vec<Registered> {
        lock(&self.0.servers).clone()
    }

    /// The server of this name. The last one accepts; earlier ones keep the connections that they have.
    fn server(&self, name: &str) -> Option<Registered> {
        let servers = lock(&self.0.servers);
        servers.iter().rev().find(|server| *server.name == *name).cloned()
    }

    /// Waits until this process may serve: see [`ready`](Upgrade::ready).
    pub(crate) fn wait_to_serve(&self) {
        self.0.serves.wait();
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrade")
            .field("has_arrived", &self.has_arrived())
            .finish_non_exhaustive()
    }
}

/// Keeps a server registered, until the drop.
pub(crate) struct Registration(Upgrade, Arc<crate::conn::worker::ServerState>);

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.0.0.servers).retain(|server| !Arc::ptr_eq(&server.service.state, &self.1));
    }
}

/// Makes a listener of a descriptor. `None` if it is not a listening socket.
fn listener_of(fd: OwnedFd) -> Option<Listener> {
    match sockopt::socket_domain(&fd).ok()? {
        AddressFamily::UNIX => Some(UnixListener::from(fd).into()),
        _ => Some(TcpListener::from(fd).into()),
    }
}
