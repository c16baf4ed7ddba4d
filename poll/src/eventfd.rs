//! The poller's wake-up: an eventfd that any thread writes to end a wait.
//!
//! It is registered edge-triggered, and every write is an edge, whatever the counter holds. So nobody ever reads it: a
//! wake-up costs one write, and not a write and a read. (The counter would be full after 2^64 - 2 wake-ups; then a
//! write says `EAGAIN`, and the code below still would not block, but that is 500 years at a thousand million a second.)
//!
//! # Protocol
//! `pending`: set by the notifier who then writes; cleared by the waiter once it has seen the event. A notifier that
//! finds it set leaves the write to the one who set it: a wait is about to end, and what this notifier stored before is
//! seen after that wait, since both sides use a read-modify-write (AcqRel).

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct WakeUp {
    fd: OwnedFd,
    /// Written, or about to be, and not yet seen by a wait.
    pending: AtomicBool,
}

impl WakeUp {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            fd,
            pending: AtomicBool::new(false),
        })
    }

    /// The waiter has seen the event: the next notifier writes again.
    pub(crate) fn acknowledge(&self) {
        self.pending.swap(false, Ordering::AcqRel);
    }

    /// Ends one wait; one write for all notifiers since the last.
    pub(crate) fn ring(&self) -> io::Result<()> {
        if self.pending.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, &1u64.to_ne_bytes())) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN) => Ok(()), // a full counter is readable
            Err(error) => {
                self.pending.store(false, Ordering::Release);
                Err(error.into())
            }
        }
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
