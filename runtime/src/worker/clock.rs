//! The time of a runtime: the machine's, or that of a clock which a test moves.
//!
//! Every time in a runtime is an [`Instant`]. On a virtual clock it is the clock's start plus the time that the clock has moved since.
//! So deadlines, sleeps and timeouts have the same types on both. A worker reads its [`Clock`] once per turn of its loop, and `now`
//! in `worker/context.rs` reads it at each call. [`osier_queue::clock`] has the protocol by which a clock moves by itself. This
//! module has the worker's part in it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use osier_queue::Virtual;
use osier_queue::clock::{self, Member, Sleeper};

use crate::worker::stamp::Stamp;

/// How long a worker polls its descriptors in one look. Bytes between two sockets of this machine may still be on their way through the
/// kernel, on a busy machine for many milliseconds.
const LOOK: Duration = Duration::from_millis(1);
/// A jump of so far, or less, is worth one look. Each doubling is worth one more: a long deadline is mostly a timeout that must not come
/// while bytes are on their way.
const STEP: Duration = Duration::from_secs(1);

/// A clock for tests: it stands still until it is moved, and moves by itself when nobody has anything to do.
///
/// A runtime that is [built with it](crate::Builder::clock) takes every time from it: sleeps, timeouts, intervals, deadlines of I/O,
/// [`now`](crate::time::now) and [`coarse_now`](crate::time::coarse_now). Clones are handles on the same clock, and several runtimes may share it.
///
/// ```
/// use osier::time::VirtualClock;
/// use std::time::Duration;
///
/// const DAY: Duration = Duration::from_secs(86_400);
/// let clock = VirtualClock::new();
/// let runtime = osier::Runtime::builder().clock(clock.clone()).build()?;
/// runtime.run(|| osier::sleep(DAY));
/// assert_eq!(clock.elapsed(), DAY);
/// # std::io::Result::Ok(())
/// ```
///
/// # When it moves by itself
///
/// When every worker of every runtime on it has nothing that is ready, nothing that others have sent it, and a poller that
/// reports nothing, the clock moves to the earliest deadline. The clock does not see the outside of its runtimes: a
/// socket whose peer is another process or a plain thread, a pipe, a signal, a child process. While it waits for these, it moves too
/// early: [hold](VirtualClock::hold) the clock while the outside is at work, or [keep it](VirtualClock::auto_advance) from moving by itself
/// and [advance](VirtualClock::advance) it by hand. Sockets between two fibers on the clock are seen: before the clock moves, their workers
/// look for bytes that are on their way: for 1 ms before a move of a second, 12 before one of an hour, 17 before one of a day. Bytes that
/// the kernel keeps for longer are not seen: it sends again after 200 ms what a receiver had no room for.
///
/// Work on the pool holds the clock until its result is taken: [`unblock`](crate::unblock()), files, names that are looked up.
///
/// A fiber that sleeps again and again makes an otherwise idle clock run as fast as it can.
///
/// # What stays real
///
/// The shutdown timeout and the watchdog; time as a plain thread sees it, also inside of [`unblock`](crate::unblock()); callback queues
/// ([`callbacks`](crate::callbacks)) with their timers; the time of day ([`system_now`](crate::time::system_now)), which the simulation moves.
#[derive(Clone, Debug, Default)]
#[doc(alias("pause", "MockClock"))]
pub struct VirtualClock(Virtual);

impl VirtualClock {
    /// A clock that starts at the present.
    pub fn new() -> VirtualClock {
        VirtualClock::default()
    }

    /// A clock that starts at `start`.
    pub fn starting_at(start: Instant) -> VirtualClock {
        VirtualClock(Virtual::starting_at(start))
    }

    /// The present on this clock.
    pub fn now(&self) -> Instant {
        self.0.now()
    }

    pub(crate) fn start(&self) -> Instant {
        self.0.start()
    }

