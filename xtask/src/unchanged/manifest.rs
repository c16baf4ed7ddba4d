//! The lines of the workspace's manifest that are inputs of a step.
//!
//! The versions of dependencies stand in `Cargo.lock`, which is compared for the crates that a step builds, and the members are folders. So
//! of the dependencies the lines of those crates count, for their features, and of the profiles those that the step's programs are built with.

use std::collections::HashSet;

/// The lines that count for a step that builds `crates`.
pub fn lines<'a>(manifest: &'a str, step: &str, crates: &HashSet<&str>) -> Vec<&'a str> {
    let mut table = "";
    let of_step = |line: &&'a str| {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = name;
        }
        match table {
            "workspace" => !line.starts_with('"'),
            "workspace.dependencies" => {
                let name = line.split(['=', '.']).next().unwrap_or_default().trim();
                crates.contains(name)
            }
            _ if table.starts_with("profile.") => profiles(step).iter().any(|profile| table.starts_with(profile)),
            _ => true,
        }
    };
    let is_text = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    manifest.lines().filter(is_text).filter(of_step).collect()
}

/// The profiles of a step's programs. The others run none, or those of another workspace.
fn profiles(step: &str) -> &'static [&'static str] {
    match step {
        "tests" | "valgrind" | "poll-backend" | "miri" => &["profile.dev"],
        // The one inherits the other.
        "loom" => &["profile.loom", "profile.release"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_step_builds_counts() {
        let manifest = "[workspace]\nmembers = [\n    \"a\", # one\n]\n\n[workspace.package]\nedition = \"2024\"\n\n[workspace.dependencies]\n\
                        a = \"1\"\nb = { version = \"2\" }\n\n# Quick.\n[profile.dev]\ndebug = false\n\n[profile.loom.package]\nb = { opt-level = 1 }\n";
        let of = |step| lines(manifest, step, &HashSet::from(["b"]));
        let common = [
            "[workspace]",
            "members = [",
            "]",
            "[workspace.package]",
            "edition = \"2024\"",
            "b = { version = \"2\" }",
        ];
        assert_eq!(of("targets"), common);
        assert_eq!(of("tests"), [&common[..], &["[profile.dev]", "debug = false"]].concat());
        assert_eq!(of("miri"), of("tests"));
        let loom = ["[profile.loom.package]", "b = { opt-level = 1 }"];
        assert_eq!(of("loom"), [&common[..], &loom].concat());
    }
}
