//! The client's end of TLS with a server that this process connects to: a backend, Redis.

use std::io;
use std::time::Duration;

use osier::net::Stream;
use osier_tls::Connector;

use crate::Address;
use crate::conn::transport::Transport;

/// How TLS with one server begins.
#[derive(Clone)]
pub(crate) struct Secured {
    connector: Connector,
    /// The same for HTTP/2, or else HTTP/1.1.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    http2: Connector,
    /// The name that the server is told, and that its certificate must have.
    name: String,
}

impl Secured {
    /// Makes it for the server at `address`, whose host is its name by default. That of a Unix socket is `localhost`.
    pub(crate) fn new(connector: Connector, name: Option<&str>, address: &Address) -> Secured {
        let host = match address {
            Address::Tcp(host) => host.rsplit_once(':').map_or(&**host, |(host, _)| host),
            Address::Unix(_) => "localhost",
        };
        let name = name.unwrap_or(host.trim_start_matches('[').trim_end_matches(']'));
        Secured {
            #[cfg(all(feature = "h2", feature = "proxy"))]
            http2: connector.with_alpn(["h2", "http/1.1"]),
            connector,
            name: name.to_owned(),
        }
    }

    /// Makes the handshake on a new connection. The timeouts of the socket are those of the handshake afterwards.
    ///
    /// # Suspends
    ///
    /// Until the handshake is done, for `limit` at most.
    ///
    /// # Errors
    ///
    /// `TimedOut`, `InvalidData` for a server that is not trusted, and the errors of the socket.
    pub(crate) fn shake_hands(&self, stream: Stream, limit: Duration) -> io::Result<Transport> {
        self.shake_hands_as(&self.connector, stream, limit)
    }

    /// Makes the handshake as [`shake_hands`](Secured::shake_hands) does, and offers HTTP/2 and HTTP/1.1.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    pub(crate) fn shake_hands_for_http2(&self, stream: Stream, limit: Duration) -> io::Result<Transport> {
        self.shake_hands_as(&self.http2, stream, limit)
    }

    fn shake_hands_as(&self, connector: &Connector, stream: Stream, limit: Duration) -> io::Result<Transport> {
        let stream = connector.connect(&self.name, stream)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        stream.handshake()?;
        Ok(Transport::Tls(Box::new(stream)))
    }
}
