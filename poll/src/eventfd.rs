//! The poller's wake-up: an eventfd. Any thread writes it to end a wait.
//!
//! It is registered edge-triggered, and every write is an edge, whatever the counter holds. So the eventfd is never read, and a wake-up
//! costs one write instead of a write and a read. The counter would be full after 2^64 - 2 wake-ups, which takes 500 years at
//! 10^9 a second. Then a write returns `EAGAIN`, and the code below would still not block.
//!
//! # Protocol
//! The notifier that sets `pending` writes. The waiter clears it after it has seen the event. A notifier that finds it set need not
//! write: a wait is about to end. Everything that this notifier stored before is seen after that wait, because both sides use a
//! read-modify-write (AcqRel).

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct WakeUp {
    fd: OwnedFd,
    /// Whether the eventfd was written, or is about to be, and no wait has seen it yet.
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

    /// Records that the waiter has seen the event, so the next notifier writes again.
    pub(crate) fn acknowledge(&self) {
        self.pending.swap(false, Ordering::AcqRel);
    }

    /// Ends one wait, with one write for all notifiers since the last.
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
