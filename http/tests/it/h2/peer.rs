//! A scripted peer: raw frames for one connection, and its events and frames in a form that tests compare.

use std::time::Instant;

use osier_http::h2::frame::PREFACE;
use osier_http::h2::hpack::{Decoder, FieldLimits};
use osier_http::h2::{Connection, Error, ErrorCode, Event, Limits, RequestHead};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const PRIORITY_UPDATE: u8 = 16;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;

/// A frame with a payload.
pub fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A field block of literals.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            let length = text.chars().count();
            match length {
                0..127 => out.push(length as u8),
                _ => {
                    out.push(127);
                    let mut rest = length - 127;
                    while rest >= 128 {
                        out.push(128 | (rest % 128) as u8);
                        rest /= 128;
                    }
                    out.push(rest as u8);
                }
            }
            // One char, one byte: so a test can write bytes beyond ASCII.
            out.extend(text.chars().map(|c| c as u8));
        }
    }
    out
}

/// HEADERS with the whole block.
pub fn headers(stream: u32, fields: &[(&str, &str)], end: bool) -> Vec<u8> {
    raw(HEADERS, END_HEADERS | u8::from(end), stream, &block(fields))
}

pub const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "a"),
];

/// The fields of an extended CONNECT request (RFC 8441).
pub const EXTENDED_CONNECT: [(&str, &str); 5] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    GET[1],
    GET[2],
    GET[3],
];
pub const POST: [(&str, &str); 4] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "a"),
];

pub fn get(stream: u32) -> Vec<u8> {
    headers(stream, &GET, true)
}

pub fn post(stream: u32) -> Vec<u8> {
    headers(stream, &POST, false)
}

pub fn data(stream: u32, bytes: &[u8], end: bool) -> Vec<u8> {
    raw(DATA, u8::from(end), stream, bytes)
}

pub fn window(stream: u32, increment: u32) -> Vec<u8> {
    raw(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub fn reset(stream: u32, code: ErrorCode) -> Vec<u8> {
    raw(RST_STREAM, 0, stream, &code.0.to_be_bytes())
}

pub fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in entries {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    raw(SETTINGS, 0, 0, &payload)
}

/// An event without borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The stream, the head as one line, the end.
    Request(u32, String, bool),
    Response(u32, u16, String, bool),
    Data(u32, Vec<u8>, bool),
    Trailers(u32, String),
    /// The stream, the code, whether the peer did it.
    Reset(u32, ErrorCode, bool),
    Refused(u32),
    Malformed(u32, &'static str),
    GoAway(u32, ErrorCode),
    Pong,
}

fn line<'f>(fields: impl Iterator<Item = (&'f str, &'f [u8])>) -> String {
    let fields = fields.map(|(name, value)| format!("{name}={}", value.escape_ascii()));
    fields.collect::<Vec<_>>().join(" ")
}

fn request_line(head: &RequestHead) -> String {
    let start = [Some(head.method()), head.protocol(), head.scheme(), head.path()];
    let start = start.into_iter().flatten().collect::<Vec<_>>().join(" ");
    format!("{start} {}", line(head.fields().iter()))
}

pub fn seen(event: Event<'_>) -> Seen {
    match event {
        Event::Request { stream, head, end } => {
            assert_eq!(head.ended(), end);
            Seen::Request(stream, request_line(&head), end)
        }
        Event::Response { stream, head, end } => Seen::Response(stream, head.status(), line(head.fields().iter()), end),
        Event::Data { stream, bytes, end } => Seen::Data(stream, bytes.to_vec(), end),
        Event::Trailers { stream, fields } => Seen::Trailers(stream, line(fields.iter())),
        Event::Reset { stream, code, by_peer } => Seen::Reset(stream, code, by_peer),
        Event::Refused { stream, .. } => Seen::Refused(stream),
        Event::Malformed { stream, reason } => Seen::Malformed(stream, reason),
        Event::GoAway { last, code } => Seen::GoAway(last, code),
        Event::Pong => Seen::Pong,
        _ => panic!("an unknown event: {event:?}"),
    }
}

/// A frame that the connection has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// Cuts bytes into frames. All of them must be whole.
pub fn cut_frames(mut bytes: &[u8]) -> Vec<Sent> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let length = usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
        let (frame, rest) = bytes.split_at(9 + length);
        frames.push(Sent {
            kind: frame[3],
            flags: frame[4],
            stream: u32::from_be_bytes(frame[5..9].try_into().unwrap()),
            payload: frame[9..].to_vec(),
        });
        bytes = rest;
    }
    frames
}

