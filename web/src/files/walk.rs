//! Opens a name below a folder step by step, and follows symbolic links as [`Symlinks`] allows.
//!
//! Each step is an [`Entry`], found from the descriptor of the step before. The walk reads and follows links itself, so it
//! may leave the folder on the way. Only the end of the way is opened for what the caller wants. If there were links, the
//! walk climbs before that from the folder that it has reached towards the system's root folder. If it meets the served
//! folder, the name ends inside.
//!
//! The walk holds the descriptor of the place that it judges, so no rename can replace that place afterwards.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

use super::entry::{Entry, HOLDS_LINKS, STEP};
use super::links::{Outside, Symlinks};

/// Most links that are followed for one name before it counts as a loop, as in Linux.
const MAX_LINKS: usize = 40;

/// The reason why a name was not opened.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    System(Errno),
    /// The rule does not allow a link that leads out.
    Outside(Outside),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::System(errno)
    }
}

/// A step of the way that is left.
enum Step {
    Name(Vec<u8>),
    /// The end of a link with this owner.
    EndOfLink(u32),
}

/// The state of a walk.
struct Walk<'r> {
    root: &'r OwnedFd,
    rule: Symlinks,
    /// The folder reached so far. `None` for the root itself.
    here: Option<OwnedFd>,
    /// The way that is left, the next step last.
    todo: Vec<Step>,
    links: usize,
    /// The first link on the way and its text.
    first: Option<(Vec<u8>, Vec<u8>)>,
    /// The owners of the first link that differs in its owner from its target, and of that target.
    owners: Option<(u32, u32)>,
}

/// Opens `name` below `root`. The name has no `..`.
///
/// # Blocks the thread
///
/// As long as the disk takes.
pub fn walk(root: &OwnedFd, name: &[u8], flags: OFlags, rule: Symlinks) -> Result<OwnedFd, Stop> {
    let walk = Walk {
        root,
        rule,
        here: None,
        todo: Vec::new(),
        links: 0,
        first: None,
        owners: None,
    };
    walk.open(name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC)
}

impl Walk<'_> {
    fn open(mut self, name: &[u8], flags: OFlags) -> Result<OwnedFd, Stop> {
        self.todo.extend(segments(name));
        let mut walked: Vec<u8> = Vec::new();
        while let Some(step) = self.todo.pop() {
            let segment = match step {
                Step::Name(segment) => segment,
                Step::EndOfLink(owner) => {
                    let found = fstat(self.here())?;
                    self.compare(owner, &found);
                    continue;
                }
            };
            if self.links == 0 {
                walked.extend_from_slice(if walked.is_empty() { b"" } else { b"/" });
                walked.extend_from_slice(&segment);
            }
            let entry = Entry::find(self.here(), &segment)?;
            match entry.kind() {
                FileType::Symlink => self.follow(&entry, &walked)?,
                FileType::Directory => self.here = Some(entry.into_folder()?),
                _ => return self.open_file(&segment, entry, flags),
            }
        }
        self.admit()?;
        Ok(openat(self.here(), ".", flags, Mode::empty())?)
    }

    fn here(&self) -> &OwnedFd {
        self.here.as_ref().unwrap_or(self.root)
    }

    /// Puts the steps of a link in front of the way that is left.
    fn follow(&mut self, link: &Entry, name: &[u8]) -> Result<(), Stop> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let text = link.text()?;
        self.todo.push(Step::EndOfLink(link.found.st_uid));
        self.todo.extend(segments(text.as_bytes()));
        if text.as_bytes().starts_with(b"/") {
            self.here = Some(openat(CWD, "/", STEP, Mode::empty())?);
        }
        self.first
            .get_or_insert_with(|| (name.to_vec(), text.as_bytes().to_vec()));
        Ok(())
    }

    /// Opens the file in which the way ends.
    fn open_file(mut self, segment: &[u8], entry: Entry, flags: OFlags) -> Result<OwnedFd, Stop> {
        let found = entry.found;
        for left in std::mem::take(&mut self.todo) {
            match left {
                Step::Name(_) => return Err(Errno::NOTDIR.into()),
                Step::EndOfLink(owner) => self.compare(owner, &found),
            }
        }
        let is_inside = self.admit()?;
        // A link that was put there meanwhile is refused. Another file is simply the newer one, unless its owner matters.
        let file = entry.open(self.here(), segment, flags)?;
        if !is_inside && self.rule == Symlinks::Owner && fstat(&file)?.st_uid != found.st_uid {
            return Err(Errno::NOENT.into());
        }
        Ok(file)
    }

    /// Compares the owner of a link with that of its target.
    fn compare(&mut self, owner: u32, found: &Stat) {
        if owner != found.st_uid {
            self.owners.get_or_insert((owner, found.st_uid));
        }
    }

    /// Returns whether the way ends inside the root. Refuses an end outside that the rule does not allow.
    fn admit(&mut self) -> Result<bool, Stop> {
        let is_inside = self.links == 0 || is_below(self.here(), self.root)?;
        let is_allowed = match self.rule {
            Symlinks::Inside => false,
            Symlinks::Owner => HOLDS_LINKS && self.owners.is_none(),
            Symlinks::All => true,
        };
        if is_inside || is_allowed {
            return Ok(is_inside);
        }
        let (link, to) = self.first.take().unwrap_or_default();
        let owners = self.owners;
        Err(Stop::Outside(Outside { link, to, owners }))
    }
}

/// The device and the inode of an open file. While it is open, no other file has them.
pub fn number(file: &OwnedFd) -> Result<impl Eq + use<>, Errno> {
    fstat(file).map(|found| (found.st_dev, found.st_ino))
}

/// Whether `folder` is `root` or lies below it.
fn is_below(folder: &OwnedFd, root: &OwnedFd) -> Result<bool, Errno> {
    let root = number(root)?;
    let mut here = openat(folder.as_fd(), ".", STEP, Mode::empty())?;
    loop {
        let this = number(&here)?;
        if this == root {
            return Ok(true);
        }
        let above = match openat(&here, "..", STEP, Mode::empty()) {
            // The walk came down through every folder below the root, so this one is outside.
            Err(Errno::ACCESS) => return Ok(false),
            above => above?,
        };
        // The system's root folder is above itself.
        if number(&above)? == this {
            return Ok(false);
        }
        here = above;
    }
}

/// Yields the steps of a path, the last one first, because the walk takes them from the end.
fn segments(path: &[u8]) -> impl Iterator<Item = Step> {
    path.split(|&byte| byte == b'/')
        .rev()
        .filter(|segment| !matches!(*segment, b"" | b"."))
        .map(|segment| Step::Name(segment.to_vec()))
}
