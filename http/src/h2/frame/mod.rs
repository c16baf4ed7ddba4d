//! The frames of RFC 9113: a reader that holds no payload, and writers that append to a vector.
//!
//! ```text
//!   frame:  length (3) │ type │ flags │ R, stream (4) │ payload: length bytes
//!
//!   bytes ─▶ FrameReader::read ─▶ Data, DataPiece … │ Headers, Block … │ Setting … SettingsEnd │ one event for any other frame
//! ```
//!
//! A long payload becomes one event for its beginning and one for each piece that is there. So a caller never needs to hold a
//! whole frame: at most [`FrameReader::HELD`] bytes stay unconsumed.
//!
//! ```
//! use osier_http::h2::frame::{self, Event, FrameReader, Role};
//!
//! let mut input = frame::PREFACE.to_vec();
//! frame::settings(&mut input, &[]);
//! frame::ping(&mut input, *b"whatever");
//!
//! let mut reader = FrameReader::new(Role::Server);
//! let mut events = Vec::new();
//! let mut rest = &input[..];
//! loop {
//!     let step = reader.read(rest)?;
//!     rest = &rest[step.consumed..];
//!     let Some(event) = step.event else { break };
//!     events.push(event);
//! }
//! assert_eq!(events, [Event::SettingsEnd, Event::Ping(*b"whatever")]);
//! # Ok::<(), osier_http::h2::Error>(())
//! ```

mod event;
mod head;
mod reader;
mod settings;
mod write;

pub use event::{Event, Step};
pub use reader::{FrameReader, Role};
pub use settings::{Setting, Settings};
pub use write::{
    HeadersWriter, data_head, go_away, ping, pong, priority_update, reset, settings, settings_ack, window_update,
};

/// The bytes that a client sends first.
pub const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The bytes before a frame's payload.
pub const FRAME_HEAD: usize = 9;
/// The highest stream identifier, and the largest window.
pub const MAX_31: u32 = (1 << 31) - 1;
/// The value of SETTINGS_MAX_FRAME_SIZE before any settings, which is also its smallest value.
pub const DEFAULT_MAX_FRAME_SIZE: u32 = 1 << 14;
