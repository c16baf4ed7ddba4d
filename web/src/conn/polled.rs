//! A transport as a pair of futures, for code that waits for both directions at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};
use osier::adapters::AsyncStream;
use osier::net::Stream;

use crate::conn::transport::Transport;

/// One direction of a [`Transport`]. Each direction that is waited for has its own.
pub(crate) enum Polled<'t> {
    Plain(AsyncStream<&'t Stream>),
    #[cfg(feature = "tls")]
    Tls(secure::Polled<'t>),
}

impl Transport {
    pub(crate) fn polled(&self) -> Polled<'_> {
        match self {
            Transport::Plain(stream) => Polled::Plain(stream.as_async()),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => Polled::Tls(secure::Polled::of(stream)),
        }
    }
}

impl Polled<'_> {
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Polled::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            #[cfg(feature = "tls")]
            Polled::Tls(stream) => stream.poll_read(cx, into),
        }
    }

    /// Writes bytes. The end of a wait for room may write more of those that were taken before.
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Polled::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            #[cfg(feature = "tls")]
            Polled::Tls(stream) => stream.poll_write(cx, slices),
        }
    }

    /// Waits until the socket has taken what was written.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Polled::Plain(_) => {
                let _ = cx;
                Poll::Ready(Ok(()))
            }
            #[cfg(feature = "tls")]
            Polled::Tls(stream) => stream.poll_flush(cx),
        }
    }
}

#[cfg(feature = "tls")]
mod secure {
    use std::io::{self, IoSlice};
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use osier_tls::Stream;

    /// Waits for an event of a socket.
    type Wait<'t> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 't>>;

    pub(crate) struct Polled<'t> {
        stream: &'t Stream,
        readable: Option<Wait<'t>>,
        writable: Option<Wait<'t>>,
    }

    impl<'t> Polled<'t> {
        pub(super) fn of(stream: &'t Stream) -> Polled<'t> {
            Polled {
                stream,
                readable: None,
                writable: None,
            }
        }

        pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
            loop {
                match self.stream.try_read(into) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return Poll::Ready(read),
                }
                let socket = self.stream.socket();
                ready!(wait(&mut self.readable, cx, || Box::pin(socket.readable_async())))?;
            }
        }

        pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            let bytes = slices
                .iter()
                .find(|slice| !slice.is_empty())
                .map_or(&[][..], |slice| slice);
            loop {
                match self.stream.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.poll_writable(cx))?,
                    written => return Poll::Ready(written),
                }
            }
        }

        pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            loop {
                match self.stream.try_flush() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.poll_writable(cx))?,
                    flushed => return Poll::Ready(flushed),
                }
            }
        }

        fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let socket = self.stream.socket();
            wait(&mut self.writable, cx, || Box::pin(socket.writable_async()))
        }
    }

    /// Polls a wait, which begins if none is under way.
    fn wait<'t>(
        slot: &mut Option<Wait<'t>>,
        cx: &mut Context<'_>,
        begin: impl FnOnce() -> Wait<'t>,
    ) -> Poll<io::Result<()>> {
        let done = ready!(slot.get_or_insert_with(begin).as_mut().poll(cx));
        *slot = None;
        Poll::Ready(done)
    }
}
