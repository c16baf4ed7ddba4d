//! `rewrite`: rules that send a request to another path of the server, or redirect the client to another address.
//!
//! There is one [`Rewrite`] for each `rewrite` route. [`Rewrite::apply`] tries the rules in order. The first rule whose
//! pattern matches and whose conditions all hold decides. A new path goes through the routes again, at most
//! [`RESTARTS`] times ([`follow`]). After that the response is 500 and a line is logged.
//!
//! - Patterns are matched against the path's text, as routes are (`policy/path.rs`): decoded except `%2F` and `%25`,
//!   without empty segments. So a rule that protects a path cannot be bypassed by `//`.
//! - Patterns are expressions of the `regex` crate. Matching takes time linear in the path. A pattern has no
//!   backreferences; a condition on a capture serves instead.
//! - A byte that is not UTF-8 matches no `.`, unless the pattern says `(?-u)`.
//! - A capture is percent-encoded in a path or query, so it never adds a parameter, a line or a host.
//! - A path with a `.` or `..` segment, a bad escape or a NUL matches no pattern: its decoded form would be a different
//!   path.
//!
//! `docs/rewrite.md` describes rules for users.

mod condition;
mod foresee;
mod template;

use std::net::IpAddr;

use osier_web::http::Version;
use osier_web::{Answer, Request, Response};
use regex::bytes::{Captures, Regex, RegexBuilder};

use crate::policy::path;
use condition::Check;
pub use condition::{Condition, SUBJECTS, Subject, Test};
use template::Url;

/// How often a request may go through the routes again. Real rules need one or two passes; more is a loop.
pub const RESTARTS: usize = 4;

/// Bytes of the largest compiled pattern. It refuses mistakes like `(a{1000}){1000}`.
const PATTERN_MAX: usize = 1 << 20;

/// Bytes of the largest form that conditions test. A form filled in by hand is smaller. In a larger form, conditions
/// find no field.
const FORM_MAX: usize = 64 << 10;

/// One rule, as the configuration writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Regular expression. It matches anywhere in the path's text unless it has `^` and `$`.
    pub pattern: String,
    /// Target of the rule.
    pub to: To,
    /// Whether the request's own query is kept.
    pub query: Query,
    /// Conditions, which must all hold.
    pub conditions: Vec<Condition>,
}

/// The target of a rule. `$1`, `$name`, `${1}` and `${name}` stand for captures of the pattern, `$$` for a dollar sign.
#[derive(Clone, Debug, PartialEq)]
pub enum To {
    /// A path of this server, perhaps with a query. The client does not see it.
    Path(String),
    /// An address for the client, and the status 301, 302, 303, 307 or 308. It is a path, or a URL without captures in
    /// its host.
    Redirect(String, u16),
}

/// The treatment of the request's own query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Query {
    /// It is kept, after the rule's query if there is one.
    #[default]
    Keep,
    /// It is dropped. Only the rule's query is used.
    Drop,
}

/// The decision of a rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rule matches.
    Nothing,
    /// Send the request through the routes again, as if the client had sent this target.
    Again(String),
    /// Redirect the client: `Location` and status.
    Redirect(String, u16),
}

impl Verdict {
    /// The response of a redirect.
    pub fn redirect(location: &str, status: u16) -> Response {
        use osier_web::http::StatusCode;
        // The status was checked when the rule was compiled.
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND);
        Response::redirect(status, location)
    }
}

/// The parts of a request that rules test.
pub trait Facts {
    /// Method of the request.
    fn method(&self) -> &str;
    /// Path, as the client sent it or as the last rewrite has made it.
    fn path(&self) -> &str;
    /// Query, without its question mark, from the same target as the path.
    fn query(&self) -> Option<&str>;
    /// First header field with this name.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// All values of the header fields with this name.
    fn lines(&self, name: &str) -> Vec<&[u8]>;
    /// Host that the request names, perhaps with a port.
    fn host(&self) -> Option<&str>;
    /// Address of the client, which a trusted proxy may have named. None for a Unix socket.
    fn client(&self) -> Option<IpAddr>;
    /// Body of a URL-encoded form that is not too large.
    fn form(&self) -> Option<&[u8]>;
    /// Whether the protocol is HTTP/1.0.
    fn http_10(&self) -> bool;
    /// Whether the client has sent the request over https, as far as a trusted proxy or the connection tells.
    fn https(&self) -> bool;
    /// Whether a trusted proxy has named the client, by the PROXY protocol or by a field of `real_ip`.
    fn proxied(&self) -> bool;
}

/// A request, with its form if the rules test one.
pub struct RequestFacts<'s, 'r> {
    pub request: &'s Request<'r>,
    /// See [`Facts::form`].
    pub form: Option<Vec<u8>>,
}

impl Facts for RequestFacts<'_, '_> {
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
    fn lines(&self, name: &str) -> Vec<&[u8]> {
        let fields = self.request.headers();
        let lines = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| value).collect()
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
        self.request.is_https()
    }
    fn proxied(&self) -> bool {
        self.request.is_proxied()
    }
}

/// Compiled rules.
#[derive(Debug)]
pub struct Rewrite {
    rules: Vec<Ready>,
    /// Whether a condition tests a posted form.
    reads_forms: bool,
}

#[derive(Debug)]
struct Ready {
    pattern: Regex,
    url: Url,
    /// Status of a redirect. None for a rewrite inside of the server.
    redirect: Option<u16>,
    query: Query,
    checks: Vec<Check>,
}

impl Rewrite {
    /// Compiles rules.
    ///
    /// # Errors
    ///
    /// The index of each rule with a mistake, and the mistake.
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

    /// The posted form of a request, if a rule for its path tests it. The handler can still read the body.
    ///
    /// # Suspends
    ///
    /// Until the body has arrived.
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
        // The form is not decoded here, so invalid bytes in one field do not hide the other fields.
        request.body().preview(FORM_MAX)
    }

    /// Whether some pattern matches only one of the two paths.
    pub fn tells_apart(&self, path: &[u8], other: &[u8]) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.pattern.is_match(path) != rule.pattern.is_match(other))
    }

    /// Applies the rules to a request.
    ///
    /// # Suspends
    ///
    /// While a condition looks at the file system.
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
        self.verdict_of(captures, kept)
    }

    /// The decision for these captures. `kept` is the part of the request's query that is kept.
    fn verdict_of(&self, captures: &Captures<'_>, kept: Option<&str>) -> Verdict {
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

/// The result of one pass of a request through the routes.
pub enum Routed {
    /// A response, or an answer that waits for the body.
    Answer(Answer),
    /// A new target, from [`Verdict::Again`].
    Again(String),
}

/// Sends a request through the routes, again for each new target, at most [`RESTARTS`] times.
///
/// `dispatch` gets the target of each pass, `None` for the request's own.
pub fn follow(original: &str, mut dispatch: impl FnMut(Option<&str>) -> Routed) -> Answer {
    let mut target: Option<String> = None;
    for _ in 0..=RESTARTS {
        match dispatch(target.as_deref()) {
            Routed::Answer(answer) => return answer,
            Routed::Again(next) => target = Some(next),
        }
    }
    let last = target.unwrap_or_default();
    Response::new(osier_web::http::StatusCode::INTERNAL_SERVER_ERROR)
        .body("500: the rewrite rules of this server form a loop\n")
        .because(format!(
            "rewrite loop: {original:?} was rewritten {} times, the last time to {last:?}",
            RESTARTS + 1
        ))
        .into()
}

#[cfg(test)]
mod tests;
