//! `cargo xtask sim`: runs the simulations of `web/tests/it/sim`, each with a chosen range of seeds.
//!
//! The tests run the first seeds of each scenario in a debug build. This command uses an optimized build.

use crate::step::{self, Outcome, cargo};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The seeds of each scenario unless the command line says so.
const SEEDS: &str = "10000";
const LIMIT: Duration = Duration::from_secs(24 * 3600);

pub fn main(args: &[String]) -> ExitCode {
    let start = Instant::now();
    let (mut seeds, mut scenario) = (SEEDS, "");
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        match (arg, args.next()) {
            ("--seeds", Some(value)) => seeds = value,
            ("--scenario", Some(value)) => scenario = value,
            _ => {
                eprintln!("cargo xtask sim takes --seeds N, --seeds FIRST..END and --scenario NAME");
                return ExitCode::from(2);
            }
        }
    }
    let cpu = step::cpu_time();
    let mut command = cargo();
    command
        .args(["test", "--locked", "--release", "-p", "osier-web", "--test", "it"])
        .args(["--", "--show-output", &format!("sim::{scenario}")])
        .env("OSIER_SIM_SEEDS", seeds);
    let outcome = step::tests("sim", &mut command, LIMIT);
    let outcome = Outcome {
        took: start.elapsed(),
        cpu: step::cpu_time() - cpu,
        ..outcome
    };
    step::report(&[outcome], start.elapsed())
}
