//! The signals that a thread blocks.

use std::fs;
use std::path::Path;

use crate::eventually;

const TERM: u64 = 1 << (15 - 1);
const SEGV: u64 = 1 << (11 - 1);

/// Waits for a thread of this process with that name, and checks that no signal of the program can come to it: it blocks
/// SIGTERM. A fault of its own must: it does not block SIGSEGV.
///
/// # Panics
/// Panics if there is no such thread within [`DEADLINE`](crate::DEADLINE), and if the check fails.
#[track_caller]
pub fn assert_takes_no_signals(name: &str) {
    if !Path::new("/proc/self/task").exists() {
        return crate::skip("this system does not show the signals of threads");
    }
    // A thread has its name a moment after it has begun.
    eventually("the thread has its name", || blocked(name).is_some());
    assert_eq!(blocked(name).map(|mask| mask & (TERM | SEGV)), Some(TERM), "{name}");
}

/// Returns the mask of the first thread with that name.
fn blocked(name: &str) -> Option<u64> {
    let first = format!("Name:\t{name}\n");
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let mut texts = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let text = texts.find(|text| text.starts_with(&first))?;
    let mask = text.lines().find_map(|line| line.strip_prefix("SigBlk:\t"))?;
    u64::from_str_radix(mask, 16).ok()
}
