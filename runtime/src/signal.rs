//! Signals of the process, as something to wait for.
//!
//! [`ctrl_c`] waits for one. [`Signals`] keeps listening: it loses none between two waits, and its `recv_async` is an arm of
//! [`select!`](crate::select!). The page of [the crate](crate#graceful-shutdown) has a server that stops at SIGTERM.
//!
//! ```
//! use osier::signal::{Signal, Signals};
//!
//! let hangups = Signals::new([Signal::HUP])?;
//! osier::run(move || {
//!     osier::spawn(move || -> std::io::Result<()> {
//!         loop {
//!             hangups.recv()?;
//!             println!("reading the configuration again");
//!         }
//!     });
//! });
//! # std::io::Result::Ok(())
//! ```
//!
//! Handlers are shared with all users of the `signal-hook` family, so listeners and other libraries do not replace each
//! other's handlers.

// A listener is a word of bits and an eventfd. The handler sets the signal's bit and writes to the descriptor. A
// receiver takes a bit.
//
// # Protocol
// A bit is set before the descriptor is written to, and the descriptor is read only when no bit was found. A receiver
// that has read the descriptor and then takes one bit of several writes to it again. So bits imply a readable
// descriptor, and any number of receivers on any pollers may wait for it.
//
// # Safety
// This file may use `unsafe` to register handlers. A handler must do only what a signal handler may do: it makes one
// atomic read-modify-write and one write(2). It does not allocate, lock or panic.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use signal_hook_registry::SigId;

use crate::wait::flag::{self, Ends};
use crate::wait::leaf::{Io, Side};
use crate::wait::socket::{Direction, Moved, ShortRead, Watched};

/// A signal, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "SignalKind")]
pub struct Signal(i32);

