//! The head of the request to the backend: made anew from what the strict parser has understood of the client's.

use std::borrow::Cow;

use osier_http::{BodyLength, Form, HeaderError, RequestWriter, connection_names};

use super::{Host, Settings, forwarded};
use crate::listen::NOWHERE;
use crate::upstream::Lease;
use crate::{Address, Request};

/// What the backend is asked for, or `None` when a segment of the path is `.` or `..`: behind a prefix or a rule for a path
/// it would lead somewhere else.
pub(super) fn target<'r>(settings: &Settings, request: &Request<'r>) -> Option<Cow<'r, str>> {
    let path = request.path();
    if path == "*" {
        return Some(Cow::Borrowed("*"));
    }
    if path.split('/').any(is_dot_segment) {
        return None;
    }
    let replaced = settings.prefix.as_ref().and_then(|(prefix, with)| {
        let rest = path.strip_prefix(prefix.as_str())?;
        // Both at the end of a segment.
        (rest.is_empty() || rest.starts_with('/')).then_some((with.as_str(), rest))
    });
    let is_origin = request.head.form() == Form::Origin;
    match replaced {
        None if is_origin => Some(Cow::Borrowed(request.target())),
        None => Some(with_query(path.to_owned(), request.query())),
        Some(("", "")) => Some(with_query("/".to_owned(), request.query())),
        Some((with, rest)) => Some(with_query(format!("{with}{rest}"), request.query())),
    }
}

fn with_query<'r>(mut path: String, query: Option<&str>) -> Cow<'r, str> {
    if let Some(query) = query {
        path.push('?');
        path.push_str(query);
    }
    Cow::Owned(path)
}

/// One or two dots, each of which may be percent-encoded.
fn is_dot_segment(segment: &str) -> bool {
    let mut rest = segment;
    let mut dots = 0;
    while !rest.is_empty() {
        let encoded = rest.get(..3).is_some_and(|first| first.eq_ignore_ascii_case("%2e"));
        rest = match rest.strip_prefix('.') {
            Some(rest) => rest,
            None if encoded => &rest[3..],
            None => return false,
        };
        dots += 1;
    }
    matches!(dots, 1 | 2)
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
    let client = Some(request.peer()).filter(|peer| *peer != NOWHERE);
    let is_trusted = match (&settings.trust, client) {
        (Some(trust), Some(client)) => trust(client.ip()),
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
    use super::is_dot_segment;

    #[test]
    fn dot_segments_are_known_however_they_are_written() {
        for segment in [".", "..", "%2e", "%2E.", ".%2e", "%2e%2E"] {
            assert!(is_dot_segment(segment), "{segment}");
        }
        for segment in ["", "...", "a", ".a", "..a", "%2e%2e%2e", "%2", ".%2f", "%2e\u{e9}"] {
            assert!(!is_dot_segment(segment), "{segment}");
        }
    }
}
