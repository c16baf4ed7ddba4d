//! The event: a flag that is set or not, and a list of those who wait for it to be set. It resets itself, or is manual.
//!
//! ```text
//!             set                          auto-reset: a set with waiters releases the oldest and leaves the event unset;
//!   UNSET ──────────> SET                              a set without waiters is kept until someone takes it
//!     ^────────────────┘                   manual:     a set releases all and is kept until it is reset
//!       take, reset
//! ```
//!
//! # Protocol
//! - `state` becomes SET only under the list's lock, and a node links itself only after it saw UNSET under that lock. So **while an
//!   auto-reset event is SET nobody waits**, and a signal is in one place at a time: in the state, or in one granted node. A waiter
//!   that comes later finds the signal in neither and queues behind the others.
//! - SET is left without the lock, by a swap: one taker wins.
//! - Every set stores SET (release) or grants, even if the event is SET already. So the taker of a signal sees what *each* thread did
//!   before its set, including sets that were merged with others. The lock passes on what the earlier sets released.
//! - A granted waiter that is dropped sets the event again, which releases the next waiter.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::sync::{AtomicBool, Ordering};
use crate::waiters::{Entered, WaitList, Waiter};

/// A signal that is set or not, with those who wait for it.
///
/// ```
/// use osier_queue::Event;
/// use std::pin::pin;
/// use std::task::{Context, Waker};
///
/// let event = Event::new();
/// let mut waiter = pin!(event.waiter());
/// let mut cx = Context::from_waker(Waker::noop());
/// assert!(event.poll_wait(waiter.as_mut(), &mut cx).is_pending());
/// event.set();
/// assert!(event.poll_wait(waiter.as_mut(), &mut cx).is_ready());
/// assert!(!event.is_set(), "the waiter has it");
/// ```
#[derive(Default)]
pub struct Event {
    /// Whether the event is SET.
    state: AtomicBool,
    /// Whether a set stays until it is reset, and releases all waiters.
    manual: bool,
    waiters: WaitList,
}

impl Event {
    crate::sync::const_unless_loom! {
        /// An unset event whose signal releases one waiter and is gone.
        pub fn new() -> Self {
            Self { state: AtomicBool::new(false), manual: false, waiters: WaitList::new() }
        }
    }

    crate::sync::const_unless_loom! {
        /// An unset event that, once set, releases all waiters until it is reset.
        pub fn manual() -> Self {
            Self { state: AtomicBool::new(false), manual: true, waiters: WaitList::new() }
        }
    }

    /// Sets the event. It releases the waiter that has waited longest, or stays set for the next one. A manual event releases all waiters
    /// and stays set.
    pub fn set(&self) {
        if self.manual {
            self.waiters.wake_where(|_nobody| self.keep(), |(), _| Some(0));
        } else {
            self.waiters.hand_over(|| self.keep());
        }
    }

    /// Stores SET, under the lock.
    fn keep(&self) {
        // In modification order a swap directly follows the store it read. A later set, ordered by the lock, therefore follows the swap.
        // loom does not model this: it would show a taker of both sets only the first. So under loom the store is a swap.
        match cfg!(loom) {
            false => self.state.store(true, Ordering::Release),
            true => drop(self.state.swap(true, Ordering::AcqRel)),
        }
    }

    /// Takes back a set that nobody took. Returns whether there was one.
    pub fn reset(&self) -> bool {
        self.state.load(Ordering::Relaxed) && self.state.swap(false, Ordering::Acquire)
    }

    /// Whether the event is set.
    pub fn is_set(&self) -> bool {
        self.state.load(Ordering::Acquire)
    }

    /// Whether a wait would not wait. Takes the signal of an auto-reset event; leaves that of a manual one.
    pub fn try_wait(&self) -> bool {
        match self.manual {
            true => self.is_set(),
            false => self.reset(),
        }
    }

    /// A node for [`poll_wait`](Event::poll_wait). Call [`leave`](Event::leave) before dropping it.
    pub fn waiter(&self) -> Waiter<'_> {
        self.waiters.waiter()
    }

    /// Waits for a signal and takes it: at once if the event is set, otherwise when one is granted to this waiter.
    pub fn poll_wait(&self, waiter: Pin<&mut Waiter<'_>>, cx: &mut Context<'_>) -> Poll<()> {
        if waiter.is_idle() && self.try_wait() {
            return Poll::Ready(());
        }
        match waiter.enter(cx.waker(), 0, || self.try_wait().then_some(())) {
            Entered::Holds(()) | Entered::Granted(_) => Poll::Ready(()),
            Entered::Waits => Poll::Pending,
        }
    }

    /// Stops waiting. A signal that was granted to this waiter goes to the next one, or stays in the event.
    #[inline]
    pub fn leave(&self, waiter: Pin<&mut Waiter<'_>>) {
        if !waiter.is_idle() && waiter.remove() && !self.manual {
            self.set();
        }
    }
}

crate::impl_debug!(Event, self => { set: self.is_set(), manual: self.manual, .. });
