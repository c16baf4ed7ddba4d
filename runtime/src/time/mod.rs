//! Time: sleeps, intervals, the current time, the virtual clock of tests, and waiting for a condition
//! ([`wait_until`]).
//!
//! Deadlines are [`std::time::Instant`]s. Take the present from [`now`] where a test may set the clock. A limit for other calls is
//! [`timeout`], or an arm of [`select!`](crate::select!).
//!
//! ```
//! use osier::sync::Event;
//! use std::time::Duration;
//!
//! osier::run(|| {
//!     let stop = Event::manual(); // other fibers may set it
//!     let mut ticks = osier::time::interval(Duration::from_millis(1));
//!     let mut count = 0;
//!     while count < 3 {
//!         osier::select! {
//!             _ = ticks.tick_async() => count += 1,
//!             _ = stop.wait_async() => break,
//!             timeout Duration::from_secs(60) => panic!("no tick for a minute"),
//!         }
//!     }
//! });
//! ```

use std::time::{Duration, Instant};

use crate::wait;

mod interval;
mod until;

#[doc(inline)]
pub use crate::wait::cancel::timeout;
pub use crate::worker::clock::{Hold, VirtualClock};
pub use crate::worker::context::{coarse_now, now, system_now};
pub use crate::worker::stamp::Stamp;
pub use interval::{Interval, Tick, interval, interval_at};
pub use until::{News, wait_until, wait_until_async};

pub use crate::wait::sleep::Sleep;

/// Waits for `duration`, or up to a few milliseconds longer, never shorter.
///
/// ```
/// use std::time::{Duration, Instant};
/// osier::run(|| {
///     let start = Instant::now();
///     osier::sleep(Duration::from_millis(10));
///     assert!(start.elapsed() >= Duration::from_millis(10));
/// });
/// ```
///
/// # Suspends
///
/// Always. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Unwinds: there is no error to return.
///
/// # Panics
///
/// In a future or callback on a worker, where nothing may wait.
#[doc(alias = "delay")]
pub fn sleep(duration: Duration) {
    // A time beyond the range of the clock is for ever.
    let deadline = now().checked_add(duration);
    wait::wait_until(deadline);
}

/// Waits until `deadline`, or up to a few milliseconds longer, as [`sleep`] does.
///
/// ```
/// use osier::time::{now, sleep_until};
/// use std::time::Duration;
///
/// osier::run(|| {
///     // Ten rounds a second, however long each one takes.
///     let mut next = now();
///     for _round in 0..3 {
///         next += Duration::from_millis(100);
///         sleep_until(next);
///     }
///     assert!(now() >= next);
/// });
/// ```
///
/// # Suspends
///
/// Always. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Unwinds: there is no error to return.
///
/// # Panics
///
/// In a future or callback on a worker, where nothing may wait.
#[doc(alias = "delay_until")]
pub fn sleep_until(deadline: Instant) {
    wait::wait_until(Some(deadline));
}
