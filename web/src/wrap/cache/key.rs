//! The key of a request, and the fields by which responses under one key differ.
//!
//! ```text
//!   key          space · scheme · host in lower case · canonical path · query as sent
//!                where the handler knows a target that code before the cache has replaced: path and query of that one first
//!   particular   the path as sent, unless it has the usual spelling; fields that applications read instead of the key
//!   vary         the fields that the stored response names
//! ```
//!
//! All spellings of a path have one key, so a purge finds every response. A backend may still answer two spellings
//! differently, so a response answers only the spelling that it was fetched for. One spelling of each path, the usual
//! one, has no particular. The same holds for fields that some applications believe more than the target
//! ([`OVERRIDES`]): a response to a request with such a field answers only requests with the same value. Programs
//! behind CGI, WSGI or Rack read a `_` in a name as a hyphen, so every field with a `_` is a particular, too.

use std::borrow::Cow;

use osier_http::path::Path;
use osier_http::{Headers, is_field};

use crate::Request;
use crate::compress::accept_encoding::{Coding, weighted};
use crate::conn::ignoring_case::{begins, strip_prefix};

/// Fields that some applications take for the host, the path, the scheme or the method, or for their own question.
const OVERRIDES: [&str; 16] = [
    "cf-visitor",
    "cloudfront-forwarded-proto",
    "front-end-https",
    "x-arr-ssl",
    "x-host",
    "x-host-override",
    "x-http-host-override",
    "x-http-method",
    "x-http-method-override",
    "x-matched-path",
    "x-method-override",
    "x-nextjs-data",
    "x-now-route-matches",
    "x-scheme",
    "x-script-name",
    "x-url-scheme",
];

/// The beginnings of such fields. Fields that [name a client](names_client) are none of them.
const OVERRIDES_BEGIN: [&str; 5] = [
    "x-forwarded-",
    "x-invoke-",
    "x-middleware-",
    "x-original-",
    "x-rewrite-",
];

/// Ends a part of a key or of the particulars.
const END: u8 = 0;

/// The bytes of a key before its host: the space and the scheme.
const BEFORE_HOST: usize = size_of::<u64>() + 1;

/// The key and the particulars of a request.
#[derive(Clone, Copy)]
pub struct Wanted<'k> {
    pub hash: u64,
    pub key: &'k [u8],
    pub particular: &'k [u8],
}

/// Writes the key of `request` in `space` to `key`, and the particulars to `particular`. Both are empty. With
/// `by_sent_target`, the target that the client has sent is in the key, too. Returns `false` if a path is malformed. Such
/// a request is not cached.
pub fn write(
    (space, by_sent_target): (u64, bool),
    request: &Request<'_>,
    key: &mut Vec<u8>,
    particular: &mut Vec<u8>,
) -> bool {
    write_host(space, request.is_https(), request.host().unwrap_or_default(), key);
    if !write_targets(by_sent_target, request, key, particular) {
        return false;
    }
    for (name, value) in request.headers() {
        if is_particular(name) {
            particular.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
            particular.push(b':');
            particular.extend_from_slice(value);
            particular.push(END);
        } else if is_field(name, "forwarded") {
            for pair in schemes(value) {
                particular.extend(pair.to_ascii_lowercase());
                particular.push(END);
            }
        }
    }
    true
}

/// Whether a backend may read a field in the place of something that the key or the cache reads.
fn is_particular(name: &str) -> bool {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    let is_begun = |name: &str| OVERRIDES_BEGIN.into_iter().any(|begin| begins(name, begin)) && !names_client(name);
    name.as_bytes().contains(&b'_')
        || (matches!(name.as_bytes()[0] | 0x20, b'c' | b'f' | b'x')
            && (OVERRIDES.into_iter().any(is) || is_begun(name)))
}

/// Whether [`write`] may read a field of this name.
pub fn is_of_key(name: &str) -> bool {
    is_particular(name) || is_field(name, "forwarded")
}

