//! The clock of tests, [`Virtual`]: a program moves it, or it jumps to the earliest deadline when all its workers only wait for
//! time. This module also converts between times and the ticks of the timer wheel.
//!
//! # Ticks
//! The [wheel](crate::wheel) counts ticks of one millisecond. Deadlines round up ([`tick_after`]) and the present rounds down
//! ([`tick_at`]). So a timer never fires early. It fires late by less than one tick plus the error of the system's sleep. A
//! tick stands for `Duration::from_millis(tick)`.
//!
//! # The jump
//! A [`Virtual`] clock has members: the workers that live on it. When all members have nothing to do but wait for a deadline, the
//! clock jumps to the earliest one. No worker can see that alone: while one looks into its queues, another may send it
//! something. So the members agree in *rounds*:
//!
//! ```text
//!   worker                                              clock, under its lock
//!     nothing to do: look(stirred) ───────────────────▶   stirred: a new round; all reports are void
//!                          ◀─────────────────── round
//!     looks at all its queues and its poller:
//!       something: does it, is stirred, begins again
//!       nothing: says that it sleeps (Parker),
//!         looks at its queues again, then
//!         rest(round, deadline) ──────────────────────▶   a later round: look again
//!                                                          first report of the round: wakes the others to look again
//!                                                          last report, and all asleep: jumps, wakes who is due
//!                          ◀── sleep, or look again
//! ```
//!
//! Why no work is left behind: assume that worker W has work although all members have reported for the round. The work was sent
//! after W's look, or W would have found it. So its sender worked after the round had begun, and must have opened a later round
//! before it reported again. An event from outside of the members ends its receiver's sleep ([`Sleeper::is_asleep`]); otherwise
//! it counts as if it had come after the jump.
//!
//! # Who may touch what
//! `nanos` is written under the lock of `state` and read without it, with `Release` and `Acquire`: a reader of a time sees everything
//! done before the clock moved there. Everything else is under the lock. Sleepers are woken under it, so `wake` must not call the
//! clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// The last time of a clock, in nanoseconds after its start. Sums with it fit the numbers that the runtime counts time with.
const END: u64 = i64::MAX as u64;

/// A clock that stands still until it is moved. Clones are handles on the same clock.
///
/// ```
/// use osier_queue::Virtual;
/// use std::time::Duration;
///
/// let clock = Virtual::new();
/// let hand = clock.clone();
/// hand.advance(Duration::from_secs(3600));
/// assert_eq!(clock.elapsed(), Duration::from_secs(3600));
/// ```
#[derive(Clone)]
pub struct Virtual {
    inner: Arc<Inner>,
}

struct Inner {
    start: Instant,
    /// Time since `start`, in nanoseconds.
    nanos: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// Seats of the members. None is a vacant seat.
    seats: Vec<Option<Seat>>,
    /// Number of the round, from 1.
    round: u64,
    automatic: bool,
    holds: usize,
}

struct Seat {
    sleeper: Box<dyn Sleeper>,
    /// The last round for which the member has reported that it has nothing to do. 0 for none.
    reported: u64,
    /// Deadline in nanoseconds after the clock's start. Stale while the member is awake.
    deadline: Option<u64>,
}

/// A member as the clock sees it.
pub trait Sleeper: Send + Sync {
    /// Whether the member has announced a sleep that nobody has ended.
    fn is_asleep(&self) -> bool;

    /// Ends the member's sleep, if it sleeps. It must not call the clock.
    fn wake(&self);
}

impl Virtual {
    /// A clock that starts at the present.
    pub fn new() -> Self {
        Self::starting_at(Instant::now())
    }

