//! `cargo xtask bench instructions`: how many instructions a hot path takes, and the step `instructions` of CI.
//!
//! valgrind counts the program of `bench/counts` for two lengths of each path. The difference belongs to the path alone, and is nearly
//! the same in every run, however busy the machine is. [`record`] has the file of counts and the rule for changes.
//!
//! Another compiler, another libc and another processor count differently: libraries choose their code by the features of the
//! processor. So the file says with what its figures were counted. Where that differs, changes are printed and judge nothing.
//!
//! A server looks at its files once a second, so on a busy machine, which takes longer, it does so for more requests. A path that has
//! grown is counted again, and the smaller count holds.

mod history;
mod record;

use super::executables::{self, Built, Executable};
use super::{LIMIT, bench_target_dir};
use crate::peers;
use crate::step::{self, Outcome, cargo};
use record::Record;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The paths, and how often the shorter and the longer run walk them.
const PATHS: [(&str, u32, u32); 15] = [
    ("hello", 200, 1200),
    ("counted", 200, 1200),
    ("timed", 200, 1200),
    ("pipelined", 50, 150),
    ("static", 200, 1200),
    ("proxied", 200, 700),
    ("fastcgi", 200, 700),
    ("websocket", 100, 300),
    ("tls", 200, 700),
    ("spawn", 1000, 6000),
    ("future", 1000, 6000),
    ("yield", 5000, 25_000),
    ("select", 1000, 6000),
    ("channel", 5000, 25_000),
    ("signal", 1000, 6000),
];

/// Features of processors by which libraries choose their code. valgrind knows no later ones.
const FEATURES: [&str; 10] = [
    "adx",
    "aes",
    "avx",
    "avx2",
    "bmi1",
    "bmi2",
    "f16c",
    "fma",
    "pclmulqdq",
    "rdrand",
];

const NAME: &str = "instructions";

/// Counts, shows the changes, and writes the counts down.
pub fn main() -> ExitCode {
    let counted = build().map_err(|outcome| outcome.skipped.concat() + &outcome.complaints.concat());
    let counted = counted.and_then(|built| count(&built));
    let written = counted.and_then(|counted| {
        print!("{}", counted.beside(&Record::of_file().unwrap_or_default()));
        counted.write()
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the program. A warning is a failure: it is a sign of code of our libraries that only features use which are not counted.
pub fn build() -> Built {
    if !peers::is_there("valgrind") {
        return Err(Box::new(Outcome::skipped(NAME, "valgrind is not installed".into())));
    }
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        let why = "the counts are those of Linux on x86-64";
        return Err(Box::new(Outcome::skipped(NAME, why.into())));
    }
    let mut command = cargo();
    command.args(["build", "--manifest-path", "bench/Cargo.toml", "-p", "bench-counts"]);
    command.args(["--profile", "counts"]);
    command.env("CARGO_TARGET_DIR", bench_target_dir());
    let made = executables::make(NAME, &mut command, LIMIT, |_, _| {})?;
    match made.warnings.is_empty() {
        true => Ok(made.executables),
        false => Err(Box::new(failed(made.warnings))),
    }
}

/// The step of CI: counts, and compares with the file.
pub fn check(built: Vec<Executable>) -> Outcome {
    let compared = Record::of_file().and_then(|file| Ok((recounted(&built, count(&built)?, &file)?, file)));
    let (counted, file) = match compared {
        Ok(compared) => compared,
        Err(why) => return failed(vec![why]),
    };
    counted.beside(&file).lines().for_each(step::say);
    if counted.with != file.with {
        let why = format!("counted with {}, and the file with {}", counted.with, file.with);
        return Outcome::skipped(NAME, why);
    }
    let complaints = match history::complaints(&counted, &file) {
        Ok(complaints) => complaints,
        Err(why) => return Outcome::skipped(NAME, why),
    };
    Outcome {
        passed: PATHS.len() - complaints.len().min(PATHS.len()),
        checked: format!("{} paths", PATHS.len()),
        ..failed(complaints)
    }
}

fn failed(complaints: Vec<String>) -> Outcome {
    Outcome {
        name: NAME.into(),
        failed: complaints.len(),
        checked: "nothing".into(),
        complaints,
        ..Outcome::default()
    }
}

/// Counts all paths.
fn count(built: &[Executable]) -> Result<Record, String> {
    let counts: Result<Vec<_>, String> = PATHS
        .iter()
        .map(|path| Ok((path.0.to_owned(), of_path(built, path)?)))
        .collect();
    let with = with();
    Ok(Record { with, counts: counts? })
}

/// Counts the paths that have grown once more.
fn recounted(built: &[Executable], mut counted: Record, file: &Record) -> Result<Record, String> {
    for (grown, _) in counted.grown(file) {
        let path = PATHS.iter().find(|path| path.0 == grown);
        let known = counted.counts.iter_mut().find(|(name, _)| *name == grown);
        if let (Some(path), Some((_, count))) = (path, known) {
            *count = (*count).min(of_path(built, path)?);
        }
    }
    Ok(counted)
}

/// The instructions of a path, walked once.
fn of_path(built: &[Executable], (name, short, long): &(&str, u32, u32)) -> Result<u64, String> {
    let program = built.first().ok_or("no program was built")?;
    let [first, second] = [*short, *long].map(|times| collected(&program.file, name, times));
    let once = second?.saturating_sub(first?) as f64 / f64::from(long - short);
    Ok(once.round() as u64)
}

/// The instructions of one run.
fn collected(program: &Path, path: &str, times: u32) -> Result<u64, String> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(program).args([path, &times.to_string()]);
    let mut lines = vec![];
    let ended = step::each_line(&mut command, LIMIT, |line| lines.push(line.to_string()));
    step::add_cpu_time(ended.cpu);
    let collected = lines.iter().find_map(|line| line.split_once("Collected : "));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    count
        .filter(|_| ended.ok)
        .ok_or_else(|| format!("{path}: {}", lines.join("\n")))
}

/// The compiler, the tools and the processor.
fn with() -> String {
    let first_line = |program: &str, args: &[&str]| {
        let text = step::output(Command::new(program).args(args));
        text.lines().next().unwrap_or("none").trim().to_string()
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |feature: &&str| flags.split_whitespace().any(|flag| flag == *feature);
    let features: Vec<&str> = FEATURES.into_iter().filter(has).collect();
    [
        first_line("rustc", &["--version"]),
        first_line("valgrind", &["--version"]),
        first_line("getconf", &["GNU_LIBC_VERSION"]),
        features.join(" "),
    ]
    .join(", ")
}
