//! `cargo xtask test`: every test there is.
//!
//! Called by people, by `ci.rs` and so by `.ci/run`. The steps in order: the programs the tests talk to, the tests of
//! the workspace, the examples in the documentation, the tests on the portable driver (on epoll and on poll(2)), the types
//! on FreeBSD, what the null servers of `bench/` count with, the libraries of `mixing/`, the loom models and
//! miri on `queue/`, valgrind on `coro/`, and a few seconds of each fuzz target. The steps share one target directory
//! except where compiler flags differ.

use crate::step::{self, Outcome, cargo, nightly_cargo};
use crate::{peers, root};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

type Step = (&'static str, fn() -> Outcome);

const STEPS: &[Step] = &[
    ("peers", install_peers),
    ("tests", workspace_tests),
    ("docs", doc_tests),
    ("portable", portable_driver),
    ("poll-backend", poll_backend),
    ("freebsd", freebsd_types),
    ("bench", floor_of_the_bench),
    ("mixing", other_libraries),
    ("loom", loom_models),
    ("miri", miri),
    ("valgrind", valgrind),
    ("fuzz", fuzz_smoke),
];

/// Far beyond what a step takes on two cores with nothing built; a step that hangs must not hang the run.
const LIMIT: Duration = Duration::from_secs(12 * 60);

pub fn main(wanted: &[String]) -> ExitCode {
    if let Some(unknown) = wanted.iter().find(|name| STEPS.iter().all(|(step, _)| step != name)) {
        let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).collect();
        eprintln!("no step {unknown:?}: choose from {}", names.join(" "));
        return ExitCode::from(2);
    }
    step::report(&run(wanted))
}

/// Runs the steps named, or all when none is.
pub fn run(wanted: &[String]) -> Vec<Outcome> {
    let chosen = STEPS
        .iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| w == name));
    chosen.map(|(_, step)| step()).collect()
}

fn install_peers() -> Outcome {
    let start = Instant::now();
    let missing = peers::install(peers::FOR_TESTS);
    for why in &missing {
        println!("skipped: {why}");
    }
    let there = peers::FOR_TESTS.len() - missing.len();
    Outcome {
        name: "peers".into(),
        passed: 0,
        failed: 0,
        skipped: missing,
        checked: format!("{there} programs"),
        complaints: vec![],
        took: start.elapsed(),
    }
}

fn workspace_tests() -> Outcome {
    let mut command = cargo();
    command.args([
        "test",
        "--workspace",
        "--all-targets",
        "--no-fail-fast",
        "--",
        "--show-output",
    ]);
    step::tests("tests", &mut command, LIMIT)
}

fn doc_tests() -> Outcome {
    let mut command = cargo();
    command.args(["test", "--workspace", "--doc", "--no-fail-fast", "--", "--show-output"]);
    step::tests("docs", &mut command, LIMIT)
}

/// The tests of what stands on a driver once more, on the one that other systems have. What its handlers say to browsers,
/// interpreters and other servers does not depend on it, and takes minutes: those run once.
fn portable_driver() -> Outcome {
    let mut command = cargo();
    command.args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]);
    command.args(["--", "--show-output"]);
    for once in ONCE {
        command.args(["--skip", once]);
    }
    command.env("OSIER_DRIVER", "portable");
    step::tests("portable", &mut command, LIMIT)
}

/// Tests whose peers take long and do not care how we wait.
const ONCE: &[&str] = &[
    "two_tabs_chat",
    "charts_move_and_fibers_are_shown",
    "every_page_fits_a_phone_and_a_desktop_in_light_and_dark",
    "who_may_not_see_is_told_so",
    "a_wiki_is_installed_and_written",
    "python_websockets_agrees",
    "npm_ws_agrees",
    "a_tunnel_with_bytes_in_one_direction_goes_on",
];

/// The same driver on poll(2), which the `polling` crate is built for by a flag of its own: no edges, and no kernel that
/// remembers.
fn poll_backend() -> Outcome {
    let mut command = cargo();
    command.args([
        "test",
        "-p",
        "osier-poll",
        "-p",
        "osier",
        "--lib",
        "--tests",
        "--no-fail-fast",
    ]);
    command.args(["--", "--show-output"]);
    command
        .env("OSIER_DRIVER", "portable")
        .env("RUSTFLAGS", "--cfg polling_test_poll_backend")
        .env("CARGO_TARGET_DIR", target_dir().join("poll-backend"));
    step::tests("poll-backend", &mut command, LIMIT)
}

/// Nothing runs on FreeBSD here; that the poller is still well typed there is all that is checked.
fn freebsd_types() -> Outcome {
    const TARGET: &str = "x86_64-unknown-freebsd";
    let start = Instant::now();
    if !step::succeeds(Command::new("rustup").args(["target", "add", TARGET])) {
        return Outcome::skipped("freebsd", format!("rustup cannot install {TARGET}"));
    }
    let mut command = cargo();
    command.args(["check", "--target", TARGET]);
    for package in FREEBSD {
        command.args(["-p", package]);
    }
    let passed = step::run(&mut command, LIMIT, |_| true);
    Outcome::one_check("freebsd", passed, FREEBSD.len(), "packages", start.elapsed())
}

