//! Fuzzes the head of a CGI response. The parser never panics, its result does not depend on the pieces, and no framing field
//! passes.
#![cfg_attr(fuzzing, no_main)]

#[path = "pieces.rs"]
mod pieces;

use osier_fuzz::fuzz_target;
use osier_http::cgi::{HEAD_BYTES, Head, Malformed, Scanner, longest_field};

fuzz_target!(|data: &[u8]| {
    let limit = pieces::limits(data).head_bytes.min(HEAD_BYTES);
    let whole = end(&[data], limit);
    assert_eq!(end(&pieces::pieces(data), limit), whole);
    assert_eq!(end(&data.chunks(1).collect::<Vec<_>>(), limit), whole);
    let _ = longest_field(data);
    let Ok(Some(end)) = whole else { return };
    assert!(end <= limit);
    let Ok(head) = Head::parse(&data[..end]) else { return };
    assert!((200..1000).contains(&head.status()));
    assert!(head.local_redirect().is_none() || head.location().is_some());
    for (name, value) in head.fields() {
        assert!(!name.is_empty() && !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
        for framing in ["status", "content-length", "transfer-encoding", "connection"] {
            assert!(!name.eq_ignore_ascii_case(framing));
        }
    }
});

fn end(pieces: &[&[u8]], limit: usize) -> Result<Option<usize>, Malformed> {
    let mut scanner = Scanner::new(limit);
    let mut buffer = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if let Some(end) = scanner.scan(&buffer)? {
            return Ok(Some(end));
        }
    }
    Ok(None)
}
