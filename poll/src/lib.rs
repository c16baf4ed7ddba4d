//! A readiness poller: tells which file descriptors can be read or written without blocking.
//!
//! The worker loop of the runtime is its main caller; one [`Poller`] belongs to one worker, which alone calls
//! [`Poller::wait`], while any thread may register, and [`Poller::notify`] to interrupt the wait.
//!
//! ```
//! use osier_poll::{Events, Interest, Mode, Poller, Token};
//! use std::io::Write;
//! use std::os::unix::net::UnixStream;
//!
//! let poller = Poller::new()?;
//! let (mut ours, theirs) = UnixStream::pair()?;
//! poller.add(&theirs, Token(7), Interest::READABLE, Mode::Level)?;
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
//! # The back-end's contract
//! A back-end is one file that defines `Poller` and `Events` with this surface; it is chosen in one place, below.
//!
//! | function | what it must do |
//! |---|---|
//! | `Poller::new() -> io::Result<Poller>` | a close-on-exec poller with its wake-up inside |
//! | `capabilities(&self) -> Capabilities` | what it can do beyond the floor |
//! | `add(&self, fd, Token, Interest, Mode)` | register; registered already: `AlreadyExists` |
//! | `modify(&self, fd, Token, Interest, Mode)` | replace all three, re-arming a one-shot; not registered: `NotFound` |
//! | `delete(&self, fd)` | forget it: no later `wait` reports it; not registered: `NotFound` |
//! | `wait(&self, &mut Events, Option<Duration>)` | block until an event, a notification, a signal or the timeout |
//! | `notify(&self)` | end one `wait`, the running or the next one; many notifications may become one |
//!
//! - The floor is [`Mode::Oneshot`], level-triggered: an armed descriptor that is ready gives one event and is then
//!   disarmed until `modify`. A mode that [`Capabilities`] does not list is refused with `Unsupported`.
//! - A timeout is rounded up to what the system can measure, and never early.
//! - Errors and hang-ups ([`Ready::ERROR`], [`Ready::HUP`]) are reported whatever the interest.
//! - [`Token`]`(u64::MAX)` is the back-end's own.
#![forbid(unsafe_code)]

mod bits;
mod epoll;
mod eventfd;

use std::io;

/// The back-end of this build.
use epoll as backend;

pub use backend::{Events, Iter, Poller};
pub use bits::{Interest, Ready};

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
    /// [`Interest::PRIORITY`].
    pub priority: bool,
    /// [`Ready::READ_CLOSED`] and [`Ready::HUP`] are told apart from readable.
    pub read_closed: bool,
}

/// One descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The name it was registered under.
    pub token: Token,
    /// For what it is ready.
    pub readiness: Ready,
}
