//! Unix sockets: streams, listeners and datagrams.

use std::ffi::OsStr;
use std::future::poll_fn;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketType};

use super::impls::{listener_impls, socket_impls, stream_impls};
use super::stream::{Stream, call};
use super::system;
use super::tcp::BACKLOG;
use crate::wait::fd::{Fd, Opened};
use crate::wait::leaf::Io;
use crate::wait::sleep::Sleep;
use crate::wait::socket::{Direction, ShortRead, Watched, attempt};
use crate::wait::{self, Stop};
use crate::worker::context::now;

/// The address of a Unix socket. It is std's type, renamed because [`SocketAddr`](super::SocketAddr) is taken.
pub use std::os::unix::net::SocketAddr as UnixSocketAddr;

/// A Unix stream, as [`std::os::unix::net::UnixStream`].
///
/// ```
/// use osier::net::UnixStream;
/// use std::io::{Read, Write};
/// osier::run(|| {
///     let (mut one, mut two) = UnixStream::pair()?;
///     one.write_all(b"hello")?;
///     let mut buf = [0; 5];
///     two.read_exact(&mut buf)?;
///     assert_eq!(&buf, b"hello");
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
///
/// Suspension, cancellation and errors are the same as for [`TcpStream`](super::TcpStream).
pub struct UnixStream(Stream);

stream_impls!(
    UnixStream,
    ShortRead::DrainsUnlessPassed,
    std::os::unix::net::UnixStream
);

impl UnixStream {
    pub(super) fn into_inner(self) -> Stream {
        self.0
    }

    /// Connects to the socket at this path.
    ///
    /// # Suspends
    ///
    /// While the listener's queue is full.
    ///
    /// # Errors
    ///
    /// `NotFound`, `ConnectionRefused`, `PermissionDenied`; `InvalidInput` for a path that is empty, of more than 108 bytes, or with a NUL.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        UnixStream::connect_to(&of_path(path.as_ref())?)
    }

    /// Connects to this address.
    ///
    /// # Suspends
    ///
    /// While the listener's queue is full.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](UnixStream::connect).
    pub fn connect_addr(addr: &UnixSocketAddr) -> io::Result<UnixStream> {
        UnixStream::connect_to(&to_rustix(addr)?)
    }

    fn connect_to(addr: &SocketAddrUnix) -> io::Result<UnixStream> {
        let fd = socket(SocketType::STREAM)?;
        let mut pause = FIRST_PAUSE;
        while !try_connect(&fd, addr)? {
            pause_until(now() + pause)?;
            pause = longer(pause);
        }
        Ok(UnixStream(Stream::new(Watched::new(fd, ShortRead::DrainsUnlessPassed))))
    }

    async fn connect_to_async(addr: SocketAddrUnix) -> io::Result<UnixStream> {
        let fd = socket(SocketType::STREAM)?;
        let mut pause = FIRST_PAUSE;
        while !try_connect(&fd, &addr)? {
            pause_for(pause).await?;
            pause = longer(pause);
        }
        Ok(UnixStream(Stream::new(Watched::new(fd, ShortRead::DrainsUnlessPassed))))
    }

    /// [`connect`](UnixStream::connect) as a future.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](UnixStream::connect).
    pub fn connect_async<P: AsRef<Path>>(path: P) -> impl Future<Output = io::Result<UnixStream>> + Send + use<P> {
        let addr = of_path(path.as_ref());
        async { UnixStream::connect_to_async(addr?).await }
    }

    /// [`connect_addr`](UnixStream::connect_addr) as a future.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](UnixStream::connect).
    pub fn connect_addr_async(addr: &UnixSocketAddr) -> impl Future<Output = io::Result<UnixStream>> + Send + use<> {
        let addr = to_rustix(addr);
        async { UnixStream::connect_to_async(addr?).await }
    }

    /// Makes two connected sockets without a name.
    ///
    /// # Errors
    ///
    /// The system's error for too many open files.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, two) = system::pair(SocketType::STREAM)?;
        let stream = |fd| UnixStream(Stream::new(Watched::new(fd, ShortRead::DrainsUnlessPassed)));
        Ok((stream(one), stream(two)))
    }

    /// The address of the peer.
    ///
    /// # Errors
    ///
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<UnixSocketAddr> {
        peer(self.0.watched.fd().of_system())
    }

    /// The address of the local end.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<UnixSocketAddr> {
        local(self.0.watched.fd().of_system())
    }
}

