//! The blocking style: a WebSocket on a fiber of its own, which reads and sends in sequence.
//!
//! All state between two calls is in the [`WebSocket`], so every wait may be cancelled. Received
//! bytes stay in the input buffer or the decoder. Unsent frames stay in the outbox, and the next
//! call sends them.

use std::future::poll_fn;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use osier::Cancelled;
use osier::time::Sleep;

use super::decode::{Decoder, Event, Failure};
use super::frame::{Frame, Outbox};
use super::{Close, Message, Timing};
use crate::Upgraded;
use crate::conn::polled::Polled;

/// Size of the input buffer in bytes.
const INPUT_BYTES: usize = 8 << 10;

/// Maximum queued frames while pings are decoded. At this number they are written before the next
/// frame is decoded.
const UNSENT_MAX: usize = 64;

/// Bytes that are read and discarded after the connection has failed. Without this a reset could
/// overtake the close frame.
const LINGER_BYTES: usize = 256 << 10;

/// A WebSocket in blocking style: see [`upgrade`](super::upgrade).
pub struct WebSocket<'a> {
    io: &'a mut Upgraded,
    timing: Timing,
    protocol: Option<String>,
    decoder: Decoder,
    /// Input buffer, allocated at the first read. `start..end` is received and not yet decoded.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    outbox: Outbox,
    /// Whether a close frame is sent or in the outbox.
    closing: bool,
    closed: Option<Close>,
    /// Time of the last received bytes. While closing: when the close frame was queued.
    heard: Instant,
    /// Whether a ping was sent since then.
    pinged: bool,
    /// Time of the first message that was sent during the graceful shutdown of the server.
    draining_since: Option<Instant>,
}

/// Outcome of a wait for bytes.
enum Waited {
    Bytes(usize),
    Silence,
}

impl<'a> WebSocket<'a> {
    pub(super) fn new(io: &'a mut Upgraded, timing: Timing, protocol: Option<String>) -> Self {
        WebSocket {
            io,
            timing,
            protocol,
            decoder: Decoder::default(),
            input: Box::default(),
            start: 0,
            end: 0,
            outbox: Outbox::default(),
            closing: false,
            closed: None,
            heard: osier::time::now(),
            pinged: false,
            draining_since: None,
        }
    }

