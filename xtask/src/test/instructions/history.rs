//! The reasons that commits give for more instructions.
//!
//! ```text
//!   ── previous change of the file ── … ── last change of the file ── … ── HEAD, counted now
//!              its counts ◀── reasons of these commits ──▶ its counts ◀── reasons of these ──▶
//! ```
//!
//! A commit gives a reason by a line of its message: `Instructions: hello, static: the log asks for the time of a request`. It
//! names paths, or `all`. A count that grows by more than the limit needs a reason, whether the file tells it or not.

use super::record::{FILE, LIMIT, Record};
use crate::step;
use std::process::Command;

const KEY: &str = "Instructions:";

/// Names the paths that have grown without a reason. An error says why the history tells nothing.
pub fn complaints(counted: &Record, file: &Record) -> Result<Vec<String>, String> {
    let changes = git(&["log", "-2", "--format=%H", "--", FILE]);
    let changes: Vec<&str> = changes.lines().collect();
    let Some(last) = changes.first() else {
        return Err(format!("git knows no commit of {FILE}"));
    };
    let since = git(&["log", "--format=%B", &format!("{last}..HEAD")]);
    let mut complaints = unexplained(counted, file, &since);
    if let Some(previous) = changes.get(1) {
        let of = |commit: &str| Record::parse(&git(&["show", &format!("{commit}:{FILE}")]));
        if let (Some(now), Some(before)) = (of(last), of(previous))
            && now.with == before.with
        {
            let between = git(&["log", "--format=%B", &format!("{previous}..{last}")]);
            complaints.extend(unexplained(&now, &before, &between));
        }
    }
    Ok(complaints)
}

fn git(args: &[&str]) -> String {
    step::output(Command::new("git").args(args))
}

fn unexplained(now: &Record, before: &Record, messages: &str) -> Vec<String> {
    let grown = now.grown(before).into_iter();
    grown
        .filter(|(name, _)| !is_explained(name, messages))
        .map(|(name, words)| {
            format!("{words}, over {LIMIT} %: mend it, or say why in the commit's message: \"{KEY} {name}: …\"")
        })
        .collect()
}

/// Whether a line of the messages has a reason for this path.
fn is_explained(name: &str, messages: &str) -> bool {
    let lines = messages.lines().filter_map(|line| line.strip_prefix(KEY));
    lines.filter_map(|line| line.split_once(':')).any(|(names, why)| {
        let mut names = names.split([',', ' ']).filter(|name| !name.is_empty());
        !why.trim().is_empty() && names.any(|known| known == name || known == "all")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_path() {
        let messages =
            "web: a\n\nMore.\nInstructions: hello, static: a clock\n\nInstructions: yield:\nInstructions: the log";
        assert!(is_explained("hello", messages) && is_explained("static", messages));
        assert!(!is_explained("yield", messages) && !is_explained("log", messages) && !is_explained("spawn", messages));
        assert!(is_explained("spawn", "Instructions: all: another compiler"));
    }

    #[test]
    fn growth_without_a_reason_is_named() {
        let of = |count| Record::parse(&format!("with x\nhello {count}\n")).unwrap();
        assert!(unexplained(&of(103), &of(100), "").is_empty());
        let named = unexplained(&of(104), &of(100), "web: a\n");
        assert!(
            named.len() == 1 && named[0].starts_with("hello: 104 instructions, +4.0 %"),
            "{named:?}"
        );
        assert!(unexplained(&of(104), &of(100), "web: a\n\nInstructions: hello: it must\n").is_empty());
    }
}
