//! Waits for descriptors that are not Osier's own sockets, one-shot and level-triggered.
//!
//! Each driver has a table with one entry per descriptor number, which lists all waits for it. The entry is armed for
//! the interests of its waits. An event disarms the entry, wakes the waits that it concerns and arms the entry for the
//! others. A cached edge would be wrong here, because other code may read the same description. The descriptor's flags
//! are never touched.
//!
//! An event wakes all waits of its descriptor, in the order in which they began. A wait knows its index in the entry, and the entry counts the
//! interests of its waits. So each wait that goes on costs the same, however many there are. An event also passes the free places before the
//! last wait: after many waits of which only the last one stays, they are as many as those waits.
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
    /// The waits by their indices, and nothing at free ones.
    waits: SmallVec<[Option<Wait>; 1]>,
    /// Indices that are free, and perhaps some that were: beyond the end, or taken again.
    free: Vec<u32>,
    /// The number of waits.
    count: usize,
    wanted: Wanted,
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
        wake_each(self.0.waits.drain(..).flatten().filter_map(|wait| wait.waker));
    }
}

struct Wait {
    number: u64,
    interest: Interest,
    seen: Option<Ready>,
    waker: Option<Waker>,
}

/// How many waits that have seen nothing want each part of an interest.
#[derive(Default)]
struct Wanted([usize; 3]);

const PARTS: [Interest; 3] = [Interest::READABLE, Interest::WRITABLE, Interest::PRIORITY];

impl Wanted {
    fn add(&mut self, interest: Interest) {
        for (count, part) in self.0.iter_mut().zip(PARTS) {
            *count += usize::from(interest.contains(part));
        }
    }

    fn remove(&mut self, interest: Interest) {
        for (count, part) in self.0.iter_mut().zip(PARTS) {
            *count -= usize::from(interest.contains(part));
        }
    }

    fn interest(&self) -> Interest {
        let wanted = self.0.iter().zip(PARTS).filter(|(count, _)| **count > 0);
        wanted.fold(Interest::NONE, |all, (_, part)| all | part)
    }
}

/// Where a wait is in its entry, and its number, which no other wait has.
#[derive(Clone, Copy)]
struct Key {
    index: u32,
    number: u64,
}

