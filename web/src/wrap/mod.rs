//! Ready-made functions for [`Router::wrap`](crate::Router::wrap).
//!
//! - Observation: request ids, traces, timings, a log of slow requests.
//! - Responses: header fields, CORS, a cache, error pages.
//! - Access: Basic authentication, authentication servers, tokens, sessions.
//! - Load: rates, a queue.

#[cfg(feature = "cache")]
pub mod cache;
#[cfg(feature = "cors")]
pub mod cors;
#[cfg(feature = "proxy")]
pub mod forward_auth;
pub mod html_errors;
#[cfg(feature = "jwt")]
pub mod jwt;
pub mod queue;
#[cfg(feature = "rate")]
pub mod rate;
#[cfg(feature = "sessions")]
pub mod session;

use std::time::Duration;

use http::StatusCode;

use crate::request::base64;
use crate::{Next, Request, Response};

/// Sends the [request id](Request::id) in the field `name`, so that a client can quote it and the
/// log line can be found.
///
/// ```
/// use osier_web::{Router, test::Client, wrap};
///
/// let router = Router::new().get("/", |_| "hello\n").wrap(wrap::request_id("x-request-id"));
/// let reply = Client::new(router).get("/").send();
/// assert_eq!(reply.header("x-request-id").map(str::len), Some(16));
/// ```
#[doc(alias = "SetRequestId")]
pub fn request_id(name: &'static str) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    move |request, next| {
        let id = request.id();
        next.run(request).header(name, id.to_string())
    }
}

/// Adds the field `Server-Timing` to responses: the phases of the request until its response was ready. Browsers show
/// the field in their network view. It also shows strangers how the application works.
///
/// ```
/// use osier_web::{Router, test::Client, wrap};
///
/// let client = Client::new(Router::new().get("/", |_| "hello\n").wrap(wrap::server_timing()));
/// assert!(client.get("/").send().header("server-timing").unwrap().contains("run;dur="));
/// ```
pub fn server_timing() -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    |request, next| {
        request.measure();
        let response = next.run(request);
        response.header("server-timing", request.times().server_timing())
    }
}

/// Makes each request a span of a trace, by [`Request::start_trace`]. The trace is that of the client, or a new one,
/// which is marked as sampled.
///
/// ```
/// use osier_web::{Request, Router, test::Client, wrap};
///
/// let show = |request: &mut Request<'_>| request.trace().map(|trace| trace.trace_id()).unwrap_or_default();
/// let client = Client::new(Router::new().get("/", show).wrap(wrap::trace()));
/// let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// assert_eq!(client.get("/").header("traceparent", parent).send().text(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert_eq!(client.get("/").send().text().len(), 32);
/// ```
#[doc(alias = "TraceLayer")]
pub fn trace() -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    |request, next| {
        request.start_trace(true, true);
        next.run(request)
    }
}

/// Logs each request once, as soon as it takes longer than `limit`, by [`Request::set_slow`]. A stream of events counts until it
/// begins.
///
/// ```
/// use osier_web::{Router, wrap};
/// use std::time::Duration;
///
/// let router = Router::new().get("/", |_| "hello\n").wrap(wrap::slow(Duration::from_secs(2)));
/// ```
pub fn slow(limit: Duration) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    move |request, next| {
        request.set_slow(limit);
        next.run(request)
    }
}

/// Adds each of `fields` to every response that lacks it.
///
/// ```
/// use osier_web::{Router, test::Client, wrap};
///
/// let router = Router::new().get("/", |_| "hello\n").wrap(wrap::headers([("x-content-type-options", "nosniff")]));
/// let client = Client::new(router);
/// assert_eq!(client.get("/").send().header("x-content-type-options"), Some("nosniff"));
/// assert_eq!(client.get("/none").send().header("x-content-type-options"), Some("nosniff"));
/// ```
pub fn headers<const N: usize>(
    fields: [(&'static str, &'static str); N],
) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    move |request, next| {
        fields.iter().fold(next.run(request), |response, (name, value)| {
            match response.lookup(name) {
                Some(_) => response,
                None => response.header(name, value),
            }
        })
    }
}

