//! A connection to Redis, and the delays between connections.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use osier::net::Stream;

use super::Outbound;
use super::resp::{self, Refused, Reply};
use crate::Address;
#[cfg(feature = "tls")]
use crate::conn::secured::Secured;
use crate::conn::transport::Transport;

/// Timeout of connecting, of a write and of a reply.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Delays between attempts to connect.
const FIRST_WAIT: Duration = Duration::from_millis(50);
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A connection that has lived for this long resets the delay. A broker that replies and then
/// closes, again and again, is thus retried ever more rarely.
const STEADY: Duration = Duration::from_secs(5);

/// An open connection to the broker.
pub(crate) struct Connection {
    pub(super) transport: Arc<Transport>,
    pub(super) replies: Replies,
}

/// Whether the broker speaks TLS, and how it begins.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    #[cfg(feature = "tls")]
    pub(crate) connector: Option<osier_tls::Connector>,
}

impl Tls {
    /// Makes the byte stream of a new connection to `address`.
    fn over(&self, address: &Address, stream: Stream) -> io::Result<Transport> {
        #[cfg(feature = "tls")]
        if let Some(connector) = &self.connector {
            return Secured::new(connector.clone(), None, address).shake_hands(stream, PATIENCE);
        }
        let _ = address;
        Ok(stream.into())
    }
}

/// The replies on a connection. An error ends the connection.
pub(super) struct Replies(BufReader<Reading>);

/// The receiving direction of a stream.
struct Reading(Arc<Transport>);

impl Read for Reading {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buf)
    }
}

impl Replies {
    pub(super) fn next(&mut self) -> io::Result<Reply> {
        resp::read(&mut self.0)
    }
}

impl Connection {
    /// Connects, and checks with a PING that the broker executes commands. A broker that is still
    /// loading or rejects the password counts as unreachable.
    pub(crate) fn open(address: &Address, password: Option<&str>, tls: &Tls) -> io::Result<Connection> {
        let transport = Arc::new(tls.over(address, address.connect(PATIENCE)?)?);
        transport.socket().set_write_timeout(Some(PATIENCE))?;
        transport.socket().set_read_timeout(Some(PATIENCE))?;
        let replies = Replies(BufReader::new(Reading(transport.clone())));
        let mut connection = Connection { transport, replies };
        if let Some(password) = password {
            connection.ask(&[b"AUTH", password.as_bytes()], Some(password))?;
        }
        connection.ask(&[b"PING"], None)?;
        Ok(connection)
    }

    /// Sends a command that the broker is to accept. One that refuses it may repeat its words, so the error does not show `secret`.
    fn ask(&mut self, command: &[&[u8]], secret: Option<&str>) -> io::Result<()> {
        let replies = self.call(&[command])?;
        let accepted = replies.into_iter().try_for_each(|reply| reply.accepted().map(drop));
        accepted.map_err(|Refused(said)| match secret.filter(|secret| !secret.is_empty()) {
            Some(secret) => io::Error::other(said.replace(secret, "***")),
            None => io::Error::other(said),
        })
    }

    /// Sends commands in one write, and reads the reply to each. An error ends the connection.
    pub(crate) fn call(&mut self, commands: &[&[&[u8]]]) -> io::Result<Vec<Reply>> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|command| resp::encode(&mut bytes, command));
        (&*self.transport).write_all(&bytes)?;
        (&*self.transport).flush()?;
        commands.iter().map(|_| self.replies.next()).collect()
    }

    /// Publishes the first `count` messages of the batch in one write, and removes those that got a
    /// reply. Returns the messages that the broker has rejected. An error ends the connection.
    pub(super) fn publish(
        &mut self,
        batch: &mut VecDeque<Outbound>,
        count: usize,
    ) -> (Vec<(Outbound, String)>, io::Result<()>) {
        let count = count.min(batch.len());
        let mut bytes = Vec::new();
        for message in batch.iter().take(count) {
            resp::encode(&mut bytes, &[b"PUBLISH", message.room.as_bytes(), &message.bytes]);
        }
        // A broker may reject a large message at its first bytes and close the connection. Its
        // replies are read even after a failed write.
        let mut transport = &*self.transport;
        let written = transport.write_all(&bytes).and_then(|()| transport.flush());
        let mut refused = Vec::new();
        for _ in 0..count {
            let reply = match self.replies.next() {
                Ok(reply) => reply,
                Err(error) => return (refused, written.and(Err(error))),
            };
            let message = batch.pop_front();
            if let (Err(Refused(error)), Some(message)) = (reply.accepted(), message) {
                refused.push((message, error));
            }
        }
        (refused, written)
    }
}

/// State and delays of an outage of the broker.
pub(super) struct Outage {
    /// Beginning of the outage.
    since: Option<Instant>,
    wait: Duration,
    /// When the current connection first worked.
    up: Option<Instant>,
}

impl Outage {
    pub(super) fn none() -> Outage {
        Outage {
            since: None,
            wait: FIRST_WAIT,
            up: None,
        }
    }

    /// Notes a failure. Returns `true` if it begins an outage.
    pub(super) fn failed(&mut self) -> bool {
        let begins = self.since.is_none();
        self.since.get_or_insert_with(osier::time::now);
        begins
    }

    /// Sleeps for the delay before the next attempt, and doubles the delay. Up to a quarter of it is left out at random: the broker would
    /// meet all processes at the same moment.
    pub(super) fn sleep(&mut self) {
        if self
            .up
            .take()
            .is_some_and(|up| osier::time::now().saturating_duration_since(up) >= STEADY)
        {
            self.wait = FIRST_WAIT;
        }
        osier::sleep(self.wait - self.wait.mul_f64(osier::random() as f64 / u64::MAX as f64 / 4.0));
        self.wait = (2 * self.wait).min(LONGEST_WAIT);
    }

    /// Notes that the connection works. Returns the length of the outage that this ends.
    pub(super) fn over(&mut self) -> Option<Duration> {
        self.up.get_or_insert_with(osier::time::now);
        self.since
            .take()
            .map(|since| osier::time::now().saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use osier::time::VirtualClock;

    use super::*;

    #[test]
    fn processes_do_not_come_back_all_at_once() {
        let runtime = osier::Runtime::builder().clock(VirtualClock::new());
        let waits: HashSet<Duration> = runtime.build().unwrap().run(|| {
            let wait = |_| {
                let (mut outage, start) = (Outage::none(), osier::time::now());
                outage.wait = LONGEST_WAIT;
                outage.sleep();
                osier::time::now() - start
            };
            (0..20).map(wait).collect()
        });
        assert!(waits.len() > 10, "{waits:?}");
        // Timers may be a millisecond late.
        let bounds = LONGEST_WAIT * 3 / 4..=LONGEST_WAIT + Duration::from_millis(2);
        assert!(waits.iter().all(|wait| bounds.contains(wait)), "{waits:?}");
    }
}
