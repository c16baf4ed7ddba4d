//! The served folder, as a descriptor. It opens the files below it and never anything outside.
//!
//! There are two ways to open a name. [`Root::open`] finds out which one the system allows:
//!
//! - `openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)` (Linux 5.6): the kernel refuses every path
//!   and every link that leads out. With `RESOLVE_CACHED` (5.12) the kernel does not touch a disk
//!   either, so that a worker may call [`Root::find_cached`].
//! - Elsewhere, or where a sandbox forbids that call: a walk in this file. Each step is one
//!   `openat(O_NOFOLLOW)` from a descriptor that the walk holds. The walk reads and follows links
//!   itself, and `..` returns to a descriptor that it came through. No step can leave the folder,
//!   whatever other processes rename.
//!
//! The walk also opens a name for which the kernel's way has failed 8 times because of renames.
//!
//! Links that stay inside the folder are followed. Absolute links are not. Files are opened with
//! O_NONBLOCK, so that a FIFO without a writer opens at once and can be refused by its type.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;

/// Most links that are followed for one name before it counts as a loop, as in Linux.
const MAX_LINKS: usize = 40;

/// Flags of the folders that the walk opens on its way.
const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A served folder. All workers share it. It is immutable.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
    abilities: Abilities,
    /// The path of the folder without symbolic links.
    real: PathBuf,
}

/// Abilities of the kernel, as [`Root::open`] found them out.
#[derive(Debug, Clone, Copy)]
pub struct Abilities {
    /// Whether openat2 works here.
    pub kernel_walks: bool,
    /// Whether openat2 also knows RESOLVE_CACHED.
    pub cached_lookups: bool,
}

/// Flags of a root.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The result of opening a name.
#[derive(Debug)]
pub enum Found {
    /// A regular file, open for reading.
    File(File, Identity),
    /// A folder, open for reading.
    Folder(File),
    /// A FIFO, socket or device. It is closed again and never read.
    Special,
}

/// Metadata that tells one state of a file from another.
#[derive(Debug, PartialEq, Eq, Clone, Copy, Hash)]
pub struct Identity {
    /// Device. Device and inode change when another file is renamed over the name.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last change of the content, in seconds since 1970.
    pub modified: i64,
    /// Nanoseconds of the last change beyond `modified`.
    pub modified_nanos: i64,
}

impl Root {
    /// Opens the folder `path`.
    ///
    /// # Errors
    ///
    /// Errors of `open(2)`. `NotADirectory` for anything but a folder.
    pub fn open(path: &Path) -> io::Result<Root> {
        Root::open_with(path, None)
    }

    /// Opens the folder `path`. Without `abilities` it finds them out.
    ///
    /// # Errors
    ///
    /// As [`Root::open`].
    pub fn open_with(path: &Path, abilities: Option<Abilities>) -> io::Result<Root> {
        let mut root = Root {
            dir: openat(CWD, path, OPEN, Mode::empty())?,
            abilities: abilities.unwrap_or(Abilities {
                kernel_walks: true,
                cached_lookups: true,
            }),
            real: path.to_owned(),
        };
        // A link that is turned meanwhile leads to another folder.
        let real = || {
            let real = std::fs::canonicalize(path)?;
            let found = Root::number(&openat(CWD, &real, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)?;
            io::Result::Ok((found == Root::number(&root.dir)?).then_some(real))
        };
        if let Some(real) = (0..3).find_map(|_| real().ok().flatten()) {
            root.real = real;
        }
        if abilities.is_none() {
            // Any other error means that the call is missing: old kernels return ENOSYS, sandboxes
            // EPERM, and EINVAL is an unknown flag.
            let cached = root.by_kernel(b"", OFlags::PATH, true);
            root.abilities = Abilities {
                kernel_walks: root.by_kernel(b"", OFlags::PATH, false).is_ok(),
                cached_lookups: !matches!(cached, Err(error) if error != Errno::AGAIN),
            };
        }
        Ok(root)
    }

    /// Whether `path` leads to this folder, if the kernel has every step to it in memory.
    ///
    /// # Errors
    ///
    /// Errors of `open(2)`. `WouldBlock` if the kernel may have to ask a disk or cannot tell.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        if !self.abilities.cached_lookups {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let found = openat2(CWD, path, OPEN, Mode::empty(), ResolveFlags::CACHED)?;
        Ok(Root::number(&found)? == Root::number(&self.dir)?)
    }

