//! The reaper: one thread that waits for all children that were dropped while they ran, so that none becomes a
//! zombie.
//!
//! The first such child starts the thread. It ends when there are no more such children. Where it cannot start, or a child has no pidfd, the
//! lookout (`lookout.rs`) has the children.
//!
//! # Protocol
//! A lock guards `ORPHANS`. The thread holds the lock while it takes new children and while it decides to end. So a
//! new child is either seen by the running thread or starts another one. An eventfd interrupts the thread's poll(2). Where poll(2) fails, the
//! thread looks again after a while.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::exit::Exit;
use super::lookout;
use crate::wait::flag;
use crate::worker::service::start_service;

/// The time between two looks at the children while poll(2) fails, or has nothing new to say.
const WITHOUT_POLL: Duration = Duration::from_millis(50);

struct Orphan {
    child: Child,
    pidfd: OwnedFd,
}

struct Orphans {
    new: Vec<Orphan>,
    /// The eventfd that interrupts the thread. `None` while no thread runs.
    alarm: Option<Arc<OwnedFd>>,
}

static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans {
    new: Vec::new(),
    alarm: None,
});

fn lock() -> MutexGuard<'static, Orphans> {
    ORPHANS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Reaps the child when it ends.
pub(super) fn adopt(child: Child, exit: &Exit) {
    let pidfd = match exit {
        Exit::Pidfd(fd) => fd.try_clone().ok(),
        Exit::Lookout(_) => return lookout::adopt(child),
    };
    let Some(pidfd) = pidfd else {
        return lookout::adopt(child);
    };
    let mut orphans = lock();
    orphans.new.push(Orphan { child, pidfd });
    if let Some(alarm) = &orphans.alarm {
        return flag::set(alarm);
    }
    match start() {
        Ok(alarm) => orphans.alarm = Some(alarm),
        // No descriptor, or no thread.
        Err(_) => {
            let new = std::mem::take(&mut orphans.new);
            drop(orphans);
            new.into_iter().for_each(|orphan| lookout::adopt(orphan.child));
        }
    }
}

fn start() -> std::io::Result<Arc<OwnedFd>> {
    let (alarm, writer) = flag::new()?.shared();
    start_service("osier-reaper", move || reap(&alarm))?;
    Ok(writer)
}

fn reap(alarm: &OwnedFd) {
    let mut orphans: Vec<Orphan> = Vec::new();
    let mut ended = 0;
    loop {
        let reaped;
        {
            let mut shared = lock();
            orphans.append(&mut shared.new);
            let count = orphans.len();
            // An error means that other code has waited for the child.
            orphans.retain_mut(|orphan| matches!(orphan.child.try_wait(), Ok(None)));
            if orphans.is_empty() {
                shared.alarm = None;
                return;
            }
            reaped = count - orphans.len();
        }
        // A debugger that traces a child hears of its end before this process does.
        if reaped < ended {
            thread::sleep(WITHOUT_POLL);
        }
        let fds = orphans.iter().map(|orphan| orphan.pidfd.as_fd());
        let fds = fds.chain([alarm.as_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match rustix::event::poll(&mut fds, None) {
            // An interrupted poll(2) does no harm: the loop looks at every child.
            Ok(_) | Err(Errno::INTR) => {}
            // More children than the process may have descriptors now, or no memory.
            Err(_) => thread::sleep(WITHOUT_POLL),
        }
        let children = &fds[..orphans.len()];
        ended = children.iter().filter(|child| !child.revents().is_empty()).count();
        flag::take(alarm);
    }
}
