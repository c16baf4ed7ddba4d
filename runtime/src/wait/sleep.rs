//! `Sleep`: a point in time as a leaf.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::wait::budget;
use crate::wait::driver::LeafTimer;
use crate::worker::context::{coarse_now, now};

/// A point in time as a future. It is ready when the time has come, or up to a few milliseconds later; never before.
///
/// The time counts from the making of the future, not from its first poll. Any executor may poll it, and so may
/// [`select!`](crate::select!).
///
/// ```
/// use osier::time::Sleep;
/// use std::time::{Duration, Instant};
/// let start = Instant::now();
/// osier::run(|| osier::block_on(Sleep::new(Duration::from_millis(10))));
/// assert!(start.elapsed() >= Duration::from_millis(10));
/// ```
///
/// # Cancellation
///
/// Dropping it takes its timer out.
#[must_use = "a future does nothing until it is polled"]
#[doc(alias = "Timer")]
pub struct Sleep {
    /// `None`: for ever, beyond the range of the clock.
    deadline: Option<Instant>,
    timer: Option<LeafTimer>,
}

impl Sleep {
    /// Sleeps for `duration` from now on.
    pub fn new(duration: Duration) -> Sleep {
        Sleep {
            deadline: now().checked_add(duration),
            timer: None,
        }
    }

    /// Sleeps until `deadline`.
    pub fn until(deadline: Instant) -> Sleep {
        Sleep {
            deadline: Some(deadline),
            timer: None,
        }
    }

    /// Sleeps for ever.
    pub fn forever() -> Sleep {
        Sleep {
            deadline: None,
            timer: None,
        }
    }

    /// The time when it will be ready; `None` for never.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether its time has come.
    pub fn is_elapsed(&self) -> bool {
        // The worker's clock is late at most, so it never says so too early.
        self.deadline.is_some_and(|deadline| coarse_now() >= deadline)
    }

    /// Sets another deadline, from the next poll on.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
        self.timer = None;
    }

    /// Polls as the future does, and reports a driver that cannot be started.
    ///
    /// # Errors
    ///
    /// If it is polled outside of every runtime, and the driver for that cannot be started.
    pub(crate) fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        budget::poll(cx, |cx| self.poll_timer(cx))
    }

    /// Polls as the future does, and does not count as a call.
    pub(crate) fn poll_uncounted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_timer(cx).map(or_panic)
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if self.is_elapsed() {
            self.timer = None;
            return Poll::Ready(Ok(()));
        }
        let (Some(deadline), false) = (
            self.deadline,
            self.timer.as_ref().is_some_and(|timer| timer.refresh(cx.waker())),
        ) else {
            return Poll::Pending;
        };
        match LeafTimer::new(deadline, cx.waker()) {
            Ok(timer) => self.timer = Some(timer),
            Err(error) => return Poll::Ready(Err(error)),
        }
        Poll::Pending
    }
}

impl Future for Sleep {
    type Output = ();

    /// # Panics
    ///
    /// If it is polled outside of every runtime, and the driver for that cannot be started.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_elapsed(cx).map(or_panic)
    }
}

fn or_panic(elapsed: std::io::Result<()>) {
    elapsed.unwrap_or_else(|error| panic!("osier::time::Sleep: {error}"));
}

osier_queue::impl_debug!(Sleep, self => { deadline: self.deadline });
