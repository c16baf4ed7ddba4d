//! The executor: futures as tasks of the workers, the queues of tasks that are to be polled, and the registry of all tasks.
//!
//! A task is one allocation of `async-task`: state, future, output, waker. A wake-up queues it. The worker that takes
//! it polls it once, between two fibers, so a blocking call inside a future's poll fails instead of stopping the
//! worker.
//!
//! | queue | filled by | taken by |
//! |---|---|---|
//! | `last_woken`, one task | its worker, which wakes a task: the last one woken runs next | its worker, at most 16 times in a row; thieves, where there are other workers |
//! | `deque` | its worker, unless it is the only one: new tasks, and tasks displaced from `last_woken` | its worker, oldest first; thieves, half at a time |
//! | `local` | its worker: tasks that are not `Send`; the only worker: also the tasks that thieves would take | its worker |
//! | `Scheduler::tasks` | other threads | any worker |
//! | `WorkerQueues::local_tasks` | other threads, for tasks of that worker that are not `Send` | that worker |
//!
//! # Protocol
//! A task is in the [`Registry`] of the worker where it was spawned until its future is dropped, wherever that is. A
//! task from outside is in the registry of one of the runtime's workers. A runtime that stops wakes all tasks, and its
//! workers drop the tasks that they take from the queues instead of polling them. A task that is not `Send` is polled
//! and dropped on its own thread alone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use async_task::{FallibleTask, ScheduleInfo, WithInfo};
use crossbeam_deque::{Steal, Stealer, Worker as Deque};
use pin_project_lite::pin_project;
use slab::Slab;

use crate::wait::budget;
use crate::worker::Worker;
use crate::worker::context;
use crate::worker::isolate::isolate;
use crate::worker::remote::Remote;
use crate::worker::running::{Entered, Locals};
use crate::worker::scheduler::Scheduler;
use crate::worker::table::Table;
use crate::worker::waker::SLOTS_MAX;

/// A task to be polled once. It carries its [`Home`], so that its way to the queues captures nothing: `async-task`
/// would protect a capture with a waker for the length of the call, two atomic operations each time.
pub(crate) type Runnable = async_task::Runnable<Home>;

/// The other end of a task: takes its outcome, or cancels it.
pub(crate) struct Handle<T> {
    pub(crate) id: u64,
    pub(crate) task: FallibleTask<Ended<T>, Home>,
}

/// The place where a task belongs.
pub(crate) struct Home {
    /// `None` only while it is dropped.
    scheduler: Option<Arc<Scheduler>>,
    /// The worker of a task that is not `Send`; for another task, the worker whose registry it is in.
    index: usize,
}

/// A worker keeps at most this many clones of its scheduler.
const CLONES: usize = 64;

impl Home {
    fn scheduler(&self) -> &Arc<Scheduler> {
        self.scheduler.as_ref().expect("taken only when it is dropped")
    }
}

impl Drop for Home {
    /// Leaves the clone of the scheduler to the worker: to make and to drop one are two atomic operations.
    #[inline]
    fn drop(&mut self) {
        context::worker(|worker| {
            let mut clones = worker.tasks.clones.borrow_mut();
            let is_ours = self
                .scheduler
                .as_ref()
                .is_some_and(|scheduler| Arc::ptr_eq(scheduler, &worker.scheduler));
            if is_ours && clones.len() < CLONES {
                clones.extend(self.scheduler.take());
            }
        });
    }
}

/// The last one woken is served this many times in a row before the others.
const LAST_WOKEN_RUNS: u32 = 16;

/// The queues of one worker. Only its thread uses them; other workers have the [`Stealers`].
pub(crate) struct Queue {
    last_woken: LastWoken,
    last_woken_runs: Cell<u32>,
    deque: Deque<Runnable>,
    local: RefCell<VecDeque<Runnable>>,
    local_first: Cell<bool>,
    /// When this turn of the loop began, in nanoseconds after [`EPOCH`]; 0 until a task asks.
    pub(crate) turn: Cell<u64>,
    /// Clones of the worker's scheduler, of tasks that have ended, for the next ones.
    clones: RefCell<Vec<Arc<Scheduler>>>,
}

/// The ends of a worker's queues that other workers hold.
pub(crate) struct Stealers {
    last_woken: Option<Stealer<Runnable>>,
    deque: Stealer<Runnable>,
}

