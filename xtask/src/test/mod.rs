//! `cargo xtask test`: every test of the repository.
//!
//! A step compiles, and then runs what it has compiled (`lanes.rs`). The steps share one target directory except where
//! compiler flags or profiles differ, so that a third-party crate is compiled once for each set of flags. Checks of types share it, too: their
//! build scripts and macros are those of the tests.

pub mod api;
mod asan;
mod crates;
mod executables;
mod features;
mod fuzz;
pub mod instructions;
mod lanes;
pub mod linted;
mod loom;
mod miri;
pub mod mixing;
mod portable;
mod targets;
mod valgrind;

pub use executables::{Built, Executable, is_complaint, is_own_target};
pub use lanes::{Lane, Step, Work, run};

use crate::step::{self, Outcome, cargo};
use crate::{peers, root};
use executables::Plan;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// The steps, in the order in which they compile. The longest computations come first, and then the build in which one crate keeps one core
/// busy for a minute, `instructions`.
pub const STEPS: &[Step] = &[
    of("peers", Work::Run(install_peers)),
    of("tests", Work::AsBuilt(build_workspace, workspace_tests)),
    of("portable", Work::Both(workspace, Lane::Tests, portable::run)),
    of("valgrind", Work::Both(workspace, Lane::Computations, valgrind::run)),
    of("miri", Work::Apart(miri::build, Lane::Computations, miri::run)),
    of("loom", Work::Apart(loom::build, Lane::Computations, loom::run)),
    of(
        "instructions",
        Work::Apart(instructions::build, Lane::Computations, instructions::check),
    ),
    of("mixing", Work::Both(mixing::build, Lane::Tests, mixing::run)),
    of(
        "corpus",
        Work::Both(fuzz::build_corpus, Lane::Computations, fuzz::run_corpus),
    ),
    of("docs", Work::Compile(doc_tests)),
    of("mixing-docs", Work::Compile(mixing::docs)),
    of(
        "poll-backend",
        Work::Apart(portable::build_with_poll, Lane::Tests, portable::run_with_poll),
    ),
    of("fuzz", Work::Apart(fuzz::build, Lane::Computations, fuzz::run)),
    of("asan", Work::Apart(asan::build, Lane::Tests, asan::run)),
    of("bench", Work::Apart(build_heads, Lane::Tests, floor_of_the_bench)),
    of("features", Work::Compile(features::check)),
    of("targets", Work::Compile(targets::types)),
    of("api", Work::Compile(api::compare)),
    of("package", Work::Compile(crates::package)),
];

/// Steps that run only when they are named: each takes minutes, and no change of one line needs it.
const ON_REQUEST: &[Step] = &[
    of(
        "aarch64",
        Work::Both(targets::build_aarch64, Lane::Tests, targets::run_aarch64),
    ),
    of("aws-lc-rs", Work::Both(build_aws_lc_rs, Lane::Tests, aws_lc_rs)),
];

const fn of(name: &'static str, work: Work) -> Step {
    Step { name, work }
}

/// The features of every build of the whole workspace: all defaults except the server's, which then has ring's cryptography. The C code of
/// aws-lc-rs takes half a minute of CPU time to build. Packages have it, and the step `aws-lc-rs` tests with it. The features of osier-poll
/// come with osier's: cargo refuses a feature of a crate that no selected one depends on.
pub const FEATURES: [&str; 3] = [
    "--no-default-features",
    "--features",
    "osier/default,osier-http/default,osier-tls/default",
];

/// Far beyond the time of any step with nothing built, on two slow cores that other programs use too. A step that hangs must not hang
/// the run.
pub const LIMIT: Duration = Duration::from_secs(25 * 60);

