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
//! - Listening sockets. Those of a server that the new process does not have are closed when it serves, but for those that its owner
//!   [keeps](Successor::keep). The old process accepts the connections that wait at them, and answers the requests of these and of all
//!   others.
//! - Connections that wait for a request or for the rest of a head, also with TLS 1.3, and HTTP/2 connections without streams.
//! - WebSockets in callback style whose callbacks [save](crate::ws::Callbacks::save) themselves. A WebSocket in an HTTP/2 stream stays.
//! - Tunnels of a `Proxy`, with the socket to the backend, if that has no TLS. The new process counts them with their
//!   backends, if it has told its [upstreams](Upgrade::upstream).
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
//!   Part ""                                           ──▶    is alone: see `wait_until_alone`
//!   Part …, Connections …                             ──▶    answers Taken, then touches the connections
//!   Done                                              ──▶
//! ```
//!
//! A connection belongs to the new process from the moment at which `Taken` has left it, and to the old one until then.
//!
//! Until `Accepting`, the old process goes on as before whatever goes wrong, and ends the new one. From then on nobody but its operator
//! ends the new process:
//!
//! - It has ended by itself: the old process serves again, with the connections that were not taken. A server that the new process did
//!   not have ends instead: its address may belong to somebody else by now.
//! - It says `Failed`, or the socket to it fails while it lives: the old process ends the connections that it still has, each with its next
//!   response.
//! - It says `Leaving`, because the next upgrade has begun, or the old process is asked to [end soon](Upgrade::end_soon): the same, after
//!   connections at rest have moved.
//! - It says `Stopping`, because it is being shut down: the old process shuts down, too.
//!
//! A process that has heard `Leaving` may have requests for longer than the one that has said it lives. So each process gives the next one
//! the sockets to all that came before, and the last one says `Stopping` to them.

// `old` starts the new process, by a `program`, `hand_over` hands over, and `new` takes over. The messages and the queue are in
// `conn/handover/`.

#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

mod error;
mod hand_over;
mod new;
mod old;
mod part;
mod program;
#[cfg(test)]
mod sim;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use osier::net::{Stream, TcpListener, UnixListener};
use osier::sync::Event;
#[cfg(feature = "proxy")]
use rustix::net::getpeername;
use rustix::net::{AddressFamily, getsockname};

use crate::conn::handover::channel;
use crate::conn::handover::dialog::Dialog;
use crate::conn::handover::format::Message;
use crate::conn::handover::record::Record as Moved;
use crate::conn::log::record::{Level, Record};
use crate::conn::serve::Service;
use crate::conn::upgrade::Session;
use crate::listen::{Listener, Sockets};
use crate::lock;
#[cfg(feature = "proxy")]
use crate::proxy::tunnel::ToBackend;
use crate::server::ShutdownHandle;
#[cfg(feature = "proxy")]
use crate::upstream::ticket::Ticket;
#[cfg(feature = "proxy")]
use crate::upstream::{Upstream, WeakUpstream};

pub use crate::conn::handover::record::Saved;
pub use error::Error;
pub use old::Successor;
pub use part::{Link, Part};
pub use program::Program;

/// The upgrades of this process: the one that has started it, and later ones that it starts. Clones share one state.
#[derive(Clone)]
pub struct Upgrade(Arc<Shared>);

struct Shared {
    /// The servers that have listeners.
    servers: Mutex<Vec<Registered>>,
    parts: Mutex<Vec<(String, Weak<dyn Part>)>>,
    /// The upstreams that count tunnels of the old process.
    #[cfg(feature = "proxy")]
    upstreams: Mutex<Vec<WeakUpstream>>,
    /// Items of the old process that were not [taken](Upgrade::take) yet.
    given: Mutex<Items>,
    /// The channel to the old process, until [`Upgrade::ready`].
    arriving: Mutex<Option<new::Arriving>>,
    /// The dialog to the old process, while the old process has connections, and its socket among the `elders`, under whose lock it is set.
    predecessor: Mutex<Option<(Arc<Dialog>, Arc<OwnedFd>)>>,
    /// The sockets to all processes before this one that may still have connections. Duplicates: each process gives the next one its own.
    elders: Mutex<Vec<Arc<OwnedFd>>>,
    /// Whether an upgrade has started this process.
    has_arrived: AtomicBool,
    /// Set while this process may serve.
    serves: Event,
    /// Whether an upgrade runs.
    is_busy: AtomicBool,
    /// Whether a handover shall not wait for requests.
    ends_soon: AtomicBool,
    /// The number of adopted connections, for their workers in turn.
    turn: AtomicUsize,
}

