//! A request as its handler sees it: the head, borrowed from the connection's buffer, and the body
//! as a reader.
//!
//! Nothing in a request is copied before the handler asks for a copy.

pub(crate) mod base64;
pub(crate) mod changes;
pub(crate) mod charged;
#[cfg(any(feature = "cookies", feature = "fastcgi", feature = "proxy"))]
mod cookies;
pub(crate) mod extract;
pub(crate) mod hops;
#[cfg(feature = "multipart")]
pub mod multipart;
pub(crate) mod state;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod text;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod trace;

use std::any::{Any, type_name};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Version};
use matchit::Params;
use osier::sync::Event;
use osier::time::Stamp;
use osier_http::path::Path;
use osier_http::{Head, Headers};
use percent_encoding::percent_decode;

use crate::conn::log::id;
use crate::conn::peer::Gone;
use crate::conn::slow::Slow;
use crate::conn::times::{Times, Timing};
use crate::listen::ip_of_client;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
use crate::request::changes::Texts;
use crate::request::changes::{Changes, check_added, is_same_name};
use crate::request::hops::{ForwardedBy, RealClient};
use crate::request::state::States;
#[cfg(feature = "tls")]
use crate::request::tls::Tls;
use crate::request::trace::TraceContext;
use crate::{Rejection, RequestBody, RequestId};

/// Notes on one request that the observer and the log read: the request id, the application's
/// label, the user, and the client that a trusted proxy has named.
#[derive(Clone, Default)]
pub(crate) struct Marks {
    /// Made at the first use.
    id: Cell<Option<RequestId>>,
    /// The field in which the other end of the connection names the client, if that end is trusted. It may tell the id then.
    trusted: Cell<Option<ForwardedBy>>,
    /// Whether backends get the id.
    is_id_forwarded: Cell<bool>,
    pub(crate) label: Cell<u32>,
    pub(crate) client: Cell<Option<RealClient>>,
    user: RefCell<Option<Arc<str>>>,
    /// Bytes of the body that have been read.
    pub(crate) received: Cell<u64>,
    pub(crate) trace: Cell<Option<TraceContext>>,
    pub(crate) timing: Timing,
    pub(crate) slow: Slow,
}

impl Marks {
    #[inline]
    pub(crate) fn clear(&self) {
        self.id.set(None);
        self.trusted.set(None);
        self.is_id_forwarded.set(false);
        self.label.set(0);
        self.client.set(None);
        self.user.take();
        self.received.set(0);
        self.trace.set(None);
        self.slow.clear();
    }

    /// Copies the notes of `other`.
    pub(crate) fn set(&self, other: &Marks) {
        self.id.set(other.id.get());
        self.trusted.set(other.trusted.get());
        self.is_id_forwarded.set(other.is_id_forwarded.get());
        self.label.set(other.label.get());
        self.client.set(other.client.get());
        self.user.replace(other.user());
        self.received.set(other.received.get());
        self.trace.set(other.trace.get());
        self.timing.go_on(&other.timing);
        self.slow.set(&other.slow);
    }

    /// The name of the user, if code before the handler has found it.
    pub(crate) fn user(&self) -> Option<Arc<str>> {
        self.user.borrow().clone()
    }

    /// The id of the request whose head this is.
    pub(crate) fn id(&self, head: Option<&Head<'_>>) -> RequestId {
        self.id.get().unwrap_or_else(|| {
            let given = head.filter(|_| self.trusted.get().is_some()).and_then(given_id);
            let id = given.unwrap_or_else(RequestId::random);
            self.id.set(Some(id));
            id
        })
    }
}

/// The id in the fields of a trusted proxy. None if there are two: the proxy may have added its own to its client's.
fn given_id(head: &Head<'_>) -> Option<RequestId> {
    let mut fields = head.headers().filter(|(name, _)| name.eq_ignore_ascii_case(id::FIELD));
    let (_, value) = fields.next()?;
    fields.next().is_none().then(|| RequestId::given(value))?
}

/// The parameters of a route and the parts of the path that they matched.
#[derive(Clone, Copy)]
pub(crate) struct Matched<'a> {
    pub(crate) params: &'a Params<'a, 'a>,
    /// The path, if its canonical form differs from the form that was sent. The matched parts
    /// borrow from the canonical form.
    pub(crate) read: Option<&'a Path<'a>>,
}

