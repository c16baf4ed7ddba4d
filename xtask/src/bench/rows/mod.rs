//! The rows of the table: what each measures, who takes part, and the goal.
//!
//! A row is a list of contestants, Osier first. Each round runs them in turn. A contestant that fails is out for the rest of
//! the row, and its line says why. This file has the rows about servers and memory. `rows/proxy.rs` has the proxy,
//! `rows/downloads.rs` short responses beside long ones,
//! `rows/php.rs` scripts, `rows/rooms.rs` WebSockets, and `rows/micro.rs` primitives in a loop.

mod downloads;
mod micro;
mod php;
mod proxy;
mod rooms;

use super::load::{self, Served};
use super::server::{self, Server};
use super::table::{Line, median};
use super::{Plan, osier, program, with_programs_of};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The packages of `bench/` that are built without `--all`.
pub const PACKAGES: &[&str] = &[
    "bench-osier",
    "bench-null",
    "bench-hyper",
    "bench-may",
    "bench-tokio",
    "bench-smol",
    "bench-monoio",
    "bench-async-std",
    "bench-std",
    "bench-corosensei",
    "bench-tokio-tungstenite",
    "bench-load-echo",
    "bench-load-ws",
    "bench-hold",
];

/// The packages that a run against another checkout needs.
pub const OURS_AND_LOAD: &[&str] = &["bench-osier", "bench-load-echo", "bench-load-ws", "bench-hold"];

const HELLO: &[u8] = b"Hello, World!";

/// The goal against another checkout of ours: what two runs of one program differ by.
const NO_SLOWER: Option<f64> = Some(1.03);

/// The goal against a rival: less than it.
const BELOW: Option<f64> = Some(1.0);

type Run<'a> = Box<dyn Fn() -> Result<Sample, String> + 'a>;

/// The result of one contestant in one round.
struct Sample {
    figure: f64,
    /// Requests in a second and peak memory, where there are any.
    aside: Option<(f64, u64)>,
}

struct Contestant<'a> {
    name: &'static str,
    goal: Option<f64>,
    run: Run<'a>,
    samples: Vec<Sample>,
    failure: Option<String>,
}

struct Row<'a> {
    name: String,
    unit: &'static str,
    rounds: usize,
    /// A figure of our own to stay below, whatever the rivals do.
    bound: Option<f64>,
    /// More than one where there are several ways to do it, each with a line against each rival.
    ours: Vec<Contestant<'a>>,
    rivals: Vec<Contestant<'a>>,
}

/// Measures all rows that the plan wants.
pub fn run(plan: &Plan) -> Vec<Line> {
    let files = [
        ("100 B", 100, Some(0.7)),
        ("16 KiB", 16 << 10, None),
        ("1 MiB", 1 << 20, BELOW),
    ];
    let mut rows = vec![
        hello(plan, "hello, keep-alive, 64 connections", false, Some(1.05)),
        hello(plan, "hello, pipelined 16", true, Some(1.12)),
    ];
    rows.extend(files.map(|(size, bytes, goal)| file(plan, size, bytes, goal)));
    rows.extend(php::rows(plan));
    rows.extend([idle(plan), fibers(plan, 100_000), fibers(plan, 1_000_000), echo(plan)]);
    rows.extend(proxy::rows(plan));
    rows.extend(downloads::rows(plan));
    rows.extend(rooms::rows(plan));
    rows.extend(micro::rows(plan));
    let wanted = rows
        .into_iter()
        .filter(|row| plan.rows.as_ref().is_none_or(|part| row.name.contains(part.as_str())));
    match &plan.against {
        Some(other) => wanted.flat_map(|row| versus_itself(row, other)).collect(),
        None => wanted.flat_map(measured).collect(),
    }
}

/// A row for each of ours, against the same of another checkout.
fn versus_itself(row: Row, other: &Path) -> Vec<Line> {
    let Row {
        name,
        unit,
        rounds,
        ours,
        ..
    } = row;
    let several = ours.len() > 1;
    let pair = |mine: Contestant| {
        let Contestant { name: way, run, .. } = mine;
        let run = std::rc::Rc::new(run);
        let before = run.clone();
        measured(Row {
            name: match several {
                true => format!("{name}: {way}"),
                false => name.clone(),
            },
            unit,
            rounds,
            bound: None,
            ours: vec![contestant("osier", None, move || run())],
            rivals: vec![contestant("the other checkout", NO_SLOWER, move || {
                with_programs_of(other, || before())
            })],
        })
    };
    ours.into_iter().flat_map(pair).collect()
}

