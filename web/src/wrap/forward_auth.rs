//! Forward authentication: another server decides who may pass, for example oauth2-proxy, Authelia or an
//! application's own login.
//!
//! ```text
//!   request ─▶ GET to the authentication server: Cookie, Authorization, …; X-Forwarded-Method, -Uri, -Host, …
//!                ├─ 2xx ─▶ its fields, X-User for example, on the request ─▶ handler ─▶ response, with its Set-Cookie
//!                ├─ 401, 403, 302, … ─▶ its response goes to the client
//!                └─ no response ─▶ 502, 503 or 504; the request never passes
//! ```
//!
//! ```
//! use osier_web::upstream::Upstream;
//! use osier_web::wrap::forward_auth::{ForwardAuth, Options};
//! use osier_web::{Request, Router};
//!
//! fn home(request: &mut Request<'_>) -> String {
//!     format!("hello, {}\n", request.header_str("x-user").unwrap_or("nobody"))
//! }
//!
//! let gate = Upstream::builder("gate").backend("127.0.0.1:4180".parse()?).build()?;
//! let options = Options { response_headers: vec!["X-User".to_owned()], ..Options::default() };
//! let router = Router::new().get("/", home).wrap(ForwardAuth::with(gate, "/check", options)?.wrap());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - The fields of [`Options::response_headers`] are removed from every request first, in every spelling, so a client
//!   cannot send its own.
//! - The authentication server gets the original method in `X-Forwarded-Method`, the target that the client sent in
//!   `X-Forwarded-Uri`, and the client in `X-Forwarded-For`. The client's own `X-Forwarded-*`, `Forwarded` and
//!   `X-Real-IP` and the hop-by-hop fields are left out. So are `X-Original-*` and `X-Rewrite-URL`, unless
//!   [`Options::request_headers`] names them. The body is not sent; it stays for the handler.
//! - Fields that the client's `Connection` names are hop-by-hop, too. They are removed from the request, or a handler would see a field that
//!   the authentication server has not seen.
//! - A change of protocol (WebSocket) is checked like any other request.

use std::io;
use std::time::Duration;

use http::StatusCode;
use osier_http::{BodyLength, FieldLines, HeaderError, RequestWriter};

use crate::body::outgoing::Kind;
use crate::conn::ignoring_case::begins;
use crate::proxy::ask::{self, Answer, Bounds, Silence};
use crate::proxy::forwarded;
use crate::request::changes::{check_added, is_same_name};
use crate::upstream::Upstream;
use crate::upstream::client::while_client_stays;
use crate::{Address, Body, Next, Request, Response};

/// The settings of a [`ForwardAuth`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Names of the request fields that are sent to the authentication server. `None` for all fields but the hop-by-hop
    /// ones, those that describe the body (`Content-*`), conditions (`If-*`, `Range`), and those that some servers take
    /// for the original request (`X-Original-*`, `X-Rewrite-URL`).
    pub request_headers: Option<Vec<String>>,
    /// Names of the fields that are copied from a 2xx response onto the request.
    pub response_headers: Vec<String>,
    /// Names of the fields that are copied from a 2xx response to the response for the client, such as the `Set-Cookie`
    /// with which the authentication server renews its session. A cookie is added to those of the handler; any other
    /// field replaces the handler's.
    pub client_headers: Vec<String>,
    /// The Host field that the authentication server gets. `None` for its own address, `localhost` for a Unix socket.
    pub host: Option<String>,
    /// The longest wait for the whole response. Then the client gets 504. Default: 10 s.
    pub timeout: Duration,
    /// Maximum bytes of the response's head. The client gets 502 for a longer one. Default: 64 KiB.
    pub head_bytes: usize,
    /// Maximum bytes of the body of a response that goes to the client. The client gets 502 for a longer one. Default:
    /// 1 MiB.
    pub body_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            request_headers: None,
            response_headers: Vec::new(),
            client_headers: Vec::new(),
            host: None,
            timeout: Duration::from_secs(10),
            head_bytes: 64 << 10,
            body_bytes: 1 << 20,
        }
    }
}

/// Asks an authentication server about each request.
#[derive(Debug)]
pub struct ForwardAuth {
    upstream: Upstream,
    target: String,
    options: Options,
}

impl ForwardAuth {
    /// Asks `upstream` by `GET target`, and copies no fields onto the request.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `target` does not begin with `/` or cannot stand in a request.
    pub fn new(upstream: Upstream, target: impl Into<String>) -> io::Result<ForwardAuth> {
        ForwardAuth::with(upstream, target, Options::default())
    }

