//! HTTP/2: the connection of many streams, each of which is served as an HTTP/1.1 request is, by code that may wait.
//!
//! ```text
//!   socket readable ─▶ Connection::wake (a burst) ─▶ osier_http::h2 ─▶ new streams ─▶ the serving fiber ─▶ exchange::serve, …
//!                                                         │               ClientStream: reads the inlet, writes heads and DATA
//!                                                         ▼               ▼
//!                                      inlets ◀─ DATA     output ─▶ one write for all that waits
//! ```
//!
//! # Protocol
//! - Everything lives on one worker, in `Rc`s. No borrow of the machine, of the table of streams or of an inlet is held across a
//!   suspension.
//! - The connection's box is dormant while nothing arrives, also while streams run.
//! - One fiber serves new streams in turn. A stream that has to wait keeps the fiber, and another fiber becomes the serving one
//!   (`serving.rs`).
//! - Code that puts frames into the output calls [`Shared::flush_soon`](shared::Shared::flush_soon). While there is a serving
//!   fiber, it writes the output when the output is full and when no new stream is left. Otherwise the call spawns the writer's fiber.
//!   That fiber runs behind those that are ready by then, so small responses of many streams leave in one write. No other fiber writes
//!   to the transport, and the serving one does not while there is a writer's fiber.
//! - A new stream is served when there is room in the output. Until then it is a head, without a stack or a buffer. Each serving fiber
//!   serves at least one stream, so long bodies cannot keep new streams from beginning.
//! - A stream that has left HTTP keeps no fiber either (`tunnel.rs`), nor does a response that has nothing to send for a while, or a
//!   request whose handler wants the body first (`paused.rs`).
//! - The handler that reads a body opens the windows. The room of the output and the windows of the client hold back a handler that
//!   writes.

mod connection;
mod exchange;
mod paused;
mod serving;
mod shared;
mod stream;
mod tunnel;

pub(crate) use connection::Connection;
