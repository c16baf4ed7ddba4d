//! The end of a worker: everything that lives there is cancelled, and the loop goes on until it has ended or its time is over. Then the
//! worker cancels what is queued, and leaks what would not end.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::worker::Worker;
use crate::worker::isolate::isolate;
use crate::worker::stamp::Stamp;
use crate::worker::stderr::say;

/// A worker that ends cancels what destructors have queued this many times, however late it is.
const GENERATIONS: u32 = 16;
/// The time between two turns of a loop whose poller has failed.
const WITHOUT_POLLER: Duration = Duration::from_millis(1);

impl Worker {
    /// Whether the runtime stops and this worker has not begun to.
    pub(super) fn is_to_stop(&self) -> bool {
        self.stop_at.get().is_none() && self.scheduler.is_stopping()
    }

    /// Cancels every tenant of this worker.
    pub(super) fn stop(&self) {
        self.stopping.set(true);
        self.stop_at
            .set(Some(Stamp::of_machine() + self.scheduler.shutdown_timeout));
        while self.slots.queue_one_that_gave_way() {}
        (0..self.slots.made()).for_each(|index| self.enqueue(index));
        self.remote.tasks.end_all();
    }

    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.stop_at.get().is_some_and(|stop_at| self.is_done_by(stop_at))
    }

    #[cold]
    fn is_done_by(&self, stop_at: Stamp) -> bool {
        let live = self.slots.live() + self.remote.tasks.len();
        (live == 0 && !self.has_work()) || Stamp::of_machine() >= stop_at
    }

    /// Reports the fibers that would not end, and leaks their stacks: other code may point into them. Cancels the fibers that have not begun,
    /// and the jobs and tasks that are still queued: handles of the runtime may keep its queues for long.
    pub(super) fn abandon(&self) {
        for slot in (0..self.slots.made()).filter_map(|index| self.slots.get(index)) {
            match slot.take_fiber() {
                Some(fiber) if fiber.is_started() => {
                    let place = slot.tenant().and_then(|(_, label)| label.place());
                    let place = place.unwrap_or(self.connection);
                    let limit = self.scheduler.shutdown_timeout;
                    say(format_args!(
                        "osier: the fiber spawned at {place} did not end within {limit:?} of the shutdown; its stack is leaked"
                    ));
                    fiber.leak();
                }
                prepared => drop(isolate(|| drop(prepared))),
            }
            isolate(|| drop(slot.take_resting()));
        }
        self.cancel_queued();
        self.remote.next_fiber.store(self.next_id.get(), Ordering::Relaxed);
        self.scheduler.end(self.index);
        // A destructor that has just run may have queued more here.
        self.cancel_queued();
    }

    /// Drops the jobs and tasks that are queued here, and those that their destructors queue. Destructors that queue others for ever have the
    /// time of the shutdown for it: the last ones are leaked.
    fn cancel_queued(&self) {
        let is_over = || self.stop_at.get().is_none_or(|stop_at| Stamp::of_machine() >= stop_at);
        let mut generations = 0;
        while self.unstarted() + self.tasks.len() > 0 {
            if generations >= GENERATIONS && is_over() {
                return self.leak_queued();
            }
            generations += 1;
            for _ in 0..self.unstarted() {
                drop(self.next_job());
            }
            for _ in 0..self.tasks.len() {
                isolate(|| drop(self.tasks.pop()));
            }
        }
    }

    /// Leaks the jobs and tasks that are queued here, and reports that.
    #[cold]
    fn leak_queued(&self) {
        let mut place = None;
        while let Some(job) = self.next_job() {
            place.get_or_insert(job.header().place);
            std::mem::forget(job);
        }
        while let Some(task) = self.tasks.pop() {
            std::mem::forget(task);
        }
        let place = place.map(|place| format!(" (at {place})")).unwrap_or_default();
        let limit = self.scheduler.shutdown_timeout;
        say(format_args!(
            "osier: destructors still spawn fibers or tasks{place} {limit:?} after the shutdown began; the last ones are leaked"
        ));
    }

    /// Ends the runtime: no event and no wake-up reaches this worker in time any more. The loop goes on without its poller until the
    /// shutdown is over.
    #[cold]
    pub(super) fn poller_failed(&self, error: &io::Error) {
        if !self.scheduler.is_stopping() {
            let owner = self.remote.desk.owner();
            let name = owner.as_ref().map_or("unnamed", |owner| &owner.name);
            // First: the process may end with the runtime.
            say(format_args!(
                "osier: worker '{name}': its poller failed: {error}; the runtime shuts down and cancels what it runs"
            ));
            self.scheduler.stop();
        }
        std::thread::sleep(WITHOUT_POLLER);
    }
}
