//! Fuzzes the client's side of an HTTP/2 connection with the bytes of a server after its SETTINGS. Four requests are in flight: one without
//! a body, one with a body, a tunnel, and one that the client has reset. The connection never panics, and neither its events nor its
//! output depend on the pieces. Its output is frames that a server accepts.
#![no_main]

#[path = "pieces.rs"]
#[allow(dead_code)] // these limits are not those of HTTP/1
mod pieces;

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use osier_http::h2::frame::{self, FrameReader, Role};
use osier_http::h2::{Connection, Error, ErrorCode, Event, Limits, Outgoing};

fuzz_target!(|data: &[u8]| {
    let now = Instant::now();
    let mut server = Vec::new();
    frame::settings(&mut server, &[]);
    server.extend_from_slice(data);
    let whole = run(&[&server], now);
    assert_eq!(run(&pieces::pieces(&server), now), whole);
    assert_eq!(run(&server.chunks(1).collect::<Vec<_>>(), now), whole);
});

/// The events as text, the output, and the error.
type Outcome = (Vec<String>, Vec<u8>, Option<Error>);

/// A client with its requests. They have the streams 1, 3, 5 and 7.
fn client(now: Instant) -> Connection {
    let limits = Limits {
        head_bytes: 500,
        header_count: 8,
        reset_burst: 5,
        frame_burst: 100,
        ..Limits::default()
    };
    let mut connection = Connection::client(&limits, now);
    let target = |method| Outgoing {
        method,
        scheme: "http",
        authority: "a",
        path: "/",
        protocol: None,
    };
    for (method, end) in [("GET", true), ("POST", false), ("CONNECT", false), ("GET", true)] {
        let stream = connection.request(&target(method), [], end).expect("a free slot");
        if method == "POST" {
            connection.send_data(stream, &[b'x'; 70_000], false, now);
        }
    }
    connection.reset(7, ErrorCode::CANCEL);
    connection
}

fn run(pieces: &[&[u8]], now: Instant) -> Outcome {
    let mut connection = client(now);
    let (mut events, mut output) = (Vec::<String>::new(), Vec::new());
    let mut failed = None;
    'bytes: for piece in pieces {
        let mut rest = *piece;
        loop {
            let (consumed, event) = match connection.receive(rest, now) {
                Ok(step) => step,
                Err(error) => {
                    failed = Some(error);
                    break 'bytes;
                }
            };
            rest = &rest[consumed..];
            let Some(event) = event else {
                assert!(rest.is_empty());
                break;
            };
            note(&mut events, &event);
            take(&mut connection, event);
            output.extend_from_slice(connection.output());
            connection.advance(connection.output().len());
        }
    }
    output.extend_from_slice(connection.output());
    check(&output);
    (events, output, failed)
}

/// Reads each body at once, and is done with each stream that has ended.
fn take(connection: &mut Connection, event: Event<'_>) {
    let ended = match event {
        Event::Response { stream, end, .. } => end.then_some(stream),
        Event::Data { stream, bytes, end } => {
            connection.consumed(stream, bytes.len());
            end.then_some(stream)
        }
        Event::Trailers { stream, .. } | Event::Reset { stream, .. } => Some(stream),
        _ => None,
    };
    if let Some(stream) = ended {
        connection.finish(stream);
    }
}

/// Notes an event. Pieces of a body are joined. A body that is shorter than its Content-Length is forgotten: how much of its last frame is
/// reported before the reset depends on the pieces.
fn note(events: &mut Vec<String>, event: &Event<'_>) {
    if let Event::Reset {
        stream, by_peer: false, ..
    } = event
    {
        let name = format!("body of {stream}: ");
        events.retain(|event| !event.starts_with(&name));
    }
    let Event::Data { stream, bytes, end } = event else {
        return events.push(format!("{event:?}"));
    };
    let name = format!("body of {stream}: ");
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match events
        .last_mut()
        .filter(|last| last.starts_with(&name) && !last.ends_with(" end"))
    {
        Some(last) => *last += &text,
        None => events.push(name + &text),
    }
    if *end {
        *events.last_mut().expect("the body has an event") += " end";
    }
}

/// The output is a preface and whole frames, and none breaks a rule.
fn check(output: &[u8]) {
    let mut reader = FrameReader::new(Role::Server);
    let mut rest = output;
    loop {
        let step = reader.read(rest).expect("a frame that a server accepts");
        rest = &rest[step.consumed..];
        if step.event.is_none() {
            break;
        }
    }
    assert!(rest.is_empty() && reader.is_between_frames());
}
