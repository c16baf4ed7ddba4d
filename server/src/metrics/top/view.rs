//! Writes the view: workers, routes, slow requests and the places where fibers wait, as lines of text.

use std::fmt::{Display, Write};

use osier_web::Phase;

use super::scrape::{Scrape, label};

/// The most routes, requests and places that are shown.
const ROUTES: usize = 15;
const REQUESTS: usize = 5;
const PLACES: usize = 10;

const COUNT: &str = "osier_http_request_duration_seconds_count";
const SUM: &str = "osier_http_request_duration_seconds_sum";
const PHASE: &str = "osier_http_request_phase_seconds_sum";

/// Writes the view. Rates are those since `before`, or since the start of the server.
pub fn text(address: &str, now: &Scrape, before: Option<&Scrape>) -> String {
    let span = match before {
        Some(before) => now.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3),
        None => now.uptime.unwrap_or(1.0),
    };
    let changes = Changes { now, before, span };
    let mut text = String::new();
    changes.summary(address, &mut text);
    changes.workers(&mut text);
    changes.routes(&mut text);
    match &now.fibers {
        Ok(page) => {
            requests(page, &mut text);
            places(page, &mut text);
        }
        Err(why) => _ = writeln!(text, "\nthe fibers are not shown: {why}"),
    }
    text
}

/// Two scrapes, whose differences are rates.
struct Changes<'s> {
    now: &'s Scrape,
    before: Option<&'s Scrape>,
    /// The seconds between the scrapes.
    span: f64,
}

impl Changes<'_> {
    /// The growth of a counter.
    fn growth(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let before = self.before.and_then(|before| before.value(name, labels)).unwrap_or(0.0);
        (self.now.value(name, labels).unwrap_or(0.0) - before).max(0.0)
    }

    fn rate(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.growth(name, labels) / self.span
    }

    fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.now.value(name, labels).unwrap_or(0.0)
    }

    fn summary(&self, address: &str, text: &mut String) {
        let version = self.now.all("osier_build_info").first();
        let version = version.map_or("", |(labels, _)| label(labels, "version"));
        let up = self.now.uptime.unwrap_or(0.0) as u64;
        let of = if self.before.is_some() {
            "now"
        } else {
            "since the start"
        };
        let _ = writeln!(
            text,
            "osier {version} at {address}, up {up}s: {}, {:.1} requests/s {of}, {:.1} MiB, {:.2} CPUs",
            counted(self.gauge("osier_connections", &[]), "connection"),
            self.rate(COUNT, &[]),
            self.gauge("process_resident_memory_bytes", &[]) / f64::from(1 << 20),
            self.rate("process_cpu_seconds_total", &[]),
        );
    }

    fn workers(&self, text: &mut String) {
        let columns = [
            "worker",
            "busy %",
            "turns/s",
            "resumes/s",
            "fibers",
            "resting",
            "queued",
            "tasks",
        ];
        let _ = writeln!(text, "\n{}", row(&columns.map(str::to_owned), 10));
        for (labels, fibers) in self.now.all("osier_worker_fibers") {
            let worker = label(labels, "worker");
            let labels = [("worker", worker)];
            let busy = 100.0 * self.rate("osier_worker_turn_seconds_sum", &labels);
            let cells = [
                worker.to_owned(),
                format!("{busy:.1}"),
                format!("{:.1}", self.rate("osier_worker_turns_total", &labels)),
                format!("{:.1}", self.rate("osier_worker_resumes_total", &labels)),
                fibers.to_string(),
                self.gauge("osier_worker_resting_connections", &labels).to_string(),
                self.gauge("osier_worker_queued", &labels).to_string(),
                self.gauge("osier_worker_tasks", &labels).to_string(),
            ];
            let _ = writeln!(text, "{}", row(&cells, 10));
        }
    }

    /// The routes that took the most time, with the mean of each phase.
    fn routes(&self, text: &mut String) {
        let of = |name, labels: &[(&str, &str)]| self.growth(name, labels);
        let mut routes: Vec<_> = self
            .now
            .all(COUNT)
            .iter()
            .map(|(labels, _)| {
                let (site, route) = (label(labels, "site"), label(labels, "route"));
                let labels = [("site", site), ("route", route)];
                (of(SUM, &labels), of(COUNT, &labels), site, route)
            })
            .filter(|(_, count, ..)| *count > 0.0)
            .collect();
        routes.sort_by(|one, other| other.0.total_cmp(&one.0));
        let _ = writeln!(
            text,
            "\nroutes by time: requests/s, mean ms, and the phases of that mean in ms"
        );
        for (seconds, count, site, route) in routes.iter().take(ROUTES) {
            let mean = 1000.0 * seconds / count;
            let phase = |phase: &Phase| {
                let labels = [("site", *site), ("route", *route), ("phase", phase.as_str())];
                let mean = 1000.0 * of(PHASE, &labels) / count;
                (mean >= 0.0005).then(|| format!("{} {mean:.3}", phase.as_str()))
            };
            let phases: Vec<String> = Phase::ALL.iter().filter_map(phase).collect();
            let _ = writeln!(
                text,
                "{:>10.1} {mean:>10.3}  {site} {route}: {}",
                count / self.span,
                phases.join(", ")
            );
        }
        if routes.is_empty() {
            let _ = writeln!(text, "      none");
        }
    }
}

