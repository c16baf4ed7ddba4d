//! The event in a descriptor: an eventfd that any loop can poll, and that a signal handler can set.
//!
//! ```text
//!   set, SignalSetter::set ── write(2) ──▶ counter > 0 ── read(2) ──▶ 0       set: readable        unset: not readable
//!   waiters ── turn (a fair queue) ──▶ the first one polls the descriptor with whichever loop it runs on, and reads
//! ```
//!
//! # Protocol
//! - The kernel's counter is the whole state. There is no copy of it in user space that could be ahead or behind: a set is
//!   one write, taking the signal is one read, which reads all sets at once, and the descriptor is readable exactly while the
//!   event is set. A write that finds the counter full fails, and the event is set anyway.
//! - Waiters queue for the turn, an [`osier_queue::Event`] that is set while nobody has it. Its holder alone reads, or waits
//!   until the descriptor is readable; so they are served in the order they came, and a signal wakes one of them. The turn is
//!   given back when the wait ends or is dropped.
//! - [`EventFd::try_wait`] needs no turn. It may take a signal before those who wait: so may a loop that polls the
//!   descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{fmt, io};

use osier_queue as queue;
use pin_project_lite::pin_project;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::io::{WhenReady, readable_async};
use crate::wait::{self, flag};

/// An auto-reset [`Event`](super::Event) in a descriptor, made by [`Event::with_fd`](super::Event::with_fd).
///
/// The descriptor is readable exactly while the event is set. So a loop of somebody else's can poll it, beside its own
/// descriptors, and [`try_wait`](EventFd::try_wait) for the signal; the runtime's waiters do the same through the worker's
/// poller.
///
/// ```
/// use osier::sync::Event;
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// let event = Event::with_fd()?;
/// std::thread::scope(|s| {
///     s.spawn(|| event.set());
///     poll(&mut [PollFd::new(&event, PollFlags::IN)], None)?; // a loop that knows nothing of us
///     assert!(event.try_wait());
///     assert!(!event.is_set());
///     std::io::Result::Ok(())
/// })
/// # ?; std::io::Result::Ok(())
/// ```
///
/// A set is a system call here, and so is each wait; where no foreign loop and no signal handler is concerned, an
/// [`Event`](super::Event) is many times faster.
pub struct EventFd {
    /// Non-blocking.
    fd: Arc<OwnedFd>,
    /// Shared with the setters; the same descriptor where there are eventfds.
    writer: Arc<OwnedFd>,
    /// Set while no waiter has the turn.
    turn: queue::Event,
}

impl EventFd {
    pub(super) fn new() -> io::Result<EventFd> {
        let (fd, writer) = flag::new()?.shared();
        let turn = queue::Event::new();
        turn.set();
        Ok(EventFd { fd, writer, turn })
    }

    /// Sets it: the descriptor becomes readable. From any thread; never waits.
    pub fn set(&self) {
        flag::set(&*self.writer);
    }

    /// Unsets it, and the descriptor is not readable any more. Returns whether it was set.
    pub fn reset(&self) -> bool {
        self.try_wait()
    }

    /// Whether it is set, that is, its descriptor readable.
    pub fn is_set(&self) -> bool {
        let mut fds = [PollFd::new(&*self.fd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match rustix::event::poll(&mut fds, Some(&at_once)) {
                Err(Errno::INTR) => {}
                polled => return polled == Ok(1),
            }
        }
    }

    /// Takes the signal if it is set. Never waits; it may come before those who do.
    pub fn try_wait(&self) -> bool {
        flag::take(&*self.fd)
    }

    /// Waits for the signal and takes it, in the order of the waiters.
    ///
    /// # Suspends
    ///
    /// Until it is this caller's turn and the event is set; not at all if it is and nobody waits. # Blocks the thread when
    /// called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call; the signal stays for the next.
    ///
    /// # Errors
    ///
    /// When the descriptor cannot be waited for: the system's limit of watched descriptors is reached. `WouldBlock` where it
    /// would have to wait on a worker but not on a fiber.
    pub fn wait(&self) -> io::Result<()> {
        let mut leaf = pin!(self.wait_async());
        wait::wait(None, None, |cx| leaf.as_mut().poll(cx))?
    }

    /// Waits as [`wait`](EventFd::wait) does, in a future. It takes its place among the waiters when it is first polled.
    pub fn wait_async(&self) -> EventFdWait<'_> {
        EventFdWait {
            event: self,
            turn: self.turn.waiter(),
            has_turn: false,
            readable: readable_async(&*self.fd),
        }
    }

