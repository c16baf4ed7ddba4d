//! A connection: a small box in a slot of the worker while it rests, a burst on a pooled fiber when
//! bytes arrive.
//!
//! ```text
//!            bytes                 whole head
//!   Idle ───────────▶ burst ◀──────────────────── Head (some bytes of a head, no stack)
//!    ▲                 │  └───── part of a head ───▶ ▲ │ more bytes, still not all
//!    └─── all served ──┘                             └─┘
//!                      ├─ a handler that wants the whole body ─▶ Awaiting (no stack) ─▶ burst
//!                      ├─ refused, or closing while the client may still send ─▶ Linger ─▶ gone
//!                      ├─ a body whose code has nothing to send for a while ─▶ Paused (no stack) ─▶ burst
//!                      ├─ the rest of a file, which the client takes slowly ─▶ Sending (no stack) ─▶ as after a burst
//!                      ├─ HTTP/2, by its first bytes ─▶ Streams (no stack) ─▶ its end ─▶ Linger ─▶ gone
//!                      └─ another protocol, such as WebSocket ─▶ its end ─▶ Linger ─▶ gone
//! ```
//!
//! A connection of a trusted balancer begins as `Announced` instead. It becomes idle, or runs a
//! burst, when its PROXY header is whole. A connection with TLS has its `Handshake` before it becomes
//! idle. It rests in the middle of a handshake or of a record without a stack.
//!
//! The runtime calls [`Dormant::wake`] on a fiber of the connection's worker and never twice at
//! once, so the handlers of one connection do not overlap. The result of `wake` says until when the
//! connection rests.

mod announced;
pub(crate) mod awaiting;
#[cfg(any(feature = "fastcgi", feature = "proxy", feature = "sendfile", feature = "ws"))]
#[cfg_attr(
    not(feature = "proxy"),
    allow(dead_code, reason = "only the proxy keeps buffers for heads")
)]
pub(crate) mod buffers;
pub(crate) mod clients;
pub(crate) mod close;
pub(crate) mod date;
#[cfg(feature = "h2")]
pub(crate) mod frames;
#[cfg(feature = "h2")]
pub(crate) mod growth;
#[cfg(feature = "upgrade")]
pub(crate) mod handover;
#[cfg(feature = "tls")]
mod handshake;
#[cfg(feature = "tls")]
pub(crate) mod handshake_queue;
mod head;
#[cfg(any(feature = "fastcgi", feature = "files", feature = "proxy"))]
pub(crate) mod ignoring_case;
#[cfg(feature = "h2")]
pub(crate) mod inlet;
mod linger;
pub(crate) mod listed;
pub(crate) mod log;
#[cfg(feature = "upgrade")]
pub(crate) mod moving;
pub(crate) mod network;
pub(crate) mod output;
pub(crate) mod paused;
pub(crate) mod peer;
#[cfg(feature = "ws")]
pub(crate) mod polled;
pub(crate) mod protocol;
pub(crate) mod rates;
pub(crate) mod rest;
#[cfg(feature = "fibers")]
pub(crate) mod resting;
#[cfg(all(feature = "tls", any(feature = "fastcgi", feature = "proxy", feature = "redis")))]
pub(crate) mod secured;
mod sending;
pub(crate) mod serve;
pub(crate) mod server_state;
pub(crate) mod settings;
pub(crate) mod shelf;
pub(crate) mod slow;
pub(crate) mod stalled;
pub(crate) mod stream;
pub(crate) mod times;
pub(crate) mod trailers;
pub(crate) mod transport;
pub(crate) mod tunnel;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod unnamed;
pub(crate) mod upgrade;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod waited;
pub(crate) mod worker;
#[cfg(feature = "h2")]
pub(crate) mod written;

use std::io;
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::Extensions;
use osier::dormant::{AfterBurst, Cause, Dormant};
use osier::net::{Stream, UnixStream};
use osier_http::HeadScanner;

