//! `osier upgrade`: asks the running server for an upgrade, and waits for the outcome.
//!
//! SIGUSR2 asks the server. Its PID file then shows the outcome: the id of the new process, or the old id written again.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use crate::config;

use super::Failure;

/// Time between two reads of the file.
const TICK: Duration = Duration::from_millis(10);

/// The time beyond `[upgrade] timeout` within which the server must have written the file.
const MORE: Duration = Duration::from_secs(15);

/// Asks a server for an upgrade: the one whose PID file the configuration `of` names, or the process with the id `of`. Returns the line
/// to print.
///
/// # Errors
/// Mistakes of the configuration, or one line: why there was no upgrade.
///
/// # Blocks the thread
/// Until the new process has taken over, or the server reports a failure.
pub fn upgrade(of: &Path) -> Result<String, Failure> {
    if let Some(id) = of.to_str().and_then(|text| text.parse::<i32>().ok()) {
        signal(id)?;
        return Ok(format!(
            "osier: asked process {id} for an upgrade; its error log has the outcome"
        ));
    }
    let loaded = config::load(of, None).map_err(Failure::Mistakes)?.config;
    let Some(path) = loaded.pid_file else {
        return Err(Failure::Start(format!(
            "{} names no 'pid_file': set it, or give the process id instead of the file",
            of.display()
        )));
    };
    let written = || fs::metadata(&path).and_then(|found| found.modified()).ok();
    let (old, before) = (read(&path)?, written());
    let same = |now: Option<SystemTime>| now == before;
    signal(old)?;
    let (begun, limit) = (Instant::now(), loaded.upgrade.timeout + MORE);
    while begun.elapsed() < limit {
        thread::sleep(TICK);
        // The time comes first: an id that is written between the two looks is found by the next one.
        let now = written();
        match read(&path) {
            Ok(new) if new != old => return Ok(format!("osier: process {new} has taken over from process {old}")),
            Ok(_) if !same(now) => {
                return Err(Failure::Start(format!(
                    "the upgrade has failed, and process {old} goes on serving; its error log has the reason"
                )));
            }
            // The server is writing the file.
            _ => {}
        }
    }
    Err(Failure::Start(format!(
        "process {old} has not answered within {} s; see its error log",
        limit.as_secs()
    )))
}

/// Reads the id in a PID file.
fn read(path: &Path) -> Result<i32, Failure> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read '{}': {error}; is the server running?", path.display()))?;
    // Digits of a longer id may follow for a moment.
    let id = text.lines().next().and_then(|line| line.parse().ok());
    let id = id.filter(|id| *id > 0);
    Ok(id.ok_or_else(|| format!("'{}' has no process id; is the server running?", path.display()))?)
}

fn signal(id: i32) -> Result<(), Failure> {
    let process = Pid::from_raw(id).ok_or_else(|| format!("{id} is not a process id"))?;
    kill_process(process, Signal::USR2)
        .map_err(|error| Failure::Start(format!("cannot signal process {id}: {error}; is the server running?")))
}
