//! The event in a descriptor: an eventfd that any event loop can poll and that a signal handler can set.
//!
//! ```text
//!   set, SignalSetter::set ── write(2) ──▶ counter > 0 ── read(2) ──▶ 0       set: readable        unset: not readable
//!   waiters ── turn (a fair queue) ──▶ the first one polls the descriptor with the loop that it runs on, and reads
//! ```
//!
//! # Protocol
//! - The kernel's counter is the whole state. User space has no copy of it that could differ. A set is one write.
//!   Taking the signal is one read, which takes all sets at once. The descriptor is readable exactly while the event
//!   is set. A write to a full counter fails, and the event is set anyway.
//! - Waiters queue for the turn, an [`osier_queue::Event`] that is set while nobody has the turn. Only the holder of
//!   the turn reads, or waits until the descriptor is readable. So waiters are served in order of arrival, and a
//!   signal wakes one of them. A wait that ends or is dropped gives the turn back.
//! - [`EventFd::try_wait`] needs no turn, and may take a signal before the waiters. So may a foreign loop that polls
//!   the descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use osier_queue as queue;
use pin_project_lite::pin_project;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::io::{WhenReady, readable_async};
use crate::wait::{self, budget, flag};

/// An auto-reset [`Event`](super::Event) in a descriptor, made by [`Event::with_fd`](super::Event::with_fd).
///
/// The descriptor is readable exactly while the event is set. A foreign event loop can therefore poll it beside its
/// own descriptors and then call [`try_wait`](EventFd::try_wait). The runtime's own waiters poll it with the worker's
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
/// Each set and each wait is a system call. Without a foreign loop or a signal handler, an [`Event`](super::Event) is
/// many times faster.
pub struct EventFd {
    /// The descriptor to read and poll. Non-blocking.
    fd: Arc<OwnedFd>,
    /// The descriptor to write, shared with the setters. With eventfds it is the same as the one to read.
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

    /// Sets the event: the descriptor becomes readable. Any thread may call it. Never waits.
    pub fn set(&self) {
        flag::set(&*self.writer);
    }

    /// Unsets the event: the descriptor is no longer readable. Returns whether it was set.
    pub fn reset(&self) -> bool {
        self.try_wait()
    }

    /// Whether the event is set: whether its descriptor is readable.
    pub fn is_set(&self) -> bool {
        let mut fds = [PollFd::new(&*self.fd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&at_once))) == Ok(1)
    }

    /// Takes the signal if the event is set. Never waits, and may overtake waiters.
    pub fn try_wait(&self) -> bool {
        flag::take(&*self.fd)
    }

    /// Waits for the signal and takes it. Waiters are served in order of arrival.
    ///
    /// # Suspends
    ///
    /// Until it is this caller's turn and the event is set. Not at all if the event is set and nobody waits. Blocks
    /// the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call. The signal stays for the next waiter.
    ///
    /// # Errors
    ///
    /// An error if the descriptor cannot be waited for, because the system's limit of watched descriptors is reached.
    /// `WouldBlock` on a worker outside of a fiber, if it would have to wait.
    pub fn wait(&self) -> io::Result<()> {
        let mut leaf = pin!(self.wait_async());
        wait::wait(None, None, |cx| leaf.as_mut().poll(cx))?
    }

    /// Waits as [`wait`](EventFd::wait) does, in a future. The first poll puts it in line, or a later one in a task whose
    /// [turn is over](crate::spawn_future#fairness).
    pub fn wait_async(&self) -> EventFdWait<'_> {
        EventFdWait {
            event: self,
            turn: self.turn.waiter(),
            has_turn: false,
            readable: readable_async(&*self.fd),
        }
    }

    /// Makes a handle that sets the event, also in a signal handler.
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

osier_queue::impl_debug!(EventFd, self => { fd: self.fd.as_raw_fd(), set: self.is_set() });

/// A handle that sets an [`EventFd`]. It is the only part of this module that a signal handler may use.
///
/// It keeps the descriptor open, even after the event is dropped. Dropping the last handle closes the descriptor,
/// which a signal handler may do, and frees memory, which a signal handler must not do: keep one handle elsewhere.
#[derive(Clone)]
pub struct SignalSetter(Arc<OwnedFd>);

impl SignalSetter {
    /// Sets the event with one write(2). It is async-signal-safe: it takes no lock, allocates nothing and does not
    /// panic. On Linux it makes the system call directly and leaves `errno` alone.
    pub fn set(&self) {
        flag::set(&*self.0);
    }
}

osier_queue::impl_debug!(SignalSetter, self => { fd: self.0.as_raw_fd() });

pin_project! {
    /// The future of [`EventFd::wait_async`], which waits for a signal.
    ///
    /// # Cancellation
    ///
    /// Dropping it loses no signal: it takes a signal only in the poll that returns ready.
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
        budget::poll(cx, |cx| {
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
        })
    }
}

osier_queue::impl_debug!(EventFdWait<'a>, self => { event: self.event, has_turn: self.has_turn, .. });
