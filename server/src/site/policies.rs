//! Runs the policies around a handler: they admit a request, limit its body, and change the response.
//!
//! The order is fixed. A CORS preflight comes first, because it carries no credentials. Then come the trace and the
//! request id, the client's address, the rate, authentication (the most expensive checks: passwords, tokens, then the
//! authentication server), the size of the body, the queue, and the handler. A refusal gets error pages and header
//! fields like any other response, and a page of another origin may read it.

use std::sync::Arc;
use std::time::Duration;

use osier_web::compress::Compress;
use osier_web::http::StatusCode;
use osier_web::wrap::html_errors;
use osier_web::wrap::queue::Queue;
use osier_web::{Answer, Body, Request, Response};

use crate::handler::Handler;
use crate::policy::access::Access;
use crate::policy::auth::Auth;
use crate::policy::cors::Cors;
use crate::policy::forward_auth::AuthServer;
use crate::policy::headers::Headers;
use crate::policy::jwt::Tokens;
use crate::policy::rate::Rate;
use crate::policy::request_id::RequestIds;
use crate::policy::trace::Trace;

/// Header fields that describe a body. They are removed when an error page replaces the body.
const OF_BODY: [&str; 11] = [
    "accept-ranges",
    "content-digest",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "content-md5",
    "digest",
    "etag",
    "last-modified",
    "repr-digest",
];

const HSTS: &str = "strict-transport-security";

/// The policies around one handler. All are off by default.
#[derive(Default)]
pub struct PolicyChain {
    pub access: Option<Access>,
    pub rate: Option<Arc<Rate>>,
    pub auth: Option<Arc<Auth>>,
    /// Whether the handler runs scripts, which know who has logged in.
    pub tells_user: bool,
    pub forward_auth: Option<Arc<AuthServer>>,
    pub jwt: Option<Arc<Tokens>>,
    pub cors: Option<Cors>,
    /// Limit of a request body, in bytes.
    pub body: u64,
    /// Time until the handler has made its response.
    pub time: Option<Duration>,
    /// How many requests run at once. Each route has a queue of its own.
    pub queue: Option<Arc<Queue>>,
    /// Whether clients may be slower than the listener's rates.
    pub may_be_slow: bool,
    /// Compression of text for clients that accept it. Files compress by themselves.
    pub compress: Option<Compress>,
    pub headers: Headers,
    /// Value of `Strict-Transport-Security`, for responses over https.
    pub hsts: Option<String>,
    pub request_id: RequestIds,
    pub error_pages: Arc<[ErrorPage]>,
    /// Whether an error without a page gets one in HTML, for clients that prefer it.
    pub html_errors: bool,
    /// Whether responses have the field `Server-Timing`.
    pub server_timing: bool,
    /// The time after which a request is logged as slow.
    pub slow: Option<Duration>,
    /// The traces that requests are part of.
    pub trace: Option<Trace>,
    /// The label of the log and of the series in the metrics, see [`Snapshot::log`](super::Snapshot::log).
    pub label: u32,
    /// Whether only the label, the limit of the body, `slow` and `html_errors` are set.
    pub bare: bool,
}

/// A body that replaces the body of responses with this status.
pub struct ErrorPage {
    pub status: u16,
    pub content_type: String,
    pub body: Arc<Vec<u8>>,
}

impl PolicyChain {
    /// Computes `bare`, once every policy is set.
    pub fn settle(mut self) -> PolicyChain {
        // Without `..`, so a new field does not compile until it is considered here.
        let PolicyChain {
            access,
            rate,
            auth,
            tells_user: _,
            forward_auth,
            jwt,
            cors,
            body: _,
            time,
            queue,
            may_be_slow,
            compress,
            headers,
            hsts,
            request_id,
            error_pages,
            html_errors: _,
            server_timing,
            slow: _,
            trace,
            label: _,
            bare: _,
        } = &self;
        let admits = access.is_some() || rate.is_some() || auth.is_some() || jwt.is_some() || forward_auth.is_some();
        let changes = compress.is_some()
            || cors.is_some()
            || *headers != Headers::default()
            || hsts.is_some()
            || *request_id != RequestIds::default()
            || *server_timing
            || trace.is_some()
            || !error_pages.is_empty();
        self.bare = !admits && !changes && time.is_none() && queue.is_none() && !may_be_slow;
        self
    }

    /// Labels a request, and sets when it is logged as slow. Returns whether it may go straight to
    /// [`pass`](PolicyChain::pass); otherwise [`answer`](PolicyChain::answer) serves it.
    #[inline]
    pub fn passes(&self, request: &mut Request<'_>) -> bool {
        request.set_label(self.label);
        if let Some(limit) = self.slow {
            request.set_slow(limit);
        }
        self.bare && request.body().limit(self.body).is_ok()
    }

    /// Answers a request that [passes](PolicyChain::passes).
    ///
    /// # Suspends
    /// As the handler does.
    #[inline]
    pub fn pass(self: &Arc<PolicyChain>, handler: &dyn Handler, request: &mut Request<'_>, path: &[u8]) -> Answer {
        let answer = handler.answer_after_body(request, path);
        self.change(request, answer, PolicyChain::with_html_error)
    }

    /// Turns an error into a page in HTML, for a client that prefers it.
    #[inline]
    fn with_html_error(&self, request: &Request<'_>, response: Response) -> Response {
        match self.html_errors {
            true => html_errors::filter(request, response),
            false => response,
        }
    }

