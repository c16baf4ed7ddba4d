//! The rule about `docs/internal/seeds.md`: every row of the described systems is in it, and every test it names exists.
//!
//! It also runs as a test. A line of the table is `| row | where | tests | what |`. `where` is a crate, or one of
//! `different`, `later`, `not`; then there need be no test, but the last column gives the reason. Tests that the table of
//! other suites names exist as well.

use super::Verdict;
use crate::root;
use std::collections::{HashMap, HashSet};

const TABLE: &str = "docs/internal/seeds.md";

/// Each system's groups of rows, numbered from 1 without a gap.
const GROUPS: &[(&str, usize)] = &[
    ("DLB-P", 12),
    ("DLB-RQ", 6),
    ("DLB-WQ", 10),
    ("DLB-IOQ", 14),
    ("DLB-MB", 12),
    ("DLB-PT", 6),
    ("DLB-X", 6),
    ("DLB-S", 9),
    ("LWA-M", 7),
    ("LWA-F", 6),
    ("LWA-H", 12),
    ("LWA-S", 7),
    ("LWA-D", 2),
    ("LWC", 18),
    ("LWC-S", 6),
    ("LWS-B", 7),
    ("LWS-C", 10),
    ("LWS-L", 6),
    ("LWS-H", 17),
    ("LWS-R", 5),
    ("LWS-W", 8),
    ("LWS-P", 6),
    ("LWS-K", 5),
    ("LWS-MO", 9),
    ("EVT", 15),
    ("EVT-S", 6),
    ("MIO", 19),
    ("MIO-S", 3),
    ("ASD-R", 11),
    ("ASD-E", 12),
    ("ASD-T", 12),
    ("ASD-TM", 2),
    ("ASD-MX", 2),
    ("ASD-S", 9),
    // Lwan's own tests, and its samples.
    ("LWT", 44),
    ("LWX", 10),
    // Every shortcoming that the described systems name.
    ("GAP", 37),
];

/// Where a row is that has no test.
const WITHOUT_TEST: &[&str] = &["different", "later", "not"];

pub fn check() -> Verdict {
    let Ok(text) = std::fs::read_to_string(root().join(TABLE)) else {
        return Verdict::new(0, vec![format!("{TABLE} is not there")]);
    };
    let functions = Functions::read();
    let mut wrong = Vec::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            continue;
        }
        let mut complain = |what: String| wrong.push(format!("{TABLE}:{}: {what}", number + 1));
        if !cells.first().is_some_and(|row| is_row(row)) {
            // Between the first and the second backquote is a name, and so on.
            let named = line.split('`').skip(1).step_by(2).filter(|word| word.contains("::"));
            named.filter_map(|test| missing(test, &functions)).for_each(complain);
            continue;
        }
        let [row, place, tests, what] = cells[..] else {
            complain(format!("{} columns instead of 4", cells.len()));
            continue;
        };
        *seen.entry(row).or_default() += 1;
        if what.is_empty() {
            complain(format!("{row} says nothing"));
        }
        let without = WITHOUT_TEST.contains(&place);
        if !without && !root().join(place.trim_matches('`')).exists() {
            complain(format!("{row} lives in {place}, which is not there"));
        }
        let tests: Vec<&str> = tests
            .split(',')
            .map(|test| test.trim().trim_matches('`'))
            .filter(|test| !test.is_empty())
            .collect();
        if tests.is_empty() && !without {
            complain(format!("{row} names no test"));
        }
        tests
            .iter()
            .filter_map(|test| missing(test, &functions))
            .for_each(complain);
    }
    let mut rows = 0;
    for (group, count) in GROUPS {
        for n in 1..=*count {
            rows += 1;
            match seen.remove(format!("{group}-{n}").as_str()) {
                Some(1) => {}
                Some(times) => wrong.push(format!("{TABLE}: {group}-{n} is there {times} times")),
                None => wrong.push(format!("{TABLE}: {group}-{n} is missing")),
            }
        }
    }
    wrong.extend(seen.keys().map(|row| format!("{TABLE}: there is no row {row}")));
    Verdict::new(rows, wrong)
}

/// Whether a cell is the name of a row: capitals, then a number.
fn is_row(cell: &str) -> bool {
    cell.rsplit_once('-').is_some_and(|(group, number)| {
        !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && group.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
    })
}

/// The names of all functions of each crate, by the crate's folder.
pub(super) struct Functions(HashMap<String, HashSet<String>>);

impl Functions {
    pub(super) fn read() -> Functions {
        let mut functions: HashMap<String, HashSet<String>> = HashMap::new();
        for path in crate::tidy::sources() {
            let Some(folder) = path.components().next() else {
                continue;
            };
            let names = functions
                .entry(folder.as_os_str().to_string_lossy().into_owned())
                .or_default();
            let text = std::fs::read_to_string(root().join(&path)).unwrap_or_default();
            let declared = text.split("fn ").skip(1);
            names.extend(declared.map(|rest| rest.split(['(', '<']).next().unwrap_or_default().to_string()));
        }
        Functions(functions)
    }
}

/// The finding about `crate::function`, if there is one.
pub(super) fn missing(test: &str, Functions(functions): &Functions) -> Option<String> {
    let Some((folder, function)) = test.split_once("::") else {
        return Some(format!("a test is named crate::function, not {test}"));
    };
    match functions.get(folder) {
        None => Some(format!("{test}: there is no crate in {folder}/")),
        Some(names) if names.contains(function) => None,
        Some(_) => Some(format!("{test}: the crate has no such function")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_row_and_its_tests_exist() {
        let Verdict {
            looked_at: rows, wrong, ..
        } = check();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(rows, 297 + 44 + 10 + 37);
    }

    #[test]
    fn rows_and_missing_tests_are_told() {
        assert!(is_row("DLB-MB-12") && is_row("LWC-1") && !is_row("row") && !is_row("LWC-") && !is_row("a-1"));
        let functions = Functions::read();
        assert_eq!(missing("xtask::check", &functions), None);
        let refused = |test| missing(test, &functions).unwrap();
        assert!(refused("xtask::chuck").contains("no such function"));
        assert!(refused("xtosk::check").contains("no crate"));
        assert!(refused("check").contains("crate::function"));
    }
}
