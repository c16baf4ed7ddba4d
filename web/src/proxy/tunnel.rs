//! A tunnel: copies bytes in both directions after a change of protocol. No direction holds a stack while it is idle.
//!
//! ```text
//!   client ──▶ ToBackend: the session of the client's connection ──▶ backend
//!   client ◀── ToClient: a dormant connection of its own         ◀── backend
//! ```
//!
//! Each direction reads when its socket has bytes, and writes them at once, without a fiber. A fiber does the rest: what the other side does
//! not take, ends, failures, TLS. It suspends only while the other side takes nothing, so a slow side delays its own direction. Both
//! directions run on one worker. `ToBackend` keeps the timeout, and ends last: `ToClient` wakes it at its end.
//!
//! The end of one direction is passed on as a half-close, and the other direction continues. A failure of either side, or an idle
//! timeout, ends both. The idle timeout is shorter after a half-close, because a side that has left completely looks the same
//! until something is sent to it.
//!
//! A graceful shutdown leaves a tunnel to its peers. The end of the drain shuts the client's socket down and wakes `ToBackend`, which ends
//! both. So does a lack of memory.
//!
//! Both directions count what they pass on. The backend's counters get it from time to time, and at the end of the tunnel. The hook of the
//! end gets the sums.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::mem;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use osier::dormant::{AfterBurst, Cause, Dormant};
#[cfg(feature = "upgrade")]
use osier::net::Stream;
use osier::time::Stamp;

use crate::conn::buffers::{self, Size};
use crate::conn::cannot_watch;
use crate::conn::close::CloseReason;
#[cfg(feature = "upgrade")]
use crate::conn::handover::record::Tunnel;
use crate::conn::transport::Transport;
use crate::conn::tunnel::{TunnelEnd, TunnelHook, TunnelReport};
use crate::conn::worker::Link;
use crate::upstream::carrier::Carrier;
use crate::upstream::ticket::Ticket;
use crate::{Session, Upgraded};

/// The other end of a tunnel.
enum Backend {
    Carrier(Rc<Carrier>),
    /// A socket that an upgrade has brought, and the ticket if an upstream counts it. The socket closes before the place is free.
    #[cfg(feature = "upgrade")]
    Moved(Transport, Option<Ticket>),
}

impl Backend {
    fn transport(&self) -> &Transport {
        match self {
            Backend::Carrier(carrier) => {
                let lease = carrier.lease();
                lease
                    .expect("only a connection of its own becomes a tunnel")
                    .transport()
            }
            #[cfg(feature = "upgrade")]
            Backend::Moved(transport, _) => transport,
        }
    }

    /// The ticket, if the upstream counts the tunnel.
    fn ticket(&self) -> Option<&Ticket> {
        match self {
            Backend::Carrier(carrier) => Some(carrier.ticket()),
            #[cfg(feature = "upgrade")]
            Backend::Moved(_, ticket) => ticket.as_ref(),
        }
    }
}

/// Bytes after which other fibers get their turn, if `to` takes all at once.
const TURN: usize = 256 << 10;

/// The time after which bytes that were passed on are counted with the backend, while the tunnel goes on.
const COUNTED_EVERY: Duration = Duration::from_secs(10);

/// The idle timeouts: the longest times without a byte in either direction.
#[derive(Clone, Copy)]
pub(super) struct Idle {
    /// The timeout while both directions are open.
    pub(super) both: Duration,
    /// The timeout, counted from the half-close, if it is shorter.
    pub(super) half_closed: Duration,
}

/// The direction of a byte.
#[derive(Clone, Copy)]
enum Towards {
    Backend,
    Client,
}

/// The state that both directions share.
struct Shared {
    backend: Backend,
    /// The client's connection, from the beginning of the tunnel on.
    client: OnceCell<Rc<Link>>,
    idle: Idle,
    began: Stamp,
    /// When the last byte, or the end of one direction, was passed on.
    moved: Cell<Stamp>,
    /// When bytes were counted with the backend last.
    counted: Cell<Stamp>,
    /// Bytes by [`Towards`] that the backend has not counted.
    uncounted: [Cell<u64>; 2],
    half_closed: Cell<bool>,
    /// Whether `ToClient` has a fiber, or bytes that wait for one.
    is_to_client_busy: Cell<bool>,
    /// Set at the end of `ToClient`.
    is_to_client_over: Cell<bool>,
    /// Set when both sockets have been shut down.
    is_cut: Cell<bool>,
    /// Set when both sockets belong to another process.
    has_moved: Cell<bool>,
    end: Cell<Option<TunnelEnd>>,
    report: RefCell<Option<TunnelReport>>,
}

