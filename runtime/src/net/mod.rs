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
//! - A name is looked up on the pool for blocking work, at most 64 at a time.
//! - A call can be cancelled: see [`Cancelled`](crate::Cancelled).

//   tcp.rs  unix.rs  any.rs  udp.rs   the public types: names, addresses, options; what they share is in impls.rs
//       └──────┼──────────┘
//          stream.rs                 reading, writing and their timeouts, the same for TCP and Unix
//              │
//   crate::wait::socket::Watched           readiness: try the call, wait where it would block, try again
//
//   addr.rs                          ToSocketAddrs; names are looked up on the pool for blocking work

mod addr;
mod any;
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
pub use tcp::{Incoming, TcpListener, TcpStream};
#[cfg(feature = "datagrams")]
pub use udp::UdpSocket;
#[cfg(feature = "datagrams")]
pub use unix::UnixDatagram;
pub use unix::{UnixIncoming, UnixListener, UnixSocketAddr, UnixStream};
