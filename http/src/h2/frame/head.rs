//! The nine bytes before a payload (RFC 9113 4.1).

use super::{FRAME_HEAD, MAX_31};

pub(super) const DATA: u8 = 0x0;
pub(super) const HEADERS: u8 = 0x1;
pub(super) const PRIORITY: u8 = 0x2;
pub(super) const RST_STREAM: u8 = 0x3;
pub(super) const SETTINGS: u8 = 0x4;
pub(super) const PUSH_PROMISE: u8 = 0x5;
pub(super) const PING: u8 = 0x6;
pub(super) const GOAWAY: u8 = 0x7;
pub(super) const WINDOW_UPDATE: u8 = 0x8;
pub(super) const CONTINUATION: u8 = 0x9;
/// RFC 9218 7.1.
pub(super) const PRIORITY_UPDATE: u8 = 0x10;

pub(super) const END_STREAM: u8 = 0x1;
/// The same bit as END_STREAM, in SETTINGS and PING.
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
/// The flag of HEADERS that announces the five bytes of an RFC 7540 priority.
pub(super) const WITH_PRIORITY: u8 = 0x20;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// The bytes of the payload: less than 2^24.
    pub length: u32,
    pub kind: u8,
    pub flags: u8,
    /// The stream identifier without the reserved bit.
    pub stream: u32,
}

impl FrameHead {
    /// Reads a head. The reserved bit is ignored (RFC 9113 4.1).
    pub fn read(bytes: &[u8; FRAME_HEAD]) -> FrameHead {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *bytes;
        FrameHead {
            length: u32::from_be_bytes([0, l0, l1, l2]),
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & MAX_31,
        }
    }

    pub const fn bytes(self) -> [u8; FRAME_HEAD] {
        let [_, l0, l1, l2] = self.length.to_be_bytes();
        let [s0, s1, s2, s3] = (self.stream & MAX_31).to_be_bytes();
        [l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]
    }

    pub const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}
