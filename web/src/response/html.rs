//! HTML: a text as a response.

use http::StatusCode;

use crate::{Body, IntoResponse, Response};

/// Text as an HTML response: `text/html; charset=utf-8`. It is sent as it is, so values of clients in it must be escaped.
///
/// ```
/// use osier_web::{Html, Router, test::Client};
///
/// let router = Router::new().get("/", |_| Html("<h1>Hello</h1>\n"));
/// let reply = Client::new(router).get("/").send();
/// assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
/// assert_eq!(reply.text(), "<h1>Hello</h1>\n");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Html<T>(
    /// The text.
    pub T,
);

/// Responds with 200.
impl<T: Into<Body>> IntoResponse for Html<T> {
    fn into_response(self) -> Response {
        Response::new(StatusCode::OK)
            .content_type("text/html; charset=utf-8")
            .body(self.0)
    }
}

impl<T> From<T> for Html<T> {
    fn from(text: T) -> Html<T> {
        Html(text)
    }
}
