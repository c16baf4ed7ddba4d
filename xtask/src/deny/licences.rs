//! The rule about licences: each crate that is built into a program may be used under one that `deny.toml` allows.

use super::Verdict;
use super::rules::Rules;
use crate::step::{self, cargo};

/// A crate that a program is built of.
#[derive(Debug, PartialEq)]
pub struct Crate {
    pub name: String,
    pub version: String,
    /// An expression of SPDX.
    pub licence: String,
}

/// The systems whose crates are looked at.
const TARGETS: &[&str] = &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-musl"];

pub fn check(rules: &Rules) -> Verdict {
    let crates = crates(&["--workspace", "--all-features"]);
    let refused = crates.iter().filter(|one| !is_allowed(&one.licence, &rules.licences));
    Verdict {
        looked_at: crates.len(),
        wrong: refused
            .map(|Crate { name, version, licence }| {
                format!("{name} {version} has the licence {licence:?}: see deny.toml")
            })
            .collect(),
    }
}

/// The crates that are built into the packages which `scope` names, in order. Tests and benches do not count.
pub fn crates(scope: &[&str]) -> Vec<Crate> {
    let mut tree = cargo();
    tree.args([
        "tree",
        "--locked",
        "--edges=normal,build",
        "--prefix=none",
        "--format={p}|{l}|",
    ]);
    tree.args(TARGETS.iter().flat_map(|target| ["--target", *target]));
    parse(&step::output(tree.args(scope)))
}

fn parse(text: &str) -> Vec<Crate> {
    let crates = text.lines().filter_map(|line| {
        let mut fields = line.split('|');
        let mut words = fields.next()?.split(' ');
        Some(Crate {
            name: words.next()?.to_string(),
            version: words.next()?.trim_start_matches('v').to_string(),
            licence: fields.next()?.to_string(),
        })
    });
    let mut crates: Vec<Crate> = crates.collect();
    crates.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    crates.dedup();
    crates
}

/// Whether an expression allows a use under licences of the list.
fn is_allowed(expression: &str, list: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    any(&mut rest, list) && rest.is_empty()
}

/// Reads alternatives.
fn any(words: &mut &[&str], list: &[String]) -> bool {
    let mut found = all(words, list);
    while let Some((&"OR", rest)) = words.split_first() {
        *words = rest;
        found |= all(words, list);
    }
    found
}

/// Reads licences that hold together.
fn all(words: &mut &[&str], list: &[String]) -> bool {
    let mut found = one(words, list);
    while let Some((&"AND", rest)) = words.split_first() {
        *words = rest;
        found &= one(words, list);
    }
    found
}

/// Reads a licence, with its exception, or a group.
fn one(words: &mut &[&str], list: &[String]) -> bool {
    let Some((first, rest)) = words.split_first() else {
        return false;
    };
    *words = rest;
    if *first == "(" {
        let found = any(words, list);
        let Some((&")", rest)) = words.split_first() else {
            return false;
        };
        *words = rest;
        return found;
    }
    let mut licence = first.to_string();
    if let [with @ "WITH", exception, rest @ ..] = words {
        licence = format!("{licence} {with} {exception}");
        *words = rest;
    }
    list.contains(&licence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let list = ["MIT", "Unicode-3.0"].map(String::from);
        for (expression, expected) in [
            ("MIT", true),
            ("Apache-2.0", false),
            ("", false),
            ("Apache-2.0 OR MIT", true),
            ("MIT/Apache-2.0", true),
            ("MIT AND Apache-2.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND BSL-1.0", false),
            ("MIT OR Apache-2.0 AND BSL-1.0", true),
            ("Apache-2.0 WITH LLVM-exception OR MIT", true),
            ("MIT WITH exception", false),
            ("(MIT", false),
            ("MIT)", false),
        ] {
            assert_eq!(is_allowed(expression, &list), expected, "{expression}");
        }
    }

    #[test]
    fn the_lines_of_cargo_tree() {
        let text = "b v1.2.0 (proc-macro)|MIT| (*)\na v0.1.0 (/x/y)|MIT OR Apache-2.0|\nb v1.2.0 (proc-macro)|MIT|\n\n";
        let crates = parse(text);
        assert_eq!(crates.len(), 2);
        assert_eq!(
            crates[1],
            Crate {
                name: "b".into(),
                version: "1.2.0".into(),
                licence: "MIT".into()
            }
        );
    }
}
