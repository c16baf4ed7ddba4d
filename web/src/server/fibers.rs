//! A page of all live fibers, and of the requests that wait without one, for those who run the program.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use osier::time::Stamp;

use crate::conn::serve::Local;
use crate::server::accept::on_worker;
use crate::{Phase, Request, Response};

/// The time within which the workers must name their requests at rest. Those of one that is stuck are left out, and of those behind it.
const PATIENCE: Duration = Duration::from_millis(500);

/// The requests of this runtime that wait without a fiber for a backend, or for what their handlers wait for. See [`at_rest`].
///
/// [`Display`](fmt::Display) writes a line about all of them, and one about each of the [`longest`](RequestsAtRest::longest). It writes nothing
/// if there are none.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RequestsAtRest {
    /// Their number.
    pub count: usize,
    /// The ones that wait longest, the longest first.
    pub longest: Vec<RequestAtRest>,
}

/// A request that waits without a fiber. [`Display`](fmt::Display) writes it in one line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestAtRest {
    /// Its method, its target and its client: `GET /report, 127.0.0.1:5312`.
    pub doing: String,
    /// The present part of its time.
    pub phase: Phase,
    /// The time for which it has had no fiber.
    pub waited: Duration,
}

/// Lists the requests of this runtime's servers that wait without a fiber: after a second in which a backend has sent nothing, for example. The
/// [dump](osier::dump()) counts their connections only. Streams of events are left out, and so are requests that wait for their client. `most`
/// is the most that are named. There are none outside of a runtime.
///
/// # Suspends
///
/// Until all workers have answered, for half a second at most.
pub fn at_rest(most: usize) -> RequestsAtRest {
    let mut all = RequestsAtRest::default();
    if osier::fiber::worker().is_none() {
        return all;
    }
    let asked: Vec<_> = (0..osier::workers())
        .map(|index| on_worker(index, "list requests", move || of_this_worker(most)))
        .collect();
    let _ = osier::timeout(PATIENCE, || {
        for of_worker in asked.into_iter().filter_map(|fiber| fiber.join().ok()) {
            all.count += of_worker.count;
            all.longest.extend(of_worker.longest);
        }
    });
    all.longest.sort_by_key(|request| Reverse(request.waited));
    all.longest.truncate(most);
    all
}

fn of_this_worker(most: usize) -> RequestsAtRest {
    let (mut all, now) = (RequestsAtRest::default(), Stamp::now());
    for local in Local::all_here() {
        let (count, first) = local.worker.resting.first(most);
        all.count += count;
        all.longest.extend(first.into_iter().map(|resting| RequestAtRest {
            doing: resting.doing,
            phase: resting.phase,
            waited: now.since(resting.since),
        }));
    }
    all
}

impl fmt::Display for RequestsAtRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count == 0 {
            return Ok(());
        }
        let many = if self.count == 1 { "request" } else { "requests" };
        let longest = self.longest.first().map_or(Duration::ZERO, |request| request.waited);
        writeln!(f, "{} {many} without a fiber, for up to {longest:.1?}", self.count)?;
        for request in &self.longest {
            writeln!(f, "  {request}")?;
        }
        match self.count.saturating_sub(self.longest.len()) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
}

impl fmt::Display for RequestAtRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (doing, waited) = (&self.doing, self.waited);
        write!(
            f,
            "request ({doing}) without a fiber for {waited:.1?}, in '{}'",
            self.phase.as_str()
        )
    }
}

/// Shows every fiber and task of the process: what it does, what it waits for, and where. The requests that wait without a fiber follow. A
/// handler to mount on a path that only operators reach; the page shows the targets of requests and source paths.
///
/// `?find=TEXT` shows only the fibers, tasks and requests whose lines contain the text. The page is plain text.
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
/// Until all workers have answered, for a second at most, and half a second more for the requests without a fiber.
pub fn page(request: &mut Request<'_>) -> Response {
    let find = request.query_param("find").unwrap_or_default();
    let mut text = String::new();
    let dump = osier::dump();
    let workers = dump.workers.iter().map(ToString::to_string);
    for whole in workers.chain([at_rest(usize::MAX).to_string()]) {
        if find.is_empty() {
            text.push_str(&whole);
            continue;
        }
        // The first line names the worker, or counts the requests. An entry begins with two spaces, and its frames with four.
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
