//! The counts of one commit, and their file.

use std::fmt::Write;

/// The file of counts.
pub const FILE: &str = "bench/instructions.txt";

const HEAD: &str = "# The instructions of each hot path of bench/counts, once. `cargo xtask bench instructions` counts them and writes this file.\n";

/// A count grows by more than this, in percent, only with a reason.
pub const LIMIT: f64 = 3.0;

/// Counts by path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The compiler, the tools and the processor.
    pub with: String,
    pub counts: Vec<(String, u64)>,
}

impl Record {
    /// The counts of the file in this folder.
    pub fn of_file() -> Result<Record, String> {
        let text = std::fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
        Record::parse(&text).ok_or_else(|| format!("{FILE} has another form"))
    }

    /// Reads a file.
    pub fn parse(text: &str) -> Option<Record> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let with = lines.next()?.strip_prefix("with ")?.to_owned();
        let counts = lines.map(|line| {
            let (name, count) = line.rsplit_once(' ')?;
            Some((name.trim().to_owned(), count.parse().ok()?))
        });
        Some(Record {
            with,
            counts: counts.collect::<Option<_>>()?,
        })
    }

    pub fn write(&self) -> Result<(), String> {
        std::fs::write(FILE, self.text()).map_err(|error| format!("{FILE}: {error}"))
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}with {}\n", self.with);
        for (name, count) in &self.counts {
            let _ = writeln!(text, "{name:<10} {count:>7}");
        }
        text
    }

    fn get(&self, name: &str) -> Option<u64> {
        let mut named = self.counts.iter().filter(|(known, _)| known == name);
        named.next().map(|(_, count)| *count)
    }

    /// The change since `before` in percent.
    fn change(&self, before: &Record, name: &str) -> Option<f64> {
        let (now, before) = (self.get(name)? as f64, before.get(name)? as f64);
        Some(100.0 * (now - before) / before.max(1.0))
    }

    /// A table of the counts and their changes since `before`.
    pub fn beside(&self, before: &Record) -> String {
        let mut text = format!("{:<10} {:>12}  change\n", "path", "instructions");
        for (name, count) in &self.counts {
            let change = self.change(before, name);
            let change = change.map_or("new".to_owned(), |change| format!("{change:+.1} %"));
            let _ = writeln!(text, "{name:<10} {count:>12}  {change}");
        }
        text
    }

    /// The paths that take over [`LIMIT`] more than in `before`, with the change in words.
    pub fn grown(&self, before: &Record) -> Vec<(String, String)> {
        let grown = self.counts.iter().filter_map(|(name, count)| {
            let change = self.change(before, name).filter(|change| *change > LIMIT)?;
            let words = format!("{name}: {count} instructions, {change:+.1} %");
            Some((name.clone(), words))
        });
        grown.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn record(counts: &[(&str, u64)]) -> Record {
        let counts = counts.iter().map(|(name, count)| (name.to_string(), *count));
        Record {
            with: "a compiler, a tool".into(),
            counts: counts.collect(),
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let written = record(&[("hello", 2345), ("yield", 90)]);
        assert_eq!(Record::parse(&written.text()), Some(written));
        assert_eq!(Record::parse("with x\nhello many\n"), None);
        assert_eq!(Record::parse("hello 1\n"), None);
    }

    #[test]
    fn only_more_than_the_limit_has_grown() {
        let before = record(&[("a", 1000), ("b", 1000), ("c", 1000)]);
        let now = record(&[("a", 1030), ("b", 1031), ("c", 500), ("d", 9)]);
        let grown = now.grown(&before);
        assert_eq!(grown, [("b".to_owned(), "b: 1031 instructions, +3.1 %".to_owned())]);
        let table = now.beside(&before);
        assert!(table.contains("c                   500  -50.0 %\n"), "{table}");
        assert!(table.contains("d                     9  new\n"), "{table}");
    }
}
