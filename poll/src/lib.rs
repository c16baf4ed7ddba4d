//! A readiness poller: it reports which file descriptors can be read or written without blocking.
//!
//! Any thread may make any call. Usually one thread calls [`Poller::wait`], while others register descriptors, or interrupt the wait by
//! [`Poller::notify`]. The poller knows no other readiness than that of descriptors. For state that a thread sets and a poller waits for, use an eventfd, which is
//! readable while it is set (osier's `Event::with_fd`).
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
//! [`Poller::new`] uses the driver that the environment variable `OSIER_DRIVER` names (`epoll` or `portable`). Without the variable it
//! uses the first driver that the system has.
//!
//! # Rules of every driver
//!
//! - The minimum is [`Mode::Oneshot`], level-triggered: an armed descriptor that is ready gives one event and is then disarmed until
//!   `modify`. A mode that is not in [`Capabilities`] is refused with `Unsupported`.
//! - Without [`Capabilities::read_closed`], the end of the peer's sending direction is reported as readable, if that is in the interest.
//! - A timeout is rounded up to the system's resolution, and never ends early.
//! - Errors and hang-ups ([`Ready::ERROR`], [`Ready::HUP`]) are reported whatever the interest. (kqueue reports them only for a
//!   non-empty interest, as readable and writable.)
//! - Only descriptors that can block are registered. A regular file or a directory is refused with `PermissionDenied`.
//! - [`Token`]`(u64::MAX)` is reserved for the back-end.
//!
//! # Features and requirements
//!
//! On Linux the feature `portable`, on by default, adds the driver `Portable`. Rust 1.95; a 64-bit Unix. `unsafe` is denied but for the two
//! files that call the system. The workers of the runtime `osier` wait by this crate.

// # The back-end's contract
// A back-end is one file with these items. Only `poller.rs` and `events.rs` tell the back-ends apart.
//
// | item | contract |
// |---|---|
// | `IS_THERE: bool` | epoll only: whether the system has it |
// | `new() -> io::Result<Self>` | creates a close-on-exec poller that contains its wake-up |
// | `capabilities(&self) -> Capabilities` | says what it can do beyond the minimum |
// | `add(&self, fd, Token, Interest, Mode)` | registers; `AlreadyExists` if registered already |
// | `modify(&self, fd, Token, Interest, Mode)` | replaces all three and re-arms a one-shot; `NotFound` if not registered |
// | `delete(&self, fd)` | removes: no later `wait` reports it; `NotFound` if not registered |
// | `wait(&self, &mut Vec<_>, room, Option<Duration>)` | blocks until an event, a notification or the timeout; a signal may end it too. It fills at most `room` places; epoll has no such parameter, and fills the spare capacity |
// | `notify(&self)` | ends one `wait`, the running or the next one; many notifications may become one |
// | `fd(&self) -> Option<BorrowedFd>` | returns a descriptor that is readable when `wait` has something to report, if there is one; epoll always has, and returns a plain `BorrowedFd` |
// | `event(&RawEvent) -> Event` | epoll only, a function of the file: translates an event that the kernel wrote |
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(all(unix, target_pointer_width = "64")))]
compile_error!(
    "osier runs on 64-bit Unix systems only: on Windows, build in WSL 2 or in a Linux container; a program for more systems leaves \
     osier out for this target"
);

mod bits;
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "no_epoll.rs")]
mod epoll;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod eventfd;
mod events;
mod poller;
#[cfg_attr(
    all(any(target_os = "linux", target_os = "android"), not(feature = "portable")),
    path = "no_portable.rs"
)]
mod portable;

use std::io;

pub use bits::{Interest, Ready};
pub use events::{Events, Iter};
pub use poller::{Driver, Poller};

/// The caller's name for a registered descriptor. Its events carry it. `Token(u64::MAX)` is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "key")]
pub struct Token(pub u64);

impl Token {
    /// The token of the back-end's own wake-up, which is never reported.
    const WAKE_UP: Token = Token(u64::MAX);

    /// Checks a caller's token.
    ///
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

/// The times at which a registered descriptor gives events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Reported in every wait while it is ready.
    Level,
    /// Reported once whenever it becomes ready, or readier: more bytes, more room. A descriptor that is ready when it is registered counts as
    /// having just become so. The caller must read or write until it would block.
    Edge,
    /// Reported once, when it is or becomes ready. The next [`Poller::modify`] arms it again.
    Oneshot,
}

/// Capabilities of a back-end beyond one-shot level-triggered events for reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether it has [`Mode::Level`].
    pub level: bool,
    /// Whether it has [`Mode::Edge`].
    pub edge: bool,
    /// Whether [`Interest::PRIORITY`] gives events. Otherwise it is accepted and ignored.
    pub priority: bool,
    /// Whether [`Ready::READ_CLOSED`] and [`Ready::HUP`] are reported apart from readable.
    pub read_closed: bool,
    /// Whether a descriptor is removed when its last duplicate closes. Otherwise it must be deleted before it is closed, or the
    /// open file may stay open, its peer may not notice, and its number may be taken.
    pub forgets_closed: bool,
}

/// A ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Token that it was registered with.
    pub token: Token,
    /// Its readiness.
    pub readiness: Ready,
}

/// The program of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
