//! A set of fibers and tasks whose values are taken in the order in which they end.
//!
//! Each fiber sends its outcome through a channel without a bound, as the last act of its closure. A closure that is
//! dropped before it ran sends that it never will. Its handle then has the reason, once all of the fiber has ended: the waker that the
//! handle gets sends the same again. A task does the same with its outcome, and has sent that there is none when it was cancelled.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread;

use futures_core::Stream as _;
use pin_project_lite::pin_project;

use crate::block_on;
use crate::future::{Task, spawn_future, spawn_future_local};
use crate::sync::mpsc;
use crate::wait::budget;
use crate::wait::cancel::Cancelled;
use crate::worker::packet::JoinHandle;

use super::Builder;

/// Fibers and tasks of one type of value. Dropping the set cancels those that still run.
///
/// ```
/// use osier::fiber::JoinSet;
/// use std::time::Duration;
///
/// osier::run(|| {
///     let mut set = JoinSet::new();
///     for ms in [20, 1] {
///         set.spawn(move || {
///             osier::sleep(Duration::from_millis(ms));
///             ms
///         });
///     }
///     let mut ended = Vec::new();
///     while let Some(outcome) = set.join_next() {
///         ended.push(outcome.unwrap());
///     }
///     assert_eq!(ended, [1, 20]);
/// });
/// ```
///
/// Futures are in the set beside fibers:
///
/// ```
/// use osier::fiber::JoinSet;
/// use std::rc::Rc;
///
/// osier::run(|| {
///     let mut set = JoinSet::new();
///     let shared = Rc::new(20);
///     set.spawn(|| 1);
///     set.spawn_future(async { 1 });
///     set.spawn_future_local(async move { *shared }); // one that is not `Send`
///     assert_eq!(set.join_all().into_iter().sum::<i32>(), 22);
/// });
/// ```
#[doc(alias("TaskTracker", "WaitGroup", "TaskGroup", "nursery"))]
pub struct JoinSet<T> {
    /// Ordered by id, so by the time of spawning.
    running: BTreeMap<u64, Member>,
    next: u64,
    sender: mpsc::Sender<Ended<T>>,
    receiver: mpsc::Receiver<Ended<T>>,
}

enum Member {
    Fiber(JoinHandle<()>),
    /// `None` once it is cancelled.
    Task(Mutex<Option<Task<()>>>),
}

impl Member {
    fn cancel(&self) {
        match self {
            Member::Fiber(fiber) => fiber.cancel(),
            Member::Task(task) => {
                let task = task.lock().unwrap_or_else(PoisonError::into_inner).take();
                drop(task.map(Task::cancel));
            }
        }
    }

    /// Its outcome as its handle has it. It has sent that it has no value.
    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<thread::Result<()>> {
        match self {
            Member::Fiber(fiber) => Pin::new(fiber).poll(cx),
            Member::Task(task) => match task.get_mut().unwrap_or_else(PoisonError::into_inner) {
                Some(task) => Pin::new(task).poll(cx),
                None => Poll::Ready(Err(Box::new(Cancelled))),
            },
        }
    }
}

/// The id of a member and its outcome; `None` if a fiber's function was dropped before it ran, or a task has no value.
type Ended<T> = (u64, Option<thread::Result<T>>);

/// Sends that a member without an outcome of its own has ended.
struct Unrun<T> {
    id: u64,
    sender: mpsc::Sender<Ended<T>>,
}

impl<T: Send> Wake for Unrun<T> {
    fn wake(self: Arc<Self>) {
        // Nobody receives after the set is gone.
        let _ = self.sender.try_send((self.id, None));
    }
}

/// Sends the outcome of one member when it is dropped.
struct Report<T> {
    id: u64,
    outcome: Option<thread::Result<T>>,
    sender: mpsc::Sender<Ended<T>>,
}

impl<T> Drop for Report<T> {
    fn drop(&mut self) {
        // Nobody receives after the set is gone.
        let _ = self.sender.try_send((self.id, self.outcome.take()));
    }
}

pin_project! {
    /// A future that reports its value or its panic. It is dropped before the report.
    struct Reporting<F: Future> {
        #[pin]
        future: F,
        report: Report<F::Output>,
    }
}

impl<F: Future> Future for Reporting<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let future = this.future;
        let outcome = match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(payload) => Err(payload),
        };
        this.report.outcome = Some(outcome);
        Poll::Ready(())
    }
}

