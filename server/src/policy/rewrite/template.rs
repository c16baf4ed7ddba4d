//! Texts with captures in them, such as `/articles/$1?lang=${lang}`. A text is parsed once, for the pattern with these
//! captures.

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode};
use regex::bytes::{Captures, Regex};

use crate::policy::authority;
use crate::policy::path::encoding;
use crate::reader::template;

/// Bytes of a capture that are encoded in a path: all except unreserved characters (RFC 3986) and slashes. Dots are not
/// encoded: a path has no dot segments, and [`tidy`] removes one that two adjacent captures make.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');
/// Bytes of a capture that are encoded in a query.
const QUERY: &AsciiSet = &PATH.add(b'/');
/// Bytes of a rule's own text, or of the request's query, that must be encoded in any URL.
const URL: &AsciiSet = &encoding(CONTROLS, b" \"<>\\^`{|}#");

/// A piece of a text. A name is the index of a capture.
pub type Part = template::Part<usize>;

/// Parses a text.
///
/// # Errors
///
/// A capture that the pattern does not have, or a lone dollar sign.
pub fn parse(text: &str, pattern: &Regex) -> Result<Vec<Part>, String> {
    template::parse(text, |name| capture(name, pattern))
}

/// The index of a capture, by number or name.
pub fn capture(name: &str, pattern: &Regex) -> Result<usize, String> {
    if name.is_empty() {
        return Err("a '$' that names no capture; a dollar sign is written '$$$$' in a configuration file".into());
    }
    let index = match name.parse() {
        Ok(number) => Some(number).filter(|number| *number < pattern.captures_len()),
        Err(_) => pattern.capture_names().position(|known| known == Some(name)),
    };
    index.ok_or_else(|| {
        let (groups, pattern) = (pattern.captures_len() - 1, pattern.as_str());
        let s = if groups == 1 { "" } else { "s" };
        format!("'${name}' is not captured: the pattern {pattern:?} has {groups} group{s}, and none of that name")
    })
}

/// Fills in captures as they are. A group that did not match is empty.
pub fn fill_raw(parts: &[Part], captures: &Captures<'_>) -> Vec<u8> {
    let mut filled = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) => filled.extend_from_slice(text.as_bytes()),
            Part::Name(index) => filled.extend_from_slice(captured(captures, *index)),
        }
    }
    filled
}

/// Fills in decoded captures to make a file name. None if a capture holds an encoded slash, which no file name can
/// hold.
pub fn fill_name(parts: &[Part], captures: &Captures<'_>) -> Option<Vec<u8>> {
    let mut filled = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) => filled.extend_from_slice(text.as_bytes()),
            Part::Name(index) => {
                let captured = captured(captures, *index);
                if captured.windows(3).any(|escape| escape == b"%2F") {
                    return None;
                }
                filled.extend(percent_encoding::percent_decode(captured));
            }
        }
    }
    Some(filled)
}

/// The text of a capture. Empty for a group that did not match.
pub fn captured<'h>(captures: &Captures<'h>, index: usize) -> &'h [u8] {
    captures.get(index).map_or(&[], |found| found.as_bytes())
}

/// A path and a query, perhaps with scheme and host.
#[derive(Debug)]
pub struct Url {
    /// Scheme and host, without captures. Empty for a path.
    origin: String,
    path: Vec<Part>,
    query: Option<Vec<Part>>,
}

