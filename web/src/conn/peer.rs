//! The peer of a request: the client at the other end of a connection, a stream of an HTTP/2 connection, or a test in
//! the same program.
//!
//! The client of a test is a [`Memory`]. It belongs to one request and to the fiber that serves it.

use std::cell::RefCell;
#[cfg(feature = "sendfile")]
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use osier::fiber::{Activity, waits_for};
#[cfg(feature = "sendfile")]
use osier::io::FileProgress;
use osier::io::{HalfClose, while_connected};
#[cfg(feature = "sendfile")]
use osier::memory::Account;
use osier::net::PackedAddr;

#[cfg(feature = "sendfile")]
use crate::conn::buffers::{self, Size};
#[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
use crate::conn::inlet::Inlet;
use crate::conn::rates::Span;
use crate::conn::server_state::ServerState;
use crate::conn::stream::ClientStream;
use crate::conn::trailers::Trailers;
use crate::conn::transport::Transport;
#[cfg(feature = "upgrade")]
use crate::conn::worker::Closes;
use crate::conn::worker::{Link, RESTING, Worker};

/// A client, and the worker that serves it. A copy is a few words.
#[derive(Clone, Copy)]
pub(crate) struct Peer<'w> {
    pub(crate) worker: &'w Rc<Worker>,
    end: End<'w>,
}

#[derive(Clone, Copy)]
enum End<'w> {
    Link(&'w Link),
    Stream(&'w dyn ClientStream),
    Memory(&'w Memory),
}

/// The client's side of a request that does not come over a connection.
pub(crate) struct Memory {
    pub(crate) worker: Rc<Worker>,
    /// Marked if a trusted proxy has named the address.
    pub(crate) peer: PackedAddr,
    /// Whether the client for which this request is made uses TLS.
    pub(crate) is_encrypted: bool,
    /// The address at which the client reached the server.
    pub(crate) local: Option<SocketAddr>,
    /// Body of the request, as the client sends it.
    pub(crate) body: RefCell<Box<dyn Read>>,
    pub(crate) received: RefCell<Vec<u8>>,
    /// Most bytes that the client takes. After them it is gone.
    pub(crate) bound: usize,
}

impl<'w> From<&'w Link> for Peer<'w> {
    #[inline]
    fn from(link: &'w Link) -> Self {
        let (worker, end) = (&link.worker, End::Link(link));
        Peer { worker, end }
    }
}

impl<'w> From<&'w dyn ClientStream> for Peer<'w> {
    fn from(stream: &'w dyn ClientStream) -> Self {
        let (worker, end) = (&stream.link().worker, End::Stream(stream));
        Peer { worker, end }
    }
}

impl<'w> From<&'w Memory> for Peer<'w> {
    fn from(memory: &'w Memory) -> Self {
        let (worker, end) = (&memory.worker, End::Memory(memory));
        Peer { worker, end }
    }
}

impl<'w> Peer<'w> {
    pub(crate) fn peer(self) -> SocketAddr {
        self.packed_addr().get()
    }

