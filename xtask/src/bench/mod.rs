//! `cargo xtask bench`: Osier and its rivals on this machine, in one call, in turn.
//!
//! Method: the server is pinned to one core and the load to another. Each round runs Osier and every rival, every
//! second round in the reverse order, so other work of the machine, and what one leaves behind, affect all of them in the same way. The figure
//! is the **ratio** of Osier to a rival in one round; the table shows its median and its spread. Time per request is CPU time of the server as the operating system counts
//! it, because on two cores the load generator is the bottleneck. A row that could not be measured appears with the
//! reason. A row that Osier loses appears like any other.
//!
//! A run builds only the programs that its rows need (`programs.rs`). `rows/` has the rows and their goals, `server/` one running
//! server, `load/` the load on it, `table.rs` the figures and how they are shown. `bench instructions` counts instead: `test/instructions/`.

mod builds;
mod entries;
mod load;
mod programs;
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
    match parsed(args).and_then(measured) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::from(2)
        }
    }
}

impl Plan {
    /// A whole run on this machine.
    fn here() -> Result<Plan, String> {
        Ok(Plan {
            all: false,
            builds: false,
            rows: vec![],
            rounds: 5,
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
    let (main, builds) = written()?;
    if plan.builds {
        let builds = builds::measured()?;
        println!("{builds}");
        write(&format!("{main}{builds}"))?;
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
    let machine = table::machine(&plan);
    let lines = rows::run(&plan, rows);
    let _ = std::fs::remove_dir_all(&plan.scratch);

    let table = table::rendered(&lines);
    println!("\n{machine}\n{table}");
    if plan.rows.is_empty() && plan.rounds >= 5 && plan.against.is_none() {
        write(&format!("# Results\n\n{machine}\n{table}{builds}"))?;
    } else {
        println!("not written to bench/RESULTS.md: a quick run, only some rows, or another checkout as the rival");
    }
    Ok(!lines.is_empty() && lines.iter().all(|line| line.failure.is_none()))
}

const RESULTS: &str = "bench/RESULTS.md";

/// The table of servers and the table of builds that are written down.
fn written() -> Result<(String, String), String> {
    let text = std::fs::read_to_string(RESULTS).map_err(|error| format!("{RESULTS}: {error}"))?;
    let at = text.find(builds::HEADING).unwrap_or(text.len());
    Ok((text[..at].to_string(), text[at..].to_string()))
}

fn write(text: &str) -> Result<(), String> {
    std::fs::write(RESULTS, text).map_err(|error| format!("{RESULTS}: {error}"))?;
    println!("written to {RESULTS}");
    Ok(())
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
