//! `cargo xtask release`: whether this commit can be released, and the notes of that release.
//!
//! docs/internal/release.md has the order of a release. This command reads, and writes the notes alone.

use crate::package::{self, VERSION};
use crate::root;
use crate::step::{output, succeeds};
use std::fs;
use std::process::{Command, ExitCode};

pub fn main() -> ExitCode {
    let mut faults = vec![];
    let manifests = ["Cargo.toml", "mixing/Cargo.toml"].map(|name| (name, read(name)));
    for (name, manifest) in &manifests {
        let version = workspace_value(manifest, "version").unwrap_or_default();
        if version != VERSION {
            faults.push(format!(
                "{name}: version is {version:?}, and that of xtask is {VERSION:?}: make them equal"
            ));
        }
        if workspace_value(manifest, "repository").is_none() {
            faults.push(format!(
                "{name}: [workspace.package] has no `repository`: name the public address, and inherit it in every crate"
            ));
        }
    }
    let written = notes(&read("CHANGELOG.md"), VERSION).and_then(|notes| {
        let file = package::dist().join("NOTES.md");
        let write = fs::create_dir_all(package::dist()).and_then(|()| fs::write(&file, notes));
        write.map_err(|error| format!("{}: {error}", file.display()))
    });
    faults.extend(written.err());
    faults.extend(repository_faults());
    faults.extend(package::faults());
    for fault in &faults {
        println!("{fault}");
    }
    if !faults.is_empty() {
        println!("not ready: {} faults (docs/internal/release.md)", faults.len());
        return ExitCode::FAILURE;
    }
    println!(
        "Osier {VERSION} can be released; its notes are {}",
        package::dist().join("NOTES.md").display()
    );
    ExitCode::SUCCESS
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_default()
}

/// A text of the table `[workspace.package]`.
fn workspace_value<'m>(manifest: &'m str, key: &str) -> Option<&'m str> {
    let (_, table) = manifest.split_once("\n[workspace.package]\n")?;
    let table = table.split("\n[").next().unwrap_or_default();
    let value = table
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
    value.split('"').next()
}

/// The section of a version, without its heading. It is the newest, and dated.
fn notes(changelog: &str, version: &str) -> Result<String, String> {
    let (_, sections) = changelog.split_once("\n## ").ok_or("CHANGELOG.md has no section")?;
    let newest = sections.split("\n## ").next().unwrap_or_default();
    let (heading, text) = newest.split_once('\n').unwrap_or((newest, ""));
    let date = heading.strip_prefix(version).and_then(|rest| rest.strip_prefix(" - "));
    let is_date = |date: &str| {
        let numbers: Vec<&str> = date.split('-').collect();
        numbers.iter().map(|number| number.len()).eq([4, 2, 2])
            && numbers.concat().bytes().all(|byte| byte.is_ascii_digit())
    };
    if !date.is_some_and(is_date) {
        return Err(format!(
            "CHANGELOG.md: the first section is {heading:?}: call it \"{version} - YEAR-MONTH-DAY\""
        ));
    }
    match text.trim() {
        "" => Err(format!("CHANGELOG.md: the section {heading:?} is empty")),
        text => Ok(format!("{text}\n")),
    }
}

/// The release is the tagged commit, without changes.
fn repository_faults() -> Vec<String> {
    let git = |args: &[&str]| output(Command::new("git").args(args)).trim().to_string();
    let mut faults = vec![];
    if !git(&["status", "--porcelain"]).is_empty() {
        faults.push("git: there are changes that are not committed".into());
    }
    let tag = format!("v{VERSION}");
    let (tagged, head) = (
        git(&["rev-parse", "--quiet", "--verify", &format!("{tag}^{{commit}}")]),
        git(&["rev-parse", "HEAD"]),
    );
    if tagged.is_empty() {
        faults.push(format!(
            "git: there is no tag {tag}: git tag --sign {tag} --message \"Osier {VERSION}\""
        ));
    } else if tagged != head {
        faults.push(format!(
            "git: {tag} is another commit; a tag never moves: raise the version"
        ));
    } else if !succeeds(Command::new("git").args(["verify-tag", &tag])) {
        faults.push(format!(
            "git: nobody has signed {tag}, or the key is not here: git verify-tag {tag}"
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_that_of_the_workspace() {
        let manifest = "[workspace]\n\n[workspace.package]\nversion = \"0.2.0\" # all\nedition = \"2024\"\n\n[package]\nrepository = \"x\"\n";
        assert_eq!(workspace_value(manifest, "version"), Some("0.2.0"));
        assert_eq!(workspace_value(manifest, "repository"), None);
    }

    #[test]
    fn the_notes_are_the_newest_section_if_it_has_a_date() {
        let changelog = "# Changelog\n\n## 0.2.0 - 2027-01-31\n\n- New.\n\n### Fixed\n\n- Old.\n\n## 0.1.0 - 2026-12-01\n\n- First.\n";
        assert_eq!(notes(changelog, "0.2.0").unwrap(), "- New.\n\n### Fixed\n\n- Old.\n");
        assert!(
            notes(changelog, "0.1.0")
                .unwrap_err()
                .contains("call it \"0.1.0 - YEAR")
        );
        for heading in ["Unreleased", "0.2.0", "0.2.0 - soon", "0.2.0 - 2027-1-31"] {
            let changelog = format!("# Changelog\n\n## {heading}\n\n- New.\n");
            assert!(notes(&changelog, "0.2.0").is_err(), "{heading}");
        }
        assert!(
            notes(
                "# Changelog\n\n## 0.2.0 - 2027-01-31\n\n## 0.1.0 - 2026-12-01\n",
                "0.2.0"
            )
            .is_err()
        );
    }
}
