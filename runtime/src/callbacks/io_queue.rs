//! The I/O queue: a driver with its own poller. Its requests call a callback when they end.
//!
//! ```text
//!   iterate:   sleep in the poller ─▶ dispatch readiness ─▶ fire timers ─▶ run the callbacks that are queued by now
//! ```
//!
//! # Protocol
//! - The queue claims a [`Remote`], as a worker does. While a thread iterates the queue, it is the thread of that
//!   remote, and announces its sleep to the parker. A thread that queues a callback, sets an earlier timer or
//!   [notifies](Handle::notify) then rings, which ends that sleep.
//! - `registry` has the outstanding requests. Once it is not `open`, no request enters. Requests taken from it
//!   afterwards are therefore all that there are.
//! - A drop closes the registry, joins the pool's threads, ends the queued and then the registered requests on the
//!   dropping thread, and gives the remote back. Handles that are left refuse requests and do not touch the remote.

use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use osier_poll::{Events, Interest, Poller};
use osier_queue::tick_at;
use slab::Slab;

use super::registry::{QueueState, Registry};
use super::request::{Awaiting, Request};
use super::run_queue::{Queued, Run, RunQueue};
use super::{CancelHandle, Refused, Status};
use crate::sync::Mailbox;
use crate::wait::Stop;
use crate::wait::driver::each;
use crate::wait::{entry, pool};
use crate::worker::context::{self, Caller};
use crate::worker::remote::Remote;
use crate::worker::threads::Claim;

/// The most events that one iteration takes.
const EVENTS_MAX: usize = 256;

/// A handle of a queue, which makes requests. A clone costs a reference count. A handle does not keep the queue
/// alive, so callbacks may hold one.
#[derive(Clone)]
pub struct Handle(Arc<QueueState>);

impl Handle {
    pub(super) fn shared(&self) -> &Arc<QueueState> {
        &self.0
    }

    /// Interrupts the thread that [iterates](IoQueue::iterate), or keeps the next iteration from waiting. Several
    /// calls before that count as one.
    ///
    /// Callbacks and the events of this queue's requests notify by themselves.
    pub fn notify(&self) {
        if self.is_open() {
            self.0.work.notify();
        }
    }

    /// Whether the queue accepts requests.
    pub fn is_open(&self) -> bool {
        self.0.registry().open
    }

    /// Runs `call` as soon as possible, as [`RunQueue::submit`] does.
    ///
    /// # Errors
    ///
    /// [`Refused`] once the queue is shut down.
    pub fn submit(&self, call: impl FnOnce(Status) + Send + 'static) -> Result<(), Refused> {
        self.0.work.submit(call)
    }

    /// Waits for a future. The callback gets its output, or `None` if the request ended before the future was ready.
    ///
    /// The threads that run callbacks poll the future; the calling thread polls it first. If it panics, the callback
    /// gets [`Status::Cancelled`]. As in a task, code in it must await and not block: a blocking call panics on a
    /// worker.
    ///
    /// ```
    /// use osier::callbacks::{IoQueue, Status};
    /// use osier::sync::Event;
    /// use std::sync::{Arc, mpsc};
    ///
    /// let queue = IoQueue::new(0)?;
    /// let event = Arc::new(Event::new());
    /// let (sender, receiver) = mpsc::channel();
    /// let waited = Arc::clone(&event);
    /// queue.when(async move { waited.wait_async().await }, move |status, _| sender.send(status).unwrap())?;
    /// event.set();
    /// queue.iterate()?;
    /// assert_eq!(receiver.try_recv(), Ok(Status::Done));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`] once the queue is shut down.
    pub fn when<F, C>(&self, future: F, callback: C) -> Result<CancelHandle, Refused>
    where
        F: Future<Output: Send> + Send + 'static,
        C: FnOnce(Status, Option<F::Output>) + Send + 'static,
    {
        let work = Awaiting::new(future, callback);
        Request::new(&self.0).begin(work).map_err(|refused| refused.map(drop))
    }

