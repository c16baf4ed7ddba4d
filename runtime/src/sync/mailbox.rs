//! The mailbox: 32 flags that are raised, waited for and taken.
//!
//! `osier_queue::Mailbox` decides which raise wakes which waiter, and is model-checked. This module adds the
//! waits of fibers, threads and futures.

use std::pin::Pin;
use std::task::{Context, Poll};

use osier_queue as queue;
use osier_queue::Flags;
use pin_project_lite::pin_project;

use super::block;
use crate::wait::budget;

/// A set of 32 flags. Any thread raises them; a wait is for one or for several at once; a take clears them.
///
/// A flag stays raised until it is [taken](Mailbox::take). A wait takes no flag, and a wait for a raised flag returns
/// at once. Without waiters a mailbox is an atomic set of bits.
///
/// ```
/// use osier::sync::Mailbox;
///
/// const LEFT: u32 = 1 << 0;
/// const RIGHT: u32 = 1 << 1;
///
/// osier::run(|| {
///     let done = Mailbox::new();
///     osier::scope(|s| {
///         s.spawn(|| done.raise(LEFT));
///         s.spawn(|| done.raise(RIGHT));
///         done.wait_all(LEFT | RIGHT);
///     });
///     assert_eq!(done.take(LEFT), LEFT | RIGHT);
///     assert_eq!(done.state(), RIGHT);
/// });
/// ```
///
/// # What a wait promises
///
/// Any number of waiters may wait, each for its own flags. **A wait ends if its condition held at any moment during
/// the wait**, however short. A [`raise`](Mailbox::raise) decides at once which of the present waiters are satisfied
/// by the flags at that moment, and wakes no other waiter. A later take does not undo that. The wait returns the
/// state of that moment, which may contain flags that have been taken since. If several waiters compete for the same
/// work, the result of [`take`](Mailbox::take) says who got it.
///
/// The effects before a raise are visible to the waiter that sees the flag.
#[derive(Default)]
pub struct Mailbox(queue::Mailbox);

impl Mailbox {
    /// All 32 flags.
    pub const ALL: u32 = u32::MAX;

    /// Makes a mailbox with no flag raised.
    #[inline]
    pub const fn new() -> Mailbox {
        Mailbox(queue::Mailbox::new())
    }

    /// Raises the flags of `set`; other flags stay. Any thread, callback or destructor may call it. Never waits.
    ///
    /// Signal handlers must not call it: see [`EventFd::signal_setter`](super::EventFd::signal_setter).
    #[inline]
    pub fn raise(&self, set: u32) {
        self.0.raise(set);
    }

    /// Clears the flags of `clear`; other flags stay. Returns the *whole* state before, including flags that it did
    /// not clear.
    #[inline]
    pub fn take(&self, clear: u32) -> u32 {
        self.0.take(clear)
    }

    /// The flags that are raised at this moment.
    #[inline]
    pub fn state(&self) -> u32 {
        self.0.state()
    }

    /// Waits until at least one flag of `set` is raised. Returns the state that satisfied it. An empty `set` is
    /// satisfied at once.
    ///
    /// # Suspends
    ///
    /// Until then. Not at all if one is raised. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. The flags stay raised.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_any_async`](Mailbox::wait_any_async) there.
    #[inline(always)]
    pub fn wait_any(&self, set: u32) -> u32 {
        block(self.wait_any_async(set))
    }

    /// Waits until all flags of `set` are raised at the same moment; they may have been raised one after the other.
    /// Returns the state that satisfied it. An empty `set` is satisfied at once.
    ///
    /// # Suspends
    ///
    /// Until then. Not at all if all are raised. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. The flags stay raised.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_all_async`](Mailbox::wait_all_async) there.
    #[inline(always)]
    pub fn wait_all(&self, set: u32) -> u32 {
        block(self.wait_all_async(set))
    }

    /// Waits as [`wait_any`](Mailbox::wait_any) does, in a future. The wait begins with the first poll, or with a later one while the flags
    /// are set and the [turn of the task is over](crate::spawn_future#fairness).
    #[inline]
    pub fn wait_any_async(&self, set: u32) -> MailboxWait<'_> {
        self.wait_for(Flags::Any(set))
    }

    /// Waits as [`wait_all`](Mailbox::wait_all) does, in a future. The wait begins with the first poll, or with a later one while the flags
    /// are set and the [turn of the task is over](crate::spawn_future#fairness).
    ///
    /// ```
    /// use osier::sync::Mailbox;
    /// let mailbox = Mailbox::new();
    /// mailbox.raise(0b101);
    /// osier::block_on(async {
    ///     assert_eq!(mailbox.wait_all_async(0b001).await, 0b101);
    /// });
    /// ```
    #[inline]
    pub fn wait_all_async(&self, set: u32) -> MailboxWait<'_> {
        self.wait_for(Flags::All(set))
    }

    #[inline]
    fn wait_for(&self, flags: Flags) -> MailboxWait<'_> {
        MailboxWait {
            mailbox: &self.0,
            flags,
            waiter: self.0.waiter(),
        }
    }
}

osier_queue::impl_debug!(Mailbox, self => self.0);

pin_project! {
    /// The future of [`Mailbox::wait_any_async`] and [`Mailbox::wait_all_async`]. It waits for flags and returns the
    /// state that satisfied it.
    ///
    /// # Cancellation
    ///
    /// Dropping it ends the wait. The flags stay raised.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct MailboxWait<'a> {
        mailbox: &'a queue::Mailbox,
        flags: Flags,
        #[pin]
        waiter: queue::Waiter<'a>,
    }
}

impl Future for MailboxWait<'_> {
    type Output = u32;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u32> {
        let this = self.project();
        // It waits from its first poll on, so it also hears flags that are raised and taken at once.
        let is_up = || this.flags.hold_in(this.mailbox.state());
        budget::poll_if(cx, is_up, |cx| this.mailbox.poll_wait(*this.flags, this.waiter, cx))
    }
}
