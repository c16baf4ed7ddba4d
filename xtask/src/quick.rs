//! `cargo xtask quick [CRATE]`: the checks to run while one works on a crate.
//!
//! Formatting of the workspace, then clippy and the tests of one crate, or of the workspace without its integration tests.

use crate::ci;
use crate::step::{self, Outcome, cargo};
use crate::test::{FEATURES, LIMIT};
use std::process::ExitCode;
use std::time::Instant;

pub fn main(args: &[String]) -> ExitCode {
    let start = Instant::now();
    let packages = match args {
        [] => [&["--workspace"], &FEATURES[..]].concat(),
        [package] => match named(package) {
            "osier-server" => vec!["-p", "osier-server", FEATURES[0]],
            package => vec!["-p", package],
        },
        _ => {
            eprintln!("cargo xtask quick takes one crate at most");
            return ExitCode::from(2);
        }
    };
    let outcomes = [timed(ci::fmt), timed(|| clippy(&packages)), timed(|| tests(&packages))];
    step::report(&outcomes, start.elapsed())
}

fn clippy(packages: &[&str]) -> Outcome {
    ci::linted("clippy", cargo().arg("clippy").args(packages))
}

fn tests(packages: &[&str]) -> Outcome {
    let mut command = cargo();
    command.args(["test", "--locked", "--no-fail-fast"]).args(packages);
    let whole = packages.contains(&"--workspace");
    command.args(if whole { &["--lib", "--bins"][..] } else { &["--tests"] });
    command.args(["--", "--show-output"]);
    step::tests("tests", &mut command, LIMIT)
}

/// The package in a folder of the repository; any other name is a package's own.
fn named(name: &str) -> &str {
    match name.trim_end_matches('/') {
        // The tests of the attributes are osier's.
        "runtime" | "macros" => "osier",
        "coro" => "osier-coro",
        "examples" => "osier-examples",
        "http" => "osier-http",
        "poll" => "osier-poll",
        "queue" => "osier-queue",
        "server" => "osier-server",
        "tls" => "osier-tls",
        "web" => "osier-web",
        name => name,
    }
}

fn timed(step: impl FnOnce() -> Outcome) -> Outcome {
    let (start, cpu) = (Instant::now(), step::cpu_time());
    let outcome = step();
    Outcome {
        took: start.elapsed(),
        cpu: step::cpu_time() - cpu,
        ..outcome
    }
}
