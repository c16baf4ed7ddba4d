//! Leaves out CI steps whose inputs have not changed.
//!
//! The inputs of a step are the crates that it builds with all crates below them, as `Cargo.lock` has them: for one of this
//! repository its folder, for another one its version. Some steps have more folders and files. The manifest of the workspace is an input
//! of every step. The environment variable `OSIER_CI_BASE` names the commit to compare with. Without it, that is the newest commit more than
//! [`EARLIER`] older than the current one, because the commits of one day's work belong together. If git does not know
//! the commit, everything counts as changed, so `OSIER_CI_BASE=none` runs every step.

use crate::root;
use crate::step::{self, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

/// A step that takes a minute or more, and its inputs.
struct Rule {
    step: &'static str,
    /// The crates that it builds.
    packages: &'static [&'static str],
    /// Folders and files that are inputs, too.
    paths: &'static [&'static str],
}

const fn rule(step: &'static str, packages: &'static [&'static str], paths: &'static [&'static str]) -> Rule {
    Rule { step, packages, paths }
}

const RULES: &[Rule] = &[
    rule("poll-backend", &["osier-poll", "osier"], &["xtask/src/test/mod.rs"]),
    rule("miri", &["osier-queue"], &["xtask/src/test/miri.rs"]),
    rule("loom", &["osier-queue"], &["xtask/src/test/mod.rs"]),
    rule("valgrind", &["osier-coro"], &["xtask/src/test/mod.rs"]),
    rule(
        "instructions",
        &["osier-web"],
        &[
            "bench/counts",
            "bench/Cargo.toml",
            "bench/Cargo.lock",
            "xtask/src/test/instructions",
        ],
    ),
    rule(
        "fuzz",
        &["osier-http", "osier-queue", "testkit"],
        &["fuzz", "xtask/src/test/fuzz.rs"],
    ),
    rule("mixing", &["osier-web"], MIXING),
    rule("mixing-docs", &["osier-web"], MIXING),
    rule("clippy-mixing", &["osier-web"], MIXING),
    rule("features-poll", &["osier-poll"], FEATURES),
    rule("features-http", &["osier-http"], FEATURES),
    rule("features-osier", &["osier"], FEATURES),
    rule("features-tls", &["osier-tls"], FEATURES),
    rule("features-web", &["osier-web"], FEATURES),
    rule("targets", &["osier-web"], &["xtask/src/test/targets.rs"]),
];

const MIXING: &[&str] = &[
    "mixing",
    "integrations",
    "examples/arena",
    "docs/mixing.md",
    "xtask/src/test/mod.rs",
];
const FEATURES: &[&str] = &["xtask/src/test/features.rs"];

/// Inputs of every step.
const ALWAYS: [&str; 2] = ["Cargo.toml", ".cargo"];

const EARLIER: Duration = Duration::from_secs(12 * 60 * 60);

/// The outcomes of the steps that are left out.
pub fn steps() -> Vec<Outcome> {
    let Some(base) = base() else { return vec![] };
    let before = step::output(Command::new("git").args(["show", &format!("{base}:Cargo.lock")]));
    let now = std::fs::read_to_string(root().join("Cargo.lock")).unwrap_or_default();
    let folders = folders();
    let same = RULES.iter().filter(|rule| {
        let inputs = below(&now, rule.packages);
        let mut diff = Command::new("git");
        diff.args(["diff", "--quiet", &base, "HEAD", "--"])
            .args(ALWAYS)
            .args(rule.paths);
        diff.args(inputs.iter().filter_map(|block| folders.get(name(block))));
        step::succeeds(&mut diff) && below(&before, rule.packages) == inputs
    });
    same.map(|rule| {
        let packages = rule.packages.join(", ");
        let why = format!("{packages} and all below as in {base} (OSIER_CI_BASE=none runs it)");
        Outcome::skipped(rule.step, why)
    })
    .collect()
}

/// The folders of the crates of this repository, by name.
fn folders() -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap_or_default();
    let manifest = read("Cargo.toml");
    let members = manifest.split_once("members = [").map_or("", |(_, rest)| rest);
    let members = members.split("\n]").next().unwrap_or_default().lines();
    members
        .filter_map(|line| {
            let folder = line.trim().strip_prefix('"')?.split('"').next()?;
            let manifest = read(&format!("{folder}/Cargo.toml"));
            Some((name(&manifest).to_string(), folder.to_string()))
        })
        .collect()
}

/// The value of the first `name` in a manifest or in a block of a lock file.
fn name(text: &str) -> &str {
    let value = text.split_once("name = \"").map_or("", |(_, rest)| rest);
    value.split('"').next().unwrap_or_default()
}

fn base() -> Option<String> {
    let base = std::env::var("OSIER_CI_BASE").ok().or_else(earlier_commit)?;
    let mut known = Command::new("git");
    known.args(["rev-parse", "--quiet", "--verify", &format!("{base}^{{commit}}")]);
    step::succeeds(&mut known).then_some(base)
}

fn earlier_commit() -> Option<String> {
    let time = step::output(Command::new("git").args(["log", "-1", "--format=%ct"]));
    let before: u64 = time.trim().parse::<u64>().ok()?.checked_sub(EARLIER.as_secs())?;
    let before = format!("--before={before}");
    let mut git = Command::new("git");
    git.args(["log", "-1", "--first-parent", "--format=%h", &before]);
    let hash = step::output(&mut git).trim().to_string();
    (!hash.is_empty()).then_some(hash)
}

/// The packages that `packages` depend on, directly or not, as a lock file has them.
fn below<'a>(lock: &'a str, packages: &[&'a str]) -> BTreeSet<&'a str> {
    // A dependency is named `name`, or `name version` where the file has several versions.
    let mut blocks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for block in lock.split("[[package]]\n").skip(1) {
        let name = block.split('"').nth(1).unwrap_or_default();
        blocks.entry(name).or_default().push(block);
    }
    let (mut seen, mut open) = (BTreeSet::new(), packages.to_vec());
    while let Some(name) = open.pop() {
        for block in blocks.get(name).into_iter().flatten() {
            if seen.insert(block.trim_end()) {
                let dependencies = block.split_once("dependencies = [").map_or("", |(_, list)| list);
                let quoted = dependencies.split('"').skip(1).step_by(2);
                open.extend(quoted.filter_map(|dependency| dependency.split(' ').next()));
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::STEPS;

    #[test]
    fn each_rule_is_about_a_step_and_inputs_that_exist() {
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        let folders = folders();
        for rule in RULES {
            let is_known = STEPS.iter().any(|step| step.name == rule.step) || rule.step == "clippy-mixing";
            assert!(is_known, "{}", rule.step);
            let missing = rule.paths.iter().find(|path| !root().join(path).exists());
            assert_eq!(missing, None);
            for package in rule.packages {
                assert!(folders.contains_key(*package), "{package}");
                assert!(below(&lock, &[package]).iter().any(|block| name(block) == *package));
            }
        }
    }

    #[test]
    fn the_folders_below_a_crate_are_its_inputs() {
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        let folders = folders();
        let of = |package| {
            let blocks = below(&lock, &[package]);
            let own = blocks.iter().filter_map(|block| folders.get(name(block)));
            own.cloned().collect::<BTreeSet<String>>()
        };
        let (web, poll) = (of("osier-web"), of("osier-poll"));
        for folder in [
            "web", "http", "runtime", "tls", "coro", "queue", "poll", "macros", "testkit",
        ] {
            assert!(web.contains(folder), "{folder}");
        }
        assert!(
            poll.contains("poll") && !poll.contains("web") && !web.contains("server"),
            "{poll:?}"
        );
    }

    #[test]
    fn a_crate_below_counts_and_one_beside_does_not() {
        let lock = |deep: &str, beside: &str| {
            format!(
                "version = 4\n\n[[package]]\nname = \"own\"\nversion = \"1.0.0\"\ndependencies = [\n \"middle 1.0.0\",\n]\n\n\
                 [[package]]\nname = \"middle\"\nversion = \"1.0.0\"\ndependencies = [\n \"deep\",\n]\n\n\
                 [[package]]\nname = \"deep\"\nversion = \"{deep}\"\n\n[[package]]\nname = \"beside\"\nversion = \"{beside}\"\n"
            )
        };
        let (first, deep, beside) = (lock("1.0.0", "1.0.0"), lock("1.0.1", "1.0.0"), lock("1.0.0", "1.0.1"));
        assert_eq!(below(&first, &["own"]).len(), 3);
        assert_ne!(below(&first, &["own"]), below(&deep, &["own"]));
        assert_eq!(below(&first, &["middle"]), below(&beside, &["middle"]));
    }
}
