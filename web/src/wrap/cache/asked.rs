//! The demands of a request on caches. One pass over its fields finds them, because most requests make none.

use osier_http::is_field;

use super::Options;
use super::directives::RequestDirectives;
use crate::Request;
use crate::conn::ignoring_case::strip_prefix;
use crate::proxy::forwarded;

/// The demands of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub directives: RequestDirectives,
    /// The request has `If-None-Match` or `If-Modified-Since`.
    pub has_conditions: bool,
    pub has_range: bool,
    /// The reason for `Cache-Status`, if the cache neither answers the request nor stores its response.
    pub bypass: Option<&'static str>,
}

impl Asked {
    pub fn of(request: &Request<'_>, options: &Options) -> Asked {
        let mut asked = Asked::default();
        let mut has_directives = false;
        for (name, value) in request.headers() {
            let is = |known: &'static str| is_field(name, known);
            match name.len() {
                5 if is("range") => asked.has_range = true,
                6 if is("cookie") && has_cookie(value, &options.skip_cookies) => asked.bypass = Some("bypass"),
                // These are for the backend (RFC 9111 section 4.3.2).
                8 if is("if-match") => asked.bypass = Some("bypass"),
                19 if is("if-unmodified-since") => asked.bypass = Some("bypass"),
                // An application may build links from this host, and the key does not have it.
                9 if is("forwarded") && names_host(value) => asked.bypass = Some("bypass"),
                13 if is("cache-control") => has_directives = true,
                13 if is("if-none-match") => asked.has_conditions = true,
                17 if is("if-modified-since") => asked.has_conditions = true,
                _ => {}
            }
        }
        if has_directives && options.obey_client {
            let lines = request.headers();
            let lines = lines.filter(|(name, _)| name.eq_ignore_ascii_case("cache-control"));
            asked.directives = RequestDirectives::read(lines.map(|(_, value)| value));
            if asked.directives.no_store {
                asked.bypass = Some("request");
            }
        }
        // A fetch would compare each of its names with each field. The proxy refuses such a request, and other handlers answer it.
        let lists_too_many = forwarded::lists_too_many(request.head.connection_names_others(), request.headers());
        if lists_too_many || request.head.upgrade().is_some() || request.body.announced() != Some(0) {
            asked.bypass = Some("bypass");
        }
        asked
    }
}

/// Whether the handler may know who the client is: by `Authorization`, by a function around the cache, or by the
/// client's certificate. The response is shared only if it says so (RFC 9111 section 3.5).
pub fn has_credentials(request: &Request<'_>, options: &Options) -> bool {
    options.is_authenticated || request.header("authorization").is_some() || has_certificate(request)
}

#[cfg(feature = "tls")]
fn has_certificate(request: &Request<'_>) -> bool {
    request.tls().is_some_and(|tls| tls.peer_certificates().len() > 0)
}

#[cfg(not(feature = "tls"))]
fn has_certificate(_: &Request<'_>) -> bool {
    false
}

/// Whether a cookie has one of these names. A `*` at the end of a name stands for any text. PHP reads `.`, a space and
/// `[` in a name as `_`, so they are all the same here.
fn has_cookie(value: &[u8], names: &[String]) -> bool {
    let mut cookies = value.split(|&byte| byte == b';').map(|cookie| {
        let name = cookie.split(|&byte| byte == b'=').next().unwrap_or_default();
        name.trim_ascii()
    });
    let plain = |byte: &u8| if b". [".contains(byte) { b'_' } else { *byte };
    let begins = |cookie: &[u8], name: &[u8]| {
        cookie.len() >= name.len()
            && cookie
                .iter()
                .map(plain)
                .zip(name.iter().map(plain))
                .all(|(one, other)| one == other)
    };
    !names.is_empty()
        && cookies.any(|cookie| {
            names.iter().any(|name| match name.strip_suffix('*') {
                Some(prefix) => begins(cookie, prefix.as_bytes()),
                None => cookie.len() == name.len() && begins(cookie, name.as_bytes()),
            })
        })
}

/// Whether a `Forwarded` field has a host.
fn names_host(value: &[u8]) -> bool {
    value
        .split(|byte| b";, \t".contains(byte))
        .any(|pair| strip_prefix(pair, b"host").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_by_name() {
        let names = ["session".to_owned(), "wordpress_logged_in_*".to_owned()];
        for (value, expected) in [
            ("session=1", true),
            ("a=b; session=1", true),
            ("a=b;session", true),
            ("sessions=1", false),
            ("a=session", false),
            ("wordpress_logged_in_abc=1", true),
            ("wordpress_logged_i=1", false),
            ("wordpress.logged in[abc=1", true),
            ("", false),
        ] {
            assert_eq!(has_cookie(value.as_bytes(), &names), expected, "{value}");
        }
        assert!(!has_cookie(b"session=1", &[]));
    }

    #[test]
    fn hosts_in_forwarded() {
        assert!(names_host(b"for=1.2.3.4;host=evil.example"));
        assert!(names_host(b"for=1.2.3.4, HOST = evil.example"));
        assert!(!names_host(b"for=1.2.3.4;proto=https"));
    }
}
