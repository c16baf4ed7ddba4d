//! Applies rules to a path without a request, as far as no condition decides. `osier check` finds loops by it.

use super::{Ready, Rewrite, Verdict};

/// Captures that stand in for those of a request.
const SAMPLES: [&str; 3] = ["a", "1", ""];

impl Rewrite {
    /// Paths that rules make of other paths, whatever the request is. Each stands for many.
    pub fn products(&self) -> impl Iterator<Item = String> {
        let unconditional = self.rules.iter().filter(|rule| rule.is_certain());
        unconditional.flat_map(|rule| SAMPLES.map(|sample| rule.url.path_of(sample)))
    }

    /// Applies the rules to the text of a path. `None` if the rest of the request decides.
    pub fn foresee(&self, text: &[u8]) -> Option<Verdict> {
        for rule in &self.rules {
            let Some(captures) = rule.pattern.captures(text) else {
                continue;
            };
            return rule.checks.is_empty().then(|| rule.verdict_of(&captures, None));
        }
        Some(Verdict::Nothing)
    }
}

impl Ready {
    /// Whether the rule rewrites each path that its pattern matches.
    fn is_certain(&self) -> bool {
        self.checks.is_empty() && self.redirect.is_none()
    }
}
