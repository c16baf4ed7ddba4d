//! The step `asan`: the tests of the runtime and of the crates below it under AddressSanitizer, which also looks for memory that nobody
//! frees.
//!
//! It takes a quarter of an hour of CPU time, so it runs once a week. It needs a nightly toolchain and nothing else. A feature of `osier-coro`
//! tells the sanitizer of each switch of stacks.
//!
//! The search for lost memory does not look at the stacks of suspended coroutines. So [`KEPT`] names what is kept there for ever, and what
//! tests lose on purpose.

use super::executables::{self, Built, Executable, Plan};
use super::{LIMIT, host, target_dir};
use crate::step::{self, Outcome, nightly_cargo};

/// Handlers of faults stay those of the runtime, whose guard pages have tests. A frame whose function has returned is not watched: such
/// frames are kept for each thread, and a coroutine has a stack of its own.
const WATCHED: &str = "detect_stack_use_after_return=0:handle_segv=0:handle_sigbus=0";

/// Functions that allocate what is never freed: the stock of donors (`coro/src/panic_count.rs`), and what these tests forget, or give up at
/// the end of a runtime.
const KEPT: [&str; 6] = [
    "osier_coro::panic_count",
    "it::callbacks_wait::a_descriptor_that_is_borrowed_for_ever",
    "it::clock::a_shutdown_is_not_kept_by_a_clock_that_stands",
    "it::fiber::two_locals_that_use_each_other_as_they_end",
    "it::given::Bomb",
    "it::leaves_end::a_forgotten_wait",
];

/// Tests that the sanitizer breaks: they count allocations or bytes, look at a process from outside, use up its mappings, end a process with
/// what it has, or take minutes.
const SKIPPED: [&str; 10] = [
    "a_slot_is_a_cache_line",
    "behaves_like_a_sorted_list",
    "dropping_a_coroutine_that_catches_its_unwinding_for_ever",
    "exhausted_address_space_is_an_error",
    "gdb::",
    "memcheck",
    "no_wait_on_up_to_eight_leaves_allocates",
    "sim::destructors_that_spawn_for_ever",
    "the_debug_information_leaves_memory_when_nobody_looks",
    "too_many_mprotect_guards",
];

/// Executables of the runtime that end processes with fibers in them, which lose all that those fibers have.
const ENDING: [&str; 2] = ["shutdown", "watchdog"];

pub fn build() -> Built {
    if let Err(why) = step::nightly() {
        return Err(Box::new(Outcome::skipped("asan", why)));
    }
    let mut command = nightly_cargo();
    // With a target, the flags do not apply to build scripts and macros.
    command.args(["test", "--lib", "--tests", "--target", &host()]);
    command.args(["-p", "osier", "-p", "osier-coro", "-p", "osier-queue"]);
    command.args(["--features", "osier/sanitizer"]);
    command
        .env("RUSTFLAGS", "-Zsanitizer=address -Cforce-frame-pointers=yes")
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        // The names of inlined functions are looked up by it.
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        .env("CARGO_TARGET_DIR", target_dir().join("asan"));
    executables::build("asan", &mut command, LIMIT)
}

pub fn run(built: Vec<Executable>) -> Outcome {
    let kept = target_dir().join("asan/kept");
    let lines: String = KEPT.iter().map(|function| format!("leak:{function}\n")).collect();
    if let Err(error) = std::fs::write(&kept, lines) {
        return Outcome::skipped("asan", format!("{}: {error}", kept.display()));
    }
    let jobs = built.into_iter().map(|executable| {
        let leaks = match ENDING.contains(&executable.target.as_str()) {
            true => "detect_leaks=0",
            false => "detect_leaks=1",
        };
        let plan = Plan {
            args: SKIPPED
                .iter()
                .flat_map(|test| ["--skip", *test])
                .map(String::from)
                .collect(),
            env: vec![
                ("ASAN_OPTIONS", format!("{WATCHED}:{leaks}")),
                (
                    "LSAN_OPTIONS",
                    format!("suppressions={}:print_suppressions=0", kept.display()),
                ),
            ],
            runner: vec![],
        };
        (executable, plan)
    });
    executables::run_each("asan", jobs.collect(), LIMIT)
}
