//! An entry of a folder, held by an O_PATH descriptor while the walk judges it. No permission to read is needed, and a
//! symbolic link is held, too. `no_path.rs` stands in for this file on systems without O_PATH.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;

/// Whether the owner of an entry is that of the link whose text is read. If not, no owner justifies a link.
pub const HOLDS_LINKS: bool = true;

/// Flags that open an entry for its metadata alone.
pub const PATH: OFlags = OFlags::PATH;

/// Flags of the folders on the way.
pub const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub struct Entry {
    held: OwnedFd,
    pub found: Stat,
}

impl Entry {
    /// Finds the entry `name` of `folder`. A symbolic link is not followed.
    pub fn find(folder: &OwnedFd, name: &[u8]) -> Result<Entry, Errno> {
        let held = openat(folder, name, STEP, Mode::empty())?;
        let found = fstat(&held)?;
        Ok(Entry { held, found })
    }

    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.found.st_mode)
    }

    /// Reads the text of a symbolic link.
    pub fn text(&self) -> Result<CString, Errno> {
        readlinkat(self.held.as_fd(), "", Vec::new())
    }

    /// Returns the descriptor of a folder.
    pub fn into_folder(self) -> Result<OwnedFd, Errno> {
        Ok(self.held)
    }

    /// Opens a file, which was found as `name` in `folder`. For more than its metadata the name is opened a second time.
    pub fn open(self, folder: &OwnedFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        match flags.contains(OFlags::PATH) {
            true => Ok(self.held),
            false => openat(folder, name, flags, Mode::empty()),
        }
    }
}
