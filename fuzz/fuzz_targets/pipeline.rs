//! Fuzzes a whole connection. The codec never panics, and sees the same requests and the same end however the bytes are split.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../http/tests/it/connection.rs"]
mod connection;
#[path = "pieces.rs"]
mod pieces;

use connection::{End, run};
use osier_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = pieces::limits(data);
    let whole = run([data], &limits, usize::MAX);
    assert_eq!(run(pieces::pieces(data), &limits, usize::MAX), whole);
    assert_eq!(run(pieces::pieces(data), &limits, 5), whole);
    for request in &whole.requests {
        assert!(request.body.len() as u64 <= limits.body);
    }
    if let End::Rejected(reject) = whole.end {
        assert!(matches!(reject.status(), 400 | 413 | 414 | 417 | 431 | 501 | 505));
    }
});
