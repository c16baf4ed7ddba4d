//! HTTP/2 to backends: connections that many requests share, one stream each.
//!
//! ```text
//!   claim ─▶ Pool (one for each backend and worker) ─▶ a connection with a free stream, or a new one ─▶ Stream
//!                                                                                                         │ request
//!   socket readable ─▶ Driver::wake ─▶ osier_http::h2 ─▶ Answer of the stream: heads, inlet, cut         ▼
//!                                          output ─▶ the writer's fiber ─▶ one write for everything that waits
//! ```
//!
//! # Protocol
//! - All parts of a connection live on one worker, in `Rc`s. No borrow of the machine or of a table is held across a
//!   suspension.
//! - The [`Driver`](driver::Driver) is dormant while nothing arrives, also while streams run. Only the driver ends the
//!   connection. Code that finds the connection unusable calls [`Connection::lose`](connection::Connection::lose),
//!   which shuts the socket down and so wakes the driver.
//! - A stream that reads a body opens the windows. The window of the connection has room for the largest windows of all
//!   streams, so no slow client stops the streams of others.
//! - A request that the backend has certainly not processed (REFUSED_STREAM, or a stream above the last one of GOAWAY)
//!   may go to another connection, whatever its method is.

mod answer;
mod check;
mod connection;
mod driver;
mod pool;
mod stream;

pub(super) use check::get;
pub(super) use pool::{Reach, reach};
pub(crate) use stream::Stream;