impl Shared {
    fn new(backend: Backend, idle: Idle) -> Shared {
        let now = Stamp::coarse();
        Shared {
            backend,
            client: OnceCell::new(),
            idle,
            began: now,
            moved: Cell::new(now),
            counted: Cell::new(now),
            uncounted: Default::default(),
            half_closed: Cell::new(false),
            is_to_client_busy: Cell::new(false),
            is_to_client_over: Cell::new(false),
            is_cut: Cell::new(false),
            has_moved: Cell::new(false),
            end: Cell::new(None),
            report: RefCell::new(None),
        }
    }

    fn backend(&self) -> &Transport {
        self.backend.transport()
    }

    /// Notes bytes that were passed on.
    fn passes(&self, count: usize, towards: Towards) {
        let uncounted = &self.uncounted[towards as usize];
        uncounted.set(uncounted.get() + count as u64);
        if self.moved.get().since(self.counted.get()) >= COUNTED_EVERY {
            self.count();
        }
    }

    /// Counts the bytes with the backend.
    #[cold]
    fn count(&self) {
        self.counted.set(self.moved.get());
        let bytes = self.uncounted.each_ref().map(Cell::take);
        if let Some(report) = &mut *self.report.borrow_mut() {
            report
                .passed
                .iter_mut()
                .zip(bytes)
                .for_each(|(passed, bytes)| *passed += bytes);
        }
        if let Some(ticket) = self.backend.ticket() {
            ticket.tunnelled(bytes[0], bytes[1]);
        }
    }

    /// Takes the report of the end, with all bytes counted so far.
    fn take_report(&self) -> Option<TunnelReport> {
        let mut report = self.report.take()?;
        let client = self.client.get();
        report.client = client.map(|client| (client.worker.server.clone(), client.peer(), client.is_proxied()));
        Some(report)
    }

    /// Sets why the tunnel ends. The first reason counts, unless neither side was to blame for the rest.
    fn ends(&self, why: TunnelEnd) {
        use TunnelEnd::{Evicted, IdleTimeout, Moved, Shutdown};
        let is_ours = matches!(why, IdleTimeout | Shutdown | Evicted | Moved);
        if self.end.get().is_none() || is_ours && !self.is_cut.get() {
            self.end.set(Some(why));
        }
    }

    /// Passes the end of the direction that `to` has received on.
    fn half_close(&self, to: &Transport, why: TunnelEnd) {
        let _ = to.shutdown_write();
        self.ends(why);
        self.half_closed.set(true);
        // The shorter timeout begins here. Earlier silence was within the longer one.
        self.moved.set(Stamp::coarse());
    }

    /// Ends both directions, which meet the end of both sockets.
    fn cut(&self, client: &Link, why: TunnelEnd) {
        client.leaves_protocol(why.close_reason());
        self.ends(why);
        self.is_cut.set(true);
        for end in [&client.transport, self.backend()] {
            let _ = end.socket().shutdown(Shutdown::Both);
        }
    }

    /// Why the server has ended the client's connection, until both directions are cut for it.
    fn uncut_end(&self) -> Option<TunnelEnd> {
        let client = self.client.get().filter(|_| !self.is_cut.get());
        client.and_then(|client| client.end_of_tunnel())
    }

    /// The time until the idle timeout, if nothing moves meanwhile.
    fn left(&self) -> Duration {
        let idle = match self.half_closed.get() {
            true => self.idle.both.min(self.idle.half_closed),
            false => self.idle.both,
        };
        idle.saturating_sub(Stamp::coarse().since(self.moved.get()))
    }

