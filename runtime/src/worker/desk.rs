//! A worker's desk: the numbers that it writes for others to read, and the questions that others leave for it.
//!
//! # Protocol
//! A desk lies beside its worker's inbox and is never freed. The worker alone writes the numbers: a relaxed load and a relaxed
//! store, most of them once per turn of its loop. Readers may see numbers that are out of date and of different turns.
//! To leave a question, push it under the lock, then set `asked`, then ring the worker. The worker takes them with its inbox, and looks at `asked` once
//! more after it has announced that it sleeps.

use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::worker::Worker;

/// Makes a number for a new runtime.
pub(crate) fn next_runtime() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A question to a worker: a call on its thread, between two fibers.
pub(crate) type Question = Box<dyn FnOnce(&Worker) + Send>;

/// How deep the fibers of one spawn place have been.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StackDepth {
    /// The place where the fibers were spawned.
    pub place: &'static Location<'static>,
    /// The number of fibers that have ended.
    pub fibers: u64,
    /// The most that one fiber has touched of its stack, in whole pages.
    pub touched_bytes: usize,
}

/// A number that one thread changes and all threads may read.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the owner calls it.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A worker's load at the end of a turn.
#[derive(Default)]
pub(crate) struct Load {
    pub(crate) queued: usize,
    pub(crate) fibers: usize,
    pub(crate) resting: usize,
    pub(crate) timers: usize,
    pub(crate) pooled: usize,
    pub(crate) started: u64,
}

/// The mark of a task in `Desk::running`, which holds a slot's number, or a task's id with this bit, or `NOTHING`.
pub(crate) const TASK: u64 = 1 << 63;
pub(crate) const NOTHING: u64 = u64::MAX;

/// The number of buckets of the histogram, which are powers of two of nanoseconds: up to 18 minutes.
pub(crate) const BUCKETS: usize = 40;

/// A worker's desk; the module has its protocol. It has cache lines of its own, because other threads write next to it.
#[repr(align(128))]
pub(crate) struct Desk {
    /// Twice the number of turns; odd while the worker is at its poller.
    pub(crate) phase: Counter,
    pub(crate) running: Counter,
    pub(crate) sleeps: Counter,
    pub(crate) events: Counter,
    pub(crate) wakes: Counter,
    pub(crate) resumed: Counter,
    pub(crate) steals: Counter,
    pub(crate) queued: Counter,
    pub(crate) fibers: Counter,
    pub(crate) resting: Counter,
    pub(crate) timers: Counter,
    pub(crate) pooled: Counter,
    pub(crate) started: Counter,
    /// The number of turns in each bucket.
    pub(crate) latency: [Counter; BUCKETS],
    /// The nanoseconds of all turns.
    pub(crate) busy: Counter,
    asked: AtomicBool,
    others: Mutex<Others>,
}

/// The part under the lock.
#[derive(Default)]
struct Others {
    /// The worker whose desk it is, while there is one.
    owner: Option<Arc<WorkerIdentity>>,
    questions: Vec<Question>,
    stacks: Vec<StackDepth>,
}

/// The identity of a worker.
#[derive(Debug)]
pub(crate) struct WorkerIdentity {
    /// The number of the runtime.
    pub(crate) runtime: u64,
    pub(crate) index: usize,
    pub(crate) name: String,
}

impl Desk {
    pub(crate) fn new() -> Desk {
        Desk {
            phase: Counter(AtomicU64::new(1)),
            running: Counter(AtomicU64::new(NOTHING)),
            sleeps: Counter::default(),
            events: Counter::default(),
            wakes: Counter::default(),
            resumed: Counter::default(),
            steals: Counter::default(),
            queued: Counter::default(),
            fibers: Counter::default(),
            resting: Counter::default(),
            timers: Counter::default(),
            pooled: Counter::default(),
            started: Counter::default(),
            latency: [const { Counter(AtomicU64::new(0)) }; BUCKETS],
            busy: Counter::default(),
            asked: AtomicBool::new(false),
            others: Mutex::default(),
        }
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Begins anew: a worker takes the desk.
    pub(crate) fn open(&self, owner: WorkerIdentity) {
        let numbers = [
            &self.sleeps,
            &self.events,
            &self.wakes,
            &self.resumed,
            &self.steals,
            &self.busy,
        ];
        numbers
            .into_iter()
            .chain(&self.latency)
            .for_each(|number| number.set(0));
        self.turn_ends_with(&Load::default(), 1);
        let mut others = self.others();
        others.stacks.clear();
        others.questions.clear();
        others.owner = Some(Arc::new(owner));
    }

    /// Notes that the worker has gone.
    pub(crate) fn close(&self) {
        self.phase.set(1);
        let mut others = self.others();
        others.owner = None;
        others.questions.clear();
    }

    pub(crate) fn owner(&self) -> Option<Arc<WorkerIdentity>> {
        self.others().owner.clone()
    }

    /// Notes that the worker resumes a fiber.
    #[inline(always)]
    pub(crate) fn run_fiber(&self, slot: u32) {
        self.running.set(u64::from(slot));
    }

    /// Notes that the worker polls a task.
    #[inline]
    pub(crate) fn run_task(&self, id: u64) {
        self.running.set(id | TASK);
    }

    /// Notes that the worker is about to look at its poller.
    #[inline]
    pub(crate) fn turn_ends(&self, load: &Load, sleeps: bool) {
        self.sleeps.add(u64::from(sleeps));
        self.turn_ends_with(load, self.phase.get() | 1);
    }

    #[inline]
    fn turn_ends_with(&self, load: &Load, phase: u64) {
        self.running.set(NOTHING);
        self.queued.set(load.queued as u64);
        self.fibers.set(load.fibers as u64);
        self.resting.set(load.resting as u64);
        self.timers.set(load.timers as u64);
        self.pooled.set(load.pooled as u64);
        self.started.set(load.started);
        self.phase.set(phase);
    }

    /// Notes that the worker has looked at its poller. The turn before took `nanos`.
    #[inline]
    pub(crate) fn turn_begins(&self, nanos: u64) {
        let bucket = (u64::BITS - nanos.leading_zeros()) as usize;
        self.latency[bucket.min(BUCKETS - 1)].add(1);
        self.busy.set(self.busy.get().wrapping_add(nanos));
        self.phase.set((self.phase.get() | 1) + 1);
    }

    /// Notes that the worker, which was not at work, begins.
    pub(crate) fn work_begins(&self) {
        self.phase.set(self.phase.get() & !1);
    }

    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Leaves a question. The caller rings the worker afterwards.
    pub(crate) fn ask(&self, question: Question) {
        self.others().questions.push(question);
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Takes the questions, for the worker to answer.
    pub(crate) fn questions(&self) -> Vec<Question> {
        // The flag is cleared first: a question that comes now is heard the next time.
        self.asked.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.others().questions)
    }

    /// How deep fibers have been on their stacks, by the place of their spawn.
    pub(crate) fn stacks(&self) -> Vec<StackDepth> {
        self.others().stacks.clone()
    }

    /// Notes that a fiber spawned at `place` has touched this much of its stack.
    pub(crate) fn note_stack(&self, place: &'static Location<'static>, touched_bytes: usize) {
        let stacks = &mut self.others().stacks;
        match stacks.iter_mut().find(|stack| stack.place == place) {
            Some(stack) => {
                stack.fibers += 1;
                stack.touched_bytes = stack.touched_bytes.max(touched_bytes);
            }
            None => stacks.push(StackDepth {
                place,
                fibers: 1,
                touched_bytes,
            }),
        }
    }
}
