//! The properties of the messages that hold for every input, as one function. A proptest and the fuzz target `upgrade`
//! call it.

use super::format::{FrameHead, HEAD_BYTES, checksum};

/// Checks every property with `data` as the input.
///
/// # Panics
///
/// If a property does not hold for `data`.
pub(super) fn check(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<HEAD_BYTES>() else {
        return;
    };
    let Ok(mut head) = FrameHead::parse(head) else {
        return;
    };
    let _ = head.message(rest);
    // A fitting length and checksum let the content through to the parser.
    let payload = &rest[..rest.len().min(head.length)];
    (head.length, head.checksum) = (payload.len(), checksum(payload));
    if let Ok(message) = head.message(payload) {
        let again = message.encode(head.descriptors);
        let (frame, content) = again.split_first_chunk::<HEAD_BYTES>().expect("a head");
        assert_eq!(FrameHead::parse(frame), Ok(head));
        assert_eq!(content, payload);
    }
}
