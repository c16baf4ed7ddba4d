//! The alarm of a fiber: one timer for all of its waits that have a deadline.
//!
//! Most waits with a deadline end long before it, and the next one has a later deadline. So the timer stays where it is when a wait
//! ends, and serves the next wait too. If it fires too early for that wait, the fiber wakes once for nothing and sets it anew. A fiber
//! that reads message after message with a timeout thus does not touch the timer wheel, where the timers of its neighbours are
//! linked.
//!
//! A wait without a deadline removes the timer, and so does the end of the fiber. Otherwise the timer would keep a virtual clock and a
//! worker's sleep from what they really wait for.

use std::cell::Cell;

use osier_queue::Key;

use crate::worker::Worker;
use crate::worker::waker::Word;

/// The alarm of one fiber. Only the fiber itself uses it.
#[derive(Default)]
pub(crate) struct Alarm {
    /// The timer and its tick. The timer may have fired.
    timer: Cell<Option<(Key, u64)>>,
}

impl Alarm {
    /// Whether there may be a timer.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.timer.get().is_some()
    }

    /// Makes sure that `word` wakes in the tick `due` or before, but after the present tick; or that no timer is set.
    #[inline]
    pub(crate) fn set_for(&self, due: Option<u64>, word: Word, worker: &Worker) {
        match (self.timer.get(), due) {
            (Some((_, tick)), Some(due)) if worker.tick() < tick && tick <= due => {}
            (None, None) => {}
            (_, due) => self.set_anew(due, word, worker),
        }
    }

    #[inline(never)]
    fn set_anew(&self, due: Option<u64>, word: Word, worker: &Worker) {
        self.remove(worker);
        self.timer.set(due.map(|due| (worker.arm_tick(due, word), due)));
    }

    /// Removes the timer.
    #[inline]
    pub(crate) fn remove(&self, worker: &Worker) {
        if let Some((key, _)) = self.timer.take() {
            worker.disarm(key);
        }
    }
}
