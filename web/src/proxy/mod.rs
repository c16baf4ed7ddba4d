//! A reverse proxy as a handler: it forwards requests to an [`Upstream`] over HTTP/1.1 and the responses to the client.
//!
//! ```text
//!   Proxy::answer ─▶ outgoing: a new request head ─▶ lease ─▶ sender: head and body, while the client sends them
//!       │ a second attempt where that is safe  ◀── failed ──┤      (on a second fiber while the response is awaited)
//!       ▼                                                   ▼
//!   client_response: a new response head ◀── backend_response: the backend's head and body, parsed strictly
//!       ├─ small: read completely, the connection given back, then sent
//!       ├─ large: relay, spliced while the client keeps up, then read ahead of it by a bounded number of bytes
//!       └─ 101 that the client has asked for: tunnel
//! ```
//!
//! Three fibers of one worker take part:
//!
//! - The connection's fiber waits for the response and writes to the client.
//! - A second one sends the request body, so that a response can arrive and pass before the body has ended. It is stopped
//!   between two calls when the response's head arrives, and continues beside the response's body.
//! - A third one reads the response ahead of a slow client.
//!
//! All of them end with the request. When the client leaves, its fiber is cancelled and the other two with it. The backend's
//! connection is closed then.
//!
//! Framing never passes, in either direction: Content-Length, Transfer-Encoding and Connection are made anew from the result of
//! the strict parsers. The fields that Connection names, trailers and the backend's `100 Continue` do not pass either.

mod backend_response;
mod client_response;
mod exchange;
mod forwarded;
mod outgoing;
mod relay;
mod sender;
mod tunnel;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use osier_http::Limits;
use osier_http::path::canonical_part;

use crate::upstream::Upstream;
use crate::{Handler, Request, Response};

/// The longest body of known length that is read completely before the client's response begins, in bytes. The backend's
/// connection is free at once then, and the client gets 502 instead of half a response if the backend breaks off. Two reads of
/// a busy connection; nginx collects as much.
const SMALL: u64 = 64 << 10;

/// The Host field of requests to the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Host {
    /// The host of the client's request.
    #[default]
    Preserve,
    /// The backend's own address; `localhost` for a Unix socket.
    Backend,
    /// This value.
    Fixed(String),
}

type Trust = Box<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// A reverse proxy to one [`Upstream`]. Clones share one proxy.
///
/// ```
/// use osier_web::Router;
/// use osier_web::proxy::Proxy;
/// use osier_web::upstream::Upstream;
///
/// let app = Upstream::builder("app").backend("127.0.0.1:3000".parse()?).build()?;
/// let api = Upstream::builder("api").backend("unix:/run/api.sock".parse()?).build()?;
/// let router = Router::new()
///     .nest("/api", Router::new().fallback(Proxy::new(api).replace_prefix("/api", "/v1").handler()))
///     .fallback(Proxy::new(app).handler());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Requests to the backend
///
/// The backend gets the method, the target, and the client's fields without the hop-by-hop ones. `X-Forwarded-For`,
/// `X-Forwarded-Proto`, `X-Forwarded-Host` and `Forwarded` are added.
///
/// - A path with a `.` or `..` segment gets 400, percent-encoded or not, between `/`, `\\`, `%2F` or `%5C`, with a `;parameter` or
///   without: this server and the backend could disagree about its meaning.
/// - The fields `X-Forwarded-*`, `Forwarded` and `X-Real-IP` of a client that is not [trusted](Proxy::trust) are left out, also
///   in a spelling with `_` for `-`.
/// - `Expect: 100-continue` is answered here, once there is a connection to the backend.
///
/// # Responses to the client
///
/// | result | cause |
/// |---|---|
/// | 502 | connecting failed; the backend has closed the connection, or its response is not valid HTTP |
/// | 503 | every backend is down, or has as many connections as it may have |
/// | 504 | connecting, or the response, took too long |
/// | the connection ends | the backend breaks off inside a body that the client has received a part of |
///
/// Each of them is logged with the request id. Trailers of the backend are dropped. Clients of HTTP/1.1 get the interim responses
/// of the backend, apart from `100 Continue`. A 103 Early Hints keeps its `Link` and `Content-Security-Policy`; other interim
/// responses lose all fields, because layers see only the final response.
///
/// # Retries
///
/// A request is sent a second time, on a new connection and to another backend if there is one, when the connection breaks before
/// the first byte of the response. In addition, either no byte of the request was sent, or the method is idempotent
/// (RFC 9110 9.2.2) and there is no body.
///
/// # Slow clients
///
/// The response is read ahead of the client by at most [`read_ahead`](Proxy::read_ahead) bytes. A response that fits is read at
/// once, and the backend's connection is free however slow the client is. With a longer one the backend waits for the client.
/// The client has to take some bytes in every [`Timeouts::write`](crate::Timeouts::write). A client that sends its body slowly
/// holds a connection of the backend for that time; it has to send some bytes in every
/// [`Timeouts::body`](crate::Timeouts::body).
#[derive(Clone)]
pub struct Proxy(Arc<Settings>);

struct Settings {
    upstream: Upstream,
    host: Host,
    /// A prefix of the path and its replacement.
    prefix: Option<(String, String)>,
    trust: Option<Trust>,
    forwarded: bool,
    first_byte: Duration,
    between: Duration,
    tunnels: bool,
    tunnel_idle: Duration,
    tunnel_half_closed: Duration,
    read_ahead: usize,
    limits: Limits,
}

