//! A server as its owner sees it: configured, listening, running, shut down.

pub(crate) mod accept;
pub(crate) mod answer;
pub(crate) mod burst;
pub(crate) mod served;

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Poll;
use std::{fmt, thread};

use atomic_waker::AtomicWaker;
use osier::JoinHandle;
use osier_http::Limits;

use crate::conn::settings::{Log, Timeouts, Trusted};
use crate::conn::worker::{ConnectionCount, Shared};
use crate::listen::{Address, Listener, NOWHERE, bind_unix};
use crate::router::handler::Handler;
use crate::server::accept::{accept, drain, on_worker};
use crate::server::burst::App;
use crate::server::served::{Observer, Served};

/// Serves a router, or a function, on `addr` with the defaults of [`Server`], until the fiber is cancelled.
///
/// ```no_run
/// use osier_web::{Router, serve};
///
/// osier::run(|| serve("127.0.0.1:8080", Router::new().get("/", |_| "hello\n")))
/// # .unwrap();
/// ```
///
/// # Suspends
///
/// Always.
///
/// # Errors
///
/// When the address cannot be listened on.
///
/// # Panics
///
/// Outside of a runtime.
pub fn serve(addr: impl ToSocketAddrs, handler: impl Into<Handler>) -> io::Result<()> {
    Server::new(handler).bind(addr)?.run();
    Ok(())
}

/// A server before it listens: what it answers and under which limits.
///
/// ```
/// use osier_web::{Limits, Router, Server, Timeouts};
/// use std::time::Duration;
///
/// osier::run(|| -> std::io::Result<()> {
///     let server = Server::new(Router::new().get("/", |_| "hello\n"))
///         .limits(Limits { body: 64 << 20, ..Limits::default() })
///         .timeouts(Timeouts { idle: Duration::from_secs(5), ..Timeouts::default() })
///         .on_request(|served| println!("{} {} {}", served.method(), served.target(), served.status()))
///         .bind("127.0.0.1:0")?;
///     let stop = server.handle();
///     osier::spawn(move || stop.shutdown());
///     server.run();
///     Ok(())
/// })
/// # .unwrap();
/// ```
pub struct Server {
    handler: Handler,
    limits: Limits,
    timeouts: Timeouts,
    max_connections: usize,
    trusted: Option<Trusted>,
    observer: Option<Observer>,
    log: Log,
}

