//! A runtime: its workers, how it is built, how it ends.
//!
//! A [`Runtime`] is a value. Each worker is a thread of ours with a loop ([`crate::worker`]); [`Shared`] is what they have in
//! common: the queues of jobs that nobody has started, and who sleeps.
//!
//! | queue | filled by | taken by |
//! |---|---|---|
//! | `injector` | threads outside | any worker |
//! | `seats[i].arrivals` | anybody, for worker i | worker i |
//! | `seats[i].stealer` | worker i, which spawns | worker i, and others that have nothing to do |
//!
//! Those of tasks are in [`crate::worker::executor`].

pub mod embed;

use std::future::Future;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, io, panic};

use crossbeam_deque::{Injector, Steal, Stealer, Worker as Deque};
use osier_coro::stack;
use osier_poll::Poller;
use osier_queue::Idle;

use crate::fiber::scope;
use crate::future::Task;
use crate::inspect::{self, Dump, Metrics, watchdog};
use crate::runtime::embed::Local;
use crate::wait;
use crate::wait::socket;
use crate::worker::Worker;
use crate::worker::context;
use crate::worker::core::Header;
use crate::worker::desk::{self, Seat as Named};
use crate::worker::executor::{self, Runnable};
use crate::worker::isolate::isolate;
use crate::worker::packet::{self, Job, JoinHandle};
use crate::worker::remote::Remote;

/// What the workers of a runtime share.
pub(crate) struct Shared {
    seats: Box<[Seat]>,
    injector: Injector<Job>,
    /// Tasks that were woken by threads outside.
    pub(crate) tasks: Injector<Runnable>,
    pub(crate) idle: Idle,
    /// Set once, then every worker is rung.
    pub(crate) stopping: AtomicBool,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) stacks: stack::Config,
    pub(crate) measure_stacks: bool,
}

struct Seat {
    remote: &'static Remote,
    stealer: Stealer<Job>,
    arrivals: Injector<Job>,
    stealers: executor::Stealers,
    local_tasks: Injector<Runnable>,
}

impl Shared {
    pub(crate) fn workers(&self) -> usize {
        self.seats.len()
    }

