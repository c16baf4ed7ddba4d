//! `/fibers`: the fibers of the process, grouped by the place where they wait, with one backtrace for each place, and the requests that wait
//! without a fiber.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use osier::inspect::{Dump, DumpedFiber, StackFrame};
use osier::memory;
use osier_web::Response;
use osier_web::http::StatusCode;

/// The most fibers that are listed for each place.
const NAMED: usize = 3;

/// The most requests without a fiber that are listed.
const AT_REST: usize = 20;

/// The memory that the names of functions take while a dump is made, from the program's compressed debug information.
const NAMES: usize = 96 << 20;

/// Whether a dump is being made.
static IS_DUMPING: AtomicBool = AtomicBool::new(false);

/// The page with all fibers and the requests that have none, on the admin listener and in the welcome pages. Only one dump is made at a time, because
/// looking up function names takes a while.
///
/// A dump that would bring the process near its limit of memory is refused.
///
/// # Suspends
/// Until all workers have answered, for a second at most, and half a second more for the requests; then until the memory of the names is
/// given back.
pub fn page() -> Response {
    let is_short = memory::limit().is_some_and(|limit| limit.saturating_sub(memory::held()) < NAMES);
    if is_short {
        return later(
            "the names of the fibers' functions take up to 96 MiB for some seconds, and 'memory' leaves less: raise it, or try again when less is in use\n",
        );
    }
    let Some(_exclusive) = Exclusive::take(&IS_DUMPING) else {
        return later("another dump of the fibers is running; try again\n");
    };
    let text = by_place(&osier::dump()) + &osier_web::fibers::at_rest(AT_REST).to_string();
    // The allocator would keep what the names have taken.
    memory::trim();
    Response::new(StatusCode::OK)
        .content_type("text/plain; charset=utf-8")
        .header("cache-control", "no-store")
        .body(text)
}

/// The response to a request that may be sent again later.
pub fn later(why: &'static str) -> Response {
    Response::new(StatusCode::SERVICE_UNAVAILABLE)
        .header("retry-after", "1")
        .body(why)
}

/// The right to do something that only one request may do at a time.
pub struct Exclusive<'a>(&'a AtomicBool);

impl Exclusive<'_> {
    pub fn take(taken: &AtomicBool) -> Option<Exclusive<'_>> {
        (!taken.swap(true, Ordering::Acquire)).then(|| Exclusive(taken))
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Lists the workers, then the places, the one with most fibers first, then the tasks. Each place lists the fibers that
/// have waited longest.
pub fn by_place(dump: &Dump) -> String {
    let mut text = String::new();
    let mut places: HashMap<&[StackFrame], Vec<&DumpedFiber>> = HashMap::new();
    for worker in &dump.workers {
        let (name, fibers, tasks) = (&worker.name, worker.fibers.len(), worker.tasks.len());
        let _ = match &worker.stuck {
            Some(work) => writeln!(text, "worker '{name}': stuck: it does not answer and runs {work}"),
            None => writeln!(
                text,
                "worker '{name}': {fibers} fibers, {} connections at rest, {tasks} tasks",
                worker.resting
            ),
        };
        for fiber in &worker.fibers {
            places.entry(&fiber.frames).or_default().push(fiber);
        }
    }
    let mut places: Vec<_> = places.into_iter().collect();
    for (_, fibers) in &mut places {
        fibers.sort_by_key(|fiber| (Reverse(fiber.waited), fiber.fiber.id()));
    }
    places.sort_by_key(|(_, fibers)| (Reverse(fibers.len()), fibers[0].fiber.id()));
    for (frames, fibers) in places {
        place(frames, &fibers, &mut text);
    }
    let tasks = dump.workers.iter().flat_map(|worker| &worker.tasks);
    for task in tasks {
        let _ = writeln!(text, "{task}");
    }
    text
}

/// Writes a place: its fibers and their common backtrace.
fn place(frames: &[StackFrame], fibers: &[&DumpedFiber], text: &mut String) {
    let longest = fibers.iter().filter_map(|fiber| fiber.waited).max();
    let longest = longest.unwrap_or(Duration::ZERO);
    let many = if fibers.len() == 1 { "fiber" } else { "fibers" };
    let _ = writeln!(text, "{} {many}, for up to {longest:.1?}", fibers.len());
    for fiber in fibers.iter().take(NAMED) {
        let _ = writeln!(text, "  {fiber}");
    }
    if fibers.len() > NAMED {
        let _ = writeln!(text, "  and {} more", fibers.len() - NAMED);
    }
    if frames.is_empty() {
        text.push_str("    no room for a backtrace\n");
    }
    for (number, frame) in frames.iter().enumerate() {
        let _ = writeln!(text, "    {number:3}: {frame}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fibers_at_one_place_share_a_backtrace() {
        osier::run(|| {
            let waits = || osier::sleep(Duration::from_secs(3600));
            let sleepers: Vec<_> = (0..5).map(|_| osier::spawn_local(waits)).collect();
            let other = osier::spawn_local(|| osier::sync::Event::new().wait());
            osier::yield_now();
            let text = by_place(&osier::dump());
            // Other tests of this process have fibers, too.
            let has = |place: &str| text.lines().any(|line| line.starts_with(place));
            assert!(has("5 fibers, for up to ") && has("1 fiber, for up to "), "{text}");
            assert!(text.contains("  and 2 more\n"), "{text}");
            assert!(text.starts_with("worker '"), "{text}");
            sleepers.iter().chain([&other]).for_each(|fiber| fiber.cancel());
        });
    }
}
