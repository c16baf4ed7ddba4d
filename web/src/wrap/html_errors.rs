//! Error pages in HTML for clients that prefer it, as browsers do. All others keep the short text.
//!
//! ```
//! use osier_web::{Router, test::Client, wrap::html_errors};
//!
//! let client = Client::new(Router::new().get("/", |_| "hello\n").wrap(html_errors::wrap()));
//! let page = client.get("/none").header("accept", "text/html,*/*;q=0.8").send();
//! assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
//! assert!(page.text().contains("<title>404 Not Found</title>"));
//! assert_eq!(client.get("/none").header("accept", "*/*").send().text(), "404 Not Found\n");
//! ```
//!
//! A response is changed if its status is 400 or more and its body is empty or one short line of text, and if the
//! handler has set no content type. Any other body is a page already. A response of a backend stays as it is. A
//! response that could be changed has `Vary: Accept` in both forms, so that a cache keeps them apart.

use crate::body::outgoing::Kind;
use crate::response::{ContentType, in_words};
use crate::{Next, Request, Response};

/// The longest text that counts as the reason of an error, in bytes.
const REASON_MAX: usize = 300;

/// The beginning of the page, in front of the title. The page loads nothing from elsewhere.
const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
    <style>body{max-width:40em;margin:20vh auto;padding:0 1em;font:1.1em/1.5 system-ui,sans-serif}h1{font-size:1.6em}</style>\n";

/// Makes a function for [`Router::wrap`](crate::Router::wrap). Add it first: it then sees the responses of all others.
pub fn wrap() -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    |request, next| {
        let response = next.run(request);
        filter(request, response)
    }
}

/// Gives the response an HTML body, if it is an error with a short text and the client prefers HTML.
#[inline]
pub fn filter(request: &Request<'_>, response: Response) -> Response {
    match response.status.as_u16() {
        400.. => dress(request, response),
        _ => response,
    }
}

#[cold]
fn dress(request: &Request<'_>, response: Response) -> Response {
    let Some(reason) = reason(&response) else {
        return response;
    };
    let accepts = request
        .headers()
        .filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    let page = prefers_html(accepts.map(|(_, value)| value)).then(|| page(&in_words(response.status), reason));
    let response = response.header("vary", "accept");
    match page {
        None => response,
        Some(page) => response.content_type("text/html; charset=utf-8").body(page),
    }
}

/// The text of an error without the status in front. `None` for a response that stays as it is.
fn reason(response: &Response) -> Option<&str> {
    let (bytes, own_type): (&[u8], _) = match &response.body.kind {
        Kind::Empty => (b"", ContentType::Unset),
        Kind::Static(bytes) => (bytes, ContentType::Text),
        Kind::Owned(bytes) => (bytes, ContentType::Text),
        _ => return None,
    };
    let is_own = response.content_type == own_type && response.fields.first("content-type").is_none();
    if !is_own || response.of_backend || bytes.len() > REASON_MAX {
        return None;
    }
    let text = str::from_utf8(bytes).ok()?.trim();
    if text.contains('\n') {
        return None;
    }
    if text == in_words(response.status) {
        return Some("");
    }
    let code = text.strip_prefix(response.status.as_str());
    Some(code.and_then(|rest| rest.strip_prefix(": ")).unwrap_or(text))
}

/// Makes the page.
fn page(status: &str, reason: &str) -> String {
    let mut page = format!("{HEAD}<title>{status}</title>\n<h1>{status}</h1>\n");
    if !reason.is_empty() {
        page.push_str("<p>");
        for character in reason.chars() {
            match character {
                '&' => page.push_str("&amp;"),
                '<' => page.push_str("&lt;"),
                '>' => page.push_str("&gt;"),
                '"' => page.push_str("&quot;"),
                _ => page.push(character),
            }
        }
        page.push_str("</p>\n");
    }
    page
}

