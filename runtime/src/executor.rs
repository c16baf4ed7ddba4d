//! Futures as tasks of the workers: what is spawned, where it queues, who knows of it.
//!
//! A task is one allocation of `async-task`: state, future, output, waker. It is queued when it is woken; whoever takes it
//! polls it once, between two fibers, so a blocking call inside a future's poll fails instead of stopping the worker.
//!
//! | queue | filled by | taken by |
//! |---|---|---|
//! | `slot`, one task | its worker, which wakes a task: the last one woken runs next | its worker, at most 16 times in a row; thieves, where there are other workers |
//! | `deque` | its worker, unless it is the only one: new ones, and those that were displaced from the slot | its worker, oldest first; thieves, half at a time |
//! | `local` | its worker: tasks that are not `Send`; the only worker: also what would be for thieves | its worker |
//! | `Shared::tasks` | other threads | any worker |
//! | `Seat::local_tasks` | other threads, for tasks of that worker that are not `Send` | that worker |
//!
//! # Protocol
//! Every task is in the [`Registry`] of the worker where it was spawned (one of the runtime's, when it comes from outside)
//! until its future is dropped, wherever that is. A runtime that stops wakes all of them, and its workers drop what they
//! take from the queues instead of polling it. A task that is not `Send` is polled and dropped on its own thread alone.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use async_task::FallibleTask;
use crossbeam_deque::{Steal, Stealer, Worker as Deque};
use pin_project_lite::pin_project;
use slab::Slab;

use crate::cancel::Cancelled;
use crate::context;
use crate::fiber::no_runtime;
use crate::isolate::isolate;
use crate::remote::Remote;
use crate::runtime::Shared;
use crate::table::Table;
use crate::time::coarse_now;
use crate::waker::SLOTS_MAX;

/// A task to be polled once. Where it belongs is with it, so that its way to the queues captures nothing: `async-task`
/// would protect what is captured with a waker for the length of the call, two atomic operations each time.
pub(crate) type Runnable = async_task::Runnable<Home>;

/// Where a task belongs.
pub(crate) struct Home {
    shared: Arc<Shared>,
    /// The worker of a task that is not `Send`; of others, the one whose registry it is in.
    index: usize,
}

/// How many times in a row the slot is served before the others.
const SLOT_RUNS: u32 = 16;

/// The queues of one worker. Only its thread uses them; others have the [`Stealers`].
pub(crate) struct Queue {
    slot: Slot,
    slot_runs: Cell<u32>,
    deque: Deque<Runnable>,
    local: RefCell<VecDeque<Runnable>>,
    local_first: Cell<bool>,
}

/// The ends of a worker's queues that other workers hold.
pub(crate) struct Stealers {
    slot: Option<Stealer<Runnable>>,
    deque: Stealer<Runnable>,
}

/// The place of the one task that is polled next.
enum Slot {
    /// Where there are thieves.
    Open(Deque<Runnable>),
    /// A runtime's only worker has none, and pays for none: two atomic operations a wake-up.
    Closed(RefCell<Option<Runnable>>),
}

impl Slot {
    fn pop(&self) -> Option<Runnable> {
        match self {
            Slot::Open(slot) => slot.pop(),
            Slot::Closed(slot) => slot.take(),
        }
    }

    /// Puts a task into it and returns the one that was there.
    fn replace(&self, task: Runnable) -> Option<Runnable> {
        match self {
            Slot::Open(slot) => {
                let displaced = slot.pop();
                slot.push(task);
                displaced
            }
            Slot::Closed(slot) => slot.replace(Some(task)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Slot::Open(slot) => slot.len(),
            Slot::Closed(slot) => slot.borrow().is_some().into(),
        }
    }
}

impl Queue {
    /// `alone`: there is nobody to steal.
    pub(crate) fn new(alone: bool) -> (Queue, Stealers) {
        let (slot, deque) = (Deque::new_fifo(), Deque::new_fifo());
        let stealers = Stealers {
            slot: (!alone).then(|| slot.stealer()),
            deque: deque.stealer(),
        };
        let slot = match alone {
            true => Slot::Closed(RefCell::default()),
            false => Slot::Open(slot),
        };
        let queue = Queue {
            slot,
            slot_runs: Cell::new(0),
            deque,
            local: RefCell::default(),
            local_first: Cell::new(false),
        };
        (queue, stealers)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slot.len() == 0 && self.deque.is_empty() && self.local.borrow().is_empty()
    }

