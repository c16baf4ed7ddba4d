//! FastCGI records: the bytes of requests, and responses read whole, in every two pieces and byte by byte.

use osier_http::fastcgi::{self, Decoder, Event, Malformed, ParamsWriter, RECORD_MAX};
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq)]
enum Said {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    End(u32, u8),
}

/// Decodes pieces as a server does, and joins neighbouring pieces of one stream.
fn decode(pieces: &[&[u8]]) -> Result<(Vec<Said>, usize, bool), Malformed> {
    let (mut decoder, mut said, mut buffer, mut used) = (Decoder::new(), Vec::new(), Vec::new(), 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = decoder.decode(&buffer)?;
            assert!(step.consumed <= buffer.len());
            match step.event {
                Some(Event::Stdout(bytes)) => match said.last_mut() {
                    Some(Said::Stdout(before)) => before.extend_from_slice(bytes),
                    _ => said.push(Said::Stdout(bytes.to_vec())),
                },
                Some(Event::Stderr(bytes)) => match said.last_mut() {
                    Some(Said::Stderr(before)) => before.extend_from_slice(bytes),
                    _ => said.push(Said::Stderr(bytes.to_vec())),
                },
                Some(Event::End {
                    app_status,
                    protocol_status,
                }) => said.push(Said::End(app_status, protocol_status)),
                None => {}
            }
            let more = step.event.is_some();
            used += step.consumed;
            buffer.drain(..step.consumed);
            if !more {
                break;
            }
        }
    }
    Ok((said, used, decoder.is_done()))
}

/// Decodes `bytes` in every split, which must give the same events.
fn decode_every_way(bytes: &[u8]) -> Result<(Vec<Said>, usize, bool), Malformed> {
    let whole = decode(&[bytes]);
    for at in 0..bytes.len().min(200) {
        assert_eq!(decode(&[&bytes[..at], &bytes[at..]]), whole, "split at {at}");
    }
    if bytes.len() < 5000 {
        assert_eq!(decode(&bytes.chunks(1).collect::<Vec<_>>()), whole);
    }
    whole
}

fn record(kind: u8, id: u16, content: &[u8], padding: u8) -> Vec<u8> {
    let ([id_high, id_low], [high, low]) = (id.to_be_bytes(), (content.len() as u16).to_be_bytes());
    let mut record = vec![1, kind, id_high, id_low, high, low, padding, 0];
    record.extend_from_slice(content);
    record.resize(record.len() + usize::from(padding), 0xee);
    record
}

const END: [u8; 8] = [0, 0, 0, 7, 0, 9, 9, 9];

#[test]
fn streams_interleave_and_their_ends_say_nothing() {
    let answer = [
        record(6, 1, b"Status: 200\r\n", 0),
        record(7, 1, b"notice", 2),
        record(6, 1, b"\r\nhello", 255),
        record(7, 1, b"", 0),
        record(6, 1, b"", 8),
        record(3, 1, &END, 3),
        b"next".to_vec(),
    ]
    .concat();
    let (said, used, done) = decode_every_way(&answer).unwrap();
    let expected = [
        Said::Stdout(b"Status: 200\r\n".into()),
        Said::Stderr(b"notice".into()),
        Said::Stdout(b"\r\nhello".into()),
        Said::End(7, 0),
    ];
    assert_eq!(said, expected);
    assert!(done);
    assert_eq!(used, answer.len() - 4, "what follows belongs to the next request");
}

#[test]
fn what_is_not_of_this_request_is_passed_over() {
    let answer = [
        record(10, 0, b"\x0e\x01FCGI_MPXS_CONNS0", 1),
        record(11, 0, &[12, 0, 0, 0, 0, 0, 0, 0], 0),
        record(6, 2, b"of another", 7),
        record(3, 2, &END, 0),
        record(3, 2, b"short", 0),
        record(99, 1, b"of an unknown type", 4),
        record(1, 1, b"12345678", 0),
        record(6, 1, b"ours", 0),
        record(3, 1, &[0, 0, 0, 0, 2, 0, 0, 0], 0),
    ]
    .concat();
    let (said, _, done) = decode_every_way(&answer).unwrap();
    assert_eq!(said, [Said::Stdout(b"ours".into()), Said::End(0, 2)]);
    assert!(done);
}

#[test]
fn an_early_end_is_an_end() {
    let (said, _, done) = decode_every_way(&record(3, 1, &END, 0)).unwrap();
    assert_eq!((said, done), (vec![Said::End(7, 0)], true));
}

#[test]
fn an_answer_that_breaks_off_has_not_ended() {
    let answer = [record(6, 1, b"half", 4), record(3, 1, &END, 4)].concat();
    for cut in 0..answer.len() - 4 {
        let (_, _, done) = decode(&[&answer[..cut]]).unwrap();
        assert!(!done, "{cut}");
    }
    let (said, _, done) = decode(&[&answer[..answer.len() - 1]]).unwrap();
    assert_eq!(said.last(), Some(&Said::End(7, 0)));
    assert!(
        !done,
        "a byte of padding is to come before the connection can be used again"
    );
}

#[test]
fn records_of_the_largest_size_come_whole() {
    let body: Vec<u8> = (0..3 * RECORD_MAX).map(|i| (i % 251) as u8).collect();
    let mut answer: Vec<u8> = body.chunks(RECORD_MAX).flat_map(|part| record(6, 1, part, 1)).collect();
    answer.extend(record(3, 1, &END, 0));
    for size in [1 << 12, 65_536, 100_000, usize::MAX] {
        let pieces: Vec<&[u8]> = answer.chunks(size).collect();
        let (said, ..) = decode(&pieces).unwrap();
        assert_eq!(said, [Said::Stdout(body.clone()), Said::End(7, 0)]);
    }
}

