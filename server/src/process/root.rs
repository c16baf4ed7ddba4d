//! Names of files before and after a change of the root folder (`chroot`).
//!
//! A configuration names files as they are called outside. A process that has changed its root folder calls them by
//! [`inside`]; [`outside`] is the way back.

use std::path::{Path, PathBuf};

/// The name of `path` for a process whose root folder is `root`. None for a path outside of it.
pub fn inside(root: Option<&Path>, path: &Path) -> Option<PathBuf> {
    match root {
        None => Some(path.to_owned()),
        Some(root) => path.strip_prefix(root).ok().map(|below| Path::new("/").join(below)),
    }
}

/// The name, outside, of what a process whose root folder is `root` calls `path`.
pub fn outside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
