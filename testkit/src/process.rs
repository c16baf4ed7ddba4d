//! The memory of a process, and how many descriptors the test's own may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The process's resident private memory, in bytes. `None` where the system does not say it.
pub fn resident_bytes() -> Option<usize> {
    resident_bytes_of(std::process::id())
}

/// The resident private memory of another process, as [`resident_bytes`] has it.
pub fn resident_bytes_of(process: u32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<usize>().ok()? << 10)
}

/// Lets the process open `wanted` descriptors, or more. Returns whether it may.
pub fn allow_descriptors(wanted: u64) -> bool {
    let Rlimit { current, maximum: most } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        // Another test of this process may need more.
        return true;
    }
    let raised = Rlimit {
        current: Some(most.map_or(wanted, |most| most.min(wanted))),
        maximum: most,
    };
    raised.current >= Some(wanted) && setrlimit(Resource::Nofile, raised).is_ok()
}
