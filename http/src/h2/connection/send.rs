//! Sends on streams: heads, bodies, trailers, and a client's requests.

use std::fmt;
use std::time::Instant;

use super::Connection;
use super::ending::Ending;
use crate::h2::fields::{Outgoing, is_connection_field, is_sendable};
use crate::h2::frame::{self, HeadersWriter, Role};
use crate::h2::hpack::Encoder;
use crate::h2::limits::MAX_WINDOW;
use crate::h2::stream::{Direction, StreamId, Turn};

/// Why a client cannot send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestError {
    /// The server allows no more concurrent streams.
    NoSlot,
    /// The connection is ending, or has failed, or has no identifiers left.
    Ending,
    /// A part of the [`Outgoing`] target could split the request behind a gateway to HTTP/1.1, or is empty where HTTP/2 needs it.
    Malformed,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RequestError::NoSlot => "the server allows no more concurrent streams",
            RequestError::Ending => "the connection takes no more requests",
            RequestError::Malformed => "the method, scheme, authority, path or protocol of the request is malformed",
        })
    }
}

impl std::error::Error for RequestError {}

impl Connection {
    /// Sends the head of a response. A status below 200 is an interim response, and `end` has no effect then.
    ///
    /// Names are sent in lower case. Fields of HTTP/1.1 connections, such as Connection, are left out, for HTTP/2 does not have
    /// them, and so are fields with a name that is no token or with control characters in their value: behind a gateway to HTTP/1.1
    /// they could split the response. Nothing is sent if the stream is reset or its response has begun.
    pub fn send_head<'f>(
        &mut self,
        stream: StreamId,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        end: bool,
    ) {
        let Some(end) = self.begin_head(stream, status, end) else {
            return;
        };
        let out = self.output.frames();
        let headers = HeadersWriter::begin(out);
        self.encoder.begin(out);
        self.encoder.status(out, status);
        encode(&mut self.encoder, out, fields);
        headers.finish(out, stream, end, self.peer.max_frame_size);
        self.tunnel_begins(stream);
    }

    /// Sends the head of a response as [`send_head`](Self::send_head) does. `text` is the head as the owner has written it:
    /// [`send_same_head`](Self::send_same_head) may send it again.
    pub fn send_written_head<'f>(
        &mut self,
        stream: StreamId,
        text: &[u8],
        (status, fields): (u16, impl IntoIterator<Item = (&'f str, &'f [u8])>),
        end: bool,
    ) {
        let (before, changes) = (self.output.len(), self.encoder.changes());
        self.send_head(stream, status, fields, end);
        let block = self
            .output
            .waiting()
            .get(before + frame::FRAME_HEAD..)
            .unwrap_or_default();
        // Behind the head of a tunnel there may be a frame of the connection.
        let is_one_frame = block.len() <= self.peer.max_frame_size as usize && !self.is_tunnel(stream);
        if changes == self.encoder.changes() && !block.is_empty() && is_one_frame && text.len() <= TEXT_MAX {
            let kept = self.sent.get_or_insert_default();
            kept.text.clear();
            kept.text.extend_from_slice(text);
            kept.block.clear();
            kept.block.extend_from_slice(block);
            (kept.status, kept.changes) = (status, changes);
        }
    }

    /// Sends the last head of [`send_written_head`](Self::send_written_head) on another stream, if `bytes` begin with its text and it
    /// would be sent in the same way. Returns the length of the text. `end` ends the stream if `bytes` are nothing but the head.
    pub fn send_same_head(&mut self, stream: StreamId, bytes: &[u8], end: bool) -> Option<usize> {
        let sent = self.sent.as_deref()?;
        if !bytes.starts_with(&sent.text) || sent.changes != self.encoder.changes() {
            return None;
        }
        let (length, status) = (sent.text.len(), sent.status);
        let end = self.begin_head(stream, status, end && length == bytes.len());
        if let (Some(end), Some(sent)) = (end, &self.sent) {
            let out = self.output.frames();
            let headers = HeadersWriter::begin(out);
            out.extend_from_slice(&sent.block);
            headers.finish(out, stream, end, self.peer.max_frame_size);
            self.tunnel_begins(stream);
        }
        Some(length)
    }

    /// Notes that a head is sent. Returns whether it ends the stream. `None` if nothing may be sent.
    fn begin_head(&mut self, stream: StreamId, status: u16, end: bool) -> Option<bool> {
        let state = self.streams.get_mut(stream)?;
        if state.reset.is_some() || state.sending != Direction::Head || self.failed.is_some() {
            return None;
        }
        let is_final = status >= 200;
        let end = end && is_final;
        if is_final {
            state.sending = if end { Direction::Ended } else { Direction::Body };
            state.is_tunnel = state.is_connect && status < 300;
        }
        Some(end)
    }

    fn is_tunnel(&self, stream: StreamId) -> bool {
        self.streams.get(stream).is_some_and(|state| state.is_tunnel)
    }

    /// A head has been sent. If its stream is a tunnel now, there is room for another stream, and nobody needs the head of the request
    /// any more.
    fn tunnel_begins(&mut self, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(stream).filter(|state| state.is_tunnel) {
            self.heads -= std::mem::take(&mut state.head_bytes) as usize;
            self.announce_room();
        }
    }

    /// Sends the trailer of a body, which ends it. All bytes of the body must have been taken.
    pub fn send_trailers<'f>(&mut self, stream: StreamId, fields: impl IntoIterator<Item = (&'f str, &'f [u8])>) {
        let Some(state) = self.streams.get_mut(stream) else {
            return;
        };
        if state.reset.is_some() || state.sending != Direction::Body || self.failed.is_some() {
            return;
        }
        state.sending = Direction::Ended;
        self.take_turn(stream);
        let out = self.output.frames();
        let headers = HeadersWriter::begin(out);
        self.encoder.begin(out);
        encode(&mut self.encoder, out, fields);
        headers.finish(out, stream, true, self.peer.max_frame_size);
    }

    /// Sends bytes of a body, as many as the windows, the room in the output and the priorities allow now, and returns their number.
    /// If that is not all, the stream waits, and [`next_writable`](Self::next_writable) returns it when it may go on. `end` ends the
    /// body if all bytes were taken.
    ///
    /// A stream that is reset takes all bytes and sends none.
    pub fn send_data(&mut self, stream: StreamId, bytes: &[u8], end: bool, now: Instant) -> usize {
        let Some(state) = self.streams.get(stream) else {
            return bytes.len();
        };
        if state.reset.is_some() || state.sending != Direction::Body || self.failed.is_some() {
            return bytes.len();
        }
        let count = bytes.len().min(self.room_of(state));
        let is_whole = count == bytes.len();
        // A stream that goes on waiting keeps its place in the queue.
        if state.turn != Turn::None && (is_whole || state.turn != Turn::Waits) {
            self.take_turn(stream);
        }
        self.append_data(stream, &bytes[..count], end && is_whole);
        self.send_window.take(count);
        self.progress.1 = self.progress.1.saturating_add(count as u32);
        if self.progress.1 >= self.limits.stall_bytes {
            self.progress = (now, 0);
        }
        let Some(state) = self.streams.get_mut(stream) else {
            return count;
        };
        state.send_window.take(count);
        if is_whole {
            (state.waiting_since, state.progress, state.held_since) = (None, 0, None);
            if end {
                state.sending = Direction::Ended;
            }
            return count;
        }
        if (1..CRUMB).contains(&count) {
            self.crumbs = self.crumbs.saturating_add(1);
        }
        if count > 0 || state.held_since.is_none() {
            state.held_since = Some(now);
        }
        state.progress = state.progress.saturating_add(count as u32);
        let least = if state.may_be_slow { 1 } else { self.limits.stall_bytes };
        if state.progress >= least || state.waiting_since.is_none() {
            (state.waiting_since, state.progress) = (Some(now), 0);
        }
        if state.turn == Turn::None {
            state.turn = Turn::Waits;
            self.queue.push(stream);
        }
        count
    }

    /// Lets a body take any time, as long as it makes any progress within [`stall_timeout`](crate::h2::Limits::stall_timeout).
    pub fn allow_slow(&mut self, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(stream) {
            state.may_be_slow = true;
        }
    }

    /// Appends DATA frames. Nothing is appended for no bytes, unless they are the end.
    fn append_data(&mut self, stream: StreamId, bytes: &[u8], end: bool) {
        let out = self.output.frames();
        let mut left = bytes;
        while !left.is_empty() || (end && bytes.is_empty()) {
            let (frame, rest) = left.split_at(left.len().min(self.peer.max_frame_size as usize));
            out.extend_from_slice(&frame::data_head(stream, frame.len() as u32, end && rest.is_empty()));
            out.extend_from_slice(frame);
            self.updates_due = (self.updates_due + 2 + frame.len() as u32 / UPDATE_BYTES).min(MOST_UPDATES);
            left = rest;
            if left.is_empty() {
                break;
            }
        }
    }

    /// Sends a request on a new stream. The owner calls [`finish`](Self::finish) for the stream when it is through with it. Fields are
    /// sent, or left out, as [`send_head`](Self::send_head) says.
    ///
    /// # Errors
    /// [`RequestError`] if no stream can be opened now, or `target` is malformed.
    pub fn request<'f>(
        &mut self,
        target: &Outgoing<'_>,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        end: bool,
    ) -> Result<StreamId, RequestError> {
        let stream = if self.highest == 0 { 1 } else { self.highest + 2 };
        if self.role == Role::Server || self.is_ending() || stream > MAX_WINDOW {
            return Err(RequestError::Ending);
        }
        if self.slots() == 0 {
            return Err(RequestError::NoSlot);
        }
        if !target.is_sendable() {
            return Err(RequestError::Malformed);
        }
        self.note_opened(stream);
        let mut state = self.open(
            stream,
            Direction::Head,
            if end { Direction::Ended } else { Direction::Body },
        );
        state.is_head = target.method == "HEAD";
        state.is_connect = target.method == "CONNECT";
        self.streams.push(state);
        let (encoder, out) = (&mut self.encoder, self.output.frames());
        let headers = HeadersWriter::begin(out);
        encoder.begin(out);
        encoder.field(out, b":method", target.method.as_bytes());
        if target.method != "CONNECT" || target.protocol.is_some() {
            encoder.field(out, b":scheme", target.scheme.as_bytes());
            encoder.field(out, b":path", target.path.as_bytes());
        }
        encoder.field(out, b":authority", target.authority.as_bytes());
        if let Some(protocol) = target.protocol {
            encoder.field(out, b":protocol", protocol.as_bytes());
        }
        encode(encoder, out, fields);
        headers.finish(out, stream, end, self.peer.max_frame_size);
        Ok(stream)
    }

    /// The number of requests that may be sent now.
    pub fn slots(&self) -> usize {
        if self.is_ending() {
            return 0;
        }
        let most = self.peer.max_concurrent_streams.min(self.limits.max_streams) as usize;
        most.saturating_sub(self.streams.len())
    }

    /// Whether the peer takes extended CONNECT requests (RFC 8441).
    pub fn takes_extended_connect(&self) -> bool {
        self.peer.enable_connect_protocol
    }

    fn is_ending(&self) -> bool {
        self.failed.is_some() || self.peer_goes_away || self.ending != Ending::Not
    }
}

