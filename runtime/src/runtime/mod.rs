//! The runtime: its builder, the calls that run code on it, and its shutdown.
//!
//! A [`Runtime`] is a value. `worker/threads.rs` starts and joins the threads of its workers, `worker/scheduler.rs` has
//! the queues that they share. [`embed`] is a worker without a thread. [`handle`] is the runtime for threads that are none of its workers.

#[cfg(feature = "embed")]
mod alarm;
#[cfg(feature = "embed")]
pub mod embed;
pub(crate) mod handle;
pub mod memory;

use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::time::Duration;

use osier_coro::stack;
use osier_queue::Idle;

use crate::fiber::scope;
use crate::future::Task;
#[cfg(feature = "inspect")]
use crate::inspect::{self, Dump, Metrics, panics, watchdog};
use crate::runtime::handle::Handle;
use crate::worker::affinity::available_parallelism;
use crate::worker::clock::VirtualClock;
use crate::worker::context;
use crate::worker::core::Header;
use crate::worker::heap::share_heaps;
use crate::worker::packet::{self, JoinHandle};
use crate::worker::remote::Remote;
use crate::worker::threads::{Settings, Threads};

/// A set of workers, each a thread with an event loop, on which fibers run.
///
/// Dropping it shuts it down. Every fiber is cancelled and joined, for at most the [`shutdown
/// timeout`](Builder::shutdown_timeout); then no thread, descriptor or fiber of it is left. A fiber that does not end
/// in time is reported, and its stack is leaked: who joins it waits for ever. Fibers and tasks that destructors keep spawning are
/// reported and leaked, too. A worker whose fiber never returns to the loop, because it blocks the thread or computes, is waited
/// for one second longer; then it is reported, and its thread is left behind. Dropped on a fiber of its own, it is shut down in
/// the background, by a thread that waits. (The threads of the process-wide pool behind [`unblock`](crate::unblock) end when they
/// have been idle for a while.)
///
/// If the poller of a worker fails, which takes a program that closes descriptors of others or a filter of system calls, a line on
/// stderr says so, and all workers shut down as they do when the runtime is dropped. Whatever is spawned then is cancelled.
///
/// ```
/// let runtime = osier::Runtime::builder().workers(2).build()?;
/// let greeting = runtime.run(|| String::from("hello"));
/// let number = runtime.spawn(|| 42);
/// assert_eq!((greeting.as_str(), number.join().unwrap()), ("hello", 42));
/// # std::io::Result::Ok(())
/// ```
pub struct Runtime {
    threads: Threads,
}

impl Runtime {
    /// Settings for a runtime.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A runtime with one worker per available core.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::build`].
    pub fn new() -> io::Result<Runtime> {
        Builder::default().build()
    }

    /// Runs `body` on a fiber and waits for it. It may borrow from the caller.
    ///
    /// # Blocks the thread
    ///
    /// Until `body` returns.
    ///
    /// # Panics
    ///
    /// If `body` does, with the same payload. With that of a [cancellation](crate::Cancelled), without a message, if the poller of a
    /// worker fails. On a worker of any runtime, which must not block: use [`spawn`](crate::spawn) and join there.
    #[track_caller]
    #[doc(alias = "block_on")]
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        assert!(
            context::worker(|_| ()).is_none(),
            "Runtime::run on a worker would block it: use osier::spawn(..).join(), or Runtime::spawn"
        );
        scope::run(body, &|job| self.threads.scheduler.inject(job))
    }

    /// Runs `body` on a new fiber of this runtime. Any thread may call it.
    #[track_caller]
    pub fn spawn<F, T>(&self, body: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (job, handle) = packet::packet(Header::new(Location::caller()), body);
        self.threads.scheduler.inject(job);
        handle
    }

    /// Runs `future` as a task of this runtime, as [`spawn_future`](crate::spawn_future) does. Any thread may call it.
    #[track_caller]
    pub fn spawn_future<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Task::spawn_on(&self.threads.scheduler, Location::caller(), future)
    }

    /// A handle for threads that cannot borrow this value. It does not keep the runtime running.
    pub fn handle(&self) -> Handle {
        Handle::new(&self.threads.scheduler)
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.threads.scheduler.workers()
    }

    /// The numbers of the workers: turns, queues, timers, fibers, latency. It costs the workers nothing.
    ///
    /// ```
    /// let runtime = osier::Runtime::builder().workers(1).build()?;
    /// runtime.run(|| osier::sleep(std::time::Duration::from_millis(5)));
    /// let metrics = runtime.metrics();
    /// assert!(metrics.workers[0].turns > 0 && metrics.workers[0].fibers_started == 1);
    /// # std::io::Result::Ok(())
    /// ```
    #[cfg(feature = "inspect")]
    pub fn metrics(&self) -> Metrics {
        inspect::metrics::of(self.threads.scheduler.remotes())
    }

    /// Shows the fibers and tasks of this runtime alone, as [`dump`](crate::dump()) shows all.
    ///
    /// # Suspends
    ///
    /// Until the workers have answered. Blocks the thread when called on a plain one, in a future or in a callback.
    #[cfg(feature = "inspect")]
    pub fn dump(&self) -> Dump {
        inspect::dump::gather(self.threads.scheduler.remotes().collect(), None)
    }
}

