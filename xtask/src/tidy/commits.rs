//! The rule about commit subjects: at most 72 characters, `module: imperative` in lower case.
//!
//! It holds for the commits after [`BASE`]. The older ones are counted and left alone.

use super::{Verdict, root};
use std::process::Command;

/// The last commit that was made without the rule.
const BASE: &str = "472edf5";

const LONGEST: usize = 72;

pub fn check() -> Verdict {
    let ours = subjects(&format!("{BASE}..HEAD"));
    let older = subjects(BASE);
    let (Some(ours), Some(older)) = (ours, older) else {
        let mut verdict = Verdict::new(1, vec![]);
        verdict
            .notes
            .push(format!("skipped: no git history back to {BASE} here"));
        return verdict;
    };
    let wrong = ours
        .iter()
        .filter_map(|line| Some(format!("{line}: {}", complaint(subject(line))?)));
    let mut verdict = Verdict::new(ours.len() + older.len(), wrong.collect());
    let warned = older.iter().filter(|line| complaint(subject(line)).is_some()).count();
    verdict
        .notes
        .push(format!("{warned} of {} older subjects break the rule", older.len()));
    verdict
}

/// The short hash and the subject of each commit of a range, merges left out; `None` if git does not know the range.
fn subjects(range: &str) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["log", "--no-merges", "--format=%h %s", range])
        .current_dir(root());
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(str::to_string)
            .collect(),
    )
}

/// The line without its hash.
fn subject(line: &str) -> &str {
    line.split_once(' ').map_or("", |(_, subject)| subject)
}

/// The finding about a subject.
fn complaint(subject: &str) -> Option<&'static str> {
    let Some((module, rest)) = subject.split_once(": ") else {
        return Some("does not begin with `module: `");
    };
    let is_module = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-/.,{} ".contains(c);
    let capital = rest.starts_with(char::is_uppercase) && rest.chars().nth(1).is_some_and(char::is_lowercase);
    if subject.chars().count() > LONGEST {
        Some("is longer than 72 characters")
    } else if module.is_empty() || !(module.chars().all(is_module) || module.ends_with(".md")) {
        Some("has no module before the colon")
    } else if capital {
        Some("has a capital letter after the colon")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_subjects_with_a_module_are_fine() {
        for fine in [
            "web: take paths",
            "http/fields: say why",
            "worker, slots: move",
            "ci: CPU seconds",
            "CHANGELOG.md: say it",
        ] {
            assert_eq!(complaint(fine), None, "{fine}");
        }
    }

    #[test]
    fn long_bare_and_capital_subjects_are_refused() {
        assert!(complaint(&format!("web: {}", "x".repeat(68))).is_some());
        assert_eq!(complaint(&format!("web: {}", "x".repeat(67))), None);
        for wrong in ["fix it", "web: Take paths", "This and that: do"] {
            assert!(complaint(wrong).is_some(), "{wrong}");
        }
    }
}
