//! The figures of a run and how they are shown: one table in Markdown, made to be read as plain text too.

use super::Plan;
use std::collections::BTreeSet;
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
    /// The ratio of each round that both have ended; none if one of theirs is nothing.
    fn ratios(&self) -> Vec<f64> {
        let rounds = self.ours.iter().zip(&self.theirs);
        match self.is_too_small() {
            true => vec![],
            false => rounds.map(|(ours, theirs)| ours / theirs).collect(),
        }
    }

    fn is_too_small(&self) -> bool {
        self.theirs.contains(&0.0)
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
            self.verdict(&ratios),
            match &self.failure {
                Some(why) => why.clone(),
                None if self.is_too_small() => "theirs is too small to measure".into(),
                None => self.aside.clone(),
            },
        ]
    }

    /// "yes" and "NO" only where all rounds say so. A spread across the goal leaves it open, wherever the median is.
    fn verdict(&self, ratios: &[f64]) -> String {
        let Some(goal) = self.goal else {
            return "-".into();
        };
        if ratios.is_empty() || self.failure.is_some() {
            return format!("≤ {goal:.2}");
        }
        format!("≤ {goal:.2} {}", judged(goal, lowest(ratios), highest(ratios)))
    }
}

/// Whether all rounds meet a goal, or miss it; "open" if the spread of their ratios holds it.
pub fn judged(goal: f64, lowest: f64, highest: f64) -> &'static str {
    match (lowest, highest) {
        (_, high) if high <= goal => "yes",
        (low, _) if low > goal => "NO",
        _ => "open",
    }
}

const COLUMNS: [&str; 10] = [
    "row", "rival", "ours", "theirs", "unit", "ratio", "spread", "runs", "goal", "aside",
];

/// The lines as a table whose columns stand under each other.
pub fn rendered(lines: &[Line]) -> String {
    let head = COLUMNS.map(String::from).to_vec();
    let rows = lines.iter().map(|line| line.cells().to_vec());
    aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

/// A table in Markdown whose columns stand under each other. The first row is its head.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut text = String::new();
    for row in rows.iter().take(1).chain([&rule]).chain(rows.iter().skip(1)) {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text += &format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// The machine, the commit and the versions behind the figures of running programs.
pub fn machine(plan: &Plan, rivals: &BTreeSet<&str>) -> String {
    format!(
        "{}{}. Server on core {}, load on core {}; {} rounds, {} s of load each, half of that for echoes.\n\
         Ratio = ours / theirs, round by round: the median and the spread; less is better. \"yes\" and \"NO\": all rounds say so; \"open\": the\n\
         spread holds the goal. Same release profile (lto thin, one codegen unit) and allocator (the system's) for every Rust program of\n\
         bench/. Entries of the arena have the profiles of their repository, and a package has one of its load. Bound = the figure Osier set itself.\n",
        computer(),
        versions(rivals),
        plan.cores.0,
        plan.cores.1,
        plan.rounds,
        plan.load.as_secs(),
    )
}

/// The versions of the load, of the rivals that Debian packages, and of the crates that the others are made of.
fn versions(rivals: &BTreeSet<&str>) -> String {
    let first_line = |text: String| text.lines().next().unwrap_or_default().to_string();
    let mut versions = vec![
        first_words(&said("wrk", &["-v"]), 2),
        first_line(said("h2load", &["--version"])),
        said("nginx", &["-v"]).replace("nginx version: ", ""),
        first_words(&said("openssl", &["version"]), 2),
    ];
    let others: [(&str, &str, &str, usize); 3] = [
        ("HAProxy", "haproxy", "-v", 3),
        ("h2o", "h2o", "-v", 3),
        ("Caddy", "caddy", "version", 1),
    ];
    for (rival, program, option, words) in others {
        if rivals.iter().any(|name| name.starts_with(rival)) {
            let version = first_words(&said(program, &[option]), words).replace(" version", "");
            versions.push(match words {
                1 => format!("{rival} {version}"),
                _ => version,
            });
        }
    }
    versions.retain(|version| !version.is_empty());
    let lock = std::fs::read_to_string("bench/Cargo.lock").unwrap_or_default();
    format!("{};\n{}", versions.join("; "), crates(&lock).join(", "))
}

/// The crates that rivals are made of.
const CRATES: [&str; 16] = [
    "actix-web",
    "async-std",
    "axum",
    "corosensei",
    "crossbeam-channel",
    "fastwebsockets",
    "hyper",
    "kanal",
    "may",
    "may_minihttp",
    "monoio",
    "ntex",
    "rustls",
    "smol",
    "tokio",
    "tokio-tungstenite",
];

/// "hyper 1.12.0", of each of them in a file of cargo's.
fn crates(lock: &str) -> Vec<String> {
    let packages = lock.split("[[package]]\n").filter_map(|package| {
        let (name, rest) = package.strip_prefix("name = \"")?.split_once('"')?;
        let version = rest.split("version = \"").nth(1)?.split('"').next()?;
        CRATES.contains(&name).then(|| format!("{name} {version}"))
    });
    packages.collect()
}

/// The machine, its load, the commit and the compiler: one line.
pub fn computer() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let model = processor();
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
        "{model}, {cores} cores, Linux {}; {}; {}, commit {commit}; load average at the start {}.\n",
        said("uname", &["-r"]),
        said("rustc", &["-V"]),
        today(),
        first_words(&load, 1),
    )
}

