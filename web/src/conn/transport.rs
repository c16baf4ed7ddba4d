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
#[cfg(feature = "upgrade")]
use zeroize::Zeroizing;

#[cfg(any(feature = "h2", feature = "tls"))]
use crate::conn::protocol::Protocol;

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
    #[cfg(feature = "tls")]
    Tls(Box<osier_tls::Stream>),
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
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.socket(),
        }
    }

    /// The socket, if its bytes are those of the transport.
    #[inline]
    pub(crate) fn plain(&self) -> Option<&Stream> {
        match self {
            Transport::Plain(stream) => Some(stream),
            #[cfg(feature = "tls")]
            Transport::Tls(_) => None,
        }
    }

    /// The protocol that the two ends have chosen (ALPN). `None` without TLS; empty if they have not chosen.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    pub(crate) fn protocol(&self) -> Option<&[u8]> {
        match self {
            Transport::Plain(_) => None,
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => Some(stream.protocol().unwrap_or_default()),
        }
    }

    /// The protocol of a connection over it, after the handshake.
    #[cfg(any(feature = "h2", feature = "tls"))]
    pub(crate) fn spoken(&self, is_http2: bool) -> Protocol {
        match self {
            Transport::Plain(_) if is_http2 => Protocol::H2c,
            Transport::Plain(_) => Protocol::Http1,
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => Protocol::over(stream.version(), is_http2),
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
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.try_read(into),
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
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.try_write(bytes),
        }
    }

    /// Reads bytes between two requests. A connection is woken to read what has arrived. If that is nothing, it rests again.
    ///
    /// # Suspends
    ///
    /// For the read timeout of a connection at rest, at most.
    ///
    /// # Errors
    ///
    /// `TimedOut` if nothing has arrived, and the errors of `read`.
    #[inline]
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => { stream }.read(into),
            #[cfg(feature = "tls")]
            Transport::Tls(_) => self.receive_at_once(into),
        }
    }

    /// Reads as [`receive`](Transport::receive) does, and never waits. A new connection is woken although nothing may have arrived.
    ///
    /// # Errors
    ///
    /// `TimedOut` if nothing has arrived, and the errors of `read`.
    pub(crate) fn receive_at_once(&self, into: &mut [u8]) -> io::Result<usize> {
        self.try_read(into).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }

    /// Whether a read would return bytes that have left the socket, which no event announces.
    #[inline]
    pub(crate) fn has_unread(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.has_unread(),
        }
    }

    /// The TLS state, for another process that gets the socket. `None` if it cannot leave this one.
    #[cfg(feature = "upgrade")]
    pub(crate) fn export(&self) -> Option<Vec<u8>> {
        match self {
            Transport::Plain(_) => None,
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.export().ok(),
        }
    }

    /// Whether the transport can move to another process now.
    #[cfg(feature = "upgrade")]
    pub(crate) fn is_exportable(&self) -> bool {
        self.plain().is_some() || self.export().map(Zeroizing::new).is_some()
    }

    /// Whether the transport can move to another process. TLS 1.2 keys cannot.
    #[cfg(feature = "upgrade")]
    pub(crate) fn may_move(&self) -> bool {
        match self {
            Transport::Plain(_) => true,
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.version() != Some(osier_tls::Version::Tls12),
        }
    }

    /// Makes a transport from the state that another process has exported. `None` if the state cannot be read.
    #[cfg(all(feature = "upgrade", feature = "tls"))]
    pub(crate) fn import(acceptor: &osier_tls::Acceptor, stream: Stream, exported: &[u8]) -> Option<Transport> {
        let stream = acceptor.import(stream, exported).ok()?;
        Some(Transport::Tls(Box::new(stream)))
    }

    /// Whether the TLS handshake is done.
    #[cfg(all(feature = "upgrade", feature = "tls"))]
    pub(crate) fn is_established(&self) -> bool {
        match self {
            Transport::Plain(_) => true,
            Transport::Tls(stream) => stream.is_established(),
        }
    }

    /// Whether a part of a record has arrived.
    #[inline]
    pub(crate) fn is_mid_record(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.is_mid_record(),
        }
    }

    /// Sends what [`try_write`](Transport::try_write) has taken and the socket has not, as far as the socket takes it.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if something is left, and the errors of `write`.
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        match self {
            Transport::Plain(_) => Ok(()),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.try_flush(),
        }
    }

    /// Writes all bytes, and waits until the socket has taken them. A socket mostly takes all in one call.
    ///
    /// # Suspends
    ///
    /// Until then.
    #[inline]
    pub(crate) fn send_all(mut self: &Self, bytes: &[u8]) -> io::Result<()> {
        let rest = match self {
            Transport::Plain(stream) => match { stream }.write(bytes) {
                Ok(count) if count == bytes.len() => return Ok(()),
                Ok(count @ 1..) => &bytes[count..],
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Ok(_) | Err(_) => bytes,
            },
            #[cfg(feature = "tls")]
            Transport::Tls(_) => bytes,
        };
        self.write_all(rest)?;
        self.flush()
    }

    /// Writes the last bytes of this end. The kernel may hold them back until the caller ends the sending direction, which it does at once.
    ///
    /// # Suspends
    ///
    /// Until the kernel has taken all bytes.
    pub(crate) fn write_last(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Transport::Plain(stream) => write_all_more(stream, bytes),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.write_last(bytes),
        }
    }

    /// Tells the peer that it has got everything, if the protocol has a word for that and the socket takes it at once. The caller closes
    /// the socket next.
    #[inline]
    pub(crate) fn say_goodbye(&self) {
        match self {
            Transport::Plain(_) => {}
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => drop(stream.try_last_close_notify()),
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
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => match stream.has_unread() {
                true => Ok(()),
                false => stream.socket().peek(&mut [0]).map(drop),
            },
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
            #[cfg(feature = "tls")]
            Transport::Tls(stream) if stream.has_unread() => Ok(true),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.socket().wait_readable(time),
        }
    }

    /// Ends the sending direction.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Transport::Plain(stream) => stream.shutdown(Shutdown::Write),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

