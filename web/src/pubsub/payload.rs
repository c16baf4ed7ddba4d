//! The types that can be messages of a room.

use std::borrow::Cow;
use std::sync::Arc;

#[cfg(feature = "ws")]
use crate::ws::Frame;

/// A message with a wire encoding, so that it can be sent to other processes.
pub trait Payload: Clone + Send + Sync + 'static {
    /// Encodes the message.
    fn to_bytes(&self) -> Cow<'_, [u8]>;

    /// Decodes bytes received from another process. Returns `None` if they are not a message of
    /// this type.
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

/// The encoding is the whole frame, so that a text frame stays one. Bytes that are not a frame
/// become a text frame if they are UTF-8.
#[cfg(feature = "ws")]
impl Payload for Frame {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        self.as_bytes().into()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Frame::from_encoded(bytes).or_else(|| str::from_utf8(bytes).ok().map(Frame::text))
    }
}
