//! The rule about `docs/internal/http2.md`: every rule of the RFCs in it names tests that exist, or says why there is none.

use super::Verdict;
use super::seeds::{Functions, missing};
use crate::root;

const TABLE: &str = "docs/internal/http2.md";

/// The beginning of a cell that names no test.
const WITHOUT: &str = "not: ";

pub fn check() -> Verdict {
    let Ok(text) = std::fs::read_to_string(root().join(TABLE)) else {
        return Verdict::new(0, vec![format!("{TABLE} is not there")]);
    };
    let functions = Functions::read();
    let (mut rows, mut wrong) = (0, Vec::new());
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        // A row begins with the number of a section.
        if !line.starts_with('|') || !cells[0].starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        rows += 1;
        let mut complain = |what: String| wrong.push(format!("{TABLE}:{}: {what}", number + 1));
        match cells[..] {
            [_, _, why] if why.len() > WITHOUT.len() && why.starts_with(WITHOUT) => {}
            [_, _, tests] => {
                let tests = tests.split(',').map(|test| test.trim().trim_matches('`'));
                tests.filter_map(|test| missing(test, &functions)).for_each(complain);
            }
            _ => complain(format!("{} columns instead of 3", cells.len())),
        }
    }
    Verdict::new(rows, wrong)
}
