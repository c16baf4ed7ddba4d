//! What can be a message of a room.

use std::borrow::Cow;
use std::sync::Arc;

#[cfg(feature = "ws")]
use crate::ws::Frame;

/// A message that other processes can be told: bytes, there and back.
pub trait Payload: Clone + Send + Sync + 'static {
    /// As it goes over the wire.
    fn to_bytes(&self) -> Cow<'_, [u8]>;

    /// From what came over the wire, of another process: `None` if it is no message.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

impl Payload for Arc<str> {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        self.as_bytes().into()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(str::from_utf8(bytes).ok()?.into())
    }
}

impl Payload for Arc<[u8]> {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        (&**self).into()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(bytes.into())
    }
}

impl Payload for String {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        self.as_bytes().into()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(str::from_utf8(bytes).ok()?.to_owned())
    }
}

/// The whole frame, so that text stays text. Bytes that are no frame are taken for a text, if they are one.
#[cfg(feature = "ws")]
impl Payload for Frame {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        self.as_bytes().into()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Frame::from_encoded(bytes).or_else(|| str::from_utf8(bytes).ok().map(Frame::text))
    }
}
