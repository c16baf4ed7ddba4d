//! `cargo xtask tidy`: checks that no compiler makes.
//!
//! A rule is a function. It returns how many things it looked at and what is wrong, one line each. A rule that looked at
//! nothing has failed. Some rules are ratchets: they compare a count with a checked-in limit that may only go down
//! (`ratchet.rs`).

mod circles;
mod commits;
mod dependencies;
mod documents;
mod files;
mod islands;
mod musts;
mod names;
mod openings;
mod ratchet;
mod rooms;
mod seeds;
mod tokens;

use crate::root;
use crate::step::{self, Outcome};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// The result of a rule.
#[derive(Default)]
struct Verdict {
    looked_at: usize,
    /// One line for each finding.
    wrong: Vec<String>,
    /// Lines that are printed whatever the result is: counts, and warnings.
    notes: Vec<String>,
}

impl Verdict {
    fn new(looked_at: usize, wrong: Vec<String>) -> Verdict {
        Verdict {
            looked_at,
            wrong,
            notes: vec![],
        }
    }
}

struct Rule {
    name: &'static str,
    /// The things that it looks at, in the plural.
    about: &'static str,
    check: fn() -> Verdict,
}

const fn rule(name: &'static str, about: &'static str, check: fn() -> Verdict) -> Rule {
    Rule { name, about, check }
}

const RULES: &[Rule] = &[
    rule("paths", "paths named in documents", documents::paths_exist),
    rule("links", "links of documents", documents::links_lead_somewhere),
    rule("headers", "source files", files::headers),
    rule("owners", "texts searched for signs without an owner", files::owners),
    rule("sorted", "dependencies", files::sorted_dependencies),
    rule("size", "source files", files::sizes),
    rule("unsafe", "source files against the islands", islands::check),
    rule("seeds", "rows of the described systems", seeds::check),
    rule("musts", "rules of HTTP/2", musts::check),
    rule(
        "readme",
        "command of the README that .ci/run runs",
        documents::readme_command,
    ),
    rule("rooms", "entries of src folders", rooms::check),
    rule("circles", "modules", circles::check),
    rule("openings", "paragraphs of doc comments", openings::check),
    rule("names", "names in module headers", names::check),
    rule("commits", "commit subjects", commits::check),
    rule("dependencies", "numbers of dependencies", dependencies::check),
];

pub fn main() -> ExitCode {
    let start = Instant::now();
    step::report(&[run()], start.elapsed())
}

/// All rules as one step.
pub fn run() -> Outcome {
    let start = Instant::now();
    step::say("\ntidy");
    let (mut checks, mut failed, mut complaints) = (0, 0, vec![]);
    for Rule { name, about, check } in RULES {
        let verdict = check();
        step::say(&format!(
            "  {name}: {} {about}, {} wrong",
            verdict.looked_at,
            verdict.wrong.len()
        ));
        verdict.notes.iter().for_each(|note| step::say(&format!("    {note}")));
        verdict
            .wrong
            .iter()
            .for_each(|finding| step::say(&format!("    {finding}")));
        if verdict.looked_at == 0 {
            step::say("    looked at nothing, which is a failure");
        }
        checks += verdict.looked_at;
        failed += usize::from(verdict.looked_at == 0 || !verdict.wrong.is_empty());
        complaints.extend(verdict.wrong);
    }
    Outcome {
        name: "tidy".into(),
        passed: RULES.len() - failed,
        failed,
        checked: format!("{checks} things by {} rules", RULES.len()),
        complaints,
        took: start.elapsed(),
        ..Outcome::default()
    }
}

/// Every Rust file of the repository, relative to its root, in order.
pub fn sources() -> Vec<PathBuf> {
    files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .collect()
}

/// Every file of the repository that is neither built nor hidden.
pub fn files() -> Vec<PathBuf> {
    let mut found = vec![];
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(root().join(&dir)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let built = ["target", "corpus", "artifacts", "coverage"]
                .iter()
                .any(|built| name == *built);
            if built || name.to_string_lossy().starts_with('.') {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(dir.join(name)),
                Ok(kind) if kind.is_file() => found.push(dir.join(name)),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(root().join(path)).unwrap_or_default()).into_owned()
}

/// The maximal runs of characters that satisfy `is_part`, with the byte where each starts.
fn words(text: &str, is_part: impl Fn(char) -> bool) -> Vec<(usize, &str)> {
    let pieces = text.split(|c| !is_part(c)).filter(|piece| !piece.is_empty());
    pieces
        .map(|piece| (piece.as_ptr() as usize - text.as_ptr() as usize, piece))
        .collect()
}

/// The crate of a source file: the first folder of its path.
fn crate_of(path: &Path) -> String {
    let first = path.components().next();
    first.map_or_else(String::new, |first| first.as_os_str().to_string_lossy().into_owned())
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expanded(word: &str) -> Vec<String> {
    let parts = word
        .split_once('{')
        .and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    match parts {
        None => vec![word.to_string()],
        Some((head, (choices, tail))) => choices
            .split(',')
            .flat_map(|choice| expanded(&format!("{head}{choice}{tail}")))
            .collect(),
    }
}
