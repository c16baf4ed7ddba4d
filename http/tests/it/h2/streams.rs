//! The life of streams and connections: resets, GOAWAY, pings, and a client's requests.

use std::time::Duration;

use osier_http::h2::{Connection, ErrorCode, Limits, Outgoing, RequestError};

use super::peer::*;
use super::target;

/// The last stream and the code of the GOAWAY frames in the output.
fn go_aways(peer: &mut Peer) -> Vec<(u32, ErrorCode)> {
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    let sent = peer.frames().into_iter().filter(|frame| frame.kind == GOAWAY);
    sent.map(|frame| (number(&frame.payload[..4]), ErrorCode(number(&frame.payload[4..8]))))
        .collect()
}

#[test]
fn a_request_and_its_response() {
    let mut peer = Peer::server();
    let bytes = [
        post(1),
        data(1, b"he", false),
        data(1, b"llo", false),
        headers(1, &[("sum", "1")], true),
    ]
    .concat();
    let expected = [
        Seen::Request(1, "POST http / host=a".into(), false),
        Seen::Data(1, b"he".into(), false),
        Seen::Data(1, b"llo".into(), false),
        Seen::Trailers(1, "sum=1".into()),
    ];
    assert_eq!(peer.feed(&bytes), expected);
    peer.connection.send_head(1, 100, [], false);
    peer.connection.send_head(1, 200, [], false);
    peer.connection.send_head(1, 500, [], false);
    assert_eq!(peer.connection.send_data(1, b"hi", false, peer.now), 2);
    peer.connection.send_trailers(1, [("sum", &b"2"[..])]);
    peer.connection.send_trailers(1, [("sum", &b"3"[..])]);
    assert_eq!(peer.connection.send_data(1, b"more", true, peer.now), 4);
    let sent: Vec<_> = peer.frames().iter().map(|frame| (frame.kind, frame.flags)).collect();
    let expected = [(HEADERS, 4), (HEADERS, 4), (DATA, 0), (HEADERS, 5)];
    assert_eq!(sent, expected);
    peer.connection.finish(1);
    assert_eq!(peer.connection.streams(), 0);
    // The stream is closed for good (RFC 9113 5.1).
    assert_eq!(peer.fails(&data(1, b"x", true)), ErrorCode::STREAM_CLOSED);
}

#[test]
fn an_unfinished_response_is_reset() {
    let mut peer = Peer::server();
    peer.feed(&[get(1), get(3), post(5), post(7)].concat());
    peer.connection.finish(1);
    peer.connection.send_head(3, 200, [], false);
    peer.connection.finish(3);
    peer.connection.send_head(5, 200, [], true);
    peer.connection.finish(5);
    peer.connection.reset(7, ErrorCode::REFUSED_STREAM);
    peer.connection.reset(7, ErrorCode::CANCEL);
    peer.connection.finish(7);
    let expected = [
        (1, ErrorCode::INTERNAL_ERROR),
        (3, ErrorCode::INTERNAL_ERROR),
        (7, ErrorCode::REFUSED_STREAM),
    ];
    assert_eq!(peer.resets(), expected);
    assert_eq!(peer.connection.streams(), 0);
}

/// The head of a request with a body of `length` bytes.
fn announced(stream: u32, length: u32) -> Vec<u8> {
    let length = length.to_string();
    headers(stream, &[&POST[..], &[("content-length", &length)]].concat(), false)
}

