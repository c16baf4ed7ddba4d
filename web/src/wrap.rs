//! Ready-made functions for [`Router::wrap`](crate::Router::wrap): one adds a request id, one adds
//! header fields to responses.

use crate::{Next, Request, Response};

/// Sends the [request id](Request::id) in the field `name`, so that a client can quote it and the
/// log line can be found.
///
/// ```
/// use osier_web::{Router, test::Client, wrap};
///
/// let router = Router::new().get("/", |_| "hello\n").wrap(wrap::request_id("x-request-id"));
/// let reply = Client::new(router).get("/").send();
/// assert_eq!(reply.header("x-request-id").map(str::len), Some(16));
/// ```
pub fn request_id(name: &'static str) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    move |request, next| {
        let id = request.id();
        next.run(request).header(name, id.to_string())
    }
}

/// Adds each of `fields` to every response that lacks it.
///
/// ```
/// use osier_web::{Router, test::Client, wrap};
///
/// let router = Router::new().get("/", |_| "hello\n").wrap(wrap::headers([("x-content-type-options", "nosniff")]));
/// let client = Client::new(router);
/// assert_eq!(client.get("/").send().header("x-content-type-options"), Some("nosniff"));
/// assert_eq!(client.get("/none").send().header("x-content-type-options"), Some("nosniff"));
/// ```
pub fn headers<const N: usize>(
    fields: [(&'static str, &'static str); N],
) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    move |request, next| {
        fields.iter().fold(next.run(request), |response, (name, value)| {
            match response.lookup(name) {
                Some(_) => response,
                None => response.header(name, value),
            }
        })
    }
}
