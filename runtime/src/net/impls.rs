//! The methods and traits that several types of sockets have: one macro for each group.

/// The traits that make a socket a descriptor, and let it be waited for.
macro_rules! descriptor_impls {
    ($type:ident) => {
        /// The descriptor may be duplicated by code that gets it from here. Closing the socket then costs one more
        /// system call.
        impl std::os::fd::AsFd for $type {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                crate::wait::socket::Source::watched(self).export()
            }
        }

        impl std::os::fd::AsRawFd for $type {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(self))
            }
        }

        impl crate::wait::socket::Sealed for $type {}

        /// Waits without reading or writing.
        impl $type {
            /// Waits until there is something to receive or to accept, the end of the stream, or an error.
            ///
            /// Another reader may take it first, so the next call may wait after all. Timeouts do not apply here.
            ///
            /// # Suspends
            ///
            /// Until then. Blocks the thread when called on a plain one.
            ///
            /// # Errors
            ///
            /// The error of a cancelled call, or of a call in the wrong place.
            pub fn readable(&self) -> std::io::Result<()> {
                crate::net::stream::ready(self, crate::wait::socket::Direction::Read)
            }

            /// Waits until there is room to send, or an error. The rules of `readable` apply.
            ///
            /// # Suspends
            ///
            /// Until then. Blocks the thread when called on a plain one.
            ///
            /// # Errors
            ///
            /// The error of a cancelled call, or of a call in the wrong place.
            pub fn writable(&self) -> std::io::Result<()> {
                crate::net::stream::ready(self, crate::wait::socket::Direction::Write)
            }

            /// `readable` as a future.
            pub fn readable_async(&self) -> impl Future<Output = std::io::Result<()>> + Send {
                crate::net::stream::ready_async(self, crate::wait::socket::Direction::Read)
            }

            /// `writable` as a future.
            pub fn writable_async(&self) -> impl Future<Output = std::io::Result<()>> + Send {
                crate::net::stream::ready_async(self, crate::wait::socket::Direction::Write)
            }
        }
    };
}

/// The methods and traits of every type around a `stream::Stream`: conversions, timeouts, `try_clone`.
macro_rules! socket_impls {
    ($type:ident, $short_read:expr, $std:ty) => {
        crate::net::impls::socket_impls!($type, $short_read);

        /// Makes the socket non-blocking, for all its duplicates too.
        impl From<$std> for $type {
            fn from(socket: $std) -> $type {
                std::os::fd::OwnedFd::from(socket).into()
            }
        }

        /// Makes the socket blocking again, for all its duplicates too.
        impl From<$type> for $std {
            fn from(stream: $type) -> $std {
                stream.0.into_std().into()
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let ends = [("addr", self.local_addr()), ("peer", self.peer_addr())];
                crate::net::stream::describe(f, stringify!($type), ends)
            }
        }
    };
    ($type:ident, $short_read:expr) => {
        crate::net::impls::descriptor_impls!($type);

        impl crate::wait::socket::Source for $type {
            fn watched(&self) -> &crate::wait::socket::Watched {
                &self.0.watched
            }
        }

        /// Makes the socket non-blocking, for all its duplicates too. Timeouts that are set on it apply.
        impl From<std::os::fd::OwnedFd> for $type {
            fn from(fd: std::os::fd::OwnedFd) -> $type {
                $type(crate::net::stream::Stream::from_outside(fd, $short_read))
            }
        }

        /// Leaves the descriptor non-blocking.
        impl From<$type> for std::os::fd::OwnedFd {
            fn from(stream: $type) -> std::os::fd::OwnedFd {
                stream.0.watched.into_fd()
            }
        }

        impl $type {
            /// Duplicates the descriptor: another value for the same socket, with the same timeouts.
            ///
            /// # Errors
            ///
            /// The system's error for too many open files.
            #[doc(alias("split", "into_split"))]
            pub fn try_clone(&self) -> std::io::Result<$type> {
                Ok($type(self.0.try_clone()?))
            }

            /// Sets how long a call that reads may take. `None`, the default, means no limit. Applies to calls that
            /// begin later.
            ///
            /// # Errors
            ///
            /// `InvalidInput` for zero.
            pub fn set_read_timeout(&self, limit: Option<std::time::Duration>) -> std::io::Result<()> {
                self.0.read_timeout.set(limit)
            }

            /// Sets how long a call that writes waits for a peer that takes nothing. `None`, the default, means no
            /// limit. Applies to calls that begin later.
            ///
            /// On Linux the wait starts again if a slow peer has acknowledged a byte in that time. A call may thus
            /// take longer than the limit, but not if the peer takes nothing. On other systems the limit applies to
            /// each wait for room.
            ///
            /// # Errors
            ///
            /// `InvalidInput` for zero.
            pub fn set_write_timeout(&self, limit: Option<std::time::Duration>) -> std::io::Result<()> {
                self.0.write_timeout.set(limit)
            }

            /// The longest time that a call that reads may take.
            ///
            /// # Errors
            ///
            /// None. The signature is std's.
            pub fn read_timeout(&self) -> std::io::Result<Option<std::time::Duration>> {
                Ok(self.0.read_timeout.limit())
            }

            /// The longest time that a call that writes may take.
            ///
            /// # Errors
            ///
            /// None. The signature is std's.
            pub fn write_timeout(&self) -> std::io::Result<Option<std::time::Duration>> {
                Ok(self.0.write_timeout.limit())
            }

            /// Takes the pending error of the socket, if there is one.
            ///
            /// # Errors
            ///
            /// The system's error.
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                self.0.take_error()
            }
        }
    };
}

