//! Mistakes and warnings in a configuration file, with their places, and the report that prints them.
//!
//! Code that reads a file notes a [`Problem`] for each of them and continues. A file with a mistake is not used; one
//! with warnings is. A [`Report`] owns everything that it prints, so it outlives the file's text.

use std::fmt;
use std::ops::Range;

use super::reason::Reason;

/// Characters of a source line that are shown at most.
const SHOWN_CHARS: usize = 120;

/// One mistake or warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Whether the file can be used all the same.
    pub is_warning: bool,
    /// Place of the mistake, in bytes of the file.
    pub at: Range<usize>,
    /// One line: the mistake, what was expected, and what to do.
    pub why: Reason,
}

/// All mistakes and warnings of one file, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    entries: Vec<Entry>,
}

/// The files of a text: the name of each, and where it begins. The first begins at 0.
#[derive(Debug, Clone)]
pub struct Files(Vec<(usize, String)>);

impl Files {
    pub fn one(name: &str) -> Files {
        Files(vec![(0, name.to_owned())])
    }

    /// Adds a file that begins at `start`, behind all others.
    pub fn add(&mut self, name: String, start: usize) {
        self.0.push((start, name));
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(_, known)| known == name)
    }

    /// The file that holds a byte: its beginning and its name.
    pub fn at(&self, at: usize) -> (usize, &str) {
        let last = self.0.iter().rfind(|(start, _)| *start <= at);
        last.map_or((0, ""), |(start, name)| (*start, name))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    file: String,
    /// Place of the mistake. None when the file could not be read.
    place: Option<Place>,
    why: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    line: usize,
    /// Column in characters, from 1.
    column: usize,
    source: String,
    /// Number of characters to underline, at least 1.
    width: usize,
}

impl Report {
    /// A report on a file that could not be read.
    pub fn unreadable(file: &str, why: impl Into<Reason>) -> Report {
        let file = file.to_owned();
        let entries = vec![Entry {
            file,
            place: None,
            why: why.into(),
        }];
        Report { entries }
    }

    /// A report on the mistakes in `source`. The `secret` parts of shown lines are hidden.
    pub fn new(files: &Files, source: &str, mut problems: Vec<Problem>, secret: &[Range<usize>]) -> Report {
        problems.sort_by_key(|problem| problem.at.start);
        problems.dedup();
        let mut hidden = vec![false; source.len()];
        for secret in secret {
            hidden[secret.clone()].fill(true);
        }
        let entries = problems.into_iter().map(|problem| Entry {
            file: files.at(problem.at.start).1.to_owned(),
            place: Some(place(files, source, problem.at, &hidden)),
            why: match problem.is_warning {
                true => problem.why.reworded(|text| format!("{WARNING}{text}")),
                false => problem.why,
            },
        });
        Report {
            entries: entries.collect(),
        }
    }

    /// The number of mistakes and warnings.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the system has denied access to something that the file names, or to the file itself.
    pub fn is_denied(&self) -> bool {
        self.entries.iter().any(|entry| entry.why.is_denied())
    }

    /// The first mistake in one line: its place and what is wrong.
    pub fn first_mistake(&self) -> Option<String> {
        let mut entries = self.entries.iter();
        let first = entries.find(|entry| !entry.why.as_str().starts_with(WARNING))?;
        let Entry { file, place, why } = first;
        Some(match place {
            Some(Place { line, column, .. }) => format!("{file}:{line}:{column}: {why}"),
            None => format!("{file}: {why}"),
        })
    }
}

/// The line number of a byte in its file, from 1.
fn line_of(files: &Files, source: &str, at: usize) -> usize {
    let at = at.min(source.len());
    source.as_bytes()[files.at(at).0..at]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}

/// The line of `at` for a message about `here`, with the file if that is another one.
pub fn line(files: &Files, source: &str, at: usize, here: usize) -> String {
    let line = line_of(files, source, at);
    let (file, name) = files.at(at);
    match file == files.at(here).0 {
        true => format!("line {line}"),
        false => format!("line {line} of {name}"),
    }
}

