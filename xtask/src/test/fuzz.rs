//! The steps `corpus` and `fuzz`: each fuzz target with its corpus alone, and a few seconds of fuzzing from there.
//!
//! Both show a target that no longer builds or that dies at once. `corpus` builds ordinary programs (`fuzz/lib.rs`), for each change. `fuzz`
//! takes five times as long, so it runs once a week. Its flags are those that make the compiler count branches and comparisons for libFuzzer,
//! and the address sanitizer, so a nightly toolchain is needed and nothing else.

use super::executables::{self, Built, Executable};
use super::{LIMIT, host, target_dir};
use crate::root;
use crate::step::{self, Outcome, cargo, nightly_cargo};
use std::path::PathBuf;
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

/// Builds the targets beside the tests, which have built some of their dependencies.
pub fn build_corpus() -> Built {
    let mut command = cargo();
    command.args(["build", "--manifest-path", "fuzz/Cargo.toml", "--bins"]);
    command.env("CARGO_TARGET_DIR", target_dir());
    executables::build("corpus", &mut command, LIMIT)
}

pub fn run_corpus(built: Vec<Executable>) -> Outcome {
    let command = |target: &Executable| {
        let mut command = Command::new(&target.file);
        command.arg(corpus(target));
        command
    };
    let mut inputs = 0;
    let outcome = each("corpus", &built, command, |lines| {
        let counts = lines
            .iter()
            .filter_map(|line| line.strip_suffix(" inputs")?.parse::<usize>().ok());
        inputs += counts.sum::<usize>();
    });
    Outcome {
        checked: format!("{} targets, {inputs} inputs", built.len()),
        ..outcome
    }
}

/// The inputs of a target that are kept by hand.
fn corpus(target: &Executable) -> PathBuf {
    root().join("fuzz/corpus").join(&target.target)
}

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
    let outcome = each("fuzz", &built, command, |lines| {
        lines.retain(|line| !is_dictionary(line))
    });
    Outcome {
        checked: format!("{} targets, 3 s each", built.len()),
        ..outcome
    }
}

/// Runs a command for each target. `read` gets the output, and what it leaves is printed.
fn each(
    name: &str,
    built: &[Executable],
    command: impl Fn(&Executable) -> Command,
    mut read: impl FnMut(&mut Vec<String>) + Send,
) -> Outcome {
    let commands = built.iter().map(|target| (target.target.clone(), command(target)));
    let mut complaints = vec![];
    let cpu = executables::each_of(executables::each(commands.collect()), LIMIT, |target, ended, lines| {
        read(lines);
        if !ended.ok {
            complaints.push(format!("{target} found something, see above"));
        }
    });
    step::add_cpu_time(cpu);
    Outcome {
        name: name.into(),
        passed: built.len() - complaints.len(),
        failed: complaints.len(),
        complaints,
        ..Outcome::default()
    }
}

fn command(target: &Executable) -> Command {
    // Findings of a run go to the first directory.
    let found = target_dir().join("fuzz-corpus").join(&target.target);
    let _ = std::fs::create_dir_all(&found);
    let mut command = Command::new(&target.file);
    command.arg(&found).arg(corpus(target));
    command
        .args(["-max_total_time=3", "-verbosity=0", "-print_final_stats=1"])
        .current_dir(found);
    command
}

/// Whether a line is of the words that libFuzzer has learned, which nobody reads here.
fn is_dictionary(line: &str) -> bool {
    line.starts_with('"') || line.starts_with("######")
}
