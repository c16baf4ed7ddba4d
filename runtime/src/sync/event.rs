//! The awaitable event: a signal that is set or not.
//!
//! `osier_queue::Event` keeps the promises about order and loss, and models check it. This module has its faces.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use osier_queue as queue;
use pin_project_lite::pin_project;

use super::{EventFd, block, block_for};

/// A signal, set from any thread and awaited from anywhere.
///
/// An event has two states. [`set`](Event::set) releases the one who waits longest; if nobody waits the event stays set, and
/// the next who waits goes on at once and leaves it unset. To set it again while it is set changes nothing. So signals are
/// never lost, and never counted.
///
/// | | `new` (auto-reset) | [`manual`](Event::manual) | [`with_fd`](Event::with_fd) |
/// |---|---|---|---|
/// | a set releases | one waiter | all waiters | one waiter |
/// | and stays set | if nobody waited | until [`reset`](Event::reset) | until one has seen it |
/// | waits and sets | in user space | in user space | through a descriptor, which any loop can poll |
///
/// ```
/// use osier::sync::Event;
///
/// static STARTED: Event = Event::new();
///
/// osier::run(|| {
///     let waiting = osier::spawn(|| STARTED.wait());
///     std::thread::spawn(|| STARTED.set()); // any thread will do
///     waiting.join().unwrap();
///     assert!(!STARTED.is_set(), "the waiter took the signal");
/// });
/// ```
///
/// The effects before a `set` are visible to the waiter that it releases, also where several sets became one.
///
/// An event is not moved while somebody waits, because a wait borrows it; share it in an `Arc`, a `static` or a
/// [`scope`](crate::scope()). For the same reason it is not dropped under its waiters.
pub struct Event(queue::Event);

impl Event {
    /// Not set; releases one waiter for each signal.
    #[inline]
    pub const fn new() -> Event {
        Event(queue::Event::new())
    }

    /// Not set; once set, releases everybody until it is [`reset`](Event::reset).
    ///
    /// ```
    /// use osier::sync::Event;
    /// let open = Event::manual();
    /// open.set();
    /// open.wait();
    /// open.wait(); // still
    /// open.reset();
    /// assert!(!open.try_wait());
    /// ```
    #[inline]
    pub const fn manual() -> Event {
        Event(queue::Event::manual())
    }

    /// Not set, and in a descriptor: for loops that poll descriptors, and to be set in a signal handler.
    ///
    /// # Errors
    ///
    /// When the process or the system has no descriptor left.
    pub fn with_fd() -> io::Result<EventFd> {
        EventFd::new()
    }

    /// Sets it: from any thread, a callback or a destructor; never waits.
    ///
    /// If somebody waits, the one who waits longest gets the signal, now and surely: a later call cannot take it away, and the
    /// event is not set afterwards. A second `set`, before that waiter has run, is the next signal.
    ///
    /// Not in a signal handler: see [`EventFd::signal_setter`].
    #[inline]
    pub fn set(&self) {
        self.0.set();
    }

    /// Unsets it. Returns whether it was set. A released waiter stays released.
    #[inline]
    pub fn reset(&self) -> bool {
        self.0.reset()
    }

    /// Whether it is set at this moment. A signal that a waiter has got, and did not see yet, does not count.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.is_set()
    }

    /// Takes the signal if the event is set; of a manual event, says whether it is set. Never waits, and never before those
    /// who wait.
    #[inline]
    pub fn try_wait(&self) -> bool {
        self.0.try_wait()
    }

    /// Waits for the signal and takes it.
    ///
    /// # Suspends
    ///
    /// Until it is this caller's turn; not at all if the event is set. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. A signal that this caller had got already goes to the next, or the event is set again.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_async`](Event::wait_async) there.
    #[inline]
    pub fn wait(&self) {
        block(self.wait_async());
    }

    /// As [`wait`](Event::wait), at most for `timeout`. Returns whether there was a signal.
    ///
    /// ```
    /// use osier::sync::Event;
    /// use std::time::Duration;
    /// let never = Event::new();
    /// assert!(!never.wait_timeout(Duration::from_millis(1)));
    /// ```
    ///
    /// # Suspends
    ///
    /// As [`wait`](Event::wait). Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// As [`wait`](Event::wait); the end of the time loses no signal either.
    ///
    /// # Panics
    ///
    /// The panics of [`wait`](Event::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        block_for(timeout, self.wait_async()).is_some()
    }

    /// Waits as [`wait`](Event::wait) does, in a future. It takes its place among the waiters when it is first polled.
    ///
    /// ```
    /// use osier::sync::Event;
    /// let event = Event::new();
    /// event.set();
    /// osier::block_on(async {
    ///     event.wait_async().await;
    /// });
    /// ```
    #[inline]
    pub fn wait_async(&self) -> EventWait<'_> {
        EventWait {
            event: &self.0,
            waiter: self.0.waiter(),
        }
    }
}

impl Default for Event {
    fn default() -> Event {
        Event::new()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pin_project! {
    /// Waits for a signal: the future of [`Event::wait_async`].
    ///
    /// # Cancellation
    ///
    /// Dropping it loses no signal: one that it had got, and was not polled to see, goes to the next or stays.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct EventWait<'a> {
        event: &'a queue::Event,
        #[pin]
        waiter: queue::Waiter<'a>,
    }

    impl PinnedDrop for EventWait<'_> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.event.leave(this.waiter);
        }
    }
}

impl Future for EventWait<'_> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.event.poll_wait(this.waiter, cx)
    }
}
