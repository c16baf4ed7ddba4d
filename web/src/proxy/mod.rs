//! A reverse proxy as a handler: requests go to an [`Upstream`] over HTTP/1.1, and what it answers goes to the client.
//!
//! ```text
//!   Proxy::handle ─▶ outgoing: the head, made anew ─▶ lease ─▶ sender: head and body, from the client as it sends them
//!       │ once more, where that is safe     ◀── failed ──┤          (a fiber of its own while the answer is awaited)
//!       ▼                                                ▼
//!   answer: the client's head, made anew ◀── wire: the backend's head and body, read strictly
//!       ├─ small: read as a whole, the connection given back, then sent
//!       ├─ else: relay, spliced as long as the client keeps up, then read ahead of it by a bounded number of bytes
//!       └─ 101 to who has asked for it: tunnel
//! ```
//!
//! Who does what: the connection's fiber waits for the answer and writes to the client. A second fiber of the same worker
//! sends the request's body, so that an answer may come, and be passed on, before the body has ended; it is stopped between
//! two calls when the answer's head has come and goes on beside the answer's body. A third reads ahead. All of them end with
//! the request: when the client is gone its fiber is cancelled, they are cancelled with it, and the backend's connection,
//! which nobody keeps then, is closed.
//!
//! What never passes: framing, in either direction (Content-Length, Transfer-Encoding and Connection are made anew from what
//! the strict parsers have understood), fields that Connection names, trailers, and a backend's `100 Continue`.

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

/// A body of known length up to this many bytes is read as a whole before its response begins: then the backend's
/// connection is free at once, and one that breaks off is answered by 502 instead of half a response. (Two reads of a
/// connection that is busy; nginx collects as much.)
const SMALL: u64 = 64 << 10;

/// What the backend may be told of in Host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Host {
    /// What the client has asked for.
    #[default]
    Preserve,
    /// The backend's own address; `localhost` for a Unix socket.
    Backend,
    /// Always this.
    Fixed(String),
}

type Trust = Box<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// A reverse proxy to one [`Upstream`]; a clone is the same.
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
/// # What the backend sees
///
/// The method and the target (paths with a `.` or `..` segment, percent-encoded or not, between `/`, `\\`, `%2F` or `%5C`,
/// with a `;parameter` or without, are refused by 400: they mean one thing here and another there), the client's fields but those for this connection, and
/// `X-Forwarded-For`, `-Proto` and `-Host` and `Forwarded`. What a client that is not [trusted](Proxy::trust) says in these, or in
/// `X-Real-IP`, is left out, also where it is spelled with `_` for `-`. `Expect: 100-continue` is answered here, when the backend's connection is there.
///
/// # What the client gets
///
/// | | |
/// |---|---|
/// | 502 | no connection; the backend has closed, or has not spoken HTTP as it is written |
/// | 503 | every backend is out, or has all the connections it may have |
/// | 504 | no connection, or no answer, in time |
/// | the connection ends | the backend breaks off inside a body of which the client has got some |
///
/// Each with a line in the log that has the request's id. Trailers of the backend are dropped. Its interim
/// responses are passed on to clients of HTTP/1.1, but for `100 Continue`: 103 Early Hints with its `Link` and
/// `Content-Security-Policy`, others without fields, as layers see the response only that follows.
///
/// # Retries
///
/// Once, on a new connection and on another backend if there is one, when the connection breaks before a byte of the
/// answer, and either not a byte of the request was taken, or the method is idempotent (RFC 9110 9.2.2) and there is no
/// body.
///
/// # Slow clients
///
/// The answer is read ahead of the client by at most [`read_ahead`](Proxy::read_ahead) bytes. One that fits is taken at
/// once, and the backend's connection is free however slow the client is; beyond that the backend waits for the client,
/// which has to take something within [`Timeouts::write`](crate::Timeouts::write) again and again. Slow senders hold a
/// connection of the backend for as long as they send, within [`Timeouts::body`](crate::Timeouts::body) each time.
#[derive(Clone)]
pub struct Proxy(Arc<Settings>);