/// Runs the rounds of one row and makes a line of each rival and of the bound.
fn measured(mut row: Row) -> Vec<Line> {
    println!("\n{} ({})", row.name, row.unit);
    for round in 1..=row.rounds {
        for contestant in row.ours.iter_mut().chain(&mut row.rivals) {
            if contestant.failure.is_some() {
                continue;
            }
            match (contestant.run)() {
                Ok(sample) => {
                    println!("  round {round}: {:<20} {:.3}", contestant.name, sample.figure);
                    contestant.samples.push(sample);
                }
                Err(why) => {
                    println!("  round {round}: {:<20} {why}", contestant.name);
                    contestant.failure = Some(why.replace('\n', " "));
                }
            }
        }
    }
    let several = row.ours.len() > 1;
    row.ours.iter().flat_map(|ours| lines(&row, ours, several)).collect()
}

/// The lines of one of ours: against the bound, and against each rival.
fn lines(row: &Row, ours: &Contestant, several: bool) -> Vec<Line> {
    let name = match several {
        true => format!("{}: {}", row.name, ours.name),
        false => row.name.clone(),
    };
    let line = |rival: &str, theirs: Vec<f64>, goal, aside, failure| Line {
        row: name.clone(),
        rival: rival.into(),
        unit: row.unit,
        ours: figures(&ours.samples),
        theirs,
        goal,
        aside,
        failure: ours.failure.as_ref().map(|why| format!("ours: {why}")).or(failure),
    };
    let bound = row
        .bound
        .map(|bound| line("bound", vec![bound; row.rounds], BELOW, String::new(), None));
    let against = row.rivals.iter().map(|rival| {
        let aside = [aside(&ours.samples), aside(&rival.samples)].map(|text| text.unwrap_or_default());
        let aside = if aside[0].is_empty() {
            String::new()
        } else {
            aside.join(" / ")
        };
        let failure = rival.failure.as_ref().map(|why| format!("{}: {why}", rival.name));
        line(rival.name, figures(&rival.samples), rival.goal, aside, failure)
    });
    bound.into_iter().chain(against).collect()
}

fn figures(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.figure).collect()
}

/// "210 k/s 5.1 MB": the median throughput and the peak memory.
fn aside(samples: &[Sample]) -> Option<String> {
    let asides: Vec<(f64, u64)> = samples.iter().filter_map(|sample| sample.aside).collect();
    let throughput = median(&asides.iter().map(|(throughput, _)| *throughput).collect::<Vec<_>>())?;
    let memory = asides.iter().map(|(_, memory)| *memory).max()?;
    Some(format!("{:.1} k/s {:.1} MB", throughput / 1e3, memory as f64 / 1e6))
}

fn contestant<'a>(
    name: &'static str,
    goal: Option<f64>,
    run: impl Fn() -> Result<Sample, String> + 'a,
) -> Contestant<'a> {
    Contestant {
        name,
        goal,
        run: Box::new(run),
        samples: vec![],
        failure: None,
    }
}

/// The same short answer to every request.
fn hello<'a>(plan: &'a Plan, name: &str, pipelined: bool, against_null: Option<f64>) -> Row<'a> {
    let under_load = move |server: Server| {
        server.check("/", HELLO)?;
        load::requests(plan, &server, "/", pipelined).map(sample)
    };
    let rival = |name, binary, goal| contestant(name, goal, move || under_load(on_port(plan, binary)?));
    let mut rivals = vec![
        rival("null", "null", against_null),
        contestant("nginx", BELOW, move || under_load(nginx(plan)?)),
        rival("hyper", "hyper", BELOW),
        rival("may_minihttp", "may-http", BELOW),
        rival("tokio, no parser", "tokio-null", None),
        rival("smol, no parser", "smol-null", None),
    ];
    if plan.all {
        rivals.extend(["axum", "actix", "ntex"].map(|name| rival(name, name, BELOW)));
    }
    let ours = vec![rival("osier", "osier-hello", None)];
    Row {
        name: name.into(),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        ours,
        rivals,
    }
}

/// A file of a folder, warm in the page cache.
fn file<'a>(plan: &'a Plan, size: &str, bytes: usize, goal: Option<f64>) -> Row<'a> {
    // Not compressible to nothing, and the same for both servers.
    let body: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    let path = format!("/{bytes}.bin");
    let under_load = move |server: Server| {
        let file = site(plan).join(&path[1..]);
        if !file.exists() {
            std::fs::write(&file, &body).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        server.check(&path, &body)?;
        load::requests(plan, &server, &path, false).map(sample)
    };
    let under_load = std::rc::Rc::new(under_load);
    let (with_ours, with_nginx) = (under_load.clone(), under_load);
    let ours = vec![contestant("osier", None, move || with_ours(osier_on_files(plan)?))];
    let rivals = vec![contestant("nginx", goal, move || with_nginx(nginx(plan)?))];
    Row {
        name: format!("file of {size}"),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        ours,
        rivals,
    }
}

