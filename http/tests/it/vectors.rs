//! Every HTTP/1 vector gives its expected result, however its bytes are split, and every rejection is sent with its status.

use crate::connection::{End, Transcript, run};
use crate::table::{Expected, VECTORS};
use osier_http::{DateLine, Exchange, Limits, Reject, write_reject};

fn outcome(transcript: &Transcript) -> Expected {
    match (transcript.requests.len(), transcript.end) {
        (requests, End::Rejected(reject)) => Expected::Refuse(requests, reject),
        (requests, End::Waiting { buffered: 0 } | End::Closed { ignored: 0 }) if requests > 0 => {
            Expected::Accept(requests)
        }
        (0, End::Waiting { .. }) => Expected::Wait,
        _ => panic!("bytes left over: {transcript:?}"),
    }
}

#[test]
fn every_vector_gets_its_answer() {
    let limits = Limits::default();
    for (name, bytes, expected) in VECTORS {
        assert_eq!(outcome(&run([*bytes], &limits, usize::MAX)), *expected, "{name}");
    }
    println!("{} vectors", VECTORS.len());
}

#[test]
fn every_vector_gets_the_same_answer_in_two_pieces_and_byte_by_byte() {
    let limits = Limits::default();
    for (name, bytes, _) in VECTORS {
        let whole = run([*bytes], &limits, usize::MAX);
        for at in 0..bytes.len() {
            let (first, second) = bytes.split_at(at);
            assert_eq!(
                run([first, second], &limits, usize::MAX),
                whole,
                "{name}, split at {at}"
            );
        }
        assert_eq!(run(bytes.chunks(1), &limits, 1), whole, "{name}, byte by byte");
    }
}

#[test]
fn every_refusal_in_the_table_is_400_unless_the_specification_says_otherwise() {
    for (name, _, expected) in VECTORS {
        if let Expected::Refuse(_, reject) = expected {
            let other = match reject {
                Reject::Version => 505,
                Reject::TransferCoding => 501,
                Reject::Expectation => 417,
                Reject::BodyTooLarge => 413,
                _ => 400,
            };
            assert_eq!(reject.status(), other, "{name}");
        }
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = VECTORS.iter().map(|(name, _, _)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), VECTORS.len());
}

#[test]
fn a_refusal_is_a_whole_response_that_closes() {
    let date = DateLine::new(b"Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
    for (name, _, expected) in VECTORS {
        let Expected::Refuse(_, reject) = *expected else {
            continue;
        };
        let mut out = Vec::new();
        let written = write_reject(&mut out, reject, Exchange::REJECTED, &date);
        let mut fields = [httparse::EMPTY_HEADER; 8];
        let mut response = httparse::Response::new(&mut fields);
        let length = response.parse(&out).unwrap().unwrap();
        assert_eq!(response.code, Some(reject.status()), "{name}");
        assert_ne!(response.reason, Some(""), "{name}: {} has a phrase", reject.status());
        let field = |wanted: &str| response.headers.iter().find(|f| f.name == wanted).map(|f| f.value);
        assert_eq!(field("connection"), Some(&b"close"[..]), "{name}");
        assert_eq!(
            field("content-length"),
            Some((out.len() - length).to_string().as_bytes()),
            "{name}"
        );
        assert_eq!(&out[length..], format!("{}\n", reject.reason()).as_bytes(), "{name}");
        assert_eq!(written, out.len() - length, "{name}");
        // A HEAD gets the same head alone.
        for request in [&b"HEAD / HTTP/9"[..], b"\r\nHEAD /", b"HEAD"] {
            let mut head = Vec::new();
            assert_eq!(write_reject(&mut head, reject, Exchange::rejected(request), &date), 0);
            assert_eq!(head, out[..length], "{name}");
        }
        for request in [&b"HEADER / HTTP/1.1"[..], b"GET /", b""] {
            assert_eq!(Exchange::rejected(request), Exchange::REJECTED);
        }
    }
}
