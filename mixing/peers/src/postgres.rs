//! A synchronous client of PostgreSQL over any stream. The crate `postgres-protocol` has the protocol, and the stream waits.
//! The client makes simple queries only. The server must not ask for a password.

use std::io::{self, Read, Write};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::{backend::Message, frontend};

/// A session.
pub struct Session<S> {
    stream: S,
    read: BytesMut,
}

/// Fields as the server writes them.
pub type Row = Vec<Option<String>>;

impl<S: Read + Write> Session<S> {
    /// Introduces `user` over a stream that is connected already.
    ///
    /// # Errors
    ///
    /// The stream's; `Other` with what the server has against it.
    pub fn start(stream: S, user: &str, database: &str) -> io::Result<Session<S>> {
        let mut session = Session {
            stream,
            read: BytesMut::new(),
        };
        let mut hello = BytesMut::new();
        frontend::startup_message([("user", user), ("database", database)], &mut hello)?;
        session.stream.write_all(&hello)?;
        session.until_ready(|message| match message {
            Message::AuthenticationOk | Message::ParameterStatus(_) | Message::BackendKeyData(_) => Ok(()),
            _ => Err(io::Error::other(
                "the server asks for something that this client does not have",
            )),
        })?;
        Ok(session)
    }

    /// Runs statements of SQL, and gives the rows of all of them.
    ///
    /// # Errors
    ///
    /// As [`start`](Session::start); after one of the server's the session goes on.
    pub fn query(&mut self, sql: &str) -> io::Result<Vec<Row>> {
        let mut query = BytesMut::new();
        frontend::query(sql, &mut query)?;
        self.stream.write_all(&query)?;
        let mut rows = Vec::new();
        self.until_ready(|message| {
            if let Message::DataRow(row) = message {
                let field = |range: Option<std::ops::Range<usize>>| {
                    let bytes = range.map(|range| row.buffer()[range].to_vec());
                    bytes.map(String::from_utf8).transpose().map_err(io::Error::other)
                };
                rows.push(row.ranges().map(field).collect()?);
            }
            Ok(())
        })?;
        Ok(rows)
    }

    /// Takes messages until the server waits for the next query; the first error is what it ends with.
    fn until_ready(&mut self, mut take: impl FnMut(Message) -> io::Result<()>) -> io::Result<()> {
        let mut outcome = Ok(());
        loop {
            let message = match self.message() {
                Ok(message) => message,
                // After some errors the server closes the connection: the first one says why.
                Err(error) => return outcome.and(Err(error)),
            };
            match message {
                Message::ReadyForQuery(_) => return outcome,
                Message::ErrorResponse(error) => {
                    let mut fields = error.fields();
                    let text = fields.find(|field| Ok(field.type_() == b'M'))?;
                    let text = text.map(|field| String::from_utf8_lossy(field.value_bytes()).into_owned());
                    outcome = Err(io::Error::other(text.unwrap_or_default()));
                }
                message if outcome.is_ok() => outcome = take(message),
                _ => {}
            }
        }
    }

    fn message(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = Message::parse(&mut self.read)? {
                return Ok(message);
            }
            let mut buf = [0; 4096];
            match self.stream.read(&mut buf)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.read.extend_from_slice(&buf[..count]),
            }
        }
    }
}
