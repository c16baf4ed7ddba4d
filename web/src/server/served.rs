//! The report of a server about each request that it has answered.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use osier_http::Head;

use crate::RequestId;
use crate::listen::ip_of_client;

/// The status that the observer sees for a client that has gone before the response, as nginx has it.
pub(crate) const CLIENT_GONE: u16 = 499;

/// Called for every answered request.
pub(crate) type Observer = Box<dyn Fn(&Served<'_>) + Send + Sync>;

/// One answered request, as the hook of [`Server::on_request`](crate::Server::on_request) sees it.
pub struct Served<'a> {
    pub(crate) head: Option<&'a Head<'a>>,
    pub(crate) status: StatusCode,
    pub(crate) bytes: u64,
    pub(crate) duration: Duration,
    pub(crate) peer: SocketAddr,
    pub(crate) is_proxied: bool,
    pub(crate) id: Option<RequestId>,
    pub(crate) label: u32,
}

impl<'a> Served<'a> {
    /// The method; empty when the request was refused before it could be understood.
    pub fn method(&self) -> &'a str {
        self.head.map_or("", |head| head.method().as_str())
    }

    /// The request target as it was sent; empty when the request was refused before it could be understood.
    pub fn target(&self) -> &'a str {
        self.head.map_or("", |head| head.target())
    }

    /// The first field of that name in the request.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.head.and_then(|head| head.header(name))
    }

    /// The protocol: `HTTP/1.1` or `HTTP/1.0`.
    pub fn protocol(&self) -> &'static str {
        match self.head.map(|head| head.version()) {
            Some(osier_http::Version::Http10) => "HTTP/1.0",
            _ => "HTTP/1.1",
        }
    }

    /// The status that was answered; 499, as nginx has it, when the client was gone before there was one.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Bytes of body handed to the connection, without the head and without chunk framing.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The time from the parsed head to the last byte handed to the connection.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// The address of the client; `0.0.0.0:0` on a Unix socket.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The client's IP address; none on a Unix socket, unless a trusted balancer has named one.
    pub fn client_ip(&self) -> Option<IpAddr> {
        ip_of_client(self.peer, self.is_proxied)
    }

    /// The request's number, if anybody has asked for it.
    pub fn id(&self) -> Option<RequestId> {
        self.id
    }

    /// The label that [`Request::set_label`](crate::Request::set_label) has left; 0 otherwise.
    pub fn label(&self) -> u32 {
        self.label
    }
}

impl fmt::Debug for Served<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served")
            .field("method", &self.method())
            .field("target", &self.target())
            .field("status", &self.status)
            .field("bytes", &self.bytes)
            .field("duration", &self.duration)
            .field("peer", &self.peer)
            .finish()
    }
}