/// The requests that have waited longest in their present place. The page lists the fibers of each place that have
/// waited longest, and the requests without a fiber that have.
fn requests(page: &str, text: &mut String) {
    let fibers = page.lines().filter_map(|line| line.strip_prefix("  fiber "));
    let at_rest = page.lines().filter_map(|line| line.strip_prefix("  request ("));
    let mut requests: Vec<_> = fibers.filter_map(request).chain(at_rest.filter_map(resting)).collect();
    requests.sort_by(|one, other| other.0.total_cmp(&one.0));
    if !requests.is_empty() {
        let _ = writeln!(text, "\nslow requests, by how long they wait now");
    }
    for (_, waited, work, wait) in requests.iter().take(REQUESTS) {
        let _ = writeln!(text, "{waited:>10}  {work}{wait}");
    }
}

/// Reads `0.7 (GET /, 127.0.0.1:9) spawned at a.rs:1: suspended for 2.0s, waiting to read …; …`. Returns the seconds,
/// the same time as text, the request, and its wait. `None` for another line, and for the request that asks for this
/// page.
fn request(fiber: &str) -> Option<(f64, &str, &str, &str)> {
    let (name, state) = fiber.split_once(") spawned at ")?;
    let (_, work) = name.split_once(" (")?;
    let (_, wait) = state.split_once(": suspended for ")?;
    let wait = wait.split(';').next()?;
    let at = wait.find(',').unwrap_or(wait.len());
    let (waited, wait) = wait.split_at(at);
    if wait.contains(" in osier::inspect::dump") {
        return None;
    }
    Some((seconds(waited)?, waited, work, wait))
}

/// Reads `GET /, 127.0.0.1:9) without a fiber for 2.0s, in 'upstream'`, as [`request`] does the line of a fiber.
fn resting(request: &str) -> Option<(f64, &str, &str, &str)> {
    // Clients choose targets.
    let (work, state) = request.rsplit_once(") without a fiber for ")?;
    let (waited, wait) = state.split_at(state.find(',')?);
    Some((seconds(waited)?, waited, work, wait))
}

