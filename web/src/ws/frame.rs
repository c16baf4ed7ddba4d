//! Frames to a client: encoded once, shared by all receivers, and queued until written.

use std::fmt;
use std::io::{self, Cursor, IoSlice, Write};
use std::sync::Arc;

use osier_queue::InlineQueue;
use osier_queue::ledger::{Account, Charge};
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::{Close, Message};

/// Maximum payload of a control frame in bytes (RFC 6455 §5.5).
pub(super) const CONTROL_BYTES: usize = 125;

/// Maximum frames of one vectored write. `IOV_MAX` is 1024, but more than 32 gain nothing.
const SLICES: usize = 32;

/// A message to clients in its wire encoding. Clones share the bytes, so a broadcast encodes once
/// for any number of receivers. Publish it to an [`osier::pubsub::Topic`].
///
/// ```
/// use osier::pubsub::Topic;
/// use osier_web::ws::Frame;
///
/// let room = Topic::new();
/// room.publish(Frame::text("hello, all"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Frame(Arc<Encoded>);

struct Encoded {
    bytes: Vec<u8>,
    _charge: Charge,
}

impl Encoded {
    fn new(bytes: Vec<u8>) -> Arc<Encoded> {
        let _charge = Account::MESSAGES.charge(bytes.capacity());
        Arc::new(Encoded { bytes, _charge })
    }
}

impl PartialEq for Encoded {
    fn eq(&self, other: &Encoded) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Encoded {}

impl Frame {
    /// A text message.
    pub fn text(text: impl AsRef<str>) -> Frame {
        Frame::encode(OpCode::Data(Data::Text), text.as_ref().as_bytes())
    }

    /// A binary message.
    pub fn binary(bytes: impl AsRef<[u8]>) -> Frame {
        Frame::encode(OpCode::Data(Data::Binary), bytes.as_ref())
    }

    pub(super) fn ping(payload: &[u8]) -> Frame {
        Frame::encode(OpCode::Control(Control::Ping), payload)
    }

    pub(super) fn pong(payload: &[u8]) -> Frame {
        Frame::encode(OpCode::Control(Control::Pong), payload)
    }

    /// Makes a close frame. A reason that is too long is cut at a character boundary.
    pub(super) fn close(code: u16, reason: &str) -> Frame {
        if code == Close::NO_CODE {
            return Frame::encode(OpCode::Control(Control::Close), b"");
        }
        let mut payload = code.to_be_bytes().to_vec();
        let end = reason.floor_char_boundary(CONTROL_BYTES - payload.len());
        payload.extend_from_slice(&reason.as_bytes()[..end]);
        Frame::encode(OpCode::Control(Control::Close), &payload)
    }

    fn encode(opcode: OpCode, payload: &[u8]) -> Frame {
        let header = FrameHeader {
            opcode,
            ..FrameHeader::default()
        };
        let length = payload.len() as u64;
        let mut bytes = Vec::with_capacity(header.len(length) + payload.len());
        header.format(length, &mut bytes).expect("a Vec takes everything");
        bytes.extend_from_slice(payload);
        Frame(Encoded::new(bytes))
    }

    /// Parses a message that was encoded before, for example by another process. Returns `None`
    /// unless the bytes are exactly one unmasked, unfragmented text or binary frame.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "only another process sends encoded messages")
    )]
    pub(crate) fn from_encoded(bytes: &[u8]) -> Option<Frame> {
        let (opcode, is_text) = match bytes.first()? {
            0x81 => (OpCode::Data(Data::Text), true),
            0x82 => (OpCode::Data(Data::Binary), false),
            _ => return None,
        };
        let (header, length) = FrameHeader::parse(&mut Cursor::new(bytes)).ok()??;
        let payload = &bytes[header.len(length).min(bytes.len())..];
        let is_whole = header.mask.is_none() && payload.len() as u64 == length;
        let frame =
            (is_whole && (!is_text || str::from_utf8(payload).is_ok())).then(|| Frame::encode(opcode, payload))?;
        (frame.as_bytes() == bytes).then_some(frame)
    }

    /// The encoded bytes: header and payload.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Several messages that take one place in a queue, and are written together. `None` without any. A new member gets the
    /// history of its room so, however long it is. Send it, but do not publish it to other processes.
    ///
    /// ```
    /// use osier_web::ws::{Frame, Sender};
    ///
    /// fn welcome(sender: &Sender, history: &[Frame]) {
    ///     if let Some(all) = Frame::joined(history.iter().cloned()) {
    ///         sender.send(all);
    ///     }
    /// }
    /// ```
    pub fn joined(messages: impl IntoIterator<Item = Frame>) -> Option<Frame> {
        let mut bytes = Vec::new();
        for Frame(message) in messages {
            bytes.extend_from_slice(&message.bytes);
        }
        (!bytes.is_empty()).then(|| Frame(Encoded::new(bytes)))
    }

    /// The code and the reason of a close frame.
    pub(super) fn closing(&self) -> Close {
        match self.0.bytes[2..].split_first_chunk() {
            Some((code, reason)) => Close::new(u16::from_be_bytes(*code), &String::from_utf8_lossy(reason)),
            None => Close::new(Close::NO_CODE, ""),
        }
    }

    /// Whether this is a close frame. Nothing is sent after a close frame.
    pub(super) fn is_close(&self) -> bool {
        self.0.bytes[0] & 0x0F == 8
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.0.bytes.len())
    }
}

