//! Listening sockets and the addresses of services, for TCP and Unix sockets.

use std::fmt;
use std::fs::TryLockError;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use osier::net::{Stream, TcpListener, TcpStream, UnixListener, UnixStream};

use crate::{InvalidSetting, lock};

/// How long the kernel keeps a new connection whose client sends nothing: the shortest time that Linux knows.
const SILENCE: Duration = Duration::from_secs(1);

/// Peer address of a Unix connection, which has no address.
pub(crate) const NOWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// The address of a client, if it has one. With `is_proxied` a trusted balancer has sent the
/// address, which may be any. An IPv4 client of an IPv6 socket has its IPv4 address here.
pub(crate) fn ip_of_client(peer: SocketAddr, is_proxied: bool) -> Option<IpAddr> {
    (peer != NOWHERE || is_proxied).then(|| peer.ip().to_canonical())
}

/// The address of a service: `host:port`, or `unix:/path/of/the/socket`.
///
/// ```
/// use osier_web::Address;
///
/// let address: Address = "unix:/run/php.sock".parse()?;
/// assert_eq!(address, Address::Unix("/run/php.sock".into()));
/// assert_eq!("[::1]:9000".parse::<Address>()?.to_string(), "[::1]:9000");
/// assert!("9000".parse::<Address>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A name or an IP address, with a port.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Connects within `timeout`, including the lookup of a name.
    ///
    /// # Suspends
    ///
    /// Until the connection is made or refused, or the timeout has passed. On a plain thread it blocks, and a Unix socket whose backlog is full
    /// has no limit there.
    ///
    /// # Cancellation
    ///
    /// Returns the error of a cancelled call.
    ///
    /// # Errors
    ///
    /// `TimedOut`, or the errors of [`TcpStream::connect`](osier::net::TcpStream::connect).
    pub fn connect(&self, timeout: Duration) -> io::Result<Stream> {
        if timeout.is_zero() {
            return Err(io::ErrorKind::TimedOut.into()); // the time that is left of a longer one
        }
        match self {
            Address::Tcp(host) => {
                let stream = TcpStream::connect_within(host.as_str(), timeout)?;
                stream.set_nodelay(true)?;
                Ok(stream.into())
            }
            // Nothing ends the call from outside on a plain thread.
            Address::Unix(path) if osier::fiber::id().is_none() => UnixStream::connect(path).map(Stream::from),
            Address::Unix(path) => osier::timeout(timeout, || UnixStream::connect(path).map(Stream::from))
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl FromStr for Address {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Address, InvalidSetting> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(InvalidSetting::new(
                    "unix: lacks a path; write unix:/path/of/the/socket",
                )),
                path => Ok(Address::Unix(path.into())),
            };
        }
        let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
        let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        if host.is_empty() || port.parse::<u16>().is_err() || (host.contains(':') && !bracketed) {
            return Err(InvalidSetting::new(format!(
                "{text:?} is not an address; write HOST:PORT, [IPV6]:PORT or unix:/path"
            )));
        }
        Ok(Address::Tcp(text.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host) => f.write_str(host),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A listening socket of either family, for [`Server::listener`](crate::Server::listener).
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Listener {
        Listener::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Listener {
        Listener::Unix(listener)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    /// Opens `count` listeners on one address, for [`Server::listeners`](crate::Server::listeners).
    /// The system distributes connections over them (`SO_REUSEPORT`). It needs no runtime, so a
    /// program can drop its privileges between this call and its first thread. On Linux, a connection is accepted when its
    /// first bytes have arrived, or after a second (`TCP_DEFER_ACCEPT`).
    ///
    /// # Errors
    ///
    /// Any error of the system. `AddrInUse` also if another process's listener would share the
    /// port.
    pub fn bind(addr: SocketAddr, count: usize) -> io::Result<Vec<Listener>> {
        let listeners = TcpListener::bind_shared(addr, count)?;
        for listener in &listeners {
            // A system that refuses it has connections accepted earlier and looked at twice.
            let _ = listener.set_defer_accept(SILENCE);
        }
        Ok(listeners.into_iter().map(Listener::Tcp).collect())
    }

    /// Listens on a Unix socket, and replaces the socket file of a dead server. Unlike with
    /// [`Server::bind_unix`](crate::Server::bind_unix) the file is not removed afterwards. It needs
    /// no runtime.
    ///
    /// # Blocks the thread
    ///
    /// While the file system works, and for up to 1 s while another program locks the folder.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if a server accepts there or the file is not a socket. Any error of the system.
    pub fn bind_unix(path: impl AsRef<Path>) -> io::Result<Listener> {
        bind_unix(path.as_ref()).map(Listener::Unix)
    }

    /// Makes another descriptor of the same socket. Both accept from one backlog.
    ///
    /// # Errors
    ///
    /// Any error of the system, for example no free descriptors.
    pub fn try_clone(&self) -> io::Result<Listener> {
        match self {
            Listener::Tcp(listener) => listener.try_clone().map(Listener::Tcp),
            Listener::Unix(listener) => listener.try_clone().map(Listener::Unix),
        }
    }

    /// Prepares to accept connections.
    pub(crate) fn accepting(&self) -> Accepting<'_> {
        let inherits = |listener: &TcpListener| cfg!(target_os = "linux") && listener.nodelay().unwrap_or(false);
        Accepting {
            sets_nodelay: matches!(self, Listener::Tcp(listener) if !inherits(listener)),
            listener: self,
        }
    }

    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Listener::Tcp(listener) => Address::Tcp(listener.local_addr()?.to_string()),
            Listener::Unix(listener) => {
                Address::Unix(listener.local_addr()?.as_pathname().unwrap_or(Path::new("")).into())
            }
        })
    }
}

