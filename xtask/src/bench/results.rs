//! The page of results: each line of the bench in the last two runs that measured it.
//!
//! ```text
//!   bench/runs/2026-11-30-2-epyc.md     one run: date, its number on that day, machine; never changed afterwards
//!   bench/RESULTS.md                    made of all runs: a line for each row and rival, and the list of runs
//! ```
//!
//! A run on one day on one machine may be wrong about a ratio as a whole. So the verdict of a line takes two runs, of different days
//! or machines ([`verdict`]). Some rivals once had settings that cost them more than ours cost us. A run names these lines behind
//! `Unlike settings:`, and the page leaves their figures out.

use std::collections::BTreeSet;
use std::path::Path;

use super::table::{aligned, judged};
use crate::root;

/// The folder of runs.
const RUNS: &str = "bench/runs";

/// The page.
const RESULTS: &str = "bench/RESULTS.md";

/// The heading of the part that is made of the runs. The text above it is written by hand.
const HEADING: &str = "\n## Rows\n";

/// Begins the line of a run with its patterns of unlike settings. "; " is between two of them.
const UNLIKE: &str = "Unlike settings: ";

/// A line of today's bench.
pub struct Named {
    pub row: String,
    pub rival: String,
    /// The ratio that Osier has set itself, where it has.
    pub goal: Option<f64>,
}

/// Adds a run to the folder, and returns its file.
pub fn add(date: &str, machine: &str, text: &str) -> Result<String, String> {
    let last = stems()?
        .into_iter()
        .filter(|stem| stem.date == date)
        .map(|stem| stem.number)
        .max();
    let path = format!("{RUNS}/{date}-{}-{machine}.md", last.unwrap_or(0) + 1);
    std::fs::write(root().join(&path), text).map_err(|error| format!("{path}: {error}"))?;
    Ok(path)
}

/// Makes the page anew, with these lines in their order: those of today's bench.
pub fn refresh(lines: &[Named]) -> Result<(), String> {
    let failed = |error| format!("{RESULTS}: {error}");
    let page = root().join(RESULTS);
    let text = std::fs::read_to_string(&page).map_err(failed)?;
    std::fs::write(&page, refreshed(&text, &runs()?, lines)).map_err(failed)?;
    println!("written to {RESULTS}");
    Ok(())
}

/// The page with its part that is made of the runs.
fn refreshed(page: &str, runs: &[Run], lines: &[Named]) -> String {
    let by_hand = page.find(HEADING).map_or(page, |at| &page[..at]);
    format!("{by_hand}{HEADING}{}\n## Runs\n{}", rows(runs, lines), list(runs))
}

/// The name of a run's file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stem {
    date: String,
    number: u32,
    machine: String,
}

impl Stem {
    /// Reads a name such as "2026-11-30-2-epyc.md".
    fn of(name: &str) -> Option<Stem> {
        let (date, rest) = name.strip_suffix(".md")?.split_at_checked(10)?;
        let (number, machine) = rest.strip_prefix('-')?.split_once('-')?;
        Some(Stem {
            date: date.into(),
            number: number.parse().ok()?,
            machine: machine.into(),
        })
    }

    fn file(&self) -> String {
        format!("{}-{}-{}.md", self.date, self.number, self.machine)
    }
}

struct Run {
    stem: Stem,
    title: String,
    unlike: Vec<String>,
    lines: Vec<Line>,
}

/// A line of a run's tables that has a ratio.
#[derive(Debug, PartialEq)]
struct Line {
    row: String,
    rival: String,
    ours: String,
    theirs: String,
    unit: String,
    ratio: f64,
    /// The least and the highest ratio of its rounds.
    spread: (f64, f64),
}

/// The names of all runs, the first one first.
fn stems() -> Result<BTreeSet<Stem>, String> {
    let failed = |error| format!("{RUNS}: {error}");
    let mut stems = BTreeSet::new();
    for entry in std::fs::read_dir(root().join(RUNS)).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        let stem =
            Stem::of(&name).ok_or_else(|| format!("{RUNS}/{name}: no name of a run, such as 2026-11-30-2-epyc.md"))?;
        stems.insert(stem);
    }
    Ok(stems)
}

/// All runs, the first one first.
fn runs() -> Result<Vec<Run>, String> {
    let read = |stem: Stem| {
        let path = Path::new(RUNS).join(stem.file());
        let text =
            std::fs::read_to_string(root().join(&path)).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Run::read(stem, &text))
    };
    stems()?.into_iter().map(read).collect()
}

