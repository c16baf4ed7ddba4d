//! The public poller. It dispatches each call to one of the back-ends.

use crate::epoll::Epoll;
use crate::portable::Portable;
use crate::{Capabilities, Events, Interest, Mode, Token};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The back-end of a [`Poller`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Driver {
    /// The back-end on epoll(7), with all capabilities. Linux only.
    Epoll,
    /// The back-end on the `polling` crate. On Linux it needs the feature `portable`.
    Portable,
}

impl Driver {
    /// The driver that the environment variable `OSIER_DRIVER` names, `epoll` or `portable`. The default if it is unset or empty.
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
    /// The first driver that the system has.
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

/// A poller that watches descriptors. Every function may be called from any thread, even [`wait`](Poller::wait) from several at once.
/// Then one of them gets an event, unless its mode is [`Mode::Level`]. With [`Driver::Portable`] the waits take turns, and a
/// timeout counts from the start of the turn.
#[derive(Debug)]
#[doc(alias("Poll", "Selector"))]
pub struct Poller {
    backend: Backend,
}

impl Poller {
    /// A poller without registrations, with [`Driver::from_env`]. Its descriptors, two with epoll, are close-on-exec.
    ///
    /// # Errors
    /// The system's error, above all too many open files (`EMFILE`, `ENFILE`), and those of [`Driver::from_env`].
    pub fn new() -> io::Result<Poller> {
        Poller::with_driver(Driver::from_env()?)
    }

    /// A poller without registrations, with the given back-end.
    ///
    /// # Errors
    /// The system's error, and `Unsupported` if the system does not have the back-end.
    pub fn with_driver(driver: Driver) -> io::Result<Poller> {
        let backend = match driver {
            Driver::Epoll => Backend::Epoll(Epoll::new()?),
            Driver::Portable => Backend::Portable(Portable::new()?),
        };
        Ok(Poller { backend })
    }

    /// The back-end of this poller.
    pub fn driver(&self) -> Driver {
        match &self.backend {
            Backend::Epoll(_) => Driver::Epoll,
            Backend::Portable(_) => Driver::Portable,
        }
    }

    /// The capabilities of the back-end.
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
    /// - `AlreadyExists`: it is registered already; use [`modify`](Self::modify).
    /// - `PermissionDenied`: it cannot be watched (a regular file, a directory: those are always ready).
    /// - `InvalidInput`: the token is `u64::MAX`, or the descriptor is this poller.
    /// - `Unsupported`: the back-end does not have the mode.
    /// - `StorageFull`: the user's limit `/proc/sys/fs/epoll/max_user_watches` is reached.
    #[inline]
    #[doc(alias = "register")]
    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let token = token.for_user()?;
        match &self.backend {
            Backend::Epoll(epoll) => epoll.add(fd.as_fd(), token, interest, mode),
            Backend::Portable(portable) => portable.add(fd.as_fd(), token, interest, mode),
        }
    }

    /// Replaces token, interest and mode of a registered descriptor. If it is ready for the new interest, that gives an event, even in
    /// [`Mode::Edge`]. A [`Mode::Oneshot`] is armed again.
    ///
    /// # Errors
    /// - `NotFound`: it is not registered here.
    /// - `InvalidInput`: the token is `u64::MAX`.
    /// - `Unsupported`: the back-end does not have the mode.
    #[inline]
    #[doc(alias = "reregister")]
    pub fn modify(&self, fd: impl AsFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let token = token.for_user()?;
        match &self.backend {
            Backend::Epoll(epoll) => epoll.modify(fd.as_fd(), token, interest, mode),
            Backend::Portable(portable) => portable.modify(fd.as_fd(), token, interest, mode),
        }
    }

    /// Removes a registered descriptor. It may then be added again, to this or another poller. The caller must discard its events that
    /// a wait has already delivered.
    ///
    /// # Errors
    /// - `NotFound`: it is not registered here.
    #[inline]
    #[doc(alias("deregister", "remove"))]
    pub fn delete(&self, fd: impl AsFd) -> io::Result<()> {
        match &self.backend {
            Backend::Epoll(epoll) => epoll.delete(fd.as_fd()),
            Backend::Portable(portable) => portable.delete(fd.as_fd()),
        }
    }

    /// Waits until a descriptor is ready, [`notify`](Self::notify) is called, a signal handler has run or `timeout` is over. `events` then
    /// holds the new events and no others. Returns their number: zero after one of the last three, and with [`Driver::Portable`] now and
    /// then for no reason.
    ///
    /// With [`Driver::Epoll`] an interrupted wait (`EINTR`) returns without events: the caller knows best how much of its timeout is left,
    /// and what the signal has changed. [`Driver::Portable`] continues to wait.
    ///
    /// # Blocks the thread
    /// Up to `timeout`. None waits for ever, zero does not wait.
    ///
    /// # Precision
    /// The timeout is rounded up to the system's resolution (epoll: whole milliseconds), and never ends early. A timeout above 24.8 days may
    /// be cut to that.
    ///
    /// # Errors
    /// No error is expected.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        events.clear();
        match &self.backend {
            Backend::Epoll(epoll) => epoll.wait(&mut events.epoll.0, timeout)?,
            Backend::Portable(portable) => portable.wait(&mut events.others, events.capacity, timeout)?,
        }
        Ok(events.len())
    }

    /// Ends one [`wait`](Self::wait): the running one, or else the next. Any thread may call it. It makes at most one system call, and none if
    /// a notification is under way. The caller's earlier stores are visible after that wait.
    ///
    /// # Errors
    /// No error is expected.
    #[inline]
    #[doc(alias("Waker", "wake"))]
    pub fn notify(&self) -> io::Result<()> {
        match &self.backend {
            Backend::Epoll(epoll) => epoll.notify(),
            Backend::Portable(portable) => portable.notify(),
        }
    }

    /// The poller's own descriptor, to be watched by another poller. It is readable when [`wait`](Self::wait) has something to report. None
    /// if [`Driver::Portable`] uses poll(2), which has no descriptor.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backend {
            Backend::Epoll(epoll) => Some(epoll.fd()),
            Backend::Portable(portable) => portable.fd(),
        }
    }
}
