//! The box of a connection: it feeds received bytes to the machine, and has new streams served.

#[cfg(feature = "upgrade")]
use std::cell::Cell;
use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
#[cfg(feature = "upgrade")]
use std::time::Duration;
use std::time::Instant;

use osier::dormant::Cause;
use osier::memory::{self, Account, Charge, Pressure};
use osier_http::Reject;
use osier_http::h2::{Error, ErrorCode, Event};

use crate::conn::close::CloseReason;
use crate::conn::frames::Writer;
use crate::conn::log::record::{Level, Reason, Record};
use crate::conn::serve::{Local, Multiplexed, Next};
use crate::conn::stalled;
use crate::conn::worker::Link;
use crate::server::h2::shared::{Shared, WARM};

type Shutdown = Pin<Box<dyn Future<Output = ()>>>;

pub(crate) struct Connection {
    shared: Rc<Shared>,
    /// The wait for the graceful shutdown of the server. `None` once it has begun.
    shutdown: Option<Shutdown>,
    /// Since when another process serves, to which the connection moves after its streams.
    #[cfg(feature = "upgrade")]
    leaving_since: Cell<Option<Instant>>,
    /// Whether that wait is in line.
    is_in_line: bool,
    /// Whether the end of the last stream has been seen by the last poll.
    is_reported: bool,
    _charge: Charge,
}

/// The memory of a connection without streams, besides that of HTTP/1.1.
const BYTES: usize = 900;

/// How long the streams of a connection may keep it from moving to another process. Then the client gets a GOAWAY: its next requests reach
/// that process over another connection, however long a WebSocket or an event stream goes on here.
#[cfg(feature = "upgrade")]
const MOVES_WITHIN: Duration = Duration::from_secs(10);

/// A connection that finds no stack when something happens ends at once. Its streams do not wait for it any longer.
impl Drop for Connection {
    fn drop(&mut self) {
        if !self.shared.is_idle() {
            self.shared.lose(CloseReason::Failed);
        }
    }
}

impl Connection {
    /// Makes the connection of a client that speaks HTTP/2.
    pub(crate) fn new(local: &Rc<Local>, link: &Rc<Link>) -> Connection {
        Connection::around(Shared::new(local, link))
    }

    /// Makes the connection that another process has exported. `None` if that cannot be read.
    #[cfg(feature = "upgrade")]
    pub(crate) fn import(local: &Rc<Local>, link: &Rc<Link>, exported: &[u8]) -> Option<Connection> {
        Some(Connection::around(Shared::import(local, link, exported)?))
    }

    fn around(shared: Rc<Shared>) -> Connection {
        let shutdown = Some(shutdown_of(&shared));
        Connection {
            shared,
            shutdown,
            #[cfg(feature = "upgrade")]
            leaving_since: Cell::new(None),
            is_in_line: false,
            is_reported: false,
            _charge: Account::HTTP2.charge(BYTES),
        }
    }

    /// Reads once.
    ///
    /// # Suspends
    ///
    /// While the client must read before more output fits, and when the connection ends.
    fn read(&mut self) -> Next {
        let shared = self.shared.clone();
        if !shared.machine.borrow().wants_input() {
            shared.flush();
        }
        let mut buffers = shared.local.worker.take_buffers();
        let read = match shared.link.is_evicted() {
            true => shared.link.transport.receive_at_once(&mut buffers.input),
            false => shared.link.transport.receive(&mut buffers.input),
        };
        let next = match read {
            Ok(count @ 1..) => Some(self.receive(&buffers.input[..count])),
            _ => None,
        };
        // The end of a connection waits for its handlers, without buffers.
        shared.local.worker.give_buffers(buffers);
        match (next, read) {
            (Some(next), _) => next,
            (None, Err(error)) if error.kind() == io::ErrorKind::TimedOut => self.rest(),
            (None, _) => self.input_ended(),
        }
    }