    /// How many tasks are queued.
    pub(crate) fn len(&self) -> usize {
        self.slot.len() + self.deque.len() + self.local.borrow().len()
    }

    /// Queues a task that was woken on this worker; `true`: another was displaced, for anybody to take.
    fn push(&self, task: Runnable) -> bool {
        let displaced = self.slot.replace(task);
        displaced.map(|displaced| self.push_last(displaced)).is_some()
    }

    /// Queues a task behind the others, for anybody to take.
    fn push_last(&self, task: Runnable) {
        match &self.slot {
            Slot::Open(_) => self.deque.push(task),
            Slot::Closed(_) => self.push_local(task),
        }
    }

    pub(crate) fn push_local(&self, task: Runnable) {
        self.local.borrow_mut().push_back(task);
    }

    /// Where what is taken from others goes.
    pub(crate) fn deque(&self) -> &Deque<Runnable> {
        &self.deque
    }

    /// The task to be polled next.
    pub(crate) fn pop(&self) -> Option<Runnable> {
        let runs = self.slot_runs.get();
        if runs < SLOT_RUNS
            && let Some(task) = self.slot.pop()
        {
            self.slot_runs.set(runs + 1);
            return Some(task);
        }
        self.slot_runs.set(0);
        let local = || self.local.borrow_mut().pop_front();
        // In turn: neither kind may keep the other waiting for ever.
        let queued = match self.local_first.replace(!self.local_first.get()) {
            false => self.deque.pop().or_else(local),
            true => local().or_else(|| self.deque.pop()),
        };
        queued.or_else(|| self.slot.pop())
    }
}

impl Stealers {
    pub(crate) fn is_empty(&self) -> bool {
        self.deque.is_empty() && self.slot.as_ref().is_none_or(Stealer::is_empty)
    }

    /// Half of what waits there, or the last one woken if nothing else does: its worker may be busy for long.
    pub(crate) fn steal_into(&self, deque: &Deque<Runnable>) -> Steal<()> {
        let slot = || self.slot.as_ref().map_or(Steal::Empty, |slot| slot.steal_batch(deque));
        self.deque.steal_batch(deque).or_else(slot)
    }
}

/// The tasks that were spawned on one worker and are not dropped yet.
pub(crate) struct Registry {
    tasks: Mutex<Slab<Entry>>,
    /// When the task of this key was polled last, in nanoseconds after `epoch`. Written by who polls it.
    polled: Table<AtomicU64>,
    epoch: Instant,
    /// Its worker waits for the last one to be dropped.
    ending: AtomicBool,
}

/// What others may know of a task.
struct Entry {
    info: Info,
    /// Makes it run, or end.
    waker: Waker,
}

/// What a task is called.
#[derive(Clone)]
pub(crate) struct Info {
    pub(crate) id: u64,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) place: &'static Location<'static>,
    /// The type of its future.
    pub(crate) future: &'static str,
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry {
            tasks: Mutex::default(),
            polled: Table::new(),
            epoch: Instant::now(),
            ending: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Entry>> {
        self.tasks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// What lives here, with the time of its last poll, or of its spawn.
    pub(crate) fn infos(&self) -> Vec<(Info, Option<Instant>)> {
        let polled = |key| {
            let polled = self.polled.get(u32::try_from(key).ok()?)?;
            Some(self.epoch + Duration::from_nanos(polled.load(Ordering::Relaxed)))
        };
        let tasks = self.lock();
        tasks
            .iter()
            .map(|(key, entry)| (entry.info.clone(), polled(key)))
            .collect()
    }

    /// What to write to `polled`.
    #[inline]
    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    /// Queues every task, to be dropped by workers of a runtime that stops.
    pub(crate) fn end_all(&self) {
        self.ending.store(true, Ordering::Release);
        let wakers: Vec<Waker> = self.lock().iter().map(|(_, entry)| entry.waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// For the next worker of this remote.
    pub(crate) fn reopen(&self) {
        self.ending.store(false, Ordering::Release);
    }
}

/// A task's place in a registry, from before its first poll until its future is dropped.
struct Registered {
    remote: &'static Remote,
    key: usize,
    /// Its place in `Registry::polled`, unless it is beyond.
    polled: Option<&'static AtomicU64>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let registry = &self.remote.tasks;
        let mut tasks = registry.lock();
        let entry = tasks.try_remove(self.key);
        let last = tasks.is_empty();
        drop(tasks);
        drop(entry);
        if last && registry.ending.load(Ordering::Acquire) {
            self.remote.ring();
        }
    }
}

/// Values by the address of their key.
type Locals = Vec<(usize, Box<dyn Any + Send>)>;

/// The task that this thread polls.
struct Running {
    id: Cell<u64>,
    name: RefCell<Option<Arc<str>>>,
    locals: RefCell<Locals>,
}

thread_local! {
    static RUNNING: Running = const {
        Running { id: Cell::new(0), name: RefCell::new(None), locals: RefCell::new(Vec::new()) }
    };
}

pin_project! {
    /// The future that is polled for a task: the user's, and what belongs to the task.
    struct Spawned<F> {
        id: u64,
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
            // Where the future is dropped nobody waits for a panic of it.
            isolate(|| this.future.set(None));
            isolate(|| this.locals.clear());
        }
    }
}

/// What a task ends with. It is dropped here if nobody takes it, where nobody waits for a panic of its destructor either.
struct Ended<T>(Option<thread::Result<T>>);

impl<T> Ended<T> {
    fn take(mut self) -> thread::Result<T> {
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
            worker.remote.desk.run_task(*this.id);
            if let Some(polled) = this.registered.polled {
                let now = this.registered.remote.tasks.nanos(worker.now());
                polled.store(now, Ordering::Relaxed);
            }
        });
        let entered = Entered::new(*this.id, this.name, this.locals);
        let polled = match this.future.as_mut().as_pin_mut() {
            Some(future) => catch_unwind(AssertUnwindSafe(|| future.poll(cx))),
            None => unreachable!("a task is not polled after it has completed"),
        };
        let outcome = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(payload) => Err(payload),
        };
        // What it has captured, and its locals, end as its last code, before anybody sees the outcome.
        isolate(|| this.future.set(None));
        entered.end_locals();
        Poll::Ready(Ended(Some(outcome)))
    }
}