/// The place of the task that was woken last and is polled next.
enum LastWoken {
    /// Thieves may reach it.
    Open(Deque<Runnable>),
    /// A runtime's only worker has no thieves, and saves two atomic operations a wake-up.
    Closed(RefCell<Option<Runnable>>),
}

impl LastWoken {
    fn pop(&self) -> Option<Runnable> {
        match self {
            LastWoken::Open(last_woken) => last_woken.pop(),
            LastWoken::Closed(last_woken) => last_woken.take(),
        }
    }

    /// Puts a task into the place and returns the one that was there.
    fn replace(&self, task: Runnable) -> Option<Runnable> {
        match self {
            LastWoken::Open(last_woken) => {
                let displaced = last_woken.pop();
                last_woken.push(task);
                displaced
            }
            LastWoken::Closed(last_woken) => last_woken.replace(Some(task)),
        }
    }

    fn len(&self) -> usize {
        match self {
            LastWoken::Open(last_woken) => last_woken.len(),
            LastWoken::Closed(last_woken) => last_woken.borrow().is_some().into(),
        }
    }
}

impl Queue {
    /// Makes the queues. `alone`: there are no thieves.
    pub(crate) fn new(alone: bool) -> (Queue, Stealers) {
        let (last_woken, deque) = (Deque::new_fifo(), Deque::new_fifo());
        let stealers = Stealers {
            last_woken: (!alone).then(|| last_woken.stealer()),
            deque: deque.stealer(),
        };
        let last_woken = match alone {
            true => LastWoken::Closed(RefCell::default()),
            false => LastWoken::Open(last_woken),
        };
        let queue = Queue {
            last_woken,
            last_woken_runs: Cell::new(0),
            deque,
            local: RefCell::default(),
            local_first: Cell::new(false),
            turn: Cell::new(0),
            clones: RefCell::default(),
        };
        (queue, stealers)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last_woken.len() == 0 && self.deque.is_empty() && self.local.borrow().is_empty()
    }

    /// The number of queued tasks.
    pub(crate) fn len(&self) -> usize {
        self.last_woken.len() + self.deque.len() + self.local.borrow().len()
    }

    /// Queues a task that was woken on this worker. Returns true if it displaced another, for anybody to take.
    fn push(&self, task: Runnable) -> bool {
        let displaced = self.last_woken.replace(task);
        displaced.map(|displaced| self.push_last(displaced)).is_some()
    }

    /// Queues a task behind the others, for anybody to take.
    fn push_last(&self, task: Runnable) {
        match &self.last_woken {
            LastWoken::Open(_) => self.deque.push(task),
            LastWoken::Closed(_) => self.push_local(task),
        }
    }

    pub(crate) fn push_local(&self, task: Runnable) {
        self.local.borrow_mut().push_back(task);
    }

    /// The queue that tasks taken from others go to.
    pub(crate) fn deque(&self) -> &Deque<Runnable> {
        &self.deque
    }

    /// Takes the task to be polled next.
    pub(crate) fn pop(&self) -> Option<Runnable> {
        let runs = self.last_woken_runs.get();
        let others_first = runs >= LAST_WOKEN_RUNS;
        if !others_first && let Some(task) = self.last_woken.pop() {
            self.last_woken_runs.set(runs + 1);
            return Some(task);
        }
        self.last_woken_runs.set(0);
        let local = || self.local.borrow_mut().pop_front();
        // Each kind has its turn: neither may keep the other waiting for ever.
        let queued = match self.local_first.replace(!self.local_first.get()) {
            false => self.deque.pop().or_else(local),
            true => local().or_else(|| self.deque.pop()),
        };
        match queued {
            None if others_first => self.last_woken.pop(),
            queued => queued,
        }
    }
}

impl Stealers {
    pub(crate) fn is_empty(&self) -> bool {
        self.deque.is_empty() && self.last_woken.as_ref().is_none_or(Stealer::is_empty)
    }

    /// The number of tasks that wait there.
    pub(crate) fn len(&self) -> usize {
        self.deque.len() + self.last_woken.as_ref().map_or(0, Stealer::len)
    }

