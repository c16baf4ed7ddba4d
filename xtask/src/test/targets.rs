//! The steps `targets`, which checks types on systems where nothing runs, and `aarch64`, which runs tests on an emulated
//! processor.

use super::executables::{self, Built, Executable, Plan};
use super::{LIMIT, host};
use crate::step::{self, Outcome, cargo};
use std::process::Command;
use std::time::Duration;

/// The systems where the types are checked.
const SYSTEMS: &[&str] = &["x86_64-unknown-freebsd", "aarch64-apple-darwin"];

/// The packages for more than Linux.
const PACKAGES: &[&str] = &["osier-poll", "osier-queue", "osier-coro", "osier-http", "osier"];

/// Checks that the packages are well typed on each system.
pub fn types() -> Outcome {
    let mut command = cargo();
    command.args(["check", "--locked"]);
    for system in SYSTEMS {
        if !step::succeeds(Command::new("rustup").args(["target", "add", system])) {
            return Outcome::skipped("targets", format!("rustup cannot install {system}"));
        }
        command.args(["--target", system]);
    }
    for package in PACKAGES {
        command.args(["-p", package]);
    }
    let passed = step::run(&mut command, LIMIT, |_| true);
    let count = SYSTEMS.len() * PACKAGES.len();
    Outcome::one_check("targets", passed, count, "packages", Duration::ZERO)
}

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

/// Tests whose system calls the emulator does not do as the kernel does.
const EMULATED_WRONGLY: &[(&str, &str)] = &[
    ("what_cannot_be_started_is_an_error", EXEC),
    ("c_frames_are_reported_and_write_on_no_neighbour", GUARD),
    ("rust_recursion_is_reported", GUARD),
    ("both_kinds_of_guard_fault_and_leave_the_neighbours_alone", GUARD),
    ("stacks_in_locked_memory_are_guarded_too", GUARD),
    ("an_overflow_names_the_fiber", GUARD),
    (
        "exhausted_address_space_is_an_error_that_names_the_limit",
        "the emulator does not enforce RLIMIT_AS",
    ),
    ("a_fiber_deep_in_recursion_shows_its_functions_and_its_stack", DUMP),
    ("each_fiber_says_what_it_waits_for", DUMP),
    (
        "a_file_that_ends_early_is_sent_as_far_as_it_goes",
        "it does not end in the emulator; nobody has looked for the reason",
    ),
];

const EXEC: &str = "posix_spawn in the emulator does not report the error of exec";
const GUARD: &str = "the emulator accepts MADV_GUARD_INSTALL and installs nothing, so Guard::Auto guards nothing there";
const DUMP: &str = "it fails in the emulator; nobody has looked whether AArch64 or the emulator is the reason";
