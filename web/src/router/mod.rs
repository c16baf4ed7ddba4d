//! A router finds the handler of a request: paths in a radix tree (`matchit`), methods in a short
//! list per path.
//!
//! The application builds the router once. Afterwards every worker reads it. [`Router::find`] is on
//! the hot path. It borrows everything from the router and from the request target.

pub(crate) mod answer;
pub(crate) mod handler;
pub(crate) mod next;
mod pattern;
pub(crate) mod route;

use std::any::Any;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, LazyLock};

use http::StatusCode;
use matchit::Params;
use osier_http::path::{BadPath, Path, canonical_part, is_below};

use crate::router::answer::Answer;
use crate::router::next::{Next, Surroundings, erase_wrap};
use crate::router::route::{Endpoint, Route};
use crate::{IntoResponse, Request, Response};

/// A table from paths and methods to handlers.
///
/// A handler is any `Fn(&mut Request) -> impl IntoResponse`, written in the plain blocking style.
/// It runs on the fiber of its connection. Path patterns are those of `matchit`: `/users/{id}`
/// matches one segment, `/files/{*rest}` the rest of the path. A literal segment wins over a
/// parameter.
///
/// # Escapes
///
/// A path is matched in its canonical form ([`Path`](crate::path::Path)): `/%61dmin` and `//admin`
/// match `/admin`, in routes, nested routers and mounts alike. An encoded slash (`%2F`) does not
/// separate segments. It is part of the parameter that contains it. A backend behind a proxy may
/// treat it otherwise.
///
/// A segment of a pattern that begins with `:` or `*`, as a parameter of some other routers does, is refused. `%3A` and `%2A` are
/// these characters as literals.
///
/// A path with a dot segment, a control character or an invalid escape (`%zz`) gets 400. A handler
/// that is to get such paths too is given to [`Server::new`](crate::Server::new) without a router.
/// Patterns may be written in any spelling. Handlers get the path as it was sent.
/// [`Request::param`] decodes the part that a parameter matched, once.
///
/// # Methods
///
/// - `HEAD` uses the `GET` handler unless the path has a `HEAD` handler.
/// - `OPTIONS` lists the methods of the path.
/// - A method that the path lacks gets 405 with `Allow`.
/// - An unknown path gets 404 or the [fallback](Router::fallback).
///
/// ```
/// use osier_web::{Request, Router};
///
/// let router = Router::new()
///     .get("/", |_| "hello")
///     .get("/users/{id}", |request: &mut Request<'_>| request.param("id").unwrap_or_default().into_owned())
///     .nest("/api", Router::new().post("/items", |_| ()));
/// assert_eq!(router.paths().collect::<Vec<_>>(), ["/", "/users/{id}", "/api/items"]);
/// ```
#[derive(Default)]
#[doc(alias = "App")]
#[must_use = "a router does nothing unless it is served"]
pub struct Router {
    tree: matchit::Router<usize>,
    /// Routes without a parameter. `tree` holds them too. A literal wins over a parameter at every
    /// segment there, so both give the same route for such a path.
    literals: HashMap<Box<str>, usize, BuildHasherDefault<PathHasher>>,
    /// Patterns and routes. `tree` and `literals` hold indices of this list.
    routes: Vec<(String, Route)>,
    /// Prefixes and handlers, the longest prefix first. The first prefix that fits is used.
    fallbacks: Vec<(String, Endpoint)>,
    /// Surroundings of this router alone. The surroundings of every handler of the router begin
    /// with them.
    around: Surroundings,
}

impl Router {
    /// Makes a router without paths. It responds with 404 to every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route. If the path is known, the methods are added to its route, and the options that
    /// the new route sets replace its own.
    ///
    /// # Panics
    ///
    /// Panics if the pattern is malformed, conflicts with a known one, does not begin with `/`, has a segment such as `:id` or `*rest`,
    /// or has a handler for a method of the new route already.
    #[track_caller]
    pub fn route(mut self, path: &str, route: Route) -> Self {
        pattern::refuse_foreign(path);
        self.insert(path.to_owned(), route);
        self
    }

