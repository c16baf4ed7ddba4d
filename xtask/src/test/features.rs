//! The step `features`: every feature compiles without the others.
//!
//! A check of each feature alone takes osier-web 26 runs, once a week and where a person names the step. A change has the crates checked in one
//! run, without features. Two other steps have the rest: `instructions` builds them with some features and fails at a warning, and `api` has
//! every feature at once. So a feature that needs the code of another one shows each day only if it is one of those that are counted.

use super::LIMIT;
use crate::step::{self, Outcome, cargo};
use crate::{root, unchanged};
use std::time::Duration;

/// A package whose features are tried.
struct Package {
    folder: &'static str,
    name: &'static str,
    /// The feature of every set, because the package does not compile without it.
    base: &'static str,
}

const fn package_in(folder: &'static str, name: &'static str) -> Package {
    Package { folder, name, base: "" }
}

const PACKAGES: [Package; 5] = [
    package_in("poll", "osier-poll"),
    package_in("http", "osier-http"),
    package_in("runtime", "osier"),
    // It needs a provider of cryptography.
    Package {
        base: "ring",
        ..package_in("tls", "osier-tls")
    },
    package_in("web", "osier-web"),
];

/// A feature that takes half a minute of CPU time to build. The step `aws-lc-rs` builds it.
const SLOW: &str = "aws-lc-rs";

/// Checks all crates without features, or, unless the run is short, each with sets of them.
pub fn check() -> Outcome {
    let runs: Vec<Vec<String>> = match unchanged::is_short() {
        true => vec![without()],
        false => PACKAGES.iter().flat_map(of_package).collect(),
    };
    let mut wrong = vec![];
    for run in &runs {
        let mut command = cargo();
        command.args(["check", "--locked", "--lib", "--no-default-features"]);
        command.args(run);
        // A warning is a sign of code that only another feature uses.
        let mut has_warning = false;
        let ok = step::run(&mut command, LIMIT, |line| {
            has_warning |= line.starts_with("warning");
            true
        });
        if !ok || has_warning {
            wrong.push(run.join(" "));
        }
    }
    Outcome {
        complaints: wrong.clone(),
        ..Outcome::one_check(
            "features",
            wrong.is_empty(),
            runs.len(),
            "sets of features",
            Duration::ZERO,
        )
    }
}

/// Cargo's options for all packages that compile without features. `ring` alone would have its C code compiled once more.
fn without() -> Vec<String> {
    let packages = PACKAGES.iter().filter(|package| package.base.is_empty());
    packages
        .flat_map(|package| ["-p".into(), package.name.into()])
        .collect()
}

/// Cargo's options for each set of features of a package.
fn of_package(package: &Package) -> Vec<Vec<String>> {
    let Package { folder, name, base } = package;
    let options = |set: String| {
        ["-p", name, "--features", &format!("{base},{set}")]
            .map(String::from)
            .to_vec()
    };
    sets(&tried(folder)).into_iter().map(options).collect()
}

/// The features of the package in this folder, without the default and the slow one.
pub fn tried(folder: &str) -> Vec<String> {
    let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap_or_default();
    let mut features = declared(&manifest);
    features.retain(|feature| !["default", SLOW].contains(&feature.as_str()));
    features
}

/// The sets to try: no feature, each alone, and all.
fn sets(features: &[String]) -> Vec<String> {
    let alone = features.iter().cloned();
    [String::new()]
        .into_iter()
        .chain(alone)
        .chain([features.join(",")])
        .collect()
}

/// The names in the table `[features]` of a manifest.
fn declared(manifest: &str) -> Vec<String> {
    let table = manifest.split_once("\n[features]\n").map_or("", |(_, rest)| rest);
    let table = table.split("\n[").next().unwrap_or_default();
    let names = table
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim());
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) && !name.is_empty();
    names.filter(is_name).map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_from_the_manifest() {
        let manifest = "[package]\nname = \"x\"\n\n[features]\n# All of them = everything.\ndefault = [\"a\"]\na = []\n\
                        b-c = [\n    \"a\",\n]\n\n[dependencies]\nd = \"1\"\n";
        assert_eq!(declared(manifest), ["default", "a", "b-c"]);
        assert_eq!(declared("[package]\n"), [""; 0]);
    }

    #[test]
    fn no_feature_each_alone_and_all_are_tried() {
        let features = ["a", "b", "c"].map(String::from);
        assert_eq!(sets(&features), ["", "a", "b", "c", "a,b,c"]);
        let poll = of_package(&PACKAGES[0]);
        assert_eq!(poll[1], ["-p", "osier-poll", "--features", ",portable"]);
    }

    #[test]
    fn packages_are_checked_without_features() {
        let options = without();
        assert_eq!(options.len(), 8);
        assert!(
            options.ends_with(&["-p".to_string(), "osier-web".to_string()]),
            "{options:?}"
        );
    }

    #[test]
    fn a_slow_feature_is_not_tried() {
        assert_eq!(tried("tls"), ["ring", "futures"]);
        assert!(tried("runtime").contains(&"hyper".to_string()));
    }
}
