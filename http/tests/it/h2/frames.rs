//! Frames: every type, every rule that a frame can break by itself, and every split of the bytes.

use osier_http::h2::frame::{self, Event, FrameReader, HeadersWriter, Role, Setting};
use osier_http::h2::{Error, ErrorCode, Priority};
use proptest::prelude::*;

/// A frame with a payload.
fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// An event without the borrow, with the pieces of a payload joined.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Data(u32, u32, u32, Vec<u8>, Option<bool>),
    Block(u32, bool, Vec<u8>, bool),
    Other(String),
}

/// Reads the pieces. Returns the events, and whether the reader stands between two frames.
fn read(role: Role, pieces: &[&[u8]]) -> Result<(Vec<Seen>, bool), Error> {
    let mut reader = FrameReader::new(role);
    let mut seen: Vec<Seen> = Vec::new();
    let mut buffer = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = reader.read(&buffer)?;
            match step.event {
                Some(Event::Data {
                    stream,
                    length,
                    padding,
                }) => {
                    seen.push(Seen::Data(stream, length, padding, Vec::new(), None));
                }
                Some(Event::DataPiece {
                    stream,
                    data,
                    last,
                    end_stream,
                }) => {
                    let Some(Seen::Data(on, _, _, all, end @ None)) = seen.last_mut() else {
                        panic!("{seen:?}")
                    };
                    assert_eq!(*on, stream);
                    assert!(!data.is_empty() || last, "an empty piece that is not the last");
                    all.extend_from_slice(data);
                    *end = last.then_some(end_stream);
                }
                Some(Event::Headers { stream, end_stream }) => {
                    seen.push(Seen::Block(stream, end_stream, Vec::new(), false));
                }
                Some(Event::Block { stream, fragment, last }) => {
                    let Some(Seen::Block(on, _, all, end @ false)) = seen.last_mut() else {
                        panic!("{seen:?}")
                    };
                    assert_eq!(*on, stream);
                    all.extend_from_slice(fragment);
                    *end = last;
                }
                Some(other) => seen.push(Seen::Other(format!("{other:?}"))),
                None => {}
            }
            let more = step.event.is_some();
            buffer.drain(..step.consumed);
            if !more {
                break;
            }
        }
        assert!(buffer.len() <= FrameReader::HELD, "{} bytes held", buffer.len());
    }
    Ok((seen, reader.is_between_frames()))
}

/// Reads what follows the preface and empty settings, and checks that no split changes the result.
fn server(bytes: &[u8]) -> Result<Vec<Seen>, Error> {
    let mut all = frame::PREFACE.to_vec();
    frame::settings(&mut all, &[]);
    all.extend_from_slice(bytes);
    let whole = read(Role::Server, &[&all]);
    for at in 0..all.len() {
        assert_eq!(read(Role::Server, &[&all[..at], &all[at..]]), whole, "cut at {at}");
    }
    assert_eq!(read(Role::Server, &all.chunks(1).collect::<Vec<_>>()), whole);
    let (mut seen, _) = whole?;
    assert_eq!(seen.remove(0), other(Event::SettingsEnd));
    Ok(seen)
}

fn refused(bytes: &[u8]) -> ErrorCode {
    server(bytes).expect_err("the frame must be refused").code
}

fn other(event: Event<'_>) -> Seen {
    Seen::Other(format!("{event:?}"))
}

