//! What operating systems call the same things by different names: stack mappings, giving pages back, light guards.
//!
//! Called by `region.rs` alone, which says when and why. Linux has everything; elsewhere a guard costs a mapping and pages go
//! back when the system wants them. The other systems are type-checked only.
//!
//! # Safety
//!
//! An unsafe island for `madvise`, which discards contents: callers own the range and nothing in it is in use.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mm::MapFlags;
use std::ffi::c_void;
use std::io;

/// How address space for stacks is mapped: not counted against the commit limit where that can be asked for.
#[cfg(target_os = "linux")]
pub(super) const STACK_MAPPING: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE).union(MapFlags::STACK);
#[cfg(not(target_os = "linux"))]
pub(super) const STACK_MAPPING: MapFlags = MapFlags::PRIVATE;

#[cfg(target_os = "linux")]
const DISCARD: libc::c_int = libc::MADV_DONTNEED;
#[cfg(not(target_os = "linux"))]
const DISCARD: libc::c_int = libc::MADV_FREE;

/// Gives the pages of a range back; what it then holds is old or zero.
///
/// # Safety
///
/// Nothing in the range is in use.
pub(super) unsafe fn discard(start: *mut c_void, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::madvise(start, bytes, DISCARD) })
}

/// Keeps huge pages out of a fresh mapping: one would back 512 touched and untouched pages of several stacks at once.
#[cfg(target_os = "linux")]
pub(super) fn refuse_huge_pages(start: *mut c_void, bytes: usize) {
    // Kernels without huge pages refuse: fine.
    // SAFETY: advice that changes no contents.
    unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn refuse_huge_pages(_: *mut c_void, _: usize) {}

/// Makes a range fault when touched without a mapping of its own.
///
/// # Safety
///
/// Nothing in the range is in use.
#[cfg(target_os = "linux")]
pub(super) unsafe fn install_guard(start: *mut c_void, bytes: usize) -> Result<(), Errno> {
    /// From Linux 6.13 on; libc does not name it yet.
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    // SAFETY: the caller's promise.
    check(unsafe { libc::madvise(start, bytes, MADV_GUARD_INSTALL) })
}

#[cfg(not(target_os = "linux"))]
pub(super) unsafe fn install_guard(_: *mut c_void, _: usize) -> Result<(), Errno> {
    Err(Errno::NOTSUP)
}

/// For each page of a range, in bit 0, whether it is in memory.
#[cfg(target_os = "linux")]
pub(super) fn resident_pages(start: *mut c_void, bytes: usize) -> io::Result<Vec<u8>> {
    let mut pages = vec![0u8; bytes.div_ceil(rustix::param::page_size())];
    // SAFETY: mincore writes one byte per page of the range, for which there is room, and nothing else.
    match unsafe { libc::mincore(start, bytes, pages.as_mut_ptr()) } {
        0 => Ok(pages),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn resident_pages(_: *mut c_void, _: usize) -> io::Result<Vec<u8>> {
    Err(io::ErrorKind::Unsupported.into())
}

fn check(result: libc::c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
