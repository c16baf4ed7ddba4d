//! Gives up privileges once sockets and logs are open: `user`, `group`, `chroot`, and Landlock where the kernel has it.
//!
//! On Linux, credentials and Landlock domains belong to threads, and new threads inherit them. So the first thread
//! calls [`Privileges::give_up`] once, **before any other thread exists**: before the runtime is built and before the
//! signal thread starts. `give_up` checks that. Actions that need root come earlier: binding sockets, and making logs.
//! The order of the steps:
//!
//! ```text
//!   names to ids ─▶ chroot, chdir / ─▶ open what Landlock is to allow ─▶ groups ─▶ group ─▶ user ─▶ no new privileges ─▶ Landlock
//! ```
//!
//! Before Landlock, `give_up` checks that the process cannot become root again. A reload works with the remaining
//! rights: it cannot bind ports below 1024, and it sees only paths inside of the new root folder that Landlock allows.
//! A user or a group is a name in `/etc/passwd` or `/etc/group`, or a number.

use std::fs;
use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, LandlockStatus, PathBeneath, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetStatus,
};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::thread;

use crate::process::handed;
use crate::process::root::inside;

/// The rights that Landlock handles: those for files in Linux 6.10. Later rights, such as connecting to Unix sockets,
/// are not restricted.
const RIGHTS: ABI = ABI::V5;

/// Paths that the system's resolver and its libraries read, and the cgroup with its memory, which the new process of an
/// upgrade looks for. They are looked up inside of the new root folder.
const SYSTEM: [&str; 8] = [
    "/etc",
    "/lib",
    "/lib64",
    "/usr",
    "/run/systemd/resolve",
    "/dev/urandom",
    "/proc",
    "/sys/fs/cgroup",
];

/// The settings of the resolver. Several programs make it a link to a file of theirs below `/run`.
const RESOLVER: &str = "/etc/resolv.conf";

/// The folders of the dynamic loader and of libraries. Starting a program executes them too.
const LOADERS: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];

/// The settings for giving up privileges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// User to switch to, by name or number.
    pub user: Option<String>,
    /// Group to switch to, by name or number. The user's own group if it is not given.
    pub group: Option<String>,
    /// New root folder. It needs a `user`, because root can leave it again.
    pub chroot: Option<PathBuf>,
    /// Paths that Landlock leaves accessible. None if Landlock is not used.
    pub landlock: Option<Paths>,
}

/// Folders and files, with their names before the change of the root folder. Paths that do not exist are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// Paths that are read, with everything below: roots of sites, password files.
    pub read: Vec<PathBuf>,
    /// Paths that are read and written, with everything below: folders of logs, of Unix sockets, and for temporary
    /// files.
    pub write: Vec<PathBuf>,
    /// Folders with programs that an upgrade, or the proof of a name, may start. Their interpreters and libraries become accessible, too.
    pub execute: Vec<PathBuf>,
}

/// Settings whose user and group have been looked up.
pub struct Privileges {
    identity: Option<Identity>,
    chroot: Option<PathBuf>,
    landlock: Option<Paths>,
}

/// The user and the groups that the process switches to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    user: u32,
    group: u32,
    /// Supplementary groups.
    groups: Vec<u32>,
    /// The identity in words, for the log.
    text: String,
}

/// Checks that the user and the group exist.
///
/// # Errors
/// The key that is wrong, and why.
pub fn check(user: Option<&str>, group: Option<&str>, chroot: bool) -> Result<(), WrongKey> {
    let settings = Settings {
        user: user.map(str::to_owned),
        group: group.map(str::to_owned),
        ..Settings::default()
    };
    let (passwd, groups) = (read("/etc/passwd"), read("/etc/group"));
    if chroot && user.is_none() {
        return Err(wrong("chroot", NEEDS_USER));
    }
    identity(&settings, &passwd, &groups).map(drop)
}

/// A key that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongKey {
    pub key: &'static str,
    /// One line: what is wrong, and what to do.
    pub why: String,
}

