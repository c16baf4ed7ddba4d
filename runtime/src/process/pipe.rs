//! The parent's ends of a child's pipes.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::{Pin, pin};
use std::process::Stdio;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};

use crate::wait::leaf::Side;
use crate::wait::socket::{Direction, Moved, ShortRead, Watched};

/// The most slices that the kernel takes in one call.
const SLICES_MAX: usize = 1024;

struct Pipe {
    // Dropped before the descriptor, which its waiter must not outlive.
    side: Side,
    /// `None` once it is closed.
    watched: Option<Watched>,
}

impl Pipe {
    fn new(fd: OwnedFd) -> io::Result<Pipe> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Pipe {
            side: Side::default(),
            watched: Some(Watched::new(fd, ShortRead::SaysNothing)),
        })
    }

    fn watched(&self) -> io::Result<&Watched> {
        self.watched.as_ref().ok_or_else(closed)
    }

    fn io<T>(
        &self,
        direction: Direction,
        mut call: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        self.watched()?
            .io(direction, || None, |fd| Ok(Moved::all(call(fd.of_system())?)))
    }

    fn poll_io<T>(
        &mut self,
        direction: Direction,
        cx: &mut Context<'_>,
        mut call: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let watched = self.watched.as_ref().ok_or_else(closed)?;
        self.side
            .poll_io(watched, direction, cx, |fd| Ok(Moved::all(call(fd.of_system())?)))
    }

    fn close(&mut self) {
        self.side = Side::default();
        self.watched = None;
    }

    /// Makes the descriptor blocking, so that another child can use it.
    fn into_stdio(mut self) -> Stdio {
        self.side = Side::default();
        match self.watched.take() {
            Some(watched) => {
                let fd = watched.into_fd();
                // It cannot fail on a pipe.
                let _ = rustix::io::ioctl_fionbio(&fd, false);
                fd.into()
            }
            None => Stdio::null(),
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "this end of the pipe was closed")
}

macro_rules! pipe {
    ($type:ident, $std:ty, $doc:literal) => {
        #[doc = $doc]
        ///
        /// # Suspends
        ///
        /// Until the pipe moves at least one byte, or ends. Blocks the thread when called on a plain one.
        ///
        /// # Cancellation
        ///
        /// The error of a cancelled call. No bytes are lost. A future that is dropped while pending has moved
        /// nothing.
        pub struct $type(Pipe);

        impl $type {
            pub(super) fn new(std: $std) -> io::Result<$type> {
                Pipe::new(std.into()).map($type)
            }
        }

        /// Makes the pipe blocking again, as programs expect it.
        impl From<$type> for Stdio {
            fn from(pipe: $type) -> Stdio {
                pipe.0.into_stdio()
            }
        }

        osier_queue::impl_debug!($type, self => { .. });
    };
}

macro_rules! reader {
    ($type:ident) => {
        /// The descriptor may be duplicated by code that gets it from here.
        impl AsFd for $type {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0
                    .watched
                    .as_ref()
                    .expect("a reader is never closed")
                    .export()
            }
        }

        impl Read for $type {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                if buf.is_empty() {
                    return Ok(0);
                }
                self.0.io(Direction::Read, |fd| rustix::io::read(fd, &mut *buf))
            }
            fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                if bufs.iter().all(|buf| buf.is_empty()) {
                    return Ok(0);
                }
                let slices = bufs.len().min(SLICES_MAX);
                self.0
                    .io(Direction::Read, |fd| rustix::io::readv(fd, &mut bufs[..slices]))
            }
        }

        impl AsyncRead for $type {
            fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
                if buf.is_empty() {
                    return Poll::Ready(Ok(0));
                }
                self.0
                    .poll_io(Direction::Read, cx, |fd| rustix::io::read(fd, &mut *buf))
            }
            fn poll_read_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                if bufs.iter().all(|buf| buf.is_empty()) {
                    return Poll::Ready(Ok(0));
                }
                let slices = bufs.len().min(SLICES_MAX);
                self.0.poll_io(Direction::Read, cx, |fd| {
                    rustix::io::readv(fd, &mut bufs[..slices])
                })
            }
        }
    };
}

pipe!(
    ChildStdin,
    std::process::ChildStdin,
    "What a child reads, to be written to. Dropping it, or `poll_close`, ends it."
);
pipe!(
    ChildStdout,
    std::process::ChildStdout,
    "What a child writes, to be read."
);
pipe!(
    ChildStderr,
    std::process::ChildStderr,
    "What a child writes as errors, to be read."
);

reader!(ChildStdout);
reader!(ChildStderr);

