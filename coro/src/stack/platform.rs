//! System calls for stacks that differ between operating systems: mapping, giving pages back, light guards.
//!
//! Linux has everything. Elsewhere a guard costs a mapping, and the system decides when it takes pages back. The other systems are
//! type-checked only. `region.rs` says when and why each function is called.
//!
//! # Safety
//!
//! This file is an unsafe island for `madvise`, which discards contents: callers own the range, and nothing in it is in use. It also
//! reads the stack pointer, which no function of std does.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mm::MapFlags;
use std::ffi::c_void;
use std::io;
#[cfg(target_os = "linux")]
use std::ptr;

/// The flags of a mapping for stacks. It does not count against the commit limit, where the system can be asked for that.
#[cfg(target_os = "linux")]
pub(super) const STACK_MAPPING: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE).union(MapFlags::STACK);
#[cfg(not(target_os = "linux"))]
pub(super) const STACK_MAPPING: MapFlags = MapFlags::PRIVATE;

#[cfg(target_os = "linux")]
const DISCARD: libc::c_int = libc::MADV_DONTNEED;
#[cfg(not(target_os = "linux"))]
const DISCARD: libc::c_int = libc::MADV_FREE;

/// The caller's stack pointer. Nothing below it is in use, but for what the next call or switch pushes.
#[inline(always)]
pub fn pointer() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let pointer;
        // SAFETY: the instruction copies one register into another, and changes neither memory nor flags.
        unsafe { std::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
        pointer
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let pointer;
        // SAFETY: as above.
        unsafe { std::arch::asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
        pointer
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        // A variable of this frame, or of the caller's frame that this is inlined into. It lies above the pointer.
        let variable = std::mem::MaybeUninit::<u8>::uninit();
        (&raw const variable).addr()
    }
}

/// Starts to load the cache line at an address, mapped or not. The processor may ignore it.
#[inline(always)]
pub fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction is a hint. It reads nothing into a register, and does not fault.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    };
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    };
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// Gives the pages of a range back. The range then holds old contents or zeros.
///
/// # Safety
///
/// Nothing in the range is in use.
pub(super) unsafe fn discard(start: *mut c_void, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::madvise(start, bytes, DISCARD) })
}

/// Keeps huge pages out of a fresh mapping: one would back 512 pages, touched or not, of several stacks at once.
#[cfg(target_os = "linux")]
pub(super) fn refuse_huge_pages(start: *mut c_void, bytes: usize) {
    // A kernel without huge pages refuses. That does no harm.
    // SAFETY: advice that changes no contents.
    unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn refuse_huge_pages(_: *mut c_void, _: usize) {}

/// Makes a range fault when touched. It needs no mapping for that.
///
/// # Safety
///
/// Nothing in the range is in use.
#[cfg(target_os = "linux")]
pub(super) unsafe fn install_guard(start: *mut c_void, bytes: usize) -> Result<(), Errno> {
    /// Available from Linux 6.13 on. libc does not define it yet.
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    // SAFETY: the caller's promise.
    check(unsafe { libc::madvise(start, bytes, MADV_GUARD_INSTALL) })
}

#[cfg(not(target_os = "linux"))]
pub(super) unsafe fn install_guard(_: *mut c_void, _: usize) -> Result<(), Errno> {
    Err(Errno::NOTSUP)
}

/// Whether a read of the word at `start` faults. The kernel reads the word for us, so this thread does not fault.
#[cfg(target_os = "linux")]
pub(super) fn is_guarded(start: *mut c_void) -> bool {
    // FUTEX_WAIT reads the word before it would wait. A word that can be read is zero here: it is not 1, so the call does not wait.
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let no_timeout = ptr::null::<libc::timespec>();
    // SAFETY: the call changes no memory, and answers EFAULT where it cannot read.
    let result = unsafe { libc::syscall(libc::SYS_futex, start, operation, 1, no_timeout) };
    result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn is_guarded(_: *mut c_void) -> bool {
    false
}

/// The residency of each page of a range: bit 0 says whether the page is in memory.
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
