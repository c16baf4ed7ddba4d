//! The number of sent bytes that the peer of a socket has not acknowledged.
//!
//! A write timeout watches the peer: it fires when the peer takes no bytes. Readiness cannot show that. Linux reports
//! a socket as writable only when a third of its send buffer is free. With a buffer of 4 MB, a steady reader of 40
//! KB/s frees that much every half minute.
//!
//! # Safety
//! This file may use `unsafe` for one ioctl that no crate wraps: `SIOCOUTQ` writes one `int` and reads nothing.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use crate::wait::fd::Fd;

/// The bytes in the send queue of a socket: sent or unsent, and not acknowledged. `None` where the system does not report them.
pub(crate) fn unacknowledged(fd: Fd<'_>) -> Option<i32> {
    match fd {
        Fd::System(fd) => of_system(fd),
        Fd::Simulated(socket) => socket.unacknowledged(),
    }
}

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
fn of_system(fd: BorrowedFd<'_>) -> Option<i32> {
    use rustix::ioctl::{Getter, ioctl};
    /// The generic request number (`TIOCOUTQ` in asm-generic/ioctls.h). Some architectures have their own.
    const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: SIOCOUTQ (tcp(7), unix(7)) stores one int through its argument, which `Getter` provides for the call.
    unsafe { ioctl(fd, Getter::<SIOCOUTQ, i32>::new()) }.ok()
}

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
fn of_system(_: BorrowedFd<'_>) -> Option<i32> {
    None
}
