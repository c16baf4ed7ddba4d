//! The step `valgrind`: the switches of stacks in an emulated processor that watches memory.

use super::LIMIT;
use super::executables::{self, Executable, Plan};
use crate::peers;
use crate::step::Outcome;

/// Runs the modules of `coro/tests/it` that switch stacks, under valgrind. The other modules touch guard pages and exhaust
/// mappings on purpose, which valgrind reports or does not survive.
pub fn run(built: Vec<Executable>) -> Outcome {
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
