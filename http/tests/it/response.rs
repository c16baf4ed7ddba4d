//! Response heads: `httparse` reads them back, their framing follows version, method and status, and no value splits them.

use osier_http::{
    CONTINUE, DateLine, Exchange, HeadWriter, HeaderError, Method, ResponseBody, Sent, Transfer, Version, reason_phrase,
};
use proptest::collection::vec;
use proptest::prelude::*;
use {ResponseBody::*, Version::*};

const KNOWN: ResponseBody = Known(12);

struct Parsed {
    code: u16,
    reason: String,
    fields: Vec<(String, Vec<u8>)>,
}

impl Parsed {
    fn of(bytes: &[u8]) -> Parsed {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut fields);
        assert_eq!(
            response.parse(bytes),
            Ok(httparse::Status::Complete(bytes.len())),
            "{}",
            bytes.escape_ascii()
        );
        Parsed {
            code: response.code.unwrap(),
            reason: response.reason.unwrap().to_owned(),
            fields: response
                .headers
                .iter()
                .map(|f| (f.name.to_owned(), f.value.to_owned()))
                .collect(),
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(n, _)| n == name);
        let value = found.next().map(|(_, value)| std::str::from_utf8(value).unwrap());
        assert!(found.next().is_none(), "two {name} fields");
        value
    }
}

fn write(method: Method<'_>, version: Version, keep_alive: bool, status: u16, body: ResponseBody) -> (Parsed, Sent) {
    let mut out = Vec::new();
    let head = HeadWriter::begin(&mut out, status, Exchange::new(method, version, keep_alive)).unwrap();
    let sent = head.finish(body);
    (Parsed::of(&out), sent)
}

/// Content-Length, Transfer-Encoding and Connection as written, and the result for the caller.
type Framing<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a str>, Transfer, bool);

fn framing((parsed, sent): &(Parsed, Sent)) -> Framing<'_> {
    let field = |name| parsed.field(name);
    (
        field("content-length"),
        field("transfer-encoding"),
        field("connection"),
        sent.transfer,
        sent.keep_alive,
    )
}

#[test]
fn framing_of_the_usual_methods() {
    let of = |version, keep, body| write(Method::Get, version, keep, 200, body);
    let plain = Transfer::Plain(12);
    assert_eq!(framing(&of(Http11, true, KNOWN)), (Some("12"), None, None, plain, true));
    assert_eq!(
        framing(&of(Http11, false, KNOWN)),
        (Some("12"), None, Some("close"), plain, false)
    );
    assert_eq!(
        framing(&of(Http10, true, KNOWN)),
        (Some("12"), None, Some("keep-alive"), plain, true)
    );
    assert_eq!(
        framing(&of(Http10, false, KNOWN)),
        (Some("12"), None, Some("close"), plain, false)
    );
    assert_eq!(
        framing(&of(Http11, true, Stream)),
        (None, Some("chunked"), None, Transfer::Chunked, true)
    );
    assert_eq!(
        framing(&of(Http11, false, Stream)),
        (None, Some("chunked"), Some("close"), Transfer::Chunked, false)
    );
    assert_eq!(
        framing(&of(Http10, true, Stream)),
        (None, None, Some("close"), Transfer::UntilClose, false)
    );
    assert_eq!(
        framing(&of(Http10, false, Stream)),
        (None, None, Some("close"), Transfer::UntilClose, false)
    );
    assert_eq!(
        framing(&of(Http11, true, Known(0))),
        (Some("0"), None, None, Transfer::Plain(0), true)
    );
    let most = of(Http11, true, Known(u64::MAX));
    assert_eq!(
        framing(&most),
        (
            Some("18446744073709551615"),
            None,
            None,
            Transfer::Plain(u64::MAX),
            true
        )
    );
}

