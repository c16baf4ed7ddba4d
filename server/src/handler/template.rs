//! The body of a `respond` route: a text in which names stand for fields of the request.
//!
//! | name | becomes |
//! |---|---|
//! | `$method`, `$host`, `$query` | as they were sent; the host without its port, the query without its question mark |
//! | `$path` | the decoded path, as routes compare it |
//! | `$client` | the address of the client, `unix` where it has none |
//! | `$user` | the user that `auth`, `jwt` or `forward_auth` has let in |
//! | `$header_NAME` | the first field of that name; `_` stands for `-` |
//!
//! A value from the client is escaped for the content type: HTML and JSON take it as text, never as markup. A missing
//! field is empty.

use osier_web::Request;

use crate::reader::nearest;
use crate::reader::template::{self, Part};

use super::without_port;

/// The fixed names. `header_NAME` is the only other form.
const NAMES: [&str; 6] = ["method", "host", "path", "query", "client", "user"];

/// A parsed body.
#[derive(Debug, Clone, PartialEq)]
pub struct Template(Vec<Part<Field>>);

/// A field of a request.
#[derive(Debug, Clone, PartialEq)]
enum Field {
    Method,
    Host,
    Path,
    Query,
    Client,
    User,
    Header(String),
}

/// How a value is escaped in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    Html,
    Json,
    /// No escaping.
    Not,
}

impl Template {
    /// Parses a body.
    ///
    /// # Errors
    /// An unknown name, or a lone `$`.
    pub fn parse(text: &str) -> Result<Template, String> {
        template::parse(text, Field::parse).map(Template)
    }

    /// A body in which `$` has no meaning.
    pub fn literal(text: String) -> Template {
        Template(vec![Part::Text(text)])
    }

    /// The text, if it has no names in it.
    pub fn fixed(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The body for a request, with escaped values.
    pub fn fill(&self, request: &Request<'_>, path: &[u8], escape: Escape) -> Vec<u8> {
        let mut body = Vec::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => body.extend_from_slice(text.as_bytes()),
                Part::Name(field) => field.write(request, path, |value| escape.write(value, &mut body)),
            }
        }
        body
    }
}

impl Field {
    fn parse(name: &str) -> Result<Field, String> {
        Ok(match name {
            "" => {
                return Err(
                    "a '$' that names no field; a dollar sign is written '$$$$' in a configuration file".into(),
                );
            }
            "method" => Field::Method,
            "host" => Field::Host,
            "path" => Field::Path,
            "query" => Field::Query,
            "client" => Field::Client,
            "user" => Field::User,
            _ => match name.strip_prefix("header_") {
                Some(header) if !header.is_empty() => Field::Header(header.replace('_', "-")),
                _ => {
                    let guess = nearest(name, NAMES.into_iter());
                    let guess = guess.map_or(String::new(), |guess| format!("; did you mean '${guess}'?"));
                    let known = NAMES.join(", $");
                    return Err(format!(
                        "'${name}' is unknown; there are ${known} and $header_NAME{guess}"
                    ));
                }
            },
        })
    }

    /// Passes the value of the field to `write`.
    fn write(&self, request: &Request<'_>, path: &[u8], write: impl FnOnce(&[u8])) {
        match self {
            Field::Method => write(request.method().as_bytes()),
            Field::Host => write(request.host().map_or("", without_port).as_bytes()),
            Field::Path => write(path),
            Field::Query => write(request.query().unwrap_or_default().as_bytes()),
            Field::Client => match request.client_ip() {
                Some(ip) => write(ip.to_canonical().to_string().as_bytes()),
                None => write(b"unix"),
            },
            Field::User => write(request.user().unwrap_or_default().as_bytes()),
            Field::Header(name) => write(request.header(name).unwrap_or_default()),
        }
    }
}

/// Whether a media type is that of a script. No escaping makes a value safe in all places of a script.
pub fn is_script(content_type: &str) -> bool {
    let essence = essence(content_type);
    let subtype = essence.split_once('/').map_or("", |(_, subtype)| subtype);
    subtype.contains("javascript") || subtype.contains("ecmascript") || matches!(subtype, "jscript" | "livescript")
}

