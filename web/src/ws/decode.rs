//! Decoder for a client's bytes: it parses frames incrementally, unmasks them and joins them into
//! checked messages.
//!
//! The tungstenite crate parses headers, opcodes and close codes. The state between two reads lives
//! here, for three reasons: an idle connection holds no decoder state, a long message allocates
//! only as its bytes arrive, and text is rejected at its first invalid byte.
//!
//! ```text
//!   bytes ─▶ header (may be cut anywhere) ─▶ payload, unmasked piece by piece ─▶ Event
//!                                             └ data: appended to the message, text checked ┘
//! ```
//!
//! The caller calls [`Decoder::next`] until it needs more bytes. After a [`Failure`] or a close
//! frame the caller must not decode anything more.

use std::io::Cursor;

use osier_queue::Pressure;
use osier_queue::ledger::{self, Account};
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};

use super::frame::CONTROL_BYTES;
use super::{Close, Message};

/// The longest header: two bytes, eight of length, four of mask (RFC 6455 §5.2).
const HEADER_BYTES: usize = 14;

/// The longest payload whose length is in the second byte of the header (RFC 6455 §5.2).
const SHORT_BYTES: usize = 125;

/// Size limits of one frame and of one message, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) frame: usize,
    pub(super) message: usize,
}

/// A protocol violation by the client. The connection is closed with this code and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: u16,
    pub(super) reason: &'static str,
}

const fn protocol(reason: &'static str) -> Failure {
    Failure {
        code: Close::PROTOCOL,
        reason,
    }
}

/// The part of a message that is received even while memory is short.
const ALWAYS_BYTES: usize = 16 << 10;

const NO_MEMORY: Failure = Failure {
    code: Close::TRY_AGAIN,
    reason: "memory is short",
};

const NOT_UTF8: Failure = Failure {
    code: Close::INVALID,
    reason: "the text is not UTF-8",
};

/// A complete message or control frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Message(Message),
    /// A ping. The response is a pong with the same payload.
    Ping(Vec<u8>),
    Pong,
    Close(Close),
}

/// A decoder of one connection's frames, between two reads.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// First bytes of an incomplete header.
    header: [u8; HEADER_BYTES],
    header_len: u8,
    frame: Option<Current>,
    /// Kind of the message in progress; `None` between messages.
    is_text: Option<bool>,
    message: Vec<u8>,
    /// Bytes of `message` that are known to be valid UTF-8.
    checked: usize,
    control: Vec<u8>,
    /// The memory of `message` that is charged.
    charged: usize,
}

impl Drop for Decoder {
    fn drop(&mut self) {
        Account::WEBSOCKETS.subtract(self.charged);
    }
}

/// The frame whose payload is being read.
#[derive(Debug)]
struct Current {
    opcode: OpCode,
    is_final: bool,
    /// Mask, rotated so that its first byte applies to the next payload byte.
    mask: [u8; 4],
    left: u64,
}

impl Decoder {
    /// Whether the decoder is between messages. Then it holds nothing that a fresh decoder would
    /// lack.
    pub(super) fn is_idle(&self) -> bool {
        self.header_len == 0 && self.frame.is_none() && self.is_text.is_none()
    }

    /// Consumes bytes of `input` until an event is complete. `None` means that all bytes were
    /// consumed and more are needed.
    #[inline]
    pub(super) fn next(&mut self, input: &mut &[u8], sizes: Sizes) -> Result<Option<Event>, Failure> {
        if self.is_idle()
            && let Some(message) = short_message(input, sizes)
        {
            return message.map(|message| Some(Event::Message(message)));
        }
        self.next_piece(input, sizes)
    }

    /// Does the work of [`next`](Decoder::next) for frames of every kind, whole or in pieces.
    #[inline(never)]
    fn next_piece(&mut self, input: &mut &[u8], sizes: Sizes) -> Result<Option<Event>, Failure> {
        loop {
            if self.frame.is_none() && !self.begin(input, sizes)? {
                self.charge()?; // for a fragment that has ended
                return Ok(None);
            }
            let Some(frame) = &mut self.frame else { return Ok(None) };
            let count = usize::try_from(frame.left).unwrap_or(usize::MAX).min(input.len());
            let (piece, rest) = input.split_at(count);
            *input = rest;
            let to = match frame.opcode {
                OpCode::Control(_) => &mut self.control,
                OpCode::Data(_) => &mut self.message,
            };
            let start = to.len();
            to.extend_from_slice(piece);
            unmask(&mut to[start..], &mut frame.mask);
            frame.left -= count as u64;
            let done = frame.left == 0;
            let is_text = matches!(frame.opcode, OpCode::Data(_)) && self.is_text == Some(true);
            let is_at_once = done && frame.is_final && self.checked == 0; // `finish` checks the text then
            if is_text && !is_at_once {
                self.check_text()?;
            }
            if !done {
                self.charge()?;
                return Ok(None);
            }
            if let Some(event) = self.finish()? {
                self.charge()?;
                return Ok(Some(event));
            }
        }
    }

