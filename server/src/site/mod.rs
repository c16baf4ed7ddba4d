//! The way of a request to its response: the host selects a site, the first matching route a handler, and policies surround it.
//!
//! ```text
//!   request ─▶ hosts.rs: site ─▶ path.rs: one reading of the path ─▶ first Route that takes it
//!                                                                         │
//!        response ◀─ fields, cors, error pages ◀─ handler ◀─ body, auth, rate, address, preflight
//! ```
//!
//! A [`Snapshot`] is what one configuration says, immutable and shared by all workers; `live.rs` says which one counts. Made by
//! `build.rs`. A plain route (a handler and nothing around it) costs a look-up by host, a comparison with each route before it,
//! and the handler: nothing is allocated and no lock taken.
//!
//! A request keeps the route that began with it, and what that holds, until its response has been sent: that is how one
//! configuration can take the place of another at any time.

mod build;
mod hosts;
pub mod live;
mod policies;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use globset::GlobSet;
use osier_web::http::StatusCode;
use osier_web::{Request, Response, Served};

use crate::handler::{Handler, Opened};
use crate::log::access::AccessLog;
use crate::log::operator::Say;
use crate::metrics::Series;
use crate::policy::path;
use crate::policy::rewrite::{Routed, Seen, Verdict, follow};

pub use self::build::{Means, Parts, build};
use self::hosts::Hosts;
use self::policies::Around;

/// The lower bits of a label name a log, the upper ones the series of a route.
const LOG_BITS: u32 = 16;

/// One configuration, ready to answer.
pub struct Snapshot {
    /// Hosts by the number of the listener; `None` for a listener that is gone.
    listeners: Vec<Option<Hosts>>,
    sites: Vec<Site>,
    /// Logs and their labels in [`Request::set_label`]. The first is that of requests that no route answers.
    logs: Vec<(u32, Option<Arc<AccessLog>>)>,
    /// Series by the upper half of a label; empty without `[admin]`.
    series: Vec<Arc<Series>>,
    /// The handlers that count requests.
    recorders: Vec<Arc<dyn Handler>>,
    /// The parts that the next snapshot may keep.
    parts: Parts,
    say: Say,
}

struct Site {
    routes: Vec<Route>,
    /// The policies for requests that no route takes.
    around: Around,
}

struct Route {
    path: Option<Box<str>>,
    globs: Option<GlobSet>,
    /// Empty for all.
    methods: Box<[Box<str>]>,
    handler: Opened,
    around: Around,
}

impl Snapshot {
    /// Answers a request that has come to a listener.
    ///
    /// # Suspends
    /// as the handler does.
    pub fn answer(&self, listener: usize, request: &mut Request<'_>) -> Response {
        let hosts = self.listeners.get(listener).and_then(Option::as_ref);
        let Some(site) = hosts.and_then(|hosts| hosts.find(request.host())) else {
            return plain(StatusCode::MISDIRECTED_REQUEST);
        };
        let site = &self.sites[site];
        if request.path() == "*" {
            // OPTIONS of the server as a whole (RFC 9110 9.3.7): there is nothing to say.
            return Response::new(StatusCode::NO_CONTENT);
        }
        match site.dispatch(request) {
            Routed::Answer(response) => response,
            Routed::Again(target) => self.again(site, request, target),
        }
    }

    #[cold]
    fn again(&self, site: &Site, request: &mut Request<'_>, target: String) -> Response {
        let original = request.target();
        let (mut first, mut is_routed) = (Some(target), false);
        let response = follow(original, &self.say, |target| {
            // The turn with the request's own target has been made.
            let Some(target) = target else {
                return Routed::Again(first.take().unwrap_or_default());
            };
            if let Err(error) = request.retarget(target) {
                return Routed::Answer(Response::internal_error(format!(
                    "{original:?} was rewritten to {target:?}, which cannot be asked for: {error}"
                )));
            }
            let routed = site.dispatch(request);
            is_routed = matches!(routed, Routed::Answer(_));
            routed
        });
        match is_routed {
            true => response,
            // No route has made it, so none has dressed it.
            false => site.around.refuse(request, response),
        }
    }

    /// Starts what a snapshot that is not used must not have started, unless it runs already. On a fiber.
    pub fn start(&self) {
        self.parts.handlers().for_each(|handler| handler.start());
    }

