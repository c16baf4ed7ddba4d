//! A connection sees the same requests, bodies and end however its bytes are split.

use crate::connection::{End, run};
use crate::cut::cut;
use crate::table;
use osier_http::{LAST_CHUNK, Limits, write_chunk};
use proptest::collection::vec;
use proptest::prelude::*;

/// A valid request and its body.
#[derive(Clone, Debug)]
struct Request {
    bytes: Vec<u8>,
    body: Vec<u8>,
}

fn request() -> impl Strategy<Value = Request> {
    let fields = vec(("[a-zA-Z_-]{1,12}", "[ -~]{0,60}"), 0..12);
    let body = vec(any::<u8>(), 0..300);
    (fields, body, 0..3, 1..80usize, "/[a-z0-9/%?]{0,40}").prop_map(|(fields, body, framing, chunk, target)| {
        let method = if framing == 0 { "GET" } else { "POST" };
        let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: example.org\r\n").into_bytes();
        for (name, value) in &fields {
            // With the X the name has no meaning to the codec.
            bytes.extend_from_slice(format!("X{name}: {value}\r\n").as_bytes());
        }
        match framing {
            0 => {
                bytes.extend_from_slice(b"\r\n");
                return Request {
                    bytes,
                    body: Vec::new(),
                };
            }
            1 => {
                bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
                bytes.extend_from_slice(&body);
            }
            _ => {
                bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                body.chunks(chunk).for_each(|data| write_chunk(&mut bytes, data));
                bytes.extend_from_slice(LAST_CHUNK);
            }
        }
        Request { bytes, body }
    })
}

/// Valid requests, vectors of the table and noise, in turn.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => request().prop_map(|request| request.bytes),
        2 => (0..table::VECTORS.len()).prop_map(|i| table::VECTORS[i].1.to_vec()),
        1 => vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(0), Just(b' '), Just(b':'), any::<u8>()], 0..20),
    ];
    vec(part, 1..6).prop_map(|parts| parts.concat())
}

/// Limits so small that the streams above reach each of them sometimes.
const TIGHT: Limits = Limits {
    request_line: 45,
    head_bytes: 300,
    header_count: 8,
    body: 200,
    chunk_extension_bytes: 10,
    trailer_bytes: 30,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pipelined_requests_arrive_whole(requests in vec(request(), 1..6), lengths in vec(1..200usize, 1..20)) {
        let bytes: Vec<u8> = requests.iter().flat_map(|request| request.bytes.clone()).collect();
        let transcript = run(cut(&bytes, &lengths), &Limits::default(), 64);
        prop_assert_eq!(transcript.end, End::Waiting { buffered: 0 });
        let bodies: Vec<_> = transcript.requests.iter().map(|seen| &seen.body).collect();
        prop_assert_eq!(bodies, requests.iter().map(|request| &request.body).collect::<Vec<_>>());
    }

    #[test]
    fn the_split_changes_nothing(bytes in stream(), lengths in vec(1..100usize, 1..20), max in 1..50usize, tight: bool) {
        let limits = if tight { TIGHT } else { Limits::default() };
        let whole = run([&bytes[..]], &limits, usize::MAX);
        prop_assert_eq!(&run(cut(&bytes, &lengths), &limits, max), &whole);
        prop_assert_eq!(&run(bytes.chunks(1), &limits, usize::MAX), &whole);
    }

    #[test]
    fn a_mutation_never_panics(
        bytes in stream(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        lengths in vec(1..100usize, 1..8),
    ) {
        let mut bytes = bytes;
        prop_assume!(!bytes.is_empty());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let whole = run([&bytes[..]], &TIGHT, usize::MAX);
        prop_assert_eq!(&run(cut(&bytes, &lengths), &TIGHT, 7), &whole);
    }
}
