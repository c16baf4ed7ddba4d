//! Feeds an HTTP/2 connection with the bytes of its peer, and notes what comes of it.

use std::time::Instant;

use osier_http::h2::frame::{FrameReader, Role};
use osier_http::h2::{Connection, Error, Event};

#[path = "pieces.rs"]
#[allow(dead_code)] // these limits are not those of HTTP/1
mod pieces;

/// The events as text, the output, and the error.
pub type Outcome = (Vec<String>, Vec<u8>, Option<Error>);

/// Runs a connection for the bytes as a whole, in pieces, and one by one. The outcome is the same.
pub fn run_in_pieces(bytes: &[u8], run: impl Fn(&[&[u8]]) -> Outcome) {
    let whole = run(&[bytes]);
    assert_eq!(run(&pieces::pieces(bytes)), whole);
    assert_eq!(run(&bytes.chunks(1).collect::<Vec<_>>()), whole);
}

/// Feeds the connection. `take` handles each event. `peer` reads the output.
pub fn run(
    connection: &mut Connection,
    pieces: &[&[u8]],
    now: Instant,
    peer: Role,
    mut take: impl FnMut(&mut Connection, Event<'_>),
) -> Outcome {
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
            take(connection, event);
            output.extend_from_slice(connection.output());
            connection.advance(connection.output().len());
        }
    }
    output.extend_from_slice(connection.output());
    check(&output, peer);
    (events, output, failed)
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

/// The output is whole frames, after the preface of a client, and none breaks a rule.
fn check(output: &[u8], peer: Role) {
    let mut reader = FrameReader::new(peer);
    let mut rest = output;
    loop {
        let step = reader.read(rest).expect("a frame that the peer accepts");
        rest = &rest[step.consumed..];
        if step.event.is_none() {
            break;
        }
    }
    assert!(rest.is_empty() && reader.is_between_frames());
}
