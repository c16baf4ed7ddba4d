//! `headers`: fields of every answer of a route. First those that are to go are taken away, then those that are set replace what is there; several settings of
//! one name stay beside each other (two `Set-Cookie`, for example).

use osier_web::Response;

/// What is done to the fields of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Name and value.
    pub set: Vec<(String, String)>,
    /// Names.
    pub remove: Vec<String>,
}

impl Headers {
    /// Changes one answer.
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
}
