//! Stands in for simulated disks where the feature `sim` is off: the same surface as `sim/files.rs`, with types that have no value.

use std::convert::Infallible;
use std::fs::{self, FileType, Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use super::How;

pub(crate) struct Disk(Infallible);

pub(crate) struct Opened(Infallible);

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    never: Infallible,
}

/// The disk of the simulated host that this code runs on.
#[inline(always)]
pub(crate) fn disk() -> Option<Disk> {
    None
}

macro_rules! never {
    ($type:ident, $field:tt: $(fn $name:ident($($arg:ty),*) -> $output:ty;)*) => {
        impl $type {
            $(pub(crate) fn $name(&self $(, _: $arg)*) -> io::Result<$output> {
                match self.$field {}
            })*
        }
    };
}

never! { Disk, 0:
    fn open(&Path, &How) -> (fs::File, Opened);
    fn read(&Path) -> Vec<u8>;
    fn read_to_string(&Path) -> String;
    fn write(&Path, Vec<u8>) -> ();
    fn copy(&Path, &Path) -> u64;
    fn exists(&Path) -> bool;
    fn metadata(&Path) -> Metadata;
    fn symlink_metadata(&Path) -> Metadata;
    fn read_link(&Path) -> PathBuf;
    fn canonicalize(&Path) -> PathBuf;
    fn set_permissions(&Path, Permissions) -> ();
    fn create_dir(&Path) -> ();
    fn create_dir_all(&Path) -> ();
    fn build_dir(&Path, bool) -> ();
    fn hard_link(&Path, &Path) -> ();
    fn remove_file(&Path) -> ();
    fn remove_dir(&Path) -> ();
    fn remove_dir_all(&Path) -> ();
    fn rename(&Path, &Path) -> ();
    fn read_dir(&Path) -> Vec<Entry>;
}

never! { Opened, 0:
    fn reads() -> ();
    fn write(&fs::File, &[u8]) -> ();
    fn set_len(&fs::File, u64) -> ();
    fn sync() -> ();
}

never! { Entry, never:
    fn metadata() -> Metadata;
    fn file_type() -> FileType;
}