    /// Adds all routes of `inner` below `prefix`: its `/x` becomes `prefix/x`, its `/` becomes
    /// `prefix` itself. A handler still sees the whole path.
    ///
    /// ```
    /// use osier_web::{Request, Router, test::Client};
    ///
    /// let api = Router::new().get("/users", |request: &mut Request<'_>| request.path().to_owned());
    /// let client = Client::new(Router::new().nest("/api", api));
    /// assert_eq!(client.get("/api/users").send().text(), "/api/users");
    /// ```
    ///
    /// # Panics
    ///
    /// Panics as [`Router::route`] does, and if this router has a fallback below a prefix already where `inner` has one. A prefix
    /// with a parameter is only for routers without a fallback.
    #[doc(alias = "scope")]
    #[track_caller]
    pub fn nest(mut self, prefix: &str, inner: Router) -> Self {
        assert!(
            prefix.is_empty() || prefix.starts_with('/'),
            "prefix {prefix:?} must begin with '/'"
        );
        pattern::refuse_foreign(prefix);
        assert!(
            inner.fallbacks.is_empty() || !prefix.contains(['{', '}']),
            "prefix {prefix:?} is literal for a mount or a fallback: give a route \"{prefix}/{{*rest}}\" to the handler, or write a brace as %7B or %7D"
        );
        let prefix = prefix.trim_end_matches('/');
        for (path, route) in inner.routes {
            let below = if path == "/" && !prefix.is_empty() {
                ""
            } else {
                path.as_str()
            };
            self.insert(format!("{prefix}{below}"), route);
        }
        for (below, endpoint) in inner.fallbacks {
            self.add_fallback(format!("{prefix}{below}"), endpoint);
        }
        self
    }

    /// Passes every request at and below `prefix` that no route matches to `handler`, whatever its
    /// method is. The handler reads the rest of the path by [`Request::rest`]. If several prefixes
    /// fit, the longest one is used. The prefix is literal.
    ///
    /// The path of the request stays as it is. Each handler treats the prefix in its own way:
    ///
    /// | handler | with `/docs` mounted, `/docs/a.html` is |
    /// |---|---|
    /// | [`Files`](crate::files::Files) | `a.html` in its folder: it uses the rest of the path |
    /// | [`Proxy`](crate::proxy::Proxy) | `/docs/a.html` at the backend, so the links of its pages fit; [`strip`](crate::proxy::Options::strip) makes it `/a.html` |
    /// | [`FastCgi`](crate::fastcgi::FastCgi) | `docs/a.html` in its folder, which must contain the prefix; links made from `SCRIPT_NAME` fit |
    ///
    /// ```
    /// use osier_web::{Request, Router};
    ///
    /// let docs = |request: &mut Request<'_>| format!("{} below {}\n", request.rest(), request.mount_point());
    /// let router = Router::new().mount("/docs", docs);
    /// let site = Router::new().nest("/v2", router);
    /// let reply = osier_web::test::Client::new(site).get("/v2/docs/a/b").send();
    /// assert_eq!(reply.text(), "/a/b below /v2/docs\n");
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `prefix` is neither empty nor begins with `/`, if it has a parameter, or if it has a handler already.
    #[doc(alias = "nest_service")]
    #[track_caller]
    pub fn mount<F, R>(self, prefix: &str, handler: F) -> Self
    where
        F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
        R: IntoResponse + 'static,
    {
        self.nest(prefix, Router::new().fallback(handler))
    }

    /// Wraps `wrap` around everything that this router handles: routes and fallbacks, nested ones
    /// too, whether they are added before or after. On the outermost router, that includes requests
    /// without a handler (404, 405, `OPTIONS`). `wrap` may change the request, respond by itself,
    /// or call [`Next::run`] and change the response.
    ///
    /// The function that is added first is the outermost. The functions of a router are outside
    /// those of a nested router, which are outside those of a [`Route`]. A panic is a 500 for the functions outside of it.
    ///
    /// ```
    /// use osier_web::{IntoResponse, Next, Request, Response, Router, http::StatusCode};
    ///
    /// fn members_only(request: &mut Request<'_>, next: Next<'_>) -> Response {
    ///     match request.cookie("member") {
    ///         Some("yes") => next.run(request).header("cache-control", "private"),
    ///         _ => (StatusCode::FORBIDDEN, "members only\n").into_response(),
    ///     }
    /// }
    ///
    /// let router = Router::new().get("/club", |_| "welcome\n").wrap(members_only);
    /// let client = osier_web::test::Client::new(router);
    /// assert_eq!(client.get("/club").send().status(), 403);
    /// assert_eq!(client.get("/club").header("cookie", "member=yes").send().status(), 200);
    /// ```
    #[doc(alias("layer", "middleware", "from_fn"))]
    pub fn wrap<F, R>(mut self, wrap: F) -> Self
    where
        F: Fn(&mut Request<'_>, Next<'_>) -> R + Send + Sync + 'static,
        R: IntoResponse + 'static,
    {
        let (at, wrap) = (self.around.depth(), erase_wrap(wrap));
        for around in self.surroundings() {
            around.wrap(at, wrap.clone());
        }
        self
    }

