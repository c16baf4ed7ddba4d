//! The rows of the table: what each measures, who takes part, and the goal.
//!
//! A row is a list of contestants, Osier first. Each round runs them in turn. A contestant that fails is out for the rest of
//! the row, and its line says why.
//!
//! `plain.rs` has the rows about HTTP/1.1 in the clear and about memory, `tls.rs` and `http2.rs` those on the servers of `secure.rs`.
//! `json.rs` has responses of serde, `codings.rs` compression on the fly, `sockets.rs` echoes over WebSockets, `proxy.rs` the proxy, `packaged/` the server of a package,
//! `downloads.rs` short responses beside long ones, `cold.rs` beside files that are not in memory, `workers.rs` a second worker, `scale.rs` many of one thing, `php.rs` scripts,
//! `rooms.rs` chats over WebSockets, `micro.rs` primitives, and `arena.rs` the profiles of a public benchmark. `rivals.rs` tests that rivals
//! start and answer.

mod arena;
mod codings;
mod cold;
mod downloads;
mod http2;
mod json;
mod micro;
mod packaged;
mod php;
mod plain;
mod proxy;
#[cfg(test)]
mod rivals;
mod rooms;
mod scale;
pub mod secure;
mod sockets;
mod tls;
mod workers;

use super::Plan;
use super::load::{self, Served};
use super::programs::{program, with_programs_of};
use super::results::Named;
use super::server::Server;
use super::table::{Line, median};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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
    /// The length of an answer that each server makes in its own way.
    bytes: Option<usize>,
    /// Bytes in a second that other clients have received meanwhile.
    downloaded: Option<f64>,
}

impl From<f64> for Sample {
    fn from(figure: f64) -> Sample {
        Sample {
            figure,
            aside: None,
            bytes: None,
            downloaded: None,
        }
    }
}

struct Contestant<'a> {
    name: &'static str,
    goal: Option<f64>,
    /// The programs that it starts: some of `bench/`, or the server.
    programs: Vec<&'static str>,
    run: Run<'a>,
    samples: Vec<Sample>,
    failure: Option<String>,
}

pub struct Row<'a> {
    name: String,
    unit: &'static str,
    rounds: usize,
    /// A figure of our own to stay below, whatever the rivals do.
    bound: Option<f64>,
    /// The programs of `bench/` that make the load.
    load: &'static [&'static str],
    /// More than one where there are several ways to do it, each with a line against each rival.
    ours: Vec<Contestant<'a>>,
    rivals: Vec<Contestant<'a>>,
}

/// The rows that the plan wants.
pub fn wanted(plan: &Plan) -> Vec<Row<'_>> {
    let mut rows = all(plan);
    let is_wanted = |row: &Row| plan.rows.iter().any(|part| row.name.contains(part.as_str()));
    rows.retain(|row| plan.rows.is_empty() || is_wanted(row));
    rows
}

fn all(plan: &Plan) -> Vec<Row<'_>> {
    let groups = [
        plain::rows(plan),
        tls::rows(plan),
        http2::rows(plan),
        json::rows(plan),
        codings::rows(plan),
        php::rows(plan),
        proxy::rows(plan),
        packaged::rows(plan),
        downloads::rows(plan),
        cold::rows(plan),
        workers::rows(plan),
        scale::rows(plan),
        sockets::rows(plan),
        rooms::rows(plan),
        micro::rows(plan),
        arena::rows(plan),
    ];
    groups.into_iter().flatten().collect()
}

/// The programs that these rows need: ours, those of the rivals unless another checkout is the rival, and those of the load.
pub fn programs(plan: &Plan, rows: &[Row]) -> BTreeSet<&'static str> {
    let contestants = rows.iter().flat_map(|row| {
        let rivals = row.rivals.iter().filter(|_| plan.against.is_none());
        row.ours.iter().chain(rivals)
    });
    let programs = contestants.flat_map(|contestant| &contestant.programs);
    programs.chain(rows.iter().flat_map(|row| row.load)).copied().collect()
}

/// The lines of these rows: each of ours beside the bound and each rival.
pub fn named(rows: &[Row]) -> Vec<Named> {
    let mut lines = vec![];
    for row in rows {
        let bound = row.bound.map(|_| (BOUND, BELOW));
        let rivals = row.rivals.iter().map(|rival| (rival.name, rival.goal));
        let rivals: Vec<_> = bound.into_iter().chain(rivals).collect();
        for ours in &row.ours {
            lines.extend(rivals.iter().map(|(rival, goal)| Named {
                row: row.line(ours),
                rival: rival.to_string(),
                goal: *goal,
            }));
        }
    }
    lines
}

/// The names of all rivals of these rows.
pub fn rivals(rows: &[Row]) -> BTreeSet<&'static str> {
    let rivals = rows.iter().flat_map(|row| &row.rivals);
    rivals.map(|rival| rival.name).collect()
}

