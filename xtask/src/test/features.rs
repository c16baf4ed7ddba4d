//! The steps `features-*`: every feature compiles without the others.
//!
//! A check of each feature alone takes osier-web 26 runs. For each change it takes three: no feature, and two halves, of which each feature
//! is in one. The step `api` has every crate with all features at once. Each feature alone is tried once a week, and where a person names the
//! step.

use super::{LIMIT, Step, Work, checked};
use crate::step::{self, Outcome};
use crate::{root, unchanged};
use std::time::Duration;

/// A package whose features are tried, in a step of its own.
struct Package {
    step: &'static str,
    folder: &'static str,
    name: &'static str,
    /// Features of every set, because the package does not compile without them.
    base: &'static str,
}

const fn package_in(step: &'static str, folder: &'static str, name: &'static str) -> Package {
    Package {
        step,
        folder,
        name,
        base: "",
    }
}

const PACKAGES: [Package; 5] = [
    package_in("features-poll", "poll", "osier-poll"),
    package_in("features-http", "http", "osier-http"),
    package_in("features-osier", "runtime", "osier"),
    // It needs a provider of cryptography.
    Package {
        base: "ring,",
        ..package_in("features-tls", "tls", "osier-tls")
    },
    package_in("features-web", "web", "osier-web"),
];

/// The step of a package.
pub const fn step<const PACKAGE: usize>() -> Step {
    Step {
        name: PACKAGES[PACKAGE].step,
        work: Work::Check(features::<PACKAGE>),
    }
}

/// A feature that takes half a minute of CPU time to build. The step `aws-lc-rs` builds it.
const SLOW: &str = "aws-lc-rs";

/// Checks a crate without features, with some of them, and, unless the run is short, with all of them.
fn features<const PACKAGE: usize>() -> Outcome {
    let Package {
        step,
        folder,
        name,
        base,
    } = &PACKAGES[PACKAGE];
    let (mut count, mut wrong) = (0, vec![]);
    let features = tried(folder);
    for set in sets(&features) {
        let mut command = checked();
        command
            .args(["check", "--locked", "-p", name, "--lib", "--no-default-features"])
            .args(["--features", &format!("{base}{set}")]);
        // A warning is a sign of code that only another feature uses.
        let mut has_warning = false;
        let ok = step::run(&mut command, LIMIT, |line| {
            has_warning |= line.starts_with("warning");
            true
        });
        count += 1;
        if !ok || has_warning {
            wrong.push(format!("{name} with {base}{set}"));
        }
    }
    Outcome {
        complaints: wrong.clone(),
        ..Outcome::one_check(step, wrong.is_empty(), count, "sets of features", Duration::ZERO)
    }
}

/// The features of the package in this folder, without the default and the slow one.
pub fn tried(folder: &str) -> Vec<String> {
    let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap_or_default();
    let mut features = declared(&manifest);
    features.retain(|feature| !["default", SLOW].contains(&feature.as_str()));
    features
}

/// The sets to try: no feature, and the halves, or each alone and all.
fn sets(features: &[String]) -> Vec<String> {
    let some = match unchanged::is_short() {
        true => halves(features),
        false => features.iter().cloned().chain([features.join(",")]).collect(),
    };
    [String::new()].into_iter().chain(some).collect()
}

/// Two sets: every other feature, and the rest.
fn halves(features: &[String]) -> Vec<String> {
    let half = |first: usize| {
        let of_half = features.iter().skip(first).step_by(2);
        of_half.map(String::as_str).collect::<Vec<_>>().join(",")
    };
    [half(0), half(1)].into_iter().filter(|half| !half.is_empty()).collect()
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
    fn a_step_that_a_person_names_tries_no_feature_all_and_each_alone() {
        let features = ["a", "b", "c"].map(String::from);
        assert_eq!(sets(&features), ["", "a", "b", "c", "a,b,c"]);
    }

    #[test]
    fn each_feature_is_in_one_half() {
        let features = ["a", "b", "c", "d", "e"].map(String::from);
        assert_eq!(halves(&features), ["a,c,e", "b,d"]);
        assert_eq!(halves(&features[..1]), ["a"]);
        assert_eq!(halves(&[]), [""; 0]);
    }

    #[test]
    fn each_package_has_its_step() {
        for package in &PACKAGES {
            let of = super::super::STEPS.iter().filter(|step| step.name == package.step);
            assert_eq!(of.count(), 1, "{}", package.step);
        }
    }

    #[test]
    fn a_slow_feature_is_not_tried() {
        assert_eq!(tried("tls"), ["ring", "futures"]);
        assert!(tried("runtime").contains(&"hyper".to_string()));
    }
}