    /// Shares `state` with everything that this router handles, by [`Request::state`]. A nested
    /// router gets it too, unless that router has a state of the same type.
    ///
    /// ```
    /// use osier_web::{Rejection, Request, Router};
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// #[derive(Default)]
    /// struct Visits(AtomicU64);
    ///
    /// fn count(request: &mut Request<'_>) -> Result<String, Rejection> {
    ///     let Visits(visits) = request.state()?;
    ///     Ok(format!("visit {}\n", 1 + visits.fetch_add(1, Ordering::Relaxed)))
    /// }
    ///
    /// let client = osier_web::test::Client::new(Router::new().get("/", count).state(Visits::default()));
    /// assert_eq!(client.get("/").send().text(), "visit 1\n");
    /// assert_eq!(client.get("/").send().text(), "visit 2\n");
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if this router already has a state of that type.
    #[doc(alias("with_state", "app_data"))]
    #[track_caller]
    pub fn state<T: Any + Send + Sync>(mut self, state: T) -> Self {
        assert!(
            !self.around.states.has::<T>(),
            "the router has a state of type {} already",
            std::any::type_name::<T>()
        );
        let state: Arc<dyn Any + Send + Sync> = Arc::new(state);
        for around in self.surroundings() {
            around.states.inherit(&state);
        }
        self
    }

    /// Yields the surroundings of this router and of all its endpoints.
    fn surroundings(&mut self) -> impl Iterator<Item = &mut Surroundings> {
        let routes = self.routes.iter_mut().map(|(_, route)| route);
        let of_routes = routes.flat_map(|route| {
            let endpoints = route.endpoints.iter_mut().map(|(_, endpoint)| &mut endpoint.around);
            endpoints.chain([&mut route.outside])
        });
        let of_fallbacks = self.fallbacks.iter_mut().map(|(_, endpoint)| &mut endpoint.around);
        of_routes.chain(of_fallbacks).chain([&mut self.around])
    }

    /// Handles every request, of any method, whose path no route matches. In a nested router, the
    /// path must be below the prefix.
    ///
    /// # Panics
    ///
    /// Panics if this router has a fallback already. A handler that is [mounted](Router::mount) at `/` is one.
    #[doc(alias("default_service", "not_found"))]
    #[track_caller]
    pub fn fallback<F, R>(mut self, handler: F) -> Self
    where
        F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
        R: IntoResponse + 'static,
    {
        self.add_fallback(String::new(), Endpoint::new(handler));
        self
    }

    /// Same as [`fallback`](Router::fallback), for a function that may have to wait for the body of the request: a body that has
    /// not arrived is received without a stack, unless a function is [wrapped](Router::wrap) around the fallback.
    ///
    /// # Panics
    ///
    /// Panics as [`Router::fallback`] does.
    #[track_caller]
    pub fn fallback_answering(mut self, handler: impl Fn(&mut Request<'_>) -> Answer + Send + Sync + 'static) -> Self {
        self.add_fallback(String::new(), Endpoint::answering(handler));
        self
    }

    /// Yields the patterns in the order in which they were added, without unnecessary escapes.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.routes.iter().map(|(path, _)| path.as_str())
    }

    #[track_caller]
    fn insert(&mut self, path: String, mut route: Route) {
        assert!(path.starts_with('/'), "route {path:?} must begin with '/'");
        let path = match pattern::canonical(&path) {
            Ok(canonical) => canonical,
            Err(bad) => panic!("route {path:?} cannot be added: {bad}"),
        };
        route.outside.put_inside(&self.around);
        for (_, endpoint) in &mut route.endpoints {
            endpoint.around.put_inside(&self.around);
        }
        if let Some((_, there)) = self.routes.iter_mut().find(|(known, _)| *known == path) {
            if let Err(method) = there.merge(route) {
                panic!("route {path:?} cannot be added: it has a handler for {method} already");
            }
            return;
        }
        if let Err(error) = self.tree.insert(path.as_str(), self.routes.len()) {
            panic!("route {path:?} cannot be added: {error}");
        }
        // A brace begins a parameter or, doubled, is a literal brace.
        if !path.contains(['{', '}']) {
            self.literals.insert(path.as_str().into(), self.routes.len());
        }
        self.routes.push((path, route));
    }

    #[track_caller]
    fn add_fallback(&mut self, prefix: String, mut endpoint: Endpoint) {
        endpoint.around.put_inside(&self.around);
        let prefix = match canonical_part(&prefix) {
            Ok(canonical) => canonical.into_owned(),
            Err(bad) => panic!("prefix {prefix:?} cannot be: {bad}"),
        };
        assert!(
            self.fallbacks.iter().all(|(known, _)| *known != prefix),
            "prefix {prefix:?} has a handler already (a fallback or a mount): remove one of the two, or mount one at a longer prefix"
        );
        self.fallbacks.push((prefix, endpoint));
        self.fallbacks
            .sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
    }

