//! A server as its owner uses it: it is configured, bound, run and shut down here.

pub(crate) mod accept;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod after_body;
pub(crate) mod answer;
pub(crate) mod burst;
mod descriptors;
#[cfg(feature = "fibers")]
pub mod fibers;
#[cfg(feature = "h2")]
mod h2;
mod kept;
mod list;
pub(crate) mod paused;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod received;
pub(crate) mod served;
mod timing;
#[cfg(feature = "upgrade")]
pub mod upgrade;
#[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
pub(crate) mod uploading;
#[cfg(feature = "proxy")]
pub(crate) mod waiting;

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use osier::JoinHandle;
use osier::sync::Event;
use osier_http::Limits;

use crate::conn::clients::Clients;
use crate::conn::close::{ConnectionEvent, ConnectionHook};
use crate::conn::listed::ConnectionInfo;
use crate::conn::log::record::{Level, Record, to_stderr};
use crate::conn::log::seldom::Seldom;
use crate::conn::protocol::Protocol;
use crate::conn::rates::Rates;
use crate::conn::serve::Service;
use crate::conn::server_state::{ConnectionCount, ServerState};
use crate::conn::settings::{Log, Timeouts, Trusted};
use crate::listen::{Address, Listener, NOWHERE, Sockets, bind_unix};
use crate::router::handler::Handler;
use crate::server::accept::{accept, accept_the_backlog, drain, on_worker, relieve};
use crate::server::burst::App;
use crate::server::kept::Kept;
use crate::server::served::{Observer, Served};
#[cfg(feature = "upgrade")]
use crate::server::upgrade::{Registered, Registration, Upgrade};

/// Serves a router, or a function, on `addr` with the defaults of [`Server`], until the fiber is
/// cancelled.
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
/// Always suspends.
///
/// # Errors
///
/// An error of the system if no address can be listened on.
///
/// # Panics
///
/// Panics outside a runtime.
#[track_caller]
pub fn serve(addr: impl ToSocketAddrs, handler: impl Into<Handler>) -> io::Result<()> {
    Server::new(handler).bind(addr)?.run();
    Ok(())
}

/// A server before it listens: its handler, limits and timeouts.
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
#[doc(alias = "HttpServer")]
#[must_use = "a server does nothing until `bind`"]
pub struct Server {
    handler: Handler,
    limits: Limits,
    timeouts: Timeouts,
    rates: Rates,
    max_connections: usize,
    max_connections_per_client: Option<u32>,
    is_for_operators: bool,
    trusted: Option<Trusted>,
    #[cfg(feature = "tls")]
    tls: Option<osier_tls::Acceptor>,
    observer: Option<Observer>,
    on_connection: Option<ConnectionHook>,
    log: Log,
    #[cfg(feature = "h2")]
    http2: Option<osier_http::h2::Limits>,
    #[cfg(feature = "upgrade")]
    upgrade: Option<(Upgrade, Arc<str>)>,
}

