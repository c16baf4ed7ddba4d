//! Reads the output of Rust's test harness and counts.

use super::{Outcome, run, say};
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs something that answers in the format of Rust's test harness and counts its tests.
pub fn tests(name: &str, command: &mut Command, limit: Duration) -> Outcome {
    let start = Instant::now();
    let mut tally = Tally::default();
    let ok = run(command, limit, |line| tally.take(line));
    tally.outcome(name, ok, start.elapsed())
}

/// The end of the line by which the test harness names a test that has not ended after a minute.
const RUNS_LONG: &str = " has been running for over 60 seconds";

/// Lines of a failed test that are said again at the end.
const COMPLAINT_LINES: usize = 12;
const COMPLAINT_WIDTH: usize = 400;

/// Reads the output of the test harness, run with `--show-output`, line by line.
#[derive(Default)]
pub struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
    skipped: Vec<String>,
    /// How many tests ended "ok" and had printed a skip: the harness has no third answer.
    ok_but_skipped: usize,
    /// The test whose output is being shown.
    shown: Option<String>,
    /// Whether that test has printed a skip already: it counts once.
    counted: bool,
    /// True between a program's "successes:" and its "failures:" or its result.
    is_of_passed: bool,
    /// Whether the output of the shown test is now that of a harness which the test has run, up to its result.
    nested: bool,
    /// The last result since the program began, if it was taken for that of such a harness.
    last: Option<String>,
    /// How many lines of the failed test that is being shown were kept.
    complained: usize,
    /// Kept lines, each with the test that it is about.
    complaints: Vec<(Option<String>, String)>,
    /// The tests that failed, each with its program.
    failures: Vec<(String, String)>,
    unsteady: Vec<String>,
    /// The seconds that each test ran.
    times: Vec<(f64, String)>,
    /// Tests that ran for over a minute and have not ended.
    long: Vec<String>,
    /// The program whose output is read, for the names of tests.
    program: String,
}

impl Tally {
    /// Says that the following lines are the output of `program`.
    pub fn begin(&mut self, program: &str) {
        self.end();
        self.program = program.into();
        self.long.clear();
        self.shown = None;
        self.is_of_passed = false;
        self.nested = false;
    }

    /// The output of the current program is over, and its last result is its own. A harness that a test had run was killed before its
    /// result if that one was not taken for it. A program that has died itself has no result; it counts as broken besides.
    fn end(&mut self) {
        if let Some(result) = self.last.take() {
            self.add(&result);
        }
    }

    /// Adds the result of a program.
    fn add(&mut self, result: &str) {
        self.passed += number_before(result, " passed");
        self.failed += number_before(result, " failed");
        self.ignored += number_before(result, " ignored");
    }

    /// Says that the current program has ended badly. Tests that hang are named.
    pub fn broken(&mut self, mut why: String) {
        if !self.long.is_empty() {
            why += &format!("; still running: {}", self.long.join(", "));
        }
        self.complaints.push((None, why));
    }

    /// The tests that have failed so far: the program and the name of each.
    pub fn failures(&self) -> &[(String, String)] {
        &self.failures
    }

    /// Says that a test which failed has passed when it ran again, `times` times. It counts as unsteady, not as failed.
    pub fn passed_again(&mut self, program: &str, test: &str, times: usize) {
        self.failed = self.failed.saturating_sub(1);
        self.unsteady.push(format!(
            "{program}{test} failed, and passed {times} times when it ran alone"
        ));
        let about = |(of, _): &mut (Option<String>, String)| of.as_deref() == Some(test);
        let said = self.complaints.extract_if(.., about).map(|(_, line)| line);
        self.unsteady.extend(said);
    }

    /// Reads a line; false if nobody needs to see it.
    pub fn take(&mut self, line: &str) -> bool {
        if self.nested || self.shown.is_some() && is_start(line) {
            self.nested = !is_result(line);
            if !self.nested {
                self.last = Some(line.to_string());
            }
            self.count_skip(line);
        } else {
            if line == "successes:" || line == "failures:" || self.shown.is_none() && is_result(line) {
                self.is_of_passed = line == "successes:";
                self.shown = None;
            }
            self.count(line);
        }
        if !self.is_of_passed {
            self.complain(line);
        }
        !self.is_of_passed
    }

    /// Keeps the beginning of what a failed test has printed, and the programs that cargo names.
    fn complain(&mut self, line: &str) {
        if line.starts_with("---- ") {
            self.complained = 0;
        } else if line == "stack backtrace:" {
            // It stands above, where the test failed.
            self.complained = COMPLAINT_LINES;
        }
        let of_a_test = self.shown.is_some() && self.complained < COMPLAINT_LINES && !line.is_empty();
        let of_cargo = self.shown.is_none() && ["error", "    `-p "].iter().any(|said| line.starts_with(said));
        if of_a_test || of_cargo {
            self.complained += 1;
            let line = line.chars().take(COMPLAINT_WIDTH).collect();
            self.complaints.push((self.shown.clone(), line));
        }
    }