impl<'a> Matched<'a> {
    fn sent(self, part: &'a str) -> &'a str {
        let Some(path) = self.read else { return part };
        let start = part.as_ptr().addr() - path.canonical().as_ptr().addr();
        path.sent_part(start..start + part.len())
    }

    /// Yields each name and the matched part as it was sent.
    #[cfg(feature = "serde")]
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.params.iter().map(move |(name, part)| (name, self.sent(part)))
    }
}

/// A request, borrowed from its connection.
///
/// ```
/// use osier_web::{Request, Router};
/// use std::io::{self, Read};
///
/// fn save(request: &mut Request<'_>) -> io::Result<String> {
///     let name = request.param("name").unwrap_or_default().into_owned();
///     let agent = request.header_str("user-agent").unwrap_or("nobody").to_owned();
///     let mut text = String::new();
///     request.body().read_to_string(&mut text)?;
///     Ok(format!("{agent} stored {} bytes as {name}\n", text.len()))
/// }
///
/// let router = Router::new().put("/notes/{name}", save);
/// ```
#[doc(alias("extractor", "FromRequest", "HttpRequest"))]
pub struct Request<'a> {
    pub(crate) head: &'a Head<'a>,
    /// `None` if the route has no parameters.
    pub(crate) params: Option<Matched<'a>>,
    pub(crate) body: RequestBody<'a>,
    pub(crate) marks: &'a Marks,
    pub(crate) extensions: Extensions,
    pub(crate) changes: &'a Changes<'a>,
    pub(crate) states: &'a States,
    /// Pattern of the route, or prefix of the mount. Empty if there is none.
    pub(crate) pattern: &'a str,
    /// Length of the path's prefix at which the handler is mounted.
    pub(crate) mount: usize,
    #[cfg_attr(
        not(any(feature = "fastcgi", feature = "proxy")),
        allow(dead_code, reason = "only gateways watch the client themselves")
    )]
    pub(crate) gone: Gone,
}

impl<'a> Request<'a> {
    /// The event that is set when the graceful shutdown of the server begins. A handler that streams
    /// for a long time waits for it too, and ends then; otherwise it is cut after
    /// [`Timeouts::drain`](crate::Timeouts::drain). Clone the `Arc` to take the event into a body.
    ///
    /// Functions of [`sse`](crate::sse) that wait end by themselves.
    ///
    /// ```
    /// use osier_web::{Request, Response, Router};
    /// use std::{sync::Arc, time::Duration};
    ///
    /// let router = Router::new().get("/ticks", |request: &mut Request<'_>| {
    ///     let shutdown = Arc::clone(request.shutdown());
    ///     Response::stream(move |out| {
    ///         while !shutdown.wait_timeout(Duration::from_secs(1)) {
    ///             out.write_all(b"tick\n")?;
    ///             out.flush()?;
    ///         }
    ///         Ok(())
    ///     })
    /// });
    /// ```
    #[doc(alias = "graceful_shutdown")]
    pub fn shutdown(&self) -> &Arc<Event> {
        self.body.shutdown()
    }

