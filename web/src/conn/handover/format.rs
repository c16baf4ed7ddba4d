//! The messages between the old and the new process of an upgrade, as bytes.
//!
//! ```text
//!   length u32 | kind u8 | descriptors u8 | 0 u16 | CRC-32 of the payload u32 | payload      (little-endian numbers)
//! ```
//!
//! The head of a frame and the payload of [`Message::Hello`] never change. So a process of any version can tell that
//! another one speaks another version. Everything else belongs to [`VERSION`]. A receiver trusts no length and no
//! count.

use super::fields::{Fields, Malformed, VERSION, Writer};
use super::record::Record;

/// The bytes of the head of a frame.
pub(crate) const HEAD_BYTES: usize = 12;

/// The longest payload.
pub(crate) const PAYLOAD_MAX: usize = 16 << 20;

/// The most descriptors of a frame. The kernel passes at most 253.
pub(crate) const DESCRIPTORS_MAX: usize = 128;

/// The beginning of [`Message::Hello`].
const MAGIC: [u8; 8] = *b"osier-up";

/// A message. It may hold keys, so only tests have `Debug`. `web/src/server/upgrade/mod.rs` has the order of the
/// messages.
#[cfg_attr(test, derive(Debug))]
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The first message of each process: its version and its id.
    Hello { process: u32 },
    /// A named item for the new process: bytes, and the descriptors of the frame.
    Item { name: String, bytes: Vec<u8> },
    /// The new process has received all items. It checks now whether it can serve.
    Start,
    /// The new process is ready, and has servers of these names.
    Ready { servers: Vec<String> },
    /// The new process cannot serve.
    Refused { why: String },
    /// The old process lets the new one serve.
    Go,
    /// The new process serves.
    Accepting,
    /// A message of the part of the application with this name.
    Part { name: String, bytes: Vec<u8> },
    /// Connections, each with its descriptors of the frame.
    Connections { batch: u32, records: Vec<Record> },
    /// The new process owns the connections of a batch. It has not touched them yet.
    Taken { batch: u32 },
    /// The new process hands over to the next one, and takes no more connections.
    Leaving,
    /// The new process serves, but cannot take more connections.
    Failed { why: String },
    /// The new process shuts down, because somebody has asked it to.
    Stopping,
    /// The old process sends nothing more.
    Done,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) length: usize,
    kind: u8,
    pub(crate) descriptors: usize,
    pub(crate) checksum: u32,
}

impl FrameHead {
    /// Reads a head.
    pub(crate) fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<FrameHead, Malformed> {
        let mut fields = Fields(bytes);
        let head = FrameHead {
            length: fields.u32()? as usize,
            kind: fields.u8()?,
            descriptors: fields.u8()?.into(),
            checksum: {
                fields.u16()?;
                fields.u32()?
            },
        };
        match head.length <= PAYLOAD_MAX && head.descriptors <= DESCRIPTORS_MAX {
            true => Ok(head),
            false => Err(Malformed::Head),
        }
    }

