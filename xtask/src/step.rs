//! A step: one command run to its end, its output shown and counted.
//!
//! A step ends in an [`Outcome`]; [`report`] prints all of them as
//! a table and makes them the exit status. A step that checked nothing has failed, so that a filter that matches no
//! test, or a file that moved, cannot pass in silence. A step that could not run is a skip with its reason.
//!
//! What failed is shown where it happened and once more at the end, in few lines: of a long log one reads the end. What a
//! test that passed has printed is read, for its skips, but not shown.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What became of a step.
pub struct Outcome {
    pub name: String,
    pub passed: usize,
    pub failed: usize,
    /// One reason for each thing that did not run.
    pub skipped: Vec<String>,
    /// What was looked at, for the table: "214 tests".
    pub checked: String,
    /// The first lines of what each failed test has printed, and the programs that cargo says failed.
    pub complaints: Vec<String>,
    pub took: Duration,
}

impl Outcome {
    /// A step that could not run at all.
    pub fn skipped(name: &str, why: String) -> Outcome {
        println!("skipped: {name}: {why}");
        Outcome {
            name: name.into(),
            passed: 0,
            failed: 0,
            skipped: vec![why],
            checked: "nothing".into(),
            complaints: vec![],
            took: Duration::ZERO,
        }
    }

    /// A step that is one check over `count` things: it weighs one in the totals, and has failed if `count` is zero.
    pub fn one_check(name: &str, ok: bool, count: usize, what: &str, took: Duration) -> Outcome {
        let ok = ok && count > 0;
        Outcome {
            name: name.into(),
            passed: usize::from(ok),
            failed: usize::from(!ok),
            skipped: vec![],
            checked: format!("{count} {what}"),
            complaints: vec![],
            took,
        }
    }
}

/// Prints the steps as a table, the reasons of the skips, what failed, and the totals alone on the last line.
pub fn report(outcomes: &[Outcome]) -> ExitCode {
    println!(
        "\n{:<14} {:>7} {:>7} {:>8} {:>7}  checked",
        "step", "passed", "failed", "skipped", "time"
    );
    for o in outcomes {
        let time = format!("{} s", o.took.as_secs());
        let Outcome {
            name,
            passed,
            failed,
            checked,
            ..
        } = o;
        println!(
            "{name:<14} {passed:>7} {failed:>7} {:>8} {time:>7}  {checked}",
            o.skipped.len()
        );
    }
    for o in outcomes {
        for why in &o.skipped {
            println!("skipped: {}: {why}", o.name);
        }
    }
    for o in outcomes {
        for line in &o.complaints {
            println!("failed: {}: {line}", o.name);
        }
        if o.failed > 0 && o.complaints.is_empty() {
            println!("failed: {}: see what it has printed above", o.name);
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

/// `cargo`, without what `cargo run` told this process about the package xtask: a build script or a test that reads
/// these variables would otherwise see the wrong package.
pub fn cargo() -> Command {
    clean(Command::new(
        std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
    ))
}

/// `cargo` of the nightly toolchain; only where [`has_nightly`] said yes.
pub fn nightly_cargo() -> Command {
    let mut command = clean(Command::new("rustup"));
    command.args(["run", "nightly", "cargo"]);
    command
}

/// Whether `cargo SUBCOMMAND` of the nightly toolchain is there, else why not.
pub fn has_nightly(subcommand: &str) -> Result<(), String> {
    if !succeeds(Command::new("rustup").args(["run", "nightly", "cargo", "--version"])) {
        return Err("no nightly toolchain (rustup toolchain install nightly)".into());
    }
    if !succeeds(nightly_cargo().args([subcommand, "--version"])) {
        return Err(format!("the nightly toolchain has no cargo {subcommand}"));
    }
    Ok(())
}

/// Runs quietly; true if it could be started and ended well.
pub fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let told_by_cargo = name.to_str().is_some_and(|name| {
            ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
                .iter()
                .any(|p| name.starts_with(p))
        });
        if told_by_cargo {
            command.env_remove(name);
        }
    }
    command
}

/// Runs `command`, gives every line of its two outputs, in order, to `line`, and says whether it ended well.
///
/// `line` returns whether the reader shall see it. The command is killed with all its children after `limit`, but only
/// where no terminal is attached: a person has Ctrl-C.
pub fn run(command: &mut Command, limit: Duration, mut line: impl FnMut(&str) -> bool) -> bool {
    println!("\n$ {}", shown(command));
    let unattended = !std::io::stdin().is_terminal();
    if unattended {
        command.process_group(0);
    }
    let (reader, writer) = std::io::pipe().expect("a pipe needs two free file descriptors");
    let err = writer.try_clone().expect("a pipe needs two free file descriptors");
    let spawned = command.stdin(Stdio::null()).stdout(writer).stderr(err).spawn();
    // The command holds the writing ends until it is overwritten: without this the reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            println!("{}: {error}", command.get_program().display());
            return false;
        }
    };

    let (done, waiting) = mpsc::channel::<()>();
    let group = child.id();
    let watchdog = std::thread::spawn(move || {
        let timed_out = waiting.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if timed_out && unattended {
            println!("killed: still running after {} s", limit.as_secs());
            succeeds(Command::new("sh").args(["-c", &format!("kill -9 -{group}")]));
        }
    });
    for text in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let text = String::from_utf8_lossy(&text);
        if line(&text) {
            println!("{text}");
        }
    }
    let status = child.wait();
    drop(done);
    let _ = watchdog.join();
    status.is_ok_and(|status| status.success())
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut words: Vec<String> = set.map(|(n, v)| format!("{}='{}'", n.display(), v.display())).collect();
    let program = std::path::Path::new(command.get_program());
    words.push(
        program
            .file_name()
            .unwrap_or(command.get_program())
            .display()
            .to_string(),
    );
    words.extend(command.get_args().map(|arg| arg.display().to_string()));
    words.join(" ")
}