macro_rules! signals {
    ($($name:ident: $doc:literal,)*) => {
        impl Signal {
            $(#[doc = $doc] pub const $name: Signal = Signal(rustix::process::Signal::$name.as_raw());)*
        }

        const NAMES: &[(Signal, &str)] = &[$((Signal::$name, concat!("SIG", stringify!($name))),)*];
    };
}

signals! {
    ALARM: "`SIGALRM`: a timer of alarm(2).",
    CHILD: "`SIGCHLD`: a child ended or stopped. ([`process`](crate::process) does not use it.)",
    CONT: "`SIGCONT`: the process goes on after it was stopped.",
    HUP: "`SIGHUP`: the terminal went away; to a daemon, usually: read the configuration again.",
    INT: "`SIGINT`: Ctrl-C.",
    QUIT: "`SIGQUIT`: Ctrl-\\\\.",
    TERM: "`SIGTERM`: end, please.",
    USR1: "`SIGUSR1`: what the program wants it to be.",
    USR2: "`SIGUSR2`: what the program wants it to be.",
    WINCH: "`SIGWINCH`: the terminal has another size.",
}

impl Signal {
    /// The signal of this number, which need not exist.
    pub const fn from_raw(number: i32) -> Signal {
        Signal(number)
    }

    /// Its number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(signal, _)| signal == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A listener for signals. From the first listener for a signal on, the signal's default action is off for good.
///
/// Each listener gets each of its signals. A signal that comes again before it was received coalesces with the former
/// one, as the kernel's pending signals do. The lowest number of several different signals is received first.
///
/// ```
/// use osier::signal::{Signal, Signals};
/// let signals = Signals::new([Signal::USR1, Signal::TERM])?;
/// osier::run(move || {
///     let waiting = osier::spawn(move || signals.recv());
///     # let pid = std::process::id().to_string();
///     osier::process::Command::new("sh").args(["-c", "kill -USR1 $0", &pid]).status()?;
///     assert_eq!(waiting.join().unwrap()?, Signal::USR1);
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// The listener is a [`Stream`](futures_core::Stream) too. Several fibers, threads and futures may share one; then one
/// of them gets a signal.
///
/// # Not promised
///
/// Dropping a listener restores nothing: a signal that ends the process by default is then ignored, since the handler
/// stays.
#[doc(alias("SignalKind", "signal_hook"))]
pub struct Signals {
    // Declared before the descriptor in `shared`: the waiter must not outlive it.
    side: Side,
    registered: Vec<SigId>,
    shared: Arc<SignalState>,
}

struct SignalState {
    /// Bit n - 1 for signal n.
    pending: AtomicU64,
    event: Watched,
    /// The descriptor that sets the flag, if it is not that of `event`.
    writer: Option<OwnedFd>,
}

impl Signals {
    /// Begins to listen for these signals.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a signal that does not exist or that cannot be listened for (`SIGKILL`, `SIGSTOP`; `SIGSEGV`,
    /// `SIGBUS`, `SIGFPE`, `SIGILL`, which no receiver could handle afterwards); too many open files.
    pub fn new(signals: impl IntoIterator<Item = Signal>) -> io::Result<Signals> {
        let Ends { reader, writer } = flag::new()?;
        let mut listener = Signals {
            side: Side::default(),
            registered: Vec::new(),
            shared: Arc::new(SignalState {
                pending: AtomicU64::new(0),
                event: Watched::new(reader, ShortRead::SaysNothing),
                writer,
            }),
        };
        for signal in signals {
            let number = signal.as_raw();
            // The runtime has a handler for SIGBUS, as for SIGSEGV: a stack has overflowed, or the program is wrong.
            let is_fault = number == rustix::process::Signal::BUS.as_raw();
            if !(1..=64).contains(&number) || is_fault || signal_hook_registry::FORBIDDEN.contains(&number) {
                let error =
                    format!("{signal} cannot be listened for: choose one that is sent, such as SIGTERM or SIGUSR1");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
            }
            let shared = Arc::clone(&listener.shared);
            // SAFETY: all that it does is allowed in a signal handler (see the head of this file). The `Arc` in it is
            // dropped by `unregister`, never by the handler.
            let id = unsafe { signal_hook_registry::register(number, move || shared.note(number)) };
            let id =
                id.map_err(|error| io::Error::new(error.kind(), format!("{signal} cannot be listened for: {error}")))?;
            listener.registered.push(id);
        }
        Ok(listener)
    }

    /// Waits for the next signal.
    ///
    /// # Suspends
    ///
    /// Until there is one. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call. No signal is lost.
    ///
    /// # Errors
    ///
    /// The error of a cancelled call, and `WouldBlock` on a worker but not on a fiber.
    pub fn recv(&self) -> io::Result<Signal> {
        let shared = &*self.shared;
        shared
            .event
            .io(Direction::Read, || None, |fd| shared.receive(fd.of_system()))
    }

    /// [`recv`](Signals::recv) as a future. Dropping it loses no signal.
    pub fn recv_async(&self) -> impl Future<Output = io::Result<Signal>> + Send {
        let shared = &*self.shared;
        Io::new(&shared.event, Direction::Read, |fd| shared.receive(fd.of_system()))
    }

    /// Takes a signal that has come already.
    pub fn try_recv(&self) -> Option<Signal> {
        self.shared.take().map(|(signal, _)| signal)
    }
}

impl SignalState {
    /// Notes a signal. Runs in the signal handler.
    fn note(&self, number: i32) {
        self.pending.fetch_or(1 << (number - 1), Ordering::SeqCst);
        self.ring();
    }

    /// Makes the descriptor readable. Runs in the signal handler too. The counter cannot overflow before the receivers
    /// are 2^64 signals behind.
    fn ring(&self) {
        match &self.writer {
            Some(writer) => flag::set(writer),
            None => flag::set(self.event.fd().of_system()),
        }
    }

    /// Takes a signal, and tells whether there are more.
    fn take(&self) -> Option<(Signal, bool)> {
        let without_lowest = |bits: u64| (bits != 0).then(|| bits & (bits - 1));
        let before = self
            .pending
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, without_lowest)
            .ok()?;
        let number = before.trailing_zeros() as i32 + 1;
        Some((Signal(number), before & (before - 1) != 0))
    }

    fn receive(&self, fd: BorrowedFd<'_>) -> io::Result<Moved<Signal>> {
        if let Some((signal, _)) = self.take() {
            return Ok(Moved::all(signal));
        }
        loop {
            rustix::io::read(fd, &mut [0; 8])?;
            if let Some((signal, more)) = self.take() {
                if more {
                    self.ring();
                }
                return Ok(Moved::all(signal));
            }
        }
    }
}

impl futures_core::Stream for Signals {
    type Item = io::Result<Signal>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Signal>>> {
        let this = &mut *self;
        let shared = &*this.shared;
        let receiving = this
            .side
            .poll_io(&shared.event, Direction::Read, cx, |fd| shared.receive(fd.of_system()));
        receiving.map(Some)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook_registry::unregister(id);
        }
    }
}

osier_queue::impl_debug!(Signals, self => { .. });

/// Waits for the next Ctrl-C (`SIGINT`), from this call on. A signal between two calls may be missed: keep a
/// [`Signals`] then.
///
/// # Suspends
///
/// Until it comes. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// The error of a cancelled call.
///
/// # Errors
///
/// The errors of [`Signals::new`] and [`Signals::recv`].
///
/// # Examples
///
/// ```no_run
/// osier::run(|| {
///     let work = osier::spawn(|| osier::sleep(std::time::Duration::from_secs(3600)));
///     osier::signal::ctrl_c()?;
///     work.cancel();
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
pub fn ctrl_c() -> io::Result<()> {
    Signals::new([Signal::INT])?.recv().map(drop)
}

/// Waits as [`ctrl_c`] does, in a future. It listens from its first poll on.
///
/// # Errors
///
/// The errors of [`ctrl_c`].
pub async fn ctrl_c_async() -> io::Result<()> {
    Signals::new([Signal::INT])?.recv_async().await.map(drop)
}
