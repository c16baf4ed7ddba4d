//! The steps `targets`, which checks types on systems where nothing runs, and `aarch64`, which runs tests on an emulated
//! processor.

use super::executables::{self, Built, Executable, Plan};
use super::{LIMIT, host};
use crate::step::{self, Outcome, cargo};
use crate::unchanged;
use std::process::Command;
use std::time::Duration;

/// The systems where the types are checked. A change is checked on the first, which lacks most of what Linux has.
const SYSTEMS: &[&str] = &["aarch64-apple-darwin", "x86_64-unknown-freebsd"];

/// The packages for more than Linux.
const PACKAGES: &[&str] = &["osier-poll", "osier-queue", "osier-coro", "osier-http", "osier"];

/// Checks that the packages, osier-tls and osier-web are well typed on each system. Unless the run is short, osier-web has all features, and the
/// server must say what to do there: cargo checks all its dependencies before it tells what the build script said.
pub fn types() -> Outcome {
    let systems = match unchanged::is_short() {
        true => &SYSTEMS[..1],
        false => SYSTEMS,
    };
    for system in systems {
        if !step::succeeds(Command::new("rustup").args(["target", "add", system])) {
            return Outcome::skipped("targets", format!("rustup cannot install {system}"));
        }
    }
    let mut command = check();
    if !unchanged::is_short() {
        // With its package it would be a feature of the dependency that the tests of osier-web have on osier-web, and no test is checked.
        command.args(["--features", "full"]);
    }
    let packages = || PACKAGES.iter().chain(&["osier-tls", "osier-web"]);
    command.args(packages().flat_map(|package| ["-p", *package]));
    command.args(systems.iter().flat_map(|system| ["--target", *system]));
    let is_well_typed = step::run(&mut command, LIMIT, |_| true);
    let servers = if unchanged::is_short() { &[] } else { systems };
    let passed = is_well_typed && servers.iter().all(|system| server_is_refused(system));
    let count = systems.len() * packages().count() + servers.len();
    Outcome::one_check("targets", passed, count, "packages", Duration::ZERO)
}

/// Whether the build of the server ends with the remedy of its build script, and not with errors of its dependencies.
fn server_is_refused(system: &str) -> bool {
    let mut command = check();
    command.args(["-p", "osier-server", "--no-default-features", "--target", system]);
    let output = command.output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let is_ill_typed = ["error[E", "could not compile"].iter().any(|part| text.contains(part));
    let refused = !output.status.success() && text.contains("the server runs on Linux only") && !is_ill_typed;
    if !refused {
        step::say(&format!(
            "the server does not say at once that it is not for {system}:\n{text}"
        ));
    }
    refused
}

/// `cargo check` without a C compiler for the other system. The types of Rust need nothing of what ring's and zstd-sys's build scripts make.
fn check() -> Command {
    let mut command = cargo();
    command.args(["check", "--locked"]);
    command.env("TARGET_CC", NO_C).env("TARGET_AR", NO_C);
    // Else the build scripts ask Xcode for its folder.
    command.env("SDKROOT", "/");
    command
}

/// A C compiler and an archiver that do nothing.
const NO_C: &str = "true";

const AARCH64: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";

/// Where Debian's cross compiler has the C library.
const C_LIBRARY: &str = "/usr/aarch64-linux-gnu";

/// Builds the tests of the packages for AArch64.
pub fn build_aarch64() -> Built {
    let skipped = |why: String| Err(Box::new(Outcome::skipped("aarch64", why)));
    if host().starts_with("aarch64") {
        return skipped("this machine is one: the step `tests` runs them".into());
    }
    for program in [LINKER, EMULATOR] {
        if !crate::peers::is_there(program) {
            return skipped(format!(
                "{program} is not installed (packages qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"
            ));
        }
    }
    if !step::succeeds(Command::new("rustup").args(["target", "add", AARCH64])) {
        return skipped(format!("rustup cannot install {AARCH64}"));
    }
    let mut command = cargo();
    command.args(["test", "--target", AARCH64, "--lib", "--tests"]);
    for package in PACKAGES {
        command.args(["-p", package]);
    }
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    // A test that asks for a dump reads the debug information. Without optimisation that takes the emulator ten seconds.
    for reader in ["addr2line", "backtrace", "gimli", "object"] {
        command.args(["--config", &format!("profile.dev.package.{reader}.opt-level=2")]);
    }
    executables::build("aarch64", &mut command, LIMIT)
}

/// Runs them in the emulator. The tests that it cannot run are skipped and listed.
pub fn run_aarch64(built: Vec<Executable>) -> Outcome {
    let skips = EMULATED_WRONGLY.iter().flat_map(|(test, _)| ["--skip", *test]);
    let plan = Plan {
        args: skips.map(String::from).collect(),
        env: vec![("OSIER_TEST_RUNNER", format!("{EMULATOR} -L {C_LIBRARY}"))],
        runner: vec![EMULATOR, "-L", C_LIBRARY],
    };
    let mut outcome = executables::run("aarch64", built, &plan, LIMIT);
    let skipped = EMULATED_WRONGLY.iter().map(|(test, why)| format!("{test}: {why}"));
    outcome.skipped.extend(skipped);
    outcome
}

/// Tests of system calls that the emulator does not do as the kernel does.
const EMULATED_WRONGLY: &[(&str, &str)] = &[
    (
        "what_cannot_be_started_is_an_error",
        "the emulator makes a fork of the vfork in posix_spawn, so the parent does not see the error of exec",
    ),
    (
        "exhausted_address_space_is_an_error_that_names_the_limit",
        "the emulator does not enforce RLIMIT_AS",
    ),
    (
        "a_job_that_all_threads_wait_for_is_an_error_if_no_thread_starts",
        "the emulator does not enforce RLIMIT_AS",
    ),
    (
        "a_call_on_a_file_whose_thread_does_not_start",
        "the emulator does not enforce RLIMIT_AS",
    ),
];
