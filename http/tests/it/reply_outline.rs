//! The fast path for response heads accepts only heads that the scanner and the parser accept, finds the same parts, and accepts usual
//! heads. A gateway passes the same fields of such a head on as of a parsed one.

use crate::reply_table;
use osier_http::{FieldLines, Limits, Method, Reply, ReplyOutline, ReplyScanner, RequestWriter, Slots};
use proptest::collection::vec;
use proptest::prelude::*;

/// The result of the fast path. If it accepts a head, the scanner and the parser must accept it and find the same parts.
fn outlined(bytes: &[u8], limits: &Limits) -> Option<usize> {
    let mut outline = ReplyOutline::new();
    let len = outline.find(bytes, limits)?;
    assert_eq!(ReplyScanner::new().scan(bytes, limits), Ok(Some(len)), "{bytes:?}");
    for asked in [Method::Get, Method::Head] {
        let mut slots: Slots = Slots::new();
        let expected = Reply::parse(&bytes[..len], &mut slots, limits, asked);
        match (Reply::outlined(&bytes[..len], &outline, asked), expected) {
            (Ok(reply), Ok(expected)) => assert_same(&reply, &expected),
            (reply, expected) => assert_eq!(reply.err(), expected.err(), "{bytes:?}"),
        }
    }
    Some(len)
}