    fn count(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("---- ") {
            self.shown = rest.strip_suffix(" stdout ----").map(str::to_string);
            self.counted = false;
        } else if let Some(test) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(RUNS_LONG)) {
            self.long.push(test.to_string());
        } else if let Some((test, time)) = line.strip_prefix("test ").and_then(timed) {
            self.long.retain(|long| long != test);
            if line.contains(" ... FAILED") {
                self.failures.push((self.program.clone(), test.to_string()));
            }
            self.times.push((time, format!("{}{test}", self.program)));
        } else if self.shown.is_none() && is_result(line) {
            self.last = None;
            self.add(line);
        } else {
            self.count_skip(line);
        }
    }

    fn count_skip(&mut self, line: &str) {
        let Some(why) = line.trim_start().strip_prefix("skipped: ") else {
            return;
        };
        match &self.shown {
            Some(_) if self.counted => {}
            Some(test) => {
                self.skipped.push(format!("{test}: {why}"));
                self.ok_but_skipped += 1;
            }
            None => self.skipped.push(why.to_string()),
        }
        self.counted = self.shown.is_some();
    }

    pub fn outcome(mut self, name: &str, ok: bool, took: Duration) -> Outcome {
        self.end();
        let passed = self.passed.saturating_sub(self.ok_but_skipped);
        if self.ignored > 0 {
            self.skipped
                .extend((0..self.ignored).map(|_| "a test marked #[ignore]".to_string()));
        }
        let checked_nothing = ok && passed == 0 && self.skipped.is_empty();
        if checked_nothing {
            say(&format!("{name}: ran no test at all, which is a failure"));
        }
        // Did not compile, was killed, or a process died: no test is counted as failed, the step still is.
        let broken = !ok && self.failed == 0;
        let failed = self.failed + usize::from(checked_nothing) + usize::from(broken);
        if broken {
            let why = format!("no test failed, but the command did, after {} s", took.as_secs());
            self.complaints.push((None, why));
        }
        Outcome {
            name: name.into(),
            passed,
            failed,
            skipped: self.skipped,
            checked: format!("{} tests", passed + self.failed),
            complaints: self.complaints.into_iter().map(|(_, line)| line).collect(),
            unsteady: self.unsteady,
            tests: self.times,
            took,
            ..Outcome::default()
        }
    }
}

/// Whether a line is the first one of a harness: "running 2 tests".
fn is_start(line: &str) -> bool {
    line.strip_prefix("running ")
        .and_then(|rest| rest.strip_suffix(" tests").or_else(|| rest.strip_suffix(" test")))
        .is_some_and(|count| count.parse::<usize>().is_ok())
}

/// Whether a line is the result of a harness.
fn is_result(line: &str) -> bool {
    line.starts_with("test result: ")
}

/// The name and the time in "name ... ok <0.123s>".
fn timed(line: &str) -> Option<(&str, f64)> {
    let (test, rest) = line.split_once(" ... ")?;
    let (_, time) = rest.rsplit_once('<')?;
    Some((test, time.strip_suffix("s>")?.parse().ok()?))
}

