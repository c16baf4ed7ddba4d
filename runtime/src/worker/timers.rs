//! The timers of a worker: its own are in a wheel, which nobody else touches, and those of futures in the part that other threads see. Both are
//! fired after each look at the poller, and say when it has to look again.

use std::time::{Duration, Instant};

use osier_queue::{Key, tick_after};

use super::{Worker, earlier};
use crate::worker::clock::Clock;
use crate::worker::stamp::Stamp;
use crate::worker::waker::Word;

impl Worker {
    /// Wakes `word`, of this worker, at `deadline` or up to a tick later, never before.
    pub(crate) fn arm(&self, deadline: Instant, word: Word) -> Key {
        self.arm_tick(self.tick_after(deadline), word)
    }

    pub(crate) fn arm_tick(&self, tick: u64, word: Word) -> Key {
        self.timers.borrow_mut().insert(tick, word)
    }

    /// The first tick of the wheel that is not before `deadline`.
    pub(crate) fn tick_after(&self, deadline: Instant) -> u64 {
        tick_after(deadline.saturating_duration_since(self.epoch))
    }

    /// The first tick of the wheel that is not before `time` after the beginning of this turn.
    #[inline]
    pub(crate) fn tick_in(&self, time: Duration) -> u64 {
        (self.stamp() + time).nanos_since(self.zero).div_ceil(1_000_000)
    }

    /// The tick in which this turn of the loop began.
    pub(crate) fn tick(&self) -> u64 {
        self.tick.get()
    }

    pub(crate) fn disarm(&self, key: Key) {
        self.timers.borrow_mut().remove(key);
    }

    pub(crate) fn has_fired(&self, key: Key) -> bool {
        !self.timers.borrow().contains(key)
    }

    /// When this turn of the loop began.
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    /// The same as a stamp.
    #[inline]
    pub(crate) fn stamp(&self) -> Stamp {
        self.stamp.get()
    }

    /// Wakes those whose time has come by the beginning of this turn.
    pub(crate) fn fire_timers(&self) {
        let tick = self.tick();
        self.remote.timers.fire(tick);
        let mut timers = self.timers.borrow_mut();
        while timers.next_wakeup().is_some_and(|wakeup| wakeup <= tick) {
            let Some(word) = timers.pop_expired(tick) else { return };
            self.wake(word);
        }
    }

    /// How long it may sleep; `None`: until it is rung.
    pub(super) fn sleep_for(&self, now: Stamp) -> Option<Duration> {
        let until = match &self.clock {
            Clock::Real => {
                let timer = self.next_tick().map(|tick| self.zero + Duration::from_millis(tick));
                earlier(timer, self.chore())
            }
            Clock::Virtual(seat) => match seat.rest(self.next_timer()) {
                true => self.chore(),
                false => return Some(Duration::ZERO),
            },
        };
        until.map(|until| until.since(now))
    }

    /// The time at which there is something to do at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        earlier(self.next_tick().map(|tick| self.time_of(tick)), self.next_chore())
    }

    /// When a timer is due, for a virtual clock: it must not move to a time that nobody waits for.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.remote.timers.leave_out_removed();
        self.next_tick().map(|tick| self.time_of(tick))
    }

    fn time_of(&self, tick: u64) -> Instant {
        self.epoch + Duration::from_millis(tick)
    }

    #[inline]
    fn next_tick(&self) -> Option<u64> {
        let timer = self.timers.borrow().next_wakeup();
        earlier(timer, self.remote.timers.next())
    }

    /// Whether [`fire_timers`](Worker::fire_timers) has something to do: a timer that is due, or one that moves to a lower level of its wheel.
    #[inline]
    pub(super) fn has_due_timer(&self) -> bool {
        self.next_tick().is_some_and(|tick| tick <= self.tick())
    }

    /// When the worker has something to do for itself, on the machine's clock.
    pub(crate) fn next_chore(&self) -> Option<Instant> {
        self.chore().map(Stamp::instant)
    }

    #[inline]
    fn chore(&self) -> Option<Stamp> {
        earlier(self.stop_at.get(), self.trim_at.get())
    }
}