    /// Ends the responses that have no end by themselves.
    pub fn stop(&self) {
        self.parts.handlers().for_each(|handler| handler.stop());
    }

    /// Counts an answered request for those handlers that want to know.
    pub fn record(&self, served: &Served<'_>) {
        self.recorders.iter().for_each(|handler| handler.record(served));
    }

    /// The series that a label of [`Request::set_label`] means.
    pub fn series(&self, label: u32) -> Option<&Series> {
        self.series.get((label >> LOG_BITS) as usize).map(|series| &**series)
    }

    /// The log that a label of [`Request::set_label`] means.
    pub fn log(&self, label: u32) -> Option<&Arc<AccessLog>> {
        let label = label & ((1 << LOG_BITS) - 1);
        self.logs.iter().find(|(known, _)| *known == label)?.1.as_ref()
    }

    pub fn logs(&self) -> impl Iterator<Item = &Arc<AccessLog>> {
        self.logs.iter().filter_map(|(_, log)| log.as_ref())
    }
}

impl Site {
    #[inline]
    fn dispatch(&self, request: &mut Request<'_>) -> Routed {
        let path = match path::text(request.path()) {
            Ok(path) if matches!(path, Cow::Borrowed(_)) || !self.is_ambiguous(request, &path) => path,
            _ => return Routed::Answer(self.around.refuse(request, plain(StatusCode::BAD_REQUEST))),
        };
        for route in &self.routes {
            if !route.takes(request.method(), &path) {
                continue;
            }
            let rules = match &route.handler {
                Opened::Answers(handler) => {
                    return Routed::Answer(match route.around.passes(request) {
                        true => handler.answer(request, &path),
                        false => route.around.answer(&**handler, request, &path),
                    });
                }
                Opened::Rewrites(rules) => rules,
            };
            let seen = Seen {
                form: rules.form(request, &path),
                request,
                https: false,
                proxied: request.is_proxied(),
            };
            match rules.apply(&seen) {
                Verdict::Nothing => continue,
                Verdict::Again(target) => return Routed::Again(target),
                Verdict::Redirect(location, status) => {
                    let response = Verdict::redirect(&location, status);
                    return Routed::Answer(self.around.refuse(request, response));
                }
            }
        }
        Routed::Answer(self.nobody(request, &path))
    }

    /// Whether a reader that takes `%2F` for a slash would be sent another way. Then one of the two would pass by the policies
    /// that are meant for it.
    #[cold]
    fn is_ambiguous(&self, request: &Request<'_>, path: &[u8]) -> bool {
        let Some(other) = path::with_slashes_decoded(request.path()) else {
            return false;
        };
        for route in &self.routes {
            let is_taken = route.takes(request.method(), path);
            if is_taken != route.takes(request.method(), &other) {
                return true;
            }
            match &route.handler {
                _ if !is_taken => {}
                Opened::Rewrites(rules) if rules.tells_apart(path, &other) => return true,
                Opened::Rewrites(_) => {}
                Opened::Answers(_) => return false,
            }
        }
        false
    }

    /// 405 when only the method is wrong, 404 otherwise.
    #[cold]
    fn nobody(&self, request: &Request<'_>, path: &[u8]) -> Response {
        let fitting = self.routes.iter().filter(|route| route.fits(path));
        let mut methods: Vec<&str> = fitting
            .flat_map(|route| route.methods.iter().map(|method| &**method))
            .collect();
        methods.sort_unstable();
        methods.dedup();
        let response = match methods.is_empty() {
            true => plain(StatusCode::NOT_FOUND),
            false => plain(StatusCode::METHOD_NOT_ALLOWED).header("allow", methods.join(", ")),
        };
        self.around.refuse(request, response)
    }
}

impl Route {
    #[inline]
    fn takes(&self, method: &str, path: &[u8]) -> bool {
        let known = |known: &str| known == method || (method == "HEAD" && known == "GET");
        (self.methods.is_empty() || self.methods.iter().any(|method| known(method))) && self.fits(path)
    }

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

/// A short answer: the status in words.
fn plain(status: StatusCode) -> Response {
    Response::new(status).body(format!("{status}\n"))
}
