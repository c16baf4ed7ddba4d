//! The report of a server about each request that it has served.

use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use osier_http::Head;

use crate::conn::peer::Peer;
use crate::conn::times::Times;
use crate::conn::tunnel::{EndedTunnel, TunnelHook};
use crate::listen::ip_of_client;
use crate::request::Marks;
use crate::request::trace::TraceContext;
use crate::{Handler, RequestId};

/// The status that the observer sees if the client left before the response. nginx uses it too.
pub(crate) const CLIENT_GONE: u16 = 499;

/// The hook that is called for every served request.
pub(crate) type Observer = Arc<dyn Fn(&Served<'_>) + Send + Sync>;

/// One served request, as the hook of [`Server::on_request`](crate::Server::on_request) sees it.
pub struct Served<'a> {
    pub(crate) head: Option<&'a Head<'a>>,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) nanos: u64,
    pub(crate) client: Client<'a>,
    pub(crate) marks: &'a Marks,
    pub(crate) handler: &'a Handler,
    /// The place for the hook of the tunnel's end, if the response begins one.
    pub(crate) tunnel: Option<&'a Cell<Option<TunnelHook>>>,
}

/// The client of a request.
#[derive(Clone, Copy)]
pub(crate) enum Client<'a> {
    Peer(Peer<'a>),
    /// The address, and whether a proxy has named it.
    Known(SocketAddr, bool),
}

impl<'a> Client<'a> {
    #[inline]
    pub(crate) fn of(peer: Peer<'a>, marks: &Marks) -> Client<'a> {
        match marks.client.get().and_then(|client| client.ip) {
            Some(ip) => Client::Known(SocketAddr::new(ip, 0), true),
            None => Client::Peer(peer),
        }
    }

    /// The address, and whether a proxy has named it.
    pub(crate) fn address(self) -> (SocketAddr, bool) {
        match self {
            Client::Peer(peer) => (peer.peer(), peer.is_proxied()),
            Client::Known(address, is_proxied) => (address, is_proxied),
        }
    }
}

impl<'a> Served<'a> {
    /// The method. Empty if the request was refused before the method was read.
    pub fn method(&self) -> &'a str {
        self.head.map_or("", |head| head.method().as_str())
    }