    /// Waits until at least one flag of `set` is raised. The callback gets the state that satisfied the wait. The
    /// flags stay raised.
    ///
    /// # Errors
    ///
    /// [`Refused`] once the queue is shut down.
    pub fn wait_any<C>(&self, mailbox: &Arc<Mailbox>, set: u32, callback: C) -> Result<CancelHandle, Refused>
    where
        C: FnOnce(Status, Option<u32>) + Send + 'static,
    {
        let mailbox = Arc::clone(mailbox);
        self.when(async move { mailbox.wait_any_async(set).await }, callback)
    }

    /// Waits until all flags of `set` are raised. The callback gets the state that satisfied the wait. The flags stay
    /// raised.
    ///
    /// # Errors
    ///
    /// [`Refused`] once the queue is shut down.
    pub fn wait_all<C>(&self, mailbox: &Arc<Mailbox>, set: u32, callback: C) -> Result<CancelHandle, Refused>
    where
        C: FnOnce(Status, Option<u32>) + Send + 'static,
    {
        let mailbox = Arc::clone(mailbox);
        self.when(async move { mailbox.wait_all_async(set).await }, callback)
    }
}

osier_queue::impl_debug!(Handle, self => { open: self.is_open() });

/// A queue of requests and their callbacks: timers, descriptors, mailboxes, any future.
///
/// It does nothing by itself: a thread or a fiber has to [`iterate`](IoQueue::iterate). Requests are made with its
/// [`Handle`], to which it dereferences. The [module](super) says what all requests promise.
///
/// Dropping it waits for the callbacks that run on its threads. It then calls the callbacks of all outstanding
/// requests with [`Status::Shutdown`] on the dropping thread. [`shutdown`](IoQueue::shutdown) is the graceful way.
pub struct IoQueue {
    handle: Handle,
    run_queue: RunQueue,
    poller: Arc<Poller>,
    iterating: AtomicBool,
    /// Tick 0 of its timers, in real time.
    epoch: Instant,
    /// Dropped last: the requests that are ended before may still use the driver.
    claim: Claim,
}

impl IoQueue {
    /// Makes a queue with this many threads for its callbacks. The thread that iterates runs callbacks too, and all
    /// of them if there are no such threads.
    ///
    /// # Errors
    ///
    /// The system's error for descriptors and threads.
    pub fn new(background_threads: usize) -> io::Result<IoQueue> {
        let poller = Arc::new(Poller::new()?);
        let epoch = Instant::now();
        let Some(remote) = Remote::claim(Arc::clone(&poller), epoch) else {
            return Err(io::Error::other("a process has at most 4096 workers and I/O queues"));
        };
        let claim = Claim(remote);
        let run_queue = RunQueue::of(remote, background_threads)?;
        let handle = Handle(Arc::new(QueueState {
            remote,
            work: Arc::clone(run_queue.work()),
            registry: Mutex::new(Registry {
                open: true,
                requests: Slab::new(),
            }),
        }));
        Ok(IoQueue {
            handle,
            run_queue,
            poller,
            iterating: AtomicBool::new(false),
            epoch,
            claim,
        })
    }

    /// Makes one pass: waits until there is something to do, takes events, expires timers, and runs the callbacks
    /// that are queued by then.
    ///
    /// It also returns when [notified](Handle::notify) and after a callback has run on another thread, so that the
    /// caller can check its own condition. [`run_until`](IoQueue::run_until) does that for any future.
    ///
    /// # Suspends
    ///
    /// Always, on a fiber. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call, or an unwind. No event is lost.
    ///
    /// # Errors
    ///
    /// - `ResourceBusy` while another thread or fiber iterates.
    /// - `WouldBlock` on a worker outside of a fiber, if it would have to wait.
    /// - The system's error for the poller.
    pub fn iterate(&self) -> io::Result<()> {
        self.turn(None)
    }