/// `Read` and `Write` of a stream, for the type or for a reference to it.
macro_rules! transfer_impls {
    ($type:ty) => {
        impl std::io::Read for $type {
            #[inline]
            fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(buf)
            }
            fn read_vectored(&mut self, bufs: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                self.0.read_vectored(bufs)
            }
        }

        impl std::io::Write for $type {
            #[inline]
            fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
                self.0.write(buf, rustix::net::SendFlags::empty())
            }
            fn write_vectored(&mut self, bufs: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                self.0.write_vectored(bufs)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
    };
}

/// The traits of std's streams: `Read` and `Write` for the type and for references to it.
macro_rules! stream_impls {
    ($type:ident, $short_read:expr $(, $std:ty)?) => {
        crate::net::impls::socket_impls!($type, $short_read $(, $std)?);
        crate::net::impls::transfer_impls!(&$type);
        crate::net::impls::transfer_impls!($type);

        impl crate::net::stream::FileSink for $type {
            fn stream(&self) -> &crate::net::stream::Stream {
                &self.0
            }
        }

        impl $type {
            /// Receives bytes without removing them: the next read gets them again.
            ///
            /// # Suspends
            ///
            /// Until there is at least one byte, or the end (0).
            ///
            /// # Errors
            ///
            /// The errors of `read`: `TimedOut` after the read timeout.
            pub fn peek(&self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.0.peek(buf)
            }

            /// Registers the socket with this worker's poller for reading. Otherwise the first read that finds
            /// nothing does so.
            ///
            /// A caller that knows that there is nothing to read yet, for example after sending a request on a new
            /// connection, saves the read that would fail. Has no effect on a plain thread.
            ///
            /// # Suspends
            ///
            /// Never.
            ///
            /// # Errors
            ///
            /// The system's error: too little memory, or too many registered sockets.
            pub fn watch(&self) -> std::io::Result<()> {
                self.0.watched.own_here().map(drop)
            }

            /// `read` as a future: an arm of [`select!`](crate::select!). The read timeout does not apply to it.
            ///
            /// [`as_async`](Self::as_async) has the traits of futures-io, for code over any stream.
            ///
            /// ```
            /// use osier::net::UnixStream;
            /// use std::io::Write;
            /// use std::time::Duration;
            ///
            /// osier::run(|| {
            ///     let (near, mut far) = UnixStream::pair()?;
            ///     far.write_all(b"hello")?;
            ///     let mut buf = [0; 16];
            ///     osier::select! {
            ///         n = near.read_async(&mut buf) => assert_eq!(&buf[..n?], b"hello"),
            ///         timeout Duration::from_secs(60) => panic!("the bytes are there"),
            ///     }
            ///     std::io::Result::Ok(())
            /// })?;
            /// # std::io::Result::Ok(())
            /// ```
            ///
            /// # Cancellation
            ///
            /// Dropped before it is ready, it has taken nothing.
            ///
            /// # Errors
            ///
            /// The system's errors.
            pub fn read_async(&self, buf: &mut [u8]) -> impl Future<Output = std::io::Result<usize>> + Send {
                self.0.read_async(buf)
            }

            /// `write` as a future. The write timeout does not apply to it.
            ///
            /// # Cancellation
            ///
            /// Dropped before it is ready, it has written nothing.
            ///
            /// # Errors
            ///
            /// The system's errors.
            pub fn write_async(&self, buf: &[u8]) -> impl Future<Output = std::io::Result<usize>> + Send {
                self.0.write_async(buf, rustix::net::SendFlags::empty())
            }

            /// [`peek`](Self::peek) as a future. The read timeout does not apply to it.
            pub fn peek_async(&self, buf: &mut [u8]) -> impl Future<Output = std::io::Result<usize>> + Send {
                self.0.peek_async(buf)
            }

            /// Writes bytes that others will follow at once: the kernel may hold them back to send both in one
            /// packet.
            ///
            /// It joins a head to the file that [`sendfile`](crate::io::sendfile) sends. Returns the number of bytes
            /// that it took, as `write` does.
            ///
            /// # Suspends
            ///
            /// Until the socket takes at least one byte.
            ///
            /// # Errors
            ///
            /// The errors of `write`: `TimedOut` after the write timeout.
            pub fn write_more(&self, buf: &[u8]) -> std::io::Result<usize> {
                self.0.write(buf, crate::net::stream::MORE)
            }

            /// [`write_more`](Self::write_more) as a future. The write timeout does not apply to it.
            pub fn write_more_async(&self, buf: &[u8]) -> impl Future<Output = std::io::Result<usize>> + Send {
                self.0.write_async(buf, crate::net::stream::MORE)
            }

            /// Reads bytes that have arrived. Returns 0 at the end.
            ///
            /// # Suspends
            ///
            /// Never.
            ///
            /// # Errors
            ///
            /// `WouldBlock` if none have arrived, and the errors of `read`.
            pub fn try_read(&self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.0.try_read(buf)
            }

            /// Writes the bytes that the socket takes at once, and returns how many.
            ///
            /// # Suspends
            ///
            /// Never.
            ///
            /// # Errors
            ///
            /// `WouldBlock` if it takes none, and the errors of `write`.
            pub fn try_write(&self, buf: &[u8]) -> std::io::Result<usize> {
                self.0.try_write(buf, rustix::net::SendFlags::empty())
            }

            /// Writes as [`try_write`](Self::try_write) does, with a note that something follows at once: more bytes, or the end of the
            /// connection. The kernel may hold the bytes back to send both in one packet.
            ///
            /// # Suspends
            ///
            /// Never.
            ///
            /// # Errors
            ///
            /// The errors of `try_write`.
            pub fn try_write_more(&self, buf: &[u8]) -> std::io::Result<usize> {
                self.0.try_write(buf, crate::net::stream::MORE)
            }

            /// Waits until bytes arrive, at most for `time`. Returns whether there are some. The peer's end or a reset
            /// counts as well, for the next read to find.
            ///
            /// Call it after a read that failed with `WouldBlock`.
            ///
            /// # Suspends
            ///
            /// Until then.
            ///
            /// # Cancellation
            ///
            /// The error of a cancelled call.
            ///
            /// # Errors
            ///
            /// That error, and `WouldBlock` on a worker outside of a fiber. An error of the socket is left for the next read.
            pub fn wait_readable(&self, time: std::time::Duration) -> std::io::Result<bool> {
                self.0.wait_for(crate::wait::socket::Direction::Read, time)
            }

            /// Waits until the socket takes bytes, at most for `time`. Returns whether it does. The peer's end or a reset
            /// counts as well, for the next write to find.
            ///
            /// # Suspends
            ///
            /// Until then.
            ///
            /// # Cancellation
            ///
            /// The error of a cancelled call.
            ///
            /// # Errors
            ///
            /// That error, and `WouldBlock` on a worker outside of a fiber. An error of the socket is left for the next write.
            pub fn wait_writable(&self, time: std::time::Duration) -> std::io::Result<bool> {
                self.0.wait_for(crate::wait::socket::Direction::Write, time)
            }

            /// The number of sent bytes that the peer's system has not acknowledged (TCP), or that the peer has not
            /// read (Unix). The number of a Unix socket counts the kernel's own records too. `None` where the
            /// system does not report it.
            ///
            /// # Suspends
            ///
            /// Never.
            pub fn unacknowledged(&self) -> Option<usize> {
                self.0.unacknowledged()
            }

            /// Sets how many bytes a peer must acknowledge within each [write timeout](Self::set_write_timeout). The
            /// timeout fires for one that acknowledges fewer, unless it has acknowledged everything. 0, the default,
            /// means one byte. The number is rounded up to a multiple of 64, and is at most 4 MiB.
            ///
            /// It ends a peer that takes a byte now and then. The system must report what the peer has acknowledged,
            /// as Linux does.
            ///
            /// ```
            /// use osier::net::{Stream, UnixStream};
            /// use std::time::Duration;
            /// let stream = Stream::from(UnixStream::pair()?.0);
            /// stream.set_write_timeout(Some(Duration::from_secs(30)))?;
            /// stream.set_write_progress(10_000);
            /// # std::io::Result::Ok(())
            /// ```
            ///
            /// # Suspends
            ///
            /// Never.
            pub fn set_write_progress(&self, bytes: usize) {
                self.0.watched.set_progress(bytes);
            }

            /// Whether the peer has made progress since [`unacknowledged`](Self::unacknowledged) returned `before`: as
            /// much as it must within a [write timeout](Self::set_write_progress). Nothing may have been written since
            /// then.
            ///
            /// # Suspends
            ///
            /// Never.
            pub fn progressed(&self, before: Option<usize>) -> bool {
                self.0.progressed(before)
            }

            /// Shuts down reading, writing or both, for all duplicates of the socket. Calls that wait on it wake.
            ///
            /// # Suspends
            ///
            /// Never.
            ///
            /// # Errors
            ///
            /// `NotConnected`.
            pub fn shutdown(&self, how: std::net::Shutdown) -> std::io::Result<()> {
                self.0.shutdown(how)
            }
        }
    };
}

