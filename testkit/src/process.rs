//! The memory of a process, and how many descriptors and how much address space the test's own may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The process's resident private memory, in bytes. `None` where the system does not say it.
pub fn resident_bytes() -> Option<usize> {
    resident_bytes_of(std::process::id())
}

/// The resident private memory of another process, as [`resident_bytes`] has it.
pub fn resident_bytes_of(process: u32) -> Option<usize> {
    status_bytes(process, "RssAnon:")
}

/// A size in the status of a process, in bytes.
fn status_bytes(process: u32, name: &str) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<usize>().ok()? << 10)
}

/// Calls `body` while the process has no address space left for the stack of a further thread. The limit counts for all threads, so use it
/// in a [child](crate::in_a_child). An emulator does not enforce it.
///
/// # Panics
/// Panics where the system does not say how much there is, or sets no such limit.
pub fn without_room_for_a_thread<T>(body: impl FnOnce() -> T) -> T {
    const LEFT: usize = 512 << 10;
    let all = getrlimit(Resource::As);
    let used = status_bytes(std::process::id(), "VmSize:").expect("Linux says it");
    let little = Rlimit {
        current: Some((used + LEFT) as u64),
        ..all
    };
    setrlimit(Resource::As, little).expect("a limit may be lowered");
    let value = body();
    setrlimit(Resource::As, all).expect("up to the maximum a limit may be raised");
    value
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
