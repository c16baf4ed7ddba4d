//! The mailbox: 32 flags that are raised, awaited and taken.
//!
//! `osier_queue::Mailbox` decides which raise wakes which waiter, and models check it. This module has its faces.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use osier_queue as queue;
use osier_queue::Flags;
use pin_project_lite::pin_project;

use super::block;

/// 32 flags: raised from any thread, awaited one or all together, taken when they are dealt with.
///
/// A flag stays raised until somebody [takes](Mailbox::take) it: a wait that ends takes none, and a wait for a flag that is
/// raised ends at once. Without waits it is an atomic set of bits.
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
/// Any number may wait, each for flags of its own. **A wait ends if at any moment of it the condition held**, however short:
/// a [`raise`](Mailbox::raise) decides, at the moment it happens, who of those who wait then is satisfied by the flags as they
/// are then, and a take that comes after does not undo that. The state that the wait returns is the one of that moment, and so
/// may contain flags that somebody else has taken since: among several who wait for the same work, let
/// [`take`](Mailbox::take) tell who got it. Nobody else is woken.
///
/// The effects before a flag was raised are visible to the waiter that sees the flag.
pub struct Mailbox(queue::Mailbox);

impl Mailbox {
    /// All 32 flags.
    pub const ALL: u32 = u32::MAX;

    /// No flag is raised.
    #[inline]
    pub const fn new() -> Mailbox {
        Mailbox(queue::Mailbox::new())
    }

    /// Raises the flags of `set`; others stay as they are. From any thread, a callback or a destructor; never waits.
    ///
    /// Not in a signal handler: see [`EventFd::signal_setter`](super::EventFd::signal_setter).
    #[inline]
    pub fn raise(&self, set: u32) {
        self.0.raise(set);
    }

    /// Clears the flags of `clear`; others stay as they are. Returns the state before, *whole*: also what it did not clear.
    #[inline]
    pub fn take(&self, clear: u32) -> u32 {
        self.0.take(clear)
    }

    /// The flags that are raised at this moment.
    #[inline]
    pub fn state(&self) -> u32 {
        self.0.state()
    }

    /// Waits until a flag of `set` is raised, or more of them. Returns the state that satisfied it. An empty `set` is
    /// satisfied at once.
    ///
    /// # Suspends
    ///
    /// Until then; not at all if one is raised. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; the flags stay.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_any_async`](Mailbox::wait_any_async) there.
    #[inline]
    pub fn wait_any(&self, set: u32) -> u32 {
        block(self.wait_any_async(set))
    }

    /// Waits until every flag of `set` is raised: at the same moment, though they may have been raised at different ones.
    /// Returns the state that satisfied it. An empty `set` is satisfied at once.
    ///
    /// # Suspends
    ///
    /// Until then; not at all if all are raised. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; the flags stay.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use [`wait_all_async`](Mailbox::wait_all_async) there.
    #[inline]
    pub fn wait_all(&self, set: u32) -> u32 {
        block(self.wait_all_async(set))
    }

    /// Waits as [`wait_any`](Mailbox::wait_any) does, in a future. It begins to wait when it is first polled.
    #[inline]
    pub fn wait_any_async(&self, set: u32) -> MailboxWait<'_> {
        self.wait_for(Flags::Any(set))
    }

    /// Waits as [`wait_all`](Mailbox::wait_all) does, in a future. It begins to wait when it is first polled.
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

impl Default for Mailbox {
    fn default() -> Mailbox {
        Mailbox::new()
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pin_project! {
    /// Waits for flags and returns the state that satisfied it: the future of [`Mailbox::wait_any_async`] and
    /// [`Mailbox::wait_all_async`].
    ///
    /// # Cancellation
    ///
    /// Dropping it stops the wait; the flags stay.
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
        this.mailbox.poll_wait(*this.flags, this.waiter, cx)
    }
}
