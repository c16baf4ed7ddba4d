//! The handlers of one path, by method, and the responses for a method that the path lacks.

use http::StatusCode;
use osier_http::{Head, Method};

use crate::conn::peer::Gone;
use crate::router::Router;
use crate::router::answer::Answer;
use crate::router::next::{Erased, Next, Surroundings, erase, erase_wrap};
use crate::{IntoResponse, Request, Response};

/// A handler and its surroundings.
pub(crate) struct Endpoint {
    pub(crate) handler: Erased,
    /// Functions and states of the route and of all routers around it.
    pub(crate) around: Surroundings,
}

impl Endpoint {
    /// An endpoint with nothing around it.
    pub(super) fn new<F, R>(handler: F) -> Endpoint
    where
        F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
        R: IntoResponse + 'static,
    {
        Endpoint {
            handler: erase(handler),
            around: Surroundings::NOTHING,
        }
    }

    /// Same as [`new`](Endpoint::new), for a handler that may have to wait for the body.
    pub(super) fn answering(handler: impl Fn(&mut Request<'_>) -> Answer + Send + Sync + 'static) -> Endpoint {
        Endpoint {
            handler: Box::new(move |request, answer| *answer = Some(handler(request))),
            around: Surroundings::NOTHING,
        }
    }
}

/// The handlers of one path, and the options of all of them.
///
/// ```
/// use osier_web::{Route, Router};
///
/// let router = Router::new().route("/payments", Route::new().post(|_| "done").finish_when_gone().body_limit(4096));
/// ```
#[doc(alias("MethodRouter", "Resource"))]
#[must_use = "a route does nothing unless a router has it"]
pub struct Route {
    /// Handlers in the order of addition, at most one for each method.
    pub(super) endpoints: Vec<(Box<str>, Endpoint)>,
    pub(crate) gone: Gone,
    pub(crate) body_limit: Option<u64>,
    pub(crate) stack_bytes: Option<usize>,
    /// Surroundings of the route alone.
    around: Surroundings,
    /// Surroundings that the routers around the route add.
    pub(super) outside: Surroundings,
}

impl Route {
    /// The route of every fallback.
    pub(super) const PLAIN: &'static Route = &Route::new();

    /// Makes a route without a handler.
    pub const fn new() -> Self {
        Route {
            endpoints: Vec::new(),
            gone: Gone::Default,
            body_limit: None,
            stack_bytes: None,
            around: Surroundings::NOTHING,
            outside: Surroundings::NOTHING,
        }
    }

    /// Handles `method`, which may be one that HTTP does not define.
    #[doc(alias = "method_routing")]
    #[track_caller]
    pub fn on<F, R>(self, method: http::Method, handler: F) -> Self
    where
        F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
        R: IntoResponse + 'static,
    {
        self.set(method.as_str(), erase(handler))
    }

    /// Cancels the handlers when the client is gone: their next wait fails or unwinds, as
    /// [`Cancelled`](osier::Cancelled) says. Nobody gets the response of such a handler, and with
    /// this it stops working for nobody.
    ///
    /// Without this, a handler runs to its end, and only its own reads from and writes to the client
    /// fail. That is the default because an unwinding reaches code that did not expect one: it
    /// poisons a [`std::sync::Mutex`] that the handler holds, and a destructor that panics meanwhile
    /// aborts the process. Use this for handlers that hold neither.
    ///
    /// [`fiber::is_cancelled`](osier::fiber::is_cancelled) tells a computation that never waits.
    ///
    /// ```
    /// use osier_web::{Request, Response, Route, Router};
    ///
    /// let ticks = |_: &mut Request<'_>| {
    ///     Response::stream(|out| loop {
    ///         osier::sleep(std::time::Duration::from_secs(60)); // ends at once when the client leaves
    ///         out.write_all(b"tick\n")?;
    ///         out.flush()?;
    ///     })
    /// };
    /// let router = Router::new().route("/ticks", Route::new().get(ticks).cancel_when_gone());
    /// ```
    #[doc(alias = "disconnect")]
    pub fn cancel_when_gone(mut self) -> Self {
        self.gone = Gone::Cancel;
        self
    }

    /// Lets gateways run to their end too when the client is gone: `Proxy` and `FastCgi` otherwise
    /// close the connection to the backend. The response is discarded. Every other handler finishes
    /// without this.
    pub fn finish_when_gone(mut self) -> Self {
        self.gone = Gone::Finish;
        self
    }

    /// Cancels the handlers when the client resets the connection, as
    /// [`cancel_when_gone`](Route::cancel_when_gone) does, but not when it closes its sending
    /// direction: it may still read the response.
    pub fn allow_half_close(mut self) -> Self {
        self.gone = Gone::CancelUnlessHalfClosed;
        self
    }

    /// Sets the largest request body in bytes, in place of the server's
    /// [limit](crate::Limits::body).
    #[doc(alias = "DefaultBodyLimit")]
    pub fn body_limit(mut self, bytes: u64) -> Self {
        self.body_limit = Some(bytes);
        self
    }

