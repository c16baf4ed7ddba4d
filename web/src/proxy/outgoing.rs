//! The head of the request to the backend: made anew from what the strict parser has understood of the client's.

use std::borrow::Cow;

use osier_http::{BodyLength, Form, HeaderError, RequestWriter, connection_names};

use super::{Host, Settings, forwarded};
use crate::upstream::Lease;
use crate::{Address, Request};

/// What the backend is asked for, or `None` when a segment of the path is `.` or `..`: behind a prefix or a rule for a path
/// it would lead somewhere else.
pub(super) fn target<'r>(settings: &Settings, request: &Request<'r>) -> Option<Cow<'r, str>> {
    let path = request.path();
    if path == "*" {
        return Some(Cow::Borrowed("*"));
    }
    if leads_up(path) {
        return None;
    }
    let replaced = settings
        .prefix
        .as_ref()
        .and_then(|(prefix, with)| Some((with.as_str(), behind(path, prefix)?)));
    let is_origin = request.head.form() == Form::Origin;
    match replaced {
        None if is_origin => Some(Cow::Borrowed(request.target())),
        None => Some(with_query(path.to_owned(), request.query())),
        Some(("", rest)) if rest.is_empty() => Some(with_query("/".to_owned(), request.query())),
        Some((with, rest)) => Some(with_query(format!("{with}{rest}"), request.query())),
    }
}

/// What follows `prefix`, where that ends at the end of a segment. Read as the server's routes read a path, one of which has
/// chosen this handler: decoded, an encoded slash a slash, and without empty segments. Were it read otherwise, a request could
/// reach the backend by one route's rules and with a path of another's.
fn behind<'p>(path: &'p str, prefix: &str) -> Option<Cow<'p, str>> {
    let (mut rest, mut prefix) = (path.as_bytes(), prefix.as_bytes());
    while let Some((wanted, length)) = step(prefix) {
        let (found, taken) = step(rest)?;
        if wanted != found {
            return None;
        }
        (prefix, rest) = (&prefix[length..], &rest[taken..]);
    }
    // Whole characters were taken: an encoded byte is ASCII, and others were equal one by one.
    let text = path.get(path.len() - rest.len()..)?;
    match first(rest) {
        None | Some((b'/', 1)) => Some(Cow::Borrowed(text)),
        // A target begins with a slash that is not encoded.
        Some((b'/', length)) => Some(Cow::Owned(format!("/{}", &text[length..]))),
        Some(_) => None,
    }
}

/// As [`first`], but for slashes, which count as one as long as they follow each other.
fn step(path: &[u8]) -> Option<(u8, usize)> {
    let (byte, mut length) = first(path)?;
    while byte == b'/'
        && let Some((b'/', more)) = first(&path[length..])
    {
        length += more;
    }
    Some((byte, length))
}

/// The first byte, decoded, and how many it was written with.
fn first(path: &[u8]) -> Option<(u8, usize)> {
    match *path {
        [b'%', high, low, ..] => Some(decoded(high, low).map_or((b'%', 1), |byte| (byte, 3))),
        [byte, ..] => Some((byte, 1)),
        [] => None,
    }
}

fn with_query<'r>(mut path: String, query: Option<&str>) -> Cow<'r, str> {
    if let Some(query) = query {
        path.push('?');
        path.push_str(query);
    }
    Cow::Owned(path)
}

/// Whether some backend may read a segment of one or two dots in the path: percent-encoded, between slashes that are, between
/// the slashes of another system, or with a parameter behind it (`..;x`), which servlet containers take off.
fn leads_up(path: &str) -> bool {
    let is_up = |dots| matches!(dots, Some(1 | 2));
    // Of the segment so far, `None` once there is something else; what its parameters are does not matter.
    let (mut dots, mut in_parameters) = (Some(0), false);
    let mut rest = path.as_bytes();
    while let Some((byte, length)) = first(rest) {
        rest = &rest[length..];
        match byte {
            b'/' | b'\\' if is_up(dots) => return true,
            b'/' | b'\\' => (dots, in_parameters) = (Some(0), false),
            b';' if length == 1 => in_parameters = true,
            _ if in_parameters => {}
            b'.' => dots = dots.map(|dots| dots + 1),
            _ => dots = None,
        }
    }
    is_up(dots)
}

