//! The threads of a runtime: each is started with a worker of its own, all are joined at the shutdown.
//!
//! A worker's place is made before its thread: the remote, the poller and the queues exist when the first job is spawned. The
//! worker itself is made on its thread, and never leaves it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{io, panic, thread};

use crossbeam_deque::{Injector, Steal, Worker as Deque};
use osier_coro::stack;
use osier_poll::Poller;
use osier_queue::clock::Member;
use osier_queue::{Gate, Idle, Leftovers};

use crate::worker::Worker;
use crate::worker::affinity::{pin_thread, start_thread};
use crate::worker::clock::{Clock, VirtualClock};
use crate::worker::context;
use crate::worker::desk::{self, WorkerIdentity};
use crate::worker::executor;
use crate::worker::packet::Job;
use crate::worker::remote::Remote;
use crate::worker::scheduler::{Scheduler, WorkerQueues};
use crate::worker::stderr::say;

/// The settings that workers are made with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The threads are called `name-0`, `name-1` and so on.
    pub(crate) name: String,
    pub(crate) pin: bool,
    pub(crate) stacks: stack::Config,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) measure_stacks: bool,
    /// `None`: the machine's clock.
    pub(crate) clock: Option<VirtualClock>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            name: "osier".into(),
            pin: false,
            stacks: stack::Config::default(),
            shutdown_timeout: Duration::from_secs(10),
            measure_stacks: false,
            clock: None,
        }
    }
}

/// The threads of a runtime. Dropping them shuts the runtime down.
pub(crate) struct Threads {
    pub(crate) scheduler: Arc<Scheduler>,
    threads: Vec<thread::JoinHandle<()>>,
    progress: Arc<Progress>,
    describe: Describe,
}

/// Says what a worker runs that does not end, and which calls would let it.
pub(crate) type Describe = fn(&Remote) -> String;

/// How far the threads are.
#[derive(Default)]
struct Progress {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    started: usize,
    /// The error of a worker that could not be made.
    failed: Option<io::Error>,
    /// Whether the thread is about to return, one value a thread.
    ended: Vec<bool>,
}

impl Progress {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts());
        self.changed.notify_all();
    }

    /// Waits until `is_over` or the deadline.
    fn wait(&self, deadline: Option<Instant>, is_over: fn(&Counts) -> bool) -> MutexGuard<'_, Counts> {
        let mut counts = self.counts();
        while !is_over(&counts) {
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(counts, left);
            counts = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        counts
    }
}

/// Notes the end of a thread, however it ends.
struct Ends(Arc<Progress>, usize);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.note(|counts| counts.ended[self.1] = true);
    }
}