use crate::conn::announced::Announced;
use crate::conn::awaiting::{Awaiting, Receiving};
use crate::conn::close::CloseReason;
#[cfg(feature = "tls")]
use crate::conn::handshake::Handshake;
use crate::conn::head::Partial;
use crate::conn::linger::Linger;
use crate::conn::log::record::{Level, Record};
use crate::conn::output::Output;
use crate::conn::paused::Paused;
use crate::conn::protocol::Protocol;
use crate::conn::sending::Sending;
use crate::conn::serve::{After, Input, Local};
#[cfg(feature = "h2")]
use crate::conn::serve::{Multiplexed, Next};
use crate::conn::upgrade::{Session, Takeover, Upgraded};
use crate::conn::worker::{Buffers, FRESH_GRACE, Link, RESTING, Worker};

/// The beginning of the HTTP/2 preface (RFC 9113 section 3.4). No method begins like that.
#[cfg(feature = "h2")]
const PREFACE_BEGIN: &[u8] = b"PRI ";

/// Some clients add it to a request. It is not the beginning of one (RFC 9112 section 2.2).
const EMPTY_LINE: &[u8] = b"\r\n";

pub(crate) struct Conn {
    link: Rc<Link>,
    local: Rc<Local>,
    /// `None` while the connection is idle. Most connections are.
    stage: Option<Box<Stage>>,
}

enum Stage {
    /// Waits for the PROXY header.
    Announced(Announced),
    /// Waits for bytes of the TLS handshake, or for its turn.
    #[cfg(feature = "tls")]
    Handshake(Handshake),
    Head(Box<Partial>),
    Linger(Linger),
    Sending(Box<Sending>),
    Awaiting(Box<Awaiting>, Option<Instant>),
    Paused(Box<Paused>),
    /// Hands the socket to its protocol at the first wake-up: the pair of a stream or of a test, or a session that came from the old process.
    Begins(Takeover, Extensions, End),
    /// No longer HTTP.
    Session(Taken),
    /// HTTP/2.
    #[cfg(feature = "h2")]
    Streams(Box<dyn Multiplexed>),
}

/// The beginning of a burst.
enum First {
    /// The requests in the input.
    Input,
    /// A request whose body has been received.
    Received(Box<dyn Receiving>),
    /// The rest of a response.
    Paused(Box<Paused>),
}

/// The end of a connection that begins with another protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A socket to the client.
    Client,
    /// A pair of sockets, whose other end stays in this process.
    Pair,
}

struct Taken {
    session: Box<dyn Session>,
    io: Upgraded,
    /// The extensions of the request. A policy counts the connection by a value among them.
    _extensions: Extensions,
}

impl Conn {
    /// Makes the worker of `local` serve a new socket.
    pub(crate) fn open(local: &Rc<Local>, stream: Stream, peer: SocketAddr) {
        let worker = &local.worker;
        let timeouts = &worker.server.timeouts;
        worker.server.set_pace(&stream);
        let prepared = stream
            .set_read_timeout(Some(RESTING))
            .and_then(|()| stream.set_write_timeout(Some(timeouts.write)));
        let is_trusted = worker.server.is_trusted(peer);
        let (stage, patience) = match is_trusted {
            true => (Some(Stage::Announced(Announced::default())), timeouts.idle),
            #[cfg(feature = "tls")]
            false if worker.server.tls.is_some() => {
                let patience = timeouts.handshake;
                (Some(Stage::Handshake(Handshake::until(after(patience)))), patience)
            }
            false => (None, timeouts.idle),
        };
        let conn = Box::new(Conn {
            link: worker.link(worker.server.transport(stream), peer),
            local: local.clone(),
            stage: stage.map(Box::new),
        });
        // A socket that fails here was reset after it was accepted.
        if prepared.is_err() {
            conn.link.ends(CloseReason::Client);
            return;
        }
        let patience = match worker.draining.get() {
            // The socket was on its way to this worker when the drain began.
            true => FRESH_GRACE,
            false => patience,
        };
        // Most clients send at once, so the first read comes before the poller. A PROXY header is read by calls that wait.
        let opened = match is_trusted {
            true => osier::dormant::park_local(conn, after(patience)),
            false => osier::dormant::start_local(conn, after(patience)),
        };
        if let Err(error) = opened {
            cannot_watch(worker, peer, &error);
        }
    }

