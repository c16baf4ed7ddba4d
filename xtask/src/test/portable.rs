//! The steps `portable` and `poll-backend`: tests on the driver for systems without epoll.

use super::executables::{self, Built, Executable, Plan};
use super::{LIMIT, target_dir};
use crate::step::{Outcome, cargo};
use crate::unchanged;

/// Runs the tests of the poller and of the runtime once more, on the driver for systems without epoll. Above the runtime
/// nothing depends on the driver, so one module of osier-web's tests stands for the rest. Once a week those tests run as well that look at
/// fibers from outside, or whose driver is the simulation.
pub fn run(built: Vec<Executable>) -> Outcome {
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

/// Modules of osier's tests that do not depend on the driver. The first reads debug information, which takes long.
const DRIVERLESS: [&str; 2] = ["dump::", "sim::"];

/// The module of osier-web's tests that also runs on the portable driver.
const WEB_SMOKE: &str = "keepalive::";

/// Builds the tests of the portable driver with poll(2) below it. The `polling` crate has a flag of its own for that:
/// level-triggered, without any state in the kernel. The contract of the poller has its tests in `poll/`. Those of the runtime, which
/// take 110 s of CPU time more, do not run for a change.
pub fn build_with_poll() -> Built {
    let mut command = cargo();
    command.args(["test", "-p", "osier-poll", "--lib", "--tests"]);
    if !unchanged::is_short() {
        command.args(["-p", "osier"]);
    }
    command.env("RUSTFLAGS", "--cfg polling_test_poll_backend");
    command.env("CARGO_TARGET_DIR", target_dir().join("poll-backend"));
    executables::build("poll-backend", &mut command, LIMIT)
}

pub fn run_with_poll(built: Vec<Executable>) -> Outcome {
    let env = vec![("OSIER_DRIVER", "portable".to_string())];
    executables::run("poll-backend", built, &Plan { env, ..Plan::default() }, LIMIT)
}
