//! A stream that has left HTTP: the DATA of an extended CONNECT (RFC 8441) is the byte stream of another protocol.
//!
//! ```text
//!   stream ── DATA ─▶ inlet ─▶ the fiber that has read it ─────▶ ┐
//!                          └─▶ one more if the pair is full ───▶ ├ a pair of sockets ◀─▶ the connection of the handler's code
//!   stream ◀── ToClient: dormant until the pair has bytes ◀───── ┘                       (conn/upgrade.rs)
//! ```
//!
//! The handler's code gets one end of a pair of sockets, as it would get the socket of an HTTP/1.1 connection. Neither direction holds a
//! stack while it is idle. The fiber that reads the connection writes the client's bytes to the pair, and never waits there. A fiber of the
//! tunnel starts for what the pair does not take at once, and for the end. The stream ends with the last reference to its tunnel: that of
//! `ToClient`, or of the fiber.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::Extensions;
use osier::dormant::{AfterBurst, Cause, Dormant};
use osier::net;

use crate::conn::close::CloseReason;
use crate::conn::log::record::{Level, Record};
use crate::conn::server_state::ServerState;
use crate::conn::stream::ClientStream;
use crate::conn::trailers::Trailers;
use crate::conn::upgrade::Takeover;
use crate::conn::worker::Link;
use crate::conn::{Conn, End};
use crate::server::h2::stream::Stream;

/// The time that the client has to end its direction after the handler's code has ended its own.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// Leaves the stream to the handler's code. Returns false if there are no descriptors for that; the stream is reset then.
pub(super) fn begin(stream: &Stream, takeover: Takeover, extensions: Extensions) -> bool {
    let shared = &stream.shared;
    let (protocol, peer) = (shared.link.info().protocol, shared.link.peer());
    let begun = Conn::begin_as(protocol, (takeover, extensions), End::Pair, &shared.local, peer);
    let (inner, handler) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            complain(&shared.local.worker.server, peer, &error);
            return false;
        }
    };
    let tunnel = Rc::new(Tunnel {
        stream: stream.detached(),
        inner,
        handler,
        is_pumping: Cell::new(false),
        left: Cell::default(),
        has_client_ended: Cell::new(false),
    });
    let weak = Rc::downgrade(&tunnel);
    tunnel.stream.on_arrival(Box::new(move || {
        if let Some(tunnel) = weak.upgrade()
            && !tunnel.pump_at_once()
        {
            tunnel.pump_soon();
        }
    }));
    let to_client = ToClient {
        tunnel: tunnel.clone(),
        until: None,
    };
    // Where the poller takes no more sockets, the drop of `to_client` ends the tunnel.
    let _ = osier::dormant::park_local(Box::new(to_client), None);
    // Bytes may have come behind the request.
    tunnel.pump_soon();
    if shared.is_full() {
        tell_of_waiting(&shared.local.worker.server, peer, shared.link.is_proxied());
    }
    true
}

/// Reports that the next requests of a client wait until a WebSocket ends. The client tells nobody.
#[cold]
fn tell_of_waiting(server: &ServerState, peer: SocketAddr, is_proxied: bool) {
    if server.tunnels.is_due() {
        let text = format_args!(
            "WebSockets take up the last stream of an HTTP/2 connection: further requests on it wait ('http2.max_streams', 'http2.max_tunnels')"
        );
        server.log(&Record::new(Level::Info, text).of_client(peer, is_proxied));
    }
}

/// Reports a tunnel that cannot begin: its client has too many connections, or there are no descriptors.
#[cold]
fn complain(server: &ServerState, peer: SocketAddr, error: &io::Error) {
    if error.kind() == io::ErrorKind::QuotaExceeded {
        server.refused();
        server.complain_of(peer);
    } else if server.tunnels.is_due() {
        let text = format_args!("cannot open a WebSocket in an HTTP/2 stream: {error}");
        server.log(&Record::new(Level::Error, text));
    }
}

struct Tunnel {
    stream: Stream,
    /// The end of the pair that is not the handler's.
    inner: net::Stream,
    /// The connection of the handler's code.
    handler: Weak<Link>,
    /// Whether a fiber copies what the client sends.
    is_pumping: Cell<bool>,
    /// Bytes of the client that the pair has not taken at once. The fiber begins with them.
    left: Cell<Box<[u8]>>,
    has_client_ended: Cell<bool>,
}

