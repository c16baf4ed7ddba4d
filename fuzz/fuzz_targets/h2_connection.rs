//! Fuzzes a server's side of an HTTP/2 connection with what a client sends after its preface. The connection never panics, and
//! neither its events nor its output depend on the pieces. Its output is frames that a client accepts.
#![no_main]

#[path = "pieces.rs"]
#[allow(dead_code)] // these limits are not those of HTTP/1
mod pieces;

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use osier_http::h2::frame::{self, FrameReader, Role};
use osier_http::h2::{Connection, Error, Event, Limits};

fuzz_target!(|data: &[u8]| {
    let now = Instant::now();
    let mut client = frame::PREFACE.to_vec();
    frame::settings(&mut client, &[]);
    client.extend_from_slice(data);
    let whole = run(&[&client], now);
    assert_eq!(run(&pieces::pieces(&client), now), whole);
    assert_eq!(run(&client.chunks(1).collect::<Vec<_>>(), now), whole);
});

/// The events as text, the output, and the error.
type Outcome = (Vec<String>, Vec<u8>, Option<Error>);

/// Serves the client. Each request is answered at its end, and each body is read at once.
fn run(pieces: &[&[u8]], now: Instant) -> Outcome {
    let limits = Limits {
        max_streams: 4,
        head_bytes: 500,
        header_count: 8,
        reset_burst: 5,
        frame_burst: 100,
        ..Limits::default()
    };
    let mut connection = Connection::server(&limits, now);
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
            serve(&mut connection, event, now);
            output.extend_from_slice(connection.output());
            connection.advance(connection.output().len());
        }
    }
    output.extend_from_slice(connection.output());
    check(&output);
    assert!(connection.streams() <= 4);
    (events, output, failed)
}

fn serve(connection: &mut Connection, event: Event<'_>, now: Instant) {
    let (stream, ends) = match event {
        Event::Request { stream, end, .. } => (stream, end),
        Event::Data { stream, bytes, end } => {
            connection.consumed(stream, bytes.len());
            (stream, end)
        }
        Event::Trailers { stream, .. } => (stream, true),
        Event::Reset { stream, .. } => return connection.finish(stream),
        _ => return,
    };
    if ends {
        connection.send_head(stream, 200, [("content-type", &b"text/plain"[..])], false);
        connection.send_data(stream, b"hello", true, now);
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

/// The output is whole frames, and none breaks a rule.
fn check(output: &[u8]) {
    let mut reader = FrameReader::new(Role::Client);
    let mut rest = output;
    loop {
        let step = reader.read(rest).expect("a frame that a client accepts");
        rest = &rest[step.consumed..];
        if step.event.is_none() {
            break;
        }
    }
    assert!(rest.is_empty() && reader.is_between_frames());
}
