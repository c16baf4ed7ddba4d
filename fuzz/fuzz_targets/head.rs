//! Fuzzes a request head. The parser never panics, the scan does not depend on the pieces, and an accepted head keeps the promises
//! of `osier_http::Head`. The target checks them without the parser's own functions.
#![cfg_attr(fuzzing, no_main)]

#[path = "pieces.rs"]
mod pieces;

use osier_fuzz::fuzz_target;
use osier_http::{BodyLength, Head, HeadScanner, Limits, Method, Outline, Reject, Slots, Version};

fuzz_target!(|data: &[u8]| {
    let limits = pieces::limits(data);
    let whole = HeadScanner::new().scan(data, &limits);
    assert_eq!(scan_in_pieces(data, &limits), whole);
    let mut outline = Outline::new();
    if let Some(end) = outline.find(data, &limits) {
        assert_eq!(whole, Ok(Some(end)), "the fast path accepts nothing else");
        let mut slots: Slots = Slots::new();
        let expected = Head::parse(&data[..end], &mut slots, &limits);
        match (Head::outlined(&data[..end], &outline), expected) {
            (Ok(head), Ok(expected)) => {
                assert!(head.headers().eq(expected.headers()));
                assert_eq!(format!("{head:?}"), format!("{expected:?}"));
            }
            (head, expected) => assert_eq!(head.err(), expected.err()),
        }
    }
    if let Ok(Some(end)) = whole {
        accept(&data[..end], &limits);
    }
});

fn scan_in_pieces(data: &[u8], limits: &Limits) -> Result<Option<usize>, Reject> {
    let mut scanner = HeadScanner::new();
    let mut end = 0;
    let mut found = Ok(None);
    for piece in pieces::pieces(data) {
        end += piece.len();
        found = scanner.scan(&data[..end], limits);
        if found != Ok(None) {
            break;
        }
    }
    found
}

fn accept(bytes: &[u8], limits: &Limits) {
    assert!(bytes.len() <= limits.head_bytes && bytes.ends_with(b"\r\n\r\n"));
    assert!(!bytes.contains(&0) || Head::parse(bytes, &mut Slots::<100>::new(), limits).is_err());
    let mut slots: Slots = Slots::new();
    let Ok(head) = Head::parse(bytes, &mut slots, limits) else {
        return;
    };

    let is_token = |s: &str| {
        !s.is_empty()
            && s.bytes()
                .all(|b| b.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&b))
    };
    assert!(is_token(head.method().as_str()));
    assert!(head.target().bytes().all(|b| b.is_ascii_graphic() && b != b'#'));
    assert!(head.path().starts_with('/') || head.path() == "*" || head.method() == Method::Connect);
    assert!(head.headers().len() <= limits.header_count);
    for (name, value) in head.headers() {
        assert!(is_token(name));
        assert!(value.iter().all(|&b| b == b'\t' || (b >= b' ' && b != 0x7f)));
        assert_eq!(value.trim_ascii(), value);
    }

    let all = |wanted: &str| -> Vec<&[u8]> {
        head.headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value)
            .collect()
    };
    let (lengths, codings, hosts) = (all("content-length"), all("transfer-encoding"), all("host"));
    match head.body() {
        BodyLength::None => assert!(lengths.is_empty() && codings.is_empty()),
        BodyLength::Known(length) => {
            assert!(lengths.len() == 1 && codings.is_empty());
            let text = std::str::from_utf8(lengths[0]).expect("digits");
            assert!(text.bytes().all(|b| b.is_ascii_digit()));
            assert_eq!(text.parse(), Ok(length));
        }
        BodyLength::Chunked => {
            assert!(lengths.is_empty() && codings.len() == 1 && head.version() == Version::Http11);
            assert!(codings[0].eq_ignore_ascii_case(b"chunked"));
        }
    }
    assert!(hosts.len() <= 1 && (hosts.len() == 1 || head.version() == Version::Http10));
    assert!(head.upgrade().is_none() || head.body().is_empty());
    assert_eq!(head.header("HOST"), hosts.first().copied());

    // Written again in the plainest form, the head means the same.
    let version = if head.version() == Version::Http11 {
        "1.1"
    } else {
        "1.0"
    };
    let mut again = format!("{} {} HTTP/{version}\r\n", head.method(), head.target()).into_bytes();
    for (name, value) in head.headers() {
        again.extend_from_slice(name.as_bytes());
        again.push(b':');
        again.extend_from_slice(value);
        again.extend_from_slice(b"\r\n");
    }
    again.extend_from_slice(b"\r\n");
    assert_eq!(HeadScanner::new().scan(&again, limits), Ok(Some(again.len())));
    let mut slots: Slots = Slots::new();
    let copy = Head::parse(&again, &mut slots, limits).expect("the plain form of a good head is good");
    assert!(head.headers().eq(copy.headers()));
    assert_eq!(format!("{head:?}"), format!("{copy:?}"));
    assert_eq!(
        (head.path(), head.query(), head.form()),
        (copy.path(), copy.query(), copy.form())
    );
    assert_eq!(
        (head.expect_continue(), head.upgrade()),
        (copy.expect_continue(), copy.upgrade())
    );
}
