//! User-space readiness: a source of events without a descriptor, for what happens inside the program.
//!
//! ```text
//!   set, any thread ──▶ State ──(due, not queued)──▶ Hub::queue ──▶ bell ─ ─ ▶ the wait ends
//!                         ▲                              │
//!                         └────────── take ◀─────────────┘     it looks at the state, level ones go back into the queue
//! ```
//!
//! # Protocol
//! - A `Readiness` is in the queue of its poller at most once per registration: `queued`, under the state's lock. Who takes
//!   it from the queue clears the flag and reads the latest state, so what was set in between is one event.
//! - The queue names a registration by its serial number, so that what is left there of a former one does nothing.
//! - Locks: state before queue. `turn` before both, by who waits.
//! - Registered, due and out of the queue it is never between two calls: whatever makes it due queues it.
//! - The wake-up is rung after the push, and answered before the take (in the back-end's `wait`): none is lost.

use crate::{Bell, Event, Interest, Mode, Ready, Token};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

/// Something that is ready when the program says so, from any thread.
///
/// It is registered in a [`Poller`](crate::Poller) as a descriptor is, in one at a time; what was set before counts. Clones
/// are the same `Readiness`. When the last one is dropped it gives no more events.
///
/// It gives an event when what is set meets the interest ([`Ready::HUP`] and [`Ready::ERROR`] meet any). Settings between
/// two waits become one event, of the last one. In [`Mode::Edge`] each setting is an edge, also of what is set already; in
/// [`Mode::Level`] each wait reports it until it is set to something else, [`Ready::NONE`] for example.
///
/// ```
/// use osier_poll::{Events, Interest, Mode, Poller, Readiness, Ready, Token};
///
/// let poller = Poller::new()?;
/// let done = Readiness::new();
/// poller.add(&done, Token(1), Interest::READABLE, Mode::Edge)?;
///
/// let setter = done.clone();
/// std::thread::spawn(move || setter.set(Ready::READABLE));
///
/// let mut events = Events::with_capacity(16);
/// while events.is_empty() {
///     poller.wait(&mut events, None)?;
/// }
/// assert_eq!(events.iter().next().unwrap().token, Token(1));
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ready: Ready,
    registration: Option<Registration>,
}

#[derive(Debug)]
struct Registration {
    hub: Weak<Hub>,
    serial: u64,
    token: Token,
    interest: Interest,
    mode: Mode,
    /// The event of a one-shot is still to come.
    armed: bool,
    queued: bool,
}

impl Readiness {
    /// Ready for nothing, and registered nowhere.
    pub fn new() -> Readiness {
        Readiness::default()
    }

    /// Makes it ready for `ready`, and for nothing else.
    pub fn set(&self, ready: Ready) {
        let mut state = lock(&self.0);
        state.ready = ready;
        state.queue(&self.0);
    }

    /// What was set last.
    pub fn ready(&self) -> Ready {
        lock(&self.0).ready
    }
}

impl State {
    /// What of it concerns the registration, if that waits for anything.
    fn due(&self) -> Ready {
        let Some(Registration {
            interest, armed: true, ..
        }) = self.registration
        else {
            return Ready::NONE;
        };
        let asked = [
            (Interest::READABLE, Ready::READABLE | Ready::READ_CLOSED),
            (Interest::WRITABLE, Ready::WRITABLE),
            (Interest::PRIORITY, Ready::PRIORITY),
        ];
        let asked = asked.into_iter().filter(|(bit, _)| interest.contains(*bit));
        self.ready & asked.fold(Ready::HUP | Ready::ERROR, |all, (_, bits)| all | bits)
    }

    /// Queues it if it is due, and wakes the poller.
    fn queue(&mut self, this: &Arc<Mutex<State>>) {
        if self.due().is_empty() {
            return;
        }
        if let Some(registration) = &mut self.registration
            && !registration.queued
            && let Some(hub) = registration.hub.upgrade()
        {
            registration.queued = true;
            lock(&hub.queue).push_back((Arc::downgrade(this), registration.serial));
            // A bell fails only with its poller.
            let _ = hub.bell.ring();
        }
    }
}