/// The methods and traits of listeners: conversions, `try_clone`, iterators over connections.
macro_rules! listener_impls {
    ($type:ident, $std:ty, $stream:ty, $incoming:ident, $incoming_async:ident) => {
        crate::net::impls::descriptor_impls!($type);

        impl $type {
            /// An endless iterator over connections.
            ///
            /// # Suspends
            ///
            /// `next` suspends until there is a connection. Blocks the thread when called on a plain one.
            ///
            /// # Cancellation
            ///
            /// `next` gives the error of a cancelled call once, and unwinds the next time: end the loop at an error that
            /// [`Cancelled::is`](crate::Cancelled::is) knows.
            ///
            /// # Errors
            ///
            /// `next` gives the errors of `accept`, and goes on after them.
            pub fn incoming(&self) -> $incoming<'_> {
                $incoming(self)
            }

            /// An endless [`Stream`](futures_core::Stream) of connections.
            ///
            /// ```
            /// use futures_lite::StreamExt;
            /// use osier::net::{TcpListener, TcpStream};
            /// let listener = TcpListener::bind("127.0.0.1:0")?;
            /// let client = TcpStream::connect(listener.local_addr()?)?;
            /// let mut incoming = listener.incoming_async();
            /// let server = osier::block_on(incoming.next()).expect("it has no end")?;
            /// assert_eq!(server.peer_addr()?, client.local_addr()?);
            /// # std::io::Result::Ok(())
            /// ```
            pub fn incoming_async(&self) -> $incoming_async<'_> {
                $incoming_async {
                    side: crate::wait::leaf::Side::default(),
                    listener: self,
                }
            }

            /// Duplicates the descriptor: another value for the same socket.
            ///
            /// # Errors
            ///
            /// The system's error for too many open files.
            pub fn try_clone(&self) -> std::io::Result<$type> {
                Ok($type(self.0.try_clone()?))
            }

            /// Takes the pending error of the socket, if there is one.
            ///
            /// # Errors
            ///
            /// The system's error.
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                crate::net::stream::take_error(&self.0)
            }
        }

        impl crate::wait::socket::Source for $type {
            fn watched(&self) -> &crate::wait::socket::Watched {
                &self.0
            }
        }

        /// Makes the socket non-blocking, for all its duplicates too.
        impl From<std::os::fd::OwnedFd> for $type {
            fn from(fd: std::os::fd::OwnedFd) -> $type {
                $type(crate::net::stream::adopt(fd, crate::wait::socket::ShortRead::SaysNothing))
            }
        }

        /// Makes the socket non-blocking, for all its duplicates too.
        impl From<$std> for $type {
            fn from(listener: $std) -> $type {
                std::os::fd::OwnedFd::from(listener).into()
            }
        }

        /// Leaves the descriptor non-blocking.
        impl From<$type> for std::os::fd::OwnedFd {
            fn from(listener: $type) -> std::os::fd::OwnedFd {
                listener.0.into_fd()
            }
        }

        /// Makes the socket blocking again, for all its duplicates too: an `accept` of a duplicate that is left to Osier then stops its
        /// whole worker. Convert into an `OwnedFd` if there are some.
        impl From<$type> for $std {
            fn from(listener: $type) -> $std {
                let listener = <$std>::from(std::os::fd::OwnedFd::from(listener));
                let _ = listener.set_nonblocking(false);
                listener
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                crate::net::stream::describe(f, stringify!($type), [("addr", self.local_addr())])
            }
        }

        #[doc = concat!("The iterator of [`", stringify!($type), "::incoming`].")]
        #[derive(Debug)]
        pub struct $incoming<'a>(&'a $type);

        impl Iterator for $incoming<'_> {
            type Item = std::io::Result<$stream>;

            fn next(&mut self) -> Option<Self::Item> {
                Some(self.0.accept().map(|(stream, _)| stream))
            }
        }

        impl std::iter::FusedIterator for $incoming<'_> {}

        #[doc = concat!("The stream of [`", stringify!($type), "::incoming_async`]. Dropping it loses no connection.")]
        pub struct $incoming_async<'a> {
            side: crate::wait::leaf::Side,
            listener: &'a $type,
        }

        impl futures_core::Stream for $incoming_async<'_> {
            type Item = std::io::Result<$stream>;

            fn poll_next(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Self::Item>> {
                let watched = &self.listener.0;
                let read = crate::wait::socket::Direction::Read;
                let accepting = self.side.poll_io(watched, read, cx, crate::net::stream::call::accept);
                accepting.map(|done| Some(done.and_then(accepted).map(|(stream, _)| stream)))
            }
        }

        osier_queue::impl_debug!($incoming_async<'a>, self => { listener: self.listener, .. });
    };
}

/// Options that the system sets or returns in one call.
macro_rules! socket_options {
    ($($(#[$doc:meta])* $name:ident($($value:ident: $type:ty),*) -> $output:ty = $call:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(&self $(, $value: $type)*) -> std::io::Result<$output> {
            match crate::wait::socket::Source::watched(self).fd() {
                crate::wait::fd::Fd::System(fd) => Ok(rustix::net::sockopt::$call(fd $(, $value)*)?),
                // A simulated socket has none.
                crate::wait::fd::Fd::Simulated(_) => Ok(Default::default()),
            }
        }
    )*};
}

pub(super) use {descriptor_impls, listener_impls, socket_impls, socket_options, stream_impls, transfer_impls};