    /// The method. Methods are case-sensitive.
    pub fn method(&self) -> &'a str {
        self.head.method().as_str()
    }

    /// The request target as the client sent it, or as [`retarget`](Request::retarget) has set it.
    pub fn target(&self) -> &'a str {
        self.head.target()
    }

    /// The head with the target that the client has sent, if code before the handler has set another target.
    #[cfg(any(feature = "cache", feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn rewritten_from(&self) -> Option<&'a Head<'a>> {
        let sent = self.changes.original(self.head);
        (sent.target() != self.head.target()).then_some(sent)
    }

    /// Replaces the request target. From now on [`path`](Request::path) and
    /// [`query`](Request::query) return those of the new target, and the mount point is empty. The
    /// fields, the body and the host stay. Logs show the target that the client sent, and FastCGI passes it on as
    /// `REQUEST_URI`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `target` is not a path, with or without a query, in the form in which a
    /// client would send it. The old target stays.
    pub fn retarget(&mut self, target: &str) -> io::Result<()> {
        let head = self.changes.target(self.head, target);
        self.head = head.map_err(|reject| io::Error::new(io::ErrorKind::InvalidInput, reject.reason()))?;
        self.mount = 0;
        Ok(())
    }

    /// Removes every field whose name is in `removed`, and adds the fields `added`. A handler, a backend and
    /// a script see only the result. Names are compared without regard to case, and `_` counts as
    /// `-`, because programs behind CGI do not tell them apart. Logs show the fields that the client sent.
    ///
    /// ```
    /// use osier_web::{Next, Request, Router, test::Client};
    ///
    /// let router = Router::new()
    ///     .get("/", |request: &mut Request<'_>| request.header_str("x-user").unwrap_or("nobody").to_owned())
    ///     .wrap(|request: &mut Request<'_>, next: Next<'_>| {
    ///         request.replace_headers(&["x-user"], [("x-user", "ada")])?;
    ///         std::io::Result::Ok(next.run(request))
    ///     });
    /// let client = Client::new(router);
    /// assert_eq!(client.get("/").header("x-user", "mallory").send().text(), "ada");
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput` if a field of `added` has an invalid name or value, or frames the message, or is Host, Expect or
    /// Upgrade, in any spelling. The old fields stay.
    pub fn replace_headers<N: Into<String>, V: Into<Vec<u8>>>(
        &mut self,
        removed: &[impl AsRef<str>],
        added: impl IntoIterator<Item = (N, V)>,
    ) -> io::Result<()> {
        let mut added = added.into_iter().peekable();
        let is_removed = |name: &str| removed.iter().any(|removed| is_same_name(name, removed.as_ref()));
        // A trailer must not bring what is removed, also if the head lacks it.
        let has_removed = || self.may_have_trailer() || self.headers().any(|(name, _)| is_removed(name));
        if added.peek().is_none() && !has_removed() {
            return Ok(());
        }
        let added = added.map(|(name, value)| (name.into(), value.into())).collect();
        let removed = removed.iter().map(|name| name.as_ref().to_owned()).collect();
        let head = self.changes.fields(self.head, removed, added);
        self.head = head.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(())
    }

    /// Whether a trailer may follow the body.
    pub(crate) fn may_have_trailer(&self) -> bool {
        match self.head.body() {
            osier_http::BodyLength::Chunked => true,
            body => !body.is_empty() && self.version() >= Version::HTTP_2,
        }
    }

    /// Calls `run` with the fields replaced as [`replace_headers`](Request::replace_headers) does. Code after it sees the target and
    /// the fields from before again.
    ///
    /// ```
    /// use osier_web::{Next, Request, Router, test::Client};
    ///
    /// let router = Router::new()
    ///     .get("/", |request: &mut Request<'_>| request.header_str("x-env").unwrap_or("none").to_owned())
    ///     .wrap(|request: &mut Request<'_>, next: Next<'_>| {
    ///         let response = request.with_headers(&["x-env"], [("x-env", "test")], |request| next.run(request))?;
    ///         std::io::Result::Ok(response.header("x-seen", request.header_str("x-env").unwrap_or("none")))
    ///     });
    /// let response = Client::new(router).get("/").header("X_Env", "forged").send();
    /// assert_eq!((response.text(), response.header("x-seen")), ("test", Some("none")));
    /// ```
    ///
    /// # Suspends
    ///
    /// As `run` does.
    ///
    /// # Errors
    ///
    /// Those of [`replace_headers`](Request::replace_headers). `run` is not called then.
    pub fn with_headers<T, N: Into<String>, V: Into<Vec<u8>>>(
        &mut self,
        removed: &[impl AsRef<str>],
        added: impl IntoIterator<Item = (N, V)>,
        run: impl FnOnce(&mut Request<'a>) -> T,
    ) -> io::Result<T> {
        let (head, mount, changes) = (self.head, self.mount, self.changes.count());
        self.replace_headers(removed, added)?;
        let made = run(self);
        (self.head, self.mount) = (head, mount);
        self.changes.undo_from(changes);
        Ok(made)
    }

    /// Checks that [`replace_headers`](Request::replace_headers) may add a field of this name.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, as [`replace_headers`](Request::replace_headers) says.
    pub fn check_header(name: &str) -> io::Result<()> {
        check_added(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    /// Makes changes that another request for the same head has seen.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn change_again(&mut self, changes: Vec<Texts>) -> io::Result<()> {
        for change in changes {
            match change {
                Texts::Target(target) => self.retarget(&target)?,
                Texts::Fields { removed, added } => self.replace_headers(&removed, added)?,
            }
        }
        Ok(())
    }

    /// The path of the target, percent-encoded.
    pub fn path(&self) -> &'a str {
        self.head.path()
    }

    /// The pattern of the route as [`Router::paths`](crate::Router::paths) yields it, with the prefixes of nested routers: a name for
    /// all requests of one kind. A path whose route lacks the method (405) has it, too. For a handler that is
    /// [mounted](crate::Router::mount), and for the fallback of a nested router, it is the prefix.
    ///
    /// `None` for an unknown path (404), the outermost fallback, a mount at `/`, a server without a router, and for a handler inside
    /// of a [cache](crate::wrap::cache::Cache::around). [`retarget`](Request::retarget) does not change it.
    ///
    /// ```
    /// use osier_web::{Next, Request, Router, test::Client};
    ///
    /// let api = Router::new().get("/users/{id}", |_| "a user\n");
    /// let router = Router::new().nest("/api", api).wrap(|request: &mut Request<'_>, next: Next<'_>| {
    ///     let route = request.pattern().unwrap_or("none");
    ///     next.run(request).header("x-route", route)
    /// });
    /// let client = Client::new(router);
    /// assert_eq!(client.get("/api/users/7").send().header("x-route"), Some("/api/users/{id}"));
    /// assert_eq!(client.get("/api/none").send().header("x-route"), Some("none"));
    /// ```
    pub fn pattern(&self) -> Option<&'a str> {
        (!self.pattern.is_empty()).then_some(self.pattern)
    }

    /// The prefix at which the handler is mounted ([`Router::mount`](crate::Router::mount),
    /// fallbacks). Empty for a route and for the outermost fallback.
    pub fn mount_point(&self) -> &'a str {
        &self.path()[..self.mount]
    }

    /// The path after [`Request::mount_point`], percent-encoded. It is empty or begins with `/`.
    pub fn rest(&self) -> &'a str {
        &self.path()[self.mount..]
    }

    /// The query: the part of the target after its first `?`, percent-encoded.
    pub fn query(&self) -> Option<&'a str> {
        self.head.query()
    }

    /// The first value of `name` in the query. The query is read as a form: `+` is a space, and
    /// percent escapes are decoded. Bytes that are not UTF-8 become U+FFFD. A name without `=` has
    /// the empty value.
    ///
    /// ```
    /// use osier_web::{Request, Router, test::Client};
    ///
    /// let greet = |request: &mut Request<'_>| request.query_param("name").unwrap_or("nobody".into()).into_owned();
    /// let client = Client::new(Router::new().get("/", greet));
    /// assert_eq!(client.get("/?name=Ada+L%2E").send().text(), "Ada L.");
    /// assert_eq!(client.get("/").send().text(), "nobody");
    /// ```
    pub fn query_param(&self, name: &str) -> Option<Cow<'a, str>> {
        self.query()?
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .find(|(key, _)| decode_form(key) == name)
            .map(|(_, value)| decode_form(value))
    }

    /// The part of the path that the route's `{name}` matched, percent-decoded. Bytes that are not
    /// UTF-8 become U+FFFD.
    ///
    /// ```
    /// use osier_web::{Request, Router, test::Client};
    ///
    /// let greet = |request: &mut Request<'_>| request.param("name").unwrap_or_default().into_owned();
    /// let client = Client::new(Router::new().get("/users/{name}", greet));
    /// assert_eq!(client.get("/users/Ada%20L").send().text(), "Ada L");
    /// ```
    pub fn param(&self, name: &str) -> Option<Cow<'a, str>> {
        self.param_raw(name)
            .map(|raw| percent_decode(raw.as_bytes()).decode_utf8_lossy())
    }

    /// The part of the path that the route's `{name}` matched, as it was sent.
    pub fn param_raw(&self, name: &str) -> Option<&'a str> {
        let matched = self.params?;
        matched.params.get(name).map(|part| matched.sent(part))
    }

    /// The host of the request: `host` or `host:port`. Only an HTTP/1.0 request may lack it.
    pub fn host(&self) -> Option<&'a str> {
        self.head.host()
    }

    /// The value of the first field called `name`. Case does not matter.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.head.header(name)
    }

    /// The value of the first field called `name`, if it is UTF-8. Case does not matter.
    pub fn header_str(&self, name: &str) -> Option<&'a str> {
        self.header(name).and_then(|value| str::from_utf8(value).ok())
    }

    /// Whether several fields are called `name`. Case does not matter. Refuse a request that repeats a field by which clients are told
    /// apart: a backend may read another one than this server.
    pub fn is_repeated(&self, name: &str) -> bool {
        let named = self.headers().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named.count() > 1
    }

    /// All fields, in the order received.
    pub fn headers(&self) -> Headers<'a> {
        self.head.headers()
    }

    /// The protocol version: 1.0, 1.1 or 2.
    pub fn version(&self) -> Version {
        match self.head.version() {
            osier_http::Version::Http10 => Version::HTTP_10,
            osier_http::Version::Http11 => Version::HTTP_11,
            osier_http::Version::Http2 => Version::HTTP_2,
        }
    }

    /// Takes the client from a field, if the other end of the connection is trusted. `is_trusted` gets
    /// addresses, and `None` for the other end of a Unix socket. The hops are read from the right, through
    /// those that are trusted too. From now on [`peer`](Request::peer), [`client_ip`](Request::client_ip) and
    /// [`is_https`](Request::is_https) describe that client, also in [`Served`](crate::Served). The [`id`](Request::id) is that of
    /// the field `X-Request-ID`, if the other end has sent one.
    pub fn trust_hops(&self, by: ForwardedBy, is_trusted: impl Fn(Option<IpAddr>) -> bool) {
        let peer = ip_of_client(self.body.peer(), self.body.is_proxied());
        if !is_trusted(peer) {
            return;
        }
        self.marks.trusted.set(Some(by));
        let values = |name: &'static str| {
            let fields = self
                .headers()
                .filter(move |(known, _)| known.eq_ignore_ascii_case(name));
            fields.map(|(_, value)| value)
        };
        let client = hops::real_client(by, values, |ip| is_trusted(Some(ip)));
        self.marks.client.set(client);
    }

    /// Whether a field may be passed on that [names the client](hops::names_the_client): a trusted proxy vouches for it, or code
    /// before the handler has set it.
    #[cfg(feature = "fastcgi")]
    pub(crate) fn vouches_for(&self, name: &str) -> bool {
        let is_of_proxy = self.marks.trusted.get().is_some_and(|by| by.vouches_for(name));
        is_of_proxy || self.changes.adds(name)
    }

    /// Whether the client has sent the request over https: what a [trusted](Request::trust_hops) proxy says about it, or else whether
    /// this connection is encrypted.
    pub fn is_https(&self) -> bool {
        let said = self.marks.client.get().and_then(|client| client.is_https);
        said.unwrap_or_else(|| self.body.client().is_encrypted())
    }

    /// The TLS of this connection. `None` if it is not encrypted, also if a trusted proxy says that its own is.
    #[cfg(feature = "tls")]
    pub fn tls(&self) -> Option<Tls<'_>> {
        self.body.client().tls().map(Tls)
    }

    /// Whether a trusted proxy has named the client's address: by the PROXY protocol, see
    /// [`Server::proxy_protocol`](crate::Server::proxy_protocol), or by a field, see
    /// [`trust_hops`](Request::trust_hops).
    pub fn is_proxied(&self) -> bool {
        self.marks.client.get().is_some_and(|client| client.ip.is_some()) || self.body.is_proxied()
    }

    /// The address of the client. `0.0.0.0:0` on a Unix socket. The port is 0 if a field has named the client.
    #[doc(alias("ConnectInfo", "remote_addr"))]
    pub fn peer(&self) -> SocketAddr {
        let ip = self.marks.client.get().and_then(|client| client.ip);
        ip.map_or_else(|| self.body.peer(), |ip| SocketAddr::new(ip, 0))
    }

    /// The address of the other end of the connection, which may be a proxy. `None` on a Unix socket.
    #[cfg(feature = "proxy")]
    pub(crate) fn connected_ip(&self) -> Option<IpAddr> {
        ip_of_client(self.body.peer(), self.body.is_proxied())
    }

    /// The client's IP address. `None` on a Unix socket, unless a trusted balancer has named one. An IPv4 client of an IPv6 socket
    /// has its IPv4 address here.
    #[doc(alias = "ConnectInfo")]
    pub fn client_ip(&self) -> Option<IpAddr> {
        ip_of_client(self.peer(), self.is_proxied())
    }

    /// The address at which the client reached this server. `None` on a Unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.body.local_addr()
    }

    /// The request id. It is the same in every log line about this request. It is made at the first call, or taken from a
    /// [trusted](Request::trust_hops) proxy.
    pub fn id(&self) -> RequestId {
        self.marks.id(Some(self.head))
    }

    /// Sends the [`id`](Request::id) to backends from now on: `X-Request-ID` of the proxy, `HTTP_X_REQUEST_ID` of FastCGI. It
    /// replaces what the client has sent in that field.
    pub fn forward_id(&self) {
        self.marks.is_id_forwarded.set(true);
    }

    /// The id that a backend gets, if it gets one.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn forwarded_id(&self) -> Option<RequestId> {
        self.marks.is_id_forwarded.get().then(|| self.id())
    }

    /// Lets the client of this request send the body and take the response at any rate, in spite of the server's
    /// [rates](crate::Server::rates). The timeouts apply. On an HTTP/2 connection, no later response has a rate either, apart from
    /// that of its own stream.
    ///
    /// ```
    /// use osier_web::{Request, Router};
    ///
    /// // A sensor sends a few bytes a minute.
    /// let router = Router::new().post("/samples", |request: &mut Request<'_>| {
    ///     request.allow_slow_client();
    ///     std::io::copy(request.body(), &mut std::io::sink()).map(|count| count.to_string())
    /// });
    /// ```
    ///
    /// # Suspends
    ///
    /// Never.
    pub fn allow_slow_client(&mut self) {
        self.body.allow_slow();
        self.body.client().allow_slow_response();
    }

    /// Sets the label that [`Served::label`](crate::Served::label) returns. The application chooses
    /// its meaning, for example the number of the route.
    pub fn set_label(&self, label: u32) {
        self.marks.label.set(label);
    }

    /// Sets the name of the user whom code before the handler has found, for [`Served::user`](crate::Served::user): the access log of the
    /// application can show it.
    ///
    /// ```
    /// use osier_web::{Next, Request, Router, Server, test::Client};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let log = Arc::new(Mutex::new(Vec::new()));
    /// let lines = log.clone();
    /// let router = Router::new().get("/", |_| "hello\n").wrap(|request: &mut Request<'_>, next: Next<'_>| {
    ///     request.set_user("ada");
    ///     next.run(request)
    /// });
    /// let server = Server::new(router).on_request(move |served| {
    ///     lines.lock().unwrap().push(format!("{} {}", served.user().as_deref().unwrap_or("-"), served.target()));
    /// });
    /// Client::of(server).get("/").send();
    /// assert_eq!(*log.lock().unwrap(), ["ada /"]);
    /// ```
    pub fn set_user(&self, name: impl Into<Arc<str>>) {
        self.marks.user.replace(Some(name.into()));
    }

    /// The name of the user, if code before the handler has [set](Request::set_user) it.
    pub fn user(&self) -> Option<Arc<str>> {
        self.marks.user()
    }

    /// The time of the request so far, by phase. All phases are zero unless the request is measured: the server has an
    /// [observer](crate::Server::on_request) or [`wrap::server_timing`](crate::wrap::server_timing) is around the handler.
    ///
    /// ```
    /// use osier_web::{Phase, Request, Router, test::Client, wrap};
    /// use std::time::Duration;
    ///
    /// let slow = |request: &mut Request<'_>| {
    ///     osier::sleep(Duration::from_millis(2));
    ///     assert!(request.times().get(Phase::Sleep) >= Duration::from_millis(2));
    ///     "done\n"
    /// };
    /// let client = Client::new(Router::new().get("/", slow).wrap(wrap::server_timing()));
    /// assert!(client.get("/").send().header("server-timing").unwrap().contains("sleep;dur="));
    /// ```
    pub fn times(&self) -> Times {
        let timing = &self.marks.timing;
        let started = timing.started();
        started.map_or(Times::ZERO, |started| timing.times(Stamp::now().nanos_since(started)))
    }

    /// Measures the request from now on. Has no effect if it is measured already.
    #[inline]
    pub fn measure(&self) {
        self.marks.timing.begin_now();
    }

    /// Makes this request a span of a trace ([W3C Trace Context](https://www.w3.org/TR/trace-context/)): below its
    /// client's, if `goes_on` says so and the fields `traceparent` and `tracestate` are valid, or a new trace, which is marked as
    /// `is_sampled`. The proxy and FastCGI then pass it on in place of the client's fields. A second call changes nothing.
    ///
    /// [`wrap::trace`](crate::wrap::trace) does it for a router.
    pub fn start_trace(&self, goes_on: bool, is_sampled: bool) -> TraceContext {
        if let Some(started) = self.marks.trace.get() {
            return started;
        }
        let given = goes_on.then(|| TraceContext::of(&self.headers())).flatten();
        let context = given.unwrap_or_else(|| TraceContext::begin(is_sampled));
        self.marks.trace.set(Some(context));
        context
    }

    /// The place of this request in a trace, if [one has been started](Request::start_trace).
    pub fn trace(&self) -> Option<TraceContext> {
        self.marks.trace.get()
    }

    /// The fields `traceparent` and `tracestate` for a backend, if a trace has been started.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn forwarded_trace(&self) -> Option<(String, Option<Vec<u8>>)> {
        let context = self.marks.trace.get()?;
        Some((context.to_string(), context.state(&self.headers())))
    }

    /// Logs the request once, as a warning, as soon as it has taken longer than `limit`, with its times and
    /// the backtrace of where its fiber waits. [`wrap::slow`](crate::wrap::slow) does it for a router.
    #[inline]
    pub fn set_slow(&self, limit: Duration) {
        match (self.marks.timing.started(), self.marks.trusted.get()) {
            (Some(started), None) => self.marks.slow.set_due(started + limit),
            _ => self.set_slow_late(limit),
        }
    }

    /// The same if the time of the request is not measured yet, or if its id comes from a trusted proxy, which only the head has.
    #[cold]
    fn set_slow_late(&self, limit: Duration) {
        let started = self.marks.timing.begin_now();
        if self.marks.trusted.get().is_some() {
            self.id();
        }
        self.marks.slow.set_due(started + limit);
    }

    /// Values, by type, that wrapping functions have left for the handler. They live until the last
    /// byte of the response has been sent; after an upgrade, until the connection ends.
    #[doc(alias = "Extension")]
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// The [`extensions`](Request::extensions), for adding values.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// The state of type `T` that the router [shares](crate::Router::state) with its handlers.
    ///
    /// # Errors
    ///
    /// An error if there is no state of that type. As a response it is a 500, with a log line that
    /// names the type.
    #[doc(alias("State", "Data"))]
    pub fn state<T: Any>(&self) -> Result<&'a T, Rejection> {
        let missing = || {
            let name = type_name::<T>();
            Rejection::internal(format!(
                "no state of type {name}: give it to the router by Router::state"
            ))
        };
        self.states.get().ok_or_else(missing)
    }

    /// The body. Until the handler reads, nothing of the body is read and no `100 Continue` is
    /// sent.
    pub fn body(&mut self) -> &mut RequestBody<'a> {
        &mut self.body
    }

    /// Copies the fields into a map.
    pub fn to_header_map(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.headers().len());
        for (name, value) in self.headers() {
            // The codec has checked name and value by the same rules.
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        map
    }

    /// Copies the head into the `http` crate's type, for code that needs it.
    ///
    /// # Errors
    ///
    /// An error if that crate does not accept the target as a URI.
    pub fn to_http(&self) -> Result<http::Request<()>, http::Error> {
        let request = http::Request::builder()
            .method(self.method())
            .uri(self.target())
            .version(self.version());
        let mut request = request.body(())?;
        *request.headers_mut() = self.to_header_map();
        Ok(request)
    }
}

osier_queue::impl_debug!(Request<'a>, self => { head: self.head, peer: self.peer(), .. });

fn decode_form(text: &str) -> Cow<'_, str> {
    if !text.contains('+') {
        return percent_decode(text.as_bytes()).decode_utf8_lossy();
    }
    let spaced = text.replace('+', " ");
    Cow::Owned(percent_decode(spaced.as_bytes()).decode_utf8_lossy().into_owned())
}

/// The path of a target with its query.
#[cfg(any(feature = "cache", feature = "fastcgi", feature = "proxy"))]
pub(crate) fn path_and_query(head: &Head<'_>) -> String {
    match head.query() {
        Some(query) => [head.path(), "?", query].concat(),
        None => head.path().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_decoded() {
        assert_eq!(decode_form("a+b%2Bc"), "a b+c");
        assert!(matches!(decode_form("plain"), Cow::Borrowed("plain")));
        assert_eq!(decode_form("%ff"), "\u{fffd}");
    }
}
