//! The scheduler of one runtime, which its workers share: the queues of jobs that nobody has started, and the set of
//! workers that sleep.
//!
//! | queue | filled by | taken by |
//! |---|---|---|
//! | `injector` | threads outside | any worker |
//! | `queues[i].arrivals` | anybody, for worker i | worker i |
//! | `queues[i].stealer` | worker i, which spawns | worker i, and others that have nothing to do |
//!
//! `worker/executor.rs` has the queues of tasks.
//!
//! # The end
//! The [`Gate`] of a worker is in front of its arrivals, and that of the scheduler in front of what comes from outside: the last worker shuts
//! it. The queue behind a gate that shuts is emptied, and so cancelled, by a thread that holds no lock of the program: a destructor may take
//! one. So a worker that finds a gate shut after a push takes the jobs into its own queue, where they are cancelled. Any other thread leaves the
//! rest to a thread of the pool, or to the pool of the simulation that runs here. While that one is at work, others only add to `leftovers`: a
//! runtime keeps one such thread busy at most, however many tasks are woken late, and under whichever lock.
//!
//! A worker that is left behind, because one of its fibers does not come back, keeps what only its own thread may touch until it goes on: its
//! fibers, the tasks that are not `Send`, and the jobs that it has spawned for itself. The jobs of a runtime with one worker are all of
//! that kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_deque::{Injector, Steal, Stealer, Worker as Deque};
use osier_coro::stack;
use osier_queue::{Gate, Idle, Leftovers};

use crate::wait::pool;
use crate::worker::executor::{self, Runnable};
use crate::worker::isolate::isolate;
use crate::worker::packet::Job;
use crate::worker::remote::Remote;

/// The queues of all workers of a runtime, and the settings that the workers share.
pub(crate) struct Scheduler {
    pub(crate) queues: Box<[WorkerQueues]>,
    pub(crate) injector: Injector<Job>,
    /// Tasks that were woken by threads outside.
    pub(crate) tasks: Injector<Runnable>,
    pub(crate) idle: Idle,
    /// Set once, then every worker is rung.
    pub(crate) stopping: AtomicBool,
    /// Shut when no worker takes jobs and tasks from outside any more.
    pub(crate) gate: Gate,
    /// The pushes behind a shut gate.
    pub(crate) leftovers: Leftovers,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) stacks: stack::Config,
    pub(crate) measure_stacks: bool,
}

/// The queues of one worker that others fill or steal from.
pub(crate) struct WorkerQueues {
    pub(crate) remote: &'static Remote,
    pub(crate) stealer: Stealer<Job>,
    pub(crate) arrivals: Injector<Job>,
    /// Shut when the worker has left its loop and takes no more arrivals.
    pub(crate) gate: Gate,
    pub(crate) stealers: executor::Stealers,
    pub(crate) local_tasks: Injector<Runnable>,
}

impl Scheduler {
    pub(crate) fn workers(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn remotes(&self) -> impl Iterator<Item = &'static Remote> {
        self.queues.iter().map(|worker| worker.remote)
    }

    /// Queues a job for the worker `index`, which there must be. Hands back what is queued for a worker that has ended, to be cancelled.
    pub(crate) fn spawn_on(&self, index: usize, job: Job, mut refused: impl FnMut(Job)) {
        let worker = &self.queues[index];
        worker.arrivals.push(job);
        worker.remote.ring();
        if worker.gate.is_shut() {
            self.take_all(&worker.arrivals, &mut refused);
        }
    }

    /// Queues a job for any worker, from outside. A runtime that stops cancels it.
    pub(crate) fn inject(self: &Arc<Self>, job: Job) {
        if self.is_stopping() {
            return drop(job);
        }
        self.injector.push(job);
        self.queued_outside();
    }

    /// Queues a task for any worker, from outside. A waker may call it: it drops no task here.
    pub(crate) fn inject_task(self: &Arc<Self>, task: Runnable) {
        self.tasks.push(task);
        self.queued_outside();
    }

    fn queued_outside(self: &Arc<Self>) {
        self.wake_one();
        if self.gate.is_shut() {
            self.cancel_elsewhere();
        }
    }