/// Says for the length of one poll which task runs. Polls nest where one task's poll blocks on another executor's loop.
struct Entered<'a> {
    locals: &'a mut Locals,
    outer: u64,
    /// What most tasks have not: the name, and locals, of the outer one while this one has any.
    others: Option<(Option<Arc<str>>, Locals)>,
}

impl<'a> Entered<'a> {
    #[inline]
    fn new(id: u64, name: &Option<Arc<str>>, locals: &'a mut Locals) -> Entered<'a> {
        RUNNING.with(|running| {
            let outer = running.id.replace(id);
            let plain = outer == 0 && name.is_none() && locals.is_empty();
            let others = (!plain).then(|| {
                let locals = running.locals.replace(std::mem::take(locals));
                (running.name.replace(name.clone()), locals)
            });
            Entered { locals, outer, others }
        })
    }

    fn end_locals(&self) {
        loop {
            let last = RUNNING.with(|running| running.locals.borrow_mut().pop());
            let Some(last) = last else { return };
            // If it panics the others shall still be dropped.
            isolate(move || drop(last));
        }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        RUNNING.with(|running| {
            running.id.set(self.outer);
            match self.others.take() {
                Some((name, locals)) => {
                    running.name.replace(name);
                    *self.locals = running.locals.replace(locals);
                }
                None if running.locals.borrow().is_empty() => {}
                // Made in this poll.
                None => *self.locals = running.locals.take(),
            }
        });
    }
}

impl Shared {
    /// Makes a task that any worker may poll; `index`: whose registry it is in. The runnable is to be scheduled.
    fn task<F>(
        self: &Arc<Self>,
        index: usize,
        builder: Builder,
        place: &'static Location<'static>,
        future: F,
    ) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let home = self.home(index);
        let (runnable, task) = self.register(index, builder, place, future, |spawned| {
            async_task::Builder::new().metadata(home).spawn(|_| spawned, schedule)
        });
        self.schedule_new(runnable);
        task
    }

