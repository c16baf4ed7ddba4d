//! The disk of a simulated host: files in memory, of which a crash loses what was not synced.
//!
//! ```text
//!   path ─▶ Names ─▶ number ─▶ Content: a file of the system without a name (memfd) has the bytes as programs see them
//!                                       durable + unsynced has the bytes as a crash may leave them
//! ```
//!
//! The bytes are in a file of the system, so an open file has a descriptor, and its [`Metadata`] is that of std. A directory has no
//! such file: its metadata has the type alone.
//!
//! Nothing here waits, draws from the seed or knows of faults: `files.rs` does.

mod names;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, FileTimes, Metadata, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use rustix::io::Errno;

use crate::fs::How;
use names::{Edit, Names, Place, ROOT};

pub(crate) use names::Number;

/// The writes of a file that are kept apart. With one more, the oldest becomes durable.
const UNSYNCED: usize = 1024;
/// The bytes of the longest file. The rest of it after a crash is in memory, its holes too.
const LONGEST: u64 = 1 << 30;
/// The permission bits that a new file does not get: the umask of every host.
const UMASK: u32 = 0o022;

pub(crate) struct Disk {
    names: Names,
    files: BTreeMap<Number, Content>,
    next: Number,
    /// The number of files at which those are dropped that nothing leads to.
    sweep_at: usize,
    /// The bytes that all files may have; `None` for no bound.
    pub(crate) size: Option<u64>,
    /// Whether every write fails.
    pub(crate) is_full: bool,
}

/// A file, with or without a name.
struct Content {
    file: fs::File,
    durable: Vec<u8>,
    unsynced: VecDeque<Change>,
    /// Whether a sync that failed has dropped changes, which programs still see.
    has_dropped: bool,
    /// The hosts that have it open, once for each opening.
    opened: Vec<usize>,
}

/// A change of a file's bytes.
enum Change {
    Bytes(u64, Vec<u8>),
    Length(u64),
}

/// The choices of a crash: a number up to its argument.
pub(crate) type Draw<'a> = &'a mut dyn FnMut(usize) -> usize;

impl Disk {
    /// A disk with a directory for temporary files.
    pub(crate) fn new() -> Disk {
        let mut disk = Disk {
            names: Names::new(),
            files: BTreeMap::new(),
            next: ROOT + 1,
            sweep_at: 64,
            size: None,
            is_full: false,
        };
        for folder in [PathBuf::from("/tmp"), std::env::temp_dir()] {
            let made = disk.create_dir_all(&folder);
            made.expect("the disk is empty");
        }
        let all = disk.names.unsynced();
        disk.names.crash(all);
        disk
    }

    fn content(&mut self, number: Number) -> io::Result<&mut Content> {
        self.files.get_mut(&number).ok_or_else(|| Errno::IO.into())
    }

    fn file(&self, path: &Path) -> io::Result<Number> {
        let number = self.names.find(path)?.number()?;
        match self.names.is_directory(number) {
            true => Err(Errno::ISDIR.into()),
            false => Ok(number),
        }
    }

    fn directory(&self, path: &Path) -> io::Result<Number> {
        let number = self.names.find(path)?.number()?;
        match self.names.is_directory(number) {
            true => Ok(number),
            false => Err(Errno::NOTDIR.into()),
        }
    }

    pub(crate) fn open(
        &mut self,
        path: &Path,
        how: &How,
        host: usize,
        time: SystemTime,
    ) -> io::Result<(Number, fs::File)> {
        how.check()?;
        let place = self.names.find(path)?;
        let (number, file) = match place.found {
            Some(_) if how.create_new => return Err(Errno::EXIST.into()),
            Some(number) if self.names.is_directory(number) => {
                if how.changes() {
                    return Err(Errno::ISDIR.into());
                }
                return Ok((number, fs::File::open("/")?));
            }
            Some(number) => {
                let file = reopen(&self.content(number)?.file, how)?;
                if how.truncate {
                    self.set_len(number, &file, 0, time)?;
                }
                (number, file)
            }
            None if how.create || how.create_new => {
                let made = backing(time)?;
                let file = reopen(&made, how)?;
                made.set_permissions(Permissions::from_mode(how.mode & !UMASK))?;
                (self.add(&place, Content::new(made))?, file)
            }
            None => return Err(Errno::NOENT.into()),
        };
        self.content(number)?.opened.push(host);
        Ok((number, file))
    }

