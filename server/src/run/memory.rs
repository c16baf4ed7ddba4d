//! The memory limit: where it comes from, and the fiber that enforces it.
//!
//! ```text
//!   `memory`, or nine tenths of the machine's memory ─▶ resident memory
//!   nine tenths of the cgroup's limit                ─▶ memory of the cgroup, or resident memory if that is more
//!   nine tenths of RLIMIT_AS, if that is less        ─▶ address space
//! ```
//!
//! The memory of a cgroup includes what the kernel holds for the server, sockets above all, and what other processes of
//! the group hold. The kernel compares this sum with the limit before it kills a process.
//!
//! The accounts of [`osier::memory`] count what clients make the server hold. The fiber also measures the process,
//! because an allocator takes more than it hands out, and handlers allocate without an account. From 80 % on, the fiber
//! drops stored responses and returns free memory to the system, and listeners close idle connections. From 95 % on,
//! listeners answer new requests with 503.
//!
//! Landlock and a root folder may hide the files of the cgroups. So [`Found::find`] opens them before privileges are given up, and the new process
//! of an upgrade, which has the rights of the old one, gets them from that ([`Found::item`]) and reads the limits again. They are files and
//! not their folder: a descriptor of a folder outside of a root folder is a way out of it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use osier::memory::{self, Pressure};
use osier_web::upgrade::Item;
use rustix::process::{Resource, getrlimit};

use crate::log::operator::Say;
use crate::metrics::Totals;
use crate::site::live::Live;

/// The shortest and the longest time between two measurements.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The assumed growth of memory without an account, in bytes a second. The next measurement comes before such growth
/// would reach the limit.
const GROWTH: u64 = 512 << 20;

/// Shortest time between two trims of the allocator. A trim takes some milliseconds.
const TRIM_EVERY: Duration = Duration::from_secs(1);

/// Shortest time between two trims near the limit, where no request is accepted before freed memory has gone back.
const TRIM_EVERY_CRITICAL: Duration = Duration::from_millis(100);

/// The address space of a fiber's stack that is not resident. A stack without a size of its own has 256 KiB, and
/// touches two pages.
const STACK_SPACE: usize = 248 << 10;

/// Bytes for `memory.stat` of a cgroup, which has some 2 KiB.
const STAT_BYTES: usize = 16 << 10;

/// Most groups whose files go to the new process of an upgrade: three files each, of the 128 that an item has.
const GROUPS_MAX: usize = 42;

/// The share of a system limit that the server may use.
const fn nine_tenths(bytes: u64) -> u64 {
    bytes / 10 * 9
}

/// A memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub bytes: u64,
    pub source: Source,
}

/// The source of a limit. It decides what counts against the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Configuration,
    Cgroup,
    Machine,
    AddressSpace,
}

/// The limit of this process, and the files by which the kernel counts against it.
#[derive(Clone)]
pub struct Found {
    /// None if neither the configuration nor the system has a limit.
    limit: Option<Limit>,
    /// The cgroups around this process, that with the least limit first.
    cgroups: Vec<Arc<Cgroup>>,
    /// The memory of the machine.
    machine: Option<u64>,
}

impl Found {
    /// Looks for the limit, with all rights that this process has at its start. `inherited` is what the old process of an upgrade has found,
    /// for what this one cannot see in its root folder.
    pub fn find(configured: Option<u64>, inherited: Option<Item>) -> Found {
        let address_space = getrlimit(Resource::As).current;
        let (old_cgroups, old_machine) = inherited.and_then(read_item).unwrap_or_default();
        let mut cgroups = Cgroup::around(Path::new("/"));
        if cgroups.is_empty() {
            cgroups = old_cgroups;
        }
        let machine = machine().or(old_machine);
        let least = cgroups.first().and_then(|group| group.limit);
        Found {
            limit: Limit::of(configured, least, machine, address_space),
            cgroups: cgroups.into_iter().map(Arc::new).collect(),
            machine,
        }
    }