/// Whether a field has the address of the client, so that nearly every client would have responses of its own. A response that varies by it
/// is not stored. `X-Original-Forwarded-For` is that of an ingress with nginx, which sets `X-Forwarded-For` itself. The proxy makes
/// `X-Forwarded-For` anew for clients that it does not trust, and passes that of the ingress as any client sends it.
pub fn names_client(name: &str) -> bool {
    ["x-forwarded-for", "x-original-forwarded-for"]
        .into_iter()
        .any(|known| known.eq_ignore_ascii_case(name))
}

/// The schemes that a `Forwarded` field names, as its pairs.
fn schemes(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let pairs = value.split(|byte| b";, \t".contains(byte));
    pairs.filter(|pair| strip_prefix(pair, b"proto").is_some())
}

/// Writes the targets of a request behind its host, and their spellings to `particular`. Returns `false` if a path is
/// malformed.
fn write_targets(by_sent_target: bool, request: &Request<'_>, key: &mut Vec<u8>, particular: &mut Vec<u8>) -> bool {
    if by_sent_target && let Some(sent) = request.rewritten_from() {
        let Ok(path) = Path::parse(sent.path()) else {
            return false;
        };
        write_path(path.canonical(), sent.query(), key);
        // A purge of what begins with a path finds the sent one.
        end_sent_target(key);
        if !is_usual(&path) {
            // No path and no name of a field begins so.
            particular.push(b'?');
            write_spelling(&path, particular);
        }
    }
    let Ok(path) = Path::parse(request.path()) else {
        return false;
    };
    write_path(path.canonical(), request.query(), key);
    if !is_usual(&path) {
        write_spelling(&path, particular);
    }
    true
}

fn write_spelling(path: &Path<'_>, particular: &mut Vec<u8>) {
    particular.extend_from_slice(path.sent().as_bytes());
    particular.push(END);
}

/// Whether a path has the usual spelling. One that is sent in its canonical form has it.
fn is_usual(path: &Path<'_>) -> bool {
    path.is_as_sent() || is_usually_sent(path)
}

/// Writes the key of a target. `path` is canonical.
pub fn write_target(space: u64, is_https: bool, host: &str, path: &str, query: Option<&str>, key: &mut Vec<u8>) {
    write_host(space, is_https, host, key);
    write_path(path, query, key);
}

fn write_path(path: &str, query: Option<&str>, key: &mut Vec<u8>) {
    key.extend_from_slice(path.as_bytes());
    if let Some(query) = query {
        // No canonical path has a NUL.
        key.push(END);
        key.extend_from_slice(query.as_bytes());
    }
}

/// Writes the end of the target that the client has sent. No query has a NUL.
pub fn end_sent_target(key: &mut Vec<u8>) {
    key.extend_from_slice(&[END; 2]);
}

/// The beginning of a key up to the end of the target that the client has sent. `None` if the key has only one target.
pub fn sent_part(key: &[u8]) -> Option<&[u8]> {
    let after_scheme = key.get(BEFORE_HOST..)?;
    let end = BEFORE_HOST + after_scheme.windows(2).position(|pair| pair == [END; 2])? + 2;
    // A query that is empty has a NUL before it.
    Some(&key[..end + usize::from(key.get(end) == Some(&END))])
}

/// Writes the beginning of the keys of all targets of a host.
pub fn write_host(space: u64, is_https: bool, host: &str, key: &mut Vec<u8>) {
    key.extend_from_slice(&space.to_le_bytes());
    key.push(u8::from(is_https));
    let at = key.len();
    key.extend_from_slice(host.as_bytes());
    key[at..].make_ascii_lowercase();
    key.push(END);
}