/// The longest text of a head that is kept.
const TEXT_MAX: usize = 1 << 10;

/// Encodes fields with their names in lower case, and without those that a message cannot have.
fn encode<'f>(encoder: &mut Encoder, out: &mut Vec<u8>, fields: impl IntoIterator<Item = (&'f str, &'f [u8])>) {
    let mut lower = [0; 64];
    for (name, value) in fields {
        let (name, value) = (name.as_bytes(), value.trim_ascii());
        if is_connection_field(name) || !is_sendable(name, value) {
            continue;
        }
        if !name.iter().any(u8::is_ascii_uppercase) {
            encoder.field(out, name, value);
        } else if let Some(lower) = lower.get_mut(..name.len()) {
            lower.copy_from_slice(name);
            lower.make_ascii_lowercase();
            encoder.field(out, lower, value);
        } else {
            encoder.field(out, &name.to_ascii_lowercase(), value);
        }
    }
}

/// A DATA frame with fewer bytes is a crumb if the peer's windows have cut it: the frame and the wake-up of its owner cost more than its
/// bytes.
const CRUMB: usize = 256;

/// Sent bytes that explain one more WINDOW_UPDATE frame: a client may open each window again for every KiB that it reads.
const UPDATE_BYTES: u32 = 512;

/// The most WINDOW_UPDATE frames that sent DATA frames explain.
pub(super) const MOST_UPDATES: u32 = 1 << 16;