    /// The item for the new process of an upgrade. If no file can be duplicated, it has the limit alone.
    pub fn item(&self) -> Item {
        let least = self.cgroups.first();
        let files = self.cgroups.iter().filter_map(|group| group.files.as_ref());
        let files: Vec<_> = files.filter_map(Files::copies).take(GROUPS_MAX).collect();
        let value = serde_json::json!({
            "machine": self.machine,
            "cgroup": least.and_then(|group| group.limit),
            // One version has the controller of memory, for all groups.
            "is_version_1": least.map(|group| group.version.root == VERSION_1.root),
            "groups": files.len(),
        });
        Item {
            bytes: value.to_string().into(),
            descriptors: files.into_iter().flatten().collect(),
        }
    }
}

/// The cgroups and the memory of the machine in an item.
fn read_item(item: Item) -> Option<(Vec<Cgroup>, Option<u64>)> {
    let value: serde_json::Value = serde_json::from_slice(&item.bytes).ok()?;
    let version = match value["is_version_1"].as_bool() {
        Some(true) => &VERSION_1,
        _ => &VERSION_2,
    };
    // Without a count they are of an earlier version, which had other files.
    let count = value["groups"].as_u64().unwrap_or_default() as usize;
    let mut descriptors = item.descriptors.into_iter().map(File::from);
    let groups = std::iter::from_fn(|| {
        Some(Files {
            usage: descriptors.next()?,
            stat: descriptors.next()?,
            limit: descriptors.next()?,
        })
    });
    let mut groups: Vec<_> = groups.take(count).map(|files| Cgroup::of(files, version)).collect();
    if let (true, Some(limit)) = (groups.is_empty(), value["cgroup"].as_u64()) {
        groups.push(Cgroup {
            limit: Some(limit),
            files: None,
            version,
        });
    }
    Cgroup::sort(&mut groups);
    Some((groups, value["machine"].as_u64()))
}

impl Limit {
    fn of(
        configured: Option<u64>,
        cgroup: Option<u64>,
        machine: Option<u64>,
        address_space: Option<u64>,
    ) -> Option<Limit> {
        let limit = |source| move |bytes| Limit { bytes, source };
        let system = [
            cgroup.map(nine_tenths).map(limit(Source::Cgroup)),
            machine.map(nine_tenths).map(limit(Source::Machine)),
        ];
        let resident = match configured {
            Some(bytes) => Some(limit(Source::Configuration)(bytes)),
            None => system.into_iter().flatten().min_by_key(|limit| limit.bytes),
        };
        let space = address_space.map(nine_tenths).map(limit(Source::AddressSpace));
        [resident, space].into_iter().flatten().min_by_key(|limit| limit.bytes)
    }

    /// The limit in words, for messages.
    fn name(self) -> &'static str {
        match self.source {
            Source::Configuration => "'memory'",
            Source::Cgroup => "nine tenths of the cgroup's limit",
            Source::Machine => "nine tenths of the machine's memory",
            Source::AddressSpace => "nine tenths of the address space (ulimit -v)",
        }
    }
}

/// A cgroup.
struct Cgroup {
    /// None if it has no limit.
    limit: Option<u64>,
    /// None if the kernel has not all of them.
    files: Option<Files>,
    version: &'static Version,
}

/// The files of a cgroup, by the names of [`Version`].
struct Files {
    usage: File,
    stat: File,
    limit: File,
}

impl Files {
    /// Duplicates, in the order of [`read_item`].
    fn copies(&self) -> Option<[OwnedFd; 3]> {
        let copy = |file: &File| file.try_clone().ok().map(OwnedFd::from);
        Some([copy(&self.usage)?, copy(&self.stat)?, copy(&self.limit)?])
    }
}