impl Server {
    /// Makes a server with `handler`, a [`Router`](crate::Router) or a function. It has the default
    /// limits and timeouts, and logs to the standard error stream.
    pub fn new(handler: impl Into<Handler>) -> Self {
        Server {
            handler: handler.into(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            rates: Rates::default(),
            max_connections: usize::MAX,
            max_connections_per_client: None,
            is_for_operators: false,
            trusted: None,
            #[cfg(feature = "tls")]
            tls: None,
            observer: None,
            on_connection: None,
            log: Box::new(to_stderr),
            #[cfg(feature = "h2")]
            http2: Some(osier_http::h2::Limits::DEFAULT),
            #[cfg(feature = "upgrade")]
            upgrade: None,
        }
    }

    /// Sets how large requests may be.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how long the server waits for clients.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Sets the least rates at which clients must send heads and bodies and take responses. A timeout bounds the silence of a client; a
    /// rate bounds a client that drips bytes. By default a client must move at least 10,000 bytes in each 30 s in which the server waits
    /// for it. A handler's own time does not count, and neither does time in which there is nothing to send, as between the events of
    /// a stream. [`Request::allow_slow_client`](crate::Request::allow_slow_client) makes an exception.
    ///
    /// ```
    /// use osier_web::{Rates, Router, Server};
    ///
    /// let server = Server::new(Router::new()).rates(Rates { body: 5_000, ..Rates::default() });
    /// ```
    pub fn rates(mut self, rates: Rates) -> Self {
        self.rates = rates;
        self
    }

    /// Sets the most connections at once, over all workers. At the limit, the connections that are
    /// idle longest are closed for new ones. One that was refused, and whose client goes on sending, is
    /// idle after a second. While none is idle, a new one waits in the accept backlog. Each worker reads
    /// the count on its own, so the count may exceed the limit by the number of workers minus one.
    ///
    /// There is no limit by default. But the same happens, to the connections of all servers of the
    /// process, when a new connection would leave less than a quarter of the limit of open files
    /// (`RLIMIT_NOFILE`), or less than 65,536, to everything else: files, backends, logs. A server may have connections for a quarter
    /// of that share in any case, also where other code has taken all the rest.
    pub fn max_connections(mut self, count: usize) -> Self {
        self.max_connections = count;
        self
    }

    /// Has the server accept connections and call its handler although the limit of memory is near ([`osier::memory`]), for the few clients
    /// who must see then what holds the memory, or whether the process is well. The handler should take little. Set
    /// [`max_connections`](Server::max_connections), too: nothing else bounds what these clients add. Their idle connections are closed, as
    /// those of other servers. Default: such requests get 503.
    pub fn for_operators(mut self) -> Self {
        self.is_for_operators = true;
        self
    }

    /// Sets the most connections of one client at once, over all workers: an IPv4 address, or an IPv6
    /// network of 64 bits. A further connection is reset, with a log line. Clients of Unix sockets have
    /// no limit. With [`proxy_protocol`](Server::proxy_protocol) the client that the header names counts.
    /// A WebSocket in an HTTP/2 stream counts as one more connection. At the limit its stream is reset.
    pub fn max_connections_per_client(mut self, count: u32) -> Self {
        self.max_connections_per_client = Some(count);
        self
    }

    /// Requires the PROXY protocol (version 1 or 2) of the peers for which `trusted` returns true.
    /// `trusted` gets the peer's address, or `None` for a peer on a Unix socket.
    ///
    /// A connection of a trusted peer must begin with a PROXY header, which must arrive within
    /// [`Timeouts::header`] of its first byte. Otherwise the connection is closed with a log line.
    /// From then on [`Request::peer`](crate::Request::peer) and [`Served::peer`] return the client
    /// that the header names. A header that names no client (`LOCAL`, `UNKNOWN`, Unix sockets)
    /// leaves the peer as it is.
    ///
    /// The bytes of every other peer are HTTP, so a PROXY header from it is refused as bad HTTP. `trusted` may be called several times for
    /// a connection, and should not change its mind: [limits](Server::max_connections_per_client) count by it. A panic is logged and counts
    /// as `false`. A shutdown waits for `trusted`.
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

    /// Sets whether the server speaks HTTP/2, as it does by default: to a client that begins with the HTTP/2 preface (prior
    /// knowledge), and to one that chooses `h2` in the TLS handshake.
    #[cfg(feature = "h2")]
    pub fn http2(mut self, speaks: bool) -> Self {
        self.http2 = speaks.then(|| self.http2.unwrap_or_default());
        self
    }

    /// Sets the HTTP/2 limits, and speaks it. The limits of a head and the times for a head and for a stalled stream are those of
    /// [`limits`](Server::limits) and [`timeouts`](Server::timeouts).
    ///
    /// ```
    /// use osier_web::{Http2Limits, Router, Server};
    ///
    /// let server = Server::new(Router::new()).http2_limits(Http2Limits { max_streams: 50, ..Http2Limits::default() });
    /// ```
    #[cfg(feature = "h2")]
    pub fn http2_limits(mut self, limits: osier_http::h2::Limits) -> Self {
        self.http2 = Some(limits);
        self
    }

    /// Serves HTTPS: every client has to speak TLS, and `acceptor` makes the server's end of it. A client that speaks HTTP in the clear
    /// gets a 400. A client speaks HTTP/2 if the acceptor offers `h2`. With [`proxy_protocol`](Server::proxy_protocol), the PROXY header comes in the clear, before the handshake.
    ///
    /// ```
    /// use osier_web::{Request, Router, Server, tls::{Acceptor, Identity}};
    ///
    /// # fn made() -> (String, String) {
    /// #     let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    /// #     (made.cert.pem(), made.signing_key.serialize_pem())
    /// # }
    /// # let (chain, key) = made();
    /// // `chain` and `key` are the texts of PEM files.
    /// let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes())?;
    /// let acceptor = Acceptor::builder(identity).alpn(["h2", "http/1.1"]).build()?;
    /// let router = Router::new().get("/", |request: &mut Request<'_>| format!("{:?}", request.tls()));
    /// let server = Server::new(router).tls(acceptor);
    /// # std::io::Result::Ok(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, acceptor: osier_tls::Acceptor) -> Self {
        self.tls = Some(acceptor);
        self
    }

