//! A response: status, fields and body.
//!
//! The handler builds a response, and the server sends it on the same fiber. The fields are stored
//! as encoded lines. A response without fields of its own allocates nothing.

pub(crate) mod broken;
pub(crate) mod error;
pub(crate) mod html;
pub(crate) mod into_response;
pub(crate) mod rejection;

use std::error::Error;
use std::io::{self, Write};
use std::sync::LazyLock;

use http::StatusCode;
use osier_http::{FieldLines, HeadWriter, HeaderError};

use crate::Body;
use crate::body::outgoing::Kind;
use crate::conn::upgrade::{Session, Takeover, Upgraded};

/// Content types of plain text and of plain bytes.
const TEXT: &str = "text/plain; charset=utf-8";
const BYTES: &str = "application/octet-stream";

/// The same content types as encoded lines, made at the first use.
static TEXT_LINE: LazyLock<FieldLines> = LazyLock::new(|| content_type_line(TEXT));
static BYTES_LINE: LazyLock<FieldLines> = LazyLock::new(|| content_type_line(BYTES));

fn content_type_line(value: &str) -> FieldLines {
    let mut line = FieldLines::new();
    line.push("content-type", value.as_bytes())
        .expect("a literal of this file");
    line
}

/// The content type. It is kept apart from the other fields, because it is nearly always a literal
/// and then needs no allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentType {
    Unset,
    Text,
    Bytes,
    Literal(&'static str),
}

impl ContentType {
    /// The content type of `body` if the handler names none.
    #[inline]
    fn natural(body: &Body) -> Self {
        match body.text {
            Some(true) => ContentType::Text,
            Some(false) => ContentType::Bytes,
            None => ContentType::Unset,
        }
    }

    #[inline]
    pub(crate) fn value(self) -> Option<&'static str> {
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
            // The value was checked when it was set.
            ContentType::Literal(value) => drop(head.header("content-type", value.as_bytes())),
        }
    }
}

/// Status, fields and body of a response.
///
/// The server adds `date` and the fields of framing and of the connection. It leaves out fields
/// named `content-length`, `transfer-encoding`, `keep-alive` and `upgrade` that a handler sets. The
/// `upgrade` of a 426, which has to name the protocol, is kept. `connection: close` has the effect
/// of [`Response::close`].
///
/// ```
/// use osier_web::{Response, http::StatusCode};
///
/// let response = Response::new(StatusCode::CREATED).header("location", "/items/7").body("made\n");
/// assert_eq!(response.status(), StatusCode::CREATED);
/// assert_eq!(response.lookup("Location"), Some(&b"/items/7"[..]));
/// ```
#[must_use = "a response does nothing unless the handler returns it"]
pub struct Response {
    pub(crate) status: StatusCode,
    pub(crate) fields: FieldLines,
    pub(crate) content_type: ContentType,
    pub(crate) body: Body,
    pub(crate) close: bool,
    pub(crate) has_date: bool,
    pub(crate) of_backend: bool,
    /// Sending the body is cancelled when the client leaves.
    pub(crate) ends_with_client: bool,
    /// Reason for the status. It is logged and never sent to the client.
    pub(crate) cause: Option<Box<dyn Error>>,
}

impl Response {
    /// Makes a response without a body.
    #[inline]
    pub fn new(status: StatusCode) -> Self {
        Self::of(status, Body::empty())
    }