#[test]
fn every_type_of_frame_is_read() {
    let mut bytes = raw(0x1, 0x5, 1, b"block");
    bytes.extend(raw(0x0, 0x1, 3, b"body"));
    bytes.extend(raw(0x0, 0x0, 3, b""));
    bytes.extend(raw(0x2, 0, 3, &[0x80, 0, 0, 1, 255]));
    bytes.extend(raw(0x3, 0, 3, &[0, 0, 0, 8]));
    bytes.extend(raw(0x4, 0, 0, &[0, 3, 0, 0, 0, 100, 0xab, 0xcd, 0, 0, 0, 1]));
    bytes.extend(raw(0x4, 1, 0, &[]));
    bytes.extend(raw(0x6, 0, 0, b"12345678"));
    bytes.extend(raw(0x6, 1, 0, b"87654321"));
    bytes.extend(raw(0x7, 0, 0, b"\x80\0\0\x05\0\0\0\x0bdebug"));
    bytes.extend(raw(0x8, 0, 0, &[0x80, 0, 0, 1]));
    bytes.extend(raw(0x8, 0, 5, &[0x7f, 255, 255, 255]));
    bytes.extend(raw(0x10, 0, 0, b"\0\0\0\x07u=2, i"));
    bytes.extend(raw(0x10, 0, 0, b"\0\0\0\x07U"));
    bytes.extend(raw(0x33, 255, 9, b"whatever"));
    let priority = Priority {
        urgency: 2,
        incremental: true,
    };
    let expected = [
        Seen::Block(1, true, b"block".to_vec(), true),
        Seen::Data(3, 4, 0, b"body".to_vec(), Some(true)),
        Seen::Data(3, 0, 0, vec![], Some(false)),
        other(Event::Priority { stream: 3 }),
        other(Event::Reset {
            stream: 3,
            code: ErrorCode::CANCEL,
        }),
        other(Event::Setting(Setting::MaxConcurrentStreams(100))),
        other(Event::SettingsEnd),
        other(Event::SettingsAck),
        other(Event::Ping(*b"12345678")),
        other(Event::Pong(*b"87654321")),
        other(Event::GoAway {
            last_stream: 5,
            code: ErrorCode::ENHANCE_YOUR_CALM,
        }),
        other(Event::WindowUpdate {
            stream: 0,
            increment: 1,
        }),
        other(Event::WindowUpdate {
            stream: 5,
            increment: 0x7fff_ffff,
        }),
        other(Event::PriorityUpdate { stream: 7, priority }),
        other(Event::Unknown { kind: 0x10, length: 5 }),
        other(Event::Unknown { kind: 0x33, length: 8 }),
    ];
    assert_eq!(server(&bytes).unwrap(), expected);
}

#[test]
fn unused_flags_and_the_reserved_bit_are_ignored() {
    let reserved = |stream: u32| stream | 1 << 31;
    let mut bytes = raw(0x0, 0xf6, reserved(1), b"body");
    bytes.extend(raw(0x1, 0xd6, reserved(3), b"block"));
    bytes.extend(raw(0x3, 0xff, reserved(1), &[0, 0, 0, 8]));
    bytes.extend(raw(0x4, 0xfe, reserved(0), &[]));
    bytes.extend(raw(0x6, 0xfe, reserved(0), b"12345678"));
    bytes.extend(raw(0x7, 0xff, reserved(0), &[0; 8]));
    bytes.extend(raw(0x8, 0xff, reserved(5), &[0x80, 0, 0, 1]));
    let expected = [
        Seen::Data(1, 4, 0, b"body".to_vec(), Some(false)),
        Seen::Block(3, false, b"block".to_vec(), true),
        other(Event::Reset {
            stream: 1,
            code: ErrorCode::CANCEL,
        }),
        other(Event::SettingsEnd),
        other(Event::Ping(*b"12345678")),
        other(Event::GoAway {
            last_stream: 0,
            code: ErrorCode::NO_ERROR,
        }),
        other(Event::WindowUpdate {
            stream: 5,
            increment: 1,
        }),
    ];
    assert_eq!(server(&bytes).unwrap(), expected);
}