    /// Finds the handler. The matched parts of the path go to `params`, which stays unchanged if
    /// there are none. `read` holds the path if its canonical form differs from the form that was
    /// sent. Then the matched parts are of the canonical form.
    #[inline]
    pub(crate) fn find<'r, 'p, 'h: 'p>(
        &'r self,
        method: &str,
        sent: &'h str,
        read: &'p OnceCell<Path<'h>>,
        params: &mut Option<Params<'r, 'p>>,
    ) -> Found<'r> {
        // A literal is canonical, so a path that equals it is canonical too.
        match self.literals.get(sent) {
            Some(index) => self.found(method, *index),
            None => self.find_read(method, sent, read, params),
        }
    }

    #[inline]
    fn find_read<'r, 'p, 'h: 'p>(
        &'r self,
        method: &str,
        sent: &'h str,
        read: &'p OnceCell<Path<'h>>,
        params: &mut Option<Params<'r, 'p>>,
    ) -> Found<'r> {
        match Path::parse(sent) {
            Ok(path) if path.is_as_sent() => self.find_canonical(method, sent, params),
            Ok(path) => {
                let path = read.get_or_init(|| path);
                let found = self.find_canonical(method, path.canonical(), params);
                let mount = path.sent_len(found.mount);
                Found { mount, ..found }
            }
            // The `*` of an OPTIONS request.
            Err(BadPath::NoSlash) => self.find_canonical(method, sent, params),
            Err(_) => Found {
                endpoint: Some(&*MALFORMED),
                route: Some(Route::PLAIN),
                ..self.nothing()
            },
        }
    }

    #[inline]
    fn find_canonical<'r, 'p>(&'r self, method: &str, path: &'p str, params: &mut Option<Params<'r, 'p>>) -> Found<'r> {
        match self.tree.at(path) {
            Ok(matched) => {
                *params = Some(matched.params);
                self.found(method, *matched.value)
            }
            Err(_) => self.find_fallback(path),
        }
    }

    #[inline]
    fn found(&self, method: &str, index: usize) -> Found<'_> {
        let (pattern, route) = &self.routes[index];
        let endpoint = route.endpoint(method);
        Found {
            around: endpoint.map_or(&route.outside, |endpoint| &endpoint.around),
            endpoint,
            route: Some(route),
            pattern,
            mount: 0,
        }
    }

    /// Returns the result for an unknown path.
    pub(crate) fn nothing(&self) -> Found<'_> {
        Found {
            endpoint: None,
            route: None,
            around: &self.around,
            pattern: "",
            mount: 0,
        }
    }

    #[cold]
    fn find_fallback(&self, path: &str) -> Found<'_> {
        match self.fallbacks.iter().find(|(prefix, _)| is_below(path, prefix)) {
            Some((prefix, endpoint)) => Found {
                endpoint: Some(endpoint),
                route: Some(Route::PLAIN),
                around: &endpoint.around,
                pattern: prefix,
                mount: prefix.len(),
            },
            None => self.nothing(),
        }
    }
}

/// The endpoint for a path that cannot be read.
static MALFORMED: LazyLock<Endpoint> = LazyLock::new(|| Endpoint::new(|request: &mut Request<'_>| malformed(request)));

fn malformed(request: &Request<'_>) -> Response {
    let response = Response::plain(StatusCode::BAD_REQUEST);
    match Path::parse(request.path()) {
        Err(bad) => response.because(bad),
        Ok(_) => response,
    }
}

/// A fast hash for the paths of the application's own routes. Clients cannot add a path, so the
/// hash need not resist an attack.
#[derive(Default)]
struct PathHasher(u64);

impl Hasher for PathHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut word = 0;
        for byte in rest {
            word = word << 8 | u64::from(*byte);
        }
        self.mix(word);
    }

    /// `str` hashes a mark at its end. One text is all that is ever hashed, so the mark is ignored.
    #[inline]
    fn write_u8(&mut self, _: u8) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl PathHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        // The factor is 2^64 divided by the golden ratio. The top bits of the product are mixed
        // best.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.routes.iter().map(|(path, route)| (path, route.allow())))
            .finish()
    }
}

