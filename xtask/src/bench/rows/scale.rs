//! The rows about many things: what one of them costs among all, against one among a tenth of them and among a hundredth. A cost that does
//! not grow with their number is the goal.
//!
//! Requests are drawn at random from all of them (`bench/scale.lua`).

use super::{HELLO, Row, Sample, contestant, figure, sample};
use crate::bench::Plan;
use crate::bench::load::{self, Asked};
use crate::bench::programs::{SERVER, osier};
use crate::bench::server::Server;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The goal against fewer things: caches of the processor hold them better.
const FLAT: Option<f64> = Some(1.2);

const SITES: usize = 1000;
const ROUTES: usize = 10_000;
const FILES: usize = 100_000;
const TOPICS: usize = 10_000;
const CONNECTIONS: usize = 10_000;

type Run = fn(&Plan, usize) -> Result<Sample, String>;

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let topics = |name: &str, unit, run| row(plan, name, unit, TOPICS, &["osier-topics"], run);
    let mut idle = row(
        plan,
        "idle connection",
        "private bytes",
        CONNECTIONS,
        &["osier-hello"],
        |plan, count| {
            let server = super::on_port(plan, "osier-hello")?;
            load::idle_connections(plan, &server, "/", count).map(Sample::from)
        },
    );
    idle.load = &["hold"];
    let mut kernel = row(
        plan,
        "idle connection in the kernel",
        "bytes",
        CONNECTIONS,
        &["osier-hello"],
        |plan, count| {
            let server = super::on_port(plan, "osier-hello")?;
            load::kernel_memory_of_idle(plan, &server, "/", count).map(Sample::from)
        },
    );
    kernel.load = &["hold"];
    vec![
        row(
            plan,
            "request to a site",
            "µs CPU/request",
            SITES,
            &[SERVER],
            |plan, count| drawn(plan, "host", count, &sites(count)),
        ),
        row(
            plan,
            "request to a route",
            "µs CPU/request",
            ROUTES,
            &[SERVER],
            |plan, count| drawn(plan, "route", count, &routes(count)),
        ),
        row(
            plan,
            "start with a site",
            "µs CPU/site",
            SITES,
            &[SERVER],
            |plan, count| started(plan, count, &sites(count)),
        ),
        row(
            plan,
            "start with a route",
            "µs CPU/route",
            ROUTES,
            &[SERVER],
            |plan, count| started(plan, count, &routes(count)),
        ),
        row(
            plan,
            "file in a folder",
            "µs CPU/request",
            FILES,
            &[SERVER],
            |plan, count| drawn(plan, "file", count, &files(plan, count)?),
        ),
        row(plan, "line of a listing", "µs CPU/line", FILES, &[SERVER], listed),
        idle,
        kernel,
        topics("subscriber of a topic with 10", "bytes", |plan, count| {
            figure(
                plan,
                "osier-topics",
                "subscriber",
                &["subscriber".into(), count.to_string()],
            )
        }),
        topics("delivery to a subscriber", "ns CPU", |plan, count| {
            figure(
                plan,
                "osier-topics",
                "delivery",
                &["delivery".into(), count.to_string()],
            )
        }),
    ]
}

fn row<'a>(
    plan: &'a Plan,
    what: &str,
    unit: &'static str,
    full: usize,
    programs: &[&'static str],
    run: Run,
) -> Row<'a> {
    let of = |name, goal, count| contestant(name, goal, move || run(plan, count)).needs(programs);
    Row {
        name: format!("scale: {what}, of {full}"),
        unit,
        rounds: plan.rounds.min(3),
        bound: None,
        load: &[],
        ours: vec![of("osier", None, full)],
        rivals: vec![of("a tenth", FLAT, full / 10), of("a hundredth", FLAT, full / 100)],
    }
}

/// Loads a server that has this configuration with requests that are drawn.
fn drawn(plan: &Plan, kind: &str, count: usize, config: &str) -> Result<Sample, String> {
    let server = start(plan, config)?;
    let asked = Asked {
        drawn: Some((kind, count)),
        ..Asked::path("/")
    };
    load::requests(plan, &server, asked).map(sample)
}

/// The CPU time of the start for each thing, without that of a server with one site.
fn started(plan: &Plan, count: usize, config: &str) -> Result<Sample, String> {
    let cpu = |config: &str| start(plan, config).map(|server| server.cpu());
    // The kernel counts hundredths of a second.
    let repeated = |config: &str| -> Result<f64, String> {
        let times = (0..5).map(|_| cpu(config)).collect::<Result<Vec<Duration>, String>>()?;
        let times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        Ok(times.iter().sum::<f64>() / times.len() as f64)
    };
    let (with, without) = (repeated(config)?, repeated(&sites(1))?);
    Ok(Sample::from((with - without).max(0.0) * 1e6 / count as f64))
}

/// The CPU time of a listing for each of its lines.
fn listed(plan: &Plan, count: usize) -> Result<Sample, String> {
    let server = start(plan, &files(plan, count)?)?;
    let (_, page) = server.ask("/")?;
    let lines = String::from_utf8_lossy(&page).matches("<tr>").count();
    if lines == 0 {
        return Err("a listing without lines".into());
    }
    let before = server.cpu();
    let (begun, mut pages) = (std::time::Instant::now(), 0);
    while begun.elapsed() < plan.load {
        server.ask("/")?;
        pages += 1;
    }
    let cpu = server.cpu() - before;
    Ok(Sample::from(cpu.as_secs_f64() * 1e6 / (pages * lines) as f64))
}

fn start(plan: &Plan, config: &str) -> Result<Server, String> {
    Server::start(plan, &osier(), |port| {
        let head = format!("workers = 1\nlog = false\n[[listen]]\naddress = \"127.0.0.1:{port}\"\n");
        let path = plan.scratch.join(format!("scale-{port}.toml"));
        let written = std::fs::write(&path, head + config);
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(vec![path.into()])
    })
}

fn hello() -> &'static str {
    str::from_utf8(HELLO).expect("a text")
}

fn sites(count: usize) -> String {
    let mut text = String::new();
    for number in 0..count {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "[[site]]\nhost = \"site-{number}.example.org\"\n[[site.route]]\nrespond = \"{}\"\n",
            hello()
        );
    }
    text
}

fn routes(count: usize) -> String {
    let mut text = "[[site]]\ndefault = true\n".to_string();
    for number in 0..count {
        let _ = write!(
            text,
            "[[site.route]]\npath = \"/of/{number}\"\nrespond = \"{}\"\n",
            hello()
        );
    }
    text
}

/// A site of a folder with so many files, which is made if it is not there.
fn files(plan: &Plan, count: usize) -> Result<String, String> {
    let folder: PathBuf = plan.scratch.join(format!("folder-{count}"));
    if !folder.exists() {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(&folder).map_err(failed)?;
        for number in 0..count {
            std::fs::write(folder.join(format!("{number}.txt")), HELLO).map_err(failed)?;
        }
    }
    let folder = folder.display();
    Ok(format!(
        "[[site]]\ndefault = true\n[[site.route]]\nfiles = {{ root = \"{folder}\", listing = true }}\n"
    ))
}