    /// Includes the server in the upgrades of this process: see [`upgrade`](crate::upgrade). `name` identifies the server in every version
    /// of the program. In a process that an upgrade has started, [`bind`](Server::bind) and [`bind_unix`](Server::bind_unix) ignore the
    /// address and use the sockets of the old process's server with that name, and [`Listening::run`] serves from [`Upgrade::ready`] on.
    #[cfg(feature = "upgrade")]
    pub fn upgradable(mut self, upgrade: &Upgrade, name: &str) -> Self {
        self.upgrade = Some((upgrade.clone(), name.into()));
        self
    }

    /// The sockets that the old process has for this server.
    fn inherited(&self) -> Option<Vec<Listener>> {
        #[cfg(feature = "upgrade")]
        if let Some((upgrade, name)) = &self.upgrade {
            return upgrade.listeners(name);
        }
        None
    }

    /// Calls `hook` once for each served request, on the connection's fiber: for an access log, for
    /// example. Without a hook no clock is read.
    pub fn on_request(mut self, hook: impl Fn(&Served<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(hook));
        self
    }

    /// Calls `hook` when a connection begins or ends, to count them for example. A connection that is reset because its client has
    /// too many begins and ends at once. A panic of `hook` is logged, and the connection goes on. A shutdown waits for `hook`.
    ///
    /// ```
    /// use osier_web::{ConnectionEvent, Router, Server};
    ///
    /// let server = Server::new(Router::new()).on_connection(|event| {
    ///     if let ConnectionEvent::Closed(reason) = event {
    ///         println!("a connection has ended: {}", reason.as_str());
    ///     }
    /// });
    /// ```
    pub fn on_connection(mut self, hook: impl Fn(ConnectionEvent) + Send + Sync + 'static) -> Self {
        self.on_connection = Some(Box::new(hook));
        self
    }

    /// Sends the operator's log lines to `log`: panics and failures of handlers, refused requests, and
    /// problems with accepting. Without it, errors and warnings go to the standard error stream. A shutdown waits for `log`.
    ///
    /// ```
    /// use osier_web::{Level, Router, Server};
    ///
    /// let server = Server::new(Router::new()).on_log(|record| {
    ///     if record.level() == Level::Error {
    ///         eprintln!("{:?} {:?}: {record}", record.client_ip(), record.id());
    ///     }
    /// });
    /// ```
    pub fn on_log(mut self, log: impl Fn(&Record<'_>) + Send + Sync + 'static) -> Self {
        self.log = Box::new(log);
        self
    }

    /// Listens on `addr`, with one listener for each worker of the runtime. [`Listening::run`]
    /// begins to accept connections.
    ///
    /// # Blocks the thread
    ///
    /// As long as a name is looked up. Never for an address.
    ///
    /// # Errors
    ///
    /// An error of the system if no address can be listened on. `AddrInUse` also if the other
    /// listener would share the port. `InvalidInput` for a timeout of zero.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime.
    #[track_caller]
    pub fn bind(self, addr: impl ToSocketAddrs) -> io::Result<Listening> {
        let workers = workers();
        if let Some(listeners) = self.inherited() {
            return self.listening(listeners);
        }
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the address resolves to nothing");
        for addr in addr.to_socket_addrs()? {
            match Listener::bind(addr, workers) {
                Ok(listeners) => return self.listening(listeners),
                Err(error) => last = io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}")),
            }
        }
        Err(last)
    }

