//! TCP: listeners and streams.

use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrAny, SocketType, sockopt};

use super::addr::{ToSocketAddrs, each_addr, each_addr_async};
use super::connect::{first_of, first_of_async};
use super::deferred::defer_accept;
use super::impls::{listener_impls, socket_options, stream_impls};
use super::stream::{self, Stream, call, zero_timeout};
use super::system;
use crate::wait::fd::{Fd, Opened};
use crate::wait::leaf::Io;
use crate::wait::socket::{Direction, ShortRead, Watched};
use crate::wait::{self, Stop, simulated};
use crate::worker::context::{self, Caller, now};

/// The accept backlog. The system may allow less (`/proc/sys/net/core/somaxconn`).
pub(crate) const BACKLOG: i32 = 4096;

/// A TCP stream between a local and a remote socket, as [`std::net::TcpStream`].
///
/// ```
/// use osier::net::{TcpListener, TcpStream};
/// use std::io::{Read, Write};
/// osier::run(|| {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let mut client = TcpStream::connect(listener.local_addr()?)?;
///     let (mut server, _) = listener.accept()?;
///     server.write_all(b"hello")?;
///     drop(server);
///     let mut text = String::new();
///     client.read_to_string(&mut text)?;
///     assert_eq!(text, "hello");
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
///
/// # Suspends
///
/// Reading: until there is a byte or the end. Writing: until the kernel takes a byte.
///
/// # Cancellation
///
/// A call fails with [`Cancelled`](crate::Cancelled) if the fiber is cancelled before it or while it waits. No bytes
/// are lost. The socket stays as it is.
///
/// # Errors
///
/// - `TimedOut` after the timeouts of [`set_read_timeout`](TcpStream::set_read_timeout) and
///   [`set_write_timeout`](TcpStream::set_write_timeout).
/// - `WouldBlock` on a worker outside of a fiber, if the call would have to wait.
/// - The system's errors.
pub struct TcpStream(Stream);

stream_impls!(TcpStream, ShortRead::Drains, std::net::TcpStream);

impl TcpStream {
    pub(super) fn into_inner(self) -> Stream {
        self.0
    }

