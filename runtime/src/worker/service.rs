//! Service threads: threads of this crate that run no code of the program, such as the watchdog. The driver outside of every runtime is one,
//! too: it only wakes. The threads that drop what is left of a runtime are none, because a destructor may start threads, which inherit the mask.
//!
//! The program knows nothing of them, so they must not take its signals. A program that blocks SIGTERM on its own threads, to read it from a
//! signalfd, would otherwise be killed: the kernel gives a signal to any thread that does not block it. The creator blocks the signals around
//! the start, because a new thread inherits its mask from its creator, and has no moment without it then.
//!
//! # Safety
//!
//! This file may use `unsafe` to read and set the calling thread's mask of signals, which is memory of the calls' own.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
#[cfg(any(feature = "inspect", feature = "process"))]
use std::{io, thread::JoinHandle};

#[cfg(any(feature = "inspect", feature = "process"))]
use super::affinity::start_thread;

/// The signals of a thread's own faults. They are not blocked: a blocked fault ends the process without its report.
const FAULTS: [libc::c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Starts a thread, as [`start_thread`] does, that blocks all signals but [`FAULTS`].
///
/// # Errors
///
/// The system's.
#[cfg(any(feature = "inspect", feature = "process"))]
pub(crate) fn start_service(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    as_service(|| start_thread(name, body))
}

/// Calls `start`. The threads that it starts block all signals but [`FAULTS`].
pub(crate) fn as_service<T>(start: impl FnOnce() -> T) -> T {
    struct Unblocks(libc::sigset_t);
    impl Drop for Unblocks {
        fn drop(&mut self) {
            // SAFETY: the mask was written by `pthread_sigmask` below.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigfillset` writes `all` before the others use it. `pthread_sigmask` fails only for an unknown way to change the mask, so it
    // writes `before`.
    let _unblocks = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        Unblocks(before.assume_init())
    };
    start()
}
