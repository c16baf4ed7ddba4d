//! The common part of TCP and Unix streams: reads and writes with timeouts, and the impls that std's streams have.
//!
//! Every receive and send sets `MSG_DONTWAIT`: the owner of a duplicate may have made the open file description
//! blocking, which must not stop a worker. `MSG_NOSIGNAL` prevents `SIGPIPE` in programs that do not ignore it. sendfile(2) and splice(2)
//! have neither flag.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{RecvFlags, ReturnFlags, SendFlags, SocketAddrAny};
use socket2::SockRef;

use super::system;
use super::unacknowledged::unacknowledged;
use crate::wait::fd::{Fd, Opened};
use crate::wait::leaf::Io;
use crate::wait::simulated;
use crate::wait::socket::{Direction, Moved, ShortRead, Source, Watched};
use crate::worker::context::now;

/// `IOV_MAX`, the most slices that the kernel takes in one call. The next call takes the others.
const SLICES_MAX: usize = 1024;

/// The flag for a send that another one follows at once. Systems without the flag send immediately.
#[cfg(target_os = "linux")]
pub(crate) const MORE: SendFlags = SendFlags::MORE;
#[cfg(not(target_os = "linux"))]
pub(crate) const MORE: SendFlags = SendFlags::empty();

/// The duration that a call may take. It can be set while others use the stream; 0 means no limit.
#[derive(Debug, Default)]
pub struct Timeout(AtomicU64);

impl Timeout {
    fn new(limit: Option<Duration>) -> Timeout {
        Timeout(AtomicU64::new(limit.map_or(0, nanos)))
    }

