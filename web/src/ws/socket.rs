//! The blocking style: a WebSocket on a fiber of its own, which reads and sends in sequence.
//!
//! All state between two calls is in the [`WebSocket`], so every wait may be cancelled. Received
//! bytes stay in the inbox. Unsent frames stay in the outbox, and the next call sends them.
//!
//! A wait for a message holds no buffer: bytes are read into a buffer of the worker's when they are
//! there. A fiber that has nothing to send waits in a plain blocking call, whose few frames touch
//! few cache lines. Every other wait is a future that reads and writes at once.

use std::any::Any;
use std::future::poll_fn;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use osier::Cancelled;
use osier::time::Sleep;

use super::decode::{Decoder, Event, Failure, Sizes};
use super::frame::{Frame, Outbox};
use super::{Close, End, Message, Timing};
use crate::Upgraded;
use crate::conn::buffers::{self, Size};
use crate::conn::polled::Polled;

/// Maximum queued frames while pings are decoded. At this number they are written before the next
/// frame is decoded.
const UNSENT_MAX: usize = 64;

/// A WebSocket in blocking style: see [`upgrade`](super::upgrade).
pub struct WebSocket<'a> {
    io: &'a mut Upgraded,
    timing: Timing,
    protocol: Option<String>,
    inbox: Inbox,
    outbox: Outbox,
    /// Why a close frame is sent or in the outbox.
    closing: Option<End>,
    closed: Option<End>,
    /// Time of the last received bytes. While closing: when the close frame was queued.
    heard: Instant,
    /// When a ping was queued, if that was since then.
    pinged: Option<Instant>,
    /// Time of the first message that was sent during the graceful shutdown of the server.
    draining_since: Option<Instant>,
}

/// Received bytes: those in the decoder, and those of later frames.
#[derive(Default)]
struct Inbox {
    decoder: Decoder,
    /// Bytes that were read together with the last decoded frame; `start..` is not yet decoded.
    rest: Vec<u8>,
    start: usize,
}

type Decoded = Result<Option<Event>, Failure>;

impl Inbox {
    /// Decodes the next event of the bytes received before.
    fn next(&mut self, sizes: Sizes) -> Decoded {
        let mut bytes = &self.rest[self.start..];
        if bytes.is_empty() {
            return Ok(None);
        }
        let decoded = self.decoder.next(&mut bytes, sizes);
        self.start = self.rest.len() - bytes.len();
        if bytes.is_empty() {
            (self.rest, self.start) = (Vec::new(), 0);
        }
        decoded
    }

    /// Decodes the first event of new bytes and keeps the bytes behind it. All bytes received before
    /// must be decoded.
    fn receive(&mut self, mut bytes: &[u8], sizes: Sizes) -> Decoded {
        let decoded = self.decoder.next(&mut bytes, sizes);
        if !bytes.is_empty() {
            (self.rest, self.start) = (bytes.to_vec(), 0);
        }
        decoded
    }
}

/// Outcome of a wait for bytes.
enum Waited {
    Bytes(Decoded),
    End,
    Silence,
}

impl<'a> WebSocket<'a> {
    pub(super) fn new(io: &'a mut Upgraded, timing: Timing, protocol: Option<String>) -> Self {
        WebSocket {
            io,
            timing,
            protocol,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            closing: None,
            closed: None,
            heard: osier::time::now(),
            pinged: None,
            draining_since: None,
        }
    }

    /// Waits for a message. `None` means that the connection is closed, and
    /// [`closed`](WebSocket::closed) says why. Pings are answered meanwhile.
    ///
    /// # Suspends
    ///
    /// Until a message is complete or the client closes.
    ///
    /// # Cancellation
    ///
    /// Returns the error of a cancelled call. No received bytes are lost.
    ///
    /// # Errors
    ///
    /// - `InvalidData`: the client has violated the protocol or a size limit. It has been sent a
    ///   close frame with the reason.
    /// - `TimedOut`: the client has not answered a ping, or has not taken the answers to its own.
    /// - `UnexpectedEof`: the client has disconnected without a close frame.
    /// - Any error of the socket.
    ///
    /// After each of them [`closed`](WebSocket::closed) says why the connection has ended.
    pub fn read(&mut self) -> io::Result<Option<Message>> {
        while self.closed.is_none() {
            let waited = match self.inbox.next(self.timing.sizes) {
                Ok(None) if self.outbox.is_empty() && self.closing.is_none() => self.wait_to_read(),
                Ok(None) => osier::block_on(self.wait()),
                decoded => Ok(Waited::Bytes(decoded)),
            };
            let message = match waited {
                Ok(Waited::Bytes(Ok(Some(Event::Message(message))))) if self.closing.is_none() => Some(message),
                Ok(waited) => self.handle_here(waited)?,
                Err(error) => return Err(self.failed(error)),
            };
            if message.is_some() {
                return Ok(message);
            }
        }
        Ok(None)
    }

