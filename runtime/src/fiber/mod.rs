//! Fibers: how to make one, and how code finds out which one runs it.
//!
//! | to | use |
//! |---|---|
//! | start one | [`spawn`]; [`spawn_local`] if it holds an `Rc`; [`Builder`] for a name, a larger stack or a given worker |
//! | start some, and take each value as it comes | [`JoinSet`] |
//! | start some that borrow | [`scope`](crate::scope), [`try_scope`](crate::try_scope) |
//! | let others run | [`yield_now`], [`give_way`]; [`sleep`] for a time |
//! | keep a value for each fiber | [`fiber_local!`](crate::fiber_local!) |
//! | say in dumps and panics what it does | [`describe`] |

// A fiber is a coroutine that a worker resumes. `worker/core.rs` holds what a fiber knows of itself, `worker/packet.rs` what is
// spawned. This module is the public face: it starts fibers, names them and yields.

#[cfg(feature = "sync")]
mod join_set;
pub(crate) mod local;
mod metering;
pub(crate) mod scope;
pub(crate) mod try_scope;

use std::panic::Location;
use std::sync::Arc;
use std::thread;

#[doc(inline)]
pub use crate::time::sleep;
pub use crate::worker::core::Fiber;
pub use crate::worker::hook::{Part, after_resume, before_suspend, describe};
#[doc(hidden)]
pub use crate::worker::hook::{RequestWords, describe_request};
pub use crate::worker::meter::{Activity, Meter};
#[doc(hidden)]
pub use crate::worker::stderr::say;
pub use crate::worker::trimmers::{Trimmed, on_trim};
#[cfg(feature = "sync")]
pub use join_set::JoinSet;
pub use local::LocalKey;
pub use metering::{Attached, waits_for};

use crate::wait::NOT_HERE;
use crate::worker::context::{self, Anchor, Caller};
use crate::worker::core::{Header, no_runtime};
use crate::worker::packet::{self, JoinHandle};

/// The calling fiber, or `None` outside of one.
///
/// ```
/// osier::run(|| {
///     let worker = osier::fiber::Builder::new().name("indexer");
///     let name = worker.spawn(|| osier::fiber::current().and_then(|fiber| fiber.name().map(String::from)));
///     assert_eq!(name.join().unwrap().as_deref(), Some("indexer"));
/// });
/// assert!(osier::fiber::current().is_none());
/// ```
pub fn current() -> Option<Fiber> {
    context::running(|core| core.fiber())
}

/// The [`id`](Fiber::id) of the calling fiber, or `None` outside of one. It is cheaper than [`current`].
///
/// ```
/// osier::run(|| assert_eq!(osier::fiber::id(), osier::fiber::current().map(|fiber| fiber.id())));
/// assert!(osier::fiber::id().is_none());
/// ```
#[inline]
pub fn id() -> Option<u64> {
    context::running(|core| core.id())
}

/// Whether this fiber is cancelled: its next blocking call would return [`Cancelled`](crate::Cancelled) or unwind.
/// `false` outside of a fiber, and in a [`shield`](crate::shield). A long computation asks it now and then.
///
/// ```
/// osier::run(|| {
///     let started = std::sync::Arc::new(osier::sync::Event::new());
///     let signal = started.clone();
///     let fiber = osier::spawn(move || {
///         signal.set();
///         while !osier::fiber::is_cancelled() {
///             osier::shield(osier::yield_now); // between two pieces of a long computation
///         }
///         "stopped"
///     });
///     started.wait();
///     fiber.cancel();
///     assert_eq!(fiber.join().unwrap(), "stopped");
/// });
/// ```
pub fn is_cancelled() -> bool {
    context::caller(|caller| match caller {
        Caller::Fiber(core, worker) => core.is_requested(worker),
        _ => false,
    })
}

/// The number of the worker that this code runs on, from 0; `None` outside of a runtime.
pub fn worker() -> Option<usize> {
    context::worker(|worker| worker.index)
}