    pub(crate) fn set(&self, limit: Option<Duration>) -> io::Result<()> {
        if limit == Some(Duration::ZERO) {
            return Err(zero_timeout("use None for no timeout, or a longer one"));
        }
        self.0.store(limit.map_or(0, nanos), Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// The deadline of a call that begins now. A deadline that the clock cannot represent means none.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.limit().and_then(|limit| now().checked_add(limit))
    }
}

/// At most 584 years.
fn nanos(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

/// The seconds of an option of the system that has nothing finer, rounded up.
pub(crate) fn whole_seconds(time: Duration) -> i32 {
    let seconds = time.as_secs().saturating_add((time.subsec_nanos() > 0).into());
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

/// The error of a limit that would end every call at once. std's sockets refuse it, too.
pub(crate) fn zero_timeout(remedy: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("a timeout of zero: {remedy}"))
}

/// A stream of this crate, which [`sendfile`](crate::io::sendfile) can send to and [`splice`](crate::io::splice) can
/// take from. Sealed.
pub trait FileSink: Source {
    #[doc(hidden)]
    fn stream(&self) -> &Stream;
}

/// A connected stream socket.
pub struct Stream {
    pub(crate) watched: Watched,
    pub(crate) read_timeout: Timeout,
    pub(crate) write_timeout: Timeout,
}

impl Stream {
    /// Makes a stream of a socket that this crate has opened: non-blocking, without duplicates.
    pub(crate) fn new(watched: Watched) -> Stream {
        Stream {
            watched,
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
        }
    }

    /// Makes a stream of a foreign socket, which may have duplicates.
    pub(crate) fn from_outside(fd: OwnedFd, short_read: ShortRead) -> Stream {
        let watched = adopt(fd, short_read);
        let socket = watched.fd().of_system();
        let socket = SockRef::from(&socket);
        // A descriptor that is not a socket has no timeouts. The first call reports its error.
        let (read, write) = (
            socket.read_timeout().ok().flatten(),
            socket.write_timeout().ok().flatten(),
        );
        Stream {
            watched,
            read_timeout: Timeout::new(read),
            write_timeout: Timeout::new(write),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Stream> {
        let watched = self.watched.try_clone()?;
        let (read, write) = (self.read_timeout.limit(), self.write_timeout.limit());
        watched.set_progress(self.watched.progress());
        Ok(Stream {
            watched,
            read_timeout: Timeout::new(read),
            write_timeout: Timeout::new(write),
        })
    }

    /// The socket as std has it: blocking, and with its timeouts.
    pub(crate) fn into_std(self) -> OwnedFd {
        let (read, write) = (self.read_timeout.limit(), self.write_timeout.limit());
        let fd = self.watched.into_fd();
        let socket = SockRef::from(&fd);
        // None of the three can fail on a socket. The first call on any other descriptor reports its error.
        let _ = (
            socket.set_nonblocking(false),
            socket.set_read_timeout(read),
            socket.set_write_timeout(write),
        );
        fd
    }

    #[inline]
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0); // there is nothing to wait for
        }
        self.receive(|fd| call::read(fd, buf, self.watched.short_read()))
    }

    pub(crate) fn read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        // As readv(2), which recvmsg(2) stands in for.
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(0);
        }
        self.receive(|fd| call::read_vectored(fd, bufs, self.watched.short_read()))
    }

    pub(crate) fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.receive(|fd| call::peek(fd, buf))
    }

    pub(crate) async fn read_async(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let short_read = self.watched.short_read();
        let read = move |fd: Fd<'_>| call::read(fd, &mut *buf, short_read);
        Io::new(&self.watched, Direction::Read, read).await
    }

    pub(crate) fn peek_async(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send {
        Io::new(&self.watched, Direction::Read, |fd| call::peek(fd, buf))
    }

    #[inline]
    pub(crate) fn write(&self, buf: &[u8], flags: SendFlags) -> io::Result<usize> {
        self.send(|fd| call::write(fd, buf, flags))
    }

    pub(crate) fn try_write(&self, buf: &[u8], flags: SendFlags) -> io::Result<usize> {
        self.watched.write_now(|fd| Ok(call::write(fd, buf, flags)?.value))
    }

    pub(crate) fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let short_read = self.watched.short_read();
        self.watched.read_now(|fd| call::read(fd, buf, short_read))
    }

    pub(crate) fn wait_for(&self, direction: Direction, time: Duration) -> io::Result<bool> {
        match self.watched.wait_ready(direction, now().checked_add(time)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write_async(&self, buf: &[u8], flags: SendFlags) -> impl Future<Output = io::Result<usize>> + Send {
        self.send_async(move |fd| call::write(fd, buf, flags))
    }

    pub(crate) fn write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(|fd| call::write_vectored(fd, bufs))
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self.watched.fd() {
            Fd::System(fd) => SockRef::from(&fd).shutdown(how),
            Fd::Simulated(socket) => socket.shutdown(how),
        }
    }

    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        take_error(&self.watched)
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let linger = linger.map(|time| Duration::from_secs(whole_seconds(time).unsigned_abs().into()));
        match self.watched.fd() {
            Fd::System(fd) => SockRef::from(&fd).set_linger(linger),
            Fd::Simulated(socket) => {
                socket.set_linger(linger);
                Ok(())
            }
        }
    }

    pub(crate) fn linger(&self) -> io::Result<Option<Duration>> {
        match self.watched.fd() {
            Fd::System(fd) => SockRef::from(&fd).linger(),
            Fd::Simulated(socket) => Ok(socket.linger()),
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(&self.watched)
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self.watched.fd() {
            Fd::System(fd) => ip(SockRef::from(&fd).peer_addr()?),
            Fd::Simulated(socket) => socket.peer_addr(),
        }
    }

    #[inline]
    pub(crate) fn receive<T>(&self, call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>>) -> io::Result<T> {
        self.watched.io(Direction::Read, || self.read_timeout.deadline(), call)
    }

    /// Makes a call that sends. The write timeout fires when the peer has made too little progress for that long.
    #[inline]
    pub(crate) fn send<T>(&self, mut call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>>) -> io::Result<T> {
        loop {
            // Read at the first wait only, so that a call that need not wait costs nothing more.
            let mut before = None;
            let deadline = || {
                let deadline = self.write_timeout.deadline()?;
                before = self.unacknowledged();
                Some(deadline)
            };
            match self.watched.io(Direction::Write, deadline, &mut call) {
                Err(error) if self.made_progress(&error, before) => {}
                done => return done,
            }
        }
    }

    /// Whether the peer has made progress since it had not acknowledged `before` bytes, during a wait that timed out.
    #[cold]
    fn made_progress(&self, error: &io::Error, before: Option<usize>) -> bool {
        // The kernel's own ETIMEDOUT means that the connection is dead.
        let is_ours = error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none();
        is_ours && self.progressed(before)
    }

    pub(crate) fn unacknowledged(&self) -> Option<usize> {
        usize::try_from(unacknowledged(self.watched.fd())?).ok()
    }

    /// Whether the peer has acknowledged as many of the `before` bytes as it must within a write timeout, or all of them.
    pub(crate) fn progressed(&self, before: Option<usize>) -> bool {
        let (Some(before), Some(now)) = (before, self.unacknowledged()) else {
            return false;
        };
        now < before && (now == 0 || before - now >= self.watched.progress())
    }

    pub(crate) fn receive_async<T>(
        &self,
        call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>> + Send,
    ) -> impl Future<Output = io::Result<T>> + Send {
        Io::new(&self.watched, Direction::Read, call)
    }

    pub(crate) fn send_async<T>(
        &self,
        call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>> + Send,
    ) -> impl Future<Output = io::Result<T>> + Send {
        Io::new(&self.watched, Direction::Write, call)
    }
}

