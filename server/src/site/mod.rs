//! Finds the handler of a request: the host selects a site, and the first matching route a handler, with policies
//! around it.
//!
//! ```text
//!   request ─▶ hosts.rs: site ─▶ policy/path.rs: the path as text ─▶ first Route that matches
//!                                                                         │
//!        response ◀─ fields, cors, error pages ◀─ handler ◀─ body, auth, rate, address, preflight
//! ```
//!
//! A [`Snapshot`] is one configuration, immutable and shared by all workers. `build.rs` makes it; `live.rs` holds the
//! current one. A plain route is a handler without policies. A request for it costs a look-up of the host, a look-up of
//! each prefix of the path (with few routes: a comparison with each route before it), and the handler. It allocates
//! nothing and takes no lock.
//!
//! A request keeps its route and its snapshot until the response has been sent. So a new snapshot can replace the
//! current one at any time.

mod build;
mod cached;
mod client_certificate;
mod hosts;
mod kept;
pub mod live;
mod policies;
mod to_https;

use std::error::Error;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use globset::GlobSet;
use osier_tls::{Hello, Identity};
use osier_web::http::StatusCode;
use osier_web::upgrade::Upgrade;
use osier_web::wrap::cache::Store;
use osier_web::{Answer, Request, Response, Served};

use crate::certificates::challenges::{self, PROTOCOL};
use crate::certificates::{Certificates, SiteCertificate};
use crate::handler::{Handler, METHODS, Opened, without_port};
use crate::log::access::AccessLog;
use crate::metrics::{Series, Shown};
use crate::policy::path;
use crate::policy::prefixes::Prefixes;
use crate::policy::real_ip::RealIp;
use crate::policy::rewrite::{RequestFacts, Routed, Verdict, follow};

pub use self::build::{Parts, Resources, build};
use self::hosts::Hosts;
use self::policies::PolicyChain;
use self::to_https::ToHttps;

/// The number of lower bits of a label that name a log. The upper bits name a series of the metrics.
const LOG_BITS: u32 = 16;

/// The reason why a path with two readings is refused.
const AMBIGUOUS: &str =
    "another route would fit if '%2F' in the path were read as '/', or without the parameters of its segments";

/// The most names of scripts before the last segment of a path.
const SCRIPTS_MAX: usize = 32;
/// The reason why a path with more is refused.
const MANY_SCRIPTS: &str = "more than 32 segments before the last one have the name of a script";

/// The method that only routes take whose `methods` name it.
const TRACE: &str = "TRACE";

/// One configuration, ready to answer requests.
pub struct Snapshot {
    /// The sites by host, for each number of a listener. None for a listener that is gone.
    listeners: Vec<Option<Hosts>>,
    /// `real_ip` of the listeners, by number.
    real_ips: Vec<Option<RealIp>>,
    sites: Vec<Site>,
    /// Logs and their labels in [`Request::set_label`]. The label 0 belongs to requests without a label.
    logs: Vec<(u32, Option<Arc<AccessLog>>)>,
    /// Series by the upper bits of a label, and the backends. None without `[admin]`.
    shown: Option<Arc<Shown>>,
    certificates: Arc<Certificates>,
    /// Whether some listener asks clients for certificates.
    asks_clients: bool,
    /// The handlers that count requests.
    recorders: Vec<Arc<dyn Handler>>,
    /// The parts that the next snapshot may keep.
    parts: Parts,
}

/// A site, ready to answer requests.
struct Site {
    /// The first host, or `default`.
    name: String,
    /// `real_ip` of the site, in place of that of a listener.
    real_ip: Option<RealIp>,
    certificate: Option<SiteCertificate>,
    /// The redirect of requests in the clear.
    to_https: Option<ToHttps>,
    routes: Vec<Route>,
    /// The numbers of `routes` by their paths.
    by_path: Prefixes,
    /// The policies for requests that no route matches.
    policies: PolicyChain,
}

/// A route, ready to answer requests.
struct Route {
    path: Option<Box<str>>,
    globs: Option<GlobSet>,
    /// How the names of scripts end, if the handler runs scripts and an earlier route has globs.
    script_suffixes: Box<[Box<str>]>,
    /// Methods that match. Empty for all methods.
    methods: Box<[Box<str>]>,
    handler: Opened,
    /// Shared with requests whose body is being received.
    policies: Arc<PolicyChain>,
}

