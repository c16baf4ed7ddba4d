//! Drivers: the timers and descriptors that leaves register with, whichever waker polls them.
//!
//! A leaf registers with the *driver* of its poller: the worker of this thread; in a callback of an
//! [`IoQueue`](crate::callbacks), that queue's driver; anywhere else, a worker that is started at the first need, runs
//! no fiber, and stays. A driver is a [`Remote`]: a poller, a table of descriptors, and the timers below. The leaf does
//! not care which thread polls the driver.
//!
//! # Protocol
//! The wheel and its epoch are under one lock. `next`, the time of the next look at the wheel, is written under the lock and read
//! without it. A thread that sets an earlier timer stores `next` and rings. The driver, about to sleep, announces that
//! ([`Parker`](osier_queue::Parker)) and then reads `next`. Wakers are cloned before the lock is taken and woken after
//! it is released, because they may run anybody's code.
//!
//! A driver may end between the moment at which a thread takes it and the registration of that thread's leaf. So a driver that ends
//! first refuses registrations, and then wakes what is registered ([`Remote::release`]): the leaf gets an error, or is woken.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::task::Waker;
use std::time::Instant;

use osier_queue::{Key, Wheel, tick_after};
use smallvec::SmallVec;

use crate::worker::context;
use crate::worker::isolate::isolate;
use crate::worker::remote::Remote;
use crate::worker::service::as_service;
use crate::worker::threads::{Settings, Threads};

/// The number of wakers that are taken out under one hold of the lock.
const BATCH: usize = 32;
/// The value of `next` while no timer is set.
const NEVER: u64 = u64::MAX;

pub(crate) struct Timers {
    inner: Mutex<Inner>,
    next: AtomicU64,
}

struct Inner {
    wheel: Wheel<Waker>,
    /// Tick 0.
    epoch: Instant,
    /// Whether somebody fires these timers.
    is_driven: bool,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers {
            inner: Mutex::new(Inner {
                wheel: Wheel::new(0),
                epoch: Instant::now(),
                is_driven: false,
            }),
            next: AtomicU64::new(NEVER),
        }
    }

    /// Begins for another driver, whose tick 0 is `epoch`.
    pub(crate) fn restart(&self, epoch: Instant) {
        self.forget_all();
        let mut inner = self.lock();
        inner.wheel.restart(0);
        inner.epoch = epoch;
        inner.is_driven = true;
    }

    /// Ends with the driver: wakes every timer, and takes no more.
    pub(crate) fn end(&self) {
        self.lock().is_driven = false;
        self.forget_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note_next(&self, wheel: &Wheel<Waker>) {
        self.next.store(wheel.next_wakeup().unwrap_or(NEVER), Ordering::Release);
    }

    /// Sets a timer. Returns true if it is the earliest, so the driver must not sleep past it. `None`: the driver has ended.
    fn insert(&self, deadline: Instant, waker: Waker) -> Option<(Key, bool)> {
        let mut inner = self.lock();
        if !inner.is_driven {
            return None;
        }
        let tick = tick_after(deadline.saturating_duration_since(inner.epoch));
        let key = inner.wheel.insert(tick, waker);
        let earliest = tick < self.next.load(Ordering::Relaxed);
        self.note_next(&inner.wheel);
        Some((key, earliest))
    }

    /// Leaves another waker with a timer. Returns false if the timer has fired.
    fn refresh(&self, key: Key, waker: &Waker) -> bool {
        match self.lock().wheel.get_mut(key) {
            None => return false,
            Some(old) if old.will_wake(waker) => return true,
            Some(_) => {}
        }
        let mut waker = waker.clone();
        let mut inner = self.lock();
        let found = inner.wheel.get_mut(key).map(|old| std::mem::swap(old, &mut waker));
        drop(inner);
        found.is_some()
    }

    fn remove(&self, key: Key) {
        let mut inner = self.lock();
        let removed = inner.wheel.remove(key);
        drop(inner);
        drop(removed);
    }

    /// The tick of the next call of [`fire`](Timers::fire).
    pub(crate) fn next(&self) -> Option<u64> {
        Some(self.next.load(Ordering::Acquire)).filter(|&tick| tick != NEVER)
    }

    /// Makes [`next`](Timers::next) the tick of a timer that is still set. A removal leaves it as it is: most timers are removed, and a driver
    /// that wakes once for nothing is cheaper than one that is rung for each timer.
    pub(crate) fn leave_out_removed(&self) {
        let inner = self.lock();
        self.note_next(&inner.wheel);
    }

    /// The number of timers that are set.
    pub(crate) fn len(&self) -> usize {
        self.lock().wheel.len()
    }

    /// Wakes the timers that are due. It costs one load if none is.
    #[inline]
    pub(crate) fn fire(&self, tick: u64) {
        if self.next.load(Ordering::Acquire) <= tick {
            self.fire_until(tick);
        }
    }

    fn fire_until(&self, tick: u64) {
        loop {
            let mut due: SmallVec<[Waker; BATCH]> = SmallVec::new();
            let mut inner = self.lock();
            while due.len() < BATCH
                && let Some(waker) = inner.wheel.pop_expired(tick)
            {
                due.push(waker);
            }
            self.note_next(&inner.wheel);
            drop(inner);
            let full = due.len() == BATCH;
            wake_each(due);
            if !full {
                return;
            }
        }
    }

    /// Wakes every timer. The leaves set their timers elsewhere.
    fn forget_all(&self) {
        while let Some(waker) = {
            let mut inner = self.lock();
            let waker = inner.wheel.pop_any();
            self.note_next(&inner.wheel);
            waker
        } {
            wake_each([waker]);
        }
    }
}

