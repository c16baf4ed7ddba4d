//! TCP: listeners and streams.

use std::future::ready;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, sockopt};
use socket2::SockRef;

use super::addr::{ToSocketAddrs, each_addr, each_addr_async};
use super::stream::{Stream, adopt, call, describe, descriptor_impls, stream_impls, zero_timeout};
use super::system;
use crate::wait::leaf::{Io, Side};
use crate::wait::socket::{Direction, Moved, ShortRead, Source, Watched};
use crate::worker::context::now;

/// As many connections as the system lets wait (`/proc/sys/net/core/somaxconn` bounds it).
pub(crate) const BACKLOG: i32 = 4096;

/// A TCP stream between a local and a remote socket; as [`std::net::TcpStream`].
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
/// A call that waits, or that begins when the fiber is cancelled already, fails with [`Cancelled`](crate::Cancelled); no
/// bytes are lost. The socket stays as it is.
///
/// # Errors
///
/// `TimedOut` after the timeouts set with [`set_read_timeout`](TcpStream::set_read_timeout) and
/// [`set_write_timeout`](TcpStream::set_write_timeout), `WouldBlock` for a call that would have to wait on a worker but
/// not on a fiber, and what the system says.
pub struct TcpStream(Stream);

stream_impls!(TcpStream, std::net::TcpStream, ShortRead::Drains);

impl TcpStream {
    pub(super) fn into_inner(self) -> Stream {
        self.0
    }

    /// Connects to the first address that answers.
    ///
    /// # Suspends
    ///
    /// While a name is looked up, and until the connection is made or refused.
    ///
    /// # Errors
    ///
    /// That of the last address; `InvalidInput` if there is none.
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        each_addr(addr, |addr| TcpStream::connect_until(addr, None))
    }

    /// Connects, waiting for at most `timeout`.
    ///
    /// # Suspends
    ///
    /// Until the connection is made or refused, or the time is over.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a timeout of zero; `TimedOut`; the system's error.
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        if timeout.is_zero() {
            return Err(zero_timeout());
        }
        TcpStream::connect_until(*addr, now().checked_add(timeout))
    }

    fn connect_until(addr: SocketAddr, deadline: Option<Instant>) -> io::Result<TcpStream> {
        let watched = Watched::new(socket(&addr, SocketType::STREAM)?, ShortRead::Drains);
        watched.io(Direction::Write, || deadline, |fd| connect(fd, &addr))?;
        Ok(TcpStream(Stream::new(watched)))
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
    /// Dropping it closes the socket that was to be connected.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](TcpStream::connect).
    pub fn connect_async<A: ToSocketAddrs>(addr: A) -> impl Future<Output = io::Result<TcpStream>> + Send + use<A> {
        each_addr_async(addr, |addr| async move {
            let watched = Watched::new(socket(&addr, SocketType::STREAM)?, ShortRead::Drains);
            Io::new(&watched, Direction::Write, |fd| connect(fd, &addr)).await?;
            Ok(TcpStream(Stream::new(watched)))
        })
    }

    /// The address of the other end.
    ///
    /// # Errors
    ///
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        ip(SockRef::from(&self.0.watched.fd()).peer_addr()?)
    }

    /// The address of this end.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        ip(SockRef::from(&self.0.watched.fd()).local_addr()?)
    }

    /// Sends small writes at once instead of collecting them while an answer is awaited (`TCP_NODELAY`).
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(self.0.watched.fd(), nodelay)?)
    }

    /// Whether small writes are sent at once.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(sockopt::tcp_nodelay(self.0.watched.fd())?)
    }

    /// Sets how long a close waits for unsent bytes (`SO_LINGER`). `Some(zero)` resets the connection.
    ///
    /// A longer time would make the close block the worker: leave it `None`, and [`shutdown`](TcpStream::shutdown) instead.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        SockRef::from(&self.0.watched.fd()).set_linger(linger)
    }

    /// The time that a close waits for unsent bytes.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        SockRef::from(&self.0.watched.fd()).linger()
    }

    /// How many hops the packets may take.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_ttl(self.0.watched.fd(), ttl)?)
    }

    /// How many hops the packets may take.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(sockopt::ip_ttl(self.0.watched.fd())?)
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(
            f,
            "TcpStream",
            [("addr", self.local_addr()), ("peer", self.peer_addr())],
        )
    }
}

/// A TCP socket that listens; as [`std::net::TcpListener`].
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
pub struct TcpListener(Watched);

descriptor_impls!(TcpListener, std::net::TcpListener);

