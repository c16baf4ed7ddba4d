//! What a server can be told: how long it waits, and whom it reports to.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use osier_http::Head;

use crate::RequestId;
use crate::listen::ip_of_client;

/// How long a server waits for its clients. All of them are on by default; `Duration::MAX` is for ever.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a whole request head, counted from its first byte: then 408 and close. 10 s.
    pub header: Duration,
    /// For the next bytes of a request body that a handler reads: then the read fails with `TimedOut`. 30 s.
    pub body: Duration,
    /// For the first byte of the next request on a kept connection: then close. 60 s.
    pub idle: Duration,
    /// For a client to take the next bytes of a response: then close. 30 s.
    pub write: Duration,
    /// For running requests once a shutdown has been asked for: then their connections are cut. 10 s.
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

/// One answered request, as the hook of [`Server::on_request`](crate::Server::on_request) sees it.
pub struct Served<'a> {
    pub(crate) head: Option<&'a Head<'a>>,
    pub(crate) status: StatusCode,
    pub(crate) bytes: u64,
    pub(crate) duration: Duration,
    pub(crate) peer: SocketAddr,
    pub(crate) is_told: bool,
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

    /// From the parsed head to the last byte handed to the connection.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// The address of the client; `0.0.0.0:0` on a Unix socket.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The client's IP address; none on a Unix socket, unless a trusted balancer has told one.
    pub fn client_ip(&self) -> Option<IpAddr> {
        ip_of_client(self.peer, self.is_told)
    }

    /// The request's number, if anybody has asked for it.
    pub fn id(&self) -> Option<RequestId> {
        self.id
    }

    /// What [`Request::set_label`](crate::Request::set_label) left; 0 otherwise.
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

/// Asked whether a peer must say in the PROXY protocol whom it speaks for.
pub(crate) type Trusted = Box<dyn Fn(Option<IpAddr>) -> bool + Send + Sync>;

/// Called for every answered request.
pub(crate) type Observer = Box<dyn Fn(&Served<'_>) + Send + Sync>;

/// Called for every line the server has to say to its operator.
pub(crate) type Log = Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;