impl Server {
    /// A server that answers with `handler`, a [`Router`](crate::Router) or a function. It has the default limits and timeouts, and
    /// logs to the standard error stream.
    pub fn new(handler: impl Into<Handler>) -> Self {
        Server {
            handler: handler.into(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            max_connections: usize::MAX,
            trusted: None,
            observer: None,
            log: Box::new(|line| eprintln!("osier-web: {line}")),
        }
    }

    /// Sets how large requests may be.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how long to wait for clients.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// The most connections at once, over all workers. For a further one, those that are idle longest are closed; while none is idle, it
    /// waits in the accept backlog. Each worker reads the count on its own, so one less than there are workers may exceed it.
    pub fn max_connections(mut self, count: usize) -> Self {
        self.max_connections = count;
        self
    }

    /// Has the PROXY protocol (version 1 or 2) spoken by the peers that `trusted` says yes to, given their addresses, or `None` for the
    /// peer of a Unix socket. Such a connection must begin with its header, and within the time for a request's head, or it is closed
    /// with a log line; then [`Request::peer`](crate::Request::peer) and [`Served::peer`] are the client that the header tells. A header
    /// that tells none (`LOCAL`, `UNKNOWN`, Unix sockets) leaves the peer as it is.
    ///
    /// The bytes of every other peer are HTTP, so a header from it is refused as bad HTTP.
    ///
    /// ```
    /// use osier_web::{Router, Server};
    /// use std::net::{IpAddr, Ipv4Addr};
    ///
    /// let balancer = IpAddr::from(Ipv4Addr::new(10, 0, 0, 2));
    /// let server = Server::new(Router::new()).proxy_protocol(move |peer| peer == Some(balancer));
    /// ```
    pub fn proxy_protocol(mut self, trusted: impl Fn(Option<IpAddr>) -> bool + Send + Sync + 'static) -> Self {
        self.trusted = Some(Box::new(trusted));
        self
    }

    /// Calls `hook` for every answered request, on the connection's fiber: an access log, for example. Without one no
    /// clock is read.
    pub fn on_request(mut self, hook: impl Fn(&Served<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Box::new(hook));
        self
    }

    /// Takes the lines meant for the operator: panics and failures of handlers, trouble with accepting.
    pub fn on_log(mut self, log: impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static) -> Self {
        self.log = Box::new(log);
        self
    }

    /// Listens on `addr`, with a listener for each worker of the runtime. Connections are accepted from
    /// [`Listening::run`] on.
    ///
    /// # Blocks the thread
    ///
    /// While a name is looked up; never for an address.
    ///
    /// # Errors
    ///
    /// When none of the addresses can be listened on; `AddrInUse` also when the other listener would share the port.
    /// `InvalidInput` for a timeout of zero.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn bind(self, addr: impl ToSocketAddrs) -> io::Result<Listening> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the address resolves to nothing");
        for addr in addr.to_socket_addrs()? {
            match Listener::bind(addr, osier::workers()) {
                Ok(listeners) => return self.listening(listeners),
                Err(error) => last = io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}")),
            }
        }
        Err(last)
    }

    /// Listens on a Unix socket. A file that a dead server has left there is replaced; the file is removed when the server
    /// has ended.
    ///
    /// # Blocks the thread
    ///
    /// For as long as the file system takes.
    ///
    /// # Errors
    ///
    /// `AddrInUse` when a server answers there, or the file is no socket; what the system says.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn bind_unix(self, path: impl AsRef<Path>) -> io::Result<Listening> {
        let path = path.as_ref();
        let listener = bind_unix(path).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot listen on unix:{}: {error}", path.display()),
            )
        })?;
        let mut listening = self.listening(vec![listener.into()])?;
        listening.file = SocketFile::of(path);
        Ok(listening)
    }

    /// Uses a listener that somebody else has opened. One worker accepts; the connections are spread over all.
    ///
    /// # Errors
    ///
    /// When the listener has no address.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn listener(self, listener: impl Into<Listener>) -> io::Result<Listening> {
        self.listening(vec![listener.into()])
    }

    /// Uses several listeners that somebody else has opened: those of [`Listener::bind`], or of a service manager. Each is accepted from by a
    /// worker, in turn.
    ///
    /// # Errors
    ///
    /// When there are none, or the first has no address.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn listeners(self, listeners: Vec<Listener>) -> io::Result<Listening> {
        if listeners.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no listeners: give at least one",
            ));
        }
        self.listening(listeners)
    }

    fn listening(self, listeners: Vec<Listener>) -> io::Result<Listening> {
        for (name, time) in [("body", self.timeouts.body), ("write", self.timeouts.write)] {
            if time.is_zero() {
                let error = format!("Timeouts::{name} is zero: give the time to wait, Duration::MAX for ever");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
            }
        }
        let address = listeners[0].address()?;
        let mut shared = self.shared(osier::workers());
        shared.bound = one_address(&listeners);
        Ok(Listening {
            listeners,
            address,
            file: None,
            shared: Arc::new(shared),
            stop: ShutdownHandle::default(),
        })
    }

    /// The state that the workers of the server share.
    pub(crate) fn shared(self, workers: usize) -> Shared {
        Shared {
            app: Box::new(App {
                handler: self.handler,
                observer: self.observer,
            }),
            limits: self.limits,
            timeouts: self.timeouts,
            max_connections: self.max_connections,
            bound: None,
            trusted: self.trusted,
            log: self.log,
            connections: (0..workers).map(|_| ConnectionCount::default()).collect(),
        }
    }
}