    /// Same as [`read`](WebSocket::read), as a future, for example in `select!`. Dropping the
    /// future loses nothing: the next call continues where it stopped.
    ///
    /// ```
    /// use osier::pubsub::{Policy, Topic};
    /// use osier_web::{Request, Response, ws};
    ///
    /// fn chat(request: &mut Request<'_>, room: &Topic<ws::Frame>) -> Response {
    ///     let room = room.clone();
    ///     ws::upgrade(request, move |socket| {
    ///         let mut others = room.subscribe(64, Policy::Disconnect);
    ///         loop {
    ///             osier::select! {
    ///                 message = socket.recv_async() => match message? {
    ///                     Some(message) => {
    ///                         room.publish(message.into());
    ///                     }
    ///                     None => return Ok(()),
    ///                 },
    ///                 frame = others.recv_async() => match frame {
    ///                     Ok(frame) => socket.send(frame)?,
    ///                     Err(_) => return socket.close(ws::Close::TRY_AGAIN, "too slow"),
    ///                 },
    ///             }
    ///         }
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`read`](WebSocket::read).
    pub async fn recv_async(&mut self) -> io::Result<Option<Message>> {
        while self.closed.is_none() {
            let waited = match self.inbox.next(self.timing.sizes) {
                Ok(None) => self.wait().await,
                decoded => Ok(Waited::Bytes(decoded)),
            };
            let message = match waited {
                Ok(waited) => self.handle(waited).await?,
                Err(error) => return Err(self.failed(error)),
            };
            if message.is_some() {
                return Ok(message);
            }
        }
        Ok(None)
    }

    /// Handles what is not a plain message, with a stack frame of its own.
    #[cold]
    #[inline(never)]
    fn handle_here(&mut self, waited: Waited) -> io::Result<Option<Message>> {
        osier::block_on(self.handle(waited))
    }

    /// Handles the outcome of a wait. Returns the message, if it was one.
    async fn handle(&mut self, waited: Waited) -> io::Result<Option<Message>> {
        match waited {
            // Messages after the server's close frame are discarded (RFC 6455 §1.4).
            Waited::Bytes(Ok(Some(Event::Message(_)))) if self.closing.is_some() => {}
            Waited::Bytes(Ok(Some(Event::Message(message)))) => return Ok(Some(message)),
            Waited::Bytes(Ok(Some(Event::Ping(payload)))) => self.pong(&payload).await?,
            Waited::Bytes(Ok(Some(Event::Pong) | None)) => {}
            Waited::Bytes(Ok(Some(Event::Close(close)))) => {
                let code = close.code;
                self.start_close(End::Client(close), code, "");
                self.closed.clone_from(&self.closing);
                self.flush_async().await?;
            }
            Waited::Bytes(Err(failure)) => return Err(self.fail(failure).await),
            Waited::End | Waited::Silence if self.closing.is_some() => self.closed.clone_from(&self.closing),
            Waited::End if self.io.is_draining() => {
                // The server has ended reading because it is draining; the client is still there.
                self.start_close(End::Shutdown, Close::GOING_AWAY, "the server is stopping");
                self.closed = Some(End::Shutdown);
                self.flush_async().await?;
            }
            Waited::End => {
                self.closed = Some(End::without_close_frame(self.io));
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Waited::Silence if self.pinged.is_some() => {
                self.closed = Some(End::PingTimeout);
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client did not answer a ping",
                ));
            }
            Waited::Silence => {
                self.pinged = Some(osier::time::now());
                self.outbox.push(Frame::ping(b""));
            }
        }
        // A client that goes on sending is not waited for longer than one that is silent.
        let is_over = |until| self.closing.is_some() && until <= osier::time::now();
        if self.silent_until().is_some_and(is_over) {
            self.closed.clone_from(&self.closing);
        }
        Ok(None)
    }

    /// Sends a message: a `&str`, a `String`, bytes, or a shared [`Frame`].
    ///
    /// During the graceful shutdown of the server, messages are sent for as long as
    /// [`close_within`](super::Options::close_within). Then the connection is closed with
    /// [`Close::GOING_AWAY`], as [`read`](WebSocket::read) does at once.
    ///
    /// # Suspends
    ///
    /// While the socket's send buffer is full. This is the back-pressure of a slow client.
    ///
    /// # Cancellation
    ///
    /// Returns the error of a cancelled call. Unwritten bytes are sent before the next message.
    ///
    /// # Errors
    ///
    /// - `BrokenPipe`: the server has sent a close frame, or answered the client's.
    /// - `TimedOut`: the server's write timeout has passed. The connection has ended, as after an error of the socket.
    /// - [`Cancelled`]: the server shuts down.
    /// - Any error of the socket.
    pub fn send(&mut self, message: impl Into<Frame>) -> io::Result<()> {
        if self.closing.is_some() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the WebSocket is closed"));
        }
        if self.io.is_draining() {
            self.check_drain()?;
        }
        self.outbox.push(message.into());
        self.outbox.flush(self.io).map_err(|error| self.failed(error))
    }

    /// Closes the connection if the server has been draining for `close_within`. A handler that only
    /// sends does not read the end that the drain makes.
    #[cold]
    fn check_drain(&mut self) -> io::Result<()> {
        let now = osier::time::now();
        let since = *self.draining_since.get_or_insert(now);
        if now.saturating_duration_since(since) < self.timing.close_within {
            return Ok(());
        }
        self.closed = Some(End::Shutdown);
        self.close_for(End::Shutdown, Close::GOING_AWAY, "the server is stopping")?;
        Err(Cancelled.into())
    }

    /// Starts the closing handshake, with a code of [`Close`] or an application's own (3000 to
    /// 4999) and a reason of at most 123 bytes. A second call sends no other close frame.
    ///
    /// The client's close frame is awaited by [`read`](WebSocket::read), or when the closure that
    /// owns the socket returns.
    ///
    /// # Suspends
    ///
    /// Same as [`send`](WebSocket::send).
    ///
    /// # Errors
    ///
    /// Same as [`send`](WebSocket::send), without the `BrokenPipe` after a close.
    pub fn close(&mut self, code: u16, reason: &str) -> io::Result<()> {
        self.close_for(End::Server(Close::new(code, reason)), code, reason)
    }

    fn close_for(&mut self, end: End, code: u16, reason: &str) -> io::Result<()> {
        self.start_close(end, code, reason);
        self.outbox.flush(self.io).map_err(|error| self.failed(error))
    }

    /// Notes that a read or a write has failed. A cancelled one may be made again.
    #[cold]
    fn failed(&mut self, error: io::Error) -> io::Error {
        if !Cancelled::is(&error) {
            let (closing, io) = (&self.closing, &*self.io);
            let end = || closing.clone().unwrap_or_else(|| End::of_error(io, &error));
            self.closed.get_or_insert_with(end);
        }
        error
    }

    /// Why the connection has ended, once it has. A cancelled call does not end it.
    pub fn closed(&self) -> Option<&End> {
        self.closed.as_ref()
    }

    /// The negotiated subprotocol.
    pub fn protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.io.peer()
    }

    fn start_close(&mut self, end: End, code: u16, reason: &str) {
        if self.closing.is_none() {
            self.closing = Some(end);
            self.heard = osier::time::now(); // `close_within` begins
            self.outbox.push(Frame::close(code, reason));
        }
    }

    async fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        if self.closing.is_some() {
            return Ok(());
        }
        self.outbox.push(Frame::pong(payload));
        if self.outbox.len() >= UNSENT_MAX {
            return self.flush_async().await.map_err(|error| self.failed(error));
        }
        Ok(())
    }

    /// Waits for bytes or for the end of the silence limit, where nothing waits to be written.
    fn wait_to_read(&mut self) -> io::Result<Waited> {
        if !self.io.buffered().is_empty() {
            return self.take_buffered();
        }
        let until = self.silent_until();
        loop {
            let time = until.map_or(Duration::MAX, |until| {
                until.saturating_duration_since(osier::time::coarse_now())
            });
            let transport = self.io.transport();
            if !transport.wait_readable_for(time)? {
                return Ok(Waited::Silence);
            }
            let mut buffer = buffers::take(Size::K16);
            let waited = match transport.try_read(&mut buffer) {
                Ok(count) => Some(Ok(self.received(&buffer[..count]))),
                // The bytes were half a record.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                Err(error) => Some(Err(error)),
            };
            buffers::give(buffer);
            if let Some(waited) = waited {
                return waited;
            }
        }
    }

    /// Waits for bytes or for the end of the silence limit, and writes the outbox meanwhile.
    async fn wait(&mut self) -> io::Result<Waited> {
        if !self.io.buffered().is_empty() {
            return self.take_buffered();
        }
        let mut silence = self.silent_until().map_or_else(Sleep::forever, Sleep::until);
        let (inbox, outbox, transport) = (&mut self.inbox, &mut self.outbox, self.io.transport());
        let (sizes, mut out, mut read) = (self.timing.sizes, transport.polled(), transport.polled());
        let waited = poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = poll_flush(outbox, &mut out, cx) {
                return Poll::Ready(Err(error));
            }
            let mut buffer = buffers::take(Size::K16);
            let waited = read.poll_read(cx, &mut buffer).map_ok(|count| match count {
                0 => Waited::End,
                _ => Waited::Bytes(inbox.receive(&buffer[..count], sizes)),
            });
            buffers::give(buffer);
            match waited {
                Poll::Pending => Pin::new(&mut silence).poll(cx).map(|()| Ok(Waited::Silence)),
                waited => waited,
            }
        })
        .await;
        drop((out, read));
        if let Ok(Waited::Bytes(_)) = waited {
            self.heard();
        }
        waited
    }

    /// The time at which a silent client is pinged, or at which the connection ends. `None` is never.
    fn silent_until(&self) -> Option<Instant> {
        let (since, patience) = match self.pinged {
            _ if self.closing.is_some() => (self.heard, self.timing.close_within),
            // Not from the end of `ping_after` on: code that has not read for long sends the ping late.
            Some(pinged) => (pinged, self.timing.pong_within),
            None => (self.heard, self.timing.ping_after),
        };
        since.checked_add(patience)
    }

    /// Takes bytes that the client had sent behind its handshake.
    #[cold]
    fn take_buffered(&mut self) -> io::Result<Waited> {
        let mut buffer = buffers::take(Size::K16);
        let count = self.io.read(&mut buffer);
        let waited = count.map(|count| self.received(&buffer[..count]));
        buffers::give(buffer);
        waited
    }

    fn received(&mut self, bytes: &[u8]) -> Waited {
        if bytes.is_empty() {
            return Waited::End;
        }
        self.heard();
        Waited::Bytes(self.inbox.receive(bytes, self.timing.sizes))
    }

    fn heard(&mut self) {
        if self.closing.is_none() {
            // It may be early by as long as the worker's other fibers have run in this turn.
            (self.heard, self.pinged) = (osier::time::coarse_now(), None);
        }
    }

    async fn flush_async(&mut self) -> io::Result<()> {
        let (outbox, mut out) = (&mut self.outbox, self.io.transport().polled());
        let mut late = Sleep::new(self.timing.close_within);
        poll_fn(|cx| match poll_flush(outbox, &mut out, cx) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => Pin::new(&mut late)
                .poll(cx)
                .map(|()| Err(io::ErrorKind::TimedOut.into())),
        })
        .await
    }

    /// Sends the client a close frame with the protocol violation. The connection ends when the closure that owns the socket returns.
    async fn fail(&mut self, failure: Failure) -> io::Error {
        let end = End::ProtocolError(Close::new(failure.code, failure.reason));
        self.start_close(end, failure.code, failure.reason);
        self.closed.clone_from(&self.closing);
        let _ = self.flush_async().await;
        failure.into()
    }

    pub(super) fn log_panic(&self, payload: &(dyn Any + Send)) {
        self.io.log_panic(payload);
    }

    /// Completes the closing handshake after the closure has returned.
    pub(super) fn finish(&mut self, has_failed: bool) {
        if self.closed.is_none() {
            let closing = match has_failed {
                true => self.close_for(End::Failed, Close::INTERNAL, ""),
                false => self.close(Close::NORMAL, ""),
            };
            if closing.is_ok() {
                while let Ok(Some(_)) = self.read() {}
            }
        }
        if let Some(end) = &self.closed {
            self.io.ends(end.close_reason());
        }
    }
}

/// Writes as much as the socket accepts.
fn poll_flush(outbox: &mut Outbox, out: &mut Polled<'_>, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
    while !outbox.is_empty() {
        let written = outbox.write_with(|slices| out.poll_write_vectored(cx, slices));
        match written {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(count)) => outbox.advance(count),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
        }
    }
    out.poll_flush(cx)
}

osier_queue::impl_debug!(WebSocket<'a>, self => { peer: self.peer(), closed: self.closed, .. });
