//! `cargo xtask test`: every test of the repository.
//!
//! A step compiles, and then runs what it has compiled (`lanes.rs`). The steps share one target directory except where
//! compiler flags or lock files differ, so that a third-party crate is compiled once for each set of flags.

pub mod api;
mod asan;
mod crates;
mod executables;
mod features;
mod fuzz;
pub mod instructions;
mod lanes;
pub mod linted;
mod miri;
mod targets;

pub use executables::{Built, Executable, is_complaint, is_own_target};
pub use lanes::{Lane, Step, Work, run};

use crate::step::{self, Outcome, cargo};
use crate::{peers, root, unchanged};
use executables::Plan;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The steps, in the order in which they compile. The longest computations come first, and then the build in which one crate keeps one core
/// busy for a minute, `instructions`.
pub const STEPS: &[Step] = &[
    of("peers", Work::Run(install_peers)),
    of("tests", Work::Both(workspace, Lane::Tests, workspace_tests)),
    of("portable", Work::Both(workspace, Lane::Tests, portable_driver)),
    of("valgrind", Work::Both(workspace, Lane::Computations, valgrind)),
    of("miri", Work::Apart(miri::build, Lane::Computations, miri::run)),
    of("loom", Work::Apart(build_loom, Lane::Computations, loom_models)),
    of(
        "instructions",
        Work::Apart(instructions::build, Lane::Computations, instructions::check),
    ),
    of("docs", Work::Compile(doc_tests)),
    of("mixing", Work::Both(build_mixing, Lane::Tests, other_libraries)),
    of("mixing-docs", Work::Compile(mixing_docs)),
    of(
        "poll-backend",
        Work::Apart(build_poll_backend, Lane::Tests, poll_backend),
    ),
    of(
        "corpus",
        Work::Apart(fuzz::build_corpus, Lane::Computations, fuzz::run_corpus),
    ),
    of("fuzz", Work::Apart(fuzz::build, Lane::Computations, fuzz::run)),
    of("asan", Work::Apart(asan::build, Lane::Tests, asan::run)),
    of("bench", Work::Apart(build_heads, Lane::Tests, floor_of_the_bench)),
    features::step::<0>(),
    features::step::<1>(),
    features::step::<2>(),
    features::step::<3>(),
    features::step::<4>(),
    of("targets", Work::Check(targets::types)),
    of("api", Work::Check(api::compare)),
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

fn workspace_tests(built: Vec<Executable>) -> Outcome {
    executables::run("tests", built, &Plan::default(), LIMIT)
}

/// Runs the programs in the documentation. rustdoc compiles those of a crate as one, unless it is asked for the output of those that pass.
fn doc_tests() -> Outcome {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
    command.args(FEATURES).args(excluded());
    linted::compiler(&mut command);
    step::tests("docs", &mut command, LIMIT)
}

/// Runs the tests of the poller and of the runtime once more, on the driver for systems without epoll. Above the runtime
/// nothing depends on the driver, so one module of osier-web's tests stands for the rest. Once a week those tests run as well that look at
/// fibers from outside, or whose driver is the simulation.
fn portable_driver(built: Vec<Executable>) -> Outcome {
    let portable = ("OSIER_DRIVER", "portable".to_string());
    let jobs = built.into_iter().filter_map(|executable| {
        let args = match (executable.package().as_str(), executable.target.as_str()) {
            ("runtime", "watchdog") if unchanged::is_short() => return None,
            ("runtime", "it") if unchanged::is_short() => DRIVERLESS
                .iter()
                .flat_map(|module| ["--skip", *module])
                .map(String::from)
                .collect(),
            ("poll" | "runtime", _) => vec![],
            ("web", "it") => vec![WEB_SMOKE.to_string()],
            _ => return None,
        };
        let env = vec![portable.clone()];
        Some((
            executable,
            Plan {
                args,
                env,
                runner: vec![],
            },
        ))
    });
    executables::run_each("portable", jobs.collect(), LIMIT)
}

/// Modules of osier's tests that do not depend on the driver. Two of them read debug information, which takes long.
const DRIVERLESS: [&str; 3] = ["dump::", "gdb::", "sim::"];

/// The module of osier-web's tests that also runs on the portable driver.
const WEB_SMOKE: &str = "keepalive::";

/// Builds the tests of the portable driver with poll(2) below it. The `polling` crate has a flag of its own for that:
/// level-triggered, without any state in the kernel. The contract of the poller has its tests in `poll/`. Those of the runtime, which
/// take 110 s of CPU time more, do not run for a change.
fn build_poll_backend() -> Built {
    let mut command = cargo();
    command.args(["test", "-p", "osier-poll", "--lib", "--tests"]);
    if !unchanged::is_short() {
        command.args(["-p", "osier"]);
    }
    command.env("RUSTFLAGS", "--cfg polling_test_poll_backend");
    command.env("CARGO_TARGET_DIR", target_dir().join("poll-backend"));
    executables::build("poll-backend", &mut command, LIMIT)
}

fn poll_backend(built: Vec<Executable>) -> Outcome {
    let env = vec![("OSIER_DRIVER", "portable".to_string())];
    executables::run("poll-backend", built, &Plan { env, ..Plan::default() }, LIMIT)
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

/// The tests that mix Osier with other libraries, those of `integrations/`, and its examples.
pub static MIXING: linted::Tests = linted::Tests::new("mixing", || {
    let mut command = cargo();
    command.args(["test", "--manifest-path", "mixing/Cargo.toml", "--workspace"]);
    command.args(["--features", "osier-tracing/otlp"]);
    command.env("CARGO_TARGET_DIR", target_dir());
    command
});

fn build_mixing() -> Built {
    MIXING.executables()
}

fn other_libraries(built: Vec<Executable>) -> Outcome {
    executables::run("mixing", built, &Plan::default(), LIMIT)
}

/// Runs the programs of `docs/mixing.md`, and those of the documentation of `integrations/`, with what the step `mixing` has built.
fn mixing_docs() -> Outcome {
    let mut command = MIXING.command();
    command.args(["--locked", "--doc"]);
    linted::compiler(&mut command);
    step::tests("mixing-docs", &mut command, LIMIT)
}

/// Builds the models of `queue/`. The ordinary tests are left out: with `--cfg loom` they have no atomics to run on. The
/// profile optimises, because loom explores every interleaving.
fn build_loom() -> Built {
    let mut command = cargo();
    command.args([
        "test",
        "-p",
        "osier-queue",
        "--profile",
        "loom",
        "--lib",
        "--test",
        "loom",
    ]);
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", target_dir().join("loom"));
    executables::build("loom", &mut command, LIMIT)
}

fn loom_models(built: Vec<Executable>) -> Outcome {
    executables::run("loom", built, &Plan::default(), LIMIT)
}

/// Runs the modules of `coro/tests/it` that switch stacks, under valgrind. The other modules touch guard pages and exhaust
/// mappings on purpose, which valgrind reports or does not survive.
fn valgrind(built: Vec<Executable>) -> Outcome {
    if !peers::is_there("valgrind") {
        return Outcome::skipped("valgrind", "valgrind is not installed".into());
    }
    let is_switching = |executable: &Executable| executable.package() == "coro" && executable.target == "it";
    let plan = Plan {
        args: ["coroutine::", "panic_count::"].map(String::from).to_vec(),
        runner: vec!["valgrind", "--quiet", "--error-exitcode=99"],
        ..Plan::default()
    };
    let built = built.into_iter().filter(is_switching).collect();
    executables::run("valgrind", built, &plan, LIMIT)
}

/// Where cargo builds.
pub fn target_dir() -> PathBuf {
    let dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(dir)
}

/// Cargo for checks of types and for documents, which need no code of a library. Beside other steps they have a directory of their own, so
/// that they do not wait for the build of the tests. Nothing is linked there, so the build scripts need no C compiler.
pub fn checked() -> Command {
    let mut command = cargo();
    command.env("CARGO_TARGET_DIR", checked_target_dir());
    if lanes::overlap() {
        command.env("HOST_CC", NO_C).env("HOST_AR", NO_C);
    }
    command
}

/// Where types are checked.
pub fn checked_target_dir() -> PathBuf {
    match lanes::overlap() {
        true => target_dir().join("check"),
        false => target_dir(),
    }
}

/// A C compiler and an archiver that do nothing.
const NO_C: &str = "true";

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