/// A Unix socket that listens, as [`std::os::unix::net::UnixListener`]. Dropping it leaves its file in place.
///
/// ```
/// use osier::net::{UnixListener, UnixStream};
/// use std::io::{Read, Write};
///
/// let path = std::env::temp_dir().join(format!("osier-doc-{}.sock", std::process::id()));
/// osier::run(|| {
///     let _ = std::fs::remove_file(&path); // of a former run
///     let listener = UnixListener::bind(&path)?;
///     let mut client = UnixStream::connect(&path)?;
///     listener.accept()?.0.write_all(b"hello")?;
///     let mut text = [0; 5];
///     client.read_exact(&mut text)?;
///     assert_eq!(&text, b"hello");
///     std::fs::remove_file(&path)
/// })?;
/// # std::io::Result::Ok(())
/// ```
pub struct UnixListener(Watched);

listener_impls!(
    UnixListener,
    std::os::unix::net::UnixListener,
    UnixStream,
    UnixIncoming,
    UnixIncomingAsync
);

impl UnixListener {
    /// Makes a socket file at this path and listens on it.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the path exists, even as the file of a listener that is gone; `InvalidInput` for a path that is
    /// empty, of more than 108 bytes, or with a NUL. Also the system's other errors.
    #[doc(alias = "listen")]
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        UnixListener::listen(&of_path(path.as_ref())?)
    }

    /// Listens on this address.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](UnixListener::bind).
    pub fn bind_addr(addr: &UnixSocketAddr) -> io::Result<UnixListener> {
        UnixListener::listen(&to_rustix(addr)?)
    }

    fn listen(addr: &SocketAddrUnix) -> io::Result<UnixListener> {
        let fd = socket(SocketType::STREAM)?;
        rustix::net::bind(&fd, addr)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(UnixListener(Watched::new(fd, ShortRead::SaysNothing)))
    }

    /// Accepts the next connection. Returns it with the address of its peer.
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
    /// Too many open files: accept again later.
    pub fn accept(&self) -> io::Result<(UnixStream, UnixSocketAddr)> {
        self.0.io(Direction::Read, || None, call::accept).and_then(accepted)
    }

    /// [`accept`](UnixListener::accept) as a future.
    ///
    /// # Cancellation
    ///
    /// A connection is accepted in the poll that returns it, so dropping the future loses none.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](UnixListener::accept).
    pub async fn accept_async(&self) -> io::Result<(UnixStream, UnixSocketAddr)> {
        accepted(Io::new(&self.0, Direction::Read, call::accept).await?)
    }

    /// The address it listens on.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<UnixSocketAddr> {
        local(self.0.fd().of_system())
    }
}

fn accepted((opened, peer): (Opened, Option<SocketAddrAny>)) -> io::Result<(UnixStream, UnixSocketAddr)> {
    Ok((
        UnixStream(Stream::new(Watched::new(opened, ShortRead::DrainsUnlessPassed))),
        from_rustix(peer)?,
    ))
}

/// The size of `sun_path`.
const PATH_BYTES: u32 = if cfg!(target_os = "linux") { 108 } else { 104 };

/// The pause after the first attempt to connect to a listener whose backlog is full, or to send to a receiver whose queue is. No poller
/// reports room in a backlog. The kernel takes an unconnected socket for writable whatever room a receiver has, and reports that anew after each
/// attempt that fails.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(Duration::from_millis(16))
}

/// Pauses between two attempts.
fn pause_until(until: Instant) -> io::Result<()> {
    match wait::wait(Some(until), None, |_| Poll::Pending) {
        Ok(()) | Err(Stop::Elapsed) => Ok(()),
        Err(stop) => Err(stop.into()),
    }
}

async fn pause_for(pause: Duration) -> io::Result<()> {
    let mut timer = Sleep::new(pause);
    poll_fn(|cx| timer.poll_elapsed(cx)).await
}