osier_queue::impl_debug!(Runtime, self => { workers: self.workers() });

/// Runs `body` on a fiber of a new runtime with one worker per core, and shuts the runtime down when it returns.
///
/// Fibers that still run then are cancelled. Join the ones that must finish before `body` returns.
///
/// ```
/// use osier::net::{TcpListener, TcpStream};
/// use std::io::{Read, Write};
///
/// fn main() -> std::io::Result<()> {
///     osier::run(|| {
///         let listener = TcpListener::bind("127.0.0.1:0")?;
///         let address = listener.local_addr()?;
///         osier::spawn(move || listener.accept()?.0.write_all(b"hello"));
///         let mut text = String::new();
///         TcpStream::connect(address)?.read_to_string(&mut text)?;
///         assert_eq!(text, "hello");
///         Ok(())
///     })
/// }
/// ```
///
/// `body` runs on another thread, so its value must be `Send`. `Box<dyn Error>` is not; `Box<dyn Error + Send + Sync>` is, and
/// `main` may return it as well:
///
/// ```
/// # fn number() -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
/// osier::run(|| {
///     let text = osier::fs::read_to_string("/proc/sys/net/core/somaxconn")?;
///     Ok(text.trim().parse()?)
/// })
/// # }
/// ```
///
/// # Blocks the thread
///
/// Until `body` has returned and every other fiber has ended.
///
/// # Panics
///
/// If the runtime cannot be built (use [`Runtime::builder`] to handle that). If `body` panics, with the same payload. As
/// [`Runtime::run`] does if the poller of a worker fails.
#[track_caller]
pub fn run<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    match Runtime::new() {
        Ok(runtime) => runtime.run(body),
        Err(error) => panic!("osier::run: {error}"),
    }
}

/// Settings for a [`Runtime`].
///
/// ```
/// let runtime = osier::Runtime::builder().workers(1).name("indexer").stack_bytes(512 * 1024).build()?;
/// assert_eq!(runtime.workers(), 1);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "new_multi_thread")]
pub struct Builder {
    workers: Option<usize>,
    #[cfg(feature = "inspect")]
    watchdog: Option<Duration>,
    settings: Settings,
}

#[cfg_attr(
    not(feature = "inspect"),
    allow(clippy::derivable_impls, reason = "only the watchdog has a default of its own")
)]
impl Default for Builder {
    fn default() -> Builder {
        Builder {
            workers: None,
            #[cfg(feature = "inspect")]
            watchdog: watchdog::limit_of_environment()
                .unwrap_or_else(|| cfg!(debug_assertions).then_some(Duration::from_secs(1))),
            settings: Settings::default(),
        }
    }
}

