//! The error of every call.

use std::fmt;
use std::io;

use tokio_postgres::error::{DbError, SqlState};

/// The reason why a call failed: the server's, the connection's, or the URL's.
///
/// [`Debug`](fmt::Debug) is for a program whose `main` returns it: the text, with its sources or the SQLSTATE. `{:#?}` shows all that is known.
pub struct Error(Kind);

#[derive(Debug)]
enum Kind {
    Postgres(tokio_postgres::Error),
    /// Connecting to a server, with its name.
    Connect(String, io::Error),
}

impl Error {
    pub(crate) fn connect(server: String, error: io::Error) -> Error {
        Error(Kind::Connect(server, error))
    }

    /// The report of the server, if the error is the server's.
    pub fn as_db_error(&self) -> Option<&DbError> {
        match &self.0 {
            Kind::Postgres(error) => error.as_db_error(),
            Kind::Connect(..) => None,
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

    /// Whether there is no connection (any more). The next [`Pool::get`](crate::Pool::get) makes a new one.
    pub fn is_closed(&self) -> bool {
        match &self.0 {
            Kind::Postgres(error) => error.is_closed(),
            Kind::Connect(..) => true,
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
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::error::Error as _;

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
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        Error(Kind::Postgres(error))
    }
}