    /// Opens a connection that begins with the new protocol, for an upgrade whose request did not
    /// come over a socket. Returns the other end.
    pub(crate) fn begin_with(
        takeover: (Takeover, Extensions),
        end: End,
        local: &Rc<Local>,
        peer: SocketAddr,
    ) -> io::Result<Stream> {
        Conn::begin_as(Protocol::Http1, takeover, end, local, peer).map(|(theirs, _)| theirs)
    }

    /// Does the same, counted as a connection of `protocol`. Returns also the connection as its worker sees it.
    pub(crate) fn begin_as(
        protocol: Protocol,
        (takeover, extensions): (Takeover, Extensions),
        end: End,
        local: &Rc<Local>,
        peer: SocketAddr,
    ) -> io::Result<(Stream, Weak<Link>)> {
        let worker = &local.worker;
        let (ours, theirs) = UnixStream::pair()?;
        let ours = Stream::from(ours);
        ours.set_read_timeout(Some(RESTING))?;
        ours.set_write_timeout(Some(worker.server.timeouts.write))?;
        // Dropping the connection gives this count back.
        if !worker.server.admit(peer) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        worker.server.arrived(worker.index);
        let link = worker.link(ours.into(), peer);
        link.speaks(protocol);
        let weak = Rc::downgrade(&link);
        let conn = Box::new(Conn {
            link,
            local: local.clone(),
            stage: Some(Box::new(Stage::Begins(takeover, extensions, end))),
        });
        osier::dormant::park_local(conn, Some(osier::time::coarse_now()))?;
        Ok((theirs.into(), weak))
    }