    /// Gives a place a file.
    fn add(&mut self, place: &Place, content: Content) -> io::Result<Number> {
        if self.files.len() >= self.sweep_at {
            self.sweep();
        }
        let number = self.take_number();
        self.names.change(vec![place.edit(Some(number))?]);
        self.files.insert(number, content);
        Ok(number)
    }

    fn take_number(&mut self) -> Number {
        self.next += 1;
        self.next - 1
    }

    /// Drops files that nobody has open and that no name leads to, not even after a crash.
    fn sweep(&mut self) {
        let reachable = self.names.reachable();
        self.files
            .retain(|number, content| reachable.contains(number) || !content.opened.is_empty());
        self.sweep_at = 64.max(2 * self.files.len());
    }

    pub(crate) fn closed(&mut self, number: Number, host: usize) {
        if let Some(content) = self.files.get_mut(&number)
            && let Some(at) = content.opened.iter().position(|&other| other == host)
        {
            content.opened.swap_remove(at);
        }
    }

    /// Closes all files of a host's program.
    pub(crate) fn close_all(&mut self, host: usize) {
        let contents = self.files.values_mut();
        contents.for_each(|content| content.opened.retain(|&other| other != host));
    }

    /// The bytes of all files that have a name or are open.
    fn used(&self) -> u64 {
        let named = self.names.named();
        let counts = |(number, content): &(&Number, &Content)| named.contains(number) || !content.opened.is_empty();
        let sizes = self.files.iter().filter(counts).map(|(_, content)| content.len());
        sizes.map(|size| size.unwrap_or(0)).sum()
    }

    /// Writes at the position of an open file. Writes a first part if the disk has no room for all.
    pub(crate) fn write(
        &mut self,
        number: Number,
        mut file: &fs::File,
        appends: bool,
        bytes: &[u8],
        time: SystemTime,
    ) -> io::Result<()> {
        let len = self.content(number)?.len()?;
        let at = if appends { len } else { file.stream_position()? };
        let room = match self.size {
            _ if self.is_full => 0,
            // A write inside of the file needs no room.
            Some(size) => size.saturating_sub(self.used()).saturating_add(len).saturating_sub(at),
            None => u64::MAX,
        };
        if at.saturating_add(bytes.len() as u64) > LONGEST {
            return Err(Errno::FBIG.into());
        }
        let count = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        let content = self.content(number)?;
        if count > 0 {
            file.write_all(&bytes[..count])?;
            touch(file, time)?;
            content.note(Change::Bytes(at, bytes[..count].to_vec()));
        }
        match count == bytes.len() {
            true => Ok(()),
            false => Err(Errno::NOSPC.into()),
        }
    }

    pub(crate) fn set_len(&mut self, number: Number, file: &fs::File, len: u64, time: SystemTime) -> io::Result<()> {
        let before = self.content(number)?.len()?;
        let is_refused = match self.size {
            _ if self.is_full => true,
            Some(size) => size.saturating_sub(self.used()) < len.saturating_sub(before),
            None => false,
        };
        if len > before && is_refused {
            return Err(Errno::NOSPC.into());
        }
        if len > LONGEST {
            return Err(Errno::FBIG.into());
        }
        let content = self.content(number)?;
        file.set_len(len)?;
        touch(file, time)?;
        content.note(Change::Length(len));
        Ok(())
    }

    /// Makes the bytes of a file durable, or the entries of a directory.
    pub(crate) fn sync(&mut self, number: Number) -> io::Result<()> {
        if self.names.is_directory(number) {
            self.names.sync(number);
        } else {
            self.content(number)?.keep(usize::MAX);
        }
        Ok(())
    }

