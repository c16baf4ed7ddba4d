//! The back-end on the `polling` crate: epoll, kqueue, event ports or poll(2), whichever the system has.
//!
//! A table of registrations hides the differences between these systems. The contract's minimum is one event for each arming, and none
//! of a former arming:
//! - kqueue arms the two directions apart, so a one-shot descriptor can give two events. The second is dropped.
//! - poll(2) reports a hang-up of a disarmed descriptor in every wait. Such a descriptor is taken out until it is armed again.
//! - poll(2) returns all events at once. Events beyond the caller's room are kept for the next wait.
//! - Each arming has its own key, so an event of a former arming, or of a deleted descriptor, is recognized by its key.
//!
//! # Protocol
//! The waiting thread holds `turn` for a whole wait. Registering threads, and the waiting one after the system has answered, hold
//! `table` for moments. Lock order: `turn` before `table`. A registration and its change in the system are made under `table`
//! together. Both may be held while `polling` takes its own locks; it calls no code of this crate.
//!
//! # Safety
//! `polling` demands that a descriptor is deleted before it is closed, and [`Poller::add`](crate::Poller::add) cannot know when its
//! caller closes one. The reason for the demand is that a wait uses a registered number again:
//! - On epoll, kqueue and event ports the kernel keeps the registration. It holds the open file, not the number, and drops the
//!   registration when that file is closed. Later calls of `polling` use the descriptor that `modify` or `delete` has borrowed. So a
//!   close too early costs at worst a stale number in a set of numbers (see `forgets_closed`).
//! - On poll(2) the number itself is used. So each registration owns a duplicate there, which lives until it is deleted or the
//!   poller, with all its waits, has ended.
#![allow(unsafe_code)]