/// The system calls, for the blocking and the async methods.
pub(crate) mod call {
    use super::*;

    #[inline]
    pub(crate) fn read(fd: Fd<'_>, buf: &mut [u8], short: ShortRead) -> io::Result<Moved<usize>> {
        let fd = match fd {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => return socket.read(buf),
        };
        if short == ShortRead::DrainsUnlessPassed {
            return read_vectored(Fd::System(fd), &mut [IoSliceMut::new(buf)], short);
        }
        let (count, _) = rustix::net::recv(fd, &mut *buf, RecvFlags::DONTWAIT)?;
        Ok(Moved {
            value: count,
            drained: short == ShortRead::Drains && 0 < count && count < buf.len(),
        })
    }

    pub(crate) fn read_vectored(fd: Fd<'_>, bufs: &mut [IoSliceMut<'_>], short: ShortRead) -> io::Result<Moved<usize>> {
        let fd = match fd {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => return socket.read_vectored(bufs),
        };
        let slices = bufs.len().min(SLICES_MAX);
        let bufs = &mut bufs[..slices];
        let room: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut control = rustix::net::RecvAncillaryBuffer::default();
        let message = rustix::net::recvmsg(fd, bufs, &mut control, RecvFlags::DONTWAIT)?;
        let count = message.bytes;
        let says_it = match short {
            ShortRead::SaysNothing => false,
            ShortRead::Drains => true,
            // The message lacked room for a descriptor or for the sender's credentials. Other kernels than Linux drop
            // them silently.
            ShortRead::DrainsUnlessPassed => cfg!(target_os = "linux") && !message.flags.contains(ReturnFlags::CTRUNC),
        };
        Ok(Moved {
            value: count,
            drained: says_it && 0 < count && count < room,
        })
    }

    pub(crate) fn peek(fd: Fd<'_>, buf: &mut [u8]) -> io::Result<Moved<usize>> {
        let fd = match fd {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => return socket.peek(buf).map(Moved::all),
        };
        let (count, _) = rustix::net::recv(fd, buf, RecvFlags::DONTWAIT | RecvFlags::PEEK)?;
        Ok(Moved::all(count))
    }

    /// Receives a datagram, which may be empty. With the flag it peeks, as [`peek`] does.
    pub(crate) fn receive(fd: Fd<'_>, buf: &mut [u8], flags: RecvFlags) -> io::Result<Moved<usize>> {
        let fd = match fd {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => return Ok(Moved::all(socket.receive(buf, flags.contains(RecvFlags::PEEK))?.0)),
        };
        Ok(Moved::all(rustix::net::recv(fd, buf, flags | RecvFlags::DONTWAIT)?.0))
    }

    pub(crate) fn receive_from(
        fd: Fd<'_>,
        buf: &mut [u8],
        flags: RecvFlags,
    ) -> io::Result<Moved<(usize, Option<SocketAddrAny>)>> {
        let fd = match fd {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => {
                let (count, from) = socket.receive(buf, flags.contains(RecvFlags::PEEK))?;
                return Ok(Moved::all((count, Some(from.into()))));
            }
        };
        let (count, _, from) = rustix::net::recvfrom(fd, buf, flags | RecvFlags::DONTWAIT)?;
        Ok(Moved::all((count, from)))
    }

    #[inline]
    pub(crate) fn write(fd: Fd<'_>, buf: &[u8], flags: SendFlags) -> io::Result<Moved<usize>> {
        let fd = match fd {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => return socket.write(buf).map(Moved::all),
        };
        let flags = flags | SendFlags::DONTWAIT | system::NO_SIGNAL;
        Ok(Moved::all(rustix::net::send(fd, buf, flags)?))
    }

    pub(crate) fn write_vectored(fd: Fd<'_>, bufs: &[IoSlice<'_>]) -> io::Result<Moved<usize>> {
        let fd = match fd {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => return socket.write_vectored(bufs).map(Moved::all),
        };
        let bufs = &bufs[..bufs.len().min(SLICES_MAX)];
        let mut control = rustix::net::SendAncillaryBuffer::default();
        let flags = SendFlags::DONTWAIT | system::NO_SIGNAL;
        Ok(Moved::all(rustix::net::sendmsg(fd, bufs, &mut control, flags)?))
    }

    pub(crate) fn send_to(fd: Fd<'_>, buf: &[u8], addr: &impl SocketAddrArg) -> io::Result<Moved<usize>> {
        let fd = match fd {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => {
                let addr = SocketAddr::try_from(addr.as_any())?;
                return socket.send_to(buf, &addr).map(Moved::all);
            }
        };
        let flags = SendFlags::DONTWAIT | system::NO_SIGNAL;
        Ok(Moved::all(rustix::net::sendto(fd, buf, flags, addr)?))
    }

    pub(crate) fn accept(fd: Fd<'_>) -> io::Result<Moved<(Opened, Option<SocketAddrAny>)>> {
        match fd {
            Fd::System(fd) => {
                let (accepted, peer) = system::accept(fd)?;
                Ok(Moved::all((accepted.into(), peer)))
            }
            Fd::Simulated(socket) => {
                let (accepted, peer) = socket.accept()?;
                Ok(Moved::all((accepted.into(), Some(peer.into()))))
            }
        }
    }

    /// Tests whether the socket is ready. If not, it returns the error of a call that would block.
    pub(crate) fn ready(fd: Fd<'_>, direction: Direction) -> io::Result<Moved<()>> {
        let fd = match fd {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) if socket.is_ready(direction) => return Ok(Moved::all(())),
            Fd::Simulated(_) => return Err(io::ErrorKind::WouldBlock.into()),
        };
        let flags = poll_flags(direction);
        let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
        match rustix::event::poll(&mut fds, Some(&Timespec::default()))? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(Moved::all(())),
        }
    }
}

