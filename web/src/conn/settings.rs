//! Settings of a server that its connections read: how long they wait, whom they trust, where log lines go.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// How long a server waits for its clients. All of them are on by default; `Duration::MAX` is for ever.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time for a whole request head, counted from its first byte; then 408 and close. 10 s.
    pub header: Duration,
    /// Time for the next bytes of a request body that a handler reads; then the read fails with `TimedOut`. 30 s.
    pub body: Duration,
    /// Idle timeout: time for the first byte of the next request on a keep-alive connection; then close. 60 s.
    pub idle: Duration,
    /// Time for a client to take the next bytes of a response; then close. 30 s.
    pub write: Duration,
    /// Time for in-flight requests after a shutdown has been asked for; then their connections are cut. 10 s.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let s = Duration::from_secs;
        Timeouts {
            header: s(10),
            body: s(30),
            idle: s(60),
            write: s(30),
            drain: s(10),
        }
    }
}

/// Asked whether a peer must say in the PROXY protocol whom it speaks for.
pub(crate) type Trusted = Box<dyn Fn(Option<IpAddr>) -> bool + Send + Sync>;

/// Called for every line the server has to say to its operator.
pub(crate) type Log = Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;