    /// Asks `upstream` by `GET target`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `target` does not begin with `/`, or if it or a name or the host of `options` cannot stand in
    /// a request. A field that frames a message, Host, Expect and Upgrade cannot be copied, in any spelling.
    pub fn with(upstream: Upstream, target: impl Into<String>, options: Options) -> io::Result<ForwardAuth> {
        let target = target.into();
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let host = options.host.as_deref().unwrap_or("localhost");
        if !target.starts_with('/') || RequestWriter::begin(&mut Vec::new(), "GET", &target, host).is_err() {
            return Err(invalid(format!(
                "GET {target:?} with the host {host:?} is no valid request"
            )));
        }
        for name in options.response_headers.iter().chain(&options.client_headers) {
            check_added(name).map_err(|error| invalid(format!("{name:?} cannot be copied: {error}")))?;
        }
        for name in options.request_headers.iter().flatten() {
            let checked = FieldLines::new().push(name, b"");
            checked.map_err(|error| invalid(format!("{name:?} cannot be sent: {error}")))?;
        }
        Ok(ForwardAuth {
            upstream,
            target,
            options,
        })
    }

    /// Asks about each request before it passes: for [`Router::wrap`](crate::Router::wrap).
    pub fn wrap(self) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
        move |request, next| match self.check(request) {
            Ok(()) => {
                let response = next.run(request);
                self.finish(request, response)
            }
            Err(response) => response,
        }
    }

    /// Asks about one request, and copies the named fields of a 2xx response onto it. With [`Options::client_headers`],
    /// the handler's response has to be [finished](ForwardAuth::finish).
    ///
    /// # Errors
    ///
    /// The response to a request that does not pass: that of the authentication server, or 502, 503 or 504.
    ///
    /// # Suspends
    ///
    /// Until the authentication server has answered.
    ///
    /// # Cancellation
    ///
    /// A client that leaves cancels the call, unless the route has
    /// [`finish_when_gone`](crate::Route::finish_when_gone).
    pub fn check(&self, request: &mut Request<'_>) -> Result<(), Response> {
        if forwarded::lists_too_many(request.head.connection_names_others(), request.headers()) {
            let text = "a Connection field that lists too many names\n";
            return Err(Response::new(StatusCode::BAD_REQUEST).body(text));
        }
        remove_named(request).map_err(Response::internal_error)?;
        let mut answer = None;
        let gone = while_client_stays(request, &mut |request| {
            answer = Some(self.ask(request));
            Response::new(StatusCode::OK)
        });
        match answer {
            None => Err(gone),
            Some(Ok(answer)) if answer.status.is_success() => self.admit(request, &answer),
            Some(Ok(answer)) => Err(refusal(answer)),
            Some(Err(silence)) => Err(self.unanswered(request, silence)),
        }
    }

    /// Copies the fields of [`Options::client_headers`] to the response to a request that has passed
    /// [`check`](ForwardAuth::check).
    pub fn finish(&self, request: &Request<'_>, mut response: Response) -> Response {
        if self.options.client_headers.is_empty() {
            return response;
        }
        let kept = request.extensions().get();
        let Some((_, fields)) = kept.and_then(|ForClient(kept)| kept.iter().find(|(by, _)| *by == self.id())) else {
            return response;
        };
        for (name, _) in fields.iter().filter(|(name, _)| !is_cookie(name)) {
            response = response.remove(name);
        }
        fields
            .iter()
            .fold(response, |response, (name, value)| response.header(name, value))
    }

    fn ask(&self, request: &Request<'_>) -> Result<Answer, Silence> {
        let options = &self.options;
        let bounds = Bounds {
            time: options.timeout,
            head_bytes: options.head_bytes,
            body_bytes: options.body_bytes,
        };
        ask::get(&self.upstream, &bounds, &|status| !status.is_success(), &|address| {
            let mut head = Vec::new();
            // The parts were checked when this was made, or are those of a parsed request.
            let written = self.write_head(request, address, &mut head);
            debug_assert!(written.is_ok(), "{written:?}");
            head
        })
    }

    fn write_head(&self, request: &Request<'_>, address: &Address, out: &mut Vec<u8>) -> Result<(), HeaderError> {
        let host = match (&self.options.host, address) {
            (Some(host), _) | (None, Address::Tcp(host)) => host,
            _ => "localhost",
        };
        let mut head = RequestWriter::begin(out, "GET", &self.target, host)?;
        let chosen = self.options.request_headers.as_deref();
        for (name, value) in request.headers() {
            let is_ours = request.changes.adds(name);
            // The client's own copies of the fields that the response will set.
            let is_forged = || {
                let copied = &self.options.response_headers;
                !is_ours && copied.iter().any(|known| is_same_name(known, name))
            };
            let is_chosen = || match chosen {
                None => !is_of_resource(name) && !names_the_original(name),
                Some(chosen) => chosen.iter().any(|known| known.eq_ignore_ascii_case(name)),
            };
            if forwarded::passes(name, false) && is_chosen() && !is_forged() {
                head.header(name, value)?;
            }
        }
        let hop = forwarded::Hop {
            client: request.client_ip(),
            is_https: request.is_https(),
            host: request.host().unwrap_or_default(),
        };
        forwarded::add(&mut head, request.headers(), false, &hop)?;
        head.header("x-forwarded-method", request.method().as_bytes())?;
        let original = request.changes.original(request.head);
        let query = original.query().map(str::as_bytes);
        let uri = [
            original.path().as_bytes(),
            query.map_or(b"", |_| b"?"),
            query.unwrap_or_default(),
        ];
        head.joined("x-forwarded-uri", &uri)?;
        head.finish(BodyLength::None);
        Ok(())
    }

    /// Copies the fields of a 2xx response onto the request, and keeps those for the client.
    fn admit(&self, request: &mut Request<'_>, answer: &Answer) -> Result<(), Response> {
        let for_client = &self.options.client_headers;
        if !for_client.is_empty() {
            let mut fields = FieldLines::new();
            let is_copied = |name: &str| for_client.iter().any(|known| known.eq_ignore_ascii_case(name));
            for (name, value) in answer.fields.iter().filter(|(name, _)| is_copied(name)) {
                // The strict parser accepts only fields that can be written.
                let _ = fields.push(name, value);
            }
            let kept: Option<&ForClient> = request.extensions().get();
            let mut kept = kept.cloned().unwrap_or_default();
            kept.0.retain(|(by, _)| *by != self.id());
            kept.0.push((self.id(), fields));
            request.extensions_mut().insert(kept);
        }
        let copied = &self.options.response_headers;
        if copied.is_empty() {
            return Ok(());
        }
        let is_copied = |name: &str| copied.iter().any(|known| known.eq_ignore_ascii_case(name));
        let added: Vec<(String, Vec<u8>)> = answer
            .fields
            .iter()
            .filter(|(name, _)| is_copied(name))
            .map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect();
        let replaced = request.replace_headers(copied, added);
        replaced.map_err(Response::internal_error)
    }

    /// Tells this policy from others around the same handler.
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The response where the authentication server has given none.
    fn unanswered(&self, request: &Request<'_>, silence: Silence) -> Response {
        if let Silence::Cancelled(error) = silence {
            return Response::internal_error(error);
        }
        let (id, name) = (request.id(), self.upstream.name());
        let mut response = Response::plain(silence.status());
        response.cause = Some(format!("[{id}] forward_auth {name}: {silence}").into());
        response
    }
}

