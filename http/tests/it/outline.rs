//! The fast path accepts only heads that the scanner and the parser accept, finds the same parts, and accepts usual heads.

use crate::table;
use osier_http::{Head, HeadScanner, Limits, Outline, Slots};
use proptest::collection::vec;
use proptest::prelude::*;

/// The result of the fast path. If it accepts a head, the scanner and the parser must accept it and find the same parts.
fn outlined(bytes: &[u8], limits: &Limits) -> Option<usize> {
    let mut outline = Outline::new();
    let len = outline.find(bytes, limits)?;
    assert_eq!(HeadScanner::new().scan(bytes, limits), Ok(Some(len)), "{bytes:?}");
    let mut slots: Slots = Slots::new();
    let expected = Head::parse(&bytes[..len], &mut slots, limits);
    match (Head::outlined(&bytes[..len], &outline), expected) {
        (Ok(head), Ok(expected)) => {
            assert_same(&head, &expected);
        }
        (head, expected) => assert_eq!(head.err(), expected.err(), "{bytes:?}"),
    }
    Some(len)
}

fn assert_same(head: &Head<'_>, expected: &Head<'_>) {
    let line = |head: &Head<'_>| format!("{} {} {:?}", head.method(), head.target(), head.version());
    assert_eq!(line(head), line(expected));
    assert_eq!(
        (head.path(), head.query(), head.host()),
        (expected.path(), expected.query(), expected.host())
    );
    assert_eq!(head.headers().len(), expected.headers().len());
    assert!(head.headers().eq(expected.headers()), "{head:?} {expected:?}");
    let framing = |head: &Head<'_>| (head.body(), head.keep_alive(), head.expect_continue(), head.exchange());
    assert_eq!(framing(head), framing(expected));
    assert_eq!((head.upgrade(), head.form()), (expected.upgrade(), expected.form()));
    let names = head.headers().chain([("absent", &b""[..])]);
    for (name, _) in names {
        assert_eq!(head.header(&name.to_ascii_uppercase()), expected.header(name));
    }
}

/// Texts at the limits of each part of a head.
fn letters() -> impl Strategy<Value = u8> {
    prop_oneof![
        6 => proptest::sample::select(b"aZ09-_.~!\"(){}<>@,;:=?/#%&'*+^`|\\[]".as_slice()),
        3 => proptest::sample::select(b" \t\r\n\0\x1f\x7f\x80\xa9\xff".as_slice()),
    ]
}

/// Nearly a head: each part may have a few wrong bytes.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let odd = || prop_oneof![5 => Just(vec![]), 1 => vec(letters(), 1..3)];
    let line_end = prop_oneof![
        20 => Just(&b"\r\n"[..]),
        1 => proptest::sample::select(vec![&b"\n"[..], b"\r", b"\r\r\n", b"\r\n ", b""]),
    ];
    let method = proptest::sample::select(vec!["GET", "POST", "OPTIONS", "CONNECT", "X", ""]);
    let target = proptest::sample::select(vec!["/", "/a/long/path?with=query", "*", "http://a/b", "a:1", ""]);
    let version = proptest::sample::select(vec!["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.1 ", ""]);
    let name = proptest::sample::select(vec![
        "Host",
        "Content-Length",
        "Transfer-Encoding",
        "X-A",
        "Connection",
        "",
    ]);
    let value = proptest::sample::select(vec![
        "a",
        "",
        "  5\t ",
        "chunked",
        "a value that is longer than a word\tor two",
    ]);
    let field = (
        name,
        odd(),
        proptest::sample::select(vec![":", ": ", " : ", ""]),
        value,
        odd(),
        line_end.clone(),
    );
    let fields = vec(field, 0..6);
    (
        odd(),
        method,
        odd(),
        target,
        odd(),
        version,
        line_end.clone(),
        fields,
        line_end,
    )
        .prop_map(|(before, method, odd, target, more, version, end, fields, last)| {
            let mut bytes = [&before, method.as_bytes(), &odd, b" ", target.as_bytes(), &more, b" "].concat();
            bytes.extend_from_slice(&[version.as_bytes(), end].concat());
            for (name, odd, colon, value, more, end) in fields {
                let field = [name.as_bytes(), &odd, colon.as_bytes(), value.as_bytes(), &more, end];
                bytes.extend_from_slice(&field.concat());
            }
            [&bytes, last].concat()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

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
        target in "/[!-~]{0,40}",
        fields in vec(("[a-zA-Z0-9_-]{1,20}", "[ \t]{0,2}", "([!-~][ -~\t]{0,80}[!-~])?", "[ \t]{0,2}"), 0..31),
        next in vec(any::<u8>(), 0..12),
    ) {
        let mut head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n");
        for (name, before, value, after) in fields {
            head += &format!("X{name}:{before}{value}{after}\r\n");
        }
        head += "\r\n";
        let bytes = [head.as_bytes(), &next].concat();
        prop_assert_eq!(outlined(&bytes, &Limits::default()), Some(head.len()));
        for end in 0..head.len() {
            prop_assert_eq!(Outline::new().find(&bytes[..end], &Limits::default()), None);
        }
    }
}

#[test]
fn no_vector_of_the_table_is_read_in_another_way() {
    let taken = table::VECTORS
        .iter()
        .filter(|vector| outlined(vector.1, &Limits::default()).is_some());
    assert!(taken.count() > 20, "most good heads are usual ones");
}

#[test]
fn every_byte_in_every_place() {
    let head = b"GET /ab HTTP/1.1\r\nHost: abc\r\nX-Long-Name: a value beyond a word \t\r\n\r\nGET";
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
    let head = b"GET /abc HTTP/1.1\r\nHost: a\r\nX: b\r\n\r\n";
    let (len, line) = (head.len(), b"GET /abc HTTP/1.1".len());
    let at = |head_bytes, request_line, header_count| Limits {
        head_bytes,
        request_line,
        header_count,
        ..Limits::default()
    };
    assert_eq!(outlined(head, &at(len, line, 2)), Some(len));
    for limits in [at(len - 1, line, 2), at(len, line - 1, 2), at(len, line, 1)] {
        assert_eq!(outlined(head, &limits), None);
    }
    let many = |count: usize| [&head[..head.len() - 2], &b"X: b\r\n".repeat(count - 2), b"\r\n"].concat();
    assert!(outlined(&many(32), &Limits::default()).is_some());
    assert!(outlined(&many(33), &Limits::default()).is_none());
}

/// A reused outline does not report the places of an earlier head.
#[test]
fn an_outline_is_used_again() {
    let limits = Limits::default();
    let mut outline = Outline::new();
    for head in [
        &b"POST /long HTTP/1.0\r\nHost: a\r\nX: b\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\nA: b\r\nHost: c\r\n\r\n",
    ] {
        assert_eq!(outline.find(head, &limits), Some(head.len()));
        let mut slots: Slots = Slots::new();
        let expected = Head::parse(head, &mut slots, &limits).unwrap();
        assert_same(&Head::outlined(head, &outline).unwrap(), &expected);
    }
}
