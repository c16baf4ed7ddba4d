//! A field block that is being decoded: it takes the fields one by one, checks them, and becomes a head or a trailer at its end.
//!
//! A block is decoded to its end even if it is malformed or unwanted, because HPACK's table must stay the peer's.

use super::head::{RequestHead, ResponseHead};
use super::rules::{is_connection_field, is_field_value, is_name, is_path, is_scheme};
use crate::body::FORBIDDEN_TRAILERS;
use crate::h2::Priority;
use crate::message::{FieldSection, TextPlace as Place};
use crate::request::framing::content_length;

/// The purpose of a field block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::h2) enum Purpose {
    Request,
    Response,
    Trailers,
    /// The block is only decoded.
    Discard,
}

/// A malformed message (RFC 9113 8.1.1), with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::h2) struct Malformed(pub(in crate::h2) &'static str);

/// A whole block.
pub(in crate::h2) enum Built {
    Request {
        head: RequestHead,
        length: Option<u64>,
        priority: Option<Priority>,
    },
    Response {
        head: Box<ResponseHead>,
        length: Option<u64>,
    },
    Trailers(FieldSection),
    Nothing,
}

/// A block whose end has not arrived.
pub(in crate::h2) struct Block {
    purpose: Purpose,
    takes_protocol: bool,
    fields: FieldSection,
    /// The first rule that the block breaks.
    malformed: Option<Malformed>,
    method: Option<Place>,
    scheme: Option<Place>,
    path: Option<Place>,
    authority: Option<Place>,
    protocol: Option<Place>,
    status: Option<u16>,
    has_regular: bool,
    has_host: bool,
    cookies: u32,
    length: Option<u64>,
    priority: Option<Priority>,
}

impl Block {
    /// Begins a block. `takes_protocol`: extended CONNECT is allowed.
    pub(in crate::h2) fn new(purpose: Purpose, takes_protocol: bool) -> Block {
        let mut fields = FieldSection::new();
        if matches!(purpose, Purpose::Request | Purpose::Response) {
            fields.reserve(USUAL_BYTES, USUAL_FIELDS);
        }
        Block {
            purpose,
            takes_protocol,
            fields,
            malformed: None,
            method: None,
            scheme: None,
            path: None,
            authority: None,
            protocol: None,
            status: None,
            has_regular: false,
            has_host: false,
            cookies: 0,
            length: None,
            priority: None,
        }
    }

    /// Takes the next field, as HPACK has decoded it.
    pub(in crate::h2) fn field(&mut self, name: &[u8], value: &[u8]) {
        if self.purpose == Purpose::Discard || self.malformed.is_some() {
            return;
        }
        let taken = match name.first() {
            Some(b':') => self.pseudo(name, value),
            _ => self.regular(name, value),
        };
        self.malformed = taken.err();
    }

