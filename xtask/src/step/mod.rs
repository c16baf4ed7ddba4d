//! A step of a run: its result, and the report at the end.
//!
//! A step ends in an [`Outcome`]. [`report`] prints all of them as a table and makes them the exit status. A step that
//! checked nothing has failed: a filter that matches no test, or a file that moved, cannot pass in silence. A step that
//! could not run is a skip with its reason.
//!
//! Failures are shown where they happened and once more at the end, in few lines, because a reader of a long log starts
//! there. Output of a test that passed is searched for skips and not shown.
//!
//! A test that failed among others and passes twice alone is unsteady: named at the end, and no failure of the run. It is a
//! defect of the test or of the code all the same.

mod command;
mod tally;

pub use command::{
    Ended, add_cpu_time, be_nice, cargo, cpu_time, each_line, has_nightly, held, is_attended, niceness, nightly,
    nightly_cargo, output, run, say, shown, succeeds,
};
pub use tally::{Tally, tests};

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// The result of a step.
#[derive(Default)]
pub struct Outcome {
    pub name: String,
    pub passed: usize,
    pub failed: usize,
    /// One reason for each thing that did not run.
    pub skipped: Vec<String>,
    /// The things that the step looked at, for the table: "214 tests".
    pub checked: String,
    /// The first lines of output of each failed test, and the programs that cargo says failed.
    pub complaints: Vec<String>,
    /// The tests that failed and passed when they ran again, with the first lines of their output.
    pub unsteady: Vec<String>,
    /// How long each test ran, in seconds, where the harness says it.
    pub tests: Vec<(f64, String)>,
    pub took: Duration,
    /// CPU time of the step's processes.
    pub cpu: Duration,
}

impl Outcome {
    /// This step with what another part of it found, and the CPU time of that part.
    pub fn with(mut self, other: Outcome) -> Outcome {
        self.passed += other.passed;
        self.failed += other.failed;
        self.complaints.extend(other.complaints);
        self.cpu += other.cpu;
        self
    }

    /// A step that could not run at all.
    pub fn skipped(name: &str, why: String) -> Outcome {
        say(&format!("skipped: {name}: {why}"));
        Outcome {
            name: name.into(),
            skipped: vec![why],
            checked: "nothing".into(),
            ..Outcome::default()
        }
    }

    /// A step that is one check over `count` things. It weighs one in the totals, and has failed if `count` is zero.
    pub fn one_check(name: &str, ok: bool, count: usize, what: &str, took: Duration) -> Outcome {
        let ok = ok && count > 0;
        Outcome {
            name: name.into(),
            passed: usize::from(ok),
            failed: usize::from(!ok),
            checked: format!("{count} {what}"),
            took,
            ..Outcome::default()
        }
    }
}

/// How many tests the report lists by their time.
const SLOWEST: usize = 20;

/// Prints the steps as a table, the slowest tests, the reasons of the skips, what failed, and the totals alone on the last
/// line. `took` is the time of the whole run: steps overlap.
pub fn report(outcomes: &[Outcome], took: Duration) -> ExitCode {
    println!(
        "\n{:<14} {:>7} {:>7} {:>8} {:>7} {:>7}  checked",
        "step", "passed", "failed", "skipped", "time", "CPU"
    );
    for o in outcomes {
        let (time, cpu) = (format!("{} s", o.took.as_secs()), format!("{} s", o.cpu.as_secs()));
        println!(
            "{:<14} {:>7} {:>7} {:>8} {time:>7} {cpu:>7}  {}",
            o.name,
            o.passed,
            o.failed,
            o.skipped.len(),
            o.checked
        );
    }
    let cpu: Duration = outcomes.iter().map(|o| o.cpu).sum();
    println!(
        "{:<14} {:>30} {:>5} s",
        "all",
        format!("{} s", took.as_secs()),
        cpu.as_secs()
    );
    slowest(outcomes);
    for o in outcomes {
        for why in &o.skipped {
            println!("skipped: {}: {why}", o.name);
        }
    }
    for o in outcomes {
        for line in &o.unsteady {
            println!("unsteady: {}: {line}", o.name);
        }
    }
    for o in outcomes {
        for line in &o.complaints {
            println!("failed: {}: {line}", o.name);
        }
        if o.failed > 0 && o.complaints.is_empty() {
            println!("failed: {}: see its output above", o.name);
        }
    }
    let sum = |f: fn(&Outcome) -> usize| outcomes.iter().map(f).sum::<usize>();
    let (passed, failed, skipped) = (sum(|o| o.passed), sum(|o| o.failed), sum(|o| o.skipped.len()));
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    let _ = std::io::stdout().flush();
    if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints the slowest tests of all steps.
fn slowest(outcomes: &[Outcome]) {
    let tests = outcomes
        .iter()
        .flat_map(|o| o.tests.iter().map(move |(time, test)| (*time, &o.name, test)));
    let mut tests: Vec<_> = tests.collect();
    if tests.is_empty() {
        return;
    }
    tests.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("\nthe slowest tests");
    for (time, step, test) in tests.iter().take(SLOWEST) {
        println!("{time:>8.2} s  {step}: {test}");
    }
    println!();
}
