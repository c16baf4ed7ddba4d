//! `cargo xtask sim`: runs the simulations of servers, gateways and an example, each with a chosen range of seeds.
//!
//! They are in `web/tests/it/sim`, in modules `sim` beside the code that they simulate, and in `examples/tests/it/simulation.rs`. The tests run
//! the first seeds of each scenario in a debug build. This command uses an optimized build without LTO, which takes longer than the runs.

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
    // A scenario is a module of tests/it/sim, or a module `sim` beside the code. The example has one of its own.
    let filters = match scenario {
        "" => vec!["sim::".into(), "simulation::".into()],
        "counter" => vec!["simulation::".into()],
        name => vec![format!("sim::{name}"), format!("{name}::sim")],
    };
    let run = |name: &'static str, package: &[&str]| {
        let (start, cpu) = (Instant::now(), step::cpu_time());
        let mut command = cargo();
        command
            .args(["test", "--locked", "--release"])
            .args(package)
            .args(["--", "--show-output"])
            .args(&filters)
            .envs([
                ("CARGO_PROFILE_RELEASE_LTO", "off"),
                ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
                ("OSIER_SIM_SEEDS", seeds),
            ]);
        let outcome = step::tests(name, &mut command, LIMIT);
        Outcome {
            took: start.elapsed(),
            cpu: step::cpu_time() - cpu,
            ..outcome
        }
    };
    let mut outcomes = Vec::new();
    if !["acme", "counter"].contains(&scenario) {
        outcomes.push(run("sim: web", &["-p", "osier-web", "--lib", "--test", "it"]));
    }
    if ["", "acme"].contains(&scenario) {
        outcomes.push(run("sim: server", &["-p", "osier-server", "--bin", "osier"]));
    }
    if ["", "counter"].contains(&scenario) {
        outcomes.push(run("sim: examples", &["-p", "osier-examples", "--test", "it"]));
    }
    step::report(&outcomes, start.elapsed())
}
