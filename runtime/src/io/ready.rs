//! Waits for any descriptor: on a fiber and in a future over `crate::wait::descriptor`, on a plain thread over poll(2).

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use osier_poll::{Interest, Ready};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::net::system::READ_CLOSED;
use crate::wait::descriptor;
use crate::wait::socket::block_thread;
use crate::wait::{self, Stop, budget};
use crate::worker::context::{self, Caller};

/// Waits until `fd` can be read from: there are bytes, or their end, or an error to be read. Any descriptor that can be
/// polled will do: a pipe, a terminal, an eventfd, a timer, a socket that a C library made. A regular file or a directory
/// is always ready and cannot be waited for ([`fs`](crate::fs) is for them).
///
/// Nothing is read, and nothing of the descriptor is changed. Others may wait for it and read from it at the same time,
/// here or in other processes, so a read that follows may still find nothing.
///
/// ```
/// use std::io::{Read, Write};
/// let (mut reader, mut writer) = std::io::pipe()?;
/// osier::run(|| {
///     let waiting = osier::spawn(move || {
///         osier::io::readable(&reader, None)?;
///         let mut byte = [0];
///         reader.read_exact(&mut byte)?;
///         std::io::Result::Ok(byte[0])
///     });
///     writer.write_all(b"!")?;
///     assert_eq!(waiting.join().unwrap()?, b'!');
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// # Suspends
///
/// Until then. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// The error of a cancelled call. The descriptor is left alone.
///
/// # Errors
///
/// The errors of [`ready`].
pub fn readable(fd: impl AsFd, deadline: Option<Instant>) -> io::Result<()> {
    ready(fd, Interest::READABLE, deadline).map(drop)
}

/// Waits until `fd` can be written to, as [`readable`] does for reading: there is room, or an error to be met. A regular
/// file or a directory is always ready and cannot be waited for.
///
/// # Suspends
///
/// Until then. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// The error of a cancelled call. The descriptor is left alone.
///
/// # Errors
///
/// The errors of [`ready`].
pub fn writable(fd: impl AsFd, deadline: Option<Instant>) -> io::Result<()> {
    ready(fd, Interest::WRITABLE, deadline).map(drop)
}

/// Waits until `fd` is ready for a part of `interest`, and returns the readiness.
///
/// A hang-up and an error of the descriptor are readiness too ([`Ready::HUP`], [`Ready::ERROR`]), whatever the
/// interest: the next call on the descriptor tells what happened. The descriptor must not be closed meanwhile; its
/// borrow sees to that.
///
/// # Suspends
///
/// Until then. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// The error of a cancelled call. The descriptor is left alone.
///
/// # Errors
///
/// - `TimedOut` when the deadline has passed first.
/// - `PermissionDenied` for a descriptor that is always ready: a regular file, a directory; on a fiber also a device
///   like `/dev/null`, which is ready on a plain thread.
/// - `InvalidInput` for an empty interest.
/// - `WouldBlock` where it would have to wait on a worker but not on a fiber.
pub fn ready(fd: impl AsFd, interest: Interest, deadline: Option<Instant>) -> io::Result<Ready> {
    let fd = fd.as_fd();
    if interest.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "waiting for nothing: the interest is empty",
        ));
    }
    let flags = context::caller(|caller| match caller {
        Caller::Fiber(..) => Ok(None),
        Caller::Worker => poll_now(fd, flags(interest)).map(Some),
        Caller::Thread => always_ready(fd)
            .and_then(|()| block_thread(fd, flags(interest), deadline))
            .map(Some),
    })?;
    match flags {
        None => {
            let mut leaf = pin!(descriptor::Waiting::new(fd, interest));
            wait::wait(deadline, None, |cx| leaf.as_mut().poll(cx))?
        }
        Some(flags) => Ok(readiness(flags)),
    }
}

/// Waits as [`ready`] does, in a future. Any executor may poll it, and a worker drives it.
///
/// The descriptor stays open as long as the future borrows it. `fd` may own it.
///
/// ```
/// use osier::io::{Interest, ready_async};
/// use std::io::Write;
/// let (reader, mut writer) = std::io::pipe()?;
/// osier::run(|| {
///     writer.write_all(b"!")?;
///     assert!(osier::block_on(ready_async(&reader, Interest::READABLE))?.is_readable());
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// # Cancellation
///
/// Dropping it leaves the descriptor alone.
///
/// # Errors
///
/// The errors of [`ready`], but for that of the deadline.
pub fn ready_async<F: AsFd + ?Sized>(fd: &F, interest: Interest) -> WhenReady<'_> {
    WhenReady(descriptor::Waiting::new(fd.as_fd(), interest))
}

/// [`readable`] as a future.
pub fn readable_async<F: AsFd + ?Sized>(fd: &F) -> WhenReady<'_> {
    ready_async(fd, Interest::READABLE)
}

/// [`writable`] as a future.
pub fn writable_async<F: AsFd + ?Sized>(fd: &F) -> WhenReady<'_> {
    ready_async(fd, Interest::WRITABLE)
}

/// The future of [`ready_async`]. After it has completed it may be polled again, and waits again.
#[must_use = "a future does nothing until it is polled"]
pub struct WhenReady<'fd>(descriptor::Waiting<'fd>);

impl Future for WhenReady<'_> {
    type Output = io::Result<Ready>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        budget::poll(cx, |cx| Pin::new(&mut self.0).poll(cx))
    }
}

/// The present readiness of `fd`.
fn poll_now(fd: BorrowedFd<'_>, flags: PollFlags) -> io::Result<PollFlags> {
    always_ready(fd)?;
    let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
    match rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
        0 => Err(Stop::NotHere.into()),
        _ => Ok(fds[0].revents()),
    }
}

/// Refuses what epoll refuses, so that all callers get the same answer.
pub(crate) fn always_ready(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::fs::FileType;
    match FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) {
        FileType::RegularFile | FileType::Directory => Err(descriptor::refused()),
        _ => Ok(()),
    }
}

fn flags(interest: Interest) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN | READ_CLOSED, interest.is_readable());
    flags.set(PollFlags::OUT, interest.is_writable());
    flags.set(PollFlags::PRI, interest.is_priority());
    flags
}

fn readiness(flags: PollFlags) -> Ready {
    let bits = [
        (PollFlags::IN, Ready::READABLE),
        (PollFlags::OUT, Ready::WRITABLE),
        (READ_CLOSED, Ready::READ_CLOSED),
        (PollFlags::HUP, Ready::HUP),
        (PollFlags::ERR, Ready::ERROR),
        (PollFlags::PRI, Ready::PRIORITY),
    ];
    bits.into_iter()
        .filter(|(flag, _)| flags.intersects(*flag))
        .fold(Ready::NONE, |all, (_, bit)| all | bit)
}