    pub(crate) fn remotes(&self) -> impl Iterator<Item = &'static Remote> {
        self.seats.iter().map(|seat| seat.remote)
    }

    /// Queues a job for one worker.
    pub(crate) fn spawn_on(&self, index: usize, job: Job) {
        let seats = self.seats.len();
        let seat = self.seats.get(index);
        let seat = seat.unwrap_or_else(|| panic!("fiber for worker {index}, but the runtime's are 0 to {}", seats - 1));
        seat.arrivals.push(job);
        seat.remote.ring();
    }

    /// Queues a job for any worker, from outside.
    fn inject(&self, job: Job) {
        self.injector.push(job);
        self.wake_one();
    }

    /// After jobs were queued: wakes a sleeper to look for them, unless somebody is looking already.
    #[inline]
    pub(crate) fn wake_one(&self) {
        if let Some(index) = self.idle.wake_candidate() {
            self.seats[index].remote.ring();
        }
    }

    /// Whether anything waits that worker `index` could take.
    pub(crate) fn has_work(&self, index: usize) -> bool {
        !self.injector.is_empty()
            || !self.tasks.is_empty()
            || !self.seats[index].arrivals.is_empty()
            || !self.seats[index].local_tasks.is_empty()
            || self
                .others(index)
                .any(|seat| !seat.stealer.is_empty() || !seat.stealers.is_empty())
    }

    /// Takes some of the jobs from outside into a worker's deque, although that has others to run.
    pub(crate) fn take_injected(&self, fresh: &Deque<Job>) {
        if !self.injector.is_empty() {
            self.steal(|| self.injector.steal_batch(fresh));
        }
    }

    /// Hands over the jobs sent to worker `index`.
    pub(crate) fn arrivals(&self, index: usize, into: &mut impl FnMut(Job)) -> bool {
        let mut found = false;
        if self.seats[index].arrivals.is_empty() {
            return found;
        }
        loop {
            match self.seats[index].arrivals.steal() {
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
        let outside = self.steal(|| self.injector.steal_batch(fresh)) | self.steal(|| self.tasks.steal_batch(tasks));
        outside
            || self.others(index).any(|seat| {
                self.steal(|| seat.stealer.steal_batch(fresh)) | self.steal(|| seat.stealers.steal_into(tasks))
            })
    }

    /// Takes some of the tasks that others have woken: those from outside, and those that only worker `index` may poll.
    pub(crate) fn take_woken(&self, index: usize, queue: &executor::Queue) {
        if !self.tasks.is_empty() {
            self.steal(|| self.tasks.steal_batch(queue.deque()));
        }
        let local = &self.seats[index].local_tasks;
        while !local.is_empty() {
            if let Steal::Success(task) = local.steal() {
                queue.push_local(task);
            }
        }
    }

    pub(crate) fn local_tasks(&self, index: usize) -> &Injector<Runnable> {
        &self.seats[index].local_tasks
    }

    pub(crate) fn remote(&self, index: usize) -> &'static Remote {
        self.seats[index].remote
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

    /// The other seats, beginning behind `index`: so that not all thieves go to the same door.
    fn others(&self, index: usize) -> impl Iterator<Item = &Seat> {
        self.seats[index + 1..].iter().chain(&self.seats[..index])
    }
}

/// A set of workers, each a thread with an event loop, on which fibers run.
///
/// Dropping it shuts it down: every fiber is cancelled and joined, for at most the [`shutdown
/// timeout`](Builder::shutdown_timeout); then no thread, descriptor or fiber of it is left. A fiber that will not end by
/// then is reported, and its stack leaked. (Threads of the process-wide pool behind [`unblock`](crate::unblock) go when
/// they have been idle for a while.)
///
/// ```
/// let runtime = osier::Runtime::builder().workers(2).build()?;
/// let greeting = runtime.run(|| String::from("hello"));
/// let number = runtime.spawn(|| 42);
/// assert_eq!((greeting.as_str(), number.join().unwrap()), ("hello", 42));
/// # std::io::Result::Ok(())
/// ```
pub struct Runtime {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Hears from each worker when its loop has ended.
    ended: Mutex<mpsc::Receiver<()>>,
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
    /// As [`Builder::build`].
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
    /// With what `body` panics with; on a worker of any runtime, which must not block (use [`spawn`](crate::spawn) and join).
    #[track_caller]
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        assert!(
            context::worker(|_| ()).is_none(),
            "Runtime::run on a worker would block it: use osier::spawn(..).join(), or Runtime::spawn"
        );
        scope::run(body, |job| self.shared.inject(job))
    }

    /// Runs `body` on a new fiber of this runtime; from any thread.
    #[track_caller]
    pub fn spawn<F, T>(&self, body: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (job, handle) = packet::packet(Header::new(panic::Location::caller()), body);
        self.shared.inject(job);
        handle
    }

    /// Runs `future` as a task of this runtime; from any thread. As [`spawn_future`](crate::spawn_future).
    #[track_caller]
    pub fn spawn_future<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.shared.spawn_future(panic::Location::caller(), future)
    }

    /// The first worker's remote, as a driver for leaves.
    pub(crate) fn driver(&self) -> &'static Remote {
        self.shared.seats[0].remote
    }

    /// How many workers it has.
    pub fn workers(&self) -> usize {
        self.shared.workers()
    }

    /// The numbers of its workers: turns, queues, timers, fibers, latency. Costs the workers nothing.
    ///
    /// ```
    /// let runtime = osier::Runtime::builder().workers(1).build()?;
    /// runtime.run(|| osier::sleep(std::time::Duration::from_millis(5)));
    /// let metrics = runtime.metrics();
    /// assert!(metrics.workers[0].turns > 0 && metrics.workers[0].fibers_started == 1);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn metrics(&self) -> Metrics {
        inspect::metrics::of(self.shared.remotes())
    }

    /// As [`dump`](crate::dump()), of this runtime alone.
    ///
    /// # Suspends
    ///
    /// Until the workers have answered. # Blocks the thread when called on a plain one, in a future or in a callback.
    pub fn dump(&self) -> Dump {
        inspect::dump::gather(self.shared.remotes().collect())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.seats.iter().for_each(|seat| seat.remote.ring());
        // A worker ends soon after its deadline, unless one of its fibers never comes back to the loop.
        let limit = self.shared.shutdown_timeout.saturating_add(Duration::from_secs(1));
        let deadline = Instant::now().checked_add(limit);
        let ended = self.ended.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
                let left = deadline.map_or(limit, |deadline| deadline.saturating_duration_since(Instant::now()));
                // Each worker sends when it is done; which one does not matter.
                match ended.recv_timeout(left) {
                    Ok(()) => {}
                    Err(mpsc::RecvTimeoutError::Timeout) => break,
                    // All are done, and about to return.
                    Err(mpsc::RecvTimeoutError::Disconnected) => thread::yield_now(),
                }
            }
            if !thread.is_finished() {
                let name = thread.thread().name().unwrap_or("unnamed");
                eprintln!(
                    "osier: worker '{name}' runs a fiber that did not come back within {limit:?} of the shutdown; it is left behind"
                );
                continue;
            }
            if let Err(payload) = thread.join() {
                eprintln!("osier: a worker ended by a panic: {}", message(&*payload));
            }
        }
        // What was queued too late to be started is dropped here, and so cancelled.
        while !self.shared.injector.is_empty() {
            drop(self.shared.injector.steal());
        }
        while !self.shared.tasks.is_empty() {
            isolate(|| drop(self.shared.tasks.steal()));
        }
        // Of a task that did not end in time: it may be dropped on its own thread alone, which is gone.
        for seat in &self.shared.seats {
            while let Steal::Success(task) = seat.local_tasks.steal() {
                std::mem::forget(task);
            }
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("workers", &self.workers()).finish()
    }
}

