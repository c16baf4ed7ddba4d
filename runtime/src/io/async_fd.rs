//! `io::Async`: reading and writing through any descriptor that can be polled, for fibers, threads and futures.
//!
//! Other code may read the same open file through a duplicate of the descriptor. So `Async` remembers nothing about
//! readiness: each wait arms the descriptor anew (`crate::wait::descriptor`).
//!
//! # Protocol
//! A [`Place`] is an entry of this descriptor in a driver's table. `Async` gives it up before the descriptor can be
//! closed: in `Drop`, and before `into_inner` and `get_mut` hand the descriptor out.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use osier_poll::Interest;

use crate::io::WhenReady;
use crate::io::ready::always_ready;
use crate::wait::descriptor::{Place, Waiting};
use crate::wait::socket::attempt;
use crate::wait::{self, budget};
use crate::worker::context::{self, Caller};

/// A descriptor of somebody else's type. Blocking calls on it suspend the fiber, and it has `futures_io`'s traits if it
/// has std's. `&Async<T>` reads and writes if `&T` does.
///
/// It is made non-blocking, and stays so. Any descriptor that can be polled will do: a socket of another library, a
/// pipe, a terminal, a timer, an eventfd.
///
/// ```
/// use osier::io::Async;
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
/// let (near, far) = UnixStream::pair()?;
/// osier::run(move || {
///     let (near, mut far) = (Async::new(near)?, Async::new(far)?);
///     osier::spawn(move || (&near).write_all(b"hello"));
///     let mut text = String::new();
///     far.read_to_string(&mut text)?;
///     assert_eq!(text, "hello");
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// `T` must give the same descriptor as long as it lives; otherwise waits may go on for ever. Tasks that read and write
/// at the same time each have their own: `Async::new(&socket)`.
///
/// # Suspends
///
/// Where the call on `T` would block. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// A blocking call ends with the error of a cancelled call. A future that is dropped while pending has done nothing.
///
/// # Errors
///
/// The errors of the call.
#[derive(Debug)]
#[doc(alias = "AsyncFd")]
pub struct Async<T: AsFd> {
    /// Present until `into_inner`, which ends this value.
    io: Option<T>,
    reading: Side,
    writing: Side,
}

impl<T: AsFd> Async<T> {
    /// Makes the descriptor non-blocking, for every copy of it.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` for a regular file or a directory, which are always ready ([`fs`](crate::fs) is for them);
    /// the system's error.
    pub fn new(io: T) -> io::Result<Async<T>> {
        always_ready(io.as_fd())?;
        rustix::io::ioctl_fionbio(io.as_fd(), true)?;
        Ok(Async {
            io: Some(io),
            reading: Side::default(),
            writing: Side::default(),
        })
    }

    /// The inner value.
    pub fn get_ref(&self) -> &T {
        self.io.as_ref().expect(HERE)
    }

    /// The inner value. It must keep its descriptor.
    pub fn get_mut(&mut self) -> &mut T {
        self.leave();
        self.io.as_mut().expect(HERE)
    }

    /// Gives the inner value back, still non-blocking.
    pub fn into_inner(mut self) -> T {
        self.leave();
        self.io.take().expect(HERE)
    }

    fn leave(&mut self) {
        if let Some(io) = &self.io {
            self.reading.0.leave(io.as_fd());
            self.writing.0.leave(io.as_fd());
        }
    }

    /// Waits until it can be read from, as [`io::readable`](crate::io::readable) does.
    ///
    /// # Suspends
    ///
    /// Until then. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The errors of [`io::ready`](crate::io::ready).
    pub fn readable(&self) -> io::Result<()> {
        crate::io::readable(self.get_ref(), None)
    }

    /// Waits until it can be written to, as [`io::writable`](crate::io::writable) does.
    ///
    /// # Suspends
    ///
    /// Until then. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The errors of [`io::ready`](crate::io::ready).
    pub fn writable(&self) -> io::Result<()> {
        crate::io::writable(self.get_ref(), None)
    }

