//! The rule about how doc comments open: a sentence begins with its subject or its verb.
//!
//! Two findings are counted per crate. A sentence opens with a relative clause ("Whom a burst answers", "What is left of a
//! request"). Or the summary of an item opens with a bare preposition ("For tests.", "With the settings of ..."). Code
//! blocks, headings and tables are not read. "At most", "At least" and notes of a unit such as "In bytes." are fine.

use super::ratchet::{self, Limits};
use super::{Verdict, crate_of, read, sources};
use std::collections::BTreeMap;

/// How many such openings each crate may have.
const LIMITS: Limits = &[
    ("bench", 0),
    ("coro", 0),
    ("examples", 0),
    ("fuzz", 0),
    ("http", 0),
    ("integrations", 0),
    ("mixing", 0),
    ("poll", 0),
    ("queue", 0),
    ("runtime", 0),
    ("server", 0),
    ("testkit", 0),
    ("tls", 0),
    ("web", 0),
];

/// The first words of relative clauses.
const RELATIVE: &[&str] = &[
    "Of",
    "Those that",
    "Those who",
    "What",
    "Who",
    "Whoever",
    "Whom",
    "Whose",
];

/// The prepositions that no summary begins with.
const PREPOSITIONS: &[&str] = &[
    "Among", "At", "Behind", "Beside", "Between", "Beyond", "By", "For", "From", "In", "Into", "Of", "On", "Over",
    "Through", "To", "Under", "With", "Within", "Without",
];

pub fn check() -> Verdict {
    let mut looked_at = 0;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in sources() {
        for paragraph in paragraphs(&read(&path)) {
            looked_at += 1;
            let findings = paragraph.findings().into_iter();
            let findings = findings.map(|what| format!("{}:{}: {what}", path.display(), paragraph.line));
            found.entry(crate_of(&path)).or_default().extend(findings);
        }
    }
    ratchet::compared(looked_at, LIMITS, found)
}

/// A paragraph of a doc comment.
pub struct Paragraph {
    /// Where it begins, counted from 1.
    pub line: usize,
    /// Whether it is the first one of its comment.
    is_summary: bool,
    /// Whether it belongs to a module header.
    pub is_header: bool,
    pub text: String,
}

impl Paragraph {
    fn findings(&self) -> Vec<String> {
        let mut found = vec![];
        for sentence in sentences(&self.text) {
            let refused = RELATIVE.iter().find(|words| begins_with(sentence, words));
            if let Some(words) = refused.filter(|_| !sentence.ends_with('?')) {
                found.push(format!("a sentence opens with {words:?}: {}", beginning(sentence)));
            }
        }
        let preposition = PREPOSITIONS.iter().find(|word| begins_with(&self.text, word));
        if let Some(word) = preposition.filter(|_| self.is_summary && found.is_empty() && !is_fine(&self.text)) {
            found.push(format!("the summary opens with {word:?}: {}", beginning(&self.text)));
        }
        found
    }
}

/// Whether a text that begins with a preposition is a bound or the note of a unit.
fn is_fine(text: &str) -> bool {
    let is_bound = ["At most", "At least"].iter().any(|words| begins_with(text, words));
    is_bound || (begins_with(text, "In") && text.split_whitespace().count() == 2)
}

fn begins_with(text: &str, words: &str) -> bool {
    let rest = text.strip_prefix(words);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '\'' || c == '-'))
}

/// The first words of a sentence, to find it.
fn beginning(sentence: &str) -> String {
    sentence.split_whitespace().take(6).collect::<Vec<_>>().join(" ")
}

/// The sentences of a paragraph. A capital letter behind a full stop begins one.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = vec![];
    let mut start = 0;
    for (at, _) in text.match_indices([' ']) {
        let ends = text[start..at].ends_with(['.', '!', '?', ':']) || text[start..at].ends_with(".)");
        if ends && text[at + 1..].starts_with(|c: char| c.is_uppercase() || c == '`' || c == '[' || c == '(') {
            found.push(&text[start..at]);
            start = at + 1;
        }
    }
    found.push(&text[start..]);
    found
}

/// The paragraphs of all doc comments of a source file. A list item is one.
pub fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = vec![];
    // The marker of the comment that goes on, whether it has had a paragraph, and whether its last one goes on.
    let (mut marker, mut has_summary, mut goes_on) = ("", false, false);
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let markers = ["///", "//!"].into_iter();
        let here = markers
            .filter(|_| !line.starts_with("////"))
            .find(|marker| line.starts_with(marker));
        let here = here.unwrap_or_default();
        if here != marker || here.is_empty() {
            (marker, has_summary, goes_on, is_code) = (here, false, false, false);
        }
        let content = line[here.len()..].trim();
        let is_fence = content.starts_with("```");
        is_code ^= is_fence;
        if here.is_empty() || content.is_empty() || is_code || is_fence || content.starts_with(['#', '|']) {
            goes_on = false;
            continue;
        }
        let item = ["- ", "* "].iter().find_map(|bullet| content.strip_prefix(bullet));
        match found.last_mut() {
            Some(last) if goes_on && item.is_none() => {
                last.text.push(' ');
                last.text.push_str(content);
            }
            _ => found.push(Paragraph {
                line: number + 1,
                is_summary: !has_summary,
                is_header: here == "//!",
                text: item.unwrap_or(content).to_string(),
            }),
        }
        (has_summary, goes_on) = (true, true);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        paragraphs(text).iter().flat_map(Paragraph::findings).collect()
    }

    #[test]
    fn relative_clauses_and_bare_prepositions_are_found() {
        let refused = [
            "//! Whom a burst answers.",
            "/// What is left of a request.",
            "/// Fine here. Of these, the first one counts.",
            "/// Fine here.\n///\n/// Those that wait are woken.",
            "/// For tests.",
            "/// With the settings of [`Builder::default`].",
        ];
        for text in refused {
            assert_eq!(findings(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn subjects_questions_units_and_code_are_fine() {
        let fine = [
            "/// Offers the rest. The file of `x`. Often, whatever happens.",
            "/// What now? For example, this one.",
            "/// In bytes.",
            "/// At most 5 of them.",
            "/// Panics.\n///\n/// # Panics\n///\n/// In a future on a worker.",
            "/// Fine.\n/// ```\n/// What is it. Of that.\n/// ```",
            "// Of a comment that is no doc comment.",
        ];
        for text in fine {
            assert_eq!(findings(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn paragraphs_end_at_empty_lines_items_and_other_comments() {
        let text = "//! One\n//! goes on.\n//!\n//! Two.\n//! - Three\n//!   goes on.\n\n/// Four.\n";
        let found: Vec<(usize, String)> = paragraphs(text).into_iter().map(|p| (p.line, p.text)).collect();
        let expected = [(1, "One goes on."), (4, "Two."), (5, "Three goes on."), (8, "Four.")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_string())));
    }
}
