//! Connections that are no longer HTTP. After a 101 they belong to the handler's code.
//!
//! ```text
//!                    Response::upgrade: a closure on the connection's fiber, with a stack, to its end
//!   101 flushed ──┤
//!                    Response::upgrade_dormant: a Session in the connection's box; a fiber only while it is woken
//! ```
//!
//! From the 101 on, the connection owns the response's [`Takeover`] and the request's extensions. A dormant session holds none
//! of the server's buffers. The server no longer cancels code whose client is gone: a read or a
//! write of that code fails or ends.

#[cfg(feature = "ws")]
use std::any::Any;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use osier::dormant::{AfterBurst, Cause};
use osier::net::Stream;

use crate::conn::End;
#[cfg(feature = "ws")]
use crate::conn::close::CloseReason;
#[cfg(feature = "upgrade")]
use crate::conn::handover::record::{Saved, Tunnel};
#[cfg(feature = "ws")]
use crate::conn::log::record::{Level, Record, how_it_panicked};
#[cfg(feature = "ws")]
use crate::conn::transport::Transport;
use crate::conn::tunnel::TunnelHook;
#[cfg(feature = "upgrade")]
use crate::conn::tunnel::TunnelReport;
use crate::conn::worker::Link;

/// The code that takes over a connection.
pub(crate) enum Takeover {
    Run(Box<dyn FnOnce(&mut Upgraded)>),
    Rest(Box<dyn Session>),
}

/// An upgraded connection that holds no stack while it is idle. See [`Response::upgrade_dormant`].
///
/// All calls but [`poll_woken`](Session::poll_woken) come on a fiber of the connection's worker,
/// never two at once. A panic ends the connection.
///
/// [`Response::upgrade_dormant`]: crate::Response::upgrade_dormant
pub trait Session: 'static {
    /// Called once the 101 has been sent. If the client has already sent bytes,
    /// [`wake`](Session::wake) follows at once.
    fn open(&mut self, io: &mut Upgraded) -> AfterBurst {
        let _ = io;
        AfterBurst::Sleep(None)
    }

    /// Called when there are bytes to read, a leaf is ready, the deadline of the last
    /// [`AfterBurst::Sleep`] has passed, or the runtime ends.
    ///
    /// A read without available bytes fails with `TimedOut` after a millisecond. Read the available
    /// bytes and sleep again.
    fn wake(&mut self, io: &mut Upgraded, cause: Cause) -> AfterBurst;

    /// Serves the session without a fiber, as [`Dormant::serve_at_once`](osier::dormant::Dormant::serve_at_once) does: `false` leaves it to
    /// [`wake`](Session::wake). It must not block, and neither reads nor writes `io` where that is TLS.
    #[doc(hidden)]
    fn serve_at_once(&mut self, io: &mut Upgraded, cause: Cause) -> bool {
        let _ = (io, cause);
        false
    }

    /// Saves the session for another process, which [restores](crate::upgrade::Part::restore) it. Returns `None` if the session cannot move
    /// now. No other call follows `Some`. Called during an upgrade, between two wake-ups. The session may write: the connection moves after
    /// the written bytes, and ends if a write fails.
    #[cfg(feature = "upgrade")]
    fn save(&mut self, io: &mut Upgraded) -> Option<Saved> {
        let _ = io;
        None
    }

    /// Saves a tunnel of the proxy, with the socket to its backend and the report of its end, for another process. No other call follows
    /// `Some`.
    #[cfg(feature = "upgrade")]
    #[doc(hidden)]
    fn save_tunnel(&mut self) -> Option<(Tunnel, Stream, Option<TunnelReport>)> {
        None
    }

    /// Gives a tunnel that has come back the report of its end.
    #[cfg(feature = "upgrade")]
    #[doc(hidden)]
    fn has_come_back(&mut self, report: TunnelReport) {
        drop(report);
    }

    /// Whether it is a tunnel of the proxy.
    #[doc(hidden)]
    fn is_tunnel(&self) -> bool {
        false
    }

    /// Has a tunnel call `hook` at its end.
    #[doc(hidden)]
    fn at_tunnel_end(&mut self, hook: TunnelHook) {
        drop(hook);
    }

    /// Polls the leaves that the session waits for, as
    /// [`Dormant::poll_woken`](osier::dormant::Dormant::poll_woken) does.
    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }
}

