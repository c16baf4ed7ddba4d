//! The callback style: a WebSocket that holds no stack while it is idle.
//!
//! ```text
//!   Sender, Topic<Frame> ──▶ the connection's queue (a Subscriber) ─┐ poll_woken
//!   socket readable ────────────────────────────────────────────────┼─▶ wake: a fiber ─▶ Callbacks ─▶ queue ─▶ one write ─▶ rest
//!   deadline: send a ping, or no pong came ─────────────────────────┘
//! ```
//!
//! All frames go through the connection's queue, also those of the callbacks, so they leave in one order. An
//! idle connection keeps its `Session` box and the queue, which has no buffer while it is empty. It
//! keeps a decoder only in the middle of a message.
//!
//! Back-pressure: while the client does not read, the write suspends the fiber. Frames that arrive
//! meanwhile stay in the queue, whose policy applies when it is full. Until a write is refused, the queue of a client that would be
//! disconnected is [`BURSTS`] times as long: it may be full before the connection has had a turn.
//!
//! A single frame that another code has queued leaves at once, without a fiber, if the client takes it.

use std::any::Any;
use std::cell::Cell;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use osier::Cancelled;
use osier::dormant::{AfterBurst, Cause};
use osier::pubsub::{Inlet, Policy, Pushed, RecvError, Subscriber, Topic, TryRecvError};

use super::decode::{Decoder, Event, Failure};
use super::frame::{Frame, Outbox};
use super::{Close, End, Message, Timing};
use crate::Upgraded;
use crate::conn::buffers::{self, Size};
#[cfg(feature = "upgrade")]
use crate::conn::handover::record::Saved;

/// Maximum frames taken from the queue for one write.
const BATCH: usize = 32;

/// How many queues full of frames a client may have that has refused no write, before it is disconnected.
const BURSTS: usize = 64;

/// The most frames that this makes of a queue that is shorter.
const BURST: usize = 4096;

/// Callbacks of a WebSocket in callback style: see
/// [`Options::upgrade_dormant`](super::Options::upgrade_dormant).
///
/// The callbacks run on a fiber of the connection's worker, one at a time. A callback may block;
/// messages of its client wait meanwhile. A panic is logged, and closes the connection with [`Close::INTERNAL`].
///
/// ```
/// use osier::pubsub::Topic;
/// use osier_web::{Request, Response, Router, ws};
///
/// struct Guest(Topic<ws::Frame>);
///
/// impl ws::Callbacks for Guest {
///     fn on_open(&mut self, sender: &ws::Sender) {
///         sender.join(&self.0);
///     }
///     fn on_message(&mut self, message: ws::Message, _: &ws::Sender) {
///         self.0.publish(message.into()); // one frame for all receivers
///     }
/// }
///
/// let room = Topic::new();
/// let router = Router::new().get("/chat", move |request: &mut Request<'_>| {
///     ws::Options::default().upgrade_dormant(request, Guest(room.clone()))
/// });
/// ```
pub trait Callbacks: 'static {
    /// Called when the connection is open. The sender may be cloned and passed on.
    fn on_open(&mut self, sender: &Sender) {
        let _ = sender;
    }

    /// Called for each message of the client.
    fn on_message(&mut self, message: Message, sender: &Sender);

    /// Called once when the connection ends. `end` says why.
    ///
    /// An immediate shutdown of the server calls it outside of a fiber, so it must not block then.
    /// It is called after a panic of another callback, too.
    fn on_close(&mut self, end: &End) {
        let _ = end;
    }

    /// Saves the callbacks for another process, in an [upgrade](crate::upgrade). Returns `None` if they cannot move, as by default. Called
    /// between two messages. No other call follows `Some`, but one of [`on_close`](Callbacks::on_close) if the client does not take what is
    /// queued: the connection ends then. Leave every topic before returning `Some`: queued messages are sent before the connection moves,
    /// and nothing more may be queued.
    #[cfg(feature = "upgrade")]
    fn save(&mut self, sender: &Sender) -> Option<Saved> {
        let _ = sender;
        None
    }

    /// Called in place of [`on_open`](Callbacks::on_open) for callbacks that were
    /// [restored](super::Options::restore).
    #[cfg(feature = "upgrade")]
    fn on_restore(&mut self, sender: &Sender) {
        self.on_open(sender);
    }

    /// Called when [`poll_woken`](Callbacks::poll_woken) was ready.
    fn on_wake(&mut self, sender: &Sender) {
        let _ = sender;
    }

    /// Polls other event sources, for example a [`Subscriber`]. It is
    /// called whenever the connection goes to rest, and must not block. `Ready` causes a call of
    /// [`on_wake`](Callbacks::on_wake).
    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }
}

