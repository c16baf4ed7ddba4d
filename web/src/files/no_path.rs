//! The stand-in for `entry.rs` on systems without O_PATH. An entry is found by its name, and a folder is opened for
//! reading. The walk is as strict: it stands on descriptors of folders, and opens no name that has become a link.
//!
//! There is no call that reads the text and the owner of the same link, so no owner justifies one.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

pub const HOLDS_LINKS: bool = false;

/// Metadata is that of the opened file.
pub const PATH: OFlags = OFlags::NONBLOCK;

pub const STEP: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub struct Entry {
    held: Held,
    pub found: Stat,
}

enum Held {
    Text(CString),
    Folder(OwnedFd),
    Nothing,
}

impl Entry {
    pub fn find(folder: &OwnedFd, name: &[u8]) -> Result<Entry, Errno> {
        let mut found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let held = match FileType::from_raw_mode(found.st_mode) {
            // INVAL: the link was replaced meanwhile.
            FileType::Symlink => match readlinkat(folder, name, Vec::new()) {
                Err(Errno::INVAL) => return Err(Errno::NOENT),
                text => Held::Text(text?),
            },
            FileType::Directory => {
                let folder = openat(folder, name, STEP, Mode::empty())?;
                found = fstat(&folder)?;
                Held::Folder(folder)
            }
            _ => Held::Nothing,
        };
        Ok(Entry { held, found })
    }

    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.found.st_mode)
    }

    pub fn text(&self) -> Result<CString, Errno> {
        match &self.held {
            Held::Text(text) => Ok(text.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    pub fn into_folder(self) -> Result<OwnedFd, Errno> {
        match self.held {
            Held::Folder(folder) => Ok(folder),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub fn open(self, folder: &OwnedFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(folder, name, flags, Mode::empty())
    }
}