/// The part of a poller that knows user-space readiness.
#[derive(Debug)]
pub(crate) struct Hub {
    bell: Arc<dyn Bell>,
    /// Who may be due.
    queue: Mutex<VecDeque<(Weak<Mutex<State>>, u64)>>,
    last_serial: AtomicU64,
    turn: Mutex<()>,
}

impl Hub {
    pub(crate) fn new(bell: Arc<dyn Bell>) -> Hub {
        Hub {
            bell,
            queue: Mutex::default(),
            last_serial: AtomicU64::new(0),
            turn: Mutex::new(()),
        }
    }

    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    pub(crate) fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn add(
        self: &Arc<Self>,
        readiness: &Readiness,
        token: Token,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        let mut state = lock(&readiness.0);
        if let Some(registration) = &state.registration
            && registration.hub.strong_count() > 0
        {
            let message = "this Readiness is registered in a poller: delete it there first";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        state.registration = Some(Registration {
            hub: Arc::downgrade(self),
            serial: self.last_serial.fetch_add(1, Ordering::Relaxed),
            token,
            interest,
            mode,
            armed: true,
            queued: false,
        });
        state.queue(&readiness.0);
        Ok(())
    }

    pub(crate) fn modify(&self, readiness: &Readiness, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let mut state = lock(&readiness.0);
        let registration = self.own(&mut state)?;
        registration.token = token;
        registration.interest = interest;
        registration.mode = mode;
        registration.armed = true;
        state.queue(&readiness.0);
        Ok(())
    }

    pub(crate) fn delete(&self, readiness: &Readiness) -> io::Result<()> {
        let mut state = lock(&readiness.0);
        self.own(&mut state)?;
        state.registration = None;
        Ok(())
    }

    /// The registration, if it is here.
    fn own<'a>(&self, state: &'a mut State) -> io::Result<&'a mut Registration> {
        let here = |registration: &&mut Registration| std::ptr::eq(registration.hub.as_ptr(), self);
        let message = "this Readiness is not registered in this poller: add it first";
        let registration = state.registration.as_mut().filter(here);
        registration.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, message))
    }

    /// Whether there is an event now. Drops what stands before it in the queue and is none.
    pub(crate) fn is_due(&self) -> bool {
        loop {
            let Some((weak, serial)) = lock(&self.queue).pop_front() else {
                return false;
            };
            if let Some(this) = weak.upgrade()
                && let mut state = lock(&this)
                && let Ok(registration) = self.own(&mut state)
                && registration.serial == serial
            {
                if state.due().is_empty() {
                    state.leave_queue();
                } else {
                    lock(&self.queue).push_front((weak, serial));
                    return true;
                }
            }
        }
    }

    /// Puts at most `room` events into `events`.
    pub(crate) fn take(&self, events: &mut Vec<Event>, room: usize) {
        let mut batch = std::mem::take(&mut *lock(&self.queue));
        let full = events.len() + room;
        while events.len() < full
            && let Some((weak, serial)) = batch.pop_front()
        {
            if let Some(this) = weak.upgrade()
                && let mut state = lock(&this)
                && let Ok(registration) = self.own(&mut state)
                && registration.serial == serial
            {
                events.extend(state.take_event());
                if state.is_level() && !state.due().is_empty() {
                    lock(&self.queue).push_back((weak, serial));
                } else {
                    state.leave_queue();
                }
            }
        }
        // The rest first, then those that came or stay.
        let mut queue = lock(&self.queue);
        batch.append(&mut queue);
        *queue = batch;
    }
}

impl State {
    fn take_event(&mut self) -> Option<Event> {
        let readiness = self.due();
        let registration = self.registration.as_mut().filter(|_| !readiness.is_empty())?;
        registration.armed &= registration.mode != Mode::Oneshot;
        let token = registration.token;
        Some(Event { token, readiness })
    }

    fn is_level(&self) -> bool {
        let registration = self.registration.as_ref();
        registration.is_some_and(|registration| registration.mode == Mode::Level)
    }

    fn leave_queue(&mut self) {
        if let Some(registration) = &mut self.registration {
            registration.queued = false;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