/// The address that connections of all these listeners have come to, if it is one.
fn one_address(listeners: &[Listener]) -> Option<SocketAddr> {
    let mut addrs = listeners.iter().map(|listener| match listener {
        Listener::Tcp(listener) => listener.local_addr().ok().filter(|addr| !addr.ip().is_unspecified()),
        Listener::Unix(_) => None,
    });
    let first = addrs.next()??;
    addrs.all(|addr| addr == Some(first)).then_some(first)
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("handler", &self.handler)
            .field("limits", &self.limits)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

/// A server that listens.
pub struct Listening {
    listeners: Vec<Listener>,
    address: Address,
    file: Option<SocketFile>,
    shared: Arc<Shared>,
    stop: ShutdownHandle,
}

impl Listening {
    /// The address it listens on, with the port the system chose if that was left to it; `0.0.0.0:0` for a Unix socket.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.address {
            Address::Tcp(text) => text.parse().unwrap_or(NOWHERE),
            Address::Unix(_) => NOWHERE,
        }
    }

    /// The address it listens on, as a client would name it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Counts the connections that are open, also while it runs.
    pub fn connections(&self) -> Connections {
        Connections(Arc::clone(&self.shared))
    }

    /// The sockets that it listens on: their [clones](Listener::try_clone) can be given to another server, of other settings, for the
    /// connections to come, when this one has been [closed](ShutdownHandle::close).
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// The file of its Unix socket, which then no longer goes with this server: for a socket that another server will take over.
    pub fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// A handle that ends [`run`](Listening::run).
    pub fn handle(&self) -> ShutdownHandle {
        self.stop.clone()
    }

    /// Serves until [`ShutdownHandle::shutdown`]. Then accepts no more, closes the connections that are idle, lets the
    /// running requests finish (their responses say `connection: close`), and cuts what is left after
    /// [`Timeouts::drain`].
    ///
    /// Returns how many connections were cut.
    ///
    /// # Suspends
    ///
    /// Always.
    ///
    /// # Cancellation
    ///
    /// Unwinds, and stops accepting; open connections are then the runtime's to end.
    pub fn run(self) -> usize {
        let Listening {
            listeners,
            shared,
            stop,
            file,
            ..
        } = self;
        let accepting: Vec<Accepting> = listeners
            .into_iter()
            .enumerate()
            .map(|(index, listener)| {
                let shared = shared.clone();
                let worker = index % shared.connections.len();
                Accepting(Some(on_worker(worker, "accept", move || accept(&shared, &listener))))
            })
            .collect();
        stop.wait(CLOSED);
        drop(accepting);
        stop.0.closed.store(true, Ordering::Release);
        stop.wait(ENDED);
        drop(file);

        let drains: Vec<JoinHandle<usize>> = (0..shared.connections.len())
            .map(|index| {
                let shared = shared.clone();
                on_worker(index, "drain", move || drain(&shared))
            })
            .collect();
        drains.into_iter().map(|drain| drain.join().unwrap_or(0)).sum()
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Counts the connections of a server; see [`Listening::connections`].
#[derive(Clone)]
pub struct Connections(Arc<Shared>);

impl Connections {
    /// The connections of one worker of the runtime; 0 where there is no such worker.
    pub fn of_worker(&self, index: usize) -> usize {
        match index < self.0.connections.len() {
            true => self.0.count(index),
            false => 0,
        }
    }

    /// All connections at this moment, over all workers.
    pub fn count(&self) -> usize {
        self.0.total()
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connections").field(&self.count()).finish()
    }
}

/// The file of a Unix socket: removed when this is dropped, unless another has taken its place. See [`Listening::take_file`].
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> Option<SocketFile> {
        let device_and_inode = device_and_inode(path)?;
        let path = path.into();
        Some(SocketFile { path, device_and_inode })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if device_and_inode(&self.path) == Some(self.device_and_inode) {
            // Somebody may have removed it meanwhile.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// An accepting fiber, ended when this is dropped.
struct Accepting(Option<JoinHandle<()>>);

impl Drop for Accepting {
    fn drop(&mut self) {
        if let Some(fiber) = self.0.take() {
            fiber.cancel();
            if !thread::panicking() {
                let _ = fiber.join();
            }
        }
    }
}

/// Ends a server from anywhere: another fiber, a plain thread.
#[derive(Clone, Default)]
pub struct ShutdownHandle(Arc<Stop>);

#[derive(Default)]
struct Stop {
    /// 0, then one of the next, and never less than before.
    asked: AtomicU8,
    /// Set once the accepting fibers have ended; Release, after all that they have counted.
    closed: AtomicBool,
    waker: AtomicWaker,
}

const CLOSED: u8 = 1;
const ENDED: u8 = 2;

impl ShutdownHandle {
    /// Asks the server to end; see [`Listening::run`]. Never waits; a second call does nothing.
    pub fn shutdown(&self) {
        self.ask(ENDED);
    }

    /// Asks the server to accept no more. Connections that are open go on as before, until [`shutdown`](ShutdownHandle::shutdown).
    /// Never waits.
    pub fn close(&self) {
        self.ask(CLOSED);
    }

    /// True once the server has accepted its last connection, after [`close`](ShutdownHandle::close) or
    /// [`shutdown`](ShutdownHandle::shutdown): what [`Connections::count`] says from then on only falls.
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    fn ask(&self, what: u8) {
        self.0.asked.fetch_max(what, Ordering::Release);
        self.0.waker.wake();
    }

    fn wait(&self, what: u8) {
        osier::block_on(poll_fn(|cx| {
            self.0.waker.register(cx.waker());
            if self.0.asked.load(Ordering::Acquire) >= what {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }));
    }
}

impl fmt::Debug for ShutdownHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShutdownHandle").field(&self.0.asked).finish()
    }
}