impl From<&Frame> for Frame {
    fn from(frame: &Frame) -> Frame {
        frame.clone()
    }
}

impl From<&str> for Frame {
    fn from(text: &str) -> Frame {
        Frame::text(text)
    }
}

impl From<String> for Frame {
    fn from(text: String) -> Frame {
        Frame::text(text)
    }
}

impl From<&[u8]> for Frame {
    fn from(bytes: &[u8]) -> Frame {
        Frame::binary(bytes)
    }
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Frame {
        Frame::binary(bytes)
    }
}

impl From<Message> for Frame {
    fn from(message: Message) -> Frame {
        match message {
            Message::Text(text) => Frame::text(text),
            Message::Binary(bytes) => Frame::binary(bytes),
        }
    }
}

/// Frames that wait to be written. A write may stop at any byte and continue later, because the
/// outbox remembers how much of the first frame is written. A single frame, the usual case, needs
/// no allocation.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    frames: InlineQueue<Frame>,
    /// Bytes of the first frame that are already written.
    written: usize,
}

impl Outbox {
    /// Makes one for a frame of which so many bytes are written.
    #[cold]
    pub(super) fn begun(frame: Frame, written: usize) -> Outbox {
        let mut outbox = Outbox::default();
        outbox.push(frame);
        outbox.written = written;
        outbox
    }

    pub(super) fn push(&mut self, frame: Frame) {
        self.frames.push(frame);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Passes the unwritten bytes to `write`, up to [`SLICES`] frames at once.
    pub(super) fn write_with<R>(&self, write: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let Some(first) = self.frames.first() else {
            return write(&[]);
        };
        let first = IoSlice::new(&first.as_bytes()[self.written..]);
        if self.len() == 1 {
            return write(&[first]);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        for (slice, frame) in slices.iter_mut().zip(self.frames.iter()) {
            *slice = IoSlice::new(frame.as_bytes());
        }
        slices[0] = first;
        write(&slices[..self.len().min(SLICES)])
    }

    /// Removes `count` written bytes from the front.
    pub(super) fn advance(&mut self, mut count: usize) {
        while let Some(first) = self.frames.first() {
            let left = first.as_bytes().len() - self.written;
            if count < left {
                self.written += count;
                return;
            }
            count -= left;
            self.written = 0;
            self.frames.pop();
        }
    }

    /// Writes all frames.
    pub(super) fn flush(&mut self, out: &mut impl Write) -> io::Result<()> {
        while !self.is_empty() {
            let written = self.write_with(|slices| match slices {
                // A single frame is the usual case: a plain send costs the kernel less than a
                // vectored one.
                [one] => out.write(one),
                many => out.write_vectored(many),
            });
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_the_shortest_form() {
        let head = |length: usize| Frame::binary(vec![0; length]).as_bytes()[..4].to_vec();
        assert_eq!(Frame::text("hi").as_bytes(), b"\x81\x02hi");
        assert_eq!(&head(125)[..2], [0x82, 125]);
        assert_eq!(head(126), [0x82, 126, 0, 126]);
        assert_eq!(head(65_535), [0x82, 126, 0xFF, 0xFF]);
        assert_eq!(head(65_536), [0x82, 127, 0, 0]);
    }

    #[test]
    fn a_frame_is_taken_for_one_only_if_it_is_whole() {
        for frame in [Frame::text("grün"), Frame::binary([0xFF; 200]), Frame::text("")] {
            assert_eq!(Frame::from_encoded(frame.as_bytes()), Some(frame.clone()));
            assert_eq!(Frame::from_encoded(&[frame.as_bytes(), b"x"].concat()), None);
        }
        for bad in [
            &b""[..],
            b"\x81",
            b"\x81\x02x",
            b"\x81\x01\xFF",
            b"\x88\x00",
            b"\x82\x7E\x00\x01x",
        ] {
            assert_eq!(Frame::from_encoded(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_close_frame_fits_whatever_the_reason() {
        assert_eq!(Frame::close(1000, "bye").as_bytes(), b"\x88\x05\x03\xe8bye");
        assert_eq!(Frame::close(Close::NO_CODE, "").as_bytes(), b"\x88\x00");
        let long = Frame::close(1000, &"ä".repeat(100));
        assert_eq!(long.as_bytes().len(), 2 + 2 + 122, "cut between characters");
        assert!(long.is_close() && !Frame::text("").is_close());
    }

    #[test]
    fn a_write_goes_on_at_the_byte_where_it_stopped() {
        struct Three(Vec<u8>);
        impl Write for Three {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let count = bytes.len().min(3);
                self.0.extend_from_slice(&bytes[..count]);
                Ok(count)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut outbox = Outbox::default();
        let frames: Vec<Frame> = (0..100).map(|n| Frame::text("x".repeat(n % 9))).collect();
        frames.iter().for_each(|frame| outbox.push(frame.clone()));
        let mut out = Three(Vec::new());
        outbox.flush(&mut out).unwrap();
        let expected: Vec<u8> = frames.iter().flat_map(|frame| frame.as_bytes().to_vec()).collect();
        assert!(out.0 == expected && outbox.is_empty());
    }
}