    /// A clock that starts at `start`.
    pub fn starting_at(start: Instant) -> Self {
        let state = State {
            seats: Vec::new(),
            round: 1,
            automatic: true,
            holds: 0,
        };
        let inner = Inner {
            start,
            nanos: AtomicU64::new(0),
            state: Mutex::new(state),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The present time on this clock.
    pub fn now(&self) -> Instant {
        self.inner.start + self.elapsed()
    }

    /// The time at which the clock started.
    pub fn start(&self) -> Instant {
        self.inner.start
    }

    /// Time since the clock's start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.inner.nanos.load(Ordering::Acquire))
    }

    /// Moves the clock forward by `step`, and wakes the members whose deadlines have come. The clock stops at its end, 292 years after
    /// its start.
    pub fn advance(&self, step: Duration) {
        let state = self.lock();
        let now = self.nanos().saturating_add(nanos(step)).min(END);
        self.move_to(&state, now);
    }

    /// Whether the clock jumps to the next deadline when no member has anything to do. It does by default.
    pub fn is_automatic(&self) -> bool {
        self.lock().automatic
    }

    /// Turns the jump on or off.
    pub fn set_automatic(&self, automatic: bool) {
        let mut state = self.lock();
        state.automatic = automatic;
        if automatic {
            state.ask_all();
        }
    }

    /// Keeps the clock from jumping by itself until the [`Hold`] is dropped.
    pub fn hold(&self) -> Hold {
        self.lock().holds += 1;
        Hold(self.clone())
    }

    /// Adds a member. The clock does not jump before it has [reported](Member::rest).
    pub fn join(&self, sleeper: impl Sleeper + 'static) -> Member {
        let seat = Seat {
            sleeper: Box::new(sleeper),
            reported: 0,
            deadline: None,
        };
        let mut state = self.lock();
        let index = state
            .seats
            .iter()
            .position(Option::is_none)
            .unwrap_or(state.seats.len());
        if index == state.seats.len() {
            state.seats.push(None);
        }
        state.seats[index] = Some(seat);
        Member {
            clock: self.clone(),
            index,
        }
    }

    fn nanos(&self) -> u64 {
        self.inner.nanos.load(Ordering::Acquire)
    }

    fn move_to(&self, state: &State, now: u64) {
        self.inner.nanos.store(now, Ordering::Release);
        let due = |seat: &&Seat| seat.deadline.is_some_and(|deadline| deadline <= now);
        state.taken().filter(due).for_each(|seat| seat.sleeper.wake());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Default for Virtual {
    fn default() -> Self {
        Self::new()
    }
}

crate::impl_debug!(Virtual, self => { elapsed: self.elapsed(), .. });

impl State {
    fn taken(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().flatten()
    }

    /// Begins a new round, in which all members look again.
    fn ask_all(&mut self) {
        self.round += 1;
        self.taken().for_each(|seat| seat.sleeper.wake());
    }

    /// The time to jump to. None unless every member has reported for this round and sleeps, and no deadline has come.
    fn target(&self, now: u64) -> Option<u64> {
        let quiet = |seat: &Seat| seat.reported == self.round && seat.sleeper.is_asleep();
        if !self.automatic || self.holds > 0 || !self.taken().all(quiet) {
            return None;
        }
        let next = self.taken().filter_map(|seat| seat.deadline).min();
        next.filter(|&next| next > now)
    }
}

/// A worker's membership of a clock. Dropping it ends the membership.
pub struct Member {
    clock: Virtual,
    index: usize,
}

impl Member {
    /// The member's clock.
    pub fn clock(&self) -> &Virtual {
        &self.clock
    }

    /// Begins a look for work and returns the round of the look. `stirred` says whether the member has worked since its last look, which
    /// may have given work to others.
    pub fn look(&self, stirred: bool) -> u64 {
        let mut state = self.clock.lock();
        state.round += u64::from(stirred);
        state.round
    }

    /// How far the clock would jump if nobody had anything to do: to `own`, this member's deadline, or to an earlier one that others
    /// have reported.
    pub fn distance(&self, own: Option<Instant>) -> Option<Duration> {
        let state = self.clock.lock();
        let mine = self.place(own);
        let seats = state.seats.iter().enumerate().filter(|(index, _)| *index != self.index);
        let others = seats.filter_map(|(_, seat)| seat.as_ref()?.deadline);
        let next = others.chain(mine).min()?;
        Some(Duration::from_nanos(next.saturating_sub(self.clock.nanos())))
    }

    /// Reports that the look of this round has found nothing, and the member's deadline. The member has announced its sleep before.
    ///
    /// Returns true if the member must sleep until it is woken. Returns false if it must look again: its deadline has come, or others
    /// have worked.
    pub fn rest(&self, round: u64, deadline: Option<Instant>) -> bool {
        let mut state = self.clock.lock();
        let now = self.clock.nanos();
        let deadline = self.note(&mut state, deadline);
        if round != state.round || deadline.is_some_and(|deadline| deadline <= now) {
            return false;
        }
        let first = state.taken().all(|seat| seat.reported != round);
        self.seat(&mut state).reported = round;
        if first && state.automatic {
            let others = state.taken().filter(|seat| seat.reported != round);
            others.for_each(|seat| seat.sleeper.wake());
        }
        let Some(target) = state.target(now) else {
            return true;
        };
        self.clock.move_to(&state, target);
        deadline.is_none_or(|deadline| deadline > target)
    }

    /// Publishes the deadline of a member that something else makes look: the clock wakes it at the deadline, and does not jump.
    pub fn publish(&self, deadline: Option<Instant>) {
        self.note(&mut self.clock.lock(), deadline);
    }

    fn note(&self, state: &mut State, deadline: Option<Instant>) -> Option<u64> {
        self.seat(state).deadline = self.place(deadline);
        self.seat(state).deadline
    }

    /// The time of a deadline after the clock's start. A deadline beyond the clock's end is none: it never comes.
    fn place(&self, deadline: Option<Instant>) -> Option<u64> {
        Some(nanos(deadline?.saturating_duration_since(self.clock.inner.start))).filter(|&nanos| nanos <= END)
    }

    fn seat<'s>(&self, state: &'s mut State) -> &'s mut Seat {
        state.seats[self.index].as_mut().expect("vacated by its drop alone")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.clock.lock();
        state.seats[self.index] = None;
        state.ask_all();
    }
}

crate::impl_debug!(Member, self => { clock: self.clock, .. });

/// Keeps a [`Virtual`] clock from jumping by itself until it is dropped.
#[derive(Debug)]
#[must_use = "dropped, it holds nothing"]
pub struct Hold(Virtual);

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.holds -= 1;
        if state.holds == 0 {
            state.ask_all();
        }
    }
}

