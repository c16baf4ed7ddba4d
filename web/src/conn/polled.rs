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
    Tls(osier_tls::AsyncStream<&'t osier_tls::Stream>),
}

impl Transport {
    pub(crate) fn polled(&self) -> Polled<'_> {
        match self {
            Transport::Plain(stream) => Polled::Plain(stream.as_async()),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => Polled::Tls(stream.as_async()),
        }
    }
}

impl Polled<'_> {
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Polled::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            #[cfg(feature = "tls")]
            Polled::Tls(stream) => Pin::new(stream).poll_read(cx, into),
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
            Polled::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    /// Waits until the socket has taken what was written.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Polled::Plain(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(feature = "tls")]
            Polled::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }
}