    /// Connects to the first address that answers.
    ///
    /// Several addresses, such as those of a name, are tried in turn, IPv6 and IPv4 alternately ([RFC 8305]). The next attempt begins when
    /// the one before it has failed, or has had no answer for 250 ms. The first that connects wins, and the sockets of the others are
    /// closed: a server may see such a connection come and go.
    ///
    /// A limit is that of a [`timeout`](crate::timeout()) around the call, or of [`connect_within`](TcpStream::connect_within).
    ///
    /// [RFC 8305]: https://www.rfc-editor.org/rfc/rfc8305
    ///
    /// # Suspends
    ///
    /// While a name is looked up, and until a connection is made or all are refused.
    ///
    /// # Errors
    ///
    /// For one address: the system's error, as in std. For several: an error whose text has each address that was tried with its reason, and
    /// whose kind and [source](std::error::Error::source) are those of the last one. `InvalidInput` if there is no address. For a name that
    /// cannot be looked up: see [`to_socket_addrs`](ToSocketAddrs::to_socket_addrs).
    #[doc(alias("dial", "happy_eyeballs"))]
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        first_of(addr.to_socket_addrs()?, None, &mut open).map(TcpStream)
    }

    /// Connects, waiting for at most `timeout`.
    ///
    /// # Suspends
    ///
    /// Until the connection is made or refused, or the time is up.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a timeout of zero; `TimedOut`; the system's error.
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        let deadline = deadline_of(timeout)?;
        first_of([*addr].into_iter(), deadline, &mut open).map(TcpStream)
    }

    /// Connects as [`connect`](TcpStream::connect) does, and waits for at most `limit`: for the lookup of a name and for all its addresses
    /// together. The limit holds on plain threads too. It does not end a lookup by a [`ToSocketAddrs`] of other code that has the blocking
    /// method alone.
    ///
    /// ```
    /// use osier::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let port = listener.local_addr()?.port();
    /// let client = TcpStream::connect_within(("localhost", port), Duration::from_secs(60))?;
    /// assert_eq!(client.peer_addr()?, listener.local_addr()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Suspends
    ///
    /// Until a connection is made, all are refused, or the time is up.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](TcpStream::connect); `TimedOut`; `InvalidInput` for a limit of zero.
    #[doc(alias = "connect_timeout")]
    pub fn connect_within(addr: impl ToSocketAddrs, limit: Duration) -> io::Result<TcpStream> {
        let deadline = deadline_of(limit)?;
        first_of(look_up_until(&addr, deadline)?, deadline, &mut open).map(TcpStream)
    }

    /// Connects as [`connect`](TcpStream::connect) does, with sockets that `make` has made and set up: for options that must be there before
    /// the connection, such as an address or interface to connect from. `make` is called once for each address that is tried, with that
    /// address. It may not wait.
    ///
    /// The crate `socket2` has all options, and its `Socket` is an `Into<OwnedFd>`:
    ///
    /// ```
    /// use osier::net::{SocketAddr, TcpListener, TcpStream};
    /// use socket2::{Domain, Socket, TcpKeepalive, Type};
    /// use std::time::Duration;
    ///
    /// let make = |to: &SocketAddr| {
    ///     let socket = Socket::new(Domain::for_address(*to), Type::STREAM, None)?;
    ///     socket.set_reuse_address(true)?;
    ///     socket.set_recv_buffer_size(64 << 10)?;
    ///     socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(60)))?;
    ///     if to.is_ipv4() {
    ///         socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into())?;
    ///     }
    ///     std::io::Result::Ok(socket)
    /// };
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let client = TcpStream::connect_with(listener.local_addr()?, make)?;
    /// # #[cfg(target_os = "linux")]
    /// assert_eq!(client.local_addr()?.ip().to_string(), "127.0.0.2");
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// A simulation (feature `sim`) does not replace such sockets: they are those of the machine.
    ///
    /// # Suspends
    ///
    /// As [`connect`](TcpStream::connect).
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](TcpStream::connect). An error of `make` counts as that of its address.
    #[doc(alias("TcpSocket", "bind_device", "local_address"))]
    pub fn connect_with<S: Into<OwnedFd>>(
        addr: impl ToSocketAddrs,
        make: impl FnMut(&SocketAddr) -> io::Result<S>,
    ) -> io::Result<TcpStream> {
        first_of(addr.to_socket_addrs()?, None, &mut adopting(make)).map(TcpStream)
    }

    /// [`connect`](TcpStream::connect) as a future.
    ///
    /// ```
    /// use osier::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let client = osier::block_on(TcpStream::connect_async(listener.local_addr()?))?;
    /// assert_eq!(client.peer_addr()?, listener.local_addr()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Cancellation
    ///
    /// Dropping it closes its sockets.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](TcpStream::connect).
    pub fn connect_async<A: ToSocketAddrs>(addr: A) -> impl Future<Output = io::Result<TcpStream>> + Send + use<A> {
        // The lookup borrows nothing, so the future need not keep `addr`.
        let addrs = addr.to_socket_addrs_async();
        async move { first_of_async(addrs.await?, open).await.map(TcpStream) }
    }

    /// [`connect_with`](TcpStream::connect_with) as a future.
    ///
    /// # Cancellation
    ///
    /// Dropping it closes its sockets.
    ///
    /// # Errors
    ///
    /// The errors of [`connect_with`](TcpStream::connect_with).
    pub fn connect_with_async<A, S, F>(
        addr: A,
        make: F,
    ) -> impl Future<Output = io::Result<TcpStream>> + Send + use<A, S, F>
    where
        A: ToSocketAddrs,
        S: Into<OwnedFd>,
        F: FnMut(&SocketAddr) -> io::Result<S> + Send,
    {
        let addrs = addr.to_socket_addrs_async();
        async move { first_of_async(addrs.await?, adopting(make)).await.map(TcpStream) }
    }

    /// The address of the peer.
    ///
    /// # Errors
    ///
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// The address of the local end.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    socket_options! {
        /// Sets whether small writes are sent at once, not collected while an acknowledgement is outstanding
        /// (`TCP_NODELAY`).
        ///
        /// # Errors
        ///
        /// The system's error.
        set_nodelay(nodelay: bool) -> () = set_tcp_nodelay;

        /// Whether small writes are sent at once.
        ///
        /// # Errors
        ///
        /// The system's error.
        nodelay() -> bool = tcp_nodelay;
    }

    /// Sets how long a close waits for unsent bytes (`SO_LINGER`), in seconds, rounded up. `Some(Duration::ZERO)` resets the connection.
    ///
    /// A longer time makes the close block the worker: leave it `None` and call [`shutdown`](TcpStream::shutdown)
    /// instead.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.0.set_linger(linger)
    }

    /// The time that a close waits for unsent bytes.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.0.linger()
    }

    socket_options! {
        /// Sets the number of hops that packets may take.
        ///
        /// # Errors
        ///
        /// The system's error.
        set_ttl(ttl: u32) -> () = set_ip_ttl;

        /// The number of hops that packets may take.
        ///
        /// # Errors
        ///
        /// The system's error.
        ttl() -> u32 = ip_ttl;
    }
}