impl Url {
    /// Parses the target of a rule.
    ///
    /// # Errors
    ///
    /// When the target could become something else than a path, or name another host than the rule's.
    pub fn parse(text: &str, pattern: &Regex, redirect: bool) -> Result<Url, String> {
        if text.contains(|c: char| c.is_control() || c == ' ' || c == '#' || c == '\\') {
            return Err(format!(
                "{text:?} holds a space, a backslash, a '#' or a control character; write %20 for a space"
            ));
        }
        let scheme = ["https://", "http://"]
            .into_iter()
            .find(|scheme| text.starts_with(scheme));
        let (origin, rest) = match scheme {
            Some(scheme) if redirect => split_origin(text, scheme)?,
            _ if text.starts_with('/') && !text.starts_with("//") => (String::new(), text.to_owned()),
            _ if redirect => {
                return Err(format!(
                    "{text:?} must begin with one '/', with https:// or with http://"
                ));
            }
            _ => {
                return Err(format!(
                    "{text:?} must begin with one '/'; another server is reached by a redirect or a proxy"
                ));
            }
        };
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest.as_str(), None),
        };
        let read = |text: &str| -> Result<Vec<Part>, String> {
            let encode = |part| match part {
                Part::Text(text) => Part::Text(percent_encode(text.as_bytes(), URL).to_string()),
                capture => capture,
            };
            Ok(parse(text, pattern)?.into_iter().map(encode).collect())
        };
        Ok(Url {
            origin,
            path: read(path)?,
            query: query.map(read).transpose()?,
        })
    }

    /// The path with the same text in place of each capture.
    pub fn path_of(&self, sample: &str) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Name(_) => sample.to_owned(),
        };
        tidy(&self.path.iter().map(text).collect::<String>())
    }

    /// Fills in the captures. `kept` is the request's own query, which is appended.
    pub fn fill(&self, captures: &Captures<'_>, kept: Option<&str>) -> String {
        let mut path = String::new();
        fill(&mut path, &self.path, captures, PATH);
        // A path "//host" would name another server, and so might one with dot segments that a browser resolves.
        let path = tidy(&path);
        let mut url = format!("{}{path}", self.origin);
        let mut separator = '?';
        if let Some(query) = &self.query
            && !query.is_empty()
        {
            url.push(separator);
            separator = '&';
            fill(&mut url, query, captures, QUERY);
        }
        if let Some(kept) = kept
            && !kept.is_empty()
        {
            url.push(separator);
            url.extend(percent_encode(kept.as_bytes(), URL));
        }
        url
    }
}

/// Splits a URL that begins with `scheme` into its origin and its path with the query.
///
/// # Errors
///
/// When the host is missing, is no host, or holds a capture.
fn split_origin(text: &str, scheme: &str) -> Result<(String, String), String> {
    let host = &text[scheme.len()..];
    let end = host.find(['/', '?']).unwrap_or(host.len());
    let (host, rest) = host.split_at(end);
    if host.is_empty() || host.contains(['$', '@']) {
        return Err(format!(
            "the host of {text:?} must be there and hold no capture and no '@': write a '/' before the first capture"
        ));
    }
    let remedy = match host.is_ascii() {
        true => "write a name or an address, \"https://example.org/\" for example",
        false => "write its ASCII form, \"xn--…\"",
    };
    let no_host = format!("'{host}' is not a host: {remedy}");
    authority::check(host).map_err(|mistake| mistake.text(&no_host))?;
    let slash = if rest.starts_with('/') { "" } else { "/" };
    Ok((format!("{scheme}{host}"), format!("{slash}{rest}")))
}

/// Appends a text with its captures, which are percent-encoded by `set`.
fn fill(into: &mut String, parts: &[Part], captures: &Captures<'_>, set: &'static AsciiSet) {
    for part in parts {
        match part {
            Part::Text(text) => into.push_str(text),
            Part::Name(index) => push_encoded(into, captured(captures, *index), set),
        }
    }
}

/// Appends a capture. The escapes `%2F` and `%25` of a path's text stay as they are.
fn push_encoded(into: &mut String, captured: &[u8], set: &'static AsciiSet) {
    for (index, part) in captured.split(|&byte| byte == b'%').enumerate() {
        if index > 0 {
            into.push_str(match part {
                [b'2', b'F' | b'5', ..] => "%",
                _ => "%25",
            });
        }
        into.extend(percent_encode(part, set));
    }
}

/// Makes a path with one leading slash and without dot segments.
fn tidy(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.trim_start_matches('/').split('/') {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(segment),
        }
    }
    // An empty segment may be the first one, after dot segments have removed those before it.
    format!("/{}", kept.join("/").trim_start_matches('/'))
}