    /// A handle that sets the event, also in a signal handler.
    ///
    /// ```
    /// # #[cfg(target_os = "linux")] {
    /// use osier::sync::Event;
    /// use std::sync::OnceLock;
    /// use osier::sync::SignalSetter;
    ///
    /// static ASKED_TO_END: OnceLock<SignalSetter> = OnceLock::new();
    ///
    /// extern "C" fn on_signal(_: i32) {
    ///     if let Some(setter) = ASKED_TO_END.get() {
    ///         setter.set();
    ///     }
    /// }
    ///
    /// let event = Event::with_fd()?;
    /// ASKED_TO_END.get_or_init(|| event.signal_setter());
    /// on_signal(15); // as the kernel would call it
    /// event.wait()?;
    /// # }
    /// # std::io::Result::Ok(())
    /// ```
    pub fn signal_setter(&self) -> SignalSetter {
        SignalSetter(Arc::clone(&self.writer))
    }

    fn pass_turn(&self) {
        self.turn.set();
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl fmt::Debug for EventFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventFd")
            .field("fd", &self.fd.as_raw_fd())
            .field("set", &self.is_set())
            .finish()
    }
}

/// Sets an [`EventFd`], also in a signal handler, where it is all that may be done of this module.
///
/// It keeps the descriptor open, beyond the event if need be. Dropping the last handle closes it, which is allowed in a
/// handler too, but freeing the memory is not: keep one elsewhere.
#[derive(Clone)]
pub struct SignalSetter(Arc<OwnedFd>);

impl SignalSetter {
    /// Sets the event: one write(2). Async-signal-safe: takes no lock, allocates nothing, does not panic and leaves `errno`
    /// alone on Linux, where the system call is made directly.
    pub fn set(&self) {
        flag::set(&*self.0);
    }
}

impl fmt::Debug for SignalSetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SignalSetter").field(&self.0.as_raw_fd()).finish()
    }
}

pin_project! {
    /// Waits for a signal: the future of [`EventFd::wait_async`].
    ///
    /// # Cancellation
    ///
    /// Dropping it loses no signal: it takes one only in the poll that is ready.
    #[must_use = "futures do nothing unless polled"]
    pub struct EventFdWait<'a> {
        event: &'a EventFd,
        #[pin]
        turn: queue::Waiter<'a>,
        has_turn: bool,
        readable: WhenReady<'a>,
    }

    impl PinnedDrop for EventFdWait<'_> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.event.turn.leave(this.turn);
            if *this.has_turn {
                this.event.pass_turn();
            }
        }
    }
}

impl Future for EventFdWait<'_> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        if !*this.has_turn {
            ready!(this.event.turn.poll_wait(this.turn, cx));
            *this.has_turn = true;
        }
        let outcome = loop {
            if this.event.try_wait() {
                break Ok(());
            }
            if let Err(error) = ready!(Pin::new(&mut *this.readable).poll(cx)) {
                break Err(error);
            }
        };
        *this.has_turn = false;
        this.event.pass_turn();
        Poll::Ready(outcome)
    }
}

impl fmt::Debug for EventFdWait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventFdWait")
            .field("event", &self.event)
            .field("has_turn", &self.has_turn)
            .finish_non_exhaustive()
    }
}