fn wrong(key: &'static str, why: impl Into<String>) -> WrongKey {
    let why = why.into();
    WrongKey { key, why }
}

/// The text of a file. Empty if it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

const NEEDS_USER: &str = "chroot needs user: root can leave a chroot";

/// Runs `look` on a thread with the rights of a user. None if this process is not root, or if no user is given that exists.
///
/// # Blocks the thread
/// Until `look` has returned.
///
/// # Errors
/// One line: why this process may not take the rights of the user.
pub fn as_user<T: Send>(
    user: Option<&str>,
    group: Option<&str>,
    look: impl FnOnce() -> T + Send,
) -> Result<Option<T>, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let settings = Settings {
        user: user.map(str::to_owned),
        group: group.map(str::to_owned),
        ..Settings::default()
    };
    let Ok(Some(identity)) = identity(&settings, &read("/etc/passwd"), &read("/etc/group")) else {
        return Ok(None);
    };
    let there = || {
        // The rights are those of the thread, which ends here.
        identity.take()?;
        Ok(Some(look()))
    };
    std::thread::scope(|scope| scope.spawn(there).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

impl Privileges {
    /// Looks up the user and the group. Changes nothing.
    ///
    /// # Errors
    /// One line for each setting that cannot be applied.
    pub fn prepare(settings: &Settings) -> Result<Privileges, Vec<String>> {
        let identity = identity(settings, &read("/etc/passwd"), &read("/etc/group"));
        let mut troubles: Vec<String> = identity
            .as_ref()
            .err()
            .map(|wrong| wrong.why.clone())
            .into_iter()
            .collect();
        if let Some(folder) = &settings.chroot {
            if settings.user.is_none() {
                troubles.push(NEEDS_USER.into());
            }
            if !folder.is_dir() || !folder.is_absolute() {
                troubles.push(format!(
                    "chroot = '{}': there is no such folder; give its absolute path",
                    folder.display()
                ));
            }
        }
        if (settings.user.is_some() || settings.chroot.is_some()) && !rustix::process::geteuid().is_root() {
            troubles.push("user, group and chroot need a start as root; leave them out, or start with sudo".into());
        }
        match identity {
            Ok(identity) if troubles.is_empty() => Ok(Privileges {
                identity,
                chroot: settings.chroot.clone(),
                landlock: settings.landlock.clone(),
            }),
            _ => Err(troubles),
        }
    }

    /// The numbers of the user and the group to switch to, if there are any.
    pub fn ids(&self) -> Option<(u32, u32)> {
        self.identity.as_ref().map(|identity| (identity.user, identity.group))
    }

    /// Gives up the privileges. Returns lines for the log that say what is restricted now.
    ///
    /// # Errors
    /// One line. The process may then have given up some of its privileges, and must end.
    pub fn give_up(self) -> Result<Vec<String>, String> {
        if threads() != Some(1) {
            return Err("privileges can be dropped only while there is one thread".into());
        }
        self.give_up_here()
    }

    /// Restricts this thread, and every thread that it starts later.
    fn give_up_here(self) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        if let Some(folder) = &self.chroot {
            let moved = rustix::process::chroot(folder).and_then(|()| rustix::process::chdir("/"));
            moved.map_err(|error| format!("cannot make '{}' the root folder: {error}", folder.display()))?;
            lines.push(format!("the root folder is '{}'", folder.display()));
        }
        // A Landlock rule applies to the file that a path names now. The root folder has changed, so paths are looked
        // up inside of it. The user has not changed yet, so every folder can still be opened.
        let root = self.chroot.as_deref();
        let ruleset = self.landlock.as_ref().map(|paths| ruleset(paths, root, &mut lines));
        if let Some(identity) = &self.identity {
            identity
                .take()
                .map_err(|error| format!("cannot switch to {}: {error}", identity.text))?;
            lines.push(format!("running as {}", identity.text));
        }
        if let Some(ruleset) = ruleset {
            // Landlock needs it. It helps also where Landlock is missing: no program can regain privileges by a setuid
            // bit.
            thread::set_no_new_privs(true).map_err(|error| format!("cannot set no_new_privs: {error}"))?;
            lines.push(restrict(ruleset));
        }
        Ok(lines)
    }
}