    /// Copies the bytes that have arrived, as far as that needs no fiber. Returns whether it needs none; otherwise a fiber goes on with
    /// what is `left`.
    fn copy_at_once(&self, from: &Transport, to: &Transport, left: &mut Left, towards: Towards) -> bool {
        let (Some(from), Some(to)) = (from.plain(), to.plain()) else {
            return false;
        };
        if left.is_any() {
            return false;
        }
        let mut piece = buffers::take(Size::K16);
        let is_done = match from.try_read(&mut piece) {
            Ok(count @ 1..) => {
                self.moved.set(Stamp::coarse());
                // The fiber meets the error.
                let sent = to.try_write(&piece[..count]).unwrap_or(0);
                self.passes(sent, towards);
                left.unsent.extend_from_slice(&piece[sent..count]);
                sent == count && count < piece.len()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            end => {
                left.read = Some(end);
                false
            }
        };
        buffers::give(piece);
        is_done
    }

    /// Copies what is `left` and the bytes that have arrived, and reads with `read`. Returns whether the end of `from` has arrived.
    ///
    /// # Suspends
    ///
    /// While `to` takes nothing, and after each [`TURN`].
    fn copy(
        &self,
        left: &mut Left,
        from: &Transport,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
        to: &Transport,
        towards: Towards,
    ) -> Result<bool, Failed> {
        if !left.unsent.is_empty() {
            let unsent = mem::take(&mut left.unsent);
            to.send_all(&unsent).map_err(Failed::To)?;
            self.passes(unsent.len(), towards);
        }
        let (mut piece, mut turn) = (buffers::take(Size::K16), 0);
        let copied = loop {
            let count = match left.read.take().unwrap_or_else(|| read(&mut piece)) {
                Ok(0) => break Ok(true),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(false),
                Err(_) => break Err(Failed::From),
            };
            self.moved.set(Stamp::coarse());
            if let Err(error) = to.send_all(&piece[..count]) {
                break Err(Failed::To(error));
            }
            self.passes(count, towards);
            // The socket announces what comes later, its end for example.
            if count < piece.len() && !from.has_unread() {
                break Ok(false);
            }
            turn += count;
            if turn >= TURN {
                osier::fiber::give_way();
                turn = 0;
            }
        };
        buffers::give(piece);
        copied
    }
}

impl Drop for Shared {
    /// Both directions are over.
    fn drop(&mut self) {
        let now = Stamp::coarse();
        self.count();
        if let Some(ticket) = self.backend.ticket() {
            ticket.tunnel_took(now.since(self.began));
        }
        if let Some(report) = self.take_report() {
            // A client that has left before the beginning is no direction's end.
            report.tell(self.end.get().unwrap_or(TunnelEnd::ClientFailed));
        }
    }
}

/// The work that a direction has left to its fiber.
#[derive(Default)]
struct Left {
    /// Bytes that have been read.
    unsent: Vec<u8>,
    /// The outcome of the next read: an end or an error, which a socket does not always tell twice.
    read: Option<io::Result<usize>>,
}

impl Left {
    fn is_any(&self) -> bool {
        !self.unsent.is_empty() || self.read.is_some()
    }
}

/// The side at which a direction has failed.
enum Failed {
    From,
    To(io::Error),
}

/// The direction from the client to the backend.
pub(crate) struct ToBackend {
    shared: Rc<Shared>,
    /// Bytes that the backend has sent behind its 101, until the other direction takes them.
    received: Vec<u8>,
    left: Left,
    is_over: bool,
    /// Whether the end of the other direction has been looked at.
    has_seen_end: bool,
}

impl ToBackend {
    pub(super) fn new(backend: Rc<Carrier>, received: Vec<u8>, idle: Idle) -> ToBackend {
        ToBackend {
            shared: Rc::new(Shared::new(Backend::Carrier(backend), idle)),
            received,
            left: Left::default(),
            is_over: false,
            has_seen_end: false,
        }
    }