/// 64 bytes there and back, on many connections at once.
fn echo(plan: &Plan) -> Row<'_> {
    const CONNECTIONS: usize = 1000;
    let on = |name, binary: &'static str, args: &'static [&'static str], goal| {
        let run = move || {
            let server = Server::start(plan, &program(binary), |port| {
                let args = args.iter().map(OsString::from);
                Ok(std::iter::once(port.to_string().into()).chain(args).collect())
            })?;
            load::echoes(plan, &server, CONNECTIONS).map(sample)
        };
        contestant(name, goal, run)
    };
    Row {
        name: format!("echo of 64 B, {CONNECTIONS} connections"),
        unit: "µs CPU/round trip",
        rounds: plan.rounds,
        bound: None,
        ours: vec![
            on("fibers", "osier-echo", &[], None),
            on("futures", "osier-echo", &["futures"], None),
        ],
        rivals: vec![
            on("tokio", "tokio-echo", &[], BELOW),
            on("smol", "smol-echo", &[], BELOW),
            on("may", "may-echo", &[], BELOW),
            on("monoio", "monoio-echo", &[], BELOW),
        ],
    }
}

/// Memory that a connection costs while it waits for its next request.
fn idle(plan: &Plan) -> Row<'_> {
    const CONNECTIONS: usize = 10_000;
    let held = move |server: Server| {
        server.check("/", HELLO)?;
        let figure = load::idle_connections(plan, &server, "/", CONNECTIONS)?;
        Ok(Sample { figure, aside: None })
    };
    let on = |name, binary, goal| contestant(name, goal, move || held(on_port(plan, binary)?));
    let rivals = vec![
        contestant("nginx", BELOW, move || held(nginx(plan)?)),
        on("hyper", "hyper", BELOW),
        on("may_minihttp", "may-http", BELOW),
    ];
    let ours = vec![on("osier", "osier-hello", None)];
    let name = format!("idle connection, of {CONNECTIONS}");
    Row {
        name,
        unit: "private bytes",
        rounds: plan.rounds.min(3),
        bound: Some(400.0),
        ours,
        rivals,
    }
}

/// Resident memory and page tables that a suspended fiber costs.
fn fibers(plan: &Plan, count: usize) -> Row<'_> {
    // corosensei's own stacks are two mappings each, and Linux allows 65,530.
    const MOST_MAPPED_ALONE: usize = 20_000;
    let run = |name, binary, count: usize| {
        contestant(name, None, move || figure(plan, binary, "fiber", &[count.to_string()]))
    };
    Row {
        name: format!("suspended fiber, of {count}"),
        unit: "bytes",
        rounds: plan.rounds.min(2),
        bound: Some(4700.0),
        ours: vec![run("osier", "osier-fibers", count)],
        rivals: vec![run(
            "corosensei, 20,000",
            "corosensei-fibers",
            count.min(MOST_MAPPED_ALONE),
        )],
    }
}

fn sample(served: Served) -> Sample {
    Sample {
        figure: served.micros,
        aside: Some((served.per_second, served.memory)),
    }
}

/// The figure that a program of `bench/` prints under a name, on the core of the servers.
fn figure(plan: &Plan, binary: &str, printed_as: &str, args: &[String]) -> Result<Sample, String> {
    figure_on(&[plan.cores.0], binary, printed_as, args)
}

/// As [`figure`], on these cores.
fn figure_on(cores: &[usize], binary: &str, printed_as: &str, args: &[String]) -> Result<Sample, String> {
    let printed = load::figures(cores, &program(binary), args)?;
    let found = printed.iter().find(|(name, _)| name == printed_as);
    let (_, figure) = found.ok_or_else(|| format!("{binary}: printed no figure called {printed_as}"))?;
    Ok(Sample {
        figure: *figure,
        aside: None,
    })
}

/// A server of `bench/`: takes its port as its one argument.
fn on_port(plan: &Plan, binary: &str) -> Result<Server, String> {
    Server::start(plan, &program(binary), |port| Ok(vec![port.to_string().into()]))
}

fn osier_on_files(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, &osier(), |port| {
        Ok(vec![
            site.clone().into(),
            "-l".into(),
            format!("127.0.0.1:{port}").into(),
            "-w".into(),
            "1".into(),
        ])
    })
}

fn nginx(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        server::nginx_args(plan, server::nginx_config(&plan.scratch, &site, port)?)
    })
}

/// The folder that the file rows serve.
fn site(plan: &Plan) -> PathBuf {
    let site = plan.scratch.join("site");
    // If this fails, so does the write of the first file, with a message.
    let _ = std::fs::create_dir_all(&site);
    site
}