impl Run {
    fn read(stem: Stem, text: &str) -> Run {
        let title = text.lines().find_map(|line| line.strip_prefix("# "));
        let unlike = text.lines().find_map(|line| line.strip_prefix(UNLIKE));
        let mut run = Run {
            stem,
            title: title.unwrap_or_default().into(),
            unlike: unlike.map_or(vec![], |patterns| patterns.split("; ").map(String::from).collect()),
            lines: vec![],
        };
        let mut columns: Vec<&str> = vec![];
        for line in text.lines() {
            let cells: Vec<&str> = match line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) {
                Some(line) => line.split(" | ").map(str::trim).collect(),
                None => vec![],
            };
            match cells.first() {
                Some(&"row") => columns = cells,
                Some(_) => run.lines.extend(Line::read(&columns, &cells)),
                None => columns.clear(),
            }
        }
        run
    }

    /// The figures of a line, unless the rival had other settings than ours.
    fn line(&self, row: &str, rival: &str) -> Option<&Line> {
        let name = format!("{row} / {rival}");
        if self.unlike.iter().any(|pattern| name.contains(pattern.as_str())) {
            return None;
        }
        // A row that was measured again in the same run stands further below.
        self.lines.iter().rfind(|line| line.row == row && line.rival == rival)
    }
}

impl Line {
    fn read(columns: &[&str], cells: &[&str]) -> Option<Line> {
        let cell = |name| cells.get(columns.iter().position(|column| *column == name)?).copied();
        let (low, high) = cell("spread")?.split_once('–')?;
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
        Some(Line {
            row: cell("row")?.into(),
            rival: cell("rival")?.into(),
            ours: cell("ours")?.into(),
            theirs: cell("theirs")?.into(),
            unit: cell("unit")?.into(),
            ratio: number(cell("ratio")?)?,
            spread: (number(low)?, number(high)?),
        })
    }
}

/// The table of all lines that a run has measured, and how many say what.
fn rows(runs: &[Run], lines: &[Named]) -> String {
    let columns = [
        "row",
        "rival",
        "ours",
        "theirs",
        "unit",
        "last run",
        "the one before",
        "goal",
    ];
    let mut table = vec![columns.map(String::from).to_vec()];
    let mut verdicts = vec![];
    for Named { row, rival, goal } in lines {
        let mut found = runs
            .iter()
            .enumerate()
            .rev()
            .filter_map(|(index, run)| Some((index, run.line(row, rival)?)));
        let Some((index, last)) = found.next() else {
            continue;
        };
        let apart = |other: usize| {
            let [last, other] = [index, other].map(|index| &runs[index].stem);
            (&last.date, &last.machine) != (&other.date, &other.machine)
        };
        let before = found.find(|(other, _)| apart(*other));
        let shown = |(index, line): (usize, &Line)| {
            format!(
                "{:.2} ({:.2}–{:.2}) [{}]",
                line.ratio,
                line.spread.0,
                line.spread.1,
                index + 1
            )
        };
        let verdict = goal.map(|goal| verdict(goal, last, before.map(|(_, line)| line)));
        verdicts.extend(verdict);
        table.push(vec![
            row.clone(),
            rival.clone(),
            last.ours.clone(),
            last.theirs.clone(),
            last.unit.clone(),
            shown((index, last)),
            before.map_or("-".into(), shown),
            goal.zip(verdict)
                .map_or("-".into(), |(goal, verdict)| format!("≤ {goal:.2} {verdict}")),
        ]);
    }
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    let counts = VERDICTS
        .map(|verdict| format!("{} say \"{verdict}\"", count(verdict)))
        .join(", ");
    format!(
        "\nOf {} lines with a goal, {counts}.\n\n{}",
        verdicts.len(),
        aligned(&table)
    )
}

const VERDICTS: [&str; 5] = ["yes", "open", "NO", "yes, once", "NO, once"];

/// "yes" if the medians of both runs meet the goal, and all rounds of one of them at least; "NO" if they miss it in the same way;
/// "open" otherwise. All rounds of a single run must agree.
fn verdict(goal: f64, last: &Line, before: Option<&Line>) -> &'static str {
    let clear = |line: &Line| judged(goal, line.spread.0, line.spread.1);
    let Some(before) = before else {
        return match clear(last) {
            "yes" => "yes, once",
            "NO" => "NO, once",
            open => open,
        };
    };
    let agree = |is_met: bool, word| {
        [last, before].iter().all(|line| (line.ratio <= goal) == is_met)
            && [last, before].iter().any(|line| clear(line) == word)
    };
    match () {
        () if agree(true, "yes") => "yes",
        () if agree(false, "NO") => "NO",
        () => "open",
    }
}