    /// How far the clock has moved since its start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Moves the clock forward, from any thread, and wakes every worker with a timer whose time has come.
    ///
    /// The clock moves at once, by the whole `step`; the fibers whose timers are due run when their workers turn next. A fiber that
    /// advances the clock itself yields to let them. The clock stops 292 years after its start: a sleep until later never ends.
    ///
    /// ```
    /// use osier::time::VirtualClock;
    /// use std::time::Duration;
    ///
    /// let clock = VirtualClock::new();
    /// clock.auto_advance(false);
    /// let runtime = osier::Runtime::builder().clock(clock.clone()).build()?;
    /// let start = clock.now();
    /// let sleeper = runtime.spawn(move || osier::time::sleep_until(start + Duration::from_secs(60)));
    /// clock.advance(Duration::from_secs(60));
    /// sleeper.join().unwrap();
    /// # std::io::Result::Ok(())
    /// ```
    pub fn advance(&self, step: Duration) {
        self.0.advance(step);
    }

    /// Sets whether the clock moves by itself when nothing can run. On by default.
    #[doc(alias = "resume")]
    pub fn auto_advance(&self, on: bool) {
        self.0.set_automatic(on);
    }

    /// Keeps the clock from moving by itself until the [`Hold`] is dropped. [`advance`](VirtualClock::advance) still moves it.
    pub fn hold(&self) -> Hold {
        Hold(self.0.hold())
    }

    pub(crate) fn join(&self, sleeper: impl Sleeper + 'static) -> Member {
        self.0.join(sleeper)
    }
}

