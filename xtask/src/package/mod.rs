//! `cargo xtask package`: the packages of a release, in `target/dist`.
//!
//! The `.deb` is for the system that it is built on. The tarballs hold static binaries, which run on any Linux. Manual pages
//! and completions are made from the help text of the binary and from the documents (`texts.rs`). A package
//! tells nothing about the machine that made it: its times are those of the commit (`epoch.rs`), and no path of the machine
//! is in the binary (`build.rs`). The same binary gives the same package.

mod build;
mod completions;
mod deb;
mod epoch;
mod help;
mod manual;
mod profile;
mod roff;
mod stage;
mod tarball;
mod texts;
mod training;

use crate::step::{self, Outcome};
use crate::test::{self, Executable, Step, Work, target_dir};
use build::SYSTEMS;
pub use build::dist;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// The version of all crates, and so of the packages.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

const PACKAGES: &[Step] = &[
    Step {
        name: "manual",
        work: Work::Compile(manual),
    },
    Step {
        name: "deb",
        work: Work::Compile(deb::package),
    },
    Step {
        name: "tarball-x86_64",
        work: Work::Compile(|| tarball::package(&SYSTEMS[0])),
    },
    Step {
        name: "tarball-aarch64",
        work: Work::Compile(|| tarball::package(&SYSTEMS[1])),
    },
];

pub fn main(wanted: &[String]) -> ExitCode {
    let names: Vec<&str> = PACKAGES.iter().map(|step| step.name).collect();
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(&name.as_str())) {
        eprintln!("no package {unknown:?}: choose from {}", names.join(" "));
        return ExitCode::from(2);
    }
    let start = Instant::now();
    let is_wanted = |step: &&Step| wanted.is_empty() || wanted.iter().any(|name| name == step.name);
    let steps: Vec<Step> = PACKAGES.iter().filter(is_wanted).copied().collect();
    let outcomes = test::run(&steps);
    match write_sums() {
        Ok(()) => step::report(&outcomes, start.elapsed()),
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the server of a package for this machine, for the bench, where a server without a profile is no package.
///
/// # Errors
/// One line that says that there is none.
pub fn server() -> Result<std::path::PathBuf, String> {
    profile::needed()?;
    build::native("package").map_err(|outcome| format!("the server of a package: {} failed", outcome.name))
}

/// Writes `SHA256SUMS` of every package of this version that is there.
fn write_sums() -> Result<(), String> {
    let entries = std::fs::read_dir(dist()).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_package(name, VERSION)).collect();
    names.sort();
    if names.is_empty() {
        return Ok(());
    }
    let sums = step::output(Command::new("sha256sum").args(&names).current_dir(dist()));
    let file = dist().join("SHA256SUMS");
    std::fs::write(&file, sums).map_err(|error| format!("{}: {error}", file.display()))
}

/// Finds what a release needs and the folder lacks: each package of this version, and signed checksums that are theirs.
pub fn faults() -> Vec<String> {
    let listed = std::fs::read_to_string(dist().join("SHA256SUMS")).unwrap_or_default();
    let is_listed = |kind: &str| listed.lines().any(|line| line.contains(VERSION) && line.contains(kind));
    let kinds = [
        ("deb", ".deb"),
        ("tarball-x86_64", "-x86_64-"),
        ("tarball-aarch64", "-aarch64-"),
    ];
    let missing = kinds.into_iter().filter(|(_, kind)| !is_listed(kind));
    let mut faults: Vec<String> = missing
        .map(|(name, _)| format!("SHA256SUMS has no package of {VERSION} by {name}: cargo xtask package {name}"))
        .collect();
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(dist());
    if faults.is_empty() && !step::succeeds(&mut check) {
        faults.push("SHA256SUMS does not fit the packages: cargo xtask package".into());
    }
    // A tarball carries the time of the commit that it was made of.
    let stale = listed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| name.ends_with(".tar.gz") && faults.is_empty() && !is_of_this_commit(name));
    let stale: Vec<String> = stale
        .map(|name| format!("{name} is not of this commit: cargo xtask package"))
        .collect();
    faults.extend(stale);
    let mut verify = Command::new("gpg");
    verify
        .args(["--verify", "SHA256SUMS.asc", "SHA256SUMS"])
        .current_dir(dist());
    if faults.is_empty() && !step::succeeds(&mut verify) {
        faults.push("SHA256SUMS has no good signature: gpg --armor --detach-sign target/dist/SHA256SUMS".into());
    }
    faults
}

/// Whether every file of a tarball has the time of the last commit.
fn is_of_this_commit(name: &str) -> bool {
    let mut list = Command::new("tar");
    list.args(["--list", "--verbose", "--utc", "--full-time", "--file", name])
        .current_dir(dist());
    let listed = step::output(&mut list);
    let time = epoch::date("+%Y-%m-%d %H:%M:%S");
    !listed.is_empty() && listed.lines().all(|line| line.contains(&time))
}

/// Whether a file of the folder is a package of `version`. Those of earlier versions stay there.
fn is_package(name: &str, version: &str) -> bool {
    let is_debian = name.starts_with(&format!("osier_{version}-")) && name.ends_with(".deb");
    is_debian || name.starts_with(&format!("osier-{version}-")) && name.ends_with(".tar.gz")
}

/// The step `manual` of `cargo xtask ci`: makes the texts of a package from the server that the tests have built, and checks
/// them.
pub fn check_texts(_: Vec<Executable>) -> Outcome {
    texts::check(&target_dir().join("debug/osier"))
}

/// The same for a server that is built first.
fn manual() -> Outcome {
    match build::speaker("manual") {
        Ok(binary) => texts::check(&binary),
        Err(outcome) => *outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_are_those_of_one_version() {
        for name in ["osier_0.2.0-1_amd64.deb", "osier-0.2.0-x86_64-linux-musl.tar.gz"] {
            assert!(is_package(name, "0.2.0"), "{name}");
            assert!(!is_package(name, "0.1.0"), "{name}");
            assert!(!is_package(name, "0.2"), "{name}");
        }
        assert!(!is_package("osier-0.2.0-x86_64-linux-musl.tar.gz.asc", "0.2.0"));
    }
}