    /// Takes one of the tasks that wait there.
    pub(crate) fn steal(&self) -> Steal<Runnable> {
        let last_woken = || self.last_woken.as_ref().map_or(Steal::Empty, Stealer::steal);
        self.deque.steal().or_else(last_woken)
    }

    /// Takes half of the tasks that wait there, or the last one woken if nothing else waits: its worker may be busy for
    /// long.
    pub(crate) fn steal_into(&self, deque: &Deque<Runnable>) -> Steal<()> {
        let last_woken = || {
            self.last_woken
                .as_ref()
                .map_or(Steal::Empty, |last_woken| last_woken.steal_batch(deque))
        };
        self.deque.steal_batch(deque).or_else(last_woken)
    }
}

/// One for all registries, so that a worker counts the nanoseconds once a turn, whatever tasks it polls.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The nanoseconds after [`EPOCH`], never 0.
fn nanos(time: Instant) -> u64 {
    (time.saturating_duration_since(*EPOCH).as_nanos() as u64).max(1)
}

/// The tasks that were spawned on one worker and are not dropped yet.
pub(crate) struct Registry {
    tasks: Mutex<Slab<Entry>>,
    /// The time when the task of this key was polled last, in nanoseconds after [`EPOCH`]. Written by the thread that
    /// polls it.
    polled: Table<AtomicU64>,
    /// Set while its worker waits for the last task to be dropped.
    ending: AtomicBool,
}

/// A task as its registry knows it.
struct Entry {
    info: Info,
    /// Makes the task run, or end.
    waker: Waker,
}

/// The identity of a task.
#[derive(Clone)]
pub(crate) struct Info {
    pub(crate) id: u64,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) place: &'static Location<'static>,
    /// The type of the task's future.
    pub(crate) future: &'static str,
}

impl Registry {
    pub(crate) fn new() -> Registry {
        LazyLock::force(&EPOCH);
        Registry {
            tasks: Mutex::default(),
            polled: Table::new(),
            ending: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Entry>> {
        self.tasks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Every task here, with the time of its last poll, or of its spawn.
    pub(crate) fn infos(&self) -> Vec<(Info, Option<Instant>)> {
        let polled = |key| {
            let polled = self.polled.get(u32::try_from(key).ok()?)?;
            Some(*EPOCH + Duration::from_nanos(polled.load(Ordering::Relaxed)))
        };
        let tasks = self.lock();
        tasks
            .iter()
            .map(|(key, entry)| (entry.info.clone(), polled(key)))
            .collect()
    }

    /// Queues every task, for the workers of a runtime that stops to drop.
    pub(crate) fn end_all(&self) {
        self.ending.store(true, Ordering::Release);
        let wakers: Vec<Waker> = self.lock().iter().map(|(_, entry)| entry.waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Empties the registry for the next worker of this remote. A task that has not ended in time is forgotten.
    pub(crate) fn reopen(&self) {
        let left = std::mem::take(&mut *self.lock());
        drop(left);
        self.ending.store(false, Ordering::Release);
    }
}

/// A task's place in a registry, from before its first poll until its future is dropped.
struct Registered {
    id: u64,
    remote: &'static Remote,
    key: usize,
    /// Its place in `Registry::polled`, unless the key is beyond the table.
    polled: Option<&'static AtomicU64>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let registry = &self.remote.tasks;
        let mut tasks = registry.lock();
        // After a runtime has ended without this task, the key may be another task's.
        let ours = tasks.get(self.key).is_some_and(|entry| entry.info.id == self.id);
        let entry = ours.then(|| tasks.remove(self.key));
        let last = tasks.is_empty();
        drop(tasks);
        drop(entry);
        if last && registry.ending.load(Ordering::Acquire) {
            self.remote.ring();
        }
    }
}

pin_project! {
    /// The future that is polled for a task: the user's future, and the parts that belong to the task.
    struct Spawned<F> {
        name: Option<Arc<str>>,
        locals: Locals,
        #[pin]
        future: Option<F>,
        // Dropped last: the end of the runtime waits for it.
        registered: Registered,
    }
    impl<F> PinnedDrop for Spawned<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // Nobody waits for a panic where the future is dropped.
            isolate(|| this.future.set(None));
            isolate(|| this.locals.clear());
        }
    }
}

/// The outcome of a task. Nobody may take it: then it is dropped here, where nobody waits for a panic of its
/// destructor.
pub(crate) struct Ended<T>(Option<thread::Result<T>>);

impl<T> Ended<T> {
    pub(crate) fn take(mut self) -> thread::Result<T> {
        self.0.take().expect("it is taken only here, which takes self")
    }
}

impl<T> Drop for Ended<T> {
    fn drop(&mut self) {
        if let Some(outcome) = self.0.take() {
            isolate(|| drop(outcome));
        }
    }
}

impl<F: Future> Future for Spawned<F> {
    type Output = Ended<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        context::worker(|worker| {
            worker.remote.desk.run_task(this.registered.id);
            worker.begin_calls();
            if let Some(polled) = this.registered.polled {
                polled.store(worker.turn_nanos(), Ordering::Relaxed);
            }
        });
        let entered = Entered::new(this.registered.id, this.name, this.locals);
        budget::task_begins();
        let polled = match this.future.as_mut().as_pin_mut() {
            Some(future) => catch_unwind(AssertUnwindSafe(|| future.poll(cx))),
            None => unreachable!("a task is not polled after it has completed"),
        };
        budget::task_ends();
        let outcome = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(payload) => Err(payload),
        };
        // The captures and the locals end as the task's last code, before anybody sees the outcome.
        isolate(|| this.future.set(None));
        entered.end_locals();
        Poll::Ready(Ended(Some(outcome)))
    }
}

