//! Sessions in Redis, for several servers that share them.
//!
//! A connection serves one call at a time. Idle connections lie in a list; a call takes one or makes a new one. A kept connection that
//! fails says little, as the server may have closed it long ago, so the call is repeated once on a new one. All commands may be repeated.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Store;
use crate::Address;
use crate::pubsub::connection::{Connection, Tls};
use crate::pubsub::resp::Reply;

/// The most idle connections that are kept.
const IDLE_MAX: usize = 16;

/// Sessions in a Redis server, version 2.6.12 or later, or one that speaks its protocol. They end by its own clock.
pub struct Redis {
    address: Address,
    password: Option<String>,
    tls: Tls,
    /// The beginning of each key.
    prefix: String,
    idle: Mutex<Vec<Connection>>,
}

impl Redis {
    /// Keeps sessions at `address`, under keys that begin with `session:`. Connections are made when they are needed.
    pub fn new(address: Address) -> Redis {
        Redis {
            address,
            password: None,
            tls: Tls::default(),
            prefix: "session:".to_owned(),
            idle: Mutex::default(),
        }
    }

    /// Sets the password, sent with AUTH.
    pub fn password(mut self, password: impl Into<String>) -> Redis {
        self.password = Some(password.into());
        self
    }

    /// Speaks TLS to the server. Its certificate must have the host of the address.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, connector: osier_tls::Connector) -> Redis {
        self.tls.connector = Some(connector);
        self
    }

    /// Sets the beginning of each key.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Redis {
        self.prefix = prefix.into();
        self
    }

    fn call(&self, commands: &[&[&[u8]]]) -> io::Result<Vec<Reply>> {
        let kept = self.idle().pop();
        if let Some(connection) = kept {
            match self.call_on(connection, commands) {
                // The server has closed it, or it was cut. A new connection shows whether the server is there.
                Err(error) if !osier::Cancelled::is(&error) && error.kind() != io::ErrorKind::TimedOut => {}
                outcome => return outcome,
            }
        }
        let connection = Connection::open(&self.address, self.password.as_deref(), &self.tls)?;
        self.call_on(connection, commands)
    }

    /// The connection is kept after whole replies alone. An error of the server is a reply.
    fn call_on(&self, mut connection: Connection, commands: &[&[&[u8]]]) -> io::Result<Vec<Reply>> {
        let replies = connection.call(commands)?;
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        drop(idle);
        let accepted = replies
            .into_iter()
            .map(|reply| reply.accepted().map_err(io::Error::other));
        accepted.collect()
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, id: &str) -> String {
        format!("{}{id}", self.prefix)
    }
}

osier_queue::impl_debug!(Redis, self => { address: self.address, prefix: self.prefix, .. });

impl Store for Redis {
    /// # Suspends
    ///
    /// Until Redis has replied, at most 5 s for each step.
    fn load(&self, id: &str) -> io::Result<Option<(Vec<u8>, Duration)>> {
        let key = self.key(id);
        let mut replies = self
            .call(&[&[b"GET", key.as_bytes()], &[b"PTTL", key.as_bytes()]])?
            .into_iter();
        match (replies.next(), replies.next()) {
            (Some(Reply::Nil), _) => Ok(None),
            (Some(Reply::Text(data)), Some(Reply::Number(left))) => {
                // It may have ended between the two commands.
                let left = u64::try_from(left).ok();
                Ok(left.map(|left| (data, Duration::from_millis(left))))
            }
            _ => Err(io::Error::other("a session has another type in Redis, or no end")),
        }
    }

    fn save(&self, id: &str, data: &[u8], time: Duration) -> io::Result<()> {
        let time = time.as_millis().max(1).to_string();
        self.call(&[&[b"SET", self.key(id).as_bytes(), data, b"PX", time.as_bytes()]])?;
        Ok(())
    }

    fn replace(&self, id: &str, data: &[u8], time: Duration) -> io::Result<bool> {
        let (key, time) = (self.key(id), time.as_millis().max(1).to_string());
        let replies = self.call(&[&[b"SET", key.as_bytes(), data, b"PX", time.as_bytes(), b"XX"]])?;
        Ok(!matches!(replies.first(), Some(Reply::Nil)))
    }

    fn remove(&self, id: &str) -> io::Result<()> {
        self.call(&[&[b"DEL", self.key(id).as_bytes()]])?;
        Ok(())
    }
}
