//! The settings of a server that its connections read: timeouts, trusted balancers, the log.

use std::net::IpAddr;
use std::time::Duration;

use crate::conn::log::record::Record;

/// Times for which a server waits for its clients. All are on by default. `Duration::MAX` means for
/// ever.
///
/// They bound clients, and not handlers: for those use [`osier::timeout`], as the page of [`Next`](crate::Next) does.
///
/// ```
/// use osier_web::{Router, Server, Timeouts};
/// use std::time::Duration;
///
/// let timeouts = Timeouts { idle: Duration::from_secs(15), ..Timeouts::default() };
/// let server = Server::new(Router::new()).timeouts(timeouts);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias("TimeoutLayer", "keep_alive"))]
pub struct Timeouts {
    /// Time for a TLS handshake, counted from the acceptance of the connection. Then close. Default: 10 s.
    pub handshake: Duration,
    /// Time for a whole request head, counted from its first byte. Then 408 and close. Default: 10
    /// s.
    pub header: Duration,
    /// Time for the next bytes of a request body that a handler reads. Then the read fails with
    /// `TimedOut`. Default: 30 s.
    pub body: Duration,
    /// Idle timeout: time until the first byte of the next request on a keep-alive connection. Then
    /// close. Default: 60 s.
    pub idle: Duration,
    /// Time for a client to take the next bytes of a response. Then close. Default: 30 s.
    pub write: Duration,
    /// Time for in-flight requests after the start of a graceful shutdown. Then their connections
    /// are cut. Default: 10 s.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let s = Duration::from_secs;
        Timeouts {
            handshake: s(10),
            header: s(10),
            body: s(30),
            idle: s(60),
            write: s(30),
            drain: s(10),
        }
    }
}

/// Whether the peer at an address must begin with a PROXY header. `None` is a Unix socket.
pub(crate) type Trusted = Box<dyn Fn(Option<IpAddr>) -> bool + Send + Sync>;

/// The hook that is called for every line of the operator's log.
pub(crate) type Log = Box<dyn Fn(&Record<'_>) + Send + Sync>;
