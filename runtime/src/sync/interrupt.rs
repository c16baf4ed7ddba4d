//! The interrupt: a signal that cancels the code that runs under it.
//!
//! The frame that [`Interrupt::guard`] pushes looks at the event at every checkpoint. A hook puts the fiber in the event's line
//! right before the fiber suspends, so that the signal wakes it. A body that never waits pays for neither.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;

use osier_queue as queue;

use crate::wait::cancel::{Cancelled, Entered, Kind};
use crate::worker::context::{self, Caller};
use crate::worker::hook::before_suspend;

/// A signal that cancels code, set once and from anywhere. It is for a client that is not a socket:
/// [`io::while_connected`](crate::io::while_connected) does the same for one that is.
///
/// ```
/// use osier::sync::Interrupt;
/// use std::time::Duration;
///
/// osier::run(|| {
///     let gone = Interrupt::new();
///     let signal = gone.clone();
///     osier::spawn(move || signal.set());
///     assert!(gone.guard(|| osier::sleep(Duration::from_secs(60))).is_err());
/// });
/// ```
#[derive(Clone)]
#[doc(alias("CancellationToken", "Context"))]
pub struct Interrupt(Arc<queue::Event>);

impl Interrupt {
    /// Makes one that is not set.
    pub fn new() -> Interrupt {
        Interrupt(Arc::new(queue::Event::manual()))
    }

    /// Sets it, for ever. Never waits.
    #[doc(alias = "cancel")]
    pub fn set(&self) {
        self.0.set();
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.is_set()
    }

    /// Runs `body` and cancels it when the interrupt is set. The body meets that as a [cancellation](crate::Cancelled), and only
    /// the body: outside of this call nothing is cancelled.
    ///
    /// # Suspends
    ///
    /// Only where `body` does.
    ///
    /// # Errors
    ///
    /// [`Cancelled`] when the interrupt was set and a blocking call of the body met that. A body that finishes without meeting a
    /// blocking call after that returns its value. On a plain thread nothing could end the body, so it just runs.
    #[doc(alias = "run_until_cancelled")]
    pub fn guard<T>(&self, body: impl FnOnce() -> T) -> Result<T, Cancelled> {
        if !context::caller(|caller| matches!(caller, Caller::Fiber(..))) {
            return Ok(body());
        }
        let waiter = pin!(self.0.waiter());
        let waiter = RefCell::new(waiter);
        let in_line = || {
            let mut waiter = waiter.borrow_mut();
            // The event keeps its signal. Whether it is there decides the frame.
            context::core(|core| {
                let _ = self
                    .0
                    .poll_wait(waiter.as_mut(), &mut Context::from_waker(&core.word.waker()));
            });
        };
        before_suspend(&in_line, || Entered::push(Kind::Interrupt(self.0.clone())).run(body)).map_err(|()| Cancelled)
    }
}

impl Default for Interrupt {
    fn default() -> Interrupt {
        Interrupt::new()
    }
}

osier_queue::impl_debug!(Interrupt, self => { set: self.is_set() });