pub fn main(wanted: &[String]) -> ExitCode {
    let known = || STEPS.iter().chain(ON_REQUEST);
    if let Some(unknown) = wanted.iter().find(|name| known().all(|step| step.name != **name)) {
        let names: Vec<&str> = known().map(|step| step.name).collect();
        eprintln!("no step {unknown:?}: choose from {}", names.join(" "));
        return ExitCode::from(2);
    }
    let start = Instant::now();
    let steps: Vec<Step> = match wanted {
        [] => STEPS.to_vec(),
        _ => known()
            .filter(|step| wanted.iter().any(|name| name == step.name))
            .copied()
            .collect(),
    };
    step::report(&run(&steps), start.elapsed())
}

fn install_peers() -> Outcome {
    let missing = peers::install(peers::FOR_TESTS);
    for why in &missing {
        step::say(&format!("skipped: {why}"));
    }
    let there = peers::FOR_TESTS.len() - missing.len();
    Outcome {
        name: "peers".into(),
        skipped: missing,
        checked: format!("{there} programs"),
        ..Outcome::default()
    }
}

/// The crates whose tests and documentation this run leaves out.
static LEFT_OUT: OnceLock<Vec<&'static str>> = OnceLock::new();

/// Leaves out the tests and the documentation of these crates. Called at most once, before anything is built.
pub fn leave_out(crates: Vec<&'static str>) {
    LEFT_OUT.set(crates).expect("called at most once");
}

/// Whether this run leaves a crate out.
pub fn is_left_out(name: &str) -> bool {
    LEFT_OUT.get().is_some_and(|left_out| left_out.contains(&name))
}

/// The options of cargo that leave crates out.
pub fn excluded() -> impl Iterator<Item = String> {
    let left_out = LEFT_OUT.get().into_iter().flatten();
    left_out.map(|name| format!("--exclude={name}"))
}

/// The tests of the workspace.
pub static WORKSPACE: linted::Tests = linted::Tests::new("tests", || {
    let mut command = cargo();
    command.args(["test", "--workspace"]).args(FEATURES);
    command.args(excluded());
    command
});

/// The program that lists an API, which no integration test builds. The build of the tests has it with `cfg(test)` alone, and all that is below
/// it. The same is true of xtask, whose warnings the compiler prints at the start of each command.
pub static TOOLS: linted::Tests = linted::Tests::new("clippy-tools", || {
    let mut command = cargo();
    // With the workspace, whose features their dependencies have been built with.
    command.args(["build", "--workspace"]).args(FEATURES);
    command.args(excluded()).args(["--bin", "xtask-api"]);
    command
});

pub fn workspace() -> Built {
    WORKSPACE.executables()
}

/// The packages whose integration tests start programs of the package. Cargo may build those after the tests.
const WITH_PROGRAMS: [&str; 2] = ["examples", SERVER];

/// The one of them that has a single program.
const SERVER: &str = "server";

/// Tests that are built and cannot run yet.
#[derive(Default)]
struct Held {
    tests: Vec<Executable>,
    has_server: bool,
}

impl Held {
    /// Takes an executable, and gives the tests that can run now.
    fn take(&mut self, executable: &Executable, is_test: bool) -> Vec<Executable> {
        let package = executable.package();
        let waits = executable.target == "it" && WITH_PROGRAMS.contains(&package.as_str());
        match is_test {
            true if waits => self.tests.push(executable.clone()),
            true => return vec![executable.clone()],
            false => self.has_server |= package == SERVER,
        }
        let can_run = |test: &mut Executable| self.has_server && test.package() == SERVER;
        self.tests.extract_if(.., can_run).collect()
    }
}

/// Gives each test to the thread that runs them as soon as it can run.
fn build_workspace(built: &Sender<Executable>) -> Result<(), Box<Outcome>> {
    // That thread takes all.
    let run = |test: Executable| drop(built.send(test));
    let mut held = Held::default();
    WORKSPACE.build(|executable, is_test| held.take(executable, is_test).into_iter().for_each(run))?;
    held.tests.into_iter().for_each(run);
    Ok(())
}

fn workspace_tests(built: Receiver<Executable>) -> Outcome {
    executables::run_as_built("tests", built, LIMIT)
}

