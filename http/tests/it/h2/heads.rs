//! Heads: from pseudo-fields and fields to `Head`, and the fields that are sent.

use std::sync::Arc;
use std::time::Duration;

use osier_http::h2::{Connection, ErrorCode, Event, Limits, RequestHead};
use osier_http::{BodyLength, Head, Method, Reject, Version};

use super::peer::*;

/// The head of a request with these fields.
fn head(fields: &[(&str, &str)], end: bool) -> Arc<RequestHead> {
    let mut peer = Peer::server();
    let bytes = headers(1, fields, end);
    match peer.connection.receive(&bytes, peer.now).unwrap() {
        (_, Some(Event::Request { head, .. })) => head,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_head_has_what_http_1_has() {
    let fields = [
        &POST[..2],
        &[
            (":path", "/x?y=1"),
            (":authority", "a:8080"),
            ("content-length", "5"),
            ("x", "y"),
        ],
    ];
    let head = head(&fields.concat(), false);
    let made = Head::from_http2(&head).unwrap();
    assert_eq!((made.method(), made.target()), (Method::Post, "/x?y=1"));
    assert_eq!(
        (made.path(), made.query(), made.host()),
        ("/x", Some("y=1"), Some("a:8080"))
    );
    assert_eq!((made.version(), made.body()), (Version::Http2, BodyLength::Known(5)));
    assert!(made.keep_alive() && made.upgrade().is_none() && made.protocol().is_none());
    assert_eq!(made.header("HOST"), Some(&b"a:8080"[..]));
    assert_eq!(made.headers().len(), 3);
    let all: Vec<_> = made.headers().collect();
    assert_eq!(all, [("host", &b"a:8080"[..]), ("content-length", b"5"), ("x", b"y")]);
    let kept = osier_http::FieldList::of(made.headers(), |name| name != "x");
    assert_eq!(made.with_fields(&kept).headers().len(), 2);
    assert_eq!(made.with_target("/other").unwrap().host(), Some("a:8080"));
}

#[test]
fn a_body_of_unknown_length_is_one_and_an_ended_request_has_none() {
    assert_eq!(
        Head::from_http2(&head(&POST, false)).unwrap().body(),
        BodyLength::Chunked
    );
    assert_eq!(Head::from_http2(&head(&POST, true)).unwrap().body(), BodyLength::None);
}

#[test]
fn an_expectation_counts_if_there_is_a_body() {
    let fields = [&POST[..], &[("expect", "100-continue")]].concat();
    assert!(Head::from_http2(&head(&fields, false)).unwrap().expect_continue());
    assert!(!Head::from_http2(&head(&fields, true)).unwrap().expect_continue());
    let fields = [&POST[..], &[("expect", "miracles")]].concat();
    assert_eq!(
        Head::from_http2(&head(&fields, false)).unwrap_err(),
        Reject::Expectation
    );
}

#[test]
fn crumbs_of_a_cookie_are_one_field() {
    let fields = [
        &GET[..],
        &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2"), ("cookie", "c=3")],
    ]
    .concat();
    let head = head(&fields, true);
    let all: Vec<_> = Head::from_http2(&head).unwrap().headers().collect();
    assert_eq!(all, [("host", &b"a"[..]), ("cookie", b"a=1; b=2; c=3"), ("x", b"y")]);
}

#[test]
fn an_extended_connect_is_a_get_that_upgrades() {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        GET[1],
        (":path", "/chat"),
        GET[3],
    ];
    let head = head(&fields, false);
    assert_eq!((head.method(), head.protocol()), ("CONNECT", Some("websocket")));
    let made = Head::from_http2(&head).unwrap();
    assert_eq!(
        (made.method(), made.path(), made.host()),
        (Method::Get, "/chat", Some("a"))
    );
    assert_eq!(
        (made.upgrade(), made.protocol()),
        (Some(&b"websocket"[..]), Some("websocket"))
    );
    assert_eq!(made.body(), BodyLength::None);
}

#[test]
fn connect_has_an_authority_and_no_path() {
    let head = head(&[(":method", "CONNECT"), (":authority", "a:443")], false);
    let made = Head::from_http2(&head).unwrap();
    assert_eq!(
        (made.method(), made.target(), made.path()),
        (Method::Connect, "a:443", "")
    );
    assert_eq!((made.host(), made.body()), (Some("a:443"), BodyLength::None));
}

#[test]
fn what_http_1_would_refuse_has_its_status() {
    for (fields, reject) in [
        (vec![GET[0], GET[1], GET[2], (":authority", "a@b")], Reject::Host),
        (vec![GET[0], GET[1], GET[2], ("host", "a b")], Reject::Host),
        (vec![GET[0], GET[1], (":path", "/a#b"), GET[3]], Reject::Target),
        (vec![GET[0], (":scheme", "ftp"), GET[2], GET[3]], Reject::TargetForm),
        (vec![(":method", "CONNECT"), (":authority", "a")], Reject::TargetForm),
    ] {
        assert_eq!(
            Head::from_http2(&head(&fields, true)).unwrap_err(),
            reject,
            "{fields:?}"
        );
    }
}

#[test]
fn debug_output_has_no_values() {
    let fields = [&GET[..], &[("authorization", "secret"), ("x", "hidden\u{ff}")]].concat();
    let text = format!("{:?}", head(&fields, true));
    assert!(
        text.contains("authorization") && !text.contains("secret") && !text.contains("hidden"),
        "{text}"
    );
}

#[test]
fn fields_are_sent_in_lower_case_and_without_those_of_connections() {
    let mut peer = Peer::server();
    peer.feed(&get(1));
    let long = "X-".repeat(50);
    let fields = [
        ("Content-Type", &b"text/plain"[..]),
        (&long, b"\xff"),
        ("Connection", b"close"),
        ("Keep-Alive", b"timeout=5"),
        ("Upgrade", b"h2c"),
        ("Transfer-Encoding", b"chunked"),
        ("x", b""),
    ];
    peer.connection.send_head(1, 103, [("Link", &b"</x>"[..])], true);
    peer.connection.send_head(1, 200, fields, false);
    peer.connection.send_trailers(1, [("Grpc-Status", &b"0"[..])]);
    let sent = peer.frames();
    let flags: Vec<_> = sent
        .iter()
        .map(|frame| (frame.kind, frame.flags, frame.stream))
        .collect();
    let ended = (HEADERS, END_HEADERS | END_STREAM, 1);
    assert_eq!(flags, [(HEADERS, END_HEADERS, 1), (HEADERS, END_HEADERS, 1), ended]);
    assert_eq!(peer.fields(&sent[0]), ":status=103 link=</x>");
    let expected = format!(
        ":status=200 content-type=text/plain {}=\\xff x=",
        long.to_ascii_lowercase()
    );
    assert_eq!(peer.fields(&sent[1]), expected);
    assert_eq!(peer.fields(&sent[2]), "grpc-status=0");
}

#[test]
fn fields_that_could_split_a_message_are_left_out() {
    let mut peer = Peer::server();
    peer.feed(&get(1));
    let fields = [
        ("location", &b"/a\r\nset-cookie: b=c"[..]),
        ("x", b"a\nb"),
        ("x", b"a\0b"),
        ("x\r\ny", b"z"),
        ("x: y", b"z"),
        (":status", b"500"),
        ("", b"z"),
        ("\u{e9}", b"z"),
        ("kept", b" a\tb\xff "),
    ];
    peer.connection.send_head(1, 200, fields, false);
    peer.connection.send_trailers(1, fields);
    let sent = peer.frames();
    assert_eq!(peer.fields(&sent[0]), ":status=200 kept=a\\tb\\xff");
    assert_eq!(peer.fields(&sent[1]), "kept=a\\tb\\xff");
    let mut client = Peer::client();
    client.connection.request(&super::target("GET"), fields, true).unwrap();
    let sent = client.frames();
    let line = client.fields(&sent[0]);
    assert!(
        line.ends_with(" kept=a\\tb\\xff") && line.matches('=').count() == 5,
        "{line}"
    );
}

#[test]
fn a_head_longer_than_a_frame_is_continued() {
    let mut peer = Peer::server();
    peer.feed(&get(1));
    let value = vec![b'\\'; 20_000];
    peer.connection.send_head(1, 200, [("x", &value[..])], true);
    let sent = peer.frames();
    assert!(sent.len() > 1);
    assert_eq!((sent[0].kind, sent[0].flags), (HEADERS, END_STREAM));
    assert!(
        sent[1..]
            .iter()
            .all(|frame| frame.kind == CONTINUATION && frame.stream == 1)
    );
    assert_eq!(sent.last().map(|frame| frame.flags), Some(END_HEADERS));
    let payload = sent.iter().flat_map(|frame| frame.payload.clone()).collect();
    let whole = Sent {
        payload,
        ..sent[0].clone()
    };
    assert!(peer.fields(&whole).len() > 20_000);
}

#[test]
fn a_client_sends_pseudo_fields_first() {
    let mut peer = Peer::client();
    let target = super::target("GET");
    assert_eq!(peer.connection.request(&target, [("Accept", &b"*/*"[..])], true), Ok(1));
    let mut connect = super::target("CONNECT");
    assert_eq!(peer.connection.request(&connect, [], false), Ok(3));
    connect.protocol = Some("websocket");
    assert_eq!(peer.connection.request(&connect, [], false), Ok(5));
    let sent = peer.frames();
    assert_eq!(
        peer.fields(&sent[0]),
        ":method=GET :scheme=http :path=/ :authority=a:80 accept=*/*"
    );
    assert_eq!(peer.fields(&sent[1]), ":method=CONNECT :authority=a:80");
    assert_eq!(
        peer.fields(&sent[2]),
        ":method=CONNECT :scheme=http :path=/ :authority=a:80 :protocol=websocket"
    );
}

#[test]
fn extended_connect_can_be_off() {
    let limits = Limits {
        extended_connect: false,
        ..Limits::default()
    };
    let mut peer = Peer::server_with(&limits);
    peer.feed(&headers(1, &EXTENDED_CONNECT, false));
    assert_eq!(peer.resets(), [(1, osier_http::h2::ErrorCode::PROTOCOL_ERROR)]);
}

#[test]
fn a_connection_announces_its_settings() {
    let now = std::time::Instant::now();
    let limits = Limits {
        stream_window: 1 << 20,
        max_frame: 1 << 15,
        decoder_table: 0,
        ..Limits::default()
    };
    let server = Connection::server(&limits, now);
    let sent = cut_frames(server.output());
    let entries = |payload: &[u8]| {
        let entries = payload
            .chunks(6)
            .map(|entry| (entry[1], u32::from_be_bytes(entry[2..].try_into().unwrap())));
        entries.collect::<Vec<_>>()
    };
    let expected = [
        (1, 0),
        (3, 100),
        (4, 1 << 20),
        (5, 1 << 15),
        (6, 32 << 10),
        (8, 1),
        (9, 1),
    ];
    assert_eq!(entries(&sent[0].payload), expected);
    assert_eq!(
        (sent[1].kind, &sent[1].payload[..]),
        (WINDOW_UPDATE, &((2u32 << 20) - 65_535).to_be_bytes()[..])
    );
    let client = Connection::client(&Limits::default(), now);
    assert!(client.output().starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
    let sent = cut_frames(&client.output()[24..]);
    assert_eq!(entries(&sent[0].payload), [(2, 0), (6, 32 << 10)]);
}

#[test]
fn a_block_that_repeats_means_what_the_table_says() {
    // Index 62 is the newest entry of the table.
    let block = [0x82, 0x86, 0x84, 0x01, 1, b'a', 0x80 | 62];
    let mut peer = Peer::server();
    let asked = |stream, field: &str, end| Seen::Request(stream, format!("GET http / host=a {field}"), end);
    let again = |stream, flags| raw(HEADERS, END_HEADERS | flags, stream, &block);
    let indexed = |stream, name| {
        let fields = [&block[..6], &[0x40, 1, name, 1, b'v']].concat();
        raw(HEADERS, END_HEADERS | END_STREAM, stream, &fields)
    };
    assert_eq!(peer.feed(&indexed(1, b'x')), [asked(1, "x=v", true)]);
    assert_eq!(peer.feed(&again(3, END_STREAM)), [asked(3, "x=v", true)]);
    assert_eq!(peer.feed(&indexed(5, b'y')), [asked(5, "y=v", true)]);
    let both = [again(7, END_STREAM), again(9, END_STREAM)].concat();
    assert_eq!(peer.feed(&both), [asked(7, "y=v", true), asked(9, "y=v", true)]);
    assert_eq!(peer.feed(&again(11, 0)), [asked(11, "y=v", false)]);
    // The beginning of a longer block, with a second path.
    let parts = [
        raw(HEADERS, END_STREAM, 13, &block),
        raw(CONTINUATION, END_HEADERS, 13, &[0x84]),
    ];
    let malformed = Seen::Malformed(13, "a pseudo-field after a regular field");
    assert_eq!(peer.feed(&parts.concat()), [malformed]);
    assert_eq!(peer.resets(), [(13, ErrorCode::PROTOCOL_ERROR)]);
    // The table is emptied: the index names nothing.
    let emptied = [&[0x20, 0x3f, 0xe1, 0x1f], &block[..]].concat();
    let code = peer.fails(&raw(HEADERS, END_HEADERS | END_STREAM, 15, &emptied));
    assert_eq!(code, ErrorCode::COMPRESSION_ERROR);
}

#[test]
fn a_repeated_block_that_is_cut_leaves_nothing_behind() {
    let mut peer = Peer::server();
    peer.feed(&post(1));
    let (again, deadline) = (post(3), peer.connection.next_deadline());
    // Behind the head of its frame, the block has a time in which to end.
    assert_eq!(peer.feed(&again[..9]), []);
    peer.now += Duration::from_secs(1);
    assert_ne!(peer.connection.next_deadline(), deadline);
    let seen = peer.feed(&again[9..]);
    assert!(matches!(seen[..], [Seen::Request(3, _, false)]), "{seen:?}");
    assert_eq!(peer.connection.next_deadline(), deadline);
    let trailers = headers(3, &[("sum", "1")], true);
    assert_eq!(peer.feed(&trailers), [Seen::Trailers(3, "sum=1".into())]);
}

#[test]
fn a_head_that_repeats_is_sent_as_the_table_allows() {
    let fields = [("content-type", &b"text/plain"[..]), ("x", b"a value")];
    let text = b"the head in the words of its owner;";
    let bytes = [&text[..], b"hello"].concat();
    let mut peer = Peer::server();
    for stream in [1, 3, 5, 7, 9, 11, 13, 15] {
        peer.feed(&get(stream));
        if stream == 11 {
            // The peer has no table any more.
            peer.feed(&settings(&[(1, 0)]));
            peer.frames();
        }
        // The fields enter the table with the second response, and the third one changes nothing. Without a table the second one
        // changes nothing.
        let same = peer.connection.send_same_head(stream, &bytes, true);
        assert_eq!(same, [7, 9, 15].contains(&stream).then_some(text.len()), "{stream}");
        if same.is_none() {
            peer.connection.send_written_head(stream, text, (200, fields), false);
        }
        assert_eq!(peer.connection.send_data(stream, b"hello", true, peer.now), 5);
        let [head, body] = &peer.frames()[..] else {
            panic!("two frames")
        };
        assert_eq!(peer.fields(head), ":status=200 content-type=text/plain x=a value");
        assert_eq!((head.stream, head.flags, body.flags), (stream, END_HEADERS, END_STREAM));
        peer.connection.finish(stream);
    }
    peer.feed(&get(17));
    assert_eq!(peer.connection.send_same_head(17, b"another head", true), None);
}