/// Asks for a name and a password (Basic authentication, RFC 7617), and lets requests pass if `check` accepts them.
/// `check` is called for each request, and may wait: give a slow hash to [`osier::unblock`].
///
/// Other requests get 401 with the realm. The password crosses the network as it is, so the connection needs
/// TLS. Compare by [`same_secret`], whose time says nothing about the secret.
///
/// ```
/// use osier_web::{Router, test::Client, wrap};
///
/// let check = |user: &str, password: &str| wrap::same_secret(user, "ops") & wrap::same_secret(password, "osier");
/// let client = Client::new(Router::new().get("/", |_| "in\n").wrap(wrap::basic_auth("staff", check)));
/// let refused = client.get("/").send();
/// assert_eq!(refused.status(), 401);
/// assert_eq!(refused.header("www-authenticate"), Some(r#"Basic realm="staff", charset="UTF-8""#));
/// let admitted = client.get("/").header("authorization", "Basic b3BzOm9zaWVy").send();
/// assert_eq!(admitted.text(), "in\n");
/// ```
///
/// A request with several `Authorization` fields is refused.
///
/// # Panics
///
/// If the realm has a quote, a backslash or a control character.
#[doc(alias = "HttpAuthentication")]
pub fn basic_auth(
    realm: &str,
    check: impl Fn(&str, &str) -> bool + Send + Sync + 'static,
) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    let is_plain = |c: char| !c.is_control() && c != '"' && c != '\\';
    assert!(realm.chars().all(is_plain), "the realm {realm:?} cannot be quoted");
    let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
    move |request, next| {
        let refuse = || Response::plain(StatusCode::UNAUTHORIZED).header("www-authenticate", &challenge);
        let given = request.header_str("authorization").and_then(credentials);
        match given {
            // A backend might read another field than the one that is checked here.
            _ if request.is_repeated("authorization") => refuse(),
            Some((user, password)) if check(&user, &password) => next.run(request),
            _ => refuse(),
        }
    }
}

/// Whether two secrets are equal, in a time that depends on the length of the first one alone.
pub fn same_secret(given: &str, secret: &str) -> bool {
    let (given, secret) = (given.as_bytes(), secret.as_bytes());
    let other = |at: usize| secret.get(at).copied().unwrap_or(0);
    let differ = given
        .iter()
        .enumerate()
        .fold(0, |differ, (at, byte)| differ | (byte ^ other(at)));
    std::hint::black_box(differ) == 0 && given.len() == secret.len()
}

/// Splits the value of an `Authorization` field into name and password.
fn credentials(value: &str) -> Option<(String, String)> {
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(base64::decode(encoded.trim())?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_split_at_the_first_colon() {
        assert_eq!(credentials("basic YTpiOmM="), Some(("a".to_owned(), "b:c".to_owned())));
        assert_eq!(credentials("Bearer YTpiOmM="), None);
        assert_eq!(credentials("Basic YWI="), None);
    }

    #[test]
    fn a_request_with_two_sets_of_credentials_is_refused() {
        let wrap = basic_auth("staff", |user, _| user == "a");
        let client = crate::test::Client::new(crate::Router::new().get("/", |_| "in").wrap(wrap));
        let once = client.get("/").header("authorization", "Basic YTpi");
        assert_eq!(once.send().status(), 200);
        let twice = client.get("/").header("authorization", "Basic YTpi");
        assert_eq!(twice.header("Authorization", "Basic YTpi").send().status(), 401);
    }

    #[test]
    fn secrets_of_other_lengths_differ() {
        assert!(same_secret("osier", "osier"));
        for other in ["", "osie", "osierr", "Osier", "osier\0"] {
            assert!(!same_secret(other, "osier") && !same_secret("osier", other));
        }
    }
}