impl Proxy {
    /// Makes a proxy that forwards every request to `upstream`.
    pub fn new(upstream: Upstream) -> Proxy {
        let s = Duration::from_secs;
        Proxy(Arc::new(Settings {
            upstream,
            host: Host::Preserve,
            prefix: None,
            trust: None,
            forwarded: true,
            first_byte: s(60),
            between: s(60),
            tunnels: true,
            tunnel_idle: s(3600),
            tunnel_half_closed: s(30),
            read_ahead: 256 << 10,
            limits: Limits {
                // Backends send longer heads than browsers: cookies and policies.
                head_bytes: 64 << 10,
                ..Limits::DEFAULT
            },
        }))
    }

    /// Sets the Host field of requests to the backend. Default: [`Host::Preserve`].
    pub fn host(self, host: Host) -> Self {
        self.set(|settings| settings.host = host)
    }

    /// Removes `prefix` from the path: `/api/x` becomes `/x`, and `/api` becomes `/`. Other paths stay unchanged.
    ///
    /// The prefix and the path are compared in their canonical forms ([`Path`](crate::path::Path)), so `/%61pi/x` and `//api/x`
    /// also become `/x`. The rest of the path is forwarded as the client wrote it.
    pub fn strip_prefix(self, prefix: &str) -> Self {
        self.replace_prefix(prefix, "")
    }

    /// Replaces `prefix` by `with`, where the prefix ends at a `/` or at the end of the path. A prefix with a bad escape matches
    /// no path.
    pub fn replace_prefix(self, prefix: &str, with: &str) -> Self {
        let (prefix, with) = (prefix.trim_end_matches('/'), with.trim_end_matches('/'));
        let prefix = canonical_part(prefix).unwrap_or(Cow::Borrowed(prefix));
        let pair = (prefix.into_owned(), with.to_owned());
        self.set(|settings| settings.prefix = Some(pair))
    }

    /// Sets which clients are trusted: proxies in front of this server. The fields `X-Forwarded-*`, `Forwarded` and `X-Real-IP` of
    /// a client whose address `trust` accepts are passed on and extended. Default: nobody.
    pub fn trust(self, trust: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.trust = Some(Box::new(trust)))
    }

    /// Sets whether `X-Forwarded-For`, `X-Forwarded-Proto`, `X-Forwarded-Host` and `Forwarded` are added. Default: true.
    pub fn forwarded(self, forwarded: bool) -> Self {
        self.set(|settings| settings.forwarded = forwarded)
    }

    /// Sets the longest time from the end of the request to the first byte of the response, and for the backend to take the next
    /// bytes of the request. After it the client gets 504. Default: 60 s.
    pub fn first_byte_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.first_byte = limit)
    }

    /// Sets the longest time for the next bytes of a response. Default: 60 s.
    pub fn between_bytes_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.between = limit)
    }

    /// Sets whether a client may change the protocol (`Upgrade`, to WebSocket for example) when the backend agrees.
    /// Default: true.
    pub fn tunnels(self, tunnels: bool) -> Self {
        self.set(|settings| settings.tunnels = tunnels)
    }

    /// Sets the idle timeout of a tunnel: the longest time without a byte in either direction. Default: one hour.
    pub fn tunnel_idle_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.tunnel_idle = limit)
    }

    /// Sets the idle timeout of a tunnel after one side has closed its sending direction. A side that has left completely looks
    /// the same until something is sent to it. Default: 30 s.
    pub fn tunnel_half_closed_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.tunnel_half_closed = limit)
    }

    /// Sets how many bytes of a response are read before the client takes them. Rounded up to pieces of 64 KiB, and one piece
    /// more. Default: 256 KiB.
    pub fn read_ahead(self, bytes: usize) -> Self {
        self.set(|settings| settings.read_ahead = bytes)
    }

    /// Sets the longest head of a response, in bytes. The client gets 502 for a longer one. Default: 64 KiB.
    pub fn head_bytes(self, bytes: usize) -> Self {
        self.set(|settings| settings.limits.head_bytes = bytes)
    }

    /// The upstream that requests are forwarded to.
    pub fn upstream(&self) -> &Upstream {
        &self.0.upstream
    }

    /// Turns the proxy into a handler for [`Router::fallback`](crate::Router::fallback) or a [`Route`](crate::Route).
    pub fn handler(self) -> impl Fn(&mut Request<'_>) -> Response + Clone + Send + Sync + 'static {
        move |request| self.answer(request)
    }

    /// Forwards one request and returns the response.
    ///
    /// # Suspends
    ///
    /// Always, until there is a connection, and until the response's head has arrived.
    ///
    /// # Cancellation
    ///
    /// The connection to the backend is closed. The backend may still process the request.
    pub fn answer(&self, request: &mut Request<'_>) -> Response {
        exchange::pass(&self.0, request)
    }

    /// Changes the settings.
    ///
    /// # Panics
    ///
    /// Panics after the first clone.
    fn set(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Arc::into_inner(self.0).expect("a proxy is configured before it is cloned");
        change(&mut settings);
        Proxy(Arc::new(settings))
    }
}

impl From<Proxy> for Handler {
    fn from(proxy: Proxy) -> Handler {
        proxy.handler().into()
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("upstream", &self.0.upstream)
            .field("host", &self.0.host)
            .field("prefix", &self.0.prefix)
            .finish_non_exhaustive()
    }
}
