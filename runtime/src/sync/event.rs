//! The event: a signal that is set or not, and that fibers, threads and futures wait for.
//!
//! `osier_queue::Event` has the algorithm, with the rules of order and loss, and is model-checked. This module adds
//! the waits of fibers, threads and futures.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use osier_queue as queue;
use pin_project_lite::pin_project;

#[cfg(feature = "descriptors")]
use super::EventFd;
use super::{block, block_for};
use crate::wait::budget;

/// A signal that any thread sets, and that fibers, threads and futures wait for.
///
/// An event is set or unset. [`set`](Event::set) releases the longest waiter. Without waiters the event stays set;
/// the next wait then returns at once and unsets it. Setting a set event has no effect. So a signal is never lost,
/// and signals are not counted.
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
/// The effects before a `set` are visible to the waiter that it releases, even if several sets were merged into one.
///
/// A wait borrows the event, so an event cannot be moved or dropped while anybody waits. Share it in an `Arc`, a
/// `static` or a [`scope`](crate::scope()).
#[derive(Default)]
#[doc(alias("AutoResetEvent", "ManualResetEvent", "CancellationToken", "Parker"))]
pub struct Event(queue::Event);

impl Event {
    /// Makes an unset event that releases one waiter for each signal.
    #[inline]
    pub const fn new() -> Event {
        Event(queue::Event::new())
    }

    /// Makes an unset event that, once set, releases all waiters until it is [`reset`](Event::reset).
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

    /// Makes an unset event in a descriptor, for loops that poll descriptors and for signal handlers.
    ///
    /// # Errors
    ///
    /// The system's error if the process or the system has no descriptor left.
    #[cfg(feature = "descriptors")]
    pub fn with_fd() -> std::io::Result<EventFd> {
        EventFd::new()
    }

    /// Sets the event. Any thread, callback or destructor may call it. Never waits.
    ///
    /// If there are waiters, the longest one gets the signal at once. No later call can take it away, and the event
    /// is not set afterwards. A second `set` before that waiter has run is another signal.
    ///
    /// Signal handlers must not call it: see [`EventFd::signal_setter`].
    #[inline]
    pub fn set(&self) {
        self.0.set();
    }

    /// Unsets it. Returns whether it was set. A released waiter stays released.
    #[inline]
    pub fn reset(&self) -> bool {
        self.0.reset()
    }

    /// Whether it is set at this moment. A signal that a waiter has got does not count, even if that waiter has not
    /// run yet.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.is_set()
    }

    /// Takes the signal if the event is set. For a manual event, returns whether it is set. Never waits, and never
    /// overtakes a waiter.
    #[inline]
    pub fn try_wait(&self) -> bool {
        self.0.try_wait()
    }

    /// Waits for the signal and takes it.
    ///
    /// # Suspends
    ///
    /// Until the signal comes to this caller. Not at all if the event is set. Blocks the thread when called on a
    /// plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. A signal that this caller had already got goes to the next waiter, or sets the event again.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_async`](Event::wait_async) there.
    #[inline(always)]
    pub fn wait(&self) {
        let mut wait = pin!(self.wait_async());
        block(poll_fn(|cx| wait.as_mut().poll_signal(cx)));
    }

    /// Waits as [`wait`](Event::wait) does, for at most `timeout`. Returns whether there was a signal.
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
    /// The same as for [`wait`](Event::wait).
    ///
    /// # Cancellation
    ///
    /// The same as for [`wait`](Event::wait). A timeout loses no signal either.
    ///
    /// # Panics
    ///
    /// The panics of [`wait`](Event::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        block_for(timeout, self.wait_async()).is_some()
    }

    /// Waits as [`wait`](Event::wait) does, in a future. The first poll puts it in line, or a later one while the event is set
    /// and the [turn of the task is over](crate::spawn_future#fairness).
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

osier_queue::impl_debug!(Event, self => self.0);

pin_project! {
    /// The future of [`Event::wait_async`], which waits for a signal.
    ///
    /// # Cancellation
    ///
    /// Dropping it loses no signal: one that it has already got goes to the next waiter or stays.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct EventWait<'a> {
        event: &'a queue::Event,
        #[pin]
        waiter: queue::Waiter<'a>,
    }

    impl PinnedDrop for EventWait<'_> {
        #[inline(always)]
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.event.leave(this.waiter);
        }
    }
}

impl EventWait<'_> {
    /// Polls as the future does, for a fiber, which counts its calls itself.
    #[inline(always)]
    fn poll_signal(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.event.poll_wait(this.waiter, cx)
    }
}

impl Future for EventWait<'_> {
    type Output = ();

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        // It waits from its first poll on, so it also hears a manual event that is set and reset at once.
        budget::poll_if(cx, || this.event.is_set(), |cx| this.event.poll_wait(this.waiter, cx))
    }
}
