//! The failures of one request through the proxy, and the error response of each.

use std::error::Error;
use std::time::Duration;
use std::{fmt, io};

use http::StatusCode;
use osier::Cancelled;

use super::Settings;
use crate::upstream::{Unavailable, Unreached};
use crate::{IntoResponse, Response};

/// Why there is no response to pass on.
pub(super) enum Failure {
    Unavailable(Unavailable),
    /// The number of the backend, and its failure.
    Backend(usize, Why),
    Client(io::Error),
    Cancelled(io::Error),
}

/// The failure of a backend.
#[derive(Debug)]
pub(super) enum Why {
    /// The backend has not taken the request.
    Unsent(io::Error),
    /// The backend has not processed the request: it has refused the stream, or ends the connection.
    Unprocessed(io::Error),
    /// The connection ended inside or before the head. `begun`: a byte of the head had arrived.
    Broken { error: io::Error, begun: bool },
    /// The body is incomplete.
    Body(io::Error),
    /// The response is not valid HTTP.
    Malformed(&'static str),
    /// The response has not arrived in this time.
    TooLate(Duration),
}

impl Failure {
    /// The failure of reading the request from the client.
    pub(super) fn of_client(error: io::Error) -> Failure {
        match Cancelled::is(&error) {
            true => Failure::Cancelled(error),
            false => Failure::Client(error),
        }
    }

    /// The error response, with the cause for the log.
    pub(super) fn answer(self, settings: &Settings) -> Response {
        let status = match &self {
            Failure::Unavailable(unavailable) => unavailable.status(),
            Failure::Backend(_, why) => why.status(),
            Failure::Client(_) | Failure::Cancelled(_) => StatusCode::BAD_GATEWAY,
        };
        let name = settings.upstream.name();
        let cause: Box<dyn Error> = match self {
            Failure::Unavailable(Unavailable::Cancelled(error)) | Failure::Cancelled(error) => error.into(),
            Failure::Client(error) => return error.into_response(),
            Failure::Unavailable(unavailable) => {
                let is_named = match &unavailable {
                    Unavailable::Connect { backend, .. } | Unavailable::TimedOut { backend } => backend == name,
                    _ => true,
                };
                let upstream = if is_named {
                    String::new()
                } else {
                    format!("upstream {name}: ")
                };
                let line = format!("{upstream}{unavailable}");
                match unavailable {
                    Unavailable::Connect { .. } => Unreached(line).into(),
                    _ => line.into(),
                }
            }
            Failure::Backend(backend, why) => {
                let label = settings.upstream.label(backend);
                let upstream = if label == name {
                    String::new()
                } else {
                    format!("upstream {name}: ")
                };
                format!("{upstream}backend {label} {why}").into()
            }
        };
        let mut response = Response::plain(status);
        response.cause = Some(cause);
        response
    }
}

impl Why {
    fn status(&self) -> StatusCode {
        match self {
            Why::TooLate(_) => StatusCode::GATEWAY_TIMEOUT,
            Why::Unsent(error) | Why::Body(error) if error.kind() == io::ErrorKind::TimedOut => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ => StatusCode::BAD_GATEWAY,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Unsent(error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("has not taken the request in time ('timeouts.first_byte')")
            }
            Why::Unsent(error) => write!(f, "has not taken the request: {error}"),
            Why::Unprocessed(error) => write!(f, "has not processed the request: {error}"),
            Why::Broken { error, begun } => {
                let what = match begun {
                    true => "broke off inside the head of its response",
                    false => "has not answered",
                };
                match error.kind() == io::ErrorKind::UnexpectedEof && error.get_ref().is_none() {
                    true => write!(f, "{what}: it has closed the connection"),
                    false => write!(f, "{what}: {error}"),
                }
            }
            Why::Body(error) => write!(f, "broke off inside the body of its response: {error}"),
            Why::Malformed(reason) => write!(f, "has sent an invalid response: {reason}"),
            Why::TooLate(limit) => write!(f, "has not answered within {limit:?} ('timeouts.first_byte')"),
        }
    }
}
