//! A connection as a list shows it to people who look at the server at work.

use std::net::SocketAddr;
use std::time::Duration;

use crate::conn::protocol::Protocol;

/// A connection at one moment. See [`Connections::list`](crate::Connections::list).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The client's address. It is the one that a trusted balancer has named, if there is one, and `0.0.0.0:0` on a Unix socket.
    pub peer: SocketAddr,
    /// The protocol that it speaks, with the TLS version.
    pub protocol: Protocol,
    /// Its present activity.
    pub state: ConnectionState,
    /// Streams of HTTP/2 that have begun and not ended.
    pub streams: usize,
    /// Time since the server accepted it, or got it from another process.
    pub age: Duration,
}

/// The present activity of a connection. See [`ConnectionInfo::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionState {
    /// The TLS handshake is not done.
    Handshake,
    /// It waits for its first request.
    New,
    /// It waits for the rest of the head of a request.
    Head,
    /// It serves a request.
    Serving,
    /// It waits for its next request.
    Idle,
    /// It has left HTTP for another protocol, as a WebSocket does.
    Upgraded,
    /// It ends.
    Closing,
}

impl ConnectionState {
    /// The state in lower case: `serving`.
    pub fn as_str(self) -> &'static str {
        match self {
            ConnectionState::Handshake => "handshake",
            ConnectionState::New => "new",
            ConnectionState::Head => "head",
            ConnectionState::Serving => "serving",
            ConnectionState::Idle => "idle",
            ConnectionState::Upgraded => "upgraded",
            ConnectionState::Closing => "closing",
        }
    }
}
