//! The events of the reader.

use super::Setting;
use crate::h2::{ErrorCode, Priority};

/// An event in the peer's frames. `stream` is never 0 where this type does not say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'i> {
    /// A DATA frame begins. At least one [`DataPiece`](Event::DataPiece) follows.
    Data {
        /// The stream.
        stream: u32,
        /// The bytes of the payload with its padding. Flow control counts all of them.
        length: u32,
        /// The bytes of the payload that are padding, with the byte of its length. No piece has them.
        padding: u32,
    },
    /// A piece of the DATA frame that began last.
    DataPiece {
        /// The stream.
        stream: u32,
        /// The bytes. Empty only in the last piece.
        data: &'i [u8],
        /// No further piece of this frame follows.
        last: bool,
        /// No further frame of this stream carries data: the last piece of a frame with END_STREAM.
        end_stream: bool,
    },
    /// A HEADERS frame begins. At least one [`Block`](Event::Block) follows.
    Headers {
        /// The stream.
        stream: u32,
        /// The peer sends nothing on this stream after the field block.
        end_stream: bool,
    },
    /// A piece of the field block that began last, from HEADERS or from its CONTINUATION frames.
    Block {
        /// The stream.
        stream: u32,
        /// The bytes. They may be empty.
        fragment: &'i [u8],
        /// The field block has ended.
        last: bool,
    },
    /// A PRIORITY frame of RFC 7540, which has no effect.
    Priority {
        /// The stream.
        stream: u32,
    },
    /// RST_STREAM.
    Reset {
        /// The stream.
        stream: u32,
        /// The peer's reason.
        code: ErrorCode,
    },
    /// One entry of a SETTINGS frame, with a valid value. Entries of unknown settings are not reported.
    Setting(Setting),
    /// The end of a SETTINGS frame: acknowledge it.
    SettingsEnd,
    /// The peer acknowledges our settings.
    SettingsAck,
    /// PING: answer it with the same payload.
    Ping([u8; 8]),
    /// The answer to a PING of ours.
    Pong([u8; 8]),
    /// GOAWAY. Its debug data is skipped.
    GoAway {
        /// The highest of our streams that the peer may have processed; 0 if there is none.
        last_stream: u32,
        /// The peer's reason.
        code: ErrorCode,
    },
    /// WINDOW_UPDATE.
    WindowUpdate {
        /// The stream, or 0 for the connection.
        stream: u32,
        /// The bytes by which the window grows: from 1 to 2^31-1.
        increment: u32,
    },
    /// PRIORITY_UPDATE of RFC 9218.
    PriorityUpdate {
        /// The stream, which need not exist yet.
        stream: u32,
        /// Its new priority.
        priority: Priority,
    },
    /// A frame that has no effect: one of an unknown type, or a PRIORITY_UPDATE whose value is malformed.
    Unknown {
        /// The type.
        kind: u8,
        /// The bytes of the payload, which is skipped.
        length: u32,
    },
    /// A frame that ends its stream but not the connection: send RST_STREAM.
    StreamError {
        /// The stream.
        stream: u32,
        /// The code for RST_STREAM.
        code: ErrorCode,
        /// The reason in one line. It is safe to log.
        reason: &'static str,
    },
}

/// The result of [`FrameReader::read`](super::FrameReader::read).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'i> {
    /// The number of consumed input bytes, also where there is no event.
    pub consumed: usize,
    /// The event. `None`: more input is needed.
    pub event: Option<Event<'i>>,
}
