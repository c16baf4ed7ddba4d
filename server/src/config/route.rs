//! Reads `[[site.route]]`: the requests that a route matches, and its handler.

use globset::GlobBuilder;

use crate::handler::{self, Match};
use crate::reader::value::method;
use crate::reader::{Section, values};

use super::check::RouteAt;
use super::policy;
use super::settings::*;

/// Reads a `[[site.route]]`.
pub fn read(section: Section<'_>, named: &policy::Named) -> RouteAt {
    let before = section.source().mistake_count();
    let path = section.parsed("path", path).and_then(|path| path.value);
    let globs = values(section.parsed_list("glob", |text| glob(text).map(|_| text.to_string())));
    let mut methods = values(section.parsed_list("methods", method));
    methods.sort();
    methods.dedup();
    let matches = Match { path, globs, methods };
    let policies = policy::read(&section, named);
    let handler = handler::HandlerSettings::read(&section, &matches);
    let is_rewrite = matches!(handler, handler::HandlerSettings::Rewrite(_));
    if is_rewrite {
        for key in policy::KEYS {
            if let Some(at) = section.key(key) {
                let text = format!(
                    "'{key}' has no effect beside 'rewrite': set it on the route that handles the request, or on the site"
                );
                section.source().problem(&at, text);
            }
        }
    }
    // A handler with a mistake has a stand-in.
    let is_gateway = section.key("proxy").or(section.key("fastcgi")).is_some();
    if let (Setting::On(_), false, Some(at)) = (&policies.cache, is_gateway, section.key("cache")) {
        let text = "'cache' has no effect here: it is for 'proxy' and 'fastcgi'";
        section.source().problem(&at, text);
    }
    let may_send_files = section.key("files").or(section.key("fastcgi")).is_some();
    if let (false, false, Some(at)) = (may_send_files, is_rewrite, section.key("types")) {
        let text = match section.key("respond") {
            Some(_) => "'types' has no effect here: write 'content_type' in the table of 'respond'",
            None => "'types' has no effect here: it is for the files of 'files' and 'fastcgi'",
        };
        section.source().problem(&at, text);
    }
    if let (false, false, Some(at)) = (is_gateway, is_rewrite, section.key("request_headers")) {
        let text =
            "'request_headers' has no effect here: it is for 'proxy' and 'fastcgi'; 'headers' sets fields of responses";
        section.source().problem(&at, text);
    }
    let at = section.span().clone();
    let source = section.source();
    section.finish();
    let sound = source.mistake_count() == before;
    let route = Route {
        matches,
        handler,
        policies,
    };
    RouteAt { route, at, sound }
}

/// Checks a path prefix of whole segments. None for `/`, which every path begins with.
fn path(text: &str) -> Result<Option<String>, String> {
    if is_location(text) {
        return Err("a path begins with '/'; write patterns as 'glob', and regular expressions as 'rewrite'".into());
    }
    if !text.starts_with('/') {
        return Err(format!("a path begins with '/'; did you mean \"/{text}\"?"));
    }
    if text.contains('*') {
        let folder = text.strip_suffix("/**").or_else(|| text.strip_suffix("/*"));
        return Err(match folder.filter(|folder| !folder.contains('*')) {
            Some("") => "leave it out: without 'path', every path matches".into(),
            Some(folder) => format!("write \"{folder}\", which matches what is below, too"),
            None => "it is a pattern; write it as 'glob'".into(),
        });
    }
    if text.contains(['?', '#', '%']) || text.chars().any(char::is_control) {
        return Err(
            "it is compared with the decoded path of a request, without query: write it without '?', '#', '%' and control characters"
                .into(),
        );
    }
    let path = text.trim_end_matches('/');
    if path
        .split('/')
        .skip(1)
        .any(|segment| matches!(segment, "" | "." | ".."))
    {
        return Err("it has an empty, '.' or '..' segment, which no request path has".into());
    }
    Ok((!path.is_empty()).then(|| path.to_string()))
}

/// Whether the text begins as a location of nginx that is no prefix: `~ \.php$`, `^~ /img/`, `= /`.
fn is_location(text: &str) -> bool {
    text.starts_with(['~', '^', '='])
}

/// The pattern with its first `**` alone in a segment. None if each is: elsewhere it would mean no more than `*`, so
/// `/uploads/**.php` would let `/uploads/a/b.php` pass.
fn without_half_segments(text: &str) -> Option<String> {
    text.match_indices("**").find_map(|(at, stars)| {
        let (before, after) = (&text[..at], &text[at + stars.len()..]);
        if !(after.is_empty() || after.starts_with(['/', ',', '}'])) {
            return Some(format!("{before}**/*{}", after.trim_start_matches('*')));
        }
        let is_alone = before.is_empty() || before.ends_with(['/', ',', '{']);
        (!is_alone).then(|| format!("{before}*/**{after}"))
    })
}

/// Compiles a pattern. A pattern that begins with `/` is matched against the whole path; any other is matched against
/// the end of the path, from the start of a segment. `*` stays inside a segment, `**` stands for any number of segments.
pub fn glob(text: &str) -> Result<globset::Glob, String> {
    if text.is_empty() {
        return Err("it is empty".into());
    }
    if is_location(text) {
        return Err("a pattern is the end of a path, \"*.php\", or a whole path, \"/img/*.png\"; write regular expressions as 'rewrite'".into());
    }
    if let Some(better) = without_half_segments(text) {
        return Err(format!("'**' stands for whole segments; did you mean \"{better}\"?"));
    }
    let whole = if text.starts_with('/') {
        text.to_string()
    } else {
        format!("**/{text}")
    };
    GlobBuilder::new(&whole)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|error| error.kind().to_string())
}