/// Lets the other fibers of this worker run, then goes on.
///
/// A plain thread calls [`std::thread::yield_now`].
///
/// # Suspends
///
/// Always.
///
/// # Cancellation
///
/// Unwinds: there is no error to return.
///
/// # Panics
///
/// On a worker outside of a fiber: in a future, a callback or a destructor that the loop runs.
#[inline(always)]
#[track_caller]
#[doc(alias = "Gosched")]
pub fn yield_now() {
    match context::here(&Anchor::new()) {
        Caller::Fiber(core, worker) => {
            if !core.is_plain(worker) || !core.hooks.is_empty() {
                core.prepare_to_yield(worker);
            }
            worker.yield_fiber(core);
        }
        Caller::Worker => panic!("{NOT_HERE}"),
        Caller::Thread => thread::yield_now(),
    }
}

/// Suspends the fiber until the worker has polled for events and run everything that was ready or became ready. It is for long work in
/// pieces of a tenth of a millisecond or more, such as compressing a file.
///
/// At most one such fiber resumes per turn of the worker's loop. So a short task waits for one piece of long work, however many fibers do
/// it. Where others keep the worker busy, one such fiber resumes each millisecond all the same. Each call costs a system call, about 0.3 us.
/// [`yield_now`] costs less: its fibers take turns with all that are ready, and the worker polls for events only now and then.
///
/// ```
/// osier::run(|| {
///     let sum: u64 = (0..4)
///         .map(|piece| {
///             osier::fiber::give_way();
///             (piece * 100_000..(piece + 1) * 100_000).sum::<u64>()
///         })
///         .sum();
///     assert_eq!(sum, 400_000 * 399_999 / 2);
/// });
/// ```
///
/// A plain thread calls [`std::thread::yield_now`].
///
/// # Suspends
///
/// Always.
///
/// # Cancellation
///
/// Unwinds: there is no error to return.
///
/// # Panics
///
/// As [`yield_now`].
#[doc(alias("consume_budget", "coop"))]
pub fn give_way() {
    match context::here(&Anchor::new()) {
        Caller::Fiber(core, worker) => {
            core.prepare_to_yield(worker);
            worker.give_way(core);
        }
        Caller::Worker => panic!("{NOT_HERE}"),
        Caller::Thread => thread::yield_now(),
    }
}

/// Gives back the memory of this fiber's stack that no frame uses now. It is for a fiber that is about to wait for long: the pages
/// that its deepest calls have touched would stay resident until it ends.
///
/// It costs a system call, and the next deep calls fault their pages in again. It does nothing outside of a fiber, and with
/// [`measure_stacks`](crate::Builder::measure_stacks), which would miss what is given back.
///
/// ```
/// osier::run(|| {
///     let parsed = "a deep recursion".len();
///     osier::fiber::shrink_stack();
///     osier::sleep(std::time::Duration::from_millis(1));
///     assert_eq!(parsed, 16);
/// });
/// ```
///
/// # Suspends
///
/// Never.
pub fn shrink_stack() {
    if let Caller::Fiber(_, worker) = context::here(&Anchor::new())
        && !worker.scheduler.measure_stacks
    {
        osier_coro::stack::shrink();
    }
}

/// Makes a fiber with a name, a stack of another size, or on a given worker.
///
/// ```
/// osier::run(|| {
///     let deep = osier::fiber::Builder::new().name("parser").stack_bytes(4 << 20);
///     assert_eq!(deep.spawn(|| 6 * 7).join().unwrap(), 42);
/// });
/// ```
#[derive(Clone, Debug, Default)]
pub struct Builder {
    name: Option<Arc<str>>,
    stack_bytes: Option<usize>,
    worker: Option<usize>,
}

impl Builder {
    /// Settings for a fiber like those of [`spawn`].
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names the fiber, for overflow reports and for [`current`].
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Builder {
        self.name = Some(name.into());
        self
    }

    /// Sets the bytes of stack, instead of the runtime's default; rounded up to a size class of the pool.
    #[doc(alias("stack_size", "thread_stack_size"))]
    pub fn stack_bytes(mut self, bytes: usize) -> Builder {
        self.stack_bytes = Some(bytes);
        self
    }

