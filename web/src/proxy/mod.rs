//! A reverse proxy as a handler: it forwards requests to an [`Upstream`] over HTTP/1.1 or HTTP/2, and the responses
//! to the client.
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
//! the strict parsers. The fields that Connection names and the backend's `100 Continue` do not pass either. Trailers pass,
//! without the fields that may not stand there.

pub(crate) mod ask;
mod backend_response;
mod client_response;
mod exchange;
mod failure;
pub(crate) mod forwarded;
mod grpc;
mod internal;
mod outgoing;
mod redirect;
mod relay;
mod sender;
pub(crate) mod tunnel;

use std::borrow::Cow;
use std::cell::Cell;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use osier::fiber::Activity;
use osier_http::Limits;
use osier_http::path::canonical_part;

use crate::body::ahead::Bounds;
use crate::body::spool;
use crate::router::answer::GoOn;
use crate::upstream::Upstream;
use crate::upstream::client::while_client_stays;
use crate::{Answer, Handler, IntoResponse, Request, Response};

use self::exchange::{Passed, Silent};
pub use self::redirect::Redirects;
use self::sender::Sender;

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
/// use osier_web::proxy::{Options, Proxy};
/// use osier_web::upstream::Upstream;
///
/// let app = Upstream::builder("app").backend("127.0.0.1:3000".parse()?).build()?;
/// let api = Upstream::builder("api").backend("unix:/run/api.sock".parse()?).build()?;
/// let options = Options { strip: Some("/api".into()), replacement: "/v1".into(), ..Options::default() };
/// let router = Router::new()
///     .mount("/api", Proxy::with(api, options).handler())
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
/// - `Expect: 100-continue` is answered here, when the body is wanted: without [`buffer`](Options::buffer), once there is a
///   connection to the backend.
///
/// # Responses to the client
///
/// | result | cause |
/// |---|---|
/// | 502 | connecting failed; the backend has closed the connection, or its response is not valid HTTP |
/// | 503 | every backend fails its health check, or has as many connections as it may have |
/// | 504 | connecting, or the response, took too long |
/// | the connection ends | the backend breaks off inside a body that the client has received a part of |
///
/// Each of them is logged with the request id. A redirect that names the backend leads back to this server: see [`Redirects`]. Clients of HTTP/1.1 and HTTP/2 get the interim responses
/// of the backend, apart from `100 Continue`. A 103 Early Hints keeps its `Link` and `Content-Security-Policy`; other interim
/// responses lose all fields, because layers see only the final response.
///
/// # gRPC
///
/// A call (`content-type: application/grpc`) is passed on as it comes, in both directions, to a backend that speaks
/// [HTTP/2](crate::upstream::Builder::http2). Its trailer passes, and so does `TE: trailers`. Instead of an error status the client
/// gets 200 with `grpc-status`: 14 for 502 and 503, and 4 for 504.
///
/// # Retries
///
/// A request is sent a second time, on a new connection and to another backend if there is one, when the connection breaks before
/// the first byte of the response, and one of these holds:
///
/// - No byte of the request was sent.
/// - The method is idempotent (RFC 9110 9.2.2), and this server has the whole body.
/// - A backend of HTTP/2 has declared the request unprocessed, and this server has the whole body. The method may be any.
///
/// # Slow clients
///
/// The response is read ahead of the client, in memory up to [`read_ahead`](Options::read_ahead) bytes, and then in an unnamed
/// file up to [`read_ahead_file`](Options::read_ahead_file) bytes. A response that fits is read at once, and the backend's
/// connection is free however slow the client is. With a longer one the backend waits for the client. It also does while the
/// files of all responses together have [`read_ahead_total`](Options::read_ahead_total) bytes.
/// The client has to take some bytes in every [`Timeouts::write`](crate::Timeouts::write). A request body is received first, in
/// memory and then in an unnamed file, and has to send some bytes in every [`Timeouts::body`](crate::Timeouts::body). The files of
/// all bodies together have at most [`buffer_total`](Options::buffer_total) bytes. Without
/// [`buffer`](Options::buffer), a client that sends slowly holds a connection of the backend.
#[derive(Clone)]
#[doc(alias = "reverse_proxy")]
pub struct Proxy(Arc<Settings>);

