//! The rule about the numbers of dependencies that crate pages name: they are those that cargo counts, about.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use super::{Verdict, read, root};
use crate::step::output;

/// How far "about" goes.
const ABOUT: usize = 3;

/// The page, the words in front of a number, and the build that it is for.
const CLAIMS: [(&str, &str, &[&str]); 4] = [
    ("runtime/src/lib.rs", "**Dependencies**: about ", &["--package=osier"]),
    (
        "runtime/src/lib.rs",
        " crates with the default features, ",
        &["--package=osier", "--no-default-features"],
    ),
    (
        "web/src/lib.rs",
        "Without features it has about ",
        &["--package=osier-web", "--no-default-features"],
    ),
    (
        "web/src/lib.rs",
        "with `full` about ",
        &["--package=osier-web", "--features=full"],
    ),
];

pub fn check() -> Verdict {
    let wrong = CLAIMS.iter().filter_map(|(page, words, build)| {
        let (claimed, counted) = (claimed(&read(Path::new(page)), words), counted(build));
        let is_near = claimed.is_some_and(|claimed| claimed.abs_diff(counted) <= ABOUT);
        let shown = claimed.map_or("no number".into(), |claimed| claimed.to_string());
        (!is_near).then(|| format!("{page}: {shown} after \"{words}\", and cargo counts {counted} dependencies"))
    });
    Verdict::new(CLAIMS.len(), wrong.collect())
}

/// The number behind some words of a page, whose lines may break anywhere.
fn claimed(page: &str, words: &str) -> Option<usize> {
    let lines: Vec<&str> = page
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .collect();
    let text = lines.join(" ");
    let digits = text.split_once(words)?.1;
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The crates that are built for the users of a crate, it alone left out.
fn counted(build: &[&str]) -> usize {
    let mut cargo = Command::new("cargo");
    cargo
        .args([
            "tree",
            "--locked",
            "--edges=normal",
            "--prefix=none",
            "--format={p}",
            "--target=x86_64-unknown-linux-gnu",
        ])
        .args(build)
        .current_dir(root());
    let tree = output(&mut cargo);
    let crates: HashSet<_> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    crates.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_behind_the_break_of_a_line() {
        let page = "//! Before it there are about 7.\n//! It has about\n//! 30 crates.\n\n// It has about 9\n";
        assert_eq!(claimed(page, "It has about "), Some(30));
        assert_eq!(claimed(page, "It has no "), None);
    }

    #[test]
    fn a_build_without_features_has_fewer_dependencies() {
        let [all, few] = [counted(CLAIMS[0].2), counted(CLAIMS[1].2)];
        assert!(few > 5 && few < all, "{few} of {all}");
    }
}
