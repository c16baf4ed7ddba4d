//! Messages from a client, and the close codes.

use std::fmt;

/// A complete message from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Text, valid UTF-8.
    Text(String),
    /// Arbitrary bytes.
    Binary(Vec<u8>),
}

impl Message {
    /// The text of a text message.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Message::Text(text) => Some(text),
            Message::Binary(_) => None,
        }
    }

    /// The payload's bytes, for both kinds of messages.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Message::Text(text) => text.as_bytes(),
            Message::Binary(bytes) => bytes,
        }
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Message {
        Message::Text(text.into())
    }
}

impl From<String> for Message {
    fn from(text: String) -> Message {
        Message::Text(text)
    }
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Message {
        Message::Binary(bytes)
    }
}

/// A close frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// Close code: one of the constants here, or an application's own (3000 to 4999).
    pub code: u16,
    /// Reason, for human readers; often empty.
    pub reason: String,
}

impl Close {
    /// The purpose of the connection is fulfilled.
    pub const NORMAL: u16 = 1000;
    /// The server is shutting down, or the user has left the page.
    pub const GOING_AWAY: u16 = 1001;
    /// The peer has violated the protocol.
    pub const PROTOCOL: u16 = 1002;
    /// The peer has sent a kind of message that is not supported.
    pub const UNSUPPORTED: u16 = 1003;
    /// The close frame had no code. Never sent.
    pub const NO_CODE: u16 = 1005;
    /// The connection ended without a close frame. Never sent.
    pub const ABNORMAL: u16 = 1006;
    /// The payload of a text message was not UTF-8.
    pub const INVALID: u16 = 1007;
    /// The message violates a policy of the receiver.
    pub const POLICY: u16 = 1008;
    /// The message exceeds a size limit.
    pub const TOO_BIG: u16 = 1009;
    /// The server has failed.
    pub const INTERNAL: u16 = 1011;
    /// The client should try again later: it was too slow, or the server is overloaded.
    pub const TRY_AGAIN: u16 = 1013;

    pub(crate) fn new(code: u16, reason: &str) -> Close {
        let reason = reason.into();
        Close { code, reason }
    }
}

impl fmt::Display for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(format!("{} {}", self.code, self.reason).trim_end())
    }
}