/// The number that stands before `word`: 12 in "ok. 12 passed; 0 failed".
fn number_before(text: &str, word: &str) -> usize {
    let before = text.find(word).map_or("", |at| &text[..at]);
    before
        .rsplit([' ', ';', '.'])
        .next()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str, ok: bool) -> Outcome {
        let mut tally = Tally::default();
        output.lines().for_each(|line| {
            tally.take(line);
        });
        tally.outcome("t", ok, Duration::ZERO)
    }

    #[test]
    fn what_failed_is_kept_and_what_passed_is_not_shown() {
        let output = "running 2 tests\ntest good ... ok\ntest bad ... FAILED\n\nsuccesses:\n\n---- good stdout ----\n\
                      fine\n\nsuccesses:\n    good\n\nfailures:\n\n---- bad stdout ----\nthread 'bad' panicked\n\n\
                      failures:\n    bad\n\ntest result: FAILED. 1 passed; 1 failed;\nerror: 1 target failed:\n    `-p osier --test x`";
        let mut tally = Tally::default();
        let shown: Vec<&str> = output.lines().filter(|line| tally.take(line)).collect();
        assert!(
            shown.contains(&"thread 'bad' panicked") && !shown.contains(&"fine"),
            "{shown:?}"
        );
        let o = tally.outcome("t", false, Duration::ZERO);
        let kept = [
            "---- bad stdout ----",
            "thread 'bad' panicked",
            "error: 1 target failed:",
            "    `-p osier --test x`",
        ];
        assert_eq!(o.complaints, kept);
    }

    #[test]
    fn sums_the_results_of_several_harnesses() {
        let o = tally(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured\ntest result: FAILED. 3 passed; 2 failed;",
            false,
        );
        assert_eq!((o.passed, o.failed, o.skipped.len()), (15, 2, 1));
    }

    #[test]
    fn a_harness_that_a_test_has_run_counts_as_its_output() {
        let output = "running 2 tests\n\nsuccesses:\n\n---- outer stdout ----\nrunning 1 test\ntest result: ok. 1 passed; 0 failed;\n\
                      test result: ok. 2 passed; 0 failed;\n\
                      ---- other stdout ----\nfine\n\nsuccesses:\n    outer\n    other\n\nfailures:\n\n---- bad stdout ----\n\
                      panicked\n\nfailures:\n    bad\n\ntest result: FAILED. 2 passed; 1 failed;";
        let o = tally(output, false);
        assert_eq!((o.passed, o.failed), (2, 1));
        assert_eq!(o.complaints, ["---- bad stdout ----", "panicked"]);
    }

    #[test]
    fn a_failed_harness_in_a_failed_test_counts_as_its_output() {
        let mut tally = Tally::default();
        tally.begin("web::it ");
        for line in [
            "running 2 tests",
            "test good ... ok <0.001s>",
            "test outer ... FAILED <0.001s>",
            "failures:",
            "---- outer stdout ----",
            "running 1 test",
            "test inner ... FAILED <0.001s>",
            "failures:",
            "---- inner stdout ----",
            "panicked",
            "failures:",
            "    inner",
            "test result: FAILED. 0 passed; 1 failed;",
            "the child has failed",
            "failures:",
            "    outer",
            "test result: FAILED. 1 passed; 1 failed;",
        ] {
            tally.take(line);
        }
        assert_eq!(tally.failures(), [("web::it ".to_string(), "outer".to_string())]);
        tally.passed_again("web::it ", "outer", 2);
        let o = tally.outcome("t", true, Duration::ZERO);
        assert_eq!((o.passed, o.failed), (1, 0));
        assert!(o.complaints.is_empty(), "{:?}", o.complaints);
        assert!(o.unsteady.iter().any(|line| line == "panicked"), "{:?}", o.unsteady);
        assert!(
            o.unsteady.iter().any(|line| line == "the child has failed"),
            "{:?}",
            o.unsteady
        );
    }

    #[test]
    fn a_result_counts_although_a_harness_before_it_was_killed() {
        let output = "running 3 tests\ntest outer ... FAILED <0.001s>\n\nfailures:\n\n---- outer stdout ----\nrunning 1 test\n\
                      panicked: the child was killed\n\nfailures:\n    outer\n\ntest result: FAILED. 2 passed; 1 failed;";
        let o = tally(output, false);
        assert_eq!((o.passed, o.failed), (2, 1), "{:?}", o.complaints);
        let mut tally = Tally::default();
        for program in ["a::it ", "b::it "] {
            tally.begin(program);
            output.lines().for_each(|line| {
                tally.take(line);
            });
        }
        let o = tally.outcome("t", false, Duration::ZERO);
        assert_eq!((o.passed, o.failed), (4, 2));
    }

    #[test]
    fn a_test_that_printed_a_skip_has_not_passed() {
        let o = tally(
            "---- udp stdout ----\nskipped: no IPv6\nskipped: again\n---- tcp stdout ----\nfine\n\
             successes:\n    udp\n    tcp\ntest result: ok. 2 passed; 0 failed; 0 ignored;",
            true,
        );
        assert_eq!((o.passed, o.failed), (1, 0));
        assert_eq!(o.skipped, ["udp: no IPv6"]);
    }

    #[test]
    fn times_of_tests_are_read() {
        let mut tally = Tally::default();
        tally.begin("web::it ");
        for line in [
            "test a::b ... ok <1.250s>",
            "test c ... FAILED <0.001s>",
            "test d ... ok",
            "test result: ok. 2 passed",
        ] {
            tally.take(line);
        }
        let times = tally.outcome("t", true, Duration::ZERO).tests;
        assert_eq!(
            times,
            [(1.25, "web::it a::b".to_string()), (0.001, "web::it c".to_string())]
        );
    }

    #[test]
    fn a_test_that_passes_again_is_unsteady() {
        let mut tally = Tally::default();
        tally.begin("web::it ");
        for line in [
            "test bad ... FAILED <0.001s>",
            "test worse ... FAILED <0.001s>",
            "failures:",
            "---- bad stdout ----",
            "thread 'bad' panicked",
            "---- worse stdout ----",
            "thread 'worse' panicked",
            "failures:",
            "    bad",
            "    worse",
            "test result: FAILED. 3 passed; 2 failed;",
        ] {
            tally.take(line);
        }
        assert_eq!(tally.failures().len(), 2);
        tally.passed_again("web::it ", "bad", 2);
        let o = tally.outcome("t", false, Duration::ZERO);
        assert_eq!((o.passed, o.failed), (3, 1));
        assert_eq!(o.complaints, ["---- worse stdout ----", "thread 'worse' panicked"]);
        assert!(o.unsteady[0].starts_with("web::it bad failed, and passed 2 times"));
        assert_eq!(o.unsteady[1..], ["---- bad stdout ----", "thread 'bad' panicked"]);
    }

    #[test]
    fn no_test_is_a_failure() {
        assert_eq!(tally("test result: ok. 0 passed; 0 failed; 0 ignored;", true).failed, 1);
    }

    #[test]
    fn a_build_error_is_a_failure() {
        assert_eq!(tally("error: could not compile", false).failed, 1);
    }
}
