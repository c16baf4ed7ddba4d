//! Where the time of a request goes.
//!
//! ```text
//!   accepted ──▶ woken ──▶ handler ───────────────▶ response handed to the connection
//!       accept      worker     run, worker, upstream, disk, lock, sleep, client, write, other
//! ```
//!
//! Nothing is measured without a consumer: an observer, a limit for slow requests, or
//! [`wrap::server_timing`](crate::wrap::server_timing). A request that never suspends then costs two reads of the clock, at its
//! beginning and at its end. Its fiber gets a [`Meter`] at the first suspension.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use osier::fiber::{Activity, Attached, Meter};
use osier::time::Stamp;

/// A part of the time of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Its client connected: from the acceptance of the connection to the first bytes of its first request, with the TLS handshake.
    /// Exact to a millisecond. Later requests of the connection have no such time, and neither have HTTP/2 streams.
    Accept,
    /// It could have gone on, and waited for the worker: before its beginning, or behind other fibers later.
    Worker,
    /// Its handler ran, or blocked its worker.
    Run,
    /// It waited for a backend, or for any other socket that its handler has opened.
    Upstream,
    /// It waited for a file.
    Disk,
    /// It waited for a lock or a permit.
    Lock,
    /// It slept.
    Sleep,
    /// It waited for bytes of its body.
    Client,
    /// It waited until its client took bytes of the response.
    Write,
    /// It waited for anything else: a channel, another fiber, work of `osier::unblock`.
    Other,
}

impl Phase {
    /// All phases, in the order in which logs have them.
    pub const ALL: &[Phase] = &[
        Phase::Accept,
        Phase::Worker,
        Phase::Run,
        Phase::Upstream,
        Phase::Disk,
        Phase::Lock,
        Phase::Sleep,
        Phase::Client,
        Phase::Write,
        Phase::Other,
    ];

    /// The name: the phase in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Accept => "accept",
            Phase::Worker => "worker",
            Phase::Run => "run",
            Phase::Upstream => "upstream",
            Phase::Disk => "disk",
            Phase::Lock => "lock",
            Phase::Sleep => "sleep",
            Phase::Client => "client",
            Phase::Write => "write",
            Phase::Other => "other",
        }
    }

    pub(crate) fn of(activity: Activity) -> Phase {
        match activity {
            Activity::Running => Phase::Run,
            Activity::Ready => Phase::Worker,
            Activity::Network => Phase::Upstream,
            Activity::Disk => Phase::Disk,
            Activity::Lock => Phase::Lock,
            Activity::Sleep => Phase::Sleep,
            Activity::Client => Phase::Client,
            Activity::Writing => Phase::Write,
            _ => Phase::Other,
        }
    }
}

/// The time of a request by [`Phase`], displayed as `worker 0.012 ms, run 1.250 ms`, without the phases that have taken none.
///
/// The phases from [`Phase::Run`] on, and the part of [`Phase::Worker`] after the beginning, add up to the duration of the
/// request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times(
    /// In nanoseconds.
    [u64; Phase::ALL.len()],
);

impl Times {
    /// No time.
    pub const ZERO: Times = Times([0; Phase::ALL.len()]);

    /// Adds to the time of a phase.
    #[must_use]
    pub fn with(mut self, phase: Phase, time: Duration) -> Times {
        self.add(phase, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self
    }

    fn add(&mut self, phase: Phase, nanos: u64) {
        let spent = &mut self.0[phase as usize];
        *spent = spent.saturating_add(nanos);
    }

    /// The time of a phase.
    pub fn get(&self, phase: Phase) -> Duration {
        Duration::from_nanos(self.0[phase as usize])
    }

    /// The phases that have taken time.
    pub fn iter(&self) -> impl Iterator<Item = (Phase, Duration)> {
        let all = Phase::ALL.iter().copied().zip(self.0);
        all.filter(|(_, nanos)| *nanos > 0)
            .map(|(phase, nanos)| (phase, Duration::from_nanos(nanos)))
    }

    /// The value of a `Server-Timing` field (W3C): each phase that has taken time, in milliseconds.
    pub fn server_timing(&self) -> String {
        let entry = |(phase, time): (Phase, Duration)| format!("{};dur={}", phase.as_str(), Millis(time));
        self.iter().map(entry).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (phase, time)) in self.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{} {} ms", phase.as_str(), Millis(time))?;
        }
        Ok(())
    }
}

/// A time in milliseconds with three decimals.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0.as_millis(), self.0.subsec_micros() % 1000)
    }
}

/// The stopwatch of one request.
#[derive(Default)]
pub(crate) struct Timing {
    /// When its head was parsed. `None` while nothing is measured.
    started: Cell<Option<Stamp>>,
    /// When its last byte was handed to the connection, if that was noted.
    ended: Cell<Option<Stamp>>,
    /// In milliseconds.
    accept: Cell<u32>,
    /// The nanoseconds in which the worker was busy with other fibers before the request began.
    queued: Cell<u64>,
    /// Made at its first suspension.
    meter: RefCell<Option<Rc<Meter>>>,
    attached: Cell<Option<Attached>>,
}