/// Runs the programs in the documentation. rustdoc compiles those of a crate as one, unless it is asked for the output of those that pass.
fn doc_tests() -> Outcome {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
    command.args(FEATURES).args(excluded());
    linted::compiler(&mut command);
    step::tests("docs", &mut command, LIMIT)
}

/// Builds the tests of TLS with the cryptography that packages have.
fn build_aws_lc_rs() -> Built {
    let mut command = cargo();
    command.args(["test", "-p", "osier-tls", "--lib", "--tests", "--features", "aws-lc-rs"]);
    executables::build("aws-lc-rs", &mut command, LIMIT)
}

fn aws_lc_rs(built: Vec<Executable>) -> Outcome {
    executables::run("aws-lc-rs", built, &Plan::default(), LIMIT)
}

/// Builds the tests of the counter that the null servers of `bench/` use. The rivals are not built here.
fn build_heads() -> Built {
    let mut command = cargo();
    command.args(["test", "--manifest-path", "bench/Cargo.toml", "-p", "heads", "--lib"]);
    command.env("CARGO_TARGET_DIR", bench_target_dir());
    executables::build("bench", &mut command, LIMIT)
}

fn floor_of_the_bench(built: Vec<Executable>) -> Outcome {
    executables::run("bench", built, &Plan::default(), LIMIT)
}

/// Where cargo builds.
pub fn target_dir() -> PathBuf {
    let dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(dir)
}

/// Where the workspace of `bench/` is built: its packages have other features than ours of the same name.
pub fn bench_target_dir() -> PathBuf {
    target_dir().join("bench")
}

/// The target triple of this machine, as the compiler names it.
pub fn host() -> String {
    let said = step::output(Command::new("rustc").arg("-vV"));
    said.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap_or_default()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn names_a_program(path: &Path) -> bool {
        match path.is_dir() {
            true => std::fs::read_dir(path)
                .unwrap()
                .any(|entry| names_a_program(&entry.unwrap().path())),
            false => std::fs::read_to_string(path).is_ok_and(|text| text.contains("CARGO_BIN_EXE_")),
        }
    }

    #[test]
    fn tests_of_the_server_run_once_it_is_built() {
        let executable = |package: &str, target: &str| Executable {
            folder: package.into(),
            target: target.into(),
            file: target.into(),
        };
        let (server, tests) = (executable("server", "osier"), executable("server", "it"));
        for order in [[&server, &tests], [&tests, &server]] {
            let mut held = Held::default();
            assert_eq!(held.take(order[0], order[0] == &tests), []);
            // Its unit tests need no program.
            assert_eq!(held.take(&server, true), std::slice::from_ref(&server));
            assert_eq!(held.take(&executable("examples", "it"), true), []);
            assert_eq!(held.take(&executable("examples", "echo"), false), []);
            assert_eq!(held.take(order[1], order[1] == &tests), std::slice::from_ref(&tests));
            assert_eq!(held.tests, [executable("examples", "it")]);
        }
    }

    #[test]
    fn tests_that_start_programs_of_their_package_are_known() {
        let mut packages: Vec<String> = vec![];
        for entry in std::fs::read_dir(root()).unwrap() {
            let path = entry.unwrap().path();
            // Other workspaces have steps of their own.
            let is_of_workspace =
                std::fs::read_to_string(path.join("Cargo.toml")).is_ok_and(|text| !text.contains("[workspace]"));
            for program in path
                .join("tests")
                .read_dir()
                .into_iter()
                .flatten()
                .filter(|_| is_of_workspace)
            {
                let program = program.unwrap().path();
                if names_a_program(&program) {
                    assert!(program.ends_with("it"), "{}", program.display());
                    packages.push(path.file_name().unwrap().display().to_string());
                }
            }
        }
        packages.sort();
        assert_eq!(packages, WITH_PROGRAMS);
    }
}