#[test]
fn head_has_the_length_and_no_body() {
    let of = |version, body| write(Method::Head, version, true, 200, body);
    assert_eq!(
        framing(&of(Http11, KNOWN)),
        (Some("12"), None, None, Transfer::None, true)
    );
    assert_eq!(framing(&of(Http11, Stream)), (None, None, None, Transfer::None, true));
    assert_eq!(
        framing(&of(Http10, Stream)),
        (None, None, Some("keep-alive"), Transfer::None, true)
    );
    assert!(!Exchange::new(Method::Head, Http11, true).has_body(200));
}

#[test]
fn statuses_without_a_body() {
    for status in [204, 304] {
        for body in [KNOWN, Stream] {
            let written = write(Method::Get, Http11, true, status, body);
            assert_eq!(framing(&written), (None, None, None, Transfer::None, true), "{status}");
            let written = write(Method::Get, Http11, false, status, body);
            assert_eq!(
                framing(&written),
                (None, None, Some("close"), Transfer::None, false),
                "{status}"
            );
        }
        assert!(!Exchange::new(Method::Get, Http11, true).has_body(status));
    }
    for status in [100, 102, 103] {
        for keep in [true, false] {
            let written = write(Method::Get, Http11, keep, status, KNOWN);
            assert_eq!(
                framing(&written),
                (None, None, None, Transfer::None, keep),
                "{status} says nothing of the end"
            );
        }
    }
    assert!(Exchange::new(Method::Get, Http11, true).has_body(404));
}

#[test]
fn tunnels() {
    let mut out = Vec::new();
    let mut head = HeadWriter::begin(&mut out, 101, Exchange::new(Method::Get, Http11, true)).unwrap();
    head.upgrade(b"websocket").unwrap();
    assert_eq!(
        head.finish(Known(0)),
        Sent {
            transfer: Transfer::Tunnel,
            keep_alive: false
        }
    );
    assert_eq!(
        out,
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    );

    let written = write(Method::Connect, Http11, true, 200, KNOWN);
    assert_eq!(framing(&written), (None, None, None, Transfer::Tunnel, false));
    let refused = write(Method::Connect, Http11, true, 405, KNOWN);
    assert_eq!(framing(&refused), (Some("12"), None, None, Transfer::Plain(12), true));
}

#[test]
fn every_status_has_a_line() {
    for status in 100..1000 {
        let (parsed, _) = write(Method::Get, Http11, true, status, KNOWN);
        assert_eq!((parsed.code, &parsed.reason[..]), (status, reason_phrase(status)));
    }
    let mut out = Vec::new();
    for status in [0, 99, 1000, u16::MAX] {
        let refused = HeadWriter::begin(&mut out, status, Exchange::REJECTED).map(|_| ());
        assert_eq!(refused, Err(HeaderError::Status));
    }
    assert!(out.is_empty());
}

#[test]
fn interim_continue() {
    let parsed = Parsed::of(CONTINUE);
    assert_eq!(
        (parsed.code, &parsed.reason[..], parsed.fields.len()),
        (100, "Continue", 0)
    );
}

#[test]
fn fields_that_split_or_frame_are_refused() {
    let mut out = b"earlier".to_vec();
    let mut head = HeadWriter::begin(&mut out, 200, Exchange::REJECTED).unwrap();
    for name in ["", "a b", "a:", "a\r\nb", "a\nb", "a\0", "\u{e9}", "a(b)"] {
        assert_eq!(head.header(name, b"x"), Err(HeaderError::Name), "{name:?}");
    }
    for value in [
        &b"a\r\nb"[..],
        b"a\nb",
        b"a\rb",
        b"\0",
        b"a\x7f",
        b"\x1f",
        b"0123456789abcdef0123456789abcde\n",
    ] {
        assert_eq!(
            head.header("x", value),
            Err(HeaderError::Value),
            "{}",
            value.escape_ascii()
        );
        assert_eq!(head.upgrade(value), Err(HeaderError::Value), "{}", value.escape_ascii());
    }
    for name in ["Content-Length", "transfer-encoding", "CONNECTION", "keep-alive"] {
        assert_eq!(head.header(name, b"x"), Err(HeaderError::Reserved), "{name}");
    }
    head.header("x-ok", b"caf\xc3\xa9\tau lait").unwrap();
    head.header("x-empty", b"").unwrap();
    head.finish(KNOWN);
    let parsed = Parsed::of(out.strip_prefix(b"earlier").unwrap());
    let names: Vec<_> = parsed.fields.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["x-ok", "x-empty", "content-length", "connection"]);
}