/// Wakes all of them, whichever panic: a panic in one waker's code must not keep the others asleep.
pub(crate) fn wake_each(wakers: impl IntoIterator<Item = Waker>) {
    each(wakers, Waker::wake);
}

/// Calls `with` for every item, also after it has panicked for some.
pub(crate) fn each<T>(items: impl IntoIterator<Item = T>, mut with: impl FnMut(T)) {
    let mut items = items.into_iter();
    // The hook has reported a panic.
    while isolate(|| items.by_ref().for_each(&mut with)).is_none() {}
}

/// A timer of a leaf, removed when it is dropped.
pub(crate) struct LeafTimer {
    driver: &'static Remote,
    key: Key,
}

impl LeafTimer {
    /// Sets a timer that wakes `waker` at `deadline` or up to a tick later, never before.
    ///
    /// # Errors
    ///
    /// The errors of [`current`], and one if the driver ends meanwhile.
    pub(crate) fn new(deadline: Instant, waker: &Waker) -> io::Result<LeafTimer> {
        LeafTimer::at(current()?, deadline, waker)
    }

    fn at(driver: &'static Remote, deadline: Instant, waker: &Waker) -> io::Result<LeafTimer> {
        let inserted = driver.timers.insert(deadline, waker.clone());
        let (key, earliest) = inserted.ok_or_else(ended)?;
        if earliest {
            driver.ring();
        }
        Ok(LeafTimer { driver, key })
    }

    /// Makes the timer wake this waker instead. Returns false if it has fired.
    pub(crate) fn refresh(&self, waker: &Waker) -> bool {
        self.driver.timers.refresh(self.key, waker)
    }
}

impl Drop for LeafTimer {
    fn drop(&mut self) {
        self.driver.timers.remove(self.key);
    }
}

/// The driver of the calling code.
///
/// # Errors
///
/// The system's error if the driver outside of all runtimes cannot be started.
pub(crate) fn current() -> io::Result<&'static Remote> {
    match context::driver() {
        Some(driver) => Ok(driver),
        None => outside(),
    }
}

/// The driver of leaves that are polled outside of every runtime, started at the first need.
#[cold]
fn outside() -> io::Result<&'static Remote> {
    static THREADS: OnceLock<Threads> = OnceLock::new();
    if let Some(threads) = THREADS.get() {
        return of_outside(threads);
    }
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = STARTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if THREADS.get().is_none() {
        let settings = Settings {
            name: "osier-driver".into(),
            ..Settings::default()
        };
        let started = as_service(|| Threads::start(&settings, 1, drop, |_| "timers and descriptors of futures".into()));
        let threads = started.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("the driver of futures outside of a runtime cannot start: {error}"),
            )
        })?;
        let _ = THREADS.set(threads);
    }
    of_outside(THREADS.get().expect("set under the lock"))
}

fn of_outside(threads: &Threads) -> io::Result<&'static Remote> {
    // Nothing else stops it.
    match threads.scheduler.is_stopping() {
        true => Err(ended()),
        false => Ok(threads.scheduler.remote(0)),
    }
}

/// Only the driver outside of all runtimes ends before the code that registers with it.
#[cold]
fn ended() -> io::Error {
    io::Error::other("the driver of futures outside of a runtime has ended: its poller failed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::time::Duration;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_timer_is_woken_by_the_end_of_its_driver_or_refused_after_it() {
        let (woken, timers) = (Arc::new(Woken::default()), Timers::new());
        let late = Instant::now() + Duration::from_secs(3600);
        let set = || timers.insert(late, woken.clone().into()).is_some();
        timers.restart(Instant::now());
        assert!(set());
        timers.end();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(!set(), "nobody would fire it");
        assert_eq!(timers.len(), 0);
        timers.restart(Instant::now());
        assert!(set());
    }
}
