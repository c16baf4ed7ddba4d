//! `cargo xtask bench`: Osier and its rivals on this machine, in one call, in turn.
//!
//! Method: the server is pinned to one core and the load to another. Each round runs Osier and every rival. The next one begins with the next
//! of them, and goes the other way round, so other work of the machine, and what one leaves behind, affect all of them alike. The figure
//! is the **ratio** of Osier to a rival in one round; the table shows its median and its spread. Time per request is CPU time of the server as the operating system counts
//! it, because on two cores the load generator is the bottleneck. A row that could not be measured appears with the
//! reason. A row that Osier loses appears like any other. Each run but a quick one adds a file to `bench/runs`, and `results.rs` makes the
//! page of results of all of them.
//!
//! A run builds only the programs that its rows need (`programs.rs`). `rows/` has the rows and their goals, `server/` one running
//! server, `load/` the load on it, `table.rs` the figures and how they are shown. `bench instructions` counts instead: `test/instructions/`.

mod builds;
mod entries;
mod load;
mod programs;
mod results;
mod rows;
mod server;
mod table;
pub mod upgrade;

use crate::peers;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// How this run measures.
#[derive(Clone)]
pub struct Plan {
    pub all: bool,
    /// Measures builds from nothing instead of servers.
    pub builds: bool,
    /// Only rows whose name contains one of these; all rows if there is none.
    pub rows: Vec<String>,
    pub rounds: usize,
    /// How long one server is under load in one round.
    pub load: Duration,
    /// The core of the server, and the core of the load.
    pub cores: (usize, usize),
    /// Whether the server and the load both use both cores.
    pub spread: bool,
    /// The folder of served files and configurations. It is removed at the end.
    pub scratch: PathBuf,
    /// Another checkout of this repository: its programs are then the only rivals.
    pub against: Option<PathBuf>,
}

pub fn main(args: &[String]) -> ExitCode {
    if args == ["instructions"] {
        return crate::test::instructions::main();
    }
    let outcome = match args {
        [only] if only == "results" => refresh().map(|()| true),
        _ => parsed(args).and_then(measured),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::from(2)
        }
    }
}

/// The rounds of a run that is kept.
const ROUNDS: usize = 5;

impl Plan {
    /// A whole run on this machine.
    fn here() -> Result<Plan, String> {
        Ok(Plan {
            all: false,
            builds: false,
            rows: vec![],
            rounds: ROUNDS,
            load: Duration::from_secs(4),
            cores: two_cores()?,
            spread: false,
            scratch: std::env::temp_dir().join(format!("osier-bench-{}", std::process::id())),
            against: None,
        })
    }

    /// The cores of the server that is measured.
    pub fn server_cores(&self) -> Vec<usize> {
        match self.spread {
            true => vec![self.cores.0, self.cores.1],
            false => vec![self.cores.0],
        }
    }

    /// The cores of the load.
    pub fn load_cores(&self) -> Vec<usize> {
        match self.spread {
            true => self.server_cores(),
            false => vec![self.cores.1],
        }
    }
}

fn parsed(args: &[String]) -> Result<Plan, String> {
    let mut plan = Plan::here()?;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--all" => plan.all = true,
            "--builds" => plan.builds = true,
            "--rows" => plan.rows.push(args.next().ok_or("--rows needs a PATTERN")?.clone()),
            "--quick" => (plan.rounds, plan.load) = (2, Duration::from_secs(2)),
            "--against" => plan.against = Some(checkout(args.next().ok_or("--against needs a DIR")?)?),
            unknown => {
                return Err(format!(
                    "{unknown:?}: known are --all, --builds, --rows PATTERN, --quick and --against DIR"
                ));
            }
        }
    }
    Ok(plan)
}