    /// Makes a task of the worker `index`, whose thread this is.
    fn local_task<F>(
        self: &Arc<Self>,
        index: usize,
        builder: Builder,
        place: &'static Location<'static>,
        future: F,
    ) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let home = self.home(index);
        let (runnable, task) = self.register(index, builder, place, future, |spawned| {
            async_task::Builder::new()
                .metadata(home)
                .spawn_local(|_| spawned, schedule_local)
        });
        runnable.schedule();
        task
    }

    fn home(self: &Arc<Self>, index: usize) -> Home {
        Home {
            shared: Arc::clone(self),
            index,
        }
    }

    fn register<F: Future>(
        &self,
        index: usize,
        builder: Builder,
        place: &'static Location<'static>,
        future: F,
        spawn: impl FnOnce(Spawned<F>) -> (Runnable, async_task::Task<Ended<F::Output>, Home>),
    ) -> (Runnable, Task<F::Output>) {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let remote = self.remote(index);
        let mut tasks = remote.tasks.lock();
        let entry = tasks.vacant_entry();
        let key = entry.key();
        let polled = (key < SLOTS_MAX).then(|| remote.tasks.polled.get_or_make(key as u32, |_| AtomicU64::new(0)));
        if let Some(polled) = polled {
            polled.store(remote.tasks.nanos(coarse_now()), Ordering::Relaxed);
        }
        let (runnable, task) = spawn(Spawned {
            id,
            name: builder.name.clone(),
            locals: Vec::new(),
            future: Some(future),
            registered: Registered { remote, key, polled },
        });
        entry.insert(Entry {
            info: Info {
                id,
                name: builder.name,
                place,
                future: std::any::type_name::<F>(),
            },
            waker: runnable.waker(),
        });
        let task = Task {
            id,
            task: Some(task.fallible()),
        };
        (runnable, task)
    }

    /// Queues a task that has not run: whoever spawned it may be busy for long, so another worker is told, as of a new fiber.
    fn schedule_new(&self, task: Runnable) {
        let mut task = Some(task);
        context::worker(|worker| {
            if std::ptr::eq(&*worker.shared, self)
                && let Some(task) = task.take()
            {
                worker.tasks.push_last(task);
            }
        });
        if let Some(task) = task {
            self.tasks.push(task);
            self.wake_one();
        } else if self.workers() > 1 {
            self.wake_one();
        }
    }

    /// [`spawn_future`] from a thread outside.
    pub(crate) fn spawn_future<F>(self: &Arc<Self>, place: &'static Location<'static>, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.task(0, Builder::new(), place, future)
    }
}

/// Queues a task that was woken: on this worker if it is one of ours.
fn schedule(task: Runnable) {
    let mut task = Some(task);
    context::worker(|worker| {
        let is_ours = |task: &mut Runnable| std::ptr::eq(&*worker.shared, &*task.metadata().shared);
        if let Some(task) = task.take_if(is_ours)
            && worker.tasks.push(task)
            && worker.shared.workers() > 1
        {
            worker.shared.wake_one();
        }
    });
    if let Some(task) = task {
        // Once it is queued it may be gone.
        let shared = Arc::clone(&task.metadata().shared);
        shared.tasks.push(task);
        shared.wake_one();
    }
}

/// Queues a task that is not `Send`, from any thread.
fn schedule_local(task: Runnable) {
    let mut task = Some(task);
    context::worker(|worker| {
        let is_ours = |task: &mut Runnable| {
            let home = task.metadata();
            std::ptr::eq(&*worker.shared, &*home.shared) && worker.index == home.index
        };
        if let Some(task) = task.take_if(is_ours) {
            worker.tasks.push_local(task);
        }
    });
    if let Some(task) = task {
        // Once it is queued it may be gone.
        let Home { shared, index } = task.metadata();
        let (shared, index) = (Arc::clone(shared), *index);
        shared.local_tasks(index).push(task);
        shared.remote(index).ring();
    }
}

/// A spawned future: waits for its value, or ends it. Dropping it lets the task run on, as with a thread's handle.
///
/// It is itself a future, whose output is what [`JoinHandle::join`](crate::JoinHandle::join) would give: the value, or what the task panicked
/// with, or [`Cancelled`].
///
/// ```
/// osier::run(|| {
///     let task = osier::spawn_future(async { 6 * 7 });
///     assert_eq!(task.join().unwrap(), 42);
///     osier::block_on(async {
///         let task = osier::spawn_future(async { "from a future" });
///         assert_eq!(task.await.unwrap(), "from a future");
///     });
/// });
/// ```
pub struct Task<T> {
    id: u64,
    /// Here until the handle is dropped or used up.
    task: Option<FallibleTask<Ended<T>, Home>>,
}