/// Sends to one client, from any thread or callback. Clones send to the same client.
///
/// No method waits. [`Options::policy`](super::Options::policy) decides what happens to a frame
/// when the connection's queue is full.
#[derive(Clone)]
pub struct Sender(Arc<FrameQueue>);

/// The queue of a connection, for all of its senders.
struct FrameQueue {
    inlet: Inlet<Frame>,
    /// The close frame. It follows what is queued, also where it finds no room in the queue itself.
    last: OnceLock<Frame>,
}

impl Sender {
    /// Queues a message for the client.
    pub fn send(&self, message: impl Into<Frame>) -> Pushed {
        self.0.inlet.push(message.into())
    }

    /// Closes the connection with this code and reason, after the queued frames are written.
    pub fn close(&self, code: u16, reason: &str) {
        self.close_by(Frame::close(code, reason), |frame| {
            self.0.inlet.push(frame);
        });
    }

    fn close_by(&self, frame: Frame, push: impl FnOnce(Frame)) {
        // Set first: a queue that is full now will be emptied by somebody who looks here before.
        let _ = self.0.last.set(frame.clone());
        push(frame);
    }

    /// Subscribes the client to `topic`, until it [leaves](Sender::leave) or the connection ends.
    pub fn join(&self, topic: &Topic<Frame>) -> bool {
        self.0.inlet.join(topic)
    }

    /// Ends the subscription to `topic`.
    pub fn leave(&self, topic: &Topic<Frame>) -> bool {
        self.0.inlet.leave(topic)
    }

    /// Number of queued frames.
    pub fn len(&self) -> usize {
        self.0.inlet.len()
    }

    /// Whether no frame is queued.
    pub fn is_empty(&self) -> bool {
        self.0.inlet.is_empty()
    }

    /// Number of frames dropped because the client was too slow.
    pub fn dropped(&self) -> u64 {
        self.0.inlet.dropped()
    }

    /// Whether the connection has ended, or is about to end because the client was too slow.
    pub fn is_closed(&self) -> bool {
        self.0.inlet.is_over()
    }
}

osier_queue::impl_debug!(Sender, self => { len: self.len(), closed: self.is_closed() });

/// The state of a WebSocket in callback style.
pub(super) struct Session<C: Callbacks> {
    callbacks: C,
    sender: Sender,
    queue: Subscriber<Frame>,
    /// The bounds of the queue.
    bounds: Bounds,
    /// A frame that a client did not take at once, until a fiber sends the rest of it.
    unsent: Option<Box<Outbox>>,
    /// Whether the client has refused what was written last.
    is_refused: bool,
    /// Decoder state in the middle of a frame or message; `None` between messages.
    decoder: Option<Box<Decoder>>,
    timing: Timing,
    /// Queue length at which queued frames are written before the next message is decoded. The
    /// policy thus never applies to replies of the callbacks.
    write_at: usize,
    stage: Stage,
    /// Deadline of the current stage.
    deadline: Option<Instant>,
    /// Whether the last `poll_woken` was ready.
    are_callbacks_ready: bool,
    /// The panic of that `poll_woken`, which ran on no fiber. The connection's next fiber reports it.
    panic: Option<Box<Panic>>,
    /// Why it ends, once that is known.
    end: Option<Box<End>>,
    /// Whether `on_close` was called.
    is_close_reported: bool,
    /// Whether the connection was opened in another process.
    is_restored: bool,
}

/// The bounds of a queue, in frames.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// How many more the client may have while it refuses what is written.
    refused: usize,
    /// While it takes everything.
    taken: usize,
}

impl Bounds {
    fn new(bound: usize, policy: Policy) -> Bounds {
        let taken = match policy {
            Policy::Disconnect => bound.max(1).saturating_mul(BURSTS).min(BURST.max(bound)),
            Policy::DropOldest | Policy::DropNewest => bound,
        };
        Bounds { refused: bound, taken }
    }

