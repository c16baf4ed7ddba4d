//! Fuzzes a multipart form. The parser never panics, its result does not depend on the pieces, it keeps its limits, and the data of a part
//! has no line that separates parts.
#![cfg_attr(fuzzing, no_main)]

#[path = "pieces.rs"]
mod pieces;

use osier_fuzz::fuzz_target;
use osier_http::multipart::{Event, Limits, Malformed, Multipart, boundary};

fuzz_target!(|data: &[u8]| {
    if let Ok(boundary) = boundary(data) {
        assert!(Multipart::new(&boundary, Limits::default()).is_ok());
    }
    let limits = match pieces::limits(data).body {
        50 => Limits {
            parts: 3,
            headers: 3,
            head_bytes: 100,
            name_bytes: 8,
            part_bytes: 30,
            total_bytes: 50,
        },
        _ => Limits::default(),
    };
    let whole = read(&[data], limits);
    let parts = read(&pieces::pieces(data), limits);
    let bytes = read(&data.chunks(1).collect::<Vec<_>>(), limits);
    match whole {
        Ok(whole) => {
            let total: usize = whole.iter().map(|(_, data)| data.len()).sum();
            assert!(whole.len() <= limits.parts && total as u64 <= limits.total_bytes);
            for (_, data) in &whole {
                assert!(!data.windows(SEPARATOR.len()).any(|piece| piece == SEPARATOR));
            }
            assert_eq!((parts.as_ref(), bytes.as_ref()), (Ok(&whole), Ok(&whole)));
        }
        // The pieces may decide which of two errors comes first, but not whether there is one.
        Err(_) => assert!(parts.is_err() && bytes.is_err()),
    }
});

const SEPARATOR: &[u8] = b"\r\n--cut\r\n";

type Parts = Vec<(String, Vec<u8>)>;

fn read(pieces: &[&[u8]], limits: Limits) -> Result<Parts, Malformed> {
    let mut form = Multipart::new("cut", limits)?;
    let (mut held, mut seen) = (Vec::new(), Parts::new());
    for piece in pieces {
        held.extend_from_slice(piece);
        loop {
            let (consumed, event) = form.next(&held)?;
            match event {
                Event::NeedMore => {
                    held.drain(..consumed);
                    break;
                }
                Event::Part(part) => seen.push((part.name().to_owned(), Vec::new())),
                Event::Data(data) => seen.last_mut().expect("a part has begun").1.extend_from_slice(data),
                Event::PartEnd => {}
                Event::End => return Ok(seen),
            }
            held.drain(..consumed);
        }
    }
    Err(Malformed::Ended)
}
