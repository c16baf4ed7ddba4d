//! The step `api`, and `cargo xtask api`: the lists of the public API in `docs/internal/api` are those of the source.
//!
//! Rustdoc writes its view of each published library as JSON, and the program in `xtask/api` makes a list of it. A warning of rustdoc is a
//! failure of the step, so a change needs no documents beside (the step `rustdoc` of CI). Those of osier-macros, whose items are in osier's
//! list, are made for that alone. Rustdoc and the program use the stable toolchain, and what other steps have compiled: the nightly toolchain
//! would compile every dependency again.

use super::{LIMIT, Step, TOOLS, Work, features, is_left_out, run, target_dir};
use crate::root;
use crate::step::{self, Outcome, cargo};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The libraries that a registry gets.
const LIBRARIES: &[&str] = &[
    "osier",
    "osier-coro",
    "osier-http",
    "osier-poll",
    "osier-queue",
    "osier-tls",
    "osier-web",
];

const FOLDER: &str = "docs/internal/api";

pub fn main(args: &[String]) -> ExitCode {
    let start = Instant::now();
    let work = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare,
        ["--write"] => || with_lists("", write),
        _ => {
            eprintln!("cargo xtask api takes no option but --write");
            return ExitCode::from(2);
        }
    };
    let step = Step {
        name: "api",
        work: Work::Compile(work),
    };
    step::report(&run(&[step]), start.elapsed())
}

/// Compares the lists with the source.
pub fn compare() -> Outcome {
    with_lists("-D warnings", differences)
}

/// Makes the lists of all libraries and gives each to `check`, with the path of the list that is checked in.
fn with_lists(lints: &str, check: fn(&Path, &str) -> Vec<String>) -> Outcome {
    let documents = target_dir().join("doc");
    let mut rustdoc = cargo();
    rustdoc.args(["doc", "--locked", "--no-deps", "--lib", "-p", "osier-macros"]);
    let libraries: Vec<&str> = LIBRARIES
        .iter()
        .copied()
        .filter(|library| !is_left_out(library))
        .collect();
    for library in &libraries {
        // Its folder has the name of the package but for this one.
        let folder = library.strip_prefix("osier-").unwrap_or("runtime");
        let mut features = features::tried(folder);
        // osier-tls has it by default. Named here, it would be asked of osier-web, too, which has a dependency of that name.
        features.retain(|feature| feature != "ring");
        rustdoc.args(["-p", library, "--features", &features.join(",")]);
    }
    rustdoc.env("RUSTDOC", root().join("xtask/api/rustdoc")).env(
        "RUSTDOCFLAGS",
        format!("{lints} -Zunstable-options --output-format json"),
    );
    let file = |library: &str, end: &str| documents.join(format!("{}.{end}", library.replace('-', "_")));
    let (mut skip, mut has_warning) = (None, false);
    let mut runs = |command| {
        step::run(command, LIMIT, |line| {
            skip = skip.take().or(line.strip_prefix("skipped: ").map(str::to_string));
            // Libraries are compiled with all features for those above them, and no other step of a change does that.
            has_warning |= line.starts_with("warning");
            true
        })
    };
    let mut made = runs(&mut rustdoc);
    if made {
        let tools = match TOOLS.executables() {
            Ok(tools) => tools,
            Err(outcome) => {
                return Outcome {
                    name: "api".into(),
                    ..*outcome
                };
            }
        };
        let list = tools.iter().find(|tool| tool.target == "xtask-api");
        let mut list = Command::new(&list.expect("cargo builds it").file);
        made = runs(list.args(libraries.iter().map(|library| file(library, "json"))));
    }
    if let Some(why) = skip {
        return Outcome::skipped("api", why);
    }
    made &= !has_warning;
    let (mut wrong, mut items) = (vec![], 0);
    for library in libraries.iter().filter(|_| made) {
        let list = std::fs::read_to_string(file(library, "txt")).unwrap_or_default();
        items += list.lines().count();
        wrong.extend(check(&checked_in(library), &list));
    }
    wrong.iter().for_each(|line| step::say(line));
    let outcome = Outcome::one_check("api", made && wrong.is_empty(), items, "public items", Duration::ZERO);
    match wrong.is_empty() {
        true => outcome,
        false => Outcome {
            complaints: vec![format!(
                "{} lines of {FOLDER} differ, see above; if the change is meant: cargo xtask api --write",
                wrong.len()
            )],
            ..outcome
        },
    }
}

fn checked_in(library: &str) -> PathBuf {
    root().join(FOLDER).join(format!("{library}.txt"))
}

/// Writes a list; what is wrong is an error.
fn write(path: &Path, list: &str) -> Vec<String> {
    let written = std::fs::create_dir_all(path.parent().expect("a list is in a folder"))
        .and_then(|()| std::fs::write(path, list))
        .map_err(|error| format!("{}: {error}", path.display()));
    written.err().into_iter().collect()
}

/// The lines that only the list that is checked in has, and those that only the source has.
fn differences(path: &Path, list: &str) -> Vec<String> {
    let before = std::fs::read_to_string(path).unwrap_or_default();
    changed_lines(&before, list)
}

fn changed_lines(before: &str, after: &str) -> Vec<String> {
    let only = |sign: char, these: &str, those: &str| -> Vec<String> {
        let those: HashSet<&str> = those.lines().collect();
        let these = these.lines().filter(|line| !those.contains(line));
        these.map(|line| format!("{sign} {line}")).collect()
    };
    [only('-', before, after), only('+', after, before)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_signature_is_two_lines() {
        let (before, after) = ("pub fn a()\npub fn b()\n", "pub fn a()\npub fn b(u8)\n");
        assert_eq!(changed_lines(before, after), ["- pub fn b()", "+ pub fn b(u8)"]);
        assert_eq!(changed_lines(before, before), [""; 0]);
    }

    #[test]
    fn every_library_has_a_list() {
        let missing: Vec<&&str> = LIBRARIES
            .iter()
            .filter(|library| !checked_in(library).exists())
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
