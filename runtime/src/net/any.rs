//! A stream whose family does not matter: what a server accepts, or a client connects to, over TCP or a Unix socket.
//!
//! All streams are the same inside ([`stream.rs`](super::stream)), so this costs nothing over the type that it was.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use super::stream::{self, stream_impls};
use super::{TcpStream, UnixStream};
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
/// As the two: reading, until there is a byte or the end; writing, until the kernel takes a byte.
pub struct Stream(stream::Stream);

// Read to the end whatever the kernel says: right for every family.
stream_impls!(Stream, ShortRead::SaysNothing);

impl Stream {
    /// The address of this end of a TCP connection.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a Unix socket; the system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let fd = self.0.watched.fd();
        let addr = socket2::SockRef::from(&fd).local_addr()?;
        addr.as_socket()
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "a Unix socket has no address with a port"))
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
        let fd = self.0.watched.fd();
        let socket = socket2::SockRef::from(&fd);
        stream::describe(
            f,
            "Stream",
            [("local", socket.local_addr()), ("peer", socket.peer_addr())],
        )
    }
}
