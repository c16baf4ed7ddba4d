//! A body whose backend has failed, said by the error that ends it.
//!
//! The gateway makes it. The server reads it, and may still send another response when nothing of the first has left.

use std::{error, fmt, io};

use http::StatusCode;

/// The status of the response in place of one of which nothing has left, and the text for the log.
#[derive(Debug)]
pub(crate) struct Broken {
    status: StatusCode,
    why: String,
}

impl Broken {
    pub(crate) fn error(status: StatusCode, why: impl fmt::Display) -> io::Error {
        let why = why.to_string();
        io::Error::other(Broken { status, why })
    }

    /// The status that a body's error names, if it names one.
    pub(crate) fn status_of(error: &io::Error) -> Option<StatusCode> {
        let broken = error.get_ref()?.downcast_ref::<Broken>()?;
        Some(broken.status)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl error::Error for Broken {}