/// Runs something that answers in the format of Rust's test harness and counts its tests.
pub fn tests(name: &str, command: &mut Command, limit: Duration) -> Outcome {
    let start = Instant::now();
    let mut tally = Tally::default();
    let ok = run(command, limit, |line| tally.take(line));
    tally.outcome(name, ok, start.elapsed())
}

/// Lines of a failed test that are said again at the end.
const COMPLAINT_LINES: usize = 12;

/// Reads the output of the test harness, run with `--show-output`, line by line.
#[derive(Default)]
struct Tally {
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
    /// Between a program's "successes:" and its "failures:" or its result.
    is_of_passed: bool,
    /// How many lines of the failed test that is being shown were kept.
    complained: usize,
    complaints: Vec<String>,
}

impl Tally {
    /// Reads a line; false if nobody needs to see it.
    fn take(&mut self, line: &str) -> bool {
        if line == "successes:" || line == "failures:" || line.starts_with("test result: ") {
            self.is_of_passed = line == "successes:";
            self.shown = None;
        }
        self.count(line);
        if !self.is_of_passed {
            self.complain(line);
        }
        !self.is_of_passed
    }

    /// Keeps the beginning of what a failed test has printed, and the programs that cargo names.
    fn complain(&mut self, line: &str) {
        if line.starts_with("---- ") {
            self.complained = 0;
        }
        let of_a_test = self.shown.is_some() && self.complained < COMPLAINT_LINES && !line.is_empty();
        let of_cargo = self.shown.is_none() && ["error", "    `-p "].iter().any(|said| line.starts_with(said));
        if of_a_test || of_cargo {
            self.complained += 1;
            self.complaints.push(line.to_string());
        }
    }

    fn count(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("---- ") {
            self.shown = rest.strip_suffix(" stdout ----").map(str::to_string);
            self.counted = false;
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
            self.ignored += number_before(rest, " ignored");
            self.shown = None;
        } else if let Some(why) = line.trim_start().strip_prefix("skipped: ") {
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
    }

    fn outcome(mut self, name: &str, ok: bool, took: Duration) -> Outcome {
        let passed = self.passed.saturating_sub(self.ok_but_skipped);
        if self.ignored > 0 {
            self.skipped
                .extend((0..self.ignored).map(|_| "a test marked #[ignore]".to_string()));
        }
        let checked_nothing = ok && passed == 0 && self.skipped.is_empty();
        if checked_nothing {
            println!("{name}: ran no test at all, which is a failure");
        }
        // Did not compile, was killed, or a process died: no test is counted as failed, the step still is.
        let broken = !ok && self.failed == 0;
        let failed = self.failed + usize::from(checked_nothing) + usize::from(broken);
        if broken {
            let why = format!("no test failed, but the command did, after {} s", took.as_secs());
            self.complaints.push(why);
        }
        if failed == 0 {
            // A test that ran another harness showed its output, too.
            self.complaints.clear();
        }
        Outcome {
            name: name.into(),
            passed,
            failed,
            skipped: self.skipped,
            checked: format!("{} tests", passed + self.failed),
            complaints: self.complaints,
            took,
        }
    }
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
    fn a_test_that_printed_a_skip_has_not_passed() {
        let o = tally(
            "---- udp stdout ----\nskipped: no IPv6\nskipped: again\n---- tcp stdout ----\nfine\n\
             test result: ok. 2 passed; 0 failed; 0 ignored;",
            true,
        );
        assert_eq!((o.passed, o.failed), (1, 0));
        assert_eq!(o.skipped, ["udp: no IPv6"]);
    }

    #[test]
    fn no_test_is_a_failure() {
        assert_eq!(tally("test result: ok. 0 passed; 0 failed; 0 ignored;", true).failed, 1);
    }

    #[test]
    fn a_build_error_is_a_failure() {
        assert_eq!(tally("error: could not compile", false).failed, 1);
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        if std::io::stdin().is_terminal() {
            println!("skipped: limits apply only without a terminal on the standard input");
            return;
        }
        let start = Instant::now();
        let ok = run(
            Command::new("sh").args(["-c", "sleep 600 & sleep 600"]),
            Duration::from_millis(200),
            |_| true,
        );
        assert!(!ok);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