    /// Listens on a Unix socket. A file that a dead server left at `path` is replaced. The file is
    /// removed when the server has ended.
    ///
    /// # Blocks the thread
    ///
    /// As long as the file system takes.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if a server is listening there or the file is not a socket. Other errors of the
    /// system.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime.
    #[track_caller]
    pub fn bind_unix(self, path: impl AsRef<Path>) -> io::Result<Listening> {
        workers(); // before the file is made
        let path = path.as_ref();
        if let Some(listeners) = self.inherited() {
            let mut listening = self.listening(listeners)?;
            listening.file = SocketFile::of(path);
            return Ok(listening);
        }
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

    /// Uses a listener that is already open. One worker accepts. The connections are spread over
    /// all workers.
    ///
    /// # Errors
    ///
    /// An error if the listener has no address.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime.
    #[doc(alias = "from_tcp")]
    #[track_caller]
    pub fn listener(self, listener: impl Into<Listener>) -> io::Result<Listening> {
        self.listening(vec![listener.into()])
    }

    /// Uses several listeners that are already open: those of [`Listener::bind`], or of a service
    /// manager. The workers share the listeners in turn.
    ///
    /// # Errors
    ///
    /// An error if there are none, or if the first has no address.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime.
    #[track_caller]
    pub fn listeners(self, listeners: Vec<Listener>) -> io::Result<Listening> {
        if listeners.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no listeners: give at least one",
            ));
        }
        self.listening(listeners)
    }

    #[track_caller]
    fn listening(self, listeners: Vec<Listener>) -> io::Result<Listening> {
        let workers = workers();
        for (name, time) in [("body", self.timeouts.body), ("write", self.timeouts.write)] {
            if time.is_zero() {
                let error = format!("Timeouts::{name} is zero: give the time to wait, Duration::MAX for ever");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
            }
        }
        let address = listeners[0].address()?;
        let bound = one_address(&listeners);
        #[cfg(feature = "upgrade")]
        let upgrade = self.upgrade.clone();
        let listening = Listening {
            sockets: Sockets::new(listeners),
            address,
            file: None,
            service: self.service(workers, bound),
            stop: ShutdownHandle::default(),
            #[cfg(feature = "upgrade")]
            upgrade: None,
        };
        #[cfg(feature = "upgrade")]
        let listening = Listening {
            upgrade: upgrade.map(|(upgrade, name)| {
                let registration = upgrade.register(Registered {
                    name,
                    service: listening.service.clone(),
                    stop: listening.stop.clone(),
                    sockets: listening.sockets.clone(),
                });
                (upgrade, registration)
            }),
            ..listening
        };
        Ok(listening)
    }

    /// The bytes of a response that the windows of a stream must let through within the write timeout.
    #[cfg(feature = "h2")]
    fn stall_bytes(&self) -> u32 {
        let bytes = self.rates.response_bytes(self.timeouts.write);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Makes the service of this many workers. `bound` is the local address of every connection, if
    /// there is only one.
    pub(crate) fn service(self, workers: usize, bound: Option<SocketAddr>) -> Service {
        #[cfg(feature = "h2")]
        let http2 = self.http2.map(|limits| osier_http::h2::Limits {
            head_bytes: u32::try_from(self.limits.head_bytes).unwrap_or(u32::MAX),
            header_count: u16::try_from(self.limits.header_count).unwrap_or(u16::MAX),
            head_timeout: self.timeouts.header.min(LONGEST),
            stall_timeout: self.timeouts.write.min(LONGEST),
            stall_bytes: self.stall_bytes(),
            ..limits
        });
        let state = ServerState {
            limits: self.limits,
            #[cfg(feature = "h2")]
            http2,
            timeouts: self.timeouts,
            rates: self.rates,
            max_connections: self.max_connections,
            is_for_operators: self.is_for_operators,
            clients: self.max_connections_per_client.map(Clients::new),
            bound,
            trusted: self.trusted,
            #[cfg(feature = "tls")]
            tls: self.tls,
            log: self.log,
            waits: Seldom::default(),
            #[cfg(feature = "h2")]
            tunnels: Seldom::default(),
            on_connection: self.on_connection,
            shutdown: Arc::new(Event::manual()),
            connections: (0..workers).map(|_| ConnectionCount::default()).collect(),
        };
        Service {
            state: Arc::new(state),
            app: App::new(self.handler, self.observer),
        }
    }
}

