//! Futures as tasks: how [`spawn_future`] makes one, with a name or with locals.
//!
//! The workers poll tasks between fibers, each task on a worker that has time. A task never blocks a worker. Every
//! primitive of this crate has a future (`wait_async` beside `wait`), so tasks, fibers and threads meet at the same
//! primitives.
//!
//! ```
//! use osier::sync::mpsc;
//! use osier::time::Sleep;
//! use std::time::Duration;
//!
//! osier::run(|| {
//!     let (sender, mut receiver) = mpsc::channel(1);
//!     let task = osier::spawn_future(async move {
//!         Sleep::new(Duration::from_millis(1)).await; // not `osier::sleep`, which would block: here it panics
//!         sender.send_async("from a task").await
//!     });
//!     assert_eq!(receiver.recv(), Ok("from a task")); // a fiber waits for it
//!     task.join().unwrap().unwrap();
//! });
//! ```
//!
//! A task takes less memory than a fiber, which has a stack. Code that awaits is not cancelled by unwinding: a task that is cancelled is
//! dropped between two polls.

mod local;

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use async_task::FallibleTask;

use crate::wait::budget;
use crate::wait::cancel::Cancelled;
use crate::worker::context;
use crate::worker::core::no_runtime;
use crate::worker::executor::{Ended, Handle, Home};
use crate::worker::scheduler::Scheduler;

pub use local::{Current, LocalKey, NoTask, current};

/// A spawned future's handle: waits for its value, or ends it. Dropping it lets the task run on, as with a thread's
/// handle.
///
/// The handle is itself a future, with the output of [`JoinHandle::join`](crate::JoinHandle::join): the value, or the
/// payload of the task's panic, or [`Cancelled`].
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
#[doc(alias = "AbortHandle")]
pub struct Task<T> {
    id: u64,
    /// Present until the handle is dropped or used up.
    task: Option<FallibleTask<Ended<T>, Home>>,
}

impl<T> Task<T> {
    fn new(Handle { id, task }: Handle<T>) -> Task<T> {
        Task { id, task: Some(task) }
    }

    /// Runs `future` as a task of the runtime of `scheduler`. Any thread may call it.
    pub(crate) fn spawn_on<F>(scheduler: &Arc<Scheduler>, place: &'static Location<'static>, future: F) -> Task<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        Task::new(scheduler.task(0, None, place, future))
    }

    /// The task's number, from 1. No other task of this process has or had it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the task to end.
    ///
    /// # Suspends
    ///
    /// Until it has. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; the task runs on.
    ///
    /// # Errors
    ///
    /// The payload of the task's panic; [`Cancelled`].
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, where nothing may wait: await the handle there.
    pub fn join(self) -> thread::Result<T> {
        crate::block_on(self)
    }

    /// Cancels the task: its future is dropped instead of polled the next time. The returned future is ready when the
    /// task has ended.
    ///
    /// `None` says that the task was cancelled. The outcome of a poll that ran meanwhile is dropped. A task that had
    /// ended before gives its outcome. Dropping the returned future leaves the task to end by itself.
    #[doc(alias = "abort")]
    pub fn cancel(mut self) -> impl Future<Output = Option<thread::Result<T>>> + use<T> {
        let task = self.task.take().expect("it is taken only by methods that take self");
        let mut cancelling = Box::pin(task.cancel());
        // The first poll cancels the task.
        let polled = cancelling.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        async move {
            let ended = match polled {
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

    /// # Panics
    ///
    /// If it is polled again after it was ready.
    ///
    /// # Aborts
    ///
    /// When the waker of `cx` panics as the task wakes it: `async-task` is in the middle of a change then. Wakers of this crate do
    /// not panic. To catch the panic would cost each poll an allocation, for a waker around the waker.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<thread::Result<T>> {
        let task = self
            .task
            .as_mut()
            .expect("a task's handle is not polled after it was ready");
        let Poll::Ready(ended) = budget::poll(cx, |cx| Pin::new(task).poll(cx)) else {
            return Poll::Pending;
        };
        self.task = None;
        Poll::Ready(ended.map_or_else(|| Err(Box::new(Cancelled) as Box<_>), Ended::take))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

osier_queue::impl_debug!(Task<T>, self => { id: self.id, finished: self.is_finished() });

/// Runs `future` as a task on a worker that has time. Each poll may be on another worker.
///
/// The handle is a future too. Dropping it lets the task run on. A panic of the task goes to the handle.
///
/// ```
/// osier::run(|| {
///     let tasks: Vec<_> = (0..10).map(|n| osier::spawn_future(async move { n * n })).collect();
///     let sum: i32 = tasks.into_iter().map(|task| task.join().unwrap()).sum();
///     assert_eq!(sum, 285);
/// });
/// ```
///
/// The future is moved some times before it has its place. A future of many kilobytes needs a box, or a fiber with a
/// larger stack to spawn it.
///
/// # Fairness
///
/// A task whose calls are always ready does not keep its worker: after 128 calls of this crate in one poll, or after about a millisecond of
/// computing between them, the next call is pending once, although it is ready. It wakes the task, which is polled again behind the others
/// that are ready. That call has done nothing, so it may be dropped as at any other time. A loop without such calls awaits [`yield_now`].
///
/// A time limit whose future has been held up so gives it one more turn, of a millisecond at most: it is late by a round of the worker, and
/// any number of calls that are ready within it win. The futures of [`join_async!`](crate::join_async!) begin such turns one after the other.
///
/// # Suspends
///
/// Never.
///
/// # Panics
///
/// Outside of a runtime. From a plain thread use [`Handle::spawn_future`](crate::Handle::spawn_future).
#[track_caller]
#[doc(alias = "spawn")]
pub fn spawn_future<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Builder::new().spawn(future)
}

/// Runs `future` as a task of this worker. Neither it nor its value need be `Send`.
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
#[doc(alias("spawn_local", "LocalSet"))]
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
    /// Settings for a task like those of [`spawn_future`].
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names the task, for dumps and for [`current`].
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Builder {
        self.name = Some(name.into());
        self
    }

    /// Spawns a task as [`spawn_future`] does.
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let place = Location::caller();
        let task = context::worker(|worker| worker.scheduler.task(worker.index, self.name, place, future));
        match task {
            Some(task) => Task::new(task),
            None => no_runtime("osier::spawn_future"),
        }
    }

    /// Spawns a task as [`spawn_future_local`] does.
    #[track_caller]
    pub fn spawn_local<F>(self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let place = Location::caller();
        let task = context::worker(|worker| worker.scheduler.local_task(worker.index, self.name, place, future));
        match task {
            Some(task) => Task::new(task),
            None => no_runtime("osier::spawn_future_local"),
        }
    }
}

/// Lets the other tasks of this worker that are ready run once. The future is pending at its first poll, and ready at its second.
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
