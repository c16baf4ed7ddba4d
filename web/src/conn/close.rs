//! Why connections end.

use std::io;

use osier::Cancelled;

/// The reason why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The client closed or reset the connection.
    Client,
    /// The response before was the last one: the client or the handler had asked for that, or the client had not sent all of its
    /// request.
    LastResponse,
    /// No request began within [`Timeouts::idle`](crate::Timeouts::idle), or a tunnel of a proxy was silent for its idle timeout.
    IdleTimeout,
    /// The TLS handshake was not done within [`Timeouts::handshake`](crate::Timeouts::handshake).
    HandshakeTimeout,
    /// The head of a request, or a PROXY header, did not arrive within [`Timeouts::header`](crate::Timeouts::header).
    HeaderTimeout,
    /// The client sent no bytes of a body for [`Timeouts::body`](crate::Timeouts::body).
    BodyTimeout,
    /// The client took no bytes of a response for [`Timeouts::write`](crate::Timeouts::write).
    WriteTimeout,
    /// The client violated HTTP, TLS, the PROXY protocol or a limit of [`Limits`](crate::Limits).
    ProtocolError,
    /// The client had its most connections already: see
    /// [`Server::max_connections_per_client`](crate::Server::max_connections_per_client).
    ClientLimit,
    /// It was idle, and a new connection needed its place: see
    /// [`Server::max_connections`](crate::Server::max_connections). Or memory was short, and it was idle, had sent a part of a head, took
    /// nothing of a response, or sent nothing of a body.
    Evicted,
    /// The server was shutting down.
    Shutdown,
    /// It had left HTTP, as WebSockets and tunnels do. The new protocol has ended, by a close frame if it was a WebSocket.
    Upgraded,
    /// Another process has it: see [`Server::upgradable`](crate::Server::upgradable).
    Moved,
    /// A response could not be finished: its handler, its file or its backend failed after the head was sent. Or the code of a WebSocket
    /// failed, or the backend of a tunnel.
    Failed,
    /// The client of a WebSocket sent nothing within [`ws::Options::pong_within`](crate::ws::Options::pong_within) after a ping.
    PingTimeout,
    /// The client of a WebSocket was too slow: see [`ws::End::TooSlow`](crate::ws::End::TooSlow).
    TooSlow,
}

impl CloseReason {
    /// Every reason.
    pub const ALL: &[CloseReason] = &[
        CloseReason::Client,
        CloseReason::LastResponse,
        CloseReason::IdleTimeout,
        CloseReason::HandshakeTimeout,
        CloseReason::HeaderTimeout,
        CloseReason::BodyTimeout,
        CloseReason::WriteTimeout,
        CloseReason::ProtocolError,
        CloseReason::ClientLimit,
        CloseReason::Evicted,
        CloseReason::Shutdown,
        CloseReason::Upgraded,
        CloseReason::Moved,
        CloseReason::Failed,
        CloseReason::PingTimeout,
        CloseReason::TooSlow,
    ];

    /// The reason in lower case, with underscores: `idle_timeout`.
    pub fn as_str(self) -> &'static str {
        match self {
            CloseReason::Client => "client",
            CloseReason::LastResponse => "last_response",
            CloseReason::IdleTimeout => "idle_timeout",
            CloseReason::HandshakeTimeout => "handshake_timeout",
            CloseReason::HeaderTimeout => "header_timeout",
            CloseReason::BodyTimeout => "body_timeout",
            CloseReason::WriteTimeout => "write_timeout",
            CloseReason::ProtocolError => "protocol_error",
            CloseReason::ClientLimit => "client_limit",
            CloseReason::Evicted => "evicted",
            CloseReason::Shutdown => "shutdown",
            CloseReason::Upgraded => "upgraded",
            CloseReason::Moved => "moved",
            CloseReason::Failed => "failed",
            CloseReason::PingTimeout => "ping_timeout",
            CloseReason::TooSlow => "too_slow",
        }
    }

    /// The reason for a response that could not be sent.
    pub(crate) fn of_output(error: &io::Error) -> CloseReason {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, WriteZero};
        match error.kind() {
            TimedOut => CloseReason::WriteTimeout,
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | WriteZero => CloseReason::Client,
            _ if Cancelled::is(error) => CloseReason::Client,
            _ => CloseReason::Failed,
        }
    }
}

/// A connection begins or ends. See [`Server::on_connection`](crate::Server::on_connection).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The server has accepted a connection.
    Opened,
    /// A connection has ended.
    Closed(CloseReason),
}

/// The hook of [`Server::on_connection`](crate::Server::on_connection).
pub(crate) type ConnectionHook = Box<dyn Fn(ConnectionEvent) + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_all_listed_at_their_places() {
        for (place, reason) in CloseReason::ALL.iter().copied().enumerate() {
            assert_eq!(reason as usize, place, "{}", reason.as_str());
        }
    }
}