    /// The client's address, marked if a trusted proxy has named it.
    #[inline]
    pub(crate) fn packed_addr(self) -> &'w PackedAddr {
        match self.end {
            End::Link(link) => link.packed_addr(),
            End::Stream(stream) => stream.link().packed_addr(),
            End::Memory(memory) => &memory.peer,
        }
    }

    pub(crate) fn is_proxied(self) -> bool {
        self.packed_addr().is_marked()
    }

    /// The connection, which HTTP/2 streams share. `None` for a test.
    fn link(self) -> Option<&'w Link> {
        match self.end {
            End::Link(link) => Some(link),
            End::Stream(stream) => Some(stream.link()),
            End::Memory(_) => None,
        }
    }

    /// Whether the bytes of the connection are encrypted.
    pub(crate) fn is_encrypted(self) -> bool {
        match self.end {
            End::Link(link) => link.transport.plain().is_none(),
            End::Stream(stream) => stream.link().transport.plain().is_none(),
            End::Memory(memory) => memory.is_encrypted,
        }
    }

    /// The TLS of the connection.
    #[cfg(feature = "tls")]
    pub(crate) fn tls(self) -> Option<&'w osier_tls::Stream> {
        match &self.link()?.transport {
            Transport::Tls(stream) => Some(stream),
            Transport::Plain(_) => None,
        }
    }

    /// The address at which the client reached the server. `None` on a Unix socket.
    pub(crate) fn local_addr(self) -> Option<SocketAddr> {
        let stream = match self.end {
            End::Link(link) => link.socket(),
            End::Stream(stream) => stream.link().socket(),
            End::Memory(memory) => return memory.local,
        };
        self.worker.server.bound.or_else(|| stream.local_addr().ok())
    }

    /// The byte stream of the connection, if it belongs to the request. `None` for a test, and for an HTTP/2 stream.
    #[cfg_attr(
        not(any(feature = "fastcgi", feature = "proxy")),
        allow(dead_code, reason = "only gateways receive bodies first")
    )]
    #[inline]
    pub(crate) fn transport(self) -> Option<&'w Transport> {
        match self.end {
            End::Link(link) => Some(&link.transport),
            End::Stream(_) | End::Memory(_) => None,
        }
    }

    /// Whether the next response ends the connection.
    #[inline]
    pub(crate) fn closes_after_response(self) -> bool {
        #[cfg(feature = "upgrade")]
        match self.worker.closes.get() {
            Closes::None => {}
            Closes::Fixed if self.link().is_none_or(|link| link.transport.may_move()) => {}
            Closes::Fixed | Closes::All => return true,
        }
        self.worker.draining.get()
    }

    /// Whether the connection, which belongs to the request, has to end because its memory is needed.
    pub(crate) fn is_evicted(self) -> bool {
        matches!(self.end, End::Link(link) if link.is_evicted())
    }

    /// Whether the request came on an HTTP/2 stream.
    pub(crate) fn is_stream(self) -> bool {
        matches!(self.end, End::Stream(_))
    }

    /// Lets the client take the response at any rate. On an HTTP/2 connection this applies to the socket, and so to all its streams.
    pub(crate) fn allow_slow_response(self) {
        if let End::Stream(stream) = self.end {
            stream.allow_slow();
        }
        if let Some(link) = self.link() {
            link.socket().set_write_progress(0);
        }
    }

    /// Lets the client of a stream send nothing for any time, also near the limit of memory.
    #[cfg(feature = "proxy")]
    pub(crate) fn allow_pauses(self) {
        if let End::Stream(stream) = self.end {
            stream.allow_pauses();
        }
    }

    /// Undoes [`allow_slow_response`](Peer::allow_slow_response). An HTTP/2 stream changes nothing, because other streams share its
    /// socket.
    pub(crate) fn restore_pace(self) {
        if let End::Link(link) = self.end {
            self.worker.server.set_pace(link.socket());
        }
    }

    /// Runs `body` and cancels it when the client has gone. The client of a test stays.
    ///
    /// # Suspends
    ///
    /// Only where `body` does.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` when the client has gone and a blocking call of `body` met that.
    #[inline]
    pub(crate) fn while_connected<T>(self, half_close: HalfClose, body: impl FnOnce() -> T) -> io::Result<T> {
        match self.end {
            End::Link(link) => Ok(while_connected(link.socket(), half_close, body)?),
            End::Stream(stream) => while_open(stream, body),
            End::Memory(_) => Ok(body()),
        }
    }

    /// Takes the trailer that an HTTP/2 stream has received.
    pub(crate) fn take_trailers(self) -> Option<Trailers> {
        match self.end {
            End::Stream(stream) => Some(stream.take_trailers()),
            End::Link(_) | End::Memory(_) => None,
        }
    }

    /// Reads bytes of a request's body. It waits for them no longer than
    /// [`Timeouts::body`](super::settings::Timeouts::body).
    pub(crate) fn read_body(self, into: &mut [u8], pace: &mut Pace) -> io::Result<usize> {
        waits_for(Activity::Client, || match self.end {
            End::Link(link) => pace.wait_on(link, |mut transport| transport.read(into)),
            End::Stream(stream) => pace.wait(stream.link(), |patience| stream.read(into, patience)),
            End::Memory(memory) => memory.body.borrow_mut().read(into),
        })
    }
}

/// Runs `body` and cancels it when the stream has been reset.
fn while_open<T>(stream: &dyn ClientStream, body: impl FnOnce() -> T) -> io::Result<T> {
    let done = stream.gone().guard(body);
    done.map_err(|_| io::Error::new(io::ErrorKind::ConnectionAborted, "the client has reset the stream"))
}

/// Time after which a client is slow. Waiting for it costs as little memory as possible from then on.
pub(crate) const SLOW_AFTER: Duration = Duration::from_secs(1);

/// The pace of a client that sends a request's body.
pub(crate) struct Pace {
    /// When the reading fiber last gave memory back.
    shrunk: Option<Instant>,
    span: Span,
    /// Whether the body may come at any rate.
    pub(crate) may_be_slow: bool,
    /// Whether the client may be silent for any time.
    pub(crate) may_pause: bool,
}

impl Pace {
    /// The pace of a body that begins.
    pub(crate) const BEGINS: Pace = Pace {
        shrunk: None,
        span: Span::NOTHING,
        may_be_slow: false,
        may_pause: false,
    };