impl Snapshot {
    /// Answers a request that arrived on a listener.
    ///
    /// # Suspends
    /// As the handler does.
    pub fn answer(&self, listener: usize, request: &mut Request<'_>) -> Answer {
        let hosts = self.listeners.get(listener).and_then(Option::as_ref);
        let number = hosts.and_then(|hosts| hosts.find(request.host()));
        let site = number.map(|site| &self.sites[site]);
        let real_ip = site.and_then(|site| site.real_ip.as_ref());
        if let Some(real_ip) = real_ip.or_else(|| self.real_ips.get(listener)?.as_ref()) {
            real_ip.apply(request);
        }
        if let Some(text) = self.certificates.challenges.text(request.path()) {
            return Response::new(StatusCode::OK).body(text).into();
        }
        let Some(site) = site else {
            return Response::plain(StatusCode::MISDIRECTED_REQUEST)
                .because("no site has this host")
                .into();
        };
        if let Some(tls) = request.tls()
            && let Some(name) = tls.server_name()
            && !is_host(request.host(), name)
            && hosts.and_then(|hosts| hosts.find(Some(name))) != number
        {
            return site.misdirected(request);
        }
        if self.asks_clients
            && let Err(error) = client_certificate::forward(request)
        {
            return Response::internal_error(error).into();
        }
        if request.path() == "*" {
            // OPTIONS for the whole server (RFC 9110 9.3.7): no resource is named, so the response is empty, and there is no
            // place to redirect it to.
            return Response::new(StatusCode::NO_CONTENT).into();
        }
        if let Some(to_https) = site.to_https
            && !request.is_https()
            && challenges::token(request.path()).is_none()
        {
            return site.policies.refuse(request, to_https.redirect(request)).into();
        }
        match site.dispatch(request) {
            Routed::Answer(answer) => answer,
            Routed::Again(target) => self.dispatch_again(site, request, target),
        }
    }

    /// Sends a request through the routes again, for the target that a rule has made.
    #[cold]
    fn dispatch_again(&self, site: &Site, request: &mut Request<'_>, target: String) -> Answer {
        let original = request.target();
        let (mut first, mut is_routed) = (Some(target), false);
        let answer = follow(original, |target| {
            // The first call passes the original target, which has been rewritten already.
            let Some(target) = target else {
                return Routed::Again(first.take().unwrap_or_default());
            };
            if let Err(error) = request.retarget(target) {
                let error =
                    format!("a rule rewrote {original:?} to {target:?}, which is not a valid request target: {error}");
                return Routed::Answer(Response::internal_error(error).into());
            }
            let routed = site.dispatch(request);
            is_routed = matches!(routed, Routed::Answer(_));
            routed
        });
        match is_routed {
            true => answer,
            // No route has made this response, so the site's policies apply to it.
            false => {
                let response = answer.wait(request);
                site.policies.refuse(request, response).into()
            }
        }
    }

    /// The identity that a listener shows to a client. None if no site of the listener has the name that the client
    /// asks for.
    ///
    /// # Suspends
    /// As [`SiteCertificate::find`] does.
    pub fn identity(&self, listener: usize, hello: &Hello<'_>) -> Option<Identity> {
        let name = hello.server_name();
        if hello.offers_only(PROTOCOL) {
            return self.certificates.challenges.identity(name?);
        }
        let hosts = self.listeners.get(listener)?.as_ref()?;
        let site = match name {
            Some(_) => hosts.find(name),
            None => hosts.find(None).or_else(|| hosts.only()),
        };
        let certificate = self.sites[site?].certificate.as_ref()?;
        let found = certificate.find(name);
        if found.is_none() && certificate.is_coming(name) {
            hello.defer();
        }
        found
    }

    /// Starts the handlers' background work, unless it runs already, and registers their chats for upgrades. Called on a fiber,
    /// once the snapshot is sure to be used.
    pub fn start(&self, upgrade: &Upgrade) {
        self.parts.register(upgrade);
        self.parts.handlers().for_each(|handler| handler.start());
        let late = self
            .logs
            .iter()
            .filter(|(label, _)| *label != 0 && !self.parts.has_log(*label));
        late.filter_map(|(_, log)| log.as_ref()).for_each(|log| log.retire());
    }

    /// Ends responses that never end by themselves.
    pub fn stop(&self) {
        self.parts.handlers().for_each(|handler| handler.stop());
    }

