//! Heads and trailers: the rules of RFC 9113 8.2 and 8.3 for their fields, and the owned form in which they are handed out.

mod block;
mod head;
mod rules;
mod usual;

pub(super) use block::{Block, Built, Malformed, Purpose};
pub use head::{Outgoing, RequestHead, ResponseHead};
pub(super) use rules::{is_connection_field, is_sendable};
