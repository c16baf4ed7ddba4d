//! `Compat`: an adapter from `futures_io`'s traits to those of hyper and tokio.
//!
//! hyper and tokio pass a buffer that may be uninitialised; the inner reader needs initialised bytes. `Compat` zeroes
//! the buffer, at most [`ZEROED_BYTES`] per read. tokio's buffer remembers how far it is initialised.
//!
//! # Safety
//!
//! An unsafe call advances hyper's cursor. The bytes that it advances over must be initialised.
#![cfg_attr(feature = "hyper", allow(unsafe_code))]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use pin_project_lite::pin_project;

/// More than a socket usually holds at once, and cheap to zero.
const ZEROED_BYTES: usize = 16 << 10;

pin_project! {
    /// A value with `futures_io`'s `AsyncRead` and `AsyncWrite` that also has hyper's traits (feature `hyper`) and
    /// tokio's (feature `tokio-io`).
    ///
    /// The streams of this crate have a method for it: [`compat`](crate::net::TcpStream::compat).
    #[derive(Debug)]
    #[doc(alias("AsyncRead", "AsyncWrite", "TokioIo"))]
    pub struct Compat<A> {
        #[pin]
        inner: A,
    }
}

impl<A> Compat<A> {
    /// Wraps a value that has `futures_io`'s traits.
    pub fn new(inner: A) -> Compat<A> {
        Compat { inner }
    }

    /// The inner value.
    pub fn get_ref(&self) -> &A {
        &self.inner
    }

    /// The inner value.
    pub fn get_mut(&mut self) -> &mut A {
        &mut self.inner
    }

    /// The inner value.
    pub fn into_inner(self) -> A {
        self.inner
    }
}

#[cfg(feature = "hyper")]
impl<A: AsyncRead> hyper::rt::Read for Compat<A> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let room = cursor.remaining().min(ZEROED_BYTES);
        let buf = cursor.initialize_unfilled_to(room);
        let count = ready!(self.project().inner.poll_read(cx, buf))?;
        // A reader that claims more bytes than there was room for must not make hyper read beyond the buffer.
        let count = count.min(room);
        // SAFETY: the first `room` bytes were zeroed just above, and the count is at most `room`.
        unsafe { cursor.advance(count) };
        Poll::Ready(Ok(()))
    }
}

#[cfg(feature = "tokio-io")]
impl<A: AsyncRead> tokio::io::AsyncRead for Compat<A> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut tokio::io::ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buf.remaining().min(ZEROED_BYTES);
        let count = ready!(self.project().inner.poll_read(cx, buf.initialize_unfilled_to(room)))?;
        buf.advance(count.min(room));
        Poll::Ready(Ok(()))
    }
}

macro_rules! write_trait {
    ($($trait:tt)*) => {
        impl<A: AsyncWrite> $($trait)* for Compat<A> {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                self.project().inner.poll_write(cx, buf)
            }
            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.project().inner.poll_write_vectored(cx, bufs)
            }
            fn is_write_vectored(&self) -> bool {
                true
            }
            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.project().inner.poll_flush(cx)
            }
            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.project().inner.poll_close(cx)
            }
        }
    };
}

#[cfg(feature = "hyper")]
write_trait!(hyper::rt::Write);
#[cfg(feature = "tokio-io")]
write_trait!(tokio::io::AsyncWrite);
