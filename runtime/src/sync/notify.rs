//! A notification without a value: it wakes waiters, which then check their own condition.
//!
//! It wraps `tokio::sync::Notify`: an atomic state and an intrusive list in order of arrival. A waiter that
//! `notify_one` has chosen and that is dropped before its next poll passes the notification on.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::block;
use crate::wait::budget;

/// A notification that makes a waiter check its condition. It carries no value.
///
/// [`notify_one`](Notify::notify_one) without waiters is remembered, once: the next wait returns at once.
/// [`notify_all`](Notify::notify_all) is not remembered: it wakes present waiters only.
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
/// [`wait_until`](crate::time::wait_until) waits for a condition that other code makes true.
#[derive(Debug, Default)]
pub struct Notify(tokio::sync::Notify);

impl Notify {
    /// Makes one without waiters and without a remembered notification.
    pub const fn new() -> Notify {
        Notify(tokio::sync::Notify::const_new())
    }

    /// Wakes the waiter that came first. Without waiters the next wait returns at once.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all present waiters. Has no effect without waiters.
    ///
    /// A waiter is present from the call of [`wait`](Notify::wait) or [`wait_async`](Notify::wait_async), before its
    /// first poll.
    #[doc(alias = "notify_waiters")]
    pub fn notify_all(&self) {
        self.0.notify_waiters();
    }

    /// Waits for a notification.
    ///
    /// # Suspends
    ///
    /// Unless a notification is remembered. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. A `notify_one` that this waiter got goes to the next.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_async`](Notify::wait_async) there.
    #[doc(alias = "notified")]
    pub fn wait(&self) {
        block(self.wait_async());
    }

    /// Waits as [`wait`](Notify::wait) does, in a future. A future that is dropped leaves the queue and passes a
    /// `notify_one` on.
    #[doc(alias = "notified")]
    pub fn wait_async(&self) -> Notified<'_> {
        Notified {
            inner: self.0.notified(),
        }
    }
}

pin_project! {
    /// The future of [`Notify::wait_async`], which waits for a notification.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Notified<'a> {
        #[pin]
        inner: tokio::sync::futures::Notified<'a>,
    }
}

impl Notified<'_> {
    /// Joins the queue now, not at the first poll. Returns whether a notification was already there; it is used up
    /// then.
    pub fn enable(self: Pin<&mut Self>) -> bool {
        self.project().inner.enable()
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let inner = self.project().inner;
        budget::poll(cx, |cx| inner.poll(cx))
    }
}
