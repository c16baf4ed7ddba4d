//! The gateway's side: every response vector gives its result however the bytes are split, and the strict parser reads back the
//! requests that a gateway writes.

use crate::cut::cut;
use crate::reply_table::{Expected, VECTORS};
use osier_http::{
    BodyDecoder, BodyLength, FieldLines, Head, HeadScanner, HeaderError, LAST_CHUNK, Limits, Method, Reject, Reply,
    ReplyLength, ReplyScanner, RequestWriter, Slots, write_chunk,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// One response as a gateway sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Answer {
        status: u16,
        body: Vec<u8>,
        keep_alive: bool,
    },
    Refused(Reject),
    Unfinished,
}

/// Reads one response from a connection that delivers these pieces and then ends.
fn read<'b>(pieces: impl IntoIterator<Item = &'b [u8]>, limits: &Limits, asked: Method<'_>) -> Seen {
    let mut pieces = pieces.into_iter();
    let mut buffer: Vec<u8> = Vec::new();
    let (status, keep_alive, mut decoder) = loop {
        let mut scanner = ReplyScanner::new();
        let end = loop {
            match scanner.scan(&buffer, limits) {
                Ok(Some(end)) => break end,
                Ok(None) => match pieces.next() {
                    Some(piece) => buffer.extend_from_slice(piece),
                    None => return Seen::Unfinished,
                },
                Err(reject) => return Seen::Refused(reject),
            }
        };
        let head: Vec<u8> = buffer.drain(..end).collect();
        let mut slots: Slots = Slots::new();
        match Reply::parse(&head, &mut slots, limits, asked) {
            Ok(reply) if reply.is_interim() => {}
            Ok(reply) => {
                break (
                    reply.status(),
                    reply.keep_alive(),
                    BodyDecoder::of_reply(reply.body(), limits),
                );
            }
            Err(reject) => return Seen::Refused(reject),
        }
    };
    let mut body = Vec::new();
    while !decoder.is_done() {
        let piece = match decoder.decode(&buffer, 3) {
            Ok(piece) => piece,
            Err(reject) => return Seen::Refused(reject),
        };
        body.extend_from_slice(piece.data);
        let consumed = piece.consumed;
        buffer.drain(..consumed);
        if consumed == 0 && !decoder.is_done() {
            match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => match decoder.at_end() {
                    Ok(()) => break,
                    Err(reject) => return Seen::Refused(reject),
                },
            }
        }
    }
    Seen::Answer {
        status,
        body,
        keep_alive,
    }
}

#[test]
fn every_vector_gets_its_answer() {
    let limits = Limits::default();
    for (name, bytes, expected) in VECTORS {
        match (read([*bytes], &limits, Method::Get), expected) {
            (Seen::Answer { body, keep_alive, .. }, Expected::Body(wanted, keep)) => {
                assert_eq!((body.as_slice(), keep_alive), (*wanted, *keep), "{name}");
            }
            (Seen::Refused(reject), Expected::Refuse(wanted)) => assert_eq!(reject, *wanted, "{name}"),
            (Seen::Unfinished, Expected::Wait) => {}
            (seen, expected) => panic!("{name}: {seen:?} instead of {expected:?}"),
        }
    }
    println!("{} vectors", VECTORS.len());
}

#[test]
fn every_vector_gets_the_same_answer_in_two_pieces_and_byte_by_byte() {
    let limits = Limits::default();
    for (name, bytes, _) in VECTORS {
        let whole = read([*bytes], &limits, Method::Get);
        for at in 0..bytes.len() {
            let (first, second) = bytes.split_at(at);
            assert_eq!(
                read([first, second], &limits, Method::Get),
                whole,
                "{name}, split at {at}"
            );
        }
        assert_eq!(
            read(bytes.chunks(1), &limits, Method::Get),
            whole,
            "{name}, byte by byte"
        );
    }
}

#[test]
fn names_of_vectors_are_unique() {
    let mut names: Vec<_> = VECTORS.iter().map(|(name, ..)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), VECTORS.len());
}

fn parse<T>(bytes: &[u8], asked: Method<'_>, look: impl FnOnce(Result<Reply<'_>, Reject>) -> T) -> T {
    let mut slots: Slots = Slots::new();
    look(Reply::parse(bytes, &mut slots, &Limits::default(), asked))
}

