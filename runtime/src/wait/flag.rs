//! A flag in a descriptor, which is readable while the flag is set: an eventfd, or a pipe on systems without.
//!
//! # Protocol
//! The kernel has the whole state. To set it is one write(2), which a signal handler may do; a write that finds no room fails,
//! and the flag is set anyway.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

/// The end that is read and the end that is written.
pub(crate) struct Ends {
    pub(crate) reader: OwnedFd,
    /// `None` where there are eventfds: the reader is written too.
    pub(crate) writer: Option<OwnedFd>,
}

impl Ends {
    /// Both ends, to be held by several.
    pub(crate) fn shared(self) -> (Arc<OwnedFd>, Arc<OwnedFd>) {
        let reader = Arc::new(self.reader);
        let writer = self.writer.map_or_else(|| Arc::clone(&reader), Arc::new);
        (reader, writer)
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(crate) fn new() -> io::Result<Ends> {
    use rustix::event::{EventfdFlags, eventfd};
    let reader = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    Ok(Ends { reader, writer: None })
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(crate) fn new() -> io::Result<Ends> {
    use rustix::fs::{OFlags, fcntl_setfl};
    let (reader, writer) = io::pipe()?;
    let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
    fcntl_setfl(&reader, OFlags::NONBLOCK)?;
    fcntl_setfl(&writer, OFlags::NONBLOCK)?;
    Ok(Ends {
        reader,
        writer: Some(writer),
    })
}

/// Sets the flag. Takes no lock, allocates nothing and does not panic.
pub(crate) fn set(writer: impl AsFd) {
    let _ = rustix::io::write(writer, &1_u64.to_ne_bytes());
}

/// Unsets the flag. Returns whether it was set.
pub(crate) fn take(reader: impl AsFd) -> bool {
    let mut was_set = false;
    let mut count = [0; 8];
    loop {
        match rustix::io::read(&reader, &mut count) {
            Err(Errno::INTR) => {}
            // A pipe holds eight bytes a set, an eventfd all sets in one number.
            Ok(8)
                if cfg!(not(any(
                    target_os = "linux",
                    target_os = "android",
                    target_os = "freebsd"
                ))) =>
            {
                was_set = true
            }
            read => return was_set || read == Ok(count.len()),
        }
    }
}
