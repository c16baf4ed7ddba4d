//! A rejection: the reason why a handler refuses a request, as a response. The functions that read
//! a [`Request`](crate::Request) by type fail with one.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;

use http::StatusCode;

use crate::body::incoming::BodyError;
use crate::{IntoResponse, Response};

const NO_MEMORY: &str = "memory is too short for the request's body";

/// A status and one line of text for a client whose request cannot be served.
///
/// A handler returns it by `?`, from a `Result<_, Rejection>` or an [`io::Result`]. A failure that
/// is not the client's (a missing state, a disk error) is a 500 with a log line. If the store of sessions is
/// away, it is a 503 with `Retry-After`.
///
/// ```
/// use osier_web::{Rejection, Request, Router, http::StatusCode, test::Client};
///
/// fn page(request: &mut Request<'_>) -> Result<String, Rejection> {
///     let number: u32 = match request.query_param("page") {
///         Some(text) => text.parse().map_err(|_| Rejection::new(StatusCode::BAD_REQUEST, "the page is no number\n"))?,
///         None => 1,
///     };
///     Ok(format!("page {number}\n"))
/// }
///
/// let client = Client::new(Router::new().get("/", page));
/// assert_eq!(client.get("/?page=2").send().text(), "page 2\n");
/// assert_eq!(client.get("/?page=two").send().status(), 400);
/// ```
#[derive(Debug)]
#[doc(alias("ResponseError", "HttpError"))]
pub struct Rejection(Kind);

#[derive(Debug)]
enum Kind {
    Client(StatusCode, Cow<'static, str>),
    /// A body beyond a bound that no honest client reaches: a status, and a text for the client and the log.
    #[cfg_attr(
        not(any(feature = "forms", feature = "json", feature = "multipart")),
        allow(dead_code, reason = "extractors make it")
    )]
    Beyond(StatusCode, Cow<'static, str>),
    /// An error of the body, or of the place that it was written to.
    Io(io::Error),
    /// A text for the log.
    Internal(String),
    /// Memory is too short for the body.
    NoMemory,
    /// A service that the server needs is away: what cannot be done, and why. Both are for the log.
    #[cfg_attr(not(feature = "sessions"), allow(dead_code, reason = "sessions make it"))]
    Unavailable(&'static str, io::Error),
}

impl Rejection {
    /// Makes a rejection with the application's own status and text.
    pub fn new(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Self {
        Rejection(Kind::Client(status, text.into()))
    }

    #[cfg(any(feature = "forms", feature = "json", feature = "multipart"))]
    pub(crate) fn beyond(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Self {
        Rejection(Kind::Beyond(status, text.into()))
    }

    pub(crate) fn internal(text: String) -> Self {
        Rejection(Kind::Internal(text))
    }

    pub(crate) fn no_memory() -> Self {
        Rejection(Kind::NoMemory)
    }

    #[cfg(feature = "sessions")]
    pub(crate) fn unavailable(failure: &'static str, error: io::Error) -> Self {
        Rejection(Kind::Unavailable(failure, error))
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        match &self.0 {
            Kind::Client(status, _) | Kind::Beyond(status, _) => *status,
            Kind::Io(error) => {
                let of_body = error.get_ref().and_then(|inner| inner.downcast_ref::<BodyError>());
                of_body.map_or(StatusCode::INTERNAL_SERVER_ERROR, |error| error.status())
            }
            Kind::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::NoMemory | Kind::Unavailable(..) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        match self.0 {
            Kind::Client(status, text) => Response::new(status).body(format!("{text}\n")),
            Kind::Beyond(status, text) => Response::new(status).body(format!("{text}\n")).because(text),
            Kind::Io(error) => error.into_response(),
            Kind::Internal(text) => Response::internal_error(text),
            Kind::NoMemory => Response::overloaded().close().because(NO_MEMORY),
            Kind::Unavailable(..) => Response::overloaded().because(self),
        }
    }
}

/// Responds to an error of the request's body that is the client's fault with 413, 408 or 400. A
/// [`Rejection`] inside the error decides by itself. Any other error is a 500 with a log line.
impl IntoResponse for io::Error {
    fn into_response(self) -> Response {
        let error = match self.downcast::<Rejection>() {
            Ok(rejection) => return rejection.into_response(),
            Err(error) => error,
        };
        match error.get_ref().and_then(|inner| inner.downcast_ref::<BodyError>()) {
            Some(error) => Response::new(error.status())
                .body(format!("{error}\n"))
                .close()
                .because(*error),
            None => Response::internal_error(error),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Client(_, text) | Kind::Beyond(_, text) => f.write_str(text),
            Kind::Io(error) => error.fmt(f),
            Kind::Internal(text) => f.write_str(text),
            Kind::NoMemory => f.write_str(NO_MEMORY),
            Kind::Unavailable(failure, error) => write!(f, "{failure}: {error}"),
        }
    }
}

impl Error for Rejection {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0 {
            Kind::Io(error) => error.source(),
            Kind::Unavailable(_, error) => Some(error),
            Kind::Client(..) | Kind::Beyond(..) | Kind::Internal(_) | Kind::NoMemory => None,
        }
    }
}

impl From<io::Error> for Rejection {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Rejection>() {
            Ok(rejection) => rejection,
            Err(error) => Rejection(Kind::Io(error)),
        }
    }
}

/// Converts to `InvalidData` if the rejection has a text for the client, to the original I/O error
/// if there is one, and otherwise to `Other`. A rejection with a status other than 500 is kept inside.
impl From<Rejection> for io::Error {
    fn from(rejection: Rejection) -> Self {
        match rejection.0 {
            Kind::Io(error) => error,
            Kind::Internal(text) => io::Error::other(text),
            Kind::Unavailable(_, ref error) => io::Error::new(error.kind(), rejection),
            client @ (Kind::Client(..) | Kind::Beyond(..) | Kind::NoMemory) => {
                io::Error::new(io::ErrorKind::InvalidData, Rejection(client))
            }
        }
    }
}