#[test]
fn an_answer_to_head_has_a_length_and_no_body() {
    let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n";
    parse(bytes, Method::Head, |reply| {
        let reply = reply.unwrap();
        assert_eq!((reply.body(), reply.content_length()), (ReplyLength::None, Some(500)));
        assert!(reply.keep_alive());
    });
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    parse(chunked, Method::Head, |reply| {
        assert!(reply.is_ok_and(|reply| reply.body() == ReplyLength::None && reply.keep_alive()));
    });
}

#[test]
fn only_a_101_that_names_its_protocol_upgrades() {
    let upgrade = |text: &str| {
        parse(text.as_bytes(), Method::Get, |reply| {
            reply.unwrap().upgrade().map(<[u8]>::to_vec)
        })
    };
    assert_eq!(
        upgrade("HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
        Some(b"websocket".to_vec())
    );
    assert_eq!(upgrade("HTTP/1.1 101 S\r\nUpgrade: websocket\r\n\r\n"), None);
    assert_eq!(upgrade("HTTP/1.1 101 S\r\nConnection: Upgrade\r\n\r\n"), None);
    assert_eq!(
        upgrade("HTTP/1.1 200 S\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"),
        None
    );
}

#[test]
fn the_names_of_connection_are_known_whatever_the_fields() {
    let bytes = b"HTTP/1.1 200 OK\r\nConnection: a, Keep-Alive\r\nB: 1\r\nCONNECTION:,x-B ,\r\n\r\n";
    parse(bytes, Method::Get, |reply| {
        let reply = reply.unwrap();
        assert!(
            ["A", "keep-alive", "X-b"]
                .iter()
                .all(|name| reply.connection_names(name))
        );
        assert!(!reply.connection_names("b"));
    });
}

#[test]
fn the_bounds_of_a_head_hold() {
    let limits = Limits {
        head_bytes: 64,
        header_count: 2,
        ..Limits::default()
    };
    let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(64));
    for step in [1, 7, 200] {
        let seen = read(long.as_bytes().chunks(step), &limits, Method::Get);
        assert_eq!(seen, Seen::Refused(Reject::HeadTooLarge));
    }
    let exact = format!("HTTP/1.1 204 OK\r\nA: {}\r\n\r\n", "x".repeat(64 - 17 - 7));
    assert_eq!(exact.len(), 64);
    assert!(matches!(
        read([exact.as_bytes()], &limits, Method::Get),
        Seen::Answer { status: 204, .. }
    ));
    let many = b"HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n";
    assert_eq!(
        read([&many[..]], &limits, Method::Get),
        Seen::Refused(Reject::TooManyHeaders)
    );
}

