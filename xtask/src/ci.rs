//! `cargo xtask ci`: all that must hold before a change lands.
//!
//! Called by people and by `.ci/run`. First the cheap steps that read the source (fmt, clippy, rustdoc, tidy), then
//! every step of `test.rs`; a failed step does not hide the next one's findings.

use crate::step::{self, Outcome, cargo};
use crate::{test, tidy};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10 * 60);

pub fn main() -> ExitCode {
    let mut outcomes = vec![fmt(), clippy(), clippy_mixing(), rustdoc(), tidy::run()];
    outcomes.extend(test::run(&[]));
    step::report(&outcomes)
}

fn fmt() -> Outcome {
    if !step::succeeds(cargo().args(["fmt", "--version"])) {
        return Outcome::skipped("fmt", "no rustfmt (rustup component add rustfmt)".into());
    }
    let start = Instant::now();
    let mut ok = step::run(cargo().args(["fmt", "--all", "--check"]), LIMIT, |_| true);
    for other in ["bench", "fuzz", "mixing"].map(|dir| format!("{dir}/Cargo.toml")) {
        if std::fs::exists(&other).unwrap_or(false) {
            // Goes through the path dependencies a second time, which costs nothing.
            ok &= step::run(
                cargo().args(["fmt", "--all", "--check", "--manifest-path", &other]),
                LIMIT,
                |_| true,
            );
        }
    }
    Outcome::one_check("fmt", ok, tidy::sources().len(), "files", start.elapsed())
}

fn clippy() -> Outcome {
    linted("clippy", cargo().args(["clippy", "--workspace"]))
}

/// `mixing/` is code to be copied, and a workspace of its own.
fn clippy_mixing() -> Outcome {
    let mut command = cargo();
    command.args(["clippy", "--manifest-path", "mixing/Cargo.toml"]);
    linted(
        "clippy-mixing",
        command.env("CARGO_TARGET_DIR", test::mixing_target_dir()),
    )
}

fn linted(name: &str, command: &mut Command) -> Outcome {
    if !step::succeeds(cargo().args(["clippy", "--version"])) {
        return Outcome::skipped(name, "no clippy (rustup component add clippy)".into());
    }
    command.args(["--all-targets", COUNTABLE, "--", "-D", "warnings"]);
    compiled(name, command)
}

fn rustdoc() -> Outcome {
    let mut command = cargo();
    command
        .args(["doc", "--workspace", "--no-deps", COUNTABLE])
        .env("RUSTDOCFLAGS", "-D warnings");
    compiled("rustdoc", &mut command)
}

/// Makes cargo print one line for each thing it checked, be it fresh or not, and its findings as a person wants them.
const COUNTABLE: &str = "--message-format=json-render-diagnostics";

/// Runs a build step and counts the targets of this repository that it went through.
fn compiled(name: &str, command: &mut Command) -> Outcome {
    let start = Instant::now();
    let mut targets = 0;
    let mut complaints = vec![];
    let ok = step::run(command, LIMIT, |line| {
        let artifact = line.starts_with('{');
        let ours = line.contains(r#""reason":"compiler-artifact""#) && line.contains(r#""package_id":"path+file:"#);
        targets += usize::from(artifact && ours);
        if ["error", "warning", "--> "]
            .iter()
            .any(|said| line.trim_start().starts_with(said))
        {
            complaints.push(line.to_string());
        }
        !artifact
    });
    if ok {
        complaints.clear();
    }
    Outcome {
        complaints,
        ..Outcome::one_check(name, ok, targets, "targets", start.elapsed())
    }
}
