//! The facts of a request on which the framing of its response depends.

use super::{Method, Version};

/// The facts of a request on which the framing of its response depends; made by [`Head::exchange`](crate::Head::exchange).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub(crate) asked: Asked,
    pub(crate) version: Version,
    pub(crate) keep_alive: bool,
}

/// The methods whose responses are framed in their own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Usual,
    Head,
    Connect,
}

impl Exchange {
    /// The exchange after a request that could not be parsed: HTTP/1.1, closing.
    pub const REJECTED: Exchange = Exchange {
        asked: Asked::Usual,
        version: Version::Http11,
        keep_alive: false,
    };

    /// An exchange of that method and version; `keep_alive` as the client wants it.
    #[inline]
    pub fn new(method: Method<'_>, version: Version, keep_alive: bool) -> Exchange {
        let asked = match method {
            Method::Head => Asked::Head,
            Method::Connect => Asked::Connect,
            _ => Asked::Usual,
        };
        Exchange {
            asked,
            version,
            keep_alive,
        }
    }

    /// The same exchange, closing after the response.
    #[must_use]
    pub fn closing(self) -> Exchange {
        Exchange {
            keep_alive: false,
            ..self
        }
    }

    /// Whether the connection may live on after the response.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether a response with that status carries a body. When not, none may be sent, whatever the handler made.
    pub fn has_body(&self, status: u16) -> bool {
        !(self.asked == Asked::Head || self.switches(status) || is_bodiless(status))
    }

    pub(crate) fn switches(&self, status: u16) -> bool {
        status == 101 || (self.asked == Asked::Connect && (200..300).contains(&status))
    }
}

/// RFC 9112 6.3: these end with their head.
#[inline]
pub(crate) fn is_bodiless(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}
