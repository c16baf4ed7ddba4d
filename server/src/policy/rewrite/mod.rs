//! Rules that send a request somewhere else: another path inside the server, or another address by a redirect.
//!
//! `site.rs` compiles one [`Rewrite`] for each route that has one and asks [`Rewrite::apply`]; rules are tried in order, and the first whose pattern fits
//! and whose conditions all hold decides. A new path goes through the routes again, at most [`RESTARTS`] times ([`follow`]), then the answer is 500
//! and a line for the operator.
//!
//! - Patterns see the path as routes do (`site/path.rs`: percent-decoded, an encoded slash is one, empty segments count for nothing), or a rule that
//!   keeps somebody out would be passed by `//`. They are expressions of the `regex` crate: time is linear in the path, there are no references back inside
//!   a pattern; a condition on a capture compares instead.
//! - A byte that is no UTF-8 fits no `.`, unless the pattern says `(?-u)`.
//! - What a pattern has captured is percent-encoded where it goes into a path or query, so it never adds a parameter, a line or a host.
//! - A path with `.` or `..` as a segment, a bad escape or a NUL fits no pattern: decoded it would mean another one.
//!
//! The user's side is `docs/rewrite.md`.

mod condition;
mod template;

use std::net::IpAddr;

use osier_web::http::Version;
use osier_web::{Request, Response};
use regex::bytes::{Captures, Regex, RegexBuilder};

use crate::log::operator::Say;
use crate::policy::path;
use condition::Check;
pub use condition::{Condition, SUBJECTS, Subject, Test};
use template::Url;

/// How often a request may be sent through the routes again. Real rules need one or two; more is a loop.
pub const RESTARTS: usize = 4;

/// The largest compiled pattern, in bytes: a mistake like `(a{1000}){1000}` is refused.
const PATTERN_MAX: usize = 1 << 20;

/// The largest form that conditions look at, in bytes: one that a person has filled in. A larger one has no fields for them.
const FORM_MAX: usize = 64 << 10;

/// One rule, as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Found anywhere in the decoded path unless it says `^` and `$`.
    pub pattern: String,
    /// Where to.
    pub to: To,
    /// What becomes of the request's own query.
    pub query: Query,
    /// All of them have to hold.
    pub conditions: Vec<Condition>,
}

/// Where a rule leads. `$1`, `$name`, `${1}` and `${name}` are what the pattern has captured, `$$` is a dollar.
#[derive(Clone, Debug, PartialEq)]
pub enum To {
    /// A path of this server, with a query perhaps; the client does not see it.
    Path(String),
    /// An address for the client: a path, or a whole URL whose host holds no capture; and 301, 302, 303, 307 or 308.
    Redirect(String, u16),
}

/// The fate of the query that came with the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Query {
    /// It stays, after that of the rule if there is one.
    #[default]
    Keep,
    /// Only that of the rule counts.
    Drop,
}

/// The decision of a rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rule fits.
    Nothing,
    /// Send the request through the routes again, as if the client had sent this target.
    Again(String),
    /// Tell the client: `Location` and status.
    Redirect(String, u16),
}

impl Verdict {
    /// The redirect as an answer.
    pub fn redirect(location: &str, status: u16) -> Response {
        use osier_web::http::StatusCode;
        // Checked when the rule was compiled.
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND);
        Response::redirect(status, location)
    }
}

/// The parts of a request that a rule may look at.
pub trait Facts {
    /// GET.
    fn method(&self) -> &str;
    /// As it was sent, or as the last rewrite has left it.
    fn path(&self) -> &str;
    /// The same of the query, without its question mark.
    fn query(&self) -> Option<&str>;
    /// The first field of that name.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// As addressed, with its port perhaps.
    fn host(&self) -> Option<&str>;
    /// The client, as a trusted balancer tells it; none on a Unix socket.
    fn client(&self) -> Option<IpAddr>;
    /// The body, where it is a form whose encoding is that of queries and that is not too large.
    fn form(&self) -> Option<&[u8]>;
    /// The protocol is HTTP/1.0.
    fn http_10(&self) -> bool;
    /// The client's side is encrypted.
    fn https(&self) -> bool;
    /// The connection comes through a balancer that has told whom it speaks for.
    fn proxied(&self) -> bool;
}

/// A request with what only the site knows of its connection.
pub struct Seen<'s, 'r> {
    /// The request.
    pub request: &'s Request<'r>,
    /// See [`Facts::form`].
    pub form: Option<Vec<u8>>,
    /// See [`Facts::https`].
    pub https: bool,
    /// See [`Facts::proxied`].
    pub proxied: bool,
}

impl Facts for Seen<'_, '_> {
    fn method(&self) -> &str {
        self.request.method()
    }
    fn path(&self) -> &str {
        self.request.path()
    }
    fn query(&self) -> Option<&str> {
        self.request.query()
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.request.header(name)
    }
    fn host(&self) -> Option<&str> {
        self.request.host()
    }
    fn client(&self) -> Option<IpAddr> {
        self.request.client_ip()
    }
    fn form(&self) -> Option<&[u8]> {
        self.form.as_deref()
    }
    fn http_10(&self) -> bool {
        self.request.version() == Version::HTTP_10
    }
    fn https(&self) -> bool {
        self.https
    }
    fn proxied(&self) -> bool {
        self.proxied
    }
}