impl Tunnel {
    /// Copies what the client has sent as far as the pair takes it at once. Returns false if a fiber has to go on.
    fn pump_at_once(&self) -> bool {
        if self.is_pumping.get() {
            return true;
        }
        if self.stream.is_reset() {
            return false;
        }
        let worker = &self.stream.shared.local.worker;
        let mut buffers = worker.take_buffers();
        let is_done = loop {
            let bytes = match self.stream.try_read(&mut buffers.input) {
                Ok(count @ 1..) => &buffers.input[..count],
                Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
                Ok(0) => break false,
            };
            // The fiber meets an error again.
            let taken = self.inner.try_write(bytes).unwrap_or(0);
            if taken < bytes.len() {
                self.left.set(bytes[taken..].into());
                break false;
            }
        };
        worker.give_buffers(buffers);
        is_done
    }

    /// Ends both directions of the pair. The handler's code hears why, where that is not the client.
    fn cut(&self) {
        let client = &self.stream.shared.link;
        if let (true, Some(handler)) = (client.is_evicted(), self.handler.upgrade()) {
            handler.leaves_protocol(CloseReason::Evicted);
        }
        let _ = self.inner.shutdown(Shutdown::Both);
    }

    /// Copies what the client has sent, soon.
    fn pump_soon(self: &Rc<Self>) {
        if !self.is_pumping.replace(true) {
            let pumping = Pumping {
                tunnel: self.clone(),
                has_run: Cell::new(false),
            };
            drop(osier::spawn_local(move || pumping.run()));
        }
    }

    /// Copies with a buffer of the worker. Returns whether the end has been read.
    ///
    /// # Suspends
    ///
    /// When `write` does.
    fn copy(
        &self,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let worker = &self.stream.shared.local.worker;
        let mut buffers = worker.take_buffers();
        let copied = loop {
            let written = match read(&mut buffers.input) {
                Ok(0) => break Ok(true),
                Ok(count) => write(&buffers.input[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(false),
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                break Err(error);
            }
        };
        worker.give_buffers(buffers);
        copied
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stream.shared.remove(self.stream.id);
    }
}

/// The fiber from the client to the handler's code.
struct Pumping {
    tunnel: Rc<Tunnel>,
    has_run: Cell<bool>,
}

impl Pumping {
    fn run(self) {
        let Tunnel { stream, inner, .. } = &*self.tunnel;
        self.has_run.set(true);
        let mut left = &*self.tunnel.left.take();
        // The bytes that are left come first.
        let read = |into: &mut [u8]| match left.is_empty() {
            true => stream.try_read(into),
            false => left.read(into),
        };
        let copied = self.tunnel.copy(read, |bytes| { inner }.write_all(bytes));
        match copied {
            Ok(false) => return,
            Ok(true) => _ = inner.shutdown(Shutdown::Write),
            Err(_) => self.tunnel.cut(),
        }
        self.tunnel.has_client_ended.set(true);
        osier::dormant::wake(inner);
    }
}

impl Drop for Pumping {
    fn drop(&mut self) {
        self.tunnel.is_pumping.set(false);
        // There was no stack for it.
        if !self.has_run.get() {
            self.tunnel.cut();
        }
    }
}

/// The direction from the handler's code to the client.
struct ToClient {
    tunnel: Rc<Tunnel>,
    /// Set once the handler's code has ended its direction: until when the client may go on.
    until: Option<Instant>,
}

impl Dormant for ToClient {
    fn source(&self) -> &dyn osier::io::Source {
        &self.tunnel.inner
    }

    fn poll_woken(&mut self, _: &mut Context<'_>) -> Poll<()> {
        match self.until.is_some() && self.tunnel.has_client_ended.get() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        let Tunnel { stream, inner, .. } = &*self.tunnel;
        if cause == Cause::Shutdown {
            return AfterBurst::End;
        }
        if self.until.is_none() {
            let copied = self
                .tunnel
                .copy(|into| inner.try_read(into), |bytes| stream.write(bytes));
            match copied {
                Ok(false) => return AfterBurst::Sleep(None),
                Ok(true) if stream.end(&[], &Trailers::new()).is_ok() => {}
                _ => return AfterBurst::End,
            }
            self.until = Some(osier::time::coarse_now() + LAST_BYTES);
        }
        match self.tunnel.has_client_ended.get() || self.until <= Some(osier::time::coarse_now()) {
            true => AfterBurst::End,
            false => AfterBurst::SleepUntilWoken(self.until),
        }
    }
}

impl Drop for ToClient {
    /// The fiber of the other direction may wait for the handler's code.
    fn drop(&mut self) {
        self.tunnel.cut();
    }
}
