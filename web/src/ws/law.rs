//! The properties of the decoder that hold for every input, as one function. A proptest calls it
//! with whole and damaged frames. The fuzz target `ws` includes this file and calls it with
//! arbitrary bytes.

use super::decode::{Decoder, Event, Failure, Sizes};
use super::{Close, Frame, Message};

use testkit::websocket::masked_by;

/// Inputs of at most this many bytes are split at every position. Longer ones are split at one
/// position, to keep the fuzzer fast.
const EVERY_CUT: usize = 40;

/// Checks every property with `data` as input.
///
/// # Panics
///
/// If a property does not hold for `data`.
pub(super) fn check(data: &[u8]) {
    pieces_do_not_matter(data);
    what_is_sent_is_received(data);
    if let Some(frame) = Frame::from_encoded(data) {
        assert_eq!(frame.as_bytes(), data);
    }
    for frame in [Frame::binary(data), Frame::text(String::from_utf8_lossy(data))] {
        assert_eq!(Frame::from_encoded(frame.as_bytes()), Some(frame));
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    events: Vec<Event>,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The connection is still open, between messages (`is_idle`) or within one.
    Open {
        is_idle: bool,
    },
    Closed,
    Failed(Failure),
}

/// The result does not depend on how the input is cut, and respects the limits.
fn pieces_do_not_matter(data: &[u8]) {
    let sizes = sizes(data);
    let whole = decode([data], sizes);
    for event in &whole.events {
        let within = match event {
            Event::Message(message) => message.as_bytes().len() <= sizes.message.min(data.len()),
            Event::Ping(payload) => payload.len() <= 125,
            Event::Close(close) => close.reason.len() <= 123,
            Event::Pong => true,
        };
        assert!(within, "{event:?}");
    }
    assert_eq!(decode(data.chunks(1), sizes), whole, "byte by byte");
    let cuts = match data.len() {
        0..=EVERY_CUT => 0..data.len(),
        length => length / 3..length / 3 + 1,
    };
    for cut in cuts {
        let (first, second) = data.split_at(cut);
        assert_eq!(decode([first, b"", second], sizes), whole, "cut at {cut}");
    }
}

/// Reads the bytes as a script of messages. The messages are encoded, cut into frames with pings
/// between them, and decoded.
fn what_is_sent_is_received(script: &[u8]) {
    let (mut bytes, mut events) = (Vec::new(), Vec::new());
    let mut rest = script;
    while let Some(([how, length], after)) = rest.split_first_chunk::<2>() {
        let (payload, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        let mask = [*how, *length, !*how, how.wrapping_mul(*length)];
        let mut control = |opcode: u8, payload: &[u8]| {
            let payload = &payload[..payload.len().min(125)];
            bytes.extend(masked_by(mask, 0x80 | opcode, payload));
            match opcode {
                9 => events.push(Event::Ping(payload.to_vec())),
                _ => events.push(Event::Pong),
            }
        };
        let (opcode, message) = match how & 3 {
            0 => (1, Message::Text(String::from_utf8_lossy(payload).into_owned())),
            1 => (2, Message::Binary(payload.to_vec())),
            2 => {
                control(9, payload);
                continue;
            }
            _ => {
                control(10, payload);
                continue;
            }
        };
        let whole = message.as_bytes();
        let frames = usize::from(how >> 2 & 7) + 1;
        for frame in 0..frames {
            let at = |n: usize| whole.len() * n / frames;
            if frame > 0 && how & 0x20 != 0 {
                let payload = [frame as u8];
                bytes.extend(masked_by(mask, 0x89, &payload));
                events.push(Event::Ping(payload.to_vec()));
            }
            let first = match frame {
                0 => opcode,
                _ => 0,
            };
            let last = if frame + 1 == frames { 0x80 } else { 0 };
            bytes.extend(masked_by(mask, first | last, &whole[at(frame)..at(frame + 1)]));
        }
        events.push(Event::Message(message));
    }
    let close = Close {
        code: Close::NORMAL,
        reason: "bye".into(),
    };
    bytes.extend(masked_by([1, 2, 3, 4], 0x88, b"\x03\xE8bye"));
    events.push(Event::Close(close));
    let sent = Decoded {
        events,
        end: End::Closed,
    };
    let sizes = Sizes {
        frame: usize::MAX,
        message: usize::MAX,
    };
    assert_eq!(decode([&bytes[..]], sizes), sent, "in one piece");
    assert_eq!(decode(bytes.chunks(3), sizes), sent, "in small ones");
}

/// Limits for the input: for every other input they are so small that short inputs reach them.
fn sizes(data: &[u8]) -> Sizes {
    match data.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)) % 2 {
        0 => Sizes { frame: 9, message: 12 },
        _ => Sizes {
            frame: 1 << 20,
            message: 1 << 20,
        },
    }
}

/// Decodes the pieces up to a close frame or a failure. An idle decoder is replaced by a fresh one
/// between pieces, as in a dormant connection.
fn decode<'d>(pieces: impl IntoIterator<Item = &'d [u8]>, sizes: Sizes) -> Decoded {
    let (mut decoder, mut events) = (Decoder::default(), Vec::new());
    for mut piece in pieces {
        if decoder.is_idle() {
            decoder = Decoder::default();
        }
        loop {
            match decoder.next(&mut piece, sizes) {
                Ok(None) => break,
                Ok(Some(event)) => {
                    let is_close = matches!(event, Event::Close(_));
                    events.push(event);
                    if is_close {
                        let end = End::Closed;
                        return Decoded { events, end };
                    }
                }
                Err(failure) => {
                    let end = End::Failed(failure);
                    return Decoded { events, end };
                }
            }
        }
        assert!(piece.is_empty(), "all was taken");
    }
    let is_idle = decoder.is_idle();
    let end = End::Open { is_idle };
    Decoded { events, end }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Payloads: text, text cut within a character, and bytes that are not text.
    fn payload() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            "[aä€😀]{0,8}".prop_map(String::into_bytes),
            "[ä€😀]{1,4}".prop_map(|text| text.as_bytes()[..text.len() - 1].to_vec()),
            prop::collection::vec(any::<u8>(), 0..20),
            (120_usize..140).prop_map(|length| vec![b'x'; length]),
            Just(b"\x03\xE8bye".to_vec()),
        ]
    }

    /// Frames, most of which a client may send.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let first = prop_oneof![
            8 => prop::sample::select(vec![0x01, 0x00, 0x80, 0x81, 0x82, 0x89, 0x8A]),
            1 => Just(0x88),
            1 => any::<u8>(),
        ];
        (any::<[u8; 4]>(), first, payload()).prop_map(|(mask, first, payload)| masked_by(mask, first, &payload))
    }

    proptest! {
        #[test]
        fn the_law_holds_for_frames_and_for_what_is_left_of_them(
            frames in prop::collection::vec(frame(), 0..8),
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
            end in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = frames.concat();
            if let Some((at, byte)) = damage && !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(end) = end && !bytes.is_empty() {
                bytes.truncate(end.index(bytes.len()));
            }
            check(&bytes);
        }
    }
}
