//! The common part of TCP and Unix streams: reads and writes with timeouts, and the impls that std's streams have.
//!
//! Every receive and send sets `MSG_DONTWAIT`: the owner of a duplicate may have made the open file description
//! blocking, which must not stop a worker. `MSG_NOSIGNAL` prevents `SIGPIPE` in programs that do not ignore it.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{RecvFlags, ReturnFlags, SendFlags, SocketAddrAny};
use socket2::SockRef;

use super::system;
use super::unacknowledged::unacknowledged;
use crate::wait::leaf::Io;
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
            return Err(zero_timeout());
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

pub(crate) fn zero_timeout() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a timeout of zero: use None for no timeout, or a longer one",
    )
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
        let socket = watched.fd();
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
        let watched = Watched::from_outside(self.watched.export().try_clone_to_owned()?, self.watched.short_read())?;
        let (read, write) = (self.read_timeout.limit(), self.write_timeout.limit());
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
        self.receive(|fd| call::read(fd, buf, self.watched.short_read()))
    }

    pub(crate) fn read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive(|fd| call::read_vectored(fd, bufs, self.watched.short_read()))
    }

    pub(crate) fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.receive(|fd| call::peek(fd, buf))
    }

    pub(crate) fn peek_async(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send {
        Io::new(&self.watched, Direction::Read, |fd| call::peek(fd, buf))
    }

    #[inline]
    pub(crate) fn write(&self, buf: &[u8], flags: SendFlags) -> io::Result<usize> {
        self.send(|fd| call::write(fd, buf, flags))
    }

    pub(crate) fn write_async(&self, buf: &[u8], flags: SendFlags) -> impl Future<Output = io::Result<usize>> + Send {
        self.send_async(move |fd| call::write(fd, buf, flags))
    }

    pub(crate) fn write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(|fd| call::write_vectored(fd, bufs))
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        SockRef::from(&self.watched.fd()).shutdown(how)
    }

    #[inline]
    pub(crate) fn receive<T>(&self, call: impl FnMut(BorrowedFd<'_>) -> io::Result<Moved<T>>) -> io::Result<T> {
        self.watched.io(Direction::Read, || self.read_timeout.deadline(), call)
    }

    /// Makes a call that sends. The write timeout fires when the peer has acknowledged no byte for that long.
    #[inline]
    pub(crate) fn send<T>(&self, mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<Moved<T>>) -> io::Result<T> {
        loop {
            // Read at the first wait only, so that a call that need not wait costs nothing more.
            let mut before = None;
            let deadline = || {
                let deadline = self.write_timeout.deadline()?;
                before = unacknowledged(self.watched.fd());
                Some(deadline)
            };
            match self.watched.io(Direction::Write, deadline, &mut call) {
                Err(error) if self.made_progress(&error, before) => {}
                done => return done,
            }
        }
    }

    /// Whether the peer acknowledged some of the `before` unacknowledged bytes during a wait that timed out.
    #[cold]
    fn made_progress(&self, error: &io::Error, before: Option<i32>) -> bool {
        // The kernel's own ETIMEDOUT means that the connection is dead.
        let is_ours = error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none();
        is_ours && before.is_some() && unacknowledged(self.watched.fd()) < before
    }

    pub(crate) fn receive_async<T>(
        &self,
        call: impl FnMut(BorrowedFd<'_>) -> io::Result<Moved<T>> + Send,
    ) -> impl Future<Output = io::Result<T>> + Send {
        Io::new(&self.watched, Direction::Read, call)
    }

    pub(crate) fn send_async<T>(
        &self,
        call: impl FnMut(BorrowedFd<'_>) -> io::Result<Moved<T>> + Send,
    ) -> impl Future<Output = io::Result<T>> + Send {
        Io::new(&self.watched, Direction::Write, call)
    }
}

/// The system calls, for the blocking and the async methods.
pub(crate) mod call {
    use super::*;

    #[inline]
    pub(crate) fn read(fd: BorrowedFd<'_>, buf: &mut [u8], short: ShortRead) -> io::Result<Moved<usize>> {
        if short == ShortRead::DrainsUnlessPassed {
            return read_vectored(fd, &mut [IoSliceMut::new(buf)], short);
        }
        let (count, _) = rustix::net::recv(fd, &mut *buf, RecvFlags::DONTWAIT)?;
        Ok(Moved {
            value: count,
            drained: short == ShortRead::Drains && 0 < count && count < buf.len(),
        })
    }

    pub(crate) fn read_vectored(
        fd: BorrowedFd<'_>,
        bufs: &mut [IoSliceMut<'_>],
        short: ShortRead,
    ) -> io::Result<Moved<usize>> {
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

    pub(crate) fn peek(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Moved<usize>> {
        let (count, _) = rustix::net::recv(fd, buf, RecvFlags::DONTWAIT | RecvFlags::PEEK)?;
        Ok(Moved::all(count))
    }

    /// Receives a datagram, which may be empty. With the flag it peeks, as [`peek`] does.
    pub(crate) fn receive(fd: BorrowedFd<'_>, buf: &mut [u8], flags: RecvFlags) -> io::Result<Moved<usize>> {
        Ok(Moved::all(rustix::net::recv(fd, buf, flags | RecvFlags::DONTWAIT)?.0))
    }

    pub(crate) fn receive_from(
        fd: BorrowedFd<'_>,
        buf: &mut [u8],
        flags: RecvFlags,
    ) -> io::Result<Moved<(usize, Option<SocketAddrAny>)>> {
        let (count, _, from) = rustix::net::recvfrom(fd, buf, flags | RecvFlags::DONTWAIT)?;
        Ok(Moved::all((count, from)))
    }

    #[inline]
    pub(crate) fn write(fd: BorrowedFd<'_>, buf: &[u8], flags: SendFlags) -> io::Result<Moved<usize>> {
        let flags = flags | SendFlags::DONTWAIT | system::NO_SIGNAL;
        Ok(Moved::all(rustix::net::send(fd, buf, flags)?))
    }

    pub(crate) fn write_vectored(fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>]) -> io::Result<Moved<usize>> {
        let bufs = &bufs[..bufs.len().min(SLICES_MAX)];
        let mut control = rustix::net::SendAncillaryBuffer::default();
        let flags = SendFlags::DONTWAIT | system::NO_SIGNAL;
        Ok(Moved::all(rustix::net::sendmsg(fd, bufs, &mut control, flags)?))
    }

    pub(crate) fn send_to(fd: BorrowedFd<'_>, buf: &[u8], addr: &impl SocketAddrArg) -> io::Result<Moved<usize>> {
        let flags = SendFlags::DONTWAIT | system::NO_SIGNAL;
        Ok(Moved::all(rustix::net::sendto(fd, buf, flags, addr)?))
    }

    pub(crate) fn accept(fd: BorrowedFd<'_>) -> io::Result<Moved<(OwnedFd, Option<SocketAddrAny>)>> {
        Ok(Moved::all(system::accept(fd)?))
    }

    /// Tests whether the descriptor is ready. If not, it returns the error of a call that would block.
    pub(crate) fn ready(fd: BorrowedFd<'_>, flags: PollFlags) -> io::Result<Moved<()>> {
        let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
        match rustix::event::poll(&mut fds, Some(&Timespec::default()))? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(Moved::all(())),
        }
    }
}

/// Takes a descriptor that may have duplicates.
pub(crate) fn adopt(fd: OwnedFd, short_read: ShortRead) -> Watched {
    let watched = Watched::new(fd, short_read);
    // It fails on a descriptor that is not a socket, a pipe or the like. The first call reports that.
    let _ = rustix::io::ioctl_fionbio(watched.export(), true);
    watched
}

pub(crate) fn ready(watched: &Watched, direction: Direction) -> io::Result<()> {
    let flags = poll_flags(direction);
    watched.io(direction, || None, |fd| call::ready(fd, flags))
}

pub(crate) fn ready_async(watched: &Watched, direction: Direction) -> impl Future<Output = io::Result<()>> + Send {
    let flags = poll_flags(direction);
    Io::new(watched, direction, move |fd| call::ready(fd, flags))
}

fn poll_flags(direction: Direction) -> PollFlags {
    match direction {
        Direction::Read => PollFlags::IN | system::READ_CLOSED,
        Direction::Write => PollFlags::OUT,
    }
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

/// The traits that make a socket a descriptor, convert it from std's type, and let it be waited for.
macro_rules! descriptor_impls {
    ($type:ident, $std:ty) => {
        crate::net::stream::descriptor_impls!($type);

        /// Makes the socket non-blocking, for all its duplicates too.
        impl From<$std> for $type {
            fn from(socket: $std) -> $type {
                std::os::fd::OwnedFd::from(socket).into()
            }
        }
    };
    ($type:ident) => {
        /// The descriptor may be duplicated by code that gets it from here. Closing the socket then costs one more
        /// system call.
        impl std::os::fd::AsFd for $type {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                crate::wait::socket::Source::watched(self).export()
            }
        }

        impl std::os::fd::AsRawFd for $type {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(self))
            }
        }

        impl crate::wait::socket::Sealed for $type {}

        /// Waits without reading or writing.
        impl $type {
            /// Waits until there is something to receive or to accept, the end of the stream, or an error.
            ///
            /// Another reader may take it first, so the next call may wait after all. Timeouts do not apply here.
            ///
            /// # Suspends
            ///
            /// Until then. Blocks the thread when called on a plain one.
            ///
            /// # Errors
            ///
            /// The error of a cancelled call, or of a call in the wrong place.
            pub fn readable(&self) -> std::io::Result<()> {
                crate::net::stream::ready(
                    crate::wait::socket::Source::watched(self),
                    crate::wait::socket::Direction::Read,
                )
            }

            /// Waits until there is room to send, or an error. The rules of `readable` apply.
            ///
            /// # Suspends
            ///
            /// Until then. Blocks the thread when called on a plain one.
            ///
            /// # Errors
            ///
            /// The error of a cancelled call, or of a call in the wrong place.
            pub fn writable(&self) -> std::io::Result<()> {
                crate::net::stream::ready(
                    crate::wait::socket::Source::watched(self),
                    crate::wait::socket::Direction::Write,
                )
            }

            /// `readable` as a future.
            pub fn readable_async(&self) -> impl Future<Output = std::io::Result<()>> + Send {
                crate::net::stream::ready_async(
                    crate::wait::socket::Source::watched(self),
                    crate::wait::socket::Direction::Read,
                )
            }

            /// `writable` as a future.
            pub fn writable_async(&self) -> impl Future<Output = std::io::Result<()>> + Send {
                crate::net::stream::ready_async(
                    crate::wait::socket::Source::watched(self),
                    crate::wait::socket::Direction::Write,
                )
            }
        }
    };
}

/// The traits of std's streams: `Read` and `Write` for the type and for references to it.
macro_rules! stream_impls {
    ($type:ident, $std:ty, $short_read:expr) => {
        crate::net::stream::stream_impls!($type, $short_read);

        /// Makes the socket non-blocking, for all its duplicates too.
        impl From<$std> for $type {
            fn from(socket: $std) -> $type {
                std::os::fd::OwnedFd::from(socket).into()
            }
        }

        /// Makes the socket blocking again, for all its duplicates too.
        impl From<$type> for $std {
            fn from(stream: $type) -> $std {
                stream.0.into_std().into()
            }
        }
    };
    ($type:ident, $short_read:expr) => {
        crate::net::stream::descriptor_impls!($type);

        impl crate::wait::socket::Source for $type {
            fn watched(&self) -> &crate::wait::socket::Watched {
                &self.0.watched
            }
        }

        impl crate::net::stream::FileSink for $type {
            fn stream(&self) -> &crate::net::stream::Stream {
                &self.0
            }
        }

        /// Makes the socket non-blocking, for all its duplicates too. Timeouts that are set on it apply.
        impl From<std::os::fd::OwnedFd> for $type {
            fn from(fd: std::os::fd::OwnedFd) -> $type {
                $type(crate::net::stream::Stream::from_outside(fd, $short_read))
            }
        }

        /// Leaves the descriptor non-blocking.
        impl From<$type> for std::os::fd::OwnedFd {
            fn from(stream: $type) -> std::os::fd::OwnedFd {
                stream.0.watched.into_fd()
            }
        }

        impl std::io::Read for &$type {
            #[inline]
            fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(buf)
            }
            fn read_vectored(&mut self, bufs: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                self.0.read_vectored(bufs)
            }
        }

        impl std::io::Read for $type {
            #[inline]
            fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(buf)
            }
            fn read_vectored(&mut self, bufs: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                self.0.read_vectored(bufs)
            }
        }

        impl std::io::Write for &$type {
            #[inline]
            fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
                self.0.write(buf, rustix::net::SendFlags::empty())
            }
            fn write_vectored(&mut self, bufs: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                self.0.write_vectored(bufs)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        impl std::io::Write for $type {
            #[inline]
            fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
                self.0.write(buf, rustix::net::SendFlags::empty())
            }
            fn write_vectored(&mut self, bufs: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                self.0.write_vectored(bufs)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        impl $type {
            /// Receives bytes without removing them: the next read gets them again.
            ///
            /// # Suspends
            ///
            /// Until there is at least one byte, or the end (0).
            ///
            /// # Errors
            ///
            /// The errors of `read`: `TimedOut` after the read timeout.
            pub fn peek(&self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.0.peek(buf)
            }

            /// Registers the socket with this worker's poller for reading. Otherwise the first read that finds
            /// nothing does so.
            ///
            /// A caller that knows that there is nothing to read yet, for example after sending a request on a new
            /// connection, saves the read that would fail. Has no effect on a plain thread.
            ///
            /// # Suspends
            ///
            /// Never.
            ///
            /// # Errors
            ///
            /// The system's error: too little memory, or too many registered sockets.
            pub fn watch(&self) -> std::io::Result<()> {
                self.0.watched.own_here().map(drop)
            }

            /// Whether there was something to read, or the end, when this worker last polled the kernel. `None` if
            /// the socket is not registered there ([`watch`](Self::watch)), or the poller is not edge-triggered.
            ///
            /// It makes no system call. `Some(false)` is as old as the worker's turn. `Some(true)` may refer to bytes
            /// that have been read since.
            ///
            /// # Suspends
            ///
            /// Never.
            pub fn seen_readable(&self) -> Option<bool> {
                self.0.watched.seen_readable()
            }

            /// The number of sent bytes that the peer's system has not acknowledged (TCP), or that the peer has not
            /// read (Unix). The number of a Unix socket counts the kernel's own records too. `None` where the
            /// system does not report it.
            ///
            /// # Suspends
            ///
            /// Never.
            pub fn unacknowledged(&self) -> Option<usize> {
                crate::net::unacknowledged::unacknowledged(self.0.watched.fd())
                    .and_then(|count| usize::try_from(count).ok())
            }

            /// [`peek`](Self::peek) as a future. The read timeout does not apply to it.
            pub fn peek_async(&self, buf: &mut [u8]) -> impl Future<Output = std::io::Result<usize>> + Send {
                self.0.peek_async(buf)
            }

            /// Writes bytes that others will follow at once: the kernel may hold them back to send both in one
            /// packet.
            ///
            /// It joins a head to the file that [`sendfile`](crate::io::sendfile) sends. Returns the number of bytes
            /// that it took, as `write` does.
            ///
            /// # Suspends
            ///
            /// Until the socket takes at least one byte.
            ///
            /// # Errors
            ///
            /// The errors of `write`: `TimedOut` after the write timeout.
            pub fn write_more(&self, buf: &[u8]) -> std::io::Result<usize> {
                self.0.write(buf, crate::net::stream::MORE)
            }

            /// [`write_more`](Self::write_more) as a future. The write timeout does not apply to it.
            pub fn write_more_async(&self, buf: &[u8]) -> impl Future<Output = std::io::Result<usize>> + Send {
                self.0.write_async(buf, crate::net::stream::MORE)
            }

            /// Shuts down reading, writing or both, for all duplicates of the socket. Calls that wait on it wake.
            ///
            /// # Suspends
            ///
            /// Never.
            ///
            /// # Errors
            ///
            /// `NotConnected`.
            pub fn shutdown(&self, how: std::net::Shutdown) -> std::io::Result<()> {
                self.0.shutdown(how)
            }

            /// Duplicates the descriptor: another value for the same socket, with the same timeouts.
            ///
            /// # Errors
            ///
            /// The system's error for too many open files.
            pub fn try_clone(&self) -> std::io::Result<$type> {
                Ok($type(self.0.try_clone()?))
            }

            /// Sets how long a call that reads may take. `None`, the default, means no limit. Applies to calls that
            /// begin later.
            ///
            /// # Errors
            ///
            /// `InvalidInput` for zero.
            pub fn set_read_timeout(&self, limit: Option<std::time::Duration>) -> std::io::Result<()> {
                self.0.read_timeout.set(limit)
            }

            /// Sets how long a call that writes waits for a peer that takes nothing. `None`, the default, means no
            /// limit. Applies to calls that begin later.
            ///
            /// On Linux the wait starts again if a slow peer has acknowledged a byte in that time. A call may thus
            /// take longer than the limit, but not if the peer takes nothing. On other systems the limit applies to
            /// each wait for room.
            ///
            /// # Errors
            ///
            /// `InvalidInput` for zero.
            pub fn set_write_timeout(&self, limit: Option<std::time::Duration>) -> std::io::Result<()> {
                self.0.write_timeout.set(limit)
            }

            /// The longest time that a call that reads may take.
            ///
            /// # Errors
            ///
            /// None. The signature is std's.
            pub fn read_timeout(&self) -> std::io::Result<Option<std::time::Duration>> {
                Ok(self.0.read_timeout.limit())
            }

            /// The longest time that a call that writes may take.
            ///
            /// # Errors
            ///
            /// None. The signature is std's.
            pub fn write_timeout(&self) -> std::io::Result<Option<std::time::Duration>> {
                Ok(self.0.write_timeout.limit())
            }

            /// Takes the pending error of the socket, if there is one.
            ///
            /// # Errors
            ///
            /// The system's error.
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                socket2::SockRef::from(&self.0.watched.fd()).take_error()
            }
        }
    };
}

pub(crate) use {descriptor_impls, stream_impls};