    /// Waits for a message. `None` means that the connection is closed, and
    /// [`closed`](WebSocket::closed) says how. Pings are answered meanwhile.
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
    /// - `TimedOut`: the client has not answered a ping.
    /// - `UnexpectedEof`: the client has disconnected without a close frame.
    /// - Any error of the socket.
    pub fn read(&mut self) -> io::Result<Option<Message>> {
        osier::block_on(self.recv_async())
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
        loop {
            if self.closed.is_some() {
                return Ok(None);
            }
            let mut bytes = &self.input[self.start..self.end];
            let before = bytes.len();
            let event = self.decoder.next(&mut bytes, self.timing.sizes);
            self.start += before - bytes.len();
            match event {
                // Messages after the server's close frame are discarded (RFC 6455 §1.4).
                Ok(Some(Event::Message(_))) if self.closing => {}
                Ok(Some(Event::Message(message))) => return Ok(Some(message)),
                Ok(Some(Event::Ping(payload))) => self.pong(&payload).await?,
                Ok(Some(Event::Pong)) => {}
                Ok(Some(Event::Close(close))) => {
                    if !self.closing {
                        self.closing = true;
                        self.outbox.push(Frame::close(close.code, ""));
                    }
                    self.closed = Some(close);
                    self.flush_async().await?;
                }
                Err(failure) => return Err(self.fail(failure).await),
                Ok(None) => match self.wait().await? {
                    Waited::Bytes(0) if self.closing => self.closed = Some(Close::abnormal()),
                    Waited::Bytes(0) if self.io.is_draining() => {
                        // The server has ended reading because it is draining; the client is still
                        // there.
                        self.closed = Some(Close::going_away());
                        self.start_close(Close::GOING_AWAY, "the server is stopping");
                        self.flush_async().await?;
                    }
                    Waited::Bytes(0) => {
                        self.closed = Some(Close::abnormal());
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    Waited::Bytes(_) => {}
                    Waited::Silence if self.closing => self.closed = Some(Close::abnormal()),
                    Waited::Silence if self.pinged => {
                        self.closed = Some(Close::abnormal());
                        return Err(io::Error::new(
                            io::ErrorKind::TimedOut,
                            "the client did not answer a ping",
                        ));
                    }
                    Waited::Silence => {
                        self.pinged = true;
                        self.outbox.push(Frame::ping(b""));
                    }
                },
            }
        }
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
    /// - `TimedOut`: the server's write timeout has passed.
    /// - [`Cancelled`]: the server shuts down.
    /// - Any error of the socket.
    pub fn send(&mut self, message: impl Into<Frame>) -> io::Result<()> {
        if self.closing {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the WebSocket is closed"));
        }
        if self.io.is_draining() {
            self.check_drain()?;
        }
        self.outbox.push(message.into());
        self.outbox.flush(self.io)
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
        self.closed = Some(Close::going_away());
        self.close(Close::GOING_AWAY, "the server is stopping")?;
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
        self.start_close(code, reason);
        self.outbox.flush(self.io)
    }

    /// How the connection was closed, once it is.
    pub fn closed(&self) -> Option<&Close> {
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

    fn start_close(&mut self, code: u16, reason: &str) {
        if !self.closing {
            self.closing = true;
            self.heard = osier::time::now(); // `close_within` begins
            self.outbox.push(Frame::close(code, reason));
        }
    }

    async fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        if self.closing {
            return Ok(());
        }
        self.outbox.push(Frame::pong(payload));
        if self.outbox.len() >= UNSENT_MAX {
            return self.flush_async().await;
        }
        Ok(())
    }

    /// Waits for bytes or for the end of the silence limit, and writes the outbox meanwhile.
    async fn wait(&mut self) -> io::Result<Waited> {
        self.make_input();
        if !self.io.buffered().is_empty() {
            let count = self.io.read(&mut self.input)?;
            return Ok(self.heard(count));
        }
        let patience = match (self.closing, self.pinged) {
            (true, _) => self.timing.close_within,
            (_, true) => self.timing.pong_within,
            _ => self.timing.ping_after,
        };
        // The time for the pong begins when the ping was sent, at the end of `ping_after`.
        let since = if self.pinged && !self.closing {
            self.heard.checked_add(self.timing.ping_after)
        } else {
            Some(self.heard)
        };
        let until = since.and_then(|since| since.checked_add(patience));
        let mut silence = until.map_or_else(Sleep::forever, Sleep::until);
        let (input, outbox, transport) = (&mut self.input, &mut self.outbox, self.io.transport());
        let mut out = transport.polled();
        let mut read = transport.polled();
        let waited = poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = poll_flush(outbox, &mut out, cx) {
                return Poll::Ready(Err(error));
            }
            if let Poll::Ready(read) = read.poll_read(cx, input) {
                return Poll::Ready(read.map(Waited::Bytes));
            }
            Pin::new(&mut silence).poll(cx).map(|()| Ok(Waited::Silence))
        })
        .await;
        drop((out, read));
        match waited {
            Ok(Waited::Bytes(count)) => Ok(self.heard(count)),
            other => other,
        }
    }

    /// Makes room in the input buffer. All bytes received before must be decoded.
    fn make_input(&mut self) {
        (self.start, self.end) = (0, 0);
        if self.input.is_empty() {
            self.input = vec![0; INPUT_BYTES].into();
        }
    }

    fn heard(&mut self, count: usize) -> Waited {
        self.end = count;
        if !self.closing {
            (self.heard, self.pinged) = (osier::time::now(), false);
        }
        Waited::Bytes(count)
    }

    async fn flush_async(&mut self) -> io::Result<()> {
        let (outbox, mut out) = (&mut self.outbox, self.io.transport().polled());
        let mut late = Sleep::until(osier::time::now() + self.timing.close_within);
        poll_fn(|cx| match poll_flush(outbox, &mut out, cx) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => Pin::new(&mut late)
                .poll(cx)
                .map(|()| Err(io::ErrorKind::TimedOut.into())),
        })
        .await
    }

    /// Sends the client a close frame with the protocol violation and ends the connection.
    async fn fail(&mut self, failure: Failure) -> io::Error {
        self.closed = Some(Close::abnormal());
        self.start_close(failure.code, failure.reason);
        if self.flush_async().await.is_ok() && self.io.shutdown_write().is_ok() {
            self.linger().await;
        }
        failure.into()
    }

    /// Reads and discards bytes, so that no reset overtakes the close frame.
    async fn linger(&mut self) {
        let mut left = LINGER_BYTES;
        let mut late = Sleep::until(osier::time::now() + self.timing.close_within);
        self.make_input();
        let (input, mut read) = (&mut self.input, self.io.transport().polled());
        poll_fn(|cx| {
            while let Poll::Ready(read) = read.poll_read(cx, input) {
                match read {
                    Ok(count @ 1..) if count <= left => left -= count,
                    _ => return Poll::Ready(()),
                }
            }
            Pin::new(&mut late).poll(cx)
        })
        .await;
    }

    /// Completes the closing handshake after the closure has returned.
    pub(super) fn finish(&mut self) {
        if self.closed.is_some() {
            return;
        }
        if self.close(Close::NORMAL, "").is_ok() {
            while let Ok(Some(_)) = self.read() {}
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
