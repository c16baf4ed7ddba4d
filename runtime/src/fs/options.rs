//! The options of files that are opened, and of directories that are made.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::io::Errno;

use super::{Operation, simulated};

/// How to open a file, as [`OpenOptions`](super::OpenOptions) say it.
#[derive(Clone, Debug)]
pub(crate) struct How {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) mode: u32,
    pub(crate) custom_flags: i32,
}

impl Default for How {
    fn default() -> How {
        How {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
            custom_flags: 0,
        }
    }
}

#[cfg_attr(not(feature = "sim"), allow(dead_code))]
impl How {
    /// Whether the file may be changed, or made.
    pub(crate) fn changes(&self) -> bool {
        self.write || self.append || self.truncate || self.create || self.create_new
    }

    /// Fails if the options contradict each other.
    pub(crate) fn check(&self) -> io::Result<()> {
        let makes = self.truncate || self.create || self.create_new;
        let is_sound = match (self.write, self.append) {
            (false, false) => self.read && !makes,
            (true, false) => true,
            (_, true) => !self.truncate || self.create_new,
        };
        match is_sound {
            true => Ok(()),
            false => Err(Errno::INVAL.into()),
        }
    }
}

impl How {
    pub(super) fn open(&self, path: &Path) -> io::Result<fs::File> {
        let mut options = fs::OpenOptions::new();
        options.read(self.read).write(self.write).append(self.append);
        options
            .truncate(self.truncate)
            .create(self.create)
            .create_new(self.create_new);
        options.mode(self.mode).custom_flags(self.custom_flags).open(path)
    }
}

/// Options that say how to make a directory, as [`std::fs::DirBuilder`].
///
/// ```
/// use osier::fs::{self, DirBuilder};
/// let dir = std::env::temp_dir().join(format!("osier-dir-{}", std::process::id()));
/// osier::run(|| {
///     DirBuilder::new().recursive(true).mode(0o700).create(dir.join("private"))?;
///     assert!(fs::metadata(dir.join("private"))?.is_dir());
///     fs::remove_dir_all(&dir)
/// })?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct DirBuilder {
    recursive: bool,
    mode: u32,
}

impl DirBuilder {
    /// Makes options with nothing set.
    #[expect(clippy::new_without_default, reason = "as std's")]
    pub fn new() -> DirBuilder {
        DirBuilder {
            recursive: false,
            mode: 0o777,
        }
    }

    /// Sets whether to make missing parents too, with the same permissions. A directory that exists is no error then.
    pub fn recursive(&mut self, recursive: bool) -> &mut DirBuilder {
        self.recursive = recursive;
        self
    }

    /// Sets the permission bits of a directory that is made. The process's umask clears some of them.
    pub fn mode(&mut self, mode: u32) -> &mut DirBuilder {
        self.mode = mode;
        self
    }

    /// Makes a directory.
    ///
    /// # Suspends
    ///
    /// Until the system returns. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The errors of [`std::fs::DirBuilder::create`], and of [the module](super).
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.create_async(path).block()
    }

    /// [`create`](DirBuilder::create) as a future, which borrows nothing.
    pub fn create_async(&self, path: impl AsRef<Path>) -> Operation<()> {
        let (&DirBuilder { recursive, mode }, path) = (self, path.as_ref().to_owned());
        let disk = simulated::disk();
        Operation::new(move || match disk {
            None => fs::DirBuilder::new().recursive(recursive).mode(mode).create(&path),
            Some(disk) => disk.build_dir(&path, recursive),
        })
    }
}