    /// [`readable`](Async::readable) as a future.
    pub fn readable_async(&self) -> WhenReady<'_> {
        crate::io::readable_async(self.get_ref())
    }

    /// [`writable`](Async::writable) as a future.
    pub fn writable_async(&self) -> WhenReady<'_> {
        crate::io::writable_async(self.get_ref())
    }

    /// Makes `call`, and again whenever it fails with `WouldBlock` and there is something to read.
    ///
    /// ```
    /// use osier::io::Async;
    /// use std::os::unix::net::UnixDatagram;
    /// let (near, far) = UnixDatagram::pair()?;
    /// let near = Async::new(near)?;
    /// far.send(b"hello")?;
    /// let mut buf = [0; 16];
    /// assert_eq!(near.read_with(|socket| socket.recv(&mut buf))?, 5);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Suspends
    ///
    /// Where `call` would block. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The errors of `call` but for `WouldBlock` and `Interrupted`, and the error of a cancelled call.
    pub fn read_with<R>(&self, call: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.call(Interest::READABLE, call)
    }

    /// Makes `call`, and again whenever it fails with `WouldBlock` and there is room to write.
    ///
    /// # Suspends
    ///
    /// Where `call` would block. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The errors of [`read_with`](Async::read_with).
    pub fn write_with<R>(&self, call: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.call(Interest::WRITABLE, call)
    }

    /// [`read_with`](Async::read_with) as a future.
    pub fn read_with_async<R>(&self, call: impl FnMut(&T) -> io::Result<R>) -> impl Future<Output = io::Result<R>> {
        Call::new(self.get_ref(), Interest::READABLE, call)
    }

    /// [`write_with`](Async::write_with) as a future.
    pub fn write_with_async<R>(&self, call: impl FnMut(&T) -> io::Result<R>) -> impl Future<Output = io::Result<R>> {
        Call::new(self.get_ref(), Interest::WRITABLE, call)
    }

    fn call<R>(&self, interest: Interest, mut call: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        let io = self.get_ref();
        if on_thread() {
            return block_thread(io, interest, |io| call(io));
        }
        let mut leaf = pin!(Call::new(io, interest, call));
        wait::wait(None, None, |cx| leaf.as_mut().poll(cx))?
    }

    fn call_mut<R>(&mut self, interest: Interest, mut call: impl FnMut(&mut T) -> io::Result<R>) -> io::Result<R> {
        if on_thread() {
            return block_thread(self.io.as_mut().expect(HERE), interest, |io| call(io));
        }
        let done = wait::wait(None, None, |cx| self.poll_mut(interest, cx, &mut call));
        if done.is_err() {
            self.leave();
        }
        done?
    }

    fn poll_mut<R>(
        &mut self,
        interest: Interest,
        cx: &mut Context<'_>,
        mut call: impl FnMut(&mut T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        let side = if interest.is_readable() {
            &mut self.reading
        } else {
            &mut self.writing
        };
        let io = self.io.as_mut().expect(HERE);
        budget::poll(cx, |cx| {
            loop {
                if let Some(done) = attempt(|| call(io)) {
                    side.0.leave(io.as_fd());
                    return Poll::Ready(done);
                }
                ready!(side.0.poll(io.as_fd(), interest, cx))?;
            }
        })
    }
}

const HERE: &str = "it is taken only by into_inner, which takes self";

impl<T: AsFd> Drop for Async<T> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<T: AsFd> AsFd for Async<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.get_ref().as_fd()
    }
}

/// No poll hands out a pinned part of `T`.
impl<T: AsFd> Unpin for Async<T> {}

/// The place of one direction. Its `Debug` shows nothing.
#[derive(Default)]
struct Side(Place);

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("_")
    }
}

/// A call that is made again when the descriptor is ready.
struct Call<'a, T, F> {
    io: &'a T,
    waiting: Waiting<'a>,
    call: F,
}

impl<'a, T: AsFd, F> Call<'a, T, F> {
    fn new<R>(io: &'a T, interest: Interest, call: F) -> Call<'a, T, F>
    where
        F: FnMut(&T) -> io::Result<R>,
    {
        Call {
            io,
            waiting: Waiting::new(io.as_fd(), interest),
            call,
        }
    }
}

/// The closure is only called, by exclusive reference.
impl<T, F> Unpin for Call<'_, T, F> {}

impl<T: AsFd, R, F: FnMut(&T) -> io::Result<R>> Future for Call<'_, T, F> {
    type Output = io::Result<R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<R>> {
        let this = &mut *self;
        budget::poll(cx, |cx| {
            loop {
                if let Some(done) = attempt(|| (this.call)(this.io)) {
                    return Poll::Ready(done);
                }
                ready!(Pin::new(&mut this.waiting).poll(cx))?;
            }
        })
    }
}

