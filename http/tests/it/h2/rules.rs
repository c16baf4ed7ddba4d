//! Every rule of RFC 9113 5, 6 and 8 that a peer can break, in its bytes, and what a server or a client does then.
//!
//! The module `frames` has the rules of frames by themselves (RFC 9113 4 and the lengths and values of section 6), and `hpack`
//! those of RFC 7541.

use osier_http::h2::ErrorCode;

use super::peer::*;
use Role::{AsClient, AsServer};
use Then::{Connection, Fine, Stream};

/// The role of the tested connection, and its state before the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A server that has seen the preface.
    AsServer,
    /// A client that has sent GET on stream 1, HEAD on stream 3, and CONNECT on stream 5.
    AsClient,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// A connection error.
    Connection(ErrorCode),
    /// A stream error on this stream; another stream goes on.
    Stream(u32, ErrorCode),
    /// No error.
    Fine,
}

type Rule = (&'static str, &'static str, Role, Then, fn() -> Vec<u8>);

const PROTOCOL: ErrorCode = ErrorCode::PROTOCOL_ERROR;
const CLOSED: ErrorCode = ErrorCode::STREAM_CLOSED;
const FLOW: ErrorCode = ErrorCode::FLOW_CONTROL_ERROR;
const SIZE: ErrorCode = ErrorCode::FRAME_SIZE_ERROR;

fn with(fields: &[(&'static str, &'static str)]) -> Vec<u8> {
    let all = [&GET[..], fields].concat();
    headers(1, &all, true)
}

fn body_of(length: &'static str, frames: &[Vec<u8>]) -> Vec<u8> {
    let head = headers(1, &[&POST[..], &[("content-length", length)]].concat(), false);
    [head, frames.concat()].concat()
}

/// A request whose pseudo-fields are these.
fn pseudo(fields: &[(&str, &str)]) -> Vec<u8> {
    headers(1, fields, true)
}

fn status(stream: u32, status: &str, end: bool) -> Vec<u8> {
    headers(stream, &[(":status", status)], end)
}

