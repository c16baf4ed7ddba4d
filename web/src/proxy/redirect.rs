//! Redirects of a backend: a `Location` that leads to the backend itself leads to this server instead.
//!
//! The new value is a path, which the client resolves against its own request. So it needs neither the client's scheme nor its host.

use std::borrow::Cow;

use osier_http::path::Path;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Host, Settings, outgoing};
use crate::conn::ignoring_case::strip_prefix;
use crate::request::path_and_query;
use crate::{Address, Request};

/// Which values of `Location` a [`Proxy`](super::Proxy) changes, in a 201 or a redirect of a backend. Another server's address stays.
///
/// ```
/// use osier_web::Router;
/// use osier_web::proxy::{Options, Proxy, Redirects};
/// use osier_web::upstream::Upstream;
///
/// let app = Upstream::builder("app").backend("127.0.0.1:8000".parse()?).build()?;
/// // `Location: /login` becomes `Location: /app/login`.
/// let options = Options { strip: Some("/app".into()), redirects: Redirects::Prefix, ..Options::default() };
/// let router = Router::new().mount("/app", Proxy::with(app, options).handler());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Redirects {
    /// None.
    Preserve,
    /// A URL with the backend's address or with the [host](super::Options::host) that the backend gets. It becomes a path, behind the prefix
    /// that [`strip`](super::Options::strip) has taken off, unless the path begins with that. A URL with the host that the client has asked for
    /// stays: its scheme may be the point of the redirect. So does any that would become the path of the same request, for ever.
    #[default]
    Backend,
    /// Also a path, and a URL with the host that the client has asked for: they get that prefix, unless the path begins with it. It is for an
    /// application that does not know below which path it is.
    Prefix,
}

/// The characters of a prefix that are percent-encoded. Its canonical form has the escapes that must stay.
const PREFIX: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b'%');

/// The `Location` for the client in place of this one of the backend at `address`. `None` if that stays.
#[cold]
pub(super) fn location(
    settings: &Settings,
    request: &Request<'_>,
    address: &Address,
    location: &[u8],
) -> Option<String> {
    let changed = changed(settings, request, address, location)?;
    (!leads_to_itself(request, &changed)).then_some(changed)
}

/// Whether the client would ask for the same again. The backend has meant another host, or another scheme.
fn leads_to_itself(request: &Request<'_>, location: &str) -> bool {
    let sent = request.rewritten_from().unwrap_or(request.head);
    matches!(request.method(), "GET" | "HEAD") && location.split('#').next() == Some(&*path_and_query(sent))
}

fn changed(settings: &Settings, request: &Request<'_>, address: &Address, location: &[u8]) -> Option<String> {
    let policy = settings.options.redirects;
    // Browsers leave out spaces and tabs: what follows one could become a host.
    let text = str::from_utf8(location).ok()?;
    if policy == Redirects::Preserve || text.bytes().any(|byte| byte <= b' ') {
        return None;
    }
    // What stays in front of the path, and whether the value must change.
    let (front, must_change, path) = match after_scheme(text) {
        Some((rest, port)) => {
            let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
            let authority = without(port, authority);
            // The scheme may be the point of a redirect to the host that the client has asked for.
            if is_asked(request, authority) {
                match policy {
                    Redirects::Prefix => (&text[..text.len() - path.len()], false, path),
                    _ => return None,
                }
            } else if is_of_backend(settings, address, (authority, port)) {
                ("", true, path)
            } else {
                return None;
            }
        }
        None if policy == Redirects::Prefix && text.starts_with('/') => ("", false, text),
        None => return None,
    };
    let path = with_slash(path);
    if names_host(&path) {
        return None;
    }
    let Some((prefix, with)) = stripped(settings, request) else {
        return must_change.then(|| path.into_owned());
    };
    let prefix = utf8_percent_encode(prefix, PREFIX).to_string();
    if !prefix.is_empty() && below(&path, &prefix).is_some() {
        return must_change.then(|| path.into_owned());
    }
    let rest = below(&path, with)?;
    let mounted = prefix + rest;
    let mounted = with_slash(&mounted);
    (!names_host(&mounted)).then(|| format!("{front}{mounted}"))
}

/// The path with a slash at its beginning.
fn with_slash(path: &str) -> Cow<'_, str> {
    match path.starts_with('/') {
        true => path.into(),
        false => format!("/{path}").into(),
    }
}

/// The URL behind its scheme, and the port of that scheme.
fn after_scheme(url: &str) -> Option<(&str, &'static str)> {
    let schemes = [("http://", ":80"), ("https://", ":443")];
    schemes.into_iter().find_map(|(scheme, port)| {
        strip_prefix(url.as_bytes(), scheme.as_bytes())?;
        Some((&url[scheme.len()..], port))
    })
}

/// An authority without the port of its scheme.
fn without<'a>(port: &str, authority: &'a str) -> &'a str {
    authority.strip_suffix(port).unwrap_or(authority)
}

/// Whether the client has asked for this authority.
fn is_asked(request: &Request<'_>, authority: &str) -> bool {
    let port = if request.is_https() { ":443" } else { ":80" };
    let host = request.host().map(|host| without(port, host));
    host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
}

/// Whether a URL with this authority leads to the backend at `address`, or to the host that it got. `port` is that of the URL's scheme, which
/// the authority does not have.
fn is_of_backend(settings: &Settings, address: &Address, (authority, port): (&str, &str)) -> bool {
    let is = |host: &str| without(port, host).eq_ignore_ascii_case(authority);
    let is_address = matches!(address, Address::Tcp(address) if is(address));
    let is_sent = || settings.options.host != Host::Preserve && is(outgoing::backend_host(settings, "", address));
    !authority.is_empty() && (is_address || is_sent())
}

/// The prefix that was taken off the path of the request, and what has taken its place.
fn stripped<'s>(settings: &'s Settings, request: &Request<'_>) -> Option<(&'s str, &'s str)> {
    let (prefix, with) = settings.prefix.as_ref()?;
    Path::parse(request.path()).ok()?.strip_prefix(prefix)?;
    Some((prefix, with))
}

/// The rest of a reference behind a path, if it is that path or below it.
fn below<'r>(reference: &'r str, path: &str) -> Option<&'r str> {
    let rest = reference.strip_prefix(path)?;
    (rest.is_empty() || rest.starts_with(['/', '?', '#'])).then_some(rest)
}

/// Whether browsers take a reference that begins with a slash for one that names a host.
fn names_host(reference: &str) -> bool {
    reference[1..].starts_with(['/', '\\'])
}
