//! Test executables: cargo builds them, and this file runs them, several at a time.
//!
//! `cargo test` runs one executable after the other. Most tests wait, so the cores would idle. An executable runs with the
//! folder and the environment that cargo would give it.

use crate::step::{self, Ended, Outcome, Tally};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How many executables run at the same time, and how many tests of each.
const AT_ONCE: usize = 2;
const THREADS: usize = 4;

/// Executables whose few tests wait for ten seconds and more: their packages and targets.
const WAITING: [(&str, &str); 3] = [("runtime", "shutdown"), ("runtime", "watchdog"), ("web", "memory")];

/// How many failed tests run again, each [`AGAIN`] times: more failures are no accident.
const UNSTEADY: usize = 8;
const AGAIN: usize = 2;

/// A test executable.
#[derive(Clone, Debug, PartialEq)]
pub struct Executable {
    /// The folder of its package.
    pub folder: PathBuf,
    /// The name of its target, such as `it`.
    pub target: String,
    pub file: PathBuf,
}

impl Executable {
    /// The name of the package's folder.
    pub fn package(&self) -> String {
        self.folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    /// Whether it is small and waits for long: as one of the last ones it would wait with nothing beside it.
    fn waits(&self) -> bool {
        let (package, target) = (self.package(), self.target.as_str());
        WAITING.contains(&(package.as_str(), target))
    }

    /// The order in which executables run: the greatest first.
    fn urgency(&self) -> (bool, u64) {
        let bytes = std::fs::metadata(&self.file).map_or(0, |file| file.len());
        (self.waits(), bytes)
    }

    /// Reads a message of cargo; `None` if it is about something else than a test, or an executable if `all`.
    fn read(message: &str, all: bool) -> Option<Executable> {
        let is_artifact = message.contains(r#""reason":"compiler-artifact""#);
        // The target has a field of the same name.
        let (_, profile) = message.split_once(r#""profile":{"#)?;
        let is_test = is_artifact && (all || profile.split('}').next()?.contains(r#""test":true"#));
        let manifest = PathBuf::from(field(message, "manifest_path")?);
        let executable = Executable {
            folder: manifest.parent()?.to_path_buf(),
            target: field(message, "name")?.to_string(),
            file: PathBuf::from(field(message, "executable")?),
        };
        is_test.then_some(executable)
    }
}

/// The value of a field of a JSON message that is a text without escapes.
fn field<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
    rest.split('"').next()
}

/// The executables of a step, or its outcome if they could not be built.
pub type Built = Result<Vec<Executable>, Box<Outcome>>;

/// The result of a build.
#[derive(Clone, Default)]
pub struct Made {
    pub executables: Vec<Executable>,
    /// How many targets of this repository cargo went through.
    pub targets: usize,
    /// The first lines of the compiler's warnings, and their places.
    pub warnings: Vec<String>,
}

/// Builds executables. `command` is `cargo test`, whose tests it returns, or `cargo build`.
pub fn build(name: &str, command: &mut Command, limit: Duration) -> Built {
    Ok(make(name, command, limit, |_, _| {})?.executables)
}

/// As [`build`], with more of the result. `each` takes an executable as soon as it is built, and whether it is one of the result.
pub fn make(
    name: &str,
    command: &mut Command,
    limit: Duration,
    mut each: impl FnMut(&Executable, bool),
) -> Result<Made, Box<Outcome>> {
    let is_test = command.get_args().any(|arg| arg == "test");
    if is_test {
        command.arg("--no-run");
    }
    command.args(["--locked", "--message-format=json-render-diagnostics"]);
    let mut made = Made::default();
    let mut complaints = vec![];
    let ok = step::run(command, limit, |line| {
        if line.starts_with('{') {
            if let Some(executable) = Executable::read(line, true) {
                let is_asked_for = !is_test || Executable::read(line, false).is_some();
                each(&executable, is_asked_for);
                made.executables.extend(is_asked_for.then_some(executable));
            }
            made.targets += usize::from(is_own_target(line));
            return false;
        }
        if is_complaint(line) {
            complaints.push(line.to_string());
        }
        true
    });
    if ok && !made.executables.is_empty() {
        made.warnings = complaints;
        return Ok(made);
    }
    complaints.push("it did not build".into());
    let outcome = Outcome::one_check(name, false, 0, "tests", Duration::ZERO);
    Err(Box::new(Outcome { complaints, ..outcome }))
}

/// Whether a message of cargo says that a target of this repository is done.
pub fn is_own_target(message: &str) -> bool {
    message.contains(r#""reason":"compiler-artifact""#) && message.contains(r#""package_id":"path+file:"#)
}

/// Whether a line of the compiler is the first one of an error or of a warning, or names its place.
pub fn is_complaint(line: &str) -> bool {
    ["error", "warning", "--> "]
        .iter()
        .any(|start| line.trim_start().starts_with(start))
}

/// How executables run.
#[derive(Clone, Default)]
pub struct Plan {
    /// Options of the test harness and names of tests.
    pub args: Vec<String>,
    pub env: Vec<(&'static str, String)>,
    /// A program that runs the executable, with its options.
    pub runner: Vec<&'static str>,
}

impl Plan {
    /// Whether the arguments are none, or only leave tests out.
    fn names_no_test(&self) -> bool {
        self.args.chunks(2).all(|pair| pair[0] == "--skip")
    }
}

/// Runs executables with one plan.
pub fn run(name: &str, executables: Vec<Executable>, plan: &Plan, limit: Duration) -> Outcome {
    let jobs = executables.into_iter().map(|executable| (executable, plan.clone()));
    run_each(name, jobs.collect(), limit)
}

/// Runs executables, each with its plan: [`AT_ONCE`] at a time, those that wait for long first, then the largest ones.
pub fn run_each(name: &str, mut jobs: Vec<(Executable, Plan)>, limit: Duration) -> Outcome {
    jobs.sort_by_key(|(executable, _)| executable.urgency());
    let jobs = Mutex::new(jobs);
    run_next(name, || jobs.lock().expect(NO_PANIC).pop(), limit)
}

/// Runs executables that come from a build, in the same order as far as they are there, until the build ends.
pub fn run_as_built(name: &str, built: Receiver<Executable>, limit: Duration) -> Outcome {
    let waiting = Mutex::new((built, vec![]));
    let next = || {
        let mut waiting = waiting.lock().expect(NO_PANIC);
        let (built, there) = &mut *waiting;
        there.extend(built.try_iter());
        if there.is_empty() {
            there.push(built.recv().ok()?);
        }
        let (place, _) = there
            .iter()
            .enumerate()
            .max_by_key(|(_, executable)| executable.urgency())?;
        Some((there.swap_remove(place), Plan::default()))
    };
    run_next(name, next, limit)
}

/// Runs executables until `next` gives none, which waits for one if it must.
fn run_next(name: &str, next: impl Fn() -> Option<(Executable, Plan)> + Sync, limit: Duration) -> Outcome {
    let start = Instant::now();
    let jobs = Mutex::new(vec![]);
    let label = |executable: &Executable| format!("{}::{} ", executable.package(), executable.target);
    let next = || {
        let (executable, plan) = next()?;
        let next = (label(&executable), command(&executable, &plan));
        jobs.lock().expect(NO_PANIC).push((executable, plan));
        Some(next)
    };
    let (mut tally, ok) = counted(next, limit);
    let jobs = jobs.into_inner().expect(NO_PANIC);
    let failures = tally.failures().to_vec();
    if failures.len() <= UNSTEADY {
        for (program, test) in failures {
            // A plan that names tests would run them too, and an executable with two plans is more than one run.
            let mut with_plan = jobs.iter().filter(|(executable, _)| label(executable) == program);
            let plain = with_plan
                .next()
                .filter(|(_, plan)| plan.names_no_test() && with_plan.next().is_none());
            if plain.is_some_and(|(executable, plan)| passes_alone(executable, plan, &test, limit)) {
                tally.passed_again(&program, &test, AGAIN);
            }
        }
    }
    tally.outcome(name, ok, start.elapsed())
}

/// Whether a test passes [`AGAIN`] times, alone. Its output is printed where it fails.
fn passes_alone(executable: &Executable, plan: &Plan, test: &str, limit: Duration) -> bool {
    (0..AGAIN).all(|_| {
        let mut command = command(executable, plan);
        command.args(["--exact", test]);
        let mut lines = vec![];
        let ended = step::each_line(&mut command, limit, |line| lines.push(line.to_string()));
        step::add_cpu_time(ended.cpu);
        let passed = ended.ok && lines.iter().any(|line| line.contains("1 passed; 0 failed"));
        if !passed {
            lines.iter().for_each(|line| step::say(line));
        }
        passed
    })
}

/// Runs commands that answer in the format of Rust's test harness, the last one first.
pub fn run_commands(name: &str, commands: Vec<(String, Command)>, limit: Duration) -> Outcome {
    let start = Instant::now();
    let (tally, ok) = counted(each(commands), limit);
    tally.outcome(name, ok, start.elapsed())
}

/// Runs commands and counts their tests. False if one ended badly for another reason than a failed test.
fn counted(next: impl Fn() -> Option<Labelled> + Sync, limit: Duration) -> (Tally, bool) {
    let (mut tally, mut ok) = (Tally::default(), true);
    let cpu = each_of(next, limit, |label, ended, lines| {
        tally.begin(label);
        let result = lines.iter().rfind(|line| line.starts_with("test result: ")).cloned();
        lines.retain(|line| tally.take(line));
        // A test that ends its process well ends it before the tests behind it.
        if result.is_none() {
            tally.broken(format!("{label}ended without a result"));
        }
        ok &= result.is_some_and(|result| ended.ok || result.contains("FAILED"));
    });
    step::add_cpu_time(cpu);
    (tally, ok)
}

/// A command and its name.
pub type Labelled = (String, Command);

/// Gives commands, the last one first. The lock is not held while one runs.
pub fn each(commands: Vec<Labelled>) -> impl Fn() -> Option<Labelled> + Sync {
    let waiting = Mutex::new(commands);
    move || waiting.lock().expect(NO_PANIC).pop()
}

/// Runs commands until `next` gives none, [`AT_ONCE`] at a time, and returns their CPU time.
///
/// `done` takes the label of a command that has ended, its end and its output. The lines that it leaves are printed.
pub fn each_of(
    next: impl Fn() -> Option<Labelled> + Sync,
    limit: Duration,
    done: impl FnMut(&str, &Ended, &mut Vec<String>) + Send,
) -> Duration {
    let niceness = step::niceness();
    let results = Mutex::new((done, Duration::ZERO, vec![]));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                step::be_nice(niceness);
                while let Some((label, mut command)) = next() {
                    let mut lines = vec![];
                    let ended = step::each_line(&mut command, limit, |line| lines.push(line.to_string()));
                    let mut results = results.lock().expect(NO_PANIC);
                    let (done, cpu, outputs) = &mut *results;
                    done(&label, &ended, &mut lines);
                    *cpu += ended.cpu;
                    outputs.push(format!("\n$ {}", step::shown(&command)));
                    outputs.append(&mut lines);
                    outputs.push(format!("CPU time: {:.1} s", ended.cpu.as_secs_f64()));
                }
            });
        }
    });
    let (_, cpu, outputs) = results.into_inner().expect(NO_PANIC);
    outputs.iter().for_each(|line| step::say(line));
    cpu
}

const NO_PANIC: &str = "no thread panics while it holds the lock";

fn command(executable: &Executable, plan: &Plan) -> Command {
    let mut words = plan
        .runner
        .iter()
        .map(std::ffi::OsStr::new)
        .chain([executable.file.as_os_str()]);
    let mut command = Command::new(words.next().expect("the executable itself is there"));
    command
        .args(words)
        .args(["--show-output", "--test-threads", &THREADS.to_string()]);
    // The stable harness tells times only to those who ask for its unstable options.
    command
        .args(["-Zunstable-options", "--report-time"])
        .env("RUSTC_BOOTSTRAP", "1");
    command
        .args(&plan.args)
        .envs(plan.env.iter().map(|(name, value)| (name, value)));
    command
        .current_dir(&executable.folder)
        .env("CARGO_MANIFEST_DIR", &executable.folder);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_about_a_test_executable_is_read() {
        let message = r#"{"reason":"compiler-artifact","package_id":"p","manifest_path":"/r/web/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"it","src_path":"/r/web/tests/it/main.rs","test":true},"profile":{"opt_level":"0","test":true},"features":[],"filenames":["/t/it-1"],"executable":"/t/it-1","fresh":true}"#;
        let executable = Executable::read(message, false).unwrap();
        assert_eq!(executable.package(), "web");
        assert_eq!(
            (executable.target.as_str(), executable.file.to_str()),
            ("it", Some("/t/it-1"))
        );
        let program = message.replace(r#""opt_level":"0","test":true"#, r#""opt_level":"0","test":false"#);
        assert_eq!(Executable::read(&program, false), None);
        assert_eq!(Executable::read(&program, true), Some(executable));
        let library = message.replace(r#""executable":"/t/it-1""#, r#""executable":null"#);
        assert_eq!(Executable::read(&library, true), None);
    }

    #[test]
    fn executables_that_wait_exist() {
        for (package, target) in WAITING {
            let program = crate::root().join(package).join("tests").join(target);
            let files = [program.with_extension("rs"), program.join("main.rs")];
            assert!(files.iter().any(|file| file.exists()), "{}", program.display());
        }
    }

    #[test]
    fn results_of_several_commands_are_added() {
        let command = |text: &str, status: i32| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo '{text}'; exit {status}")]);
            ("a::b ".to_string(), command)
        };
        let ok = || command("test result: ok. 2 passed; 0 failed; 0 ignored;", 0);
        let limit = Duration::from_secs(60);
        let outcome = run_commands("t", vec![ok(), ok(), ok()], limit);
        assert_eq!((outcome.passed, outcome.failed), (6, 0));
        let died = run_commands("t", vec![ok(), command("Aborted", 134)], limit);
        assert_eq!((died.passed, died.failed), (2, 1));
        assert!(died.complaints.iter().any(|line| line.contains("without a result")));
        let left = run_commands("t", vec![ok(), command("running 3 tests", 0)], limit);
        assert_eq!((left.passed, left.failed), (2, 1), "a test has called exit(0)");
        let long = "test a::ends has been running for over 60 seconds
test a::hangs has been running for over 60 seconds
test a::ends ... ok <0.000s>";
        let hung = run_commands("t", vec![command(long, 137)], limit);
        let named = "ended without a result; still running: a::hangs";
        assert!(
            hung.complaints.iter().any(|line| line.ends_with(named)),
            "{:?}",
            hung.complaints
        );
    }

    #[test]
    fn a_failed_test_runs_again_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("osier-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let passes = |answer: &str| {
            let file = folder.join(answer);
            let script = format!("#!/bin/sh\necho \"test result: ok. {answer} failed; $*\" | grep -e --exact\n");
            std::fs::write(&file, script).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
            let (folder, target) = (folder.clone(), "it".to_string());
            let executable = Executable { folder, target, file };
            passes_alone(&executable, &Plan::default(), "a", Duration::from_secs(60))
        };
        let passed = ["1 passed; 0", "0 passed; 0"].map(passes);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(passed, [true, false], "a test that did not run has not passed");
    }
}