impl Worker {
    /// When this turn of the loop began, as tasks note it.
    #[inline]
    pub(crate) fn turn_nanos(&self) -> u64 {
        match self.tasks.turn.get() {
            0 => self.count_nanos(),
            turn => turn,
        }
    }

    #[cold]
    fn count_nanos(&self) -> u64 {
        let turn = nanos(self.now());
        self.tasks.turn.set(turn);
        turn
    }
}

impl Scheduler {
    /// Makes a task that any worker may poll, in the registry of worker `index`, and queues it.
    pub(crate) fn task<F>(
        self: &Arc<Self>,
        index: usize,
        name: Option<Arc<str>>,
        place: &'static Location<'static>,
        future: F,
    ) -> Handle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let home = self.home(index);
        let (runnable, task) = self.register(index, name, place, future, |spawned| {
            async_task::Builder::new()
                .metadata(home)
                .spawn(|_| spawned, WithInfo(schedule))
        });
        self.schedule_new(runnable);
        task
    }

    /// Makes a task of the worker `index`, whose thread this is.
    pub(crate) fn local_task<F>(
        self: &Arc<Self>,
        index: usize,
        name: Option<Arc<str>>,
        place: &'static Location<'static>,
        future: F,
    ) -> Handle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let home = self.home(index);
        let (runnable, task) = self.register(index, name, place, future, |spawned| {
            async_task::Builder::new()
                .metadata(home)
                .spawn_local(|_| spawned, schedule_local)
        });
        runnable.schedule();
        task
    }

    fn home(self: &Arc<Self>, index: usize) -> Home {
        let kept = context::worker(|worker| {
            let is_ours = std::ptr::eq(&*worker.scheduler, &**self);
            is_ours.then(|| worker.tasks.clones.borrow_mut().pop()).flatten()
        });
        let scheduler = kept.flatten().unwrap_or_else(|| Arc::clone(self));
        Home {
            scheduler: Some(scheduler),
            index,
        }
    }

    fn register<F: Future>(
        &self,
        index: usize,
        name: Option<Arc<str>>,
        place: &'static Location<'static>,
        future: F,
        spawn: impl FnOnce(Spawned<F>) -> (Runnable, async_task::Task<Ended<F::Output>, Home>),
    ) -> (Runnable, Handle<F::Output>) {
        let id = next_id();
        let remote = self.remote(index);
        let mut tasks = remote.tasks.lock();
        let entry = tasks.vacant_entry();
        let key = entry.key();
        let polled = (key < SLOTS_MAX).then(|| remote.tasks.polled.get_or_make(key as u32, |_| AtomicU64::new(0)));
        if let Some(polled) = polled {
            let now = context::timekeeper(Worker::turn_nanos);
            polled.store(now.unwrap_or_else(|| nanos(Instant::now())), Ordering::Relaxed);
        }
        let (runnable, task) = spawn(Spawned {
            name: name.clone(),
            locals: Vec::new(),
            future: Some(future),
            registered: Registered {
                id,
                remote,
                key,
                polled,
            },
        });
        entry.insert(Entry {
            info: Info {
                id,
                name,
                place,
                future: std::any::type_name::<F>(),
            },
            waker: runnable.waker(),
        });
        let task = task.fallible();
        (runnable, Handle { id, task })
    }

    /// Queues a task that has not run. Its spawner may be busy for long, so another worker is notified, as for a new
    /// fiber.
    fn schedule_new(self: &Arc<Self>, task: Runnable) {
        let mut task = Some(task);
        context::worker(|worker| {
            if Arc::ptr_eq(&worker.scheduler, self)
                && let Some(task) = task.take()
            {
                worker.tasks.push_last(task);
            }
        });
        if let Some(task) = task {
            match self.is_stopping() {
                // Cancels it.
                true => drop(isolate(|| drop(task))),
                false => self.inject_task(task),
            }
        } else if self.workers() > 1 {
            self.wake_one();
        }
    }
}

