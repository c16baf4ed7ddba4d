//! `osier upgrade`: asks the running server for an upgrade, and waits for the outcome.
//!
//! SIGUSR2 asks the server. Its PID file then shows the outcome: the id of the new process, or the old id written
//! again.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::config;

use super::Failure;
use super::signals::SIGNAL_THREAD;

/// Time between two reads of the PID file.
const TICK: Duration = Duration::from_millis(10);

/// The time that a server has for its handover, once the new process is ready. The new process must be ready within
/// `timeout` of `[upgrade]`.
const HANDOVER: Duration = Duration::from_secs(15);

/// Asks a server for an upgrade: the one whose PID file the configuration `of` names, or the process with the id `of`.
/// Returns the line to print.
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
        return Err(Failure::from(format!(
            "{} names no 'pid_file': set it, or give the process id instead of the file",
            of.display()
        )));
    };
    let written = || fs::metadata(&path).and_then(|found| found.modified()).ok();
    let (old, before) = (read(&path)?, written());
    signal(old)?;
    let (begun, limit) = (Instant::now(), loaded.upgrade.timeout + HANDOVER);
    while begun.elapsed() < limit {
        thread::sleep(TICK);
        // The time is read before the id: an id that is written in between is found in the next round.
        let now = written();
        match read(&path) {
            Ok(new) if new != old => return Ok(format!("osier: process {new} has taken over from process {old}")),
            Ok(_) if now != before => {
                return Err(Failure::from(format!(
                    "the upgrade has failed, and process {old} goes on serving; its error log has the reason"
                )));
            }
            // The server has ended. It may have written the new id after the read above, so the id is read again.
            Ok(_) if has_ended(old) && read(&path).is_ok_and(|id| id == old) => {
                return Err(Failure::from(format!(
                    "process {old} has ended without a successor; see its error log"
                )));
            }
            // The server is writing the file.
            _ => {}
        }
    }
    Err(Failure::from(format!(
        "process {old} has not answered within {} s ('timeout' of [upgrade], and {} s to hand over); see its error log",
        limit.as_secs(),
        HANDOVER.as_secs()
    )))
}

/// Reads the id in a PID file.
fn read(path: &Path) -> Result<i32, Failure> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read '{}': {error}; is the server running?", path.display()))?;
    // Digits of a longer id may stand in the second line for a moment.
    let id = text.lines().next().and_then(|line| line.parse().ok());
    let id = id.filter(|id| *id > 0);
    Ok(id.ok_or_else(|| format!("'{}' has no process id; is the server running?", path.display()))?)
}

fn has_ended(id: i32) -> bool {
    Pid::from_raw(id).is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
}

/// Sends SIGUSR2, which would end a process that does not catch it.
fn signal(id: i32) -> Result<(), Failure> {
    let process = Some(id).filter(|id| *id > 0).and_then(Pid::from_raw);
    let process = process.ok_or_else(|| format!("{id} is not a process id"))?;
    if let Some(name) = name_of_other_program(id) {
        return Err(Failure::from(format!(
            "process {id} is '{name}' and no running osier server, so it was left alone; is the server running?"
        )));
    }
    kill_process(process, Signal::USR2)
        .map_err(|error| Failure::from(format!("cannot signal process {id}: {error}; is the server running?")))
}

/// The name of a process that is no osier server. None for a server, and where the system does not tell (no `/proc`, no
/// such process).
///
/// A server is recognised by its thread for signals, which runs whenever the server can be upgraded. Its program may
/// have any name, and may have been replaced or be out of sight.
fn name_of_other_program(id: i32) -> Option<String> {
    let comm = |path: &Path| fs::read_to_string(path.join("comm")).map(|name| name.trim_end().to_owned());
    let process = PathBuf::from(format!("/proc/{id}"));
    let name = comm(&process).ok()?;
    let threads = fs::read_dir(process.join("task")).ok()?;
    let mut names = threads.flatten().filter_map(|thread| comm(&thread.path()).ok());
    let is_server = names.any(|name| name == SIGNAL_THREAD);
    (!is_server).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_above_zero_are_processes() {
        for id in [0, -1, i32::MIN] {
            let Err(Failure::Start(why)) = signal(id) else {
                panic!("{id}")
            };
            assert_eq!(why.to_string(), format!("{id} is not a process id"));
        }
    }
}
