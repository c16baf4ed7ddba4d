//! The rules that `Cargo.lock` decides: where crates come from, which must not be there, and how many versions there are of
//! one.

use super::Verdict;
use super::rules::Rules;
use crate::root;
use std::collections::BTreeMap;

/// A package of the lock file.
#[derive(Debug, PartialEq)]
struct Package {
    name: String,
    version: String,
    /// None for a crate of this repository.
    source: Option<String>,
}

fn packages() -> Vec<Package> {
    parse(&std::fs::read_to_string(root().join("Cargo.lock")).unwrap_or_default())
}

fn parse(text: &str) -> Vec<Package> {
    let field = |block: &str, name: &str| {
        let line = block
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} = \"")));
        line.map(|value| value.trim_end_matches('"').to_string())
    };
    let blocks = text.split("[[package]]\n").skip(1);
    let packages = blocks.filter_map(|block| {
        Some(Package {
            name: field(block, "name")?,
            version: field(block, "version")?,
            source: field(block, "source"),
        })
    });
    packages.collect()
}

/// Every crate comes from this repository or from the public registry.
pub fn sources(_: &Rules) -> Verdict {
    let packages = packages();
    let is_strange = |source: &&String| !(source.starts_with("registry+") && source.ends_with("/crates.io-index"));
    let wrong = packages.iter().filter_map(|package| {
        let source = package.source.as_ref().filter(is_strange)?;
        Some(format!("{} {} comes from {source}", package.name, package.version))
    });
    Verdict {
        looked_at: packages.len(),
        wrong: wrong.collect(),
    }
}

/// No crate is there that `deny.toml` bans.
pub fn bans(rules: &Rules) -> Verdict {
    let packages = packages();
    let banned = packages.iter().filter(|package| rules.banned.contains(&package.name));
    Verdict {
        looked_at: packages.len(),
        wrong: banned
            .map(|package| format!("{} {} is banned: see deny.toml", package.name, package.version))
            .collect(),
    }
}

/// There is one version of each crate, apart from the older ones that `deny.toml` lists. That list only shrinks: what is
/// gone from the lock file must go from the list.
pub fn duplicates(rules: &Rules) -> Verdict {
    let packages = packages();
    Verdict {
        looked_at: packages.len(),
        wrong: differences(&packages, &rules.older),
    }
}

fn differences(packages: &[Package], listed: &[String]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    let mut older = vec![];
    for (name, mut found) in versions {
        found.sort_by_key(|version| numbers(version));
        found.pop();
        older.extend(found.into_iter().map(|version| format!("{name}@{version}")));
    }
    let new = older.iter().filter(|name| !listed.contains(name));
    let gone = listed.iter().filter(|name| !older.contains(name));
    let new = new.map(|name| format!("{name} stands beside a newer version (cargo tree -i {name})"));
    new.chain(gone.map(|name| format!("{name} is gone or alone: remove it from deny.toml")))
        .collect()
}

/// A version as numbers that compare.
fn numbers(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"syn\"\nversion = \"2.0.9\"\nsource = \"registry+https://x/crates.io-index\"\n\n\
                        [[package]]\nname = \"syn\"\nversion = \"2.0.10\"\nsource = \"git+https://x/syn\"\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";

    #[test]
    fn older_versions_are_listed_or_wrong() {
        let packages = parse(LOCK);
        assert_eq!(packages.len(), 3);
        assert_eq!(packages[2].source, None);
        let listed = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(differences(&packages, &listed(&["syn@2.0.9"])), [""; 0]);
        let wrong = differences(&packages, &listed(&["own@0.0.1"]));
        assert_eq!(wrong.len(), 2);
        assert!(wrong[0].starts_with("syn@2.0.9 stands") && wrong[1].starts_with("own@0.0.1 is gone"));
    }

    #[test]
    fn the_lock_file_is_read() {
        let packages = packages();
        assert!(
            packages
                .iter()
                .any(|package| package.name == "osier" && package.source.is_none())
        );
        assert!(
            packages
                .iter()
                .any(|package| package.name == "zstd" && package.source.is_some())
        );
    }
}