#[test]
fn what_is_no_fastcgi_is_an_error() {
    assert_eq!(
        decode(&[b"HTTP/1.1 400 Bad Request\r\n"]),
        Err(Malformed::Version(b'H'))
    );
    assert_eq!(
        decode_every_way(&record(3, 1, b"1234567", 0)),
        Err(Malformed::EndLength(7))
    );
    assert!(Malformed::Version(72).to_string().contains("version 72"));
}

/// The type and the content of each record, as a backend reads them.
fn records(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut records = Vec::new();
    while let [1, kind, 0, 1, high, low, padding, 0, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        records.push((*kind, rest[..length].to_vec()));
        bytes = &rest[length + usize::from(*padding)..];
    }
    assert!(bytes.is_empty());
    records
}

/// The parameters, as a backend reads their stream.
fn pairs(mut stream: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    fn length(stream: &mut &[u8]) -> usize {
        let first = stream[0];
        let bytes = if first < 128 { 1 } else { 4 };
        let (length, rest) = stream.split_at(bytes);
        *stream = rest;
        match *length {
            [short] => short.into(),
            [a, b, c, d] => u32::from_be_bytes([a & 0x7f, b, c, d]) as usize,
            _ => unreachable!(),
        }
    }
    let mut pairs = Vec::new();
    while !stream.is_empty() {
        let (name, value) = (length(&mut stream), length(&mut stream));
        pairs.push((stream[..name].to_vec(), stream[name..name + value].to_vec()));
        stream = &stream[name + value..];
    }
    pairs
}

#[test]
fn a_request_begins_with_its_role_and_whether_the_connection_is_kept() {
    for (keep, flag) in [(false, 0), (true, 1)] {
        let mut request = Vec::new();
        fastcgi::begin(&mut request, keep);
        assert_eq!(records(&request), [(1, vec![0, 1, flag, 0, 0, 0, 0, 0])]);
    }
    assert_eq!(records(&fastcgi::STDIN_END), [(5, vec![])]);
    let mut body = fastcgi::stdin_head(2).to_vec();
    body.extend_from_slice(b"ok");
    assert_eq!(records(&body), [(5, b"ok".to_vec())]);
}

fn written(params: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut request = Vec::new();
    let mut writer = ParamsWriter::new(&mut request);
    params.iter().for_each(|(name, value)| writer.pair(name, value));
    writer.finish();
    request
}

fn assert_survives(params: &[(Vec<u8>, Vec<u8>)]) {
    let records = records(&written(params));
    let (last, stream) = records.split_last().unwrap();
    assert_eq!(*last, (4, vec![]), "an empty record ends the parameters");
    assert!(stream.iter().all(|(kind, content)| *kind == 4 && !content.is_empty()));
    let stream: Vec<u8> = stream.iter().flat_map(|(_, content)| content.clone()).collect();
    assert_eq!(pairs(&stream), params);
}

#[test]
fn parameters_of_every_length_survive() {
    assert_survives(&[]);
    let lengths = [
        0,
        1,
        127,
        128,
        255,
        256,
        RECORD_MAX - 8,
        RECORD_MAX - 5,
        RECORD_MAX,
        RECORD_MAX + 1,
        200_000,
    ];
    for length in lengths {
        assert_survives(&[(b"N".to_vec(), vec![b'v'; length]), (vec![b'n'; length], vec![])]);
    }
}

proptest! {
    // Each case has megabytes, and the build is not optimised.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_parameters_survive(params in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), prop::collection::vec(any::<u8>(), 0..70_000)), 0..6)) {
        assert_survives(&params);
    }
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_say_the_same(bytes in prop::collection::vec(any::<u8>(), 0..400), at in prop::collection::vec(0usize..400, 0..6)) {
        // Most heads are well-formed; otherwise the decoder would stop at the first byte.
        let mut answer = Vec::new();
        for part in bytes.chunks(23) {
            answer.extend(record(part[0] % 13, u16::from(part.len() % 3 == 0) ^ 1, part, part[0] % 9));
        }
        let whole = decode(&[&answer]);
        let mut cuts: Vec<usize> = at.into_iter().map(|at| at.min(answer.len())).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts {
            pieces.push(&answer[from..cut]);
            from = cut;
        }
        pieces.push(&answer[from..]);
        prop_assert_eq!(decode(&pieces), whole);
    }
}

#[test]
fn pairs_made_before_are_as_those_made_on_the_spot() {
    let long = vec![b'x'; RECORD_MAX - 5];
    let given: [(&[u8], &[u8]); 4] = [(b"A", b""), (b"LONG", &long), (b"", b"empty"), (b"Z", &long[..200])];
    let (mut made, mut before, mut on_the_spot) = (Vec::new(), Vec::new(), Vec::new());
    let mut params = ParamsWriter::new(&mut on_the_spot);
    for (name, value) in given {
        fastcgi::pair(&mut made, name, value);
        params.pair(name, value);
    }
    params.finish();
    let mut params = ParamsWriter::new(&mut before);
    params.pairs(&made);
    params.finish();
    assert!(before == on_the_spot);
    assert!(before.len() > RECORD_MAX, "more than one record");
}
