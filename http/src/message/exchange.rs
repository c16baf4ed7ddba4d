//! The properties of a request that decide the framing of its response.

use super::{Method, Version};

/// The properties of a request that decide the framing of its response; see [`Head::exchange`](crate::Head::exchange).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub(crate) asked: Asked,
    pub(crate) version: Version,
    pub(crate) keep_alive: bool,
}

/// The methods, as far as they change the framing of a response.
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

    /// The exchange after a request that could not be parsed, and that begins with these bytes: HTTP/1.1, closing. A HEAD is told by its
    /// name, because its response has no body, whatever is wrong with the rest.
    pub fn rejected(request: &[u8]) -> Exchange {
        // Empty lines may come before a request.
        let is_head = request
            .trim_ascii_start()
            .strip_prefix(b"HEAD")
            .is_some_and(|rest| rest.first().is_none_or(|next| *next == b' '));
        Exchange {
            asked: if is_head { Asked::Head } else { Asked::Usual },
            ..Exchange::REJECTED
        }
    }

    /// Makes the exchange of a request. `keep_alive`: the client lets the connection serve another request.
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

    /// Whether the connection may be kept after the response.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether a response with that status has a body. If not, no body may be sent, even if a handler has made one.
    pub fn has_body(&self, status: u16) -> bool {
        !(self.asked == Asked::Head || self.switches(status) || is_bodiless(status))
    }

    /// Whether a response with that status ends HTTP on the connection.
    pub(crate) fn switches(&self, status: u16) -> bool {
        status == 101 || (self.asked == Asked::Connect && (200..300).contains(&status))
    }
}

/// Whether a response with that status ends with its head (RFC 9112 6.3).
#[inline]
pub(crate) fn is_bodiless(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}