struct Settings {
    upstream: Upstream,
    options: Options,
    /// The canonical form of [`Options::strip`], and its replacement.
    prefix: Option<(String, String)>,
    trust: Option<Trust>,
    internal: Option<internal::Internal>,
    limits: Limits,
    spool: Arc<spool::Limits>,
}

/// Options of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The Host field that the backend gets. Default: [`Host::Preserve`].
    pub host: Host,
    /// Prefix that is taken off a path: `/api/x` becomes `/x`, and `/api` becomes `/`. Other paths
    /// stay. The prefix and the path are compared in their canonical forms
    /// ([`Path`](crate::path::Path)), so `/%61pi/x` and `//api/x` become `/x` too. The rest is passed
    /// on as it was written. A prefix with a bad escape matches no path. None by default.
    pub strip: Option<String>,
    /// Text that takes the place of [`strip`](Options::strip), where that matches. Empty by default.
    pub replacement: String,
    /// Which redirects of a backend lead back to this server. Default: [`Redirects::Backend`].
    pub redirects: Redirects,
    /// Sends `X-Forwarded-For`, `-Proto` and `-Host` and `Forwarded` to the backend. On by default.
    pub forwarded: bool,
    /// Time from the end of the request to the first byte of the response, then 504. It is also the
    /// time for the backend to take the next bytes of a request. Default: 60 s.
    pub first_byte: Duration,
    /// Time for the backend to send the next bytes of a response. Default: 60 s.
    pub between: Duration,
    /// Lets a client leave HTTP (`Upgrade`, WebSocket for example) if the backend agrees. On by
    /// default.
    pub tunnels: bool,
    /// Time without a byte in either direction after which a tunnel is closed. Default: one hour.
    pub tunnel_idle: Duration,
    /// The same after one side has sent its last byte. Such a peer looks like one that has left until
    /// something is sent to it. Default: 30 s.
    pub tunnel_half_closed: Duration,
    /// Bytes of a response that are read before the client takes them, rounded up to pieces of
    /// 64 KiB, and one piece more. Default: 256 KiB.
    pub read_ahead: usize,
    /// Bytes of a response that are read ahead of a slow client into an unnamed file, when more than
    /// [`read_ahead`](Options::read_ahead) wait. 0 means none. Without [`buffer`](Options::buffer) there is no file either, nor for
    /// event streams, gRPC and `X-Accel-Buffering: no`: the backend then waits for the client. Default: 1 GiB.
    pub read_ahead_file: u64,
    /// The most bytes that all gateways of the process have in files of responses. At the bound no response fails: its backend
    /// waits for the client, as with a [`read_ahead_file`](Options::read_ahead_file) of 0, until files have been sent. Request
    /// bodies do not count. Default: 2 GiB.
    pub read_ahead_total: u64,
    /// Receives a request body before a backend is asked, so that a slow client occupies no backend. A gRPC call is passed on
    /// as it comes. On by default.
    pub buffer: bool,
    /// The longest request body that is received in memory, in bytes. Default: 256 KiB.
    pub spool_memory: usize,
    /// The most bytes of bodies that all gateways of the process hold in memory. Further bytes go to files. Default:
    /// 64 MiB.
    pub shared_memory: usize,
    /// The most bytes that all gateways of the process have in files of request bodies. A body that finds no space gets 503. One that
    /// is longer than both this and [`spool_memory`](Options::spool_memory) gets 413. The space of a file is free once the file is
    /// closed, a moment after its request has ended. No client has a share of its own. Responses do not count. Default: 2 GiB.
    pub buffer_total: u64,
    /// The folder of the unnamed files for longer bodies. Default: the system's folder for temporary files.
    pub spool_folder: PathBuf,
    /// Maximum bytes of a response's head. A longer one gets 502. Default: 64 KiB, because backends
    /// send long cookies and policies.
    pub head_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        let s = Duration::from_secs;
        Options {
            host: Host::Preserve,
            strip: None,
            replacement: String::new(),
            redirects: Redirects::default(),
            forwarded: true,
            first_byte: s(60),
            between: s(60),
            tunnels: true,
            tunnel_idle: s(3600),
            tunnel_half_closed: s(30),
            read_ahead: 256 << 10,
            read_ahead_file: 1 << 30,
            read_ahead_total: 2 << 30,
            buffer: true,
            spool_memory: 256 << 10,
            shared_memory: 64 << 20,
            buffer_total: 2 << 30,
            spool_folder: std::env::temp_dir(),
            head_bytes: 64 << 10,
        }
    }
}