/// Keeps a [`VirtualClock`] from moving by itself while it lives.
#[derive(Debug)]
#[must_use = "dropped, it holds nothing"]
pub struct Hold(#[expect(dead_code, reason = "dropped, it tells the clock")] clock::Hold);

/// A worker's clock.
pub(crate) enum Clock {
    Real,
    Virtual(Seat),
}

impl Clock {
    pub(crate) fn with(member: Option<Member>) -> Clock {
        match member {
            None => Clock::Real,
            Some(member) => Clock::Virtual(Seat {
                member,
                stirred: Cell::new(true),
                looked: Cell::new(None),
                looks_left: Cell::new(0),
            }),
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match self {
            Clock::Real => Instant::now(),
            Clock::Virtual(seat) => seat.member.clock().now(),
        }
    }

    /// The present as a stamp.
    #[inline]
    pub(crate) fn stamp(&self) -> Stamp {
        match self {
            Clock::Real => Stamp::of_machine(),
            Clock::Virtual(seat) => Stamp::of(seat.member.clock().now()),
        }
    }

    /// Keeps a clock that could move by itself from doing so.
    pub(crate) fn hold(&self) -> Option<Hold> {
        match self {
            Clock::Real => None,
            Clock::Virtual(seat) => Some(Hold(seat.member.clock().hold())),
        }
    }

    /// The stamp on this clock that belongs to this moment of the machine's clock.
    #[inline]
    pub(crate) fn time(&self, real: Stamp) -> Stamp {
        match self {
            Clock::Real => real,
            Clock::Virtual(_) => self.stamp(),
        }
    }

    /// The worker does something, which may give others something to do.
    #[inline]
    pub(crate) fn stir(&self) {
        if let Clock::Virtual(seat) = self {
            seat.stirred.set(true);
        }
    }

    /// Whether it is the machine's.
    #[inline]
    pub(crate) fn is_real(&self) -> bool {
        matches!(self, Clock::Real)
    }

    /// How long to poll before sleeping. `None`: sleep. `is_due` says whether a timer needs the turn, `watches` whether the
    /// poller watches anything, `next` when the worker's next timer is due.
    #[inline]
    pub(crate) fn look(
        &self,
        is_due: impl FnOnce() -> bool,
        watches: impl FnOnce() -> bool,
        next: impl FnOnce() -> Option<Instant>,
    ) -> Option<Duration> {
        match self {
            Clock::Real => None,
            Clock::Virtual(seat) => seat.look(is_due, watches, next),
        }
    }
}

/// A worker's place at a virtual clock.
pub(crate) struct Seat {
    member: Member,
    /// It has done something since its last look.
    stirred: Cell<bool>,
    /// The round for which the last turn has looked.
    looked: Cell<Option<u64>>,
    /// The number of looks that are left in the same round.
    looks_left: Cell<u32>,
}

impl Seat {
    fn look(
        &self,
        is_due: impl FnOnce() -> bool,
        watches: impl FnOnce() -> bool,
        next: impl FnOnce() -> Option<Instant>,
    ) -> Option<Duration> {
        // This look counts for no round: the timer may only move to a lower level of its wheel, which wakes nobody. If it counted, the
        // clock could move before the poller was asked.
        if is_due() {
            return Some(Duration::ZERO);
        }
        let stirred = self.stirred.replace(false);
        if self.looked.get().is_some() && !stirred {
            self.looks_left.set(self.looks_left.get().checked_sub(1)?);
            return Some(LOOK);
        }
        self.looked.set(Some(self.member.look(stirred)));
        let is_patient = watches() && self.member.clock().is_automatic();
        self.looks_left.set(if is_patient { self.looks(next()) - 1 } else { 0 });
        Some(if is_patient { LOOK } else { Duration::ZERO })
    }

    /// The number of looks before the clock jumps, if the worker's next timer is due at `next`. At least one.
    fn looks(&self, next: Option<Instant>) -> u32 {
        let steps = self.member.distance(next).unwrap_or_default().as_nanos() / STEP.as_nanos();
        1 + steps.checked_ilog2().unwrap_or(0)
    }

    /// The look has found nothing and the worker has announced its sleep: whether it is to sleep until it is rung.
    pub(crate) fn rest(&self, deadline: Option<Instant>) -> bool {
        self.looked
            .take()
            .is_some_and(|round| self.member.rest(round, deadline))
    }

    /// Says when the worker is to be rung, while its host looks elsewhere.
    pub(crate) fn publish(&self, deadline: Option<Instant>) {
        self.member.publish(deadline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Awake;

    impl Sleeper for Awake {
        fn is_asleep(&self) -> bool {
            false
        }

        fn wake(&self) {}
    }

    /// The looks of a worker that watches something, before it reports.
    fn looks(clock: &Clock, distance: Option<Duration>) -> usize {
        clock.stir();
        let next = || Some(clock.now() + distance?);
        let looks = std::iter::from_fn(|| clock.look(|| false, || true, next));
        looks.inspect(|look| assert_eq!(*look, LOOK)).count()
    }

    #[test]
    fn the_farther_the_jump_the_longer_the_look_before_it() {
        let clock = Clock::with(Some(VirtualClock::new().join(Awake)));
        for (seconds, expected) in [
            (0, 1),
            (1, 1),
            (2, 2),
            (7, 3),
            (3600, 12),
            (24 * 3600, 17),
            (u64::MAX >> 32, 32),
        ] {
            assert_eq!(
                looks(&clock, Some(Duration::from_secs(seconds))),
                expected,
                "{seconds} s"
            );
        }
        assert_eq!(looks(&clock, None), 1);
    }

    #[test]
    fn work_in_between_begins_the_looks_anew() {
        let clock = Clock::with(Some(VirtualClock::new().join(Awake)));
        let next = || Some(clock.now() + 5 * STEP);
        let look = || clock.look(|| false, || true, next);
        assert!(look().is_some() && look().is_some());
        assert_eq!(looks(&clock, Some(5 * STEP)), 3);
        assert_eq!(look(), None);
    }

    #[test]
    fn who_watches_nothing_looks_once_without_a_wait() {
        let clock = Clock::with(Some(VirtualClock::new().join(Awake)));
        let look = || clock.look(|| false, || false, || Some(clock.now() + 5 * STEP));
        assert_eq!([look(), look()], [Some(Duration::ZERO), None]);
    }
}
