//! JSON: the body of a request as a value, and a value as a response.

use http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::request::extract::IN_MEMORY;
use crate::{IntoResponse, Rejection, Request, Response};

/// Deepest nesting of a JSON document that is read. The parser recurses on the fiber's stack. In a
/// debug build, 64 levels take a third of it.
pub(crate) const JSON_DEPTH: usize = 64;

impl Request<'_> {
    /// Reads the body as JSON (`application/json`, or a type that ends in `+json`) of at most 2
    /// MiB. [`json_up_to`](Request::json_up_to) takes another limit.
    ///
    /// ```
    /// use osier_web::{Json, Rejection, Request, Router, test::Client};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Point { x: i32, y: i32 }
    ///
    /// fn mirror(request: &mut Request<'_>) -> Result<Json<Point>, Rejection> {
    ///     let Point { x, y } = request.json()?;
    ///     Ok(Json(Point { x: -x, y }))
    /// }
    ///
    /// let client = Client::new(Router::new().post("/mirror", mirror));
    /// assert_eq!(client.post("/mirror").json(&Point { x: 1, y: 2 }).send().text(), r#"{"x":-1,"y":2}"#);
    /// let reply = client.post("/mirror").header("content-type", "application/json").body("{\n\"x\": }").send();
    /// assert_eq!(reply.status(), 400);
    /// assert_eq!(reply.text(), "the body is not JSON: expected value at line 2 column 6\n");
    /// ```
    ///
    /// # Suspends
    ///
    /// May suspend until the body has arrived.
    ///
    /// # Errors
    ///
    /// - 415 for another content type.
    /// - 413 for a larger body.
    /// - 400, with line and column, if the body is not JSON or nests deeper than 64 levels; the latter is a line in the log, too.
    /// - 422, with line and column, for JSON that does not fit the type.
    /// - 500 with a log line if the body has been read before.
    pub fn json<T: DeserializeOwned>(&mut self) -> Result<T, Rejection> {
        self.json_up_to(IN_MEMORY)
    }

    /// Reads the body as [`json`](Request::json) does, of at most `limit` bytes. The limit of the
    /// route, or else of the server, still applies. For more than 2 MiB, set both.
    ///
    /// ```
    /// use osier_web::{Rejection, Request, Route, Router, test::Client};
    ///
    /// const MOST: u64 = 16 << 20;
    ///
    /// fn import(request: &mut Request<'_>) -> Result<String, Rejection> {
    ///     let names: Vec<String> = request.json_up_to(MOST)?;
    ///     Ok(format!("{} names", names.len()))
    /// }
    ///
    /// let router = Router::new().route("/import", Route::new().post(import).body_limit(MOST));
    /// let names = vec!["willow"; 1 << 19];
    /// assert_eq!(Client::new(router).post("/import").json(&names).send().text(), "524288 names");
    /// ```
    ///
    /// # Suspends
    ///
    /// May suspend until the body has arrived.
    ///
    /// # Errors
    ///
    /// As [`json`](Request::json).
    pub fn json_up_to<T: DeserializeOwned>(&mut self, limit: u64) -> Result<T, Rejection> {
        let is_json = self.media_type().is_some_and(|kind| {
            let kind = kind.to_ascii_lowercase();
            kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
        });
        if !is_json {
            let what = "the content type must be application/json";
            return Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
        }
        let bytes = self.unread_bytes(limit)?;
        if let Some((line, column)) = too_deep(&bytes, JSON_DEPTH) {
            let text = format!("the body nests deeper than {JSON_DEPTH} levels at line {line} column {column}");
            return Err(Rejection::beyond(StatusCode::BAD_REQUEST, text));
        }
        serde_json::from_slice(&bytes).map_err(|error| match error.classify() {
            Category::Data => Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the JSON: {error}")),
            _ => Rejection::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")),
        })
    }
}

/// Returns line and column at which a document nests deeper than `most`.
pub(crate) fn too_deep(bytes: &[u8], most: usize) -> Option<(usize, usize)> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > most {
            let before = &bytes[..at];
            let lines = before.iter().filter(|byte| **byte == b'\n').count();
            let line_at = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |lf| lf + 1);
            return Some((lines + 1, at - line_at + 1));
        }
    }
    None
}

/// A value as a JSON response. [`Request::json`](crate::Request::json) reads one.
///
/// ```
/// use osier_web::{Json, Router, test::Client};
///
/// let router = Router::new().get("/", |_| Json(serde_json::json!({ "green": true })));
/// assert_eq!(Client::new(router).get("/").send().text(), r#"{"green":true}"#);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(
    /// Value that is serialized.
    pub T,
);

/// Responds with 200. A value that cannot be serialized (a map whose keys are not strings, for
/// example) gives a 500 with a log line.
impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => Response::new(StatusCode::OK)
                .content_type("application/json")
                .body(bytes),
            Err(error) => Response::internal_error(error),
        }
    }
}