/// A duration as `{:.1?}` writes it.
fn seconds(text: &str) -> Option<f64> {
    let units = [("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)];
    let (unit, scale) = units.into_iter().find(|(unit, _)| text.ends_with(unit))?;
    Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * scale)
}

/// The places where fibers wait, with one fiber and the innermost frames of each.
fn places(page: &str, text: &mut String) {
    let _ = writeln!(text, "\nfibers by the place where they wait");
    let mut lines = page.lines().peekable();
    let mut shown = 0;
    while let Some(line) = lines.next() {
        let begins = line.starts_with(|char: char| char.is_ascii_digit()) && line.contains(" for up to ");
        if !begins {
            continue;
        }
        shown += 1;
        if shown > PLACES {
            let rest = lines.filter(|line| line.contains(" for up to ") && !line.starts_with(' '));
            let _ = writeln!(text, "and {}", counted(rest.count() + 1, "more place"));
            return;
        }
        let _ = writeln!(text, "{line}");
        let (mut fibers, mut frames) = (0, 0);
        while let Some(line) = lines.next_if(|line| line.starts_with(' ')) {
            let is_frame = line.starts_with("    ");
            fibers += usize::from(!is_frame);
            frames += usize::from(is_frame);
            // The first fiber of a place has waited longest.
            if (is_frame && frames <= 2) || (!is_frame && fibers == 1) {
                let _ = writeln!(text, "{line}");
            }
        }
    }
}

/// A count with its noun: `1 connection`, `2 connections`.
fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let ending = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// A row of a table, with columns of one width.
fn row(cells: &[String], width: usize) -> String {
    cells
        .iter()
        .map(|cell| format!("{cell:>width$}"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::scrape::tests::scrape;
    use super::*;
    use std::time::Duration;

    const BEFORE: &str = "osier_build_info{version=\"1.2\"} 1\nosier_connections 4\nosier_worker_fibers{worker=\"0\"} 5\n\
        osier_worker_turns_total{worker=\"0\"} 100\nosier_worker_turn_seconds_sum{worker=\"0\"} 1\n\
        osier_http_request_duration_seconds_count{site=\"a\",route=\"/\"} 10\n\
        osier_http_request_duration_seconds_sum{site=\"a\",route=\"/\"} 1\n\
        osier_http_request_phase_seconds_sum{site=\"a\",route=\"/\",phase=\"upstream\"} 0.9\n";

    #[test]
    fn rates_are_those_since_the_last_look() {
        let before = scrape(BEFORE, "");
        let text = text("x:1", &before, None);
        assert!(
            text.starts_with("osier 1.2 at x:1, up 10s: 4 connections, 1.0 requests/s since the start,"),
            "{text}"
        );
        let one = BEFORE.replace("connections 4", "connections 1");
        let text_of_one = super::text("x:1", &scrape(&one, ""), None);
        assert!(text_of_one.contains(": 1 connection, "), "{text_of_one}");
        assert!(text.contains("         0       10.0       10.0"), "{text}");
        assert!(text.contains("       1.0    100.000  a /: upstream 90.000\n"), "{text}");
        let mut now = scrape(
            &BEFORE
                .replace("route=\"/\"} 10\n", "route=\"/\"} 30\n")
                .replace("} 1\nosier_http_request_phase", "} 2\nosier_http_request_phase"),
            "",
        );
        now.at = before.at + Duration::from_secs(2);
        let text = super::text("x:1", &now, Some(&before));
        assert!(text.contains("10.0 requests/s now"), "{text}");
        assert!(text.contains("      10.0     50.000  a /: \n"), "{text}");
    }

    #[test]
    fn requests_that_wait_longest_come_first() {
        let fiber = |request: &str, waited: &str| {
            format!(
                "1 fiber, for up to {waited}\n  fiber 0.1{request} spawned at a.rs:1: suspended for {waited}, waiting to read socket 7; 5 bytes of stack, 6 left\n"
            )
        };
        let page = fiber(" (GET /a, 1.2.3.4:5)", "20.5ms")
            + &fiber(" 'x' (GET /b, 1.2.3.4:6)", "1.5s")
            + &fiber("", "9.0s")
            + &fiber(" (GET /fibers, 1.2.3.4:8)", "7.0s").replace("to read socket 7", "in osier::inspect::dump::dump")
            + &fiber(" (GET /c, 1.2.3.4:7)", "900.0µs")
            + "1 request without a fiber, for up to 1.2s\n  request (GET /d) without a fiber for 9s, 1.2.3.4:8) without a fiber for 1.2s, in 'upstream'\n";
        let text = text("x:1", &scrape(BEFORE, &page), None);
        let (_, shown) = text.split_once("wait now\n").unwrap();
        let (shown, _) = shown.split_once("\n\n").unwrap();
        let expected = [("1.5s", 'b', 6), ("20.5ms", 'a', 5), ("900.0µs", 'c', 7)];
        let expected = expected
            .map(|(waited, path, port)| format!("{waited:>10}  GET /{path}, 1.2.3.4:{port}, waiting to read socket 7"));
        let [first, rest @ ..] = expected;
        let at_rest = format!(
            "{:>10}  GET /d) without a fiber for 9s, 1.2.3.4:8, in 'upstream'",
            "1.2s"
        );
        let expected = [first, at_rest].into_iter().chain(rest).collect::<Vec<_>>();
        assert_eq!(shown, expected.join("\n"), "{text}");
        let mut busy = scrape(BEFORE, "");
        assert!(!super::text("x:1", &busy, None).contains("slow requests"));
        busy.fibers = Err("another dump runs".into());
        let text = super::text("x:1", &busy, None);
        assert!(
            text.ends_with("\n\nthe fibers are not shown: another dump runs\n"),
            "{text}"
        );
    }

    #[test]
    fn places_are_shown_with_their_innermost_frames() {
        let place = |count: u32| {
            format!(
                "{count} fibers, for up to 2.0s\n  fiber 0.1 (GET /) spawned at a:1: suspended; 5 bytes of stack, 6 left\n  \
                 fiber 0.2 spawned at a:1: suspended; 5 bytes of stack, 6 left\n  and 7 more\n      0: inner at b:2\n      1: outer at b:3\n      2: outermost at b:4\n"
            )
        };
        let page = format!(
            "worker 'osier-0' of runtime 1: 9 fibers\n{}",
            (0..12).map(place).collect::<String>()
        );
        let text = text("x:1", &scrape(BEFORE, &page), None);
        assert!(text.contains("0 fibers, for up to 2.0s\n  fiber 0.1 (GET /)"), "{text}");
        assert!(
            text.contains("outer at b:3") && !text.contains("outermost") && !text.contains("fiber 0.2"),
            "{text}"
        );
        assert!(text.ends_with("and 2 more places\n"), "{text}");
        let page: String = (0..11).map(place).collect();
        let text = super::text("x:1", &scrape(BEFORE, &page), None);
        assert!(text.ends_with("and 1 more place\n"), "{text}");
    }
}
