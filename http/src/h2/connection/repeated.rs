//! Heads that repeat: of requests that a client sends again and again, and of their responses.
//!
//! A block means the same fields as long as the table does not change, and the same fields become the same block as long as the encoder
//! does not. So the last head of either direction is kept with its block while the connection works.

use std::sync::Arc;

use crate::h2::Priority;
use crate::h2::fields::RequestHead;
use crate::h2::hpack::Decoder;

/// The longest block of a request that is kept.
pub(super) const BLOCK_MAX: usize = 256;

/// The last request whose block has not changed the decoder.
pub(super) struct Received {
    pub(super) block: Vec<u8>,
    /// The changes of the decoder by then.
    pub(super) changes: u64,
    pub(super) request: Request,
}

impl Received {
    /// Whether `block` is that of the same request. `ended`: the stream ends with it.
    pub(super) fn means(&self, block: &[u8], ended: bool, decoder: &Decoder) -> bool {
        self.changes == decoder.changes() && self.request.head.ended() == ended && self.block == block
    }
}

/// A request as its block says.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) head: Arc<RequestHead>,
    /// Its Content-Length.
    pub(super) length: Option<u64>,
    pub(super) priority: Option<Priority>,
}

/// The last response whose block has not changed the encoder.
#[derive(Default)]
pub(super) struct Sent {
    /// The head as the owner has written it.
    pub(super) text: Vec<u8>,
    pub(super) status: u16,
    pub(super) block: Vec<u8>,
    /// The changes of the encoder by then.
    pub(super) changes: u64,
}
