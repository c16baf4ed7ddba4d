//! UDP sockets.

use std::future::ready;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, SocketType};

use super::addr::{ToSocketAddrs, each_addr, each_addr_async};
use super::impls::{socket_impls, socket_options};
use super::stream::{Stream, call};
use super::tcp::socket;
use crate::wait::fd::Fd;
use crate::wait::socket::{ShortRead, Watched};

/// A UDP socket, as [`std::net::UdpSocket`].
///
/// ```
/// use osier::net::UdpSocket;
/// osier::run(|| {
///     let (one, two) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
///     one.send_to(b"hello", two.local_addr()?)?;
///     let mut buf = [0; 16];
///     let (count, from) = two.recv_from(&mut buf)?;
///     assert_eq!((&buf[..count], from), (&b"hello"[..], one.local_addr()?));
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
///
/// # Suspends
///
/// Receiving: until there is a datagram. Sending: until there is room for it.
///
/// # Cancellation
///
/// The same as for [`TcpStream`](super::TcpStream).
///
/// # Errors
///
/// The errors of [`TcpStream`](super::TcpStream). Also `ConnectionRefused` on a connected socket whose peer has
/// reported that nobody listens.
pub struct UdpSocket(Stream);

socket_impls!(UdpSocket, ShortRead::SaysNothing, std::net::UdpSocket);

impl UdpSocket {
    /// Binds a socket to the first of these addresses that is free. With port 0 the system chooses a port.
    ///
    /// # Suspends
    ///
    /// While a name is looked up.
    ///
    /// # Errors
    ///
    /// `AddrInUse` or another error of the system for the last address.
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        each_addr(addr, UdpSocket::open)
    }

    fn open(addr: SocketAddr) -> io::Result<UdpSocket> {
        let opened = socket(&addr, SocketType::DGRAM)?;
        match opened.fd() {
            Fd::System(fd) => rustix::net::bind(fd, &addr)?,
            Fd::Simulated(socket) => socket.bind(&addr)?,
        }
        Ok(UdpSocket(Stream::new(Watched::new(opened, ShortRead::SaysNothing))))
    }

    /// Makes `addr` the peer of [`send`](UdpSocket::send) and [`recv`](UdpSocket::recv). Datagrams of others are
    /// dropped.
    ///
    /// # Suspends
    ///
    /// While a name is looked up.
    ///
    /// # Errors
    ///
    /// The system's error for the last address.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        each_addr(addr, |addr| self.connect_to(addr))
    }

    fn connect_to(&self, addr: SocketAddr) -> io::Result<()> {
        match self.0.watched.fd() {
            Fd::System(fd) => Ok(rustix::net::connect(fd, &addr)?),
            Fd::Simulated(socket) => socket.connect(&addr).map(drop),
        }
    }

    /// Receives a datagram. Returns its length and sender. The bytes that do not fit into `buf` are lost.
    ///
    /// # Errors
    ///
    /// Those of the [type](UdpSocket#errors): `TimedOut` after the read timeout, for example.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        received(self.0.receive(|fd| call::receive_from(fd, buf, RecvFlags::empty()))?)
    }

    /// Receives a datagram as [`recv_from`](UdpSocket::recv_from) does, without removing it.
    ///
    /// # Errors
    ///
    /// Those of the [type](UdpSocket#errors): `TimedOut` after the read timeout, for example.
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        received(self.0.receive(|fd| call::receive_from(fd, buf, RecvFlags::PEEK))?)
    }

    /// Receives a datagram from the connected peer. The bytes that do not fit into `buf` are lost.
    ///
    /// # Errors
    ///
    /// Those of the [type](UdpSocket#errors): `TimedOut` after the read timeout, for example.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.receive(|fd| call::receive(fd, buf, RecvFlags::empty()))
    }

    /// Receives a datagram as [`recv`](UdpSocket::recv) does, without removing it.
    ///
    /// # Errors
    ///
    /// Those of the [type](UdpSocket#errors): `TimedOut` after the read timeout, for example.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.receive(|fd| call::receive(fd, buf, RecvFlags::PEEK))
    }

    /// Sends a datagram to the first of these addresses.
    ///
    /// # Errors
    ///
    /// Those of the [type](UdpSocket#errors): `TimedOut` after the write timeout, for example.
    pub fn send_to(&self, buf: &[u8], addr: impl ToSocketAddrs) -> io::Result<usize> {
        let addr = first(addr.to_socket_addrs()?)?;
        self.0.send(|fd| call::send_to(fd, buf, &addr))
    }

    /// Sends a datagram to the connected peer.
    ///
    /// # Errors
    ///
    /// Those of the [type](UdpSocket#errors): `TimedOut` after the write timeout, for example.
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf, SendFlags::empty())
    }
}

/// The same calls as futures. They have the same errors, except that timeouts do not apply.
///
/// ```
/// use osier::net::UdpSocket;
/// let (one, two) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
/// osier::block_on(async {
///     one.send_to_async(b"hello", two.local_addr()?).await?;
///     let mut buf = [0; 16];
///     let (count, from) = two.recv_from_async(&mut buf).await?;
///     assert_eq!((&buf[..count], from), (&b"hello"[..], one.local_addr()?));
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// # Cancellation
///
/// A datagram is received or sent in the poll that returns ready, so dropping a future loses none.
impl UdpSocket {
    /// [`bind`](UdpSocket::bind) as a future.
    pub fn bind_async<A: ToSocketAddrs>(addr: A) -> impl Future<Output = io::Result<UdpSocket>> + Send + use<A> {
        each_addr_async(addr, |addr| ready(UdpSocket::open(addr)))
    }