    /// Makes a response with a body in one step. Replacing the body of a response costs several
    /// copies.
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
            ends_with_client: false,
            cause: None,
        }
    }

    /// Makes a 200 whose body `write` produces while it is being sent. The body is chunked, or for
    /// an HTTP/1.0 client ends with the connection.
    ///
    /// Written bytes collect in the connection's buffer. The buffer is sent when it is full, on
    /// `flush`, and before the fiber suspends. If `write` fails, the connection is closed without
    /// the end mark, so that the client notices the missing rest.
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
    #[doc(alias("StreamBody", "streaming", "chunked"))]
    pub fn stream(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'static) -> Self {
        Response::new(StatusCode::OK).body(Body::stream(write))
    }

    /// Makes a 101. After it the connection speaks `protocol` and belongs to `run`, on the
    /// connection's fiber. The connection is closed when `run` returns.
    ///
    /// It is only for an HTTP/1.1 request that asks for the upgrade (`Upgrade`, `Connection:
    /// upgrade`) and has no unread body. Any other request gets a 500 with a log line, so a handler
    /// checks first.
    ///
    /// The stream has no read timeout. The write timeout is the server's.
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
    #[doc(alias = "OnUpgrade")]
    pub fn upgrade(protocol: &str, run: impl FnOnce(&mut Upgraded) + 'static) -> Self {
        Self::taken_over(protocol, Takeover::Run(Box::new(run)))
    }

    /// Makes a 101 as [`Response::upgrade`] does, for a connection that is idle most of the time.
    /// It has a stack only while a method of `session` runs.
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

    /// Makes a redirect with `status` to `location`.
    #[doc(alias = "Redirect")]
    pub fn redirect(status: StatusCode, location: &str) -> Self {
        Response::new(status).header("location", location)
    }

    /// Makes the response to a request with this method, whose resource has moved to `location` for good: 301 for `GET` and
    /// `HEAD`, because every client knows it, and 308 for other methods, because after a 301 a client may repeat them as a `GET`
    /// without the body (RFC 9110 section 15.4.2).
    pub fn moved(method: &str, location: &str) -> Self {
        let status = match method {
            "GET" | "HEAD" => StatusCode::MOVED_PERMANENTLY,
            _ => StatusCode::PERMANENT_REDIRECT,
        };
        Response::redirect(status, location)
    }

    /// Makes the response to a request that the server has no memory for.
    #[cold]
    pub(crate) fn overloaded() -> Response {
        Response::plain(StatusCode::SERVICE_UNAVAILABLE).header("retry-after", "1")
    }

    /// Makes a response whose body is its status in words, as RFC 9110 has them: `404 Not Found`.
    pub fn plain(status: StatusCode) -> Self {
        Response::new(status).body(format!("{}\n", in_words(status)))
    }

    /// Makes a 500. `cause` is logged and not sent to the client.
    pub fn internal_error(cause: impl Into<Box<dyn Error>>) -> Self {
        let mut response = Response::plain(StatusCode::INTERNAL_SERVER_ERROR);
        response.cause = Some(cause.into());
        response
    }

    /// Sets the reason for an error status. The reason is a line in the log and is not sent: of the
    /// level `Info` for a status from 400 to 499, which is a mistake of the client, else `Error`.
    ///
    /// ```
    /// use osier_web::{Response, http::StatusCode};
    ///
    /// let response = Response::new(StatusCode::FORBIDDEN).because("the file belongs to another user");
    /// assert_eq!(response.status(), StatusCode::FORBIDDEN);
    /// ```
    pub fn because(mut self, reason: impl Into<Box<dyn Error>>) -> Self {
        self.cause = Some(reason.into());
        self
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

    /// Replaces the body. The content type of the body is used unless one was set.
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
            self.refuse("content-type");
            return self;
        }
        self.fields.remove("content-type");
        self.content_type = ContentType::Literal(value);
        self
    }

    /// Adds a field. A field of the same name is kept, but `content-type` and `date` are replaced.
    /// A name or value that HTTP does not allow (a line break from a client's input, for example)
    /// turns the whole response into a 500 with a log line.
    ///
    /// ```
    /// use osier_web::{Response, http::StatusCode};
    ///
    /// let response = Response::new(StatusCode::OK).header("x-user", "ada");
    /// assert_eq!(response.lookup("x-user"), Some(&b"ada"[..]));
    /// assert_eq!(response.header("x-user", "a\nb").status(), StatusCode::INTERNAL_SERVER_ERROR);
    /// ```
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<[u8]>) -> Self {
        self.set(name.as_ref(), value.as_ref());
        self
    }

    /// Does what [`header`](Response::header) does, in place.
    pub(crate) fn set(&mut self, name: &str, value: &[u8]) {
        if name.eq_ignore_ascii_case("connection") {
            self.close |= value.eq_ignore_ascii_case(b"close");
        } else if name.eq_ignore_ascii_case("content-type") {
            self.fields.remove(name);
            self.content_type = ContentType::Unset;
        } else if name.eq_ignore_ascii_case("date") {
            self.fields.remove(name);
            self.has_date = true;
        } else if name.eq_ignore_ascii_case("upgrade") {
            if self.status == StatusCode::UPGRADE_REQUIRED && self.fields.upgrade(value).is_err() {
                self.refuse(name);
            }
            return;
        }
        if !matches!(self.fields.push(name, value), Ok(()) | Err(HeaderError::Reserved)) {
            self.refuse(name);
        }
    }

    /// Takes the fields, for sending them with many responses.
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
            // The value was checked when it was set.
            let _ = lines.push("content-type", value.as_bytes());
        }
        Fields {
            lines,
            has_date: self.has_date,
        }
    }

    /// Replaces all fields by a copy of `fields`. That costs less than adding them one by one.
    #[inline]
    pub fn with_fields(mut self, fields: &Fields) -> Self {
        self.fields = fields.lines.clone();
        self.has_date = fields.has_date;
        self.content_type = ContentType::Unset;
        self
    }

    /// Whether a backend has made this response, through [`Proxy`](crate::proxy::Proxy) or
    /// [`FastCgi`](crate::fastcgi::FastCgi). Responses that these handlers make themselves, for a
    /// path without a script for example, do not count.
    pub fn is_of_backend(&self) -> bool {
        self.of_backend
    }

    /// The first value of a field. Case does not matter. Fields that the server adds later are not
    /// found.
    pub fn lookup(&self, name: &str) -> Option<&[u8]> {
        if let (Some(value), true) = (self.content_type.value(), name.eq_ignore_ascii_case("content-type")) {
            return Some(value.as_bytes());
        }
        self.fields.first(name)
    }

    /// Whether it is a stream of server-sent events.
    pub(crate) fn is_event_stream(&self) -> bool {
        let name = b"text/event-stream";
        let value = self.lookup("content-type").and_then(|value| value.get(..name.len()));
        value.is_some_and(|value| value.eq_ignore_ascii_case(name))
    }

    /// Removes every field called `name`. Case does not matter. Without a `date` of its own, the
    /// response gets the server's.
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
    fn refuse(&mut self, name: &str) {
        *self = Response::internal_error(format!(
            "the handler set header {name:?} to a name or value that HTTP does not allow"
        ));
    }
}

/// The fields of a [`Response`], checked once. See [`Response::into_fields`].
#[derive(Clone, Debug, Default)]
pub struct Fields {
    pub(crate) lines: FieldLines,
    has_date: bool,
}

osier_queue::impl_debug!(Response, self => {
    status: self.status,
    content_type: self.content_type,
    fields: self.fields,
    body: self.body,
    ..
});

/// A status in the words of RFC 9110. The crate `http` has older words.
pub(crate) fn in_words(status: StatusCode) -> String {
    let words = format!("{} {}", status.as_str(), osier_http::reason_phrase(status.as_u16()));
    words.trim_end().to_owned()
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
