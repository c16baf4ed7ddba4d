//! A body whose backend has failed, said by the error that ends it.
//!
//! Made by whoever passes the body on; read by the server, which may still answer something else when nothing of the response
//! has left.

use std::{error, fmt, io};

use http::StatusCode;

/// What the client is told in place of a response of which nothing is out, and what the log says.
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
