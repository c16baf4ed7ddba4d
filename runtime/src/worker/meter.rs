//! Where the time of a fiber goes: what it does, or what it waits for.
//!
//! A [`Meter`] is a stopwatch with a counter for each [`Activity`]. Code attaches it to its fiber (`fiber/metering.rs`). From then on
//! each suspension of that fiber switches the counter three times:
//!
//! ```text
//!   Running ─ suspends ─▶ Network, Lock, Sleep … ─ is woken ─▶ Ready ─ is resumed ─▶ Running
//!          clock.now()                   time of the wake-up          clock.now()
//! ```
//!
//! For a wake-up by the loop (an event of the poller, a timer, another thread), the time of the wake-up is the beginning of the turn.
//! For a wake-up by another fiber of the same worker, the clock is read. `worker/slots.rs` keeps the time until the fiber is resumed.
//!
//! A fiber without a meter checks its extras before and after a suspension, if it has extras, and a flag at each wake-up.
//!
//! A meter belongs to one thread, that of its fiber. Other fibers of that worker may read it at any time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::worker::stamp::Stamp;

/// The activity of a fiber: running, or waiting for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activity {
    /// It runs, or blocks its worker.
    Running,
    /// It is ready, and waits for its worker.
    Ready,
    /// It waits for a socket.
    Network,
    /// It waits for a file.
    Disk,
    /// It waits for a lock or a permit of [`sync`](crate::sync).
    Lock,
    /// It sleeps.
    Sleep,
    /// It waits for bytes of the client that it serves.
    Client,
    /// It waits until the client that it serves takes bytes.
    Writing,
    /// It waits for anything else: a channel, another fiber, work of [`unblock`](crate::unblock()).
    Other,
}

impl Activity {
    /// All activities.
    pub const ALL: &[Activity] = &[
        Activity::Running,
        Activity::Ready,
        Activity::Network,
        Activity::Disk,
        Activity::Lock,
        Activity::Sleep,
        Activity::Client,
        Activity::Writing,
        Activity::Other,
    ];
}

/// A stopwatch for what a fiber does.
///
/// ```
/// use osier::fiber::{Activity, Meter};
/// use osier::time::{Stamp, VirtualClock};
/// use std::time::Duration;
///
/// let runtime = osier::Runtime::builder().clock(VirtualClock::new()).build()?;
/// runtime.run(|| {
///     let meter = Meter::since(Stamp::now());
///     let attached = meter.attach();
///     osier::sleep(Duration::from_secs(2));
///     drop(attached);
///     assert_eq!(meter.spent(Activity::Sleep), Duration::from_secs(2));
///     assert_eq!(meter.spent(Activity::Lock), Duration::ZERO);
/// });
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Meter {
    activity: Cell<Activity>,
    since: Cell<Stamp>,
    /// In nanoseconds.
    spent: [Cell<u64>; Activity::ALL.len()],
}

impl Meter {
    /// A meter of code that has been running since `began`.
    pub fn since(began: Stamp) -> Rc<Meter> {
        Rc::new(Meter {
            activity: Cell::new(Activity::Running),
            since: Cell::new(began),
            spent: Default::default(),
        })
    }

    /// Counts the time from `now` on as spent on `activity`.
    pub(crate) fn enter_at(&self, activity: Activity, now: Stamp) {
        let spent = &self.spent[self.activity.replace(activity) as usize];
        spent.set(spent.get().saturating_add(now.nanos_since(self.since.get())));
        self.since.set(now);
    }

    /// The activity that the meter counts now, and since when.
    pub fn current(&self) -> (Activity, Stamp) {
        (self.activity.get(), self.since.get())
    }

    /// The time spent on `activity` until `now`.
    pub(crate) fn spent_until(&self, activity: Activity, now: Stamp) -> Duration {
        let spent = self.spent[activity as usize].get();
        Duration::from_nanos(match self.activity.get() == activity {
            true => spent.saturating_add(now.nanos_since(self.since.get())),
            false => spent,
        })
    }
}