/// Tries to connect once. Returns false if the listener's backlog is full.
fn try_connect(fd: &OwnedFd, addr: &SocketAddrUnix) -> io::Result<bool> {
    match rustix::io::retry_on_intr(|| rustix::net::connect(fd, addr)) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A Unix datagram socket, as [`std::os::unix::net::UnixDatagram`].
///
/// ```
/// use osier::net::UnixDatagram;
/// osier::run(|| {
///     let (one, two) = UnixDatagram::pair()?;
///     one.send(b"hello")?;
///     let mut buf = [0; 16];
///     assert_eq!(two.recv(&mut buf)?, 5);
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
///
/// Suspension, cancellation and errors are the same as for [`UdpSocket`](super::UdpSocket). A call that sends waits
/// for room in the receiver's queue.
pub struct UnixDatagram(Stream);

socket_impls!(UnixDatagram, ShortRead::SaysNothing, std::os::unix::net::UnixDatagram);

impl UnixDatagram {
    fn new(fd: OwnedFd) -> UnixDatagram {
        UnixDatagram(Stream::new(Watched::new(fd, ShortRead::SaysNothing)))
    }

    /// Makes a socket without a name.
    ///
    /// # Errors
    ///
    /// The system's error for too many open files.
    pub fn unbound() -> io::Result<UnixDatagram> {
        Ok(UnixDatagram::new(socket(SocketType::DGRAM)?))
    }

    /// Makes a socket file at this path and binds a socket to it.
    ///
    /// # Errors
    ///
    /// The errors of [`UnixListener::bind`].
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        let fd = socket(SocketType::DGRAM)?;
        rustix::net::bind(&fd, &of_path(path.as_ref())?)?;
        Ok(UnixDatagram::new(fd))
    }

    /// Makes two connected sockets without a name.
    ///
    /// # Errors
    ///
    /// The system's error for too many open files.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (one, two) = system::pair(SocketType::DGRAM)?;
        Ok((UnixDatagram::new(one), UnixDatagram::new(two)))
    }

    /// Makes the socket at this path the peer of [`send`](UnixDatagram::send) and [`recv`](UnixDatagram::recv).
    ///
    /// # Errors
    ///
    /// `NotFound`, `ConnectionRefused` if nobody has bound that path, `InvalidInput` for a path that is empty, of more than 108 bytes, or with a NUL.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(rustix::net::connect(
            self.0.watched.fd().of_system(),
            &of_path(path.as_ref())?,
        )?)
    }

    /// Receives a datagram. Returns its length and sender. The bytes that do not fit into `buf` are lost.
    ///
    /// # Errors
    ///
    /// `TimedOut` after the read timeout; the errors of [`UdpSocket`](super::UdpSocket#errors).
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, UnixSocketAddr)> {
        received(self.0.receive(|fd| call::receive_from(fd, buf, RecvFlags::empty()))?)
    }

    /// Receives a datagram. The bytes that do not fit into `buf` are lost.
    ///
    /// # Errors
    ///
    /// `TimedOut` after the read timeout; the errors of [`UdpSocket`](super::UdpSocket#errors).
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.receive(|fd| call::receive(fd, buf, RecvFlags::empty()))
    }

    /// Sends a datagram to the connected peer.
    ///
    /// # Errors
    ///
    /// `NotConnected`, or `ConnectionRefused` if the peer is gone; `TimedOut` after the write timeout; the errors of [`UdpSocket`](super::UdpSocket#errors).
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf, SendFlags::empty())
    }

    /// Sends a datagram to the socket at this path. While its queue is full, this tries again after 1 to 16 ms: the system does not say when
    /// there is room. After [`connect`](UnixDatagram::connect) it does, to [`send`](UnixDatagram::send).
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](UnixDatagram::connect) and [`send`](UnixDatagram::send).
    pub fn send_to(&self, buf: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let addr = of_path(path.as_ref())?;
        Watched::count_call()?;
        let (mut deadline, mut pause) = (None, FIRST_PAUSE);
        loop {
            if let Some(sent) = self.try_send_to(buf, &addr) {
                return sent;
            }
            let deadline = *deadline.get_or_insert_with(|| self.0.write_timeout.deadline());
            let until = now() + pause;
            pause_until(deadline.map_or(until, |deadline| deadline.min(until)))?;
            if deadline.is_some_and(|deadline| now() >= deadline) {
                return Err(Stop::Elapsed.into());
            }
            pause = longer(pause);
        }
    }

    /// Sends at once. `None` if the receiver has no room.
    fn try_send_to(&self, buf: &[u8], addr: &SocketAddrUnix) -> Option<io::Result<usize>> {
        attempt(|| Ok(call::send_to(self.0.watched.fd(), buf, addr)?.value))
    }
}