    /// The bound from the first refused write on: `queued` frames have come before it.
    fn on_refusal(self, queued: usize) -> usize {
        (queued + self.refused).min(self.taken)
    }
}

/// The payload of a panic.
type Panic = Box<dyn Any + Send>;

/// The phase of a connection. Each has its own deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No callback was called yet.
    New,
    Open,
    /// A ping was sent, and nothing was received since.
    Pinged,
    /// A close frame was sent; the client's close frame is awaited.
    Closing,
}

/// The connection has ended, for the reason that the session has noted.
struct Over;

impl<C: Callbacks> Session<C> {
    pub(super) fn new(callbacks: C, timing: Timing, bound: usize, policy: Policy) -> Self {
        let bounds = Bounds::new(bound, policy);
        let queue = Subscriber::new(bounds.taken, policy);
        let frames = FrameQueue {
            inlet: queue.inlet(),
            last: OnceLock::new(),
        };
        Session {
            callbacks,
            sender: Sender(Arc::new(frames)),
            queue,
            bounds,
            unsent: None,
            is_refused: false,
            decoder: None,
            timing,
            write_at: (bound / 2).clamp(1, BATCH),
            stage: Stage::New,
            deadline: None,
            are_callbacks_ready: false,
            panic: None,
            end: None,
            is_close_reported: false,
            is_restored: false,
        }
    }

    /// Same as [`new`](Session::new), for a connection that was opened in another process.
    #[cfg(feature = "upgrade")]
    pub(super) fn restored(callbacks: C, timing: Timing, bound: usize, policy: Policy) -> Self {
        let mut session = Session::new(callbacks, timing, bound, policy);
        session.is_restored = true;
        session
    }

    fn enter(&mut self, stage: Stage, patience: Duration) {
        self.stage = stage;
        self.deadline = osier::time::coarse_now().checked_add(patience);
    }

    fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Pinged)
    }

    /// Whether the connection may move to another process. In the middle of a message it moves after the message. One whose callbacks
    /// have panicked ends here.
    #[cfg(feature = "upgrade")]
    fn may_move(&self) -> bool {
        self.is_open() && self.decoder.is_none() && self.queue.ended().is_none() && self.panic.is_none()
    }

    /// Notes why the connection ends, unless that is known.
    #[cold]
    fn ends(&mut self, end: End) -> Over {
        self.end.get_or_insert_with(|| Box::new(end));
        Over
    }

    /// Notes that a read or a write has failed.
    #[cold]
    fn failed(&mut self, io: &Upgraded, error: &io::Error) -> Over {
        // A queue that is full meanwhile came first.
        match self.queue.ended() {
            Some(RecvError::TooSlow) => self.ends(End::TooSlow),
            _ => self.ends(End::of_error(io, error)),
        }
    }

    /// Calls `on_close`, if nobody has. Returns the end.
    fn report_close(&mut self, unknown: End) -> &End {
        self.ends(unknown);
        let end = self.end.as_deref().expect("it was set above");
        if !std::mem::replace(&mut self.is_close_reported, true) {
            self.callbacks.on_close(end);
        }
        end
    }

    fn rest(&mut self, io: &Upgraded, outcome: Result<(), Over>) -> AfterBurst {
        match outcome {
            Ok(()) => AfterBurst::Sleep(self.deadline),
            Err(Over) => {
                io.ends(self.report_close(End::Lost).close_reason());
                AfterBurst::End
            }
        }
    }

    fn receive(&mut self, io: &mut Upgraded) -> Result<(), Over> {
        let mut input = buffers::take(Size::K16);
        let outcome = loop {
            let read = io.read(&mut input);
            let outcome = match read {
                Ok(0) => self.end_of_input(io),
                Ok(count) => self.take(io, &input[..count]),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
                Err(error) => Err(self.failed(io, &error)),
            };
            // Bytes buffered behind the handshake are announced only once, so they are all read
            // now. Unread bytes of the socket wake the connection again. A drain is announced once, too, and met by a read that finds
            // nothing.
            let reads_on = io.is_draining() && self.stage != Stage::Closing;
            if outcome.is_err() || (io.buffered().is_empty() && !reads_on) {
                break outcome;
            }
        };
        buffers::give(input);
        outcome
    }

    /// Handles the end of the client's bytes, or of reading because the server is draining.
    fn end_of_input(&mut self, io: &mut Upgraded) -> Result<(), Over> {
        if !io.is_draining() {
            return Err(self.ends(End::without_close_frame(io)));
        }
        Err(self.stop(io))
    }

    /// Says goodbye at the end of the server.
    fn stop(&mut self, io: &mut Upgraded) -> Over {
        self.ends(End::Shutdown);
        self.close(io, Close::GOING_AWAY, "the server is stopping")
    }

    /// Decodes received bytes and calls the callback for each message.
    fn take(&mut self, io: &mut Upgraded, mut bytes: &[u8]) -> Result<(), Over> {
        if self.stage != Stage::Closing {
            self.enter(Stage::Open, self.timing.ping_after);
        }
        let mut decoder = self.decoder.take().unwrap_or_default();
        loop {
            match decoder.next(&mut bytes, self.timing.sizes) {
                Ok(None) => break,
                // Messages after the server's close frame are discarded (RFC 6455 §1.4).
                Ok(Some(Event::Message(_) | Event::Ping(_))) if self.stage == Stage::Closing => {}
                Ok(Some(Event::Message(message))) => self.callbacks.on_message(message, &self.sender),
                Ok(Some(Event::Ping(payload))) => drop(self.sender.send(Frame::pong(&payload))),
                Ok(Some(Event::Pong)) => {}
                Ok(Some(Event::Close(close))) => {
                    let code = close.code;
                    self.ends(End::Client(close));
                    return Err(self.close(io, code, ""));
                }
                Err(Failure { code, reason }) => {
                    self.ends(End::ProtocolError(Close::new(code, reason)));
                    return Err(self.close(io, code, reason));
                }
            }
            if self.sender.len() >= self.write_at {
                self.send(io)?;
            }
        }
        if !decoder.is_idle() {
            self.decoder = Some(decoder);
        }
        // Bytes come before the deadline. A client that goes on sending is not waited for longer than one that is silent.
        let is_over = |deadline| self.stage == Stage::Closing && deadline <= osier::time::now();
        match self.deadline.is_some_and(is_over) {
            true => Err(Over),
            false => Ok(()),
        }
    }

    /// Sends the last frame, unless it is sent, to a client whose connection ends then.
    fn close(&mut self, io: &mut Upgraded, code: u16, reason: &str) -> Over {
        if self.stage != Stage::Closing {
            self.sender.close(code, reason);
            let _ = self.send(io);
        }
        Over
    }

    /// Writes the queued frames.
    fn send(&mut self, io: &mut Upgraded) -> Result<(), Over> {
        let mut batch = self.unsent.take().map_or_else(Outbox::default, |unsent| *unsent);
        while self.stage != Stage::Closing {
            let last = fill(&mut batch, &self.sender.0.last, || self.queue.try_recv());
            if batch.is_empty() {
                break;
            }
            self.write(io, &mut batch)?;
            if let Some(last) = last {
                let is_too_slow = self.queue.ended().is_some() && self.sender.0.last.get() != Some(&last);
                self.ends(match is_too_slow {
                    true => End::TooSlow,
                    false => End::Server(last.closing()),
                });
                self.enter(Stage::Closing, self.timing.close_within);
            }
        }
        Ok(())
    }

    /// Writes a batch. Until the client has taken it, fewer frames may be queued.
    fn write(&mut self, io: &mut Upgraded, batch: &mut Outbox) -> Result<(), Over> {
        let (queue, bounds) = (&self.queue, self.bounds);
        let was_refused = Cell::new(self.is_refused);
        let refused = || {
            if !was_refused.replace(true) {
                queue.set_bound(bounds.on_refusal(queue.len()));
            }
        };
        let written = osier::fiber::before_suspend(&refused, || batch.flush(io));
        written.map_err(|error| self.failed(io, &error))?;
        if was_refused.get() {
            self.queue.set_bound(self.bounds.taken);
            self.is_refused = false;
        }
        Ok(())
    }

    /// Sends the only frame of the queue, if the client takes it now. Returns whether that is done and no fiber is needed.
    fn send_at_once(&mut self, io: &Upgraded) -> bool {
        if self.unsent.is_some() || self.queue.len() != 1 {
            return false;
        }
        let Some(stream) = io.transport().plain() else {
            return false;
        };
        let Ok(frame) = self.queue.try_recv() else {
            return false;
        };
        // After the queue: a close frame that has found no room is seen here, and one that is set later finds room.
        let sent = match self.sender.0.last.get() {
            None => stream.try_write(frame.as_bytes()).unwrap_or(0), // a fiber meets the error
            Some(_) if frame.is_close() => return false,
            Some(_) => 0,
        };
        let is_sent = sent == frame.as_bytes().len();
        if !is_sent {
            self.unsent = Some(Box::new(Outbox::begun(frame, sent)));
            self.is_refused = true;
            self.queue.set_bound(self.bounds.on_refusal(self.queue.len()));
        }
        is_sent
    }

    fn woken(&mut self, io: &mut Upgraded, cause: Cause) -> AfterBurst {
        if let Some(panic) = self.panic.take() {
            return self.panicked(io, *panic);
        }
        let mut outcome = match cause {
            Cause::Readable => self.receive(io),
            Cause::Woken | Cause::Writable => {
                if std::mem::take(&mut self.are_callbacks_ready) {
                    self.callbacks.on_wake(&self.sender);
                }
                Ok(())
            }
            Cause::Deadline if self.stage == Stage::Open => {
                self.enter(Stage::Pinged, self.timing.pong_within);
                self.sender.send(Frame::ping(b""));
                Ok(())
            }
            Cause::Deadline => Err(self.ends(End::PingTimeout)),
            Cause::Shutdown => Err(self.stop(io)),
        };
        if outcome.is_ok() {
            outcome = self.send(io);
        }
        self.rest(io, outcome)
    }

    /// Runs callbacks. A panic of theirs ends the connection.
    #[inline]
    fn caught(&mut self, io: &mut Upgraded, run: impl FnOnce(&mut Self, &mut Upgraded) -> AfterBurst) -> AfterBurst {
        let caught = catch_unwind(AssertUnwindSafe(|| run(self, io)));
        caught.unwrap_or_else(|payload| self.panicked(io, payload))
    }

    #[cold]
    fn panicked(&mut self, io: &mut Upgraded, payload: Panic) -> AfterBurst {
        if Cancelled::is_payload(&*payload) {
            resume_unwind(payload);
        }
        io.log_panic(&*payload);
        self.ends(End::Failed);
        let over = self.close(io, Close::INTERNAL, "");
        self.rest(io, Err(over))
    }
}