impl Proxy {
    /// Makes a proxy that forwards every request to `upstream`, with the default [`Options`].
    pub fn new(upstream: Upstream) -> Proxy {
        Proxy::with(upstream, Options::default())
    }

    /// Makes a proxy that forwards every request to `upstream`.
    pub fn with(upstream: Upstream, options: Options) -> Proxy {
        let prefix = options.strip.as_deref().map(|prefix| {
            let prefix = prefix.trim_end_matches('/');
            let canonical = canonical_part(prefix).unwrap_or(Cow::Borrowed(prefix));
            (
                canonical.into_owned(),
                options.replacement.trim_end_matches('/').to_owned(),
            )
        });
        let limits = Limits {
            head_bytes: options.head_bytes,
            ..Limits::DEFAULT
        };
        let spool = Arc::new(spool::Limits {
            memory: options.spool_memory,
            shared: options.shared_memory,
            files: options.buffer_total,
            folder: options.spool_folder.clone(),
        });
        Proxy(Arc::new(Settings {
            upstream,
            spool,
            options,
            prefix,
            trust: None,
            internal: None,
            limits,
        }))
    }

    /// Sets which clients are trusted: proxies in front of this server. The fields `X-Forwarded-*`,
    /// `Forwarded` and `X-Real-IP` of a client whose address `trust` accepts are passed on and
    /// extended. Default: nobody.
    ///
    /// # Panics
    ///
    /// If the proxy has been cloned.
    #[must_use]
    pub fn trust(self, trust: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Proxy {
        let mut settings = Arc::into_inner(self.0).expect("a proxy is configured before it is cloned");
        settings.trust = Some(Box::new(trust));
        Proxy(Arc::new(settings))
    }

    /// Sets the handler for paths that the backend names in `X-Accel-Redirect`: its response is sent in place of the backend's. The
    /// application decides who may have a file, and this server sends it, with ranges and conditional fields.
    ///
    /// ```
    /// use osier_web::files::Files;
    /// use osier_web::proxy::Proxy;
    /// use osier_web::upstream::Upstream;
    /// use osier_web::{Response, http::StatusCode};
    ///
    /// # let folder = std::env::temp_dir();
    /// let (files, app) = (Files::open(folder)?, Upstream::builder("app").backend("127.0.0.1:3000".parse()?).build()?);
    /// let proxy = Proxy::new(app).on_internal(move |request, path| match path.strip_prefix("/protected/") {
    ///     Some(name) => files.answer_with(request, name),
    ///     None => Response::plain(StatusCode::NOT_FOUND),
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The handler gets the request and the path in its [canonical form](crate::path::Path::canonical), without a query; a value that is no
    /// path gets 502. A response of 2xx also gets the backend's Content-Type, Content-Disposition, Cache-Control, Expires, Vary, cookies and
    /// the fields that restrict pages (`Content-Security-Policy` for example), and a 304 those that are not of the file. Clients do not get the
    /// fields `X-Accel-Redirect`, `-Expires`, `-Limit-Rate` and `-Charset` of any response. A backend does not get the fields `X-Sendfile-Type` and
    /// `X-Accel-Mapping` of clients, by which some applications choose the path; a function before the proxy may set them.
    ///
    /// By default there is none, and all these fields pass.
    ///
    /// # Panics
    ///
    /// If the proxy has been cloned.
    #[must_use]
    pub fn on_internal(self, handler: impl Fn(&Request<'_>, &str) -> Response + Send + Sync + 'static) -> Proxy {
        let mut settings = Arc::into_inner(self.0).expect("a proxy is configured before it is cloned");
        settings.internal = Some(Box::new(handler));
        Proxy(Arc::new(settings))
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
    /// The connection to the backend is closed. The backend may still process the request. A client
    /// that leaves cancels the call, and the body that follows, unless the route has
    /// [`finish_when_gone`](crate::Route::finish_when_gone).
    pub fn answer(&self, request: &mut Request<'_>) -> Response {
        self.answer_after_body(request).wait(request)
    }

    /// Same as [`answer`](Proxy::answer), for [`Handler::answering`]: a body that has not arrived is received without a stack, and so is a
    /// backend waited for that has the whole request and has sent nothing for a second.
    ///
    /// A function that changes the request for the time of this call, such as [`Request::with_headers`], has to do so again when the proxy goes
    /// on: see [`Answer::around`].
    ///
    /// # Suspends
    ///
    /// As `answer` does, but not until the client has sent the body, and not for long until the backend sends the first byte of its response.
    ///
    /// # Cancellation
    ///
    /// As for `answer`.
    pub fn answer_after_body(&self, request: &mut Request<'_>) -> Answer {
        let target = match exchange::target(&self.0, request) {
            Ok(target) => target,
            Err(response) => return response.into(),
        };
        self.take_choice(request);
        match exchange::sender(&self.0, request) {
            Ok(Some(mut sender)) => self.pass(request, &target, &mut sender),
            Ok(None) => {
                let proxy = self.clone();
                Answer::after_body(&self.0.spool, move |request, body| {
                    let body = match body {
                        Ok(body) => body,
                        Err(failed) => return failed.into_response().into(),
                    };
                    proxy.take_choice(request);
                    // The same as before, but it cannot be kept with a request that rests.
                    match exchange::target(&proxy.0, request) {
                        Ok(target) => {
                            let mut sender = Sender::spooled(request, body);
                            proxy.pass(request, &target, &mut sender)
                        }
                        Err(response) => response.into(),
                    }
                })
            }
            Err(response) => response.into(),
        }
    }

    fn pass(&self, request: &mut Request<'_>, target: &str, sender: &mut Sender) -> Answer {
        self.run(request, |request| {
            let passed = exchange::pass(&self.0, request, target, sender);
            // The handler for a redirect inside of the server may run for long.
            if self.0.internal.is_some() {
                sender.forget_body();
            }
            passed
        })
    }

    /// Each part of an exchange begins so: it may write the head of the request, and fields that were removed during another one are there
    /// again. A sender made later keeps them out of the trailer, too.
    fn take_choice(&self, request: &mut Request<'_>) {
        if self.0.internal.is_some() {
            internal::take_choice(request);
        }
    }

    /// Runs a part of an exchange, as long as the client stays.
    fn run(&self, request: &mut Request<'_>, part: impl FnOnce(&mut Request<'_>) -> Passed) -> Answer {
        let (mut part, mut silent) = (Some(part), None);
        let response = while_client_stays(request, &mut |request| match part.take().map(|part| part(request)) {
            Some(Passed::Response(response)) => response,
            waits => {
                silent = waits;
                Response::internal_error("no part of the exchange has made a response")
            }
        });
        if let Some(Passed::Silent(silent)) = silent {
            return self.wait(silent);
        }
        match &self.0.internal {
            Some(internal) => internal::follow(internal, &self.0, request, response).into(),
            None => response.into(),
        }
    }

    /// Waits for a backend that has sent nothing for a while.
    #[cold]
    fn wait(&self, silent: Box<Silent>) -> Answer {
        let proxy = self.clone();
        Answer::after_wait(Activity::Network, silent.bytes(), async move {
            let waited = silent.head_arrives().await;
            let go_on: GoOn = Box::new(move |request| {
                proxy.take_choice(request);
                proxy.run(request, |request| exchange::go_on(&proxy.0, request, *silent, waited))
            });
            go_on
        })
    }
}

impl Settings {
    /// How much of a response is read ahead of its client.
    fn bounds(&self, is_stream: bool) -> Bounds {
        let options = &self.options;
        let upstream = self.upstream.clone();
        Bounds {
            memory: options.read_ahead,
            shared: options.shared_memory,
            file: if options.buffer && !is_stream {
                options.read_ahead_file
            } else {
                0
            },
            files: options.read_ahead_total,
            folder: options.spool_folder.clone(),
            has_failed: Cell::new(false),
            complain: Box::new(move |error| upstream.lacks_file(error)),
        }
    }
}

impl From<Proxy> for Handler {
    fn from(proxy: Proxy) -> Handler {
        Handler::answering(move |request| proxy.answer_after_body(request))
    }
}

osier_queue::impl_debug!(Proxy, self => {
    upstream: self.0.upstream,
    host: self.0.options.host,
    prefix: self.0.prefix,
    ..
});
