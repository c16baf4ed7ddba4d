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

#[cfg(test)]
mod tests {
    use std::fs::{remove_file, rename};
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, mkfifoat};
    use testkit::Folder;

    use super::super::no_path;
    use super::super::walk::number;
    use super::*;

    /// No owner justifies a link for the stand-in.
    const _: () = assert!(HOLDS_LINKS && !no_path::HOLDS_LINKS);

    const READ: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);

    fn folder() -> (Folder, OwnedFd) {
        let folder = Folder::new();
        folder.write("file", "text");
        folder.write("folder/below", "");
        symlink("folder", folder.path().join("link")).unwrap();
        mkfifoat(CWD, folder.path().join("fifo"), Mode::from_raw_mode(0o644)).unwrap();
        let here = openat(CWD, folder.path(), STEP, Mode::empty()).unwrap();
        (folder, here)
    }

    #[test]
    fn the_stand_in_finds_the_same() {
        let (_folder, here) = folder();
        for name in ["file", "folder", "link", "fifo"] {
            let name = name.as_bytes();
            let (entry, other) = (
                Entry::find(&here, name).unwrap(),
                no_path::Entry::find(&here, name).unwrap(),
            );
            assert_eq!(entry.kind(), other.kind());
            assert_eq!(entry.found.st_ino, other.found.st_ino);
            assert_eq!(entry.text().ok(), other.text().ok());
            if entry.kind() == FileType::Directory {
                let (entry, other) = (entry.into_folder().unwrap(), other.into_folder().unwrap());
                assert!(number(&entry).unwrap() == number(&other).unwrap());
            } else {
                assert_eq!(other.into_folder().unwrap_err(), Errno::NOTDIR);
            }
        }
        let missing = no_path::Entry::find(&here, b"missing").map(|entry| entry.kind());
        assert_eq!(missing, Err(Errno::NOENT));
        let metadata = no_path::Entry::find(&here, b"file").unwrap();
        let metadata = metadata.open(&here, b"file", READ | no_path::PATH).unwrap();
        assert_eq!(fstat(&metadata).unwrap().st_size, 4);
    }

    /// Another process may replace an entry between two calls.
    #[test]
    fn the_stand_in_follows_no_link_that_takes_a_place() {
        let (folder, here) = folder();
        let entry = no_path::Entry::find(&here, b"file").unwrap();
        remove_file(folder.path().join("file")).unwrap();
        symlink("folder/below", folder.path().join("file")).unwrap();
        assert_eq!(entry.open(&here, b"file", READ).unwrap_err(), Errno::LOOP);

        let entry = no_path::Entry::find(&here, b"folder").unwrap();
        rename(folder.path().join("folder"), folder.path().join("moved")).unwrap();
        symlink("/", folder.path().join("folder")).unwrap();
        let held = entry.into_folder().unwrap();
        assert!(openat(&held, "below", READ, Mode::empty()).is_ok());
        assert!(openat(&here, "folder", no_path::STEP, Mode::empty()).is_err());
    }
}