/// Takes a descriptor that may have duplicates.
pub(crate) fn adopt(fd: OwnedFd, short_read: ShortRead) -> Watched {
    if let Some(endpoint) = simulated::behind(fd.as_fd()) {
        return Watched::new(endpoint, short_read);
    }
    let watched = Watched::new(fd, short_read);
    // It fails on a descriptor that is not a socket, a pipe or the like. The first call reports that.
    let _ = rustix::io::ioctl_fionbio(watched.export(), true);
    watched
}

pub(crate) fn ready(source: &impl Source, direction: Direction) -> io::Result<()> {
    source.watched().io(direction, || None, |fd| call::ready(fd, direction))
}

pub(crate) fn ready_async(source: &impl Source, direction: Direction) -> impl Future<Output = io::Result<()>> + Send {
    Io::new(source.watched(), direction, move |fd| call::ready(fd, direction))
}

fn poll_flags(direction: Direction) -> PollFlags {
    match direction {
        Direction::Read => PollFlags::IN | system::READ_CLOSED,
        Direction::Write => PollFlags::OUT,
    }
}

/// Takes the pending error of a socket.
pub(crate) fn take_error(watched: &Watched) -> io::Result<Option<io::Error>> {
    match watched.fd() {
        Fd::System(fd) => SockRef::from(&fd).take_error(),
        Fd::Simulated(socket) => Ok(socket.take_error()),
    }
}

/// The address of the local end of an internet socket.
pub(crate) fn local_addr(watched: &Watched) -> io::Result<SocketAddr> {
    match watched.fd() {
        Fd::System(fd) => ip(SockRef::from(&fd).local_addr()?),
        Fd::Simulated(socket) => socket.local_addr(),
    }
}

fn ip(addr: socket2::SockAddr) -> io::Result<SocketAddr> {
    addr.as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the socket is not an internet socket"))
}

/// The `Debug` of a socket: its addresses.
pub(crate) fn describe<A: fmt::Debug, const N: usize>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    ends: [(&str, io::Result<A>); N],
) -> fmt::Result {
    let mut out = f.debug_struct(name);
    for (end, addr) in ends {
        if let Ok(addr) = addr {
            out.field(end, &addr);
        }
    }
    out.finish_non_exhaustive()
}
