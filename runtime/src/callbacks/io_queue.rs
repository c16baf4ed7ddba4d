//! The I/O queue: a driver with a poller of its own, and the callbacks of what its leaves wait for.
//!
//! ```text
//!   iterate:   sleep in the poller ─▶ dispatch readiness ─▶ fire timers ─▶ run the callbacks that are queued by now
//! ```
//!
//! # Protocol
//! - A [`Remote`] is claimed as a worker claims one. The thread that iterates is its thread for that long, and announces its sleep to
//!   the parker. A thread that queues a callback, sets an earlier timer or [notifies](Handle::notify) then rings.
//! - `registry` has the outstanding requests. Once it is not `open` none comes in, so the requests taken from it then are all.
//! - The end: the registry closes; the pool's threads are joined; queued requests, then registered ones, are ended on the
//!   thread that drops; the remote goes back. The rest of the queue refuses requests, and touches the remote no more.

use std::cell::Cell;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{fmt, io};

use osier_poll::{Events, Interest, Poller};
use osier_queue::tick_at;
use slab::Slab;

use super::registry::{Registry, Shared};
use super::request::{Awaiting, Request};
use super::run_queue::{Run, RunQueue, Task};
use super::{CancelHandle, Refused, Status};
use crate::sync::Mailbox;
use crate::wait::Stop;
use crate::wait::driver::each;
use crate::wait::socket;
use crate::worker::context::{self, Caller};
use crate::worker::remote::Remote;
use crate::worker::threads::Claim;

/// How many events one iteration takes at most.
const EVENTS_MAX: usize = 256;

/// A handle of a queue, which makes its requests. It costs a reference count and does not keep the queue, so callbacks may hold
/// it.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Handle {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Interrupts the thread that [iterates](IoQueue::iterate), or makes the next iteration not wait. Several before that
    /// count as one.
    ///
    /// There is no need to after a callback, nor after what completes a wait of this queue: those do it by themselves.
    pub fn notify(&self) {
        if self.is_open() {
            self.0.tasks.notify();
        }
    }

    /// Whether requests are still taken.
    pub fn is_open(&self) -> bool {
        self.0.registry().open
    }

    /// Runs `call` as soon as possible, as [`RunQueue::submit`].
    ///
    /// # Errors
    ///
    /// [`Refused`] once the queue is shut down.
    pub fn submit(&self, call: impl FnOnce(Status) + Send + 'static) -> Result<(), Refused> {
        self.0.tasks.submit(call)
    }

    /// Waits for any future, and calls `callback` with what it gave; `None` if it was not ready before the request ended. The
    /// callback face of whatever can be awaited.
    ///
    /// The future is polled on the threads that run callbacks, first on the calling one. If it panics the callback is told
    /// [`Status::Cancelled`]. As in a task it must await, not block: on a worker a blocking call in it panics.
    ///
    /// ```
    /// use osier::callbacks::{IoQueue, Status};
    /// use osier::sync::Event;
    /// use std::sync::{Arc, mpsc};
    ///
    /// let queue = IoQueue::new(0)?;
    /// let event = Arc::new(Event::new());
    /// let (told, heard) = mpsc::channel();
    /// let waited = Arc::clone(&event);
    /// queue.when(async move { waited.wait_async().await }, move |status, _| told.send(status).unwrap())?;
    /// event.set();
    /// queue.iterate()?;
    /// assert_eq!(heard.try_recv(), Ok(Status::Done));
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

    /// Calls back when a flag of `set` is raised, or more; with the state that satisfied the wait. The flags stay.
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

    /// Calls back when all flags of `set` are raised; with the state that satisfied the wait. The flags stay.
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

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("open", &self.is_open()).finish()
    }
}

/// Requests and their callbacks: timers, descriptors, mailboxes, any future.
///
/// It does nothing by itself: some thread, or fiber, has to [`iterate`](IoQueue::iterate). It dereferences to its [`Handle`], with which
/// requests are made. See the [module](super) for what all of them promise.
///
/// Dropping it waits for the callbacks that run on its threads, then calls those of everything that is outstanding with
/// [`Status::Shutdown`], on the thread that drops it. [`shutdown`](IoQueue::shutdown) ends it without haste.
pub struct IoQueue {
    handle: Handle,
    run_queue: RunQueue,
    poller: Arc<Poller>,
    iterating: AtomicBool,
    /// Tick 0 of its timers: it lives in the machine's time.
    epoch: Instant,
    /// Goes last: what is ended before may still touch the driver.
    claim: Claim,
}