/// The list of runs, with the number that the table of rows has.
fn list(runs: &[Run]) -> String {
    let mut table = vec![["run", "day", "machine", "lines", "which"].map(String::from).to_vec()];
    for (index, run) in runs.iter().enumerate() {
        table.push(vec![
            format!("[{}](runs/{})", index + 1, run.stem.file()),
            run.stem.date.clone(),
            run.stem.machine.clone(),
            run.lines.len().to_string(),
            run.title.clone(),
        ]);
    }
    format!("\n{}", aligned(&table))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, text: &str) -> Run {
        Run::read(Stem::of(name).unwrap(), text)
    }

    const HEAD: &str =
        "| row | rival | ours | theirs | unit | ratio | spread |\n| --- | --- | --- | --- | --- | --- | --- |\n";

    fn hello(ratio: f64, low: f64, high: f64) -> String {
        format!("# Hello\n\n{HEAD}| hello | nginx | 5.3 | 5.7 | µs | {ratio} | {low}–{high} |\n")
    }

    fn named() -> [Named; 1] {
        [Named {
            row: "hello".into(),
            rival: "nginx".into(),
            goal: Some(0.9),
        }]
    }

    /// The last cell of the line of hello.
    fn goal(runs: &[Run]) -> String {
        let table = rows(runs, &named());
        let line = table.lines().find(|line| line.starts_with("| hello")).unwrap();
        line.rsplit(" | ").next().unwrap().trim_end_matches([' ', '|']).into()
    }

    #[test]
    fn two_runs_make_a_verdict() {
        let first = |ratio, low, high| run("2026-11-30-1-epyc.md", &hello(ratio, low, high));
        let second = |ratio, low, high| run("2026-12-01-1-epyc.md", &hello(ratio, low, high));
        let (clear, met) = ((0.8, 0.7, 0.9), (0.8, 0.7, 1.0));
        let (lost, missed) = ((1.0, 0.91, 1.1), (1.0, 0.7, 1.1));
        let cases = [
            (clear, met, "≤ 0.90 yes"),
            (met, met, "≤ 0.90 open"),
            (clear, missed, "≤ 0.90 open"),
            (missed, lost, "≤ 0.90 NO"),
            (missed, missed, "≤ 0.90 open"),
        ];
        for ((a, b, c), (d, e, f), expected) in cases {
            assert_eq!(goal(&[first(a, b, c), second(d, e, f)]), expected);
            assert_eq!(goal(&[first(d, e, f), second(a, b, c)]), expected);
        }
        assert_eq!(goal(&[first(0.8, 0.7, 0.9)]), "≤ 0.90 yes, once");
        assert_eq!(goal(&[first(1.0, 0.91, 1.1)]), "≤ 0.90 NO, once");
        assert_eq!(goal(&[first(0.8, 0.7, 1.0)]), "≤ 0.90 open");
    }

    #[test]
    fn two_runs_of_a_day_and_machine_are_one() {
        let run = |name| run(name, &hello(0.8, 0.7, 0.9));
        let mut runs = vec![run("2026-11-30-9-epyc.md"), run("2026-11-30-10-epyc.md")];
        assert!(runs[0].stem < runs[1].stem);
        assert_eq!(goal(&runs), "≤ 0.90 yes, once");
        runs.push(run("2026-11-30-11-intel.md"));
        assert_eq!(goal(&runs), "≤ 0.90 yes");
    }

    #[test]
    fn a_run_with_unlike_settings_does_not_count() {
        let unlike = format!("Unlike settings: files; hello / nginx\n\n{}", hello(0.8, 0.7, 0.9));
        let runs = [
            run("2026-11-29-1-intel.md", &unlike),
            run("2026-11-30-1-epyc.md", &hello(0.8, 0.7, 0.9)),
        ];
        assert_eq!(goal(&runs), "≤ 0.90 yes, once");
    }

    #[test]
    fn the_last_table_of_a_run_counts_and_lines_without_a_ratio_do_not() {
        let again = format!("{HEAD}| hello | nginx | 6 | 5 | µs | 1.20 | 1.1–1.3 |\n");
        let failed = format!("{HEAD}| hello | nginx | 6 | - | µs | - | - |\n");
        let text = format!("{}\nAgain:\n\n{again}\n{failed}", hello(0.8, 0.7, 0.9));
        assert_eq!(goal(&[run("2026-11-30-1-epyc.md", &text)]), "≤ 0.90 NO, once");
    }

    #[test]
    fn what_is_written_by_hand_stays() {
        let runs = [run("2026-11-30-1-epyc.md", &hello(0.8, 0.7, 0.9))];
        let lines = named();
        let page = refreshed("# Results\n\nby hand\n", &runs, &lines);
        assert!(page.starts_with("# Results\n\nby hand\n\n## Rows\n"), "{page}");
        assert!(page.contains("[1](runs/2026-11-30-1-epyc.md)"), "{page}");
        assert_eq!(refreshed(&page, &runs, &lines), page);
    }

    /// Each run that is kept can be read, and the page is made of all of them.
    #[test]
    fn the_page_has_all_runs() {
        let page = std::fs::read_to_string(root().join(RESULTS)).unwrap();
        let runs = runs().unwrap();
        assert!(runs.len() > 20);
        for run in &runs {
            let file = run.stem.file();
            assert!(!run.lines.is_empty() && !run.title.is_empty(), "{file}");
            assert!(
                page.contains(&format!("(runs/{file})")),
                "{file}: run `cargo xtask bench results`"
            );
        }
        assert_eq!(
            page.split_once(HEADING).map(|(_, made)| made.contains("\n## Runs\n")),
            Some(true)
        );
    }
}
