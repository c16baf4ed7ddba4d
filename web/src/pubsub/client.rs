//! A Redis client over kept connections.
//!
//! A connection serves one call at a time. A call takes an idle connection from a list, or makes a new one. The server may have closed
//! an idle connection long ago, so a call that fails on one is repeated once on a new connection.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::connection::{Connection, Tls};
pub use super::resp::{Refused, Reply};
use crate::Address;

/// The most idle connections that are kept.
const IDLE_MAX: usize = 16;

/// A client of a Redis server. Connections are made when they are needed.
pub struct Client {
    address: Address,
    password: Option<String>,
    tls: Tls,
    idle: Mutex<Vec<Connection>>,
}

impl Client {
    /// A client of the server at `address`.
    pub fn new(address: Address) -> Client {
        Client {
            address,
            password: None,
            tls: Tls::default(),
            idle: Mutex::default(),
        }
    }

    /// The address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Sets the password, sent with AUTH.
    pub fn password(mut self, password: impl Into<String>) -> Client {
        self.password = Some(password.into());
        self
    }

    /// Speaks TLS to the server. Its certificate must have the host of the address.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, connector: osier_tls::Connector) -> Client {
        self.tls.connector = Some(connector);
        self
    }

    /// Sends commands in one write, and returns the reply to each. [`Reply::Error`] is a reply. The commands may reach the server twice, so
    /// send only commands that may be repeated.
    ///
    /// # Suspends
    ///
    /// Until the replies are there, at most 5 s for each step. On a plain thread it blocks, and the lookup of a name has no limit there.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, refuses the password, or does not reply in time.
    ///
    /// # Cancellation
    ///
    /// Unwinds, and closes the connection. The server may still execute the commands.
    pub fn call(&self, commands: &[&[&[u8]]]) -> io::Result<Vec<Reply>> {
        let kept = self.idle().pop();
        if let Some(connection) = kept {
            match self.call_on(connection, commands) {
                // The server has closed it, or it was cut. A new connection shows whether the server is there.
                Err(error) if !osier::Cancelled::is(&error) && error.kind() != io::ErrorKind::TimedOut => {}
                outcome => return outcome,
            }
        }
        let connection = Connection::open(&self.address, self.password.as_deref(), &self.tls);
        let connection = connection.map_err(|error| match osier::Cancelled::is(&error) {
            true => error,
            false => io::Error::new(error.kind(), format!("Redis at {}: {error}", self.address)),
        })?;
        self.call_on(connection, commands)
    }

    /// Keeps the connection only if every reply has arrived.
    fn call_on(&self, mut connection: Connection, commands: &[&[&[u8]]]) -> io::Result<Vec<Reply>> {
        let replies = connection.call(commands)?;
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        Ok(replies)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

osier_queue::impl_debug!(Client, self => { address: self.address, .. });

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_plain_thread_may_connect() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let pings = BufReader::new(&stream).lines().map_while(Result::ok);
            for _ in pings.filter(|line| line == "PING") {
                (&stream).write_all(b"+PONG\r\n").unwrap();
            }
        });
        let client = Client::new(address.to_string().parse().unwrap());
        assert_eq!(client.call(&[&[b"PING"]]).unwrap(), [Reply::Text(b"PONG".to_vec())]);
        drop(client);
        serving.join().unwrap();
        let gone = Client::new(testkit::nobody().to_string().parse().unwrap());
        assert_eq!(
            gone.call(&[&[b"PING"]]).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        osier::run(|| {
            let gone = testkit::nobody();
            let error = Client::new(gone.to_string().parse().unwrap())
                .call(&[&[b"PING"]])
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            let text = error.to_string();
            assert!(text.starts_with(&format!("Redis at {gone}: ")), "{text}");
        });
    }
}