impl<T: Send + 'static> JoinSet<T> {
    /// Makes an empty set.
    pub fn new() -> JoinSet<T> {
        let (sender, receiver) = mpsc::unbounded();
        JoinSet {
            running: BTreeMap::new(),
            next: 0,
            sender,
            receiver,
        }
    }

    /// Spawns a fiber as [`spawn`](crate::spawn) does, and puts it into the set.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    #[track_caller]
    pub fn spawn(&mut self, body: impl FnOnce() -> T + Send + 'static) {
        self.spawn_with(Builder::new(), body);
    }

    /// Same as [`spawn`](JoinSet::spawn), for a fiber with settings: a name, a larger stack, a worker.
    #[track_caller]
    pub fn spawn_with(&mut self, builder: Builder, body: impl FnOnce() -> T + Send + 'static) {
        let (id, body) = self.reporting(body);
        self.running.insert(id, Member::Fiber(builder.spawn(body)));
    }

    /// Spawns a fiber of this worker as [`spawn_local`](crate::spawn_local) does, and puts it into the set. The function need
    /// not be `Send`.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    #[track_caller]
    pub fn spawn_local(&mut self, body: impl FnOnce() -> T + 'static) {
        let (id, body) = self.reporting(body);
        self.running.insert(id, Member::Fiber(Builder::new().spawn_local(body)));
    }

    /// Spawns a future as [`spawn_future`](crate::spawn_future()) does, and puts its task into the set.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    #[track_caller]
    pub fn spawn_future(&mut self, future: impl Future<Output = T> + Send + 'static) {
        let (id, future) = self.reporting_future(future);
        self.running
            .insert(id, Member::Task(Mutex::new(Some(spawn_future(future)))));
    }

    /// Spawns a future of this worker as [`spawn_future_local`](crate::spawn_future_local()) does, and puts its task into the set. The
    /// future need not be `Send`.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    #[track_caller]
    pub fn spawn_future_local(&mut self, future: impl Future<Output = T> + 'static) {
        let (id, future) = self.reporting_future(future);
        self.running
            .insert(id, Member::Task(Mutex::new(Some(spawn_future_local(future)))));
    }

    /// A report under a new id. A spawn that panics drops it, and so reports, too. So the id is never used again.
    fn report(&mut self) -> Report<T> {
        let id = self.next;
        self.next += 1;
        Report {
            id,
            outcome: None,
            sender: self.sender.clone(),
        }
    }

    /// Wraps `body` so that it reports its outcome.
    fn reporting<F: FnOnce() -> T>(&mut self, body: F) -> (u64, impl FnOnce() + use<T, F>) {
        let report = self.report();
        let id = report.id;
        let body = move || {
            let mut report = report;
            report.outcome = Some(catch_unwind(AssertUnwindSafe(body)));
        };
        (id, body)
    }

    /// Wraps `future` so that it reports its value.
    fn reporting_future<F: Future<Output = T>>(&mut self, future: F) -> (u64, Reporting<F>) {
        let report = self.report();
        (report.id, Reporting { future, report })
    }

    /// Waits for the next fiber or task to end, and takes its value out of the set. `None` if the set is empty.
    ///
    /// # Suspends
    ///
    /// Until one has ended. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. The set keeps every value.
    ///
    /// # Errors
    ///
    /// The inner error is the payload of its panic; a cancellation
    /// ([`Cancelled::is_payload`](crate::Cancelled::is_payload)); an [`std::io::Error`] if there was no memory for the fiber's stack.
    pub fn join_next(&mut self) -> Option<thread::Result<T>> {
        block_on(self.join_next_async())
    }

    /// Waits as [`join_next`](JoinSet::join_next) does, in a future.
    ///
    /// While the set is empty, it is ready at once, with `None`. In a loop over [`select!`](crate::select!), switch the arm
    /// off then, or the loop never waits: `outcome = set.join_next_async(), if !set.is_empty() => ..`.
    pub async fn join_next_async(&mut self) -> Option<thread::Result<T>> {
        poll_fn(|cx| budget::poll(cx, |cx| self.poll_next(cx))).await
    }

    /// Takes the value of a fiber or task that has ended out of the set. `None` if none has. Never waits.
    ///
    /// # Errors
    ///
    /// The errors of [`join_next`](JoinSet::join_next).
    pub fn try_join_next(&mut self) -> Option<thread::Result<T>> {
        match budget::without(|| self.poll_next(&mut Context::from_waker(Waker::noop()))) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => None,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<thread::Result<T>>> {
        while !self.is_empty() {
            let ended = ready!(Pin::new(&mut self.receiver).poll_next(cx));
            let (id, outcome) = ended.expect("the set holds a sender");
            if let Some(outcome) = outcome.or_else(|| self.reason(id).map(Err)) {
                self.running.remove(&id);
                return Poll::Ready(Some(outcome));
            }
        }
        Poll::Ready(None)
    }

    /// Why a fiber never ran, or a task has no value. `None` if not all of it has ended, or if its spawn has panicked.
    fn reason(&mut self, id: u64) -> Option<Box<dyn Any + Send>> {
        let member = self.running.get_mut(&id)?;
        let sender = self.sender.clone();
        let waker = Waker::from(Arc::new(Unrun { id, sender }));
        match budget::without(|| member.poll_outcome(&mut Context::from_waker(&waker))) {
            Poll::Ready(outcome) => outcome.err(),
            Poll::Pending => None,
        }
    }

    /// Waits for all fibers and tasks. Their values come in the order in which they ended.
    ///
    /// # Suspends
    ///
    /// Until all have ended.
    ///
    /// # Cancellation
    ///
    /// Unwinds, and cancels them.
    ///
    /// # Panics
    ///
    /// If one panicked, was cancelled or could not start.
    pub fn join_all(mut self) -> Vec<T> {
        let mut values = Vec::with_capacity(self.len());
        while let Some(outcome) = self.join_next() {
            values.push(outcome.unwrap_or_else(|payload| std::panic::resume_unwind(payload)));
        }
        values
    }
}

impl<T> JoinSet<T> {
    /// Asks all fibers and tasks to end, in the order of spawning. They stay in the set until they are joined.
    #[doc(alias("abort_all", "shutdown"))]
    pub fn cancel_all(&self) {
        self.running.values().for_each(Member::cancel);
    }

    /// Lets all fibers and tasks run on without the set, which is empty then. Their values are dropped.
    pub fn detach_all(&mut self) {
        self.running.clear();
        // Nobody receives what they report.
        (self.sender, self.receiver) = mpsc::unbounded();
    }

    /// The number of fibers and tasks in the set: those that run, and those that nobody has joined.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }
}

impl<T: Send + 'static> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet::new()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

osier_queue::impl_debug!(JoinSet<T>, self => { len: self.len() });