    /// Charges the incomplete message. A long one is received no further while memory is short, even if it does not grow: its client may
    /// send the rest as slowly as it likes, and holds the memory until then.
    #[inline]
    fn charge(&mut self) -> Result<(), Failure> {
        let bytes = self.message.capacity();
        if bytes != self.charged {
            Account::WEBSOCKETS.add(bytes);
            Account::WEBSOCKETS.subtract(self.charged);
            self.charged = bytes;
        }
        match bytes > ALWAYS_BYTES && ledger::budget().pressure() == Pressure::Critical {
            true => Err(NO_MEMORY),
            false => Ok(()),
        }
    }

    /// Parses a frame header and checks it. Returns `false` while the header is incomplete.
    fn begin(&mut self, input: &mut &[u8], sizes: Sizes) -> Result<bool, Failure> {
        let held = usize::from(self.header_len);
        let take = input.len().min(HEADER_BYTES - held);
        self.header[held..held + take].copy_from_slice(&input[..take]);
        let mut cursor = Cursor::new(&self.header[..held + take]);
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| protocol("the opcode is reserved"))?;
        let Some((header, length)) = parsed else {
            self.header_len = (held + take) as u8; // at most 14
            *input = &input[take..];
            return Ok(false);
        };
        let header_bytes = cursor.position() as usize;
        *input = &input[header_bytes - held..];
        self.header_len = 0;

        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(protocol("a reserved bit is set, and no extension was agreed on"));
        }
        let Some(mask) = header.mask else {
            return Err(protocol("a frame of a client must be masked"));
        };
        if length > i64::MAX as u64 {
            return Err(protocol("the length is beyond 63 bits"));
        }
        if header.len(length) != header_bytes {
            return Err(protocol("the length is not in its shortest form"));
        }
        match header.opcode {
            OpCode::Control(_) if !header.is_final => return Err(protocol("a control frame is fragmented")),
            OpCode::Control(_) if length > CONTROL_BYTES as u64 => {
                return Err(protocol("a control frame is longer than 125 bytes"));
            }
            OpCode::Control(_) => {}
            OpCode::Data(data) => {
                let is_text = match (data, self.is_text) {
                    (Data::Continue, Some(is_text)) => is_text,
                    (Data::Continue, None) => return Err(protocol("there is no message to continue")),
                    (_, Some(_)) => return Err(protocol("the message before is not finished")),
                    (data, None) => data == Data::Text,
                };
                self.is_text = Some(is_text);
                let room = (sizes.message - self.message.len().min(sizes.message)) as u64;
                if length > sizes.frame as u64 || length > room {
                    return Err(Failure {
                        code: Close::TOO_BIG,
                        reason: "the message is too big",
                    });
                }
            }
        }
        self.frame = Some(Current {
            opcode: header.opcode,
            is_final: header.is_final,
            mask,
            left: length,
        });
        Ok(true)
    }

    /// Checks the text received so far. The last character may be incomplete.
    fn check_text(&mut self) -> Result<(), Failure> {
        match str::from_utf8(&self.message[self.checked..]) {
            Ok(text) => self.checked += text.len(),
            Err(error) if error.error_len().is_none() => self.checked += error.valid_up_to(),
            Err(_) => return Err(NOT_UTF8),
        }
        Ok(())
    }

    /// Finishes the current frame, whose payload is complete.
    fn finish(&mut self) -> Result<Option<Event>, Failure> {
        let Some(frame) = self.frame.take() else {
            return Ok(None);
        };
        Ok(match frame.opcode {
            OpCode::Control(Control::Ping) => Some(Event::Ping(std::mem::take(&mut self.control))),
            OpCode::Control(Control::Close) => Some(Event::Close(close(&std::mem::take(&mut self.control))?)),
            OpCode::Control(_) => {
                self.control = Vec::new();
                Some(Event::Pong)
            }
            OpCode::Data(_) if !frame.is_final => None,
            OpCode::Data(_) => {
                let message = std::mem::take(&mut self.message);
                self.checked = 0;
                Some(Event::Message(match self.is_text.take() {
                    // A text that was checked in pieces is checked again: its last character may be
                    // incomplete.
                    Some(true) => Message::Text(String::from_utf8(message).map_err(|_| NOT_UTF8)?),
                    _ => Message::Binary(message),
                }))
            }
        })
    }
}

/// Decodes a message that is one short frame and has arrived whole: the usual case, without the state that pieces need. `None`
/// leaves every other input, and every mistake but one in the text, to the decoder.
#[inline]
fn short_message(input: &mut &[u8], sizes: Sizes) -> Option<Result<Message, Failure>> {
    const MASKED: u8 = 0x80;
    let (&[first, second, ref mask @ ..], rest) = input.split_first_chunk::<6>()?;
    let is_text = match first {
        0x81 => true,
        0x82 => false,
        _ => return None,
    };
    let length = usize::from(second & !MASKED);
    let is_short = second & MASKED != 0 && length <= SHORT_BYTES && length <= sizes.frame.min(sizes.message);
    let (payload, rest) = rest.split_at_checked(length).filter(|_| is_short)?;
    *input = rest;
    let mut message = payload.to_vec();
    unmask(&mut message, &mut mask.to_owned());
    Some(match is_text {
        true => String::from_utf8(message).map(Message::Text).map_err(|_| NOT_UTF8),
        false => Ok(Message::Binary(message)),
    })
}

