//! Leaves out CI steps whose inputs have not changed.
//!
//! The inputs of a step are some folders, and the third-party crates below some packages, as `Cargo.lock` has them. The
//! environment variable `OSIER_CI_BASE` names the commit to compare with. Without it, that is the newest commit more than
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
    folders: &'static [&'static str],
    packages: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule {
        step: "poll-backend",
        folders: &["poll", "runtime", "testkit"],
        packages: &["osier-poll", "osier"],
    },
    Rule {
        step: "miri",
        folders: &["queue"],
        packages: &["osier-queue"],
    },
    Rule {
        step: "loom",
        folders: &["queue"],
        packages: &["osier-queue"],
    },
    Rule {
        step: "valgrind",
        folders: &["coro", "testkit"],
        packages: &["osier-coro"],
    },
    Rule {
        step: "instructions",
        folders: &["bench/counts", "coro", "http", "poll", "queue", "runtime", "tls", "web"],
        packages: &["osier-web"],
    },
];

const EARLIER: Duration = Duration::from_secs(12 * 60 * 60);

/// The outcomes of the steps that are left out.
pub fn steps() -> Vec<Outcome> {
    let Some(base) = base() else { return vec![] };
    let before = step::output(Command::new("git").args(["show", &format!("{base}:Cargo.lock")]));
    let now = std::fs::read_to_string(root().join("Cargo.lock")).unwrap_or_default();
    let same = RULES.iter().filter(|rule| {
        let mut diff = Command::new("git");
        diff.args(["diff", "--quiet", &base, "HEAD", "--"]).args(rule.folders);
        step::succeeds(&mut diff) && below(&before, rule.packages) == below(&now, rule.packages)
    });
    same.map(|rule| {
        let folders = rule.folders.join("/, ");
        let why = format!("{folders}/ as in {base} (to run it: cargo xtask test {})", rule.step);
        Outcome::skipped(rule.step, why)
    })
    .collect()
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
    fn each_rule_is_about_a_step_and_folders_that_exist() {
        for rule in RULES {
            assert!(STEPS.iter().any(|step| step.name == rule.step), "{}", rule.step);
            let missing = rule.folders.iter().find(|folder| !root().join(folder).is_dir());
            assert_eq!(missing, None);
            let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
            assert!(below(&lock, rule.packages).len() > rule.packages.len(), "{}", rule.step);
        }
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
