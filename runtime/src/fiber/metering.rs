//! Meters on fibers: the stopwatches of `worker/meter.rs`, with the clock and the fiber of the caller.

use std::rc::Rc;
use std::time::Duration;

use crate::worker::context;
use crate::worker::meter::{Activity, Meter};
use crate::worker::stamp::Stamp;

impl Meter {
    /// Counts the time of the calling fiber until the value is dropped. Has no effect on a plain thread.
    ///
    /// A fiber has one meter. While this one is attached, the previous one counts all time as the activity that it counted last.
    pub fn attach(self: &Rc<Meter>) -> Attached {
        let before = context::core(|core| core.extra().meter.replace(Some(Rc::clone(self)))).flatten();
        Attached(before)
    }

    /// Counts the time from now on as spent on `activity`.
    pub fn enter(&self, activity: Activity) {
        self.enter_at(activity, Stamp::now());
    }

    /// The time spent on `activity` until now.
    pub fn spent(&self, activity: Activity) -> Duration {
        self.spent_until(activity, Stamp::now())
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

/// Runs `body`, and counts its waits for sockets and for [something else](Activity::Other) as `activity`. Waits for locks, files and
/// time count as usual. If calls are nested, the innermost one decides.
///
/// ```
/// use osier::fiber::{self, Activity, Meter};
/// use std::time::Duration;
///
/// osier::run(|| {
///     let meter = Meter::since(osier::time::Stamp::now());
///     let _attached = meter.attach();
///     let answer = fiber::waits_for(Activity::Client, || osier::spawn(|| osier::sleep(Duration::from_millis(2))).join());
///     assert!(answer.is_ok() && meter.spent(Activity::Client) >= Duration::from_millis(2));
/// });
/// ```
///
/// # Suspends
///
/// When `body` does.
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
