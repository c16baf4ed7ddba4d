//! Heads of requests and responses as HTTP/2 has them: pseudo-fields and a field section.

use std::fmt;

use super::rules::is_scheme;
use crate::message::byte::are_tokens;
use crate::message::{FieldSection, TextPlace as Place, check_value, run};

/// The head of a received request. [`Head::from_http2`](crate::Head::from_http2) makes the usual head from it.
///
/// The rules of RFC 9113 8.2 and 8.3 hold: any other request is malformed, and the connection has reset its stream.
#[derive(Clone)]
pub struct RequestHead {
    pub(super) method: Place,
    pub(super) scheme: Option<Place>,
    pub(super) path: Option<Place>,
    pub(super) authority: Option<Place>,
    pub(super) protocol: Option<Place>,
    pub(super) ended: bool,
    pub(super) fields: FieldSection,
}

impl RequestHead {
    /// The method.
    pub fn method(&self) -> &str {
        self.fields.text(self.method)
    }

    /// The scheme. Only a CONNECT request without a protocol has none.
    pub fn scheme(&self) -> Option<&str> {
        self.scheme.map(|place| self.fields.text(place))
    }

    /// The path with its query. Only a CONNECT request without a protocol has none.
    pub fn path(&self) -> Option<&str> {
        self.path.map(|place| self.fields.text(place))
    }

    /// The pseudo-field `:authority`. Without it the request has a Host field.
    pub fn authority(&self) -> Option<&str> {
        self.authority.map(|place| self.fields.text(place))
    }

    /// The protocol of an extended CONNECT request (RFC 8441), for example `websocket`.
    pub fn protocol(&self) -> Option<&str> {
        self.protocol.map(|place| self.fields.text(place))
    }

    /// Whether the request ended with its head, so that it has no body.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The fields. The first is `host`: the connection adds it if the request has only `:authority`.
    pub fn fields(&self) -> &FieldSection {
        &self.fields
    }
}

impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", &self.method())
            .field("scheme", &self.scheme())
            .field("authority", &self.authority())
            .field("path", &self.path())
            .field("protocol", &self.protocol())
            .field("ended", &self.ended)
            .field("names", &self.fields)
            .finish()
    }
}

/// The head of a received response.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    pub(super) status: u16,
    pub(super) fields: FieldSection,
}

impl ResponseHead {
    /// The status, 100 to 999. It is never 101.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The fields.
    pub fn fields(&self) -> &FieldSection {
        &self.fields
    }
}

/// The pseudo-fields of a request to send; see [`Connection::request`](super::super::Connection::request), which refuses malformed ones.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The method.
    pub method: &'a str,
    /// `http` or `https`. It is not sent with CONNECT without a protocol.
    pub scheme: &'a str,
    /// The host, with a port if it is not the scheme's.
    pub authority: &'a str,
    /// The path with its query. It is not sent with CONNECT without a protocol.
    pub path: &'a str,
    /// The protocol of an extended CONNECT request (RFC 8441). The method is CONNECT then.
    pub protocol: Option<&'a str>,
}

impl Outgoing<'_> {
    /// Whether no part could split the request behind a gateway to HTTP/1.1, or is empty where HTTP/2 needs it.
    pub(in crate::h2) fn is_sendable(&self) -> bool {
        let is_token = |text: &str| !text.is_empty() && are_tokens(text.as_bytes());
        let is_tunnel = self.method == "CONNECT" && self.protocol.is_none();
        let has_path = !self.path.is_empty() && run::<0x21>(self.path.as_bytes()) == self.path.len();
        is_token(self.method)
            && (is_tunnel || (is_scheme(self.scheme.as_bytes()) && has_path))
            && !self.authority.is_empty()
            && check_value(self.authority.as_bytes()).is_ok()
            && self.protocol.is_none_or(is_token)
    }
}