impl<T> Task<T> {
    /// The task's number, from 1; no other task of this process has or had it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the task to end.
    ///
    /// # Suspends
    ///
    /// Until it has. # Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; the task runs on.
    ///
    /// # Errors
    ///
    /// What the task panicked with; [`Cancelled`].
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, where nothing may wait: there, await it.
    pub fn join(self) -> thread::Result<T> {
        crate::block_on(self)
    }

    /// Tells the task to end; what this returns is ready when it has: its future is dropped instead of polled the next time.
    ///
    /// `None`: it was cancelled; what a poll that ran meanwhile has ended with is dropped. A task that had ended before gives what
    /// it ended with. Dropping the future that this returns leaves the task to end by itself.
    pub fn cancel(mut self) -> impl Future<Output = Option<thread::Result<T>>> + use<T> {
        let task = self.task.take().expect("it is taken only by methods that take self");
        let mut cancelling = Box::pin(task.cancel());
        // The first poll tells the task.
        let told = cancelling.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        async move {
            let ended = match told {
                Poll::Ready(ended) => ended,
                Poll::Pending => cancelling.await,
            };
            ended.map(Ended::take)
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(FallibleTask::is_finished)
    }
}

impl<T> Future for Task<T> {
    type Output = thread::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<thread::Result<T>> {
        let task = self.task.as_mut().expect("it is taken only by methods that take self");
        Pin::new(task)
            .poll(cx)
            .map(|ended| ended.map_or_else(|| Err(Box::new(Cancelled) as Box<_>), Ended::take))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("id", &self.id)
            .field("finished", &self.is_finished())
            .finish()
    }
}

/// Runs `future` as a task on whichever worker has time; it may be polled by another one each time.
///
/// The handle is a future too; dropping it lets the task run on. A panic of the task goes to the handle.
///
/// ```
/// osier::run(|| {
///     let tasks: Vec<_> = (0..10).map(|n| osier::spawn_future(async move { n * n })).collect();
///     let sum: i32 = tasks.into_iter().map(|task| task.join().unwrap()).sum();
///     assert_eq!(sum, 285);
/// });
/// ```
///
/// # Suspends
///
/// Never.
///
/// # Panics
///
/// Outside of a runtime. From a plain thread use [`Runtime::spawn_future`](crate::Runtime::spawn_future).
#[track_caller]
pub fn spawn_future<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Builder::new().spawn(future)
}

/// Runs `future` as a task of this worker: neither it nor its value need be `Send`.
///
/// ```
/// use std::rc::Rc;
/// osier::run(|| {
///     let shared = Rc::new(5);
///     let task = osier::spawn_future_local({
///         let shared = Rc::clone(&shared);
///         async move { *shared + 1 }
///     });
///     assert_eq!(task.join().unwrap(), 6);
/// });
/// ```
///
/// # Suspends
///
/// Never.
///
/// # Panics
///
/// Outside of a runtime.
#[track_caller]
pub fn spawn_future_local<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    Builder::new().spawn_local(future)
}

/// Makes a task with a name.
///
/// ```
/// osier::run(|| {
///     let task = osier::future::Builder::new().name("ticker").spawn(async {
///         osier::future::current().and_then(|task| task.name().map(String::from))
///     });
///     assert_eq!(task.join().unwrap().as_deref(), Some("ticker"));
/// });
/// ```
#[derive(Clone, Debug, Default)]
pub struct Builder {
    name: Option<Arc<str>>,
}

impl Builder {
    /// A task like those of [`spawn_future`].
    pub fn new() -> Builder {
        Builder::default()
    }

    /// The task's name, for dumps and for [`current`].
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Builder {
        self.name = Some(name.into());
        self
    }

    /// As [`spawn_future`].
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let place = Location::caller();
        context::worker(|worker| worker.shared.task(worker.index, self, place, future))
            .unwrap_or_else(|| no_runtime("osier::spawn_future"))
    }

    /// As [`spawn_future_local`].
    #[track_caller]
    pub fn spawn_local<F>(self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let place = Location::caller();
        context::worker(|worker| worker.shared.local_task(worker.index, self, place, future))
            .unwrap_or_else(|| no_runtime("osier::spawn_future_local"))
    }
}

