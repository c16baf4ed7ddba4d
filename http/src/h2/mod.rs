//! HTTP/2 (RFC 9113) without I/O: bytes in, events out, bytes out.
//!
//! | module | idea |
//! |---|---|
//! | [`Connection`] | the state of one connection: streams, windows, priorities, and the end |
//! | [`Limits`] | the bounds of memory and of work that a peer may cause |
//! | [`frame`] | reads frames from whatever bytes are there, writes them, and knows the settings |
//! | [`hpack`] | field compression (RFC 7541) |
//! | [`ErrorCode`], [`Error`] | the codes of RFC 9113, and an error that ends the connection |
//! | [`Priority`] | the priority of a response (RFC 9218) |
//! | [`RequestHead`], [`ResponseHead`], [`FieldSection`] | received heads and trailers, checked and owned |
//!
//! The owner of a [`Connection`] passes it what it has read from the peer, writes what is in its output, and calls it when time has
//! passed:
//!
//! ```text
//!   read ─▶ receive … until all is consumed ─▶ events: start handlers, hand bytes to them, end them
//!   handlers: send_head, send_data, send_trailers, consumed, and at last finish
//!   then: next_writable … wakes the handlers that wait for room;  write output, advance;  timer at next_deadline ─▶ expire
//! ```

mod budget;
mod connection;
mod error;
mod event;
mod export;
mod fields;
pub mod frame;
mod growth;
pub mod hpack;
mod limits;
mod output;
mod priority;
mod stream;
mod window;

pub use crate::message::FieldSection;
pub use connection::{Connection, RequestError};
pub use error::{Error, ErrorCode, Malformed, NotExportable};
pub use event::Event;
pub use fields::{Outgoing, RequestHead, ResponseHead};
pub use growth::Room;
pub use limits::Limits;
pub use priority::Priority;
pub use stream::StreamId;