/// What is written for more than Linux.
const FREEBSD: &[&str] = &["osier-poll", "osier-queue", "osier-coro", "osier"];

/// The rivals are not built here, but what the null servers count with is tested.
fn floor_of_the_bench() -> Outcome {
    let mut command = cargo();
    command.args([
        "test",
        "--manifest-path",
        "bench/Cargo.toml",
        "-p",
        "heads",
        "--lib",
        "--",
        "--show-output",
    ]);
    command.env("CARGO_TARGET_DIR", bench_target_dir());
    step::tests("bench", &mut command, LIMIT)
}

/// What is mixed with Osier, each library for real, and the programs of `docs/mixing.md`.
fn other_libraries() -> Outcome {
    let mut command = cargo();
    command.args(["test", "--manifest-path", "mixing/Cargo.toml", "--no-fail-fast"]);
    command.args(["--", "--show-output"]);
    command.env("CARGO_TARGET_DIR", mixing_target_dir());
    step::tests("mixing", &mut command, LIMIT)
}

/// The models are the tests of `queue/` whose names say loom: with `--cfg loom` the ordinary ones have no atomics to
/// run on. Release, because loom explores every interleaving.
fn loom_models() -> Outcome {
    let mut command = cargo();
    command.args([
        "test",
        "-p",
        "osier-queue",
        "--release",
        "--no-fail-fast",
        "--lib",
        "--tests",
    ]);
    command.args(["--", "--show-output"]);
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", target_dir().join("loom"));
    step::tests("loom", &mut command, LIMIT)
}

fn miri() -> Outcome {
    if step::has_nightly("miri").is_err() && step::has_nightly("version").is_ok() {
        step::succeeds(Command::new("rustup").args(["component", "add", "--toolchain", "nightly", "miri", "rust-src"]));
    }
    if let Err(why) = step::has_nightly("miri") {
        return Outcome::skipped("miri", why);
    }
    let mut command = nightly_cargo();
    command.args([
        "miri",
        "test",
        "-p",
        "osier-queue",
        "--no-fail-fast",
        "--",
        "--show-output",
    ]);
    // proptest asks for the working directory, to find its regressions file.
    command
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env("CARGO_TARGET_DIR", target_dir().join("miri"));
    step::tests("miri", &mut command, LIMIT)
}

/// Runs the modules of `coro/tests/it` that switch stacks, under valgrind. The other modules touch guard pages and exhaust
/// mappings on purpose, which valgrind reports or does not survive.
fn valgrind() -> Outcome {
    if !peers::is_there("valgrind") {
        return Outcome::skipped("valgrind", "valgrind is not installed".into());
    }
    let mut command = cargo();
    command.args(["test", "-p", "osier-coro", "--test", "it", "--no-fail-fast"]);
    command.args(["--", "--show-output", "coroutine::", "panic_count::"]);
    let runner = format!("CARGO_TARGET_{}_RUNNER", host().to_uppercase().replace(['-', '.'], "_"));
    command.env(runner, "valgrind --quiet --error-exitcode=99");
    step::tests("valgrind", &mut command, LIMIT)
}

/// A few seconds of each target from its corpus: enough to see a target that no longer builds or dies at once.
fn fuzz_smoke() -> Outcome {
    let start = Instant::now();
    if let Err(why) = step::has_nightly("fuzz") {
        return Outcome::skipped("fuzz", format!("{why} (cargo install cargo-fuzz)"));
    }
    let targets = said(nightly_cargo().args(["fuzz", "list", "--fuzz-dir", "fuzz"]));
    let survived = targets.lines().filter(|target| {
        // What a run finds goes to the first directory; the corpus itself is kept by hand.
        let found = target_dir().join("fuzz-corpus").join(target);
        let _ = std::fs::create_dir_all(&found);
        let mut command = nightly_cargo();
        command
            .args(["fuzz", "run", "--fuzz-dir", "fuzz", target])
            .arg(found)
            .arg(format!("fuzz/corpus/{target}"));
        command.args(["--", "-max_total_time=5", "-verbosity=0", "-print_final_stats=1"]);
        step::run(&mut command, LIMIT, is_no_dictionary)
    });
    let survived = survived.count();
    Outcome {
        name: "fuzz".into(),
        passed: survived,
        // No target at all is a failure like any other step that checked nothing.
        failed: targets.lines().count().max(1) - survived,
        skipped: vec![],
        checked: format!("{} targets, 5 s each", targets.lines().count()),
        complaints: vec![],
        took: start.elapsed(),
    }
}

/// libFuzzer ends with the words it has learned, which nobody reads here.
fn is_no_dictionary(line: &str) -> bool {
    !line.starts_with('"') && !line.starts_with("######")
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

/// Where the workspace of `mixing/` is built, which wants less debug information than ours.
pub fn mixing_target_dir() -> PathBuf {
    target_dir().join("mixing")
}

/// The target triple of this machine, as the compiler names it.
fn host() -> String {
    let said = said(Command::new("rustc").arg("-vV"));
    said.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap_or_default()
        .to_string()
}

/// What a program prints; nothing if it could not be run.
fn said(command: &mut Command) -> String {
    let output = command
        .stderr(Stdio::null())
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}