fn on_thread() -> bool {
    context::caller(|caller| matches!(caller, Caller::Thread))
}

/// A plain thread needs no driver.
fn block_thread<B: AsFd, R>(
    mut io: B,
    interest: Interest,
    mut call: impl FnMut(&mut B) -> io::Result<R>,
) -> io::Result<R> {
    loop {
        if let Some(done) = attempt(|| call(&mut io)) {
            return done;
        }
        crate::io::ready(&io, interest, None)?;
    }
}

impl<T: AsFd + Read> Read for Async<T> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0); // there is nothing to wait for
        }
        self.call_mut(Interest::READABLE, |io| io.read(buf))
    }
    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(0);
        }
        self.call_mut(Interest::READABLE, |io| io.read_vectored(bufs))
    }
}

impl<T: AsFd + ReadShared> Read for &Async<T> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0); // there is nothing to wait for
        }
        self.read_with(|io| io.read_shared(buf))
    }
    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(0);
        }
        self.read_with(|io| io.read_vectored_shared(bufs))
    }
}

impl<T: AsFd + Write> Write for Async<T> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.call_mut(Interest::WRITABLE, |io| io.write(buf))
    }
    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.call_mut(Interest::WRITABLE, |io| io.write_vectored(bufs))
    }
    fn flush(&mut self) -> io::Result<()> {
        self.call_mut(Interest::WRITABLE, |io| io.flush())
    }
}

impl<T: AsFd + WriteShared> Write for &Async<T> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_with(|io| io.write_shared(buf))
    }
    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_with(|io| io.write_vectored_shared(bufs))
    }
    fn flush(&mut self) -> io::Result<()> {
        self.write_with(WriteShared::flush_shared)
    }
}

impl<T: AsFd + Read> AsyncRead for Async<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_mut(Interest::READABLE, cx, |io| io.read(buf))
    }
    fn poll_read_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.poll_mut(Interest::READABLE, cx, |io| io.read_vectored(bufs))
    }
}

/// `poll_close` flushes. The end of a direction is a matter of the type, such as `shutdown`.
impl<T: AsFd + Write> AsyncWrite for Async<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_mut(Interest::WRITABLE, cx, |io| io.write(buf))
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_mut(Interest::WRITABLE, cx, |io| io.write_vectored(bufs))
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_mut(Interest::WRITABLE, cx, |io| io.flush())
    }
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

/// Types that can be read through a shared reference, such as sockets and pipes.
///
/// The traits here and in [`WriteShared`] keep a bound on `&T` out of the impls for `&Async<T>`. With that bound, the
/// compiler would look for a reader in `&Async<_>`, then in `&Async<Async<_>>`, and so on, in every program that uses this
/// crate and is generic over `&T: Read`, and give up with E0275.
#[doc(hidden)]
pub trait ReadShared {
    fn read_shared(&self, buf: &mut [u8]) -> io::Result<usize>;
    fn read_vectored_shared(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
}

impl<T> ReadShared for T
where
    for<'a> &'a T: Read,
{
    fn read_shared(mut self: &Self, buf: &mut [u8]) -> io::Result<usize> {
        self.read(buf)
    }
    fn read_vectored_shared(mut self: &Self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_vectored(bufs)
    }
}

/// Types that can be written to through a shared reference. See [`ReadShared`].
#[doc(hidden)]
pub trait WriteShared {
    fn write_shared(&self, buf: &[u8]) -> io::Result<usize>;
    fn write_vectored_shared(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;
    fn flush_shared(&self) -> io::Result<()>;
}

impl<T> WriteShared for T
where
    for<'a> &'a T: Write,
{
    fn write_shared(mut self: &Self, buf: &[u8]) -> io::Result<usize> {
        self.write(buf)
    }
    fn write_vectored_shared(mut self: &Self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_vectored(bufs)
    }
    fn flush_shared(mut self: &Self) -> io::Result<()> {
        self.flush()
    }
}