    fn handle(&mut self, event: Event<'_>) {
        let shared = &self.shared;
        match event {
            Event::Request { stream, head, .. } => shared.add(stream, head),
            Event::Data { stream, bytes, end } => {
                if let Some(inlet) = shared.make_inlet(stream, false) {
                    inlet.receive(bytes, end);
                }
            }
            Event::Trailers { stream, fields } => {
                if let Some(inlet) = shared.make_inlet(stream, false) {
                    inlet.end_with(fields);
                }
            }
            Event::Reset { stream, .. } => {
                if shared.drop_new(stream) {
                    shared.remove(stream);
                } else if let Some(inlet) = shared.make_inlet(stream, false) {
                    inlet.reset();
                }
            }
            Event::Refused { reject, .. } => {
                let reason = Reason::beyond(reject, &shared.local.worker.server.limits);
                self.log_refused(reject.status(), reason, Some(reject));
                self.observe_refused(reject.status());
            }
            Event::Malformed { reason, .. } => {
                self.log_refused(ErrorCode::PROTOCOL_ERROR, reason, None);
                self.observe_refused(400);
            }
            // The connection ends with its last stream, whose end wakes the box.
            Event::GoAway { .. } => shared.is_ending.set(true),
            _ => {}
        }
    }

    #[cold]
    fn log_refused(&self, answer: impl Display, reason: impl Display, reject: Option<Reject>) {
        let link = &self.shared.link;
        let text = format_args!("a request was refused with {answer}: {reason}");
        let record = Record::new(Level::Info, text).of_client(link.peer(), link.is_proxied());
        self.shared.local.worker.server.log(&record.of_refused(reject));
    }

    fn observe_refused(&self, status: u16) {
        self.shared.local.app.observe_refused(&self.shared.link, status);
    }

    /// Rests until something happens, or ends a connection that is done.
    ///
    /// # Suspends
    ///
    /// When the connection ends, as [`finish`](Self::finish) does.
    fn rest(&mut self) -> Next {
        let shared = &self.shared;
        if !shared.is_warm.get() {
            shared.cool();
        }
        let machine = shared.machine.borrow();
        if machine.is_done() {
            drop(machine);
            let is_draining = shared.local.worker.draining.get();
            return self.finish(match is_draining {
                true => CloseReason::Shutdown,
                false => CloseReason::Client,
            });
        }
        let timeouts = &shared.local.worker.server.timeouts;
        let now = osier::time::coarse_now();
        let look = match shared.is_idle() {
            true => shared.idle_since.get().checked_add(timeouts.idle),
            // A stream that begins to wait for its window tells nobody.
            false => now.checked_add(timeouts.write.min(timeouts.idle)),
        };
        let cool = shared.is_warm.get().then(|| now + WARM);
        let goes_away = self.goes_away_at();
        let deadlines = machine.next_deadline().into_iter().chain(look).chain(cool);
        Next::Sleep(deadlines.chain(goes_away).min())
    }

    /// When the client has to hear that the connection ends, because its streams keep it from moving to another process.
    fn goes_away_at(&self) -> Option<Instant> {
        #[cfg(feature = "upgrade")]
        if let Some(since) = self.leaving_since.get()
            && self.shutdown.is_some()
            && !self.shared.is_idle()
        {
            return Some(since + MOVES_WITHIN);
        }
        None
    }

    /// Ends the connection after its last stream.
    ///
    /// # Suspends
    ///
    /// Until that stream has ended and the output is written.
    #[cold]
    fn finish(&mut self, reason: CloseReason) -> Next {
        let shared = &self.shared;
        shared.is_ending.set(true);
        shared.link.ends(reason);
        shared.wait_for_streams();
        shared.flush();
        match reason {
            // The client has answered the first GOAWAY, or sent its own.
            CloseReason::Shutdown | CloseReason::Client if !shared.has_to_read_on() => Next::Close(reason),
            _ => Next::Linger(reason),
        }
    }