/// Fields of authentication servers for the client, among the extensions of a request that has passed: by [`ForwardAuth::id`].
#[derive(Clone, Default)]
struct ForClient(Vec<(usize, FieldLines)>);

/// Removes the fields that the client's `Connection` names. They are not for the authentication server, which would judge another request
/// than the handler sees.
fn remove_named(request: &mut Request<'_>) -> io::Result<()> {
    if !request.head.connection_names_others() {
        return Ok(());
    }
    let is_named = |name: &str| {
        let is_the_clients = forwarded::passes(name, false) && !request.changes.adds(name);
        is_the_clients && check_added(name).is_ok() && request.head.connection_names(name)
    };
    let named: Vec<String> = request
        .headers()
        .map(|(name, _)| name.to_owned())
        .filter(|name| is_named(name))
        .collect();
    request.replace_headers(&named, std::iter::empty::<(String, Vec<u8>)>())
}

fn is_cookie(name: &str) -> bool {
    name.eq_ignore_ascii_case("set-cookie")
}

/// The response of the authentication server, for the client.
fn refusal(answer: Answer) -> Response {
    let mut response = Response::new(answer.status);
    response.has_date = answer.fields.first("date").is_some();
    response.fields = answer.fields;
    response.of_backend = true;
    response.body = Body {
        kind: Kind::Owned(answer.body),
        text: None,
    };
    response
}

/// Whether the field is about the resource itself: its body, which is not sent along, or a condition, which the
/// authentication server would answer by 304.
fn is_of_resource(name: &str) -> bool {
    begins(name, "content-") || begins(name, "if-") || name.eq_ignore_ascii_case("range")
}

/// Whether some authentication servers take the field for the original request, which only this server may describe.
fn names_the_original(name: &str) -> bool {
    let plain = name.replace('_', "-").to_ascii_lowercase();
    plain.starts_with("x-original-")
        || plain.starts_with("x-forwarded-")
        || ["x-rewrite-url", "x-real-ip", "forwarded"].contains(&&*plain)
}
