//! The steps `mixing` and `mixing-docs`: Osier with other libraries.

use super::executables::{self, Built, Executable, Plan};
use super::{LIMIT, linted, target_dir};
use crate::step::{self, Outcome, cargo};
use std::sync::OnceLock;

/// The crates of this workspace that the run leaves out.
static LEFT_OUT: OnceLock<Vec<&'static str>> = OnceLock::new();

/// Leaves out these crates. Called at most once, before anything is built.
pub fn leave_out(crates: Vec<&'static str>) {
    LEFT_OUT.set(crates).expect("called at most once");
}

fn left_out() -> &'static [&'static str] {
    LEFT_OUT.get().map_or(&[], Vec::as_slice)
}

/// The tests that mix Osier with other libraries, those of `integrations/`, and its examples.
pub static TESTS: linted::Tests = linted::Tests::new("mixing", || {
    let mut command = cargo();
    command.args(["test", "--manifest-path", "mixing/Cargo.toml", "--workspace"]);
    command.args(left_out().iter().map(|name| format!("--exclude={name}")));
    if !left_out().contains(&"osier-tracing") {
        command.args(["--features", "osier-tracing/otlp"]);
    }
    command.env("CARGO_TARGET_DIR", target_dir());
    command
});

pub fn build() -> Built {
    TESTS.executables()
}

pub fn run(built: Vec<Executable>) -> Outcome {
    executables::run("mixing", built, &Plan::default(), LIMIT)
}

/// Runs the programs of `docs/mixing.md`, and those of the documentation of `integrations/`, with what the step `mixing` has built.
pub fn docs() -> Outcome {
    let mut command = TESTS.command();
    command.args(["--locked", "--doc"]);
    linted::compiler(&mut command);
    step::tests("mixing-docs", &mut command, LIMIT)
}