/// Fills the batch with the frames of one write. `next` takes a frame from the queue. Returns the close frame, if it is the last one.
#[inline]
fn fill(
    batch: &mut Outbox,
    close: &OnceLock<Frame>,
    mut next: impl FnMut() -> Result<Frame, TryRecvError>,
) -> Option<Frame> {
    // Before the queue: what was pushed before the close frame is found there.
    let close = close.get();
    while batch.len() < BATCH {
        let frame = match next() {
            Ok(frame) => frame,
            Err(TryRecvError::Ended(RecvError::TooSlow)) => Frame::close(Close::TRY_AGAIN, "too slow"),
            Err(_) => match close {
                Some(close) => close.clone(),
                None => break,
            },
        };
        if frame.is_close() {
            batch.push(frame.clone());
            return Some(frame);
        }
        batch.push(frame);
    }
    None
}

impl<C: Callbacks> crate::Session for Session<C> {
    fn open(&mut self, io: &mut Upgraded) -> AfterBurst {
        self.caught(io, |session, io| {
            session.enter(Stage::Open, session.timing.ping_after);
            match session.is_restored {
                #[cfg(feature = "upgrade")]
                true => session.callbacks.on_restore(&session.sender),
                _ => session.callbacks.on_open(&session.sender),
            }
            let sent = session.send(io);
            session.rest(io, sent)
        })
    }

    fn serve_at_once(&mut self, io: &mut Upgraded, cause: Cause) -> bool {
        let is_for_queue = cause == Cause::Woken && !self.are_callbacks_ready && self.panic.is_none();
        is_for_queue && self.is_open() && self.send_at_once(io)
    }

    fn wake(&mut self, io: &mut Upgraded, cause: Cause) -> AfterBurst {
        self.caught(io, |session, io| session.woken(io, cause))
    }