/// A TCP socket that listens, as [`std::net::TcpListener`].
///
/// ```
/// use osier::net::{TcpListener, TcpStream};
/// osier::run(|| {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let client = TcpStream::connect(listener.local_addr()?)?;
///     let (_, peer) = listener.accept()?;
///     assert_eq!(peer, client.local_addr()?);
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
#[doc(alias = "TcpSocket")]
pub struct TcpListener(Watched);

listener_impls!(TcpListener, std::net::TcpListener, TcpStream, Incoming, IncomingAsync);

impl TcpListener {
    /// Listens on the first address that is free. With port 0 the system chooses a port.
    ///
    /// # Suspends
    ///
    /// While a name is looked up.
    ///
    /// # Errors
    ///
    /// `AddrInUse`, `AddrNotAvailable`, `PermissionDenied` or another error of the system for the last address.
    #[doc(alias = "listen")]
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        each_addr(addr, |addr| TcpListener::listen(addr, Share::No))
    }

    /// Listens on an address that other sockets of the same user may listen on too (`SO_REUSEPORT`). The system
    /// spreads the connections over them. It serves programs with one listener per worker.
    ///
    /// # Suspends
    ///
    /// While a name is looked up.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](TcpListener::bind).
    #[doc(alias("SO_REUSEPORT", "reuse_port"))]
    pub fn bind_reuseport(addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        each_addr(addr, |addr| TcpListener::listen(addr, Share::WithOthers))
    }

    /// Listens on an address with `count` sockets that share it, as [`bind_reuseport`](TcpListener::bind_reuseport) does, unless
    /// another program's listener has it already. On Linux, connections that they accept begin with `TCP_NODELAY` set:
    /// see [`nodelay`](TcpListener::nodelay).
    ///
    /// # Suspends
    ///
    /// Never.
    ///
    /// # Errors
    ///
    /// `AddrInUse` also if the other listener would share the port; the errors of [`bind`](TcpListener::bind).
    pub fn bind_shared(addr: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
        if addr.port() != 0 {
            // SO_REUSEPORT would silently share the port with another server of the same user, so a probe binds it
            // without. The probe never listens: a client that reached a listener soon closed would be reset.
            let probe = socket(&addr, SocketType::STREAM)?;
            match probe.fd() {
                Fd::System(fd) => {
                    sockopt::set_socket_reuseaddr(fd, true)?;
                    rustix::net::bind(fd, &addr)?;
                }
                Fd::Simulated(socket) => socket.listen(&addr, false)?,
            }
        }
        let first = TcpListener::listen(addr, Share::AmongWorkers)?;
        let addr = first.local_addr()?;
        let others = (1..count).map(|_| TcpListener::listen(addr, Share::AmongWorkers));
        std::iter::once(Ok(first)).chain(others).collect()
    }

    /// [`bind`](TcpListener::bind) as a future.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](TcpListener::bind).
    pub fn bind_async<A: ToSocketAddrs>(addr: A) -> impl Future<Output = io::Result<TcpListener>> + Send + use<A> {
        each_addr_async(addr, |addr| ready(TcpListener::listen(addr, Share::No)))
    }

    /// [`bind_reuseport`](TcpListener::bind_reuseport) as a future.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](TcpListener::bind).
    pub fn bind_reuseport_async<A: ToSocketAddrs>(
        addr: A,
    ) -> impl Future<Output = io::Result<TcpListener>> + Send + use<A> {
        each_addr_async(addr, |addr| ready(TcpListener::listen(addr, Share::WithOthers)))
    }

    fn listen(addr: SocketAddr, share: Share) -> io::Result<TcpListener> {
        let opened = socket(&addr, SocketType::STREAM)?;
        let reuseport = share != Share::No;
        match opened.fd() {
            Fd::System(fd) => {
                // A port is free although old connections are in TIME_WAIT, as in std.
                sockopt::set_socket_reuseaddr(fd, true)?;
                if reuseport {
                    sockopt::set_socket_reuseport(fd, true)?;
                }
                if share == Share::AmongWorkers {
                    // Connections that arrive as soon as it listens inherit it.
                    sockopt::set_tcp_nodelay(fd, true)?;
                }
                rustix::net::bind(fd, &addr)?;
                rustix::net::listen(fd, BACKLOG)?;
            }
            Fd::Simulated(socket) => socket.listen(&addr, reuseport)?,
        }
        Ok(TcpListener(Watched::new(opened, ShortRead::SaysNothing)))
    }

    /// Accepts the next connection. Returns it with the address of its peer.
    ///
    /// Several fibers may accept from one listener.
    ///
    /// # Suspends
    ///
    /// Until there is a connection. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call. No connection is lost.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` and similar errors concern one client: accept again. Too many open files, only while a connection is there: accept
    /// again later.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.io(Direction::Read, || None, call::accept).and_then(accepted)
    }

    /// [`accept`](TcpListener::accept) as a future.
    ///
    /// # Cancellation
    ///
    /// A connection is accepted in the poll that returns it, so dropping the future loses none.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](TcpListener::accept).
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        accepted(Io::new(&self.0, Direction::Read, call::accept).await?)
    }

    /// The address it listens on.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        stream::local_addr(&self.0)
    }

    /// Lets [`accept`](TcpListener::accept) return a connection when its first bytes have arrived, or when its client has sent nothing
    /// for `limit` (`TCP_DEFER_ACCEPT`): for protocols whose clients speak first. Zero returns every connection at once, as a new listener
    /// does.
    ///
    /// The system rounds `limit` up to the seconds after which it repeats packets: 1, 3, 7 and so on. The client is connected meanwhile;
    /// if the listener is closed, it gets a reset when it sends. Has no effect on systems other than Linux.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn set_defer_accept(&self, limit: Duration) -> io::Result<()> {
        match self.0.fd() {
            Fd::System(fd) => defer_accept(fd, limit),
            Fd::Simulated(_) => Ok(()),
        }
    }

    socket_options! {
        /// Sets the number of hops that packets may take.
        ///
        /// # Errors
        ///
        /// The system's error.
        set_ttl(ttl: u32) -> () = set_ip_ttl;

        /// The number of hops that packets may take.
        ///
        /// # Errors
        ///
        /// The system's error.
        ttl() -> u32 = ip_ttl;

        /// Whether `TCP_NODELAY` is set, which connections inherit on Linux: those that it accepts need no
        /// [`set_nodelay`](TcpStream::set_nodelay) of their own.
        ///
        /// # Errors
        ///
        /// The system's error.
        nodelay() -> bool = tcp_nodelay;
    }
}

