//! A bare notification: one waits, another says "look again".
//!
//! The state and the queue are `tokio::sync::Notify`: a word, and an intrusive list in order of arrival. A waiter that is
//! dropped between being chosen by `notify_one` and its next poll passes the notification on.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::block;

/// A notification that tells a waiter to look again. It carries no value and no condition.
///
/// [`notify_one`](Notify::notify_one) with nobody waiting is remembered, once: the next wait returns at once.
/// [`notify_all`](Notify::notify_all) is not: it is for those who wait already.
///
/// ```
/// use osier::sync::Notify;
///
/// let ready = Notify::new();
/// osier::run(|| {
///     osier::scope(|s| {
///         s.spawn(|| ready.wait());
///         s.spawn(|| ready.notify_one());
///     });
/// });
/// ```
///
/// To wait for a condition that others make true, see [`wait_until`](crate::time::wait_until).
#[derive(Debug, Default)]
pub struct Notify(tokio::sync::Notify);

impl Notify {
    /// Makes one without waiters, with nothing remembered.
    pub const fn new() -> Notify {
        Notify(tokio::sync::Notify::const_new())
    }

    /// Lets one waiter go on, the one that came first; with nobody waiting, the next that comes.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Lets all go on that wait at this moment. With nobody waiting nothing happens.
    ///
    /// To wait begins when [`wait`](Notify::wait) is called, or [`wait_async`](Notify::wait_async): before its first poll.
    pub fn notify_all(&self) {
        self.0.notify_waiters();
    }

    /// Waits for a notification.
    ///
    /// # Suspends
    ///
    /// Unless one is remembered. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; a notification meant for this waiter alone goes to the next.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_async`](Notify::wait_async) there.
    pub fn wait(&self) {
        block(self.wait_async());
    }

    /// Waits as [`wait`](Notify::wait) does, in a future. A future that is dropped leaves the queue and passes on what was meant for it.
    pub fn wait_async(&self) -> Notified<'_> {
        Notified {
            inner: self.0.notified(),
        }
    }
}

pin_project! {
    /// Waits for a notification: the future of [`Notify::wait_async`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Notified<'a> {
        #[pin]
        inner: tokio::sync::futures::Notified<'a>,
    }
}

impl Notified<'_> {
    /// Joins the queue now rather than at the first poll; whether a notification was there already, which it uses up.
    pub fn enable(self: Pin<&mut Self>) -> bool {
        self.project().inner.enable()
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().inner.poll(cx)
    }
}