/// The longest HTTP/2 timeout, in place of one that is for ever.
#[cfg(feature = "h2")]
const LONGEST: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 60 * 60);

/// Returns the local address of every connection, if the listeners have only one.
fn one_address(listeners: &[Listener]) -> Option<SocketAddr> {
    let mut addrs = listeners.iter().map(|listener| match listener {
        Listener::Tcp(listener) => listener.local_addr().ok().filter(|addr| !addr.ip().is_unspecified()),
        Listener::Unix(_) => None,
    });
    let first = addrs.next()??;
    addrs.all(|addr| addr == Some(first)).then_some(first)
}

osier_queue::impl_debug!(Server, self => { handler: self.handler, limits: self.limits, timeouts: self.timeouts, .. });

/// A server that listens.
pub struct Listening {
    sockets: Sockets,
    address: Address,
    file: Option<SocketFile>,
    service: Service,
    stop: ShutdownHandle,
    #[cfg(feature = "upgrade")]
    upgrade: Option<(Upgrade, Registration)>,
}

impl Listening {
    /// The address of the listener, with the port that the system chose for port 0. `0.0.0.0:0` for
    /// a Unix socket.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.address {
            Address::Tcp(text) => text.parse().unwrap_or(NOWHERE),
            Address::Unix(_) => NOWHERE,
        }
    }

    /// The address of the listener, as a client names it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Counts the open connections, also while the server runs.
    pub fn connections(&self) -> Connections {
        Connections(Arc::clone(&self.service.state))
    }

    /// The listening sockets. Give their [clones](Sockets::try_clone) to another server, with
    /// other settings, before this one is [closed](ShutdownHandle::close). The other server takes
    /// the new connections.
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// Takes the file of the Unix socket, so that this server no longer removes it. Another server
    /// can take the socket over.
    pub fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// Returns a handle that ends [`run`](Listening::run).
    pub fn handle(&self) -> ShutdownHandle {
        self.stop.clone()
    }

    /// Serves until [`ShutdownHandle::shutdown`]. Then comes the graceful shutdown:
    ///
    /// 1. The server stops accepting, after the connections that wait in the accept backlog. A client that the kernel still keeps
    ///    because it has sent nothing gets a reset when it sends: see [`Listener::bind`].
    /// 2. It closes the idle connections.
    /// 3. It sets the event of [`Request::shutdown`](crate::Request::shutdown), which ends event
    ///    streams, and lets in-flight requests finish. Their responses have `connection: close`.
    ///    Tunnels of a proxy go on until one of their sides ends them.
    /// 4. It cuts the connections that are left after [`Timeouts::drain`].
    ///
    /// Returns how many connections were cut.
    ///
    /// # Suspends
    ///
    /// Always suspends.
    ///
    /// # Cancellation
    ///
    /// Unwinds and stops accepting. The runtime then ends the open connections.
    #[doc(alias = "graceful_shutdown")]
    pub fn run(self) -> usize {
        let Listening {
            sockets,
            service,
            stop,
            file,
            #[cfg(feature = "upgrade")]
            upgrade,
            ..
        } = self;
        #[cfg(feature = "upgrade")]
        if let Some((upgrade, _)) = &upgrade {
            upgrade.wait_to_serve();
        }
        loop {
            let mut kept = begin(&service, &sockets);
            stop.wait_and_keep(&mut kept, &service.state);
            // Those that accept end first: each accepts its backlog, for which memory may have to be relieved.
            let relieving = kept.split_off(kept.len() / 2);
            end_accepting(&service, &sockets, kept);
            relieving.iter().for_each(Kept::cancel);
            drop(relieving);
            stop.0.closed.store(true, Ordering::Release);
            if stop.wait_until(|asked| asked != CLOSED) != OPEN {
                break;
            }
            stop.0.closed.store(false, Ordering::Release);
        }
        match file {
            Some(file) if stop.0.leaves_file.load(Ordering::Acquire) => file.keep(),
            file => drop(file),
        }
        // Clients that come now are refused.
        sockets.close();
        stop.wait_until(|asked| asked == ENDED);
        #[cfg(feature = "upgrade")]
        if let Some((upgrade, registration)) = upgrade {
            drop(registration);
            upgrade.has_ended_a_server();
        }
        let drains: Vec<JoinHandle<usize>> = (0..service.state.connections.len())
            .map(|index| {
                let service = service.clone();
                on_worker(index, "drain", move || drain(&service))
            })
            .collect();
        drains.into_iter().map(|drain| drain.join().unwrap_or(0)).sum()
    }
}

