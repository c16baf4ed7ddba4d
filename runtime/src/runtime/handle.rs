//! Handles: a runtime for threads that are none of its workers.
//!
//! A [`Handle`] holds the scheduler, as every task does, but not the threads of the workers. So it keeps no worker running. Once the runtime
//! stops, the handle refuses new work; the work that it has queued by then is cancelled as `worker/scheduler.rs` says.

use std::future::Future;
use std::io;
use std::panic::Location;
use std::sync::Arc;

use crate::future::Task;
#[cfg(feature = "inspect")]
use crate::inspect::{self, Dump, Metrics};
use crate::worker::context;
use crate::worker::core::Header;
use crate::worker::packet::{self, JoinHandle};
use crate::worker::scheduler::Scheduler;

/// A runtime for code that is not on it: a thread that a fiber has started, or a library that calls back from a thread of its own. A clone
/// is cheap.
///
/// A handle neither keeps the runtime running nor delays its end: [`run`](crate::run) returns, and a [`Runtime`](crate::Runtime) may be
/// dropped, whoever has handles. Once the runtime shuts down, each call returns the error [`Ended`], even while the last fibers are being
/// cancelled.
///
/// ```
/// let number = osier::run(|| {
///     let handle = osier::Handle::current().unwrap();
///     let thread = std::thread::spawn(move || {
///         let fiber = handle.spawn(|| 6 * 7)?;
///         Ok(fiber.join().unwrap()) // a plain thread may wait for it
///     });
///     osier::unblock(|| thread.join().unwrap())
/// });
/// assert_eq!(number, Ok::<_, osier::Ended>(42));
/// ```
#[derive(Clone)]
pub struct Handle(Arc<Scheduler>);

impl Handle {
    pub(super) fn new(scheduler: &Arc<Scheduler>) -> Handle {
        Handle(Arc::clone(scheduler))
    }

    /// The runtime of the calling fiber or task. `None` on a thread that is no worker, such as those of [`unblock`](crate::unblock): get
    /// the handle before, and move it there.
    ///
    /// A simulated host is a runtime of its own, which ends when the host stops.
    ///
    /// ```
    /// osier::run(|| assert!(osier::Handle::current().is_some()));
    /// assert!(osier::Handle::current().is_none());
    /// ```
    pub fn current() -> Option<Handle> {
        context::worker(|worker| Handle::new(&worker.scheduler))
    }

    /// Runs `body` on a new fiber of the runtime.
    ///
    /// A fiber that has not ended when the runtime shuts down is cancelled. One that has not started by then never does, and
    /// [`join`](JoinHandle::join) returns [`Cancelled`](crate::Cancelled).
    ///
    /// # Errors
    ///
    /// [`Ended`] if the runtime has ended or shuts down. `body` is dropped then.
    #[track_caller]
    pub fn spawn<F, T>(&self, body: F) -> Result<JoinHandle<T>, Ended>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.check()?;
        let (job, handle) = packet::packet(Header::new(Location::caller()), body);
        self.0.inject(job);
        Ok(handle)
    }

    /// Runs `future` as a task of the runtime, as [`spawn_future`](crate::spawn_future) does.
    ///
    /// ```
    /// # let runtime = osier::Runtime::builder().workers(1).build()?;
    /// let handle = runtime.handle();
    /// assert_eq!(handle.spawn_future(async { 42 })?.join().unwrap(), 42);
    /// drop(runtime);
    /// assert!(handle.spawn_future(async { 42 }).is_err());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// The same as those of [`spawn`](Handle::spawn).
    #[track_caller]
    pub fn spawn_future<F>(&self, future: F) -> Result<Task<F::Output>, Ended>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.check()?;
        Ok(Task::spawn_on(&self.0, Location::caller(), future))
    }

    /// The numbers of the workers, as [`Runtime::metrics`](crate::Runtime::metrics) gives them.
    ///
    /// # Errors
    ///
    /// [`Ended`] if the runtime has ended or shuts down.
    #[cfg(feature = "inspect")]
    pub fn metrics(&self) -> Result<Metrics, Ended> {
        self.look(|| inspect::metrics::of(self.0.remotes()))
    }

    /// Shows the fibers and tasks of the runtime, as [`Runtime::dump`](crate::Runtime::dump) does.
    ///
    /// # Suspends
    ///
    /// Until the workers have answered. Blocks the thread when called on a plain one, in a future or in a callback.
    ///
    /// # Errors
    ///
    /// The same as those of [`metrics`](Handle::metrics).
    #[cfg(feature = "inspect")]
    pub fn dump(&self) -> Result<Dump, Ended> {
        self.look(|| inspect::dump::gather(self.0.remotes().collect(), None))
    }

    /// Looks at the workers. After the end of the runtime their remotes serve others.
    #[cfg(feature = "inspect")]
    fn look<T>(&self, look: impl FnOnce() -> T) -> Result<T, Ended> {
        self.check()?;
        let seen = look();
        self.check()?;
        Ok(seen)
    }

    fn check(&self) -> Result<(), Ended> {
        match self.0.is_stopping() {
            true => Err(Ended(())),
            false => Ok(()),
        }
    }
}

osier_queue::impl_debug!(Handle, self => { workers: self.0.workers(), ended: self.0.is_stopping() });

/// A [`Handle`] was used after its runtime had ended or begun to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(());

osier_queue::impl_error!(Ended, self => "the runtime of this handle has ended: join the threads that use the handle before the runtime ends");

impl From<Ended> for io::Error {
    fn from(ended: Ended) -> io::Error {
        io::Error::other(ended)
    }
}
