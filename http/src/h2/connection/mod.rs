//! The state of one HTTP/2 connection, for a server or a client, without I/O.
//!
//! ```text
//!   bytes ─▶ receive ─▶ Event …                       streams   body and trailers, states, windows (stream.rs)
//!                │ answers: SETTINGS, PING, RST …     queue     streams that wait for room (turns.rs)
//!                ▼                                    budgets   work that the peer causes for nothing
//!   bytes ◀─ output ◀─ send_head, send_data, …        ending    GOAWAY, once or twice
//! ```
//!
//! The connection holds no bytes of bodies: received ones are borrowed from the input, and those to send are copied into the output
//! as far as the windows and the room there allow. It has no clock: the owner passes the time, and calls `expire` at `next_deadline`.

mod control;
mod data;
mod deadline;
mod ending;
mod export;
mod heads;
mod receive;
mod repeated;
mod room;
mod send;
mod turns;
mod unwanted;

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use super::budget::{Budget, Exhausted};
use super::event::Event;
use super::fields::{Block, Purpose};
use super::frame::{self, FrameReader, Role, Setting, Settings};
use super::hpack::{Decoder, Encoder, FieldLimits};
use super::limits::INITIAL_WINDOW;
use super::output::Output;
use super::stream::{Direction, Forgotten, ResetBy, Stream, StreamId, Streams};
use super::window::{ReceiveWindow, SendWindow};
use super::{Error, ErrorCode, Limits, Priority, growth};
use ending::Ending;
use repeated::{Received, Sent};
use room::Room;
use turns::QUANTUM;

pub use send::RequestError;

/// One HTTP/2 connection, without I/O. See the module's documentation for the protocol.
///
/// ```
/// use std::time::Instant;
/// use osier_http::h2::{Connection, Event, Limits, Outgoing};
///
/// let now = Instant::now();
/// let mut client = Connection::client(&Limits::default(), now);
/// let mut server = Connection::server(&Limits::default(), now);
/// let target = Outgoing { method: "GET", scheme: "http", authority: "example.org", path: "/", protocol: None };
/// let stream = client.request(&target, [("accept", &b"*/*"[..])], true)?;
///
/// let (input, mut at) = (client.output().to_vec(), 0);
/// while at < input.len() {
///     let (consumed, event) = server.receive(&input[at..], now)?;
///     at += consumed;
///     if let Some(Event::Request { stream, head, end }) = event {
///         assert_eq!((head.method(), head.path(), end), ("GET", Some("/"), true));
///         server.send_head(stream, 200, [("content-type", &b"text/plain"[..])], false);
///         assert_eq!(server.send_data(stream, b"hello", true, now), 5);
///         server.finish(stream);
///     }
/// }
/// # assert_eq!(stream, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Connection {
    role: Role,
    limits: Limits,
    reader: FrameReader,
    /// Received bytes of an incomplete part of a frame, fewer than [`FrameReader::HELD`].
    held: Vec<u8>,
    decoder: Decoder,
    encoder: Encoder,
    /// The field block whose end has not arrived.
    incoming: Option<Incoming>,
    /// The part of that block that has been decoded, while the connection waits for the rest.
    partial: Option<Box<Partial>>,
    /// The last request, which the client may repeat.
    received: Option<Box<Received>>,
    /// The last response, which the owner may repeat.
    sent: Option<Box<Sent>>,
    /// Whether the pieces of the current DATA frame belong to a stream that takes them.
    delivers: bool,
    output: Output,
    streams: Streams,
    forgotten: Forgotten,
    /// The highest stream that the client has opened.
    highest: StreamId,
    /// A bit for each stream from `highest` downwards: whether the client has used the id.
    used: u64,
    /// The streams that a client may have.
    room: Room,
    /// Bytes of the received heads and trailers of all streams in the table but tunnels.
    heads: usize,
    /// Streams that wait for room, in the order in which they began to wait.
    queue: Vec<StreamId>,
    /// Room in the output and in the connection's window that granted streams may still use.
    reserved: usize,
    /// The last time at which bodies together made progress, and the bytes sent since then.
    progress: (Instant, u32),
    /// Priorities that arrived before their streams.
    early: Vec<(StreamId, Priority)>,
    /// Whether the peer has sent a priority.
    has_priorities: bool,
    send_window: SendWindow,
    receive_window: ReceiveWindow,
    /// The peer's settings.
    peer: Settings,
    /// Events that are reported before the next input is read.
    events: VecDeque<Event<'static>>,
    resets: Budget,
    frames: Budget,
    /// WINDOW_UPDATE frames that sent DATA frames explain.
    updates_due: u32,
    /// Small DATA frames that the peer's windows have cut, and that have not been paid.
    crumbs: u32,
    pings: u32,
    ending: Ending,
    peer_goes_away: bool,
    /// The deadline for the last answers to PINGs behind responses, once the connection is over.
    answers_until: Option<Instant>,
    /// The deadline for the peer's first settings.
    greeting: Option<Instant>,
    /// The deadline for the acknowledgement of our settings.
    acknowledgement: Option<Instant>,
    failed: Option<Error>,
}

