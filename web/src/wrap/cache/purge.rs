//! Removes stored responses, on two occasions: the method PURGE, and unsafe methods.
//!
//! | request | removes |
//! |---|---|
//! | `PURGE /a?b` | the responses for this target, under every spelling of the path |
//! | `PURGE /a/*` | those of this host whose path begins with `/a/` |
//! | `PURGE /` with `Cache-Tag: x, y` | those of this host that have one of these tags in their `Cache-Tag` |
//!
//! Where the key has the target that the client has sent besides the one that took its place, the target of a PURGE is the sent one,
//! whatever has taken its place: a rule may ask for the method or a cookie.
//!
//! The response tells how many there were. A POST, PUT, DELETE or another method that may change
//! something removes the responses for its target, and those for the `Location` and `Content-Location`
//! of its response if they are on the same host (RFC 9111 section 4.4). A rule that asks for the method or a
//! cookie may lead such a request elsewhere than a GET. Where the key has the target that the client has sent, its responses are found
//! whatever the rule is, without a search of the whole table. Elsewhere the responses to the GET stay.

use http::StatusCode;
use osier_http::Head;
use osier_http::path::Path;

use super::entry::Meta;
use super::key;
use super::store::Store;
use crate::conn::ignoring_case::begins;
use crate::{Request, Response};

/// Executes a PURGE.
///
/// # Suspends
///
/// While the table is searched. After a start, until the files of earlier processes are in it.
pub fn purge(store: &Store, (space, by_sent_target): (u64, bool), request: &Request<'_>) -> Response {
    let sent = request.rewritten_from().filter(|_| by_sent_target);
    let Ok(path) = Path::parse(sent.map_or(request.path(), Head::path)) else {
        return Response::plain(StatusCode::BAD_REQUEST);
    };
    store.wait_for_files();
    let host = request.host().unwrap_or_default();
    let prefixes = [false, true].map(|is_https| {
        let mut prefix = Vec::new();
        key::write_host(space, is_https, host, &mut prefix);
        prefix
    });
    let tags = request
        .headers()
        .filter(|(name, _)| name.eq_ignore_ascii_case("cache-tag"));
    let tags: Vec<&[u8]> = tags.flat_map(|(_, value)| members(value)).collect();
    let count = if !tags.is_empty() {
        let has_tag = |meta: &Meta| {
            let lines = meta.fields.iter();
            let mut lines = lines.filter(|(name, _)| name.eq_ignore_ascii_case("cache-tag"));
            lines.any(|(_, value)| members(value).any(|tag| tags.contains(&tag)))
        };
        // Nobody knows yet which tags a response in flight will have.
        let purge = |prefix: &Vec<u8>| store.purge(prefix, |meta| meta.is_none_or(has_tag));
        prefixes.iter().map(purge).sum()
    } else if let Some(begin) = path.canonical().strip_suffix('*') {
        let purge = |prefix: &Vec<u8>| store.purge(&[prefix, begin.as_bytes()].concat(), |_| true);
        prefixes.iter().map(purge).sum()
    } else if by_sent_target {
        invalidate_sent(store, space, request)
    } else {
        invalidate_own(store, space, request)
    };
    Response::new(StatusCode::OK).body(format!("{count} purged\n"))
}

/// The members of a list of tags.
fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let tags = value.split(|byte| matches!(byte, b',' | b' ' | b'\t'));
    tags.filter(|tag| !tag.is_empty())
}

/// Removes what a request with an unsafe method may have changed.
///
/// # Suspends
///
/// While files are removed.
pub fn invalidate(store: &Store, (space, by_sent_target): (u64, bool), request: &Request<'_>, response: &Response) {
    let host = request.host().unwrap_or_default();
    match by_sent_target {
        true => invalidate_sent(store, space, request),
        false => invalidate_own(store, space, request),
    };
    for name in ["location", "content-location"] {
        let value = response.lookup(name).and_then(|value| str::from_utf8(value).ok());
        let Some(target) = value.and_then(|value| on_host(value, host)) else {
            continue;
        };
        let target = target.split('#').next().unwrap_or_default();
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        if let Ok(path) = Path::parse(path) {
            invalidate_target(store, space, host, path.canonical(), query);
            if by_sent_target {
                invalidate_behind_rules(store, space, host, path.canonical(), query);
            }
        }
    }
}

/// Removes the responses for the target of a request, of both schemes.
fn invalidate_own(store: &Store, space: u64, request: &Request<'_>) -> usize {
    let host = request.host().unwrap_or_default();
    Path::parse(request.path()).map_or(0, |path| {
        invalidate_target(store, space, host, path.canonical(), request.query())
    })
}

/// Removes the responses for the target that the client has sent, whatever a rule has made of it, of both schemes.
fn invalidate_sent(store: &Store, space: u64, request: &Request<'_>) -> usize {
    let (host, sent) = (request.host().unwrap_or_default(), request.rewritten_from());
    let query = sent.map_or(request.query(), Head::query);
    Path::parse(sent.map_or(request.path(), Head::path)).map_or(0, |path| {
        invalidate_target(store, space, host, path.canonical(), query)
            + invalidate_behind_rules(store, space, host, path.canonical(), query)
    })
}

/// Removes the responses for a target, of both schemes.
fn invalidate_target(store: &Store, space: u64, host: &str, path: &str, query: Option<&str>) -> usize {
    let of = |is_https| {
        let mut key = Vec::new();
        key::write_target(space, is_https, host, path, query, &mut key);
        store.invalidate(&key)
    };
    of(false) + of(true)
}

/// Removes the responses for a target that clients send, whatever a rule has made of it, of both schemes.
fn invalidate_behind_rules(store: &Store, space: u64, host: &str, path: &str, query: Option<&str>) -> usize {
    let of = |is_https| {
        let mut sent = Vec::new();
        key::write_target(space, is_https, host, path, query, &mut sent);
        key::end_sent_target(&mut sent);
        store.invalidate_behind_rules(&sent)
    };
    of(false) + of(true)
}

/// The target of a reference on the same host.
fn on_host<'r>(reference: &'r str, host: &str) -> Option<&'r str> {
    let scheme = ["http://", "https://"].iter().find(|scheme| begins(reference, scheme));
    let after_scheme = scheme.map(|scheme| &reference[scheme.len()..]);
    let Some(rest) = after_scheme.or_else(|| reference.strip_prefix("//")) else {
        return reference.starts_with('/').then_some(reference);
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    let is_same = authority.eq_ignore_ascii_case(host);
    is_same.then_some(if target.is_empty() { "/" } else { target })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_on_the_same_host() {
        for (reference, expected) in [
            ("/a?b", Some("/a?b")),
            ("http://h:1/a", Some("/a")),
            ("HTTPS://H:1/a", Some("/a")),
            ("//h:1/a", Some("/a")),
            ("http://h:1", Some("/")),
            ("http://h/a", None),
            ("http://h:1.evil.example/a", None),
            ("http://u@h:1/a", None),
            ("a", None),
            ("", None),
        ] {
            assert_eq!(on_host(reference, "h:1"), expected, "{reference}");
        }
    }

    #[test]
    fn tags_are_separated_by_commas_or_spaces() {
        let tags: Vec<&[u8]> = members(b"a, b c,,d ").collect();
        assert_eq!(tags, [b"a", b"b", b"c", b"d"]);
    }
}
