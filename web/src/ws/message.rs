//! What a client says: a message, or that it closes.

use std::fmt;

/// A message of a client, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Text, checked.
    Text(String),
    /// Anything.
    Binary(Vec<u8>),
}

impl Message {
    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Message::Text(text) => Some(text),
            Message::Binary(_) => None,
        }
    }

    /// The bytes, of a text too.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Message::Text(text) => text.as_bytes(),
            Message::Binary(bytes) => bytes,
        }
    }
}

/// How a connection was closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// One of the constants here, or of the application's own (3000 to 4999).
    pub code: u16,
    /// For people; often empty.
    pub reason: String,
}

impl Close {
    /// All is done.
    pub const NORMAL: u16 = 1000;
    /// The server stops, or the page was left.
    pub const GOING_AWAY: u16 = 1001;
    /// The other side broke the protocol.
    pub const PROTOCOL: u16 = 1002;
    /// The other side sent a kind of message that is not understood here.
    pub const UNSUPPORTED: u16 = 1003;
    /// The close frame had no code. Never sent.
    pub const NO_CODE: u16 = 1005;
    /// The connection ended without a close frame. Never sent.
    pub const WITHOUT_WORD: u16 = 1006;
    /// A text was not UTF-8.
    pub const INVALID: u16 = 1007;
    /// The message is against the rules here.
    pub const POLICY: u16 = 1008;
    /// The message was too big.
    pub const TOO_BIG: u16 = 1009;
    /// Something is broken here.
    pub const INTERNAL: u16 = 1011;
    /// Come back later: too slow, or too many.
    pub const TRY_AGAIN: u16 = 1013;

    pub(super) fn without_word() -> Close {
        Close {
            code: Close::WITHOUT_WORD,
            reason: String::new(),
        }
    }

    pub(super) fn going_away() -> Close {
        Close {
            code: Close::GOING_AWAY,
            reason: String::new(),
        }
    }
}

impl fmt::Display for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.reason)
    }
}
