//! `splice`: moves bytes from one stream to another inside the kernel, through a pipe that belongs to the thread.
//!
//! ```text
//!   from ─▶ pipe ─▶ to           both in one call, which does not suspend in between
//!             └──▶ rest          what `to` does not take at once is copied out of the pipe
//! ```
//!
//! So the pipe is empty whenever another fiber can run, one pipe serves the whole thread, and a waiting fiber holds no
//! descriptor of it. A pipe that may hold bytes after an error is closed.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

use rustix::net::SendFlags;

use crate::net::stream::{FileSink, call};
use crate::wait::fd::Fd;
use crate::wait::socket::{Moved, ShortRead};

/// The room of the pipe. The kernel counts in places of a page's size, and one may hold a packet's few bytes or many
/// pages. (Measured for 1 MiB through a proxy over loopback, with 64 connections: 234 us of CPU with 64 KiB, 209 with
/// 256, 217 with 1024.)
#[cfg(target_os = "linux")]
const PIPE_BYTES: usize = 256 << 10;

thread_local! {
    static PIPE: RefCell<Option<Pipe>> = const { RefCell::new(None) };
}

/// The outcome of [`splice`].
#[derive(Debug)]
pub struct Spliced {
    /// The bytes that were taken from `from`; 0 at its end.
    pub taken: usize,
    /// The bytes of these that `to` has taken at once; the others are in `rest`. With an error they are lost.
    pub sent: io::Result<usize>,
}

/// Takes at most `most` bytes from `from` and passes them on to `to` without copying them, as far as `to` takes them at
/// once. `most` must not be 0. The bytes that `to` does not take are appended to `rest`. Write them before anything
/// else.
///
/// ```
/// use osier::net::UnixStream;
/// use std::io::{Read, Write};
/// osier::run(|| {
///     let (mut client, from) = UnixStream::pair()?;
///     let (to, mut server) = UnixStream::pair()?;
///     client.write_all(b"0123456789")?;
///     let mut rest = Vec::new();
///     let spliced = match osier::io::splice(&from, &to, 4, &mut rest) {
///         Err(error) if error.kind() == std::io::ErrorKind::Unsupported => return Ok(()),
///         spliced => spliced?,
///     };
///     assert_eq!((spliced.taken, spliced.sent?, rest.len()), (4, 4, 0));
///     let mut text = [0; 4];
///     server.read_exact(&mut text)?;
///     assert_eq!(&text, b"0123");
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// # Suspends
///
/// Until there is something to take, for the read timeout of `from` at most. Never for `to`. Blocks the thread when
/// called on a plain one.
///
/// # Cancellation
///
/// The error of a cancelled call; nothing was taken.
///
/// # Errors
///
/// The bytes were not taken: `Unsupported` where there is no splice(2), no pipe can be made, or `from` cannot be
/// spliced; else the system's error for `from`.
///
/// Not promised: that `SIGPIPE` is kept away from a program that does not ignore it, as Rust programs do. splice(2) has
/// no flag for that.
#[doc(alias = "zero_copy")]
pub fn splice(
    from: &(impl FileSink + ?Sized),
    to: &(impl FileSink + ?Sized),
    most: usize,
    rest: &mut Vec<u8>,
) -> io::Result<Spliced> {
    let to = to.stream();
    from.stream().receive(|from| {
        let (from, to) = match (from, to.watched.fd()) {
            (Fd::System(from), Fd::System(to)) => (from, to),
            (from, to) => return copy(from, to, most, rest),
        };
        // The pipe goes back in its place only when it is empty.
        let pipe = match PIPE.take() {
            Some(pipe) => pipe,
            None => Pipe::new()?,
        };
        let taken = match pipe.fill(from, most) {
            Ok(taken) => taken,
            Err(error) => {
                PIPE.set(Some(pipe));
                return Err(error);
            }
        };
        let sent = pipe.empty(to, taken, rest);
        if sent.is_ok() {
            PIPE.set(Some(pipe));
        }
        Ok(Moved::all(Spliced { taken, sent }))
    })
}

/// Moves bytes between simulated sockets, by copying.
fn copy(from: Fd<'_>, to: Fd<'_>, most: usize, rest: &mut Vec<u8>) -> io::Result<Moved<Spliced>> {
    let mut bytes = vec![0; most.min(64 << 10)];
    let taken = call::read(from, &mut bytes, ShortRead::SaysNothing)?.value;
    let sent = match call::write(to, &bytes[..taken], SendFlags::empty()) {
        _ if taken == 0 => Ok(0),
        Ok(moved) => Ok(moved.value),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    };
    if let Ok(sent) = sent {
        rest.extend_from_slice(&bytes[sent..taken]);
    }
    Ok(Moved::all(Spliced { taken, sent }))
}

#[cfg(target_os = "linux")]
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

fn unsupported(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, error)
}

#[cfg(target_os = "linux")]
impl Pipe {
    #[cold]
    fn new() -> io::Result<Pipe> {
        use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(unsupported)?;
        // A user without privileges has a bound over all pipes. Less room means more calls.
        let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
        Ok(Pipe { reader, writer })
    }

    /// Fills the pipe. It is empty, so a would-block is the stream's.
    fn fill(&self, from: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        use rustix::io::Errno;
        match splice_once(from, &self.writer, most) {
            Err(error @ (Errno::INVAL | Errno::NOSYS)) => Err(unsupported(error)),
            taken => Ok(taken?),
        }
    }

    /// Sends the `held` bytes as far as `to` takes them, and copies the others. Returns how many were sent.
    fn empty(&self, to: BorrowedFd<'_>, held: usize, rest: &mut Vec<u8>) -> io::Result<usize> {
        use rustix::io::Errno;
        let mut sent = 0;
        while sent < held {
            match splice_once(&self.reader, to, held - sent) {
                Ok(0) | Err(Errno::AGAIN | Errno::INVAL) => break,
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut filled = rest.len();
        rest.resize(filled + held - sent, 0);
        while filled < rest.len() {
            match rustix::io::read(&self.reader, &mut rest[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent)
    }
}

#[cfg(target_os = "linux")]
fn splice_once(from: impl std::os::fd::AsFd, to: impl std::os::fd::AsFd, most: usize) -> rustix::io::Result<usize> {
    use rustix::pipe::SpliceFlags;
    rustix::pipe::splice(from, None, to, None, most, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)
}

/// There is none.
#[cfg(not(target_os = "linux"))]
enum Pipe {}

#[cfg(not(target_os = "linux"))]
impl Pipe {
    fn new() -> io::Result<Pipe> {
        Err(unsupported("there is no splice(2) on this system"))
    }

    fn fill(&self, _: BorrowedFd<'_>, _: usize) -> io::Result<usize> {
        match *self {}
    }

    fn empty(&self, _: BorrowedFd<'_>, _: usize, _: &mut Vec<u8>) -> io::Result<usize> {
        match *self {}
    }
}
