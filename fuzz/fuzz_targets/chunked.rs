//! Fuzzes a chunked body. The decoder never panics, its result does not depend on the pieces, and an accepted body survives a
//! round trip.
#![cfg_attr(fuzzing, no_main)]

#[path = "pieces.rs"]
mod pieces;

use osier_fuzz::fuzz_target;
use osier_http::{ChunkedDecoder, LAST_CHUNK, Limits, Reject, write_chunk};

fuzz_target!(|data: &[u8]| {
    let limits = pieces::limits(data);
    let whole = decode(&[data], &limits, usize::MAX);
    assert_eq!(decode(&pieces::pieces(data), &limits, usize::MAX), whole);
    assert_eq!(decode(&pieces::pieces(data), &limits, 3), whole);
    assert_eq!(decode_with_plain_reads(data, &limits), whole);

    if let Ok(Decoded { body, end: Some(end) }) = &whole {
        assert!(body.len() as u64 <= limits.body);
        assert!(data[..*end].ends_with(b"\r\n"));
        let mut again = Vec::new();
        for chunk in body.chunks(7) {
            write_chunk(&mut again, chunk);
        }
        again.extend_from_slice(LAST_CHUNK);
        let expected = Ok(Decoded {
            body: body.clone(),
            end: Some(again.len()),
        });
        assert_eq!(decode(&pieces::pieces(&again), &limits, usize::MAX), expected);
    }
});

#[derive(Debug, PartialEq)]
struct Decoded {
    body: Vec<u8>,
    /// The number of input bytes of the body, if it has ended.
    end: Option<usize>,
}

fn decode(pieces: &[&[u8]], limits: &Limits, max: usize) -> Result<Decoded, Reject> {
    let mut decoder = ChunkedDecoder::new(limits);
    let mut body = Vec::new();
    let mut end = 0;
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() && !decoder.is_done() {
            let taken = decoder.decode(rest, max)?;
            assert!(taken.consumed > 0 && taken.data.len() <= max);
            assert!(rest[..taken.consumed].ends_with(taken.data));
            body.extend_from_slice(taken.data);
            end += taken.consumed;
            rest = &rest[taken.consumed..];
        }
    }
    Ok(Decoded {
        body,
        end: decoder.is_done().then_some(end),
    })
}

/// Passes framing through the decoder, and reads data without it.
fn decode_with_plain_reads(data: &[u8], limits: &Limits) -> Result<Decoded, Reject> {
    let mut decoder = ChunkedDecoder::new(limits);
    let mut body = Vec::new();
    let mut at = 0;
    while at < data.len() && !decoder.is_done() {
        let plain = decoder.plain().min((data.len() - at) as u64) as usize;
        if plain > 0 {
            body.extend_from_slice(&data[at..at + plain]);
            decoder.advance(plain as u64);
            at += plain;
        } else {
            let taken = decoder.decode(&data[at..], 0)?;
            assert!(taken.data.is_empty());
            at += taken.consumed;
        }
    }
    Ok(Decoded {
        body,
        end: decoder.is_done().then_some(at),
    })
}
