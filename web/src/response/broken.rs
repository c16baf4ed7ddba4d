//! The error that ends the body of a response whose backend has failed.
//!
//! A gateway (the proxy or FastCGI handler) makes the error. The server reads it. If the server has
//! sent nothing of the response yet, it may still send another one.

use std::io;

use http::StatusCode;

/// A failure of a backend: the status to send if nothing has been sent yet, and the text for the
/// log.
#[derive(Debug)]
pub(crate) struct Broken {
    status: StatusCode,
    why: String,
}

impl Broken {
    #[cfg(feature = "fastcgi")]
    pub(crate) fn error(status: StatusCode, why: impl std::fmt::Display) -> io::Error {
        let why = why.to_string();
        io::Error::other(Broken { status, why })
    }

    /// Returns the status that the error of a body names, if it names one.
    pub(crate) fn status_of(error: &io::Error) -> Option<StatusCode> {
        let broken = error.get_ref()?.downcast_ref::<Broken>()?;
        Some(broken.status)
    }
}

osier_queue::impl_error!(Broken, self => "{}", self.why);