    /// Whether the runtime shuts down or has ended.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells all workers to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.remotes().for_each(Remote::ring);
    }

    /// Worker `index` has left its loop. Others may still send it jobs during a shutdown: it ends as soon as it has nothing to do.
    pub(crate) fn end(&self, index: usize) {
        self.queues[index].gate.shut();
        match self.queues.iter().all(|worker| worker.gate.is_shut()) {
            true => self.close(),
            false => self.cancel_left(),
        }
    }

    /// Notes that no worker takes anything any more, but one that is left behind.
    pub(crate) fn close(&self) {
        self.queues.iter().for_each(|worker| worker.gate.shut());
        self.gate.shut();
        self.cancel_left();
    }

    /// Drops the jobs and tasks that nobody will take, and so cancels them.
    fn cancel_left(&self) {
        for worker in self.queues.iter().filter(|worker| worker.gate.is_shut()) {
            while !worker.arrivals.is_empty() {
                drop(worker.arrivals.steal());
            }
            // Empty, but for a worker that is left behind. If this is that worker's thread, destructors may queue more there, which is left
            // to the worker.
            drop_some(worker.stealer.len(), || worker.stealer.steal());
            drop_some(worker.stealers.len(), || worker.stealers.steal());
        }
        if self.gate.is_shut() {
            while !self.injector.is_empty() {
                drop(self.injector.steal());
            }
            while !self.tasks.is_empty() {
                isolate(|| drop(self.tasks.steal()));
            }
        }
    }

    /// Does this on a thread of the pool: the caller may hold a lock that a destructor takes. Where the system starts no thread, the next push
    /// or the end of the runtime finds what is left.
    #[cold]
    fn cancel_elsewhere(self: &Arc<Self>) {
        if !self.leftovers.add() {
            return;
        }
        let scheduler = Arc::clone(self);
        match pool::try_spawn_awaited(move || scheduler.leftovers.answer(|| scheduler.cancel_left())) {
            Ok(task) => task.detach(),
            Err(_) => self.leftovers.give_up(),
        }
    }

    /// Wakes a sleeper to look for queued jobs, unless a worker is looking already.
    #[inline]
    pub(crate) fn wake_one(&self) {
        if let Some(index) = self.idle.wake_candidate() {
            self.queues[index].remote.ring();
        }
    }

    /// Whether a job or task waits that worker `index` could take.
    pub(crate) fn has_work(&self, index: usize) -> bool {
        !self.injector.is_empty()
            || !self.tasks.is_empty()
            || !self.queues[index].arrivals.is_empty()
            || !self.queues[index].local_tasks.is_empty()
            || self
                .others(index)
                .any(|worker| !worker.stealer.is_empty() || !worker.stealers.is_empty())
    }

    /// Takes some of the jobs from outside into a worker's deque. A worker that has others to run calls it too. Returns whether there were any.
    pub(crate) fn take_injected(&self, fresh: &Deque<Job>) -> bool {
        !self.injector.is_empty() && self.steal(|| self.injector.steal_batch(fresh))
    }

    /// Hands over the jobs sent to worker `index`.
    #[inline]
    pub(crate) fn arrivals(&self, index: usize, into: &mut impl FnMut(Job)) -> bool {
        let arrivals = &self.queues[index].arrivals;
        !arrivals.is_empty() && self.take_all(arrivals, into)
    }

    #[cold]
    fn take_all(&self, arrivals: &Injector<Job>, into: &mut impl FnMut(Job)) -> bool {
        let mut found = false;
        loop {
            match arrivals.steal() {
                Steal::Success(job) => {
                    found = true;
                    into(job);
                }
                Steal::Retry => {}
                Steal::Empty => return found,
            }
        }
    }

    /// Takes jobs and tasks from outside, or half of a neighbour's, into the deques of worker `index`.
    pub(crate) fn search(&self, index: usize, fresh: &Deque<Job>, tasks: &Deque<Runnable>) -> bool {
        // A look costs less than an attempt, which has a fence. Some attempts also visit all threads, to free memory of the
        // deques, so that searches of many workers would cost the cube of their number. A worker looks again before it sleeps.
        let job = !self.injector.is_empty() && self.steal(|| self.injector.steal_batch(fresh));
        let task = !self.tasks.is_empty() && self.steal(|| self.tasks.steal_batch(tasks));
        job || task
            || self.others(index).any(|worker| {
                let job = !worker.stealer.is_empty() && self.steal(|| worker.stealer.steal_batch(fresh));
                let task = !worker.stealers.is_empty() && self.steal(|| worker.stealers.steal_into(tasks));
                job || task
            })
    }

    /// Takes some of the tasks from outside into a worker's deque. Returns whether there were any.
    pub(crate) fn take_woken(&self, queue: &executor::Queue) -> bool {
        !self.tasks.is_empty() && self.steal(|| self.tasks.steal_batch(queue.deque()))
    }

    /// Takes the tasks that others have woken and only worker `index` may poll.
    pub(crate) fn take_local(&self, index: usize, queue: &executor::Queue) {
        let local = &self.queues[index].local_tasks;
        while !local.is_empty() {
            if let Steal::Success(task) = local.steal() {
                queue.push_local(task);
            }
        }
    }

    pub(crate) fn local_tasks(&self, index: usize) -> &Injector<Runnable> {
        &self.queues[index].local_tasks
    }

    pub(crate) fn remote(&self, index: usize) -> &'static Remote {
        self.queues[index].remote
    }

    fn steal(&self, attempt: impl Fn() -> Steal<()>) -> bool {
        loop {
            match attempt() {
                Steal::Success(()) => return true,
                Steal::Empty => return false,
                Steal::Retry => {}
            }
        }
    }

    /// The queues of the other workers. They begin behind `index`, so that thieves start at different victims.
    fn others(&self, index: usize) -> impl Iterator<Item = &WorkerQueues> {
        self.queues[index + 1..].iter().chain(&self.queues[..index])
    }
}

/// Drops as many of the jobs or tasks of a queue, unless it is empty before.
fn drop_some<T>(mut count: usize, steal: impl Fn() -> Steal<T>) {
    while count > 0 {
        match steal() {
            Steal::Success(taken) => {
                count -= 1;
                isolate(|| drop(taken));
            }
            Steal::Empty => return,
            Steal::Retry => {}
        }
    }
}