    /// Reads the first bytes of a request, or notices that the client is gone.
    fn begin(&mut self) -> AfterBurst {
        let mut buffers = self.link.worker.take_buffers();
        let is_fresh = self.link.is_fresh();
        // The place of an evicted connection is waited for.
        let read = match is_fresh || self.link.is_evicted() {
            true => self.link.transport.receive_at_once(&mut buffers.input),
            false => self.link.transport.receive(&mut buffers.input),
        };
        if let Ok(count @ 1..) = read {
            return match is_fresh {
                true => self.first_burst(buffers, count),
                false => self.burst(buffers, count),
            };
        }
        self.link.worker.give_buffers(buffers);
        match read {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && self.link.is_evicted() => {
                self.close(CloseReason::Evicted)
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut && self.link.transport.is_mid_record() => {
                self.rest_in_head(&[], HeadScanner::new(), is_fresh)
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut && is_fresh => {
                let next = self.sleep();
                self.watched(next)
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => self.sleep(),
            _ => self.close(CloseReason::Client),
        }
    }

    /// Has the worker's poller report the socket from now on. A new connection has not been reported yet, and calls that never wait
    /// would not meet the poller's error. Returns what comes next.
    fn watched(&self, next: AfterBurst) -> AfterBurst {
        match self.link.socket().watch() {
            Ok(()) => next,
            Err(error) => {
                cannot_watch(&self.link.worker, self.link.peer(), &error);
                self.close(CloseReason::Failed)
            }
        }
    }

    /// Runs the first burst of a connection, whose bytes tell the protocol.
    fn first_burst(&mut self, buffers: Buffers, filled: usize) -> AfterBurst {
        match self.is_http2(&buffers.input[..filled]) {
            Some(false) => self.burst(buffers, filled),
            #[cfg(feature = "h2")]
            Some(true) => self.begin_http2(buffers, filled),
            _ => {
                let next = self.rest_in_head(&buffers.input[..filled], HeadScanner::new(), true);
                self.link.worker.give_buffers(buffers);
                self.watched(next)
            }
        }
    }

    /// Whether a connection that begins with these bytes speaks HTTP/2. `None` if they are too few to tell.
    #[cfg(feature = "h2")]
    fn is_http2(&self, first: &[u8]) -> Option<bool> {
        let may_be = self.link.worker.server.http2.is_some();
        match first.len() < PREFACE_BEGIN.len() && may_be && PREFACE_BEGIN.starts_with(first) {
            true => None,
            false => Some(may_be && first.starts_with(PREFACE_BEGIN)),
        }
    }

    #[cfg(not(feature = "h2"))]
    fn is_http2(&self, _: &[u8]) -> Option<bool> {
        Some(false)
    }

    /// Leaves the connection to HTTP/2, whose first bytes are in the input.
    #[cfg(feature = "h2")]
    fn begin_http2(&mut self, buffers: Buffers, filled: usize) -> AfterBurst {
        let mut streams = self.local.app.multiplex(&self.local, &self.link);
        self.link.speaks(self.link.transport.spoken(true));
        let next = streams.receive(&buffers.input[..filled]);
        self.link.worker.give_buffers(buffers);
        self.set_stage(Stage::Streams(streams));
        match self.after_streams(next) {
            AfterBurst::End => AfterBurst::End,
            next => self.watched(next),
        }
    }

    #[cfg(feature = "h2")]
    fn after_streams(&mut self, next: Next) -> AfterBurst {
        match next {
            Next::Sleep(deadline) => AfterBurst::Sleep(deadline),
            Next::Close(reason) => self.close(reason),
            Next::Linger(reason) => self.linger(reason),
        }
    }

    /// Runs a burst on the first `filled` bytes of the input.
    fn burst(&mut self, buffers: Buffers, filled: usize) -> AfterBurst {
        self.burst_with(buffers, filled, First::Input)
    }

    /// Runs a burst on bytes that were received before, in two parts.
    ///
    /// # Suspends
    ///
    /// As a handler or a flush does.
    fn burst_on(&mut self, received: [&[u8]; 2], first: First) -> AfterBurst {
        let mut buffers = self.link.worker.take_buffers();
        let bytes = received.iter().map(|part| part.len()).sum();
        if buffers.input.len() < bytes {
            buffers.input = vec![0; bytes].into_boxed_slice();
        }
        let mut filled = 0;
        for part in received {
            buffers.input[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        }
        self.burst_with(buffers, filled, first)
    }

    /// Same as [`burst`](Conn::burst), which goes on with an earlier request first.
    fn burst_with(&mut self, buffers: Buffers, filled: usize, first: First) -> AfterBurst {
        let link = self.link.clone();
        let worker = &*link.worker;
        let now = osier::time::coarse_now();
        worker.date.borrow_mut().refresh(now);
        link.begin();

        let output = Output::until(&link.transport, buffers.output, &worker.server.shutdown);
        let mut input = Input {
            bytes: buffers.input,
            start: 0,
            end: filled,
        };
        let (app, client) = (&self.local.app, (&*link).into());
        let is_received = matches!(first, First::Input);
        let outcome = match first {
            First::Input => app.serve(client, &output, &mut input),
            First::Received(request) => app.serve_received(client, &output, &mut input, request),
            First::Paused(paused) => app.serve_paused(client, &output, &mut input, paused),
        };
        let mut is_held = false;
        let outcome = match outcome {
            // The rest is sent later, without a stack.
            outcome @ (After::Gone | After::Send(_) | After::Pause(_)) => outcome,
            outcome @ (After::End(_) | After::Linger(_)) => output.settle_last().map_or(After::Gone, |held| {
                is_held = held;
                outcome
            }),
            outcome => output.settle().map_or(After::Gone, |()| outcome),
        };
        let give = |input: Input| {
            worker.give_buffers(Buffers {
                input: input.bytes,
                output: output.take_buffer(),
            });
        };
        let next = match outcome {
            After::Send(unsent) => {
                let received = input.bytes[input.start..input.end].into();
                give(input);
                return self.rest_until_writable(Box::new(Sending {
                    unsent,
                    received,
                    unacknowledged: None,
                }));
            }
            After::Pause(mut paused) => {
                paused.received = input.bytes[input.start..input.end].to_vec();
                give(input);
                return self.rest_paused(paused);
            }
            After::Receive(awaiting) => {
                give(input);
                return self.rest_until_received(awaiting);
            }
            After::Taken(takeover, extensions) => {
                link.end();
                let unread = input.bytes[input.start..input.end].to_vec();
                give(input);
                return self.take_over((takeover, extensions, End::Client), unread);
            }
            // It may be an eviction that has ended the burst.
            After::Gone => self.close(output.close_reason()),
            After::End(reason) => {
                let reason = link.end_for(reason);
                if is_held {
                    // A close alone would drop these bytes if the client has sent more meanwhile.
                    let _ = link.socket().shutdown(Shutdown::Write);
                }
                match reason {
                    CloseReason::LastResponse => self.leave(reason),
                    // A response that is not whole has no proper end.
                    _ => self.close(reason),
                }
            }
            After::Linger(reason) => {
                let reason = link.end_for(reason);
                self.linger(reason)
            }
            After::Wait(scanner) => {
                link.end();
                let received = &input.bytes[input.start..input.end];
                // It has been idle since it began to be, or two bytes a minute would hold it for ever.
                if is_received && input.start == 0 && received == EMPTY_LINE {
                    link.rests_on();
                }
                self.wait(received, scanner)
            }
        };
        give(input);
        next
    }

    /// Waits for the next request, of which these bytes have arrived. The scanner has seen them.
    #[inline]
    fn wait(&mut self, received: &[u8], scanner: HeadScanner) -> AfterBurst {
        // After this shutdown, bytes that have already arrived are still read and whole requests served. Then the end is read.
        if self.link.worker.draining.get() && self.link.socket().shutdown(Shutdown::Read).is_err() {
            return self.close(CloseReason::Shutdown);
        }
        match received {
            [] | EMPTY_LINE => self.sleep(),
            _ => self.rest_in_head(received, scanner, false),
        }
    }

    /// Hands the connection to its new protocol. A drain shuts the reading direction of a closure down, which may be waiting to read. A
    /// session is woken, and reads the end once nothing more has arrived.
    fn take_over(&mut self, (takeover, extensions, end): (Takeover, Extensions, End), unread: Vec<u8>) -> AfterBurst {
        let link = self.link.clone();
        link.ends(CloseReason::Upgraded);
        let is_draining = link.worker.draining.get();
        match takeover {
            Takeover::Rest(_) => link.reads_on(),
            Takeover::Run(_) if is_draining => drop(link.socket().shutdown(Shutdown::Read)),
            Takeover::Run(_) => {}
        }
        let ready = is_draining || !unread.is_empty();
        let mut io = Upgraded::new(link, end, unread);
        match takeover {
            Takeover::Run(run) => {
                if io.stream().set_read_timeout(None).is_ok() {
                    run(&mut io);
                }
                drop(io);
                self.leave_protocol()
            }
            Takeover::Rest(mut session) => {
                let mut next = session.open(&mut io);
                if ready && next != AfterBurst::End {
                    next = session.wake(&mut io, Cause::Readable);
                }
                if next == AfterBurst::End {
                    drop((session, io));
                    return self.leave_protocol();
                }
                self.set_stage(Stage::Session(Taken {
                    session,
                    io,
                    _extensions: extensions,
                }));
                next
            }
        }
    }

    fn set_stage(&mut self, stage: Stage) {
        self.stage = Some(Box::new(stage));
    }

    /// Rests until the next request begins. A wake-up without one, such as the question of an upgrade, does not renew its time.
    fn sleep(&mut self) -> AfterBurst {
        self.stage = None;
        let rested = self.link.rest();
        AfterBurst::SleepFor(self.link.worker.server.timeouts.idle.saturating_sub(rested))
    }

    /// Ends the connection.
    fn close(&self, reason: CloseReason) -> AfterBurst {
        self.link.ends(reason);
        AfterBurst::End
    }

    /// Ends a stage whose time is over.
    fn expire(&mut self) -> AfterBurst {
        match self.stage.as_deref() {
            Some(Stage::Head(partial)) => {
                let output = Output::new(&self.link.transport, Vec::new());
                let answered = self
                    .local
                    .app
                    .head_timed_out((&*self.link).into(), &output, partial.received());
                self.link.ends(CloseReason::HeaderTimeout);
                answered.map_or(AfterBurst::End, |()| self.linger(CloseReason::HeaderTimeout))
            }
            Some(Stage::Announced(_)) => {
                self.link.complain_of_header(&"its PROXY header did not arrive in time");
                self.close(CloseReason::HeaderTimeout)
            }
            #[cfg(feature = "tls")]
            Some(Stage::Handshake(_)) => self.close(CloseReason::HandshakeTimeout),
            None => self.leave(CloseReason::IdleTimeout),
            Some(
                Stage::Linger(_)
                | Stage::Begins(..)
                | Stage::Session(_)
                | Stage::Sending(_)
                | Stage::Awaiting(..)
                | Stage::Paused(_),
            ) => AfterBurst::End,
            #[cfg(feature = "h2")]
            Some(Stage::Streams(_)) => unreachable!("it ends by itself"),
        }
    }
}

impl Dormant for Conn {
    fn source(&self) -> &dyn osier::io::Source {
        self.link.socket()
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.stage.as_deref_mut() {
            Some(Stage::Session(taken)) => taken.session.poll_woken(cx),
            Some(Stage::Paused(paused)) => paused.poll_ready(cx),
            #[cfg(feature = "tls")]
            Some(Stage::Handshake(handshake)) => handshake.poll_called(&self.link.worker.handshakes, cx),
            #[cfg(feature = "h2")]
            Some(Stage::Streams(streams)) => streams.poll_woken(cx),
            _ => Poll::Pending,
        }
    }

    #[inline]
    fn serve_at_once(&mut self, cause: Cause) -> bool {
        match self.stage.as_deref_mut() {
            // A move to another process needs a fiber.
            Some(Stage::Session(taken)) if !self.link.worker.is_leaving() => {
                taken.session.serve_at_once(&mut taken.io, cause)
            }
            _ => false,
        }
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        if cause != Cause::Shutdown && self.moves() {
            return AfterBurst::End;
        }
        let mut next = self.wake_once(cause);
        // No event announces bytes that have left the socket.
        while self.link.transport.has_unread() && self.reads_on(next) {
            next = self.wake_once(Cause::Readable);
        }
        if next != AfterBurst::End && self.moves() {
            return AfterBurst::End;
        }
        next
    }
}

impl Conn {
    /// Moves the connection to another process, if it rests and an upgrade is under way. Returns whether it has moved.
    #[inline]
    fn moves(&mut self) -> bool {
        #[cfg(feature = "upgrade")]
        {
            if !self.link.worker.is_leaving() {
                return false;
            }
            let leaving = self.link.worker.leaving.borrow().clone();
            leaving.is_some_and(|leaving| self.move_away(&leaving))
        }
        #[cfg(not(feature = "upgrade"))]
        false
    }

    /// Whether a connection that is about to do `next` would read bytes that have arrived.
    fn reads_on(&mut self, next: AfterBurst) -> bool {
        let wants_bytes = matches!(next, AfterBurst::Sleep(_) | AfterBurst::SleepFor(_));
        match self.stage.as_deref_mut() {
            Some(Stage::Linger(_)) => false,
            // A session that lets bytes wait reads them when one of its leaves wakes it.
            Some(Stage::Session(taken)) => mem::take(&mut taken.io.has_read) && wants_bytes,
            _ => wants_bytes,
        }
    }

    /// Whether the connection continues when its rest times out.
    fn goes_on_at_deadline(&self) -> bool {
        match self.stage.as_deref() {
            Some(Stage::Begins(..) | Stage::Awaiting(..) | Stage::Sending(_) | Stage::Linger(_)) => true,
            #[cfg(feature = "tls")]
            Some(Stage::Handshake(handshake)) => handshake.tries_again(),
            _ => false,
        }
    }

    fn wake_once(&mut self, cause: Cause) -> AfterBurst {
        if let Some(Stage::Session(taken)) = self.stage.as_deref_mut() {
            return match taken.session.wake(&mut taken.io, cause) {
                AfterBurst::End if cause != Cause::Shutdown => {
                    self.stage = None;
                    self.leave_protocol()
                }
                next => next,
            };
        }
        #[cfg(feature = "h2")]
        if let Some(Stage::Streams(streams)) = self.stage.as_deref_mut() {
            let next = streams.wake(cause);
            return self.after_streams(next);
        }
        match cause {
            Cause::Shutdown => return self.close(CloseReason::Shutdown),
            Cause::Deadline if !self.goes_on_at_deadline() => return self.expire(),
            Cause::Deadline | Cause::Readable | Cause::Writable | Cause::Woken => {}
        }
        let Some(stage) = self.stage.take() else {
            return self.begin();
        };
        match *stage {
            Stage::Announced(announced) => self.announced(announced),
            #[cfg(feature = "tls")]
            Stage::Handshake(handshake) => self.shake_hands(handshake),
            Stage::Head(partial) => self.go_on(partial),
            Stage::Linger(linger) => self.throw_away(linger),
            Stage::Awaiting(awaiting, deadline) => self.receive_on(awaiting, deadline, cause),
            Stage::Begins(takeover, extensions, end) => self.take_over((takeover, extensions, end), Vec::new()),
            Stage::Sending(sending) if cause == Cause::Deadline => self.expect_more(sending),
            Stage::Sending(sending) => self.send_on(sending),
            Stage::Paused(paused) => self.wake_paused(paused),
            Stage::Session(_) => unreachable!("woken above"),
            #[cfg(feature = "h2")]
            Stage::Streams(_) => unreachable!("woken above"),
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if self.link.has_moved() {
            // The socket belongs to another process now.
            self.link.worker.unlink(&self.link);
            return;
        }
        let is_cut = matches!(self.stage.as_deref(), Some(Stage::Sending(_) | Stage::Paused(_)));
        if self.link.ends_well() && !is_cut {
            self.link.transport.say_goodbye();
        }
        // The client may not have taken all of the last response. From here on the kernel waits for it
        // as long as a write would, where its own patience is minutes.
        let _ = self
            .link
            .socket()
            .set_user_timeout(Some(self.link.worker.server.timeouts.write));
        self.link.worker.unlink(&self.link);
    }
}

#[cold]
pub(crate) fn cannot_watch(worker: &Worker, peer: SocketAddr, error: &io::Error) {
    let text = format_args!("cannot watch a connection from {peer}: {error}");
    let record = Record::new(Level::Error, text).of_client(peer, false);
    worker.server.log(&record);
}

/// Returns the time `time` from now. `None`, which means never, if the clock cannot represent it.
fn after(time: Duration) -> Option<Instant> {
    osier::time::coarse_now().checked_add(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_at_rest_is_small() {
        assert!(size_of::<Conn>() <= 24, "{}", size_of::<Conn>());
        assert!(size_of::<Stage>() <= 64, "{}", size_of::<Stage>());
    }
}