/// Writes bytes that the end of the sending direction follows at once.
fn write_all_more(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write_more(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
            #[cfg(feature = "tls")]
            Transport::Tls(_) => 0,
        }
    }

    /// Sends `len` bytes of `file`, from `offset` on. It calls `before` right before the first of them.
    ///
    /// # Suspends
    ///
    /// While the peer takes no more, and while bytes come from the disk.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` for a file that ends before. `progress` counts the bytes before the error.
    pub(crate) fn send_file(
        &self,
        file: &File,
        (offset, len): (u64, u64),
        before: impl FnOnce() -> io::Result<()>,
        progress: &mut FileProgress,
    ) -> io::Result<()> {
        match self {
            Transport::Plain(stream) => osier::io::sendfile_after(file, offset, len, stream, before, progress),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => copy::all(stream, file, (offset, len), before, progress),
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
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => copy::at_once(stream, file, offset, len, before, progress),
        }
    }
}

impl Read for &Transport {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => { stream }.read(into),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => { &**stream }.read(into),
        }
    }
}

impl Write for &Transport {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => { stream }.write(bytes),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => { &**stream }.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => { stream }.write_vectored(slices),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => { &**stream }.write_vectored(slices),
        }
    }

    /// Waits until the socket has taken all bytes. Bytes wait only after a write that timed out.
    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(_) => Ok(()),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => { &**stream }.flush(),
        }
    }
}

/// Files over TLS: they are read in pieces, which are encrypted.
#[cfg(all(feature = "sendfile", feature = "tls"))]
mod copy {
    use std::fs::File;
    use std::io::{self, Write};

    use osier::io::FileProgress;
    use osier_tls::Stream;

    use crate::conn::buffers::{self, Size};

    /// Bytes after which other fibers get their turn, if the peer takes all at once.
    const TURN: u64 = 256 << 10;

    /// Copies as [`send_file`](super::Transport::send_file) does.
    pub(super) fn all(
        mut stream: &Stream,
        file: &File,
        (offset, len): (u64, u64),
        before: impl FnOnce() -> io::Result<()>,
        progress: &mut FileProgress,
    ) -> io::Result<()> {
        let mut sent = 0;
        let done = pieces(file, offset, len, before, &mut sent, |piece, sent| {
            stream.write_all(piece)?;
            *sent += piece.len() as u64;
            Ok(())
        });
        progress.sent += sent;
        done
    }

    /// Copies as [`try_send_file`](super::Transport::try_send_file) does.
    pub(super) fn at_once(
        stream: &Stream,
        file: &File,
        offset: u64,
        len: u64,
        before: impl FnOnce() -> io::Result<()>,
        progress: &mut FileProgress,
    ) -> io::Result<()> {
        let mut sent = 0;
        let done = pieces(file, offset, len, before, &mut sent, |mut piece, sent| {
            while !piece.is_empty() {
                let count = stream.try_write(piece)?;
                piece = &piece[count..];
                *sent += count as u64;
            }
            Ok(())
        });
        progress.sent += sent;
        done.and_then(|()| stream.try_flush())
    }

    /// Reads the part of the file piece by piece. `send` counts in `sent` what it has sent of a piece.
    fn pieces(
        file: &File,
        offset: u64,
        len: u64,
        before: impl FnOnce() -> io::Result<()>,
        sent: &mut u64,
        mut send: impl FnMut(&[u8], &mut u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut before, mut turn) = (Some(before), TURN);
        while *sent < len {
            let mut piece = buffers::take(Size::K64);
            let most = usize::try_from(len - *sent).unwrap_or(usize::MAX).min(piece.len());
            let done = osier::io::read_at(file, offset + *sent, &mut piece[..most]).and_then(|count| {
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                before.take().map_or(Ok(()), |before| before())?;
                send(&piece[..count], sent)
            });
            buffers::give(piece);
            done?;
            if *sent >= turn && *sent < len {
                osier::fiber::give_way();
                turn = *sent + TURN;
            }
        }
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::cell::Cell;

        #[test]
        fn a_file_gives_way_between_its_turns_and_not_behind_the_last() {
            let folder = testkit::Folder::new();
            let file = File::open(folder.write("file", vec![1; 2 * TURN as usize])).unwrap();
            let ways_given = |len| {
                let (mut sent, given) = (0, Cell::new(0));
                let count = || given.set(given.get() + 1);
                let take = |piece: &[u8], sent: &mut u64| {
                    *sent += piece.len() as u64;
                    Ok(())
                };
                let send = || pieces(&file, 0, len, || Ok(()), &mut sent, take);
                osier::fiber::before_suspend(&count, send).unwrap();
                assert_eq!(sent, len);
                given.get()
            };
            let given = osier::run(|| [TURN - 1, TURN, TURN + 1, 2 * TURN].map(ways_given));
            assert_eq!(given, [0, 0, 1, 1]);
        }
    }
}
