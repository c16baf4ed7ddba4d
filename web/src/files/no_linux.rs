//! The stand-in for `linux.rs` on other systems: the calls are missing. `walk.rs` opens every name there, and the pool
//! for blocking work reads every file.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

pub fn open_below(_: &OwnedFd, _: &[u8], _: OFlags, _is_beneath: bool, _is_cached: bool) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

pub fn open_cached(_: &Path, _: OFlags) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

pub fn read_cached(_: &File, _: &mut [u8], _at: u64) -> Result<usize, Errno> {
    Err(Errno::AGAIN)
}