    /// Reads the payload behind the head.
    pub(crate) fn message(&self, payload: &[u8]) -> Result<Message, Malformed> {
        if payload.len() != self.length || checksum(payload) != self.checksum {
            return Err(Malformed::Checksum);
        }
        let mut fields = Fields(payload);
        let message = Message::read(self.kind, &mut fields)?;
        let fits = match &message {
            Message::Item { .. } => true,
            Message::Connections { records, .. } => descriptors_of(records) == self.descriptors,
            _ => self.descriptors == 0,
        };
        match (fits, fields.0) {
            (true, []) => Ok(message),
            _ => Err(Malformed::Payload),
        }
    }
}

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Message::Hello { .. } => 1,
            Message::Item { .. } => 2,
            Message::Start => 3,
            Message::Ready { .. } => 4,
            Message::Refused { .. } => 5,
            Message::Go => 6,
            Message::Accepting => 7,
            Message::Part { .. } => 8,
            Message::Connections { .. } => 9,
            Message::Taken { .. } => 10,
            Message::Leaving => 11,
            Message::Done => 12,
            Message::Failed { .. } => 13,
            Message::Stopping => 14,
        }
    }

    /// Makes the frame of the message, which travels with this number of descriptors.
    pub(crate) fn encode(&self, descriptors: usize) -> Vec<u8> {
        let mut frame = Writer(vec![0; HEAD_BYTES]);
        match self {
            Message::Hello { process } => {
                frame.0.extend_from_slice(&MAGIC);
                frame.u16(VERSION);
                frame.u32(*process);
            }
            Message::Item { name, bytes } | Message::Part { name, bytes } => {
                frame.bytes(name.as_bytes());
                frame.bytes(bytes);
            }
            Message::Ready { servers } => {
                frame.u32(servers.len() as u32);
                servers.iter().for_each(|name| frame.bytes(name.as_bytes()));
            }
            Message::Refused { why } | Message::Failed { why } => frame.bytes(why.as_bytes()),
            Message::Connections { batch, records } => {
                frame.u32(*batch);
                frame.u32(records.len() as u32);
                records.iter().for_each(|record| record.write(&mut frame));
            }
            Message::Taken { batch } => frame.u32(*batch),
            Message::Start
            | Message::Go
            | Message::Accepting
            | Message::Leaving
            | Message::Stopping
            | Message::Done => {}
        }
        let mut bytes = frame.0;
        let (head, payload) = bytes.split_at_mut(HEAD_BYTES);
        head[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[4] = self.kind();
        head[5] = descriptors as u8;
        head[8..].copy_from_slice(&checksum(payload).to_le_bytes());
        bytes
    }

    fn read(kind: u8, fields: &mut Fields<'_>) -> Result<Message, Malformed> {
        Ok(match kind {
            1 => {
                if fields.take(MAGIC.len())? != MAGIC {
                    return Err(Malformed::Payload);
                }
                match fields.u16()? {
                    VERSION => {}
                    theirs => return Err(Malformed::Version(theirs)),
                }
                Message::Hello { process: fields.u32()? }
            }
            2 => Message::Item {
                name: fields.text()?,
                bytes: fields.bytes()?.to_vec(),
            },
            3 => Message::Start,
            4 => Message::Ready {
                servers: fields.list(Fields::text)?,
            },
            5 => Message::Refused { why: fields.text()? },
            6 => Message::Go,
            7 => Message::Accepting,
            8 => Message::Part {
                name: fields.text()?,
                bytes: fields.bytes()?.to_vec(),
            },
            9 => Message::Connections {
                batch: fields.u32()?,
                records: fields.list(Record::read)?,
            },
            10 => Message::Taken { batch: fields.u32()? },
            11 => Message::Leaving,
            12 => Message::Done,
            13 => Message::Failed { why: fields.text()? },
            14 => Message::Stopping,
            _ => return Err(Malformed::Head),
        })
    }
}

/// The number of descriptors of a batch.
fn descriptors_of(records: &[Record]) -> usize {
    records.iter().map(Record::descriptors).sum()
}

