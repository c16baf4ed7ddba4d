//! The types that a handler may return, and the response that each becomes.

use std::borrow::Cow;
use std::convert;

use http::StatusCode;

use crate::{Body, Response};

/// A type that a handler may return.
///
/// | type | response |
/// |---|---|
/// | `&'static str`, `String`, `Cow<'static, str>` | 200, `text/plain; charset=utf-8` |
/// | `Vec<u8>`, `&'static [u8]` | 200, `application/octet-stream` |
/// | [`Html<T>`](crate::Html) | 200, `text/html; charset=utf-8` |
/// | [`Body`] | 200, with its content type if it has one |
/// | `Json<T>` (feature `json`) | 200, `application/json`; a value that cannot be serialized is a 500 with a log line |
/// | `()` | 200 without a body |
/// | [`StatusCode`] | that status without a body |
/// | `(StatusCode, T)` | that of `T`, with this status |
/// | `Option<T>` | that of `T`, or 404 |
/// | `Result<T, E>` | that of `T` or of `E` |
/// | [`Rejection`](crate::Rejection), [`Error`](crate::Error), [`std::io::Error`] | their status; the cause of a 500 is logged and not sent |
/// | [`Response`], `http::Response<T>` | itself |
///
/// Implement it for error types, so that handlers can use `?`:
///
/// ```
/// use osier_web::{IntoResponse, Request, Response, Router, http::StatusCode};
///
/// struct NoSuchItem(String);
///
/// impl IntoResponse for NoSuchItem {
///     fn into_response(self) -> Response {
///         (StatusCode::NOT_FOUND, format!("no item {}\n", self.0)).into_response()
///     }
/// }
///
/// fn item(request: &mut Request<'_>) -> Result<&'static str, NoSuchItem> {
///     match request.param("id").as_deref() {
///         Some("7") => Ok("the seventh\n"),
///         other => Err(NoSuchItem(other.unwrap_or_default().to_owned())),
///     }
/// }
///
/// let router = Router::new().get("/items/{id}", item);
/// ```
///
/// An `async fn` is no handler, and the compiler says so: a call that waits suspends the fiber.
///
/// ```compile_fail,E0277
/// use osier_web::{Request, Router};
///
/// async fn hello(_: &mut Request<'_>) -> &'static str {
///     "hello"
/// }
/// let router = Router::new().get("/", |request: &mut Request<'_>| hello(request));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response",
    label = "a handler returned this",
    note = "a handler is a plain function, not an `async fn`: a call that waits suspends the fiber; leave out `async` and `.await`, \
            and run a future by `osier::block_on`",
    note = "a handler may return text, bytes, `Html`, `Json`, a `StatusCode`, a `Response`, or a `Result` whose error is a response: \
            `osier_web::Error` takes any error"
)]
#[doc(alias = "Responder")]
pub trait IntoResponse {
    /// Makes the response.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    #[inline]
    fn into_response(self) -> Response {
        self
    }
}

/// Responds with 200 and an empty body.
impl IntoResponse for () {
    fn into_response(self) -> Response {
        Response::new(StatusCode::OK)
    }
}

impl IntoResponse for StatusCode {
    fn into_response(self) -> Response {
        Response::new(self)
    }
}

impl<T: IntoResponse> IntoResponse for (StatusCode, T) {
    fn into_response(self) -> Response {
        self.1.into_response().with_status(self.0)
    }
}

/// Responds with 404 for `None`.
impl<T: IntoResponse> IntoResponse for Option<T> {
    fn into_response(self) -> Response {
        match self {
            Some(value) => value.into_response(),
            None => Response::plain(StatusCode::NOT_FOUND),
        }
    }
}

impl<T: IntoResponse, E: IntoResponse> IntoResponse for Result<T, E> {
    #[inline]
    fn into_response(self) -> Response {
        match self {
            Ok(value) => value.into_response(),
            Err(error) => error.into_response(),
        }
    }
}

impl IntoResponse for convert::Infallible {
    fn into_response(self) -> Response {
        match self {}
    }
}

