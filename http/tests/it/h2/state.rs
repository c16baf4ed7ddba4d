//! The state that both ends must keep alike whatever becomes of a message: tables of the field compression, and windows.

use osier_http::h2::{ErrorCode, Limits};

use super::peer::*;

/// A request whose block adds the field `n: v` to the table.
fn adds(stream: u32, end: bool) -> Vec<u8> {
    let block = [&block(&POST)[..], b"\x40\x01n\x01v"].concat();
    raw(HEADERS, END_HEADERS | u8::from(end), stream, &block)
}

/// A request with the newest entry of the table.
fn refers(stream: u32) -> Vec<u8> {
    let block = [&block(&POST)[..], &[0xbe]].concat();
    raw(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

fn has_field(seen: &[Seen]) -> bool {
    matches!(seen, [Seen::Request(_, head, true)] if head.ends_with("n=v"))
}

#[test]
fn a_broken_block_ends_the_connection() {
    for block in [&b"\x80"[..], b"\xbe", b"\x40\x01n", b"\x82\x20", b"\x00\x81\x00\x00"] {
        let mut peer = Peer::server();
        let headers = raw(HEADERS, END_HEADERS | END_STREAM, 1, block);
        assert_eq!(
            peer.fails(&headers),
            ErrorCode::COMPRESSION_ERROR,
            "{}",
            block.escape_ascii()
        );
    }
}

#[test]
fn a_refused_block_still_changes_the_table() {
    let limits = Limits {
        max_streams: 1,
        header_count: 8,
        ..Limits::default()
    };
    // Refused for the number of streams, as malformed, and as too large.
    let malformed = raw(HEADERS, END_HEADERS | END_STREAM, 3, b"\x40\x01n\x01v");
    let large = raw(
        HEADERS,
        END_HEADERS | END_STREAM,
        3,
        &[&[0x82; 9][..], b"\x40\x01n\x01v"].concat(),
    );
    for refused in [adds(3, true), malformed, large] {
        let mut peer = Peer::server_with(&limits);
        assert_eq!(peer.feed(&get(1)).len(), 1);
        peer.feed(&refused);
        assert!(!peer.frames().is_empty());
        peer.connection.finish(1);
        let seen = peer.feed(&refers(5));
        assert!(has_field(&seen), "{seen:?}");
    }
}

#[test]
fn frames_behind_the_last_stream_count() {
    let mut peer = Peer::server();
    peer.feed(&post(1));
    peer.connection.shutdown(peer.now);
    let ping = peer.frames().into_iter().find(|frame| frame.kind == PING).unwrap();
    peer.feed(&raw(PING, ACK, 0, &ping.payload));
    assert_eq!(peer.frames()[0].payload[..4], 1_u32.to_be_bytes());

    // The block of an ignored stream changes the table: the trailer of stream 1 refers to it.
    assert_eq!(peer.feed(&adds(3, false)), []);
    let trailer = raw(HEADERS, END_HEADERS | END_STREAM, 1, &[0xbe]);
    assert_eq!(peer.feed(&trailer), [Seen::Trailers(1, "n=v".into())]);
    // Its DATA takes from the window of the connection, which gets it back.
    for _ in 0..64 {
        assert_eq!(peer.feed(&data(3, &[0; 16_384], false)), []);
    }
    let frames = peer.frames();
    let updates = frames
        .iter()
        .filter(|frame| (frame.kind, frame.stream) == (WINDOW_UPDATE, 0));
    let given: u32 = updates
        .map(|frame| u32::from_be_bytes(frame.payload[..].try_into().unwrap()))
        .sum();
    assert_eq!(given, 64 * 16_384);
}

#[test]
fn unknown_error_codes_change_nothing() {
    let unknown = ErrorCode(0xdead);
    let mut peer = Peer::server();
    let seen = peer.feed(&[post(1), reset(1, unknown)].concat());
    assert_eq!(seen[1], Seen::Reset(1, unknown, true));
    let go_away = raw(GOAWAY, 0, 0, &[&[0; 4][..], &unknown.0.to_be_bytes()].concat());
    assert_eq!(peer.feed(&go_away), [Seen::GoAway(0, unknown)]);
    assert_eq!(peer.feed(&get(3)).len(), 1);
}

#[test]
fn a_response_before_the_end_of_the_request_counts() {
    let mut peer = Peer::client();
    let target = osier_http::h2::Outgoing {
        method: "POST",
        scheme: "http",
        authority: "a",
        path: "/",
        protocol: None,
    };
    let stream = peer.connection.request(&target, [], false).unwrap();
    let response = headers(stream, &[(":status", "200")], false);
    let bytes = [
        response,
        data(stream, b"early", true),
        reset(stream, ErrorCode::NO_ERROR),
    ]
    .concat();
    assert_eq!(
        peer.feed(&bytes),
        [
            Seen::Response(stream, 200, String::new(), false),
            Seen::Data(stream, b"early".to_vec(), true),
            Seen::Reset(stream, ErrorCode::NO_ERROR, true),
        ]
    );
}
