//! Connections that are no longer HTTP: after a 101 they belong to the handler's code.
//!
//! ```text
//!                    Response::upgrade: a closure on the connection's fiber, with a stack, to its end
//!   101 flushed ──┤
//!                    Response::upgrade_dormant: a Session in the connection's box; a fiber only while it is woken
//! ```
//!
//! The connection owns the response's [`Takeover`] from the 101 on. A session at rest holds none of the server's buffers.
//! Nothing cancels code whose client is gone any more: it meets the end of its client where it reads or writes.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use osier::dormant::{Cause, Next};
use osier::net::Stream;

use crate::conn::worker::Link;

/// The code that takes a connection over.
pub(crate) enum Takeover {
    Run(Box<dyn FnOnce(&mut Upgraded)>),
    Rest(Box<dyn Session>),
}

/// An upgraded connection that holds no stack while it is idle; see [`Response::upgrade_dormant`].
///
/// All calls but [`poll_woken`](Session::poll_woken) come on a fiber of the connection's worker, never two at once. A panic
/// ends the connection.
///
/// [`Response::upgrade_dormant`]: crate::Response::upgrade_dormant
pub trait Session: 'static {
    /// The upgrade has been answered. Bytes the client has sent already come with the first [`wake`](Session::wake), at once.
    fn open(&mut self, io: &mut Upgraded) -> Next {
        let _ = io;
        Next::Sleep(None)
    }

    /// There is something to read, a leaf is ready, the deadline of the last [`Next::Sleep`] has passed, or the runtime ends.
    ///
    /// A read that finds nothing fails with `TimedOut` after a millisecond: read what is there and sleep again.
    fn wake(&mut self, io: &mut Upgraded, cause: Cause) -> Next;

    /// Polls the leaves the session waits for, as [`Dormant::poll_woken`](osier::dormant::Dormant::poll_woken) does.
    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }
}

/// A connection after its upgrade, as a `Read` and a `Write`: first what the client had sent behind its request, then the
/// socket.
pub struct Upgraded {
    link: Rc<Link>,
    /// Received and not yet read, from `taken` on.
    unread: Vec<u8>,
    taken: usize,
}

impl Upgraded {
    pub(crate) fn new(link: Rc<Link>, unread: Vec<u8>) -> Self {
        Upgraded { link, unread, taken: 0 }
    }

    /// The socket, to wait on or to set timeouts of. Read through `self`, which may hold bytes that came before.
    pub fn stream(&self) -> &Stream {
        &self.link.stream
    }

    /// The bytes that have been received and not been read; reading them asks no socket.
    pub fn buffered(&self) -> &[u8] {
        &self.unread[self.taken..]
    }

    /// The address of the client; `0.0.0.0:0` on a Unix socket.
    pub fn peer(&self) -> SocketAddr {
        self.link.peer()
    }

    /// True while the server shuts down: say goodbye, and end.
    pub fn is_draining(&self) -> bool {
        self.link.worker.draining.get()
    }
}

impl Read for Upgraded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.unread.len() {
            return (&self.link.stream).read(into);
        }
        let count = self.buffered().read(into)?;
        self.taken += count;
        if self.taken == self.unread.len() {
            (self.unread, self.taken) = (Vec::new(), 0);
        }
        Ok(count)
    }
}

impl Write for Upgraded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.link.stream).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        (&self.link.stream).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Upgraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgraded")
            .field("stream", &self.link.stream)
            .field("buffered", &self.buffered().len())
            .finish_non_exhaustive()
    }
}