impl<T: Into<Body>> IntoResponse for http::Response<T> {
    fn into_response(self) -> Response {
        let (parts, body) = self.into_parts();
        let mut response = Response::new(parts.status);
        for (name, value) in &parts.headers {
            response = response.header(name.as_str(), value.as_bytes());
        }
        response.body(body)
    }
}

macro_rules! bodies {
    ($($kind:ty)*) => {$(
        impl IntoResponse for $kind {
            #[inline]
            fn into_response(self) -> Response {
                Response::of(StatusCode::OK, self.into())
            }
        }
    )*};
}

bodies! { Body &'static str String Cow<'static, str> Vec<u8> &'static [u8] }

impl<const N: usize> IntoResponse for &'static [u8; N] {
    fn into_response(self) -> Response {
        self.as_slice().into_response()
    }
}

/// The error response for a body that could not be kept. Its cause is for the log, and names the options that the operator may
/// raise.
///
/// Files of other bodies end soon, so their lack of space is 503, and the client may try again. 507 is a full disk, which waits for
/// the operator.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
impl IntoResponse for crate::body::spool::Failed {
    fn into_response(self) -> Response {
        use std::io::ErrorKind;

        use crate::body::spool::{Failed, Spilled};
        match self {
            Failed::Client(error) => error.into_response(),
            Failed::TooLong { memory, files } => {
                let in_memory = match files < memory as u64 {
                    true => format!("a body in memory may be ({memory} bytes), and longer than "),
                    false => String::new(),
                };
                Response::plain(StatusCode::PAYLOAD_TOO_LARGE).close().because(format!(
                    "the body is longer than {in_memory}the files of all request bodies may be ('buffer_total', {files} bytes)"
                ))
            }
            Failed::NoSpace { files, spilled } => {
                let bound = format!("'buffer_total', {files} bytes");
                Response::overloaded().because(match spilled {
                    Spilled::Long => format!("the files of other request bodies leave no space for this one ({bound})"),
                    Spilled::Shared(most) => format!(
                        "bodies hold all memory for them ('shared_memory', {most} bytes), and their files leave no space for this one \
                         ({bound})"
                    ),
                    Spilled::Pressure => format!(
                        "the process is short of memory ('memory'), and the files of request bodies leave no space for this one ({bound})"
                    ),
                })
            }
            Failed::File(error) => {
                let mut response = Response::plain(match error.kind() {
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                });
                response.cause = Some(error.into());
                response
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::ContentType::{Bytes, Literal, Text, Unset};

    #[test]
    fn usual_types_become_responses() {
        let of = |response: Response| (response.status.as_u16(), response.content_type, response.body.len());
        assert_eq!(of("hi".into_response()), (200, Text, Some(2)));
        assert_eq!(of(String::from("hi").into_response()), (200, Text, Some(2)));
        assert_eq!(of(vec![1, 2, 3].into_response()), (200, Bytes, Some(3)));
        assert_eq!(of(b"raw".into_response()), (200, Bytes, Some(3)));
        assert_eq!(
            of(crate::Html(String::from("<p>")).into_response()),
            (200, Literal("text/html; charset=utf-8"), Some(3))
        );
        assert_eq!(of(().into_response()), (200, Unset, Some(0)));
        assert_eq!(
            of((StatusCode::IM_A_TEAPOT, "tea").into_response()),
            (418, Text, Some(3))
        );
        assert_eq!(of(None::<&str>.into_response()), (404, Text, Some(14)));
        assert_eq!(
            of(Err::<(), _>(StatusCode::CONFLICT).into_response()),
            (409, Unset, Some(0))
        );
        assert_eq!(of(Response::stream(|_| Ok(())).into_response()), (200, Unset, None));
    }

    #[test]
    fn an_io_error_is_500_and_its_text_stays_inside() {
        let response = std::io::Error::other("secret path").into_response();
        assert_eq!(response.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(response.cause.is_some_and(|cause| cause.to_string().contains("secret")));
    }
}
