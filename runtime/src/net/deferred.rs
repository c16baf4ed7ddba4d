//! Listeners that report a connection once its first bytes are there.
//!
//! # Safety
//! This file may use `unsafe` for one setsockopt(2) that no crate wraps: `TCP_DEFER_ACCEPT` reads one `int`, whose address and length it
//! gets.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[cfg(target_os = "linux")]
pub(crate) fn defer_accept(listener: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let seconds: libc::c_int = super::stream::whole_seconds(limit);
    // SAFETY: tcp(7): the option reads one int. The pointer and the length are those of `seconds`, which lives until the call is over.
    let done = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of_val(&seconds) as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn defer_accept(_: BorrowedFd<'_>, _: Duration) -> io::Result<()> {
    Ok(())
}