impl Clone for Timing {
    /// A stopwatch that shows the same times and is attached to no fiber.
    fn clone(&self) -> Timing {
        let clone = Timing::default();
        clone.set(self);
        clone
    }
}

impl Timing {
    /// Begins now, `accept` milliseconds after the acceptance of the connection. The request before has [ended](Timing::end).
    #[inline]
    pub(crate) fn begin(&self, accept: u32) -> Stamp {
        let started = Stamp::now();
        self.started.set(Some(started));
        self.ended.set(None);
        self.accept.set(accept);
        // The turn began when the worker saw that there was something to do.
        self.queued.set(started.nanos_since(Stamp::coarse()));
        started
    }

    /// Begins now, unless it has begun. Returns when it began.
    #[inline]
    pub(crate) fn begin_now(&self) -> Stamp {
        match self.started.get() {
            Some(started) => started,
            None => self.begin_late(),
        }
    }

    #[cold]
    fn begin_late(&self) -> Stamp {
        self.begin(0)
    }

    /// When it began.
    #[inline]
    pub(crate) fn started(&self) -> Option<Stamp> {
        self.started.get()
    }

    /// Notes that the last byte has been handed to the connection. Returns the nanoseconds since the beginning, if it has begun.
    #[inline]
    pub(crate) fn note_end(&self) -> Option<u64> {
        let started = self.started.get()?;
        let ended = Stamp::now();
        self.ended.set(Some(ended));
        Some(ended.nanos_since(started))
    }

    /// The end that was noted, or the present.
    #[inline]
    pub(crate) fn ended(&self) -> Stamp {
        self.ended.get().unwrap_or_else(Stamp::now)
    }

    /// The fiber of the request is about to suspend. Returns whether that is the first time.
    #[inline]
    pub(crate) fn suspends(&self) -> bool {
        match self.started.get() {
            Some(started) if self.meter.borrow().is_none() => {
                self.attach(started);
                true
            }
            _ => false,
        }
    }

    #[cold]
    fn attach(&self, started: Stamp) {
        self.attached.set(Some(self.meter(started).attach()));
    }

    fn meter(&self, started: Stamp) -> Rc<Meter> {
        let mut meter = self.meter.borrow_mut();
        Rc::clone(meter.get_or_insert_with(|| Meter::since(started)))
    }

    fn set(&self, other: &Timing) {
        self.started.set(other.started.get());
        self.ended.set(other.ended.get());
        self.accept.set(other.accept.get());
        self.queued.set(other.queued.get());
        self.meter.replace(other.meter.borrow().clone());
    }

    /// Continues the times of `other` on this fiber.
    pub(crate) fn go_on(&self, other: &Timing) {
        self.set(other);
        if let Some(meter) = &*self.meter.borrow() {
            meter.enter(Activity::Running);
            self.attached.set(Some(meter.attach()));
        }
    }

    /// The request goes on without a fiber, and waits for its client.
    pub(crate) fn leave_fiber(&self, activity: Activity) {
        if let Some(started) = self.started.get() {
            self.meter(started).enter(activity);
        }
        self.attached.take();
    }

    /// Detaches the meter: the fiber goes on with something else.
    #[inline]
    pub(crate) fn end(&self) {
        self.started.set(None);
        if self.meter.borrow().is_some() {
            self.attached.take();
            self.meter.take();
        }
    }

    /// The present phase, and since when, if the request has suspended.
    pub(crate) fn current(&self) -> Option<(Phase, Stamp)> {
        let (activity, since) = self.meter.borrow().as_ref()?.current();
        Some((Phase::of(activity), since))
    }

    /// The nanoseconds for which it waited for its worker, if it has only run since: it has never suspended, and is not the first of
    /// its connection.
    #[inline]
    pub(crate) fn queued(&self) -> Option<u64> {
        let only_ran = self.accept.get() == 0 && self.meter.borrow().is_none();
        only_ran.then_some(self.queued.get())
    }

    /// The time by phase. `nanos` is the time since the beginning.
    pub(crate) fn times(&self, nanos: u64) -> Times {
        let mut times = Times::ZERO;
        times.add(Phase::Accept, self.accept());
        times.add(Phase::Worker, self.queued.get());
        match &*self.meter.borrow() {
            Some(meter) => {
                for &activity in Activity::ALL {
                    times = times.with(Phase::of(activity), meter.spent(activity));
                }
            }
            None => times.add(Phase::Run, nanos),
        }
        times
    }

    /// The nanoseconds from the acceptance of the connection to the beginning.
    fn accept(&self) -> u64 {
        u64::from(self.accept.get()) * 1_000_000
    }
}
