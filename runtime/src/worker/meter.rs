//! Where the time of a fiber goes: what it does, or what it waits for.
//!
//! A [`Meter`] is a stopwatch with a dial for each [`Activity`]. The code that wants to know [attaches](Meter::attach) it to
//! its fiber. From then on each suspension of that fiber turns the dial twice:
//!
//! ```text
//!   Running ─ suspends ─▶ Network, Lock, Sleep … ─ is woken ─▶ Ready ─ is resumed ─▶ Running
//!          clock.now()                   time of the wake-up          clock.now()
//! ```
//!
//! The time of a wake-up is the beginning of the turn if the loop makes it, for an event of the poller, a timer or another thread. The clock is
//! read for it only if another fiber of the same worker makes it. `worker/slots.rs` keeps it until the fiber is resumed.
//!
//! A fiber without a meter pays a look at its extras before and after a suspension, if it has extras, and a look at a flag for
//! each wake-up.
//!
//! A meter belongs to one thread, that of its fiber. Other fibers of that worker may read it at any time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::wait::{On, Waits};
use crate::worker::context;
use crate::worker::core::Core;

/// What a fiber does or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activity {
    /// It runs, or blocks its worker.
    Running,
    /// It could run, and waits until its worker comes to it.
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
    pub const ALL: [Activity; 9] = [
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
/// use std::time::Duration;
///
/// let runtime = osier::Runtime::builder().clock(osier::time::VirtualClock::new()).build()?;
/// runtime.run(|| {
///     let meter = Meter::since(osier::time::now());
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
    since: Cell<Instant>,
    spent: [Cell<Duration>; Activity::ALL.len()],
}

impl Meter {
    /// A meter of code that has been running since `began`.
    pub fn since(began: Instant) -> Rc<Meter> {
        Rc::new(Meter {
            activity: Cell::new(Activity::Running),
            since: Cell::new(began),
            spent: Default::default(),
        })
    }

    /// Has the suspensions of the calling fiber counted until the value is dropped. On a plain thread it does nothing.
    ///
    /// A fiber has one meter. The one that it had before counts everything meanwhile as what it counted last.
    pub fn attach(self: &Rc<Meter>) -> Attached {
        let before = context::core(|core| core.extra().meter.replace(Some(Rc::clone(self)))).flatten();
        Attached(before)
    }

    /// Counts the time from now on as spent on `activity`.
    pub fn enter(&self, activity: Activity) {
        self.enter_at(activity, context::now());
    }

    fn enter_at(&self, activity: Activity, now: Instant) {
        let spent = &self.spent[self.activity.replace(activity) as usize];
        spent.set(spent.get() + now.saturating_duration_since(self.since.get()));
        self.since.set(now);
    }

    /// What it counts now, and since when.
    pub fn current(&self) -> (Activity, Instant) {
        (self.activity.get(), self.since.get())
    }

    /// The time spent on `activity` until now.
    pub fn spent(&self, activity: Activity) -> Duration {
        let spent = self.spent[activity as usize].get();
        match self.activity.get() == activity {
            true => spent + context::now().saturating_duration_since(self.since.get()),
            false => spent,
        }
    }
}

/// A [`Meter`] that counts; see [`Meter::attach`].
#[derive(Debug)]
#[must_use = "dropped, it counts nothing"]
pub struct Attached(Option<Rc<Meter>>);

impl Drop for Attached {
    fn drop(&mut self) {
        let before = self.0.take();
        context::core(|core| {
            if let Some(extra) = core.extra_if_any() {
                extra.meter.replace(before);
            }
        });
    }
}

/// Runs `body`, and has the meter of this fiber count waits inside it as `activity` if they are waits for a socket or for
/// [something else](Activity::Other). Waits for locks, files and time stay what they are. The innermost call decides.
///
/// ```
/// use osier::fiber::{self, Activity, Meter};
/// use std::time::Duration;
///
/// osier::run(|| {
///     let meter = Meter::since(osier::time::now());
///     let _attached = meter.attach();
///     let answer = fiber::waits_for(Activity::Client, || osier::spawn(|| osier::sleep(Duration::from_millis(2))).join());
///     assert!(answer.is_ok() && meter.spent(Activity::Client) >= Duration::from_millis(2));
/// });
/// ```
///
/// # Suspends
///
/// Only where `body` does.
pub fn waits_for<T>(activity: Activity, body: impl FnOnce() -> T) -> T {
    struct Reset(Option<Activity>);
    impl Drop for Reset {
        fn drop(&mut self) {
            set_label(self.0);
        }
    }
    let _reset = Reset(set_label(Some(activity)));
    body()
}

/// Sets how waits of the calling fiber count. Returns what was set before.
#[inline]
fn set_label(label: Option<Activity>) -> Option<Activity> {
    context::core(|core| core.extra().label.replace(label)).flatten()
}

impl Waits<'_> {
    /// What this is a wait for.
    fn activity(&self) -> Activity {
        match self.on {
            _ if self.leaf.is_empty() => Activity::Ready,
            Some(On::Socket(_)) => Activity::Network,
            #[cfg(feature = "sync")]
            Some(On::Lock(_)) => Activity::Lock,
            #[cfg(feature = "sync")]
            Some(On::Permit) => Activity::Lock,
            #[cfg(feature = "fs")]
            Some(On::Disk) => Activity::Disk,
            Some(On::Time) => Activity::Sleep,
            None => Activity::Other,
        }
    }
}

impl Core<'_> {
    /// The fiber suspends: its meter counts the wait from now on.
    #[cold]
    #[inline(never)]
    pub(crate) fn meter_waits(&self, waits: &Waits<'_>) {
        let Some(extra) = self.extra_if_any() else { return };
        let activity = match (waits.activity(), extra.label.get()) {
            (Activity::Network | Activity::Other, Some(label)) => label,
            (activity, _) => activity,
        };
        // It may be woken already.
        let is_queued = context::worker(|worker| worker.note_next_wake(self.word)) == Some(false);
        let activity = if is_queued { Activity::Ready } else { activity };
        if let Some(meter) = &*extra.meter.borrow() {
            meter.enter(activity);
        }
    }

    /// The fiber was resumed: its meter counts the time since its wake-up as waiting for the worker.
    #[cold]
    #[inline(never)]
    pub(crate) fn meter_runs(&self) {
        let Some(extra) = self.extra_if_any() else { return };
        let woken = context::worker(|worker| worker.woken(self.word)).flatten();
        if let Some(meter) = &*extra.meter.borrow() {
            if let Some(woken) = woken {
                meter.enter_at(Activity::Ready, woken.max(meter.since.get()));
            }
            meter.enter(Activity::Running);
        }
    }
}