    /// Ends the connection because the client has violated the protocol, or is too slow.
    ///
    /// # Suspends
    ///
    /// As [`finish`](Self::finish) does.
    #[cold]
    fn fail(&mut self, error: Error, reason: CloseReason) -> Next {
        let link = &self.shared.link;
        let text = format_args!("closed an HTTP/2 connection: {error}");
        let record = Record::new(Level::Info, text).of_client(link.peer(), link.is_proxied());
        self.shared.local.worker.server.log(&record);
        self.shared.reset_all();
        self.shared.serve_soon();
        self.shared.flush();
        self.finish(reason)
    }

    /// The place of the connection is needed, which is idle. It goes on if a request has just arrived.
    ///
    /// # Suspends
    ///
    /// As [`read`](Self::read) does.
    #[cold]
    fn evicted(&mut self) -> Next {
        let next = self.read();
        let link = &self.shared.link;
        match next {
            Next::Sleep(_) if self.shared.is_idle() => self.input_ended(),
            next => {
                if link.is_evicted() {
                    link.end();
                }
                next
            }
        }
    }

    /// The client has ended its direction or has left, or the connection is evicted.
    ///
    /// # Suspends
    ///
    /// Until the last stream has ended.
    #[cold]
    fn input_ended(&mut self) -> Next {
        let shared = self.shared.clone();
        let is_idle = shared.is_idle();
        if is_idle && !shared.is_lost.get() {
            // One that is evicted hears of it.
            shared.machine.borrow_mut().close(ErrorCode::NO_ERROR);
            shared.link.ends(CloseReason::Client);
            shared.is_ending.set(true);
            shared.flush();
        }
        shared.lose(CloseReason::Client);
        shared.wait_for_streams();
        Next::Close(CloseReason::Client)
    }

    /// Does what is due.
    ///
    /// # Suspends
    ///
    /// When the connection ends, as [`finish`](Self::finish) does.
    fn expire(&mut self) -> Next {
        let now = osier::time::coarse_now();
        self.shared.is_warm.set(false);
        loop {
            let expired = self.shared.machine.borrow_mut().expire(now);
            match expired {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => break,
                Err(error) => return self.fail(error, CloseReason::HeaderTimeout),
            }
        }
        self.shared.wake_writable();
        self.shared.flush_soon();
        if self.has_idled(now) {
            self.shared.machine.borrow_mut().close(ErrorCode::NO_ERROR);
            return self.finish(CloseReason::IdleTimeout);
        }
        self.rest()
    }

    /// Resets the streams whose client has opened no window for some time: near the limit of memory.
    #[cold]
    fn reset_stalled(&mut self) -> Result<(), Error> {
        let now = osier::time::coarse_now();
        loop {
            let held = self
                .shared
                .machine
                .borrow_mut()
                .reset_stalled(stalled::STALLED_AFTER, now)?;
            match held {
                Some(event) => self.handle(event),
                None => break,
            }
        }
        self.shared.wake_writable();
        self.shared.flush_soon();
        Ok(())
    }

    /// Whether no stream has run for the idle timeout.
    fn has_idled(&self, now: Instant) -> bool {
        let idle = self.shared.local.worker.server.timeouts.idle;
        let since = self.shared.idle_since.get();
        self.shared.is_idle() && now.saturating_duration_since(since) >= idle
    }

    /// Whether the connection has to end because the server does. If another worker has begun the shutdown, this one may not have noted it
    /// yet, and its box is not woken again. In an upgrade a connection moves after its streams, if it can and they end soon.
    fn is_shutting_down(&self) -> bool {
        let worker = &self.shared.local.worker;
        #[cfg(feature = "upgrade")]
        if worker.leaving.borrow().is_some() && self.shared.link.transport.may_move() {
            let now = osier::time::coarse_now();
            self.leaving_since.set(self.leaving_since.get().or(Some(now)));
            return self.goes_away_at().is_some_and(|at| at <= now);
        }
        #[cfg(feature = "upgrade")]
        self.leaving_since.set(None);
        worker.server.shutdown.is_set()
    }