/// Whether a Connection field lists `name`, by the definition.
fn lists(reply: &Reply<'_>, name: &str) -> bool {
    let lists = reply
        .headers()
        .filter(|(known, _)| known.eq_ignore_ascii_case("connection"));
    lists
        .flat_map(|(_, list)| list.split(|&byte| byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
}

fn assert_same(reply: &Reply<'_>, expected: &Reply<'_>) {
    assert!(reply.headers().eq(expected.headers()), "{reply:?} {expected:?}");
    assert_eq!(format!("{reply:?}"), format!("{expected:?}"));
    let parts = |reply: &Reply<'_>| (reply.body(), reply.content_length(), reply.connection_names_others());
    assert_eq!(parts(reply), parts(expected));
    assert_eq!(reply.upgrade(), expected.upgrade());
    let names = || {
        let names = expected.headers().map(|(name, _)| name);
        names.chain(["close", "Keep-Alive", "upgrade", "x-hop", "absent", ""])
    };
    for name in names() {
        let is_listed = lists(expected, name);
        assert_eq!(reply.connection_names(name), is_listed, "{name}");
        assert_eq!(expected.connection_names(name), is_listed, "{name}");
    }
    // Every choice of the first fields, and the way of a single field.
    for choice in [3, 5u32] {
        let passes = |at: usize| choice >> (at % 3) & 1 == 1;
        let lines = |reply: &Reply<'_>| {
            let (mut lines, mut at) = (FieldLines::new(), 0);
            lines.pass(reply.headers(), |_, _| {
                at += 1;
                passes(at)
            });
            lines
        };
        let mut one_by_one = FieldLines::new();
        for (at, (name, value)) in expected.headers().enumerate() {
            if passes(at + 1) {
                let _ = one_by_one.push(name, value);
            }
        }
        assert_eq!(lines(reply).as_bytes(), one_by_one.as_bytes());
        assert_eq!(lines(expected).as_bytes(), one_by_one.as_bytes());
    }
    let (mut passed, mut added) = (Vec::new(), Vec::new());
    let mut head = RequestWriter::begin(&mut passed, "GET", "/", "a").unwrap();
    head.pass(reply.headers(), |_, _| true);
    head.finish(osier_http::BodyLength::None);
    let mut head = RequestWriter::begin(&mut added, "GET", "/", "a").unwrap();
    for (name, value) in expected.headers() {
        let _ = head.header(name, value);
    }
    head.finish(osier_http::BodyLength::None);
    assert_eq!(passed, added);
}

fn letters() -> impl Strategy<Value = u8> {
    prop_oneof![
        6 => proptest::sample::select(b"aZ09-_.~!\"(){}<>@,;:=?/#%&'*+^`|\\[]".as_slice()),
        3 => proptest::sample::select(b" \t\r\n\0\x1f\x7f\x80\xa9\xff".as_slice()),
    ]
}

/// Nearly a head: each part may have a few wrong bytes.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let odd = || prop_oneof![8 => Just(vec![]), 1 => vec(letters(), 1..3)];
    let line_end = prop_oneof![
        20 => Just(&b"\r\n"[..]),
        1 => proptest::sample::select(vec![&b"\n"[..], b"\r", b"\r\r\n", b"\r\n ", b""]),
    ];
    let protocol = proptest::sample::select(vec![
        "HTTP/1.1 ",
        "HTTP/1.0 ",
        "HTTP/1.1 ",
        "HTTP/1.2 ",
        "HTTP/1.1  ",
        "http/1.1 ",
    ]);
    let status = proptest::sample::select(vec![
        "200 OK",
        "200 ",
        "200",
        "101 x",
        "099 x",
        "1000 x",
        "204 N\tC",
        "304 Not Modified",
    ]);
    let name = proptest::sample::select(vec![
        "Host",
        "Content-Length",
        "Transfer-Encoding",
        "X-Hop",
        "Connection",
        "Keep-Alive",
        "Close",
        "Upgrade",
        "",
    ]);
    let value = proptest::sample::select(vec![
        "a",
        "",
        "  5\t ",
        "chunked",
        "close, x-hop",
        "keep-alive",
        "upgrade,,",
        "a longer value\tor two",
    ]);
    let colon = proptest::sample::select(vec![":", ": ", ": ", ":\t", " : ", ""]);
    let field = (name, odd(), colon, value, odd(), line_end.clone());
    (
        odd(),
        protocol,
        status,
        odd(),
        line_end.clone(),
        vec(field, 0..6),
        line_end,
    )
        .prop_map(|(before, protocol, status, odd, end, fields, last)| {
            let mut bytes = [&before, protocol.as_bytes(), status.as_bytes(), &odd, end].concat();
            for (name, odd, colon, value, more, end) in fields {
                let field = [name.as_bytes(), &odd, colon.as_bytes(), value.as_bytes(), &more, end];
                bytes.extend_from_slice(&field.concat());
            }
            [&bytes, last].concat()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn near_misses_are_taken_only_where_the_parser_takes_them(bytes in nearly(), next in vec(letters(), 0..12)) {
        outlined(&[bytes, next].concat(), &Limits::default());
    }
}

proptest! {
    // A case looks at each beginning of its head, a thousand on average.
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn usual_heads_are_taken(
        status in 100u16..1000,
        reason in "[ -~]{0,20}",
        fields in vec(("[a-zA-Z0-9_-]{1,20}", "[ \t]{0,2}", "([!-~][ -~\t]{0,80}[!-~])?", "[ \t]{0,2}"), 0..32),
        next in vec(any::<u8>(), 0..12),
    ) {
        let mut head = format!("HTTP/1.1 {status} {reason}\r\n");
        for (name, before, value, after) in fields {
            head += &format!("X{name}:{before}{value}{after}\r\n");
        }
        head += "\r\n";
        let bytes = [head.as_bytes(), &next].concat();
        prop_assert_eq!(outlined(&bytes, &Limits::default()), Some(head.len()));
        for end in 0..head.len() {
            prop_assert_eq!(ReplyOutline::new().find(&bytes[..end], &Limits::default()), None);
        }
    }
}

#[test]
fn no_vector_of_the_table_is_read_in_another_way() {
    let taken = reply_table::VECTORS
        .iter()
        .filter(|vector| outlined(vector.1, &Limits::default()).is_some());
    assert!(taken.count() > 20, "most good heads are usual ones");
}

#[test]
fn every_byte_in_every_place() {
    let head =
        b"HTTP/1.1 200 OK\r\nDate: abc\r\nX-Long-Name: a value beyond a word \t\r\nConnection: x-hop\r\n\r\nHTTP";
    for at in 0..head.len() {
        for byte in 0..=255 {
            let mut bytes = head.to_vec();
            bytes[at] = byte;
            outlined(&bytes, &Limits::default());
        }
    }
}

#[test]
fn limits_hold_to_the_byte() {
    let head = b"HTTP/1.1 200 OK\r\nA: a\r\nX: b\r\n\r\n";
    let at = |head_bytes, header_count| Limits {
        head_bytes,
        header_count,
        ..Limits::default()
    };
    assert_eq!(outlined(head, &at(head.len(), 2)), Some(head.len()));
    for limits in [at(head.len() - 1, 2), at(head.len(), 1)] {
        assert_eq!(outlined(head, &limits), None);
    }
}