    /// Passes a served request to the handlers that count requests.
    pub fn record(&self, served: &Served<'_>) {
        self.recorders.iter().for_each(|handler| handler.record(served));
    }

    /// The series for a label of [`Request::set_label`].
    pub fn series(&self, label: u32) -> Option<&Series> {
        let shown = self.shown.as_ref()?;
        Some(shown.routes.get((label >> LOG_BITS) as u16))
    }

    /// The routes and backends for the metrics. None without `[admin]`.
    pub fn shown(&self) -> Option<&Arc<Shown>> {
        self.shown.as_ref()
    }

    /// The log for a label of [`Request::set_label`].
    pub fn log(&self, label: u32) -> Option<&Arc<AccessLog>> {
        let label = label & ((1 << LOG_BITS) - 1);
        self.logs.iter().find(|(known, _)| *known == label)?.1.as_ref()
    }

    /// The name of the site that answers for `host` on a listener. Without a host, the name of its only site.
    pub fn site_name(&self, listener: usize, host: Option<&str>) -> Option<&str> {
        let hosts = self.listeners.get(listener)?.as_ref()?;
        let site = match host {
            None => hosts.only(),
            host => hosts.find(host),
        };
        site.map(|site| self.sites[site].name.as_str())
    }

    /// The stores of responses.
    pub fn stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.parts.stores()
    }

    /// The access logs that are on.
    pub fn logs(&self) -> impl Iterator<Item = &Arc<AccessLog>> {
        self.logs.iter().filter_map(|(_, log)| log.as_ref())
    }
}

