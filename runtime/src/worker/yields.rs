//! How a fiber lets others run: it yields to those that are ready, or gives way to those as well whose event has come.
//!
//! A fiber that makes many calls in a row, none of which has to wait, yields by itself. If it also computes between them, as one that
//! compresses a file does, it gives way by itself. The polls of futures count in the same way (`wait/budget.rs`).

use std::cell::Cell;

use super::{TURN, Worker};
use crate::wait::Waits;
use crate::worker::core::Core;
use crate::worker::stamp::Stamp;

/// A fiber may complete this many blocking calls without suspending, and a future this many calls in one poll.
const CALLS_BUDGET: u16 = 128;
/// A poll whose calls were refused this many times has a new budget: code that polls until something is ready, as another executor's
/// `block_on` inside of a task, would not end otherwise.
const REFUSALS: i16 = 1024;
/// So many calls more may complete in the last poll of a future whose time is over, within the same time. They end where a virtual clock
/// stands still.
const LAST_CALLS: i16 = 30_000;
/// The first call at which the clock is looked at: a look costs as much as a quick call, and most fibers wait before it. The others are at
/// powers of two, so the calls since a look take about as long as those before it.
const CALLS_AT_LEAST: u16 = 8;

/// The blocking calls completed since the last suspension of any fiber. They are counted down, so that a call has one test.
pub(super) struct Calls {
    /// The number of calls at the next look at the clock.
    next_look: Cell<u16>,
    /// The calls that are missing for it.
    missing: Cell<u16>,
    /// The time of the first look.
    since: Cell<Stamp>,
    /// The ready calls of a future in one poll, or on one fiber since that was resumed; beyond [`CALLS_BUDGET`] those that were refused.
    polled: Cell<i16>,
    /// Whether one of them was refused.
    refused: Cell<bool>,
    /// The time of the first look at these.
    polled_since: Cell<Stamp>,
}

impl Calls {
    pub(super) fn new() -> Calls {
        Calls {
            next_look: Cell::new(CALLS_AT_LEAST),
            missing: Cell::new(CALLS_AT_LEAST),
            since: Cell::new(Stamp::of_machine()),
            polled: Cell::new(0),
            refused: Cell::new(false),
            polled_since: Cell::new(Stamp::of_machine()),
        }
    }

    /// A fiber is resumed: nothing has been completed.
    #[inline(always)]
    pub(super) fn reset(&self) {
        self.next_look.set(CALLS_AT_LEAST);
        self.missing.set(CALLS_AT_LEAST);
        self.reset_polled();
    }

    #[inline(always)]
    fn reset_polled(&self) {
        self.polled.set(0);
        self.refused.set(false);
    }

    /// Counts a call. Returns whether the clock is to be looked at.
    #[inline(always)]
    fn count(&self) -> bool {
        self.missing.set(self.missing.get() - 1);
        self.missing.get() == 0
    }
}

impl Worker {
    /// Suspends the fiber and queues it behind the others that are ready.
    #[inline(always)]
    pub(crate) fn yield_fiber(&self, core: &Core<'_>) {
        self.slots.queue_current();
        core.suspend(Waits::nothing);
    }

    /// Queues the fiber that runs: its next suspension ends behind the others that are ready.
    #[cold]
    #[inline(never)]
    pub(crate) fn queue_fiber(&self) {
        self.slots.queue_current();
    }

    /// Suspends the fiber until the worker has looked at its poller, and has run what it found and all that was ready.
    #[cold]
    #[inline(never)]
    pub(crate) fn give_way(&self, core: &Core<'_>) {
        // A wake-up that nobody waits for any more may have queued the fiber. It is over with one suspension, of which the hooks learn
        // nothing: they have run once.
        while !self.slots.give_way_current() {
            core.switch(Waits::nothing);
        }
        core.suspend(Waits::nothing);
    }

    /// Runs the fiber that gave way first.
    #[cold]
    #[inline(never)]
    pub(super) fn run_one_that_gave_way(&self) {
        if let Some(slot) = self.slots.pop_that_gave_way() {
            self.resume(slot);
            self.remote.desk.resumed.add(1);
        }
    }

    /// Counts a blocking call that did not block. A fiber that makes too many in a row, or computes for too long between them, lets
    /// others run.
    #[inline]
    pub(crate) fn count_ready_call(&self, core: &Core<'_>) {
        if self.calls.count() {
            self.look_at_calls(core);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at_calls(&self, core: &Core<'_>) {
        // The clock of the runtime: a simulation is the same on a slow machine.
        let now = self.clock.stamp();
        let calls = &self.calls;
        let completed = calls.next_look.get();
        // As many again.
        calls.next_look.set(2 * completed);
        calls.missing.set(completed);
        if completed == CALLS_AT_LEAST {
            calls.since.set(now);
        } else if now.since(calls.since.get()) >= TURN {
            calls.reset();
            core.run_hooks();
            self.give_way(core);
        } else if completed >= CALLS_BUDGET {
            calls.reset();
            core.run_hooks();
            self.yield_fiber(core);
        }
    }

    /// Counts ready calls of a future that this worker polls. Returns whether its poll may go on.
    pub(crate) fn spend(&self, count: u8) -> bool {
        const BUDGET: i16 = CALLS_BUDGET as i16;
        let Calls {
            polled,
            polled_since,
            refused,
            ..
        } = &self.calls;
        let before = polled.get();
        if before >= BUDGET {
            let goes_on = before >= BUDGET + REFUSALS;
            polled.set(if goes_on { 0 } else { before + 1 });
            return goes_on;
        }
        let (now, completed) = (self.clock.stamp(), before + i16::from(count));
        let is_first_look = (0..CALLS_AT_LEAST as i16).contains(&before);
        if is_first_look {
            polled_since.set(now);
        }
        let goes_on = completed < BUDGET && (is_first_look || now.since(polled_since.get()) < TURN);
        polled.set(if goes_on { completed } else { BUDGET });
        if !goes_on {
            refused.set(true);
        }
        goes_on
    }

    /// Whether [`spend`](Worker::spend) has refused since the fiber was resumed, or since the poll of the task began.
    pub(crate) fn has_refused(&self) -> bool {
        self.calls.refused.get()
    }

    /// Lets the future that is polled complete [`LAST_CALLS`] before the next refusal.
    pub(crate) fn allow_more_calls(&self) {
        self.calls.polled.set(-LAST_CALLS);
        self.calls.polled_since.set(self.clock.stamp());
    }

    /// The worker polls a task: its calls count from here on.
    #[inline]
    pub(crate) fn begin_calls(&self) {
        self.calls.reset_polled();
    }
}