impl Identity {
    /// Switches this thread to the user and the groups, for good.
    fn take(&self) -> Result<(), String> {
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        let groups: Vec<Gid> = [self.group]
            .iter()
            .chain(&self.groups)
            .copied()
            .map(Gid::from_raw)
            .collect();
        let changed = thread::set_thread_groups(&groups)
            .and_then(|()| thread::set_thread_res_gid(group, group, group))
            .and_then(|()| thread::set_thread_res_uid(user, user, user));
        changed.map_err(|error| error.to_string())?;
        let is = (
            rustix::process::getuid(),
            rustix::process::geteuid(),
            rustix::process::getegid(),
        );
        let root_again = !user.is_root() && thread::set_thread_uid(Uid::ROOT).is_ok();
        if is != (user, user, group) || root_again {
            return Err("the process can become root again".into());
        }
        Ok(())
    }
}

/// The number of threads of this process. None without /proc.
fn threads() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:"))?;
    line.trim().parse().ok()
}

/// Looks up the user and the groups in the texts of `/etc/passwd` and `/etc/group`.
fn identity(settings: &Settings, passwd: &str, group: &str) -> Result<Option<Identity>, WrongKey> {
    let Some(user) = &settings.user else {
        return match &settings.group {
            Some(_) => Err(wrong("group", "group needs user: without it, the process stays root")),
            None => Ok(None),
        };
    };
    // name:password:uid:gid:…
    let known = |line: &&str| {
        let mut fields = line.split(':');
        fields.next() == Some(user) || fields.nth(1) == Some(user)
    };
    let entry: Option<Vec<&str>> = passwd.lines().find(known).map(|line| line.split(':').collect());
    let (name, uid, own) = match entry.as_deref() {
        Some([name, _, uid, gid, ..]) => (*name, number(uid), number(gid)),
        _ => ("", number(user), None),
    };
    let no_user = || format!("user = {user:?}: /etc/passwd has no such user; name one, or give its number");
    let uid = uid.ok_or_else(|| wrong("user", no_user()))?;
    let gid = match &settings.group {
        None => own.ok_or_else(|| {
            let why = format!("user = {user:?} is not in /etc/passwd: give its group too");
            wrong("user", why)
        })?,
        Some(wanted) => group_id(wanted, group)?,
    };
    let groups = supplementary(name, gid, group);
    let shown = if name.is_empty() {
        String::new()
    } else {
        format!("{name}, ")
    };
    let more = if groups.is_empty() {
        String::new()
    } else {
        format!(", and {} more groups", groups.len())
    };
    let text = format!("{shown}user {uid}, group {gid}{more}");
    Ok(Some(Identity {
        user: uid,
        group: gid,
        groups,
        text,
    }))
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}

/// The number of a group, by its name in the text of `/etc/group` or by itself.
fn group_id(wanted: &str, group: &str) -> Result<u32, WrongKey> {
    let named = group.lines().find(|line| line.split(':').next() == Some(wanted));
    let id = named.and_then(|line| number(line.split(':').nth(2)?));
    id.or_else(|| number(wanted)).ok_or_else(|| {
        let why = format!("group = {wanted:?}: /etc/group has no such group; name one, or give its number");
        wrong("group", why)
    })
}

/// The further groups of the user with this name. Its own group is `gid`.
fn supplementary(name: &str, gid: u32, group: &str) -> Vec<u32> {
    // name:password:gid:member,member
    let member = |line: &&str| {
        !name.is_empty()
            && line
                .split(':')
                .nth(3)
                .is_some_and(|list| list.split(',').any(|one| one == name))
    };
    let of = |line: &str| line.split(':').nth(2).and_then(number);
    let groups = group.lines().filter(member).filter_map(of);
    groups.filter(|other| *other != gid).collect()
}