impl IoQueue {
    /// A queue with that many threads for its callbacks; with none they run on the thread that iterates, which also runs
    /// some if there are.
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
        let handle = Handle(Arc::new(Shared {
            remote,
            tasks: Arc::clone(run_queue.tasks()),
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

    /// One pass: waits until there is something to do, and does it: takes events, expires timers, runs the callbacks that
    /// are queued then.
    ///
    /// It also returns when [notified](Handle::notify), and after a callback has run on another thread; so the caller may look each
    /// time whether it has what it iterates for. [`run_until`](IoQueue::run_until) does that for any future.
    ///
    /// # Suspends
    ///
    /// Always, on a fiber. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call, or unwinds; no event is lost.
    ///
    /// # Errors
    ///
    /// - `ResourceBusy` while another thread or fiber waits in here.
    /// - `WouldBlock` where it would have to wait on a worker but not on a fiber.
    /// - The system's error for the poller.
    pub fn iterate(&self) -> io::Result<()> {
        self.turn(None)
    }

    /// Iterates until `future` is ready: a mailbox's flag, an event, a channel. Completing it ends the wait by itself. As in a
    /// task it must await, not block: on a worker a blocking call in it panics.
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
    /// As [`iterate`](IoQueue::iterate). Blocks the thread when called on a plain one.
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

    /// How long the queue can do without an iteration; zero if something is due, `None` if nothing will be by itself.
    pub fn next_deadline(&self) -> Option<Duration> {
        match self.run_queue.tasks().len() {
            0 => {
                let next = self.next_timer()?;
                Some(next.saturating_duration_since(Instant::now()))
            }
            _ => Some(Duration::ZERO),
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let tick = self.claim.0.timers.next()?;
        Some(self.epoch + Duration::from_millis(tick))
    }

    /// The order of its callbacks; to submit to, or to help with.
    pub fn run_queue(&self) -> &RunQueue {
        &self.run_queue
    }

    /// How many requests are outstanding.
    pub fn pending(&self) -> usize {
        self.handle.0.registry().requests.len()
    }

    /// Ends the queue in good order: takes no new requests, hastens all that are outstanding, and iterates until every
    /// callback has returned. Each is told [`Status::Shutdown`], unless what it waits for had happened before.
    ///
    /// It may be called again, to wait longer.
    ///
    /// # Suspends
    ///
    /// As [`iterate`](IoQueue::iterate). Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// `TimedOut` when callbacks are still running after `timeout`, as always if it is called from one; otherwise as
    /// [`iterate`](IoQueue::iterate).
    pub fn shutdown(&self, timeout: Duration) -> io::Result<()> {
        let outstanding: Vec<_> = {
            let registry = self.handle.0.close();
            registry
                .requests
                .iter()
                .map(|(_, request)| Arc::clone(request))
                .collect()
        };
        self.run_queue.tasks().close();
        outstanding.into_iter().for_each(Run::close);
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // In this order: what leaves the registry is running from then on.
            let (pending, busy) = (self.pending(), self.run_queue.tasks().busy());
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

    /// An iteration that waits at most until `limit`.
    fn turn(&self, limit: Option<Instant>) -> io::Result<()> {
        let iterating = Iterating::begin(self)?;
        let remote = self.claim.0;
        remote.parker.prepare();
        // Whoever comes after this look sees the sleep announced, and rings.
        let tasks = self.run_queue.tasks();
        let nothing = !tasks.notified.load(Ordering::Acquire) && tasks.len() == 0;
        let until = match nothing {
            true => [limit, self.next_timer()].into_iter().flatten().min(),
            false => Some(self.epoch),
        };
        self.wait(until)?;
        // Acquires what was done before: the caller looks when this returns.
        tasks.notified.swap(false, Ordering::AcqRel);
        drop(iterating);
        remote.timers.fire(tick_at(self.epoch.elapsed()));
        tasks.dispatch_round();
        Ok(())
    }

    /// Waits for the poller, until `until` at most, and passes its events on.
    fn wait(&self, until: Option<Instant>) -> io::Result<()> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if context::caller(|caller| matches!(caller, Caller::Thread)) {
            return self.poll(left);
        }
        if left.is_some_and(|left| left.is_zero()) {
            // Nothing to wait for: but neighbours shall have their turn, and this worker's clock must go on.
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
            /// Kept from one iteration to the next.
            static EVENTS: Cell<Option<Events>> = const { Cell::new(None) };
        }
        let mut events = EVENTS.take().unwrap_or_else(|| Events::with_capacity(EVENTS_MAX));
        let polled = self.poller.wait(&mut events, timeout);
        self.claim.0.parker.unprepare();
        each(events.iter(), |event| socket::dispatch(self.claim.0, event));
        EVENTS.set(Some(events));
        polled.map(drop)
    }

    /// A poller without a descriptor is waited for on another thread.
    #[cold]
    fn poll_elsewhere(&self, timeout: Option<Duration>) -> io::Result<()> {
        /// Ends that wait when a cancellation unwinds this one.
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
        // Without a hold on the caller's clock: it waits for the outside.
        let polling = blocking::unblock(move || {
            let mut events = Events::with_capacity(EVENTS_MAX);
            let polled = poller.wait(&mut events, timeout);
            // Here, since nobody may be left to hand them to.
            each(events.iter(), |event| socket::dispatch(remote, event));
            polled.map(drop)
        });
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
        // What is queued has happened first.
        self.run_queue.stop().into_iter().for_each(Task::shut_down);
        let outstanding = std::mem::take(&mut self.handle.0.registry().requests);
        outstanding.into_iter().for_each(|(_, request)| request.shut_down());
    }
}

impl fmt::Debug for IoQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoQueue")
            .field("pending", &self.pending())
            .field("run_queue", &self.run_queue)
            .finish()
    }
}

/// The one who iterates, until dropped.
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
        // Also when its wait fails, or unwinds.
        self.0.claim.0.parker.unprepare();
        self.0.iterating.store(false, Ordering::Release);
    }
}
