//! The byte stream of a connection, to a client or to a backend: the socket itself, or TLS over it.
//!
//! ```text
//!   requests, responses, frames ─▶ Transport ─┬ Plain: the socket
//!                                             └ Tls: records ─▶ the socket
//! ```
//!
//! All bytes go through the `Read` and `Write` of `&Transport`. The [`socket`](Transport::socket) is for waiting, for timeouts and
//! for shutting down. Code that moves bytes inside the kernel asks for the [`plain`](Transport::plain) socket, and copies if there
//! is none.

#[cfg(feature = "sendfile")]
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

#[cfg(feature = "sendfile")]
use osier::io::FileProgress;
use osier::net::Stream;
#[cfg(feature = "sendfile")]
use rustix::net::SendFlags;

/// The flag for a send that another one follows at once. Systems without the flag send immediately.
#[cfg(all(feature = "sendfile", target_os = "linux"))]
const MORE: SendFlags = SendFlags::MORE;
#[cfg(all(feature = "sendfile", not(target_os = "linux")))]
const MORE: SendFlags = SendFlags::empty();

/// The flag that keeps a send from raising SIGPIPE. Empty where an option of the socket does that.
#[cfg(all(feature = "sendfile", not(target_vendor = "apple")))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
#[cfg(all(feature = "sendfile", target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::empty();

/// A connected byte stream.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(Stream),
}

impl From<Stream> for Transport {
    fn from(stream: Stream) -> Transport {
        Transport::Plain(stream)
    }
}

#[cfg_attr(
    not(feature = "proxy"),
    allow(dead_code, reason = "only gateways read and write without waiting")
)]
impl Transport {
    /// The socket, for waiting, timeouts and shutdowns.
    #[inline]
    pub(crate) fn socket(&self) -> &Stream {
        match self {
            Transport::Plain(stream) => stream,
        }
    }

    /// The socket, if its bytes are those of the transport.
    #[inline]
    pub(crate) fn plain(&self) -> Option<&Stream> {
        match self {
            Transport::Plain(stream) => Some(stream),
        }
    }

    /// Reads bytes that have arrived. Returns 0 at the end.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if none have arrived, and the errors of `read`.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => stream.try_read(into),
        }
    }

    /// Writes the bytes that the socket takes at once, and returns how many.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it takes none, and the errors of `write`.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => stream.try_write(bytes),
        }
    }

    /// Waits until a read may return something, within the read timeout of the socket.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub(crate) fn wait_readable(&self) -> io::Result<()> {
        match self {
            Transport::Plain(stream) => stream.peek(&mut [0]).map(drop),
        }
    }

    /// Waits until a read may return something, at most for `time`, whatever the read timeout of the socket is. Returns whether it
    /// may. In rare cases a read has to wait nevertheless.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub(crate) fn wait_readable_for(&self, time: Duration) -> io::Result<bool> {
        match self {
            Transport::Plain(stream) => stream.wait_readable(time),
        }
    }

    /// Ends the sending direction.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Transport::Plain(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

#[cfg(feature = "sendfile")]
impl Transport {
    /// Sends the bytes that the socket takes at once, with a note that more follow, and returns how many.
    pub(crate) fn send_joined(&self, bytes: &[u8]) -> usize {
        match self {
            Transport::Plain(stream) => {
                let flags = MORE | NO_SIGNAL | SendFlags::DONTWAIT;
                rustix::net::send(stream, bytes, flags).unwrap_or(0)
            }
        }
    }

    /// Sends `len` bytes of `file`, from `offset` on, and returns how many it sent. It calls `before` right before the first of them.
    ///
    /// # Suspends
    ///
    /// While the peer takes no more, and while bytes come from the disk.
    pub(crate) fn send_file(
        &self,
        file: &File,
        offset: u64,
        len: u64,
        before: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<u64> {
        match self {
            Transport::Plain(stream) => osier::io::sendfile_after(file, offset, len, stream, before),
        }
    }

    /// Same as [`send_file`](Transport::send_file), but it does not wait for the peer.
    ///
    /// # Suspends
    ///
    /// While bytes come from the disk.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when the peer takes no more, `UnexpectedEof` for a file that ends before. `progress` counts the bytes before the
    /// error.
    pub(crate) fn try_send_file(
        &self,
        file: &File,
        offset: u64,
        len: u64,
        before: impl FnOnce() -> io::Result<()>,
        progress: &mut FileProgress,
    ) -> io::Result<()> {
        match self {
            Transport::Plain(stream) => osier::io::try_sendfile(file, offset, len, stream, before, progress),
        }
    }
}

impl Read for &Transport {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => { stream }.read(into),
        }
    }
}

impl Write for &Transport {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => { stream }.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => { stream }.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