/// "AMD EPYC".
pub fn processor() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    model.unwrap_or("unknown").trim_matches([' ', '\t', ':']).into()
}

/// "2026-11-30", in UTC.
pub fn today() -> String {
    said("date", &["-u", "+%F"])
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
    fn the_lock_file_of_the_bench_has_all_rivals() {
        let lock = std::fs::read_to_string(crate::root().join("bench/Cargo.lock")).unwrap();
        let crates = crates(&lock);
        for name in CRATES {
            assert!(
                crates.iter().any(|named| named.starts_with(&format!("{name} "))),
                "{name}: {crates:?}"
            );
        }
    }

    #[test]
    fn the_median_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    fn line(ours: &[f64], theirs: &[f64], failure: Option<&str>) -> String {
        let line = Line {
            row: "hello".into(),
            rival: "null".into(),
            unit: "ns",
            ours: ours.to_vec(),
            theirs: theirs.to_vec(),
            goal: Some(1.0),
            aside: "aside".into(),
            failure: failure.map(String::from),
        };
        rendered(&[line])
    }

    #[test]
    fn a_spread_across_the_goal_leaves_it_open() {
        assert!(line(&[0.8, 0.9, 1.0], &[1.0; 3], None).contains("≤ 1.00 yes"));
        assert!(line(&[0.8, 0.9, 1.1], &[1.0; 3], None).contains("≤ 1.00 open"));
        assert!(line(&[0.9, 1.1, 1.2], &[1.0; 3], None).contains("≤ 1.00 open"));
        assert!(line(&[1.1, 1.2, 1.3], &[1.0; 3], None).contains("≤ 1.00 NO"));
    }

    #[test]
    fn a_rival_that_failed_later_has_its_own_rounds_and_no_verdict() {
        let table = line(&[1.0, 9.0, 9.0], &[2.0], Some("ended"));
        assert!(table.contains("| 0.50  | 0.50–0.50 | 1    | ≤ 1.00 | ended"), "{table}");
    }

    #[test]
    fn nothing_is_no_divisor() {
        for ours in [[0.0, 1.0], [1.0, 1.0]] {
            let table = line(&ours, &[0.0, 1.0], None);
            assert!(table.contains("| ≤ 1.00 | theirs is too small to measure"), "{table}");
            assert!(!table.contains("inf") && !table.contains("NaN"), "{table}");
        }
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
