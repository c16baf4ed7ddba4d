//! The file with the id of the process: `pid_file`.
//!
//! The file is opened before privileges are given up, and stays open. A new process that takes over gets the
//! descriptor, so it can write a file that it could not open.
//!
//! The open file is locked (flock(2)), so a second server cannot use it. The lock belongs to the open file and not to a
//! process. The new process of an upgrade shares it, and it ends with the last process that has the file open, after a
//! crash too. So a file that a crash has left stops nobody.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::handed;

/// The file, open.
#[derive(Debug)]
pub struct PidFile {
    /// The path inside of the root folder. `None` for a file outside.
    path: Option<PathBuf>,
    file: File,
    /// Whether this process has made the file.
    is_new: bool,
}

impl PidFile {
    /// Opens the file, or creates it. Writes nothing yet: the server may still fail to start. A drop then removes the file
    /// that it has made.
    ///
    /// # Errors
    /// `ResourceBusy` if another server uses the file. Those of [`handed::open_to_write`].
    pub fn open(path: PathBuf) -> io::Result<PidFile> {
        let is_new = path.symlink_metadata().is_err();
        let file = handed::open_to_write(&path)?;
        match lock(&file) {
            true => Ok(PidFile {
                path: Some(path),
                file,
                is_new,
            }),
            false => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    /// Takes over the file of another process, with its lock.
    pub fn inherited(file: OwnedFd, path: Option<PathBuf>) -> PidFile {
        let file: File = file.into();
        let _ = lock(&file);
        let is_new = false;
        PidFile { path, file, is_new }
    }

    /// Notes that the root folder of this process has changed, and where the file lies there.
    pub fn moved(&mut self, path: Option<PathBuf>) {
        self.path = path;
    }

    /// Another descriptor of the file.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    /// Writes the id of a process, even if the file has the same id: `osier upgrade` watches the time of the last
    /// change.
    pub fn write(&self, id: u32) -> io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        let text = format!("{id}\n");
        file.write_all(text.as_bytes())?;
        // Only a longer file is shortened: a second change of the time would look like another answer.
        match file.metadata()?.len() > text.len() as u64 {
            true => file.set_len(text.len() as u64),
            false => Ok(()),
        }
    }

    /// Removes the file, or empties it if this process may not remove it. Another file of the same name stays.
    pub fn remove(self) {
        if !self.unlink() {
            let _ = self.file.set_len(0);
        }
        // The process before an upgrade may still have the file open.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }

    /// Removes the file, unless its name belongs to another one. Returns whether it is removed.
    fn unlink(&self) -> bool {
        let own = self.file.metadata().map(|own| (own.dev(), own.ino())).ok();
        let is_own = |path: &&PathBuf| {
            path.metadata()
                .is_ok_and(|found| Some((found.dev(), found.ino())) == own)
        };
        let path = self.path.as_ref().filter(is_own);
        path.is_some_and(|path| fs::remove_file(path).is_ok())
    }
}

impl Drop for PidFile {
    /// Removes a file that nothing has been written to.
    fn drop(&mut self) {
        if self.is_new && self.file.metadata().is_ok_and(|found| found.len() == 0) {
            self.unlink();
        }
    }
}

/// Locks the file for this process and those that take over from it. False if another server has locked it. On a file
/// system without locks, every server succeeds.
fn lock(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Folder;

    #[test]
    fn a_second_server_is_refused_and_removes_nothing() {
        let folder = Folder::new();
        let path = folder.write("pid", "1\n");
        let file = PidFile::open(path.clone()).unwrap();
        assert_eq!(
            PidFile::open(path.clone()).unwrap_err().kind(),
            io::ErrorKind::ResourceBusy
        );
        // The successor shares the lock, and the old process may end before it.
        let successor = PidFile::inherited(file.descriptor().unwrap(), Some(path.clone()));
        drop(file);
        assert!(PidFile::open(path.clone()).is_err());
        // Somebody has removed the file, and another server has made its own.
        fs::remove_file(&path).unwrap();
        let other = PidFile::open(path.clone()).unwrap();
        other.write(43).unwrap();
        successor.remove();
        assert_eq!(fs::read_to_string(&path).unwrap(), "43\n");
        drop(other);
        assert!(PidFile::open(path).is_ok(), "what a crash leaves stops nobody");
    }

    #[test]
    fn a_start_that_fails_leaves_no_file_of_its_own() {
        let folder = Folder::new();
        let path = folder.join("pid");
        drop(PidFile::open(path.clone()).unwrap());
        assert!(!path.exists());
        let written = PidFile::open(path.clone()).unwrap();
        written.write(42).unwrap();
        drop(written);
        assert!(path.exists(), "a crash");
        let mine = folder.write("mine", "");
        drop(PidFile::open(mine.clone()).unwrap());
        assert!(mine.exists());
    }

    #[test]
    fn a_longer_id_leaves_no_digits_and_a_removed_file_is_gone() {
        let folder = Folder::new();
        let path = folder.join("pid");
        let file = PidFile::open(path.clone()).unwrap();
        file.write(1_234_567).unwrap();
        file.write(42).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "42\n");
        let other = PidFile::inherited(file.descriptor().unwrap(), None);
        other.write(43).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "43\n");
        other.remove();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        file.remove();
        assert!(!path.exists());
    }
}
