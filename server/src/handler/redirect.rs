//! `redirect`: sends the client to another address, made from the request.

use osier_web::http::StatusCode;
use osier_web::{Request, Response};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use toml::Spanned;
use toml::de::DeValue;

use crate::policy::authority;
use crate::policy::path::encoding;
use crate::reader::{Reason, Section};

use super::{Configured, Form, Handler, Match, Opened, Resources, Route, form, without_port};

/// Bytes of a path that are percent-encoded. A `%` is not among them, because the text of a path may still hold
/// escapes.
const PATH: &AsciiSet = &encoding(CONTROLS, b" \"#<>?\\`{}");

/// The status of a redirect without `status`.
const DEFAULT_STATUS: u16 = 308;

/// The settings of a redirect.
#[derive(Debug, Clone, PartialEq)]
pub struct Redirect {
    /// The target, with the placeholders `{host}`, `{path}`, `{rest}` and `{query}`.
    to: String,
    status: u16,
}

/// An open redirect.
struct Ready {
    status: StatusCode,
    parts: Vec<Part>,
    /// The path of the route, which `{rest}` leaves out.
    prefix: String,
    /// Whether the target is a path of this server.
    stays_here: bool,
}

enum Part {
    Text(String),
    Host,
    Path,
    Rest,
    Query,
}

impl Redirect {
    /// The path of the target, if that is one of this server for every request.
    pub fn fixed_path(&self) -> Option<&str> {
        let is_here = self.to.starts_with('/') && !self.to.starts_with("//");
        let path = self.to.strip_suffix("{query}").unwrap_or(&self.to);
        let path = path.split(['?', '#']).next()?;
        (is_here && !path.contains('{')).then_some(path)
    }
}

impl Configured for Redirect {
    const IS_KEPT: bool = false;

    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, _matches: &Match) -> Option<Redirect> {
        let (key, to, status) = match form(section, "redirect", value, "the target")? {
            Form::Short(text) => ("redirect", Some(text), DEFAULT_STATUS),
            Form::Table(table) => {
                table.require("to", "the target, \"https://example.org{path}{query}\" for example");
                let to = table.string("to");
                let status = redirect_status(&table, "status").unwrap_or(DEFAULT_STATUS);
                table.finish();
                ("to", to, status)
            }
        };
        let to = section.understand(key, to?, target)?.value;
        Some(Redirect { to, status })
    }

    fn open(&self, route: &Route<'_>, _resources: &Resources) -> Result<Opened, Reason> {
        let mut parts = Vec::new();
        let mut rest = self.to.as_str();
        // The configuration was checked: every brace belongs to a placeholder.
        while let Some((before, (name, after))) = rest
            .split_once('{')
            .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            parts.push(Part::Text(before.into()));
            parts.push(match name {
                "host" => Part::Host,
                "path" => Part::Path,
                "rest" => Part::Rest,
                _ => Part::Query,
            });
            rest = after;
        }
        parts.push(Part::Text(rest.into()));
        Ok(Opened::answers(Ready {
            status: StatusCode::from_u16(self.status).unwrap_or(StatusCode::PERMANENT_REDIRECT),
            parts,
            prefix: route.path.unwrap_or_default().into(),
            stays_here: self.to.starts_with(['/', '{']),
        }))
    }
}

impl Handler for Ready {
    fn answer(&self, request: &mut Request<'_>, path: &[u8]) -> Response {
        let mut to = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => to.push_str(text),
                Part::Host => match request.host().map(without_port) {
                    // In a URL without its host, the beginning of the path would be taken for one.
                    None | Some("") => {
                        return Response::new(StatusCode::BAD_REQUEST)
                            .body("the request names no host\n")
                            .because("a redirect to the host of the request needs one");
                    }
                    Some(host) => to.push_str(host),
                },
                Part::Path => push_path(&mut to, path),
                Part::Rest => push_path(&mut to, path.strip_prefix(self.prefix.as_bytes()).unwrap_or(path)),
                Part::Query => {
                    if let Some(query) = request.query() {
                        to.push('?');
                        to.push_str(query);
                    }
                }
            }
        }
        if self.stays_here {
            keep_here(&mut to);
        }
        Response::redirect(self.status, &to)
    }
}