/// The first tick at or after `time`. A deadline is rounded up so that it is never early.
pub const fn tick_after(time: Duration) -> u64 {
    let part = !time.subsec_nanos().is_multiple_of(1_000_000);
    tick_at(time).saturating_add(part as u64)
}

/// The tick that contains `time`. The present is rounded down. Saturates at `u64::MAX` (584 million years).
pub const fn tick_at(time: Duration) -> u64 {
    let millis = time.as_millis();
    if millis > u64::MAX as u128 {
        u64::MAX
    } else {
        millis as u64
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    #[test]
    fn deadlines_round_up_and_the_present_rounds_down() {
        for (nanos, after, at) in [
            (0, 0, 0),
            (1, 1, 0),
            (999_999, 1, 0),
            (1_000_000, 1, 1),
            (1_000_001, 2, 1),
        ] {
            let time = Duration::from_nanos(nanos);
            assert_eq!((tick_after(time), tick_at(time)), (after, at), "{time:?}");
        }
        assert_eq!(
            (tick_after(Duration::MAX), tick_at(Duration::MAX)),
            (u64::MAX, u64::MAX)
        );
    }

    /// A member's sleep, with a count of how often the clock has ended it.
    #[derive(Clone, Default)]
    struct Bed(Arc<(AtomicBool, AtomicUsize)>);

    impl Bed {
        fn lie_down(&self) {
            self.0.0.store(true, Ordering::SeqCst);
        }

        fn wakes(&self) -> usize {
            self.0.1.load(Ordering::SeqCst)
        }
    }

    impl Sleeper for Bed {
        fn is_asleep(&self) -> bool {
            self.0.0.load(Ordering::SeqCst)
        }

        fn wake(&self) {
            if self.0.0.swap(false, Ordering::SeqCst) {
                self.0.1.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    fn after(clock: &Virtual, hours: u32) -> Option<Instant> {
        Some(clock.inner.start + HOUR * hours)
    }

    /// Looks, finds nothing and reports it.
    fn rests(member: &Member, bed: &Bed, stirred: bool, hours: Option<u32>) -> bool {
        let round = member.look(stirred);
        bed.lie_down();
        member.rest(round, hours.and_then(|hours| after(member.clock(), hours)))
    }

    #[test]
    fn it_moves_only_forward_and_stops_at_its_end() {
        let start = Instant::now();
        let clock = Virtual::starting_at(start);
        assert_eq!(clock.now(), start);
        clock.advance(HOUR);
        clock.advance(Duration::ZERO);
        assert_eq!((clock.now(), clock.elapsed()), (start + HOUR, HOUR));
        clock.advance(Duration::MAX);
        clock.advance(HOUR);
        assert_eq!(clock.elapsed(), Duration::from_nanos(END));
    }

    #[test]
    fn who_waits_for_a_time_beyond_the_end_sleeps() {
        let (clock, bed) = (Virtual::new(), Bed::default());
        let member = clock.join(bed.clone());
        let beyond = clock.inner.start.checked_add(Duration::from_secs(1 << 40));
        for step in [Duration::ZERO, Duration::MAX] {
            clock.advance(step);
            let now = clock.elapsed();
            let round = member.look(true);
            assert_eq!(member.distance(beyond), None);
            bed.lie_down();
            assert!(member.rest(round, beyond), "there is nothing to do");
            assert_eq!((clock.elapsed(), bed.wakes()), (now, 0));
        }
    }

    #[test]
    fn one_member_jumps_from_deadline_to_deadline() {
        let (clock, bed) = (Virtual::new(), Bed::default());
        let member = clock.join(bed.clone());
        assert!(
            rests(&member, &bed, true, None),
            "without a deadline there is nowhere to go"
        );
        assert_eq!(clock.elapsed(), Duration::ZERO);
        for hour in 1..=24 {
            assert!(!rests(&member, &bed, true, Some(hour)), "it is due at once");
            assert_eq!(clock.elapsed(), HOUR * hour);
        }
    }

    #[test]
    fn the_first_to_rest_asks_the_others_and_the_last_jumps() {
        let (clock, beds) = (Virtual::new(), [Bed::default(), Bed::default()]);
        let members = beds.clone().map(|bed| clock.join(bed));
        assert!(rests(&members[0], &beds[0], true, Some(2)));
        assert_eq!(
            (clock.elapsed(), beds[1].wakes()),
            (Duration::ZERO, 0),
            "the other is awake"
        );
        // It has worked since, so the first must look again.
        assert!(rests(&members[1], &beds[1], true, Some(1)));
        assert_eq!((clock.elapsed(), beds[0].wakes()), (Duration::ZERO, 1));
        assert!(rests(&members[0], &beds[0], false, Some(2)));
        assert_eq!(
            (clock.elapsed(), beds[1].wakes()),
            (HOUR, 1),
            "to the deadline of the other"
        );
        assert!(!rests(&members[1], &beds[1], false, Some(1)), "which is due");
    }

    #[test]
    fn who_is_awake_on_somebody_elses_behalf_keeps_the_clock() {
        let (clock, beds) = (Virtual::new(), [Bed::default(), Bed::default()]);
        let members = beds.clone().map(|bed| clock.join(bed));
        assert!(rests(&members[0], &beds[0], false, Some(1)));
        beds[0].wake(); // by a thread outside
        assert!(rests(&members[1], &beds[1], false, Some(1)));
        assert_eq!(clock.elapsed(), Duration::ZERO);
        assert!(!rests(&members[0], &beds[0], false, Some(1)));
        assert_eq!(clock.elapsed(), HOUR);
    }

    #[test]
    fn a_look_of_an_earlier_round_counts_for_nothing() {
        let (clock, beds) = (Virtual::new(), [Bed::default(), Bed::default()]);
        let members = beds.clone().map(|bed| clock.join(bed));
        let round = members[0].look(false);
        members[1].look(true);
        beds[0].lie_down();
        assert!(!members[0].rest(round, after(&clock, 1)));
    }

    #[test]
    fn a_hand_wakes_who_is_due_and_nobody_else() {
        let (clock, beds) = (Virtual::new(), [Bed::default(), Bed::default()]);
        clock.set_automatic(false);
        let members = beds.clone().map(|bed| clock.join(bed));
        assert!(rests(&members[0], &beds[0], true, Some(1)));
        assert!(rests(&members[1], &beds[1], false, Some(2)));
        assert_eq!(clock.elapsed(), Duration::ZERO);
        clock.advance(HOUR);
        assert_eq!((beds[0].wakes(), beds[1].wakes()), (1, 0));
        assert!(!rests(&members[0], &beds[0], false, Some(1)), "moved after it looked");
        members[0].publish(after(&clock, 3));
        beds[0].lie_down();
        clock.advance(HOUR * 2);
        assert_eq!((beds[0].wakes(), beds[1].wakes()), (2, 1));
    }

    #[test]
    fn a_member_knows_how_far_the_jump_would_go() {
        let (clock, beds) = (Virtual::new(), [Bed::default(), Bed::default()]);
        let members = beds.clone().map(|bed| clock.join(bed));
        assert_eq!(members[0].distance(None), None);
        assert!(rests(&members[0], &beds[0], true, Some(2)));
        assert_eq!(members[0].distance(None), None, "its own report is over");
        let distances = [None, Some(3), Some(1)].map(|hours| members[1].distance(hours.and_then(|h| after(&clock, h))));
        assert_eq!(distances, [Some(HOUR * 2), Some(HOUR * 2), Some(HOUR)]);
        clock.advance(HOUR * 3);
        assert_eq!(members[1].distance(None), Some(Duration::ZERO));
    }

    #[test]
    fn holds_and_the_switch_stop_the_jump_and_ask_again_when_they_go() {
        let (clock, bed) = (Virtual::new(), Bed::default());
        let member = clock.join(bed.clone());
        let holds = [clock.hold(), clock.hold()];
        assert!(rests(&member, &bed, true, Some(1)));
        let [first, second] = holds;
        drop(first);
        assert_eq!(bed.wakes(), 0);
        clock.set_automatic(false);
        drop(second);
        assert_eq!(bed.wakes(), 1);
        assert!(rests(&member, &bed, false, Some(1)) && !clock.is_automatic());
        clock.set_automatic(true);
        assert_eq!(bed.wakes(), 2);
        assert!(!rests(&member, &bed, false, Some(1)));
        assert_eq!(clock.elapsed(), HOUR);
    }

    #[test]
    fn who_has_left_is_not_waited_for() {
        let (clock, beds) = (Virtual::new(), [Bed::default(), Bed::default()]);
        let [first, second] = beds.clone().map(|bed| clock.join(bed));
        assert!(rests(&first, &beds[0], true, Some(1)));
        drop(second);
        assert_eq!(beds[0].wakes(), 1);
        assert!(!rests(&first, &beds[0], false, Some(1)));
        let third = clock.join(beds[1].clone());
        assert_eq!(third.index, 1, "the place is used again");
        assert!(rests(&first, &beds[0], true, Some(2)));
    }
}
