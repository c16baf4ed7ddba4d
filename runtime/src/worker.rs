//! A worker: one thread, one poller, one ready queue, its fibers. The loop is [`Worker::run`], its phases are calls.
//!
//! ```text
//!        ┌──────────────────────────────────────────────────────────────┐
//!        ▼                                                              │
//!   run ready and fresh fibers ─▶ fire timers ─▶ poll (sleeps if idle) ─▶ take the inbox
//!   (at most BUDGET resumes)                     dispatch readiness
//! ```
//!
//! Everything here belongs to the worker's thread; other threads leave things in [`Remote`] (wake-ups), in the injectors
//! of [`Shared`] (jobs) and steal from `fresh`. No field is borrowed across a resume: the coroutine is taken out of its
//! slot first, so a fiber may spawn, wake, arm and end others at will.
//!
//! A slot holds a fiber, or a connection at rest which becomes a fiber when it is woken and keeps its word ([`Word`]).
//! It is queued at most once; a wake-up of a running fiber queues it, so that it is resumed once more.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};
use std::{io, mem};

use crossbeam_deque as deque;
use osier_coro::{Coroutine, CoroutineResult, stack};
use osier_poll::{Events, Poller};
use osier_queue::{Key, Wheel, tick_after, tick_at};

use crate::cancel::Cancelled;
use crate::dormant::{Cause, Next, Resting};
use crate::fiber::{self, Core, Header};
use crate::remote::Remote;
use crate::runtime::Shared;
use crate::source;
use crate::task::Job;
use crate::waker::{SLOTS_MAX, Word};

/// How many fibers are resumed between two looks at the poller.
const BUDGET: u32 = 128;
/// How many blocking calls a fiber may complete without suspending.
const CALLS_BUDGET: u32 = 128;
/// How many events one poll takes at most.
const EVENTS: usize = 1024;

type Fiber = Coroutine<(), (), Exit>;

/// How a fiber's coroutine ends.
enum Exit {
    End,
    Rest(Resting),
}

enum Body {
    Free,
    /// On the CPU: its coroutine is in the hands of `resume`.
    Running,
    Suspended(Fiber),
    Resting(Resting),
}

struct Slot {
    /// Where its fiber was spawned.
    place: &'static Location<'static>,
    generation: u32,
    queued: bool,
    body: Body,
}

pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) remote: &'static Remote,
    pub(crate) poller: Arc<Poller>,
    pub(crate) foreign: crate::foreign::Table,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    ready: RefCell<VecDeque<u32>>,
    /// Jobs that others may steal.
    fresh: deque::Worker<Job>,
    /// Jobs that must start here.
    local: RefCell<VecDeque<Job>>,
    timers: RefCell<Wheel<Waker>>,
    /// Tick 0 of the wheel.
    started: Instant,
    /// Read once per turn of the loop.
    now: Cell<Instant>,
    stacks: stack::Pool,
    /// Where the fibers of connections at rest come from.
    connection: &'static Location<'static>,
    /// Blocking calls completed since the last suspension of any fiber.
    completed: Cell<u32>,
    /// Slots in use.
    live: Cell<usize>,
    next_id: Cell<u64>,
    /// Set once: when fibers that have not ended by then are given up.
    stop_at: Cell<Option<Instant>>,
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        shared: Arc<Shared>,
        remote: &'static Remote,
        poller: Arc<Poller>,
        fresh: deque::Worker<Job>,
    ) -> io::Result<Worker> {
        let now = Instant::now();
        Ok(Worker {
            index,
            remote,
            poller,
            foreign: crate::foreign::Table::default(),
            slots: RefCell::default(),
            free: RefCell::default(),
            ready: RefCell::default(),
            fresh,
            local: RefCell::default(),
            timers: RefCell::new(Wheel::new(0)),
            started: now,
            now: Cell::new(now),
            stacks: stack::Pool::new(shared.stacks.clone())?,
            connection: Location::caller(),
            completed: Cell::new(0),
            live: Cell::new(0),
            next_id: Cell::new((remote.id as u64) << 48 | 1),
            stop_at: Cell::new(None),
            shared,
        })
    }

    /// The loop, until the runtime stops and every fiber has ended.
    pub(crate) fn run(&self) {
        let mut events = Events::with_capacity(EVENTS);
        while !self.is_done() {
            self.run_ready();
            self.fire_timers();
            self.poll(&mut events);
            self.take_inbox();
        }
        self.abandon();
    }

    fn run_ready(&self) {
        let mut budget = BUDGET;
        while budget > 0 {
            let ready = self.ready.borrow_mut().pop_front();
            if let Some(slot) = ready {
                self.resume(slot);
                budget -= 1;
            }
            let job = self.next_job();
            let idle = ready.is_none() && job.is_none();
            if let Some(job) = job {
                self.start(job);
                budget = budget.saturating_sub(1);
            }
            if idle {
                return;
            }
        }
    }

    fn next_job(&self) -> Option<Job> {
        let local = self.local.borrow_mut().pop_front();
        local.or_else(|| self.fresh.pop())
    }

    fn fire_timers(&self) {
        let tick = tick_at(self.now.get().duration_since(self.started));
        loop {
            let expired = {
                let mut timers = self.timers.borrow_mut();
                if timers.next_wakeup().is_none_or(|wakeup| wakeup > tick) {
                    return;
                }
                timers.pop_expired(tick)
            };
            // Not under the borrow: a waker may run anybody's code.
            match expired {
                Some(waker) => waker.wake(),
                None => return,
            }
        }
    }

    /// Looks at the poller; sleeps in it when there is nothing else to do.
    fn poll(&self, events: &mut Events) {
        let mut timeout = Some(Duration::ZERO);
        let mut sleeping = false;
        if !self.has_work() && !self.find_work() {
            self.remote.parker.prepare();
            self.shared.idle.enter_sleep(self.index);
            sleeping = true;
            // Whoever pushes after this look sees the worker asleep and rings.
            if !self.has_work() && !self.shared.has_work(self.index) && self.remote.inbox.is_empty() {
                timeout = self.until_next();
            }
        }
        let polled = self.poller.wait(events, timeout);
        if sleeping {
            self.remote.parker.unprepare();
            if self.shared.idle.leave_sleep(self.index) {
                // Chosen to search: what was pushed is in the injectors or in somebody's deque.
                let found = self.shared.search(self.index, &self.fresh);
                if self.shared.idle.stop_search() && found {
                    self.shared.wake_one();
                }
            }
        }
        self.now.set(Instant::now());
        match polled {
            Ok(_) => {
                for event in events.iter() {
                    source::dispatch(self, event);
                }
            }
            Err(error) => panic!("worker {}: its poller failed: {error}", self.index),
        }
    }

    /// Takes jobs that wait elsewhere: those sent to this worker, those from outside, those of a busy neighbour.
    fn find_work(&self) -> bool {
        let arrived = self
            .shared
            .arrivals(self.index, &mut |job| self.local.borrow_mut().push_back(job));
        if arrived || self.shared.workers() == 1 {
            return arrived || self.shared.search(self.index, &self.fresh);
        }
        if !self.shared.idle.start_search() {
            return false;
        }
        let found = self.shared.search(self.index, &self.fresh);
        if self.shared.idle.stop_search() && found {
            self.shared.wake_one();
        }
        found
    }

    fn has_work(&self) -> bool {
        !self.ready.borrow().is_empty() || !self.local.borrow().is_empty() || !self.fresh.is_empty()
    }

    fn until_next(&self) -> Option<Duration> {
        let timer = self
            .timers
            .borrow()
            .next_wakeup()
            .map(|tick| self.started + Duration::from_millis(tick));
        let next = match (timer, self.stop_at.get()) {
            (Some(timer), Some(stop)) => Some(timer.min(stop)),
            (timer, stop) => timer.or(stop),
        };
        next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    fn take_inbox(&self) {
        if !self.remote.inbox.is_empty() {
            self.remote.inbox.drain(self.remote, |slot| self.enqueue(slot));
        }
        if self.stop_at.get().is_none() && self.shared.stopping.load(Ordering::Acquire) {
            self.stop();
        }
    }

    fn enqueue(&self, index: u32) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(index as usize) else {
            return;
        };
        if !slot.queued && !matches!(slot.body, Body::Free) {
            slot.queued = true;
            self.ready.borrow_mut().push_back(index);
        }
    }

    /// Queues the slot of `word` if its tenant is still the same.
    #[inline]
    pub(crate) fn wake(&self, word: Word) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(word.slot() as usize)
            && word.is_generation(slot.generation)
            && !slot.queued
        {
            slot.queued = true;
            self.ready.borrow_mut().push_back(word.slot());
        }
    }

    /// A slot for a tenant, with its word.
    fn occupy(&self, place: &'static Location<'static>) -> io::Result<Word> {
        let mut slots = self.slots.borrow_mut();
        let index = match self.free.borrow_mut().pop() {
            Some(index) => index,
            None if slots.len() < SLOTS_MAX => {
                slots.push(Slot {
                    place,
                    generation: 0,
                    queued: false,
                    body: Body::Free,
                });
                slots.len() as u32 - 1
            }
            None => {
                return Err(io::Error::other(format!(
                    "a worker has at most {SLOTS_MAX} fibers and connections"
                )));
            }
        };
        let slot = &mut slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.place = place;
        slot.body = Body::Running;
        let generation = slot.generation;
        self.remote
            .slot_or_make(index)
            .generation
            .store(generation, Ordering::Relaxed);
        self.live.set(self.live.get() + 1);
        Ok(Word::new(self.remote.id, index, generation))
    }

    /// Ends the tenant of a slot: its word is stale from here on.
    fn vacate(&self, index: u32) {
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.body = Body::Free;
        self.remote
            .slot_or_make(index)
            .generation
            .store(slot.generation, Ordering::Relaxed);
        self.free.borrow_mut().push(index);
        self.live.set(self.live.get() - 1);
    }

    fn resume(&self, index: u32) {
        let body = {
            let mut slots = self.slots.borrow_mut();
            let slot = &mut slots[index as usize];
            slot.queued = false;
            match slot.body {
                Body::Suspended(_) | Body::Resting(_) => mem::replace(&mut slot.body, Body::Running),
                // Ended meanwhile; the queue still had it.
                Body::Free | Body::Running => return,
            }
        };
        match body {
            Body::Suspended(coroutine) => self.switch_to(index, coroutine),
            Body::Resting(resting) => self.wake_resting(index, resting),
            Body::Free | Body::Running => unreachable!("looked at above"),
        }
    }

    /// Runs a coroutine until it suspends or ends.
    #[inline]
    fn switch_to(&self, index: u32, mut coroutine: Fiber) {
        self.completed.set(0);
        let result = coroutine.resume(());
        crate::context::leave_fiber();
        match result {
            CoroutineResult::Yield(()) => self.slots.borrow_mut()[index as usize].body = Body::Suspended(coroutine),
            CoroutineResult::Return(exit) => {
                self.stacks.give(coroutine.into_stack());
                match exit {
                    Exit::End => self.vacate(index),
                    Exit::Rest(resting) => self.rest(index, resting),
                }
            }
        }
    }

    fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    /// Starts a spawned job on a fiber of its own.
    fn start(&self, job: Job) {
        if self.is_stopping() {
            return drop(job);
        }
        let prepared = self
            .stacks
            .take(job.header().stack_bytes)
            .and_then(|stack| Ok((stack, self.occupy(job.header().place)?)));
        let (stack, word) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let error = fiber::cannot_start(job.header(), error);
                eprintln!("osier: {error}");
                return job.fail(Box::new(error));
            }
        };
        let id = self.next_id();
        stack.label(job.header().place, job.header().name.as_deref());
        let coroutine = Coroutine::new(stack, move |yielder, ()| {
            let mut job = job;
            let live = job.start(word);
            Core::enter(yielder, job.header(), word, id, || match live {
                true => job.run(),
                // What it captured ends on a fiber, so that a destructor may flush.
                false => job.fail(Box::new(Cancelled)),
            });
            Exit::End
        });
        self.switch_to(word.slot(), coroutine);
    }

    /// Puts a connection into a slot of its own, at rest.
    pub(crate) fn adopt(&self, resting: Resting) -> io::Result<()> {
        let word = self.occupy(self.connection)?;
        resting.attach(word);
        self.rest(word.slot(), resting);
        Ok(())
    }

    /// Leaves a connection without a stack until there is something to do for it.
    fn rest(&self, index: u32, mut resting: Resting) {
        let word = Word::new(self.remote.id, index, self.slots.borrow()[index as usize].generation);
        if self.is_stopping() && resting.was_told() {
            drop(resting);
            return self.vacate(index);
        }
        resting.arm(self, word);
        let due = resting.cause(self).is_some();
        self.slots.borrow_mut()[index as usize].body = Body::Resting(resting);
        if due {
            self.wake(word);
        }
    }

    /// Gives a connection at rest a fiber, if there is something to do for it.
    fn wake_resting(&self, index: u32, mut resting: Resting) {
        let Some(cause) = resting.cause(self) else {
            return self.rest(index, resting);
        };
        if cause == Cause::Shutdown {
            resting.tell();
        }
        let stack = match self.stacks.take(None) {
            Ok(stack) => {
                stack.label(self.connection, None);
                stack
            }
            Err(error) => {
                eprintln!("osier: a connection is closed for want of a stack: {error}");
                drop(resting);
                return self.vacate(index);
            }
        };
        let word = Word::new(self.remote.id, index, self.slots.borrow()[index as usize].generation);
        let id = self.next_id();
        let header = Header::new(self.connection);
        let coroutine = Coroutine::new(stack, move |yielder, ()| {
            let mut resting = resting;
            Core::enter(yielder, &header, word, id, move || {
                let next = catch_unwind(AssertUnwindSafe(|| resting.connection.wake(cause)));
                match next {
                    Ok(Next::Sleep(deadline)) => {
                        resting.deadline = deadline;
                        Exit::Rest(resting)
                    }
                    Ok(Next::End) | Err(_) => {
                        // Its destructor may do I/O: on this fiber. A panic was reported by the hook.
                        let _ = catch_unwind(AssertUnwindSafe(move || drop(resting)));
                        Exit::End
                    }
                }
            })
        });
        self.switch_to(index, coroutine);
    }

    /// Queues a job that any worker may start.
    pub(crate) fn spawn(&self, job: Job) {
        self.fresh.push(job);
        if self.shared.workers() > 1 {
            self.shared.wake_one();
        }
    }

    /// Queues a job that starts here. The one queue for jobs that are not `Send`: only this thread reaches it.
    pub(crate) fn spawn_local(&self, job: Job) {
        self.local.borrow_mut().push_back(job);
    }

    /// Suspends the fiber and queues it behind the others that are ready.
    pub(crate) fn yield_fiber(&self, core: &Core<'_>) {
        self.wake(core.word);
        core.suspend();
    }

    /// Counts a blocking call that did not block; the fiber that makes too many in a row yields.
    #[inline]
    pub(crate) fn charge(&self, core: &Core<'_>) {
        let completed = self.completed.get() + 1;
        self.completed.set(completed);
        if completed >= CALLS_BUDGET {
            core.hooks.run();
            self.yield_fiber(core);
        }
    }

    /// Wakes `waker` at `deadline` or up to a tick later, never before.
    pub(crate) fn arm(&self, deadline: Instant, waker: Waker) -> Key {
        let tick = tick_after(deadline.saturating_duration_since(self.started));
        self.timers.borrow_mut().insert(tick, waker)
    }

    pub(crate) fn disarm(&self, key: Key) {
        let waker = self.timers.borrow_mut().remove(key);
        drop(waker);
    }

    pub(crate) fn has_fired(&self, key: Key) -> bool {
        !self.timers.borrow().contains(key)
    }

    /// When this turn of the loop began.
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop_at.get().is_some()
    }

    /// Cancels everything that lives here.
    fn stop(&self) {
        self.stop_at.set(Some(Instant::now() + self.shared.shutdown_timeout));
        let slots = self.slots.borrow().len();
        (0..slots as u32).for_each(|index| self.enqueue(index));
    }

    fn is_done(&self) -> bool {
        self.stop_at.get().is_some_and(|stop_at| {
            (self.live.get() == 0 && !self.has_work()) || (self.live.get() > 0 && Instant::now() >= stop_at)
        })
    }

    /// Reports the fibers that would not end, and leaks their stacks: others may point into them.
    fn abandon(&self) {
        for slot in self.slots.borrow_mut().iter_mut() {
            match mem::replace(&mut slot.body, Body::Free) {
                Body::Suspended(coroutine) => {
                    let label = slot.place;
                    let limit = self.shared.shutdown_timeout;
                    eprintln!(
                        "osier: the fiber spawned at {label} did not end within {limit:?} of the shutdown; its stack is leaked"
                    );
                    coroutine.leak();
                }
                Body::Resting(resting) => drop(resting),
                Body::Free | Body::Running => {}
            }
        }
    }
}