/// Rules that are ready to be asked.
#[derive(Debug)]
pub struct Rewrite {
    rules: Vec<Ready>,
    /// A condition of theirs looks at one.
    reads_forms: bool,
}

#[derive(Debug)]
struct Ready {
    pattern: Regex,
    url: Url,
    /// `None` inside of the server.
    redirect: Option<u16>,
    query: Query,
    checks: Vec<Check>,
}

impl Rewrite {
    /// Makes the rules ready.
    ///
    /// # Errors
    ///
    /// The index of each rule that cannot be, and why.
    pub fn compile(rules: &[Rule]) -> Result<Rewrite, Vec<(usize, String)>> {
        let mut ready = Vec::new();
        let mut troubles = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            match Ready::compile(rule) {
                Ok(rule) => ready.push(rule),
                Err(what) => troubles.push((index, what)),
            }
        }
        if troubles.is_empty() {
            let reads_forms = ready.iter().any(Ready::reads_form);
            Ok(Rewrite {
                rules: ready,
                reads_forms,
            })
        } else {
            Err(troubles)
        }
    }

    /// The posted form of a request, if a rule for its path looks at it. The body is still there for whoever answers.
    ///
    /// # Suspends
    ///
    /// Until the body has come.
    pub fn form(&self, request: &mut Request<'_>, path: &[u8]) -> Option<Vec<u8>> {
        if !self.reads_forms || request.body().announced() == Some(0) {
            return None;
        }
        let kind = request.header_str("content-type")?.split(';').next()?;
        let is_form = kind.trim().eq_ignore_ascii_case("application/x-www-form-urlencoded");
        let is_wanted = |rule: &Ready| rule.reads_form() && rule.pattern.is_match(path);
        if !is_form || !self.rules.iter().any(is_wanted) {
            return None;
        }
        // As it is: bytes that are no text in one field hide none of the others.
        request.body().preview(FORM_MAX)
    }

    /// Whether some pattern fits one of the two paths and not the other.
    pub fn tells_apart(&self, path: &[u8], other: &[u8]) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.pattern.is_match(path) != rule.pattern.is_match(other))
    }

    /// Decides on a request.
    ///
    /// # Suspends
    ///
    /// While a condition asks the file system.
    pub fn apply(&self, facts: &dyn Facts) -> Verdict {
        let Ok(path) = path::text(facts.path()) else {
            return Verdict::Nothing;
        };
        for rule in &self.rules {
            let Some(captures) = rule.pattern.captures(&path) else {
                continue;
            };
            if rule.checks.iter().all(|check| check.holds(facts, &path, &captures)) {
                return rule.verdict(facts, &captures);
            }
        }
        Verdict::Nothing
    }
}

impl Ready {
    fn compile(rule: &Rule) -> Result<Ready, String> {
        let pattern = regex(&rule.pattern)?;
        let (to, redirect) = match &rule.to {
            To::Path(to) => (to, None),
            To::Redirect(to, status) => (to, Some(*status)),
        };
        if redirect.is_some_and(|status| !matches!(status, 301 | 302 | 303 | 307 | 308)) {
            return Err("a redirect is 301, 302, 303, 307 or 308".into());
        }
        let url = Url::parse(to, &pattern, redirect.is_some())?;
        let checks = rule
            .conditions
            .iter()
            .map(|condition| Check::compile(condition, &pattern));
        Ok(Ready {
            url,
            redirect,
            query: rule.query,
            checks: checks.collect::<Result<_, _>>()?,
            pattern,
        })
    }

    fn reads_form(&self) -> bool {
        self.checks.iter().any(Check::reads_form)
    }

    fn verdict(&self, facts: &dyn Facts, captures: &Captures<'_>) -> Verdict {
        let kept = facts.query().filter(|_| self.query == Query::Keep);
        let url = self.url.fill(captures, kept);
        match self.redirect {
            None => Verdict::Again(url),
            Some(status) => Verdict::Redirect(url, status),
        }
    }
}

fn regex(pattern: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(pattern).size_limit(PATTERN_MAX).build();
    built.map_err(|error| format!("pattern {pattern:?}: {error}"))
}

/// The decision of the routes on a request.
pub enum Routed {
    /// An answer.
    Answer(Response),
    /// Another target, from [`Verdict::Again`].
    Again(String),
}

/// Sends a request through the routes, again for each new target, at most [`RESTARTS`] times.
///
/// `dispatch` is called with the target of each turn, `None` for the request's own.
pub fn follow(original: &str, say: &Say, mut dispatch: impl FnMut(Option<&str>) -> Routed) -> Response {
    let mut target: Option<String> = None;
    for _ in 0..=RESTARTS {
        match dispatch(target.as_deref()) {
            Routed::Answer(response) => return response,
            Routed::Again(next) => target = Some(next),
        }
    }
    let last = target.unwrap_or_default();
    say(format_args!(
        "rewrite loop: {original:?} was rewritten {} times, the last time to {last:?}",
        RESTARTS + 1
    ));
    Response::new(osier_web::http::StatusCode::INTERNAL_SERVER_ERROR)
        .body("500: the rewrite rules of this server form a loop\n")
}

#[cfg(test)]
mod tests;