#[test]
fn a_request_frames_itself_and_nothing_else_can() {
    let mut out = b"before".to_vec();
    for refused in [
        "content-length",
        "Transfer-Encoding",
        "connection",
        "Keep-Alive",
        "HOST",
    ] {
        let mut head = RequestWriter::begin(&mut out, "GET", "/", "a").unwrap();
        assert_eq!(head.header(refused, b"1"), Err(HeaderError::Reserved), "{refused}");
    }
    assert_eq!(out, b"before", "an unfinished head leaves no byte");
    let mut lines = FieldLines::new();
    for (name, value) in [("a", "1"), ("Host", "b"), ("c", "2")] {
        lines.push(name, value.as_bytes()).unwrap();
    }
    let mut passed = Vec::new();
    let mut head = RequestWriter::begin(&mut passed, "GET", "/", "a").unwrap();
    head.lines(&lines);
    head.finish(BodyLength::None);
    assert_eq!(passed, b"GET / HTTP/1.1\r\nhost: a\r\na: 1\r\nc: 2\r\n\r\n");
    for (method, target, host) in [
        ("G T", "/", "a"),
        ("", "/", "a"),
        ("GET", "", "a"),
        ("GET", "/ HTTP/1.1\r\nX: y\r\n", "a"),
        ("GET", "/\u{e9}", "a"),
        ("GET", "/", "a\r\nX: y"),
    ] {
        assert!(
            RequestWriter::begin(&mut out, method, target, host).is_err(),
            "{method:?} {target:?} {host:?}"
        );
    }
    assert_eq!(out, b"before");
    let text = |method: &str, body| {
        let mut out = Vec::new();
        let mut head = RequestWriter::begin(&mut out, method, "/x", "a:1").unwrap();
        head.joined("x-forwarded-for", &[b"1.2.3.4", b", ", b"5.6.7.8"])
            .unwrap();
        head.finish(body);
        String::from_utf8(out).unwrap()
    };
    let forwarded = "/x HTTP/1.1\r\nhost: a:1\r\nx-forwarded-for: 1.2.3.4, 5.6.7.8\r\n";
    assert_eq!(text("GET", BodyLength::None), format!("GET {forwarded}\r\n"));
    assert_eq!(
        text("POST", BodyLength::None),
        format!("POST {forwarded}content-length: 0\r\n\r\n")
    );
    assert_eq!(
        text("GET", BodyLength::Known(0)),
        format!("GET {forwarded}content-length: 0\r\n\r\n")
    );
    assert_eq!(
        text("DELETE", BodyLength::Chunked),
        format!("DELETE {forwarded}transfer-encoding: chunked\r\n\r\n")
    );
    let mut out = Vec::new();
    let mut head = RequestWriter::begin(&mut out, "GET", "/", "a").unwrap();
    head.upgrade(b"websocket").unwrap();
    head.finish(BodyLength::None);
    assert_eq!(
        out,
        b"GET / HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    );
}

/// Valid responses, vectors and noise, in turn.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let body = (vec(any::<u8>(), 0..300), 0..3, 1..80usize).prop_map(|(body, framing, chunk)| {
        let mut bytes = b"HTTP/1.1 200 OK\r\nServer: x\r\n".to_vec();
        match framing {
            0 => bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes()),
            1 => bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n"),
            _ => bytes.extend_from_slice(b"\r\n"),
        }
        match framing {
            1 => {
                body.chunks(chunk).for_each(|data| write_chunk(&mut bytes, data));
                bytes.extend_from_slice(LAST_CHUNK);
            }
            _ => bytes.extend_from_slice(&body),
        }
        bytes
    });
    let part = prop_oneof![
        4 => body,
        2 => (0..VECTORS.len()).prop_map(|i| VECTORS[i].1.to_vec()),
        1 => vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(0), Just(b' '), Just(b':'), any::<u8>()], 0..20),
    ];
    vec(part, 1..4).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn an_answer_does_not_depend_on_its_pieces(bytes in stream(), lengths in vec(1..50usize, 1..10)) {
        for limits in [Limits::default(), Limits { head_bytes: 50, header_count: 1, trailer_bytes: 10, ..Limits::default() }] {
            let whole = read([&bytes[..]], &limits, Method::Get);
            prop_assert_eq!(&read(cut(&bytes, &lengths), &limits, Method::Get), &whole);
            prop_assert_eq!(&read(bytes.chunks(1), &limits, Method::Get), &whole);
        }
    }

    /// A request with hostile parts is refused, or the request parser reads exactly these parts back.
    #[test]
    fn what_is_written_is_read_as_it_was_meant(
        method in "[A-Z]{1,7}|[ -~\r\n]{0,6}",
        target in "/[!-~]{0,20}|[ -~\r\n]{0,20}",
        fields in vec(("[a-zA-Z-]{1,12}|[ -~\r\n]{0,6}", "[ -~\r\n\t]{0,30}"), 0..8),
        length in proptest::option::of(0..u64::MAX),
    ) {
        let mut out = Vec::new();
        let Ok(mut head) = RequestWriter::begin(&mut out, &method, &target, "example.org") else { return Ok(()) };
        let mut written = Vec::new();
        for (name, value) in &fields {
            if head.header(name, value.as_bytes()).is_ok() {
                written.push((name.as_str(), value.trim_matches([' ', '\t']).as_bytes()));
            }
        }
        let body = length.map_or(BodyLength::Chunked, BodyLength::Known);
        head.finish(body);
        let limits = Limits::default();
        let Ok(Some(end)) = HeadScanner::new().scan(&out, &limits) else {
            prop_assert!(false, "not a head: {:?}", String::from_utf8_lossy(&out));
            return Ok(());
        };
        prop_assert_eq!(end, out.len());
        let mut slots: Slots = Slots::new();
        // The method may not allow the form of the target, and Expect and Upgrade have rules of their own.
        if let Ok(head) = Head::parse(&out, &mut slots, &limits) {
            prop_assert_eq!((head.method().as_str(), head.target()), (method.as_str(), target.as_str()));
            prop_assert_eq!(head.body(), body);
            let read: Vec<_> = head.headers().filter(|(name, _)| !["host", "content-length", "transfer-encoding"].contains(name)).collect();
            prop_assert_eq!(read, written);
            prop_assert!(!head.connection_names("close"));
        }
    }
}
