//! Limits that may only go down.
//!
//! A rule that finds more than can be mended in one change counts its findings per crate and compares the counts with a
//! table. A change that mends something lowers the number in the table. No change raises one.

use super::Verdict;
use std::collections::BTreeMap;

/// The highest allowed count of each crate. The limit of a crate that is not in the table is 0.
pub type Limits = &'static [(&'static str, usize)];

/// Compares the findings of each crate with `limits`.
///
/// A crate beyond its limit fails with all its findings, because the rule cannot tell the new ones from the old ones.
pub fn compared(looked_at: usize, limits: Limits, mut found: BTreeMap<String, Vec<String>>) -> Verdict {
    for (name, _) in limits {
        found.entry((*name).to_string()).or_default();
    }
    let mut verdict = Verdict::new(looked_at, vec![]);
    let mut counts = vec![];
    for (name, findings) in found {
        let count = findings.len();
        let limit = limits
            .iter()
            .find(|(krate, _)| *krate == name)
            .map_or(0, |limit| limit.1);
        if count > limit {
            verdict
                .wrong
                .push(format!("{name}: {count} where at most {limit} are allowed:"));
            verdict.wrong.extend(findings);
        } else if count < limit {
            counts.push(format!("{name} {count} (the limit, {limit}, can go down)"));
        } else if count > 0 {
            counts.push(format!("{name} {count}"));
        }
    }
    if !counts.is_empty() {
        verdict.notes.push(counts.join(", "));
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(krate: &str, count: usize) -> BTreeMap<String, Vec<String>> {
        let findings = (0..count).map(|n| format!("finding {n}")).collect();
        BTreeMap::from([(krate.to_string(), findings)])
    }

    #[test]
    fn a_count_may_go_down_and_not_up() {
        const LIMITS: Limits = &[("web", 2)];
        assert_eq!(compared(1, LIMITS, found("web", 2)).wrong, [""; 0]);
        assert_eq!(compared(1, LIMITS, found("web", 1)).wrong, [""; 0]);
        assert_eq!(compared(1, LIMITS, found("web", 3)).wrong.len(), 4);
        assert_eq!(compared(1, LIMITS, found("http", 1)).wrong.len(), 2);
    }

    #[test]
    fn a_limit_that_can_go_down_is_said() {
        let verdict = compared(1, &[("web", 2)], BTreeMap::new());
        assert_eq!(verdict.notes, ["web 0 (the limit, 2, can go down)"]);
    }
}
