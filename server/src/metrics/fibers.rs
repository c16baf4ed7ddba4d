//! `/fibers`: the fibers of the process, grouped by the place where they wait, with one backtrace for each place.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use osier::inspect::{Dump, DumpedFiber, StackFrame};
use osier_web::http::StatusCode;
use osier_web::{Request, Response};

/// The most fibers that are listed for each place.
const NAMED: usize = 3;

/// The page `/fibers` of the admin listener.
///
/// # Suspends
/// Until all workers have answered, for a second at most.
pub fn page(_: &mut Request<'_>) -> Response {
    Response::new(StatusCode::OK)
        .content_type("text/plain; charset=utf-8")
        .header("cache-control", "no-store")
        .body(by_place(&osier::dump()))
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
