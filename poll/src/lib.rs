//! A readiness poller: tells which file descriptors can be read or written without blocking.
//!
//! One thread calls [`Poller::wait`], while any thread may register descriptors and call [`Poller::notify`] to interrupt the
//! wait. There is no readiness but of descriptors: state that a thread sets, and a poller waits for, is in an eventfd, which
//! is readable while it is set (osier's `Event::with_fd`).
//!
//! ```
//! use osier_poll::{Events, Interest, Mode, Poller, Token};
//! use std::io::Write;
//! use std::os::unix::net::UnixStream;
//!
//! let poller = Poller::new()?;
//! let (mut ours, theirs) = UnixStream::pair()?;
//! poller.add(&theirs, Token(7), Interest::READABLE, Mode::Oneshot)?;
//!
//! ours.write_all(b"hello")?;
//! let mut events = Events::with_capacity(64);
//! poller.wait(&mut events, None)?;
//! let event = events.iter().next().expect("theirs is readable");
//! assert_eq!(event.token, Token(7));
//! assert!(event.readiness.is_readable());
//!
//! poller.delete(&theirs)?;
//! # std::io::Result::Ok(())
//! ```
//!
//! # Drivers
//! | [`Driver`] | runs on | tested on |
//! |---|---|---|
//! | `Epoll` | Linux: epoll(7) and an eventfd | Linux |
//! | `Portable` | what the `polling` crate knows: epoll, kqueue, event ports, poll(2) | Linux, with epoll and with poll(2); kqueue is type-checked only |
//!
//! [`Poller::new`] takes the one that the environment variable `OSIER_DRIVER` names (`epoll` or `portable`), and without
//! it the first that the system has.
//!
//! # The back-end's contract
//! A back-end is one file with this surface; `poller.rs` is the only place that tells them apart.
//!
//! | function | what it must do |
//! |---|---|
//! | `new() -> io::Result<Self>` | a close-on-exec poller with its wake-up inside |
//! | `capabilities(&self) -> Capabilities` | what it can do beyond the floor |
//! | `add(&self, fd, Token, Interest, Mode)` | register; registered already: `AlreadyExists` |
//! | `modify(&self, fd, Token, Interest, Mode)` | replace all three, re-arming a one-shot; not registered: `NotFound` |
//! | `delete(&self, fd)` | forget it: no later `wait` reports it; not registered: `NotFound` |
//! | `wait(&self, room, Option<Duration>)` | block until an event, a notification or the timeout; a signal may end it too |
//! | `notify(&self)` | end one `wait`, the running or the next one; many notifications may become one |
//! | `fd(&self) -> Option<BorrowedFd>` | a descriptor that is readable when `wait` has something to say, if there is one |
//!
//! - The floor is [`Mode::Oneshot`], level-triggered: an armed descriptor that is ready gives one event and is then
//!   disarmed until `modify`. A mode that [`Capabilities`] does not list is refused with `Unsupported`.
//! - Without [`Capabilities::read_closed`] the end of what a peer writes shows as readable, to who asks for that.
//! - A timeout is rounded up to what the system can measure, and never early.
//! - Errors and hang-ups ([`Ready::ERROR`], [`Ready::HUP`]) are reported whatever the interest. (kqueue does so only to
//!   who asks for something, as readable and writable.)
//! - Only what can block is registered: a regular file or a directory is refused with `PermissionDenied`.
//! - [`Token`]`(u64::MAX)` is the back-end's own.
#![deny(unsafe_code)]

mod bits;
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "no_epoll.rs")]
mod epoll;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod eventfd;
mod events;
mod poller;
mod portable;

use std::io;

pub use bits::{Interest, Ready};
pub use events::{Events, Iter};
pub use poller::{Driver, Poller};

/// What the caller calls a registered descriptor; comes back with its events. `Token(u64::MAX)` is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

impl Token {
    /// The back-end's own wake-up; never shown.
    const WAKE_UP: Token = Token(u64::MAX);

    /// # Errors
    /// `InvalidInput` for the reserved token.
    fn for_user(self) -> io::Result<Token> {
        if self == Token::WAKE_UP {
            let message = "token u64::MAX is reserved for the poller's own wake-up: choose another";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(self)
    }
}

/// When a registered descriptor gives events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In every wait, as long as it is ready.
    Level,
    /// Once whenever it becomes ready, or readier: more bytes come, more room. What was ready before the registration
    /// counts as having just become so. The caller must read or write until it would block.
    Edge,
    /// Once, if it is or becomes ready; then not before the next [`Poller::modify`].
    Oneshot,
}

/// What a back-end can do beyond one-shot level notification of reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// [`Mode::Level`].
    pub level: bool,
    /// [`Mode::Edge`].
    pub edge: bool,
    /// [`Interest::PRIORITY`] wakes; without this it is taken and ignored.
    pub priority: bool,
    /// [`Ready::READ_CLOSED`] and [`Ready::HUP`] are told apart from readable.
    pub read_closed: bool,
    /// A descriptor that is closed, and with it the last duplicate, leaves by itself. Without this it must be deleted
    /// before it is closed, or else its description may stay open, its peer without word, and its number taken.
    pub forgets_closed: bool,
}

/// One descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The name it was registered under.
    pub token: Token,
    /// For what it is ready.
    pub readiness: Ready,
}

/// The program of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