#[test]
fn written_frames_have_no_other_bits() {
    let mut bytes = frame::data_head(1, 2, true).to_vec();
    bytes.extend_from_slice(&frame::data_head(1, 2, false));
    frame::settings_ack(&mut bytes);
    frame::ping(&mut bytes, [7; 8]);
    frame::reset(&mut bytes, 1, ErrorCode::CANCEL);
    frame::window_update(&mut bytes, 1, 2);
    let expected = b"\0\0\x02\0\x01\0\0\0\x01\0\0\x02\0\0\0\0\0\x01\0\0\0\x04\x01\0\0\0\0\
        \0\0\x08\x06\0\0\0\0\0\x07\x07\x07\x07\x07\x07\x07\x07\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08\
        \0\0\x04\x08\0\0\0\0\x01\0\0\0\x02";
    assert_eq!(bytes, expected);
}

#[test]
fn padding_and_old_priorities_are_taken_off() {
    let mut bytes = raw(0x0, 0x9, 1, b"\x03body\0\0\0");
    bytes.extend(raw(0x0, 0x8, 1, b"\x02\0\0"));
    bytes.extend(raw(0x1, 0x2c, 3, b"\x01\x80\0\0\x05\x10block\0"));
    bytes.extend(raw(0x1, 0x24, 5, b"\0\0\0\0\0x"));
    bytes.extend(raw(0x1, 0xc, 7, b"\x01\0"));
    let expected = [
        Seen::Data(1, 8, 4, b"body".to_vec(), Some(true)),
        Seen::Data(1, 3, 3, vec![], Some(false)),
        Seen::Block(3, false, b"block".to_vec(), true),
        Seen::Block(5, false, b"x".to_vec(), true),
        Seen::Block(7, false, vec![], true),
    ];
    assert_eq!(server(&bytes).unwrap(), expected);
}

#[test]
fn padding_longer_than_its_frame_is_refused() {
    for (kind, payload) in [
        (0x0, &b"\x05body"[..]),
        (0x0, b"\x01"),
        (0x1, b"\x06block"),
        (0x1, b"\x01"),
    ] {
        assert_eq!(refused(&raw(kind, 0xc, 1, payload)), ErrorCode::PROTOCOL_ERROR);
    }
    assert_eq!(
        refused(&raw(0x1, 0x2c, 1, b"\x01\0\0\0\0\0")),
        ErrorCode::PROTOCOL_ERROR
    );
}

#[test]
fn frames_too_short_for_their_flags_are_refused() {
    for (kind, flags, payload) in [
        (0x0, 0x8, &b""[..]),
        (0x1, 0xc, b""),
        (0x1, 0x24, b"\0\0\0\0"),
        (0x1, 0x2c, b"\0\0\0\0\0"),
    ] {
        assert_eq!(refused(&raw(kind, flags, 1, payload)), ErrorCode::FRAME_SIZE_ERROR);
    }
}