    /// Answers a request with every policy around the handler.
    ///
    /// # Suspends
    /// As the handler does, while a password is compared, and while an authentication server is asked.
    pub fn answer(self: &Arc<PolicyChain>, handler: &dyn Handler, request: &mut Request<'_>, path: &[u8]) -> Answer {
        if let Some(answer) = self.cors.as_ref().and_then(|cors| cors.preflight(request)) {
            return self.headers.apply(answer).into();
        }
        if let Some(trace) = &self.trace {
            trace.start(request);
        }
        self.request_id.forward(request);
        if let Err(refusal) = self.admit(request) {
            return self.finish(request, refusal).into();
        }
        let Some(time) = self.time else {
            let answer = self.handle(handler, request, path);
            return self.change(request, answer, PolicyChain::finish);
        };
        let response = osier::timeout(time, || self.handle(handler, request, path).wait(request));
        let response = response.unwrap_or_else(|_| {
            let reason = "there was no response within 'limits.time'";
            Response::plain(StatusCode::GATEWAY_TIMEOUT).because(reason)
        });
        self.finish(request, response).into()
    }

    /// Calls the handler, in the request's turn if the route has a queue.
    fn handle(&self, handler: &dyn Handler, request: &mut Request<'_>, path: &[u8]) -> Answer {
        let answer = |request: &mut Request<'_>| handler.answer_after_body(request, path);
        match &self.queue {
            Some(queue) => queue.answer(request, answer),
            None => answer(request),
        }
    }

    /// Applies `change` to the response of an answer, now or once the body has arrived.
    #[inline]
    fn change(
        self: &Arc<PolicyChain>,
        request: &Request<'_>,
        answer: Answer,
        change: fn(&PolicyChain, &Request<'_>, Response) -> Response,
    ) -> Answer {
        match answer.ready() {
            Ok(response) => change(self, request, response).into(),
            Err(answer) => {
                let policies = Arc::clone(self);
                answer.map(request, move |request, response| change(&policies, request, response))
            }
        }
    }

    /// Finishes the response of a request that [`answer`](PolicyChain::answer) serves.
    fn finish(&self, request: &Request<'_>, response: Response) -> Response {
        match keeps_own_page(&response) {
            true => self.decorate(request, response),
            false => self.decorate(request, self.with_error_page(request, response)),
        }
    }

    /// Finishes a response that no handler has made.
    #[cold]
    pub fn refuse(&self, request: &Request<'_>, response: Response) -> Response {
        request.set_label(self.label);
        self.decorate(request, self.with_error_page(request, response))
    }

    /// Checks a request, up to the size of its body.
    ///
    /// # Errors
    /// The response to a request that is refused.
    fn admit(&self, request: &mut Request<'_>) -> Result<(), Response> {
        if self.may_be_slow {
            request.allow_slow_client();
        }
        if let Some(access) = &self.access {
            access.check(request.client_ip())?;
        }
        if let Some(rate) = &self.rate {
            // All clients of Unix sockets share one rate.
            let permit = rate.check(request.peer().ip())?;
            if permit.is_counted() {
                // The request counts until the last byte of its response has been sent, which is after the handler has
                // returned. A WebSocket or tunnel counts until it ends.
                request.extensions_mut().insert(Arc::new(permit));
            }
        }
        if let Some(auth) = &self.auth {
            let user = auth.check(request)?;
            if self.tells_user {
                user.tell_scripts(request);
            }
        }
        if let Some(tokens) = &self.jwt {
            tokens.check(request)?;
        }
        if let Some(auth) = &self.forward_auth {
            auth.check(request)?;
        }
        let bounded = request.body().limit(self.body);
        bounded.map_err(|_| {
            Response::plain(StatusCode::PAYLOAD_TOO_LARGE).close().because(format!(
                "the body is larger than the limit of {} bytes ('limits.body')",
                self.body
            ))
        })
    }

    /// Replaces the body of an error by the site's page, or by one in HTML.
    fn with_error_page(&self, request: &Request<'_>, response: Response) -> Response {
        let status = response.status().as_u16();
        match self.error_pages.iter().find(|page| page.status == status) {
            None => self.with_html_error(request, response),
            Some(page) => OF_BODY
                .iter()
                .fold(response, Response::remove)
                .body(Body::shared(Arc::clone(&page.body)))
                .header("content-type", &page.content_type),
        }
    }

    /// Adds the header fields of all policies, and compresses the body.
    fn decorate(&self, request: &Request<'_>, mut response: Response) -> Response {
        if let Some(auth) = &self.forward_auth {
            response = auth.finish(request, response);
        }
        // No page can read a response that changes the protocol, and it has no body.
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if let Some(cors) = &self.cors
            && !switches
        {
            response = cors.allow(request.header("origin"), response);
        }
        if let Some(hsts) = &self.hsts
            && request.is_https()
        {
            response = response.remove(HSTS).header(HSTS, hsts);
        }
        response = self.headers.apply(response);
        response = self.request_id.answer(request, response);
        if self.server_timing {
            response = response.header("server-timing", request.times().server_timing());
        }
        if let Some(compress) = &self.compress
            && !switches
        {
            response = compress.filter(request, response);
        }
        response
    }
}

/// Whether a response keeps its body. Those of backends do, except for 502, 503 and 504: these say that no backend
/// could answer.
fn keeps_own_page(response: &Response) -> bool {
    response.is_of_backend() && !matches!(response.status().as_u16(), 502..=504)
}