/// The listening sockets of a server, until it accepts no more for good. Clones share them. See [`Listening::sockets`](crate::Listening::sockets).
#[derive(Clone)]
pub struct Sockets(Arc<Mutex<Arc<[Listener]>>>);

impl Sockets {
    pub(crate) fn new(listeners: Vec<Listener>) -> Sockets {
        Sockets(Arc::new(Mutex::new(listeners.into())))
    }

    /// Makes other descriptors of the sockets, for [`Server::listeners`](crate::Server::listeners).
    ///
    /// # Errors
    ///
    /// `NotConnected` if they are [closed](Sockets::are_closed). Any error of the system, for example no free descriptors.
    pub fn try_clone(&self) -> io::Result<Vec<Listener>> {
        match self.all() {
            none if none.is_empty() => Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the server has closed them",
            )),
            all => all.iter().map(Listener::try_clone).collect(),
        }
    }

    /// Whether the server has closed them: it has ended, or the new process of an upgrade does not have it.
    pub fn are_closed(&self) -> bool {
        self.all().is_empty()
    }

    /// All of them. Keep them for a moment only: the address is taken until the last reference goes.
    pub(crate) fn all(&self) -> Arc<[Listener]> {
        Arc::clone(&lock(&self.0))
    }

    pub(crate) fn close(&self) {
        *lock(&self.0) = Arc::new([]);
    }
}

osier_queue::impl_debug!(Sockets, self => { all: self.all() });

/// A listener whose connections are accepted.
pub(crate) struct Accepting<'l> {
    listener: &'l Listener,
    /// Whether accepted connections lack `TCP_NODELAY`. They do unless they inherit it.
    sets_nodelay: bool,
}

impl Accepting<'_> {
    /// Accepts the next connection and prepares it for use.
    pub(crate) fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self.listener {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                if self.sets_nodelay {
                    // If this fails, the client has reset the connection since accept; the first read
                    // reports it.
                    let _ = stream.set_nodelay(true);
                }
                Ok((stream.into(), peer))
            }
            Listener::Unix(listener) => Ok((listener.accept()?.0.into(), NOWHERE)),
        }
    }
}

/// Listens on a Unix socket. The socket file of a dead server is replaced. A file of a live server,
/// or one that is not a socket, is kept.
pub(crate) fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    // The lock serialises servers that find a stale file. Otherwise the second one would remove the
    // first one's new file.
    let _turn = turn_in(path);
    let in_use = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        bound => return bound,
    };
    let stale = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && knock(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if !stale {
        return Err(in_use);
    }
    std::fs::remove_file(path)?;
    UnixListener::bind(path)
}

/// Connects without waiting, to see whether a server listens. A server that does not accept at the
/// moment counts.
fn knock(path: &Path) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&socket2::SockAddr::unix(path)?)
}

/// Longest wait for a folder's lock that another program holds.
const TURN: Duration = Duration::from_secs(1);

/// Locks the folder of a socket file, so that one server at a time replaces a stale file in it. The
/// lock leaves no file behind. Returns `None` if the folder cannot be locked.
fn turn_in(path: &Path) -> Option<std::fs::File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::File::open(folder.unwrap_or(Path::new("."))).ok()?;
    let begun = Instant::now();
    loop {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(TryLockError::WouldBlock) if begun.elapsed() < TURN => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_client_of_an_ipv6_socket_is_ipv4() {
        let client = ip_of_client("[::ffff:192.0.2.1]:7".parse().unwrap(), false).unwrap();
        assert_eq!(client.to_string(), "192.0.2.1");
        assert_eq!(ip_of_client(NOWHERE, false), None);
        assert_eq!(ip_of_client(NOWHERE, true), Some(NOWHERE.ip()));
    }

    #[test]
    fn no_time_is_a_timeout_for_every_address() {
        for address in ["127.0.0.1:9", "unix:/nowhere/at/all"] {
            let address: Address = address.parse().unwrap();
            let refused = address.connect(Duration::ZERO).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        }
    }
}
