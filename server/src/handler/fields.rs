//! `request_headers`: sets and removes fields of the requests that a gateway gets.
//!
//! The fields change for the cache and the gateway behind it alone. Everything around them, such as the compression of the
//! response, CORS and the logs, sees what the client has sent.

use std::sync::Arc;

use osier_web::http::StatusCode;
use osier_web::upstream::Upstream;
use osier_web::{Answer, Request, Response};
use toml::de::DeValue;

use crate::policy::path;
use crate::reader::value::token;
use crate::reader::{At, Section};

use super::Handler;
use super::template::{Escape, Template};

/// Fields that a gateway writes itself, or that end at this server. [`Request::check_header`] knows the others: fields that
/// frame a message.
const OURS: [&str; 12] = [
    "forwarded",
    "http2-settings",
    "proxy",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

/// Changes to the fields of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestHeaders(Vec<Change>);

/// The change of the fields of one name.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    name: String,
    /// The values to set. Empty for a field to remove.
    values: Vec<Template>,
}

/// It stands for its name.
impl AsRef<str> for Change {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// A handler that gets requests with changed fields.
pub struct Changed {
    /// Shared with requests whose body is being received.
    changes: Arc<RequestHeaders>,
    handler: Arc<dyn Handler>,
}

impl RequestHeaders {
    /// Reads the table. A string sets a field, a list sets several of one name, `false` removes it.
    pub fn read(section: Section<'_>) -> RequestHeaders {
        let items = section.items();
        let changes = items.into_iter().filter_map(|(name, value)| {
            if let Err(error) = check_name(&name.value) {
                section.source().problem(&name.span, error);
                return None;
            }
            let key = name.value.escape_debug().to_string();
            let wanted = "a string, a list of strings, or false";
            let parsed = |text: At<String>| Some(section.understand(&key, text, template)?.value);
            let values = match value.get_ref() {
                DeValue::Boolean(false) => Vec::new(),
                DeValue::Array(list) if list.is_empty() => {
                    section.mistyped(&key, value, wanted);
                    return None;
                }
                DeValue::Array(list) => {
                    let texts = list.iter().map(|item| section.as_string(&key, item, wanted));
                    texts.map(|text| text.and_then(parsed)).collect::<Option<_>>()?
                }
                _ => vec![section.as_string(&key, value, wanted).and_then(parsed)?],
            };
            Some(Change {
                name: name.value,
                values,
            })
        });
        RequestHeaders(changes.collect())
    }