    /// The same pace on another fiber.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn resumed(&self) -> Pace {
        Pace { shrunk: None, ..*self }
    }

    /// Adds a wait for the client.
    #[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
    pub(crate) fn waited(&mut self, since: Instant) {
        self.span.waited(since);
    }

    /// Whether the client is slower than its rate, before one more wait.
    pub(crate) fn is_too_slow(&mut self, server: &ServerState) -> bool {
        self.span.is_too_slow(&server.rates, server.timeouts.body) && !self.may_be_slow
    }

    /// Makes a call that waits for bytes of the connection.
    fn wait_on<T>(&mut self, link: &Link, mut call: impl FnMut(&Transport) -> io::Result<T>) -> io::Result<T> {
        let stream = link.socket();
        let (may_pause, mut is_first) = (self.may_pause, true);
        self.wait(link, |time: Duration| {
            // The second wait may be a long one.
            let awaits = (!std::mem::take(&mut is_first) && !may_pause).then(|| link.awaits_body(SLOW_AFTER));
            stream.set_read_timeout(Some(time))?;
            let called = call(&link.transport);
            stream.set_read_timeout(Some(RESTING))?;
            match awaits {
                Some(awaits) if awaits.is_evicted() => Err(io::ErrorKind::TimedOut.into()),
                _ => called,
            }
        })
    }

    /// Makes a call that waits for bytes of a body for a time. The stack is shrunk once a wait lasts [`SLOW_AFTER`], and once in each
    /// [`SLOW_AFTER`] while bytes trickle in.
    fn wait<T>(&mut self, link: &Link, mut within: impl FnMut(Duration) -> io::Result<T>) -> io::Result<T> {
        let now = osier::time::coarse_now();
        let shrunk = *self.shrunk.get_or_insert(now);
        if now.saturating_duration_since(shrunk) >= SLOW_AFTER {
            self.shrink(now);
        }
        let server = &link.worker.server;
        let body = server.timeouts.body;
        if self.is_too_slow(server) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let waited = match within(SLOW_AFTER.min(body)) {
            // The kernel's own ETIMEDOUT means that the connection is dead.
            Err(error)
                if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() && body > SLOW_AFTER =>
            {
                self.shrink(osier::time::coarse_now());
                within(body - SLOW_AFTER)
            }
            done => done,
        };
        self.span.waited(now);
        waited
    }

    /// Adds bytes that have arrived.
    #[inline]
    pub(crate) fn received(&mut self, count: usize) {
        self.span.received(count as u64);
    }

    #[cold]
    fn shrink(&mut self, now: Instant) {
        osier::fiber::shrink_stack();
        self.shrunk = Some(now);
    }
}

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
impl Peer<'_> {
    /// The place where the bytes of an HTTP/2 stream arrive.
    #[cfg(feature = "h2")]
    pub(crate) fn inlet(self) -> Option<Rc<Inlet>> {
        match self.end {
            End::Stream(stream) => Some(stream.shared_inlet()),
            End::Link(_) | End::Memory(_) => None,
        }
    }

    /// Reads bytes of a request's body that have arrived. `None` if there are none.
    pub(crate) fn read_arrived(self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let read = match self.end {
            End::Link(link) => link.transport.try_read(into),
            End::Stream(stream) => stream.try_read(into),
            End::Memory(memory) => return memory.body.borrow_mut().read(into).map(Some),
        };
        match read {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until bytes of a request's body have arrived, no longer than
    /// [`Timeouts::body`](super::settings::Timeouts::body).
    pub(crate) fn body_arrives(self, pace: &mut Pace) -> io::Result<()> {
        waits_for(Activity::Client, || match self.end {
            End::Link(link) => pace.wait_on(link, Transport::wait_readable),
            End::Stream(stream) => pace.wait(stream.link(), |patience| stream.wait_readable(patience)),
            End::Memory(_) => Ok(()),
        })
    }
}

/// The fate of a waiting handler whose client is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Gone {
    /// A handler finishes, and its reads and writes of the client fail. A gateway, whose whole work
    /// is for the client, is cancelled.
    #[default]
    Default,
    /// Cancel on a reset, and on the client's FIN.
    Cancel,
    /// Cancel on a reset only. The client may close its sending direction and still read the
    /// response.
    CancelUnlessHalfClosed,
    /// Never cancel, gateways included.
    Finish,
}

