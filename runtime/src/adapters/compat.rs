//! `Compat`: what has `futures_io`'s traits with those of hyper and tokio.
//!
//! Both hand over a buffer that may not be initialised; the reader below wants bytes. The buffer is zeroed, at most
//! [`ZEROED_BYTES`] per read, and tokio remembers how far it was.
//!
//! # Safety
//!
//! hyper's cursor is advanced by an unsafe call: the bytes it is advanced over must be initialised.
#![cfg_attr(feature = "hyper", allow(unsafe_code))]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use pin_project_lite::pin_project;

/// More than a socket mostly has at once, and little to zero in vain.
const ZEROED_BYTES: usize = 16 << 10;

pin_project! {
    /// Something with `futures_io`'s `AsyncRead` and `AsyncWrite`, with the same of hyper (feature `hyper`) and of tokio (feature `tokio-io`).
    ///
    /// Our own streams have [`compat`](crate::net::TcpStream::compat).
    #[derive(Debug)]
    pub struct Compat<A> {
        #[pin]
        inner: A,
    }
}

impl<A> Compat<A> {
    /// Around something with `futures_io`'s traits.
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
        // A reader that says more than there was room for must not make hyper read beyond.
        let count = count.min(room);
        // SAFETY: the first `room` bytes are initialised, just above, and it is no more than those.
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
