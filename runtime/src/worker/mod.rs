//! A worker: one thread, one poller, one ready queue and the fibers that live there. The loop is [`Worker::run`]; its
//! phases are calls.
//!
//! ```text
//!     ┌────────────────────────────────────────────────────────────────────────────────────┐
//!     ▼                                                                                    │
//!   run what is ready or new ───▶ poll (sleeps if idle) ─▶ take the inbox ─▶ fire timers ──┘
//!   (at most BUDGET resumes,      dispatch readiness
//!   about TURN), and then one
//!   fiber that gave way
//! ```
//!
//! Everything here belongs to the worker's thread. Other threads leave wake-ups in [`Remote`], leave jobs in the
//! injectors of [`Scheduler`], and steal from `fresh`. No field is borrowed across a resume. The coroutine runs where it
//! lies in its slot, which never moves, so a fiber may spawn, wake, arm and end others at will.
//!
//! A slot holds a fiber, or a connection at rest. The connection becomes a fiber when it is woken, and keeps its word
//! ([`Word`]). A slot is queued at most once. A wake-up of a running fiber queues its slot, so that the fiber is
//! resumed once more.

pub(crate) mod affinity;
pub(crate) mod children;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod core;
pub(crate) mod desk;
pub(crate) mod executor;
pub(crate) mod faults;
pub(crate) mod heap;
pub(crate) mod hook;
pub(crate) mod isolate;
pub(crate) mod linger;
pub(crate) mod meter;
pub(crate) mod packed;
pub(crate) mod packet;
pub(crate) mod random;
pub(crate) mod remote;
pub(crate) mod resting;
pub(crate) mod running;
pub(crate) mod scheduler;
pub(crate) mod service;
mod shortage;
mod shutdown;
#[cfg(feature = "sim")]
mod simulated;
pub(crate) mod slots;
pub(crate) mod stamp;
pub(crate) mod stderr;
pub(crate) mod table;
pub(crate) mod threads;
mod timers;
pub(crate) mod trimmers;
pub(crate) mod waker;
mod yields;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_deque as deque;
use osier_coro::{Coroutine, stack};
use osier_poll::{Events, Poller};
use osier_queue::Wheel;

use crate::wait::cancel::Cancelled;
use crate::wait::driver;
use crate::wait::entry;
use crate::worker::clock::Clock;
use crate::worker::core::{Core, Show, cannot_start};
use crate::worker::desk::Load;
use crate::worker::faults::Call;
use crate::worker::heap::Heap;
use crate::worker::isolate::isolate;
use crate::worker::linger::Linger;
use crate::worker::packet::Job;
use crate::worker::remote::Remote;
use crate::worker::scheduler::Scheduler;
use crate::worker::shortage::Shortage;
use crate::worker::slots::{Slot, SlotState, Slots};
use crate::worker::stamp::Stamp;
use crate::worker::trimmers::Trimmers;
use crate::worker::waker::{SLOTS_MAX, Word};
use crate::worker::yields::Calls;

/// The loop resumes this many fibers, and polls this many tasks, between two looks at the poller.
const BUDGET: u32 = 256;
/// The loop looks at the poller after this time, even if part of its [`BUDGET`] is left: fibers that compute and yield
/// keep a socket or a timer waiting no longer than the fibers that are ready before it.
const TURN: Duration = Duration::from_millis(1);
/// The loop resumes this many fibers between two looks for new jobs. It starts one in this many new jobs from the
/// stealable queue.
const FRESH_EVERY: u32 = 8;
/// A turn runs at least this many fibers: a new one, and one that was ready before it.
const FEWEST: u32 = 2;
/// The pool of stacks is looked through this long after fibers have ended.
const TRIM_EVERY: Duration = Duration::from_secs(1);
/// One poll takes at most this many events.
const EVENTS: usize = 1024;

pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) remote: &'static Remote,
    pub(crate) poller: Arc<Poller>,
    linger: Linger,
    slots: Slots,
    /// Jobs that others may steal. A runtime's only worker keeps the jobs from outside here.
    fresh: deque::Worker<Job>,
    /// Jobs that must start here. A runtime's only worker keeps all jobs that it spawns here.
    local: RefCell<VecDeque<Job>>,
    /// Tasks that were woken.
    pub(crate) tasks: executor::Queue,
    timers: RefCell<Wheel<Word>>,
    clock: Clock,
    /// Tick 0 of the wheel, on its clock.
    epoch: Instant,
    /// The same as a stamp.
    zero: Stamp,
    /// When this turn of the loop began, on its clock.
    now: Cell<Instant>,
    /// The same as a stamp.
    stamp: Cell<Stamp>,
    /// The beginning of the turn on the machine's clock, which measures turns.
    turned: Cell<Stamp>,
    /// How many fibers run in a turn before its first look at the clock, which costs as much as some yields. The share
    /// doubles after each look. It begins at [`FRESH_EVERY`], and at [`FEWEST`] after a turn that was too long. While
    /// turns use their whole [`BUDGET`] in time, it doubles from turn to turn: fibers that only yield pay nothing.
    first_share: Cell<u32>,
    /// `now` as a tick of the wheel: each wake-up of a connection at rest asks for it.
    tick: Cell<u64>,
    stacks: stack::Pool,
    shortage: Shortage,
    heap: Heap,
    pub(crate) trimmers: Trimmers,
    /// The place that is shown as the origin of fibers of connections at rest.
    connection: &'static Location<'static>,
    calls: Calls,
    /// Whether the last look took jobs or tasks from outside. It takes a part of them, so there may be more.
    took_some: Cell<bool>,
    /// Connections at rest.
    resting: Cell<usize>,
    next_id: Cell<u64>,
    /// The first id of this worker's fibers.
    first_id: u64,
    /// The next time to give memory back; `None` while nothing has run since all of it was.
    trim_at: Cell<Option<Stamp>>,
    /// Set once: every fiber is to end.
    stopping: Cell<bool>,
    /// Set with `stopping`: the time at which fibers that have not ended are given up.
    stop_at: Cell<Option<Stamp>>,
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        scheduler: Arc<Scheduler>,
        remote: &'static Remote,
        poller: Arc<Poller>,
        fresh: deque::Worker<Job>,
        tasks: executor::Queue,
        (clock, epoch): (Clock, Instant),
    ) -> io::Result<Worker> {
        let turned = Stamp::of_machine();
        let (zero, stamp) = (Stamp::of(epoch), clock.time(turned));
        Ok(Worker {
            index,
            remote,
            poller,
            linger: Linger::default(),
            slots: Slots::new(),
            fresh,
            local: RefCell::default(),
            tasks,
            timers: RefCell::new(Wheel::new(0)),
            epoch,
            zero,
            now: Cell::new(stamp.instant()),
            stamp: Cell::new(stamp),
            turned: Cell::new(turned),
            first_share: Cell::new(FRESH_EVERY),
            tick: Cell::new(tick_of(stamp, zero)),
            clock,
            stacks: shortage::pool(scheduler.stacks.clone())?,
            heap: Heap::default(),
            shortage: Shortage::default(),
            trimmers: Trimmers::default(),
            connection: Location::caller(),
            calls: Calls::new(),
            took_some: Cell::new(false),
            resting: Cell::new(0),
            next_id: Cell::new(remote.next_fiber.load(Ordering::Relaxed)),
            first_id: remote.next_fiber.load(Ordering::Relaxed),
            trim_at: Cell::new(None),
            stopping: Cell::new(false),
            stop_at: Cell::new(None),
            scheduler,
        })
    }

    /// Runs the loop until the runtime stops and every fiber has ended.
    pub(crate) fn run(&self) {
        let mut events = Events::with_capacity(EVENTS);
        self.remote.desk.work_begins();
        while !self.is_done() {
            self.run_ready();
            if let Err(error) = self.poll(&mut events, None) {
                self.poller_failed(&error);
            }
            self.take_inbox();
            self.fire_timers();
        }
        self.abandon();
    }

    /// Runs fibers and tasks in turn, until none is ready, either kind has had its share, or the time is over. Then runs one fiber that had given
    /// way before.
    pub(crate) fn run_ready(&self) {
        // Fibers that give way from here on wait for the next look at the poller.
        let gave_way = self.slots.giving_way() > 0;
        let first_share = self.first_share.get();
        let (mut fibers, mut tasks) = (first_share, first_share);
        // The part of the budget that has no share yet.
        let mut rest = BUDGET - first_share;
        let next_share = loop {
            self.run_fibers(&mut fibers);
            let any = self.run_tasks(&mut tasks);
            if fibers > 0 && tasks > 0 {
                if any {
                    continue;
                }
                break FRESH_EVERY;
            }
            if rest == 0 {
                break (2 * first_share).min(BUDGET);
            }
            if Stamp::of_machine().since(self.turned.get()) >= TURN {
                break FEWEST;
            }
            // As many again as before.
            let share = (BUDGET - rest).min(rest);
            rest -= share;
            fibers += share;
            tasks += share;
        };
        self.first_share.set(next_share);
        let shared = BUDGET - rest;
        if gave_way {
            self.run_one_that_gave_way();
        }
        self.remote.desk.resumed.add(u64::from(shared - fibers));
        if fibers < shared || tasks < shared || gave_way {
            self.clock.stir();
        }
    }

    #[inline(always)]
    fn run_fibers(&self, share: &mut u32) {
        while *share > 0 {
            // One new fiber, then those that were ready before it: a fiber that spawns and yields sees the new one run
            // first.
            let ready = self.slots.ready();
            match self.next_job() {
                Some(job) => {
                    self.start(job);
                    *share -= 1;
                }
                None if ready == 0 => break,
                None => {}
            }
            let turns = ready.min(FRESH_EVERY).min(*share);
            for _ in 0..turns {
                let Some(slot) = self.slots.pop() else {
                    unreachable!("only this loop takes from the queue")
                };
                self.resume(slot);
            }
            *share -= turns;
        }
    }

    /// Polls tasks. Returns false if there was none, or no share.
    fn run_tasks(&self, share: &mut u32) -> bool {
        let before = *share;
        while *share > 0
            && let Some(task) = self.tasks.pop()
        {
            *share -= 1;
            // The shared flag, not this worker's own: the thread that woke the task to end it may be ahead of this
            // worker.
            match self.scheduler.is_stopping() {
                // Ends it.
                true => drop(isolate(|| drop(task))),
                false => drop(task.run()),
            }
        }
        *share < before
    }

    /// Takes mostly jobs that must start here, sometimes jobs that need not: neither kind may keep the other waiting
    /// for ever.
    fn next_job(&self) -> Option<Job> {
        let local = || self.local.borrow_mut().pop_front();
        // Counted by the fibers that have started: the budget of a turn may fall in steps of FRESH_EVERY.
        match self.next_id.get().is_multiple_of(u64::from(FRESH_EVERY)) {
            true => self.fresh.pop().or_else(local),
            false => local().or_else(|| self.fresh.pop()),
        }
    }

    /// Looks at the poller. Sleeps in it when there is nothing else to do, at most for `limit`.
    pub(crate) fn poll(&self, events: &mut Events, limit: Option<Duration>) -> io::Result<()> {
        let desk = &self.remote.desk;
        let mut timeout = Some(Duration::ZERO);
        let mut asleep_at = None;
        if self.has_work() || self.find_work() || self.linger() {
            // Only a look.
        } else if let Some(look) = self.look() {
            timeout = Some(limit.map_or(look, |limit| look.min(limit)));
        } else {
            self.remote.parker.prepare();
            self.scheduler.idle.enter_sleep(self.index);
            let now = Stamp::of_machine();
            asleep_at = Some(now);
            // A thread that pushes after this look sees the worker asleep and rings. Only this thread fills the worker's own queues.
            debug_assert!(!self.has_work(), "nothing has run since the last look");
            let nothing = !self.scheduler.has_work(self.index) && self.remote.inbox.is_empty();
            if nothing && !desk.is_asked() && !self.is_to_stop() && !self.is_done() && limit != Some(Duration::ZERO) {
                timeout = earlier(self.sleep_for(now), limit);
            }
        }
        self.heap.note(self.slots.live(), self.fibers());
        // A worker that sleeps has nothing queued.
        let queued = if asleep_at.is_some() { 0 } else { self.queued() };
        desk.turn_ends(&self.load(queued), asleep_at.is_some());
        let polled = faults::check(Call::Wait).and_then(|()| self.poller.wait(events, timeout));
        if asleep_at.is_some() {
            self.remote.parker.unprepare();
            if self.scheduler.idle.leave_sleep(self.index) {
                // Chosen to search: what was pushed is in the injectors or in somebody's deque.
                let found = self.search();
                if self.scheduler.idle.stop_search() && found {
                    self.scheduler.wake_one();
                }
            }
        }
        let now = Stamp::of_machine();
        if let Some(asleep_at) = asleep_at {
            let rung = events.is_empty() && !self.remote.inbox.is_empty();
            self.linger.slept(now.since(asleep_at), rung);
        }
        let began = self.turned.replace(now);
        self.begin_turn(self.clock.time(now));
        // A turn that does not end in a sleep counts with its look at the poller, which spares it one at the clock.
        let turn = asleep_at.unwrap_or(now).nanos_since(began);
        if turn >= TURN.as_nanos() as u64 {
            self.first_share.set(FEWEST);
        }
        desk.turn_begins(turn);
        match self.trim_at.get() {
            Some(trim_at) if now >= trim_at => self.trim(now),
            _ => {}
        }
        desk.events.add(polled? as u64);
        if !events.is_empty() {
            self.clock.stir();
        }
        driver::each(events.iter(), |event| entry::dispatch(self.remote, event));
        Ok(())
    }

    /// Sets the time of a turn that begins at `stamp` on the worker's clock.
    #[inline]
    fn begin_turn(&self, stamp: Stamp) {
        self.stamp.set(stamp);
        self.now.set(stamp.instant());
        self.tasks.turn.set(0);
        self.tick.set(tick_of(stamp, self.zero));
    }

    /// Gives back memory that has not been used for a while. It comes again until there is none left.
    #[cold]
    fn trim(&self, now: Stamp) {
        self.stacks.trim();
        let pools = self.trimmers.trim();
        let is_asked = self.heap.trim(self.slots.live(), self.fibers(), pools);
        let is_done = self.stacks.is_trimmed() && pools.left == 0 && is_asked;
        self.trim_at.set((!is_done).then(|| now + TRIM_EVERY));
    }

    /// Stays awake for a moment if that has been worth it lately. Returns whether there is something to do.
    fn linger(&self) -> bool {
        self.linger
            .before_sleep(|| !self.remote.inbox.is_empty() || self.scheduler.has_work(self.index))
    }

    /// How long a virtual clock has the worker poll before it may sleep.
    #[inline]
    fn look(&self) -> Option<Duration> {
        let (is_due, watches) = (|| self.has_due_timer(), || self.remote.watches());
        self.clock.look(is_due, watches, || self.next_timer())
    }

    /// How many fibers, jobs and tasks are queued here.
    fn queued(&self) -> usize {
        (self.slots.ready() + self.slots.giving_way()) as usize + self.unstarted() + self.tasks.len()
    }

    /// The load at the end of a turn, for the desk.
    fn load(&self, queued: usize) -> Load {
        let fibers = self.fibers();
        Load {
            queued,
            fibers,
            resting: self.resting.get(),
            timers: self.timers.borrow().len(),
            pooled: self.stacks.owned().saturating_sub(fibers),
            started: self.next_id.get() - self.first_id,
        }
    }

    /// Takes jobs that wait elsewhere: jobs sent to this worker, jobs from outside, jobs of a busy neighbour.
    fn find_work(&self) -> bool {
        if self.scheduler.workers() == 1 && self.clock.is_real() {
            // It has looked since its last look at the poller, and looks once more before it sleeps.
            return self.took_some.get() && self.search();
        }
        let arrived = self.take_arrivals();
        if arrived || self.scheduler.workers() == 1 {
            return arrived || self.search();
        }
        if !self.scheduler.idle.start_search() {
            return false;
        }
        let found = self.search();
        if self.scheduler.idle.stop_search() && found {
            self.scheduler.wake_one();
        }
        found
    }

    fn search(&self) -> bool {
        let found = self.scheduler.search(self.index, &self.fresh, self.tasks.deque());
        self.remote.desk.steals.add(u64::from(found));
        found
    }

    fn has_work(&self) -> bool {
        self.slots.ready() > 0
            || self.slots.giving_way() > 0
            || !self.local.borrow().is_empty()
            || !self.fresh.is_empty()
            || !self.tasks.is_empty()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn take_inbox(&self) {
        if !self.remote.inbox.is_empty() {
            self.remote.inbox.drain(self.remote, |slot| {
                self.remote.desk.wakes.add(1);
                self.enqueue(slot);
            });
        }
        if self.remote.desk.is_asked() {
            self.answer();
        }
        // A worker that never runs out of its own jobs must take arrivals too.
        self.take_arrivals();
        let (jobs, tasks) = (
            self.scheduler.take_injected(&self.fresh),
            self.scheduler.take_woken(&self.tasks),
        );
        self.remote.desk.steals.add(u64::from(jobs) + u64::from(tasks));
        self.took_some.set(jobs || tasks);
        self.scheduler.take_local(self.index, &self.tasks);
        if self.is_to_stop() {
            self.stop();
        }
    }

    #[inline]
    fn take_arrivals(&self) -> bool {
        let mut local = |job| self.local.borrow_mut().push_back(job);
        self.scheduler.arrivals(self.index, &mut local)
    }

    fn enqueue(&self, index: u32) {
        if let Some(slot) = self.slots.get(index)
            && slot.state() != SlotState::Free
        {
            self.slots.queue(slot);
        }
    }

    /// Queues the slot of `word` if its tenant is still the same.
    #[inline]
    pub(crate) fn wake(&self, word: Word) {
        if let Some(slot) = self.slots.get(word.slot())
            && word.is_generation(slot.generation.get())
        {
            self.slots.queue(slot);
        }
    }

    /// Asks for the time of the next wake-up of `word`. Returns false if `word` is queued already.
    pub(crate) fn note_next_wake(&self, word: Word) -> bool {
        self.slots.get(word.slot()).is_some_and(Slot::note_next_wake)
    }

    /// The time when `word` was woken, if that [was noted](Worker::note_next_wake) and its fiber has just been resumed.
    pub(crate) fn woken(&self, word: Word) -> Option<Stamp> {
        self.slots.woken(word.slot())
    }

    /// The time of a wake-up that happens now. Wake-ups by the loop count from the beginning of its turn.
    fn time_of_wake(&self) -> Stamp {
        match context::running(|_| ()) {
            None => self.stamp(),
            Some(()) => self.clock.stamp(),
        }
    }

    /// Gives a new tenant a slot and its word.
    #[inline]
    fn occupy(&self) -> io::Result<(Word, &Slot)> {
        match self.slots.occupy(self.remote) {
            Some(slot) => Ok((self.word(slot), slot)),
            None => Err(io::Error::other(format!(
                "a worker has at most {SLOTS_MAX} fibers and connections"
            ))),
        }
    }

    #[inline(always)]
    fn resume(&self, slot: &Slot) {
        if slot.state() == SlotState::Suspended {
            self.switch_to(slot);
        } else if let Some(resting) = slot.take_resting() {
            self.resting.set(self.resting.get() - 1);
            self.wake_resting(slot, resting);
        }
    }

    /// Runs the coroutine of a slot until it suspends or ends.
    #[inline(always)]
    fn switch_to(&self, slot: &Slot) {
        self.calls.reset();
        self.remote.desk.run_fiber(slot.index());
        let ended = self.slots.resume(slot);
        crate::worker::context::leave_fiber();
        if let Some(exit) = ended {
            // First: what the end of the coroutine has written is not yet to be had by wide loads.
            if exit.is_none() {
                self.slots.vacate(slot);
            }
            let mut stack = slot.take_ended().into_stack();
            if self.scheduler.measure_stacks {
                self.measure(&mut stack);
            }
            self.stacks.give(stack);
            if self.trim_at.get().is_none() {
                self.trim_at.set(Some(self.turned.get() + TRIM_EVERY));
            }
            if let Some(resting) = exit {
                self.rest(slot, resting);
            }
        }
    }

    fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    /// Notes how deep the fiber that has just ended touched its stack.
    #[cold]
    fn measure(&self, stack: &mut stack::Stack) {
        let place = stack::Label::at(stack.address()).and_then(stack::Label::place);
        if let (Some(place), Ok(touched)) = (place, stack.measure()) {
            self.remote.desk.note_stack(place, touched);
        }
    }

    /// Answers the questions on the desk.
    #[cold]
    fn answer(&self) {
        self.remote
            .desk
            .questions()
            .into_iter()
            .for_each(|question| question(self));
    }

    /// Makes every suspended fiber, or `only` this one, run `show` on its own stack. Then calls `shown` with whether that fiber is ready.
    pub(crate) fn each_suspended(&self, only: Option<u64>, show: Show, mut shown: impl FnMut(bool)) {
        core::show_with(show);
        let slots = (0..self.slots.made()).filter_map(|index| self.slots.get(index));
        let is_meant = |slot: &&Slot| only.is_none_or(|id| slot.tenant().is_some_and(|(tenant, _)| tenant == id));
        slots
            .filter(is_meant)
            .filter(|slot| slot.show())
            .for_each(|slot| shown(slot.is_queued()));
    }

    /// How many fibers live here.
    fn fibers(&self) -> usize {
        self.slots.live() - self.resting.get()
    }

    /// How many connections are at rest here.
    pub(crate) fn resting(&self) -> usize {
        self.resting.get()
    }

    /// How many jobs wait here to be started.
    pub(crate) fn unstarted(&self) -> usize {
        self.local.borrow().len() + self.fresh.len()
    }

    /// Starts a spawned job on a fiber of its own.
    #[inline(always)]
    fn start(&self, job: Job) {
        if let Some(slot) = self.prepare(job) {
            self.switch_to(slot);
        }
    }

    /// Puts a spawned job on a fiber of its own, which has not run yet.
    #[inline(always)]
    fn prepare(&self, job: Job) -> Option<&Slot> {
        if self.is_stopping() {
            drop(job);
            return None;
        }
        let wanted = job.header().stack_bytes();
        let prepared = self.stacks.take(wanted).and_then(|stack| match self.occupy() {
            Ok(tenant) => Ok((stack, tenant)),
            Err(error) => {
                self.stacks.give(stack);
                Err(error)
            }
        });
        let (stack, (word, slot)) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let error = cannot_start(job.header(), error);
                self.shortage.say(self.now(), format_args!("{error}"));
                job.fail(Box::new(error));
                return None;
            }
        };
        let id = self.next_id();
        stack.label(job.header().place, job.header().name().map(|name| &**name));
        slot.set_tenant(id, stack.address());
        let (remote, stack_bytes) = (slot.remote(), stack.stack_bytes());
        let coroutine = Coroutine::new(stack, move |yielder, _| {
            let mut job = job;
            let live = job.start(word);
            Core::enter(yielder, stack_bytes, job.header(), (word, id), remote, || match live {
                true => job.run(),
                // The captured values are dropped on a fiber, so that a destructor may flush.
                false => job.abandon(Box::new(Cancelled)),
            });
            job.end();
            None
        });
        slot.set_fiber(coroutine);
        Some(slot)
    }

    /// Puts all spawned jobs on fibers, and these fibers into the ready queue, and then one that has given way.
    pub(crate) fn prepare_all(&self) {
        // Destructors of cancelled jobs may queue more: the next call takes these.
        for job in (0..self.unstarted()).map_while(|_| self.next_job()) {
            if let Some(slot) = self.prepare(job) {
                self.slots.queue(slot);
            }
        }
        self.slots.queue_one_that_gave_way();
    }

    /// How many fibers are ready.
    pub(crate) fn ready(&self) -> u32 {
        self.slots.ready()
    }

    /// Takes the first ready fiber out of the queue, to be [resumed](Worker::resume_word) or [woken](Worker::wake).
    pub(crate) fn pop_ready(&self) -> Option<Word> {
        self.slots.pop().map(|slot| self.word(slot))
    }

    /// Resumes the fiber of `word`, or wakes the connection at rest. Does nothing if the tenant has gone.
    pub(crate) fn resume_word(&self, word: Word) {
        if let Some(slot) = self.slots.get(word.slot())
            && word.is_generation(slot.generation.get())
        {
            self.resume(slot);
            self.clock.stir();
            self.remote.desk.resumed.add(1);
        }
    }

    /// The id of the fiber of `word`, and the label of its stack.
    pub(crate) fn tenant(&self, word: Word) -> Option<(u64, &'static stack::Label)> {
        let slot = self.slots.get(word.slot())?;
        let current = word.is_generation(slot.generation.get()) && slot.state() == SlotState::Suspended;
        slot.tenant().filter(|_| current)
    }

    /// How many times a fiber was resumed.
    pub(crate) fn resumed(&self) -> u64 {
        self.remote.desk.resumed.get()
    }

    /// The host of an embedded worker begins to work for it.
    pub(crate) fn wake_up(&self) {
        self.remote.parker.unprepare();
        if self.scheduler.idle.leave_sleep(self.index) {
            self.scheduler.idle.stop_search();
        }
        self.remote.desk.work_begins();
    }

    /// The host turns to something else: from now on a wake-up rings. Returns whether there is something to do.
    pub(crate) fn lie_down(&self) -> bool {
        self.remote.desk.turn_ends(&self.load(self.queued()), false);
        self.remote.parker.prepare();
        self.scheduler.idle.enter_sleep(self.index);
        self.has_work()
            || self.scheduler.has_work(self.index)
            || !self.remote.inbox.is_empty()
            || self.remote.desk.is_asked()
            || self.is_to_stop()
    }

    fn word(&self, slot: &Slot) -> Word {
        Word::new(self.remote.id, slot.index(), slot.generation.get())
    }

    /// Queues a job that any worker may start.
    pub(crate) fn spawn(&self, job: Job) {
        if self.scheduler.workers() == 1 {
            // Nobody steals here, so the plain queue does, without atomic operations.
            return self.spawn_local(job);
        }
        self.fresh.push(job);
        self.scheduler.wake_one();
    }

    /// Queues a job that starts here. This is the one queue for jobs that are not `Send`: only this thread reaches it.
    pub(crate) fn spawn_local(&self, job: Job) {
        self.local.borrow_mut().push_back(job);
    }

    /// Queues a job for the worker `index`, which there must be. If that one has ended, the job is cancelled here.
    pub(crate) fn spawn_on(&self, index: usize, job: Job) {
        if index == self.index {
            return self.spawn_local(job);
        }
        self.scheduler.spawn_on(index, job, |job| {
            job.header().cancel();
            self.spawn_local(job);
        });
    }

    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }
}

/// The earlier of two times, either of which may be missing.
#[inline]
fn earlier<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The tick of the wheel that contains `stamp`. Tick 0 begins at `zero`.
#[inline]
fn tick_of(stamp: Stamp, zero: Stamp) -> u64 {
    stamp.nanos_since(zero) / 1_000_000
}
