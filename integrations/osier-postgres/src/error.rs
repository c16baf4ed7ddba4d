//! The error of every call.

use std::error::Error as _;
use std::fmt;
use std::io;

use tokio_postgres::error::{DbError, Severity, SqlState};

/// The reason why a call failed: the server's, the connection's, or the URL's.
///
/// [`Debug`](fmt::Debug) is for a program whose `main` returns it: the text, with its sources or the SQLSTATE. `{:#?}` shows all that is known.
pub struct Error(Kind);

#[derive(Debug)]
enum Kind {
    Postgres(tokio_postgres::Error),
    /// Connecting to a server, with its name.
    Connect(String, io::Error),
    /// A statement that needs another call.
    Copy,
}

impl Error {
    pub(crate) fn connect(server: String, error: io::Error) -> Error {
        Error(Kind::Connect(server, error))
    }

    pub(crate) fn copy() -> Error {
        Error(Kind::Copy)
    }

    /// Whether the connection can have no further call: the server ends the session after this report, although nobody may have read
    /// the end of the stream yet, or it has sent what tokio-postgres does not expect there.
    pub(crate) fn ends_the_session(&self) -> bool {
        let Kind::Postgres(error) = &self.0 else {
            return false;
        };
        match error.as_db_error() {
            Some(reported) => matches!(reported.parsed_severity(), Some(Severity::Fatal | Severity::Panic)),
            // It has no other name for these.
            None => {
                let text = error.to_string();
                text.starts_with("unexpected message from server") || text.starts_with("error parsing response")
            }
        }
    }

    /// The report of the server, if the error is the server's.
    pub fn as_db_error(&self) -> Option<&DbError> {
        match &self.0 {
            Kind::Postgres(error) => error.as_db_error(),
            Kind::Connect(..) | Kind::Copy => None,
        }
    }

    /// The SQLSTATE that the server has reported.
    ///
    /// ```
    /// use osier_postgres::{Error, SqlState};
    ///
    /// /// Whether there is a row with such a key already.
    /// fn is_taken(error: &Error) -> bool {
    ///     error.code() == Some(&SqlState::UNIQUE_VIOLATION)
    /// }
    /// ```
    pub fn code(&self) -> Option<&SqlState> {
        self.as_db_error().map(DbError::code)
    }

    /// Whether there is no connection (any more), also because the server ends it with this report. The next [`Pool::get`](crate::Pool::get) makes a new one.
    pub fn is_closed(&self) -> bool {
        match &self.0 {
            Kind::Postgres(error) => {
                let is_broken = error.source().is_some_and(|cause| cause.is::<io::Error>());
                error.is_closed() || is_broken || self.ends_the_session()
            }
            Kind::Connect(..) => true,
            Kind::Copy => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Postgres(error) => match error.as_db_error() {
                Some(reported) => write!(f, "postgres: {reported}"),
                None => write!(f, "postgres: {error}"),
            },
            Kind::Connect(server, _) => write!(f, "cannot connect to postgres at {server}"),
            Kind::Copy => f.write_str(
                "postgres: a COPY from or to the client needs Connection::call, with its copy_in or copy_out",
            ),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.debug_tuple("Error").field(&self.0).finish();
        }
        write!(f, "{self}")?;
        if let Some(code) = self.code() {
            return write!(f, " (SQLSTATE {})", code.code());
        }
        let mut source = self.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            // The text has the server's report already.
            Kind::Postgres(error) if error.as_db_error().is_some() => None,
            Kind::Postgres(error) => error.source(),
            Kind::Connect(_, error) => Some(error),
            Kind::Copy => None,
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        Error(Kind::Postgres(error))
    }
}