/// Whether a client prefers HTML to plain text (RFC 9110 12.5.1). It has to name HTML: `*/*` says that any form will
/// do.
fn prefers_html<'a>(lines: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut html, mut text, mut any_text, mut any) = (None, None, None, None);
    for range in lines.flat_map(|line| line.split(|&byte| byte == b',')) {
        let mut parts = range.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let place = match name {
            _ if name.eq_ignore_ascii_case(b"text/html") => &mut html,
            _ if name.eq_ignore_ascii_case(b"text/plain") => &mut text,
            _ if name.eq_ignore_ascii_case(b"text/*") => &mut any_text,
            b"*/*" => &mut any,
            _ => continue,
        };
        *place = Some(parts.find_map(weight).unwrap_or(1.0));
    }
    match (html, text, any_text.or(any)) {
        (None | Some(0.0), ..) => false,
        (Some(html), Some(text), _) => html > text,
        (Some(html), None, other) => html >= other.unwrap_or(0.0),
    }
}

/// The weight in `q=0.5`. An invalid one is 0.
fn weight(parameter: &[u8]) -> Option<f32> {
    let value = parameter
        .strip_prefix(b"q=")
        .or_else(|| parameter.strip_prefix(b"Q="))?;
    let weight: Option<f32> = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    Some(weight.filter(|weight| (0.0..=1.0).contains(weight)).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Client;
    use crate::{Body, Router};
    use http::StatusCode;

    #[test]
    fn html_is_for_those_who_name_it() {
        for (accept, expected) in [
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8",
                true,
            ),
            ("text/html, */*", true),
            ("TEXT/HTML;level=1;q=0.2", true),
            ("text/html;q=0.5, text/plain;q=0.4", true),
            ("*/*", false),
            ("text/*", false),
            ("", false),
            ("application/json, text/plain, */*", false),
            ("text/html, text/plain", false),
            ("text/html;q=0.5, text/plain", false),
            ("text/html;q=0.5, */*", false),
            ("text/html;q=0", false),
            ("text/html;q=2", false),
            ("text/html;q=NaN", false),
            ("image/*, application/json", false),
        ] {
            assert_eq!(prefers_html([accept.as_bytes()].into_iter()), expected, "{accept}");
        }
    }

    #[test]
    fn pages_of_handlers_and_backends_stay() {
        let text = |body: &str| Response::new(StatusCode::FORBIDDEN).body(body.to_owned());
        assert_eq!(reason(&text("403 Forbidden\n")), Some(""));
        assert_eq!(
            reason(&text("403: your address is not allowed\n")),
            Some("your address is not allowed")
        );
        assert_eq!(reason(&text("a <b>\n")), Some("a <b>"));
        assert_eq!(reason(&Response::new(StatusCode::NOT_FOUND)), Some(""));
        for page in [
            text("two\nlines\n"),
            text(&"x".repeat(REASON_MAX + 1)),
            text("{}").content_type("application/json"),
            text("x").header("content-type", "text/plain"),
            Response::new(StatusCode::NOT_FOUND).content_type("text/css"),
            Response::new(StatusCode::NOT_FOUND).body(vec![1_u8, 2]),
            Response::new(StatusCode::NOT_FOUND).body(Body::shared(std::sync::Arc::new(b"x".to_vec()))),
        ] {
            assert_eq!(reason(&page), None, "{page:?}");
        }
        let mut backend = text("no\n");
        backend.of_backend = true;
        assert_eq!(reason(&backend), None);
    }

    #[test]
    fn a_reason_is_escaped_and_both_forms_vary() {
        let refuse = |_: &mut Request<'_>| (StatusCode::BAD_REQUEST, "<script>&\"\n");
        let client = Client::new(Router::new().get("/", refuse).get("/fine", |_| "x").wrap(wrap()));
        let page = client.get("/").header("accept", "text/html").send();
        assert!(
            page.text().contains("<p>&lt;script&gt;&amp;&quot;</p>"),
            "{}",
            page.text()
        );
        assert_eq!((page.status().as_u16(), page.header("vary")), (400, Some("accept")));
        let plain = client.get("/").send();
        assert_eq!((plain.text(), plain.header("vary")), ("<script>&\"\n", Some("accept")));
        assert_eq!(plain.header("content-type"), Some("text/plain; charset=utf-8"));
        let head = client.head("/none").header("accept", "text/html").send();
        assert_eq!(
            (head.text(), head.header("content-type")),
            ("", Some("text/html; charset=utf-8"))
        );
        let fine = client.get("/fine").header("accept", "text/html").send();
        assert_eq!((fine.text(), fine.header("vary")), ("x", None));
    }
}