/// What is known of the task that is being polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    id: u64,
    name: Option<Arc<str>>,
}

impl Current {
    /// As [`Task::id`].
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name given by [`Builder::name`].
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// The task whose future is being polled here; `None` outside of one, as on a fiber.
pub fn current() -> Option<Current> {
    RUNNING.with(|running| match running.id.get() {
        0 => None,
        id => Some(Current {
            id,
            name: running.name.borrow().clone(),
        }),
    })
}

/// A key of a task-local; made by [`task_local!`](crate::task_local).
pub struct LocalKey<T: Send + 'static> {
    #[doc(hidden)]
    pub init: fn() -> T,
}

impl<T: Send + 'static> LocalKey<T> {
    /// Runs `with` on this task's value, which is made at the first need and dropped with the task.
    ///
    /// # Errors
    ///
    /// [`NoTask`] outside of a task.
    pub fn try_with<R>(&'static self, with: impl FnOnce(&T) -> R) -> Result<R, NoTask> {
        let address = std::ptr::from_ref(self).addr();
        if current().is_none() {
            return Err(NoTask(()));
        }
        let take = |running: &Running| {
            let mut locals = running.locals.borrow_mut();
            let at = locals.iter().position(|(key, _)| *key == address)?;
            Some(std::mem::replace(&mut locals[at].1, Box::new(())))
        };
        // Out of the list while it is used: the closure may use other locals. Not under the borrow: the initial value may
        // be made of others too.
        let value = RUNNING.with(take).unwrap_or_else(|| {
            let value: Box<dyn Any + Send> = Box::new((self.init)());
            RUNNING.with(|running| running.locals.borrow_mut().push((address, Box::new(()))));
            value
        });
        let back = PutBack {
            address,
            value: Some(value),
        };
        match back.value.as_ref().and_then(|value| value.downcast_ref()) {
            Some(value) => Ok(with(value)),
            None => panic!("a task-local was used inside its own `with`"),
        }
    }

    /// As [`try_with`](LocalKey::try_with).
    ///
    /// # Panics
    ///
    /// Outside of a task, and inside of its own `with`.
    pub fn with<R>(&'static self, with: impl FnOnce(&T) -> R) -> R {
        match self.try_with(with) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A task-local on its way back into the list.
struct PutBack {
    address: usize,
    value: Option<Box<dyn Any + Send>>,
}

impl Drop for PutBack {
    fn drop(&mut self) {
        RUNNING.with(|running| {
            let mut locals = running.locals.borrow_mut();
            if let Some((_, place)) = locals.iter_mut().find(|(key, _)| *key == self.address)
                && let Some(value) = self.value.take()
            {
                *place = value;
            }
        });
    }
}

/// A task-local was asked for outside of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTask(());

impl fmt::Display for NoTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a task-local outside of a task: on a fiber use osier::fiber_local")
    }
}

impl std::error::Error for NoTask {}

/// Declares task-locals, as [`std::thread_local!`] does thread-locals: one value for each task that asks for it.
///
/// ```
/// use std::cell::Cell;
/// osier::task_local! {
///     static DEPTH: Cell<u32> = Cell::new(0);
/// }
/// osier::run(|| {
///     let deep = osier::spawn_future(async {
///         DEPTH.with(|depth| depth.set(5));
///         osier::future::yield_now().await;
///         DEPTH.with(Cell::get)
///     });
///     let other = osier::spawn_future(async { DEPTH.with(Cell::get) });
///     assert_eq!((deep.join().unwrap(), other.join().unwrap()), (5, 0));
/// });
/// ```
#[macro_export]
macro_rules! task_local {
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $type:ty = $init:expr);+ $(;)?) => {
        $($(#[$attr])* $vis static $name: $crate::future::LocalKey<$type> = $crate::future::LocalKey { init: || $init };)+
    };
}

/// A future that lets the other tasks of this worker run once: pending at its first poll, ready at its second.
pub fn yield_now() -> YieldNow {
    YieldNow(false)
}

/// The future of [`yield_now`].
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct YieldNow(bool);

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