fn message(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("its payload is not text")
}

/// Runs `body` on a fiber of a new runtime with one worker per core, and shuts the runtime down when it returns.
///
/// Fibers that are still running then are cancelled; what must be finished is to be joined before `body` returns.
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
/// # Blocks the thread
///
/// Until `body` has returned and every other fiber has ended.
///
/// # Panics
///
/// If the runtime cannot be built (use [`Runtime::builder`] to handle that), and with what `body` panics with.
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
pub struct Builder {
    workers: Option<usize>,
    name: String,
    pin: bool,
    stacks: stack::Config,
    shutdown_timeout: Duration,
    watchdog: Option<Duration>,
    measure_stacks: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            workers: None,
            name: "osier".into(),
            pin: false,
            stacks: stack::Config::default(),
            shutdown_timeout: Duration::from_secs(10),
            watchdog: cfg!(debug_assertions).then_some(Duration::from_secs(1)),
            measure_stacks: false,
        }
    }
}

impl Builder {
    /// How many workers, instead of one per available core.
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = Some(workers);
        self
    }

    /// The workers' threads are called `name-0`, `name-1` and so on.
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = name.into();
        self
    }

    /// Pins worker i to the i-th processor that this process may use.
    pub fn pin(mut self, pin: bool) -> Builder {
        self.pin = pin;
        self
    }

    /// Bytes of address space per fiber's stack, its guard included; 256 KiB unless set. Only touched pages cost memory.
    pub fn stack_bytes(mut self, bytes: usize) -> Builder {
        self.stacks.stack_bytes = bytes;
        self
    }

    /// How stacks are cut from memory.
    pub fn stacks(mut self, stacks: stack::Config) -> Builder {
        self.stacks = stacks;
        self
    }

    /// How long a shutdown waits for cancelled fibers to end; 10 s unless set.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Builder {
        self.shutdown_timeout = timeout;
        self
    }

    /// How long a worker may go without a turn of its loop before the watchdog writes a line to stderr that names it and the
    /// fiber that it runs; `None`: for ever. Unless set, 1 s in debug builds, and for ever in release builds.
    ///
    /// The watchdog is a thread, one for the process, that looks at each worker four times in this time and stays.
    pub fn watchdog(mut self, limit: Option<Duration>) -> Builder {
        self.watchdog = limit;
        self
    }

    /// Whether each fiber's stack is measured when it ends, for [`WorkerMetrics::stack_depths`](crate::inspect::WorkerMetrics::stack_depths);
    /// not unless set.
    ///
    /// It costs each fiber two system calls and the page faults of a fresh stack, some microseconds: for development.
    pub fn measure_stacks(mut self, measure: bool) -> Builder {
        self.measure_stacks = measure;
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for no workers or more than the runtime can have; what the system says of threads, descriptors
    /// and memory.
    pub fn build(self) -> io::Result<Runtime> {
        let workers = self
            .workers
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
        if workers == 0 || workers > Idle::MAX_WORKERS {
            let limit = Idle::MAX_WORKERS;
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{workers} workers: a runtime has 1 to {limit}; set Builder::workers"),
            ));
        }
        let (shared, vacancies) = self.prepare(std::iter::repeat_with(Poller::new).take(workers))?;
        let (ends, ended) = mpsc::channel();
        let mut runtime = Runtime {
            shared: Arc::clone(&shared),
            threads: Vec::with_capacity(workers),
            ended: Mutex::new(ended),
        };
        let (started, starts) = mpsc::channel();
        for (index, vacancy) in vacancies.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let started = started.clone();
            let ends = ends.clone();
            let pin = self.pin;
            let watchdog = self.watchdog;
            let name = vacancy.name.clone();
            let thread = thread::Builder::new().name(name).spawn(move || {
                if pin {
                    crate::worker::affinity::pin_thread(index);
                }
                match vacancy.fill(index, shared) {
                    Ok((worker, claim)) => {
                        let watch = watchdog.map(|limit| watchdog::watch(claim.0, limit));
                        // The builder may have given up; then the worker is told to stop.
                        let _ = started.send(Ok(()));
                        context::enter_worker(&worker, || worker.run());
                        drop(watch);
                        drop(worker);
                        drop(claim);
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
                // Nobody hears it if the runtime was not built to the end.
                let _ = ends.send(());
            });
            // Dropping the runtime ends those that run already.
            runtime.threads.push(thread?);
        }
        drop((started, ends));
        starts.iter().take(workers).collect::<io::Result<()>>()?;
        Ok(runtime)
    }

    /// A runtime without threads, to be run inside of this thread's own loop; of one worker, whatever
    /// [`workers`](Builder::workers) says.
    ///
    /// # Errors
    ///
    /// - `WouldBlock` on a worker, which it would stop.
    /// - `Unsupported` if no driver has a descriptor of its own here.
    /// - What the system says of descriptors and memory.
    pub fn build_local(self) -> io::Result<Local> {
        if context::worker(|_| ()).is_some() {
            return Err(wait::Stop::NotHere.into());
        }
        let mut poller = Poller::new()?;
        if poller.fd().is_none() {
            poller = Poller::with_driver(osier_poll::Driver::default())?;
        }
        if poller.fd().is_none() {
            let text = "an embedded runtime needs a poller with a descriptor, which there is none of here";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let (shared, vacancies) = self.prepare(std::iter::once(Ok(poller)))?;
        let vacancy = vacancies.into_iter().next().expect("one poller, one worker");
        let (worker, claim) = vacancy.fill(0, shared)?;
        Local::with(worker, claim, self.watchdog)
    }

    /// All that the workers need but threads: one for each poller.
    fn prepare(
        &self,
        pollers: impl ExactSizeIterator<Item = io::Result<Poller>>,
    ) -> io::Result<(Arc<Shared>, Vec<Vacancy>)> {
        wrap_panic_hook();
        let runtime = desk::next_runtime();
        let alone = pollers.len() == 1;
        let mut vacancies = Vec::new();
        let mut seats = Vec::new();
        for (index, poller) in pollers.enumerate() {
            let poller = Arc::new(poller?);
            let Some(remote) = Remote::claim(Arc::clone(&poller)) else {
                return Err(io::Error::other("more workers in this process than 4096"));
            };
            let claim = Claim(remote);
            let deque = Deque::new_fifo();
            let (tasks, stealers) = executor::Queue::new(alone);
            seats.push(Seat {
                remote,
                stealer: deque.stealer(),
                arrivals: Injector::new(),
                stealers,
                local_tasks: Injector::new(),
            });
            let name = format!("{}-{index}", self.name);
            remote.desk.open(Named {
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
            });
        }
        if self.watchdog.is_some() {
            watchdog::start()?;
        }
        let shared = Arc::new(Shared {
            seats: seats.into(),
            injector: Injector::new(),
            tasks: Injector::new(),
            idle: Idle::new(vacancies.len()),
            stopping: AtomicBool::new(false),
            shutdown_timeout: self.shutdown_timeout,
            stacks: self.stacks.clone(),
            measure_stacks: self.measure_stacks,
        });
        Ok((shared, vacancies))
    }
}

/// The place of a worker that is not there yet.
struct Vacancy {
    name: String,
    claim: Claim,
    poller: Arc<Poller>,
    deque: Deque<Job>,
    tasks: executor::Queue,
}

impl Vacancy {
    /// Its worker, to be made on its own thread. The claim is to go after that.
    fn fill(self, index: usize, shared: Arc<Shared>) -> io::Result<(Worker, Claim)> {
        let worker = Worker::new(index, shared, self.claim.0, self.poller, self.deque, self.tasks)?;
        Ok((worker, self.claim))
    }
}

/// A remote in use, by a worker or an I/O queue.
pub(crate) struct Claim(pub(crate) &'static Remote);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.desk.close();
        socket::forget_worker(self.0.id);
        self.0.release();
    }
}

/// Lets a blocking call know that it is made inside the panic hook: there it blocks the thread.
fn wrap_panic_hook() {
    static WRAPPED: Once = Once::new();
    WRAPPED.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            let before = context::set_panic_hook(true);
            let outcome = catch_unwind(AssertUnwindSafe(|| hook(info)));
            context::set_panic_hook(before);
            if let Err(payload) = outcome {
                resume_unwind(payload);
            }
        }));
    });
}