    /// Iterates until `future` is ready: a mailbox's flag, an event, a channel. The future's waker ends the wait. As
    /// in a task, code in it must await and not block: a blocking call panics on a worker.
    ///
    /// ```
    /// use osier::callbacks::IoQueue;
    /// use osier::sync::Mailbox;
    ///
    /// let (queue, stop) = (IoQueue::new(1)?, Mailbox::new());
    /// std::thread::scope(|threads| {
    ///     threads.spawn(|| stop.raise(0b1));
    ///     queue.run_until(stop.wait_any_async(Mailbox::ALL))
    /// })?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Suspends
    ///
    /// The same as [`iterate`](IoQueue::iterate). Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The errors of [`iterate`](IoQueue::iterate).
    pub fn run_until<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::clone(&self.handle.0));
        let mut cx = Context::from_waker(&waker);
        loop {
            let polled = context::with_driver(self.claim.0, || future.as_mut().poll(&mut cx));
            if let Poll::Ready(value) = polled {
                return Ok(value);
            }
            self.turn(None)?;
        }
    }

    /// The longest time that the queue may go without an iteration. Zero if something is due or it was
    /// [notified](Handle::notify), `None` if no timer is set.
    pub fn next_deadline(&self) -> Option<Duration> {
        if self.has_work() {
            return Some(Duration::ZERO);
        }
        let next = self.next_timer()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Whether the next iteration must not wait.
    fn has_work(&self) -> bool {
        let work = self.run_queue.work();
        work.notified.load(Ordering::Acquire) || work.len() > 0
    }

    fn next_timer(&self) -> Option<Instant> {
        let tick = self.claim.0.timers.next()?;
        Some(self.epoch + Duration::from_millis(tick))
    }

    /// The queue of its callbacks. Threads may submit calls to it and help to run them.
    pub fn run_queue(&self) -> &RunQueue {
        &self.run_queue
    }

    /// The number of outstanding requests.
    pub fn pending(&self) -> usize {
        self.handle.0.registry().requests.len()
    }

    /// Shuts the queue down gracefully: refuses new requests, ends all outstanding ones early, and iterates until
    /// every callback has returned. Each callback gets [`Status::Shutdown`], unless its event has happened before.
    ///
    /// A second call waits longer.
    ///
    /// # Suspends
    ///
    /// The same as [`iterate`](IoQueue::iterate). Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// `TimedOut` if callbacks still run after `timeout`. A call from inside a callback always ends so. Also the
    /// errors of [`iterate`](IoQueue::iterate).
    pub fn shutdown(&self, timeout: Duration) -> io::Result<()> {
        let outstanding: Vec<_> = {
            let registry = self.handle.0.close();
            registry
                .requests
                .iter()
                .map(|(_, request)| Arc::clone(request))
                .collect()
        };
        self.run_queue.work().close();
        outstanding.into_iter().for_each(Run::close);
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // The order matters: a request that leaves the registry is already running.
            let (pending, busy) = (self.pending(), self.run_queue.work().busy());
            if pending + busy == 0 {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let left = format!("{busy} callbacks have not returned within {timeout:?} of the shutdown");
                return Err(io::Error::new(io::ErrorKind::TimedOut, left));
            }
            self.turn(deadline)?;
        }
    }

    /// Iterates once, and waits no longer than until `limit`.
    fn turn(&self, limit: Option<Instant>) -> io::Result<()> {
        let iterating = Iterating::begin(self)?;
        let remote = self.claim.0;
        remote.parker.prepare();
        // A thread that pushes or notifies after this look sees the announced sleep, and rings.
        let until = match self.has_work() {
            true => Some(self.epoch),
            false => [limit, self.next_timer()].into_iter().flatten().min(),
        };
        self.wait(until)?;
        let work = self.run_queue.work();
        // Acquires the effects of the callbacks: the caller looks at them when this returns.
        work.notified.swap(false, Ordering::AcqRel);
        drop(iterating);
        remote.timers.fire(tick_at(self.epoch.elapsed()));
        work.dispatch_round();
        Ok(())
    }

    /// Waits for the poller, no longer than until `until`, and dispatches its events.
    fn wait(&self, until: Option<Instant>) -> io::Result<()> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if context::caller(|caller| matches!(caller, Caller::Thread)) {
            return self.poll(left);
        }
        if left.is_some_and(|left| left.is_zero()) {
            // There is nothing to wait for. The yield gives the other fibers a turn and lets this worker's clock
            // advance.
            if context::caller(|caller| matches!(caller, Caller::Fiber(..))) {
                crate::yield_now();
            }
        } else if let Some(fd) = self.poller.fd() {
            match crate::io::ready(fd, Interest::READABLE, until) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                ready => drop(ready?),
            }
        } else {
            return self.poll_elsewhere(left);
        }
        self.poll(Some(Duration::ZERO))
    }

    fn poll(&self, timeout: Option<Duration>) -> io::Result<()> {
        thread_local! {
            /// Kept between iterations, to save the allocation.
            static EVENTS: Cell<Option<Events>> = const { Cell::new(None) };
        }
        let mut events = EVENTS.take().unwrap_or_else(|| Events::with_capacity(EVENTS_MAX));
        let polled = self.poller.wait(&mut events, timeout);
        self.claim.0.parker.unprepare();
        each(events.iter(), |event| entry::dispatch(self.claim.0, event));
        EVENTS.set(Some(events));
        polled.map(drop)
    }

    /// Waits on another thread, for a poller that has no descriptor.
    #[cold]
    fn poll_elsewhere(&self, timeout: Option<Duration>) -> io::Result<()> {
        /// Ends the other thread's wait when a cancellation unwinds this one.
        struct Interrupt<'a>(&'a Poller);
        impl Drop for Interrupt<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    let _ = self.0.notify();
                }
            }
        }
        if context::caller(|caller| matches!(caller, Caller::Worker)) {
            return Err(Stop::NotHere.into());
        }
        let _interrupt = Interrupt(&self.poller);
        let (poller, remote) = (Arc::clone(&self.poller), self.claim.0);
        // Not the crate's own `unblock`, which holds the caller's virtual clock: this wait is for the outside world.
        let polling = pool::try_spawn(move || {
            let mut events = Events::with_capacity(EVENTS_MAX);
            let polled = poller.wait(&mut events, timeout);
            // Dispatched on this thread: the caller may be gone.
            each(events.iter(), |event| entry::dispatch(remote, event));
            polled.map(drop)
        })?;
        crate::block_on(polling)
    }
}

impl Deref for IoQueue {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        drop(self.handle.0.close());
        // Queued requests first: their events have happened before.
        self.run_queue.stop().into_iter().for_each(Queued::shut_down);
        let outstanding = std::mem::take(&mut self.handle.0.registry().requests);
        outstanding.into_iter().for_each(|(_, request)| request.shut_down());
    }
}

osier_queue::impl_debug!(IoQueue, self => { pending: self.pending(), run_queue: self.run_queue });

/// A guard: one thread or fiber iterates until it is dropped.
struct Iterating<'a>(&'a IoQueue);

impl<'a> Iterating<'a> {
    fn begin(queue: &'a IoQueue) -> io::Result<Iterating<'a>> {
        if queue.iterating.swap(true, Ordering::Acquire) {
            let busy = "another thread or fiber iterates this queue: one at a time";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, busy));
        }
        Ok(Iterating(queue))
    }
}

impl Drop for Iterating<'_> {
    fn drop(&mut self) {
        // Here, so that it also happens when the wait fails or unwinds.
        self.0.claim.0.parker.unprepare();
        self.0.iterating.store(false, Ordering::Release);
    }
}
