//! The chunked coding: encoded data is decoded again, through the decoder or with reads that bypass it.

use osier_http::{BodyDecoder, BodyLength, ChunkHead, ChunkedDecoder, LAST_CHUNK, Limits, Piece, Reject, write_chunk};
use proptest::collection::vec;
use proptest::prelude::*;

fn encode(chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    chunks.iter().for_each(|chunk| write_chunk(&mut out, chunk));
    out.extend_from_slice(LAST_CHUNK);
    out
}

#[test]
fn chunk_heads() {
    for length in [1, 9, 10, 15, 16, 255, 256, 4096, u64::from(u32::MAX), u64::MAX] {
        assert_eq!(ChunkHead::new(length).as_bytes(), format!("{length:x}\r\n").as_bytes());
    }
}

#[test]
#[should_panic = "LAST_CHUNK"]
fn a_chunk_head_of_length_0_would_end_the_body() {
    ChunkHead::new(0);
}

#[test]
fn an_empty_chunk_is_not_written() {
    assert_eq!(encode(&[vec![], b"a".to_vec(), vec![]]), b"1\r\na\r\n0\r\n\r\n");
}

#[test]
fn no_data_is_taken_where_none_is_allowed() {
    let mut decoder = ChunkedDecoder::new(&Limits::default());
    let input = b"3;x\r\nabc\r\n0\r\n\r\n";
    assert_eq!(
        decoder.decode(input, 0),
        Ok(Piece {
            consumed: 5,
            data: b"",
            done: false
        })
    );
    assert_eq!(decoder.plain(), 3);
    assert_eq!(
        decoder.decode(&input[5..], 0),
        Ok(Piece {
            consumed: 0,
            data: b"",
            done: false
        })
    );
    assert_eq!(
        decoder.decode(&input[5..], 2),
        Ok(Piece {
            consumed: 2,
            data: b"ab",
            done: false
        })
    );
    assert_eq!(decoder.plain(), 1);
    decoder.advance(1);
    assert_eq!(decoder.plain(), 0);
    assert_eq!(
        decoder.decode(&input[8..], 9),
        Ok(Piece {
            consumed: 7,
            data: b"",
            done: true
        })
    );
    assert_eq!(
        decoder.decode(b"GET", 9),
        Ok(Piece {
            consumed: 0,
            data: b"",
            done: true
        }),
        "the next request is left"
    );
}

#[test]
#[should_panic = "beyond plain()"]
fn advancing_beyond_the_chunk_is_a_bug_of_the_caller() {
    let mut decoder = ChunkedDecoder::new(&Limits::default());
    decoder.decode(b"3\r\n", 0).unwrap();
    decoder.advance(4);
}

#[test]
fn a_known_body_leaves_the_next_request() {
    let mut body = BodyDecoder::new(BodyLength::Known(5), &Limits::default()).unwrap();
    assert_eq!(
        body.decode(b"hel", 2),
        Ok(Piece {
            consumed: 2,
            data: b"he",
            done: false
        })
    );
    assert_eq!(body.plain(), 3);
    body.advance(1);
    assert_eq!(
        body.decode(b"loGET", 9),
        Ok(Piece {
            consumed: 2,
            data: b"lo",
            done: true
        })
    );
    assert!(body.is_done());
    for length in [BodyLength::None, BodyLength::Known(0)] {
        let mut body = BodyDecoder::new(length, &Limits::default()).unwrap();
        assert!(body.is_done());
        assert_eq!(
            body.decode(b"GET", 9),
            Ok(Piece {
                consumed: 0,
                data: b"",
                done: true
            })
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn round_trip(chunks in vec(vec(any::<u8>(), 0..400), 0..8), step in 1..50usize, max in 1..100usize, next in "[A-Z]{0,9}") {
        let mut bytes = encode(&chunks);
        let length = bytes.len();
        bytes.extend_from_slice(next.as_bytes());

        let mut body = BodyDecoder::new(BodyLength::Chunked, &Limits::default()).unwrap();
        let (mut decoded, mut at, mut seen) = (Vec::new(), 0, 0);
        while !body.is_done() {
            let piece = body.decode(&bytes[at..seen], max).unwrap();
            decoded.extend_from_slice(piece.data);
            at += piece.consumed;
            if piece.consumed == 0 && !piece.done {
                prop_assert!(seen < bytes.len(), "wants more than there is");
                seen = (seen + step).min(bytes.len());
            }
        }
        prop_assert_eq!(decoded, chunks.concat());
        prop_assert_eq!(at, length);
    }
}

#[test]
fn a_body_that_its_stream_ends_has_the_limit_of_a_request() {
    let limits = Limits {
        body: 5,
        ..Limits::default()
    };
    let mut body = BodyDecoder::until_end(&limits);
    body.advance(2);
    assert_eq!(body.decode(b"abc", 9).map(|piece| piece.data), Ok(&b"abc"[..]));
    assert_eq!((body.plain(), body.is_done()), (0, false));
    assert_eq!(body.clone().decode(b"d", 9), Err(Reject::BodyTooLarge));
    assert_eq!(body.at_end(), Ok(()));
    assert!(body.is_done());

    let mut body = BodyDecoder::until_end(&limits);
    body.limit(1).unwrap();
    assert_eq!(body.plain(), 1);
}
