//! Parses a request head: method, target, host, fields and the framing of the body.
//!
//! [`Head::parse`] takes the bytes whose end the [`HeadScanner`](crate::HeadScanner) has found. `httparse` cuts them into tokens,
//! `target.rs` cuts the target, and one pass over the fields reads those that frame the message (`framing.rs`). The head borrows
//! from the connection's buffer; the parser copies and allocates nothing.

use std::fmt;

use super::framing::{self, BodyLength, Framing, Host, OTHER};
use super::outline::Outline;
use super::target::{self, Form, Target};
use crate::message::{Exchange, FieldList, Fields, Headers, Limits, Method, Reject, Slots, Version, check_version};

/// A parsed and checked request head.
///
/// ```
/// use osier_http::{BodyLength, Head, Limits, Method, Slots};
///
/// let bytes = b"POST /submit?a=1 HTTP/1.1\r\nHost: example.org\r\nContent-Length: 5\r\n\r\n";
/// let mut slots: Slots = Slots::new();
/// let head = Head::parse(bytes, &mut slots, &Limits::default())?;
/// assert_eq!(head.method(), Method::Post);
/// assert_eq!((head.path(), head.query()), ("/submit", Some("a=1")));
/// assert_eq!(head.host(), Some("example.org"));
/// assert_eq!(head.body(), BodyLength::Known(5));
/// assert_eq!(head.header("content-LENGTH"), Some(&b"5"[..]));
/// # Ok::<(), osier_http::Reject>(())
/// ```
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub(crate) method: Method<'a>,
    /// The method, and the target, as they were sent.
    token: &'a str,
    raw_target: &'a str,
    target: Target<'a>,
    version: Version,
    pub(crate) framing: Framing<'a>,
    fields: Fields<'a>,
}