/// Whether a path has the usual spelling: its canonical form, with the bytes escaped that no request target can hold. A
/// path with other bytes escaped does not count, such as `<`, which browsers escape: a client may also send `<` itself,
/// and both spellings would have an empty particular.
fn is_usually_sent(path: &Path<'_>) -> bool {
    let mut sent = path.sent().bytes();
    let is_spelled_so = path.canonical().bytes().all(|byte| match byte {
        b' ' => sent.by_ref().take(3).eq(*b"%20"),
        b'#' => sent.by_ref().take(3).eq(*b"%23"),
        b'?' => sent.by_ref().take(3).eq(*b"%3F"),
        byte => sent.next() == Some(byte),
    });
    is_spelled_so && sent.next().is_none()
}

/// A field that a stored response varies by, and its value in the request that fetched it. `None` if
/// that request lacked the field.
pub type Varies = Box<[(Box<str>, Option<Box<[u8]>>)]>;

/// The names in the lines of `Vary`, in lower case and once each.
pub fn vary_names<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Vec<Box<str>> {
    let mut names: Vec<Box<str>> = lines
        .flat_map(|line| line.split(|&byte| byte == b','))
        .filter_map(|name| std::str::from_utf8(name.trim_ascii()).ok())
        .filter(|name| !name.is_empty())
        .map(|name| name.to_ascii_lowercase().into())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The values that a request has under `names`.
pub fn select(names: impl IntoIterator<Item = Box<str>>, headers: &Headers<'_>) -> Varies {
    let value = |name: Box<str>| {
        let value = value(headers, &name).map(|value| value.into_owned().into());
        (name, value)
    };
    names.into_iter().map(value).collect()
}

/// Whether a request selects the response that varies by these fields (RFC 9111 section 4.1).
pub fn selects(varies: &Varies, headers: &Headers<'_>) -> bool {
    varies
        .iter()
        .all(|(name, stored)| value(headers, name).as_deref() == stored.as_deref())
}

/// The value of a field in its normal form. Several lines are one list.
fn value<'a>(headers: &Headers<'a>, name: &str) -> Option<Cow<'a, [u8]>> {
    let mut lines = headers
        .clone()
        .filter(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value);
    let first = lines.next()?;
    let value = match lines.next() {
        None => Cow::Borrowed(first),
        Some(second) => {
            let mut joined = [first, second].join(&b", "[..]);
            for line in lines {
                joined.extend_from_slice(b", ");
                joined.extend_from_slice(line);
            }
            Cow::Owned(joined)
        }
    };
    match name {
        "accept-encoding" => Some(match encodings(&value) {
            Some(normal) => Cow::Borrowed(normal.as_bytes()),
            None => value,
        }),
        _ => Some(value),
    }
}