/// The same calls as futures, with the rules of [`UdpSocket`](super::UdpSocket)'s futures.
impl UnixDatagram {
    /// [`recv_from`](UnixDatagram::recv_from) as a future.
    pub async fn recv_from_async(&self, buf: &mut [u8]) -> io::Result<(usize, UnixSocketAddr)> {
        let receive = |fd: Fd<'_>| call::receive_from(fd, buf, RecvFlags::empty());
        received(self.0.receive_async(receive).await?)
    }

    /// [`recv`](UnixDatagram::recv) as a future.
    pub fn recv_async(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send {
        self.0.receive_async(|fd| call::receive(fd, buf, RecvFlags::empty()))
    }

    /// [`send`](UnixDatagram::send) as a future.
    pub fn send_async(&self, buf: &[u8]) -> impl Future<Output = io::Result<usize>> + Send {
        self.0.write_async(buf, SendFlags::empty())
    }

    /// [`send_to`](UnixDatagram::send_to) as a future.
    pub fn send_to_async<P: AsRef<Path>>(&self, buf: &[u8], path: P) -> impl Future<Output = io::Result<usize>> + Send {
        let addr = of_path(path.as_ref());
        async move {
            let addr = addr?;
            let mut pause = FIRST_PAUSE;
            loop {
                if let Some(sent) = self.try_send_to(buf, &addr) {
                    return sent;
                }
                pause_for(pause).await?;
                pause = longer(pause);
            }
        }
    }
}

/// Addresses and options.
impl UnixDatagram {
    /// The address of the local end.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<UnixSocketAddr> {
        local(self.0.watched.fd().of_system())
    }

    /// The connected peer.
    ///
    /// # Errors
    ///
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<UnixSocketAddr> {
        peer(self.0.watched.fd().of_system())
    }
}

fn received((count, from): (usize, Option<SocketAddrAny>)) -> io::Result<(usize, UnixSocketAddr)> {
    Ok((count, from_rustix(from)?))
}

fn socket(kind: SocketType) -> io::Result<OwnedFd> {
    system::socket(AddressFamily::UNIX, kind)
}

fn local(fd: BorrowedFd<'_>) -> io::Result<UnixSocketAddr> {
    from_rustix(Some(rustix::net::getsockname(fd)?))
}

fn peer(fd: BorrowedFd<'_>) -> io::Result<UnixSocketAddr> {
    from_rustix(rustix::net::getpeername(fd)?)
}

/// The address of this path.
fn of_path(path: &Path) -> io::Result<SocketAddrUnix> {
    let bytes = path.as_os_str().len();
    if bytes == 0 {
        // The system would choose an abstract name, and listen where everybody may connect.
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path of a Unix socket is empty: name a file",
        ));
    }
    SocketAddrUnix::new(path).map_err(|error| {
        let reason = match bytes > PATH_BYTES as usize {
            true => format!("it has {bytes} bytes, and the system takes at most {PATH_BYTES}"),
            false => error.to_string(),
        };
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the path {path:?} cannot name a Unix socket: {reason}"),
        )
    })
}

fn to_rustix(addr: &UnixSocketAddr) -> io::Result<SocketAddrUnix> {
    if let Some(path) = addr.as_pathname() {
        return of_path(path);
    }
    #[cfg(target_os = "linux")]
    if let Some(name) = std::os::linux::net::SocketAddrExt::as_abstract_name(addr) {
        return Ok(SocketAddrUnix::new_abstract_name(name)?);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "an unnamed socket has no address",
    ))
}

/// Converts the kernel's address of a peer. A name that fills all of `sun_path` leaves no room for its NUL. std
/// cannot represent it, and rustix panics on it, so it becomes an unnamed address, as an empty one does.
fn from_rustix(addr: Option<SocketAddrAny>) -> io::Result<UnixSocketAddr> {
    const FAMILY_BYTES: u32 = 2;
    if addr
        .as_ref()
        .is_some_and(|addr| addr.address_family() != AddressFamily::UNIX)
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the socket is not a Unix socket",
        ));
    }
    let named = addr.filter(|addr| (FAMILY_BYTES + 1..=FAMILY_BYTES + PATH_BYTES).contains(&addr.addr_len()));
    let named = named.and_then(|addr| SocketAddrUnix::try_from(addr).ok());
    #[cfg(target_os = "linux")]
    if let Some(name) = named.as_ref().and_then(|addr| addr.abstract_name()) {
        return <UnixSocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name);
    }
    let path = named.as_ref().and_then(|addr| addr.path_bytes()).unwrap_or_default();
    UnixSocketAddr::from_pathname(Path::new(OsStr::from_bytes(path)))
}