/// A field block in progress.
#[derive(Clone, Copy)]
struct Incoming {
    stream: StreamId,
    /// Whether HEADERS had END_STREAM.
    ended: bool,
    /// The stream is refused when its block ends.
    is_refused: bool,
    purpose: Purpose,
}

/// The fields of a block whose end has not arrived.
struct Partial {
    block: Block,
    since: Instant,
}

impl Connection {
    /// Makes the server's side. Its SETTINGS are in the output.
    pub fn server(limits: &Limits, now: Instant) -> Connection {
        Connection::new(Role::Server, limits, now)
    }

    /// Makes the client's side. The preface and its SETTINGS are in the output.
    pub fn client(limits: &Limits, now: Instant) -> Connection {
        Connection::new(Role::Client, limits, now)
    }

    fn new(role: Role, limits: &Limits, now: Instant) -> Connection {
        let limits = limits.clamped();
        let mut connection = Connection {
            role,
            limits,
            reader: FrameReader::new(role),
            held: Vec::new(),
            decoder: Decoder::new(fields(&limits)),
            encoder: Encoder::new(limits.encoder_table),
            incoming: None,
            partial: None,
            received: None,
            sent: None,
            delivers: false,
            output: Output::new(),
            streams: Streams::new(),
            forgotten: Forgotten::default(),
            highest: 0,
            used: 0,
            room: Room::new(limits.max_streams),
            heads: 0,
            queue: Vec::new(),
            reserved: 0,
            progress: (now, 0),
            early: Vec::new(),
            has_priorities: false,
            send_window: SendWindow::new(INITIAL_WINDOW),
            receive_window: ReceiveWindow::new(limits.connection_window, limits.connection_window),
            peer: Settings::INITIAL,
            events: VecDeque::new(),
            resets: Budget::new(limits.reset_burst, limits.reset_rate, now),
            frames: Budget::new(limits.frame_burst, limits.frame_rate, now),
            updates_due: 0,
            crumbs: 0,
            pings: 0,
            ending: Ending::Not,
            peer_goes_away: false,
            answers_until: None,
            greeting: Some(now + limits.head_timeout),
            acknowledgement: Some(now + limits.stall_timeout),
            failed: None,
        };
        let frames = limits.head_bytes / limits.max_frame;
        connection.reader.set_max_continuations(
            u16::try_from(frames)
                .unwrap_or(u16::MAX)
                .saturating_add(LEAST_CONTINUATIONS),
        );
        connection.greet();
        connection
    }

    /// Writes the preface and our settings. Settings that have their initial value are left out.
    fn greet(&mut self) {
        let (limits, initial) = (&self.limits, Settings::INITIAL);
        let all = [
            (
                limits.decoder_table != initial.header_table_size,
                Setting::HeaderTableSize(limits.decoder_table),
            ),
            (self.role == Role::Client, Setting::EnablePush(false)),
            (
                self.role == Role::Server,
                Setting::MaxConcurrentStreams(limits.max_streams),
            ),
            (
                limits.stream_window != INITIAL_WINDOW,
                Setting::InitialWindowSize(limits.stream_window),
            ),
            (
                limits.max_frame != initial.max_frame_size,
                Setting::MaxFrameSize(limits.max_frame),
            ),
            (true, Setting::MaxHeaderListSize(limits.head_bytes)),
            (
                self.role == Role::Server && limits.extended_connect,
                Setting::EnableConnectProtocol(true),
            ),
            (self.role == Role::Server, Setting::NoRfc7540Priorities(true)),
        ];
        let mut settings = [Setting::EnablePush(false); 8];
        let mut count = 0;
        for (_, setting) in all.into_iter().filter(|(is_sent, _)| *is_sent) {
            settings[count] = setting;
            count += 1;
        }
        let out = self.output.frames();
        if self.role == Role::Client {
            out.extend_from_slice(&frame::PREFACE);
        }
        frame::settings(out, &settings[..count]);
        if limits.connection_window > INITIAL_WINDOW {
            frame::window_update(out, 0, limits.connection_window - INITIAL_WINDOW);
        }
    }

    /// The frames that wait to be written.
    pub fn output(&self) -> &[u8] {
        self.output.waiting()
    }

    /// Reports that the first `count` bytes of [`output`](Self::output) are written.
    ///
    /// # Panics
    /// Panics if `count` exceeds the length of the output.
    pub fn advance(&mut self, count: usize) {
        self.output.advance(count);
    }

