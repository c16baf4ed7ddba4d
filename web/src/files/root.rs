//! The served folder as a descriptor. It opens the files below it, and nothing outside unless [`Symlinks`] allows a
//! link there.
//!
//! There are two ways to open a name. [`Root::open_with`] finds out which one the system allows:
//!
//! - `openat2` (Linux 5.6). With `RESOLVE_BENEATH` the kernel refuses every path and every link that leads out;
//!   [`Symlinks::All`] does without. With `RESOLVE_CACHED` (5.12) the kernel does not touch a disk either, so that a
//!   worker may call [`Root::find_cached`].
//! - The walk in `walk.rs`, on other systems and where a sandbox forbids that call, for a name that the kernel refuses
//!   because of a link, and for one that fails 8 times because of renames. It decides by
//!   [`Symlinks`], and refused links are logged.
//!
//! Files are opened with O_NONBLOCK, so that a FIFO without a writer opens at once and can be
//! refused by its type.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::entry::PATH;
use super::links::{Links, Symlinks};
use super::linux::{open_below, open_cached};
use super::walk::{Stop, number, walk};

/// A served folder. All workers share it. It is immutable.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
    abilities: Abilities,
    /// The path of the folder without symbolic links.
    real: PathBuf,
    links: Arc<Links>,
}

/// Abilities of the kernel, as [`Root::open_with`] found them out.
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
    /// Last change of the content or the metadata, in seconds since 1970 and nanoseconds beyond. No program can set it back, as `cp -p`
    /// sets `modified`.
    pub changed: (i64, i64),
}

impl Root {
    /// Opens the folder `path` with the default rule for links.
    #[cfg(test)]
    pub fn open(path: &Path) -> io::Result<Root> {
        let links = Links::new(path.to_owned(), Symlinks::default());
        Root::open_with(path, None, &Arc::new(links))
    }

