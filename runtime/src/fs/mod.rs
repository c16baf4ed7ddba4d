//! Files and directories with std's names and meaning; a call that would wait for the disk suspends the fiber.
//!
//! No poller can tell when a disk is done, so the calls run on the pool for blocking work. Each function comes in two:
//! `read` suspends a fiber and blocks a plain thread (which then makes the system call itself), `read_async` is the same
//! as a future.
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
//! ```text
//!   fs/mod.rs            the functions on paths
//!   fs/operation.rs      one call as a future, begun at its first poll
//!   fs/file.rs           File and OpenOptions        fs/dir.rs   ReadDir, DirEntry
//! ```
//!
//! # Cancellation
//!
//! A system call on a file cannot be called off. A call that is cancelled, or a future that is dropped, before a thread of
//! the pool took it up does nothing; after that it goes on by itself and what it returns is dropped. So a `rename` that was
//! cancelled may have happened, and a `write` too, or a part of it. [`File`] says what that means for bytes.
//!
//! # Errors
//!
//! Those of std's functions, the error of a cancelled call, and `WouldBlock` on a worker but not on a fiber.

mod dir;
mod file;
mod operation;

use std::io;
use std::path::{Path, PathBuf};

pub use std::fs::{FileType, Metadata, Permissions};

pub use dir::{DirEntry, ReadDir, ReadDirAsync};
pub use file::{File, OpenOptions};
pub use operation::Operation;

/// A function on paths in both faces.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        $name:ident, $name_async:ident($($path:ident),* $(; $value:ident: $type:ty $(=> $own:expr)?)?) -> $output:ty = $call:expr;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Suspends
        ///
        /// Until the system has done it. Blocks the thread when called on a plain one.
        ///
        /// # Errors
        ///
        #[doc = concat!("Those of [`std::fs::", stringify!($name), "`], and of [the module](self).")]
        pub fn $name($($path: impl AsRef<Path>),* $(, $value: $type)?) -> io::Result<$output> {
            $name_async($($path),* $(, $value)?).block()
        }

        #[doc = concat!("[`", stringify!($name), "`](fn@", stringify!($name), ") as a future, which borrows nothing.")]
        pub fn $name_async($($path: impl AsRef<Path>),* $(, $value: $type)?) -> Operation<$output> {
            $(let $path = $path.as_ref().to_owned();)*
            $($(let $value = $own;)?)?
            Operation::new(move || $call)
        }
    )*};
}

functions! {
    /// The absolute path without links and dots.
    canonicalize, canonicalize_async(path) -> PathBuf = std::fs::canonicalize(path);

    /// Copies the contents and permissions of a file, and returns how many bytes that were.
    copy, copy_async(from, to) -> u64 = std::fs::copy(from, to);

    /// Makes a directory, whose parent is there.
    create_dir, create_dir_async(path) -> () = std::fs::create_dir(path);

    /// Makes a directory and those above it that are missing.
    create_dir_all, create_dir_all_async(path) -> () = std::fs::create_dir_all(path);

    /// Whether there is something of this name.
    exists, exists_async(path) -> bool = std::fs::exists(path);

    /// Makes another name for a file.
    hard_link, hard_link_async(original, link) -> () = std::fs::hard_link(original, link);

    /// The metadata of a file; a link is followed.
    metadata, metadata_async(path) -> Metadata = std::fs::metadata(path);

    /// All bytes of a file.
    read, read_async(path) -> Vec<u8> = std::fs::read(path);

    /// Where a link leads.
    read_link, read_link_async(path) -> PathBuf = std::fs::read_link(path);

    /// All of a file, as text.
    read_to_string, read_to_string_async(path) -> String = std::fs::read_to_string(path);

    /// Removes an empty directory.
    remove_dir, remove_dir_async(path) -> () = std::fs::remove_dir(path);

    /// Removes a directory with all that is in it. Links are removed, not followed.
    remove_dir_all, remove_dir_all_async(path) -> () = std::fs::remove_dir_all(path);

    /// Removes a file.
    remove_file, remove_file_async(path) -> () = std::fs::remove_file(path);

    /// Gives a file another name, in place of what has that name.
    rename, rename_async(from, to) -> () = std::fs::rename(from, to);

    /// Changes who may do what with a file.
    set_permissions, set_permissions_async(path; permissions: Permissions) -> () =
        std::fs::set_permissions(path, permissions);

    /// The metadata of a file; a link is not followed.
    symlink_metadata, symlink_metadata_async(path) -> Metadata = std::fs::symlink_metadata(path);

    /// Makes the file, if need be, and these bytes all that is in it. It copies them first.
    write, write_async(path; contents: impl AsRef<[u8]> => contents.as_ref().to_vec()) -> () =
        std::fs::write(path, contents);
}

/// Reads a directory.
///
/// # Suspends
///
/// Until it is open. Blocks the thread when called on a plain one.
///
/// # Errors
///
/// Those of [`std::fs::read_dir`], and of [the module](self).
pub fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref().to_owned();
    Operation::new(|| std::fs::read_dir(path)).block().map(ReadDir::new)
}

/// [`read_dir`] as a future, which borrows nothing, of a [`Stream`](futures_core::Stream).
pub fn read_dir_async(path: impl AsRef<Path>) -> Operation<ReadDirAsync> {
    let path = path.as_ref().to_owned();
    Operation::new(|| std::fs::read_dir(path).map(|std| ReadDirAsync(ReadDir::new(std))))
}
