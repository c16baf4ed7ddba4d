//! What rules do to a path without a request, as far as no condition decides. `osier check` finds loops by it.

use super::{Ready, Rewrite, Verdict};

/// Captures that stand in for those of a request.
const SAMPLES: [&str; 3] = ["a", "1", ""];

impl Rewrite {
    /// Paths that rules make of other paths, whatever the request is. Each stands for many.
    pub fn products(&self) -> impl Iterator<Item = String> {
        let unconditional = self.rules.iter().filter(|rule| rule.is_certain());
        unconditional.flat_map(|rule| SAMPLES.map(|sample| rule.url.path_of(sample)))
    }

    /// What the rules do to the request for a path of this text, whatever the rest of the request is. `None` if that
    /// depends on the rest.
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
