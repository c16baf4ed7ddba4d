//! The programs of a run: the package that builds each of them, and where its binary lies.
//!
//! A row names the programs that it needs, and a run builds only these. Each package is built by itself: in one build, cargo would give
//! every rival the features that any of them needs. A package that does not build ends the bench, because an old binary may still exist.

use super::Plan;
use crate::{package, root, step, test};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// The name of the server's own binary. The programs of `bench/` have the other names.
pub const SERVER: &str = "osier";

/// The name of the server that a package holds.
pub const PACKAGED: &str = "osier-packaged";

/// The names of what this run has built. A binary that was not built now may be an old one.
static BUILT: OnceLock<BTreeSet<String>> = OnceLock::new();

/// The binary of a package, once it is built.
static PACKAGED_AT: OnceLock<PathBuf> = OnceLock::new();

/// Builds these programs, and ours of them in the other checkout too if there is one.
pub fn build(plan: &Plan, programs: &BTreeSet<&str>) -> Result<(), String> {
    let known = packages()?;
    let mut packages = BTreeSet::new();
    for name in programs.iter().filter(|name| ![SERVER, PACKAGED].contains(*name)) {
        packages.insert(
            known
                .get(*name)
                .ok_or_else(|| format!("no package of bench/ has {name}"))?,
        );
    }
    let mut places = vec![(root(), test::target_dir(), test::bench_target_dir())];
    if let Some(other) = &plan.against {
        places.push((other, other.join("target"), other.join("target/bench")));
    }
    for (dir, target, bench) in places {
        if programs.contains(SERVER) {
            build_package("osier-server", dir, &target, "Cargo.toml")?;
        }
        for package in packages
            .iter()
            .filter(|package| dir == root() || OURS.contains(&package.as_str()))
        {
            build_package(package, dir, &bench, "bench/Cargo.toml")?;
        }
    }
    if programs.contains(PACKAGED) {
        let path = package::server()?;
        let _ = PACKAGED_AT.set(path);
    }
    // A process makes one run.
    let _ = BUILT.set(programs.iter().map(|name| name.to_string()).collect());
    Ok(())
}

/// The packages of `bench/` with the programs of ours.
const OURS: [&str; 2] = ["bench-arena", "bench-osier"];

/// The package of each binary of `bench/`, as the manifests have it.
pub fn packages() -> Result<BTreeMap<String, String>, String> {
    let folder = root().join("bench");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let manifests = entries
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("Cargo.toml")).ok());
    let pairs = manifests.flat_map(|manifest| {
        let package = name_below("[package]", &manifest).unwrap_or_default().to_string();
        let binaries: Vec<String> = manifest
            .match_indices("[[bin]]")
            .filter_map(|(at, table)| Some(name_below(table, &manifest[at..])?.to_string()))
            .collect();
        binaries.into_iter().map(move |binary| (binary, package.clone()))
    });
    Ok(pairs.collect())
}

/// The first `name` after the head of a table.
fn name_below<'a>(table: &str, manifest: &'a str) -> Option<&'a str> {
    let (_, below) = manifest.split_once(table)?;
    below.split_once("name = \"")?.1.split('"').next()
}

/// Builds one package of the checkout in `dir` into `target`.
fn build_package(package: &str, dir: &Path, target: &Path, manifest: &str) -> Result<(), String> {
    let mut command = build_command(package, manifest);
    command.current_dir(dir).env("CARGO_TARGET_DIR", target);
    match step::run(&mut command, Duration::from_secs(30 * 60), |_| true) {
        true => Ok(()),
        false => Err(format!("{package} did not build in {}", dir.display())),
    }
}

/// The command that builds one package.
pub fn build_command(package: &str, manifest: &str) -> Command {
    let mut command = step::cargo();
    command.args(["build", "--release", "--manifest-path", manifest, "-p", package]);
    command
}

thread_local! {
    /// The checkout whose programs are started, where it is not this one.
    static CHECKOUT: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Runs `body` with the other checkout's programs in place of ours.
pub fn with_programs_of<T>(other: &Path, body: impl FnOnce() -> T) -> T {
    CHECKOUT.set(Some(other.to_path_buf()));
    let value = body();
    CHECKOUT.set(None);
    value
}

/// The binary of a program. The other checkout gives only what measures Osier: load and rivals are always this one's.
///
/// # Panics
///
/// If the row has not named the program.
pub fn program(name: &str) -> PathBuf {
    let is_built = BUILT.get().is_some_and(|built| built.contains(name));
    assert!(is_built, "a row uses {name} and does not name it");
    if let Some(path) = PACKAGED_AT.get().filter(|_| name == PACKAGED) {
        return path.clone();
    }
    let other = CHECKOUT.with_borrow(Clone::clone);
    let target = match (name, other) {
        (SERVER, Some(other)) => other.join("target"),
        (SERVER, None) => test::target_dir(),
        (_, Some(other)) if name.starts_with("osier-") => other.join("target/bench"),
        _ => test::bench_target_dir(),
    };
    target.join("release").join(name)
}

/// The server's own binary.
pub fn osier() -> PathBuf {
    program(SERVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_names_its_binaries() {
        let packages = packages().unwrap();
        assert_eq!(packages["osier-hello"], "bench-osier");
        assert_eq!(packages["hello"], "bench-osier-hello");
        assert_eq!(packages["hold"], "bench-hold");
    }
}