#[test]
fn a_body_that_the_client_can_still_send_is_ignored_without_a_reset() {
    let window = Limits::default().stream_window;
    let mut peer = Peer::server();
    let mut ends = |stream, head: &[u8], body: &[u8]| {
        peer.feed(&[head, body].concat());
        peer.connection.send_head(stream, 401, [], true);
        peer.connection.finish(stream);
        let resets = peer.resets_when_read();
        assert_eq!(peer.feed(&data(stream, b"rest", true)), []);
        resets
    };
    assert_eq!(ends(1, &announced(1, 4), b""), []);
    assert_eq!(ends(3, &announced(3, 9), &data(3, b"begin", false)), []);
    // More than the window, which nobody opens any more, and a length that nobody knows.
    assert_eq!(ends(5, &announced(5, window + 1), b""), [(5, ErrorCode::NO_ERROR)]);
    assert_eq!(ends(7, &post(7), b""), [(7, ErrorCode::NO_ERROR)]);
    // The client may also end with trailers, or with a reset.
    for (stream, end) in [
        (9, headers(9, &[("sum", "1")], true)),
        (11, reset(11, ErrorCode::CANCEL)),
    ] {
        peer.feed(&announced(stream, 4));
        peer.connection.send_head(stream, 401, [], true);
        peer.connection.finish(stream);
        assert_eq!(peer.feed(&end), []);
    }
    assert_eq!(peer.resets(), []);
}

/// Answers a request before its body has come.
fn answer_early(peer: &mut Peer, stream: u32) {
    peer.feed(&post(stream));
    peer.connection.send_head(stream, 413, [], true);
    peer.connection.finish(stream);
}

/// The kinds of the frames in the output.
fn kinds(peer: &mut Peer) -> Vec<u8> {
    peer.frames().iter().map(|frame| frame.kind).collect()
}

#[test]
fn a_body_that_nobody_reads_is_reset_when_the_client_has_read_the_response() {
    let mut peer = Peer::server();
    answer_early(&mut peer, 1);
    let sent = peer.frames();
    assert_eq!(
        sent.iter()
            .map(|frame| (frame.kind, frame.stream, frame.flags))
            .collect::<Vec<_>>(),
        [(HEADERS, 1, END_HEADERS | END_STREAM), (PING, 0, 0)]
    );
    // The client sends on meanwhile.
    assert_eq!(peer.feed(&data(1, &[0; 16_000], false)), []);
    assert!(peer.connection.has_unread_bodies());
    let answer = raw(PING, ACK, 0, &sent[1].payload);
    peer.frames();
    assert_eq!(peer.feed(&answer), []);
    assert_eq!(peer.resets(), [(1, ErrorCode::NO_ERROR)]);
    assert!(peer.connection.is_idle());
    assert!(peer.connection.has_unread_bodies(), "bytes may be under way");
    assert_eq!(peer.feed(&answer), []);
    assert_eq!(peer.frames(), [], "one answer, one reset");
}

#[test]
fn a_client_that_ends_a_body_which_nobody_reads_gets_no_reset() {
    let ends = [
        |stream| data(stream, b"x", true),
        |stream| headers(stream, &[("sum", "1")], true),
        |stream| reset(stream, ErrorCode::CANCEL),
    ];
    let mut peer = Peer::server();
    for (stream, end) in [1, 3, 5].into_iter().zip(ends) {
        answer_early(&mut peer, stream);
        assert_eq!(peer.feed(&end(stream)), []);
        assert_eq!(peer.resets_when_read(), [], "{stream}");
        assert!(peer.connection.is_idle() && !peer.connection.has_unread_bodies());
    }
}

