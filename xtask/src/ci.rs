//! `cargo xtask ci`: everything that must hold before a change lands.
//!
//! The steps are fmt, tidy, deny, manual, clippy, rustdoc and all of `test/`. A failed step does not hide the findings of the next one.
//! `unchanged/` leaves a step out when nothing that it looks at has changed, and the tests of a crate when nothing below it has.

use crate::step::{self, Outcome, cargo};
use crate::test::{self, LIMIT, Lane, STEPS, Step, Work};
use crate::{deny, package, root, tidy, unchanged};
use std::collections::HashSet;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Steps that read the source and `Cargo.lock`, in seconds.
const QUICK: &[Step] = &[
    Step {
        name: "fmt",
        work: Work::Check(fmt),
    },
    Step {
        name: "tidy",
        work: Work::Check(tidy::run),
    },
    Step {
        name: "deny",
        work: Work::Check(deny::run),
    },
];

/// Steps that read what the server prints. The tests have built it.
const PRINTED: &[Step] = &[Step {
    name: "manual",
    work: Work::Both(test::workspace, Lane::Tests, package::check_texts),
}];

/// Steps that run nothing. The lints are those of the tests' build.
const LINTS: &[Step] = &[
    Step {
        name: "clippy",
        work: Work::Compile(clippy),
    },
    Step {
        name: "rustdoc",
        work: Work::Compile(rustdoc),
    },
    Step {
        name: "clippy-mixing",
        work: Work::Compile(clippy_mixing),
    },
    Step {
        name: "clippy-tools",
        work: Work::Compile(clippy_tools),
    },
];

pub fn main() -> ExitCode {
    let start = Instant::now();
    // Steps that run something come first, so that tests wait while others compile.
    let (run, rest): (Vec<Step>, Vec<Step>) = STEPS.iter().partition(|step| {
        matches!(
            step.work,
            Work::AsBuilt(..) | Work::Both(..) | Work::Apart(..) | Work::Run(_)
        )
    });
    let mut steps = [QUICK, &run, PRINTED, LINTS, &rest].concat();
    let left_out = unchanged::left_out();
    steps.retain(|step| left_out.steps.iter().all(|outcome| outcome.name != step.name));
    test::leave_out(left_out.tests);
    test::mixing::leave_out(left_out.mixing);
    test::linted::ask();
    let mut outcomes = test::run(&steps);
    outcomes.extend(left_out.steps);
    unchanged::demand(&mut outcomes);
    step::report(&outcomes, start.elapsed())
}

pub fn fmt() -> Outcome {
    if !step::succeeds(cargo().args(["fmt", "--version"])) {
        return Outcome::skipped("fmt", "no rustfmt (rustup component add rustfmt)".into());
    }
    let mut reported = HashSet::new();
    let mut ok = true;
    // One package at a time: `--all` means the crates of other workspaces that they depend on, too.
    for manifest in packages() {
        let mut unseen = true;
        let mut command = cargo();
        command
            .args(["fmt", "--check", "--manifest-path"])
            .arg(root().join(manifest));
        ok &= step::run(&mut command, LIMIT, |line| {
            // A file that several targets share is reported once for each of them.
            if line.starts_with("Diff in ") {
                unseen = reported.insert(line.to_string());
            }
            unseen
        });
    }
    Outcome::one_check("fmt", ok, tidy::sources().len(), "files", Duration::ZERO)
}

/// The manifests of all packages.
fn packages() -> impl Iterator<Item = PathBuf> {
    let is_package = |path: &PathBuf| {
        let text = std::fs::read_to_string(root().join(path)).unwrap_or_default();
        path.ends_with("Cargo.toml") && text.lines().any(|line| line == "[package]")
    };
    tidy::files().into_iter().filter(is_package)
}

fn clippy() -> Outcome {
    test::WORKSPACE.lints("clippy")
}

/// `mixing/` is code to be copied, and a workspace of its own, with the crates of `integrations/`.
fn clippy_mixing() -> Outcome {
    test::mixing::TESTS.lints("clippy-mixing")
}

/// Lints the program that no integration test builds.
fn clippy_tools() -> Outcome {
    test::TOOLS.lints("clippy-tools")
}

pub fn linted(name: &str, command: &mut Command) -> Outcome {
    if !step::succeeds(cargo().args(["clippy", "--version"])) {
        return Outcome::skipped(name, "no clippy (rustup component add clippy)".into());
    }
    command.args(["--locked", "--all-targets", COUNTABLE, "--", "-D", "warnings"]);
    compiled(name, command)
}

/// Documents what others read. The examples and tools alone would have 20 s of CPU time of dependencies checked.
fn rustdoc() -> Outcome {
    let mut command = cargo();
    command
        .args(["doc", "--workspace", "--locked", "--no-deps", COUNTABLE])
        .args(["osier-examples", "testkit", "xtask"].map(|name| format!("--exclude={name}")))
        .args(test::FEATURES)
        .args(test::excluded())
        .env("RUSTDOCFLAGS", "-D warnings");
    compiled("rustdoc", &mut command)
}

/// Makes cargo print one line for each thing it checked, be it fresh or not, and its findings as a person wants them.
const COUNTABLE: &str = "--message-format=json-render-diagnostics";

/// Runs a build step and counts the targets of this repository that it went through.
pub fn compiled(name: &str, command: &mut Command) -> Outcome {
    let mut targets = 0;
    let mut complaints = vec![];
    let ok = step::run(command, LIMIT, |line| {
        let artifact = line.starts_with('{');
        targets += usize::from(artifact && test::is_own_target(line));
        if test::is_complaint(line) {
            complaints.push(line.to_string());
        }
        !artifact
    });
    if ok {
        complaints.clear();
    }
    Outcome {
        complaints,
        ..Outcome::one_check(name, ok, targets, "targets", Duration::ZERO)
    }
}
