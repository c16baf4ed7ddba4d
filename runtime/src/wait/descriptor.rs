//! Waits for descriptors that are not Osier's own sockets, one-shot and level-triggered.
//!
//! Each driver has a table with one entry per descriptor number, which lists all waits for it. The entry is armed for
//! the interests of its waits. An event disarms the entry, wakes the waits that it concerns and arms the entry for the
//! others. A cached edge would be wrong here, because other code may read the same description. The descriptor's flags
//! are never touched.
//!
//! An event wakes all waits of its descriptor, and each wait that goes on looks at all of them to arm the descriptor. So n waits for one
//! descriptor cost O(n²) an event. Waits for one descriptor are meant to be few.
//!
//! # Protocol
//! All of a table is under its one lock, which is taken after the lock of the driver's poller if both are needed.
//! Wakers are woken and dropped without the lock, because they may run anybody's code.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use osier_poll::{Interest, Mode, Poller, Ready, Token};
use smallvec::SmallVec;

use crate::wait::driver::{self, wake_each};
use crate::worker::faults::{self, Call};
use crate::worker::remote::Remote;

/// The bit of a token that belongs to a driver's table of descriptors. Other tokens are those of our sockets.
pub(crate) const FOREIGN: u64 = 1 << 63;

#[derive(Default)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<RawFd, Entry>,
    /// Tells a registration from a former one of the same number, whose event may still be on its way.
    generation: u32,
    /// The number of the next wait.
    next_wait: u64,
}

struct Entry {
    waits: SmallVec<[Wait; 1]>,
    generation: u32,
    /// Whether the poller knows the entry, perhaps disarmed.
    registered: bool,
    /// The interest that the entry is armed for.
    armed: Interest,
    /// A duplicate, where the descriptor itself is registered already as a socket of ours.
    double: Option<OwnedFd>,
}

/// The entry of a descriptor that belongs to a socket of ours now. Dropping it wakes its waits, so drop it without a
/// lock: wakers may run anybody's code.
pub(crate) struct Displaced(Entry);

impl Displaced {
    /// Whether the descriptor itself was registered with the poller. It may have been closed since.
    pub(crate) fn is_registered(&self) -> bool {
        self.0.registered && self.0.double.is_none()
    }
}

impl Drop for Displaced {
    fn drop(&mut self) {
        wake_each(self.0.waits.drain(..).filter_map(|wait| wait.waker));
    }
}

struct Wait {
    number: u64,
    interest: Interest,
    seen: Option<Ready>,
    waker: Option<Waker>,
}