impl TcpListener {
    /// Listens on the first address that is free. Port 0 lets the system choose one.
    ///
    /// # Suspends
    ///
    /// While a name is looked up.
    ///
    /// # Errors
    ///
    /// `AddrInUse`, `AddrNotAvailable`, `PermissionDenied` and what else the system says of the last address.
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        each_addr(addr, |addr| TcpListener::listen(addr, false))
    }

    /// Listens on an address that other sockets of the same user may listen on too (`SO_REUSEPORT`): the system spreads
    /// the connections over them. For one listener per worker.
    ///
    /// # Suspends
    ///
    /// While a name is looked up.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](TcpListener::bind).
    pub fn bind_reuseport(addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        each_addr(addr, |addr| TcpListener::listen(addr, true))
    }

    /// [`bind`](TcpListener::bind) as a future.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](TcpListener::bind).
    pub fn bind_async<A: ToSocketAddrs>(addr: A) -> impl Future<Output = io::Result<TcpListener>> + Send + use<A> {
        each_addr_async(addr, |addr| ready(TcpListener::listen(addr, false)))
    }

    /// [`bind_reuseport`](TcpListener::bind_reuseport) as a future.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](TcpListener::bind).
    pub fn bind_reuseport_async<A: ToSocketAddrs>(
        addr: A,
    ) -> impl Future<Output = io::Result<TcpListener>> + Send + use<A> {
        each_addr_async(addr, |addr| ready(TcpListener::listen(addr, true)))
    }

    fn listen(addr: SocketAddr, reuseport: bool) -> io::Result<TcpListener> {
        let fd = socket(&addr, SocketType::STREAM)?;
        // A port whose old connections are still fading away is free, as in std.
        sockopt::set_socket_reuseaddr(&fd, true)?;
        if reuseport {
            sockopt::set_socket_reuseport(&fd, true)?;
        }
        rustix::net::bind(&fd, &addr)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(TcpListener(Watched::new(fd, ShortRead::SaysNothing)))
    }

    /// Takes the next connection, and says from where it comes.
    ///
    /// Several fibers may accept from one listener.
    ///
    /// # Suspends
    ///
    /// Until there is one.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` and the like concern one client: go on. Too many open files: go on later.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.io(Direction::Read, || None, call::accept).and_then(accepted)
    }

    /// [`accept`](TcpListener::accept) as a future.
    ///
    /// # Cancellation
    ///
    /// A connection is taken in the poll that returns it, so dropping the future loses none.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](TcpListener::accept).
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        accepted(Io::new(&self.0, Direction::Read, call::accept).await?)
    }

    /// The connections as they come, without end.
    ///
    /// # Suspends
    ///
    /// `next`, until there is one.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// The connections as they come, as a [`Stream`](futures_core::Stream) without end.
    ///
    /// ```
    /// use futures_lite::StreamExt;
    /// use osier::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let client = TcpStream::connect(listener.local_addr()?)?;
    /// let mut incoming = listener.incoming_async();
    /// let server = osier::block_on(incoming.next()).expect("it has no end")?;
    /// assert_eq!(server.peer_addr()?, client.local_addr()?);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn incoming_async(&self) -> IncomingAsync<'_> {
        IncomingAsync {
            side: Side::default(),
            listener: self,
        }
    }

    /// The address it listens on.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        ip(SockRef::from(&self.0.fd()).local_addr()?)
    }

    /// Another value for the same socket.
    ///
    /// # Errors
    ///
    /// Too many open files.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(TcpListener(Watched::from_outside(
            self.0.export().try_clone_to_owned()?,
            ShortRead::SaysNothing,
        )?))
    }

    /// How many hops the packets may take.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_ttl(self.0.fd(), ttl)?)
    }

    /// How many hops the packets may take.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(sockopt::ip_ttl(self.0.fd())?)
    }

    /// Takes the error that is pending on the socket, if there is one.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        SockRef::from(&self.0.fd()).take_error()
    }
}

impl Source for TcpListener {
    fn watched(&self) -> &Watched {
        &self.0
    }
}

/// Makes the socket non-blocking, for everybody who has a copy of it.
impl From<OwnedFd> for TcpListener {
    fn from(fd: OwnedFd) -> TcpListener {
        TcpListener(adopt(fd, ShortRead::SaysNothing))
    }
}

/// The descriptor is left non-blocking.
impl From<TcpListener> for OwnedFd {
    fn from(listener: TcpListener) -> OwnedFd {
        listener.0.into_fd()
    }
}

/// The socket becomes blocking again, for everybody who has a copy of it.
impl From<TcpListener> for std::net::TcpListener {
    fn from(listener: TcpListener) -> std::net::TcpListener {
        let listener = std::net::TcpListener::from(OwnedFd::from(listener));
        // It cannot fail on a socket.
        let _ = listener.set_nonblocking(false);
        listener
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "TcpListener", [("addr", self.local_addr())])
    }
}

/// The iterator of [`TcpListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a>(&'a TcpListener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

impl std::iter::FusedIterator for Incoming<'_> {}

/// The stream of [`TcpListener::incoming_async`]. Dropping it loses no connection.
pub struct IncomingAsync<'a> {
    // Before the listener: its waiter is not to outlive it.
    side: Side,
    listener: &'a TcpListener,
}

impl futures_core::Stream for IncomingAsync<'_> {
    type Item = io::Result<TcpStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<TcpStream>>> {
        let watched = &self.listener.0;
        let accepting = self.side.poll_io(watched, Direction::Read, cx, call::accept);
        accepting.map(|done| Some(done.and_then(accepted).map(|(stream, _)| stream)))
    }
}

impl fmt::Debug for IncomingAsync<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IncomingAsync").field(self.listener).finish()
    }
}

fn accepted((fd, peer): (OwnedFd, Option<SocketAddrAny>)) -> io::Result<(TcpStream, SocketAddr)> {
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let stream = TcpStream(Stream::new(Watched::new(fd, ShortRead::Drains)));
    match peer {
        Some(peer) => Ok((stream, peer)),
        None => stream.peer_addr().map(|peer| (stream, peer)),
    }
}

/// Asked again, connect(2) tells how the first call ended.
fn connect(fd: BorrowedFd<'_>, addr: &SocketAddr) -> io::Result<Moved<()>> {
    match rustix::net::connect(fd, addr) {
        Ok(()) | Err(Errno::ISCONN) => Ok(Moved::all(())),
        Err(Errno::INPROGRESS | Errno::ALREADY) => Err(io::ErrorKind::WouldBlock.into()),
        // No local port is free, or no route has one: what the kernel calls EAGAIN here will not pass by waiting.
        Err(Errno::AGAIN) => Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no local port is free")),
        Err(error) => Err(error.into()),
    }
}

/// A socket for addresses like this one.
pub(crate) fn socket(addr: &SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    system::socket(family, kind)
}

pub(crate) fn ip(addr: socket2::SockAddr) -> io::Result<SocketAddr> {
    addr.as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the socket is not an internet socket"))
}
