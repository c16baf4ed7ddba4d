//! Frames as bytes, appended to a vector.

use super::head::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameHead, GOAWAY, HEADERS, PING, PRIORITY_UPDATE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE,
};
use super::{FRAME_HEAD, Setting};
use crate::h2::{ErrorCode, Priority};

fn head(to: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let length = u32::try_from(length).expect("the caller bounds the payload");
    let head = FrameHead {
        length,
        kind,
        flags,
        stream,
    };
    to.extend_from_slice(&head.bytes());
}

/// Writes SETTINGS with these entries.
pub fn settings(to: &mut Vec<u8>, entries: &[Setting]) {
    head(to, entries.len() * 6, SETTINGS, 0, 0);
    for entry in entries {
        let (id, value) = entry.entry();
        to.extend_from_slice(&id.to_be_bytes());
        to.extend_from_slice(&value.to_be_bytes());
    }
}

/// Writes the acknowledgement of the peer's SETTINGS.
pub fn settings_ack(to: &mut Vec<u8>) {
    head(to, 0, SETTINGS, ACK, 0);
}

/// Writes PING.
pub fn ping(to: &mut Vec<u8>, payload: [u8; 8]) {
    head(to, payload.len(), PING, 0, 0);
    to.extend_from_slice(&payload);
}

/// Writes the answer to the peer's PING, with the same payload.
pub fn pong(to: &mut Vec<u8>, payload: [u8; 8]) {
    head(to, payload.len(), PING, ACK, 0);
    to.extend_from_slice(&payload);
}

/// Writes GOAWAY. `last_stream` is the highest stream of the peer that may have been processed, and `debug` is for its log.
pub fn go_away(to: &mut Vec<u8>, last_stream: u32, code: ErrorCode, debug: &[u8]) {
    head(to, 8 + debug.len(), GOAWAY, 0, 0);
    to.extend_from_slice(&last_stream.to_be_bytes());
    to.extend_from_slice(&code.0.to_be_bytes());
    to.extend_from_slice(debug);
}

/// Writes RST_STREAM.
pub fn reset(to: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    head(to, 4, RST_STREAM, 0, stream);
    to.extend_from_slice(&code.0.to_be_bytes());
}

/// Writes WINDOW_UPDATE. Stream 0 is the connection. The increment is from 1 to 2^31-1.
pub fn window_update(to: &mut Vec<u8>, stream: u32, increment: u32) {
    debug_assert!((1..=super::MAX_31).contains(&increment), "the RFC forbids {increment}");
    head(to, 4, WINDOW_UPDATE, 0, stream);
    to.extend_from_slice(&increment.to_be_bytes());
}

/// The head of a DATA frame. Its `length` bytes follow, without padding.
pub const fn data_head(stream: u32, length: u32, end_stream: bool) -> [u8; FRAME_HEAD] {
    let head = FrameHead {
        length,
        kind: DATA,
        flags: if end_stream { END_STREAM } else { 0 },
        stream,
    };
    head.bytes()
}

/// Writes PRIORITY_UPDATE of RFC 9218, which only a client may send.
pub fn priority_update(to: &mut Vec<u8>, stream: u32, priority: Priority) {
    let incremental: &[u8] = if priority.incremental { b", i" } else { b"" };
    head(to, 4 + 3 + incremental.len(), PRIORITY_UPDATE, 0, 0);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(&[b'u', b'=', b'0' + priority.urgency.min(7)]);
    to.extend_from_slice(incremental);
}

/// Writes a field block as HEADERS, and as CONTINUATION where it is longer than one frame may be.
///
/// ```
/// use osier_http::h2::frame::HeadersWriter;
///
/// let mut output = Vec::new();
/// let writer = HeadersWriter::begin(&mut output);
/// output.push(0x88); // `:status: 200`, in the static table
/// writer.finish(&mut output, 1, true, 16_384);
/// assert_eq!(output, b"\0\0\x01\x01\x05\0\0\0\x01\x88");
/// ```
#[must_use = "a field block ends with finish"]
#[derive(Debug)]
pub struct HeadersWriter {
    at: usize,
}

impl HeadersWriter {
    /// Makes room for the frame's head. Append the encoded block to the same vector after this call, and nothing else.
    pub fn begin(to: &mut Vec<u8>) -> HeadersWriter {
        let at = to.len();
        to.extend_from_slice(&[0; FRAME_HEAD]);
        HeadersWriter { at }
    }

    /// Writes the heads of the frames, now that the length of the block is known.
    pub fn finish(self, to: &mut Vec<u8>, stream: u32, end_stream: bool, max_frame_size: u32) {
        let most = max_frame_size as usize;
        let block = self.at + FRAME_HEAD;
        let first = (to.len() - block).min(most);
        // Each later frame needs room for its head. The last one moves first. Nearly all blocks fit into one frame.
        let later = match to.len() - block <= most {
            true => 0,
            false => (to.len() - block - 1) / most,
        };
        let end = to.len();
        to.resize(end + later * FRAME_HEAD, 0);
        for frame in (1..=later).rev() {
            let from = block + frame * most;
            let until = (from + most).min(end);
            let place = from + frame * FRAME_HEAD;
            to.copy_within(from..until, place);
            let flags = if frame == later { END_HEADERS } else { 0 };
            put(to, place - FRAME_HEAD, until - from, CONTINUATION, flags, stream);
        }
        let ends = if later == 0 { END_HEADERS } else { 0 };
        let flags = ends | if end_stream { END_STREAM } else { 0 };
        put(to, self.at, first, HEADERS, flags, stream);
    }
}

/// Writes a head over the nine bytes at `at`.
fn put(to: &mut [u8], at: usize, length: usize, kind: u8, flags: u8, stream: u32) {
    let head = FrameHead {
        length: length as u32,
        kind,
        flags,
        stream,
    };
    to[at..at + FRAME_HEAD].copy_from_slice(&head.bytes());
}
