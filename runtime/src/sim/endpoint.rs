//! Simulated sockets for [`net`](crate::net), and the simulated clock and thread pool. `wait/no_simulated.rs` has the same surface
//! for builds without the feature `sim`.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use async_task::Runnable;
use osier_poll::{Interest, Token};
use rustix::net::{AddressFamily, SocketType};

use crate::sim::here;
use crate::sim::net::{Id, Net};
use crate::wait::socket::{Direction, Moved};

/// A socket of a simulated host, and the right to close it.
pub(crate) struct Endpoint {
    net: Arc<Mutex<Net>>,
    id: Id,
    /// The number of this value among the duplicates of the socket.
    value: u32,
    /// A socket of the system, for calls that the simulation does not know. Made at the first such call.
    stand_in: OnceLock<OwnedFd>,
}

/// A simulated socket for one call.
#[derive(Clone, Copy)]
pub(crate) struct Simulated<'a>(&'a Endpoint);

/// Whether a simulated worker runs on this thread.
#[cfg_attr(not(feature = "fs"), allow(dead_code))]
pub(crate) fn is_here() -> bool {
    here::get(|_| ()).is_some()
}

pub(crate) fn stream_socket() -> Option<Endpoint> {
    here::get(|here| {
        let id = here::lock(here.net).add_stream(here.host);
        Endpoint::new(here.net, id, 0)
    })
}

pub(crate) fn datagram_socket() -> Option<Endpoint> {
    stream_socket()
}

pub(crate) fn look_up(name: &str) -> Option<(Duration, io::Result<Vec<IpAddr>>)> {
    here::get(|here| here::lock(here.net).look_up(here.host, name))
}

pub(crate) fn random() -> Option<u64> {
    here::get_or_pooled(|here| here::lock(here.net).choices.random())
}

/// The simulated socket that a descriptor stands for.
pub(crate) fn behind(fd: BorrowedFd<'_>) -> Option<Endpoint> {
    let found = here::get(|here| {
        let (id, value) = here::lock(here.net).behind(name_of(fd)?, here.host)?;
        Some(Endpoint::new(here.net, id, value))
    });
    found.flatten()
}

/// A number of a socket of the system that its duplicates share, and no other socket ever has.
fn name_of(fd: BorrowedFd<'_>) -> Option<u64> {
    #[cfg(target_os = "linux")]
    return rustix::net::sockopt::socket_cookie(fd).ok();
    #[cfg(not(target_os = "linux"))]
    return Some(fd).and(None);
}

/// The time of day.
pub(crate) fn system_now() -> Option<SystemTime> {
    here::get_or_pooled(|here| here::lock(here.net).system_now(here.host))
}

/// The time on the clock of the host whose work for the pool this is.
pub(crate) fn pooled_now() -> Option<Instant> {
    here::get_or_pooled(|here| here::lock(here.net).host_now(here.host))
}

/// Takes work that blocks, if this is a simulation.
pub(crate) fn defer(job: Runnable) -> Result<(), Runnable> {
    let mut job = Some(job);
    here::get(|here| {
        let job = job.take().map(|job| (here.host, job));
        here.pool.borrow_mut().extend(job);
    });
    job.map_or(Ok(()), Err)
}

