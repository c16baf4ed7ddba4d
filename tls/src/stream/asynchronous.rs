//! The face of a stream for futures: the same attempts, with a waker in place of a fiber that waits.

use std::borrow::Borrow;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};
use osier::adapters::Waits;
use osier::net;

use super::state::{Socket, State, Stop};
use super::{Stream, Waiter};

impl Stream {
    /// Borrows the stream as one with futures-io's `AsyncRead` and `AsyncWrite`. Each task that uses the stream may have its own.
    pub fn as_async(&self) -> AsyncStream<&Stream> {
        AsyncStream::new(self)
    }

    /// Converts the stream as [`as_async`](Stream::as_async) does, and takes it by value.
    pub fn into_async(self) -> AsyncStream<Stream> {
        AsyncStream::new(self)
    }

    /// [`handshake`](Stream::handshake) as a future. Timeouts do not apply to it.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost: another call goes on where this one stopped.
    ///
    /// # Errors
    ///
    /// The errors of [`handshake`](Stream::handshake).
    pub fn handshake_async(&self) -> impl Future<Output = io::Result<()>> + Send {
        let mut waits = Waits::default();
        poll_fn(move |cx| self.poll(&mut waits, cx, |state, socket| state.handshake(socket)))
    }

    /// `read` as a future: an arm of [`select!`](osier::select!). Timeouts do not apply to it.
    ///
    /// ```
    /// # use osier_tls::{Acceptor, Connector, Identity};
    /// # let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    /// # let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    /// # let acceptor = Acceptor::builder(Identity::from_pem(chain.as_bytes(), key.as_bytes())?).build()?;
    /// # let connector = Connector::builder().ca_pem(chain.as_bytes()).build()?;
    /// use std::io::Write;
    /// use std::time::Duration;
    ///
    /// let (near, far) = osier::net::UnixStream::pair()?;
    /// let (mut client, server) = (connector.connect("localhost", near)?, acceptor.accept(far));
    /// osier::run(|| {
    ///     osier::spawn(move || client.write_all(b"hello").map(|()| client));
    ///     let mut buf = [0; 16];
    ///     osier::select! {
    ///         n = server.read_async(&mut buf) => assert_eq!(&buf[..n?], b"hello"),
    ///         timeout Duration::from_secs(60) => panic!("the client sends at once"),
    ///     }
    ///     std::io::Result::Ok(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Cancellation
    ///
    /// Dropped before it is ready, it has taken nothing.
    ///
    /// # Errors
    ///
    /// The errors of a blocking read, except `TimedOut`.
    pub fn read_async(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send {
        let mut waits = Waits::default();
        poll_fn(move |cx| self.poll(&mut waits, cx, |state, socket| state.read(socket, buf)))
    }

    fn poll<T>(
        &self,
        waits: &mut Waits,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut State, &mut dyn Socket) -> Result<T, Stop>,
    ) -> Poll<io::Result<T>> {
        let waker = cx.waker();
        let mut socket = Polled {
            socket: &self.socket,
            waits,
            cx: &mut Context::from_waker(waker),
        };
        match self.attempt(&mut socket, Waiter::Task(waker), call) {
            Ok(done) => Poll::Ready(Ok(done)),
            Err(Stop::Fail(error)) => Poll::Ready(Err(error)),
            // The call of the socket that would block has kept the waker.
            Err(Stop::Wait(_)) => Poll::Pending,
        }
    }
}

/// A socket whose calls keep a waker where they would block.
struct Polled<'a, 'b> {
    socket: &'a net::Stream,
    waits: &'a mut Waits,
    cx: &'a mut Context<'b>,
}

impl Socket for Polled<'_, '_> {
    fn receive(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        at_once(self.waits.poll_read(self.socket, self.cx, buf))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        at_once(self.waits.poll_write(self.socket, self.cx, bytes))
    }

    fn send_last(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes)
    }
}

fn at_once<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// A [`Stream`], or a pointer to one, with futures-io's `AsyncRead` and `AsyncWrite`.
///
/// ```
/// # use osier_tls::{Acceptor, Connector, Identity};
/// # let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
/// # let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
/// # let acceptor = Acceptor::builder(Identity::from_pem(chain.as_bytes(), key.as_bytes())?).build()?;
/// # let connector = Connector::builder().ca_pem(chain.as_bytes()).build()?;
/// use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
///
/// let (near, far) = osier::net::UnixStream::pair()?;
/// let (client, server) = (connector.connect("localhost", near)?, acceptor.accept(far));
/// let mut client = client.into_async();
/// let mut reply = [0; 5];
/// let serving = async {
///     server.handshake_async().await?;
///     server.as_async().read_exact(&mut reply).await
/// };
/// let (written, read) = osier::block_on(future::zip(client.write_all(b"hello"), serving));
/// # written?; read?;
/// assert_eq!(&reply, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cancellation
///
/// A read that is dropped while pending has moved nothing. A write may leave records in the stream that the socket has not taken:
/// `flush` sends them.
///
/// # Errors
///
/// The errors of the stream's blocking calls, except that timeouts do not apply. `poll_close` sends a close_notify and shuts down the
/// writing direction.
pub struct AsyncStream<S> {
    // Both are dropped before the stream. A reader may have to send, and a writer to receive: neither may take the other's waker.
    reader: Waits,
    writer: Waits,
    stream: S,
}

impl<S: Borrow<Stream>> AsyncStream<S> {
    /// Wraps a stream or a pointer to one.
    pub fn new(stream: S) -> AsyncStream<S> {
        AsyncStream {
            reader: Waits::default(),
            writer: Waits::default(),
            stream,
        }
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        self.stream.borrow()
    }

    /// The inner value.
    pub fn into_inner(self) -> S {
        self.stream
    }
}

/// No poll gives out a pinned part of the stream.
impl<S> Unpin for AsyncStream<S> {}

impl<S: Borrow<Stream>> AsyncRead for AsyncStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let stream = this.stream.borrow();
        stream.poll(&mut this.reader, cx, |state, socket| state.read(socket, buf))
    }
}

impl<S: Borrow<Stream>> AsyncWrite for AsyncStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let stream = this.stream.borrow();
        stream.poll(&mut this.writer, cx, |state, socket| state.write(socket, bufs))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let stream = this.stream.borrow();
        stream.poll(&mut this.writer, cx, |state, socket| state.flush(socket))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let stream = this.stream.borrow();
        let told = stream.poll(&mut this.writer, cx, |state, socket| state.close_notify(socket));
        if told.is_pending() {
            return Poll::Pending;
        }
        match stream.socket.shutdown(Shutdown::Write) {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Poll::Ready(Err(error)),
            _ => told,
        }
    }
}

impl<S: Borrow<Stream>> fmt::Debug for AsyncStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncStream").field(self.stream()).finish()
    }
}