    /// The abilities of the kernel.
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Whether both are the same folder.
    pub fn is_same(&self, other: &Root) -> io::Result<bool> {
        Ok(Root::number(&self.dir)? == Root::number(&other.dir)?)
    }

    /// The path of the folder without symbolic links. It is the opened path if that cannot be told.
    #[cfg(feature = "fastcgi")]
    pub fn real(&self) -> &Path {
        &self.real
    }

    /// The device and the inode. The number of an open file belongs to no other file.
    fn number(file: &OwnedFd) -> Result<(u64, u64), Errno> {
        rustix::fs::fstat(file).map(|found| (found.st_dev, found.st_ino))
    }

    /// Opens the folder `path` as on a machine without openat2.
    #[cfg(test)]
    pub fn without_openat2(path: &Path) -> io::Result<Root> {
        let abilities = Abilities {
            kernel_walks: false,
            cached_lookups: false,
        };
        Root::open_with(path, Some(abilities))
    }

    /// Opens `name`, a path without a leading slash.
    ///
    /// # Blocks the thread
    ///
    /// As long as the disk takes.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for a name or link that leads out of the root, for loops and for names that
    /// are too long. `PermissionDenied`. Other errors of the system unchanged.
    pub fn find(&self, name: &[u8]) -> io::Result<Found> {
        classify(self.descend(name, OFlags::RDONLY | OFlags::NONBLOCK))
    }

    /// Opens `name` if the kernel has every step to it in memory.
    ///
    /// # Errors
    ///
    /// As [`Root::find`], and `WouldBlock` if the kernel may have to ask a disk or cannot tell.
    pub fn find_cached(&self, name: &[u8]) -> io::Result<Found> {
        if !(self.abilities.kernel_walks && self.abilities.cached_lookups) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        classify(self.by_kernel(name, OFlags::RDONLY | OFlags::NONBLOCK, true))
    }

    /// Returns the metadata of `name`, whatever its type. Only the path is opened.
    ///
    /// # Blocks the thread
    ///
    /// As long as the disk takes.
    ///
    /// # Errors
    ///
    /// As [`Root::find`].
    pub fn metadata(&self, name: &[u8]) -> io::Result<Metadata> {
        File::from(self.descend(name, OFlags::PATH).map_err(plain)?).metadata()
    }

    /// Returns the metadata of `name` if the kernel has every step to it in memory.
    ///
    /// # Errors
    ///
    /// As [`Root::metadata`], and `WouldBlock` if the kernel may have to ask a disk or cannot tell.
    #[cfg(feature = "fastcgi")]
    pub fn metadata_cached(&self, name: &[u8]) -> io::Result<Metadata> {
        if !(self.abilities.kernel_walks && self.abilities.cached_lookups) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        File::from(self.by_kernel(name, OFlags::PATH, true).map_err(plain)?).metadata()
    }