/// The normal form of `Accept-Encoding`: the codings that backends know, in one order. Backends get
/// this form, so two requests with the same form select the same response. `None` for a list that
/// refuses the plain body, which stays as it is.
pub fn encodings(value: &[u8]) -> Option<&'static str> {
    /// The forms, by the codings in them: 1 for gzip, 2 for br, 4 for zstd.
    const FORMS: [&str; 8] = [
        "identity",
        "gzip",
        "br",
        "gzip, br",
        "zstd",
        "gzip, zstd",
        "br, zstd",
        "gzip, br, zstd",
    ];
    let (mut named, mut refused, mut others) = (0, 0, None);
    for (name, weight) in value.split(|&byte| byte == b',').filter_map(weighted) {
        let bit = match Coding::named(name) {
            Some(Coding::Gzip) => 1,
            Some(Coding::Brotli) => 2,
            Some(Coding::Zstd) => 4,
            None if name.eq_ignore_ascii_case(b"identity") && weight == 0 => return None,
            None if name == b"*" => {
                others = Some(weight > 0);
                continue;
            }
            None => continue,
        };
        match weight {
            0 => refused |= bit,
            _ => named |= bit,
        }
    }
    match others {
        Some(false) => None,
        Some(true) => Some(FORMS[named | (7 & !refused)]),
        None => Some(FORMS[named]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_form_of_accept_encoding() {
        for (value, expected) in [
            ("", Some("identity")),
            ("identity", Some("identity")),
            ("gzip", Some("gzip")),
            ("gzip, deflate", Some("gzip")),
            ("gzip, deflate, br, zstd", Some("gzip, br, zstd")),
            ("br;q=1.0, gzip;q=0.2", Some("gzip, br")),
            ("gzip;q=0, br", Some("br")),
            ("*", Some("gzip, br, zstd")),
            ("*, gzip;q=0", Some("br, zstd")),
            ("identity;q=0, gzip", None),
            ("gzip, *;q=0", None),
            ("rubbish;x", Some("identity")),
        ] {
            assert_eq!(encodings(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn one_spelling_of_a_path_is_usual() {
        for (usual, others) in [
            ("/a", &["//a", "/%61"][..]),
            ("/a%20b", &["/a%20%62", "/%61%20b", "//a%20b"]),
            ("/caf%C3%A9", &["/caf%c3%a9"]),
            ("/a%2Fb", &["/a%2fb"]),
            ("/a%3Fb%23", &["/a%3fb%23"]),
            ("/{x}", &["/%7Bx%7D", "/%7Bx}", "/{x%7D"]),
            ("/<\">", &["/%3C%22%3E"]),
            ("/a:b", &["/a%3Ab"]),
        ] {
            let is_usual = |sent| {
                let path = Path::parse(sent).unwrap();
                assert_eq!(path.canonical(), Path::parse(usual).unwrap().canonical(), "{sent}");
                // No path that is sent in its canonical form gets to the second question.
                assert!(!path.is_as_sent() || is_usually_sent(&path), "{sent}");
                is_usually_sent(&path)
            };
            assert!(is_usual(usual), "{usual}");
            for other in others {
                assert!(!is_usual(other), "{other}");
            }
        }
    }

    #[test]
    fn names_of_vary() {
        let lines: [&[u8]; 2] = [b"Accept-Encoding, COOKIE,", b" accept-encoding"];
        let names = vary_names(lines.into_iter());
        assert_eq!(names, [Box::from("accept-encoding"), "cookie".into()]);
    }

    #[test]
    fn fields_that_backends_may_believe() {
        for name in [
            "X-Forwarded-Host",
            "x-forwarded-proto",
            "x-forwarded-anything",
            "X-Scheme",
            "x-script-name",
            "CloudFront-Forwarded-Proto",
            "Front-End-Https",
            "X-Original-URL",
            "X_Original_URL",
            "X-Original-URI",
            "x-rewrite-uri",
            "X-Host-Override",
            "X-Matched-Path",
            "X-Now-Route-Matches",
            "X-Invoke-Status",
            "x-middleware-prefetch",
            "X-NextJS-Data",
            "if_none_match",
        ] {
            assert!(is_particular(name), "{name}");
        }
        for name in [
            "x-forwarded-for",
            "X-Original-Forwarded-For",
            "forwarded",
            "from",
            "x",
            "x-a",
            "if-none-match",
            "accept",
        ] {
            assert!(!is_particular(name), "{name}");
        }
        let pairs: Vec<&[u8]> = schemes(b"for=a;Proto=https, for=b; proto=http;host=proto").collect();
        assert_eq!(pairs, [&b"Proto=https"[..], b"proto=http"]);
    }

    #[test]
    fn keys_of_different_targets_differ() {
        let key = |space, https, host, path, query| {
            let mut key = Vec::new();
            write_target(space, https, host, path, query, &mut key);
            key
        };
        let one = key(1, false, "a.example", "/x", None);
        assert_eq!(one, key(1, false, "A.Example", "/x", None));
        for other in [
            key(2, false, "a.example", "/x", None),
            key(1, true, "a.example", "/x", None),
            key(1, false, "a.exampl", "e/x", None),
            key(1, false, "a.example", "/x", Some("")),
            key(1, false, "a.example", "/X", None),
            key(1, false, "a.example", "/", Some("x")),
        ] {
            assert_ne!(one, other);
        }
    }
}
