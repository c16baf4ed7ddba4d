//! Applies rules to a path without a request, as far as no condition decides. `osier check` finds loops by it.

use super::condition::Check;
use super::{Ready, Rewrite, Verdict};

/// Captures that stand in for those of a request.
const SAMPLES: [&str; 3] = ["a", "1", ""];

impl Rewrite {
    /// Paths that rules make of other paths, each with the number of its rule. Each stands for many. The conditions of
    /// such a rule hold for the path that it makes, too.
    pub fn products(&self) -> impl Iterator<Item = (usize, String)> {
        let lasting = self.rules.iter().enumerate().filter(|(_, rule)| rule.lasts());
        lasting.flat_map(|(number, rule)| SAMPLES.map(|sample| (number, rule.url.path_of(sample))))
    }

    /// Applies the rules to the text of a path. The conditions of the rule `met` hold. `None` if the rest of the request
    /// decides.
    pub fn foresee(&self, text: &[u8], met: Option<usize>) -> Option<Verdict> {
        for (number, rule) in self.rules.iter().enumerate() {
            let Some(captures) = rule.pattern.captures(text) else {
                continue;
            };
            let is_certain = rule.checks.is_empty() || met == Some(number);
            return is_certain.then(|| rule.verdict_of(&captures, None));
        }
        Some(Verdict::Nothing)
    }
}

impl Ready {
    /// Whether a request that the rule has rewritten is rewritten again if the pattern matches its new path.
    fn lasts(&self) -> bool {
        self.redirect.is_none() && self.checks.iter().all(Check::lasts)
    }
}
