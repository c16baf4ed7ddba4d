//! A page of all live fibers, for those who run the program.

use http::StatusCode;

use crate::{Request, Response};

/// Shows every fiber and task of the process: what it does, what it waits for, and where. A handler to
/// mount on a path that only operators reach; the page shows the targets of requests and source paths.
///
/// `?find=TEXT` shows only the fibers and tasks whose lines contain the text. The page is plain text.
///
/// ```
/// use osier_web::{Router, fibers, test::Client, wrap};
///
/// let admin = Router::new()
///     .get("/fibers", fibers::page)
///     .wrap(wrap::basic_auth("admin", |_, password| wrap::same_secret(password, "osier")));
/// let client = Client::new(Router::new().nest("/admin", admin));
/// assert_eq!(client.get("/admin/fibers").send().status(), 401);
/// ```
///
/// # Suspends
///
/// Until all workers have answered, for a second at most.
pub fn page(request: &mut Request<'_>) -> Response {
    let find = request.query_param("find").unwrap_or_default();
    let mut text = String::new();
    for worker in &osier::dump().workers {
        let whole = worker.to_string();
        if find.is_empty() {
            text.push_str(&whole);
            continue;
        }
        // The first line names the worker. An entry begins with two spaces, and its frames with four.
        let mut shown = true;
        for (number, line) in whole.lines().enumerate() {
            let is_entry = line.starts_with("  ") && !line.starts_with("    ");
            if is_entry {
                shown = line.contains(&*find);
            }
            if shown || number == 0 {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    Response::new(StatusCode::OK)
        .content_type("text/plain; charset=utf-8")
        .header("cache-control", "no-store")
        .body(text)
}