#[test]
fn answers_to_the_pings_behind_responses_cost_nothing_however_late_they_are() {
    let mut peer = Peer::server();
    let answer = |stream: u32| raw(PING, ACK, 0, &[&b"read"[..], &stream.to_be_bytes()].concat());
    // A client may end its body or reset the stream before it answers, as Go does. And the ring may have lost a stream.
    for round in 0..200 {
        let streams = || (0..20).map(|n| 2 * (20 * round + n) + 1);
        streams().for_each(|stream| answer_early(&mut peer, stream));
        assert_eq!(peer.frames().iter().filter(|frame| frame.kind == PING).count(), 20);
        let resets = streams().skip(10).flat_map(|stream| reset(stream, ErrorCode::NO_ERROR));
        let bytes: Vec<u8> = resets.chain(streams().flat_map(answer)).collect();
        assert_eq!(peer.feed(&bytes), []);
        // Four have left the ring, and six have waited for the answer.
        assert_eq!(peer.resets().len(), 6);
    }
    assert!(peer.connection.is_idle());
    // Answers to no PING cost as any others.
    assert_eq!(peer.fails(&answer(1).repeat(1001)), ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn resets_that_wait_for_a_client_are_few_and_end_with_the_connection() {
    // A client that never answers.
    let mut peer = Peer::server();
    (0..16).for_each(|n| answer_early(&mut peer, 2 * n + 1));
    assert_eq!(peer.resets(), []);
    answer_early(&mut peer, 33);
    assert_eq!(peer.resets(), [(1, ErrorCode::NO_ERROR)]);
    // The connection is over but for them. From then on they wait for a second.
    peer.connection.shutdown(peer.now);
    peer.frames();
    peer.feed(&raw(PING, ACK, 0, b"goaway-1"));
    assert_eq!(kinds(&mut peer), [GOAWAY]);
    assert_resets_end_in_a_second(&mut peer, 16);

    // Also where the last GOAWAY, of either side, has come before the response.
    for go_away in [true, false] {
        let mut peer = Peer::server();
        peer.feed(&[post(1), post(3)].concat());
        match go_away {
            true => drop(peer.feed(&raw(GOAWAY, 0, 0, &[0; 8]))),
            false => {
                peer.connection.shutdown(peer.now);
                peer.feed(&raw(PING, ACK, 0, b"goaway-1"));
            }
        }
        peer.frames();
        for stream in [1, 3] {
            peer.connection.send_head(stream, 413, [], true);
            peer.connection.finish(stream);
        }
        let sent = peer.frames();
        assert_eq!(
            sent.iter().map(|frame| frame.kind).collect::<Vec<_>>(),
            [HEADERS, PING].repeat(2)
        );
        assert_eq!(peer.feed(&raw(PING, ACK, 0, &sent[1].payload)), []);
        assert_eq!(peer.resets(), [(1, ErrorCode::NO_ERROR)]);
        assert_resets_end_in_a_second(&mut peer, 1);
    }
}

/// The connection is over but for resets that wait. The client answers no more.
fn assert_resets_end_in_a_second(peer: &mut Peer, resets: usize) {
    assert!(!peer.connection.is_done());
    // The owner is called at once, and then in a second, whenever that is.
    peer.now += Duration::from_secs(60);
    assert!(peer.connection.next_deadline().is_some_and(|due| due <= peer.now));
    assert!(peer.connection.expire(peer.now).unwrap().is_none());
    let due = peer.now + Duration::from_secs(1);
    assert_eq!(peer.connection.next_deadline(), Some(due));
    assert!(
        peer.connection
            .expire(due - Duration::from_millis(1))
            .unwrap()
            .is_none()
    );
    assert!(!peer.connection.is_done());
    assert!(peer.connection.expire(due).unwrap().is_none());
    assert_eq!(kinds(peer), [RST_STREAM].repeat(resets));
    assert!(peer.connection.is_done());
}

#[test]
fn a_window_that_becomes_smaller_counts_for_the_rest_of_a_body() {
    let limits = Limits {
        stream_window: 1000,
        ..Limits::default()
    };
    let mut peer = Peer::new(Connection::server(&limits, std::time::Instant::now()));
    peer.feed(&[&osier_http::h2::frame::PREFACE[..], &settings(&[])].concat());
    let mut ends = |stream, length| {
        peer.feed(&announced(stream, length));
        peer.connection.send_head(stream, 401, [], true);
        peer.connection.finish(stream);
        peer.resets_when_read()
    };
    // The client may send 65,535 bytes until it knows the settings, and 1,000 then.
    assert_eq!(ends(1, 1001), [(1, ErrorCode::NO_ERROR)]);
    assert_eq!(ends(3, 1000), []);
    peer.feed(&raw(SETTINGS, ACK, 0, b""));
    assert_eq!(peer.feed(&data(3, &[0; 1000], true)), []);
}

#[test]
fn a_stream_that_both_sides_have_ended_leaves_room_while_its_handler_runs() {
    let mut peer = Peer::server();
    for n in 0..100 {
        peer.feed(&get(2 * n + 1));
        peer.connection.send_head(2 * n + 1, 200, [], true);
    }
    assert_eq!(peer.connection.streams(), 100);
    assert_eq!(peer.feed(&get(201)).len(), 1);
    assert_eq!(peer.resets(), []);
}

#[test]
fn nothing_is_sent_on_a_stream_that_is_reset() {
    let mut peer = Peer::server();
    peer.feed(&[post(1), reset(1, ErrorCode::CANCEL)].concat());
    assert!(peer.connection.is_reset(1));
    peer.connection.send_head(1, 200, [], false);
    assert_eq!(peer.connection.send_data(1, b"hello", true, peer.now), 5);
    peer.connection.send_trailers(1, []);
    peer.connection.reset(1, ErrorCode::CANCEL);
    peer.connection.finish(1);
    assert_eq!(peer.frames(), []);
}

#[test]
fn a_malformed_trailer_after_the_response_has_ended_is_no_new_reset() {
    let mut peer = Peer::server();
    peer.feed(&post(1));
    peer.connection.send_head(1, 200, [], true);
    assert_eq!(
        peer.feed(&headers(1, &[("X", "y")], true)),
        [Seen::Reset(1, ErrorCode::PROTOCOL_ERROR, false)]
    );
    peer.connection.finish(1);
    assert_eq!(peer.resets(), [(1, ErrorCode::PROTOCOL_ERROR)]);
}

#[test]
fn a_ping_is_answered_and_ours_is_reported() {
    let mut peer = Peer::server();
    assert_eq!(peer.feed(&raw(PING, 0, 0, b"12345678")), []);
    let sent = peer.frames();
    assert_eq!(
        (sent[0].kind, sent[0].flags, &sent[0].payload[..]),
        (PING, ACK, &b"12345678"[..])
    );
    peer.connection.ping();
    let sent = peer.frames();
    assert_eq!(peer.feed(&raw(PING, ACK, 0, &sent[0].payload)), [Seen::Pong]);
    assert_eq!(peer.feed(&raw(PING, ACK, 0, &sent[0].payload)), []);
}

#[test]
fn settings_are_acknowledged() {
    let mut peer = Peer::server();
    peer.feed(&settings(&[(4, 10), (1, 0)]));
    let sent = peer.frames();
    assert_eq!((sent.len(), sent[0].kind, sent[0].flags), (1, SETTINGS, ACK));
}

#[test]
fn a_graceful_end_has_two_steps() {
    let mut peer = Peer::server();
    peer.feed(&get(1));
    peer.connection.shutdown(peer.now);
    peer.connection.shutdown(peer.now);
    let sent = peer.frames();
    assert_eq!(sent.iter().map(|frame| frame.kind).collect::<Vec<_>>(), [GOAWAY, PING]);
    assert_eq!(sent[0].payload, [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    // The client had opened a stream before it knew.
    assert_eq!(peer.feed(&post(3)).len(), 1);
    assert!(!peer.connection.is_done());
    assert_eq!(peer.feed(&raw(PING, ACK, 0, &sent[1].payload)), []);
    assert_eq!(go_aways(&mut peer), [(3, ErrorCode::NO_ERROR)]);
    // Later streams are ignored, but the compression stays right.
    let mut late = block(&GET);
    let mut entry = block(&[("x", "y")]);
    entry[0] = 0x40;
    late.extend_from_slice(&entry);
    assert_eq!(
        peer.feed(&[raw(HEADERS, END_HEADERS, 5, &late), data(5, b"x", true), window(5, 1)].concat()),
        []
    );
    assert_eq!(
        peer.feed(&raw(HEADERS, END_HEADERS | END_STREAM, 3, &[0xbe])),
        [Seen::Trailers(3, "x=y".into())]
    );
    for stream in [1, 3] {
        assert!(!peer.connection.is_done());
        peer.connection.send_head(stream, 200, [], true);
        peer.connection.finish(stream);
    }
    assert!(peer.connection.is_done());
    assert_eq!(peer.resets(), []);
}

#[test]
fn a_graceful_end_does_not_wait_for_the_answer_for_ever() {
    let mut peer = Peer::server();
    peer.connection.shutdown(peer.now);
    peer.frames();
    let due = peer.now + Duration::from_secs(1);
    assert_eq!(peer.connection.next_deadline(), Some(due));
    assert!(!peer.connection.is_done());
    assert!(peer.connection.expire(due).unwrap().is_none());
    assert_eq!(go_aways(&mut peer), [(0, ErrorCode::NO_ERROR)]);
    assert!(peer.connection.is_done());
}

#[test]
fn a_connection_can_be_closed_at_once() {
    let mut peer = Peer::server();
    peer.feed(&get(5));
    peer.connection.close(ErrorCode::INADEQUATE_SECURITY);
    assert_eq!(go_aways(&mut peer), [(5, ErrorCode::INADEQUATE_SECURITY)]);
    assert!(peer.connection.is_done() && !peer.connection.wants_input());
    assert_eq!(
        peer.try_feed(&get(7)).1.map(|error| error.code),
        Some(ErrorCode::INADEQUATE_SECURITY)
    );
    peer.connection.send_head(5, 200, [], true);
    peer.connection.reset(5, ErrorCode::CANCEL);
    peer.connection.finish(5);
    assert_eq!((peer.frames(), peer.connection.streams()), (vec![], 0));
}

#[test]
fn a_client_that_goes_away_is_done_after_its_last_stream() {
    let mut peer = Peer::server();
    peer.feed(&get(1));
    assert_eq!(
        peer.feed(&raw(GOAWAY, 0, 0, &[0; 8])),
        [Seen::GoAway(0, ErrorCode::NO_ERROR)]
    );
    assert!(!peer.connection.is_done());
    peer.connection.send_head(1, 200, [], true);
    peer.connection.finish(1);
    assert!(peer.connection.is_done());
}

#[test]
fn what_comes_before_the_preface_is_refused() {
    let mut peer = Peer::new(Connection::server(&Limits::default(), std::time::Instant::now()));
    assert_eq!(peer.fails(b"GET / HTTP/1.1\r\n\r\n........"), ErrorCode::PROTOCOL_ERROR);
    let mut peer = Peer::new(Connection::server(&Limits::default(), std::time::Instant::now()));
    let ping = [&osier_http::h2::frame::PREFACE[..], &raw(PING, 0, 0, &[0; 8])].concat();
    assert_eq!(peer.fails(&ping), ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn a_request_that_could_split_a_message_behind_a_gateway_is_not_sent() {
    let mut peer = Peer::client();
    let get = target("GET");
    let connect = Outgoing {
        protocol: Some("websocket"),
        ..target("CONNECT")
    };
    for malformed in [
        Outgoing { method: "", ..get },
        Outgoing {
            method: "GET / HTTP/1.1\r\nx:",
            ..get
        },
        Outgoing {
            scheme: "http\r\n",
            ..get
        },
        Outgoing { scheme: "", ..get },
        Outgoing {
            authority: "a\r\nx: y",
            ..get
        },
        Outgoing { authority: "", ..get },
        Outgoing {
            path: "/ HTTP/1.1\r\n\r\n",
            ..get
        },
        Outgoing { path: "/a b", ..get },
        Outgoing { path: "", ..get },
        Outgoing { path: "/\0", ..connect },
        Outgoing {
            protocol: Some("web\nsocket"),
            ..connect
        },
        Outgoing {
            protocol: Some(""),
            ..connect
        },
    ] {
        let sent = peer.connection.request(&malformed, [], true);
        assert_eq!(sent, Err(RequestError::Malformed), "{malformed:?}");
    }
    assert_eq!((peer.frames(), peer.connection.streams()), (vec![], 0));
    // A CONNECT request without a protocol sends neither scheme nor path.
    let tunnel = Outgoing {
        scheme: "",
        path: "",
        authority: "[::1]:443",
        ..target("CONNECT")
    };
    let asterisk = Outgoing {
        path: "*",
        ..target("OPTIONS")
    };
    for (stream, sent) in [(1, tunnel), (3, asterisk), (5, connect)] {
        assert_eq!(peer.connection.request(&sent, [], false), Ok(stream));
    }
}

#[test]
fn a_client_has_as_many_requests_as_the_server_allows() {
    let mut peer = Peer::client();
    peer.feed(&settings(&[(3, 2)]));
    let target = super::target("GET");
    assert_eq!(peer.connection.request(&target, [], true), Ok(1));
    assert_eq!(peer.connection.slots(), 1);
    assert_eq!(peer.connection.request(&target, [], true), Ok(3));
    assert_eq!(peer.connection.request(&target, [], true), Err(RequestError::NoSlot));
    let events = peer.feed(
        &[
            headers(1, &[(":status", "200"), ("x", "y")], false),
            data(1, b"hi", true),
        ]
        .concat(),
    );
    assert_eq!(
        events,
        [
            Seen::Response(1, 200, "x=y".into(), false),
            Seen::Data(1, b"hi".into(), true)
        ]
    );
    peer.connection.finish(1);
    assert_eq!(peer.connection.request(&target, [], true), Ok(5));
    assert_eq!(peer.resets(), []);
    // A response that is not read to its end is cancelled.
    peer.connection.finish(3);
    assert_eq!(peer.resets(), [(3, ErrorCode::CANCEL)]);
    assert_eq!(peer.feed(&headers(3, &[(":status", "200")], false)), []);
    peer.connection.shutdown(peer.now);
    assert_eq!(peer.connection.request(&target, [], true), Err(RequestError::Ending));
    assert_eq!(go_aways(&mut peer), [(0, ErrorCode::NO_ERROR)]);
    assert!(!peer.connection.is_done());
    peer.feed(&headers(5, &[(":status", "204")], true));
    peer.connection.finish(5);
    assert!(peer.connection.is_done());
}

#[test]
fn a_client_learns_which_requests_the_server_has_not_read() {
    let mut peer = Peer::client();
    for stream in [1, 3, 5] {
        assert_eq!(peer.connection.request(&super::target("POST"), [], false), Ok(stream));
    }
    let events = peer.feed(&raw(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]));
    let expected = [
        Seen::GoAway(1, ErrorCode::NO_ERROR),
        Seen::Reset(3, ErrorCode::REFUSED_STREAM, true),
        Seen::Reset(5, ErrorCode::REFUSED_STREAM, true),
    ];
    assert_eq!(events, expected);
    assert_eq!(peer.connection.slots(), 0);
    assert_eq!(
        peer.connection.request(&super::target("GET"), [], true),
        Err(RequestError::Ending)
    );
    assert_eq!(peer.feed(&headers(1, &[(":status", "200")], true)).len(), 1);
}

#[test]
fn a_tunnel_is_data_both_ways() {
    let mut peer = Peer::server();
    peer.feed(&headers(1, &EXTENDED_CONNECT, false));
    peer.connection.send_head(1, 200, [], false);
    assert_eq!(
        peer.feed(&data(1, b"ping", false)),
        [Seen::Data(1, b"ping".into(), false)]
    );
    assert_eq!(peer.connection.send_data(1, b"pong", false, peer.now), 4);
    assert_eq!(
        peer.feed(&headers(1, &[("x", "y")], true)),
        [Seen::Reset(1, ErrorCode::PROTOCOL_ERROR, false)]
    );
    assert!(Peer::client().connection.takes_extended_connect());
}

/// The room for streams that the frames in the output announce.
fn room(peer: &mut Peer) -> Vec<u32> {
    let sent = peer.frames().into_iter().filter(|frame| frame.kind == SETTINGS);
    sent.map(|frame| {
        assert_eq!(frame.payload[..2], [0, 3], "SETTINGS_MAX_CONCURRENT_STREAMS alone");
        u32::from_be_bytes(frame.payload[2..].try_into().unwrap())
    })
    .collect()
}

/// Opens a tunnel. Returns the room that is announced with it.
fn tunnel(peer: &mut Peer, stream: u32) -> Vec<u32> {
    assert_eq!(peer.feed(&headers(stream, &EXTENDED_CONNECT, false)).len(), 1);
    peer.connection.send_head(stream, 200, [], false);
    room(peer)
}

fn acknowledged() -> Vec<u8> {
    raw(SETTINGS, ACK, 0, b"")
}

#[test]
fn tunnels_take_no_place_of_requests_up_to_their_bound() {
    let mut peer = Peer::server_with(&Limits {
        max_streams: 2,
        max_tunnels: 2,
        ..Limits::default()
    });
    assert_eq!(tunnel(&mut peer, 1), [3]);
    // The next change waits for the acknowledgement of this one.
    assert_eq!(tunnel(&mut peer, 3), []);
    peer.feed(&acknowledged());
    assert_eq!(room(&mut peer), [4]);
    peer.feed(&acknowledged());
    // A third one counts as a request.
    assert_eq!(tunnel(&mut peer, 5), []);
    assert_eq!(peer.feed(&get(7)).len(), 1);
    assert_eq!(peer.feed(&get(9)), []);
    assert_eq!(peer.resets(), [(9, ErrorCode::REFUSED_STREAM)]);

    // A client may use the old room until it knows the new one.
    peer.connection.finish(1);
    peer.connection.finish(3);
    assert_eq!(room(&mut peer), [3]);
    assert_eq!(peer.feed(&[get(11), get(13)].concat()).len(), 2);
    assert_eq!(peer.connection.most_streams(), 4);
    peer.feed(&acknowledged());
    assert_eq!(peer.connection.most_streams(), 3);
    assert_eq!(peer.feed(&get(15)), []);
    assert_eq!(peer.resets(), [(15, ErrorCode::REFUSED_STREAM)]);
    // Nothing has changed since.
    peer.feed(&acknowledged());
    assert_eq!(room(&mut peer), []);
}

#[test]
fn a_tunnel_holds_no_memory_for_its_head() {
    let mut peer = Peer::server_with(&Limits {
        heads_bytes: 1000,
        ..Limits::default()
    });
    for n in 0..20 {
        tunnel(&mut peer, 2 * n + 1);
    }
    assert_eq!(peer.feed(&get(41)).len(), 1);
    (0..=20).for_each(|n| peer.connection.finish(2 * n + 1));
    assert_eq!(peer.connection.streams(), 0);
}

#[test]
fn a_request_for_a_tunnel_has_no_trailer() {
    let mut peer = Peer::server();
    peer.feed(&headers(1, &EXTENDED_CONNECT, false));
    assert_eq!(
        peer.feed(&headers(1, &[("x", "y")], true)),
        [Seen::Reset(1, ErrorCode::PROTOCOL_ERROR, false)],
        "the memory of the trailer would be held without its bound"
    );
}

#[test]
fn a_tunnel_that_begins_before_the_settings_are_acknowledged_is_announced_then() {
    let mut peer = Peer::new(Connection::server(&Limits::default(), std::time::Instant::now()));
    peer.feed(&[&osier_http::h2::frame::PREFACE[..], &settings(&[])].concat());
    peer.frames();
    assert_eq!(tunnel(&mut peer, 1), []);
    peer.feed(&acknowledged());
    assert_eq!(room(&mut peer), [101]);
}

#[test]
fn a_connection_at_rest_is_small() {
    // The figure is the documented bound of docs and bench; HPACK's tables and buffers are behind pointers and empty.
    let size = size_of::<Connection>();
    println!("a connection: {size} bytes");
    assert!(size <= 1024, "{size}");
    let mut peer = Peer::server();
    for n in 0..100 {
        peer.feed(&[post(2 * n + 1), data(2 * n + 1, &[0; 1000], false)].concat());
    }
    for n in 0..100 {
        peer.connection.send_head(2 * n + 1, 200, [], false);
        peer.connection.send_data(2 * n + 1, &[0; 500], true, peer.now);
        peer.connection.finish(2 * n + 1);
        peer.resets_when_read();
    }
    assert!(peer.connection.is_idle());
    peer.connection.rest();
    assert!(peer.connection.reclaim().is_none(), "the output keeps memory");
    // An incomplete frame is not idle.
    peer.feed(&get(201)[..5]);
    assert!(!peer.connection.is_idle());
}
