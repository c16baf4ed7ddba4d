//! The figures of a run and how they are shown: one table in Markdown, made to be read as plain text too.

use super::Plan;
use std::process::Command;

/// One line: ours against one rival in one row.
pub struct Line {
    pub row: String,
    pub rival: String,
    /// The unit of the figures: "µs CPU/request", "bytes", "ns CPU". Less is better everywhere.
    pub unit: &'static str,
    /// One figure a round, fewer where one failed.
    pub ours: Vec<f64>,
    pub theirs: Vec<f64>,
    /// The ratio that Osier has set itself, where it has.
    pub goal: Option<f64>,
    /// Other observations, ours and theirs: "210 k/s 5 MB / 180 k/s 9 MB".
    pub aside: String,
    /// Why there is no figure.
    pub failure: Option<String>,
}

impl Line {
    /// The ratio of each round.
    fn ratios(&self) -> Vec<f64> {
        let theirs = self.theirs.iter().cycle();
        self.ours
            .iter()
            .zip(theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    }

    fn cells(&self) -> [String; COLUMNS.len()] {
        let ratios = self.ratios();
        let spread = match (lowest(&ratios), highest(&ratios)) {
            (low, high) if low <= high => format!("{low:.2}–{high:.2}"),
            _ => "-".into(),
        };
        [
            self.row.clone(),
            self.rival.clone(),
            figure(median(&self.ours)),
            figure(median(&self.theirs)),
            self.unit.into(),
            median(&ratios).map_or("-".into(), |ratio| format!("{ratio:.2}")),
            spread,
            ratios.len().to_string(),
            self.verdict(median(&ratios)),
            self.failure.as_ref().unwrap_or(&self.aside).clone(),
        ]
    }

    fn verdict(&self, ratio: Option<f64>) -> String {
        match (self.goal, ratio) {
            (None, _) => "-".into(),
            (Some(goal), None) => format!("≤ {goal:.2}"),
            (Some(goal), Some(ratio)) if ratio <= goal => format!("≤ {goal:.2} yes"),
            (Some(goal), Some(_)) => format!("≤ {goal:.2} NO"),
        }
    }
}

const COLUMNS: [&str; 10] = [
    "row", "rival", "ours", "theirs", "unit", "ratio", "spread", "runs", "goal", "aside",
];

/// The lines as a table whose columns stand under each other.
pub fn rendered(lines: &[Line]) -> String {
    let mut rows = vec![COLUMNS.map(String::from)];
    rows.extend(lines.iter().map(Line::cells));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    rows.insert(1, widths.map(|width| "-".repeat(width)));
    let mut text = String::new();
    for row in &rows {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text += &format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// The machine, the commit and the versions behind the figures of running programs.
pub fn machine(plan: &Plan) -> String {
    format!(
        "{}{}; {}. Server on core {}, load on core {}; {} rounds, {} s of load each.\n\
         Ratio = ours / theirs, round by round: the median and the spread; less is better. Same release profile (lto thin,\n\
         one codegen unit) and allocator (the system's) for every Rust program. Bound = the figure Osier set itself.\n",
        computer(),
        first_words(&said("wrk", &["-v"]), 2),
        said("nginx", &["-v"]).replace("nginx version: ", ""),
        plan.cores.0,
        plan.cores.1,
        plan.rounds,
        plan.load.as_secs(),
    )
}

/// The machine, its load, the commit and the compiler: one line.
pub fn computer() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("unknown");
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let commit = match (
        said("git", &["rev-parse", "--short", "HEAD"]),
        said("git", &["status", "--porcelain"]),
    ) {
        // Sources without their history.
        (hash, _) if hash.contains(' ') || hash.is_empty() => "unknown".into(),
        (hash, changes) if changes.is_empty() => hash,
        (hash, _) => format!("{hash} with changes"),
    };
    format!(
        "{}, {cores} cores, Linux {}; {}; {}, commit {commit}; load average at the start {}.\n",
        model.trim_matches([' ', '\t', ':']),
        said("uname", &["-r"]),
        said("rustc", &["-V"]),
        said("date", &["-u", "+%F"]),
        first_words(&load, 1),
    )
}

/// The text that a program prints on either of its outputs.
fn said(program: &str, args: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(args).output() else {
        return String::new();
    };
    let text = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    String::from_utf8_lossy(&text).trim().to_string()
}

fn first_words(text: &str, count: usize) -> String {
    text.split_whitespace().take(count).collect::<Vec<_>>().join(" ")
}

/// The middle figure; of an even number of figures the mean of the two in the middle; of none, none.
pub fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (
        sorted.get(sorted.len().saturating_sub(1) / 2)?,
        sorted.get(sorted.len() / 2)?,
    );
    Some((low + high) / 2.0)
}

fn lowest(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::INFINITY, f64::min)
}

fn highest(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Three significant digits.
fn figure(number: Option<f64>) -> String {
    match number {
        None => "-".into(),
        Some(n) if n >= 100.0 => format!("{n:.0}"),
        Some(n) if n >= 10.0 => format!("{n:.1}"),
        Some(n) => format!("{n:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_lost_row_and_a_failed_one_are_shown() {
        let line = |ours: &[f64], failure: Option<&str>| Line {
            row: "hello".into(),
            rival: "null".into(),
            unit: "ns",
            ours: ours.to_vec(),
            theirs: vec![1.0; ours.len()],
            goal: Some(1.05),
            aside: String::new(),
            failure: failure.map(String::from),
        };
        let table = rendered(&[line(&[2.0, 4.0, 3.0], None), line(&[], Some("did not start"))]);
        assert!(
            table.contains("3.00") && table.contains("2.00–4.00") && table.contains("≤ 1.05 NO"),
            "{table}"
        );
        assert!(table.contains("did not start"), "{table}");
        assert!(!table.contains("inf") && !table.contains("NaN"), "{table}");
    }
}