    /// A sync of a file fails: `draw` chooses how many of its changes are durable, and no later sync stores the others. Linux takes the
    /// pages for written, too.
    pub(crate) fn fail_sync(&mut self, number: Number, draw: Draw<'_>) {
        let Some(content) = self
            .files
            .get_mut(&number)
            .filter(|content| !content.unsynced.is_empty())
        else {
            return;
        };
        content.keep(draw(content.unsynced.len()));
        content.has_dropped |= !content.unsynced.is_empty();
        content.unsynced.clear();
    }

    pub(crate) fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let number = self.file(path)?;
        let read = How {
            read: true,
            ..How::default()
        };
        let mut bytes = Vec::new();
        reopen(&self.content(number)?.file, &read)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn metadata(&mut self, path: &Path) -> io::Result<Metadata> {
        let number = self.names.find(path)?.number()?;
        match self.names.is_directory(number) {
            true => fs::metadata("/"),
            false => self.content(number)?.file.metadata(),
        }
    }

    /// Sets the permissions of a file. Those of a directory are not kept.
    pub(crate) fn set_permissions(&mut self, path: &Path, permissions: Permissions) -> io::Result<()> {
        let number = self.names.find(path)?.number()?;
        match self.names.is_directory(number) {
            true => Ok(()),
            false => self.content(number)?.file.set_permissions(permissions),
        }
    }

    pub(crate) fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        self.names.find(path)?.number()?;
        let mut whole = PathBuf::from("/");
        for component in path.components() {
            match component {
                Component::Normal(name) => whole.push(name),
                // The root is above itself.
                Component::ParentDir => drop(whole.pop()),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        Ok(whole)
    }

    pub(crate) fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        let place = self.names.find(path)?;
        if place.found.is_some() {
            return Err(Errno::EXIST.into());
        }
        let number = self.take_number();
        self.names.change(vec![Edit::Make(number), place.edit(Some(number))?]);
        Ok(())
    }

    pub(crate) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut part = PathBuf::new();
        for component in path.components() {
            part.push(component);
            match self.create_dir(&part) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        self.directory(path).map(drop)
    }

    pub(crate) fn hard_link(&mut self, original: &Path, link: &Path) -> io::Result<()> {
        let number = self.names.find(original)?.number()?;
        let place = self.names.find(link)?;
        if self.names.is_directory(number) {
            return Err(Errno::PERM.into());
        }
        if place.found.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.names.change(vec![place.edit(Some(number))?]);
        Ok(())
    }

    pub(crate) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let place = self.names.find(path)?;
        if self.names.is_directory(place.number()?) {
            return Err(Errno::ISDIR.into());
        }
        self.names.change(vec![place.edit(None)?]);
        Ok(())
    }

    pub(crate) fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        let (place, number) = (self.names.find(path)?, self.directory(path)?);
        if self.names.entries(number).len() > 0 {
            return Err(Errno::NOTEMPTY.into());
        }
        self.names.change(vec![place.edit(None)?, Edit::Unmake(number)]);
        Ok(())
    }

    /// Removes a directory and its content, each name as a change of its own.
    pub(crate) fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        for (name, number) in self.read_dir(path)? {
            let path = path.join(name);
            match self.names.is_directory(number) {
                true => self.remove_dir_all(&path)?,
                false => self.remove_file(&path)?,
            }
        }
        self.remove_dir(path)
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.names.find(from)?, self.names.find(to)?);
        let number = from.number()?;
        let is_directory = self.names.is_directory(number);
        let mut change = vec![from.edit(None)?, to.edit(Some(number))?];
        if is_directory && to.is_below(number) {
            return Err(Errno::INVAL.into());
        }
        match to.found {
            // Two names of one file both stay.
            Some(replaced) if replaced == number => return Ok(()),
            Some(replaced) => match (is_directory, self.names.is_directory(replaced)) {
                (false, false) => {}
                (false, true) => return Err(Errno::ISDIR.into()),
                (true, false) => return Err(Errno::NOTDIR.into()),
                (true, true) if self.names.entries(replaced).len() > 0 => return Err(Errno::NOTEMPTY.into()),
                (true, true) => change.push(Edit::Unmake(replaced)),
            },
            None => {}
        }
        self.names.change(change);
        Ok(())
    }

    /// The entries of a directory, by name.
    pub(crate) fn read_dir(&self, path: &Path) -> io::Result<Vec<(OsString, Number)>> {
        let entries = self.names.entries(self.directory(path)?);
        Ok(entries.map(|(name, number)| (name.to_owned(), number)).collect())
    }

    /// Loses what was not synced, but for a part that `draw` chooses. Returns the number of lost changes.
    pub(crate) fn crash(&mut self, draw: Draw<'_>) -> io::Result<usize> {
        let unsynced = self.names.unsynced();
        let kept = draw(unsynced);
        self.names.crash(kept);
        let mut lost = unsynced - kept;
        for content in self.files.values_mut() {
            content.opened.clear();
            lost += content.crash(draw)?;
        }
        self.sweep();
        Ok(lost)
    }
}