/// The destination of responses.
#[derive(Clone, Copy)]
pub(crate) enum Sink<'c> {
    Transport(&'c Transport),
    Stream(&'c dyn ClientStream),
    Memory(&'c Memory),
}

impl<'c> From<&'c Transport> for Sink<'c> {
    #[inline]
    fn from(transport: &'c Transport) -> Self {
        Sink::Transport(transport)
    }
}

impl<'c> From<&'c dyn ClientStream> for Sink<'c> {
    fn from(stream: &'c dyn ClientStream) -> Self {
        Sink::Stream(stream)
    }
}

impl<'c> From<&'c Memory> for Sink<'c> {
    fn from(memory: &'c Memory) -> Self {
        Sink::Memory(memory)
    }
}

/// Bytes that a stream of HTTP/2 gets at once, and waits with, where it has no room for more.
const STREAM_PIECE: usize = 16 << 10;

impl Sink<'_> {
    /// Notes that a write has failed. If it has timed out, the close of the socket will be a reset.
    #[cold]
    pub(crate) fn failed(self, error: &io::Error) {
        if let (Sink::Transport(transport), io::ErrorKind::TimedOut) = (self, error.kind()) {
            Link::abandon(transport.socket());
        }
    }

    #[inline]
    pub(crate) fn write_all(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Sink::Transport(transport) => transport.send_all(bytes),
            Sink::Stream(stream) => stream.write(bytes),
            Sink::Memory(memory) => memory.write(bytes),
        }
    }

    /// Writes both. If that fails, `sent` gets the number of bytes of `second` that are known to be sent.
    pub(crate) fn write_both(self, first: &[u8], second: &[u8], sent: &mut u64) -> io::Result<()> {
        let mut transport = match self {
            Sink::Transport(transport) => transport,
            Sink::Stream(stream) => {
                stream.write(first)?;
                let mut left = second;
                while !left.is_empty() {
                    let (piece, rest) = left.split_at(stream.room().max(STREAM_PIECE).min(left.len()));
                    stream
                        .write(piece)
                        .inspect_err(|_| *sent = (second.len() - left.len()) as u64)?;
                    left = rest;
                }
                return Ok(());
            }
            Sink::Memory(memory) => {
                memory.write(first)?;
                return memory.write(second);
            }
        };
        let mut slices = [IoSlice::new(first), IoSlice::new(second)];
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let failed = match transport.write_vectored(rest) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    IoSlice::advance_slices(&mut rest, count);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            let left: usize = rest.iter().map(|slice| slice.len()).sum();
            *sent = second.len().saturating_sub(left) as u64;
            return Err(failed);
        }
        transport.flush()
    }

    /// Runs `body` and cancels it when the client has gone, as [`Peer::while_connected`] does.
    pub(crate) fn while_connected<T>(self, body: impl FnOnce() -> T) -> io::Result<T> {
        match self {
            Sink::Transport(transport) => Ok(while_connected(transport.socket(), HalfClose::IsGone, body)?),
            Sink::Stream(stream) => while_open(stream, body),
            Sink::Memory(_) => Ok(body()),
        }
    }

    /// Sends the bytes that the socket takes at once, with a note that more follow. Sends nothing
    /// if there is no socket.
    #[cfg(feature = "sendfile")]
    pub(crate) fn send_joined(self, bytes: &[u8]) -> usize {
        match self {
            Sink::Transport(transport) => transport.send_joined(bytes),
            Sink::Stream(_) | Sink::Memory(_) => 0,
        }
    }

    /// Sends a part of `file`, from a place on and of a length. `head` sends the bytes right before it. `progress` counts the
    /// bytes that were sent, also before an error: `UnexpectedEof` for a file that ends before.
    #[cfg(feature = "sendfile")]
    pub(crate) fn send_file(
        self,
        file: &File,
        (offset, len): (u64, u64),
        head: impl FnOnce() -> io::Result<()>,
        progress: &mut FileProgress,
    ) -> io::Result<()> {
        if let Sink::Transport(transport) = self {
            return transport.send_file(file, (offset, len), head, progress);
        }
        head()?;
        let mut left = (offset, len);
        let mut piece = buffers::take(Size::K16);
        // Many may wait for their clients at once: streams of HTTP/2 whose windows are closed.
        let _charge = Account::BODIES.charge(piece.len());
        while let (at, len @ 1..) = left {
            let most = usize::try_from(len).unwrap_or(usize::MAX).min(piece.len());
            let count = osier::io::read_at(file, at, &mut piece[..most])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.write_all(&piece[..count])?;
            progress.sent += count as u64;
            left = (at + count as u64, len - count as u64);
        }
        buffers::give(piece);
        Ok(())
    }
}

impl Memory {
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut received = self.received.borrow_mut();
        let room = self.bound - received.len();
        received.extend_from_slice(&bytes[..room.min(bytes.len())]);
        match bytes.len() <= room {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}