/// A place in a driver's table. The owner of the descriptor keeps it, and leaves it before the descriptor is closed.
#[derive(Default)]
pub(crate) struct Place(Option<(&'static Remote, u64)>);

impl Place {
    /// Waits for the same descriptor and interest until it is ready. Then it begins anew.
    pub(crate) fn poll(
        &mut self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Ready>> {
        let entered = self.0;
        let known = entered.and_then(|(driver, number)| driver.descriptors.poll(driver, fd, number, cx.waker()));
        let seen = match known {
            Some(seen) => seen,
            // The first wait, or the driver has ended since.
            None => {
                let driver = driver::current()?;
                let number = driver.descriptors.number();
                self.0 = Some((driver, number));
                driver.descriptors.enter(driver, fd, interest, number, cx.waker())
            }
        };
        match seen.transpose() {
            None => Poll::Pending,
            Some(seen) => {
                self.leave(fd);
                Poll::Ready(seen)
            }
        }
    }

    pub(crate) fn leave(&mut self, fd: BorrowedFd<'_>) {
        if let Some((driver, number)) = self.0.take() {
            driver.descriptors.leave(driver, fd, number);
        }
    }
}

/// A wait for a descriptor: the leaf behind [`io::ready`](crate::io::ready). Once it has completed it begins anew.
pub(crate) struct Waiting<'fd> {
    fd: BorrowedFd<'fd>,
    interest: Interest,
    place: Place,
}

impl<'fd> Waiting<'fd> {
    pub(crate) fn new(fd: BorrowedFd<'fd>, interest: Interest) -> Waiting<'fd> {
        Waiting {
            fd,
            interest,
            place: Place::default(),
        }
    }
}

impl Future for Waiting<'_> {
    type Output = io::Result<Ready>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        let (fd, interest) = (self.fd, self.interest);
        self.place.poll(fd, interest, cx)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.place.leave(self.fd);
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn number(&self) -> u64 {
        let mut inner = self.lock();
        inner.next_wait += 1;
        inner.next_wait
    }

    /// Adds a wait, and arms the descriptor for all waits.
    fn enter(
        &self,
        driver: &Remote,
        fd: BorrowedFd<'_>,
        interest: Interest,
        number: u64,
        waker: &Waker,
    ) -> io::Result<Option<Ready>> {
        let wait = Wait {
            number,
            interest,
            seen: None,
            waker: Some(waker.clone()),
        };
        let entered = driver.with_poller(|poller| {
            let mut inner = self.lock();
            let entry = inner.entry(fd.as_raw_fd());
            entry.waits.push(wait);
            // A wait that was forgotten may be listed already, for a descriptor that had this number before.
            entry.distrust(poller);
            entry.arm(poller, fd)
        });
        entered.unwrap_or_else(|| Err(io::Error::other("the runtime that waits for this descriptor has ended")))?;
        Ok(None)
    }

    /// The readiness that the wait has seen. If there is none, leaves another waker and arms the descriptor for all
    /// waits. Returns `None` if the driver has ended since the wait was added.
    fn poll(
        &self,
        driver: &Remote,
        fd: BorrowedFd<'_>,
        number: u64,
        waker: &Waker,
    ) -> Option<io::Result<Option<Ready>>> {
        // Neither clone nor drop of a waker may run under a lock.
        let mut waker = Some(waker.clone());
        driver.with_poller(|poller| {
            let mut inner = self.lock();
            let entry = inner.entries.get_mut(&fd.as_raw_fd())?;
            let wait = entry.waits.iter_mut().find(|wait| wait.number == number)?;
            if let Some(seen) = wait.seen {
                return Some(Ok(Some(seen)));
            }
            std::mem::swap(&mut wait.waker, &mut waker);
            Some(entry.arm(poller, fd).map(|()| None))
        })?
    }

    fn leave(&self, driver: &Remote, fd: BorrowedFd<'_>, number: u64) {
        let left = driver.with_poller(|poller| {
            let mut inner = self.lock();
            let left = inner.take(fd.as_raw_fd(), number);
            if let Some((_, Some(entry))) = &left
                && entry.registered
            {
                // It fails only when the descriptor was closed meanwhile, and the registration with it.
                let _ = poller.delete(entry.double.as_ref().map_or(fd, |double| double.as_fd()));
            }
            left
        });
        drop(left);
    }

    /// Takes the entry of a descriptor that is a socket of ours now, out of the poller too. Its waits enter
    /// anew, with a duplicate. A wait that was forgotten is gone with its entry: a later wait would otherwise change the
    /// socket's registration for its own.
    pub(crate) fn displace(&self, poller: &Poller, fd: BorrowedFd<'_>) -> Option<Displaced> {
        let entry = self.lock().entries.remove(&fd.as_raw_fd())?;
        if let Some(double) = &entry.double {
            // It fails only if the poller does not know the descriptor.
            let _ = poller.delete(double.as_fd());
        }
        Some(Displaced(entry))
    }

    /// Takes an event: notes it for the waits that it concerns, and wakes all, so that the others arm the descriptor
    /// again.
    pub(crate) fn dispatch(&self, token: u64, ready: Ready) {
        let mut woken: SmallVec<[Waker; 4]> = SmallVec::new();
        if let Some(entry) = self.lock().entries.get_mut(&(token as u32 as RawFd))
            && u64::from(entry.generation) == token >> 32
        {
            entry.armed = Interest::NONE;
            for wait in &mut entry.waits {
                if concerns(wait.interest, ready) {
                    wait.seen = Some(ready);
                }
                woken.extend(wait.waker.take());
            }
        }
        wake_each(woken);
    }

    /// Wakes every wait, because the driver ends. They go on elsewhere.
    pub(crate) fn forget_all(&self) {
        let entries = std::mem::take(&mut self.lock().entries);
        let waits = entries.into_values().flat_map(|entry| entry.waits);
        wake_each(waits.filter_map(|wait| wait.waker));
    }
}

impl Inner {
    fn entry(&mut self, fd: RawFd) -> &mut Entry {
        let generation = &mut self.generation;
        self.entries.entry(fd).or_insert_with(|| {
            *generation = generation.wrapping_add(1) & (u32::MAX >> 1);
            Entry {
                waits: SmallVec::new(),
                generation: *generation,
                registered: false,
                armed: Interest::NONE,
                double: None,
            }
        })
    }

    /// Takes a wait out, and with the last one the entry.
    fn take(&mut self, fd: RawFd, number: u64) -> Option<(Wait, Option<Entry>)> {
        let entry = self.entries.get_mut(&fd)?;
        let at = entry.waits.iter().position(|wait| wait.number == number)?;
        let wait = entry.waits.remove(at);
        let empty = entry.waits.is_empty();
        Some((wait, if empty { self.entries.remove(&fd) } else { None }))
    }
}

impl Entry {
    /// Makes [`arm`](Entry::arm) ask the poller again, for the descriptor that has this number now.
    fn distrust(&mut self, poller: &Poller) {
        self.armed = Interest::NONE;
        if let Some(double) = self.double.take() {
            // It fails only if the poller does not know the descriptor.
            let _ = poller.delete(double.as_fd());
            self.registered = false;
        }
    }

    fn arm(&mut self, poller: &Poller, fd: BorrowedFd<'_>) -> io::Result<()> {
        let wanted = self.waits.iter().filter(|wait| wait.seen.is_none());
        let interest = wanted.fold(Interest::NONE, |all, wait| all | wait.interest);
        if self.registered && self.armed.contains(interest) && !self.armed.is_empty() {
            return Ok(());
        }
        faults::check(Call::Register)?;
        let token = Token(FOREIGN | u64::from(self.generation) << 32 | u64::from(fd.as_raw_fd() as u32));
        let known_as = self.double.as_ref().map_or(fd, |double| double.as_fd());
        if self.registered {
            match poller.modify(known_as, token, interest, Mode::Oneshot) {
                // Another descriptor of this number was closed while a forgotten wait for it stood here.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                modified => {
                    modified?;
                    self.armed = interest;
                    return Ok(());
                }
            }
        }
        match poller.add(known_as, token, interest, Mode::Oneshot) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let double = fd.try_clone_to_owned()?;
                poller.add(&double, token, interest, Mode::Oneshot)?;
                self.double = Some(double);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(refused()),
            added => added?,
        }
        (self.registered, self.armed) = (true, interest);
        Ok(())
    }
}

/// The error for a descriptor that epoll refuses.
pub(crate) fn refused() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the descriptor is always ready, as that of a file or a directory is: nothing can wait for it",
    )
}

fn concerns(interest: Interest, ready: Ready) -> bool {
    ready.intersects(Ready::HUP | Ready::ERROR)
        || interest.is_readable() && ready.intersects(Ready::READABLE | Ready::READ_CLOSED)
        || interest.is_writable() && ready.is_writable()
        || interest.is_priority() && ready.is_priority()
}