/// A server with its listeners.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) name: Arc<str>,
    pub(crate) service: Service,
    pub(crate) stop: ShutdownHandle,
    pub(crate) sockets: Sockets,
}

/// Bytes and open files that the old process gives to the new one.
#[derive(Default)]
pub struct Item {
    /// Bytes, of at most 8 MiB.
    pub bytes: Vec<u8>,
    /// Open files, of which the new process gets duplicates.
    pub descriptors: Vec<OwnedFd>,
}

// The bytes may be keys.
osier_queue::impl_debug!(Item, self => { bytes: self.bytes.len(), descriptors: self.descriptors });

/// Items with their names.
type Items = Vec<(String, Item)>;

/// The time to tell the old process that this one stops.
const STOPPING: Duration = Duration::from_secs(1);

/// The beginning of the names of items with listening sockets. The name of a server follows.
const LISTENERS: &str = "listeners ";

/// The name of items with the sockets to earlier processes.
const ELDERS: &str = "elders";

/// The name of the message by which the old process says that it accepts no more connections. No part of an application has it. An older
/// program takes it for a part that it does not have.
const CLOSED: &str = "";

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
        let (elders, given): (Items, Items) = given.into_iter().partition(|(name, _)| name == ELDERS);
        let elders = elders.into_iter().flat_map(|(_, item)| item.descriptors).map(Arc::new);
        let serves = Event::manual();
        if arriving.is_none() {
            serves.set();
        }
        Upgrade(Arc::new(Shared {
            servers: Mutex::default(),
            parts: Mutex::default(),
            #[cfg(feature = "proxy")]
            upstreams: Mutex::default(),
            given: Mutex::new(given),
            elders: Mutex::new(elders.collect()),
            has_arrived: AtomicBool::new(arriving.is_some()),
            arriving: Mutex::new(arriving),
            predecessor: Mutex::default(),
            serves,
            is_busy: AtomicBool::new(false),
            ends_soon: AtomicBool::new(false),
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

    /// Takes the listening sockets of the old process's server of this name. `None` if it had no such server, or this process serves
    /// already: those that nobody has taken are closed then.
    pub fn listeners(&self, name: &str) -> Option<Vec<Listener>> {
        let name = format!("{LISTENERS}{name}");
        let mut listeners = Vec::new();
        while let Some(item) = self.take(&name) {
            listeners.extend(item.descriptors.into_iter().filter_map(listener_of));
        }
        (!listeners.is_empty()).then_some(listeners)
    }

    /// Registers a part of the application, under a name that it has in every version of the program. Call it before
    /// [`ready`](Upgrade::ready). If several parts have one name, the last one counts. A part that is registered again has the new
    /// name alone. The upgrades do not keep a part alive.
    ///
    /// # Panics
    ///
    /// With an empty name.
    pub fn part(&self, name: &str, part: &Arc<impl Part>) {
        assert!(name != CLOSED, "a part needs a name");
        let same = Arc::as_ptr(part).cast::<()>();
        let part = Arc::downgrade(part);
        let mut parts = lock(&self.0.parts);
        parts.retain(|(_, known)| known.strong_count() > 0 && known.as_ptr().cast::<()>() != same);
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

    /// Has this upstream count the tunnels that the old process hands over and that lead to one of its backends. Their addresses tell: if
    /// several upstreams have one, the last upstream counts. Call it before [`ready`](Upgrade::ready). The upgrades do not keep an upstream
    /// alive.
    ///
    /// ```
    /// use osier_web::upgrade::Upgrade;
    /// use osier_web::upstream::Upstream;
    ///
    /// let upgrade = Upgrade::new()?;
    /// let upstream = Upstream::builder("app").backend("127.0.0.1:3000".parse()?).build()?;
    /// upgrade.upstream(&upstream);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "proxy")]
    pub fn upstream(&self, upstream: &Upstream) {
        let mut upstreams = lock(&self.0.upstreams);
        upstreams.retain(|upstream| upstream.upgrade().is_some());
        upstreams.push(upstream.downgrade());
    }

    /// Counts a tunnel with the backend at the other end of this socket, if an upstream has that.
    ///
    /// # Suspends
    ///
    /// While a name is looked up.
    #[cfg(feature = "proxy")]
    fn count_tunnel(&self, backend: &Stream) -> Option<Ticket> {
        let upstreams = lock(&self.0.upstreams).clone();
        let mut upstreams = upstreams.iter().rev().filter_map(WeakUpstream::upgrade).peekable();
        upstreams.peek()?;
        let peer = getpeername(backend).ok()??;
        upstreams.find_map(|upstream| upstream.adopt_tunnel(&peer))
    }

    /// Makes the session of a connection anew: that of a part, or a tunnel to this backend.
    pub(crate) fn restore(&self, record: &Moved, backend: Option<Stream>) -> Option<Box<dyn Session>> {
        match (&record.session, record.tunnel, backend) {
            (Some(saved), ..) => self.find_part(&saved.part)?.restore(&saved.bytes),
            #[cfg(feature = "proxy")]
            (None, Some(tunnel), Some(backend)) => {
                let ticket = self.count_tunnel(&backend);
                let tunnel = ToBackend::restored(tunnel, backend, ticket).ok()?;
                Some(Box::new(tunnel))
            }
            _ => None,
        }
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

    /// Lets a handover of this process end soon, for good: it no longer waits for requests that run. They end with the servers of this
    /// process, whose graceful shutdown begins when [`Successor::hand_over`] returns. If the new process does not serve yet, the upgrade
    /// fails. Call it when this process is asked to end while it hands over.
    pub fn end_soon(&self) {
        self.0.ends_soon.store(true, Ordering::Release);
    }

    fn ends(&self) -> bool {
        self.0.ends_soon.load(Ordering::Acquire)
    }

    /// Tells the process that this one has taken over from, if it still has connections, that this one is being shut down. That process
    /// shuts down, too, where it would take the end of this one for a failure and serve again. So do the processes of earlier upgrades, whose
    /// last requests run. Call it before the graceful shutdown. The end of the last [upgradable](crate::Server::upgradable) server does it as well.
    ///
    /// # Suspends
    ///
    /// Until the message has been sent, for a second at most.
    pub fn stopping(&self) {
        let (mut elders, predecessor) = {
            let mut elders = lock(&self.0.elders);
            (std::mem::take(&mut *elders), lock(&self.0.predecessor).clone())
        };
        // While the dialog has a sender, that alone uses the socket.
        if let Some((dialog, socket)) = predecessor
            && dialog.send_within(Message::Stopping, STOPPING) != Some(false)
        {
            elders.retain(|elder| !Arc::ptr_eq(elder, &socket));
        }
        for elder in elders {
            channel::send_late(&elder, &Message::Stopping);
        }
    }

    /// The sockets to earlier processes that have not ended.
    fn elders(&self) -> Vec<Arc<OwnedFd>> {
        let mut elders = lock(&self.0.elders);
        elders.retain(|elder| !channel::has_ended(elder));
        elders.clone()
    }

    /// Says that this process is [stopping](Upgrade::stopping), if no server is left.
    pub(crate) fn has_ended_a_server(&self) {
        if lock(&self.0.servers).is_empty() {
            self.stopping();
        }
    }

    /// Logs a line.
    fn log(&self, text: fmt::Arguments<'_>) {
        if let Some(server) = self.servers().last() {
            server.service.state.log(&Record::new(Level::Error, text));
        }
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
pub(crate) struct Registration(Upgrade, Arc<crate::conn::server_state::ServerState>);

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.0.0.servers).retain(|server| !Arc::ptr_eq(&server.service.state, &self.1));
    }
}

/// Makes a listener of a descriptor. `None` if it is not a listening socket.
fn listener_of(fd: OwnedFd) -> Option<Listener> {
    match family_of(&fd).ok()? {
        AddressFamily::UNIX => Some(UnixListener::from(fd).into()),
        _ => Some(TcpListener::from(fd).into()),
    }
}

/// The address family of a socket, by its local address. macOS has no option that tells it.
fn family_of(fd: impl AsFd) -> rustix::io::Result<AddressFamily> {
    getsockname(fd).map(|address| address.address_family())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_process_before_hears_once_that_this_one_stops() {
        osier::run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let arriving = std::thread::spawn(|| new::Arriving::by(near).unwrap());
            let ((sending, mut receiving), (elder, its)) = (channel::open(far).unwrap(), UnixStream::pair().unwrap());
            for message in [new::hello(), Message::Start, Message::Go] {
                sending.send(&message, &[]).unwrap();
            }
            let upgrade = Upgrade::made(Some(osier::unblock(|| arriving.join().unwrap())));
            lock(&upgrade.0.elders).push(Arc::new(elder.into()));
            upgrade.wait_for_turn().unwrap();
            upgrade.stopping();
            // The end of the handover, after which the new process closes its end.
            sending.send(&Message::Done, &[]).unwrap();
            let mut said = Vec::new();
            while let Some((message, _)) = receiving.receive().unwrap() {
                said.push(message);
            }
            let ready = Message::Ready { servers: Vec::new() };
            assert_eq!(said, [new::hello(), ready, Message::Stopping]);
            let mut its = channel::open(its).unwrap().1;
            assert_eq!(
                its.receive().unwrap().map(|(message, _)| message),
                Some(Message::Stopping)
            );
            assert!(its.receive().unwrap().is_none());
        });
    }

    #[test]
    fn a_new_process_is_alone_once_the_old_one_says_so_or_ends() {
        for ends in [false, true] {
            osier::run(|| {
                let (near, far) = UnixStream::pair().unwrap();
                let arriving = std::thread::spawn(|| new::Arriving::by(near).unwrap());
                let (sending, receiving) = channel::open(far).unwrap();
                for message in [new::hello(), Message::Start, Message::Go] {
                    sending.send(&message, &[]).unwrap();
                }
                let upgrade = Upgrade::made(Some(osier::unblock(|| arriving.join().unwrap())));
                upgrade.ready().unwrap();
                let waiting = upgrade.clone();
                let dialog = upgrade.predecessor().unwrap();
                let waiting = osier::spawn(move || waiting.wait_until_alone());
                osier::sleep(Duration::from_millis(20));
                assert!(!waiting.is_finished() && dialog.look(|heard| !heard.closed));
                match ends {
                    true => drop((sending, receiving)),
                    false => {
                        let (name, bytes) = (CLOSED.into(), Vec::new());
                        sending.send(&Message::Part { name, bytes }, &[]).unwrap();
                    }
                }
                waiting.join().unwrap();
                assert!(dialog.look(|heard| heard.closed), "it has waited as long as it may");
            });
        }
    }

    #[test]
    fn the_family_of_a_socket_is_that_of_its_address() {
        let (unix, _peer) = UnixStream::pair().unwrap();
        assert_eq!(family_of(&unix), Ok(AddressFamily::UNIX), "it has no name");
        for (address, family) in [("127.0.0.1:0", AddressFamily::INET), ("[::1]:0", AddressFamily::INET6)] {
            match std::net::TcpListener::bind(address) {
                Ok(listener) => assert_eq!(family_of(&listener), Ok(family)),
                Err(error) => println!("skipped: {address}: {error}"),
            }
        }
        let (pipe, _end) = std::io::pipe().unwrap();
        assert_eq!(family_of(&pipe), Err(rustix::io::Errno::NOTSOCK));
    }
}
