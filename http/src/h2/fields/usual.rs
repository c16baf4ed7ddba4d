//! Makes the usual heads of HTTP/2 heads, whose fields are already separate.

use super::head::{RequestHead, ResponseHead};
use crate::backend::{Reply, ReplyLength};
use crate::message::{Fields, Headers, Method, Reject, Version};
use crate::request::framing::content_length;
use crate::request::{BodyLength, Form, Head};

impl<'a> Head<'a> {
    /// Makes a head from that of an HTTP/2 request. It borrows from `head`, and copies nothing.
    ///
    /// A body without Content-Length is [`BodyLength::Chunked`]. An extended CONNECT request (RFC 8441) becomes a GET request whose
    /// [`upgrade`](Head::upgrade) is its protocol, so that the handlers of WebSockets find it.
    ///
    /// # Errors
    /// A [`Reject`] for a host, a target or an expectation that HTTP/1.1 would refuse. Respond with its status; the connection
    /// goes on.
    pub fn from_http2(head: &'a RequestHead) -> Result<Head<'a>, Reject> {
        if head
            .scheme()
            .is_some_and(|scheme| !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)))
        {
            return Err(Reject::TargetForm);
        }
        let (method, target) = match (head.protocol(), head.path()) {
            (Some(_), Some(path)) => ("GET", path),
            (None, Some(path)) => (head.method(), path),
            (_, None) => (head.method(), head.authority().ok_or(Reject::TargetForm)?),
        };
        let mut made = Head::of(method, target, Version::Http2, Fields::Section(head.fields(), 0))?;
        if let Some(protocol) = head.protocol() {
            made.framing.upgrade = Some(protocol.as_bytes());
            made.framing.body = BodyLength::None;
        } else if made.method == Method::Connect {
            made.framing.body = BodyLength::None;
        } else if !head.ended() && made.framing.body == BodyLength::None {
            made.framing.body = BodyLength::Chunked;
            made.framing.expect_continue = made.header("expect").is_some();
        }
        debug_assert!(made.form() != Form::Absolute, "a path begins with a slash");
        Ok(made)
    }

    /// The protocol of an extended CONNECT request over HTTP/2 (RFC 8441).
    pub fn protocol(&self) -> Option<&'a str> {
        match self.version() {
            Version::Http2 => self.upgrade().and_then(|protocol| std::str::from_utf8(protocol).ok()),
            _ => None,
        }
    }
}

impl<'a> Reply<'a> {
    /// Makes the head of a response that came on an HTTP/2 stream, to a request with the method `asked`. `ended`: the stream has
    /// ended with it.
    ///
    /// The body has no framing. Its length is [`ReplyLength::Chunked`] unless it is known: the end of the stream ends it.
    pub fn from_http2(head: &'a ResponseHead, asked: Method<'_>, ended: bool) -> Reply<'a> {
        let declared = head.fields().first("content-length");
        let declared = declared.and_then(|value| content_length(value, false).ok());
        let body = match declared {
            _ if matches!(head.status(), 100..=199 | 204 | 304) || asked == Method::Head => ReplyLength::None,
            _ if ended => ReplyLength::Known(0),
            Some(length) => ReplyLength::Known(length),
            None => ReplyLength::Chunked,
        };
        let fields = Headers(Fields::Section(head.fields(), 0));
        Reply::unframed(head.status(), body, declared, fields)
    }
}
