//! Translates file names between the system's root folder and that of a changed root (`chroot`).
//!
//! A configuration names files as seen from outside. A process that has changed its root folder opens them by the name
//! that [`inside`] returns. [`outside`] translates back.

use std::path::{Path, PathBuf};

/// The name of `path` inside of `root`, the root folder of a process. None for a path outside of it.
pub fn inside(root: Option<&Path>, path: &Path) -> Option<PathBuf> {
    match root {
        None => Some(path.to_owned()),
        Some(root) => path.strip_prefix(root).ok().map(|below| Path::new("/").join(below)),
    }
}

/// The name outside of `root` for the path that a process with this root folder knows as `path`.
pub fn outside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