    #[cfg(feature = "upgrade")]
    fn save(&mut self, io: &mut Upgraded) -> Option<Saved> {
        if !self.may_move() {
            return None;
        }
        // A slow client may take a while, during which the callbacks go on.
        self.send(io).ok()?;
        if !self.is_open() {
            return None;
        }
        let saved = self.callbacks.save(&self.sender)?;
        // The messages that came before the callbacks left their topics.
        self.send(io).ok()?;
        if !self.is_open() {
            return None;
        }
        self.is_close_reported = true;
        Some(saved)
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stage == Stage::Closing {
            return Poll::Pending; // nothing more is sent
        }
        let polled = catch_unwind(AssertUnwindSafe(|| self.callbacks.poll_woken(cx)));
        let polled = polled.unwrap_or_else(|panic| {
            self.panic = Some(Box::new(panic));
            Poll::Ready(())
        });
        self.are_callbacks_ready = polled.is_ready();
        match self.queue.poll_ready(cx) {
            Poll::Pending if !self.are_callbacks_ready => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }
}

impl<C: Callbacks> Drop for Session<C> {
    fn drop(&mut self) {
        // Callbacks that panic are dropped while the panic unwinds. Their `on_close` may well panic
        // again, for example at a poisoned lock, and a second panic would abort the process. The
        // panic hook has printed the second one, so its payload is ignored.
        let end = match self.stage {
            _ if thread::panicking() => End::Failed,
            Stage::New => End::Lost,
            _ => End::Shutdown,
        };
        let _ = catch_unwind(AssertUnwindSafe(|| _ = self.report_close(end)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue with room for one frame, which is full.
    fn full() -> (Sender, Subscriber<Frame>) {
        let queue = Subscriber::new(1, Policy::DropNewest);
        let frames = FrameQueue {
            inlet: queue.inlet(),
            last: OnceLock::new(),
        };
        let sender = Sender(Arc::new(frames));
        sender.send("full");
        (sender, queue)
    }

    /// Takes batches as `send` does. Returns whether a close frame is the last of them, and nothing is left that would wake the reader.
    fn is_closed(sender: &Sender, mut next: impl FnMut() -> Result<Frame, TryRecvError>) -> bool {
        loop {
            let mut batch = Outbox::default();
            let is_last = fill(&mut batch, &sender.0.last, &mut next).is_some();
            if is_last || batch.is_empty() {
                return is_last && sender.is_empty();
            }
        }
    }

    #[test]
    fn a_close_frame_is_sent_whose_queue_is_emptied_while_it_finds_no_room() {
        // The reader empties the queue between two steps of the sender.
        let (sender, mut queue) = full();
        sender.close_by(Frame::close(1000, "bye"), |frame| {
            sender.send(frame);
            assert_eq!((sender.len(), sender.dropped()), (1, 1), "the queue was full");
            assert!(is_closed(&sender, || queue.try_recv()));
        });

        // The sender closes between two steps of the reader.
        let (sender, mut queue) = full();
        let mut closes = true;
        let closed = is_closed(&sender, || {
            if std::mem::take(&mut closes) {
                sender.close(1000, "bye");
                assert_eq!((sender.len(), sender.dropped()), (1, 1), "the queue was full");
            }
            queue.try_recv()
        });
        assert!(closed);

        // The sender sends and closes when the reader has found the queue empty: the last frame is not left behind.
        let (sender, mut queue) = full();
        let closed = is_closed(&sender, || {
            let taken = queue.try_recv();
            if taken.is_err() && sender.0.last.get().is_none() {
                sender.send("last");
                sender.close(1000, "bye");
                assert_eq!((sender.len(), sender.dropped()), (1, 1), "the queue was full");
            }
            taken
        });
        assert!(closed);
    }

    #[cfg(feature = "upgrade")]
    #[test]
    fn callbacks_that_have_panicked_do_not_move() {
        use crate::Session as _;

        struct Panics;
        impl Callbacks for Panics {
            fn on_message(&mut self, _: Message, _: &Sender) {}
            fn poll_woken(&mut self, _: &mut Context<'_>) -> Poll<()> {
                panic!("as the test wants it");
            }
        }
        let timing = super::super::Options::default().timing();
        let mut session = Session::new(Panics, timing, 1, Policy::DropNewest);
        session.stage = Stage::Open;
        assert!(session.may_move());
        let polled = session.poll_woken(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(polled.is_ready() && !session.may_move());
    }
}