    /// Begins the graceful end.
    fn shut_down(&mut self) {
        self.shutdown = None;
        self.shared.is_ending.set(true);
        self.shared.machine.borrow_mut().shutdown(osier::time::coarse_now());
        self.shared.flush_soon();
    }
}

/// The wait for the graceful shutdown of the server.
fn shutdown_of(shared: &Shared) -> Shutdown {
    let shutdown = shared.local.worker.server.shutdown.clone();
    Box::pin(async move { shutdown.wait_async().await })
}

impl Multiplexed for Connection {
    fn receive(&mut self, mut bytes: &[u8]) -> Next {
        let shared = self.shared.clone();
        let now = osier::time::coarse_now();
        let worker = &shared.local.worker;
        worker.date.borrow_mut().refresh(now);
        shared.lend();
        loop {
            let received = shared.machine.borrow_mut().receive(bytes, now);
            let (count, event) = match received {
                Ok(received) => received,
                Err(error) => return self.fail(error, CloseReason::ProtocolError),
            };
            bytes = &bytes[count..];
            match event {
                Some(event) => self.handle(event),
                None if bytes.is_empty() => break,
                None => {}
            }
        }
        shared.wake_writable();
        shared.serve_soon();
        shared.flush_soon();
        shared.reclaim();
        self.rest()
    }

    #[cfg(feature = "upgrade")]
    fn export(&self) -> Option<Vec<u8>> {
        self.shared.export()
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.is_ending.get() {
            *self.shared.waker.borrow_mut() = Some(cx.waker().clone());
            let has_ended = self.shared.is_idle();
            let was_reported = std::mem::replace(&mut self.is_reported, has_ended);
            return match has_ended && !was_reported {
                true => Poll::Ready(()),
                false => Poll::Pending,
            };
        }
        #[cfg(feature = "upgrade")]
        let was_leaving = self.leaving_since.get().is_some();
        let is_shutting_down = self.is_shutting_down();
        #[cfg(feature = "upgrade")]
        if !was_leaving && self.goes_away_at().is_some() {
            // The deadline is a nearer one now.
            return Poll::Ready(());
        }
        let Some(shutdown) = &mut self.shutdown else {
            return Poll::Pending;
        };
        // The waker of a box is always the same.
        if std::mem::replace(&mut self.is_in_line, true) && !is_shutting_down {
            return Poll::Pending;
        }
        let polled = shutdown.as_mut().poll(cx);
        if polled.is_ready() {
            // A connection that is about to move goes on. A future that was ready must not be polled again.
            *shutdown = shutdown_of(&self.shared);
        }
        polled
    }

    fn wake(&mut self, cause: Cause) -> Next {
        if cause != Cause::Shutdown && self.shutdown.is_some() && self.is_shutting_down() {
            self.shut_down();
        }
        if memory::pressure() == Pressure::Critical
            && cause == Cause::Readable
            && let Err(error) = self.reset_stalled()
        {
            return self.fail(error, CloseReason::Evicted);
        }
        match cause {
            Cause::Readable if self.shared.link.is_evicted() && self.shared.is_idle() => self.evicted(),
            Cause::Readable => {
                let next = self.read();
                // Their bytes may have come with this read.
                if memory::pressure() == Pressure::Critical {
                    self.shared.reset_silent(stalled::STALLED_AFTER);
                    self.shared.flush_soon();
                }
                next
            }
            Cause::Deadline => self.expire(),
            Cause::Woken | Cause::Writable => self.rest(),
            Cause::Shutdown => {
                self.shared.lose(CloseReason::Shutdown);
                Next::Close(CloseReason::Shutdown)
            }
        }
    }
}