    /// Makes the tunnel of another process anew.
    #[cfg(feature = "upgrade")]
    pub(crate) fn restored(tunnel: Tunnel, backend: Stream, ticket: Option<Ticket>) -> io::Result<ToBackend> {
        backend.set_write_timeout(tunnel.write)?;
        let [both, half_closed] = tunnel.idle;
        let [is_over, is_to_client_over] = tunnel.ended;
        let shared = Shared::new(Backend::Moved(backend.into(), ticket), Idle { both, half_closed });
        shared.moved.set(Stamp::coarse() - tunnel.silent);
        shared.half_closed.set(is_over || is_to_client_over);
        shared.is_to_client_over.set(is_to_client_over);
        Ok(ToBackend {
            shared: Rc::new(shared),
            received: Vec::new(),
            left: Left::default(),
            is_over,
            has_seen_end: false,
        })
    }

    fn carry(&mut self, io: &mut Upgraded) {
        let (client, shared) = (io.link().clone(), &*self.shared);
        let backend = shared.backend();
        let read = |into: &mut [u8]| io.try_read(into);
        let copied = shared.copy(&mut self.left, &client.transport, read, backend, Towards::Backend);
        match (copied, client.end_of_tunnel()) {
            (Ok(false), _) => return,
            (_, Some(why)) => shared.cut(&client, why),
            (Ok(true), None) => shared.half_close(backend, TunnelEnd::Client),
            (Err(Failed::From), None) => shared.cut(&client, TunnelEnd::ClientFailed),
            (Err(Failed::To(_)), None) => shared.cut(&client, TunnelEnd::BackendFailed),
        }
        self.is_over = true;
    }

    fn rest(&mut self, io: &Upgraded) -> AfterBurst {
        let left = self.shared.left();
        if left.is_zero() {
            self.shared.cut(io.link(), TunnelEnd::IdleTimeout);
            self.is_over = true;
        }
        match (self.is_over, self.shared.is_to_client_over.get()) {
            (true, true) => AfterBurst::End,
            // The other direction meets the end of its socket.
            (true, false) if left.is_zero() => AfterBurst::SleepUntilWoken(None),
            (true, false) => AfterBurst::SleepUntilWoken(osier::time::coarse_now().checked_add(left)),
            (false, _) => AfterBurst::SleepFor(left),
        }
    }
}

impl Session for ToBackend {
    fn open(&mut self, io: &mut Upgraded) -> AfterBurst {
        self.shared.client.get_or_init(|| io.link().clone());
        if self.shared.is_to_client_over.get() {
            return self.rest(io);
        }
        let to_client = ToClient {
            shared: self.shared.clone(),
            client: io.link().clone(),
            left: Left {
                unsent: mem::take(&mut self.received),
                read: None,
            },
            has_ended: false,
        };
        let wants_fiber = to_client.left.is_any() || self.shared.backend().has_unread();
        self.shared.is_to_client_busy.set(wants_fiber);
        if let Err(error) = osier::dormant::park_local(Box::new(to_client), None) {
            cannot_watch(&io.link().worker, io.peer(), &error);
        } else if wants_fiber {
            osier::dormant::wake(self.shared.backend().socket());
        }
        self.rest(io)
    }

    fn serve_at_once(&mut self, io: &mut Upgraded, cause: Cause) -> bool {
        if cause != Cause::Readable || self.is_over || !io.buffered().is_empty() {
            return false;
        }
        let (shared, client) = (&*self.shared, &io.link().transport);
        shared.copy_at_once(client, shared.backend(), &mut self.left, Towards::Backend)
    }

    fn wake(&mut self, io: &mut Upgraded, cause: Cause) -> AfterBurst {
        if cause == Cause::Shutdown {
            self.shared.ends(TunnelEnd::Shutdown);
            return AfterBurst::End;
        }
        self.has_seen_end = self.shared.is_to_client_over.get();
        if !self.is_over {
            self.carry(io);
        } else if let Some(why) = self.shared.uncut_end() {
            self.shared.cut(io.link(), why);
        }
        self.rest(io)
    }