#[test]
fn a_head_dropped_unfinished_leaves_nothing() {
    let mut out = b"earlier".to_vec();
    let mut head = HeadWriter::begin(&mut out, 500, Exchange::REJECTED).unwrap();
    head.header("x", b"y").unwrap();
    drop(head);
    assert_eq!(out, b"earlier");
}

#[test]
fn a_handler_may_close() {
    let mut out = Vec::new();
    let mut head = HeadWriter::begin(&mut out, 200, Exchange::new(Method::Get, Http11, true)).unwrap();
    head.close();
    assert!(!head.finish(KNOWN).keep_alive);
    assert_eq!(Parsed::of(&out).field("connection"), Some("close"));
    assert!(!Exchange::new(Method::Get, Http11, true).closing().keep_alive());
}

#[test]
fn dates() {
    let date = DateLine::new(b"Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
    assert_eq!(date.as_bytes(), b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    assert_eq!(
        DateLine::new(b"Sun, 06 Nov 1994 08:49:37\r\nGM"),
        Err(HeaderError::Value)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_what_is_parsed(
        status in 200..600u16,
        keep: bool,
        fields in vec((vec(any::<u8>(), 0..8), vec(any::<u8>(), 0..40)), 0..6),
        good in vec(("[a-z]{1,9}-x", "[!-~]([ -~]{0,40}[!-~])?"), 0..6),
        length: u64,
    ) {
        let date = DateLine::new(b"Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let mut out = Vec::new();
        let mut head = HeadWriter::begin(&mut out, status, Exchange::new(Method::Get, Http11, keep)).unwrap();
        head.date(&date);
        let mut expected = vec![("date".to_owned(), b"Sun, 06 Nov 1994 08:49:37 GMT".to_vec())];
        let good = good.into_iter().map(|(name, value)| (name, value.into_bytes()));
        let wild = fields.into_iter().filter_map(|(name, value)| Some((String::from_utf8(name).ok()?, value)));
        for (name, value) in good.chain(wild) {
            match head.header(&name, &value) {
                Ok(()) => expected.push((name, value.trim_ascii().to_vec())),
                Err(_) => prop_assert!(
                    name.is_empty()
                        || !name.bytes().all(|b| b.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&b))
                        || value.iter().any(|&b| (b < b' ' && b != b'\t') || b == 0x7f),
                    "refused for nothing: {name:?}"
                ),
            }
        }
        head.finish(Known(length));
        let parsed = Parsed::of(&out);
        prop_assert_eq!(parsed.code, status);
        let others: Vec<_> = parsed
            .fields
            .into_iter()
            .filter(|(name, _)| !["content-length", "connection"].contains(&&name[..]))
            .collect();
        prop_assert_eq!(others, expected);
    }
}

#[test]
fn a_head_for_a_stream_has_no_field_of_a_connection() {
    for keep_alive in [true, false] {
        let exchange = Exchange::new(Method::Get, Version::Http2, keep_alive);
        for (body, transfer) in [
            (ResponseBody::Known(5), Transfer::Plain(5)),
            (ResponseBody::Stream, Transfer::UntilClose),
        ] {
            let mut out = Vec::new();
            let sent = HeadWriter::begin(&mut out, 200, exchange).unwrap().finish(body);
            assert_eq!(sent, Sent { transfer, keep_alive });
            let text = String::from_utf8(out).unwrap();
            assert!(
                !text.contains("connection") && !text.contains("transfer-encoding"),
                "{text}"
            );
        }
    }
}
