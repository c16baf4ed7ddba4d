//! The step `fuzz`: a few seconds of each fuzz target from its corpus.
//!
//! It shows a target that no longer builds or that dies at once. The flags are those that make the compiler count
//! branches and comparisons for libFuzzer, and the address sanitizer, so a nightly toolchain is needed and nothing else.

use super::executables::{self, Built, Executable};
use super::{LIMIT, host, target_dir};
use crate::root;
use crate::step::{self, Outcome, nightly_cargo};
use std::process::Command;

/// Instrumentation for libFuzzer, and checks that a release build leaves out.
const FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Zsanitizer=address",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-sanitizer-coverage-stack-depth",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Cdebug-assertions",
    "-Ccodegen-units=1",
];

pub fn build() -> Built {
    if let Err(why) = step::nightly() {
        return Err(Box::new(Outcome::skipped("fuzz", why)));
    }
    if !crate::peers::is_there("c++") {
        return Err(Box::new(Outcome::skipped(
            "fuzz",
            "no C++ compiler, which libFuzzer needs".into(),
        )));
    }
    let mut command = nightly_cargo();
    // With a target, the flags do not apply to build scripts.
    command.args([
        "build",
        "--release",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--bins",
        "--target",
        &host(),
    ]);
    command
        .env("RUSTFLAGS", FLAGS.join(" "))
        .env("CARGO_TARGET_DIR", target_dir().join("fuzz"));
    executables::build("fuzz", &mut command, LIMIT)
}

pub fn run(built: Vec<Executable>) -> Outcome {
    let commands: Vec<(String, Command)> = built
        .iter()
        .map(|target| (target.target.clone(), command(target)))
        .collect();
    let count = commands.len();
    let mut complaints = vec![];
    let cpu = executables::each_of(commands, LIMIT, |target, ended, lines| {
        lines.retain(|line| !is_dictionary(line));
        if !ended.ok {
            complaints.push(format!("{target} found something, see above"));
        }
    });
    step::add_cpu_time(cpu);
    Outcome {
        name: "fuzz".into(),
        passed: count - complaints.len(),
        failed: complaints.len(),
        checked: format!("{count} targets, 3 s each"),
        complaints,
        ..Outcome::default()
    }
}

fn command(target: &Executable) -> Command {
    // Findings of a run go to the first directory. The corpus itself is kept by hand.
    let found = target_dir().join("fuzz-corpus").join(&target.target);
    let _ = std::fs::create_dir_all(&found);
    let mut command = Command::new(&target.file);
    command.arg(&found).arg(root().join("fuzz/corpus").join(&target.target));
    command
        .args(["-max_total_time=3", "-verbosity=0", "-print_final_stats=1"])
        .current_dir(found);
    command
}

/// Whether a line is of the words that libFuzzer has learned, which nobody reads here.
fn is_dictionary(line: &str) -> bool {
    line.starts_with('"') || line.starts_with("######")
}