osier_queue::impl_debug!(Listening, self => { address: self.address, .. });

/// The connections of a server: their number, and a list of them. See [`Listening::connections`].
#[derive(Clone)]
pub struct Connections(Arc<ServerState>);

impl Connections {
    /// The connections of one worker of the runtime. 0 if there is no such worker.
    pub fn of_worker(&self, index: usize) -> usize {
        match index < self.0.connections.len() {
            true => self.0.count(index),
            false => 0,
        }
    }

    /// The connections that speak `protocol`. One that has just been accepted may not count yet.
    pub fn of_protocol(&self, protocol: Protocol) -> usize {
        self.0.count_of(protocol)
    }

    /// Lists the connections, at most `most` of them. Connections of a worker that is stuck are left out.
    ///
    /// # Suspends
    ///
    /// Until each worker has answered.
    pub fn list(&self, most: usize) -> Vec<ConnectionInfo> {
        list::connections(&self.0, most)
    }

    /// The connections of all workers at this moment.
    pub fn count(&self) -> usize {
        self.0.total()
    }
}

osier_queue::impl_debug!(Connections, self => { count: self.count() });

/// The file of a Unix socket. Its drop removes the file, unless another file has taken its place.
/// See [`Listening::take_file`].
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    /// The existing file, for a process that has taken over its socket. `None` if there is none.
    pub fn of(path: &Path) -> Option<SocketFile> {
        let device_and_inode = device_and_inode(path)?;
        let path = path.into();
        Some(SocketFile { path, device_and_inode })
    }
}

