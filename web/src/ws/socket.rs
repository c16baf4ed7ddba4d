//! The blocking style: a connection with a fiber of its own, which reads and sends.
//!
//! All state between two calls is in the [`WebSocket`], so every wait may be given up: what has been received stays in the
//! buffer or the decoder, what was not sent stays in the outbox and goes out with the next call.

use std::future::poll_fn;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use osier::time::Sleep;

use super::decode::{Decoder, Event, Failure};
use super::frame::{Frame, Outbox};
use super::{Close, Message, Timing};
use crate::Upgraded;

/// What is read at once.
const INPUT_BYTES: usize = 8 << 10;

/// Pongs that wait until there is nothing more to decode. With more they are written first.
const UNSENT_MAX: usize = 64;

/// What is read and thrown away of a client that goes on sending after the connection has failed, so that it reads why.
const LINGER_BYTES: usize = 256 << 10;

/// A WebSocket on a fiber: see [`upgrade`](super::upgrade).
pub struct WebSocket<'a> {
    io: &'a mut Upgraded,
    timing: Timing,
    protocol: Option<String>,
    decoder: Decoder,
    /// Made at the first read. Of it, `start..end` was received and not decoded.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    outbox: Outbox,
    /// A close frame was sent, or is in the outbox.
    closing: bool,
    closed: Option<Close>,
    /// The last time something came.
    heard: Instant,
    /// A ping was sent since.
    pinged: bool,
}