/// The other sockets that may listen on the address of a listener.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    No,
    WithOthers,
    /// The listeners of the other workers of one server.
    AmongWorkers,
}

fn accepted((opened, peer): (Opened, Option<SocketAddrAny>)) -> io::Result<(TcpStream, SocketAddr)> {
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let stream = TcpStream(Stream::new(Watched::new(opened, ShortRead::Drains)));
    match peer {
        Some(peer) => Ok((stream, peer)),
        None => stream.peer_addr().map(|peer| (stream, peer)),
    }
}

/// The end of a connect that may take `limit`.
fn deadline_of(limit: Duration) -> io::Result<Option<Instant>> {
    match limit.is_zero() {
        true => Err(zero_timeout("use a longer one, or TcpStream::connect for no timeout")),
        false => Ok(now().checked_add(limit)),
    }
}

/// The addresses of a connect that ends at `deadline`.
fn look_up_until<A: ToSocketAddrs>(addr: &A, deadline: Option<Instant>) -> io::Result<A::Iter> {
    if context::caller(|caller| matches!(caller, Caller::Worker)) {
        return addr.to_socket_addrs(); // a name fails there before its lookup begins
    }
    let mut addrs = pin!(addr.to_socket_addrs_async());
    match wait::wait(deadline, None, |cx| addrs.as_mut().poll(cx)) {
        Ok(found) => found,
        Err(Stop::Elapsed) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "cannot look up the name: the time for the connection is over",
        )),
        Err(stop) => Err(stop.into()),
    }
}

/// Opens the socket of a connect.
fn open(addr: &SocketAddr) -> io::Result<Stream> {
    let opened = socket(addr, SocketType::STREAM)?;
    Ok(Stream::new(Watched::new(opened, ShortRead::Drains)))
}

/// Takes sockets that other code has made.
fn adopting<S: Into<OwnedFd>>(
    mut make: impl FnMut(&SocketAddr) -> io::Result<S>,
) -> impl FnMut(&SocketAddr) -> io::Result<Stream> {
    move |addr| Ok(Stream::from_outside(make(addr)?.into(), ShortRead::Drains))
}

/// Opens a socket for the family of `addr`: on a simulated host a simulated one.
pub(crate) fn socket(addr: &SocketAddr, kind: SocketType) -> io::Result<Opened> {
    let endpoint = match kind == SocketType::STREAM {
        true => simulated::stream_socket(),
        false => simulated::datagram_socket(),
    };
    if let Some(endpoint) = endpoint {
        return Ok(endpoint.into());
    }
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    Ok(system::socket(family, kind)?.into())
}
