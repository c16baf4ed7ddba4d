//! Foreign descriptors: waiting for an fd that is not a socket of ours, one-shot and level-triggered.
//!
//! Each worker has a table, one entry per descriptor number with everybody who waits for it. The entry is armed for what
//! its waiters want; an event disarms it, wakes those whom it concerns and arms it for the rest. An edge cached from
//! earlier would be wrong here, because others may read the same description. The descriptor's flags are never touched.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Instant;

use osier_poll::{Interest, Mode, Ready, Token};

use crate::context;
use crate::source::FOREIGN;
use crate::wait;
use crate::worker::Worker;

#[derive(Default)]
pub(crate) struct Table {
    entries: RefCell<HashMap<RawFd, Entry>>,
    /// Tells a registration from a former one of the same number, whose event may still be on its way.
    generation: Cell<u32>,
}

struct Entry {
    waits: Vec<Rc<Wait>>,
    generation: u32,
    /// The poller knows it (perhaps disarmed).
    registered: bool,
    /// Stands for the descriptor where that itself is registered already: a socket of ours.
    double: Option<OwnedFd>,
}

struct Wait {
    interest: Interest,
    seen: Cell<Option<Ready>>,
    waker: RefCell<Option<Waker>>,
}

/// Waits on a fiber until `fd` is ready for something of `interest`, or has hung up or failed.
pub(crate) fn wait(fd: BorrowedFd<'_>, interest: Interest, deadline: Option<Instant>) -> io::Result<Ready> {
    struct Leave<'a>(BorrowedFd<'a>, Rc<Wait>);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            context::worker(|worker| worker.foreign.leave(worker, self.0, &self.1));
        }
    }
    let wait = Rc::new(Wait {
        interest,
        seen: Cell::new(None),
        waker: RefCell::new(None),
    });
    let _leave = Leave(fd, Rc::clone(&wait));
    let outcome = wait::wait(deadline, None, |cx| {
        if let Some(seen) = wait.seen.get() {
            return Poll::Ready(Ok(seen));
        }
        *wait.waker.borrow_mut() = Some(cx.waker().clone());
        match context::worker(|worker| worker.foreign.enter(worker, fd, &wait)) {
            Some(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    });
    outcome.unwrap_or_else(|stop| Err(stop.into()))
}

impl Table {
    /// Adds the wait, if it is new, and arms the descriptor for everybody.
    fn enter(&self, worker: &Worker, fd: BorrowedFd<'_>, wait: &Rc<Wait>) -> io::Result<()> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(fd.as_raw_fd()).or_insert_with(|| {
            let generation = self.generation.get().wrapping_add(1) & (u32::MAX >> 1);
            self.generation.set(generation);
            Entry {
                waits: Vec::new(),
                generation,
                registered: false,
                double: None,
            }
        });
        if !entry.waits.iter().any(|other| Rc::ptr_eq(other, wait)) {
            entry.waits.push(Rc::clone(wait));
        }
        entry.arm(worker, fd)
    }

    fn leave(&self, worker: &Worker, fd: BorrowedFd<'_>, wait: &Rc<Wait>) {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(&fd.as_raw_fd()) else {
            return;
        };
        entry.waits.retain(|other| !Rc::ptr_eq(other, wait));
        if entry.waits.is_empty()
            && let Some(entry) = entries.remove(&fd.as_raw_fd())
            && entry.registered
        {
            // It fails only when the descriptor was closed under us, and the registration with it.
            let _ = worker
                .poller
                .delete(entry.double.as_ref().map_or(fd, |double| double.as_fd()));
        }
    }

    /// Leaves the descriptor's own registration to a socket of ours; those who wait here go on with a duplicate.
    pub(crate) fn give_way(&self, worker: &Worker, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(&fd.as_raw_fd()) else {
            return Ok(());
        };
        if entry.registered && entry.double.is_none() {
            entry.double = Some(fd.try_clone_to_owned()?);
            worker.poller.delete(fd)?;
            entry.registered = false;
            entry.arm(worker, fd)?;
        }
        Ok(())
    }

    /// Takes an event: tells those whom it concerns, and wakes all, so that the others arm the descriptor again.
    pub(crate) fn dispatch(&self, token: u64, readiness: Ready) {
        let mut woken = Vec::new();
        if let Some(entry) = self.entries.borrow().get(&(token as u32 as RawFd))
            && u64::from(entry.generation) == token >> 32
        {
            for wait in &entry.waits {
                if concerns(wait.interest, readiness) {
                    wait.seen.set(Some(readiness));
                }
                woken.extend(wait.waker.borrow_mut().take());
            }
        }
        // Not under the borrow: a waker may run anybody's code.
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Entry {
    fn arm(&mut self, worker: &Worker, fd: BorrowedFd<'_>) -> io::Result<()> {
        let wanted = self.waits.iter().filter(|wait| wait.seen.get().is_none());
        let interest = wanted.fold(Interest::NONE, |all, wait| all | wait.interest);
        let token = Token(FOREIGN | u64::from(self.generation) << 32 | u64::from(fd.as_raw_fd() as u32));
        let known_as = self.double.as_ref().map_or(fd, |double| double.as_fd());
        if self.registered {
            return worker.poller.modify(known_as, token, interest, Mode::Oneshot);
        }
        match worker.poller.add(known_as, token, interest, Mode::Oneshot) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let double = fd.try_clone_to_owned()?;
                worker.poller.add(&double, token, interest, Mode::Oneshot)?;
                self.double = Some(double);
            }
            added => added?,
        }
        self.registered = true;
        Ok(())
    }
}

fn concerns(interest: Interest, readiness: Ready) -> bool {
    readiness.intersects(Ready::HUP | Ready::ERROR)
        || interest.is_readable() && readiness.intersects(Ready::READABLE | Ready::READ_CLOSED)
        || interest.is_writable() && readiness.is_writable()
        || interest.is_priority() && readiness.is_priority()
}