#[rustfmt::skip]
const RULES: &[Rule] = &[
    // 5.1 Stream states.
    ("5.1 idle", "DATA", AsServer, Connection(PROTOCOL), || data(1, b"x", false)),
    ("5.1 idle", "RST_STREAM", AsServer, Connection(PROTOCOL), || reset(1, ErrorCode::CANCEL)),
    ("5.1 idle", "WINDOW_UPDATE", AsServer, Connection(PROTOCOL), || window(1, 1)),
    ("5.1 idle", "CONTINUATION", AsServer, Connection(PROTOCOL), || raw(CONTINUATION, END_HEADERS, 1, b"")),
    ("5.1 idle", "PRIORITY is allowed", AsServer, Fine, || raw(PRIORITY, 0, 1, &[0, 0, 0, 3, 7])),
    ("5.1 idle", "DATA at a client", AsClient, Connection(PROTOCOL), || data(7, b"x", false)),
    ("5.1 idle", "HEADERS at a client", AsClient, Connection(PROTOCOL), || status(7, "200", true)),
    ("5.1 half-closed (remote)", "DATA", AsServer, Stream(1, CLOSED), || [get(1), data(1, b"x", false)].concat()),
    ("5.1 half-closed (remote)", "HEADERS", AsServer, Stream(1, CLOSED), || [get(1), get(1)].concat()),
    ("5.1 half-closed (remote)", "WINDOW_UPDATE is allowed", AsServer, Fine, || [get(1), window(1, 1)].concat()),
    ("5.1 half-closed (remote)", "PRIORITY is allowed", AsServer, Fine, || [get(1), raw(PRIORITY, 0, 1, &[0, 0, 0, 3, 7])].concat()),
    ("5.1 closed", "DATA after END_STREAM from both", AsClient, Connection(CLOSED), || [status(1, "200", true), data(1, b"x", true)].concat()),
    ("5.1 closed", "DATA after the peer's RST_STREAM", AsServer, Connection(CLOSED), || [post(1), reset(1, ErrorCode::CANCEL), data(1, b"x", true)].concat()),
    ("5.1 closed", "HEADERS after the peer's RST_STREAM", AsServer, Connection(CLOSED), || [post(1), reset(1, ErrorCode::CANCEL), get(1)].concat()),
    ("5.1 closed", "RST_STREAM and WINDOW_UPDATE after it are ignored", AsServer, Fine, || [post(1), reset(1, ErrorCode::CANCEL), reset(1, ErrorCode::CANCEL), window(1, 1)].concat()),
    ("5.1 closed", "frames that follow a stream error are ignored", AsServer, Stream(1, PROTOCOL), || body_of("1", &[data(1, b"xx", false), data(1, b"yy", false), get(1), window(1, 1)])),
    ("5.1 closed", "frames that follow a refused head are ignored", AsServer, Stream(1, PROTOCOL), || [headers(1, &[(":method", "GET")], false), data(1, b"x", true)].concat()),

    // 5.1.1 Stream identifiers.
    ("5.1.1", "an even identifier of a client", AsServer, Connection(PROTOCOL), || get(2)),
    ("5.1.1", "an identifier below the highest", AsServer, Connection(PROTOCOL), || [get(5), get(3)].concat()),
    ("5.1.1", "identifiers may be skipped", AsServer, Fine, || [get(5), get(9)].concat()),
    ("5.1.1", "an even identifier at a client", AsClient, Connection(PROTOCOL), || status(2, "200", true)),

    // 5.2 and 6.9 Flow control.
    ("5.2.1, 6.9.1", "more DATA than the stream's window", AsServer, Stream(1, FLOW), || [vec![post(1)], vec![data(1, &[0; 16_384], false); 4]].concat().concat()),
    ("5.2.1, 6.9.1", "as much DATA as the stream's window", AsServer, Fine, || [vec![post(1)], vec![data(1, &[0; 16_384], false); 3], vec![data(1, &[0; 16_383], false)]].concat().concat()),
    ("5.2.1, 6.9.1", "padding counts", AsServer, Stream(1, FLOW), || [vec![post(1)], vec![data(1, &[0; 16_384], false); 3], vec![raw(DATA, PADDED, 1, &[[1].as_slice(), &[0; 16_383]].concat())]].concat().concat()),
    ("5.2.1, 6.9.1", "more DATA than the connection's window", AsServer, Connection(FLOW), || {
        let streams = (0..33).map(|n| [vec![post(2 * n + 1)], vec![data(2 * n + 1, &[0; 16_383], false); 4]].concat());
        streams.flatten().collect::<Vec<_>>().concat()
    }),
    ("6.9", "an increment of 0 on a stream", AsServer, Stream(1, PROTOCOL), || [post(1), window(1, 0)].concat()),
    ("6.9", "an increment of 0 on the connection", AsServer, Connection(PROTOCOL), || window(0, 0)),
    ("6.9", "a wrong length", AsServer, Connection(SIZE), || raw(WINDOW_UPDATE, 0, 0, &[0, 0, 1])),
    ("6.9.1", "a stream's window above 2^31-1", AsServer, Stream(1, FLOW), || [post(1), window(1, 0x7fff_ffff)].concat()),
    ("6.9.1", "the connection's window above 2^31-1", AsServer, Connection(FLOW), || window(0, 0x7fff_ffff)),
    ("6.9.1", "the largest window", AsServer, Fine, || [post(1), window(1, 0x7fff_ffff - 65_535), window(0, 0x7fff_ffff - 65_535)].concat()),
    ("6.9.2", "a setting that makes a window too large", AsServer, Connection(FLOW), || [post(1), window(1, 0x7fff_ffff - 65_535), settings(&[(4, 65_536)])].concat()),

    // 5.4 and 5.5 Errors, extensions.
    ("5.5", "frames of unknown types are ignored", AsServer, Fine, || [raw(0xee, 0xff, 0, b"x"), raw(0xee, 0xff, 7, b"x"), get(1)].concat()),
    ("5.5, 6.10", "an unknown frame inside a field block", AsServer, Connection(PROTOCOL), || [raw(HEADERS, 0, 1, &block(&GET)), raw(0xee, 0, 0, b"")].concat()),

    // 6.1 DATA.
    ("6.1", "on stream 0", AsServer, Connection(PROTOCOL), || data(0, b"x", false)),
    ("6.1", "padding as long as the payload", AsServer, Connection(PROTOCOL), || [post(1), raw(DATA, PADDED, 1, &[3, 0, 0])].concat()),

    // 6.2 and 6.10 HEADERS, CONTINUATION.
    ("6.2", "on stream 0", AsServer, Connection(PROTOCOL), || headers(0, &GET, true)),
    ("6.2", "padding as long as the payload", AsServer, Connection(PROTOCOL), || raw(HEADERS, PADDED | END_HEADERS, 1, &[9, 0x82])),
    ("6.2", "a block in pieces", AsServer, Fine, || { let block = block(&GET); [raw(HEADERS, END_STREAM, 1, &block[..9]), raw(CONTINUATION, 0, 1, b""), raw(CONTINUATION, END_HEADERS, 1, &block[9..])].concat() }),
    ("6.2, 6.10", "another frame inside a block", AsServer, Connection(PROTOCOL), || [raw(HEADERS, 0, 1, &block(&GET)), window(0, 1)].concat()),
    ("6.2, 6.10", "CONTINUATION of another stream", AsServer, Connection(PROTOCOL), || [raw(HEADERS, 0, 1, &block(&GET)), raw(CONTINUATION, END_HEADERS, 3, b"")].concat()),
    ("6.10", "CONTINUATION after the end of a block", AsServer, Connection(PROTOCOL), || [get(1), raw(CONTINUATION, END_HEADERS, 1, b"")].concat()),

    // 6.3 PRIORITY, 6.4 RST_STREAM.
    ("6.3", "on stream 0", AsServer, Connection(PROTOCOL), || raw(PRIORITY, 0, 0, &[0; 5])),
    ("6.3", "a wrong length", AsServer, Stream(1, SIZE), || [post(1), raw(PRIORITY, 0, 1, &[0; 4])].concat()),
    ("6.4", "on stream 0", AsServer, Connection(PROTOCOL), || reset(0, ErrorCode::CANCEL)),
    ("6.4", "a wrong length", AsServer, Connection(SIZE), || [post(1), raw(RST_STREAM, 0, 1, &[0; 3])].concat()),

    // 6.5 SETTINGS.
    ("6.5", "ACK with a payload", AsServer, Connection(SIZE), || raw(SETTINGS, ACK, 0, &[0; 6])),
    ("6.5", "on a stream", AsServer, Connection(PROTOCOL), || raw(SETTINGS, 0, 1, b"")),
    ("6.5", "a length that is no multiple of 6", AsServer, Connection(SIZE), || raw(SETTINGS, 0, 0, &[0; 5])),
    ("6.5.2", "ENABLE_PUSH of 2", AsServer, Connection(PROTOCOL), || settings(&[(2, 2)])),
    ("6.5.2", "ENABLE_PUSH of 1 from a server", AsClient, Connection(PROTOCOL), || settings(&[(2, 1)])),
    ("6.5.2", "INITIAL_WINDOW_SIZE above 2^31-1", AsServer, Connection(FLOW), || settings(&[(4, 0x8000_0000)])),
    ("6.5.2", "MAX_FRAME_SIZE below 2^14", AsServer, Connection(PROTOCOL), || settings(&[(5, 16_383)])),
    ("6.5.2", "MAX_FRAME_SIZE above 2^24-1", AsServer, Connection(PROTOCOL), || settings(&[(5, 1 << 24)])),
    ("6.5.2", "an unknown setting is ignored", AsServer, Fine, || settings(&[(0xeeee, 1)])),
    ("RFC 8441 3", "ENABLE_CONNECT_PROTOCOL withdrawn", AsClient, Connection(PROTOCOL), || settings(&[(8, 0)])),

    // 6.6 PUSH_PROMISE: push is off, and no client may push (8.4).
    ("6.6, 8.4", "from a client", AsServer, Connection(PROTOCOL), || [post(1), raw(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])].concat()),
    ("6.6", "from a server after ENABLE_PUSH of 0", AsClient, Connection(PROTOCOL), || raw(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])),

    // 6.7 PING, 6.8 GOAWAY.
    ("6.7", "on a stream", AsServer, Connection(PROTOCOL), || raw(PING, 0, 1, &[0; 8])),
    ("6.7", "a wrong length", AsServer, Connection(SIZE), || raw(PING, 0, 0, &[0; 7])),
    ("6.8", "on a stream", AsServer, Connection(PROTOCOL), || raw(GOAWAY, 0, 1, &[0; 8])),

    // 8.1 Messages.
    ("8.1", "a request with a body and a trailer", AsServer, Fine, || [post(1), data(1, b"x", false), headers(1, &[("x", "y")], true)].concat()),
    ("8.1", "a second head that does not end the stream", AsServer, Stream(1, PROTOCOL), || [post(1), headers(1, &[("x", "y")], false)].concat()),
    ("8.1", "DATA before the head of a response", AsClient, Stream(1, PROTOCOL), || data(1, b"x", true)),
    ("8.1", "an interim response that ends the stream", AsClient, Stream(1, PROTOCOL), || status(1, "103", true)),
    ("8.1", "interim responses before the final one", AsClient, Fine, || [status(1, "100", false), status(1, "103", false), status(1, "200", true)].concat()),
    ("8.1.1", "a body shorter than Content-Length", AsServer, Stream(1, PROTOCOL), || body_of("3", &[data(1, b"xx", true)])),
    ("8.1.1", "a body longer than Content-Length", AsServer, Stream(1, PROTOCOL), || body_of("3", &[data(1, b"xxxx", true)])),
    ("8.1.1", "no body for a Content-Length", AsServer, Stream(1, PROTOCOL), || with(&[("content-length", "1")])),
    ("8.1.1", "a trailer before the end of Content-Length", AsServer, Stream(1, PROTOCOL), || body_of("3", &[data(1, b"x", false), headers(1, &[("x", "y")], true)])),
    ("8.1.1", "padding is no part of Content-Length", AsServer, Fine, || body_of("2", &[raw(DATA, PADDED | END_STREAM, 1, &[3, b'x', b'y', 0, 0, 0])])),
    ("8.1.1", "a response shorter than its Content-Length", AsClient, Stream(1, PROTOCOL), || [headers(1, &[(":status", "200"), ("content-length", "2")], false), data(1, b"x", true)].concat()),
    ("8.1.1", "the response to HEAD has a Content-Length and no body", AsClient, Fine, || headers(3, &[(":status", "200"), ("content-length", "2")], true)),
    ("8.1.1", "a 304 has a Content-Length and no body", AsClient, Fine, || headers(1, &[(":status", "304"), ("content-length", "2")], true)),
    ("8.1.1", "the response to HEAD with a body", AsClient, Stream(3, PROTOCOL), || [status(3, "200", false), data(3, b"x", true)].concat()),
    ("8.1.1", "a malformed Content-Length", AsServer, Stream(1, PROTOCOL), || with(&[("content-length", "+0")])),
    ("8.1.1", "two Content-Lengths", AsServer, Stream(1, PROTOCOL), || with(&[("content-length", "0"), ("content-length", "0")])),

    // 8.2 Fields.
    ("8.2.1", "an upper-case name", AsServer, Stream(1, PROTOCOL), || with(&[("X-a", "b")])),
    ("8.2.1", "a space in a name", AsServer, Stream(1, PROTOCOL), || with(&[("x ", "b")])),
    ("8.2.1", "a control in a name", AsServer, Stream(1, PROTOCOL), || with(&[("x\n", "b")])),
    ("8.2.1", "a byte beyond ASCII in a name", AsServer, Stream(1, PROTOCOL), || with(&[("x\u{e9}", "b")])),
    ("8.2.1", "a colon in a name", AsServer, Stream(1, PROTOCOL), || with(&[("x:y", "b")])),
    ("8.2.1", "an empty name", AsServer, Stream(1, PROTOCOL), || with(&[("", "b")])),
    ("8.2.1", "NUL in a value", AsServer, Stream(1, PROTOCOL), || with(&[("x", "a\0b")])),
    ("8.2.1", "LF in a value", AsServer, Stream(1, PROTOCOL), || with(&[("x", "a\nb")])),
    ("8.2.1", "CR in a value", AsServer, Stream(1, PROTOCOL), || with(&[("x", "a\rb")])),
    ("8.2.1", "a space before a value", AsServer, Stream(1, PROTOCOL), || with(&[("x", " a")])),
    ("8.2.1", "a tab after a value", AsServer, Stream(1, PROTOCOL), || with(&[("x", "a\t")])),
    ("8.2.1", "a space as a value", AsServer, Stream(1, PROTOCOL), || with(&[("x", " ")])),
    ("8.2.1", "an empty value, white space inside, and bytes beyond ASCII", AsServer, Fine, || with(&[("x", ""), ("y", "a \t b"), ("z", "\u{ff}")])),
    ("8.2.2", "Connection", AsServer, Stream(1, PROTOCOL), || with(&[("connection", "close")])),
    ("8.2.2", "Proxy-Connection", AsServer, Stream(1, PROTOCOL), || with(&[("proxy-connection", "close")])),
    ("8.2.2", "Keep-Alive", AsServer, Stream(1, PROTOCOL), || with(&[("keep-alive", "timeout=1")])),
    ("8.2.2", "Transfer-Encoding", AsServer, Stream(1, PROTOCOL), || with(&[("transfer-encoding", "chunked")])),
    ("8.2.2", "Upgrade", AsServer, Stream(1, PROTOCOL), || with(&[("upgrade", "websocket")])),
    ("8.2.2", "Transfer-Encoding in a response", AsClient, Stream(1, PROTOCOL), || headers(1, &[(":status", "200"), ("transfer-encoding", "chunked")], true)),
    ("8.2.2", "TE: gzip", AsServer, Stream(1, PROTOCOL), || with(&[("te", "gzip")])),
    ("8.2.2", "TE: trailers, gzip", AsServer, Stream(1, PROTOCOL), || with(&[("te", "trailers, gzip")])),
    ("8.2.2", "TE: trailers", AsServer, Fine, || with(&[("te", "trailers")])),

    // 8.3 Pseudo-fields.
    ("8.3", "an unknown one", AsServer, Stream(1, PROTOCOL), || pseudo(&[&GET[..], &[(":x", "y")]].concat())),
    ("8.3", "one of responses in a request", AsServer, Stream(1, PROTOCOL), || pseudo(&[&GET[..], &[(":status", "200")]].concat())),
    ("8.3", "one of requests in a response", AsClient, Stream(1, PROTOCOL), || headers(1, &[(":status", "200"), (":path", "/")], true)),
    ("8.3", "after a regular field", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], ("x", "y"), GET[2], GET[3]])),
    ("8.3", "repeated", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], GET[2], GET[3], GET[2]])),
    ("8.3", "in a trailer", AsServer, Stream(1, PROTOCOL), || [post(1), headers(1, &[(":path", "/")], true)].concat()),
    ("8.3", "`:status` in a trailer", AsClient, Stream(1, PROTOCOL), || [status(1, "200", false), status(1, "200", true)].concat()),
    ("8.3", "a space in a pseudo-field", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], (":path", "/a b"), GET[3]])),
    ("8.3.1", "without `:method`", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[1], GET[2], GET[3]])),
    ("8.3.1", "without `:scheme`", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[2], GET[3]])),
    ("8.3.1", "without `:path`", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], GET[3]])),
    ("8.3.1", "an empty `:path`", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], (":path", ""), GET[3]])),
    ("8.3.1", "a `:path` without a slash", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], (":path", "http://b/"), GET[3]])),
    ("8.3.1", "`*` without OPTIONS", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], (":path", "*"), GET[3]])),
    ("8.3.1", "`*` with OPTIONS", AsServer, Fine, || pseudo(&[(":method", "OPTIONS"), GET[1], (":path", "*"), GET[3]])),
    ("8.3.1", "an empty method", AsServer, Stream(1, PROTOCOL), || pseudo(&[(":method", ""), GET[1], GET[2], GET[3]])),
    ("8.3.1", "a malformed method", AsServer, Stream(1, PROTOCOL), || pseudo(&[(":method", "G(T"), GET[1], GET[2], GET[3]])),
    ("8.3.1", "a malformed scheme", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], (":scheme", "h:"), GET[2], GET[3]])),
    ("8.3.1", "neither `:authority` nor Host", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], GET[2]])),
    ("8.3.1", "an empty `:authority`", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], GET[2], (":authority", "")])),
    ("8.3.1", "an empty Host", AsServer, Stream(1, PROTOCOL), || pseudo(&[GET[0], GET[1], GET[2], ("host", "")])),
    ("8.3.1", "another Host", AsServer, Stream(1, PROTOCOL), || with(&[("host", "b")])),
    ("8.3.1", "two Hosts", AsServer, Stream(1, PROTOCOL), || with(&[("host", "a"), ("host", "a")])),
    ("8.3.1", "the same Host", AsServer, Fine, || with(&[("host", "A")])),
    ("8.3.1", "Host alone", AsServer, Fine, || pseudo(&[GET[0], GET[1], GET[2], ("host", "a")])),
    ("8.3.2", "without `:status`", AsClient, Stream(1, PROTOCOL), || headers(1, &[("x", "y")], true)),
    ("8.3.2", "a malformed `:status`", AsClient, Stream(1, PROTOCOL), || status(1, "2000", true)),
    ("8.3.2", "a `:status` of 099", AsClient, Stream(1, PROTOCOL), || status(1, "099", true)),
    ("8.6", "101", AsClient, Stream(1, PROTOCOL), || status(1, "101", false)),

    // 8.5 CONNECT, and RFC 8441.
    ("8.5", "CONNECT", AsServer, Fine, || headers(1, &[(":method", "CONNECT"), (":authority", "a:1")], false)),
    ("8.5", "CONNECT with `:scheme`", AsServer, Stream(1, PROTOCOL), || headers(1, &[(":method", "CONNECT"), (":scheme", "http"), (":authority", "a:1")], false)),
    ("8.5", "CONNECT with `:path`", AsServer, Stream(1, PROTOCOL), || headers(1, &[(":method", "CONNECT"), (":path", "/"), (":authority", "a:1")], false)),
    ("8.5", "CONNECT without `:authority`", AsServer, Stream(1, PROTOCOL), || headers(1, &[(":method", "CONNECT"), ("host", "a:1")], false)),
    ("8.5", "a frame other than DATA in a tunnel", AsClient, Stream(5, PROTOCOL), || [status(5, "200", false), headers(5, &[("x", "y")], true)].concat()),
    ("RFC 8441 4", "extended CONNECT", AsServer, Fine, || headers(1, &EXTENDED_CONNECT, false)),
    ("RFC 8441 4", "without `:path`", AsServer, Stream(1, PROTOCOL), || headers(1, &[(":method", "CONNECT"), (":protocol", "websocket"), GET[1], GET[3]], false)),
    ("RFC 8441 4", "`:protocol` without CONNECT", AsServer, Stream(1, PROTOCOL), || pseudo(&[&GET[..], &[(":protocol", "websocket")]].concat())),
    ("RFC 8441 4", "an empty `:protocol`", AsServer, Stream(1, PROTOCOL), || headers(1, &[(":method", "CONNECT"), (":protocol", ""), GET[1], GET[2], GET[3]], false)),

    // 9110 6.5.1: trailers.
    ("RFC 9110 6.5.1", "Content-Length in a trailer", AsServer, Stream(1, PROTOCOL), || [post(1), headers(1, &[("content-length", "0")], true)].concat()),
    ("RFC 9110 6.5.1", "Host in a trailer", AsServer, Stream(1, PROTOCOL), || [post(1), headers(1, &[("host", "b")], true)].concat()),

    // RFC 9218.
    ("RFC 9218 7.1", "PRIORITY_UPDATE for stream 0", AsServer, Connection(PROTOCOL), || raw(PRIORITY_UPDATE, 0, 0, b"\0\0\0\0u=1")),
    ("RFC 9218 7.1", "PRIORITY_UPDATE on a stream", AsServer, Connection(PROTOCOL), || raw(PRIORITY_UPDATE, 0, 1, b"\0\0\0\x01u=1")),
    ("RFC 9218 7.1", "PRIORITY_UPDATE of a server", AsClient, Connection(PROTOCOL), || raw(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1")),
    ("RFC 9218 7.1", "priorities for more idle streams than the limit", AsServer, Connection(PROTOCOL), || (0..101).flat_map(|n: u32| raw(PRIORITY_UPDATE, 0, 0, &[&(2 * n + 1).to_be_bytes()[..], b"u=1"].concat())).collect()),
    ("RFC 9218 7.1", "a priority for an idle and an open stream", AsServer, Fine, || [post(1), raw(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"), raw(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x03u=1")].concat()),
];

fn start(role: Role) -> Peer {
    match role {
        AsServer => Peer::server(),
        AsClient => {
            let mut peer = Peer::client();
            for (method, stream) in [("GET", 1), ("HEAD", 3), ("CONNECT", 5)] {
                let target = super::target(method);
                assert_eq!(peer.connection.request(&target, [], method != "CONNECT"), Ok(stream));
            }
            peer.frames();
            peer
        }
    }
}

/// Checks that a connection is still alive, on a stream above all others.
fn goes_on(peer: &mut Peer, role: Role) {
    match role {
        AsServer => assert_eq!(
            peer.feed(&get(301)),
            [Seen::Request(301, "GET http / host=a".into(), true)]
        ),
        AsClient => assert_eq!(peer.connection.request(&super::target("GET"), [], true), Ok(7)),
    }
}

#[test]
fn every_rule_has_its_consequence() {
    for (section, name, role, then, bytes) in RULES {
        let mut peer = start(*role);
        let what = format!("{section}: {name}");
        println!("{what}");
        match then {
            Connection(code) => assert_eq!(peer.fails(&bytes()), *code, "{what}"),
            Stream(stream, code) => {
                peer.feed(&bytes());
                assert_eq!(peer.resets(), [(*stream, *code)], "{what}");
                goes_on(&mut peer, *role);
            }
            Fine => {
                peer.feed(&bytes());
                assert_eq!(peer.resets(), [], "{what}");
                goes_on(&mut peer, *role);
            }
        }
    }
    println!("{} rules", RULES.len());
}

#[test]
fn a_malformed_request_is_reported_with_its_reason() {
    let mut peer = Peer::server();
    let events = peer.feed(&with(&[("connection", "close")]));
    assert_eq!(events, [Seen::Malformed(1, "a field of HTTP/1.1 connections")]);
    assert_eq!(peer.resets(), [(1, PROTOCOL)]);
    assert_eq!(peer.connection.streams(), 0);
    // In a trailer, the owner hears of its stream.
    peer.feed(&post(3));
    let events = peer.feed(&headers(3, &[("host", "b")], true));
    assert_eq!(events, [Seen::Reset(3, PROTOCOL, false)]);
}

#[test]
fn every_rule_has_its_consequence_byte_by_byte() {
    for (section, name, role, then, bytes) in RULES {
        // Long bodies make this slow, and nothing of them is cut differently.
        let bytes = bytes();
        if bytes.len() > 4096 {
            continue;
        }
        let (mut whole, mut cut) = (start(*role), start(*role));
        let (events, error) = whole.try_feed(&bytes);
        let mut seen = (Vec::new(), None);
        for byte in &bytes {
            let (more, failed) = cut.try_feed(&[*byte]);
            seen.0.extend(more);
            seen.1 = failed;
            if failed.is_some() {
                break;
            }
        }
        assert_eq!(seen.1, error, "{section}: {name}: {then:?}");
        let heads = |events: &[Seen]| {
            let heads = events.iter().filter(|event| !matches!(event, Seen::Data(..)));
            heads.cloned().collect::<Vec<_>>()
        };
        assert_eq!(heads(&seen.0), heads(&events), "{section}: {name}");
        assert_eq!(cut.frames(), whole.frames(), "{section}: {name}");
    }
}
