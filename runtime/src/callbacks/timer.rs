//! A timer that calls a callback at its time. The wait is the leaf of `time/`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::io_queue::Handle;
use super::request::{CancelHandle, Request, Work};
use super::{Refused, Status};
use crate::time::Sleep;

/// A timer that calls back once.
///
/// It holds no resource of the system and needs no closing. There are no periodic timers: the callback gets the timer
/// back and may set it again.
///
/// ```
/// use osier::callbacks::{IoQueue, Status, Timer};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let queue = IoQueue::new(0)?;
/// let (sender, status) = mpsc::channel();
/// let handle = Timer::new(&queue).wait(Duration::from_secs(3600), move |_timer, status| sender.send(status).unwrap())?;
/// assert!(handle.cancel());
/// queue.iterate()?;
/// assert_eq!(status.try_recv(), Ok(Status::Cancelled));
/// assert!(!handle.cancel(), "too late");
/// # std::io::Result::Ok(())
/// ```
pub struct Timer {
    request: Arc<Request<Instant>>,
    sleep: Sleep,
}

impl Timer {
    /// Makes a timer. Its callbacks run on `queue`.
    pub fn new(queue: &Handle) -> Timer {
        Timer {
            request: Request::new(queue.shared()),
            sleep: Sleep::forever(),
        }
    }

    /// Calls `callback` after `duration`: never earlier, and up to a few milliseconds later. The callback gets the
    /// timer, so that it can be used again.
    ///
    /// # Errors
    ///
    /// [`Refused`], which holds the timer, once the queue is shut down.
    pub fn wait<C>(self, duration: Duration, callback: C) -> Result<CancelHandle<Instant>, Refused<Timer>>
    where
        C: FnOnce(Timer, Status) + Send + 'static,
    {
        self.wait_for(sleep_for(duration), callback)
    }

    /// Calls `callback` at `deadline`, as [`wait`](Timer::wait). A deadline that has passed is due at once.
    ///
    /// # Errors
    ///
    /// The errors of [`wait`](Timer::wait).
    pub fn wait_until<C>(self, deadline: Instant, callback: C) -> Result<CancelHandle<Instant>, Refused<Timer>>
    where
        C: FnOnce(Timer, Status) + Send + 'static,
    {
        self.wait_for(Sleep::until(deadline), callback)
    }

    fn wait_for<C>(mut self, sleep: Sleep, callback: C) -> Result<CancelHandle<Instant>, Refused<Timer>>
    where
        C: FnOnce(Timer, Status) + Send + 'static,
    {
        self.sleep = sleep;
        let request = Arc::clone(&self.request);
        let waiting = Box::pin(Waiting { timer: self, callback });
        request
            .begin(waiting)
            .map_err(|refused| refused.map(|waiting| Pin::into_inner(waiting).timer))
    }
}

/// Uses real time: a callback queue does not use the clock of the caller's runtime, which may be virtual.
fn sleep_for(duration: Duration) -> Sleep {
    Instant::now()
        .checked_add(duration)
        .map_or_else(Sleep::forever, Sleep::until)
}

impl CancelHandle<Instant> {
    /// Sets another time: `duration` from now. Returns false if it is too late: the timer has expired or was
    /// cancelled.
    pub fn reschedule(&self, duration: Duration) -> bool {
        match Instant::now().checked_add(duration) {
            Some(deadline) => self.change(deadline),
            // A time that the clock cannot represent becomes one that it can, about 136 years from now.
            None => self.change(Instant::now() + Duration::from_secs(u32::MAX.into())),
        }
    }
}

osier_queue::impl_debug!(Timer, self => { .. });

struct Waiting<C> {
    timer: Timer,
    callback: C,
}

// No part of it is pinned.
impl<C> Unpin for Waiting<C> {}

impl<C: FnOnce(Timer, Status) + Send> Work<Instant> for Waiting<C> {
    fn change(mut self: Pin<&mut Self>, deadline: Instant) {
        self.timer.sleep.reset(deadline);
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // The queue's driver is here while it polls, so this poll cannot fail.
        self.timer.sleep.poll_elapsed(cx).map(drop)
    }

    fn finish(self: Pin<Box<Self>>, status: Status) {
        let Waiting { mut timer, callback } = *Pin::into_inner(self);
        timer.sleep = Sleep::forever();
        callback(timer, status);
    }
}