struct Settings {
    upstream: Upstream,
    host: Host,
    /// A prefix of the path, and what stands there in its place.
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
    /// Passes everything on to `upstream`.
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
                // Backends send more than browsers: long cookies and policies.
                head_bytes: 64 << 10,
                ..Limits::DEFAULT
            },
        }))
    }

    /// What the backend sees as Host. [`Host::Preserve`] unless set.
    pub fn host(self, host: Host) -> Self {
        self.set(|settings| settings.host = host)
    }

    /// Takes `prefix` off the path: `/api/x` becomes `/x`, and `/api` becomes `/`. Other paths stay. The prefix and the path are
    /// compared in their canonical forms ([`Path`](crate::path::Path)), so `/%61pi/x` and `//api/x` become `/x` too; the rest
    /// goes on as it was written.
    pub fn strip_prefix(self, prefix: &str) -> Self {
        self.replace_prefix(prefix, "")
    }

    /// Puts `with` in the place of `prefix`, where that ends at a `/` or at the end of the path. A prefix with a bad escape is
    /// found in no path.
    pub fn replace_prefix(self, prefix: &str, with: &str) -> Self {
        let (prefix, with) = (prefix.trim_end_matches('/'), with.trim_end_matches('/'));
        let prefix = canonical_part(prefix).unwrap_or(Cow::Borrowed(prefix));
        let pair = (prefix.into_owned(), with.to_owned());
        self.set(|settings| settings.prefix = Some(pair))
    }

    /// Whose word counts: what a client with such an address says in `X-Forwarded-*` and `Forwarded` is passed on and added
    /// to. For proxies in front of this server, and for nobody unless set.
    pub fn trust(self, trust: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.trust = Some(Box::new(trust)))
    }

    /// Whether the backend gets `X-Forwarded-For`, `-Proto` and `-Host` and `Forwarded`. True unless set.
    pub fn forwarded(self, forwarded: bool) -> Self {
        self.set(|settings| settings.forwarded = forwarded)
    }

    /// How long the backend may take from the end of the request to the first byte of its answer, then 504; and to take the
    /// next bytes of a request. 60 s.
    pub fn first_byte_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.first_byte = limit)
    }

    /// How long the backend may take to send the next bytes of an answer. 60 s.
    pub fn between_bytes_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.between = limit)
    }

    /// Whether a client may leave HTTP (`Upgrade`, WebSocket for example) when the backend agrees. True unless set.
    pub fn tunnels(self, tunnels: bool) -> Self {
        self.set(|settings| settings.tunnels = tunnels)
    }

    /// After how long without a byte in either direction a tunnel is ended. One hour.
    pub fn tunnel_idle_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.tunnel_idle = limit)
    }

    /// The same once one side has sent its last byte, and from then on, as nobody can tell that from a peer that has left until
    /// something is sent to it. 30 s.
    pub fn tunnel_half_closed_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.tunnel_half_closed = limit)
    }

    /// How many bytes of an answer are read before the client takes them, rounded up to pieces of 64 KiB, and one piece more.
    /// 256 KiB.
    pub fn read_ahead(self, bytes: usize) -> Self {
        self.set(|settings| settings.read_ahead = bytes)
    }

    /// The most bytes of an answer's head; beyond it 502. 64 KiB.
    pub fn head_bytes(self, bytes: usize) -> Self {
        self.set(|settings| settings.limits.head_bytes = bytes)
    }

    /// The upstream.
    pub fn upstream(&self) -> &Upstream {
        &self.0.upstream
    }

    /// As a handler, for [`Router::fallback`](crate::Router::fallback) or a [`Route`](crate::Route).
    pub fn handler(self) -> impl Fn(&mut Request<'_>) -> Response + Clone + Send + Sync + 'static {
        move |request| self.answer(request)
    }

    /// Answers one request.
    ///
    /// # Suspends
    ///
    /// Always: for a connection, and for the answer.
    ///
    /// # Cancellation
    ///
    /// The connection to the backend is closed; what it makes of that is its affair.
    pub fn answer(&self, request: &mut Request<'_>) -> Response {
        exchange::pass(&self.0, request)
    }

    /// Before the first clone.
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