impl<'a> Head<'a> {
    /// Parses one whole head.
    ///
    /// `bytes` must end where [`HeadScanner::scan`](crate::HeadScanner::scan) found the end of the head. The scanner has checked
    /// that every LF follows a CR; the parser does not check it again. Leading empty lines are skipped.
    ///
    /// # Errors
    /// The first [`Reject`]. Answer with its status and close the connection.
    #[inline(always)]
    pub fn parse<'b: 'a, const N: usize>(
        bytes: &'b [u8],
        slots: &'a mut Slots<'b, N>,
        limits: &Limits,
    ) -> Result<Head<'a>, Reject> {
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(bytes, slots.room(limits.header_count)) {
            Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
            Ok(_) => return Err(Reject::RequestLine),
            Err(error) => return Err(reject_of(error, bytes)),
        }
        let (Some(method), Some(raw_target), Some(version)) = (request.method, request.path, request.version) else {
            return Err(Reject::RequestLine);
        };
        let version = if version == 1 { Version::Http11 } else { Version::Http10 };
        Head::of(method, raw_target, version, Fields::Parsed(request.headers))
    }

    /// Makes a head from the bytes of a successful [`Outline::find`], cut to the length that it has returned.
    ///
    /// # Errors
    /// The errors of [`Head::parse`].
    ///
    /// # Panics
    /// Panics for bytes that are not ASCII or too short. Other bytes than those of the outline give a wrong head.
    #[inline(always)]
    pub fn outlined(bytes: &'a [u8], outline: &'a Outline) -> Result<Head<'a>, Reject> {
        let (method_end, target_end) = (usize::from(outline.method_end), usize::from(outline.target_end));
        let head = std::str::from_utf8(bytes).expect("an outline takes nothing but ASCII");
        let (method, target) = (&head[..method_end], &head[method_end + 1..target_end]);
        let fields = Fields::Outlined(head, outline.fields.as_slice());
        Head::of(method, target, outline.version, fields)
    }

    /// Makes a head from its parts.
    #[inline(always)]
    pub(crate) fn of(
        method: &'a str,
        raw_target: &'a str,
        version: Version,
        fields: Fields<'a>,
    ) -> Result<Head<'a>, Reject> {
        let (token, method) = (method, Method::new(method));
        let target = target::parse(method, raw_target)?;
        let framing = Framing::of(Headers(fields), version)?;
        Ok(Head {
            method,
            token,
            raw_target,
            target,
            version,
            framing,
            fields,
        })
    }

    /// The method.
    #[inline]
    pub fn method(&self) -> Method<'a> {
        self.method
    }

    /// The request target, as it was sent.
    pub fn target(&self) -> &'a str {
        self.raw_target
    }

    /// The method and the target, as they were sent, by their places in the head.
    #[doc(hidden)]
    #[inline]
    pub fn line(&self) -> (&&'a str, &&'a str) {
        (&self.token, &self.raw_target)
    }

    /// Returns the same head with another target, in origin form, and the same host. A server uses it to rewrite a request.
    ///
    /// # Errors
    /// 400 if `target` does not begin with a slash or cannot stand in a request line.
    pub fn with_target(&self, target: &'a str) -> Result<Head<'a>, Reject> {
        if !target.starts_with('/') || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Reject::TargetForm);
        }
        let authority = self.target.authority;
        let mut head = *self;
        head.raw_target = target;
        head.target = target::parse(self.method, target)?;
        head.target.authority = authority;
        Ok(head)
    }

    /// Returns the same head with other fields. The host, the framing of the body and the wish to upgrade stay as they were read.
    ///
    /// ```
    /// use osier_http::{FieldList, Head, Limits, Slots};
    ///
    /// let bytes = b"GET / HTTP/1.1\r\nHost: example.org\r\nX-User: mallory\r\n\r\n";
    /// let mut slots: Slots = Slots::new();
    /// let head = Head::parse(bytes, &mut slots, &Limits::default())?;
    /// let mut fields = FieldList::of(head.headers(), |name| !name.eq_ignore_ascii_case("x-user"));
    /// fields.push("x-user", b"ada").unwrap();
    /// let head = head.with_fields(&fields);
    /// assert_eq!(head.headers().map(|(_, value)| value).collect::<Vec<_>>(), [&b"example.org"[..], b"ada"]);
    /// # Ok::<(), osier_http::Reject>(())
    /// ```
    pub fn with_fields(&self, fields: &'a FieldList<'a>) -> Head<'a> {
        let mut head = *self;
        if let Host::At(place) = self.framing.host {
            head.framing.host = self.headers().text(place).map_or(Host::Missing, Host::Text);
        }
        head.fields = fields.fields();
        head
    }

    /// The target's form.
    pub fn form(&self) -> Form {
        self.target.form()
    }

    /// The target's path, still percent-encoded. It begins with `/`, is `*` for OPTIONS, or is empty for CONNECT.
    #[inline]
    pub fn path(&self) -> &'a str {
        self.target.path
    }

    /// The part after the target's first `?`, still percent-encoded.
    #[inline]
    pub fn query(&self) -> Option<&'a str> {
        self.target.query
    }

    /// The addressed host, `host` or `host:port`: the authority of the target if there is one (RFC 9112 3.2.2), else the Host
    /// field. The field may be empty. It is missing only in HTTP/1.0.
    #[inline]
    pub fn host(&self) -> Option<&'a str> {
        self.target.authority.or_else(|| match self.framing.host {
            Host::Missing => None,
            Host::At(place) => self.headers().text(place),
            Host::Text(text) => Some(text),
        })
    }

    /// The version.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The framing of the bytes after the head.
    #[inline]
    pub fn body(&self) -> BodyLength {
        self.framing.body
    }

    /// Whether the client lets the connection serve another request after this one.
    #[inline]
    pub fn keep_alive(&self) -> bool {
        self.framing.keep_alive
    }

    /// Whether the client waits for `100 Continue` before it sends the body.
    #[inline]
    pub fn expect_continue(&self) -> bool {
        self.framing.expect_continue
    }

    /// The Upgrade field, if the client asks to change the protocol (HTTP/1.1 with `Connection: upgrade`). The protocol of an
    /// extended CONNECT request over HTTP/2.
    ///
    /// Such a request has no body. The bytes after it belong to HTTP until the server has answered 101, or 200 over HTTP/2.
    #[inline]
    pub fn upgrade(&self) -> Option<&'a [u8]> {
        self.framing.upgrade
    }

    /// The properties of the request that decide the framing of its response. They borrow nothing.
    #[inline]
    pub fn exchange(&self) -> Exchange {
        Exchange::new(self.method, self.version, self.framing.keep_alive)
    }

    /// Whether a Connection field lists `name`, which makes that field hop-by-hop (RFC 9110 7.6.1).
    ///
    /// ```
    /// use osier_http::{Head, Limits, Slots};
    ///
    /// let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Close, x-hop\r\n\r\n";
    /// let mut slots: Slots = Slots::new();
    /// let head = Head::parse(bytes, &mut slots, &Limits::default())?;
    /// assert!(head.connection_names("close") && head.connection_names("X-Hop") && !head.connection_names("host"));
    /// # Ok::<(), osier_http::Reject>(())
    /// ```
    #[inline]
    pub fn connection_names(&self, name: &str) -> bool {
        framing::lists(self.framing.options, self.headers(), name)
    }

    /// Whether a Connection field lists a name other than `close`, `keep-alive` and `upgrade`.
    #[inline]
    pub fn connection_names_others(&self) -> bool {
        self.framing.options & OTHER != 0
    }

    /// The value of the first field with that name. Names are compared without regard to case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// All fields, in the order received: the name as sent, and the value without the white space around it.
    ///
    /// A value has no control characters except tabs. A name is a token and may have an underscore, so `a_b` and `a-b` are two
    /// fields.
    pub fn headers(&self) -> Headers<'a> {
        Headers(self.fields)
    }
}

impl fmt::Debug for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Field values may be secrets: names only.
        f.debug_struct("Head")
            .field("method", &self.method)
            .field("target", &self.raw_target)
            .field("version", &self.version)
            .field("host", &self.host())
            .field("body", &self.body())
            .field("keep_alive", &self.keep_alive())
            .field("names", &self.headers().map(|(name, _)| name).collect::<Vec<_>>())
            .finish()
    }
}

#[cold]
fn reject_of(error: httparse::Error, bytes: &[u8]) -> Reject {
    match error {
        httparse::Error::HeaderName => Reject::HeaderName,
        httparse::Error::HeaderValue => Reject::HeaderValue,
        httparse::Error::TooManyHeaders => Reject::TooManyHeaders,
        httparse::Error::Version => {
            let start = bytes.iter().position(|&b| b != b'\r' && b != b'\n').unwrap_or(0);
            let line = bytes[start..].split(|&b| b == b'\r').next().unwrap_or_default();
            check_version(line).err().unwrap_or(Reject::RequestLine)
        }
        _ => Reject::RequestLine,
    }
}