    /// Opens the folder `path`, whose links are followed as `links` says. Finds the abilities of the kernel out, unless
    /// they are given.
    ///
    /// # Errors
    ///
    /// Errors of `open(2)`. `NotADirectory` for anything but a folder.
    pub fn open_with(path: &Path, abilities: Option<Abilities>, links: &Arc<Links>) -> io::Result<Root> {
        let mut root = Root {
            dir: openat(CWD, path, OPEN, Mode::empty())?,
            abilities: abilities.unwrap_or(Abilities {
                kernel_walks: true,
                cached_lookups: true,
            }),
            real: path.to_owned(),
            links: Arc::clone(links),
        };
        // If a link on the way is changed meanwhile, the path leads to another folder.
        let real = || {
            let real = std::fs::canonicalize(path)?;
            let found = number(&openat(CWD, &real, OPEN, Mode::empty())?)?;
            io::Result::Ok((found == number(&root.dir)?).then_some(real))
        };
        if let Some(real) = (0..3).find_map(|_| real().ok().flatten()) {
            root.real = real;
        }
        if abilities.is_none() {
            let cached = root.by_kernel(b"", PATH, true);
            root.abilities = Abilities {
                kernel_walks: root.by_kernel(b"", PATH, false).is_ok(),
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
        let found = open_cached(path, OPEN)?;
        Ok(number(&found)? == number(&self.dir)?)
    }

    /// The abilities of the kernel.
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Whether both are the same folder.
    pub fn is_same(&self, other: &Root) -> io::Result<bool> {
        Ok(number(&self.dir)? == number(&other.dir)?)
    }

    /// The path of the folder without symbolic links. It is the opened path if that cannot be told.
    #[cfg(feature = "fastcgi")]
    pub fn real(&self) -> &Path {
        &self.real
    }

    /// Opens the folder `path` as on a machine without openat2.
    #[cfg(test)]
    pub fn without_openat2(path: &Path) -> io::Result<Root> {
        let abilities = Abilities {
            kernel_walks: false,
            cached_lookups: false,
        };
        let links = Links::new(path.to_owned(), Symlinks::default());
        Root::open_with(path, Some(abilities), &Arc::new(links))
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
        classify(self.descend_cached(name, OFlags::RDONLY | OFlags::NONBLOCK))
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
        File::from(self.descend(name, PATH).map_err(plain)?).metadata()
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
        File::from(self.descend_cached(name, PATH).map_err(plain)?).metadata()
    }

    /// Opens `name` without touching a disk. A name that only the walk can judge is left to it.
    fn descend_cached(&self, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        refuse_parents(name)?;
        match self.by_kernel(name, flags, true) {
            Err(Errno::XDEV) => Err(Errno::AGAIN),
            found => found,
        }
    }

    fn descend(&self, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        refuse_parents(name)?;
        if !self.abilities.kernel_walks {
            return self.walk(name, flags);
        }
        // EAGAIN: another process renamed something while the kernel followed a `..`, so the kernel
        // cannot vouch for the result.
        for _ in 0..8 {
            match self.by_kernel(name, flags, false) {
                Err(Errno::AGAIN) => {}
                // A link leads out, or is absolute.
                Err(Errno::XDEV) => break,
                result => return result,
            }
        }
        self.walk(name, flags)
    }

    /// Opens `name` by `openat2`.
    fn by_kernel(&self, name: &[u8], flags: OFlags, cached: bool) -> Result<OwnedFd, Errno> {
        let is_beneath = self.links.rule != Symlinks::All;
        let name = if name.is_empty() { b"." } else { name };
        open_below(&self.dir, name, flags | OFlags::CLOEXEC, is_beneath, cached)
    }

    /// Opens `name` step by step, and logs a refused link.
    fn walk(&self, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        walk(&self.dir, name, flags, self.links.rule).map_err(|stop| match stop {
            Stop::System(errno) => errno,
            Stop::Outside(outside) => {
                self.links.refused(name, &outside);
                Errno::XDEV
            }
        })
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
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// The last second that stands for no date: Nix gives every file the date 1, and other tools that make images give it 0.
    pub const NO_DATE: i64 = 1;

    /// Whether the date of the last change is one.
    pub fn is_dated(&self) -> bool {
        self.modified > Identity::NO_DATE
    }

    /// Returns the date of the last change, in nanoseconds since 1970.
    pub fn nanos(&self) -> i128 {
        i128::from(self.modified) * 1_000_000_000 + i128::from(self.modified_nanos)
    }

    /// Whether the date is before that of `other`.
    pub fn older_than(&self, other: &Identity) -> bool {
        self.nanos() < other.nanos()
    }
}

/// Refuses a name that leads out by itself. `target.rs` never makes one.
fn refuse_parents(name: &[u8]) -> Result<(), Errno> {
    match name.starts_with(b"/") || name.split(|&byte| byte == b'/').any(|segment| segment == b"..") {
        true => Err(Errno::XDEV),
        false => Ok(()),
    }
}

/// Finds out the type of an opened name.
fn classify(opened: Result<OwnedFd, Errno>) -> io::Result<Found> {
    let file = match opened {
        Ok(fd) => File::from(fd),
        // `open(2)` returns these for a socket, the last one on BSDs, and for a device without a driver.
        Err(Errno::NXIO | Errno::NODEV | Errno::OPNOTSUPP) => return Ok(Found::Special),
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
        // MLINK: FreeBSD's error for a link that may not be followed.
        Errno::XDEV | Errno::LOOP | Errno::MLINK | Errno::NAMETOOLONG | Errno::NOTDIR => io::ErrorKind::NotFound.into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::HOLDS_LINKS;
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
                ("escape-and-return", "a"),
                ("absolute-out", "NotFound"),
                ("absolute-in", "a"),
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
    fn the_rule_decides_about_links_that_lead_out() {
        let folder = Folder::new();
        folder.write("outside.txt", "outside");
        folder.write("out/b.txt", "b");
        folder.write("www/a.txt", "a");
        let www = folder.path().join("www");
        for (link, to) in [
            ("file", "../outside.txt"),
            ("folder", "../out"),
            ("other", "../outside.txt"),
        ] {
            symlink(to, www.join(link)).unwrap();
        }
        symlink(folder.path().join("out"), www.join("absolute")).unwrap();
        symlink("file", www.join("chain")).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        match is_root {
            true => std::os::unix::fs::lchown(www.join("other"), Some(65534), None).unwrap(),
            false => println!("skipped: only root can give a link to another user"),
        }
        let abilities = [
            None,
            Some(Abilities {
                kernel_walks: false,
                cached_lookups: false,
            }),
        ];
        for (abilities, rule) in abilities
            .into_iter()
            .flat_map(|one| [Symlinks::Inside, Symlinks::Owner, Symlinks::All].map(|rule| (one, rule)))
        {
            let lines: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
            let (links, log) = (Arc::new(Links::new(www.clone(), rule)), Arc::clone(&lines));
            links.set_log(Box::new(move |line| log.lock().unwrap().push(line.to_string())));
            let root = Root::open_with(&www, abilities, &links).unwrap();
            let acts_as = match rule {
                Symlinks::Owner if !HOLDS_LINKS => Symlinks::Inside,
                rule => rule,
            };
            let is_followed = acts_as != Symlinks::Inside;
            for (name, text) in [
                ("file", "outside"),
                ("folder/b.txt", "b"),
                ("absolute/b.txt", "b"),
                ("chain", "outside"),
            ] {
                let expected = if is_followed { text } else { "NotFound" };
                for _ in 0..2 {
                    assert_eq!(describe(root.find(name.as_bytes())), expected, "{rule:?} {name}");
                }
            }
            assert_eq!(describe(root.find(b"a.txt")), "a");
            assert_eq!(describe(root.find(b"folder/../a.txt")), "NotFound", "{rule:?}");
            if is_root {
                let expected = if rule == Symlinks::All { "outside" } else { "NotFound" };
                assert_eq!(describe(root.find(b"other")), expected, "{rule:?}");
            }
            let lines = lines.lock().unwrap();
            let refused = match acts_as {
                Symlinks::Inside => 4 + usize::from(is_root),
                Symlinks::Owner => usize::from(is_root),
                Symlinks::All => 0,
            };
            assert_eq!(lines.len(), refused, "{rule:?}: each name once: {lines:?}");
            let says = |text: &str| lines.iter().any(|line| line.contains(text));
            if rule == Symlinks::Inside {
                assert!(
                    says("/chain' leads to 'file', out of the folder; symlinks = \"owner\" or \"all\""),
                    "{lines:?}"
                );
                assert!(says("folder/b.txt' is not served: the symbolic link "), "{lines:?}");
            } else if acts_as == Symlinks::Owner && is_root {
                assert!(says("which belongs to user 0 and the link to user 65534"), "{lines:?}");
            } else if rule == Symlinks::Owner && !HOLDS_LINKS {
                assert!(says("this system cannot tell whose link it is"), "{lines:?}");
            }
        }
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