impl Endpoint {
    fn new(net: &Arc<Mutex<Net>>, id: Id, value: u32) -> Endpoint {
        Endpoint {
            net: Arc::clone(net),
            id,
            value,
            stand_in: OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn simulated(&self) -> Simulated<'_> {
        Simulated(self)
    }

    pub(crate) fn into_stand_in(self) -> OwnedFd {
        let stand_in = self.simulated().stand_in().try_clone_to_owned();
        stand_in.unwrap_or_else(|error| panic!("a stand-in for a simulated socket: {error}"))
    }

    fn with<T>(&self, call: impl FnOnce(&mut Net, Id) -> T) -> T {
        call(&mut here::lock(&self.net), self.id)
    }

    /// Makes a call of the program. Fails if a crash has taken the socket.
    fn call<T>(&self, call: impl FnOnce(&mut Net, Id) -> io::Result<T>) -> io::Result<T> {
        self.with(|net, id| {
            net.check_open(id, self.value)?;
            call(net, id)
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.with(|net, id| net.close(id, self.value));
    }
}

impl<'a> Simulated<'a> {
    pub(crate) fn clone_endpoint(self) -> Endpoint {
        let value = self.0.with(|net, id| net.duplicate(id, here::host()));
        Endpoint::new(&self.0.net, self.0.id, value)
    }

    pub(crate) fn stand_in(self) -> BorrowedFd<'a> {
        let opened = self.0.stand_in.get_or_init(|| {
            let opened = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
            let opened = opened.unwrap_or_else(|error| panic!("a stand-in for a simulated socket: {error}"));
            if let Some(name) = name_of(opened.as_fd()) {
                self.0.with(|net, id| net.note_stand_in(name, id));
            }
            opened
        });
        opened.as_fd()
    }

    pub(crate) fn register(self, token: Token, interest: Interest) -> io::Result<()> {
        self.0.call(|net, id| net.register(id, self.0.value, token, interest))
    }

    pub(crate) fn listen(self, addr: &SocketAddr, shares: bool) -> io::Result<()> {
        self.0.call(|net, id| net.listen(id, addr, shares))
    }

    #[cfg_attr(not(feature = "datagrams"), allow(dead_code))]
    pub(crate) fn bind(self, addr: &SocketAddr) -> io::Result<()> {
        self.0.call(|net, id| net.bind(id, addr))
    }

    pub(crate) fn connect(self, addr: &SocketAddr) -> io::Result<Moved<()>> {
        self.0.call(|net, id| net.connect(id, addr)).map(Moved::all)
    }

    pub(crate) fn accept(self) -> io::Result<(Endpoint, SocketAddr)> {
        let (id, peer) = self.0.call(|net, id| net.accept(id, here::host()))?;
        Ok((Endpoint::new(&self.0.net, id, 0), peer))
    }

    pub(crate) fn read(self, buf: &mut [u8]) -> io::Result<Moved<usize>> {
        self.read_vectored(&mut [IoSliceMut::new(buf)])
    }

    pub(crate) fn read_vectored(self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<Moved<usize>> {
        self.0.call(|net, id| net.read(id, bufs, true))
    }

    pub(crate) fn peek(self, buf: &mut [u8]) -> io::Result<usize> {
        let bufs = &mut [IoSliceMut::new(buf)];
        Ok(self.0.call(|net, id| net.read(id, bufs, false))?.value)
    }

    pub(crate) fn write(self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    pub(crate) fn write_vectored(self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.call(|net, id| net.write(id, bufs))
    }

    pub(crate) fn receive(self, buf: &mut [u8], peeks: bool) -> io::Result<(usize, SocketAddr)> {
        self.0.call(|net, id| net.receive(id, buf, peeks))
    }

    pub(crate) fn send_to(self, buf: &[u8], addr: &SocketAddr) -> io::Result<usize> {
        self.0.call(|net, id| net.send_to(id, buf, addr))
    }

    pub(crate) fn is_ready(self, direction: Direction) -> bool {
        self.0.with(|net, id| match direction {
            Direction::Read => net.is_readable(id),
            Direction::Write => net.is_writable(id),
        })
    }

    pub(crate) fn shutdown(self, how: Shutdown) -> io::Result<()> {
        self.0.call(|net, id| net.shutdown(id, how))
    }

    pub(crate) fn local_addr(self) -> io::Result<SocketAddr> {
        self.0.with(|net, id| net.local_addr(id))
    }

    pub(crate) fn peer_addr(self) -> io::Result<SocketAddr> {
        self.0.with(|net, id| net.peer_addr(id))
    }

    pub(crate) fn take_error(self) -> Option<io::Error> {
        self.0.with(Net::take_error)
    }

    pub(crate) fn set_linger(self, linger: Option<Duration>) {
        self.0.with(|net, id| net.set_linger(id, linger));
    }

    pub(crate) fn linger(self) -> Option<Duration> {
        self.0.with(|net, id| net.linger(id))
    }

    pub(crate) fn unacknowledged(self) -> Option<i32> {
        self.0.with(|net, id| net.unacknowledged(id))
    }
}