    /// [`connect`](UdpSocket::connect) as a future.
    pub fn connect_async<A: ToSocketAddrs>(&self, addr: A) -> impl Future<Output = io::Result<()>> + Send + use<'_, A> {
        each_addr_async(addr, |addr| ready(self.connect_to(addr)))
    }

    /// [`recv_from`](UdpSocket::recv_from) as a future.
    pub async fn recv_from_async(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let receive = |fd: Fd<'_>| call::receive_from(fd, buf, RecvFlags::empty());
        received(self.0.receive_async(receive).await?)
    }

    /// [`peek_from`](UdpSocket::peek_from) as a future.
    pub async fn peek_from_async(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let receive = |fd: Fd<'_>| call::receive_from(fd, buf, RecvFlags::PEEK);
        received(self.0.receive_async(receive).await?)
    }

    /// [`recv`](UdpSocket::recv) as a future.
    pub fn recv_async(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send {
        self.0.receive_async(|fd| call::receive(fd, buf, RecvFlags::empty()))
    }

    /// [`peek`](UdpSocket::peek) as a future.
    pub fn peek_async(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send {
        self.0.receive_async(|fd| call::receive(fd, buf, RecvFlags::PEEK))
    }

    /// [`send_to`](UdpSocket::send_to) as a future.
    pub fn send_to_async<A: ToSocketAddrs>(
        &self,
        buf: &[u8],
        addr: A,
    ) -> impl Future<Output = io::Result<usize>> + Send {
        let addrs = addr.to_socket_addrs_async();
        async move {
            let addr = first(addrs.await?)?;
            self.0.send_async(|fd| call::send_to(fd, buf, &addr)).await
        }
    }

    /// [`send`](UdpSocket::send) as a future.
    pub fn send_async(&self, buf: &[u8]) -> impl Future<Output = io::Result<usize>> + Send {
        self.0.write_async(buf, SendFlags::empty())
    }
}

/// Addresses and options.
impl UdpSocket {
    /// The connected peer.
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
        /// Sets whether the socket may send to a broadcast address.
        ///
        /// # Errors
        ///
        /// The system's error.
        set_broadcast(broadcast: bool) -> () = set_socket_broadcast;

        /// Whether the socket may send to a broadcast address.
        ///
        /// # Errors
        ///
        /// The system's error.
        broadcast() -> bool = socket_broadcast;

        /// Sets whether the host receives its own IPv4 multicast datagrams.
        ///
        /// # Errors
        ///
        /// The system's error.
        set_multicast_loop_v4(come_back: bool) -> () = set_ip_multicast_loop;

        /// Whether the host receives its own IPv4 multicast datagrams.
        ///
        /// # Errors
        ///
        /// The system's error.
        multicast_loop_v4() -> bool = ip_multicast_loop;

        /// Sets the number of hops that multicast datagrams may take.
        ///
        /// # Errors
        ///
        /// The system's error.
        set_multicast_ttl_v4(ttl: u32) -> () = set_ip_multicast_ttl;

        /// The number of hops that multicast datagrams may take.
        ///
        /// # Errors
        ///
        /// The system's error.
        multicast_ttl_v4() -> u32 = ip_multicast_ttl;

        /// Sets whether the host receives its own IPv6 multicast datagrams.
        ///
        /// # Errors
        ///
        /// The system's error.
        set_multicast_loop_v6(come_back: bool) -> () = set_ipv6_multicast_loop;

        /// Whether the host receives its own IPv6 multicast datagrams.
        ///
        /// # Errors
        ///
        /// The system's error.
        multicast_loop_v6() -> bool = ipv6_multicast_loop;

        /// Joins a group on the interface with this address. With 0.0.0.0 the system chooses.
        ///
        /// # Errors
        ///
        /// The system's error.
        join_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> () = set_ip_add_membership;

        /// Leaves a group.
        ///
        /// # Errors
        ///
        /// The system's error.
        leave_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> () = set_ip_drop_membership;

        /// Joins a group on the interface with this number. With 0 the system chooses.
        ///
        /// # Errors
        ///
        /// The system's error.
        join_multicast_v6(group: &Ipv6Addr, interface: u32) -> () = set_ipv6_add_membership;

        /// Leaves a group.
        ///
        /// # Errors
        ///
        /// The system's error.
        leave_multicast_v6(group: &Ipv6Addr, interface: u32) -> () = set_ipv6_drop_membership;

        /// Sets the number of hops that datagrams may take.
        ///
        /// # Errors
        ///
        /// The system's error.
        set_ttl(ttl: u32) -> () = set_ip_ttl;

        /// The number of hops that datagrams may take.
        ///
        /// # Errors
        ///
        /// The system's error.
        ttl() -> u32 = ip_ttl;
    }
}

fn received((count, from): (usize, Option<SocketAddrAny>)) -> io::Result<(usize, SocketAddr)> {
    match from.map(SocketAddr::try_from) {
        Some(Ok(from)) => Ok((count, from)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the socket is not an internet socket",
        )),
    }
}

fn first(mut addrs: impl Iterator<Item = SocketAddr>) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "no address to send to");
    addrs.next().ok_or_else(none)
}
