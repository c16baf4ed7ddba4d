//! `headers`: changes header fields of every response of a route. Fields to remove are removed first. Then each name
//! that is set replaces the fields of that name. A name may be set several times, for two `Set-Cookie` for example.

use std::str::FromStr;

use osier_web::Response;

/// Changes to the header fields of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Names and values to set.
    pub set: Vec<(String, String)>,
    /// Names to remove.
    pub remove: Vec<String>,
}

impl Headers {
    /// These changes together with those of `site`. For a field that both name, only these count.
    pub fn over(&self, site: &Headers) -> Headers {
        let is_free = |name: &str| {
            let mut ours = self.set.iter().map(|(name, _)| name).chain(&self.remove);
            !ours.any(|ours| ours.eq_ignore_ascii_case(name))
        };
        let set = site.set.iter().filter(|(name, _)| is_free(name));
        let remove = site.remove.iter().filter(|name| is_free(name));
        Headers {
            set: set.chain(&self.set).cloned().collect(),
            remove: remove.chain(&self.remove).cloned().collect(),
        }
    }

    /// Changes one response.
    pub fn apply(&self, mut response: Response) -> Response {
        for name in self.remove.iter().chain(self.set.iter().map(|(name, _)| name)) {
            response = response.remove(name);
        }
        for (name, value) in &self.set {
            response = response.header(name, value);
        }
        response
    }
}

/// A header field from a user, checked so that it can be sent as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Field name, a token.
    pub name: String,
    /// Field value: visible characters, spaces and tabs.
    pub value: String,
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Field, String> {
        let (name, value) = text.split_once(':').ok_or("write it as 'Name: value'")?;
        let value = value.trim_matches([' ', '\t']);
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(token) {
            let name = name.escape_debug();
            return Err(format!(
                "'{name}' is not a field name; write letters, digits and '-', \"X-Env\" for example"
            ));
        }
        if value.chars().any(|char| char.is_control() && char != '\t') {
            return Err(format!(
                "the value of '{name}' has control characters; write it on one line, without them"
            ));
        }
        if OURS.iter().any(|ours| ours.eq_ignore_ascii_case(name)) {
            let instead = match name.eq_ignore_ascii_case("content-type") {
                true => "; 'types' sets it for files, and 'content_type' for 'respond'",
                false => "",
            };
            return Err(format!(
                "{name} is computed for each response and cannot be set{instead}"
            ));
        }
        Ok(Field {
            name: name.into(),
            value: value.into(),
        })
    }
}

/// Header fields that the server computes for each response. A fixed value would be wrong, or would break the framing.
const OURS: [&str; 17] = [
    "Accept-Ranges",
    "Allow",
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-Range",
    "Content-Type",
    "Date",
    "ETag",
    "Keep-Alive",
    "Last-Modified",
    "Location",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
];

#[cfg(test)]
mod tests {
    use super::*;
    use osier_web::http::StatusCode;

    #[test]
    fn fields_are_taken_away_replaced_and_added() {
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let headers = Headers {
            set: [
                ("X-Frame-Options", "DENY"),
                ("Link", "</a>"),
                ("link", "</b>"),
                ("Content-Type", "text/css"),
            ]
            .map(pair)
            .into(),
            remove: vec!["X-Powered-By".into(), "absent".into()],
        };
        let response = Response::new(StatusCode::OK)
            .header("x-powered-by", "PHP/8")
            .header("x-frame-options", "ALLOWALL")
            .header("etag", "\"1\"")
            .body("x");
        let response = headers.apply(response);
        let field = |name| {
            response
                .lookup(name)
                .map(|value| String::from_utf8(value.to_vec()).unwrap())
        };
        assert_eq!(field("x-powered-by"), None);
        assert_eq!(field("x-frame-options").as_deref(), Some("DENY"));
        assert_eq!(field("etag").as_deref(), Some("\"1\""));
        assert_eq!(field("content-type").as_deref(), Some("text/css"));
        assert_eq!(field("link").as_deref(), Some("</a>"));
        let fields = format!("{response:?}");
        assert!(
            fields.contains(r#"["etag", "X-Frame-Options", "Link", "link", "Content-Type"]"#),
            "{fields}"
        );
    }

    #[test]
    fn fields() {
        let field = |text: &str| text.parse::<Field>();
        assert_eq!(
            field("X-A:  b c ").unwrap(),
            Field {
                name: "X-A".into(),
                value: "b c".into()
            }
        );
        assert_eq!(field("Empty:").unwrap().value, "");
        assert_eq!(field("Link: <a:b>").unwrap().value, "<a:b>");
        for text in [
            "",
            "X",
            ":v",
            "a b: c",
            "x : y",
            "é: y",
            "X: a\r\nY: b",
            "X: \0",
            "content-length: 5",
            "Date: x",
        ] {
            assert!(field(text).is_err(), "{text:?}");
        }
    }
}
