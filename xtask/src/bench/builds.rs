//! `cargo xtask bench --builds`: the build times of a hello server from nothing, on Osier and on other frameworks, in turn.
//!
//! Each hello program is compiled in release mode into an empty folder. The figure is CPU time of cargo and its children,
//! because it does not depend on the number of cores; seconds and crates are in the last column. Downloads come before.
//! The server itself has a line without a rival.

use super::table::{self, Line};
use super::{Plan, package_command};
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
    ("axum", "bench-axum", "axum"),
    ("actix-web", "bench-actix", "actix"),
    ("may_minihttp", "bench-may", "may-http"),
];

/// The heading of this table in `bench/RESULTS.md`.
pub const HEADING: &str = "\n## Builds from nothing\n";

/// Builds everything and returns the section for `bench/RESULTS.md`.
pub fn measured(plan: &Plan) -> Result<String, String> {
    let mut fetch = step::cargo();
    fetch.args(["fetch", "--locked", "--manifest-path", "bench/Cargo.toml"]);
    if !step::run(&mut fetch, LIMIT, |_| true) {
        return Err("cargo fetch failed".into());
    }
    let ours = build(hello(OURS))?;
    let mut lines = vec![];
    for rival in RIVALS {
        let theirs = build(hello(*rival))?;
        lines.push(line("hello, release build", rival.0, &ours, Some(&theirs), Some(1.0)));
    }
    let mut server = step::cargo();
    server.args(["build", "--release", "--locked", "-p", "osier-server"]);
    lines.push(line("osier-server, release build", "-", &build(server)?, None, None));
    Ok(format!(
        "{HEADING}\n{}\n{}",
        table::machine(plan),
        table::rendered(&lines)
    ))
}

const LIMIT: Duration = Duration::from_secs(30 * 60);

fn hello((_, package, binary): Program) -> Command {
    let mut command = package_command(package, "bench/Cargo.toml");
    command.args(["--locked", "--bin", binary]);
    command
}

fn line(row: &str, rival: &str, ours: &Built, theirs: Option<&Built>, goal: Option<f64>) -> Line {
    let shown = |built: &Built| format!("{} crates {:.0} s", built.crates, built.took.as_secs_f64());
    Line {
        row: row.into(),
        rival: rival.into(),
        unit: "s CPU",
        ours: vec![ours.cpu.as_secs_f64()],
        theirs: theirs.iter().map(|built| built.cpu.as_secs_f64()).collect(),
        goal,
        aside: theirs.map_or_else(|| shown(ours), |theirs| format!("{} / {}", shown(ours), shown(theirs))),
        failure: None,
    }
}

/// A finished build.
struct Built {
    crates: usize,
    took: Duration,
    cpu: Duration,
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
