//! The back-end on Linux' epoll(7).
//!
//! Registration goes by open file description and number: a descriptor that is closed while a duplicate of it lives
//! stays registered, and nothing can remove it any more. Delete before closing what was ever duplicated.

use crate::eventfd::WakeUp;
use crate::{Capabilities, Event, Interest, Mode, Ready, Token};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Watches descriptors. Every function may be called from any thread, `wait` from one at a time.
///
/// It is itself a descriptor ([`AsFd`]) that is readable when [`wait`](Self::wait) has something to say, so it can stand
/// in another poller.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    wake_up: WakeUp,
}

impl Poller {
    /// A poller without registrations. Two descriptors, both close-on-exec.
    ///
    /// # Errors
    /// What epoll_create1(2) and eventfd(2) say, above all too many open files (`EMFILE`, `ENFILE`).
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake_up = WakeUp::new()?;
        epoll::add(
            &epoll,
            &wake_up,
            EventData::new_u64(Token::WAKE_UP.0),
            EventFlags::IN | EventFlags::ET,
        )?;
        Ok(Self { epoll, wake_up })
    }

    /// Everything: epoll knows all modes and interests.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            level: true,
            edge: true,
            priority: true,
            read_closed: true,
        }
    }

    /// Registers a descriptor. It stays registered until [`delete`](Self::delete), or until its last duplicate closes.
    ///
    /// # Errors
    /// - `AlreadyExists`: it is registered; use [`modify`](Self::modify).
    /// - `PermissionDenied`: it cannot be watched at all (a regular file, a directory: those are always ready).
    /// - `InvalidInput`: the token is `u64::MAX`, or the descriptor is this poller.
    /// - `StorageFull`: the user's limit `/proc/sys/fs/epoll/max_user_watches` is reached.
    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let data = EventData::new_u64(token.for_user()?.0);
        Ok(epoll::add(&self.epoll, fd, data, flags(interest, mode))?)
    }

    /// Replaces token, interest and mode of a registered descriptor. If it is ready for the new interest, that counts as
    /// an event, also in [`Mode::Edge`]; a [`Mode::Oneshot`] is armed again.
    ///
    /// # Errors
    /// - `NotFound`: it is not registered.
    /// - `InvalidInput`: the token is `u64::MAX`.
    pub fn modify(&self, fd: impl AsFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let data = EventData::new_u64(token.for_user()?.0);
        Ok(epoll::modify(&self.epoll, fd, data, flags(interest, mode))?)
    }

    /// Forgets a descriptor. Events that a wait has already delivered are the caller's to discard.
    ///
    /// # Errors
    /// - `NotFound`: it is not registered.
    pub fn delete(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits until something is ready, [`notify`](Self::notify) is called, a signal handler has run or `timeout` is
    /// over; `events` then holds what is ready, and only that. Returns how many: none after one of the last three.
    ///
    /// An interrupted wait (`EINTR`) returns without events and is not an error: the caller knows best how much of its
    /// timeout is left and what the signal has changed.
    ///
    /// # Blocks the thread
    /// Up to `timeout`; `None` is for ever, zero not at all.
    ///
    /// # Precision
    /// The timeout is rounded up to whole milliseconds, and never early. More than 24.8 days are taken as that.
    ///
    /// # Errors
    /// None is expected of a poller that exists.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        events.ready.clear();
        let timeout = timeout.map(whole_millis);
        match epoll::wait(&self.epoll, spare_capacity(&mut events.ready), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(at) = events
            .ready
            .iter()
            .position(|event| event.data.u64() == Token::WAKE_UP.0)
        {
            events.ready.swap_remove(at);
            self.wake_up.acknowledge();
        }
        Ok(events.ready.len())
    }

    /// Ends one [`wait`](Self::wait): the running one, or else the next. From any thread; at most one system call, none
    /// if a notification is under way already. What the caller stored before is visible after that wait.
    ///
    /// # Errors
    /// None is expected of a poller that exists.
    pub fn notify(&self) -> io::Result<()> {
        self.wake_up.notify()
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The room for events that one [`Poller::wait`] fills; to be used again and again.
pub struct Events {
    ready: Vec<epoll::Event>,
}

impl Events {
    /// Room for `capacity` events, at least one. What does not fit comes with the next wait; a notification takes one
    /// place.
    pub fn with_capacity(capacity: usize) -> Self {
        // epoll_wait(2) refuses more than INT_MAX / size_of::<epoll_event>().
        Self {
            ready: Vec::with_capacity(capacity.clamp(1, 1 << 20)),
        }
    }

    /// The events of the last wait.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            ready: self.ready.iter(),
        }
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// How many events fit.
    pub fn capacity(&self) -> usize {
        self.ready.capacity()
    }
}

impl<'a> IntoIterator for &'a Events {
    type Item = Event;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Iterates over [`Events`].
pub struct Iter<'a> {
    ready: std::slice::Iter<'a, epoll::Event>,
}

impl Iterator for Iter<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let event = self.ready.next()?;
        Some(Event {
            token: Token(event.data.u64()),
            readiness: readiness(event.flags),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ready.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

fn flags(interest: Interest, mode: Mode) -> EventFlags {
    let asked = [
        (Interest::READABLE, EventFlags::IN | EventFlags::RDHUP),
        (Interest::WRITABLE, EventFlags::OUT),
        (Interest::PRIORITY, EventFlags::PRI),
    ];
    let mut flags = match mode {
        Mode::Level => EventFlags::empty(),
        Mode::Edge => EventFlags::ET,
        Mode::Oneshot => EventFlags::ONESHOT,
    };
    for (bit, flag) in asked {
        flags.set(flag, interest.contains(bit));
    }
    flags
}

fn readiness(flags: EventFlags) -> Ready {
    let told = [
        (EventFlags::IN, Ready::READABLE),
        (EventFlags::OUT, Ready::WRITABLE),
        (EventFlags::RDHUP, Ready::READ_CLOSED),
        (EventFlags::HUP, Ready::HUP),
        (EventFlags::ERR, Ready::ERROR),
        (EventFlags::PRI, Ready::PRIORITY),
    ];
    let mut readiness = Ready::NONE;
    for (flag, bit) in told {
        if flags.contains(flag) {
            readiness |= bit;
        }
    }
    readiness
}

/// Rounded up, and cut to what epoll_wait(2) takes.
fn whole_millis(timeout: Duration) -> Timespec {
    let millis = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i64;
    Timespec {
        tv_sec: millis / 1000,
        tv_nsec: millis % 1000 * 1_000_000,
    }
}
