//! Fuzzes a response of a backend. The parser never panics, its result does not depend on the pieces, and an accepted response keeps
//! the promises of `osier_http::Reply`.
#![cfg_attr(fuzzing, no_main)]

#[path = "pieces.rs"]
mod pieces;

use osier_fuzz::fuzz_target;
use osier_http::{
    BodyDecoder, FieldLines, Limits, Method, Reject, Reply, ReplyLength, ReplyOutline, ReplyScanner, Slots,
};

fuzz_target!(|data: &[u8]| {
    let limits = pieces::limits(data);
    for asked in [Method::Get, Method::Head] {
        assert_eq!(
            read(&pieces::pieces(data), &limits, asked),
            read(&[data], &limits, asked)
        );
        outline(data, &limits, asked);
    }
});

/// The fast path accepts nothing but what the strict parser accepts, and finds the same.
fn outline(data: &[u8], limits: &Limits, asked: Method<'_>) {
    let mut outline = ReplyOutline::new();
    let Some(end) = outline.find(data, limits) else { return };
    assert_eq!(ReplyScanner::new().scan(data, limits), Ok(Some(end)));
    let mut slots: Slots = Slots::new();
    let expected = Reply::parse(&data[..end], &mut slots, limits, asked);
    match (Reply::outlined(&data[..end], &outline, asked), expected) {
        (Ok(reply), Ok(expected)) => {
            assert!(reply.headers().eq(expected.headers()));
            assert_eq!(format!("{reply:?}"), format!("{expected:?}"));
            assert_eq!((reply.body(), reply.upgrade()), (expected.body(), expected.upgrade()));
            let (mut passed, mut pushed) = (FieldLines::new(), FieldLines::new());
            passed.pass(reply.headers(), |name, _| name.len() % 2 == 0);
            for (name, value) in expected.headers().filter(|(name, _)| name.len() % 2 == 0) {
                let _ = pushed.push(name, value);
            }
            assert!(passed == pushed);
        }
        (reply, expected) => assert_eq!(reply.err(), expected.err()),
    }
}

/// The status, the body, and whether the connection is kept, of a response on a connection that ends after the data. `None` if the
/// head is incomplete.
fn read(pieces: &[&[u8]], limits: &Limits, asked: Method<'_>) -> Result<Option<(u16, Vec<u8>, bool)>, Reject> {
    let mut pieces = pieces.iter();
    let (mut buffer, mut scanner) = (Vec::new(), ReplyScanner::new());
    let (status, keep, mut decoder) = loop {
        let Some(end) = scanner.scan(&buffer, limits)? else {
            let Some(piece) = pieces.next() else { return Ok(None) };
            buffer.extend_from_slice(piece);
            continue;
        };
        let head: Vec<u8> = buffer.drain(..end).collect();
        let mut slots: Slots = Slots::new();
        let reply = Reply::parse(&head, &mut slots, limits, asked)?;
        check(&head, &reply, asked);
        if !reply.is_interim() {
            break (
                reply.status(),
                reply.keep_alive(),
                BodyDecoder::of_reply(reply.body(), limits),
            );
        }
        scanner = ReplyScanner::new();
    };
    let mut body = Vec::new();
    while !decoder.is_done() {
        let piece = decoder.decode(&buffer, 7)?;
        body.extend_from_slice(piece.data);
        let consumed = piece.consumed;
        buffer.drain(..consumed);
        if consumed == 0 && !decoder.is_done() {
            match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => decoder.at_end()?,
            }
        }
    }
    Ok(Some((status, body, keep)))
}

fn check(head: &[u8], reply: &Reply<'_>, asked: Method<'_>) {
    assert!(head.ends_with(b"\r\n\r\n") && (100..=999).contains(&reply.status()));
    let all = |wanted: &str| -> Vec<&[u8]> {
        let named = reply.headers().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        named.map(|(_, value)| value).collect()
    };
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    assert!(lengths.len() + codings.len() <= 1);
    for (name, value) in reply.headers() {
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b':'));
        assert!(value.iter().all(|&b| b == b'\t' || (b >= b' ' && b != 0x7f)));
    }
    match reply.body() {
        ReplyLength::None => assert!(asked == Method::Head || matches!(reply.status(), 100..=199 | 204 | 304)),
        ReplyLength::Known(length) => {
            let text = std::str::from_utf8(lengths[0]).expect("digits");
            assert_eq!(text.parse(), Ok(length));
        }
        ReplyLength::Chunked => assert!(codings[0].eq_ignore_ascii_case(b"chunked")),
        ReplyLength::UntilClose => assert!(!reply.keep_alive() && lengths.is_empty() && codings.is_empty()),
    }
}
