//! Simulations of servers, gateways, rooms and chats, with their invariants. A run has clients and servers on hosts of their own, a
//! network that fails, and hosts that crash; all of it comes from one seed.
//!
//! `cargo xtask sim` runs thousands of seeds. The tests run the first few, because a build without optimisation takes a tenth of a second
//! and more for each. A seed that has found a defect stays in the list of its scenario.

mod chance;
mod chat;
mod client;
mod fastcgi;
mod guest;
#[cfg(feature = "h2")]
mod http2;
#[cfg(feature = "h2")]
mod http2_client;
mod pool;
mod proxy;
mod pubsub;
mod server;

use chance::{SECOND, below, check, once_in, piece_of, some_bytes, some_faults, some_of};