/// A connection and the peer that a test plays.
pub struct Peer {
    pub connection: Connection,
    pub now: Instant,
    decoder: Decoder,
}

impl Peer {
    /// A server whose peer has sent its preface and acknowledged the server's settings.
    pub fn server() -> Peer {
        Peer::server_with(&Limits::default())
    }

    pub fn server_with(limits: &Limits) -> Peer {
        let mut peer = Peer::new(Connection::server(limits, Instant::now()));
        let hello = [&PREFACE[..], &settings(&[]), &raw(SETTINGS, ACK, 0, b"")].concat();
        assert_eq!(peer.feed(&hello), []);
        peer.frames();
        peer
    }

    /// A client whose peer has sent and acknowledged settings.
    pub fn client() -> Peer {
        let mut peer = Peer::new(Connection::client(&Limits::default(), Instant::now()));
        let hello = [settings(&[(3, 100), (8, 1)]), raw(SETTINGS, ACK, 0, b"")].concat();
        assert_eq!(peer.feed(&hello), []);
        peer.connection.advance(PREFACE.len());
        peer.frames();
        peer
    }

    pub fn new(connection: Connection) -> Peer {
        Peer {
            connection,
            now: Instant::now(),
            decoder: Decoder::new(FieldLimits {
                bytes: 1 << 20,
                fields: 1000,
            }),
        }
    }

    /// Feeds bytes. Returns the events before the end or the error.
    pub fn try_feed(&mut self, bytes: &[u8]) -> (Vec<Seen>, Option<Error>) {
        let (mut events, mut at) = (Vec::new(), 0);
        loop {
            match self.connection.receive(&bytes[at..], self.now) {
                Err(error) => return (events, Some(error)),
                Ok((consumed, event)) => {
                    at += consumed;
                    let Some(event) = event else {
                        assert_eq!(at, bytes.len(), "bytes are left");
                        return (events, None);
                    };
                    events.push(seen(event));
                }
            }
        }
    }

    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Seen> {
        let (events, error) = self.try_feed(bytes);
        assert_eq!(error, None, "{events:?}");
        events
    }

    /// Feeds bytes that end the connection. Returns the code, which is also that of the GOAWAY frame.
    pub fn fails(&mut self, bytes: &[u8]) -> ErrorCode {
        let (events, error) = self.try_feed(bytes);
        let error = error.unwrap_or_else(|| panic!("no error, but {events:?}"));
        let last = self.frames().pop().expect("a GOAWAY frame");
        assert_eq!(
            (last.kind, &last.payload[4..8]),
            (GOAWAY, &error.code.0.to_be_bytes()[..])
        );
        assert!(self.connection.is_done());
        assert_eq!(self.connection.receive(b"", self.now).err(), Some(error));
        error.code
    }

    /// Takes the frames in the output.
    pub fn frames(&mut self) -> Vec<Sent> {
        let frames = cut_frames(self.connection.output());
        self.connection.advance(self.connection.output().len());
        frames
    }

    /// The codes of the RST_STREAM frames in the output, with their streams.
    pub fn resets(&mut self) -> Vec<(u32, ErrorCode)> {
        let resets = self.frames().into_iter().filter(|frame| frame.kind == RST_STREAM);
        let code = |payload: &[u8]| ErrorCode(u32::from_be_bytes(payload.try_into().unwrap()));
        resets.map(|frame| (frame.stream, code(&frame.payload))).collect()
    }

    /// Same as [`resets`](Peer::resets), with those that wait until the peer has read what is in the output.
    pub fn resets_when_read(&mut self) -> Vec<(u32, ErrorCode)> {
        let sent = self.frames();
        let (pings, others): (Vec<_>, Vec<_>) = sent.into_iter().partition(|frame| frame.kind == PING);
        assert!(others.iter().all(|frame| frame.kind != RST_STREAM));
        for ping in pings.iter().filter(|ping| ping.flags & ACK == 0) {
            assert_eq!(self.feed(&raw(PING, ACK, 0, &ping.payload)), []);
        }
        self.resets()
    }

    /// The fields of a HEADERS frame that the connection has sent, as one line. Frames must be passed in order.
    pub fn fields(&mut self, frame: &Sent) -> String {
        let mut fields = Vec::new();
        let mut field = |name: &[u8], value: &[u8]| {
            fields.push(format!("{}={}", name.escape_ascii(), value.escape_ascii()));
        };
        self.decoder.decode(&frame.payload, true, &mut field).unwrap();
        fields.join(" ")
    }
}