impl Content {
    fn new(file: fs::File) -> Content {
        Content {
            file,
            durable: Vec::new(),
            unsynced: VecDeque::new(),
            has_dropped: false,
            opened: Vec::new(),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn note(&mut self, change: Change) {
        self.unsynced.push_back(change);
        if self.unsynced.len() > UNSYNCED {
            self.keep(1);
        }
    }

    /// Makes the first changes durable.
    fn keep(&mut self, count: usize) {
        let count = count.min(self.unsynced.len());
        for change in self.unsynced.drain(..count) {
            change.apply(&mut self.durable);
        }
    }

    /// Loses the changes that are not durable but some first ones, and a part of the next. Open files keep the old bytes.
    fn crash(&mut self, draw: Draw<'_>) -> io::Result<usize> {
        if self.unsynced.is_empty() && !self.has_dropped {
            return Ok(0);
        }
        let kept = draw(self.unsynced.len());
        self.keep(kept);
        let lost = self.unsynced.len() + usize::from(std::mem::take(&mut self.has_dropped));
        if let Some(Change::Bytes(at, mut bytes)) = self.unsynced.pop_front() {
            bytes.truncate(draw(bytes.len()));
            if !bytes.is_empty() {
                Change::Bytes(at, bytes).apply(&mut self.durable);
            }
        }
        self.unsynced.clear();
        let before = self.file.metadata()?;
        let file = backing(before.modified()?)?;
        file.write_all_at(&self.durable, 0)?;
        touch(&file, before.modified()?)?;
        file.set_permissions(before.permissions())?;
        self.file = file;
        Ok(lost)
    }
}

impl Change {
    fn apply(self, content: &mut Vec<u8>) {
        // Both were positions in a file that is in memory.
        match self {
            Change::Length(len) => content.resize(len as usize, 0),
            Change::Bytes(at, bytes) => {
                let (at, end) = (at as usize, at as usize + bytes.len());
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[at..end].copy_from_slice(&bytes);
            }
        }
    }
}

/// Sets the times of a file, which are of the host's clock.
fn touch(file: &fs::File, time: SystemTime) -> io::Result<()> {
    file.set_times(FileTimes::new().set_modified(time).set_accessed(time))
}

/// A file of the system in memory, without a name.
#[cfg(target_os = "linux")]
fn backing(time: SystemTime) -> io::Result<fs::File> {
    let file = rustix::fs::memfd_create("osier-sim", rustix::fs::MemfdFlags::CLOEXEC)?;
    let file = fs::File::from(file);
    touch(&file, time)?;
    Ok(file)
}

/// Another opening of a file of the system, with a position of its own.
#[cfg(target_os = "linux")]
fn reopen(file: &fs::File, how: &How) -> io::Result<fs::File> {
    use std::os::fd::AsRawFd;

    let mut options = fs::OpenOptions::new();
    options.read(how.read).write(how.write).append(how.append);
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(not(target_os = "linux"))]
fn backing(_: SystemTime) -> io::Result<fs::File> {
    Err(Errno::NOSYS.into())
}

#[cfg(not(target_os = "linux"))]
fn reopen(_: &fs::File, _: &How) -> io::Result<fs::File> {
    Err(Errno::NOSYS.into())
}