    /// These changes together with those of `site`. For a field that both name, only these count.
    pub fn over(&self, site: &RequestHeaders) -> RequestHeaders {
        let is_free = |change: &&Change| !self.0.iter().any(|ours| plain(&ours.name) == plain(&change.name));
        RequestHeaders(site.0.iter().filter(is_free).chain(&self.0).cloned().collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The fields that a request gets. A field is left out if the client has sent nothing of what its value names.
    fn added(&self, request: &Request<'_>, path: &[u8]) -> Vec<(&str, Vec<u8>)> {
        let mut added = Vec::new();
        for Change { name, values } in &self.0 {
            for value in values {
                let value = value.fill(request, path, Escape::Not);
                let value = value.trim_ascii();
                if !value.is_empty() {
                    added.push((name.as_str(), value.to_vec()));
                }
            }
        }
        added
    }

    /// Calls `run` with the changed fields.
    fn apply<T: From<Response>>(
        &self,
        request: &mut Request<'_>,
        path: &[u8],
        run: impl FnOnce(&mut Request<'_>) -> T,
    ) -> T {
        let added = self.added(request, path);
        // Only what the client has sent can be wrong.
        let refuse = |error| Response::plain(StatusCode::BAD_REQUEST).because(error).into();
        request.with_headers(&self.0, added, run).unwrap_or_else(refuse)
    }
}

impl Changed {
    pub fn new(changes: RequestHeaders, handler: Arc<dyn Handler>) -> Changed {
        Changed {
            changes: Arc::new(changes),
            handler,
        }
    }
}

impl Handler for Changed {
    fn answer(&self, request: &mut Request<'_>, path: &[u8]) -> Response {
        let answer = |request: &mut Request<'_>| self.handler.answer(request, path);
        self.changes.apply(request, path, answer)
    }

    /// The fields change while the handler is called, and again each time that it goes on after a wait.
    fn answer_after_body(&self, request: &mut Request<'_>, path: &[u8]) -> Answer {
        let answer = |request: &mut Request<'_>| self.handler.answer_after_body(request, path);
        let answer = self.changes.apply(request, path, answer);
        let changes = Arc::clone(&self.changes);
        answer.around(move |request, respond| {
            // The site has read the path before, so this cannot fail.
            let path = path::text(request.path());
            changes.apply(request, path.as_deref().unwrap_or(b"/"), respond)
        })
    }

    fn methods(&self) -> &'static str {
        self.handler.methods()
    }

    fn upstream(&self) -> Option<&Upstream> {
        self.handler.upstream()
    }
}

/// Checks the name of a field.
fn check_name(name: &str) -> Result<(), String> {
    if token(name).is_err() {
        return Err(format!(
            "'{}' is not a field name; write letters, digits and '-', \"X-Env\" for example",
            name.escape_debug()
        ));
    }
    let why = match plain(name).as_str() {
        "host" => "it is 'host' of 'proxy', and 'server_name' of 'fastcgi'",
        "forwarded" | "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-proto" => {
            "'forwarded' and 'trust' of 'proxy' write it, and 'https' of 'fastcgi' says that clients use https"
        }
        plain if OURS.contains(&plain) || Request::check_header(name).is_err() => {
            "it belongs to the connection, so the server writes it; remove this key"
        }
        _ => return Ok(()),
    };
    Err(format!("'{name}' cannot be changed by 'request_headers': {why}"))
}

/// Parses a value.
fn template(text: &str) -> Result<Template, String> {
    let text = text.trim_matches([' ', '\t']);
    if text.is_empty() {
        return Err("it is empty; write false to remove the field".into());
    }
    if text.chars().any(|char| char.is_control() && char != '\t') {
        return Err("a value has no control characters; write it on one line".into());
    }
    // The unknown name may be the rest of a password.
    let why = "a '$' begins $method, $host, $path, $query, $client, $user or $header_NAME; a dollar sign is written '$$$$' in a configuration file";
    Template::parse(text).map_err(|_| why.into())
}

/// A name as every reader compares it: case does not matter, and a CGI program reads `-` as `_`.
fn plain(name: &str) -> String {
    name.replace('_', "-").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(list: &[(&str, &[&str])]) -> RequestHeaders {
        let change = |(name, values): &(&str, &[&str])| Change {
            name: (*name).into(),
            values: values.iter().map(|value| template(value).unwrap()).collect(),
        };
        RequestHeaders(list.iter().map(change).collect())
    }

    #[test]
    fn a_route_replaces_the_fields_of_its_site_in_any_spelling() {
        let site = changes(&[("X-A", &["1"]), ("X-B", &["1"]), ("X-C", &[])]);
        let route = changes(&[("x_a", &[]), ("X-C", &["$client", "2"])]);
        let both = changes(&[("X-B", &["1"]), ("x_a", &[]), ("X-C", &["$client", "2"])]);
        assert_eq!(route.over(&site), both);
        assert_eq!(RequestHeaders::default().over(&site), site);
        assert!(RequestHeaders::default().over(&RequestHeaders::default()).is_empty());
    }

    #[test]
    fn names_of_the_connection_and_of_the_server_are_refused_in_any_spelling() {
        let framing = [
            "content-length",
            "connection",
            "expect",
            "keep-alive",
            "upgrade",
            "host",
        ];
        for name in OURS.iter().chain(&framing) {
            for name in [(*name).to_owned(), name.to_uppercase(), name.replace('-', "_")] {
                let error = check_name(&name).unwrap_err();
                assert!(error.starts_with(&format!("'{name}' cannot be changed")), "{error}");
            }
        }
        for name in ["X-Real-IP", "x_env", "X-Forwarded-User", "Cookie", "Range"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "X Env", "X:", "\u{e4}"] {
            assert!(check_name(name).unwrap_err().contains("is not a field name"), "{name}");
        }
    }

    #[test]
    fn a_value_is_one_line_and_not_empty() {
        for (text, part) in [
            ("", "write false"),
            (" \t", "write false"),
            ("a\nb", "one line"),
            ("$", "$$$$"),
        ] {
            assert!(template(text).unwrap_err().contains(part), "{text:?}");
        }
        assert_eq!(template(" \u{e4}\tb ").unwrap().fixed(), Some("\u{e4}\tb"));
    }
}
