//! Tests that clippy lints while it compiles them.
//!
//! `cargo clippy` is `cargo check` with clippy's driver in place of the compiler, for the packages of the workspace. The driver
//! generates code as the compiler does, so a build of the tests with it takes no more CPU time than a plain one, and the lints need no pass
//! of their own. Only `cargo xtask ci` builds in this way: cargo keeps the artifacts of the two compilers apart, and people use the plain one.

use super::LIMIT;
use super::executables::{self, Built, Executable, Made};
use crate::step::{self, Outcome};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

const DRIVER: &str = "clippy-driver";

static IS_ASKED: OnceLock<bool> = OnceLock::new();

/// Makes clippy the compiler of the tests, if it is installed. Called at most once, before anything is built.
pub fn ask() {
    let is_there = step::succeeds(Command::new(DRIVER).arg("--version"));
    IS_ASKED.set(is_there).expect("called at most once");
}

/// Makes `cargo` use the compiler of the tests, so that it finds their artifacts.
pub fn compiler(cargo: &mut Command) {
    if IS_ASKED.get() == Some(&true) {
        cargo.env("RUSTC_WORKSPACE_WRAPPER", DRIVER);
    }
}

/// The tests of a workspace, built once for all steps that use them.
pub struct Tests {
    step: &'static str,
    command: fn() -> Command,
    made: Mutex<Option<Made>>,
}

impl Tests {
    /// `command` is `cargo test`, and `step` is reported if it fails.
    pub const fn new(step: &'static str, command: fn() -> Command) -> Tests {
        Tests {
            step,
            command,
            made: Mutex::new(None),
        }
    }

    /// `cargo test` for the workspace, as it is built.
    pub fn command(&self) -> Command {
        (self.command)()
    }

    /// The executables.
    pub fn executables(&self) -> Built {
        Ok(self.made(|_, _| {})?.executables)
    }

    /// Gives each executable to `each` as soon as it is built, and whether it is a test. Called before all else, or it gives none.
    pub fn build(&self, each: impl FnMut(&Executable, bool)) -> Result<(), Box<Outcome>> {
        self.made(each).map(drop)
    }

    /// The result of the lints, as that of the step `name`: every warning is a failure.
    pub fn lints(&self, name: &str) -> Outcome {
        if IS_ASKED.get() != Some(&true) {
            return Outcome::skipped(name, "no clippy (rustup component add clippy)".into());
        }
        match self.made(|_, _| {}) {
            Ok(made) => Outcome {
                complaints: made.warnings.clone(),
                ..Outcome::one_check(name, made.warnings.is_empty(), made.targets, "targets", Duration::ZERO)
            },
            Err(outcome) => Outcome {
                name: name.into(),
                ..*outcome
            },
        }
    }

    fn made(&self, each: impl FnMut(&Executable, bool)) -> Result<Made, Box<Outcome>> {
        let mut made = self.made.lock().expect("building does not panic");
        if made.is_none() {
            let mut command = self.command();
            compiler(&mut command);
            *made = Some(executables::make(self.step, &mut command, LIMIT, each)?);
        }
        Ok(made.clone().expect("set above"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::cargo;
    use std::path::PathBuf;

    /// A package of one test, which returns in a way that clippy rejects and the compiler does not.
    fn folder() -> PathBuf {
        std::env::temp_dir().join(format!("osier-linted-{}", std::process::id()))
    }

    #[test]
    fn a_lint_is_a_failure_and_the_tests_run_all_the_same() {
        ask();
        if IS_ASKED.get() == Some(&false) {
            println!("skipped: no clippy");
            return;
        }
        let source = "fn one() -> u8 {\n    return 1;\n}\n\n#[test]\nfn is_one() {\n    assert_eq!(one(), 1);\n}\n";
        for (path, text) in [
            (
                "Cargo.toml",
                "[package]\nname = \"one\"\nedition = \"2024\"\n[workspace]\n",
            ),
            (
                "Cargo.lock",
                "version = 4\n\n[[package]]\nname = \"one\"\nversion = \"0.0.0\"\n",
            ),
            ("tests/one.rs", source),
        ] {
            let path = folder().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let tests = Tests::new("tests", || {
            let mut command = cargo();
            command
                .args(["test", "--manifest-path"])
                .arg(folder().join("Cargo.toml"));
            command.env("CARGO_TARGET_DIR", folder().join("target"));
            command
        });
        let lints = tests.lints("clippy");
        let built = tests.executables().map_err(|outcome| outcome.complaints).unwrap();
        std::fs::remove_dir_all(folder()).unwrap();
        assert_eq!((lints.passed, lints.failed, built.len()), (0, 1, 1));
        assert!(
            lints.complaints[0].contains("unneeded `return`"),
            "{:?}",
            lints.complaints
        );
    }
}
