//! `cargo xtask bench --builds`: the build times of a hello server from nothing, on Osier and on other frameworks, in turn.
//!
//! Each hello program is compiled in release mode into an empty folder, three times in turn, and so is the server itself, once. Each is a
//! package of its own that needs nothing for other rows. Hello programs are
//! compared by CPU time of cargo and its children, because it does not depend on the number of cores; crates and seconds
//! stand in the last column. Crates of ours, and seconds of the server, have bounds of their own. Downloads come before.

use super::programs::build_command;
use super::results::Named;
use super::rows::BOUND;
use super::table::{self, Line};
use crate::step;
use crate::test::target_dir;
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A program of `bench/`: its name in the table, its package, and its binary.
type Program = (&'static str, &'static str, &'static str);

const OURS: Program = ("osier-web", "bench-osier-hello", "hello");
const RIVALS: &[Program] = &[
    ("axum", "bench-axum-hello", "axum-hello"),
    ("actix-web", "bench-actix-hello", "actix-hello"),
    ("may_minihttp", "bench-may", "may-http"),
];

/// How often each hello program is built.
const ROUNDS: usize = 3;

/// Maximum crates of hello on osier-web.
const CRATES_MAX: f64 = 60.0;

/// Maximum seconds of the server's build, on two cores.
const SERVER_SECONDS_MAX: f64 = 120.0;

const HELLO: &str = "hello, release build";
const SERVER: &str = "osier-server, release build";

/// The lines of a run.
pub fn named() -> Vec<Named> {
    let rivals = RIVALS.iter().map(|rival| (HELLO, rival.0));
    let lines = [(HELLO, BOUND)].into_iter().chain(rivals).chain([(SERVER, BOUND)]);
    let named = |(row, rival): (&str, &str)| Named {
        row: row.into(),
        rival: rival.into(),
        goal: Some(1.0),
    };
    lines.map(named).collect()
}

/// Builds everything and returns the machine and the table.
pub fn measured() -> Result<(String, String), String> {
    for manifest in ["bench/Cargo.toml", "Cargo.toml"] {
        let mut fetch = step::cargo();
        fetch.args(["fetch", "--locked", "--manifest-path", manifest]);
        if !step::run(&mut fetch, LIMIT, |_| true) {
            return Err("cargo fetch failed".into());
        }
    }
    let machine = table::computer();
    let mut ours = vec![];
    let mut theirs: Vec<Vec<Built>> = RIVALS.iter().map(|_| vec![]).collect();
    for _ in 0..ROUNDS {
        ours.push(build(hello(OURS))?);
        for (built, rival) in theirs.iter_mut().zip(RIVALS) {
            built.push(build(hello(*rival))?);
        }
    }
    let mut lines = vec![bounded(HELLO, "crates", ours[0].crates as f64, CRATES_MAX)];
    let rivals = RIVALS.iter().zip(&theirs);
    lines.extend(rivals.map(|(rival, theirs)| compared(rival.0, &ours, theirs)));
    let mut server = step::cargo();
    server.args(["build", "--release", "--locked", "-p", "osier-server"]);
    let server = build(server)?;
    lines.push(Line {
        aside: format!("{} {:.0} s CPU", server.shown(), server.cpu.as_secs_f64()),
        ..bounded(SERVER, "s", server.took.as_secs_f64(), SERVER_SECONDS_MAX)
    });
    Ok((machine, table::rendered(&lines)))
}

const LIMIT: Duration = Duration::from_secs(30 * 60);

fn hello((_, package, binary): Program) -> Command {
    let mut command = build_command(package, "bench/Cargo.toml");
    command.args(["--locked", "--bin", binary]);
    command
}

/// A line that compares the builds of hello.
fn compared(rival: &str, ours: &[Built], theirs: &[Built]) -> Line {
    let cpu = |builds: &[Built]| builds.iter().map(|built| built.cpu.as_secs_f64()).collect();
    let shown = |builds: &[Built]| builds.first().map(Built::shown).unwrap_or_default();
    Line {
        row: HELLO.into(),
        rival: rival.into(),
        unit: "s CPU",
        ours: cpu(ours),
        theirs: cpu(theirs),
        goal: Some(1.0),
        aside: format!("{} / {}", shown(ours), shown(theirs)),
        failure: None,
    }
}

/// A line that compares a figure with its bound.
fn bounded(row: &str, unit: &'static str, figure: f64, bound: f64) -> Line {
    Line {
        row: row.into(),
        rival: BOUND.into(),
        unit,
        ours: vec![figure],
        theirs: vec![bound],
        goal: Some(1.0),
        aside: String::new(),
        failure: None,
    }
}

/// A finished build.
struct Built {
    crates: usize,
    took: Duration,
    cpu: Duration,
}

impl Built {
    fn shown(&self) -> String {
        format!("{} crates {:.0} s", self.crates, self.took.as_secs_f64())
    }
}

/// Runs a cargo command with an empty target folder.
fn build(mut command: Command) -> Result<Built, String> {
    let folder = target_dir().join("builds");
    empty(&folder)?;
    command
        .args(["--message-format", "json-render-diagnostics"])
        .env("CARGO_TARGET_DIR", &folder);
    let (start, cpu) = (Instant::now(), step::cpu_time());
    let mut crates = HashSet::new();
    let ok = step::run(&mut command, LIMIT, |line| {
        crates.extend(crate_of(line).map(str::to_string));
        !line.starts_with('{')
    });
    let (took, cpu) = (start.elapsed(), step::cpu_time() - cpu);
    empty(&folder)?;
    match ok {
        true => Ok(Built {
            crates: crates.len(),
            took,
            cpu,
        }),
        false => Err(format!("{} failed", step::shown(&command))),
    }
}

fn empty(folder: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if folder.exists() => Err(format!("{}: {error}", folder.display())),
        _ => Ok(()),
    }
}

/// The package that a message of cargo is about, if it has compiled something of it.
fn crate_of(message: &str) -> Option<&str> {
    let is_artifact = message.contains(r#""reason":"compiler-artifact""#);
    let (_, rest) = message.split_once(r#""package_id":""#).filter(|_| is_artifact)?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_counted_once() {
        let messages = [
            r#"{"reason":"compiler-artifact","package_id":"a 1","target":{"kind":["custom-build"]}}"#,
            r#"{"reason":"build-script-executed","package_id":"a 1"}"#,
            r#"{"reason":"compiler-artifact","package_id":"a 1","target":{"kind":["lib"]}}"#,
            "   Compiling a",
        ];
        let crates: HashSet<&str> = messages.iter().filter_map(|message| crate_of(message)).collect();
        assert_eq!(crates.len(), 1);
    }
}