/// An id that no other task has or had. A thread takes ids in blocks, which spares it an atomic operation a task.
fn next_id() -> u64 {
    const BLOCK: u64 = 1 << 10;
    static NEXT_BLOCK: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    // The first number of a block is left out: a thread without a block has 0, which is no task's id.
    let mut id = NEXT.get();
    if id.is_multiple_of(BLOCK) {
        id = NEXT_BLOCK.fetch_add(1, Ordering::Relaxed) * BLOCK + 1;
    }
    NEXT.set(id + 1);
    id
}

/// Queues a task that was woken: on this worker if it is one of ours.
fn schedule(task: Runnable, info: ScheduleInfo) {
    let mut task = Some(task);
    context::worker(|worker| {
        let is_ours = |task: &mut Runnable| Arc::ptr_eq(&worker.scheduler, task.metadata().scheduler());
        let Some(task) = task.take_if(is_ours) else { return };
        match info.woken_while_running {
            // It yields, or its calls were refused: the others have their turn first.
            true => worker.tasks.push_last(task),
            false => {
                if worker.tasks.push(task) && worker.scheduler.workers() > 1 {
                    worker.scheduler.wake_one();
                }
            }
        }
    });
    if let Some(task) = task {
        // A queued task may be gone at once.
        let scheduler = Arc::clone(task.metadata().scheduler());
        scheduler.inject_task(task);
    }
}

/// Queues a task that is not `Send`, from any thread.
fn schedule_local(task: Runnable) {
    let mut task = Some(task);
    context::worker(|worker| {
        let is_ours = |task: &mut Runnable| {
            let home = task.metadata();
            Arc::ptr_eq(&worker.scheduler, home.scheduler()) && worker.index == home.index
        };
        if let Some(task) = task.take_if(is_ours) {
            worker.tasks.push_local(task);
        }
    });
    if let Some(task) = task {
        // A queued task may be gone at once.
        let home = task.metadata();
        let (scheduler, index) = (Arc::clone(home.scheduler()), home.index);
        scheduler.local_tasks(index).push(task);
        scheduler.remote(index).ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task that is known by its home's index.
    fn task(index: usize) -> Runnable {
        let home = Home { scheduler: None, index };
        let (task, handle) = async_task::Builder::new().metadata(home).spawn(|_| async {}, |_| ());
        handle.detach();
        task
    }

    #[test]
    fn each_queue_of_tasks_has_its_turn() {
        for alone in [false, true] {
            let (queue, _stealers) = Queue::new(alone);
            let pop = || queue.pop().map(|task| task.metadata().index);
            (0..3).for_each(|_| queue.deque().push(task(1)));
            (0..3).for_each(|_| queue.push_local(task(2)));
            let mut order = Vec::new();
            // One that is woken again each time it runs.
            queue.push(task(0));
            while let Some(index) = pop() {
                order.push(index);
                if index == 0 && order.len() < 60 {
                    queue.push(task(0));
                }
            }
            let between: Vec<_> = order.split(|index| *index != 0).map(<[_]>::len).collect();
            assert_eq!(between[..3], [LAST_WOKEN_RUNS as usize; 3], "{order:?}");
            order.retain(|index| *index != 0);
            assert_eq!(order, [1, 2, 1, 2, 1, 2]);
        }
    }
}
