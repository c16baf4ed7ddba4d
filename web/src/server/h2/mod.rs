//! HTTP/2: the connection of many streams, each of which is served on a fiber of its own as an HTTP/1.1 request is.
//!
//! ```text
//!   socket readable ─▶ Connection::wake (a burst) ─▶ osier_http::h2 ─▶ a new stream: spawn ─▶ exchange::serve
//!                                                         │               │ ClientStream: reads the inbox, writes heads and DATA
//!                                                         ▼               ▼
//!                                      inboxes ◀─ DATA    output ─▶ the writer's fiber ─▶ one write for all that waits
//! ```
//!
//! # Protocol
//! - Everything lives on one worker, in `Rc`s. No borrow of the machine, of the table of streams or of an inbox is held across a
//!   suspension.
//! - The connection's box is dormant while nothing arrives, also while streams run.
//! - Code that puts frames into the output calls [`Shared::flush_soon`](shared::Shared::flush_soon). It spawns the writer's fiber,
//!   unless there is one. That fiber runs behind those that are ready by then, so small responses of many streams leave in one
//!   write. Nobody else writes to the transport.
//! - The handler that reads a body opens the windows. The room of the output and the windows of the client hold back a handler that
//!   writes.

mod connection;
mod exchange;
mod shared;
mod stream;
mod tunnel;

pub(crate) use connection::Connection;
