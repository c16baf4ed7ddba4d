//! [`Stream`]: a TCP stream or a Unix stream in one type.
//!
//! All stream types have the same contents ([`stream.rs`](super::stream)), so the conversion costs nothing.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::impls::stream_impls;
use super::stream;
use super::{TcpStream, UnixStream};
use crate::wait::fd::Fd;
use crate::wait::socket::ShortRead;

/// A connected [`TcpStream`] or [`UnixStream`], made from either.
///
/// ```
/// use osier::net::{Stream, UnixStream};
/// use std::io::{Read, Write};
///
/// let (near, far) = UnixStream::pair()?;
/// let (mut near, mut far) = (Stream::from(near), Stream::from(far));
/// near.write_all(b"hello")?;
/// let mut reply = [0; 5];
/// far.read_exact(&mut reply)?;
/// # std::io::Result::Ok(())
/// ```
///
/// # Suspends
///
/// The same as for the two: a read until there is a byte or the end, a write until the kernel takes a byte.
pub struct Stream(stream::Stream);

// Reads until the kernel would block, which is right for both families.
stream_impls!(Stream, ShortRead::SaysNothing);

impl Stream {
    /// The address of the local end of a TCP connection.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a Unix socket, or the system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self.0.local_addr() {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a Unix socket has no address with a port",
            )),
            addr => addr,
        }
    }
}

impl Stream {
    /// The number of the descriptor, which says how many others are open at least. Unlike `as_raw_fd` it lends out no descriptor, so the
    /// close costs nothing more. None for a simulated socket.
    #[doc(hidden)]
    pub fn number(&self) -> Option<u32> {
        match self.0.watched.fd() {
            Fd::System(fd) => Some(fd.as_raw_fd().unsigned_abs()),
            Fd::Simulated(_) => None,
        }
    }
}

/// Options of TCP connections.
impl Stream {
    /// Sets whether small writes are sent at once, as [`TcpStream::set_nodelay`] does. Has no effect on a Unix socket, which holds
    /// nothing back.
    ///
    /// ```
    /// use osier::net::{Stream, UnixStream};
    ///
    /// let stream = Stream::from(UnixStream::pair()?.0);
    /// stream.set_nodelay(true)?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let Fd::System(fd) = self.0.watched.fd() else {
            return Ok(());
        };
        match rustix::net::sockopt::set_tcp_nodelay(fd, nodelay) {
            Err(_)
                if self
                    .local_addr()
                    .is_err_and(|error| error.kind() == io::ErrorKind::Unsupported) =>
            {
                Ok(())
            }
            done => Ok(done?),
        }
    }

    /// Sets how long a close waits for unsent bytes, as [`TcpStream::set_linger`] does. `Some(Duration::ZERO)` resets the
    /// connection. Has no effect on a Unix socket.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.0.set_linger(linger)
    }

    /// Sets how long sent bytes may stay unacknowledged before the system gives the connection up (`TCP_USER_TIMEOUT`), rounded up to
    /// milliseconds, at most 24 days. The limit also applies after a close. Has no effect on systems without such an option.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for zero; the system's error. A Unix socket has no such option.
    pub fn set_user_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        if limit == Some(Duration::ZERO) {
            return Err(stream::zero_timeout("use None for no limit, or a longer one"));
        }
        match self.0.watched.fd() {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Fd::System(fd) => {
                let millis = limit.unwrap_or_default().as_nanos().div_ceil(1_000_000);
                // The system takes an `int`.
                let millis = i32::try_from(millis).unwrap_or(i32::MAX);
                Ok(rustix::net::sockopt::set_tcp_user_timeout(fd, millis.unsigned_abs())?)
            }
            _ => {
                let _ = limit;
                Ok(())
            }
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Stream {
        Stream(stream.into_inner())
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Stream {
        Stream(stream.into_inner())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fd = match self.0.watched.fd() {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => {
                let ends = [("local", socket.local_addr()), ("peer", socket.peer_addr())];
                return stream::describe(f, "Stream", ends);
            }
        };
        let socket = socket2::SockRef::from(&fd);
        stream::describe(
            f,
            "Stream",
            [("local", socket.local_addr()), ("peer", socket.peer_addr())],
        )
    }
}