impl Threads {
    /// Starts the workers. Each thread keeps what `watch` returns for as long as its worker runs. A shutdown uses `describe`.
    pub(crate) fn start<W>(
        settings: &Settings,
        workers: usize,
        watch: impl Fn(&'static Remote) -> W + Clone + Send + 'static,
        describe: Describe,
    ) -> io::Result<Threads> {
        let (scheduler, vacancies) = prepare(
            settings,
            std::iter::repeat_with(|| Poller::new().map(Arc::new)).take(workers),
        )?;
        let progress = Arc::new(Progress::default());
        let mut running = Threads {
            scheduler: Arc::clone(&scheduler),
            threads: Vec::with_capacity(workers),
            progress: Arc::clone(&progress),
            describe,
        };
        for (index, vacancy) in vacancies.into_iter().enumerate() {
            let scheduler = Arc::clone(&scheduler);
            let progress = Arc::clone(&progress);
            let pin = settings.pin;
            let watch = watch.clone();
            let name = vacancy.name.clone();
            running.progress.counts().ended.push(false);
            let thread = start_thread(name, move || {
                let ends = Ends(progress, index);
                if pin {
                    pin_thread(index);
                }
                match vacancy.fill(index, scheduler) {
                    Ok((claim, worker)) => {
                        let watching = watch(claim.0);
                        // The builder may have given up. Then the worker is stopped.
                        ends.0.note(|counts| counts.started += 1);
                        context::enter_worker(&worker, || worker.run());
                        drop(watching);
                        drop(worker);
                        drop(claim);
                    }
                    Err(error) => ends.0.note(|counts| counts.failed = Some(error)),
                }
            });
            // Dropping the threads ends the ones that run already.
            match thread {
                Ok(thread) => running.threads.push(thread),
                Err(error) => {
                    running.progress.counts().ended.pop();
                    return Err(error);
                }
            }
        }
        // A thread that ends now has failed or panicked.
        let mut counts = progress.wait(None, |counts| {
            counts.failed.is_some() || counts.started == counts.ended.len() || counts.ended.contains(&true)
        });
        match counts.failed.take() {
            Some(error) => Err(error),
            None if counts.started < workers => Err(io::Error::other("a worker panicked when it was made")),
            None => {
                drop(counts);
                Ok(running)
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.scheduler.stop();
        if self.runs_this_code() && self.leave_to_a_thread() {
            return;
        }
        // A worker ends soon after its deadline, unless one of its fibers never comes back to the loop.
        let limit = self.scheduler.shutdown_timeout.saturating_add(Duration::from_secs(1));
        let deadline = Instant::now().checked_add(limit);
        drop(self.progress.wait(deadline, |counts| !counts.ended.contains(&false)));
        for (index, thread) in self.threads.drain(..).enumerate() {
            // It is about to return.
            while !thread.is_finished() && self.progress.counts().ended[index] {
                thread::yield_now();
            }
            if !thread.is_finished() {
                let name = thread.thread().name().unwrap_or("unnamed");
                let work = (self.describe)(self.scheduler.remote(index));
                say(format_args!(
                    "osier: worker '{name}' has not turned its loop {limit:?} after the shutdown began, and is left behind: it runs {work}"
                ));
                continue;
            }
            if let Err(payload) = thread.join() {
                say(format_args!("osier: a worker ended by a panic: {}", message(&*payload)));
            }
        }
        // A worker may be left behind, and so be no last one.
        self.scheduler.close();
        // A task that did not end in time may be dropped on its own thread alone, which is gone.
        for worker in &self.scheduler.queues {
            while let Steal::Success(task) = worker.local_tasks.steal() {
                std::mem::forget(task);
            }
        }
    }
}

impl Threads {
    /// Whether this is code of a worker of this runtime, which would wait for itself.
    fn runs_this_code(&self) -> bool {
        context::worker(|here| Arc::ptr_eq(&here.scheduler, &self.scheduler)).unwrap_or(false)
    }

    /// Lets another thread wait for the workers. Returns false if the system starts none.
    fn leave_to_a_thread(&mut self) -> bool {
        let (sender, threads) = mpsc::channel::<Threads>();
        if start_thread("osier-shutdown", move || drop(threads.recv())).is_err() {
            return false;
        }
        let theirs = Threads {
            scheduler: Arc::clone(&self.scheduler),
            threads: std::mem::take(&mut self.threads),
            progress: Arc::clone(&self.progress),
            describe: self.describe,
        };
        sender.send(theirs).is_ok()
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("its payload is not text")
}

/// Makes all that the workers need but threads: one place for each poller.
pub(crate) fn prepare(
    settings: &Settings,
    pollers: impl ExactSizeIterator<Item = io::Result<Arc<Poller>>>,
) -> io::Result<(Arc<Scheduler>, Vec<Vacancy>)> {
    wrap_panic_hook();
    let runtime = desk::next_runtime();
    let alone = pollers.len() == 1;
    let epoch = settings.clock.as_ref().map_or_else(Instant::now, VirtualClock::start);
    let mut vacancies = Vec::new();
    let mut queues = Vec::new();
    for (index, poller) in pollers.enumerate() {
        let poller = poller?;
        let Some(remote) = Remote::claim(Arc::clone(&poller), epoch) else {
            return Err(io::Error::other("a process has at most 4096 workers and I/O queues"));
        };
        let claim = Claim(remote);
        let deque = Deque::new_fifo();
        let (tasks, stealers) = executor::Queue::new(alone);
        queues.push(WorkerQueues {
            remote,
            stealer: deque.stealer(),
            arrivals: Injector::new(),
            gate: Gate::new(),
            stealers,
            local_tasks: Injector::new(),
        });
        let name = format!("{}-{index}", settings.name);
        remote.desk.open(WorkerIdentity {
            runtime,
            index,
            name: name.clone(),
        });
        vacancies.push(Vacancy {
            name,
            claim,
            poller,
            deque,
            tasks,
            member: settings.clock.as_ref().map(|clock| clock.join(remote)),
            epoch,
        });
    }
    let scheduler = Arc::new(Scheduler {
        queues: queues.into(),
        injector: Injector::new(),
        tasks: Injector::new(),
        idle: Idle::new(vacancies.len()),
        stopping: AtomicBool::new(false),
        gate: Gate::new(),
        leftovers: Leftovers::new(),
        shutdown_timeout: settings.shutdown_timeout,
        stacks: settings.stacks.clone(),
        measure_stacks: settings.measure_stacks,
    });
    Ok((scheduler, vacancies))
}

/// The place of a worker that is not made yet.
pub(crate) struct Vacancy {
    name: String,
    claim: Claim,
    poller: Arc<Poller>,
    deque: Deque<Job>,
    tasks: executor::Queue,
    /// Its place at the runtime's clock, if that is a virtual one.
    member: Option<Member>,
    epoch: Instant,
}

impl Vacancy {
    /// Makes the worker, on its own thread. The claim must be dropped after the worker, so it comes first: what a pattern binds is dropped
    /// from its end.
    pub(crate) fn fill(self, index: usize, scheduler: Arc<Scheduler>) -> io::Result<(Claim, Worker)> {
        let time = (Clock::with(self.member), self.epoch);
        let worker = Worker::new(
            index,
            scheduler,
            self.claim.0,
            self.poller,
            self.deque,
            self.tasks,
            time,
        )?;
        Ok((self.claim, worker))
    }
}

/// A remote in use, by a worker or an I/O queue.
pub(crate) struct Claim(pub(crate) &'static Remote);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.desk.close();
        self.0.release();
    }
}

/// Marks the panic hook for blocking calls, which block the thread there.
///
/// A hook that the program sets after the first runtime replaces this one: std cannot tell of it. A blocking call in such a
/// hook suspends the fiber that panics.
fn wrap_panic_hook() {
    static WRAPPED: Once = Once::new();
    WRAPPED.call_once(|| {
        let _alone = lock_panic_hook();
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if context::is_quiet() {
                return;
            }
            let before = context::set_panic_hook(true);
            let outcome = catch_unwind(AssertUnwindSafe(|| hook(info)));
            context::set_panic_hook(before);
            if let Err(payload) = outcome {
                resume_unwind(payload);
            }
        }));
    });
}

/// Keeps other threads of this crate from the panic hook: two threads that take and set it at once lose one of their hooks.
pub(crate) fn lock_panic_hook() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts three workers, of which the thread of one panics before its worker runs.
    fn start_with_a_panic(index: usize) -> io::Error {
        let watch = move |remote: &'static Remote| {
            let owner = remote.desk.owner().expect("its worker is made");
            assert_ne!(owner.index, index, "on purpose");
        };
        let started = Threads::start(&Settings::default(), 3, watch, |_| String::new());
        started.map(drop).unwrap_err()
    }

    #[test]
    fn a_thread_that_panics_before_its_worker_runs_is_the_error_of_the_start() {
        for index in 0..3 {
            assert_eq!(
                start_with_a_panic(index).to_string(),
                "a worker panicked when it was made"
            );
        }
    }
}