    /// Lends a buffer, which becomes the place of the output if nothing waits there. Its contents are dropped.
    pub fn lend(&mut self, buffer: Vec<u8>) {
        self.output.lend(buffer);
    }

    /// Takes the memory of the output, which a lent buffer may be. `None` if bytes wait, or there is no memory.
    pub fn reclaim(&mut self) -> Option<Vec<u8>> {
        self.output.reclaim()
    }

    /// Whether the owner should read from the peer. If not, so much output waits that the peer must read first.
    pub fn wants_input(&self) -> bool {
        // Bodies may exceed a small limit by one turn. They do not stop reads: two such endpoints would wait for each other.
        self.failed.is_none() && self.output.len() < 2 * self.limits.output_bytes.max(QUANTUM)
    }

    /// The number of streams that have begun, and for which [`finish`](Self::finish) has not been called.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether nothing is in progress: no stream, no incomplete frame, and no output.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
            && self.output.len() == 0
            && self.held.is_empty()
            && self.incoming.is_none()
            && self.events.is_empty()
            && self.reader.is_between_frames()
    }

    /// Frees memory that only work in progress needs. The owner calls it before the connection waits for long.
    pub fn rest(&mut self) {
        self.decoder.rest();
        self.encoder.rest();
        self.streams.rest();
        self.forgotten.rest();
        self.received = None;
        self.sent = None;
        if self.held.is_empty() {
            self.held = Vec::new();
        }
        if self.output.len() == 0 {
            self.output = Output::new();
        }
        if self.queue.is_empty() {
            self.queue = Vec::new();
        }
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
    }

    /// The priority of a stream; the default for one that has ended.
    pub fn priority(&self, stream: StreamId) -> Priority {
        self.streams
            .get(stream)
            .map_or_else(Priority::default, |stream| stream.priority)
    }

    /// Whether the stream is reset, or has ended.
    pub fn is_reset(&self, stream: StreamId) -> bool {
        self.streams.get(stream).is_none_or(|stream| stream.reset.is_some())
    }

    /// Reports that a handler has read `count` bytes of a body. The peer may then send as many more.
    pub fn consumed(&mut self, stream: StreamId, count: usize) {
        self.take_back(stream, count, |_, _, _| {});
    }

    /// Reports what [`consumed`](Self::consumed) does, and lets windows grow while the [handler waits](Self::reader_waits) for a fast peer: at
    /// this call as far as there is `room`. Windows become smaller as bodies are read: where memory is short, and where the handler waits no
    /// longer.
    pub fn consumed_within(&mut self, stream: StreamId, count: usize, room: growth::Room, now: Instant) {
        self.take_back(stream, count, |limits, windows, count| {
            growth::follow(limits, windows, (count, room), now);
        });
    }

    fn take_back(
        &mut self,
        stream: StreamId,
        count: usize,
        follow: impl FnOnce(&Limits, (&mut ReceiveWindow, &mut growth::Pace, &mut ReceiveWindow), u32),
    ) {
        let Some(state) = self.streams.get_mut(stream).filter(|_| self.failed.is_none()) else {
            return;
        };
        // The bytes of a reset stream have been given back at once.
        let count = u32::try_from(count).map_or(state.held, |count| count.min(state.held));
        state.held -= count;
        if state.receiving == Direction::Body && state.reset.is_none() {
            let windows = (&mut state.receive_window, &mut state.pace, &mut self.receive_window);
            follow(&self.limits, windows, count);
            if let Some(increment) = state.receive_window.give(count) {
                frame::window_update(self.output.frames(), stream, increment);
            }
        }
        self.give_back(count);
    }

    /// Reports that a handler waits for bytes of a body: it is as fast as the peer, so the window of the body may grow. See
    /// [`consumed_within`](Self::consumed_within).
    pub fn reader_waits(&mut self, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(stream) {
            state.pace.waits();
        }
    }

    /// The bytes by which the window of the connection is larger than [`Limits::connection_window`].
    pub fn grown(&self) -> usize {
        let target = self.receive_window.target();
        let beyond = target.saturating_sub(self.limits.connection_window);
        (beyond + self.receive_window.debt()) as usize
    }

    /// Gives received bytes back to the connection's window.
    fn give_back(&mut self, count: u32) {
        if let Some(increment) = self.receive_window.give(count).filter(|_| self.failed.is_none()) {
            frame::window_update(self.output.frames(), 0, increment);
        }
    }

    /// Resets a stream. Nothing follows for it but [`finish`](Self::finish).
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        let Some(state) = self.streams.get_mut(stream) else {
            return;
        };
        if state.is_closed() {
            return;
        }
        state.reset = Some(ResetBy::Us);
        if self.failed.is_none() {
            frame::reset(self.output.frames(), stream, code);
        }
        self.release(stream);
    }

    /// Ends a stream for good: its handler has ended, or the owner is through with the response. The owner calls it once for each
    /// [`Event::Request`], and once for each [`request`](Self::request). Only then the stream counts no more.
    ///
    /// A stream whose response has not ended is reset with INTERNAL_ERROR, or CANCEL at a client. A request whose body has not
    /// ended is reset with NO_ERROR (RFC 9113 8.1) when the client has answered a PING behind the response: by then, clients that take
    /// a reset for a failure (curl 7.88) have seen the response. It is not reset if the client can send all that Content-Length
    /// announces without a larger window: the bytes are ignored then.
    pub fn finish(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get(stream) else {
            return;
        };
        let mut is_unwanted = false;
        match (self.role, state.sending, state.receiving) {
            (_, Direction::Ended, Direction::Ended) => {}
            (Role::Server, Direction::Ended, _) => is_unwanted = state.reset.is_none() && !self.rest_fits(state),
            (Role::Server, ..) => self.reset(stream, ErrorCode::INTERNAL_ERROR),
            (Role::Client, ..) => self.reset(stream, ErrorCode::CANCEL),
        }
        self.take_turn(stream);
        if let Some(mut state) = self.streams.remove(stream) {
            let window = state.receive_window.size();
            growth::end(&self.limits, &mut state.receive_window, &mut self.receive_window);
            self.give_back(state.held);
            self.heads -= state.head_bytes as usize;
            if is_unwanted {
                self.reset_when_read(stream, window);
            } else if state.receiving != Direction::Ended && state.reset != Some(ResetBy::Peer) {
                self.forget(stream, window);
            }
            if state.reset.is_none() && !is_unwanted {
                self.resets.earn(1);
            }
            if state.is_tunnel {
                self.announce_room();
            }
        }
    }

    /// Whether the client can send the rest of a body, whose length it has announced, without a larger window.
    fn rest_fits(&self, stream: &Stream) -> bool {
        // The settings that the client does not know yet may make the window smaller.
        let shrinks = match self.acknowledgement {
            Some(_) => INITIAL_WINDOW.saturating_sub(self.limits.stream_window),
            None => 0,
        };
        let window = stream.receive_window.left().saturating_sub(shrinks.into());
        stream.length_left.is_some_and(|left| left <= window)
    }

    /// Gives back what a reset stream holds: its room, its turn, and the bytes that its handler has not read. A body that is whole
    /// can still be read, so its bytes count until then.
    fn release(&mut self, stream: StreamId) {
        self.take_turn(stream);
        let state = self.streams.get_mut(stream);
        if let Some(state) = state.filter(|state| state.receiving != Direction::Ended) {
            growth::end(&self.limits, &mut state.receive_window, &mut self.receive_window);
            let held = std::mem::take(&mut state.held);
            self.give_back(held);
        }
    }

    /// Takes units from the budget of frames.
    fn spend(&mut self, units: u32, now: Instant) -> Result<(), Error> {
        let spent = self.frames.spend(units, now);
        spent.map_err(|Exhausted| Error::new(ErrorCode::ENHANCE_YOUR_CALM, "too many frames without progress"))
    }

    /// Takes one reset from the budget.
    fn spend_reset(&mut self, now: Instant) -> Result<(), Error> {
        let spent = self.resets.spend(1, now);
        spent.map_err(|Exhausted| Error::new(ErrorCode::ENHANCE_YOUR_CALM, "too many resets"))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("role", &self.role)
            .field(
                "streams",
                &self.streams.iter().map(|stream| stream.id).collect::<Vec<_>>(),
            )
            .field("highest", &self.highest)
            .field("output", &self.output.len())
            .field("ending", &self.ending)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// The bounds of one head.
fn fields(limits: &Limits) -> FieldLimits {
    FieldLimits {
        bytes: limits.head_bytes,
        fields: limits.header_count,
    }
}

/// The CONTINUATION frames that a head may have besides those that it needs.
const LEAST_CONTINUATIONS: u16 = 6;

impl Connection {
    /// Makes the state of a new stream.
    fn open(&mut self, id: StreamId, receiving: Direction, sending: Direction) -> Stream {
        Stream::new(
            id,
            (receiving, sending),
            SendWindow::new(self.peer.initial_window_size),
            ReceiveWindow::new(self.first_window(), self.limits.stream_window),
        )
    }

    /// The window of a new stream. The peer's streams have the initial one until it knows our settings (RFC 9113 6.9.2).
    fn first_window(&self) -> u32 {
        match self.acknowledgement {
            Some(_) => INITIAL_WINDOW,
            None => self.limits.stream_window,
        }
    }
}
