//! HTTP/2 (RFC 9113) without I/O: bytes in, events out, bytes out.
//!
//! | module | idea |
//! |---|---|
//! | [`frame`] | reads frames from whatever bytes are there, writes them, and knows the settings |
//! | [`hpack`] | field compression (RFC 7541) |
//! | [`ErrorCode`], [`Error`] | the codes of RFC 9113, and an error that ends the connection |
//! | [`Priority`] | the priority of a response (RFC 9218) |

mod error;
pub mod frame;
pub mod hpack;
mod priority;

pub use error::{Error, ErrorCode};
pub use priority::Priority;