/// CRC-32 as in Ethernet and gzip.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    !bytes
        .iter()
        .fold(!0, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut crc, mut bit) = (index as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 {
                0xedb8_8320 ^ (crc >> 1)
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::super::law;
    use super::super::record::tests::records;
    use super::super::record::{Saved, Tunnel};
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn messages() -> impl Strategy<Value = Message> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..100);
        prop_oneof![
            any::<u32>().prop_map(|process| Message::Hello { process }),
            (".{0,20}", bytes()).prop_map(|(name, bytes)| Message::Item { name, bytes }),
            (".{0,20}", bytes()).prop_map(|(name, bytes)| Message::Part { name, bytes }),
            proptest::collection::vec(".{0,20}", 0..5).prop_map(|servers| Message::Ready { servers }),
            ".{0,20}".prop_map(|why| Message::Refused { why }),
            ".{0,20}".prop_map(|why| Message::Failed { why }),
            (any::<u32>(), proptest::collection::vec(records(), 0..5))
                .prop_map(|(batch, records)| Message::Connections { batch, records }),
            any::<u32>().prop_map(|batch| Message::Taken { batch }),
            proptest::sample::select(vec![
                Message::Start,
                Message::Go,
                Message::Accepting,
                Message::Leaving,
                Message::Stopping,
                Message::Done
            ]),
        ]
    }

    fn decode(frame: &[u8]) -> Result<Message, Malformed> {
        let (head, payload) = frame.split_first_chunk().ok_or(Malformed::Head)?;
        FrameHead::parse(head)?.message(payload)
    }

    fn encode(message: &Message) -> Vec<u8> {
        match message {
            Message::Connections { records, .. } => message.encode(descriptors_of(records)),
            _ => message.encode(0),
        }
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written(message in messages()) {
            prop_assert_eq!(decode(&encode(&message)), Ok(message));
        }

        #[test]
        fn a_damaged_message_is_refused(message in messages(), at: prop::sample::Index, bits in 1..=255u8) {
            let mut frame = encode(&message);
            let at = at.index(frame.len());
            frame[at] ^= bits;
            // The channel compares the number of descriptors. Two bytes of the head have no meaning yet, and a kind
            // without a payload may become another one.
            let is_free = matches!(at, 5..=7) || (at == 4 && frame.len() == HEAD_BYTES);
            prop_assert!(is_free || decode(&frame) != Ok(message));
        }

        #[test]
        fn any_bytes_are_read_without_harm(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            law::check(&data);
            let _ = decode(&data);
        }

        #[test]
        fn damaged_contents_are_read_without_harm(message in messages(), at: prop::sample::Index, byte: u8) {
            let mut frame = encode(&message);
            let at = at.index(frame.len());
            frame[at] = byte;
            law::check(&frame);
        }
    }

    /// Two releases with one version hand over to each other only while the layout stays as it is.
    #[test]
    fn the_layout_belongs_to_the_version() {
        let record = Record {
            server: "web".into(),
            peer: "192.0.2.1:80".parse().unwrap(),
            is_proxied: true,
            is_fresh: false,
            is_announced: true,
            received: b"GET /".to_vec(),
            tls: Some(b"keys".to_vec()),
            http2: Some(b"tables".to_vec()),
            session: Some(Saved {
                part: "chat".into(),
                bytes: b"room".to_vec(),
            }),
            tunnel: Some(Tunnel {
                idle: [Duration::from_secs(3600), Duration::from_secs(30)],
                silent: Duration::from_millis(7),
                write: None,
                ended: [false, true],
            }),
        };
        let (name, bytes) = (String::from("web"), b"bytes".to_vec());
        let messages = [
            Message::Hello { process: 7 },
            Message::Item {
                name: name.clone(),
                bytes: bytes.clone(),
            },
            Message::Start,
            Message::Ready {
                servers: vec![name.clone()],
            },
            Message::Refused { why: name.clone() },
            Message::Go,
            Message::Accepting,
            Message::Part {
                name: name.clone(),
                bytes,
            },
            Message::Connections {
                batch: 3,
                records: vec![record],
            },
            Message::Taken { batch: 3 },
            Message::Leaving,
            Message::Failed { why: name },
            Message::Stopping,
            Message::Done,
        ];
        let all: Vec<u8> = messages.iter().flat_map(encode).collect();
        assert_eq!(
            (VERSION, checksum(&all)),
            (3, 3_165_930_158),
            "the layout has changed: raise VERSION, and say in CHANGELOG.md that the next upgrade is a restart"
        );
    }

    #[test]
    fn the_checksum_is_that_of_ethernet() {
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn another_version_is_told_whatever_follows() {
        let mut frame = Message::Hello { process: 7 }.encode(0);
        frame[HEAD_BYTES + 8] = 9;
        let crc = checksum(&frame[HEAD_BYTES..]);
        frame[8..12].copy_from_slice(&crc.to_le_bytes());
        let why = decode(&frame).unwrap_err();
        assert_eq!(why, Malformed::Version(9));
        assert!(why.to_string().contains("version 9"), "{why}");
    }
}