/// What a wait for bytes ended with.
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
            heard: Instant::now(),
            pinged: false,
        }
    }

    /// Waits for a message. `None`: the client has closed; [`closed`](WebSocket::closed) says how. Pings are answered on the way.
    ///
    /// # Suspends
    ///
    /// Until a message is whole.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call; nothing is lost.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the client breaks the protocol or sends too much (it has been told so); `TimedOut` if it does not answer a
    /// ping; `UnexpectedEof` if it goes without a word; what the socket says.
    pub fn read(&mut self) -> io::Result<Option<Message>> {
        osier::block_on(self.recv_async())
    }

    /// As [`read`](WebSocket::read), for `select!`. A future that is dropped has lost nothing: the next call goes on where it was.
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
    /// As [`read`](WebSocket::read).
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
                // What comes after our close frame is not for us any more (RFC 6455 §1.4).
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
                    Waited::Bytes(0) if self.closing => self.closed = Some(Close::without_word()),
                    Waited::Bytes(0) if self.io.is_draining() => {
                        // The server has ended the reading, not the client.
                        self.closed = Some(Close::going_away());
                        self.start_close(Close::GOING_AWAY, "the server is stopping");
                        self.flush_async().await?;
                    }
                    Waited::Bytes(0) => {
                        self.closed = Some(Close::without_word());
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    Waited::Bytes(_) => {}
                    Waited::Silence if self.closing => self.closed = Some(Close::without_word()),
                    Waited::Silence if self.pinged => {
                        self.closed = Some(Close::without_word());
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

    /// Sends a message: a `&str`, a `String`, bytes, or a [`Frame`] that is shared with others.
    ///
    /// # Suspends
    ///
    /// While the client does not take what was sent before: this is the back-pressure.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call. What was not written then goes out before the next message.
    ///
    /// # Errors
    ///
    /// `BrokenPipe` after a close; `TimedOut` after the server's write timeout; what the socket says.
    pub fn send(&mut self, message: impl Into<Frame>) -> io::Result<()> {
        if self.closing {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the WebSocket is closed"));
        }
        self.outbox.push(message.into());
        self.outbox.flush(self.io)
    }

    /// Begins to close, with a code of [`Close`] or of one's own (3000 to 4999) and a reason of at most 123 bytes. The client's answer is
    /// awaited when the closure that has the socket returns, or by reading on.
    ///
    /// # Suspends
    ///
    /// As [`send`](WebSocket::send).
    ///
    /// # Errors
    ///
    /// As [`send`](WebSocket::send); a second close does nothing.
    pub fn close(&mut self, code: u16, reason: &str) -> io::Result<()> {
        self.start_close(code, reason);
        self.outbox.flush(self.io)
    }

    /// How the client closed, once it has.
    pub fn closed(&self) -> Option<&Close> {
        self.closed.as_ref()
    }

    /// The subprotocol that was agreed on.
    pub fn protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    /// The address of the client.
    pub fn peer(&self) -> SocketAddr {
        self.io.peer()
    }

    fn start_close(&mut self, code: u16, reason: &str) {
        if !self.closing {
            self.closing = true;
            self.heard = Instant::now(); // the time for the answer begins
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

    /// Waits for bytes or for too long a silence, and writes what is in the outbox meanwhile.
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
        // A ping counts from when it was sent, which was at the end of the silence before it.
        let since = if self.pinged && !self.closing {
            self.heard.checked_add(self.timing.ping_after)
        } else {
            Some(self.heard)
        };
        let until = since.and_then(|since| since.checked_add(patience));
        let mut silence = until.map_or_else(Sleep::forever, Sleep::until);
        let (input, outbox, stream) = (&mut self.input, &mut self.outbox, self.io.stream());
        let mut out = stream.as_async();
        let mut read = stream.as_async();
        let waited = poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = poll_flush(outbox, &mut out, cx) {
                return Poll::Ready(Err(error));
            }
            if let Poll::Ready(read) = futures_io::AsyncRead::poll_read(Pin::new(&mut read), cx, input) {
                return Poll::Ready(read.map(Waited::Bytes));
            }
            Pin::new(&mut silence).poll(cx).map(|()| Ok(Waited::Silence))
        })
        .await;
        match waited {
            Ok(Waited::Bytes(count)) => Ok(self.heard(count)),
            other => other,
        }
    }

    /// There is room for bytes, and all that were there before have been decoded.
    fn make_input(&mut self) {
        (self.start, self.end) = (0, 0);
        if self.input.is_empty() {
            self.input = vec![0; INPUT_BYTES].into();
        }
    }

    fn heard(&mut self, count: usize) -> Waited {
        self.end = count;
        if !self.closing {
            (self.heard, self.pinged) = (Instant::now(), false);
        }
        Waited::Bytes(count)
    }

    async fn flush_async(&mut self) -> io::Result<()> {
        let (outbox, mut out) = (&mut self.outbox, self.io.stream().as_async());
        let mut late = Sleep::until(Instant::now() + self.timing.close_within);
        poll_fn(|cx| match poll_flush(outbox, &mut out, cx) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => Pin::new(&mut late)
                .poll(cx)
                .map(|()| Err(io::ErrorKind::TimedOut.into())),
        })
        .await
    }

    /// Tells the client what it did wrong.
    async fn fail(&mut self, failure: Failure) -> io::Error {
        self.closed = Some(Close::without_word());
        self.start_close(failure.code, failure.reason);
        if self.flush_async().await.is_ok() && self.io.stream().shutdown(Shutdown::Write).is_ok() {
            self.linger().await;
        }
        failure.into()
    }

    /// Reads on, so that no reset overtakes the close frame.
    async fn linger(&mut self) {
        let mut left = LINGER_BYTES;
        let mut late = Sleep::until(Instant::now() + self.timing.close_within);
        self.make_input();
        let (input, mut read) = (&mut self.input, self.io.stream().as_async());
        poll_fn(|cx| {
            while let Poll::Ready(read) = futures_io::AsyncRead::poll_read(Pin::new(&mut read), cx, input) {
                match read {
                    Ok(count @ 1..) if count <= left => left -= count,
                    _ => return Poll::Ready(()),
                }
            }
            Pin::new(&mut late).poll(cx)
        })
        .await;
    }

    /// The end of the closure: says goodbye if it did not, and hears the client's.
    pub(super) fn finish(&mut self) {
        if self.closed.is_some() {
            return;
        }
        if self.close(Close::NORMAL, "").is_ok() {
            while let Ok(Some(_)) = self.read() {}
        }
    }
}

/// Writes what the socket takes.
fn poll_flush<W: futures_io::AsyncWrite + Unpin>(
    outbox: &mut Outbox,
    out: &mut W,
    cx: &mut std::task::Context<'_>,
) -> Poll<io::Result<()>> {
    while !outbox.is_empty() {
        let written = outbox.write_with(|slices| Pin::new(&mut *out).poll_write_vectored(cx, slices));
        match written {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(count)) => outbox.advance(count),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
        }
    }
    Poll::Ready(Ok(()))
}

impl std::fmt::Debug for WebSocket<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebSocket")
            .field("peer", &self.peer())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}
