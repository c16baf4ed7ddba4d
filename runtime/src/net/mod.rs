//! Sockets with the names, methods and meaning of std. A call that has to wait suspends the fiber, not its thread.
//!
//! All types are `Send` and `Sync`. Any fiber of any worker may use a stream, and several may use it at once through
//! a shared reference (a reader and a writer, two readers). A plain thread may use it too, and blocks. Moving a
//! stream to another worker is free: it registers with a worker's poller at its first call there that would block.
//!
//! # What differs from std
//!
//! - Timeouts belong to the value, not to the socket. A [`try_clone`](TcpStream::try_clone) copies its original's
//!   timeouts; afterwards each has its own. A call that runs out of time returns
//!   [`TimedOut`](std::io::ErrorKind::TimedOut).
//! - There is no `set_nonblocking`. The descriptors are non-blocking; conversion into a std type makes them blocking
//!   again.
//! - A name is looked up on the pool for blocking work, at most 64 at a time. The error of a lookup names it, and has a kind.
//! - A [connect](TcpStream::connect) to several addresses begins the next attempt after 250 ms.
//! - A call can be cancelled: see [`Cancelled`](crate::Cancelled).
//!
//! # Sockets with options of their own
//!
//! Options that can be set on an open socket are set through the crate `socket2`, whose `SockRef` borrows any stream, listener or socket of
//! this crate. [`TcpStream::connect_with`] is for those that must be there before the connection: the address or interface to connect from,
//! for example. A listener or a datagram socket is made by `socket2` and converted:
//!
//! ```
//! use osier::net::{SocketAddr, TcpListener, TcpStream};
//! use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
//! use std::os::fd::OwnedFd;
//! use std::time::Duration;
//!
//! osier::run(|| {
//!     let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
//!     socket.set_reuse_address(true)?; // in the domain IPV6, `set_only_v6` leaves IPv4 to another socket
//!     socket.set_recv_buffer_size(64 << 10)?; // accepted connections inherit it
//!     socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
//!     socket.listen(16)?;
//!     let listener = TcpListener::from(OwnedFd::from(socket));
//!
//!     let stream = TcpStream::connect(listener.local_addr()?)?;
//!     SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(60)))?;
//!     std::io::Result::Ok(())
//! })?;
//! # std::io::Result::Ok(())
//! ```

//   tcp.rs  unix.rs  any.rs  udp.rs   the public types: names, addresses, options; what they share is in impls.rs
//       └──────┼──────────┘
//          stream.rs                 reading, writing and their timeouts, the same for TCP and Unix
//              │
//   crate::wait::socket::Watched           readiness: try the call, wait where it would block, try again
//
//   connect.rs                       several addresses, tried in attempts that overlap
//   addr.rs                          ToSocketAddrs; names are looked up on the pool for blocking work

mod addr;
mod any;
mod connect;
mod deferred;
mod impls;
mod inherited;
pub(crate) mod stream;
pub(crate) mod system;
mod tcp;
#[cfg(feature = "datagrams")]
mod udp;
mod unacknowledged;
mod unix;

pub use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};

#[doc(hidden)]
pub use crate::worker::packed::PackedAddr;
pub use addr::ToSocketAddrs;
pub use any::Stream;
pub use inherited::{Inherited, inherited};
pub use tcp::{Incoming, IncomingAsync, TcpListener, TcpStream};
#[cfg(feature = "datagrams")]
pub use udp::UdpSocket;
#[cfg(feature = "datagrams")]
pub use unix::UnixDatagram;
pub use unix::{UnixIncoming, UnixIncomingAsync, UnixListener, UnixSocketAddr, UnixStream};
