//! The callback style: a connection that holds no stack while nothing happens.
//!
//! ```text
//!   Sender, Topic<Frame> ──▶ the connection's queue (a Subscriber) ─┐ poll_woken
//!   socket readable ────────────────────────────────────────────────┼─▶ wake: a fiber ─▶ Handler ─▶ queue ─▶ one write ─▶ rest
//!   deadline: ping, or no pong ─────────────────────────────────────┘
//! ```
//!
//! Everything that is sent goes through the queue, from the handler too, so frames leave in one order. What a rest keeps is this
//! box, the queue (which has no buffer when it is empty) and, in the middle of a message alone, the decoder's state. While the
//! client does not take what is written the fiber waits, and the queue's policy decides what becomes of the rest: that is the
//! back-pressure.

use std::fmt;
use std::io::{self, Read};
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use osier::dormant::{Cause, Next};
use osier::pubsub::{Inlet, Policy, Pushed, RecvError, Subscriber, Topic, TryRecvError};

use super::decode::{Decoder, Event, Failure};
use super::frame::{Frame, Outbox};
use super::{Close, Message, Timing};
use crate::Upgraded;
use crate::conn::buffers::{self, Size};

/// Frames that are taken out of the queue for one write.
const BATCH: usize = 32;

/// What is read and thrown away of a client that has broken the protocol, so that it reads why.
const LINGER_BYTES: usize = 256 << 10;

/// What becomes of a WebSocket in callback style: see [`Options::upgrade_dormant`](super::Options::upgrade_dormant).
///
/// The calls come on a fiber of the connection's worker, one at a time, so a handler may block; its client's messages then wait.
/// A panic ends the connection.
///
/// ```
/// use osier::pubsub::Topic;
/// use osier_web::{Request, Response, Router, ws};
///
/// struct Guest(Topic<ws::Frame>);
///
/// impl ws::Handler for Guest {
///     fn on_open(&mut self, sender: &ws::Sender) {
///         sender.join(&self.0);
///     }
///     fn on_message(&mut self, message: ws::Message, _: &ws::Sender) {
///         self.0.publish(message.into()); // to everybody, as one frame
///     }
/// }
///
/// let room = Topic::new();
/// let router = Router::new().get("/chat", move |request: &mut Request<'_>| {
///     ws::Options::default().upgrade_dormant(request, Guest(room.clone()))
/// });
/// ```
pub trait Handler: 'static {
    /// The connection is open. The sender may be cloned, and given to others.
    fn on_open(&mut self, sender: &Sender) {
        let _ = sender;
    }

    /// A message has come.
    fn on_message(&mut self, message: Message, sender: &Sender);

    /// The connection has ended: the client's close frame, or none if it went without. Called once, whatever ended it. Where the
    /// server was stopped at once it is not a fiber that calls, so nothing may block then. After a panic of the handler it is called
    /// while that unwinds.
    fn on_close(&mut self, close: Option<&Close>) {
        let _ = close;
    }

    /// What was polled in [`poll_woken`](Handler::poll_woken) is ready.
    fn on_wake(&mut self, sender: &Sender) {
        let _ = sender;
    }

    /// Polls what else the handler waits for, a [`Subscriber`] of its own for example; called before each rest. It must not
    /// block. `Ready` brings about [`on_wake`](Handler::on_wake).
    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }
}

/// Sends to one client, from anywhere: any thread, a callback. A clone sends to the same one.
///
/// Nothing waits: what finds the connection's queue full is treated as [`Options::policy`](super::Options::policy) says.
#[derive(Clone)]
pub struct Sender(Arc<Shared>);

struct Shared {
    inlet: Inlet<Frame>,
    /// The close frame for which there was no room in the queue.
    last: OnceLock<Frame>,
}

impl Sender {
    /// Puts a message into the connection's queue.
    pub fn send(&self, message: impl Into<Frame>) -> Pushed {
        self.0.inlet.push(message.into())
    }

    /// Closes the connection with this code and reason, after what is in the queue.
    pub fn close(&self, code: u16, reason: &str) {
        let frame = Frame::close(code, reason);
        if self.0.inlet.push(frame.clone()) == Pushed::Dropped {
            let _ = self.0.last.set(frame);
        }
    }