/// Builds, runs the rows, shows the table; false if a line has no figure.
fn measured(plan: Plan) -> Result<bool, String> {
    if plan.builds {
        let (machine, table) = builds::measured()?;
        println!("\n{machine}\n{table}");
        keep("Builds from nothing", &machine, &table)?;
        return Ok(true);
    }
    let missing = peers::install(peers::FOR_BENCH);
    if !missing.is_empty() {
        return Err(missing.join("\nbench: "));
    }
    let rows = rows::wanted(&plan);
    if rows.is_empty() {
        return Err("no row has a name like that".into());
    }
    programs::build(&plan, &rows::programs(&plan, &rows))?;
    std::fs::create_dir_all(&plan.scratch).map_err(|error| format!("{}: {error}", plan.scratch.display()))?;
    let machine = table::machine(&plan, &rows::rivals(&rows));
    let lines = rows::run(&plan, rows);
    let _ = std::fs::remove_dir_all(&plan.scratch);

    let table = table::rendered(&lines);
    println!("\n{machine}\n{table}");
    match plan.rounds >= ROUNDS && plan.against.is_none() {
        true => keep(&title(&plan), &machine, &table)?,
        false => println!("not kept: a quick run, or another checkout as the rival"),
    }
    Ok(!lines.is_empty() && lines.iter().all(|line| line.failure.is_none()))
}

/// "Rows: 'JSON', 'server:'", as they were asked for.
fn title(plan: &Plan) -> String {
    let rivals = if plan.all { ", with all rivals" } else { "" };
    match &plan.rows[..] {
        [] => format!("All rows{rivals}"),
        rows => format!("Rows: '{}'{rivals}", rows.join("', '")),
    }
}

/// Adds a run to those that are kept, and makes the page of results anew.
fn keep(title: &str, machine: &str, table: &str) -> Result<(), String> {
    let text = format!("# {title}\n\n{machine}\n{table}");
    let path = results::add(&table::today(), &nickname(&table::processor()), &text)?;
    println!("kept as {path}");
    refresh()
}

/// The page of results, of all runs that are kept.
fn refresh() -> Result<(), String> {
    let plan = Plan {
        all: true,
        ..Plan::here()?
    };
    let mut lines = rows::named(&rows::wanted(&plan));
    lines.extend(builds::named());
    results::refresh(&lines)
}

/// The name of a machine in the names of its runs.
fn nickname(processor: &str) -> String {
    let words = processor.split(|char: char| !char.is_ascii_alphanumeric());
    let known = ["EPYC", "Intel"].iter().find(|name| processor.contains(**name));
    known
        .copied()
        .or(words.into_iter().find(|word| !word.is_empty()))
        .unwrap_or("unknown")
        .to_lowercase()
}

/// The folder of another checkout, as an absolute path.
fn checkout(dir: &str) -> Result<PathBuf, String> {
    let folder = std::fs::canonicalize(dir).map_err(|error| format!("--against {dir}: {error}"))?;
    match folder.join("bench/osier/Cargo.toml").exists() {
        true => Ok(folder),
        false => Err(format!("--against {dir}: no checkout of this repository")),
    }
}

/// The first two cores this process may use.
fn two_cores() -> Result<(usize, usize), String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| format!("/proc/self/status: {error}"))?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap_or_default();
    let cores: Vec<usize> = list.trim().split(',').flat_map(range).collect();
    match cores[..] {
        [server, load, ..] => Ok((server, load)),
        _ => Err("needs two cores, one for the server and one for the load".into()),
    }
}

/// The cores of "3" or of "0-7".
fn range(text: &str) -> Vec<usize> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) => (first..=last).collect(),
        _ => vec![],
    }
}

/// `program`, pinned to a core, with as many open files as the system allows.
pub fn pinned(core: usize, program: impl AsRef<OsStr>) -> Command {
    pinned_to(&[core], program)
}

/// As [`pinned`], to several cores.
pub fn pinned_to(cores: &[usize], program: impl AsRef<OsStr>) -> Command {
    let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
    let mut command = Command::new("sh");
    // The shell and taskset become the program: its process id is the one that is measured and killed.
    command.args([
        "-c",
        r#"ulimit -n "$(ulimit -H -n)"; PATH="$PATH:/usr/sbin" exec taskset -c "$0" "$@""#,
        &cores.join(","),
    ]);
    command.arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_short_names() {
        assert_eq!(nickname("AMD EPYC 7763 64-Core Processor"), "epyc");
        assert_eq!(nickname("Intel(R) Xeon(R) Processor"), "intel");
        assert_eq!(nickname("Neoverse-N1"), "neoverse");
        assert_eq!(nickname(""), "unknown");
    }
}
