//! Makes and accepts sockets, and has the flags that differ between systems. Apple's systems lack three flags: to
//! make a new socket non-blocking and close-on-exec in the same call, to keep a send from raising SIGPIPE, and to
//! report a half-close.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrAny};

#[cfg(not(target_vendor = "apple"))]
use linux as here;
#[cfg(not(target_vendor = "apple"))]
pub(crate) use linux::{pair, socket};

#[cfg(target_vendor = "apple")]
use apple as here;
#[cfg(target_vendor = "apple")]
pub(crate) use apple::{pair, socket};

/// Accepts a connection. Reports too many open files only while a connection is there.
#[inline]
pub(crate) fn accept(fd: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<SocketAddrAny>)> {
    here::accept(fd).map_err(|error| not_accepted(fd, error))
}

/// The error of a listener. The kernel takes a descriptor before it looks for a connection. If it finds no descriptor, and there is no
/// connection either, the error is `WouldBlock`.
#[cold]
fn not_accepted(fd: BorrowedFd<'_>, error: io::Error) -> io::Error {
    let lacks_one = matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
    let mut listener = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match lacks_one && poll(&mut listener, Some(&Timespec::default())) == Ok(0) {
        true => Errno::WOULDBLOCK.into(),
        false => error,
    }
}

/// The flag that keeps a send from raising SIGPIPE. Empty where an option of the socket does that.
#[cfg(not(target_vendor = "apple"))]
pub(crate) const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
pub(crate) const NO_SIGNAL: SendFlags = SendFlags::empty();

/// The flag that poll(2) reports when the peer has shut down its writing. Empty where there is none.
#[cfg(not(target_vendor = "apple"))]
pub(crate) const READ_CLOSED: PollFlags = PollFlags::RDHUP;
#[cfg(target_vendor = "apple")]
pub(crate) const READ_CLOSED: PollFlags = PollFlags::empty();

#[cfg(not(target_vendor = "apple"))]
mod linux {
    use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType};
    use std::io;
    use std::os::fd::{BorrowedFd, OwnedFd};

    const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

    pub(crate) fn socket(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
        Ok(rustix::net::socket_with(family, kind, FLAGS, None)?)
    }

    pub(crate) fn pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, FLAGS, None)?)
    }

    #[inline]
    pub(crate) fn accept(fd: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<SocketAddrAny>)> {
        Ok(rustix::net::acceptfrom_with(fd, FLAGS)?)
    }
}

#[cfg(target_vendor = "apple")]
mod apple {
    use rustix::io::FdFlags;
    use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType, sockopt};
    use std::io;
    use std::os::fd::{BorrowedFd, OwnedFd};

    pub(crate) fn socket(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
        set_up(rustix::net::socket(family, kind, None)?)
    }

    pub(crate) fn pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
        let (one, two) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::empty(), None)?;
        Ok((set_up(one)?, set_up(two)?))
    }

    pub(crate) fn accept(fd: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<SocketAddrAny>)> {
        let (accepted, from) = rustix::net::acceptfrom(fd)?;
        Ok((set_up(accepted)?, from))
    }

    /// A child that another thread starts before this call inherits the descriptor.
    fn set_up(fd: OwnedFd) -> io::Result<OwnedFd> {
        rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        sockopt::set_socket_nosigpipe(&fd, true)?;
        Ok(fd)
    }
}