    fn descend(&self, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if !self.abilities.kernel_walks {
            return self.walk(name, flags);
        }
        // EAGAIN: another process renamed something while the kernel followed a `..`, so the kernel
        // cannot vouch for the result.
        for _ in 0..8 {
            match self.by_kernel(name, flags, false) {
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
        self.walk(name, flags)
    }

    fn by_kernel(&self, name: &[u8], flags: OFlags, cached: bool) -> Result<OwnedFd, Errno> {
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        resolve.set(ResolveFlags::CACHED, cached);
        let name = if name.is_empty() { b"." } else { name };
        openat2(&self.dir, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// Opens `name` one segment at a time. `trail` holds the folders on the way, without the root.
    fn walk(&self, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut trail: Vec<OwnedFd> = Vec::new();
        let mut todo: Vec<Vec<u8>> = segments(name).collect();
        let mut links = 0;
        while let Some(segment) = todo.pop() {
            let here = trail.last().unwrap_or(&self.dir);
            if segment == b".." {
                trail.pop().ok_or(Errno::XDEV)?;
                continue;
            }
            let step = openat(here, segment.as_slice(), STEP, Mode::empty())?;
            let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&step)?.st_mode);
            if kind.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                let link = readlinkat(&step, "", Vec::new())?;
                if link.as_bytes().starts_with(b"/") {
                    return Err(Errno::XDEV);
                }
                todo.extend(segments(link.as_bytes()));
            } else if todo.is_empty() && !kind.is_dir() {
                return match flags.contains(OFlags::PATH) {
                    true => Ok(step),
                    // The name is opened a second time. A link that was put there meanwhile is
                    // refused. Another file is simply the newer one.
                    false => openat(
                        here,
                        segment.as_slice(),
                        flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                        Mode::empty(),
                    ),
                };
            } else if kind.is_dir() {
                trail.push(step);
            } else {
                return Err(Errno::NOTDIR);
            }
        }
        openat(
            trail.last().unwrap_or(&self.dir),
            ".",
            flags | OFlags::CLOEXEC,
            Mode::empty(),
        )
    }
}

impl Identity {
    /// Reads the identity from metadata.
    pub fn of(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: metadata.mtime(),
            modified_nanos: metadata.mtime_nsec(),
        }
    }

    /// Returns the date in nanoseconds since 1970.
    pub fn nanos(&self) -> i128 {
        i128::from(self.modified) * 1_000_000_000 + i128::from(self.modified_nanos)
    }

    /// Whether the date is before that of `other`.
    pub fn older_than(&self, other: &Identity) -> bool {
        self.nanos() < other.nanos()
    }
}

/// Yields the segments of a relative path, the last one first, because the walk pops them.
fn segments(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .rev()
        .filter(|segment| !matches!(*segment, b"" | b"."))
        .map(<[u8]>::to_vec)
}

fn classify(opened: Result<OwnedFd, Errno>) -> io::Result<Found> {
    let file = match opened {
        Ok(fd) => File::from(fd),
        // `open(2)` returns these for a socket and for a device without a driver.
        Err(Errno::NXIO | Errno::NODEV) => return Ok(Found::Special),
        Err(errno) => return Err(plain(errno)),
    };
    let metadata = file.metadata()?;
    Ok(if metadata.is_file() {
        Found::File(file, Identity::of(&metadata))
    } else if metadata.is_dir() {
        Found::Folder(file)
    } else {
        Found::Special
    })
}