/// A connection after its upgrade, as a `Read` and a `Write`. It yields first the bytes that the
/// client had sent behind its request, then those of the socket.
pub struct Upgraded {
    link: Rc<Link>,
    /// Received bytes. Those from `taken` on are unread.
    unread: Vec<u8>,
    taken: u32,
    #[cfg_attr(not(feature = "upgrade"), allow(dead_code, reason = "nothing moves"))]
    pub(super) end: End,
    /// Whether a read has been made since this was last looked at. Set at the beginning: the request may have left bytes in a TLS record.
    pub(super) has_read: bool,
    /// Whether a write has failed since this was last set to false.
    #[cfg(feature = "upgrade")]
    pub(super) has_failed: bool,
}

impl Upgraded {
    pub(crate) fn new(link: Rc<Link>, end: End, unread: Vec<u8>) -> Self {
        Upgraded {
            link,
            unread,
            taken: 0,
            end,
            has_read: true,
            #[cfg(feature = "upgrade")]
            has_failed: false,
        }
    }

    /// Notes whether a write has failed.
    #[inline]
    fn wrote<T>(&mut self, outcome: io::Result<T>) -> io::Result<T> {
        #[cfg(feature = "upgrade")]
        if let Err(error) = &outcome {
            self.has_failed |= error.kind() != io::ErrorKind::Interrupted;
        }
        outcome
    }

    /// The socket, for waiting and for setting timeouts. Read and write through `self` instead: it
    /// may hold earlier bytes, and the bytes of the socket may be encrypted.
    pub fn stream(&self) -> &Stream {
        self.link.socket()
    }

    /// The connection.
    #[cfg(feature = "proxy")]
    pub(crate) fn link(&self) -> &Rc<Link> {
        &self.link
    }

    /// Reads bytes that have arrived. Returns 0 at the end.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing has arrived, and the errors of `read`.
    #[cfg(feature = "proxy")]
    pub(crate) fn try_read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.buffered().is_empty() {
            return self.read(into);
        }
        self.link.transport.try_read(into)
    }

    /// The byte stream behind the [buffered](Upgraded::buffered) bytes.
    #[cfg(feature = "ws")]
    pub(crate) fn transport(&self) -> &Transport {
        &self.link.transport
    }

    /// Ends the sending direction. The client reads the end behind the bytes that were written.
    ///
    /// # Errors
    ///
    /// `NotConnected`.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.link.transport.shutdown_write()
    }

    /// The received bytes that are unread. Reading them makes no system call.
    pub fn buffered(&self) -> &[u8] {
        &self.unread[self.taken as usize..]
    }

    /// The address of the client. `0.0.0.0:0` on a Unix socket.
    pub fn peer(&self) -> SocketAddr {
        self.link.peer()
    }

    /// Logs that the code of a WebSocket has panicked.
    #[cfg(feature = "ws")]
    #[cold]
    pub(crate) fn log_panic(&self, payload: &(dyn Any + Send)) {
        let (peer, how) = (self.peer(), how_it_panicked(payload));
        let text = format_args!("the websocket of {peer} {how}");
        let record = Record::new(Level::Error, text).of_client(peer, self.link.is_proxied());
        self.link.worker.server.log(&record);
    }

    /// Sets why the connection ends, if not as an upgraded one.
    #[cfg(feature = "ws")]
    pub(crate) fn ends(&self, reason: CloseReason) {
        self.link.leaves_protocol(reason);
    }

    /// Whether the worker has ended the connection because memory is short.
    #[cfg(feature = "ws")]
    pub(crate) fn is_evicted(&self) -> bool {
        self.link.is_evicted()
    }

    /// Whether the server is shutting down. If so, end the session politely.
    pub fn is_draining(&self) -> bool {
        self.link.worker.draining.get()
    }
}

impl Read for Upgraded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.has_read = true;
        if self.buffered().is_empty() {
            return match (&self.link.transport).read(into) {
                // A drain ends the reading direction without a word of the client's, or lets a session read what has arrived.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.is_draining() => Ok(0),
                Err(error)
                    if error.kind() == io::ErrorKind::TimedOut && self.is_draining() && self.link.is_read_on() =>
                {
                    Ok(0)
                }
                read => read,
            };
        }
        let count = self.buffered().read(into)?;
        // The bytes fit the input buffer of a burst.
        self.taken += count as u32;
        if self.buffered().is_empty() {
            (self.unread, self.taken) = (Vec::new(), 0);
        }
        Ok(count)
    }
}

impl Write for Upgraded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = (&self.link.transport).write(bytes);
        self.wrote(written)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let written = (&self.link.transport).write_vectored(slices);
        self.wrote(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = (&self.link.transport).flush();
        self.wrote(flushed)
    }
}

osier_queue::impl_debug!(Upgraded, self => { stream: self.link.socket(), buffered: self.buffered().len(), .. });