/// The placeholders in the target of a redirect.
const PLACEHOLDERS: [&str; 4] = ["host", "path", "rest", "query"];

/// Reads a status whose redirect clients follow.
pub(super) fn redirect_status(table: &Section<'_>, key: &'static str) -> Option<u16> {
    let is_known = |status| matches!(status, 301 | 302 | 303 | 307 | 308);
    let status = table.number(key, "301, 302, 303, 307 or 308", is_known)?;
    Some(status as u16)
}

/// Words of other servers in a target, and ours. Most of them would reach clients as they are. A word counts with its question mark
/// first, because that of `{query}` is in it.
const FOREIGN: [(&str, &str); 14] = [
    ("$request_uri", "{path}{query}"),
    ("$uri", "{path}"),
    ("$host", "{host}"),
    ("$http_host", "{host}"),
    ("$is_args$args", "{query}"),
    ("$is_args$query_string", "{query}"),
    ("?$args", "{query}"),
    ("?$query_string", "{query}"),
    ("?%{QUERY_STRING}", "{query}"),
    ("$is_args", "{query}"),
    ("$args", "{query}"),
    ("$query_string", "{query}"),
    ("{uri}", "{path}{query}"),
    ("%{REQUEST_URI}", "{path}"),
];

/// Checks a target.
fn target(text: &str) -> Result<String, String> {
    let (mut remedies, mut left) = (Vec::new(), text.to_owned());
    for (foreign, ours) in FOREIGN {
        if left.contains(foreign) {
            remedies.push(format!("{ours} for '{foreign}'"));
            left = left.replace(foreign, " ");
        }
    }
    if !remedies.is_empty() {
        return Err(format!("write {}", remedies.join(", ")));
    }
    if text.contains("?{query}") {
        return Err("{query} has its question mark: leave out the one in front of it".into());
    }
    let is_capture = |(at, _): (usize, &str)| text[at + 1..].starts_with(|char: char| char.is_ascii_digit());
    if text.match_indices('$').any(is_capture) {
        return Err("'$' and a number is a capture: write a rule of 'rewrite', or the sign as %24".into());
    }
    if !(text.starts_with('/')
        || text.starts_with("http://")
        || text.starts_with("https://")
        || text.starts_with("{path}")
        || text.starts_with("{rest}"))
    {
        return Err("it begins with '/', \"http://\", \"https://\", {path} or {rest}".into());
    }
    if text.starts_with("//") || text.starts_with("/\\") {
        return Err(
            "a target that begins with two slashes names another server: write its scheme, \"https://\"".into(),
        );
    }
    if text.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err("it is written as it is sent: percent-encode spaces and letters beyond ASCII".into());
    }
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (name, after) = rest[at + 1..].split_once('}').ok_or("'{' without '}'")?;
        if !PLACEHOLDERS.contains(&name) {
            let known = PLACEHOLDERS.join("}, {");
            return Err(format!("'{{{name}}}' is unknown; there are {{{known}}}"));
        }
        rest = after;
    }
    let url = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    url.map_or(Ok(()), check_host)?;
    Ok(text.into())
}

/// Checks the host and port of a URL without its scheme. The end of the host must not come from the request.
fn check_host(url: &str) -> Result<(), String> {
    let ends = ["/", "?", "#", "{path}", "{rest}", "{query}"];
    let end = ends.iter().filter_map(|end| url.find(end)).min();
    // `{host}` stands for a valid host.
    let authority = url[..end.unwrap_or(url.len())].replace("{host}", "host");
    let no_host = "a client must not choose where a redirect leads: write a host behind the scheme, \"https://example.org/\" or \
                   \"https://{host}/\" for example";
    authority::check(&authority).map_err(|mistake| mistake.text(no_host))
}

/// Reduces leading slashes to one, because browsers read `//host` and `/\host` as the address of another server.
fn keep_here(to: &mut String) {
    let slashes = to.len() - to.trim_start_matches(['/', '\\']).len();
    to.replace_range(..slashes, "/");
}

/// Appends the text of a path, percent-encoded where it is not yet.
fn push_path(to: &mut String, path: &[u8]) {
    to.extend(percent_encode(path, PATH));
}