    /// RFC 9113 8.3: "Pseudo-header fields are only valid in the context in which they are defined", "MUST NOT appear in a trailer
    /// section", before all regular fields, each at most once.
    fn pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), Malformed> {
        if self.purpose == Purpose::Trailers {
            return Err(Malformed("a pseudo-field in a trailer"));
        }
        if self.has_regular {
            return Err(Malformed("a pseudo-field after a regular field"));
        }
        if self.purpose == Purpose::Response {
            return match name {
                b":status" => self.take_status(value),
                _ => Err(Malformed("an unknown pseudo-field in a response")),
            };
        }
        if !value.iter().all(u8::is_ascii_graphic) {
            return Err(Malformed("a character that a pseudo-field cannot have"));
        }
        let slot = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":path" => &mut self.path,
            b":authority" => &mut self.authority,
            b":protocol" if self.takes_protocol => &mut self.protocol,
            _ => return Err(Malformed("an unknown pseudo-field in a request")),
        };
        if slot.is_some() {
            return Err(Malformed("a repeated pseudo-field"));
        }
        let value = std::str::from_utf8(value).map_err(|_| Malformed("a character that a pseudo-field cannot have"))?;
        *slot = Some(self.fields.push_text(value));
        Ok(())
    }

    fn take_status(&mut self, value: &[u8]) -> Result<(), Malformed> {
        if self.status.is_some() {
            return Err(Malformed("a repeated pseudo-field"));
        }
        let [first @ b'1'..=b'9', second @ b'0'..=b'9', third @ b'0'..=b'9'] = value else {
            return Err(Malformed("a malformed status"));
        };
        let digit = |byte: &u8| u16::from(byte - b'0');
        self.status = Some(digit(first) * 100 + digit(second) * 10 + digit(third));
        Ok(())
    }

    fn regular(&mut self, name: &[u8], value: &[u8]) -> Result<(), Malformed> {
        self.has_regular = true;
        if !is_name(name) {
            return Err(Malformed("a malformed field name"));
        }
        if !is_field_value(value) {
            return Err(Malformed("a malformed field value"));
        }
        if is_connection_field(name) {
            return Err(Malformed("a field of HTTP/1.1 connections"));
        }
        if self.purpose == Purpose::Trailers && FORBIDDEN_TRAILERS.contains(&name) {
            return Err(Malformed("a field that a trailer cannot have"));
        }
        match name {
            b"te" if !value.eq_ignore_ascii_case(b"trailers") => return Err(Malformed("a TE other than `trailers`")),
            b"host" => self.take_host(value)?,
            b"content-length" => {
                let length = content_length(value, self.length.is_some());
                self.length = Some(length.map_err(|_| Malformed("a malformed Content-Length"))?);
            }
            b"cookie" => self.cookies += 1,
            b"priority" => self.priority = Priority::parse(value).or(self.priority),
            _ => {}
        }
        let name = std::str::from_utf8(name).map_err(|_| Malformed("a malformed field name"))?;
        self.fields.push(name, value);
        Ok(())
    }

    /// RFC 9113 8.3.1: `:authority` and Host "MUST NOT be empty" and contain "the same value".
    fn take_host(&mut self, value: &[u8]) -> Result<(), Malformed> {
        if self.purpose != Purpose::Request {
            return Ok(());
        }
        if self.has_host {
            return Err(Malformed("more than one Host field"));
        }
        self.has_host = true;
        let authority = self.authority.map(|place| self.fields.text(place).as_bytes());
        if value.is_empty() || authority.is_some_and(|authority| !authority.eq_ignore_ascii_case(value)) {
            return Err(Malformed("a Host field other than `:authority`"));
        }
        Ok(())
    }

    /// Ends the block. `ended`: the stream ends with it.
    pub(in crate::h2) fn finish(mut self, ended: bool) -> Result<Built, Malformed> {
        if let Some(malformed) = self.malformed {
            return Err(malformed);
        }
        if self.cookies > 1 {
            self.fields.join("cookie", b"; ");
        }
        match self.purpose {
            Purpose::Request => self.finish_request(ended),
            Purpose::Response => self.finish_response(ended),
            // RFC 9113 8.1: a HEADERS frame after the head without END_STREAM is malformed, unless the head was interim.
            Purpose::Trailers if !ended => Err(Malformed("a trailer that does not end the stream")),
            Purpose::Trailers => Ok(Built::Trailers(self.fields)),
            Purpose::Discard => Ok(Built::Nothing),
        }
    }

    fn finish_request(mut self, ended: bool) -> Result<Built, Malformed> {
        let method = self.method.ok_or(Malformed("a request without `:method`"))?;
        let name = self.fields.text(method);
        if !name.bytes().all(crate::message::byte::is_token) || name.is_empty() {
            return Err(Malformed("a malformed method"));
        }
        let is_connect = name == "CONNECT";
        if self.protocol.is_some() && !is_connect {
            return Err(Malformed("`:protocol` without CONNECT"));
        }
        if is_connect && self.protocol.is_none() {
            if self.scheme.is_some() || self.path.is_some() {
                return Err(Malformed("CONNECT with a scheme or a path"));
            }
            if self.authority.is_none() {
                return Err(Malformed("CONNECT without `:authority`"));
            }
        } else {
            let scheme = self.scheme.ok_or(Malformed("a request without `:scheme`"))?;
            if !is_scheme(self.fields.text(scheme).as_bytes()) {
                return Err(Malformed("a malformed scheme"));
            }
            let path = self.path.ok_or(Malformed("a request without `:path`"))?;
            if !is_path(self.fields.text(path).as_bytes(), name) {
                return Err(Malformed("a malformed path"));
            }
        }
        if self.protocol.is_some_and(|place| self.fields.text(place).is_empty()) {
            return Err(Malformed("an empty `:protocol`"));
        }
        match self.authority {
            None if !self.has_host => return Err(Malformed("a request without a host")),
            Some(place) if self.fields.text(place).is_empty() => return Err(Malformed("an empty `:authority`")),
            // The HTTP/1.1 form of the request has a Host field (RFC 9113 8.3.1).
            Some(place) if !self.has_host => self.fields.insert_first("host", place),
            _ => {}
        }
        if ended && self.length.is_some_and(|length| length > 0) {
            return Err(Malformed("a request shorter than its Content-Length"));
        }
        let head = RequestHead {
            method,
            scheme: self.scheme,
            path: self.path,
            authority: self.authority,
            protocol: self.protocol,
            ended,
            fields: self.fields,
        };
        Ok(Built::Request {
            head,
            length: self.length,
            priority: self.priority,
        })
    }

    fn finish_response(self, ended: bool) -> Result<Built, Malformed> {
        let status = self.status.ok_or(Malformed("a response without `:status`"))?;
        // RFC 9113 8.6: HTTP/2 has no 101.
        if status == 101 || (status < 200 && ended) {
            return Err(Malformed("an interim response that ends its stream, or a 101"));
        }
        let head = ResponseHead {
            status,
            fields: self.fields,
        };
        Ok(Built::Response {
            head: Box::new(head),
            length: self.length,
        })
    }
}

/// Room that most heads of browsers need.
const USUAL_BYTES: usize = 512;
const USUAL_FIELDS: usize = 12;
