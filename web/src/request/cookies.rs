//! Cookies: read from a request and set by a response, with the attributes of the `cookie` crate.
//!
//! That crate writes any value as it is. This module refuses a value that would end early and begin
//! an attribute.

#[cfg(feature = "cookies")]
use cookie::Cookie;

use crate::Request;
#[cfg(feature = "cookies")]
use crate::Response;

impl<'a> Request<'a> {
    /// Yields all cookies in the order received, as they were sent. A pair without `=` is left out.
    pub fn cookies(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case("cookie"))
            .filter_map(|(_, value)| str::from_utf8(value).ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.trim(), value.trim()))
            .filter(|(name, _)| !name.is_empty())
    }

    /// Returns the value of the first cookie called `name`, without enclosing quotes and otherwise
    /// as it was sent. Names are case-sensitive.
    pub fn cookie(&self, name: &str) -> Option<&'a str> {
        let (_, value) = self.cookies().find(|(known, _)| *known == name)?;
        Some(unquoted(value))
    }

    /// The values of all cookies called `name`, each as [`cookie`](Request::cookie) returns it.
    #[cfg(feature = "jwt")]
    pub(crate) fn cookies_named<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        let named = self.cookies().filter(move |(known, _)| *known == name);
        named.map(|(_, value)| unquoted(value))
    }

    /// Whether [`cookies_named`](Request::cookies_named) yields every cookie called `name`, also for a reader that splits at commas and
    /// white space, as some do. A `Cookie` field that is not UTF-8 may have others.
    #[cfg(feature = "jwt")]
    pub(crate) fn has_all_cookies_plain(&self, name: &str) -> bool {
        let mut lines = self.headers().filter(|(known, _)| known.eq_ignore_ascii_case("cookie"));
        lines.all(|(_, line)| str::from_utf8(line).is_ok_and(|line| !line.split(';').any(|pair| hides(pair, name))))
    }
}

/// Whether a pair has a cookie called `name` behind a comma or white space.
#[cfg(feature = "jwt")]
fn hides(pair: &str, name: &str) -> bool {
    let pair = pair.trim_start();
    let is_separator = |c: char| c == ',' || c.is_whitespace();
    let mut places = pair.match_indices(name);
    places.any(|(at, _)| {
        let (before, behind) = (&pair[..at], &pair[at + name.len()..]);
        before.ends_with(is_separator) && behind.trim_start().starts_with('=')
    })
}

/// A value without enclosing quotes.
fn unquoted(value: &str) -> &str {
    let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    unquoted.unwrap_or(value)
}

#[cfg(feature = "cookies")]
impl Response {
    /// Sets a cookie. To remove a cookie, call [`make_removal`](Cookie::make_removal) on one with
    /// the same path and domain, and set it.
    ///
    /// A name, value, path or domain that a cookie cannot have turns the whole response into a 500
    /// with a log line. A value, for example, has no `;`, comma, quote, backslash, white space or
    /// control character (RFC 6265 section 4.1.1). Encode values that may contain any of these.
    ///
    /// ```
    /// use osier_web::cookie::{Cookie, SameSite, time::Duration};
    /// use osier_web::{Response, http::StatusCode};
    ///
    /// let session = Cookie::build(("session", "8f3a")).path("/").http_only(true).same_site(SameSite::Lax);
    /// let response = Response::new(StatusCode::OK).cookie(session.max_age(Duration::hours(8)));
    /// let line = response.lookup("set-cookie").unwrap_or_default();
    /// assert_eq!(line, b"session=8f3a; HttpOnly; SameSite=Lax; Path=/; Max-Age=28800");
    /// ```
    pub fn cookie<'c>(self, cookie: impl Into<Cookie<'c>>) -> Self {
        let cookie = cookie.into();
        let is_attribute = |text: &str| text.bytes().all(|byte| (b' '..0x7f).contains(&byte) && byte != b';');
        let attributes = [cookie.path(), cookie.domain()];
        if !is_name(cookie.name()) || !is_value(cookie.value()) || !attributes.into_iter().flatten().all(is_attribute) {
            let name = cookie.name();
            return Response::internal_error(format!(
                "the handler set cookie {name:?} to a name, value, path or domain that a cookie cannot have"
            ));
        }
        self.header("set-cookie", cookie.to_string())
    }
}

/// Whether `name` is a token (RFC 9110 section 5.6.2).
#[cfg(feature = "cookies")]
fn is_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// Whether `value` is of cookie-octets, with or without enclosing quotes (RFC 6265 section 4.1.1).
#[cfg(feature = "cookies")]
fn is_value(value: &str) -> bool {
    let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    let is_octet = |byte: u8| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte);
    inner.unwrap_or(value).bytes().all(is_octet)
}
