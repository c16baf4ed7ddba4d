//! A response: status, fields and body.
//!
//! The handler builds it, and the server sends it on the same fiber. Its fields are kept as lines that are ready to go out, so
//! that a response without fields of its own allocates nothing.

pub(crate) mod broken;
pub(crate) mod into_response;
pub(crate) mod rejection;

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::sync::LazyLock;

use http::StatusCode;
use osier_http::{FieldLines, HeadWriter, HeaderError};

use crate::Body;
use crate::body::outgoing::Kind;
use crate::conn::upgrade::{Session, Takeover, Upgraded};

/// The content types of bare text and of bare bytes.
const TEXT: &str = "text/plain; charset=utf-8";
const BYTES: &str = "application/octet-stream";

/// The same as lines, made at the first use.
static TEXT_LINE: LazyLock<FieldLines> = LazyLock::new(|| content_type_line(TEXT));
static BYTES_LINE: LazyLock<FieldLines> = LazyLock::new(|| content_type_line(BYTES));

fn content_type_line(value: &str) -> FieldLines {
    let mut line = FieldLines::new();
    line.push("content-type", value.as_bytes())
        .expect("a literal of this file");
    line
}

/// The content type, kept apart from the other fields: it is nearly always a literal, so most responses allocate nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentType {
    Unset,
    Text,
    Bytes,
    Literal(&'static str),
}

impl ContentType {
    /// The content type of a body whose handler names none.
    #[inline]
    fn natural(body: &Body) -> Self {
        match body.text {
            Some(true) => ContentType::Text,
            Some(false) => ContentType::Bytes,
            None => ContentType::Unset,
        }
    }

    fn value(self) -> Option<&'static str> {
        match self {
            ContentType::Unset => None,
            ContentType::Text => Some(TEXT),
            ContentType::Bytes => Some(BYTES),
            ContentType::Literal(value) => Some(value),
        }
    }

    #[inline]
    pub(crate) fn write(self, head: &mut HeadWriter<'_>) {
        match self {
            ContentType::Unset => {}
            ContentType::Text => head.lines(&TEXT_LINE),
            ContentType::Bytes => head.lines(&BYTES_LINE),
            // Checked when it was set.
            ContentType::Literal(value) => drop(head.header("content-type", value.as_bytes())),
        }
    }
}

/// Status, header and body of an answer.
///
/// The server adds `date` and what concerns framing and the connection: fields named `content-length`,
/// `transfer-encoding`, `keep-alive` and `upgrade` that a handler sets are left out (but for the `upgrade` of a 426, which has
/// to name the protocol), and `connection: close` is the same as [`Response::close`].
///
/// ```
/// use osier_web::{Response, http::StatusCode};
///
/// let response = Response::new(StatusCode::CREATED).header("location", "/items/7").body("made\n");
/// assert_eq!(response.status(), StatusCode::CREATED);
/// assert_eq!(response.lookup("Location"), Some(&b"/items/7"[..]));
/// ```
pub struct Response {
    pub(crate) status: StatusCode,
    pub(crate) fields: FieldLines,
    pub(crate) content_type: ContentType,
    pub(crate) body: Body,
    pub(crate) close: bool,
    pub(crate) has_date: bool,
    pub(crate) of_backend: bool,
    /// Why the status is what it is: for the log, never for the client.
    pub(crate) cause: Option<Box<dyn Error>>,
}

impl Response {
    /// A response without a body.
    #[inline]
    pub fn new(status: StatusCode) -> Self {
        Self::of(status, Body::empty())
    }

    /// A response with a body. Made in one piece: a body that replaces another costs several copies.
    #[inline]
    pub(crate) fn of(status: StatusCode, body: Body) -> Self {
        Response {
            status,
            fields: FieldLines::new(),
            content_type: ContentType::natural(&body),
            body,
            close: false,
            has_date: false,
            of_backend: false,
            cause: None,
        }
    }

    /// 200 with a body that `write` produces while it is being sent: chunked, or up to the end of the connection for an
    /// HTTP/1.0 client. What is written collects in the connection's buffer and goes out when that is full, on
    /// `flush`, and before the fiber suspends. When `write` fails the connection is closed without the end mark, so
    /// that the client sees that something is missing.
    ///
    /// ```
    /// use osier_web::Response;
    ///
    /// let response = Response::stream(|out| {
    ///     for i in 0..3 {
    ///         writeln!(out, "line {i}")?;
    ///     }
    ///     Ok(())
    /// });
    /// ```
    pub fn stream(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'static) -> Self {
        Response::new(StatusCode::OK).body(Body::stream(write))
    }

