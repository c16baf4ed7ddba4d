//! The loop of a worker in pieces, for a simulation that drives many workers on one thread and says what runs next.

use super::Worker;
use crate::worker::isolate::isolate;

impl Worker {
    /// Collects wake-ups and jobs from other threads, and queues everything that can run.
    pub(crate) fn gather(&self) {
        self.take_inbox();
        self.fire_timers();
        self.prepare_all();
    }

    /// Whether [`gather`](Worker::gather) may find something.
    pub(crate) fn has_news(&self) -> bool {
        !self.remote.inbox.is_empty()
            || !self.local.borrow().is_empty()
            || !self.fresh.is_empty()
            || self.scheduler.has_work(self.index)
            || self.slots.giving_way() > 0
            || self.is_to_stop()
            || self.has_due_timer()
    }

    /// Takes jobs of a neighbour.
    pub(crate) fn steal(&self) -> bool {
        self.search()
    }

    /// The number of fibers and tasks that can run.
    pub(crate) fn choices(&self) -> u32 {
        self.slots.ready() + u32::try_from(self.tasks.len()).unwrap_or(u32::MAX)
    }

    /// Runs one of them.
    pub(crate) fn run_choice(&self, number: u32) {
        let fibers = self.slots.ready();
        if number < fibers {
            for _ in 0..number {
                self.slots.pop().into_iter().for_each(|slot| self.slots.queue(slot));
            }
            if let Some(slot) = self.slots.pop() {
                self.resume(slot);
            }
            return;
        }
        for _ in fibers..number {
            self.tasks
                .pop()
                .into_iter()
                .for_each(|task| self.tasks.push_local(task));
        }
        if let Some(task) = self.tasks.pop() {
            match self.scheduler.is_stopping() {
                true => drop(isolate(|| drop(task))),
                false => drop(task.run()),
            }
        }
    }

    /// Updates the worker's time from its clock.
    pub(crate) fn tell_time(&self) {
        self.begin_turn(self.clock.stamp());
    }

    /// Whether every fiber, task and connection of the worker has ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.live() == 0 && self.remote.tasks.len() == 0 && !self.has_work()
    }

    /// Abandons whatever has not ended. The machine's time does not count.
    pub(crate) fn give_up(&self) {
        self.stop_at.set(None);
        self.abandon();
    }
}
