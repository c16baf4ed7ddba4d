//! `AsyncStream`: an adapter that gives the streams of this crate the traits of `futures_io`.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};
use rustix::net::SendFlags;

use crate::net::stream::{FileSink, call};
use crate::net::{Stream, TcpStream, UnixStream};
use crate::wait::leaf::Side;
use crate::wait::socket::{Direction, Sealed, Source as _};

/// A pointer to a stream of this crate: the stream itself, a reference, an `Arc` or an `Rc`. Sealed.
pub trait AsStream: Sealed {
    /// The stream.
    type Stream: FileSink;
    #[doc(hidden)]
    fn as_stream(&self) -> &Self::Stream;
}

macro_rules! pointer {
    ($($pointer:ty),*) => {$(
        impl<S: Sealed> Sealed for $pointer {}
        impl<S: AsStream> AsStream for $pointer {
            type Stream = S::Stream;
            fn as_stream(&self) -> &S::Stream {
                (**self).as_stream()
            }
        }
    )*};
}

pointer!(&S, Arc<S>, Rc<S>);

macro_rules! stream {
    ($($stream:ident),*) => {$(
        impl AsStream for $stream {
            type Stream = $stream;
            fn as_stream(&self) -> &$stream {
                self
            }
        }

        /// Adapters to the traits of other libraries.
        impl $stream {
            /// Borrows the stream as one with `futures_io`'s `AsyncRead` and `AsyncWrite`. It costs nothing. Each
            /// task that uses the stream may have its own.
            pub fn as_async(&self) -> AsyncStream<&Self> {
                AsyncStream::new(self)
            }

            /// Converts the stream as [`as_async`](Self::as_async) does, and takes it by value.
            pub fn into_async(self) -> AsyncStream<Self> {
                AsyncStream::new(self)
            }

            /// Converts the stream to one with the traits of hyper (feature `hyper`) and tokio (feature `tokio-io`).
            #[cfg(any(feature = "hyper", feature = "tokio-io"))]
            pub fn compat(self) -> super::Compat<AsyncStream<Self>> {
                self.into_async().compat()
            }
        }
    )*};
}

stream!(Stream, TcpStream, UnixStream);

/// The waits of one task for a [`Stream`]: for traits such as `AsyncRead`, whose polls keep no future.
///
/// A crate that puts a protocol around a stream of this crate builds its adapter on it, as [`AsyncStream`] is built. A task that
/// only reads and one that only writes need a value each. Drop it before the stream.
///
/// ```
/// use osier::adapters::Waits;
/// use osier::net::{Stream, UnixStream};
/// use std::future::poll_fn;
///
/// let (near, far) = UnixStream::pair()?;
/// let (near, far) = (Stream::from(near), Stream::from(far));
/// let mut waits = Waits::default();
/// osier::block_on(poll_fn(|cx| waits.poll_write(&near, cx, b"hello")))?;
/// let (mut waits, mut buf) = (Waits::default(), [0; 8]);
/// assert_eq!(osier::block_on(poll_fn(|cx| waits.poll_read(&far, cx, &mut buf)))?, 5);
/// # std::io::Result::Ok(())
/// ```
#[derive(Default)]
pub struct Waits {
    reading: Side,
    writing: Side,
}

impl Waits {
    /// Reads as `AsyncRead` does.
    ///
    /// # Errors
    ///
    /// The errors of a blocking read, but no `TimedOut`.
    pub fn poll_read(&mut self, stream: &Stream, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let watched = stream.watched();
        self.reading.poll_io(watched, Direction::Read, cx, |fd| {
            call::read(fd, buf, watched.short_read())
        })
    }

    /// Writes as `AsyncWrite` does.
    ///
    /// # Errors
    ///
    /// The errors of a blocking write, but no `TimedOut`.
    pub fn poll_write(&mut self, stream: &Stream, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writing.poll_io(stream.watched(), Direction::Write, cx, |fd| {
            call::write(fd, buf, SendFlags::empty())
        })
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waits").finish_non_exhaustive()
    }
}

/// A stream of this crate with `futures_io`'s `AsyncRead` and `AsyncWrite`, vectored calls included.
///
/// `as_async` borrows the stream, `into_async` takes it. Several adapters may share one stream, through references or
/// an `Arc`, each polled by its own task. One may read while another writes, and blocking calls may be made at the
/// same time.
///
/// ```
/// use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
/// use osier::net::UnixStream;
/// use std::net::Shutdown;
/// let (near, far) = UnixStream::pair()?;
/// let echo = async {
///     let (mut reader, mut writer) = (far.as_async(), far.as_async());
///     futures_lite::io::copy(&mut reader, &mut writer).await
/// };
/// let client = async {
///     near.as_async().write_all(b"hello").await?;
///     near.shutdown(Shutdown::Write)?;
///     let mut reply = [0; 5];
///     near.as_async().read_exact(&mut reply).await?;
///     std::io::Result::Ok(reply)
/// };
/// let (echoed, reply) = osier::block_on(future::zip(echo, client));
/// assert_eq!((echoed?, &reply?), (5, b"hello"));
/// # std::io::Result::Ok(())
/// ```
///
/// # Cancellation
///
/// A read or write that is dropped while pending has moved nothing.
///
/// # Errors
///
/// The errors of the stream's blocking calls, except that timeouts do not apply. `poll_close` shuts down the writing
/// direction; a peer that is already gone is no error there.
#[doc(alias("AsyncRead", "AsyncWrite"))]
pub struct AsyncStream<S> {
    // Both are dropped before the stream, which their waiters must not outlive.
    reading: Side,
    writing: Side,
    stream: S,
}

impl<S: AsStream> AsyncStream<S> {
    /// Wraps a stream or a pointer to one.
    pub fn new(stream: S) -> AsyncStream<S> {
        AsyncStream {
            reading: Side::default(),
            writing: Side::default(),
            stream,
        }
    }

    /// The inner value.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// The stream.
    pub fn stream(&self) -> &S::Stream {
        self.stream.as_stream()
    }

    /// Adds the traits of hyper and tokio.
    #[cfg(any(feature = "hyper", feature = "tokio-io"))]
    pub fn compat(self) -> super::Compat<AsyncStream<S>> {
        super::Compat::new(self)
    }
}

/// No poll gives out a pinned part of the stream.
impl<S> Unpin for AsyncStream<S> {}

impl<S: AsStream> AsyncRead for AsyncStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let this = &mut *self;
        let watched = this.stream.as_stream().watched();
        this.reading.poll_io(watched, Direction::Read, cx, |fd| {
            call::read(fd, buf, watched.short_read())
        })
    }

    fn poll_read_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        // As readv(2), which recvmsg(2) stands in for.
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let this = &mut *self;
        let watched = this.stream.as_stream().watched();
        this.reading.poll_io(watched, Direction::Read, cx, |fd| {
            call::read_vectored(fd, bufs, watched.short_read())
        })
    }
}

impl<S: AsStream> AsyncWrite for AsyncStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let watched = this.stream.as_stream().watched();
        this.writing.poll_io(watched, Direction::Write, cx, |fd| {
            call::write(fd, buf, SendFlags::empty())
        })
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let watched = this.stream.as_stream().watched();
        this.writing
            .poll_io(watched, Direction::Write, cx, |fd| call::write_vectored(fd, bufs))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.stream.as_stream().stream().shutdown(Shutdown::Write) {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl<S: AsStream<Stream: fmt::Debug>> fmt::Debug for AsyncStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncStream").field(self.stream.as_stream()).finish()
    }
}