#[test]
fn frames_on_the_wrong_kind_of_stream_are_refused() {
    for (kind, length) in [(0x0, 1), (0x1, 1), (0x2, 5), (0x3, 4)] {
        assert_eq!(
            refused(&raw(kind, 0x4, 0, &vec![1; length])),
            ErrorCode::PROTOCOL_ERROR,
            "type {kind}"
        );
    }
    for (kind, length) in [(0x4, 6), (0x6, 8), (0x7, 8), (0x10, 5)] {
        assert_eq!(
            refused(&raw(kind, 0, 1, &vec![0; length])),
            ErrorCode::PROTOCOL_ERROR,
            "type {kind}"
        );
    }
    assert_eq!(refused(&raw(0x4, 1, 1, &[])), ErrorCode::PROTOCOL_ERROR);
    assert_eq!(refused(&raw(0x10, 0, 0, b"\0\0\0\0u=1")), ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn lengths_that_a_type_does_not_allow_are_refused() {
    for (kind, flags, length) in [
        (0x3, 0, 3),
        (0x3, 0, 5),
        (0x4, 0, 5),
        (0x4, 0, 7),
        (0x4, 1, 6),
        (0x6, 0, 7),
        (0x6, 0, 9),
        (0x7, 0, 7),
        (0x8, 0, 3),
        (0x8, 0, 5),
        (0x10, 0, 3),
    ] {
        let stream = u32::from(kind == 0x3);
        assert_eq!(
            refused(&raw(kind, flags, stream, &vec![1; length])),
            ErrorCode::FRAME_SIZE_ERROR,
            "{kind} {length}"
        );
    }
}

#[test]
fn a_priority_of_a_wrong_length_ends_its_stream_only() {
    let mut bytes = raw(0x2, 0, 3, &[0; 4]);
    bytes.extend(raw(0x2, 0, 3, &[0; 6]));
    bytes.extend(raw(0x6, 0, 0, b"12345678"));
    let error = other(Event::StreamError {
        stream: 3,
        code: ErrorCode::FRAME_SIZE_ERROR,
        reason: "PRIORITY does not have five bytes",
    });
    assert_eq!(
        server(&bytes).unwrap(),
        [error.clone(), error, other(Event::Ping(*b"12345678"))]
    );
}

#[test]
fn a_window_update_of_0_ends_its_stream_or_the_connection() {
    let error = other(Event::StreamError {
        stream: 3,
        code: ErrorCode::PROTOCOL_ERROR,
        reason: "a WINDOW_UPDATE of 0",
    });
    assert_eq!(server(&raw(0x8, 0, 3, &[0x80, 0, 0, 0])).unwrap(), [error]);
    assert_eq!(refused(&raw(0x8, 0, 0, &[0; 4])), ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn a_frame_may_be_as_long_as_the_setting_says() {
    let longest = raw(0x0, 0, 1, &[7; 16_384]);
    let beyond = raw(0x0, 0, 1, &[7; 16_385]);
    let preface = || {
        let mut bytes = frame::PREFACE.to_vec();
        frame::settings(&mut bytes, &[]);
        bytes
    };
    let read = |reader: &mut FrameReader, bytes: &[u8]| -> Result<Vec<u32>, Error> {
        let (mut rest, mut lengths) = (bytes, vec![]);
        loop {
            let step = reader.read(rest)?;
            rest = &rest[step.consumed..];
            match step.event {
                Some(Event::Data { length, .. }) => lengths.push(length),
                Some(_) => {}
                None => return Ok(lengths),
            }
        }
    };
    let mut reader = FrameReader::new(Role::Server);
    read(&mut reader, &preface()).unwrap();
    assert_eq!(read(&mut reader, &longest), Ok(vec![16_384]));
    assert_eq!(
        read(&mut reader.clone(), &beyond).unwrap_err().code,
        ErrorCode::FRAME_SIZE_ERROR
    );
    reader.set_max_frame_size(16_385);
    assert_eq!(read(&mut reader, &beyond), Ok(vec![16_385]));
    assert!(reader.is_between_frames());
}

#[test]
fn continuations_belong_to_one_block() {
    let mut bytes = raw(0x1, 0x1, 1, b"a");
    bytes.extend(raw(0x9, 0, 1, b""));
    bytes.extend(raw(0x9, 0, 1, b"bc"));
    bytes.extend(raw(0x9, 0x4, 1, b""));
    assert_eq!(server(&bytes).unwrap(), [Seen::Block(1, true, b"abc".to_vec(), true)]);

    let open = raw(0x1, 0, 1, b"a");
    for next in [
        raw(0x9, 4, 3, b"b"),
        raw(0x9, 4, 0, b"b"),
        raw(0x0, 0, 1, b"b"),
        raw(0x1, 4, 1, b"b"),
        raw(0x33, 0, 1, b""),
        raw(0x6, 0, 0, &[0; 8]),
    ] {
        assert_eq!(refused(&[&open[..], &next[..]].concat()), ErrorCode::PROTOCOL_ERROR);
    }
    for stream in [0, 1] {
        assert_eq!(refused(&raw(0x9, 4, stream, b"b")), ErrorCode::PROTOCOL_ERROR);
    }
    assert_eq!(
        refused(&[raw(0x1, 4, 1, b"a"), raw(0x9, 4, 1, b"b")].concat()),
        ErrorCode::PROTOCOL_ERROR
    );
}

#[test]
fn a_flood_of_continuations_is_refused() {
    let block = |count: usize| {
        [
            raw(0x1, 0, 1, b"a"),
            raw(0x9, 0, 1, b"").repeat(count),
            raw(0x9, 4, 1, b""),
        ]
        .concat()
    };
    assert!(server(&block(7)).is_ok());
    assert_eq!(refused(&block(8)), ErrorCode::ENHANCE_YOUR_CALM);
    // A second block may have as many again.
    assert!(server(&[block(7), block(7)].concat()).is_ok());
}

#[test]
fn pushes_are_refused() {
    assert_eq!(refused(&raw(0x5, 4, 1, b"\0\0\0\x02x")), ErrorCode::PROTOCOL_ERROR);
    let bytes = [raw(0x4, 0, 0, b""), raw(0x5, 4, 1, b"\0\0\0\x02x")].concat();
    assert_eq!(
        read(Role::Client, &[&bytes]).unwrap_err().code,
        ErrorCode::PROTOCOL_ERROR
    );
}

#[test]
fn settings_outside_of_their_range_are_refused() {
    let setting = |id: u16, value: u32| raw(0x4, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()[..]].concat());
    for (id, value, code) in [
        (0x2, 2, ErrorCode::PROTOCOL_ERROR),
        (0x4, 1 << 31, ErrorCode::FLOW_CONTROL_ERROR),
        (0x5, (1 << 14) - 1, ErrorCode::PROTOCOL_ERROR),
        (0x5, 1 << 24, ErrorCode::PROTOCOL_ERROR),
        (0x8, 2, ErrorCode::PROTOCOL_ERROR),
        (0x9, 2, ErrorCode::PROTOCOL_ERROR),
    ] {
        assert_eq!(refused(&setting(id, value)), code, "{id} {value}");
    }
    for (id, value, expected) in [
        (0x1, 0, Setting::HeaderTableSize(0)),
        (0x2, 1, Setting::EnablePush(true)),
        (0x4, (1 << 31) - 1, Setting::InitialWindowSize((1 << 31) - 1)),
        (0x5, 1 << 14, Setting::MaxFrameSize(1 << 14)),
        (0x5, (1 << 24) - 1, Setting::MaxFrameSize((1 << 24) - 1)),
        (0x6, u32::MAX, Setting::MaxHeaderListSize(u32::MAX)),
        (0x8, 1, Setting::EnableConnectProtocol(true)),
        (0x9, 1, Setting::NoRfc7540Priorities(true)),
    ] {
        let seen = server(&setting(id, value)).unwrap();
        assert_eq!(seen, [other(Event::Setting(expected)), other(Event::SettingsEnd)]);
    }
}

#[test]
fn a_server_may_not_announce_pushes_or_update_priorities() {
    let push = raw(0x4, 0, 0, &[0, 2, 0, 0, 0, 1]);
    assert_eq!(
        read(Role::Client, &[&push]).unwrap_err().code,
        ErrorCode::PROTOCOL_ERROR
    );
    let update = [raw(0x4, 0, 0, b""), raw(0x10, 0, 0, b"\0\0\0\x01u=1")].concat();
    assert_eq!(
        read(Role::Client, &[&update]).unwrap_err().code,
        ErrorCode::PROTOCOL_ERROR
    );
}

#[test]
fn a_connection_begins_with_the_preface_and_settings() {
    let code = |role, bytes: &[u8]| read(role, &[bytes]).unwrap_err().code;
    assert_eq!(code(Role::Server, b"GET / HTTP/1.1\r\n"), ErrorCode::PROTOCOL_ERROR);
    assert_eq!(
        code(Role::Server, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r."),
        ErrorCode::PROTOCOL_ERROR
    );
    for first in [raw(0x6, 0, 0, &[0; 8]), raw(0x4, 1, 0, b""), raw(0x33, 0, 0, b"")] {
        assert_eq!(
            code(Role::Server, &[&frame::PREFACE[..], &first].concat()),
            ErrorCode::PROTOCOL_ERROR
        );
        assert_eq!(code(Role::Client, &first), ErrorCode::PROTOCOL_ERROR);
    }
    assert_eq!(read(Role::Server, &[b"PRI * HTTP/2"]), Ok((vec![], false)));
}

#[test]
fn data_needs_no_whole_frame() {
    let mut bytes = frame::PREFACE.to_vec();
    frame::settings(&mut bytes, &[]);
    bytes.extend_from_slice(&frame::data_head(1, 10_000, true));
    bytes.extend_from_slice(b"only this");
    let (seen, whole) = read(Role::Server, &[&bytes]).unwrap();
    assert_eq!(seen[1], Seen::Data(1, 10_000, 0, b"only this".to_vec(), None));
    assert!(!whole);
}

#[test]
fn written_frames_are_read_again() {
    let priority = Priority {
        urgency: 6,
        incremental: true,
    };
    let entries = [
        Setting::HeaderTableSize(0),
        Setting::EnablePush(false),
        Setting::MaxConcurrentStreams(1),
        Setting::InitialWindowSize(2),
        Setting::MaxFrameSize(1 << 15),
        Setting::MaxHeaderListSize(3),
        Setting::EnableConnectProtocol(true),
        Setting::NoRfc7540Priorities(true),
    ];
    let mut bytes = Vec::new();
    frame::settings(&mut bytes, &entries);
    frame::settings_ack(&mut bytes);
    frame::ping(&mut bytes, [1; 8]);
    frame::pong(&mut bytes, [2; 8]);
    frame::go_away(&mut bytes, 9, ErrorCode::NO_ERROR, b"bye");
    frame::reset(&mut bytes, 3, ErrorCode::REFUSED_STREAM);
    frame::window_update(&mut bytes, 0, 4);
    frame::priority_update(&mut bytes, 5, priority);
    let mut expected: Vec<Seen> = entries.into_iter().map(|entry| other(Event::Setting(entry))).collect();
    expected.extend([
        other(Event::SettingsEnd),
        other(Event::SettingsAck),
        other(Event::Ping([1; 8])),
        other(Event::Pong([2; 8])),
        other(Event::GoAway {
            last_stream: 9,
            code: ErrorCode::NO_ERROR,
        }),
        other(Event::Reset {
            stream: 3,
            code: ErrorCode::REFUSED_STREAM,
        }),
        other(Event::WindowUpdate {
            stream: 0,
            increment: 4,
        }),
        other(Event::PriorityUpdate { stream: 5, priority }),
    ]);
    assert_eq!(server(&bytes).unwrap(), expected);
}

#[test]
fn a_long_block_is_written_as_continuations() {
    for (length, frames) in [(0, 1), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (35, 4)] {
        let block: Vec<u8> = (0..length).collect();
        let mut bytes = b"before".to_vec();
        let writer = HeadersWriter::begin(&mut bytes);
        bytes.extend_from_slice(&block);
        writer.finish(&mut bytes, 7, true, 10);
        assert_eq!(bytes.len(), 6 + block.len() + frames * frame::FRAME_HEAD);
        assert_eq!(server(&bytes[6..]).unwrap(), [Seen::Block(7, true, block, true)]);
    }
}

proptest! {
    /// The reader never panics, holds little, and gives the same result for any cuts.
    #[test]
    fn cuts_do_not_change_frames(
        frames in prop::collection::vec((0u8..11, any::<u8>(), 0u32..3, prop::collection::vec(0u8..12, 0..20)), 0..6),
        cuts in prop::collection::vec(0usize..200, 0..8),
    ) {
        let mut bytes = frame::PREFACE.to_vec();
        frame::settings(&mut bytes, &[]);
        for (kind, flags, stream, payload) in &frames {
            bytes.extend(raw(*kind, *flags, *stream, payload));
        }
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        prop_assert_eq!(read(Role::Server, &pieces), read(Role::Server, &[&bytes]));
    }
}
