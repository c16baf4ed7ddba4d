//! An error for handlers that takes any `?`.

use std::fmt;

use http::StatusCode;

use crate::{IntoResponse, Rejection, Response};

/// The error of a handler that calls code with errors of many types. Any error becomes one by `?`.
///
/// As a response it is a 500 whose cause is logged and not sent. A [`Rejection`] and an error of the
/// request's body keep their own statuses, and a cancellation is not logged.
/// [`with_status`](Error::with_status) sets another status.
///
/// ```
/// use osier_web::{Error, Request, Router, http::StatusCode, test::Client};
///
/// fn sum(request: &mut Request<'_>) -> Result<String, Error> {
///     let text = String::from_utf8(request.bytes(1024)?)?;
///     let mut sum: u64 = 0;
///     for line in text.lines() {
///         let number: u64 = line.parse().map_err(|error| Error::from(error).with_status(StatusCode::BAD_REQUEST))?;
///         sum = sum.checked_add(number).ok_or("the sum is too large")?;
///     }
///     Ok(sum.to_string())
/// }
///
/// let client = Client::new(Router::new().post("/", sum));
/// assert_eq!(client.post("/").body("1\n2").send().text(), "3");
/// assert_eq!(client.post("/").body("one").send().status(), 400);
/// assert_eq!(client.post("/").body("18446744073709551615\n1").send().status(), 500);
/// ```
///
/// It is not a [`std::error::Error`] itself, as the types of other crates that take any error.
#[doc(alias("anyhow", "eyre"))]
pub struct Error {
    cause: Box<dyn std::error::Error + Send + Sync>,
    status: Option<StatusCode>,
}

impl Error {
    /// Makes an error of a text for the log.
    pub fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error {
            cause: cause.into(),
            status: None,
        }
    }

    /// Sets the status of the response. One below 500 says that the client is at fault: its response
    /// has no line in the log.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// The cause.
    pub fn cause(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.cause
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Error {
    fn from(cause: E) -> Self {
        Error::new(cause)
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        match self.status {
            Some(status) if status.as_u16() < 500 => return Response::plain(status),
            Some(status) => {
                let cause: Box<dyn std::error::Error> = self.cause;
                return Response::internal_error(cause).with_status(status);
            }
            None => {}
        }
        let cause = match self.cause.downcast::<Rejection>() {
            Ok(rejection) => return rejection.into_response(),
            Err(cause) => cause,
        };
        match cause.downcast::<std::io::Error>() {
            Ok(error) => error.into_response(),
            Err(cause) => Response::internal_error(cause as Box<dyn std::error::Error>),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}
