//! The error of an upgrade.

use std::fmt;

/// The reason why an upgrade has failed, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    pub(super) fn new(why: impl Into<String>) -> Error {
        Error(why.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// The line, for a program that logs it as a text.
impl From<Error> for String {
    fn from(error: Error) -> String {
        error.0
    }
}