/// Parses the payload of a close frame (RFC 6455 §5.5.1, §7.4).
fn close(payload: &[u8]) -> Result<Close, Failure> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return match payload {
            [] => Ok(Close {
                code: Close::NO_CODE,
                reason: String::new(),
            }),
            _ => Err(protocol("a close code is two bytes")),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !CloseCode::from(code).is_allowed() {
        return Err(protocol("the close code means nothing"));
    }
    let reason = str::from_utf8(reason).map_err(|_| NOT_UTF8)?.to_owned();
    Ok(Close { code, reason })
}

/// Unmasks `bytes`, and rotates `mask` for the bytes that follow.
#[inline]
fn unmask(bytes: &mut [u8], mask: &mut [u8; 4]) {
    // As long as a vector register, so that an instruction unmasks a chunk.
    let wide: [u8; 16] = std::array::from_fn(|at| mask[at % 4]);
    let (chunks, rest) = bytes.as_chunks_mut::<16>();
    for chunk in chunks {
        for (byte, key) in chunk.iter_mut().zip(wide) {
            *byte ^= key;
        }
    }
    for (byte, key) in rest.iter_mut().zip(wide) {
        *byte ^= key;
    }
    mask.rotate_left(rest.len() % 4);
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::websocket::masked;

    const SIZES: Sizes = Sizes {
        frame: 1 << 20,
        message: 1 << 20,
    };

    /// Decodes `bytes`, passed to the decoder in pieces of `piece` bytes.
    fn decode(bytes: &[u8], piece: usize, sizes: Sizes) -> Result<Vec<Event>, Failure> {
        let (mut decoder, mut events) = (Decoder::default(), Vec::new());
        for mut piece in bytes.chunks(piece) {
            while let Some(event) = decoder.next(&mut piece, sizes)? {
                events.push(event);
            }
            assert!(piece.is_empty());
        }
        assert!(decoder.is_idle(), "nothing is left over");
        Ok(events)
    }

    #[test]
    fn what_is_cut_at_any_byte_is_read_alike() {
        let long = "ä€😀x".repeat(8_000);
        let mut bytes = masked(0x01, "grüß".as_bytes());
        bytes.extend(masked(0x89, b"ping"));
        bytes.extend(masked(0x00, b""));
        bytes.extend(masked(0x80, " dich".as_bytes()));
        bytes.extend(masked(0x8A, b"whatever"));
        bytes.extend(masked(0x82, &[0; 300]));
        bytes.extend(masked(0x81, long.as_bytes()));
        bytes.extend(masked(0x88, b"\x03\xe8bye"));
        for piece in [1, 2, 3, 5, 7, 1000, bytes.len()] {
            let events = decode(&bytes, piece, SIZES).unwrap();
            let close = Close {
                code: 1000,
                reason: "bye".into(),
            };
            let expected = [
                Event::Ping(b"ping".to_vec()),
                Event::Message(Message::Text("grüß dich".into())),
                Event::Pong,
                Event::Message(Message::Binary(vec![0; 300])),
                Event::Message(Message::Text(long.clone())),
                Event::Close(close),
            ];
            assert!(events == expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_character_may_be_cut_by_frames_but_not_by_the_end() {
        let euro = "€".as_bytes();
        let mut bytes = masked(0x01, &euro[..1]);
        bytes.extend(masked(0x80, &euro[1..]));
        assert_eq!(
            decode(&bytes, 3, SIZES),
            Ok(vec![Event::Message(Message::Text("€".into()))])
        );
        assert_eq!(decode(&masked(0x81, &euro[..2]), 99, SIZES), Err(NOT_UTF8));
        // The text is rejected before the frame is complete: the remaining bytes are never passed.
        let bad = masked(0x81, b"\xF4\x90\x80\x80 and so on");
        assert_eq!(Decoder::default().next(&mut &bad[..8], SIZES), Err(NOT_UTF8));
    }

    #[test]
    fn a_size_is_refused_by_its_header_alone() {
        let sizes = Sizes { frame: 10, message: 15 };
        let refused = |bytes: &[u8]| decode(bytes, 1, sizes).unwrap_err().code;
        assert_eq!(refused(&masked(0x82, &[0; 11])[..6]), Close::TOO_BIG);
        let mut two = masked(0x02, &[0; 10]);
        two.extend(&masked(0x80, &[0; 6])[..6]);
        assert_eq!(refused(&two), Close::TOO_BIG);
        assert_eq!(
            refused(&[0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]),
            Close::PROTOCOL
        );
        assert_eq!(
            refused(&[0x82, 0xFE, 0, 5, 1, 2, 3, 4]),
            Close::PROTOCOL,
            "not the shortest form"
        );
    }
}
