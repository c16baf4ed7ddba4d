//! Sessions in Redis, for several servers that share them.
//!
//! The client of Redis repeats commands when a kept connection fails. All commands here allow that.

use std::io;
use std::time::Duration;

use super::Store;
use crate::Address;
use crate::pubsub::{Client, Reply};

/// Sessions in a Redis server, version 2.6.12 or later, or one that speaks its protocol. They end by its own clock.
///
/// A user of Redis whose commands are limited by an ACL needs PING, GET, SET, PTTL, PEXPIRE and DEL. Without PEXPIRE no session is
/// renewed by a request that only reads it, and the log says so.
pub struct Redis {
    client: Client,
    /// The beginning of each key.
    prefix: String,
}

impl Redis {
    /// Keeps sessions at `address`, under keys that begin with `session:`. Connections are made when they are needed.
    pub fn new(address: Address) -> Redis {
        Redis {
            client: Client::new(address),
            prefix: "session:".to_owned(),
        }
    }

    /// Sets the password, sent with AUTH.
    pub fn password(mut self, password: impl Into<String>) -> Redis {
        self.client = self.client.password(password);
        self
    }

    /// Speaks TLS to the server, whose certificate must name the host of the address.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, connector: osier_tls::Connector) -> Redis {
        self.client = self.client.tls(connector);
        self
    }

    /// Sets the beginning of each key.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Redis {
        self.prefix = prefix.into();
        self
    }

    /// Calls Redis. A reply that is an error is an error here.
    fn call(&self, commands: &[&[&[u8]]]) -> io::Result<Vec<Reply>> {
        let replies = self.client.call(commands)?;
        let accepted = replies
            .into_iter()
            .map(|reply| reply.accepted().map_err(io::Error::other));
        accepted.collect()
    }

    fn key(&self, id: &str) -> String {
        format!("{}{id}", self.prefix)
    }
}

osier_queue::impl_debug!(Redis, self => { address: self.client.address(), prefix: self.prefix, .. });

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
                // It may have ended between the two commands. A session without an end, which no server has written, is none.
                let left = u64::try_from(left).ok();
                Ok(left.map(|left| (data, Duration::from_millis(left))))
            }
            _ => Err(io::Error::other("a session has another type in Redis")),
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

    fn touch(&self, id: &str, time: Duration) -> io::Result<bool> {
        let (key, time) = (self.key(id), time.as_millis().max(1).to_string());
        let replies = self.call(&[&[b"PEXPIRE", key.as_bytes(), time.as_bytes()]])?;
        Ok(matches!(replies.first(), Some(Reply::Number(1))))
    }

    /// A command that is repeated may have removed the session before. It is `false` then: a session that may have ended has.
    fn remove(&self, id: &str) -> io::Result<bool> {
        let replies = self.call(&[&[b"DEL", self.key(id).as_bytes()]])?;
        Ok(matches!(replies.first(), Some(Reply::Number(1))))
    }
}
