//! A cgroup with little memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// A cgroup of either version inside the one that this process is in. Its drop removes it, when its processes have ended.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    files: &'static Files,
}

/// The names of the files of a version.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    peak: &'static str,
    /// Has a line with the number of processes that the kernel has killed.
    events: &'static str,
}

const SECOND: Files = Files {
    limit: "memory.max",
    peak: "memory.peak",
    events: "memory.events",
};

const FIRST: Files = Files {
    limit: "memory.limit_in_bytes",
    peak: "memory.max_usage_in_bytes",
    events: "memory.oom_control",
};

impl MemoryGroup {
    /// Makes a group with this limit. Prints "skipped" and returns `None` where this user may not, or where the group has no memory
    /// controller.
    pub fn with_limit(bytes: u64) -> Option<MemoryGroup> {
        let made = own().and_then(|(own, files)| MemoryGroup::inside(&own, files, bytes));
        made.map_err(|why| crate::skip(format_args!("no cgroup with a memory limit can be made: {why}")))
            .ok()
    }

    fn inside(own: &Path, files: &'static Files, bytes: u64) -> Result<MemoryGroup, String> {
        let folder = own.join(format!("osier-test-{}-{bytes}", std::process::id()));
        let failed = |error| format!("{}: {error}", folder.display());
        fs::create_dir(&folder).map_err(failed)?;
        let group = MemoryGroup {
            folder: folder.clone(),
            files,
        };
        fs::write(folder.join(files.limit), bytes.to_string()).map_err(failed)?;
        Ok(group)
    }

    /// A line of a shell script that enters the group.
    pub fn to_enter(&self) -> String {
        format!("echo $$ > '{}/cgroup.procs'", self.folder.display())
    }

    /// The most memory that the group has had, in bytes. `None` where the system does not say it.
    pub fn peak(&self) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join(self.files.peak)).ok()?;
        text.trim().parse().ok()
    }

    /// The number of processes that the kernel has killed because the group had no memory left.
    pub fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.files.events)).expect("a group has its events");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.parse().ok()).expect("a number of kills")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has just ended is in its group for a moment longer.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        println!("the cgroup {} is left: it has processes", self.folder.display());
    }
}

/// The group of this process.
fn own() -> Result<(PathBuf, &'static Files), String> {
    let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| format!("/proc/self/cgroup: {error}"))?;
    let of = |line: &str| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let (root, files) = match controllers {
            "" => ("/sys/fs/cgroup", &SECOND),
            _ if controllers.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", &FIRST),
            _ => return None,
        };
        let folder = Path::new(root).join(path.trim_start_matches('/'));
        folder.is_dir().then_some((folder, files))
    };
    // Version 1 comes first where both are mounted: it has the controller then.
    groups.lines().find_map(of).ok_or_else(|| "none is mounted".into())
}
