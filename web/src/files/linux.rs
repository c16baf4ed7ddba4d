//! The calls that only Linux has. They open and read what the kernel has in memory, and refuse to leave a folder.
//! `no_linux.rs` stands in for this file on other systems.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Opens `name` in `folder`. `is_beneath` refuses a way out with XDEV, `is_cached` a way to a disk with AGAIN.
///
/// # Errors
///
/// Any other one if the call is missing: old kernels return NOSYS, sandboxes PERM, and INVAL is an unknown flag.
pub fn open_below(
    folder: &OwnedFd,
    name: &[u8],
    flags: OFlags,
    is_beneath: bool,
    is_cached: bool,
) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::NO_MAGICLINKS;
    resolve.set(ResolveFlags::BENEATH, is_beneath);
    resolve.set(ResolveFlags::CACHED, is_cached);
    openat2(folder, name, flags, Mode::empty(), resolve)
}

/// Opens `path`. A way to a disk is refused with AGAIN.
pub fn open_cached(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED)
}

/// Reads from the page cache. AGAIN: the bytes are not in memory. OPNOTSUPP, INVAL: the file system cannot say.
pub fn read_cached(file: &File, bytes: &mut [u8], at: u64) -> Result<usize, Errno> {
    preadv2(file, &mut [IoSliceMut::new(bytes)], at, ReadWriteFlags::NOWAIT)
}