/// Opens the accessible paths inside of `root` and makes Landlock rules for them. Adds a line for each path to write to that somebody else
/// may have linked to another one: a rule for that would open what it should keep closed. The error says why Landlock is not available.
fn ruleset(paths: &Paths, root: Option<&Path>, lines: &mut Vec<String>) -> Result<RulesetCreated, String> {
    let text = |error: landlock::RulesetError| error.to_string();
    let all = AccessFs::from_all(RIGHTS);
    let mut rules = Ruleset::default()
        .handle_access(all)
        .and_then(Ruleset::create)
        .map_err(text)?;
    let named = |path: &PathBuf| inside(root, path);
    let read = SYSTEM
        .iter()
        .map(PathBuf::from)
        .chain(behind_link(Path::new(RESOLVER)))
        .chain(paths.read.iter().filter_map(named));
    let read = read.map(|path| (path, AccessFs::ReadFile | AccessFs::ReadDir));
    // The server never runs a file that it may write.
    let write = paths
        .write
        .iter()
        .filter_map(named)
        .map(|path| (path, all & !AccessFs::Execute));
    let loaders = LOADERS.iter().filter(|_| !paths.execute.is_empty()).map(PathBuf::from);
    let execute = paths.execute.iter().filter_map(named).chain(loaders);
    let execute = execute.map(|path| (path, AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir));
    // The runtime sends cold files there to get them into the page cache.
    let null = ["/dev/null"].map(|path| (PathBuf::from(path), AccessFs::ReadFile | AccessFs::WriteFile));
    for (path, access) in read.chain(write).chain(execute).chain(null) {
        let opened = match access.contains(AccessFs::MakeReg) {
            true => handed::reach(&path),
            false => rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from),
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // Root has refused it, not the system.
                if error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none() {
                    lines.push(format!("landlock: '{}' stays closed: {error}", path.display()));
                }
                continue;
            }
        };
        // A rule for a file may hold only the rights that exist for files.
        let access = if path.is_dir() {
            access
        } else {
            access & AccessFs::from_file(RIGHTS)
        };
        rules = rules.add_rule(PathBeneath::new(opened, access)).map_err(text)?;
    }
    Ok(rules)
}

/// The folder of the file that a link leads to, since programs replace such a file. It is the file alone in a folder such
/// as `/run`, which has files of everybody. None if `link` is no link, or if the folder does not exist.
fn behind_link(link: &Path) -> Option<PathBuf> {
    let target = link.parent()?.join(fs::read_link(link).ok()?);
    // The file may come later.
    let of_folder = || Some(fs::canonicalize(target.parent()?).ok()?.join(target.file_name()?));
    let file = fs::canonicalize(link).ok().or_else(of_folder)?;
    match file.parent() {
        Some(folder) if folder.components().count() > 2 => Some(folder.to_owned()),
        _ => Some(file),
    }
}

/// Applies the rules to this thread. Returns the line for the log.
fn restrict(ruleset: Result<RulesetCreated, String>) -> String {
    let status = match ruleset.map(|rules| rules.restrict_self().map_err(|error| error.to_string())) {
        Ok(Ok(status)) => status,
        Ok(Err(why)) | Err(why) => return format!("landlock: not available ({why})"),
    };
    let abi = match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as i32,
        LandlockStatus::NotEnabled => return "landlock: not available (not enabled when the system started)".into(),
        LandlockStatus::NotImplemented => return "landlock: not available (not in this kernel)".into(),
    };
    match status.ruleset {
        RulesetStatus::FullyEnforced => format!("landlock: ABI {abi}, full"),
        RulesetStatus::PartiallyEnforced => format!("landlock: ABI {abi}, partial"),
        _ => format!("landlock: ABI {abi}, not enforced"),
    }
}

#[cfg(test)]
mod tests;