impl Builder {
    /// Sets the number of workers; one per available core unless set.
    #[doc(alias("worker_threads", "new_current_thread"))]
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = Some(workers);
        self
    }

    /// Names the threads: `name-0`, `name-1` and so on. [`build`](Builder::build) fails for a name with a NUL.
    #[doc(alias = "thread_name")]
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.settings.name = name.into();
        self
    }

    /// Pins worker i to the i-th processor that this process may use.
    ///
    /// Threads and child processes that this crate starts on a worker are not pinned, nor are the workers of another runtime.
    /// [`std::thread::spawn`] and [`std::process::Command`] know nothing of that, and start theirs on the processor of the worker.
    #[cfg(feature = "pin")]
    pub fn pin(mut self, pin: bool) -> Builder {
        self.settings.pin = pin;
        self
    }

    /// Sets the bytes of address space per fiber's stack, its guard included; 256 KiB unless set, of which a guard of 64
    /// KiB leaves 192 KiB usable. Only touched pages cost memory.
    #[doc(alias("stack_size", "thread_stack_size"))]
    pub fn stack_bytes(mut self, bytes: usize) -> Builder {
        self.settings.stacks.stack_bytes = bytes;
        self
    }

    /// Sets how stacks are cut from memory.
    pub fn stacks(mut self, stacks: stack::Config) -> Builder {
        self.settings.stacks = stacks;
        self
    }

    /// Sets how long a shutdown waits for cancelled fibers to end; 10 s unless set.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Builder {
        self.settings.shutdown_timeout = timeout;
        self
    }

    /// Sets how long a turn of a worker's loop may take before the watchdog reports the worker on stderr. `None` means for ever.
    ///
    /// A line names the worker and the fiber that it runs, with the words of [`fiber::describe`](crate::fiber::describe). Other
    /// lines name fibers of other workers that wait for a lock of [`sync`](crate::sync) that it holds. On Linux a line names each
    /// fiber of the worker that refers to the std lock that the worker waits for, and the worker's backtrace follows.
    ///
    /// Unless set, it is what the environment variable `OSIER_WATCHDOG` says (`1s`, `500ms`, `off`). Without the variable it is 1 s
    /// in debug builds and for ever in release builds.
    ///
    /// The watchdog is one thread for the process. It looks at each worker four times in this time, and stays. For the
    /// backtrace it interrupts the worker with SIGURG, once for each report.
    #[cfg(feature = "inspect")]
    pub fn watchdog(mut self, limit: Option<Duration>) -> Builder {
        self.watchdog = limit;
        self
    }

    /// Sets whether each fiber's stack is measured when it ends, for
    /// [`WorkerMetrics::stack_depths`](crate::inspect::WorkerMetrics::stack_depths). It is not unless set.
    ///
    /// The measurement is for development: it costs each fiber two system calls and the page faults of a fresh stack,
    /// some microseconds.
    pub fn measure_stacks(mut self, measure: bool) -> Builder {
        self.settings.measure_stacks = measure;
        self
    }

    /// Takes every time from this clock instead of the machine's. It is for tests, which then need not wait.
    ///
    /// ```
    /// use osier::time::VirtualClock;
    /// use std::time::Duration;
    ///
    /// let runtime = osier::Runtime::builder().clock(VirtualClock::new()).build()?;
    /// let slow = || osier::sleep(Duration::from_secs(3600));
    /// let outcome = runtime.run(|| osier::timeout(Duration::from_secs(60), slow));
    /// assert!(outcome.is_err());
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "start_paused")]
    pub fn clock(mut self, clock: VirtualClock) -> Builder {
        self.settings.clock = Some(clock);
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for no workers or more than a runtime can have, and for a name with a NUL; the system's errors for
    /// threads, descriptors and memory.
    pub fn build(self) -> io::Result<Runtime> {
        let workers = self
            .workers
            .unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get));
        if workers == 0 || workers > Idle::MAX_WORKERS {
            let limit = Idle::MAX_WORKERS;
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{workers} workers: a runtime has 1 to {limit}; set Builder::workers"),
            ));
        }
        let name = &self.settings.name;
        if name.contains('\0') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the name {name:?}: a thread's name has no NUL; set Builder::name"),
            ));
        }
        #[cfg(feature = "inspect")]
        panics::name_the_fiber();
        share_heaps();
        let threads = Threads::start(&self.settings, workers, self.watch()?, describe)?;
        Ok(Runtime { threads })
    }

    /// Starts the watchdog if it is wanted. The function that is returned makes it watch a worker.
    #[cfg(feature = "inspect")]
    fn watch(&self) -> io::Result<impl Fn(&'static Remote) -> Option<watchdog::Watch> + Clone + Send + use<>> {
        let limit = self.watchdog;
        if limit.is_some() {
            watchdog::start()?;
        }
        Ok(move |remote| limit.map(|limit| watchdog::watch(remote, limit)))
    }

    #[cfg(not(feature = "inspect"))]
    fn watch(&self) -> io::Result<fn(&'static Remote) -> Option<std::convert::Infallible>> {
        Ok(|_| None)
    }
}

#[cfg(feature = "inspect")]
fn describe(remote: &Remote) -> String {
    let work = watchdog::work(remote);
    format!("{work}; {}", work.advice())
}

#[cfg(not(feature = "inspect"))]
fn describe(_: &Remote) -> String {
    "a fiber, a task or a callback that does not return; let osier::unblock() run what blocks, and call \
     osier::fiber::give_way() in what computes"
        .into()
}