impl SocketFile {
    /// Leaves the file where it is.
    pub fn keep(mut self) {
        // No file has this number.
        self.device_and_inode = (0, 0);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if device_and_inode(&self.path) == Some(self.device_and_inode) {
            // Another process may have removed the file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Begins to accept: each listener has a fiber for that, and one for the connections that have to end. The latter come last.
fn begin(service: &Service, sockets: &Sockets) -> Vec<Kept> {
    let listeners = sockets.all();
    let workers = service.state.connections.len();
    let accepting = (0..listeners.len()).map(|index| {
        let (service, listeners, worker) = (service.clone(), Arc::clone(&listeners), index % workers);
        Kept::new(format!("the fiber that accepts on worker {worker}"), move || {
            let (service, listeners) = (service.clone(), Arc::clone(&listeners));
            on_worker(worker, "accept", move || accept(&service, &listeners[index]))
        })
    });
    let relieving = (0..listeners.len()).map(|index| {
        let (service, worker) = (service.clone(), index % workers);
        let what = format!("the fiber on worker {worker} that relieves the memory");
        Kept::new(what, move || {
            let service = service.clone();
            on_worker(worker, "relieve", move || relieve(&service))
        })
    });
    accepting.chain(relieving).collect()
}

/// Ends the fibers that accept. Each accepts its backlog, which takes a moment, so all of them do so at once. If one is lost, or had no turn
/// before the server stopped, another fiber accepts its backlog.
fn end_accepting(service: &Service, sockets: &Sockets, kept: Vec<Kept>) {
    kept.iter().for_each(Kept::cancel);
    let (listeners, workers) = (sockets.all(), service.state.connections.len());
    let fibers = kept.into_iter().enumerate();
    let lost: Vec<usize> = fibers
        .filter_map(|(index, fiber)| (!fiber.end()).then_some(index))
        .collect();
    let begin = |index: usize| {
        let (service, listeners) = (service.clone(), Arc::clone(&listeners));
        let work = move || accept_the_backlog(&service, &listeners[index]);
        on_worker(index % workers, "accept", work)
    };
    let accepting: Vec<JoinHandle<()>> = lost.into_iter().map(begin).collect();
    for fiber in accepting {
        let _ = fiber.join();
    }
}

/// A handle that ends a server from anywhere: from another fiber or from a plain thread.
#[derive(Clone, Default)]
#[doc(alias("ServerHandle", "graceful_shutdown"))]
pub struct ShutdownHandle(Arc<Stop>);

#[derive(Default)]
struct Stop {
    /// [`OPEN`], [`CLOSED`], [`RELEASED`] or [`ENDED`]. It never falls, but from [`CLOSED`] to [`OPEN`].
    asked: AtomicU8,
    /// Set once the accepting fibers have ended. The Release store comes after all counts that they
    /// have added.
    closed: AtomicBool,
    /// Whether the file of a Unix socket stays: another process serves it.
    leaves_file: AtomicBool,
    waker: AtomicWaker,
}

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
/// The server closes its sockets, and goes on with its connections.
#[cfg(feature = "upgrade")]
const RELEASED: u8 = 2;
const ENDED: u8 = 3;

impl ShutdownHandle {
    /// Asks the server to shut down. See [`Listening::run`]. Never waits. A second call does
    /// nothing.
    #[doc(alias = "stop")]
    pub fn shutdown(&self) {
        self.ask(ENDED);
    }

    /// Asks the server to stop accepting. Open connections go on until
    /// [`shutdown`](ShutdownHandle::shutdown). Never waits.
    pub fn close(&self) {
        self.ask(CLOSED);
    }

    /// Whether the server has accepted its last connection, after [`close`](ShutdownHandle::close)
    /// or [`shutdown`](ShutdownHandle::shutdown). From then on, [`Connections::count`] only falls.
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    fn ask(&self, what: u8) {
        self.0.asked.fetch_max(what, Ordering::Release);
        self.0.waker.wake();
    }

    /// Lets the server leave the file of its Unix socket where it is, because another process serves it.
    #[cfg(feature = "upgrade")]
    pub(crate) fn leave_file(&self) {
        self.0.leaves_file.store(true, Ordering::Release);
    }

    /// Asks the server to close its sockets. Open connections go on until [`shutdown`](ShutdownHandle::shutdown).
    #[cfg(feature = "upgrade")]
    pub(crate) fn release(&self) {
        self.ask(RELEASED);
    }

    /// Asks the server to accept again, after [`close`](ShutdownHandle::close).
    #[cfg(feature = "upgrade")]
    pub(crate) fn reopen(&self) {
        let _ = self
            .0
            .asked
            .compare_exchange(CLOSED, OPEN, Ordering::Release, Ordering::Relaxed);
        self.0.waker.wake();
    }

    /// Waits until `is_met` is true for the requested state, and returns that state.
    fn wait_until(&self, is_met: impl Fn(u8) -> bool) -> u8 {
        osier::block_on(poll_fn(|cx| self.poll_until(cx, &is_met)))
    }

    fn poll_until(&self, cx: &mut Context<'_>, is_met: impl Fn(u8) -> bool) -> Poll<u8> {
        self.0.waker.register(cx.waker());
        let asked = self.0.asked.load(Ordering::Acquire);
        match is_met(asked) {
            true => Poll::Ready(asked),
            false => Poll::Pending,
        }
    }

    /// Waits until the server has to stop accepting, and replaces fibers that are lost before.
    fn wait_and_keep(&self, kept: &mut [Kept], server: &ServerState) {
        let stops = |asked| asked != OPEN;
        loop {
            let lost = osier::block_on(poll_fn(|cx| match self.poll_until(cx, stops) {
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => kept::poll_lost(kept, cx).map(Some),
            }));
            let Some(lines) = lost else { return };
            for line in lines {
                kept::carefully(|| server.log(&Record::new(Level::Error, format_args!("{line}"))));
            }
            if osier::timeout(kept::PAUSE, || self.wait_until(stops)).is_ok() {
                return;
            }
            kept.iter_mut().for_each(Kept::replace);
        }
    }
}

osier_queue::impl_debug!(ShutdownHandle, self => { asked: self.0.asked, .. });

/// The number of workers of this thread's runtime.
#[track_caller]
fn workers() -> usize {
    assert!(
        osier::fiber::worker().is_some(),
        "no runtime for the server: call this inside osier::run, as in osier::run(|| serve(..))"
    );
    osier::workers()
}