    /// 101: after it the connection speaks `protocol`, and belongs to `run` on the connection's fiber. It is closed when `run`
    /// returns. Only for an HTTP/1.1 request that has asked for it (`Upgrade`, `Connection: upgrade`) and has no body left:
    /// otherwise 500 and a log line, which a handler prevents by looking first.
    ///
    /// There is no read timeout on the stream; the write timeout is the server's.
    ///
    /// ```
    /// use osier_web::{Request, Response, Router};
    /// use std::io::{Read, Write};
    ///
    /// let router = Router::new().get("/echo", |_: &mut Request<'_>| {
    ///     Response::upgrade("echo", |stream| {
    ///         let mut buf = [0; 1024];
    ///         while let Ok(count @ 1..) = stream.read(&mut buf) {
    ///             if stream.write_all(&buf[..count]).is_err() {
    ///                 break;
    ///             }
    ///         }
    ///     })
    /// });
    /// ```
    pub fn upgrade(protocol: &str, run: impl FnOnce(&mut Upgraded) + 'static) -> Self {
        Self::taken_over(protocol, Takeover::Run(Box::new(run)))
    }

    /// As [`Response::upgrade`], for a connection that is idle most of the time: it has a stack only while `session` is
    /// called.
    pub fn upgrade_dormant(protocol: &str, session: Box<dyn Session>) -> Self {
        Self::taken_over(protocol, Takeover::Rest(session))
    }

    fn taken_over(protocol: &str, takeover: Takeover) -> Self {
        if FieldLines::new().push("x", protocol.as_bytes()).is_err() {
            return Response::internal_error(format!("{protocol:?} cannot be named in a header"));
        }
        let kind = Kind::Upgrade(protocol.into(), takeover);
        Self::of(StatusCode::SWITCHING_PROTOCOLS, Body { kind, text: None })
    }

    /// A redirect by `status` to `location`.
    pub fn redirect(status: StatusCode, location: &str) -> Self {
        Response::new(status).header("location", location)
    }

    /// A response whose body is its status in words, `404 Not Found` for example.
    pub(crate) fn plain(status: StatusCode) -> Self {
        Response::new(status).body(format!("{status}\n"))
    }

    /// 500, and a log line that says `cause`; the client does not see it.
    pub fn internal_error(cause: impl Into<Box<dyn Error>>) -> Self {
        let mut response = Response::plain(StatusCode::INTERNAL_SERVER_ERROR);
        response.cause = Some(cause.into());
        response
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Replaces the status.
    #[inline]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        if self.status == StatusCode::UPGRADE_REQUIRED {
            self.fields.remove("upgrade");
            self.fields.remove("connection");
        }
        self.status = status;
        self
    }

    /// Replaces the body; its content type counts unless one has been set.
    #[inline]
    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        let natural = ContentType::natural(&self.body);
        if natural == ContentType::Unset {
            return self;
        }
        let unset = self.content_type == ContentType::Unset;
        if unset && (self.fields.is_empty() || self.fields.first("content-type").is_none()) {
            self.content_type = natural;
        }
        self
    }

    /// Replaces the content type by a literal, without allocating.
    #[inline]
    pub fn content_type(mut self, value: &'static str) -> Self {
        if FieldLines::new().push("content-type", value.as_bytes()).is_err() {
            return self.refuse("content-type");
        }
        self.fields.remove("content-type");
        self.content_type = ContentType::Literal(value);
        self
    }

    /// Adds a field; one of the same name that is already there stays, except for `content-type` and `date`, which are
    /// replaced. A name or value that HTTP does not allow (a line break from a client's input, for example) turns the
    /// whole response into a 500 with a log line.
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<[u8]>) -> Self {
        let (name, value) = (name.as_ref(), value.as_ref());
        if name.eq_ignore_ascii_case("connection") {
            self.close |= value.eq_ignore_ascii_case(b"close");
        } else if name.eq_ignore_ascii_case("content-type") {
            self.fields.remove(name);
            self.content_type = ContentType::Unset;
        } else if name.eq_ignore_ascii_case("date") {
            self.fields.remove(name);
            self.has_date = true;
        } else if name.eq_ignore_ascii_case("upgrade") {
            return match self.status {
                StatusCode::UPGRADE_REQUIRED if self.fields.upgrade(value).is_err() => self.refuse(name),
                _ => self,
            };
        }
        match self.fields.push(name, value) {
            Ok(()) | Err(HeaderError::Reserved) => self,
            Err(_) => self.refuse(name),
        }
    }

    /// Takes the fields, to be sent with many responses.
    ///
    /// ```
    /// use osier_web::{Response, http::StatusCode};
    ///
    /// let fields = Response::new(StatusCode::OK).header("etag", "\"7\"").content_type("text/css").into_fields();
    /// let response = Response::new(StatusCode::OK).with_fields(&fields).body("a{}");
    /// assert_eq!(response.lookup("content-type"), Some(&b"text/css"[..]));
    /// ```
    pub fn into_fields(self) -> Fields {
        let mut lines = self.fields;
        if let Some(value) = self.content_type.value() {
            // Checked when it was set.
            let _ = lines.push("content-type", value.as_bytes());
        }
        Fields {
            lines,
            has_date: self.has_date,
        }
    }

    /// Replaces all fields by a copy of `fields`, which costs less than to add them one by one.
    #[inline]
    pub fn with_fields(mut self, fields: &Fields) -> Self {
        self.fields = fields.lines.clone();
        self.has_date = fields.has_date;
        self.content_type = ContentType::Unset;
        self
    }

    /// True if a backend has made this response, through [`Proxy`](crate::proxy::Proxy) or [`FastCgi`](crate::fastcgi::FastCgi);
    /// what these say in place of one, of a path without a script for example, is not.
    pub fn is_of_backend(&self) -> bool {
        self.of_backend
    }

    /// The first value of a field; names compare without case. Fields that the server adds are not there yet.
    pub fn lookup(&self, name: &str) -> Option<&[u8]> {
        if let (Some(value), true) = (self.content_type.value(), name.eq_ignore_ascii_case("content-type")) {
            return Some(value.as_bytes());
        }
        self.fields.first(name)
    }

    /// Takes out every field of that name; names compare without case. The server's own `date` takes the place of one that was set.
    pub fn remove(mut self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        if name.eq_ignore_ascii_case("content-type") {
            self.content_type = ContentType::Unset;
        } else if name.eq_ignore_ascii_case("date") {
            self.has_date = false;
        }
        self.fields.remove(name);
        self
    }

    /// Closes the connection after this response.
    pub fn close(mut self) -> Self {
        self.close = true;
        self
    }

    #[cold]
    fn refuse(self, name: &str) -> Self {
        Response::internal_error(format!(
            "the handler set header {name:?} to a name or value that HTTP does not allow"
        ))
    }
}

