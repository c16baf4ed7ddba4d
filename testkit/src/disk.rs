//! A small file system that a test can fill.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file system of 256 KiB in memory, mounted on a folder. Its drop unmounts it.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Prints "skipped" and returns `None` if this user may not mount one.
    pub fn mount(on: &Path) -> Option<SmallDisk> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(on);
        let status = command.stderr(Stdio::null()).status();
        if !status.is_ok_and(|status| status.success()) {
            crate::skip("this user may not mount a small file system");
            return None;
        }
        Some(SmallDisk(on.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
