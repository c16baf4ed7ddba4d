//! The handler of a server: a router, or one function for all requests.

use std::cell::OnceCell;
use std::fmt;

use matchit::Params;
use osier_http::path::Path;
use osier_http::{Head, Method};

use crate::router::answer::Answer;
use crate::router::next::Surroundings;
use crate::router::route::{Endpoint, Route};
use crate::router::{Found, Router};
use crate::{IntoResponse, Request};

/// The handler of a [`Server`](crate::Server): a [`Router`], or one function that gets every
/// request, of any method and path.
///
/// ```
/// use osier_web::{Request, Server, test::Client};
///
/// let server = Server::new(|request: &mut Request<'_>| format!("you asked for {}\n", request.path()));
/// assert_eq!(Client::of(server).get("/a").send().text(), "you asked for /a\n");
/// ```
///
/// A function gets the path as it was sent, even one with an invalid escape. `CONNECT` gets 501.
pub struct Handler(Kind);

#[expect(
    clippy::large_enum_variant,
    reason = "there is one a server, and a box would cost each burst a miss"
)]
enum Kind {
    Router(Router),
    Function(Endpoint),
}

impl From<Router> for Handler {
    fn from(router: Router) -> Self {
        Handler(Kind::Router(router))
    }
}

impl Handler {
    /// Makes a handler of a function that may have to wait for the body of the request, as those of gateways do. The body is
    /// received without a stack.
    pub fn answering(function: impl Fn(&mut Request<'_>) -> Answer + Send + Sync + 'static) -> Handler {
        Handler(Kind::Function(Endpoint::answering(function)))
    }
}

impl<F, R> From<F> for Handler
where
    F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
    R: IntoResponse + 'static,
{
    fn from(function: F) -> Self {
        Handler(Kind::Function(Endpoint::new(function)))
    }
}

static NOTHING: Surroundings = Surroundings::NOTHING;

impl Handler {
    /// Finds the handler of a request, as [`Router::find`] does.
    #[inline]
    fn find<'r, 'p, 'h: 'p>(
        &'r self,
        method: &str,
        sent: &'h str,
        read: &'p OnceCell<Path<'h>>,
        params: &mut Option<Params<'r, 'p>>,
    ) -> Found<'r> {
        match &self.0 {
            Kind::Router(router) => router.find(method, sent, read, params),
            Kind::Function(endpoint) => Found {
                endpoint: Some(endpoint),
                route: Some(Route::PLAIN),
                around: &endpoint.around,
                pattern: "",
                mount: 0,
            },
        }
    }

    /// Finds the handler of the request with this head.
    #[inline]
    pub(crate) fn find_for<'r, 'p, 'h: 'p>(
        &'r self,
        head: &Head<'h>,
        read: &'p OnceCell<Path<'h>>,
        params: &mut Option<Params<'r, 'p>>,
    ) -> Found<'r> {
        match head.method() {
            Method::Connect => self.nothing(),
            method => self.find(method.as_str(), head.path(), read, params),
        }
    }

    /// Returns the result for a request that has no path.
    fn nothing(&self) -> Found<'_> {
        match &self.0 {
            Kind::Router(router) => router.nothing(),
            Kind::Function(_) => Found {
                endpoint: None,
                route: None,
                around: &NOTHING,
                pattern: "",
                mount: 0,
            },
        }
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Router(router) => router.fmt(f),
            Kind::Function(_) => f.write_str("a function"),
        }
    }
}
