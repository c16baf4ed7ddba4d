//! Files and directories with the names and meaning of std. A call that waits for the disk suspends the fiber.
//!
//! No poller reports the end of a disk operation, so the calls run on the pool for blocking work. Each function comes
//! in two forms: `read` suspends a fiber, or makes the system call on a plain thread and blocks it; `read_async` is
//! the same as a future.
//!
//! ```
//! use osier::fs;
//! let dir = std::env::temp_dir().join(format!("osier-fs-{}", std::process::id()));
//! osier::run(|| {
//!     fs::create_dir(&dir)?;
//!     fs::write(dir.join("greeting"), "hello")?;
//!     assert_eq!(fs::read_to_string(dir.join("greeting"))?, "hello");
//!     assert_eq!(fs::read_dir(&dir)?.count(), 1);
//!     fs::remove_dir_all(&dir)
//! })?;
//! # std::io::Result::Ok(())
//! ```
//!
//! # Cancellation
//!
//! A system call on a file cannot be interrupted. A call that is cancelled, or a future that is dropped, has no
//! effect if no thread of the pool has begun it. Otherwise it runs to its end and its result is dropped. So a
//! cancelled `rename` may have happened, and a cancelled `write` too, entirely or in part. [`File`] says what that
//! means for bytes.
//!
//! # Errors
//!
//! The errors of std's functions, the error of a cancelled call, and `WouldBlock` on a worker outside of a fiber.

//   fs/mod.rs            the functions on paths
//   fs/operation.rs      one call as a future, begun at its first poll
//   fs/file.rs           File and OpenOptions        fs/dir.rs            ReadDir, DirEntry
//   fs/options.rs        How, DirBuilder             fs/no_simulated.rs   stands in for sim/files.rs

mod dir;
mod file;
mod operation;
mod options;
#[cfg_attr(feature = "sim", path = "../sim/files.rs")]
#[cfg_attr(not(feature = "sim"), path = "no_simulated.rs")]
mod simulated;

use std::io;
use std::path::{Path, PathBuf};

pub use std::fs::{FileType, Metadata, Permissions};

pub use dir::{DirEntry, ReadDir, ReadDirAsync};
pub use file::{File, OpenOptions};
pub use operation::Operation;
pub use options::DirBuilder;
pub(crate) use options::How;

/// A function on paths, blocking and as a future.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        $name:ident, $name_async:ident($($path:ident),* $(; $value:ident: $type:ty $(=> $own:expr)?)?) -> $output:ty;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Suspends
        ///
        /// Until the system returns. Blocks the thread when called on a plain one.
        ///
        /// # Errors
        ///
        #[doc = concat!("The errors of [`std::fs::", stringify!($name), "`], and of [the module](self).")]
        pub fn $name($($path: impl AsRef<Path>),* $(, $value: $type)?) -> io::Result<$output> {
            $name_async($($path),* $(, $value)?).block()
        }

        #[doc = concat!("[`", stringify!($name), "`](fn@", stringify!($name), ") as a future, which borrows nothing.")]
        pub fn $name_async($($path: impl AsRef<Path>),* $(, $value: $type)?) -> Operation<$output> {
            $(let $path = $path.as_ref().to_owned();)*
            $($(let $value = $own;)?)?
            let disk = simulated::disk();
            Operation::new(move || match disk {
                None => std::fs::$name($(&$path),* $(, $value)?),
                Some(disk) => disk.$name($(&$path),* $(, $value)?),
            })
        }
    )*};
}

functions! {
    /// Gives the absolute path, with links and dots resolved.
    canonicalize, canonicalize_async(path) -> PathBuf;

    /// Copies the content and permissions of a file. Returns the number of bytes.
    copy, copy_async(from, to) -> u64;

    /// Makes a directory. Its parent must exist.
    create_dir, create_dir_async(path) -> ();

    /// Makes a directory and its missing parents.
    create_dir_all, create_dir_all_async(path) -> ();

    /// Whether the path exists.
    exists, exists_async(path) -> bool;

    /// Makes a hard link: another name for a file.
    hard_link, hard_link_async(original, link) -> ();

    /// Reads the metadata of a file. Links are followed.
    metadata, metadata_async(path) -> Metadata;

    /// Reads all bytes of a file.
    read, read_async(path) -> Vec<u8>;

    /// Reads the target of a link.
    read_link, read_link_async(path) -> PathBuf;

    /// Reads all of a file as text.
    read_to_string, read_to_string_async(path) -> String;

    /// Removes an empty directory.
    remove_dir, remove_dir_async(path) -> ();

    /// Removes a directory with its whole content. Links are removed, not followed.
    remove_dir_all, remove_dir_all_async(path) -> ();

    /// Removes a file.
    remove_file, remove_file_async(path) -> ();

    /// Renames a file, and replaces a file that has the new name.
    rename, rename_async(from, to) -> ();

    /// Changes the permissions of a file.
    set_permissions, set_permissions_async(path; permissions: Permissions) -> ();

    /// Reads the metadata of a file. Links are not followed.
    symlink_metadata, symlink_metadata_async(path) -> Metadata;

    /// Writes these bytes as the whole content of a file. Creates the file if needed. Copies the bytes first.
    write, write_async(path; contents: impl AsRef<[u8]> => contents.as_ref().to_vec()) -> ();
}

/// Opens a directory and iterates over its entries.
///
/// # Suspends
///
/// Until it is open. Blocks the thread when called on a plain one.
///
/// # Errors
///
/// The errors of [`std::fs::read_dir`] and of [the module](self).
pub fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    opening(path.as_ref(), |entries| entries).block()
}

/// [`read_dir`] as a future, which borrows nothing. Its output is a [`Stream`](futures_core::Stream).
pub fn read_dir_async(path: impl AsRef<Path>) -> Operation<ReadDirAsync> {
    opening(path.as_ref(), ReadDirAsync)
}

fn opening<T: Send + 'static>(path: &Path, made: fn(ReadDir) -> T) -> Operation<T> {
    let (disk, path) = (simulated::disk(), path.to_owned());
    Operation::new(move || {
        let entries = match disk {
            None => ReadDir::new(std::fs::read_dir(path)?),
            Some(disk) => ReadDir::simulated(disk.read_dir(&path)?),
        };
        Ok(made(entries))
    })
}
