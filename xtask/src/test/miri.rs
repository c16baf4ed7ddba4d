//! The step `miri`: the tests of `queue/` in an interpreter that sees undefined behaviour.
//!
//! The interpreter uses one core, so the unit tests, the integration tests and the programs of the documentation run in processes of their own,
//! two at a time. It needs a nightly toolchain with the component `miri`.

use super::executables::{Built, Executable, run_commands};
use super::{LIMIT, target_dir};
use crate::step::{self, Outcome, nightly_cargo};
use std::process::Command;

/// Builds everything that [`run`] runs.
pub fn build() -> Built {
    if step::has_nightly("miri").is_err() && step::nightly().is_ok() {
        step::succeeds(Command::new("rustup").args(["component", "add", "--toolchain", "nightly", "miri", "rust-src"]));
    }
    if let Err(why) = step::has_nightly("miri") {
        return Err(Box::new(Outcome::skipped("miri", why)));
    }
    let mut command = miri();
    command.args(["--lib", "--test", "it", "--no-run"]);
    match step::run(&mut command, LIMIT, |_| true) {
        // Cargo runs the executables, for they need its runner.
        true => Ok(vec![]),
        false => Err(Box::new(Outcome::one_check(
            "miri",
            false,
            0,
            "tests",
            Default::default(),
        ))),
    }
}

/// Runs the unit tests, the examples in the documentation, and the integration tests: the longest first.
pub fn run(_: Vec<Executable>) -> Outcome {
    let commands = vec![
        command("queue::doc ", &["--doc"]),
        command("queue::lib ", &["--lib"]),
        command("queue::it ", &["--test", "it"]),
    ];
    run_commands("miri", commands, LIMIT)
}

fn command(label: &str, targets: &[&str]) -> (String, Command) {
    let mut command = miri();
    command.args(targets).args(["--", "--show-output"]);
    (label.to_string(), command)
}

fn miri() -> Command {
    let mut command = nightly_cargo();
    command.args(["miri", "test", "-p", "osier-queue", "--locked", "--no-fail-fast"]);
    // proptest asks for the working directory, to find its regressions file. A backtrace takes the interpreter seconds.
    command
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env("RUST_BACKTRACE", "0")
        .env("CARGO_TARGET_DIR", target_dir().join("miri"));
    command
}