/// The type and the subtype in lower case. They end where browsers take them to end, even if the `;` of a parameter is
/// missing.
fn essence(content_type: &str) -> String {
    let essence = content_type.trim_start().split([';', ' ', ',', '(']).next();
    essence.unwrap_or_default().to_ascii_lowercase()
}

impl Escape {
    /// The escaping for a media type.
    pub fn of(content_type: &str) -> Escape {
        let essence = essence(content_type);
        match essence.as_str() {
            // Browsers parse all of these as markup, and run scripts in some.
            "text/html" | "text/xml" | "application/xml" | "text/xsl" => Escape::Html,
            xml if xml.ends_with("+xml") => Escape::Html,
            "application/json" | "text/json" => Escape::Json,
            json if json.ends_with("+json") => Escape::Json,
            _ => Escape::Not,
        }
    }

    fn write(self, value: &[u8], body: &mut Vec<u8>) {
        match self {
            Escape::Not => body.extend_from_slice(value),
            Escape::Html => {
                for &byte in value {
                    match byte {
                        b'&' => body.extend_from_slice(b"&amp;"),
                        b'<' => body.extend_from_slice(b"&lt;"),
                        b'>' => body.extend_from_slice(b"&gt;"),
                        b'"' => body.extend_from_slice(b"&quot;"),
                        b'\'' => body.extend_from_slice(b"&#39;"),
                        _ => body.push(byte),
                    }
                }
            }
            Escape::Json => {
                let quoted = serde_json::Value::from(String::from_utf8_lossy(value)).to_string();
                body.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(escape: Escape, value: &[u8]) -> String {
        let mut body = Vec::new();
        escape.write(value, &mut body);
        String::from_utf8(body).unwrap()
    }

    #[test]
    fn values_are_text_and_never_markup() {
        let hostile = b"<b a=\"1\" c='2'>&\n";
        assert_eq!(
            escaped(Escape::Html, hostile),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;\n"
        );
        assert_eq!(escaped(Escape::Json, hostile), r#"<b a=\"1\" c='2'>&\n"#);
        assert_eq!(escaped(Escape::Json, b"\xff"), "\u{fffd}");
        assert_eq!(escaped(Escape::Not, hostile).as_bytes(), hostile);
        for (kind, escape) in [
            ("text/html", Escape::Html),
            ("TEXT/HTML ; charset=utf-8", Escape::Html),
            ("text/html charset=utf-8", Escape::Html),
            ("image/svg+xml", Escape::Html),
            ("application/mathml+xml", Escape::Html),
            ("application/RSS+XML; charset=utf-8", Escape::Html),
            ("application/atom+xml", Escape::Html),
            ("text/xsl", Escape::Html),
            ("application/problem+json", Escape::Json),
            ("text/json", Escape::Json),
            ("text/plain", Escape::Not),
        ] {
            assert_eq!(Escape::of(kind), escape, "{kind}");
        }
        for (kind, expected) in [
            ("text/javascript; charset=utf-8", true),
            ("application/x-javascript", true),
            ("text/ecmascript", true),
            ("application/json", false),
            ("text/plain", false),
        ] {
            assert_eq!(is_script(kind), expected, "{kind}");
        }
    }

    #[test]
    fn names_are_known_or_mistakes() {
        for fixed in ["", "text", "100 %"] {
            assert_eq!(Template::parse(fixed).unwrap().fixed(), Some(fixed));
        }
        assert_eq!(Template::parse("$$5").unwrap().fixed(), Some("$5"));
        assert!(Template::parse("${path}$header_user_agent").unwrap().fixed().is_none());
        for (text, part) in [
            ("$5", "'$5' is unknown"),
            ("a $ b", "a dollar sign is written '$$$$'"),
            ("$pth", "did you mean '$path'?"),
            ("$header_", "$header_NAME"),
            ("${path", "'${' without its '}'"),
        ] {
            let why = Template::parse(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
