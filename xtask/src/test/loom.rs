//! The step `loom`: every interleaving of the models of `queue/`.

use super::executables::{self, Built, Executable, Plan};
use super::{LIMIT, target_dir};
use crate::step::{Outcome, cargo};

/// Builds the models of `queue/`. The ordinary tests are left out: with `--cfg loom` they have no atomics to run on. The
/// profile optimises, because loom explores every interleaving.
pub fn build() -> Built {
    let mut command = cargo();
    command.args(["test", "-p", "osier-queue", "--profile", "loom", "--test", "loom"]);
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", target_dir().join("loom"));
    executables::build("loom", &mut command, LIMIT)
}

pub fn run(built: Vec<Executable>) -> Outcome {
    executables::run("loom", built, &Plan::default(), LIMIT)
}
