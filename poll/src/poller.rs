//! The public poller: one of the back-ends.

use crate::epoll::Epoll;
use crate::portable::Portable;
use crate::{Capabilities, Events, Interest, Mode, Token};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Which back-end a [`Poller`] stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Driver {
    /// epoll(7), all capabilities; Linux only.
    Epoll,
    /// The `polling` crate.
    Portable,
}

impl Driver {
    /// The driver that the environment variable `OSIER_DRIVER` names, `epoll` or `portable`; unset or empty, the default.
    ///
    /// # Errors
    /// - `InvalidInput`: the variable names no driver.
    pub fn from_env() -> io::Result<Driver> {
        let named = std::env::var_os("OSIER_DRIVER").unwrap_or_default();
        match named.to_str() {
            Some("") => Ok(Driver::default()),
            Some("epoll") => Ok(Driver::Epoll),
            Some("portable") => Ok(Driver::Portable),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("OSIER_DRIVER={named:?} names no driver: choose epoll or portable"),
            )),
        }
    }
}

impl Default for Driver {
    /// The first that the system has.
    fn default() -> Driver {
        match Epoll::IS_THERE {
            true => Driver::Epoll,
            false => Driver::Portable,
        }
    }
}

#[derive(Debug)]
enum Backend {
    Epoll(Epoll),
    Portable(Portable),
}

/// Watches descriptors. Every function may be called from any thread, also [`wait`](Poller::wait) from several at once. One of
/// them gets an event, unless its mode is [`Mode::Level`]. On [`Driver::Portable`] waits take turns, and a timeout counts
/// from the turn on.
#[derive(Debug)]
pub struct Poller {
    backend: Backend,
}

impl Poller {
    /// A poller without registrations, on [`Driver::from_env`]. Its descriptors, two on epoll, are close-on-exec.
    ///
    /// # Errors
    /// What the system says, above all too many open files (`EMFILE`, `ENFILE`); those of [`Driver::from_env`].
    pub fn new() -> io::Result<Poller> {
        Poller::with_driver(Driver::from_env()?)
    }

    /// The same on a given back-end.
    ///
    /// # Errors
    /// As [`new`](Self::new), and `Unsupported` where the system does not have it.
    pub fn with_driver(driver: Driver) -> io::Result<Poller> {
        let backend = match driver {
            Driver::Epoll => Backend::Epoll(Epoll::new()?),
            Driver::Portable => Backend::Portable(Portable::new()?),
        };
        Ok(Poller { backend })
    }

    /// What it stands on.
    pub fn driver(&self) -> Driver {
        match &self.backend {
            Backend::Epoll(_) => Driver::Epoll,
            Backend::Portable(_) => Driver::Portable,
        }
    }

    /// What the back-end can do with descriptors.
    pub fn capabilities(&self) -> Capabilities {
        match &self.backend {
            Backend::Epoll(epoll) => epoll.capabilities(),
            Backend::Portable(portable) => portable.capabilities(),
        }
    }

    /// Registers a descriptor. It stays registered until [`delete`](Self::delete), or, with
    /// [`Capabilities::forgets_closed`], until its last duplicate closes. It may be registered in several pollers at once.
    ///
    /// # Errors
    /// - `AlreadyExists`: it is registered; use [`modify`](Self::modify).
    /// - `PermissionDenied`: it cannot be watched at all (a regular file, a directory: those are always ready).
    /// - `InvalidInput`: the token is `u64::MAX`, or the descriptor is this poller.
    /// - `Unsupported`: the back-end does not have the mode.
    /// - `StorageFull`: the user's limit `/proc/sys/fs/epoll/max_user_watches` is reached.
    #[inline]
    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let token = token.for_user()?;
        match &self.backend {
            Backend::Epoll(epoll) => epoll.add(fd.as_fd(), token, interest, mode),
            Backend::Portable(portable) => portable.add(fd.as_fd(), token, interest, mode),
        }
    }

    /// Replaces token, interest and mode of what is registered. If it is ready for the new interest, that counts as
    /// an event, also in [`Mode::Edge`]; a [`Mode::Oneshot`] is armed again.
    ///
    /// # Errors
    /// - `NotFound`: it is not registered here.
    /// - `InvalidInput`: the token is `u64::MAX`.
    /// - `Unsupported`: the back-end does not have the mode.
    #[inline]
    pub fn modify(&self, fd: impl AsFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let token = token.for_user()?;
        match &self.backend {
            Backend::Epoll(epoll) => epoll.modify(fd.as_fd(), token, interest, mode),
            Backend::Portable(portable) => portable.modify(fd.as_fd(), token, interest, mode),
        }
    }

    /// Forgets what is registered; it may then be added again, here or to another poller. Events that a wait has already
    /// delivered are the caller's to discard.
    ///
    /// # Errors
    /// - `NotFound`: it is not registered here.
    #[inline]
    pub fn delete(&self, fd: impl AsFd) -> io::Result<()> {
        match &self.backend {
            Backend::Epoll(epoll) => epoll.delete(fd.as_fd()),
            Backend::Portable(portable) => portable.delete(fd.as_fd()),
        }
    }

    /// Waits until something is ready, [`notify`](Self::notify) is called, a signal handler has run or `timeout` is
    /// over; `events` then holds what is ready, and only that. Returns how many: none after one of the last three, and now
    /// and then on [`Driver::Portable`] for no reason.
    ///
    /// An interrupted wait (`EINTR`) returns without events on [`Driver::Epoll`]: the caller knows best how much of its
    /// timeout is left and what the signal has changed. [`Driver::Portable`] goes on waiting.
    ///
    /// # Blocks the thread
    /// Up to `timeout`; `None` is for ever, zero not at all.
    ///
    /// # Precision
    /// The timeout is rounded up to what the system measures in (epoll: whole milliseconds), and never early. More than
    /// 24.8 days may be taken as that.
    ///
    /// # Errors
    /// None is expected of a poller that exists.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        events.clear();
        match &self.backend {
            Backend::Epoll(epoll) => epoll.wait(&mut events.epoll.0, timeout)?,
            Backend::Portable(portable) => portable.wait(&mut events.others, events.capacity, timeout)?,
        }
        Ok(events.len())
    }

    /// Ends one [`wait`](Self::wait): the running one, or else the next. From any thread; at most one system call, none
    /// if a notification is under way already. What the caller stored before is visible after that wait.
    ///
    /// # Errors
    /// None is expected of a poller that exists.
    #[inline]
    pub fn notify(&self) -> io::Result<()> {
        match &self.backend {
            Backend::Epoll(epoll) => epoll.notify(),
            Backend::Portable(portable) => portable.notify(),
        }
    }

    /// The poller's own descriptor, which is readable when [`wait`](Self::wait) has something to say, so that it can stand
    /// in another poller. `None` where [`Driver::Portable`] stands on poll(2), which has none.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backend {
            Backend::Epoll(epoll) => Some(epoll.fd()),
            Backend::Portable(portable) => portable.fd(),
        }
    }
}