/// A place in a driver's table. The owner of the descriptor keeps it, and leaves it before the descriptor is closed.
#[derive(Default)]
pub(crate) struct Place(Option<(&'static Remote, Key)>);

impl Place {
    /// Waits for the same descriptor and interest until it is ready. Then it begins anew.
    pub(crate) fn poll(
        &mut self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Ready>> {
        let entered = self.0;
        let known = entered.and_then(|(driver, key)| driver.descriptors.poll(driver, fd, key, cx.waker()));
        let seen = match known {
            Some(seen) => seen,
            // The first wait, or the driver has ended since.
            None => {
                let driver = driver::current()?;
                self.0 = None;
                driver.descriptors.enter(driver, fd, interest, cx.waker(), &mut self.0)
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
        if let Some((driver, key)) = self.0.take() {
            driver.descriptors.leave(driver, fd, key);
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

    /// Adds a wait, whose place is `place` then, and arms the descriptor for all waits.
    fn enter(
        &self,
        driver: &'static Remote,
        fd: BorrowedFd<'_>,
        interest: Interest,
        waker: &Waker,
        place: &mut Option<(&'static Remote, Key)>,
    ) -> io::Result<Option<Ready>> {
        let waker = Some(waker.clone());
        let entered = driver.with_poller(|poller| {
            let mut inner = self.lock();
            inner.next_wait += 1;
            let wait = Wait {
                number: inner.next_wait,
                interest,
                seen: None,
                waker,
            };
            let entry = inner.entry(fd.as_raw_fd());
            *place = Some((driver, entry.put(wait)));
            // A wait that was forgotten may be listed already, for a descriptor that had this number before.
            entry.distrust(poller);
            entry.arm(poller, fd)
        });
        entered.unwrap_or_else(|| Err(io::Error::other("the runtime that waits for this descriptor has ended")))?;
        Ok(None)
    }

    /// The readiness that the wait has seen. If there is none, leaves another waker and arms the descriptor for all
    /// waits. Returns `None` if the driver has ended since the wait was added.
    fn poll(&self, driver: &Remote, fd: BorrowedFd<'_>, key: Key, waker: &Waker) -> Option<io::Result<Option<Ready>>> {
        // Neither clone nor drop of a waker may run under a lock.
        let mut waker = Some(waker.clone());
        driver.with_poller(|poller| {
            let mut inner = self.lock();
            let entry = inner.entries.get_mut(&fd.as_raw_fd())?;
            let wait = entry.wait(key)?.as_mut()?;
            if let Some(seen) = wait.seen {
                return Some(Ok(Some(seen)));
            }
            std::mem::swap(&mut wait.waker, &mut waker);
            Some(entry.arm(poller, fd).map(|()| None))
        })?
    }

    fn leave(&self, driver: &Remote, fd: BorrowedFd<'_>, key: Key) {
        let left = driver.with_poller(|poller| {
            let mut inner = self.lock();
            let left = inner.take(fd.as_raw_fd(), key);
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
        let mut woken: SmallVec<[(u64, Waker); 4]> = SmallVec::new();
        if let Some(entry) = self.lock().entries.get_mut(&(token as u32 as RawFd))
            && u64::from(entry.generation) == token >> 32
        {
            entry.armed = Interest::NONE;
            for wait in entry.waits.iter_mut().flatten() {
                if concerns(wait.interest, ready) && wait.seen.replace(ready).is_none() {
                    entry.wanted.remove(wait.interest);
                }
                woken.extend(wait.waker.take().map(|waker| (wait.number, waker)));
            }
        }
        // An index that was free is no place in the order.
        woken.sort_unstable_by_key(|(number, _)| *number);
        wake_each(woken.into_iter().map(|(_, waker)| waker));
    }

    /// Wakes every wait, because the driver ends. They go on elsewhere.
    pub(crate) fn forget_all(&self) {
        let entries = std::mem::take(&mut self.lock().entries);
        let waits = entries.into_values().flat_map(|entry| entry.waits);
        wake_each(waits.flatten().filter_map(|wait| wait.waker));
    }
}

impl Inner {
    fn entry(&mut self, fd: RawFd) -> &mut Entry {
        let generation = &mut self.generation;
        self.entries.entry(fd).or_insert_with(|| {
            *generation = generation.wrapping_add(1) & (u32::MAX >> 1);
            Entry {
                waits: SmallVec::new(),
                free: Vec::new(),
                count: 0,
                wanted: Wanted::default(),
                generation: *generation,
                registered: false,
                armed: Interest::NONE,
                double: None,
            }
        })
    }

    /// Takes a wait out, and with the last one the entry.
    fn take(&mut self, fd: RawFd, key: Key) -> Option<(Wait, Option<Entry>)> {
        let entry = self.entries.get_mut(&fd)?;
        let wait = entry.wait(key)?.take()?;
        let empty = entry.took(&wait, key.index);
        Some((wait, if empty { self.entries.remove(&fd) } else { None }))
    }
}

impl Entry {
    fn put(&mut self, wait: Wait) -> Key {
        self.count += 1;
        self.wanted.add(wait.interest);
        let number = wait.number;
        while let Some(index) = self.free.pop() {
            if let Some(place @ None) = self.waits.get_mut(index as usize) {
                *place = Some(wait);
                return Key { index, number };
            }
        }
        self.waits.push(Some(wait));
        let index = (self.waits.len() - 1) as u32;
        Key { index, number }
    }

    /// The place of a wait, if it is still there.
    fn wait(&mut self, key: Key) -> Option<&mut Option<Wait>> {
        let place = self.waits.get_mut(key.index as usize)?;
        place
            .as_ref()
            .is_some_and(|wait| wait.number == key.number)
            .then_some(place)
    }

    /// Notes that `wait` was taken from `index`. Returns whether it was the last one.
    fn took(&mut self, wait: &Wait, index: u32) -> bool {
        self.count -= 1;
        if wait.seen.is_none() {
            self.wanted.remove(wait.interest);
        }
        if self.count > 0 {
            self.free.push(index);
            while self.waits.last().is_some_and(Option::is_none) {
                self.waits.pop();
            }
        }
        self.count == 0
    }

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
        let interest = self.wanted.interest();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(number: u64, interest: Interest) -> Wait {
        Wait {
            number,
            interest,
            seen: None,
            waker: None,
        }
    }

    #[test]
    fn a_wait_is_found_at_its_index_until_it_leaves() {
        let mut inner = Inner::default();
        let entry = inner.entry(7);
        let keys: Vec<_> = (0..4)
            .map(|number| entry.put(wait(number, Interest::READABLE)))
            .collect();
        // One in the middle, then those at the end: their indices are in the list of free ones although they are beyond the end.
        for at in [1, 2, 3] {
            assert_eq!(inner.take(7, keys[at]).unwrap().0.number, at as u64);
            assert!(inner.take(7, keys[at]).is_none());
        }
        let entry = inner.entry(7);
        assert_eq!((entry.count, entry.waits.len()), (1, 1));
        let again: Vec<_> = (4..8)
            .map(|number| entry.put(wait(number, Interest::WRITABLE)))
            .collect();
        assert_eq!((entry.count, entry.waits.len()), (5, 5), "each has a place of its own");
        assert!(entry.wait(keys[1]).is_none(), "another has its index");
        for key in again.into_iter().chain([keys[0]]) {
            let (taken, entry) = inner.take(7, key).unwrap();
            assert_eq!((taken.number, entry.is_some()), (key.number, key.number == 0));
        }
        assert!(inner.entries.is_empty());
    }

    #[test]
    fn an_entry_wants_what_its_waits_want_that_have_seen_nothing() {
        let table = Table::default();
        let mut inner = table.lock();
        let entry = inner.entry(7);
        let both = entry.put(wait(0, Interest::READABLE | Interest::WRITABLE));
        let reader = entry.put(wait(1, Interest::READABLE));
        let token = u64::from(entry.generation) << 32 | 7;
        assert_eq!(entry.wanted.interest(), Interest::READABLE | Interest::WRITABLE);
        drop(inner);
        table.dispatch(token, Ready::WRITABLE);
        let wanted = || table.lock().entry(7).wanted.interest();
        assert_eq!(wanted(), Interest::READABLE);
        table.dispatch(token, Ready::WRITABLE);
        assert_eq!(wanted(), Interest::READABLE, "it counts once");
        table.lock().take(7, both);
        assert_eq!(wanted(), Interest::READABLE);
        table.lock().take(7, reader);
        assert_eq!(wanted(), Interest::NONE);
    }
}
