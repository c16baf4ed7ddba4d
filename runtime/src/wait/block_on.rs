//! [`block_on`] runs a future on a fiber or a plain thread. [`unblock`] runs blocking work on a pool of threads, away
//! from the workers.

use std::any::Any;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use async_task::Task;

use crate::wait::{self, pool};
use crate::worker::clock::Hold;
use crate::worker::context::hold;

/// Waits for a future. A fiber suspends until it is ready, a plain thread blocks.
///
/// A call inside the future that suspends, such as [`sleep`](crate::sleep), suspends the calling fiber in the middle of a
/// poll: whatever else the future waits for is not looked at meanwhile. Use the call's `_async` twin.
///
/// ```
/// osier::run(|| {
///     assert_eq!(osier::block_on(async { 1 + 1 }), 2);
/// });
/// ```
///
/// # Suspends
///
/// While the future is pending. Also after many calls in it that are ready, as a [task](crate::spawn_future) is.
///
/// # Cancellation
///
/// Unwinds, dropping the future.
///
/// # Panics
///
/// If the future panics, and where nothing may wait: in another future's poll or a callback, on a worker.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    wait::wait_for_future(None, |cx| future.as_mut().poll(cx)).expect("no deadline was set")
}

/// Runs `work` on a thread of the pool for blocking work and waits for it. Calls that would stop the worker belong
/// here: calls of libraries that open sockets of their own, and long computations.
///
/// A handler that asks its own server by plain ureq, outside of this function, waits for ever: the worker that would read the request
/// stands still. The crates `osier-ureq` and `osier-postgres` suspend the fiber instead and need no thread.
///
/// ```
/// osier::run(|| {
///     let text = osier::unblock(|| std::fs::read_to_string("/proc/self/comm"));
///     assert!(!text.unwrap().is_empty());
///
///     // A fiber of its own for it gives a handle, as tokio's `spawn_blocking` does.
///     let sum = osier::spawn(|| osier::unblock(|| (1..=1000).sum::<u32>()));
///     assert_eq!(sum.join().unwrap(), 500_500);
/// });
/// ```
///
/// The process has one pool, of at most 500 threads; more work waits in line. In a future use [`unblock_async`].
///
/// # Suspends
///
/// Until the work is done. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Unwinds. Work that has begun goes on by itself, and its value is dropped.
///
/// # Panics
///
/// If `work` does, with the same payload. Also if the pool has no thread and the system starts none.
#[doc(alias("spawn_blocking", "block_in_place"))]
pub fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    block_on(unblock_async(work))
}

/// Runs `work` as [`unblock`] does, in a future. The work begins at the first poll.
///
/// ```
/// osier::run(|| {
///     let task = osier::spawn_future(async { osier::unblock_async(|| (1..=1000).sum::<u32>()).await });
///     assert_eq!(task.join().unwrap(), 500_500);
/// });
/// ```
///
/// # Cancellation
///
/// A future that is dropped takes back work that no thread has begun. Other work goes on by itself, and its value is dropped.
///
/// # Panics
///
/// The panics of [`unblock`].
#[doc(alias = "spawn_blocking")]
pub async fn unblock_async<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let pooled = pooled(|| catch_unwind(AssertUnwindSafe(work)));
    match pooled.unwrap_or_else(|error| panic!("osier: {error}")).await {
        Ok(value) => value,
        Err(payload) => resume_unwind(payload),
    }
}

/// Runs `work` on a thread of the pool. A virtual clock of the caller's does not move by itself before the value was taken.
///
/// # Errors
///
/// The system's, if the pool has no thread and the system starts none.
pub(crate) fn pooled<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Pooled<T>> {
    // The pool's tasks are compiled once, for work of any type.
    let work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> = Box::new(|| Box::new(work()));
    Ok(Pooled {
        _hold: hold(),
        task: pool::try_spawn(work)?,
        value: PhantomData,
    })
}

/// Work on the pool: the future of its value.
pub(crate) struct Pooled<T> {
    task: Task<Box<dyn Any + Send>>,
    value: PhantomData<fn() -> T>,
    _hold: Option<Hold>,
}

impl<T: 'static> Future for Pooled<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let value = ready!(Pin::new(&mut self.task).poll(cx));
        Poll::Ready(*value.downcast().expect("the work gives a value of this type"))
    }
}