    /// Runs the handlers, and the bodies that they stream, on a stack of this many bytes of address
    /// space, of which a guard takes 64 KiB. It is for handlers that recurse deeply or call libraries
    /// with large frames. All others share the size of the runtime, 256 KiB unless set.
    ///
    /// Such a handler, with the functions around it, runs on a fiber of its own.
    ///
    /// ```
    /// use osier_web::{Request, Route, Router};
    ///
    /// fn deep(_: &mut Request<'_>) -> String {
    ///     let frame = [1_u8; 600 << 10];
    ///     std::hint::black_box(&frame).len().to_string()
    /// }
    /// let router = Router::new().route("/deep", Route::new().get(deep).stack_bytes(1 << 20));
    /// ```
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }

    /// Wraps `wrap` around the handlers of this route, those added before and after. See
    /// [`Router::wrap`](crate::Router::wrap).
    pub fn wrap<F, R>(mut self, wrap: F) -> Self
    where
        F: Fn(&mut Request<'_>, Next<'_>) -> R + Send + Sync + 'static,
        R: IntoResponse + 'static,
    {
        let (at, wrap) = (self.around.depth(), erase_wrap(wrap));
        for (_, endpoint) in &mut self.endpoints {
            endpoint.around.wrap(at, wrap.clone());
        }
        self.around.wrap(at, wrap);
        self
    }

    #[track_caller]
    pub(super) fn set(mut self, method: &str, handler: Erased) -> Self {
        let around = self.around.clone();
        let endpoint = Endpoint { handler, around };
        let is_new = self.endpoints.iter().all(|(known, _)| **known != *method);
        assert!(is_new, "a route has a handler for {method} already");
        self.endpoints.push((method.into(), endpoint));
        self
    }

    /// Adds the methods of `later`, and the options that it sets.
    ///
    /// # Errors
    ///
    /// A method that has a handler already.
    pub(super) fn merge(&mut self, later: Route) -> Result<(), Box<str>> {
        for (method, endpoint) in later.endpoints {
            if self.endpoints.iter().any(|(known, _)| *known == method) {
                return Err(method);
            }
            self.endpoints.push((method, endpoint));
        }
        if later.gone != Gone::Default {
            self.gone = later.gone;
        }
        self.body_limit = later.body_limit.or(self.body_limit);
        self.stack_bytes = later.stack_bytes.or(self.stack_bytes);
        Ok(())
    }

    #[inline]
    pub(super) fn endpoint(&self, method: &str) -> Option<&Endpoint> {
        let by = |name: &str| {
            self.endpoints
                .iter()
                .find(|(known, _)| **known == *name)
                .map(|(_, endpoint)| endpoint)
        };
        by(method).or_else(|| if method == "HEAD" { by("GET") } else { None })
    }

    /// The value of `Allow`: the methods of the handlers, and those that the router handles by
    /// itself.
    pub(crate) fn allow(&self) -> String {
        let mut methods: Vec<&str> = self.endpoints.iter().map(|(method, _)| &**method).collect();
        if methods.contains(&"GET") && !methods.contains(&"HEAD") {
            methods.push("HEAD");
        }
        if !methods.contains(&"OPTIONS") {
            methods.push("OPTIONS");
        }
        methods.join(", ")
    }
}

impl Default for Route {
    fn default() -> Self {
        Self::new()
    }
}

osier_queue::impl_debug!(Route, self => { methods: self.allow(), gone: self.gone, .. });

/// Makes a method of [`Route`] and one of [`Router`] for each HTTP method.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $method:literal)*) => {
        impl Route {
            $($(#[$doc])*
            ///
            /// # Panics
            ///
            /// Panics if the route has a handler for this method already.
            #[track_caller]
            pub fn $name<F, R>(self, handler: F) -> Self
            where
                F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
                R: IntoResponse + 'static,
            {
                self.set($method, erase(handler))
            })*
        }

        impl Router {
            $($(#[$doc])*
            ///
            /// # Panics
            ///
            /// Panics if the pattern is malformed, conflicts with a known one, or has a handler for this method already.
            #[track_caller]
            pub fn $name<F, R>(self, path: &str, handler: F) -> Self
            where
                F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
                R: IntoResponse + 'static,
            {
                self.route(path, Route::new().$name(handler))
            })*
        }
    };
}

methods! {
    /// Handles `GET`, and `HEAD` unless the path has a `HEAD` handler.
    get "GET"
    /// Handles `HEAD`. The body of the response is not sent.
    head "HEAD"
    /// Handles `POST`.
    post "POST"
    /// Handles `PUT`.
    put "PUT"
    /// Handles `PATCH`.
    patch "PATCH"
    /// Handles `DELETE`.
    delete "DELETE"
    /// Handles `OPTIONS`, in place of the automatic list of methods.
    options "OPTIONS"
}

/// Returns the server's own response to a request without a handler.
#[cold]
pub(crate) fn without_handler(route: Option<&Route>, head: &Head<'_>) -> Response {
    match (head.method(), route) {
        (Method::Connect, _) => Response::plain(StatusCode::NOT_IMPLEMENTED),
        (Method::Options, Some(route)) => Response::new(StatusCode::NO_CONTENT).header("allow", route.allow()),
        (Method::Options, None) if head.path() == "*" => Response::new(StatusCode::NO_CONTENT),
        (_, Some(route)) => Response::plain(StatusCode::METHOD_NOT_ALLOWED).header("allow", route.allow()),
        (_, None) => Response::plain(StatusCode::NOT_FOUND),
    }
}