/// The names of a version of cgroups.
struct Version {
    root: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// The lines of `memory.stat` for the page cache, which the kernel drops when it needs memory. Files of a tmpfs are
    /// not counted.
    cached: [&'static str; 2],
    /// The line for the mapped part of the page cache, such as the code that runs.
    mapped: &'static str,
}

const VERSION_1: Version = Version {
    root: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: ["total_active_file ", "total_inactive_file "],
    mapped: "total_mapped_file ",
};

const VERSION_2: Version = Version {
    root: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    cached: ["active_file ", "inactive_file "],
    mapped: "file_mapped ",
};

impl Cgroup {
    /// The cgroups around this process, in either version, that with the least limit first. `root` is the root of the file system.
    fn around(root: &Path) -> Vec<Cgroup> {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let groups = groups.lines().flat_map(|line| {
            // A line is `0::/path` in version 2, `4:memory:/path` in version 1.
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let version = match controllers {
                "" => &VERSION_2,
                _ if controllers.split(',').any(|name| name == "memory") => &VERSION_1,
                _ => return Vec::new(),
            };
            // A container may see its own group as the root, with another path.
            let path = PathBuf::from(path.trim_start_matches('/'));
            let group = |path: &Path| {
                let open = |name: &str| File::open(root.join(version.root).join(path).join(name)).ok();
                let limit = open(version.limit)?;
                Some(match open(version.usage).zip(open("memory.stat")) {
                    Some((usage, stat)) => Cgroup::of(Files { usage, stat, limit }, version),
                    None => Cgroup {
                        limit: limit_in(&limit),
                        files: None,
                        version,
                    },
                })
            };
            path.ancestors().filter_map(group).collect()
        });
        let mut groups: Vec<_> = groups.collect();
        Cgroup::sort(&mut groups);
        groups
    }

    fn of(files: Files, version: &'static Version) -> Cgroup {
        Cgroup {
            limit: limit_in(&files.limit),
            files: Some(files),
            version,
        }
    }

    /// Puts the least limit first.
    fn sort(groups: &mut [Cgroup]) {
        groups.sort_by_key(|group| group.limit.unwrap_or(u64::MAX));
    }

    /// The memory that counts against the limit, without the page cache: a server of large files is not short of
    /// memory. Mapped pages count, because a server whose code is dropped from memory stands still. `None` if the
    /// kernel does not report it.
    ///
    /// # Blocks the thread
    /// For some tens of microseconds.
    fn memory(&self) -> Option<u64> {
        let files = self.files.as_ref()?;
        let (usage, stat) = (number(&text(&files.usage)?)?, text(&files.stat)?);
        let bytes = |name: &str| {
            stat.lines()
                .find_map(|line| line.strip_prefix(name))?
                .parse::<u64>()
                .ok()
        };
        let [active, inactive] = self.version.cached;
        let cached = (bytes(active)? + bytes(inactive)?).saturating_sub(bytes(self.version.mapped)?);
        Some(usage.saturating_sub(cached))
    }
}

/// The number in a text of one line.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The limit in an open file. None if there is none, which version 1 says by a number near the largest i64.
fn limit_in(file: &File) -> Option<u64> {
    number(&text(file)?).filter(|limit| *limit < 1 << 60)
}

/// Reads an open file from its beginning, up to [`STAT_BYTES`].
fn text(file: &File) -> Option<String> {
    let mut bytes = vec![0; STAT_BYTES];
    let length = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(length);
    String::from_utf8(bytes).ok()
}

/// The memory of the machine.
fn machine() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// Sets the limit and starts the fiber that keeps to it.
pub fn keep(found: Found, totals: &Arc<Totals>, live: &Arc<Live>, say: &Say) {
    let Some(limit) = found.limit else {
        return say.warning(format_args!(
            "the system reports no memory limit, so none is enforced: set 'memory'"
        ));
    };
    memory::set_limit(Some(usize::try_from(limit.bytes).unwrap_or(usize::MAX)));
    let cgroup = found.cgroups.into_iter().next();
    let cgroup = cgroup.filter(|_| limit.source == Source::Cgroup);
    if totals.files.is_none() && cgroup.as_ref().is_none_or(|group| group.files.is_none()) {
        return say.warning(format_args!(
            "cannot measure the memory of this process, because /proc is missing: only accounted memory counts"
        ));
    }
    let keeper = Keeper {
        limit,
        cgroup,
        totals: Arc::clone(totals),
        live: Arc::clone(live),
        say: say.clone(),
        unused_space: None,
        said: Pressure::Normal,
    };
    drop(osier::fiber::Builder::new().name("memory").spawn(move || keeper.run()));
}

/// Time until the next measurement.
fn pause(held: u64, limit: u64) -> Duration {
    let room = limit.saturating_sub(held);
    let time = Duration::from_millis(room.saturating_mul(1000) / GROWTH);
    time.clamp(PAUSE.0, PAUSE.1)
}

/// Measures the memory of the process and enforces the limit.
struct Keeper {
    limit: Limit,
    /// The cgroup, if it sets the limit.
    cgroup: Option<Arc<Cgroup>>,
    totals: Arc<Totals>,
    live: Arc<Live>,
    say: Say,
    /// The address space that was not resident at the first measurement.
    unused_space: Option<u64>,
    /// The pressure that was last logged.
    said: Pressure,
}

impl Keeper {
    fn run(mut self) {
        let mut trimmed = osier::time::now();
        loop {
            self.measure();
            let now = memory::pressure();
            self.tell(now);
            if now >= Pressure::High {
                self.relieve();
                let least = match now {
                    Pressure::Critical => TRIM_EVERY_CRITICAL,
                    _ => TRIM_EVERY,
                };
                if osier::time::now().saturating_duration_since(trimmed) >= least {
                    memory::trim();
                    trimmed = osier::time::now();
                }
            }
            // A charge may change the pressure before the next measurement.
            let _ = osier::timeout(pause(memory::held() as u64, self.limit.bytes), || {
                memory::wait_for_change(now)
            });
        }
    }

