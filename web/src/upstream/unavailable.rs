//! The reasons why an upstream has no lease for a request, each with the status of the gateway's response.

use std::{error, fmt, io};

use http::StatusCode;

/// The reason why no lease is available.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unavailable {
    /// The active checks have found every backend unhealthy.
    Out {
        /// The upstream's name.
        upstream: String,
    },
    /// Every backend in service has reached its limit of leases.
    Busy {
        /// The upstream's name.
        upstream: String,
    },
    /// No connection could be made. The fields describe the last attempt.
    Connect {
        /// The backend's label.
        backend: String,
        /// The error of connecting.
        error: io::Error,
    },
    /// No connection was made within the connect timeout or the deadline.
    TimedOut {
        /// The label of the backend that was tried last.
        backend: String,
    },
    /// The fiber was cancelled because its client has disconnected.
    Cancelled(io::Error),
}

impl Unavailable {
    /// The status of a gateway's response: 502, 503 or 504.
    pub fn status(&self) -> StatusCode {
        match self {
            Unavailable::Out { .. } | Unavailable::Busy { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Unavailable::Connect { .. } | Unavailable::Cancelled(_) => StatusCode::BAD_GATEWAY,
            Unavailable::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Out { upstream } => write!(f, "upstream {upstream}: every backend fails its health check"),
            Unavailable::Busy { upstream } => write!(
                f,
                "upstream {upstream}: every backend has as many requests as it may have ('max_requests'); raise it, or add a backend"
            ),
            Unavailable::Connect { backend, error } => write!(f, "cannot connect to {backend}: {error}"),
            Unavailable::TimedOut { backend } => write!(f, "connecting to {backend} timed out ('timeouts.connect')"),
            Unavailable::Cancelled(_) => f.write_str("cancelled while connecting"),
        }
    }
}

impl error::Error for Unavailable {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            // The text of `Connect` ends with its error. As the source too, a report would print it twice.
            Unavailable::Connect { error, .. } => error::Error::source(error),
            Unavailable::Cancelled(error) => Some(error),
            _ => None,
        }
    }
}

/// The line for the log about a backend that could not be connected to. A cache knows by it that no client has provoked the error.
#[derive(Debug)]
pub(crate) struct Unreached(pub(crate) String);

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl error::Error for Unreached {}

/// Keeps the error of a cancellation, and the kind of a timeout or a connection error.
impl From<Unavailable> for io::Error {
    fn from(unavailable: Unavailable) -> io::Error {
        match unavailable {
            Unavailable::Cancelled(error) => error,
            Unavailable::TimedOut { .. } => io::Error::new(io::ErrorKind::TimedOut, unavailable),
            Unavailable::Connect { ref error, .. } => io::Error::new(error.kind(), unavailable),
            _ => io::Error::other(unavailable),
        }
    }
}
