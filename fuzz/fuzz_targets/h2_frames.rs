//! Fuzzes the HTTP/2 frames. The reader never panics, holds few bytes, its result does not depend on the pieces, and its events
//! keep the promises of `osier_http::h2::frame::Event`.
#![cfg_attr(fuzzing, no_main)]

#[path = "pieces.rs"]
#[allow(dead_code)] // this reader has no limits of HTTP/1
mod pieces;

use osier_fuzz::fuzz_target;
use osier_http::h2::Error;
use osier_http::h2::frame::{self, Event, FrameReader, Role};

fuzz_target!(|data: &[u8]| {
    let mut client = frame::PREFACE.to_vec();
    frame::settings(&mut client, &[]);
    client.extend_from_slice(data);
    for (role, bytes) in [(Role::Server, &client[..]), (Role::Client, data), (Role::Server, data)] {
        let whole = read(role, &[bytes]);
        assert_eq!(read(role, &pieces::pieces(bytes)), whole);
        assert_eq!(read(role, &bytes.chunks(1).collect::<Vec<_>>()), whole);
    }
});

/// The events with joined pieces, and whether the reader stands between two frames.
fn read(role: Role, pieces: &[&[u8]]) -> Result<(Vec<(String, Vec<u8>)>, bool), Error> {
    let mut reader = FrameReader::new(role);
    let mut events: Vec<(String, Vec<u8>)> = Vec::new();
    let mut buffer = Vec::new();
    let mut open: Option<(u32, usize)> = None;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = reader.read(&buffer)?;
            let more = step.event.is_some();
            match step.event {
                Some(Event::DataPiece {
                    stream,
                    data,
                    last,
                    end_stream,
                }) => {
                    let (on, left) = open.as_mut().expect("a piece without its frame");
                    assert!(*on == stream && data.len() <= *left && (last || !data.is_empty()));
                    *left -= data.len();
                    let (name, bytes) = events.last_mut().expect("the frame has an event");
                    bytes.extend_from_slice(data);
                    if last {
                        assert_eq!(*left, 0);
                        *name += if end_stream { " end" } else { " whole" };
                        open = None;
                    }
                }
                Some(Event::Block { stream, fragment, last }) => {
                    let (on, _) = open.expect("a fragment without its block");
                    assert_eq!(on, stream);
                    let (name, bytes) = events.last_mut().expect("the block has an event");
                    bytes.extend_from_slice(fragment);
                    if last {
                        *name += " whole";
                        open = None;
                    }
                }
                Some(event) => {
                    assert_eq!(open, None, "a frame inside another one");
                    match event {
                        Event::Data {
                            stream,
                            length,
                            padding,
                        } => {
                            assert!(stream != 0 && padding <= length);
                            open = Some((stream, (length - padding) as usize));
                        }
                        Event::Headers { stream, .. } => {
                            assert_ne!(stream, 0);
                            open = Some((stream, 0));
                        }
                        Event::WindowUpdate { increment, .. } => assert!((1..1 << 31).contains(&increment)),
                        _ => {}
                    }
                    events.push((format!("{event:?}"), Vec::new()));
                }
                None => {}
            }
            buffer.drain(..step.consumed);
            if !more {
                break;
            }
        }
        assert!(buffer.len() <= FrameReader::HELD);
    }
    assert!(!reader.is_between_frames() || open.is_none());
    Ok((events, reader.is_between_frames()))
}