    /// Measures the process and reports the result to [`osier::memory`].
    fn measure(&mut self) {
        let own = self.totals.files.as_ref().and_then(|files| files.memory().ok());
        let group = self.cgroup.as_ref().and_then(|group| group.memory());
        // In a root folder, the new process of an upgrade sees the cgroup alone.
        let Some((resident, space)) = own.or_else(|| Some((group?, 0))) else {
            return;
        };
        let bytes = match self.limit.source {
            Source::AddressSpace => {
                // Free stacks and free memory keep their addresses for reuse. So the space is computed from what is in
                // use.
                let stacks = osier::inspect::metrics().map_or(0, |metrics| {
                    metrics.workers.iter().map(|worker| worker.fibers).sum::<usize>()
                });
                let unused = *self.unused_space.get_or_insert(space.saturating_sub(resident));
                let stacks = (stacks * STACK_SPACE) as u64;
                // Stacks may take half of the address space, so they may run out first.
                (resident + unused + stacks).max(nine_tenths(2 * stacks))
            }
            Source::Cgroup => group.unwrap_or(0).max(resident),
            Source::Configuration | Source::Machine => resident,
        };
        memory::measured(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Logs a rise of the pressure, and its end.
    fn tell(&mut self, now: Pressure) {
        let limit = self.limit;
        let (held, most, name) = (memory::held() >> 20, limit.bytes >> 20, limit.name());
        match now {
            _ if now == self.said => return,
            Pressure::Critical => self.say.warning(format_args!(
                "{held} of {most} MiB of memory ({name}) are in use: new requests get 503; raise 'memory', or limit what clients send"
            )),
            Pressure::High if self.said == Pressure::Normal => self.say.warning(format_args!(
                "{held} of {most} MiB of memory ({name}) are in use: caches shrink, and idle connections close"
            )),
            Pressure::High => return,
            Pressure::Normal => self.say.info(format_args!("{held} of {most} MiB of memory are in use")),
        }
        self.said = now;
    }

    /// Makes the stores of responses drop half of what they hold.
    fn relieve(&self) {
        for store in self.live.current().stores() {
            store.relieve();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Folder;

    #[test]
    fn the_least_limit_counts() {
        let of = |configured, cgroup, machine, space| Limit::of(configured, cgroup, machine, space);
        let is = |limit: Option<Limit>, bytes, source| assert_eq!(limit, Some(Limit { bytes, source }));
        assert_eq!(of(None, None, None, None), None);
        is(of(None, Some(1000), Some(5000), None), 900, Source::Cgroup);
        is(of(None, None, Some(5000), Some(1 << 40)), 4500, Source::Machine);
        is(of(Some(7000), Some(1000), None, None), 7000, Source::Configuration);
        is(of(Some(7000), None, None, Some(1000)), 900, Source::AddressSpace);
        assert!(machine().unwrap() > 64 << 20);
    }

    #[test]
    fn measurements_come_more_often_near_the_limit() {
        const MIB: u64 = 1 << 20;
        assert_eq!(pause(0, u64::MAX), Duration::from_secs(1));
        assert_eq!(pause(100 * MIB, 228 * MIB), Duration::from_millis(250));
        assert_eq!(pause(227 * MIB, 228 * MIB), Duration::from_millis(20));
        assert_eq!(pause(300 * MIB, 228 * MIB), Duration::from_millis(20));
    }

    /// A process in a root folder kept the limit of the first start through all upgrades.
    #[test]
    fn the_new_process_of_an_upgrade_reads_the_limits_again() {
        for (version, line) in [(&VERSION_1, "4:memory:/a/b\n"), (&VERSION_2, "0::/a/b\n")] {
            let folder = Folder::new();
            folder.write("proc/self/cgroup", line);
            let write = |group: &str, name: &str, text: &str| {
                folder.write(format!("{}/{group}/{name}", version.root), text);
            };
            let lines = [version.cached[0], version.cached[1], version.mapped].map(|name| format!("{name}50\n"));
            for (group, usage, limit) in [("a", "500", "2000"), ("a/b", "300", "max")] {
                write(group, version.usage, usage);
                write(group, version.limit, limit);
                write(group, "memory.stat", &lines.concat());
            }
            let cgroups = Cgroup::around(folder.path());
            let found = Found {
                limit: None,
                cgroups: cgroups.into_iter().map(Arc::new).collect(),
                machine: Some(5000),
            };
            let arrived = || {
                let (cgroups, machine) = read_item(found.item()).unwrap();
                assert!(machine == Some(5000) && cgroups.iter().all(|group| group.version.root == version.root));
                (cgroups.len(), cgroups[0].limit, cgroups[0].memory())
            };
            assert_eq!(arrived(), (2, Some(2000), Some(450)));
            write("a/b", version.limit, "1000");
            assert_eq!(arrived(), (2, Some(1000), Some(250)));
            write("a", version.limit, "9223372036854771712");
            write("a/b", version.limit, "9223372036854771712");
            assert_eq!(arrived().1, None);

            // A process that has no descriptor left passes the limit alone.
            let mut item = found.item();
            item.descriptors.clear();
            let (cgroups, _) = read_item(item).unwrap();
            assert_eq!(
                (cgroups.len(), cgroups[0].limit, cgroups[0].memory()),
                (1, Some(2000), None)
            );
        }
        let nothing = Found {
            limit: None,
            cgroups: Vec::new(),
            machine: None,
        };
        let (cgroups, machine) = read_item(nothing.item()).unwrap();
        assert!(cgroups.is_empty() && machine.is_none());
    }

    /// A limit of version 2 whose usage is 300 bytes.
    fn found_in(folder: &Folder) -> Found {
        let lines = [VERSION_2.cached[0], VERSION_2.cached[1], VERSION_2.mapped].map(|name| format!("{name}0\n"));
        let open = |name: &str, text: &str| File::open(folder.write(name, text)).unwrap();
        let files = Files {
            usage: open("usage", "300\n"),
            stat: open("stat", &lines.concat()),
            limit: open("limit", "1000\n"),
        };
        Found {
            limit: None,
            cgroups: vec![Arc::new(Cgroup::of(files, &VERSION_2))],
            machine: None,
        }
    }

    /// It has the files of usage and statistics of each group, and no count.
    #[test]
    fn no_file_of_an_earlier_version_is_taken_for_a_limit() {
        let folder = Folder::new();
        let value = serde_json::json!({ "machine": 5000, "cgroup": 1000, "is_version_1": false });
        let files = ["usage", "stat", "usage of the parent", "stat of the parent"];
        for count in [2, 4] {
            let open = |name: &&str| File::open(folder.write(name, "700\n")).unwrap().into();
            let item = Item {
                bytes: value.to_string().into(),
                descriptors: files[..count].iter().map(open).collect(),
            };
            let (groups, machine) = read_item(item).unwrap();
            assert_eq!((groups.len(), machine), (1, Some(5000)));
            assert_eq!((groups[0].limit, groups[0].memory()), (Some(1000), None));
        }
    }

    #[test]
    fn further_files_of_a_later_version_are_left_alone() {
        let folder = Folder::new();
        let mut item = found_in(&folder).item();
        assert_eq!(item.descriptors.len(), 3);
        let later = || File::open(folder.write("later", "")).unwrap().into();
        item.descriptors.extend([later(), later(), later()]);
        let (groups, _) = read_item(item).unwrap();
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].limit, groups[0].memory()), (Some(1000), Some(300)));
    }

    #[test]
    fn files_that_cannot_be_duplicated_leave_the_limit() {
        use rustix::process::{Rlimit, setrlimit};
        // The limit of descriptors belongs to a process.
        let test = "run::memory::tests::files_that_cannot_be_duplicated_leave_the_limit";
        let child = testkit::in_a_child(test, || {
            let folder = Folder::new();
            let found = found_in(&folder);
            let before = getrlimit(Resource::Nofile);
            let none = Rlimit {
                current: Some(0),
                ..before
            };
            setrlimit(Resource::Nofile, none).unwrap();
            let item = found.item();
            setrlimit(Resource::Nofile, before).unwrap();
            assert!(item.descriptors.is_empty());
            let (groups, _) = read_item(item).unwrap();
            assert_eq!((groups[0].limit, groups[0].memory()), (Some(1000), None));
        });
        assert!(child.is_none_or(|child| child.status.success()));
    }

    #[test]
    fn cgroups_of_both_versions_are_read() {
        let folder = Folder::new();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let limit = || Cgroup::around(folder.path()).first()?.limit;
        let memory = || Cgroup::around(folder.path())[0].memory();
        assert_eq!(limit(), None);
        write("proc/self/cgroup", "0::/system.slice/osier.service\n");
        write("sys/fs/cgroup/system.slice/osier.service/memory.max", "max\n");
        assert_eq!(limit(), None);
        // Only the parent has a limit, then both, then the parent's is the least.
        write("sys/fs/cgroup/system.slice/memory.max", "900000000\n");
        write("sys/fs/cgroup/system.slice/memory.current", "300000000\n");
        assert_eq!((limit(), memory()), (Some(900_000_000), None));
        write(
            "sys/fs/cgroup/system.slice/memory.stat",
            "anon 5\nfile_mapped 10000000\nactive_file 20000000\ninactive_file 40000000\nslab 1\n",
        );
        assert_eq!(memory(), Some(250_000_000));
        write("sys/fs/cgroup/system.slice/osier.service/memory.max", "500000000\n");
        assert_eq!(limit(), Some(500_000_000));
        write("sys/fs/cgroup/system.slice/memory.max", "400000000\n");
        assert_eq!(limit(), Some(400_000_000));

        // Version 1, where version 2 is mounted beside it without controllers.
        write("proc/self/cgroup", "5:cpu:/a\n4:hugetlb,memory:/docker/7f\n0::/\n");
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit(), None);
        // Inside of a container the root is its own group.
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
        write("sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
        write(
            "sys/fs/cgroup/memory/memory.stat",
            "inactive_file 1\ntotal_mapped_file 1000\ntotal_inactive_file 15000\ntotal_active_file 5000\n",
        );
        assert_eq!((limit(), memory()), (Some(256 << 20), Some(81_000)));
        // Outside of one, the groups around it count too.
        write(
            "sys/fs/cgroup/memory/docker/7f/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "134217728\n");
        assert_eq!(limit(), Some(128 << 20));
        write("sys/fs/cgroup/memory/docker/7f/memory.limit_in_bytes", "67108864\n");
        assert_eq!(limit(), Some(64 << 20));
    }
}