impl Write for ChildStdin {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.io(Direction::Write, |fd| rustix::io::write(fd, buf))
    }
    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let bufs = &bufs[..bufs.len().min(SLICES_MAX)];
        self.0.io(Direction::Write, |fd| rustix::io::writev(fd, bufs))
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncWrite for ChildStdin {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_io(Direction::Write, cx, |fd| rustix::io::write(fd, buf))
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bufs = &bufs[..bufs.len().min(SLICES_MAX)];
        self.0.poll_io(Direction::Write, cx, |fd| rustix::io::writev(fd, bufs))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.close();
        Poll::Ready(Ok(()))
    }
}

/// The error of a child that writes more than [`Command::limit_output`](super::Command::limit_output) allows.
#[derive(Debug)]
pub(super) struct TooMuch {
    pipe: &'static str,
    limit: usize,
}

osier_queue::impl_error!(TooMuch, self => "the child has written more than {} bytes to its {}, the limit_output of its Command: raise the limit, or read the pipe in pieces", self.limit, self.pipe);

impl TooMuch {
    pub(super) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<TooMuch>())
    }
}

/// Appends to `bytes` what a pipe gives, to its end; nothing if there is no pipe. Dropped or failed, it leaves what has come. It fails once
/// more than `limit` bytes have come, and has taken one byte more then.
pub(super) async fn read_to_end(
    reader: Option<impl AsyncRead + Unpin>,
    pipe: &'static str,
    bytes: &mut Vec<u8>,
    limit: usize,
) -> io::Result<()> {
    let Some(mut reader) = reader else { return Ok(()) };
    let most = bytes.len().saturating_add(limit);
    let mut filling = Filling {
        filled: bytes.len(),
        bytes,
        most: most.saturating_add(1),
    };
    poll_fn(|cx| {
        loop {
            match ready!(Pin::new(&mut reader).poll_read(cx, filling.room()))? {
                0 => return Poll::Ready(Ok(())),
                count => filling.filled += count,
            }
            if filling.filled > most {
                let error = TooMuch { pipe, limit };
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::QuotaExceeded, error)));
            }
        }
    })
    .await
}

/// Waits for both, or for the first error. They take turns to be polled first, because the first may use up the budget of a poll.
pub(super) async fn both(
    one: impl Future<Output = io::Result<()>> + Send,
    other: impl Future<Output = io::Result<()>> + Send,
) -> io::Result<()> {
    type Part<'a> = Pin<&'a mut (dyn Future<Output = io::Result<()>> + Send)>;
    let (one, other) = (pin!(one), pin!(other));
    let mut parts: [(Part<'_>, bool); 2] = [(one, false), (other, false)];
    poll_fn(|cx| {
        for (part, is_over) in &mut parts {
            if !*is_over && let Poll::Ready(ended) = part.as_mut().poll(cx) {
                ended?;
                *is_over = true;
            }
        }
        parts.reverse();
        match parts.iter().all(|(_, is_over)| *is_over) {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    })
    .await
}

/// A buffer that is longer than what has come, until this is dropped.
struct Filling<'a> {
    bytes: &'a mut Vec<u8>,
    filled: usize,
    /// The most that it gets.
    most: usize,
}

impl Filling<'_> {
    fn room(&mut self) -> &mut [u8] {
        // Zeroed once: one read of a pipe returns little. It may be the last, so there is a limit.
        if self.filled == self.bytes.len() {
            let more = self.filled.clamp(8 << 10, 256 << 10);
            self.bytes.resize((self.filled + more).min(self.most), 0);
        }
        &mut self.bytes[self.filled..]
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.bytes.truncate(self.filled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that gives one byte at a time and overwrites the rest of the buffer with garbage.
    struct Scribbler {
        left: usize,
        zeroed: usize,
    }

    impl AsyncRead for &mut Scribbler {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
            self.zeroed += buf.iter().filter(|byte| **byte == 0).count();
            buf.fill(7);
            let count = self.left.min(1);
            self.left -= count;
            Poll::Ready(Ok(count))
        }
    }

    #[test]
    fn room_for_what_is_read_is_zeroed_once() {
        let mut scribbler = Scribbler {
            left: 20_000,
            zeroed: 0,
        };
        let mut bytes = Vec::new();
        crate::block_on(read_to_end(Some(&mut scribbler), "stdout", &mut bytes, usize::MAX)).unwrap();
        assert_eq!(bytes, [7; 20_000]);
        assert!(
            scribbler.zeroed <= 32 << 10,
            "{} bytes were zeroed for 20000",
            scribbler.zeroed
        );
    }

    #[test]
    fn an_end_after_much_zeroes_little() {
        let mut nothing = Scribbler { left: 0, zeroed: 0 };
        let mut bytes = vec![7; 4 << 20];
        crate::block_on(read_to_end(Some(&mut nothing), "stdout", &mut bytes, usize::MAX)).unwrap();
        assert_eq!(bytes.len(), 4 << 20);
        assert!(
            nothing.zeroed <= 256 << 10,
            "{} bytes were zeroed for none",
            nothing.zeroed
        );
    }
}
