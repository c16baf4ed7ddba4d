//! The file with the id of the process: `pid_file`.
//!
//! The file is opened before privileges are given up, and stays open. A new process that takes over gets the descriptor, so it can
//! write where it could open nothing.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The file, open.
#[derive(Debug)]
pub struct PidFile {
    /// The name inside the root folder. `None` for a file outside.
    path: Option<PathBuf>,
    file: File,
}

impl PidFile {
    /// Opens the file, or creates it. Writes nothing yet: another server may still run.
    pub fn open(path: PathBuf) -> io::Result<PidFile> {
        let file = File::options().write(true).create(true).truncate(false).open(&path)?;
        Ok(PidFile { path: Some(path), file })
    }

    /// Takes over the file of another process.
    pub fn inherited(file: OwnedFd, path: Option<PathBuf>) -> PidFile {
        PidFile {
            path,
            file: file.into(),
        }
    }

    /// Notes that the root folder of this process has changed, and where the file lies there.
    pub fn moved(&mut self, path: Option<PathBuf>) {
        self.path = path;
    }

    /// Another descriptor of the file.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    /// Writes the id of a process. Writes the same id again too, because `osier upgrade` watches the file's time.
    pub fn write(&self, id: u32) -> io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        let text = format!("{id}\n");
        file.write_all(text.as_bytes())?;
        // A second change of the time would look like another answer.
        match file.metadata()?.len() > text.len() as u64 {
            true => file.set_len(text.len() as u64),
            false => Ok(()),
        }
    }

    /// Removes the file, or empties one that this process may not remove.
    pub fn remove(self) {
        let removed = self.path.is_some_and(|path| fs::remove_file(path).is_ok());
        if !removed {
            let _ = self.file.set_len(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Folder;

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
