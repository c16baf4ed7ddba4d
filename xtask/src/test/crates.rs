//! The step `package`: makes the crates that a registry gets, and looks into them.
//!
//! It does not compile them once more. `cargo publish --workspace --dry-run` does, before a release (docs/internal/release.md).

use super::{LIMIT, target_dir};
use crate::step::{self, Outcome, cargo};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The crates that no registry gets.
pub const PRIVATE: &[&str] = &["osier-examples", "testkit", "xtask", "xtask-api"];

/// Packs every crate of the workspace.
pub fn package() -> Outcome {
    let mut command = cargo();
    command.args(["package", "--workspace", "--locked", "--no-verify", "--allow-dirty"]);
    for private in PRIVATE {
        command.args(["--exclude", private]);
    }
    let mut names = vec![];
    let ok = step::run(&mut command, LIMIT, |line| {
        // "Packaging osier-coro v0.1.0 (…)"
        let mut words = line.split_whitespace().skip_while(|word| *word != "Packaging").skip(1);
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            names.push(format!("{name}-{}", version.trim_start_matches('v')));
        }
        true
    });
    let folder = target_dir().join("package");
    let complaints: Vec<String> = names.iter().flat_map(|name| faults(&folder, name)).collect();
    complaints.iter().for_each(|line| step::say(line));
    Outcome {
        complaints: complaints.clone(),
        ..Outcome::one_check(
            "package",
            ok && complaints.is_empty(),
            names.len(),
            "packages",
            Duration::ZERO,
        )
    }
}

/// The files that each crate must bring. Both licences ask for their text in every copy.
const REQUIRED: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Finds what is wrong with the crate `name`, such as `osier-0.1.0`.
fn faults(folder: &Path, name: &str) -> Vec<String> {
    let crate_file = folder.join(format!("{name}.crate"));
    let tar = |options: &[&str]| step::output(Command::new("tar").arg("--file").arg(&crate_file).args(options));
    let listed = tar(&["--list"]);
    let files: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('/'))
        .collect();
    let missing = REQUIRED.iter().filter(|required| !files.contains(required));
    let mut faults: Vec<String> = missing
        .map(|required| format!("{name}.crate has no {required}: link it from the folder of the crate"))
        .collect();
    let programs = files
        .iter()
        .filter(|file| file.starts_with("tests/") || file.starts_with("examples/"));
    for program in programs {
        if tar(&["--extract", "--to-stdout", &format!("{name}/{program}")]).contains("testkit") {
            faults.push(format!(
                "{name}.crate has {program}, which needs testkit, and no registry has that: add its folder to `exclude`"
            ));
            break;
        }
    }
    faults
}
