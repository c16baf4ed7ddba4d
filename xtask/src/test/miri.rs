//! The step `miri`: the tests of `queue/` in an interpreter that sees undefined behaviour.
//!
//! The interpreter uses one core, so the modules of the tests run in processes of their own, two at a time. It needs a
//! nightly toolchain with the component `miri`.

use super::executables::{Built, Executable, run_commands};
use super::{LIMIT, target_dir};
use crate::root;
use crate::step::{self, Outcome, nightly_cargo};
use std::process::Command;

/// The folder whose files are the modules of the integration tests.
const MODULES: &str = "queue/tests/it";

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

/// Runs the unit tests, the examples in the documentation, and each module of the integration tests.
pub fn run(_: Vec<Executable>) -> Outcome {
    let modules = modules();
    let mut commands = vec![command("queue::doc ", &["--doc"], &[])];
    // Tests that are in no module would run here.
    let skips: Vec<&str> = modules.iter().flat_map(|module| ["--skip", module.as_str()]).collect();
    commands.push(command("queue::it ", &["--test", "it"], &skips));
    commands.push(command("queue::lib ", &["--lib"], &[]));
    let of_modules = modules
        .iter()
        .map(|module| command("queue::it ", &["--test", "it"], &[module]));
    commands.extend(of_modules);
    run_commands("miri", commands, LIMIT)
}

/// The names of the modules as filters of the test harness.
fn modules() -> Vec<String> {
    let entries = std::fs::read_dir(root().join(MODULES)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().trim_end_matches(".rs").to_string());
    let mut modules: Vec<String> = names.filter(|name| name != "main").map(|name| name + "::").collect();
    modules.sort();
    modules
}

fn command(label: &str, targets: &[&str], filters: &[&str]) -> (String, Command) {
    let mut command = miri();
    command.args(targets).args(["--", "--show-output"]).args(filters);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_the_files_beside_main() {
        let modules = modules();
        assert!(
            modules.contains(&"wheel::".to_string()) && !modules.contains(&"main::".to_string()),
            "{modules:?}"
        );
    }
}