    /// The request target as it was sent. Empty if the request was refused before the target was
    /// read.
    pub fn target(&self) -> &'a str {
        self.head.map_or("", |head| head.target())
    }

    /// The host of the request. `None` if the request was refused before it was read, and for an
    /// HTTP/1.0 request without one.
    pub fn host(&self) -> Option<&'a str> {
        self.head.and_then(|head| head.host())
    }

    /// The path of the target, percent-encoded. Empty if the request was refused before it was read.
    pub fn path(&self) -> &'a str {
        self.head.map_or("", |head| head.path())
    }

    /// The query: the part of the target after its first `?`.
    pub fn query(&self) -> Option<&'a str> {
        self.head.and_then(|head| head.query())
    }

    /// The pattern of the route, as [`Request::pattern`](crate::Request::pattern) says: a label for metrics, of which there are only
    /// as many as the router has routes. Each call looks the path up again.
    ///
    /// ```
    /// use osier_web::{Router, Server, test::Client};
    /// use std::{collections::HashMap, sync::{Arc, Mutex}};
    ///
    /// let counts = Arc::new(Mutex::new(HashMap::<(String, u16), u64>::new()));
    /// let shared = counts.clone();
    /// let server = Server::new(Router::new().get("/users/{id}", |_| "a user\n")).on_request(move |served| {
    ///     let route = served.pattern().unwrap_or("none").to_owned();
    ///     *shared.lock().unwrap().entry((route, served.status().as_u16())).or_default() += 1;
    /// });
    /// let client = Client::of(server);
    /// for path in ["/users/1", "/users/2", "/none"] {
    ///     client.get(path).send();
    /// }
    /// let counts = counts.lock().unwrap();
    /// assert_eq!((counts[&("/users/{id}".to_owned(), 200)], counts[&("none".to_owned(), 404)]), (2, 1));
    /// ```
    pub fn pattern(&self) -> Option<&'a str> {
        let (read, mut params) = (OnceCell::new(), None);
        let pattern = self.handler.find_for(self.head?, &read, &mut params).pattern;
        (!pattern.is_empty()).then_some(pattern)
    }

    /// The value of the request's first field called `name`.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.head.and_then(|head| head.header(name))
    }

    /// The protocol: `HTTP/2.0`, `HTTP/1.1` or `HTTP/1.0`.
    pub fn protocol(&self) -> &'static str {
        match self.head.map(|head| head.version()) {
            Some(osier_http::Version::Http10) => "HTTP/1.0",
            Some(osier_http::Version::Http2) => "HTTP/2.0",
            _ => "HTTP/1.1",
        }
    }

    /// The status of the response. 499, as in nginx, if the client left before there was one.
    #[inline]
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).expect("the server's statuses have three digits")
    }

    /// Body bytes handed to the connection, without the head and without chunk framing.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the request's body that the handler has read, without chunk framing.
    #[inline]
    pub fn received(&self) -> u64 {
        self.marks.received.get()
    }

    /// Time from the parsed head to the last byte handed to the connection.
    #[inline]
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Its place in a trace, if [one was started](crate::Request::start_trace).
    pub fn trace(&self) -> Option<TraceContext> {
        self.marks.trace.get()
    }

    /// The time by phase, as far as it was measured.
    pub fn times(&self) -> Times {
        self.marks.timing.times(self.nanos)
    }

    /// The time for which it waited for its worker, if [running](crate::Phase::Run) was all that it did since, as most requests do: code
    /// that adds up times then needs no [`times`](Served::times). `None` if it has suspended, or if its connection was accepted for it.
    #[inline]
    pub fn queued(&self) -> Option<Duration> {
        self.marks.timing.queued().map(Duration::from_nanos)
    }

    /// The address of the client. `0.0.0.0:0` on a Unix socket.
    pub fn peer(&self) -> SocketAddr {
        self.client.address().0
    }

    /// The client's IP address. `None` on a Unix socket, unless a trusted balancer has named one.
    pub fn client_ip(&self) -> Option<IpAddr> {
        let (address, is_proxied) = self.client.address();
        ip_of_client(address, is_proxied)
    }

    /// Whether the response is the 101 of a proxy. The connection carries the bytes of another protocol from now on.
    #[inline]
    pub fn begins_tunnel(&self) -> bool {
        self.tunnel.is_some()
    }

    /// Calls `hook` once the tunnel that [begins](Served::begins_tunnel) has ended, in general on the worker that had it, or once another
    /// process has it after an upgrade. The last hook counts. Without a tunnel, `hook` is dropped. It runs in a destructor: it must not
    /// suspend, and its panic is logged and goes no further.
    ///
    /// ```
    /// use osier_web::{Router, Server, proxy::Proxy, upstream::Upstream};
    ///
    /// let upstream = Upstream::builder("app").backend("127.0.0.1:3000".parse()?).build()?;
    /// let router = Router::new().fallback(Proxy::new(upstream).handler());
    /// let server = Server::new(router).on_request(|served| {
    ///     let path = served.path().to_owned();
    ///     served.at_tunnel_end(move |tunnel| {
    ///         let (end, time) = (tunnel.end().as_str(), tunnel.duration());
    ///         println!("{path}: {} bytes in, {} out, {end} after {time:?}", tunnel.received(), tunnel.sent());
    ///     });
    /// });
    /// # drop(server);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_tunnel_end(&self, hook: impl FnOnce(&EndedTunnel<'_>) + Send + 'static) {
        if let Some(place) = self.tunnel {
            place.set(Some(Box::new(hook)));
        }
    }

    /// The request id, which is made now if nobody has asked for it.
    pub fn id(&self) -> RequestId {
        self.marks.id(self.head)
    }

    /// The name of the user that [`Request::set_user`](crate::Request::set_user) has set.
    pub fn user(&self) -> Option<Arc<str>> {
        self.marks.user()
    }

    /// The label that [`Request::set_label`](crate::Request::set_label) has set, or 0.
    #[inline]
    pub fn label(&self) -> u32 {
        self.marks.label.get()
    }
}

osier_queue::impl_debug!(Served<'a>, self => {
    method: self.method(),
    target: self.target(),
    status: self.status(),
    bytes: self.bytes,
    received: self.received(),
    duration: self.duration(),
    peer: self.peer(),
});