/// The header on the line of a byte: `[table]` or `[[table]]`.
pub fn header(source: &str, at: usize) -> Option<Range<usize>> {
    let start = source[..at].rfind('\n').map_or(0, |at| at + 1);
    let line = source[start..].lines().next()?;
    let header = line.trim_start();
    let start = start + line.len() - header.len();
    let name = header.find(']')?;
    let closing = header[name..].bytes().take(2).take_while(|byte| *byte == b']').count();
    header.starts_with('[').then(|| start..start + name + closing)
}

/// The place of a problem. `hidden` has the bytes of the text that are not shown.
fn place(files: &Files, source: &str, at: Range<usize>, hidden: &[bool]) -> Place {
    let floor = |mut at: usize| {
        at = at.min(source.len());
        while !source.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let (start, end) = (floor(at.start), floor(at.end));
    let line_start = source[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = source[start..].find('\n').map_or(source.len(), |at| start + at);
    let line = source[line_start..line_end].trim_end_matches('\r');
    let column = source[line_start..start].chars().count();
    let width = source[start..end.clamp(start, line_end)].trim_end().chars().count();
    Place {
        line: line_of(files, source, start),
        column: column + 1,
        source: line
            .char_indices()
            .take(SHOWN_CHARS)
            .map(|(at, char)| match char {
                _ if hidden[line_start + at] => '*',
                // A tab would move the caret. Another control character might change the terminal.
                char if char.is_control() => ' ',
                char => char,
            })
            .collect(),
        width: width.clamp(1, SHOWN_CHARS.saturating_sub(column).max(1)),
    }
}

/// The beginning of a warning's text.
const WARNING: &str = "warning: ";

/// Prints, for each mistake, `site.toml:12:5: what is wrong` and the line with carets below the place.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Entry { file, place, why }) in self.entries.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let Some(Place {
                line,
                column,
                source,
                width,
            }) = place
            else {
                write!(f, "{file}: {why}")?;
                continue;
            };
            write!(f, "{file}:{line}:{column}: {why}")?;
            // An empty line has nothing to point at.
            if source.is_empty() {
                continue;
            }
            writeln!(f)?;
            let number = line.to_string();
            writeln!(f, "  {number} | {source}")?;
            write!(f, "  {:1$} | ", "", number.len())?;
            if *column <= SHOWN_CHARS {
                write!(f, "{:1$}{2}", "", column - 1, "^".repeat(*width))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str, at: Range<usize>) -> String {
        let why = "wrong".into();
        Report::new(
            &Files::one("a.toml"),
            source,
            vec![Problem {
                is_warning: false,
                at,
                why,
            }],
            &[],
        )
        .to_string()
    }

    #[test]
    fn the_place_is_pointed_at() {
        assert_eq!(
            shown("x = 1\n  yy = 2\n", 8..10),
            "a.toml:2:3: wrong\n  2 |   yy = 2\n    |   ^^"
        );
        assert_eq!(shown("ä = ö\r\n", 5..7), "a.toml:1:5: wrong\n  1 | ä = ö\n    |     ^");
        assert_eq!(shown("", 0..0), "a.toml:1:1: wrong");
        assert_eq!(shown("a\n", 2..2), "a.toml:2:1: wrong");
        assert_eq!(shown("\ta\n", 1..2), "a.toml:1:2: wrong\n  1 |  a\n    |  ^");
    }

    #[test]
    fn any_place_in_any_text_can_be_shown() {
        let source = "ä[[\n\r\n\t\u{1f600} = \"x";
        for start in 0..=source.len() + 2 {
            for end in 0..=source.len() + 2 {
                let _ = shown(source, start..end);
            }
        }
        let long = "x".repeat(1000);
        assert!(shown(&long, 900..901).lines().all(|line| line.len() < 140));
        assert!(shown(&long, 100..901).lines().all(|line| line.len() < 140));
    }

    #[test]
    fn many_come_in_the_order_of_the_file_and_each_once() {
        let problem = |at: usize, text: &str| Problem {
            is_warning: false,
            at: at..at + 1,
            why: text.into(),
        };
        let report = Report::new(
            &Files::one("f"),
            "ab\ncd",
            vec![problem(3, "b"), problem(0, "a"), problem(3, "b")],
            &[],
        );
        assert_eq!(report.len(), 2);
        assert_eq!(
            report.to_string(),
            "f:1:1: a\n  1 | ab\n    | ^\nf:2:1: b\n  2 | cd\n    | ^"
        );
    }
}
