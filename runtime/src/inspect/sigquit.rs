//! A dump at every SIGQUIT, for who asks for it.
//!
//! The handler writes a byte to a pipe; a thread reads it and writes the dump to stderr. Both stay for the life of the process.
//!
//! # Safety
//!
//! This file may use `unsafe` to set the handler, which does nothing but one write(2) that cannot block.
#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::sync::Mutex;
use std::thread;

use super::dump;

/// Makes the process write a [`dump`] to stderr whenever it gets SIGQUIT (Ctrl-\\ in a terminal), instead of ending.
/// Handlers that were set before run as well. A second call does nothing.
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
    // A full pipe has dumps enough on their way.
    rustix::io::ioctl_fionbio(&writer, true)?;
    thread::Builder::new().name("osier-sigquit".into()).spawn(move || {
        let mut bytes = [0; 64];
        while matches!(reader.read(&mut bytes), Ok(n) if n > 0) {
            // Nobody to tell if stderr is closed.
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