/// The fields of a [`Response`], checked once; see [`Response::into_fields`].
#[derive(Clone, Debug, Default)]
pub struct Fields {
    lines: FieldLines,
    has_date: bool,
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("content_type", &self.content_type)
            .field("fields", &self.fields)
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_would_split_the_response_are_refused() {
        for (name, value) in [
            ("x", "a\r\nset-cookie: b"),
            ("x y", "a"),
            ("", "a"),
            ("x", "a\0"),
            ("x:", "a"),
        ] {
            let response = Response::new(StatusCode::OK).header(name, value);
            assert_eq!(response.status, StatusCode::INTERNAL_SERVER_ERROR, "{name:?} {value:?}");
            assert!(response.fields.is_empty());
        }
    }

    #[test]
    fn fields_are_taken_out_however_they_were_set() {
        let response = Response::new(StatusCode::OK)
            .header("Set-Cookie", "a=1")
            .header("X-A", "1")
            .header("set-cookie", "b=2")
            .header("Date", "Sun, 06 Nov 1994 08:49:37 GMT")
            .body("text");
        let response = response
            .remove("SET-cookie")
            .remove("content-type")
            .remove("date")
            .remove("absent");
        assert_eq!(response.fields.as_bytes(), b"X-A: 1\r\n");
        assert_eq!((response.content_type, response.has_date), (ContentType::Unset, false));
    }

    #[test]
    fn the_upgrade_of_a_426_goes_with_its_status() {
        let required = || Response::new(StatusCode::UPGRADE_REQUIRED).header("Upgrade", "websocket");
        assert_eq!(required().lookup("upgrade"), Some(&b"websocket"[..]));
        assert!(required().with_status(StatusCode::NOT_FOUND).fields.is_empty());
        assert!(Response::new(StatusCode::OK).header("Upgrade", "x").fields.is_empty());
        let split = Response::new(StatusCode::UPGRADE_REQUIRED).header("upgrade", "a\r\nb: c");
        assert_eq!(split.status, StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn fields_are_added_replaced_or_left_to_the_server() {
        let response = Response::new(StatusCode::OK)
            .header("Set-Cookie", "a=1")
            .header("content-type", "text/css")
            .header("Set-Cookie", "b=2")
            .header("Content-Length", "99")
            .header("Content-Type", "image/png")
            .header("Connection", "close")
            .body("x");
        assert_eq!(
            response.fields.as_bytes(),
            b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Type: image/png\r\n"
        );
        assert_eq!(response.content_type, ContentType::Unset);
        assert!(response.close);
        assert_eq!(
            response.content_type("text/html").fields.as_bytes(),
            b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
        );
    }
}