    #[cfg(feature = "upgrade")]
    fn save_tunnel(&mut self) -> Option<(Tunnel, Stream, Option<TunnelReport>)> {
        let shared = &*self.shared;
        let is_to_client_over = shared.is_to_client_over.get();
        let is_to_client_busy = shared.is_to_client_busy.get() && !is_to_client_over;
        if shared.is_cut.get() || is_to_client_busy || self.left.is_any() {
            return None;
        }
        // TLS to a backend stays: its keys belong to this process.
        let backend = shared.backend().plain()?;
        let tunnel = Tunnel {
            idle: [shared.idle.both, shared.idle.half_closed],
            silent: Stamp::coarse().since(shared.moved.get()),
            write: backend.write_timeout().ok()?,
            ended: [self.is_over, is_to_client_over],
        };
        let socket = backend.try_clone().ok()?;
        shared.ends(TunnelEnd::Moved);
        shared.has_moved.set(true);
        // The other direction ends, and leaves the sockets alone.
        osier::dormant::wake(backend);
        shared.count();
        Some((tunnel, socket, shared.take_report()))
    }

    #[cfg(feature = "upgrade")]
    fn has_come_back(&mut self, report: TunnelReport) {
        self.shared.report.replace(Some(report));
    }

    fn at_tunnel_end(&mut self, hook: TunnelHook) {
        if let Some(ticket) = self.shared.backend.ticket() {
            self.shared
                .report
                .replace(Some(TunnelReport::new(hook, ticket.label())));
        }
    }

    fn is_tunnel(&self) -> bool {
        true
    }

    fn poll_woken(&mut self, _: &mut Context<'_>) -> Poll<()> {
        let is_to_client_over = self.shared.is_to_client_over.get() && !self.has_seen_end;
        match is_to_client_over || self.shared.uncut_end().is_some() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for ToBackend {
    /// The other direction may still run, if the runtime ends.
    fn drop(&mut self) {
        if !self.shared.has_moved.get() {
            let _ = self.shared.backend().socket().shutdown(Shutdown::Both);
        }
    }
}

/// The direction from the backend to the client.
struct ToClient {
    shared: Rc<Shared>,
    client: Rc<Link>,
    left: Left,
    /// Whether the end of this direction has been passed on.
    has_ended: bool,
}

impl ToClient {
    /// Copies what has arrived. Returns whether the end has.
    fn carry(&mut self) -> Result<bool, Failed> {
        let (client, backend) = (&self.client.transport, self.shared.backend());
        let read = |into: &mut [u8]| backend.try_read(into);
        self.shared.copy(&mut self.left, backend, read, client, Towards::Client)
    }
}

impl Dormant for ToClient {
    fn source(&self) -> &dyn osier::io::Source {
        self.shared.backend().socket()
    }

    fn serve_at_once(&mut self, cause: Cause) -> bool {
        let shared = &*self.shared;
        if cause != Cause::Readable || shared.has_moved.get() {
            return false;
        }
        let client = &self.client.transport;
        let is_done = shared.copy_at_once(shared.backend(), client, &mut self.left, Towards::Client);
        shared.is_to_client_busy.set(!is_done);
        is_done
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        if self.shared.has_moved.get() {
            return AfterBurst::End;
        }
        if cause == Cause::Shutdown {
            self.shared.cut(&self.client, TunnelEnd::Shutdown);
            return AfterBurst::End;
        }
        self.shared.is_to_client_busy.set(true);
        let carried = self.carry();
        match (carried, self.client.end_of_tunnel()) {
            (Ok(false), _) => {
                self.shared.is_to_client_busy.set(false);
                return AfterBurst::Sleep(None);
            }
            (_, Some(why)) => self.shared.cut(&self.client, why),
            (Ok(true), None) => {
                self.shared.half_close(&self.client.transport, TunnelEnd::Backend);
                self.has_ended = true;
            }
            (Err(Failed::From), None) => self.shared.cut(&self.client, TunnelEnd::BackendFailed),
            (Err(Failed::To(error)), None) => {
                let is_slow = CloseReason::of_output(&error) == CloseReason::WriteTimeout;
                let why = if is_slow {
                    TunnelEnd::WriteTimeout
                } else {
                    TunnelEnd::ClientFailed
                };
                self.shared.cut(&self.client, why);
            }
        }
        AfterBurst::End
    }
}

impl Drop for ToClient {
    fn drop(&mut self) {
        if self.shared.has_moved.get() {
            return;
        }
        if !self.has_ended {
            self.shared.cut(&self.client, TunnelEnd::BackendFailed);
        }
        self.shared.is_to_client_over.set(true);
        osier::dormant::wake(self.client.socket());
    }
}