    /// Starts the fiber on the worker of this number instead of on one that has time.
    ///
    /// # Panics
    ///
    /// `spawn` panics if the runtime has no such worker.
    pub fn worker(mut self, index: usize) -> Builder {
        self.worker = Some(index);
        self
    }

    /// Spawns a fiber as [`spawn`] does.
    #[track_caller]
    pub fn spawn<F, T>(self, body: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let place = Location::caller();
        self.check_worker();
        let spawned = context::worker(|here| {
            let worker = self.worker;
            let (job, handle) = packet::packet(self.header(place), body);
            match worker {
                None => here.spawn(job),
                Some(index) => here.spawn_on(index, job),
            }
            handle
        });
        match spawned {
            Some(handle) => handle,
            None => no_runtime("osier::spawn"),
        }
    }

    /// Panics at the caller if the runtime has no such worker as the settings name.
    #[track_caller]
    #[inline]
    fn check_worker(&self) {
        let Some(index) = self.worker else { return };
        // A closure has no caller: a panic in one would point here.
        if let Some(workers) = context::worker(|here| here.scheduler.workers())
            && index >= workers
        {
            panic!("spawn on worker {index}: the runtime has workers 0 to {}", workers - 1);
        }
    }

    /// Spawns a fiber as [`spawn_local`] does.
    ///
    /// # Panics
    ///
    /// Outside of a runtime, and if [`worker`](Builder::worker) named another worker than this one.
    #[track_caller]
    pub fn spawn_local<F, T>(self, body: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + 'static,
        T: 'static,
    {
        let place = Location::caller();
        let spawned = context::worker(|here| {
            if self.worker.is_some_and(|index| index != here.index) {
                return None;
            }
            let (job, handle) = packet::packet_local(self.header(place), body);
            here.spawn_local(job);
            Some(handle)
        });
        match spawned {
            Some(Some(handle)) => handle,
            Some(None) => panic!("spawn_local starts on the worker that calls it"),
            None => no_runtime("osier::spawn_local"),
        }
    }

    fn header(self, place: &'static Location<'static>) -> Header {
        Header::named(place, self.name, self.stack_bytes)
    }
}

/// Runs `body` on a new fiber, on a worker that has time. Once started, the fiber never leaves that thread.
///
/// The handle's [`join`](JoinHandle::join) gives the body's value. Dropping the handle lets the fiber run on.
///
/// The body may start on another thread, so the compiler refuses a body that holds an `Rc` or another value that is not `Send`
/// ("cannot be sent between threads safely"). [`spawn_local`] starts it on this worker, where it may hold them.
///
/// An `async` block runs by [`spawn_future`](crate::spawn_future). Do not wrap it in a closure, as the compiler advises: the closure
/// returns a future that nobody polls.
///
/// ```
/// osier::run(|| {
///     let sum = osier::spawn(|| (1..=10).sum::<u32>());
///     assert_eq!(sum.join().unwrap(), 55);
/// });
/// ```
///
/// # Suspends
///
/// Never.
///
/// # Panics
///
/// Outside of a runtime. From a plain thread use [`Handle::spawn`](crate::Handle::spawn).
#[track_caller]
#[doc(alias = "go")]
pub fn spawn<F, T>(body: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().spawn(body)
}

/// Runs `body` on a new fiber of this worker. Its captures need not be `Send`.
///
/// ```
/// use std::{cell::Cell, rc::Rc};
/// osier::run(|| {
///     let count = Rc::new(Cell::new(0));
///     let theirs = Rc::clone(&count);
///     osier::spawn_local(move || theirs.set(1)).join().unwrap();
///     assert_eq!(count.get(), 1);
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
#[doc(alias = "LocalSet")]
pub fn spawn_local<F, T>(body: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + 'static,
    T: 'static,
{
    Builder::new().spawn_local(body)
}

/// The number of workers of this thread's runtime.
///
/// # Panics
///
/// Outside of a runtime.
#[track_caller]
pub fn workers() -> usize {
    match context::worker(|worker| worker.scheduler.workers()) {
        Some(workers) => workers,
        None => no_runtime("osier::workers"),
    }
}