    /// Sends to the client whatever is published to `topic`, until it [leaves](Sender::leave) or is gone.
    pub fn join(&self, topic: &Topic<Frame>) -> bool {
        self.0.inlet.join(topic)
    }

    /// No longer does.
    pub fn leave(&self, topic: &Topic<Frame>) -> bool {
        self.0.inlet.leave(topic)
    }

    /// How many frames wait to be written.
    pub fn len(&self) -> usize {
        self.0.inlet.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.0.inlet.is_empty()
    }

    /// How many frames the client did not get because it was too slow.
    pub fn dropped(&self) -> u64 {
        self.0.inlet.dropped()
    }

    /// Whether the connection is gone, or about to be because it was too slow.
    pub fn is_closed(&self) -> bool {
        self.0.inlet.is_over()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("len", &self.len())
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// A WebSocket between its calls.
pub(super) struct Session<H: Handler> {
    handler: H,
    sender: Sender,
    queue: Subscriber<Frame>,
    /// In the middle of a frame or a message.
    decoder: Option<Box<Decoder>>,
    timing: Timing,
    /// With so many frames in the queue a handler's own answers are written before its client's next message is taken, so that no
    /// policy falls upon them.
    write_at: usize,
    stage: Stage,
    /// Of the stage.
    deadline: Option<Instant>,
    /// Whose `poll_woken` was ready.
    is_handler_ready: bool,
    is_told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// A ping was sent, and nothing has come since.
    Pinged,
    /// A close frame was sent; the client's is awaited.
    Closing,
    /// The client has broken the protocol and was told so; this many of its bytes are still read.
    Failed(usize),
}

/// The connection is over.
struct Over;

impl<H: Handler> Session<H> {
    pub(super) fn new(handler: H, timing: Timing, bound: usize, policy: Policy) -> Self {
        let queue = Subscriber::new(bound, policy);
        let shared = Shared {
            inlet: queue.inlet(),
            last: OnceLock::new(),
        };
        Session {
            handler,
            sender: Sender(Arc::new(shared)),
            queue,
            decoder: None,
            timing,
            write_at: (bound / 2).clamp(1, BATCH),
            stage: Stage::Open,
            deadline: None,
            is_handler_ready: false,
            is_told: false,
        }
    }

    fn enter(&mut self, stage: Stage, patience: Duration) {
        self.stage = stage;
        self.deadline = osier::time::coarse_now().checked_add(patience);
    }

    fn tell(&mut self, close: Option<&Close>) {
        if !std::mem::replace(&mut self.is_told, true) {
            self.handler.on_close(close);
        }
    }

    fn rest(&mut self, outcome: Result<(), Over>) -> Next {
        match outcome {
            Ok(()) => Next::Sleep(self.deadline),
            Err(Over) => {
                self.tell(None);
                Next::End
            }
        }
    }

    fn receive(&mut self, io: &mut Upgraded) -> Result<(), Over> {
        let mut input = buffers::take(Size::K16);
        let outcome = loop {
            let read = io.read(&mut input);
            let outcome = match read {
                Ok(0) => self.hear_the_end(io),
                Ok(count) => self.take(io, &input[..count]),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
                Err(_) => Err(Over),
            };
            // What came behind the handshake is announced once; what is in the socket wakes again by itself.
            if outcome.is_err() || io.buffered().is_empty() {
                break outcome;
            }
        };
        buffers::give(input);
        outcome
    }

    /// Nothing more will come.
    fn hear_the_end(&mut self, io: &mut Upgraded) -> Result<(), Over> {
        if io.is_draining() && self.stage != Stage::Closing {
            self.sender.close(Close::GOING_AWAY, "the server is stopping");
            let _ = self.send(io);
        }
        Err(Over)
    }

    /// Decodes what has come, and calls the handler for each message.
    fn take(&mut self, io: &mut Upgraded, mut bytes: &[u8]) -> Result<(), Over> {
        match &mut self.stage {
            Stage::Failed(left) => {
                *left = left.checked_sub(bytes.len()).ok_or(Over)?;
                return Ok(());
            }
            Stage::Closing => {}
            Stage::Open | Stage::Pinged => self.enter(Stage::Open, self.timing.ping_after),
        }
        let mut decoder = self.decoder.take().unwrap_or_default();
        loop {
            match decoder.next(&mut bytes, self.timing.sizes) {
                Ok(None) => break,
                // What comes after our close frame is not for us any more (RFC 6455 §1.4).
                Ok(Some(Event::Message(_) | Event::Ping(_))) if self.stage == Stage::Closing => {}
                Ok(Some(Event::Message(message))) => self.handler.on_message(message, &self.sender),
                Ok(Some(Event::Ping(payload))) => drop(self.sender.send(Frame::pong(&payload))),
                Ok(Some(Event::Pong)) => {}
                Ok(Some(Event::Close(close))) => {
                    if self.stage != Stage::Closing {
                        self.sender.close(close.code, "");
                        let _ = self.send(io);
                    }
                    self.tell(Some(&close));
                    return Err(Over);
                }
                Err(failure) => return self.fail(io, failure),
            }
            if self.sender.len() >= self.write_at {
                self.send(io)?;
            }
        }
        if !decoder.is_idle() {
            self.decoder = Some(decoder);
        }
        Ok(())
    }

    fn fail(&mut self, io: &mut Upgraded, failure: Failure) -> Result<(), Over> {
        if self.stage != Stage::Closing {
            self.sender.close(failure.code, failure.reason);
            self.send(io)?;
        }
        self.tell(None);
        io.stream().shutdown(Shutdown::Write).map_err(|_| Over)?;
        self.enter(Stage::Failed(LINGER_BYTES), self.timing.close_within);
        Ok(())
    }

    /// Writes what is in the queue.
    fn send(&mut self, io: &mut Upgraded) -> Result<(), Over> {
        let mut batch = Outbox::default();
        loop {
            let mut is_last = matches!(self.stage, Stage::Closing | Stage::Failed(_));
            let mut is_too_slow = false;
            while !is_last && batch.len() < BATCH {
                match self.queue.try_recv() {
                    Ok(frame) => {
                        is_last = frame.is_close();
                        batch.push(frame);
                    }
                    Err(TryRecvError::Ended(RecvError::TooSlow)) => {
                        is_too_slow = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
            if batch.len() < BATCH && !is_last {
                let close = match is_too_slow {
                    true => Some(Frame::close(Close::TRY_AGAIN, "too slow")),
                    false => self.sender.0.last.get().cloned(),
                };
                if let Some(frame) = close {
                    is_last = true;
                    batch.push(frame);
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            batch.flush(io).map_err(|_| Over)?;
            if is_last {
                self.enter(Stage::Closing, self.timing.close_within);
                return Ok(());
            }
        }
    }
}

impl<H: Handler> crate::Session for Session<H> {
    fn open(&mut self, io: &mut Upgraded) -> Next {
        self.enter(Stage::Open, self.timing.ping_after);
        self.handler.on_open(&self.sender);
        let sent = self.send(io);
        self.rest(sent)
    }

    fn wake(&mut self, io: &mut Upgraded, cause: Cause) -> Next {
        let mut outcome = match cause {
            Cause::Readable => self.receive(io),
            Cause::Woken => {
                if std::mem::take(&mut self.is_handler_ready) {
                    self.handler.on_wake(&self.sender);
                }
                Ok(())
            }
            Cause::Deadline if self.stage == Stage::Open => {
                self.enter(Stage::Pinged, self.timing.pong_within);
                self.sender.send(Frame::ping(b""));
                Ok(())
            }
            Cause::Deadline => Err(Over),
            Cause::Shutdown => {
                self.sender.close(Close::GOING_AWAY, "the server is stopping");
                let _ = self.send(io);
                Err(Over)
            }
        };
        if outcome.is_ok() {
            outcome = self.send(io);
        }
        self.rest(outcome)
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.stage, Stage::Closing | Stage::Failed(_)) {
            return Poll::Pending; // nothing is sent any more
        }
        self.is_handler_ready = self.handler.poll_woken(cx).is_ready();
        match self.queue.poll_ready(cx) {
            Poll::Pending if !self.is_handler_ready => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }
}

impl<H: Handler> Drop for Session<H> {
    fn drop(&mut self) {
        // A handler that panics is dropped by its panic, and may well panic again (its own locks are poisoned by now): that must
        // not end the process. The second one has been printed too, by the hook; nobody is left to hear of it.
        let _ = catch_unwind(AssertUnwindSafe(|| self.tell(None)));
    }
}
