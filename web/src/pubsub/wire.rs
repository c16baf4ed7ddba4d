//! The encoding of messages on the broker, and the meaning of what the broker sends.
//!
//! ```text
//!   "OSR1" │ node: 16 random bytes │ sequence: 8 bytes, big endian │ the message
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use super::resp::Reply;

const MAGIC: &[u8; 4] = b"OSR1";
pub(super) const NODE_BYTES: usize = 16;
const SEQUENCE_BYTES: usize = 8;

/// Maximum processes whose last number is kept. A restarted process counts as a new one.
const NODES_MAX: usize = 4096;

/// The random number of a process.
pub(super) type Node = [u8; NODE_BYTES];

/// Encodes a message.
pub(super) fn pack(node: &Node, sequence: u64, message: &[u8]) -> Arc<[u8]> {
    [MAGIC, &node[..], &sequence.to_be_bytes(), message].concat().into()
}

/// Splits an encoded message. Returns `None` if the bytes are not in this encoding.
pub(super) fn unpack(bytes: &[u8]) -> Option<(Node, u64, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (node, rest) = rest.split_first_chunk::<NODE_BYTES>()?;
    let (sequence, message) = rest.split_first_chunk::<SEQUENCE_BYTES>()?;
    Some((*node, u64::from_be_bytes(*sequence), message))
}

/// The last sequence number received from each process.
#[derive(Default)]
pub(super) struct Seen(HashMap<Node, u64>);

impl Seen {
    /// Whether a message is new. A process numbers its messages and sends them in order.
    pub(super) fn is_new(&mut self, node: Node, sequence: u64) -> bool {
        if self.0.len() >= NODES_MAX && !self.0.contains_key(&node) {
            self.0.clear(); // only a message being repeated at this very moment can be delivered twice
        }
        let last = self.0.insert(node, sequence);
        match last {
            Some(last) if last >= sequence => {
                self.0.insert(node, last);
                false
            }
            _ => true,
        }
    }
}

/// The meaning of a reply on a subscribed connection.
pub(super) enum Received<'v> {
    Subscribed(&'v str),
    Message { room: &'v str, bytes: &'v [u8] },
    Other,
}

/// Classifies a reply on a subscribed connection.
pub(super) fn received(reply: &Reply) -> Received<'_> {
    let Reply::Array(parts) = reply else {
        return Received::Other;
    };
    let [Reply::Text(kind), Reply::Text(room), third] = &parts[..] else {
        return Received::Other;
    };
    match (&kind[..], str::from_utf8(room), third) {
        (b"subscribe", Ok(room), _) => Received::Subscribed(room),
        (b"message", Ok(room), Reply::Text(bytes)) => Received::Message { room, bytes },
        _ => Received::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_packed_is_unpacked_and_nothing_else_is() {
        let packed = pack(&[7; 16], 1 << 40, b"hello");
        assert_eq!(unpack(&packed), Some(([7; 16], 1 << 40, &b"hello"[..])));
        for bytes in [
            &b""[..],
            b"OSR1",
            &packed[..27],
            b"a message of somebody else's, long enough",
        ] {
            assert_eq!(unpack(bytes), None);
        }
    }

    #[test]
    fn a_number_is_new_once() {
        let mut seen = Seen::default();
        assert!(seen.is_new([1; 16], 0) && seen.is_new([2; 16], 0) && seen.is_new([1; 16], 5));
        assert!(!seen.is_new([1; 16], 5) && !seen.is_new([1; 16], 4) && seen.is_new([1; 16], 6));
    }
}