/// Measures these rows.
pub fn run(plan: &Plan, rows: Vec<Row>) -> Vec<Line> {
    match &plan.against {
        Some(other) => rows.into_iter().flat_map(|row| versus_itself(row, other)).collect(),
        None => rows.into_iter().flat_map(measured).collect(),
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
            load: &[],
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
        let mut order: Vec<&mut Contestant> = row.ours.iter_mut().chain(&mut row.rivals).collect();
        // Who runs first leaves caches, a disk and a clock to the next one: in each round another one goes first, and the direction changes, so
        // that each has several before it.
        let first = (round - 1) % order.len();
        order.rotate_left(first);
        if round % 2 == 0 {
            order[1..].reverse();
        }
        for contestant in order {
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
    row.ours.iter().flat_map(|ours| lines(&row, ours)).collect()
}

impl Row<'_> {
    /// The name of the lines of one of ours.
    fn line(&self, ours: &Contestant) -> String {
        match self.ours.len() {
            1 => self.name.clone(),
            _ => format!("{}: {}", self.name, ours.name),
        }
    }
}

/// The rival of the line of a figure that Osier has set itself.
pub const BOUND: &str = "bound";

/// The lines of one of ours: against the bound, and against each rival.
fn lines(row: &Row, ours: &Contestant) -> Vec<Line> {
    let name = row.line(ours);
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
        .map(|bound| line(BOUND, vec![bound; row.rounds], BELOW, String::new(), None));
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
    // A row without a rival shows its own figure.
    let alone = (row.rivals.is_empty() && row.bound.is_none())
        .then(|| line("none", vec![], None, aside(&ours.samples).unwrap_or_default(), None));
    bound.into_iter().chain(against).chain(alone).collect()
}

fn figures(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.figure).collect()
}

/// "210 k/s 5.1 MB": the median throughput and the peak memory; or "310 MB/s": what others have received.
fn aside(samples: &[Sample]) -> Option<String> {
    let downloaded: Vec<f64> = samples.iter().filter_map(|sample| sample.downloaded).collect();
    if let Some(rate) = median(&downloaded) {
        return Some(format!("{:.1} MB/s", rate / 1e6));
    }
    let asides: Vec<(f64, u64)> = samples.iter().filter_map(|sample| sample.aside).collect();
    let throughput = median(&asides.iter().map(|(throughput, _)| *throughput).collect::<Vec<_>>())?;
    let memory = asides.iter().map(|(_, memory)| *memory).max()?;
    let bytes = samples.iter().find_map(|sample| sample.bytes);
    let bytes = bytes.map_or(String::new(), |bytes| format!(" {bytes} B"));
    Some(format!(
        "{:.1} k/s {:.1} MB{bytes}",
        throughput / 1e3,
        memory as f64 / 1e6
    ))
}

fn contestant<'a>(
    name: &'static str,
    goal: Option<f64>,
    run: impl Fn() -> Result<Sample, String> + 'a,
) -> Contestant<'a> {
    Contestant {
        name,
        goal,
        programs: vec![],
        run: Box::new(run),
        samples: vec![],
        failure: None,
    }
}

impl Contestant<'_> {
    /// Adds programs that it starts.
    fn needs(mut self, programs: &[&'static str]) -> Self {
        self.programs.extend_from_slice(programs);
        self
    }
}

fn sample(served: Served) -> Sample {
    Sample {
        aside: Some((served.per_second, served.memory)),
        ..served.micros.into()
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
    Ok(Sample::from(*figure))
}

/// A server of `bench/`: takes its port as its one argument.
fn on_port(plan: &Plan, binary: &str) -> Result<Server, String> {
    Server::start(plan, &program(binary), |port| Ok(vec![port.to_string().into()]))
}

/// The folder that the file rows serve.
fn site(plan: &Plan) -> PathBuf {
    let site = plan.scratch.join("site");
    // If this fails, so does the write of the first file, with a message.
    let _ = std::fs::create_dir_all(&site);
    site
}

/// A file of the site: its bytes are not compressible to nothing, and the same for all servers.
fn file(plan: &Plan, bytes: usize) -> Result<Vec<u8>, String> {
    let body: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    let file = site(plan).join(format!("{bytes}.bin"));
    if !file.exists() {
        std::fs::write(&file, &body).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{parsed, programs};

    #[test]
    fn each_program_of_a_row_has_a_package() {
        let plan = parsed(&["--all".into()]).unwrap();
        let packages = programs::packages().unwrap();
        let named = super::programs(&plan, &all(&plan));
        assert!(named.len() > 30, "{named:?}");
        for name in named {
            assert!(
                [programs::SERVER, programs::PACKAGED].contains(&name) || packages.contains_key(name),
                "{name}"
            );
        }
    }
}
