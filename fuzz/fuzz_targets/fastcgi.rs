//! Fuzzes the records of a FastCGI application. The decoder never panics, consumes only bytes that exist, and its result does not
//! depend on the pieces.
#![cfg_attr(fuzzing, no_main)]

#[path = "pieces.rs"]
#[allow(dead_code)] // this decoder has no limits
mod pieces;

use osier_fuzz::fuzz_target;
use osier_http::fastcgi::{Decoder, Event, Malformed};

fuzz_target!(|data: &[u8]| {
    let whole = decode(&[data]);
    assert_eq!(decode(&pieces::pieces(data)), whole);
    assert_eq!(decode(&data.chunks(1).collect::<Vec<_>>()), whole);
});

/// The two streams, the end if there is one, and the number of consumed bytes.
type Decoded = (Vec<u8>, Vec<u8>, Option<(u32, u8)>, usize);

fn decode(pieces: &[&[u8]]) -> Result<Decoded, Malformed> {
    let mut decoder = Decoder::new();
    let (mut out, mut err, mut end, mut used) = (Vec::new(), Vec::new(), None, 0);
    let mut buffer: Vec<u8> = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = decoder.decode(&buffer)?;
            let more = step.event.is_some();
            match step.event {
                Some(Event::Stdout(bytes)) => out.extend_from_slice(bytes),
                Some(Event::Stderr(bytes)) => err.extend_from_slice(bytes),
                Some(Event::End {
                    app_status,
                    protocol_status,
                }) => assert!(end.replace((app_status, protocol_status)).is_none(), "two ends"),
                None => {}
            }
            used += step.consumed;
            buffer.drain(..step.consumed);
            if !more {
                break;
            }
        }
    }
    assert!(!decoder.is_done() || end.is_some());
    Ok((out, err, end, used))
}
