//! How a fiber lets others run: it yields to those that are ready, or gives way to those as well whose event has come.
//!
//! A fiber that makes many calls in a row, none of which has to wait, yields by itself. If it also computes between them, as one that
//! compresses a file does, it gives way by itself. The polls of futures count in the same way (`wait/budget.rs`).

use super::{TURN, Worker};
use crate::wait::Waits;
use crate::worker::core::Core;

/// A fiber may complete this many blocking calls without suspending, and a future this many calls in one poll.
const CALLS_BUDGET: u32 = 128;
/// A poll whose calls were refused this many times has a new budget: code that polls until something is ready, as another executor's
/// `block_on` inside of a task, would not end otherwise.
const REFUSALS: u32 = 1024;
/// The first call at which the clock is looked at: a look costs as much as a quick call, and most fibers wait before it. The others are at
/// powers of two, so the calls since a look take about as long as those before it.
const CALLS_AT_LEAST: u32 = 8;

impl Worker {
    /// Suspends the fiber and queues it behind the others that are ready.
    #[inline(always)]
    pub(crate) fn yield_fiber(&self, core: &Core<'_>) {
        self.slots.queue_current();
        core.suspend(Waits::nothing);
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
        let completed = self.completed.get() + 1;
        self.completed.set(completed);
        if completed >= CALLS_AT_LEAST && completed.is_power_of_two() {
            self.look_at_calls(core, completed);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at_calls(&self, core: &Core<'_>, completed: u32) {
        // The clock of the runtime: a simulation is the same on a slow machine.
        let now = self.clock.stamp();
        if completed == CALLS_AT_LEAST {
            self.completed_since.set(now);
        } else if now.since(self.completed_since.get()) >= TURN {
            self.completed.set(0);
            core.run_hooks();
            self.give_way(core);
        } else if completed >= CALLS_BUDGET {
            self.completed.set(0);
            core.run_hooks();
            self.yield_fiber(core);
        }
    }

    /// Counts ready calls of a future that this worker polls. Returns whether its poll may go on.
    pub(crate) fn spend(&self, calls: u32) -> bool {
        let before = self.completed.get();
        if before >= CALLS_BUDGET {
            let goes_on = before >= CALLS_BUDGET + REFUSALS;
            self.completed.set(if goes_on { 0 } else { before + 1 });
            return goes_on;
        }
        let (now, completed) = (self.clock.stamp(), before + calls);
        let is_first_look = before < CALLS_AT_LEAST;
        if is_first_look {
            self.completed_since.set(now);
        }
        let goes_on = completed < CALLS_BUDGET && (is_first_look || now.since(self.completed_since.get()) < TURN);
        self.completed.set(if goes_on { completed } else { CALLS_BUDGET });
        goes_on
    }

    /// Whether [`spend`](Worker::spend) has refused since the fiber was resumed, or since the poll of the task began.
    pub(crate) fn has_refused(&self) -> bool {
        self.completed.get() >= CALLS_BUDGET
    }

    /// The worker polls a task: its calls count from here on.
    #[inline]
    pub(crate) fn begin_calls(&self) {
        self.completed.set(0);
    }
}