/// Maps the kernel's errors for a name that leads nowhere to `NotFound`.
fn plain(errno: Errno) -> io::Error {
    match errno {
        Errno::XDEV | Errno::LOOP | Errno::NAMETOOLONG | Errno::NOTDIR => io::ErrorKind::NotFound.into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use testkit::Folder;

    /// Opens the same folder in both ways.
    fn both(folder: &Path) -> [(&'static str, Root); 2] {
        let (kernel, walk) = (Root::open(folder).unwrap(), Root::without_openat2(folder).unwrap());
        if !kernel.abilities.kernel_walks {
            println!("skipped: openat2 is refused here, so the walk is tested twice");
        }
        [("openat2", kernel), ("walk", walk)]
    }

    fn describe(found: io::Result<Found>) -> String {
        match found {
            Ok(Found::File(mut file, identity)) => {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(identity.size, text.len() as u64);
                text
            }
            Ok(Found::Folder(_)) => "folder".into(),
            Ok(Found::Special) => "special".into(),
            Err(error) => format!("{:?}", error.kind()),
        }
    }

    #[test]
    fn nothing_outside_the_root() {
        let folder = Folder::new();
        folder.write("outside.txt", "secret");
        folder.write("www/a.txt", "a");
        folder.write("www/sub/b.txt", "b");
        let www = folder.path().join("www");
        for (link, to) in [
            ("inside", "a.txt"),
            ("chain", "inside"),
            ("sub/up", "../a.txt"),
            ("folder", "sub"),
            ("there-and-back", "sub/../a.txt"),
            ("escape", "../outside.txt"),
            ("sub/escape", "../../outside.txt"),
            ("escape-and-return", "../www/a.txt"),
            ("absolute-out", "/etc/passwd"),
            ("parent", ".."),
            ("loop", "loop"),
            ("ping", "pong"),
            ("pong", "ping"),
            ("dangling", "nowhere"),
        ] {
            symlink(to, www.join(link)).unwrap();
        }
        symlink(www.join("a.txt"), www.join("absolute-in")).unwrap();
        symlink("/proc/self/cwd", www.join("magic")).unwrap();

        let long = "x".repeat(300);
        let deep = "sub/../".repeat(900) + "a.txt";
        for (way, root) in both(&www) {
            for (name, expected) in [
                ("", "folder"),
                ("a.txt", "a"),
                ("sub", "folder"),
                ("sub/", "folder"),
                ("sub/b.txt", "b"),
                ("inside", "a"),
                ("chain", "a"),
                ("sub/up", "a"),
                ("folder", "folder"),
                ("folder/b.txt", "b"),
                ("there-and-back", "a"),
                ("escape", "NotFound"),
                ("sub/escape", "NotFound"),
                ("escape-and-return", "NotFound"),
                ("absolute-out", "NotFound"),
                ("absolute-in", "NotFound"),
                ("parent", "NotFound"),
                ("parent/outside.txt", "NotFound"),
                ("magic", "NotFound"),
                ("loop", "NotFound"),
                ("ping", "NotFound"),
                ("dangling", "NotFound"),
                ("missing", "NotFound"),
                ("missing/a.txt", "NotFound"),
                ("a.txt/b", "NotFound"),
                (&long, "NotFound"),
                // `target.rs` never makes these names. The root refuses them all the same.
                ("../outside.txt", "NotFound"),
                ("sub/../../outside.txt", "NotFound"),
                ("/etc/passwd", "NotFound"),
            ] {
                assert_eq!(describe(root.find(name.as_bytes())), expected, "{way}: {name}");
                assert_eq!(
                    root.metadata(name.as_bytes()).is_ok(),
                    expected != "NotFound",
                    "{way}: metadata of {name}"
                );
            }
            assert!(
                matches!(describe(root.find(deep.as_bytes())).as_str(), "a" | "NotFound"),
                "{way}"
            );
        }
    }

    #[test]
    fn special_files_open_at_once_and_are_named() {
        let folder = Folder::new();
        rustix::fs::mkfifoat(CWD, folder.path().join("fifo"), Mode::from_raw_mode(0o644)).unwrap();
        let _socket = UnixListener::bind(folder.path().join("socket")).unwrap();
        for (way, root) in both(folder.path()) {
            assert_eq!(describe(root.find(b"fifo")), "special", "{way}");
            assert_eq!(describe(root.find(b"socket")), "special", "{way}");
        }
    }

    #[test]
    fn cached_lookups_agree_with_the_others_or_pass() {
        let folder = Folder::new();
        folder.write("a.txt", "a");
        let [(_, kernel), (_, walk)] = both(folder.path());
        assert_eq!(describe(kernel.find(b"a.txt")), "a");
        assert!(matches!(
            describe(kernel.find_cached(b"a.txt")).as_str(),
            "a" | "WouldBlock"
        ));
        assert_eq!(describe(walk.find_cached(b"a.txt")), "WouldBlock");
    }

    #[test]
    fn only_a_folder_is_a_root() {
        let folder = Folder::new();
        folder.write("a.txt", "a");
        assert_eq!(
            Root::open(&folder.path().join("a.txt")).unwrap_err().kind(),
            io::ErrorKind::NotADirectory
        );
        assert_eq!(
            Root::open(&folder.path().join("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
