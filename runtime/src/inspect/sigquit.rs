//! A handler that writes a dump to stderr at every SIGQUIT.
//!
//! The handler writes a byte to a pipe. A thread reads the byte and writes the dump. Both live as long as the
//! process.
//!
//! # Safety
//!
//! This file may use `unsafe` to register the handler. The handler makes one write(2) that cannot block, and nothing
//! else.
#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::sync::Mutex;

use super::dump;
use crate::worker::service::start_service;

/// Makes the process write a [`dump`] to stderr at every SIGQUIT (Ctrl-\\ in a terminal) instead of ending. Handlers
/// that were registered before still run. A second call does nothing.
///
/// # Errors
///
/// The system's error for pipes, threads and handlers.
pub fn dump_on_sigquit() -> io::Result<()> {
    static SET: Mutex<bool> = Mutex::new(false);
    let mut set = SET.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if *set {
        return Ok(());
    }
    let (mut reader, writer) = io::pipe()?;
    // A full pipe means that dumps are already pending: the handler may fail then, but never block.
    rustix::io::ioctl_fionbio(&writer, true)?;
    start_service("osier-sigquit", move || {
        let mut bytes = [0; 64];
        while matches!(reader.read(&mut bytes), Ok(n) if n > 0) {
            // An error of stderr has no place to be reported.
            let _ = io::stderr().write_all(dump().to_string().as_bytes());
        }
    })?;
    // SAFETY: the action makes one system call that is async-signal-safe, allocates nothing and takes no lock.
    unsafe {
        signal_hook_registry::register(rustix::process::Signal::QUIT.as_raw(), move || {
            let _ = rustix::io::write(&writer, &[0]);
        })?;
    }
    *set = true;
    Ok(())
}