impl Site {
    /// The routes that a path may fit, in order.
    #[inline]
    fn candidates<'s>(&'s self, path: &[u8]) -> impl Iterator<Item = &'s Route> + use<'s> {
        self.by_path.of(path).map(|number| &self.routes[number])
    }

    /// Finds the route of a request and answers it.
    #[inline]
    fn dispatch(&self, request: &mut Request<'_>) -> Routed {
        let path = match path::text(request.path()) {
            Ok(path) if !path::has_other_readings(&path) || !self.is_ambiguous(request, &path) => path,
            Ok(_) => return self.refuse_path(request, AMBIGUOUS.into()),
            Err(bad) => return self.refuse_path(request, bad.into()),
        };
        if request.method() == TRACE && !self.candidates(&path).any(|route| route.takes(TRACE, &path)) {
            return Routed::Answer(self.refuse_trace(request, &path).into());
        }
        for number in self.by_path.of(&path) {
            let route = &self.routes[number];
            if !route.takes(request.method(), &path) {
                continue;
            }
            let route = match &*route.script_suffixes {
                [] => route,
                // Each of them is compared with globs, over its whole length.
                suffixes if path::scripts(&path, suffixes).nth(SCRIPTS_MAX).is_some() => {
                    return self.refuse_path(request, MANY_SCRIPTS.into());
                }
                _ => self.route_of_script(number, request.method(), &path).unwrap_or(route),
            };
            let rules = match &route.handler {
                Opened::Answers(handler) => {
                    return Routed::Answer(match route.policies.passes(request) {
                        true => PolicyChain::pass(&route.policies, &**handler, request, &path),
                        false => PolicyChain::answer(&route.policies, &**handler, request, &path),
                    });
                }
                Opened::Rewrites(rules) => rules,
            };
            let form = rules.form(request, &path);
            match rules.apply(&RequestFacts { request, form }) {
                Verdict::Nothing => continue,
                Verdict::Again(target) => return Routed::Again(target),
                Verdict::Redirect(location, status) => {
                    let response = Verdict::redirect(&location, status);
                    return Routed::Answer(self.policies.refuse(request, response).into());
                }
            }
        }
        Routed::Answer(self.no_route(request, &path).into())
    }

    /// Refuses a request whose host belongs to another site than the name in the TLS handshake. The client may send it
    /// again on a connection for that host.
    #[cold]
    fn misdirected(&self, request: &Request<'_>) -> Answer {
        let response = Response::plain(StatusCode::MISDIRECTED_REQUEST)
            .because("the host belongs to another site than the name that the client has asked for in TLS");
        self.policies.refuse(request, response).into()
    }

    #[cold]
    fn refuse_path(&self, request: &Request<'_>, reason: Box<dyn Error>) -> Routed {
        let response = Response::plain(StatusCode::BAD_REQUEST).because(reason);
        Routed::Answer(self.policies.refuse(request, response).into())
    }

    /// Whether the request would take another route if `%2F` were read as a slash, or without the parameters of
    /// segments. Then one of the readings would bypass the policies of its route.
    #[cold]
    fn is_ambiguous(&self, request: &Request<'_>, path: &[u8]) -> bool {
        let others = path::other_readings(request.path(), path);
        others.iter().any(|other| self.tells_apart(request, path, other))
    }

    /// Whether a request for `path` would take another route than one for `other`.
    fn tells_apart(&self, request: &Request<'_>, path: &[u8], other: &[u8]) -> bool {
        let mut numbers: Vec<usize> = self.by_path.of(path).chain(self.by_path.of(other)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for route in numbers.into_iter().map(|number| &self.routes[number]) {
            let is_taken = route.takes(request.method(), path);
            if is_taken != route.takes(request.method(), other) {
                return true;
            }
            match &route.handler {
                _ if !is_taken => {}
                Opened::Rewrites(rules) if rules.tells_apart(path, other) => return true,
                Opened::Rewrites(_) => {}
                Opened::Answers(_) => return false,
            }
        }
        false
    }

    /// The earlier route that takes the script before the PATH_INFO of a path. A glob such as `*.php` does not match the
    /// whole path, which leads to the same script, so its policies would be bypassed.
    fn route_of_script(&self, number: usize, method: &str, path: &[u8]) -> Option<&Route> {
        let suffixes = &self.routes[number].script_suffixes;
        path::scripts(path, suffixes).find_map(|script| {
            let earlier = self.routes[..number].iter();
            earlier
                .filter(|route| matches!(route.handler, Opened::Answers(_)) && route.globs.is_some())
                .find(|route| route.takes(method, script))
        })
    }

    /// Refuses TRACE where no route names it. Its response would show scripts the fields that the browser hides from
    /// them.
    #[cold]
    fn refuse_trace(&self, request: &Request<'_>, path: &[u8]) -> Response {
        let fitting = self.candidates(path).filter(|route| route.fits(path));
        let mut allowed = fitting.filter_map(|route| match (&route.methods[..], route.handler.handler()) {
            ([], handler) => handler.map(|handler| handler.methods().to_owned()),
            (methods, _) => Some(methods.join(", ")),
        });
        let allowed = allowed.next().unwrap_or_else(|| METHODS.to_owned());
        let response = Response::plain(StatusCode::METHOD_NOT_ALLOWED).header("allow", allowed);
        self.policies.refuse(request, response)
    }

    /// Answers a request that no route matches: 405 when only the method is wrong, 404 otherwise.
    #[cold]
    fn no_route(&self, request: &Request<'_>, path: &[u8]) -> Response {
        let fitting = self.candidates(path).filter(|route| route.fits(path));
        let mut methods: Vec<&str> = fitting
            .flat_map(|route| route.methods.iter().map(|method| &**method))
            .collect();
        methods.sort_unstable();
        methods.dedup();
        let response = match methods.is_empty() {
            true => Response::plain(StatusCode::NOT_FOUND),
            false => Response::plain(StatusCode::METHOD_NOT_ALLOWED).header("allow", methods.join(", ")),
        };
        self.policies.refuse(request, response)
    }
}

impl Route {
    /// Whether a request with this method and path matches.
    #[inline]
    fn takes(&self, method: &str, path: &[u8]) -> bool {
        let known = |known: &str| known == method || (method == "HEAD" && known == "GET");
        let is_named = match self.methods.is_empty() {
            true => method != TRACE,
            false => self.methods.iter().any(|method| known(method)),
        };
        is_named && self.fits(path)
    }

    /// Whether the path matches.
    #[inline]
    fn fits(&self, path: &[u8]) -> bool {
        let below = self.path.as_ref().is_none_or(|prefix| path::is_below(path, prefix));
        below
            && self
                .globs
                .as_ref()
                .is_none_or(|globs| globs.is_match(Path::new(OsStr::from_bytes(path))))
    }
}

/// Whether the host of a request, without its port, is `name`.
fn is_host(host: Option<&str>, name: &str) -> bool {
    host.is_some_and(|host| without_port(host).eq_ignore_ascii_case(name))
}