use crate::{Capabilities, Event, Interest, Mode, Ready, Token};
use polling::PollMode;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Portable {
    poller: polling::Poller,
    /// Whether a notification is under way, as in `eventfd.rs`. (The flag inside `polling` is cleared without a release.)
    pending: AtomicBool,
    /// Events of the system that were not handed over yet. The waiting thread holds the lock.
    turn: Mutex<Answer>,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Answer {
    events: polling::Events,
    handed_over: usize,
}

#[derive(Debug, Default)]
struct Table {
    /// Key of the present arming, by descriptor number.
    keys: HashMap<RawFd, usize>,
    registrations: HashMap<usize, Registration>,
    last_key: usize,
}

#[derive(Debug)]
struct Registration {
    token: Token,
    interest: Interest,
    mode: Mode,
    /// Whether the event of a one-shot is still to come.
    armed: bool,
    /// Duplicate that poll(2) uses.
    double: Option<OwnedFd>,
    /// Whether it is hidden from poll(2) until it is armed again.
    parked: bool,
}

impl Portable {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            poller: polling::Poller::new()?,
            pending: AtomicBool::new(false),
            turn: Mutex::new(Answer {
                events: polling::Events::with_capacity(std::num::NonZeroUsize::MIN),
                handed_over: 0,
            }),
            table: Mutex::default(),
        })
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities {
            level: self.poller.supports_level(),
            edge: self.poller.supports_edge(),
            priority: self.is_epoll(),
            read_closed: false,
            forgets_closed: self.is_epoll(),
        }
    }

    fn is_epoll(&self) -> bool {
        cfg!(any(target_os = "linux", target_os = "android")) && self.poller.supports_edge()
    }

    /// Whether the system is poll(2), which gets a list of numbers: the only one with level but not edge triggering.
    fn is_poll(&self) -> bool {
        self.poller.supports_level() && !self.poller.supports_edge()
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        refuse_files(fd)?;
        let poll_mode = self.poll_mode(mode)?;
        let mut table = lock(&self.table);
        if self.is_poll() && table.keys.contains_key(&fd.as_raw_fd()) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let registration = Registration {
            token,
            interest,
            mode,
            armed: true,
            double: self.is_poll().then(|| fd.try_clone_to_owned()).transpose()?,
            parked: false,
        };
        let key = table.fresh_key();
        let added = self.add_to_system(registration.known_as(fd), wish(key, interest), poll_mode);
        if added
            .as_ref()
            .is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists)
        {
            // kqueue's set of numbers contains it in spite of the error.
            let _ = self.poller.delete(registration.known_as(fd));
        }
        added?;
        // The system may have dropped a registration of this number by itself.
        table.take(fd);
        table.put(fd, key, registration);
        Ok(())
    }

    pub(crate) fn modify(&self, fd: BorrowedFd<'_>, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let poll_mode = self.poll_mode(mode)?;
        let mut table = lock(&self.table);
        let key = table.fresh_key();
        let Some((old_key, mut registration)) = table.take(fd) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let known_as = registration.known_as(fd);
        let modified = match registration.parked {
            true => self.add_to_system(known_as, wish(key, interest), poll_mode),
            false => self.poller.modify_with_mode(known_as, wish(key, interest), poll_mode),
        };
        match modified {
            Ok(()) => {
                registration.token = token;
                registration.interest = interest;
                registration.mode = mode;
                registration.armed = true;
                registration.parked = false;
                table.put(fd, key, registration);
            }
            // The number was registered for another descriptor, which was closed.
            Err(ref error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => table.put(fd, old_key, registration),
        }
        modified
    }

    pub(crate) fn delete(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut table = lock(&self.table);
        let Some((_, registration)) = table.take(fd) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        match registration.parked {
            true => Ok(()),
            false => self.poller.delete(registration.known_as(fd)),
        }
    }

    /// Writes at most `room` events into `ready`.
    pub(crate) fn wait(&self, ready: &mut Vec<Event>, room: usize, timeout: Option<Duration>) -> io::Result<()> {
        let mut turn = lock(&self.turn);
        if turn.handed_over == turn.events.len() {
            self.ask(&mut turn, room, timeout)?;
        }
        let mut table = lock(&self.table);
        let Answer { events, handed_over } = &mut *turn;
        for event in events.iter().skip(*handed_over).take(room) {
            *handed_over += 1;
            ready.extend(self.accept(&mut table, event));
        }
        Ok(())
    }

    /// Waits for the system's next events.
    fn ask(&self, turn: &mut Answer, room: usize, mut timeout: Option<Duration>) -> io::Result<()> {
        // The notification and the timer of `polling` take a place each.
        let wanted = std::num::NonZeroUsize::MIN.saturating_add(room + 1);
        if turn.events.capacity() < wanted {
            turn.events = polling::Events::with_capacity(wanted);
        }
        turn.handed_over = 0;
        let mut looked = !self.is_poll();
        loop {
            turn.events.clear();
            match self.poller.wait(&mut turn.events, timeout) {
                // poll(2): the notifier has announced a write and not yet written. The notification has ended this wait, but `polling` still takes
                // it for pending until a wait succeeds.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => timeout = Some(Duration::ZERO),
                Err(error) => return Err(error),
                Ok(count) => {
                    let notified = self.pending.swap(false, Ordering::AcqRel);
                    if looked || count > 0 || !notified {
                        return Ok(());
                    }
                    // poll(2): a pending notification keeps it from looking at the descriptors.
                    looked = true;
                    timeout = Some(Duration::ZERO);
                }
            }
        }
    }

    /// Translates an event. None unless it belongs to the present arming.
    fn accept(&self, table: &mut Table, event: polling::Event) -> Option<Event> {
        let registration = table.registrations.get_mut(&event.key)?;
        let was_armed = registration.armed;
        registration.armed &= registration.mode != Mode::Oneshot;
        let gone = event.is_interrupt() || event.is_err() == Some(true);
        if !registration.armed
            && (gone || !was_armed)
            && let Some(double) = &registration.double
        {
            registration.parked |= self.poller.delete(double).is_ok();
        }
        was_armed.then(|| Event {
            token: registration.token,
            readiness: readiness(event, registration.interest),
        })
    }

    fn add_to_system(&self, fd: BorrowedFd<'_>, wish: polling::Event, mode: PollMode) -> io::Result<()> {
        // SAFETY: where the system goes by number, `fd` is the registration's own duplicate, which is dropped after it is
        // deleted (`delete`, `accept`), or with the table, when the waits that use numbers are over. Elsewhere
        // the kernel ends the registration with the open file. (Module header.)
        unsafe { self.poller.add_with_mode(fd.as_raw_fd(), wish, mode) }
    }

    pub(crate) fn notify(&self) -> io::Result<()> {
        if self.pending.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.poller
            .notify()
            .inspect_err(|_| self.pending.store(false, Ordering::Release))
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        // Only where `polling` has one.
        #[cfg(all(
            not(polling_test_poll_backend),
            any(
                target_os = "linux",
                target_os = "android",
                target_os = "illumos",
                target_os = "solaris",
                target_vendor = "apple",
                target_os = "freebsd",
                target_os = "netbsd",
                target_os = "openbsd",
                target_os = "dragonfly",
            )
        ))]
        return Some(self.poller.as_fd());
        #[allow(unreachable_code, reason = "the cfg above decides")]
        None
    }

    fn poll_mode(&self, mode: Mode) -> io::Result<PollMode> {
        let (poll_mode, supported) = match mode {
            Mode::Oneshot => (PollMode::Oneshot, true),
            Mode::Level => (PollMode::Level, self.poller.supports_level()),
            Mode::Edge => (PollMode::Edge, self.poller.supports_edge()),
        };
        if !supported {
            let message = format!("this poller does not know Mode::{mode:?}: see Poller::capabilities");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        Ok(poll_mode)
    }
}

