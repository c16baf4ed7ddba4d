//! A folder that belongs to one test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A folder for temporary files that no other test uses. Dropping it removes it with all that is in it.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes an empty folder.
    ///
    /// # Panics
    /// Panics if the system's folder for temporary files refuses it.
    #[expect(
        clippy::new_without_default,
        reason = "a default with a folder on disk would surprise"
    )]
    pub fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("osier-test-{}-{number}", process::id()));
        fs::create_dir(&path).expect("a folder for temporary files");
        Folder(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of `name` in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file whose last change is an hour ago, and makes the folders that it needs. A cache that
    /// compares the times of files does not keep a file of this second.
    ///
    /// # Panics
    /// Panics if the system refuses it.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.write_now(name, content);
        let file = File::options().write(true).open(&path).expect("a file just written");
        let hour_ago = SystemTime::now() - Duration::from_secs(3600);
        file.set_modified(hour_ago).expect("a time that files may have");
        path
    }

    /// Writes a file that changes now, and makes the folders that it needs.
    ///
    /// # Panics
    /// Panics if the system refuses it.
    pub fn write_now(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(path.parent().expect("a file in the folder")).expect("folders below it");
        fs::write(&path, content).expect("a file in it");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_empty_alone_and_gone_in_the_end() {
        let (one, two) = (Folder::new(), Folder::new());
        assert_ne!(one.path(), two.path());
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 0);
        let old = one.write("a/b.txt", "b");
        let age = fs::metadata(&old).unwrap().modified().unwrap().elapsed().unwrap();
        assert!(age >= Duration::from_secs(3600), "{age:?}");
        assert_eq!(fs::read(&old).unwrap(), b"b");
        drop(one);
        assert!(!old.exists());
    }
}