fn decoded(high: u8, low: u8) -> Option<u8> {
    let digit = |byte| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Appends the head to `out`, for the backend of `lease`.
pub(super) fn write_head(
    settings: &Settings,
    request: &Request<'_>,
    target: &str,
    lease: &Lease,
    upgrade: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Result<(), HeaderError> {
    let client = request.client_ip();
    let is_trusted = match (&settings.trust, client) {
        (Some(trust), Some(client)) => trust(client),
        _ => false,
    };
    let asked = request.host().unwrap_or_default();
    let host = match (&settings.host, lease.address()) {
        (Host::Preserve, _) => asked,
        (Host::Fixed(host), _) => host,
        (Host::Backend, Address::Tcp(host)) => host,
        (Host::Backend, _) => "localhost",
    };
    let mut head = RequestWriter::begin(out, request.method(), target, host)?;
    let has_options = request.header("connection").is_some();
    for (name, value) in request.headers() {
        let is_named = || has_options && connection_names(request.headers(), name);
        if forwarded::passes(name, is_trusted) && !is_named() {
            head.header(name, value)?;
        }
    }
    if settings.forwarded {
        forwarded::add(&mut head, request.headers(), is_trusted, client, asked)?;
    }
    if let Some(protocol) = upgrade {
        head.upgrade(protocol)?;
    }
    head.finish(request.head.body());
    Ok(())
}

/// Whether the request may be sent twice (RFC 9110 9.2.2) and has nothing that would have to be sent twice.
pub(super) fn is_repeatable(request: &Request<'_>) -> bool {
    let idempotent = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];
    idempotent.contains(&request.method()) && matches!(request.head.body(), BodyLength::None | BodyLength::Known(0))
}

#[cfg(test)]
mod tests {
    use super::{behind, leads_up};

    #[test]
    fn a_prefix_is_known_however_it_is_written() {
        for (path, prefix, rest) in [
            ("/api/x", "/api", Some("/x")),
            ("/api", "/api", Some("")),
            ("/api/", "/api", Some("/")),
            ("/%61p%69/%78", "/api", Some("/%78")),
            ("/api/x", "/%61pi", Some("/x")),
            ("/a%20b/x", "/a%20b", Some("/x")),
            ("/a%20b/x", "/a b", Some("/x")),
            ("/caf%C3%A9/x", "/caf\u{e9}", Some("/x")),
            ("/x", "", Some("/x")),
            ("/a/b/x", "/a/b", Some("/x")),
            // A slash that is encoded is one too, and one after another the same.
            ("/a%2fb/x", "/a/b", Some("/x")),
            ("/a/b/x", "/a%2Fb", Some("/x")),
            ("/a%2fb/x", "/a%2Fb", Some("/x")),
            ("/api%2Fx", "/api", Some("/x")),
            ("/api%2F", "/api", Some("/")),
            ("/api%2F%2fx/", "/api", Some("/%2fx/")),
            ("/api%2f\u{e9}", "/api", Some("/\u{e9}")),
            ("//api/x", "/api", Some("/x")),
            ("/%2F/api//x", "/api", Some("//x")),
            ("/a//b/x", "/a/b", Some("/x")),
            ("/a/b/x", "/a//b", Some("/x")),
            ("//x", "", Some("//x")),
            ("//x", "/api", None),
            ("/", "/api", None),
            ("/%252Fapi/x", "/api", None),
            ("/apis", "/api", None),
            ("/ap", "/api", None),
            ("/%61p", "/api", None),
            ("/ap%", "/ap%", Some("")),
            ("/API/x", "/api", None),
        ] {
            assert_eq!(behind(path, prefix).as_deref(), rest, "{path} {prefix}");
        }
    }

    #[test]
    fn dot_segments_are_known_however_they_are_written() {
        for segment in [
            ".", "..", "%2e", "%2E.", ".%2e", "%2e%2E", "..;", ".;a=b", "%2e.;", ".%2f", "a%5C..",
        ] {
            for path in [
                format!("/{segment}"),
                format!("/a/{segment}/b"),
                format!("/{segment}\\"),
            ] {
                assert!(leads_up(&path), "{path}");
            }
        }
        for segment in [
            "",
            "...",
            "a",
            ".a",
            "..a",
            "%2e%2e%2e",
            "%2",
            ";..",
            "a;..",
            "..%3b",
            "%",
            "%2e\u{e9}",
        ] {
            for path in [format!("/{segment}"), format!("/a/{segment}/b")] {
                assert!(!leads_up(&path), "{path}");
            }
        }
    }
}