impl Table {
    fn fresh_key(&mut self) -> usize {
        loop {
            self.last_key = self.last_key.wrapping_add(1);
            // `polling` reserves the last number. Keys repeat where usize has 32 bits.
            if self.last_key != usize::MAX && !self.registrations.contains_key(&self.last_key) {
                return self.last_key;
            }
        }
    }

    fn put(&mut self, fd: BorrowedFd<'_>, key: usize, registration: Registration) {
        self.keys.insert(fd.as_raw_fd(), key);
        self.registrations.insert(key, registration);
    }

    fn take(&mut self, fd: BorrowedFd<'_>) -> Option<(usize, Registration)> {
        let key = self.keys.remove(&fd.as_raw_fd())?;
        Some((key, self.registrations.remove(&key)?))
    }
}

impl Registration {
    /// The descriptor that the system has registered.
    fn known_as<'a>(&'a self, fd: BorrowedFd<'a>) -> BorrowedFd<'a> {
        self.double.as_ref().map_or(fd, |double| double.as_fd())
    }
}

fn wish(key: usize, interest: Interest) -> polling::Event {
    let mut wish = polling::Event::new(key, interest.is_readable(), interest.is_writable()).with_interrupt();
    wish.set_priority(interest.is_priority());
    wish
}

fn readiness(event: polling::Event, interest: Interest) -> Ready {
    let (hup, error) = (event.is_interrupt(), event.is_err() == Some(true));
    let bits = [
        // Urgent data makes it readable too, for any interest.
        (
            event.readable && (interest.is_readable() || hup || error),
            Ready::READABLE,
        ),
        (
            event.writable && (interest.is_writable() || hup || error),
            Ready::WRITABLE,
        ),
        (event.is_priority() && interest.is_priority(), Ready::PRIORITY),
        (hup, Ready::HUP),
        (error, Ready::ERROR),
    ];
    let bits = bits.into_iter().filter(|(is_so, _)| *is_so);
    bits.fold(Ready::NONE, |all, (_, bit)| all | bit)
}

/// Refuses the descriptors that epoll refuses. Only some systems do that themselves.
fn refuse_files(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::fs::FileType;
    let what = match FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        _ => return Ok(()),
    };
    let message = format!("{what} is always ready and cannot be watched");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