/// The result of a look-up: the handler and its settings.
#[derive(Clone, Copy)]
pub(crate) struct Found<'r> {
    /// `None` if the path is unknown or lacks the method.
    pub(crate) endpoint: Option<&'r Endpoint>,
    /// `None` if the path is unknown.
    pub(crate) route: Option<&'r Route>,
    pub(crate) around: &'r Surroundings,
    /// Pattern of the route, or prefix of the fallback; empty if there is none.
    pub(crate) pattern: &'r str,
    /// Length of the path's prefix at which the fallback is mounted.
    pub(crate) mount: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(router: &Router, method: &str, path: &str) -> String {
        let (form, mut params) = (OnceCell::new(), None);
        match router.find(method, path, &form, &mut params) {
            Found { endpoint: Some(_), .. } => {
                let params = params.unwrap_or_default();
                let params: Vec<String> = params.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("handler {}", params.join("&"))
            }
            Found { route: Some(route), .. } => format!("405 {}", route.allow()),
            _ => "404".to_owned(),
        }
    }

    #[test]
    fn literals_win_over_parameters_and_wildcards() {
        let router = Router::new()
            .get("/a/{x}", |_| ())
            .get("/a/b", |_| ())
            .get("/f/{*rest}", |_| ())
            .get("/{u}/p/{v}", |_| ());
        assert_eq!(outcome(&router, "GET", "/a/b"), "handler ");
        assert_eq!(outcome(&router, "GET", "/a/c"), "handler x=c");
        assert_eq!(outcome(&router, "GET", "/f/x/y.css"), "handler rest=x/y.css");
        assert_eq!(outcome(&router, "GET", "/q/p/r"), "handler u=q&v=r");
        assert_eq!(outcome(&router, "GET", "/a"), "404");
        assert_eq!(outcome(&router, "GET", "*"), "404");
    }

    #[test]
    fn literals_are_found_as_the_tree_finds_them() {
        let paths = [
            "/",
            "/{a}",
            "/a",
            "/a/",
            "/a/{b}",
            "/a/b",
            "/a/{b}/c",
            "/a/b/{c}",
            "/{a}/b/c",
            "/x/{*all}",
            "/x/y/z",
            "/x/yy",
            "/{{a}}",
            "/images/a-long-literal-path.png",
            "/images/a-long-literal-path.jpg",
        ];
        let router = paths
            .iter()
            .fold(Router::new(), |router, path| router.get(path, |_| ()));
        let asked = [
            "/b", "/{a}", "/{{a}}", "/a/c", "/a/b/c", "/a/q/c", "/q/b/c", "/x/y", "/x/y/", "/x/", "/x", "",
        ];
        for path in paths.iter().chain(&asked) {
            let (form, mut params) = (OnceCell::new(), None);
            let found = router
                .find("GET", path, &form, &mut params)
                .route
                .map(|route| &raw const *route);
            let matched = router.tree.at(path).ok();
            let expected = matched
                .as_ref()
                .map(|matched| &raw const router.routes[*matched.value].1);
            assert_eq!(found, expected, "{path}");
            assert_eq!(
                params.unwrap_or_default(),
                matched.map(|matched| matched.params).unwrap_or_default(),
                "{path}"
            );
        }
        assert_eq!(router.literals.len(), 8);
        assert_eq!(outcome(&router, "GET", "//"), outcome(&router, "GET", "/"));
    }

    #[test]
    fn methods_of_a_path_add_up_and_head_falls_to_get() {
        let router = Router::new().get("/x", |_| ()).put("/x", |_| ()).post("/y", |_| ());
        assert_eq!(outcome(&router, "PUT", "/x"), "handler ");
        assert_eq!(outcome(&router, "HEAD", "/x"), "handler ");
        assert_eq!(outcome(&router, "HEAD", "/y"), "405 POST, OPTIONS");
        assert_eq!(outcome(&router, "DELETE", "/x"), "405 GET, PUT, HEAD, OPTIONS");
    }

    #[test]
    fn nested_routers_keep_their_fallback_to_their_prefix() {
        let inner = Router::new().get("/", |_| ()).get("/x", |_| ()).fallback(|_| ());
        let router = Router::new().nest("/api/", inner);
        assert_eq!(router.paths().collect::<Vec<_>>(), ["/api", "/api/x"]);
        assert_eq!(outcome(&router, "GET", "/api/none"), "handler ");
        assert_eq!(outcome(&router, "GET", "/apis"), "404");
        assert_eq!(outcome(&router, "GET", "/none"), "404");
    }

    #[test]
    #[should_panic(expected = "route \"/{b}\" cannot be added")]
    fn an_ambiguous_pattern_is_named() {
        let _ = Router::new().get("/{a}", |_| ()).get("/{b}", |_| ());
    }
}
