//! Waiting, in one place: polls a leaf until it is ready, and between polls suspends the fiber or blocks the thread.
//!
//! Every blocking call of the runtime ends in [`wait`]; one that seldom waits makes an attempt before it (`at_once`). The leaf
//! registers the waker that it is given and nothing else. Its effect happens in the poll that returns `Ready`. A call on a
//! fiber takes this way:
//!
//! ```text
//!   checkpoint ─▶ poll ─▶ Ready ─▶ count the call ─▶ return              (no clock, no lock, no allocation)
//!                  │
//!               Pending ─▶ hooks, checkpoint, arm timers ─▶ suspend ─▶ poll ─▶ checkpoint ─▶ deadline ─▶ again
//! ```
//!
//! A checkpoint looks whether the fiber is cancelled. Calls that are ready at once are counted, and after many in a row the fiber
//! yields: otherwise a fiber whose calls never wait would keep the worker from all others. A wait for a future is counted before its poll.

pub(crate) mod alarm;
pub(crate) mod block_on;
pub(crate) mod budget;
pub(crate) mod cancel;
pub(crate) mod descriptor;
pub(crate) mod driver;
pub(crate) mod entry;
pub(crate) mod fd;
pub(crate) mod flag;
#[cfg(feature = "sync")]
pub(crate) mod holder;
pub(crate) mod leaf;
pub(crate) mod pool;
#[cfg_attr(feature = "sim", path = "../sim/endpoint.rs")]
#[cfg_attr(not(feature = "sim"), path = "no_simulated.rs")]
pub(crate) mod simulated;
pub(crate) mod sleep;
pub(crate) mod socket;

use std::future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use crate::wait::cancel::Cancelled;
use crate::wait::entry::Entry;
use crate::wait::fd::Fd;
#[cfg(feature = "sync")]
use crate::wait::holder::Holder;
use crate::wait::socket::{Direction, Waiting};
use crate::worker::Worker;
use crate::worker::context::{self, Anchor, Caller};
use crate::worker::core::Core;
use crate::worker::meter::Activity;

/// The description of a suspended fiber's wait, for a dump.
pub(crate) struct Waits<'a> {
    /// The name of the closure that polls, and so of the function that waits. Empty when the fiber has yielded.
    pub(crate) leaf: &'static str,
    pub(crate) on: Option<On<'a>>,
    pub(crate) deadline: Option<Instant>,
    /// The time of the turn in which the fiber began to wait.
    pub(crate) since: Option<Instant>,
}

impl Waits<'_> {
    pub(crate) fn nothing() -> Self {
        Waits {
            leaf: "",
            on: None,
            deadline: None,
            since: None,
        }
    }

    /// The activity that a meter counts for this wait.
    pub(crate) fn activity(&self) -> Activity {
        match self.on {
            _ if self.leaf.is_empty() => Activity::Ready,
            Some(On::Socket(_)) => Activity::Network,
            #[cfg(feature = "sync")]
            Some(On::Lock(_)) => Activity::Lock,
            #[cfg(feature = "sync")]
            Some(On::Permit) => Activity::Lock,
            #[cfg(feature = "fs")]
            Some(On::Disk) => Activity::Disk,
            Some(On::Time) => Activity::Sleep,
            None => Activity::Other,
        }
    }

    /// The holder of the lock that this is a wait for, as the lock notes it; 0 for nobody.
    #[cfg(feature = "inspect")]
    pub(crate) fn holder(&self) -> Option<u64> {
        match self.on {
            #[cfg(feature = "sync")]
            Some(On::Lock(holder)) => Some(holder.id()),
            _ => None,
        }
    }
}

/// The thing that a fiber waits for, where its call knows one.
#[derive(Clone, Copy)]
pub(crate) enum On<'a> {
    Socket(Socket<'a>),
    /// A lock, by the note of its holder.
    #[cfg(feature = "sync")]
    Lock(&'a Holder),
    /// A permit of a semaphore.
    #[cfg(feature = "sync")]
    Permit,
    /// A file.
    #[cfg(feature = "fs")]
    Disk,
    /// A point in time.
    Time,
}

/// A socket that a fiber waits for.
#[derive(Clone, Copy)]
pub(crate) struct Socket<'a> {
    pub(crate) entry: &'static Entry,
    pub(crate) fd: Fd<'a>,
    pub(crate) direction: Direction,
}

/// The reason why a wait ended without its leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Cancelled,
    Elapsed,
    /// The call was made on a worker but not on a fiber. Waiting there would stop everybody.
    NotHere,
}

/// The error text of a call that would have to wait on a worker but not on a fiber.
pub(crate) const NOT_HERE: &str =
    "blocking call inside a future, callback or coroutine: await its _async twin, or spawn a fiber for it";

impl From<Stop> for io::Error {
    fn from(stop: Stop) -> io::Error {
        match stop {
            Stop::Cancelled => Cancelled.into(),
            Stop::Elapsed => io::Error::new(io::ErrorKind::TimedOut, "the deadline passed"),
            Stop::NotHere => io::Error::new(io::ErrorKind::WouldBlock, NOT_HERE),
        }
    }
}

/// Waits until `poll` is ready, at most until `deadline`.
///
/// A wait for a socket passes it in `on`: the socket's half-close is no reason to cancel this very wait.
#[inline(always)]
pub(crate) fn wait<T>(
    deadline: Option<Instant>,
    on: Option<Socket<'_>>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, Stop> {
    match context::here(&Anchor::new()) {
        Caller::Fiber(core, worker) => {
            let on = on.map(On::Socket);
            on_fiber(core, worker, deadline, Grace::Ends, on, Count::IfReady, poll)
        }
        Caller::Worker => between_fibers(poll),
        Caller::Thread => on_thread(deadline, poll),
    }
}

/// Waits as [`wait`] does, also for longer than the grace period. This is for calls that have no error to end with, and
/// must not panic in the destructor of a fiber that unwinds.
#[inline(always)]
pub(crate) fn wait_without_grace<T>(
    deadline: Option<Instant>,
    on: Option<On<'_>>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, Stop> {
    match context::here(&Anchor::new()) {
        Caller::Fiber(core, worker) => on_fiber(core, worker, deadline, Grace::GoesOn, on, Count::IfReady, poll),
        Caller::Worker => between_fibers(poll),
        Caller::Thread => on_thread(deadline, poll),
    }
}

/// The effect of the end of the grace period on a wait of a cancelled fiber that unwinds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grace {
    Ends,
    GoesOn,
}

/// When a call that does not wait is counted. The fiber may yield then.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    IfReady,
    Done,
}

/// Waits for a leaf whose call has no error. A cancellation unwinds, and a wrong place panics.
#[inline(always)]
pub(crate) fn wait_or_unwind<T>(deadline: Option<Instant>, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    unwind_if_stopped(wait_without_grace(deadline, None, poll))
}

/// Waits as [`wait_or_unwind`] does, for a future that may make many calls in one poll. On a fiber it has a [`budget`].
#[inline(always)]
pub(crate) fn wait_for_future<T>(
    deadline: Option<Instant>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    unwind_if_stopped(of_future(deadline, Grace::GoesOn, poll))
}

/// Waits as [`wait_for_future`] does, for a call that has an error.
#[inline(always)]
pub(crate) fn try_wait_for_future<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T, Stop> {
    of_future(None, Grace::Ends, poll)
}

#[inline(always)]
fn of_future<T>(
    deadline: Option<Instant>,
    grace: Grace,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, Stop> {
    match context::here(&Anchor::new()) {
        Caller::Fiber(core, worker) => {
            // Before the poll: the output may hold a lock of the thread, such as a borrow of `sync::watch`, with which the fiber must not yield.
            worker.count_ready_call(core);
            let _budget = budget::on_fiber(core);
            let mut poll = poll;
            on_fiber(core, worker, deadline, grace, None, Count::Done, |cx| {
                let before = core.has_suspended.replace(false);
                let polled = poll(cx);
                if core.has_suspended.get() && polled.is_pending() {
                    // A part of the future has suspended the fiber, which took the wake-up of the others.
                    worker.queue_fiber();
                }
                core.has_suspended.set(before || core.has_suspended.get());
                polled
            })
        }
        Caller::Worker => between_fibers(poll),
        Caller::Thread => on_thread(deadline, poll),
    }
}

/// Waits for a lock as [`wait_or_unwind`] does, and shows its holder meanwhile.
#[cfg(feature = "sync")]
#[inline(always)]
pub(crate) fn wait_for_lock<T>(holder: &Holder, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let locked = wait_without_grace(None, Some(On::Lock(holder)), poll);
    unwind_if_stopped(locked).expect("no deadline was set")
}

/// Waits for a permit of a semaphore as [`wait_or_unwind`] does.
#[cfg(feature = "sync")]
#[inline(always)]
pub(crate) fn wait_for_permit<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let permitted = wait_without_grace(None, Some(On::Permit), poll);
    unwind_if_stopped(permitted).expect("no deadline was set")
}

/// Makes an attempt that does not wait, as a wait makes its first. `None` says to wait.
///
/// It is for calls that seldom wait: the compiler inlines this one attempt, but not the several polls of a wait.
#[inline(always)]
#[cfg(feature = "sync")]
pub(crate) fn at_once<T>(attempt: impl FnOnce() -> Option<T>) -> Option<T> {
    let anchor = Anchor::new();
    let Caller::Fiber(core, worker) = context::here(&anchor) else {
        return attempt();
    };
    if !core.is_plain(worker) {
        return None; // the wait looks closer: a cancelled fiber does not even try
    }
    let done = attempt()?;
    worker.count_ready_call(core);
    Some(done)
}

/// Waits until `deadline`, or for ever.
#[inline(always)]
pub(crate) fn wait_until(deadline: Option<Instant>) {
    let elapsed = wait_without_grace::<()>(deadline, Some(On::Time), |_| Poll::Pending);
    unwind_if_stopped(elapsed);
}

/// Waits for a file as [`wait`] does.
#[cfg(feature = "fs")]
#[inline(always)]
pub(crate) fn wait_for_disk<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T, Stop> {
    match context::here(&Anchor::new()) {
        Caller::Fiber(core, worker) => on_fiber(core, worker, None, Grace::Ends, Some(On::Disk), Count::IfReady, poll),
        Caller::Worker => between_fibers(poll),
        Caller::Thread => on_thread(None, poll),
    }
}

#[inline(always)]
fn unwind_if_stopped<T>(waited: Result<T, Stop>) -> Option<T> {
    match waited {
        Ok(value) => Some(value),
        Err(Stop::Elapsed) => None,
        Err(Stop::Cancelled) => unwind(),
        Err(Stop::NotHere) => panic!("{NOT_HERE}"),
    }
}

/// Unwinds the fiber after [`Stop::Cancelled`].
#[cold]
pub(crate) fn unwind() -> ! {
    context::caller(|caller| match caller {
        Caller::Fiber(core, worker) => core.unwind(worker),
        _ => unreachable!("only a fiber is cancelled"),
    })
}

// Compiled once for each leaf. So everything that a plain fiber without a deadline does not need is in `Pause`.
#[inline(always)]
fn on_fiber<T>(
    core: &Core<'_>,
    worker: &Worker,
    deadline: Option<Instant>,
    grace: Grace,
    on: Option<On<'_>>,
    count: Count,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, Stop> {
    if !core.is_plain(worker) {
        grace.check(core, worker, Waiting::NotYet)?;
    }
    let waker = core.word.waker();
    let mut cx = Context::from_waker(&waker);
    if let Poll::Ready(value) = poll(&mut cx) {
        if count == Count::IfReady {
            worker.count_ready_call(core);
        }
        return Ok(value);
    }
    let mut pause = Pause::new(core, worker, deadline, grace, on);
    loop {
        // The hooks run before every suspension, not only the first: a hook may wait for wake-ups of its own, which
        // this one used up. If a hook has suspended, the registered wake-up may have come meanwhile. Otherwise there is no
        // such poll: it may be a user's future, which would find what the hooks have put away. (tokio's context is put away
        // in the switch itself.)
        if core.run_hooks()
            && let Poll::Ready(value) = poll(&mut cx)
        {
            core.goes_on();
            return Ok(value);
        }
        if deadline.is_some() || core.alarm.is_set() || !core.is_plain(worker) || thread::panicking() {
            pause.prepare()?;
        }
        core.suspend(|| pause.shown(std::any::type_name_of_val(&poll)));
        if pause.is_last {
            budget::last_poll();
        }
        if let Poll::Ready(value) = poll(&mut cx) {
            return Ok(value);
        }
        if let Some(due) = pause.due {
            pause.check_timer(due)?;
        }
    }
}

impl Grace {
    /// Delivers a cancellation, unless the call has no error and a destructor makes it: it cannot report a request then.
    fn check(self, core: &Core<'_>, worker: &Worker, waiting: Waiting) -> Result<(), Stop> {
        match self == Grace::GoesOn && thread::panicking() {
            true => Ok(()),
            false => core.check(worker, waiting),
        }
    }
}

/// A fiber's wait that is not over at the first poll: what it is cancelled by, and its timer.
struct Pause<'a> {
    core: &'a Core<'a>,
    worker: &'a Worker,
    deadline: Option<Instant>,
    grace: Grace,
    on: Option<On<'a>>,
    /// The time of the turn in which the fiber began to wait.
    since: Instant,
    /// The tick in which the wait ends.
    due: Option<u64>,
    /// Whether the timers of the frames are armed.
    armed: bool,
    /// Whether its time is over, and its future has one more turn because calls of it were refused.
    is_last: bool,
}

impl<'a> Pause<'a> {
    #[inline]
    fn new(
        core: &'a Core<'_>,
        worker: &'a Worker,
        deadline: Option<Instant>,
        grace: Grace,
        on: Option<On<'a>>,
    ) -> Pause<'a> {
        Pause {
            core,
            worker,
            deadline,
            grace,
            on,
            since: worker.now(),
            due: None,
            armed: false,
            is_last: false,
        }
    }

    /// Delivers a cancellation before a suspension, and arms the timers.
    #[inline(never)]
    fn prepare(&mut self) -> Result<(), Stop> {
        let Pause { core, worker, .. } = *self;
        self.check().inspect_err(|_| core.goes_on())?;
        if !self.armed {
            self.armed = true;
            if let Some(extra) = core.extra_if_any() {
                extra.frames.arm(core.word, worker);
            }
        }
        // Asked each time: the request may come while a destructor waits.
        let end_of_grace = match self.grace == Grace::Ends && thread::panicking() {
            true => core.extra().frames.grace(core.root_requested(worker), worker),
            false => None,
        };
        let due = [self.deadline, end_of_grace].into_iter().flatten().min();
        self.due = due.map(|due| worker.tick_after(due));
        core.alarm.set_for(self.due, core.word, worker);
        Ok(())
    }

    /// Ends the wait if its time has come. The alarm may have rung for an earlier wait.
    #[inline(never)]
    fn check_timer(&mut self, due: u64) -> Result<(), Stop> {
        if self.worker.tick() >= due {
            self.check()?;
            if self.core.has_budget.get() && self.worker.has_refused() && !self.is_last {
                self.is_last = true;
                return Ok(());
            }
            return Err(Stop::Elapsed);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Stop> {
        let entry = match self.on {
            Some(On::Socket(socket)) => Some(socket.entry),
            _ => None,
        };
        let waiting = Waiting::For(entry);
        self.grace.check(self.core, self.worker, waiting)
    }

    fn shown(&self, leaf: &'static str) -> Waits<'a> {
        Waits {
            leaf,
            on: self.on,
            deadline: self.deadline,
            since: Some(self.since),
        }
    }
}

#[cold]
fn between_fibers<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T, Stop> {
    match budget::without(|| poll(&mut Context::from_waker(Waker::noop()))) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err(Stop::NotHere),
    }
}

#[cold]
fn on_thread<T>(deadline: Option<Instant>, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T, Stop> {
    let mut value = None;
    let mut poll = |cx: &mut Context<'_>| {
        poll(cx).map(|ready| {
            value = Some(ready);
        })
    };
    // It may be the panic hook of a task.
    budget::without(|| block_thread(deadline, &mut poll))?;
    Ok(value.expect("the leaf was ready"))
}

/// Parks the thread until `poll` is ready.
fn block_thread(deadline: Option<Instant>, poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) -> Result<(), Stop> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }
    thread_local! {
        static WAKER: Waker = Arc::new(Unpark(thread::current())).into();
    }
    // While thread-locals are torn down there is no waker left, and a fresh one serves.
    let waker = WAKER
        .try_with(Waker::clone)
        .unwrap_or_else(|_| Arc::new(Unpark(thread::current())).into());
    let mut cx = Context::from_waker(&waker);
    let leaf = future::poll_fn(poll);
    // Inside tokio's `block_on` the thread has a budget that only tokio refills. Once it is spent, tokio's leaves would
    // never be ready.
    #[cfg(any(feature = "sync", feature = "tokio-io", feature = "tokio-rt"))]
    let leaf = tokio::task::unconstrained(leaf);
    let mut leaf = pin!(leaf);
    loop {
        if leaf.as_mut().poll(&mut cx).is_ready() {
            return Ok(());
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(left) if left.is_zero() => return Err(Stop::Elapsed),
            Some(left) => thread::park_timeout(left),
        }
    }
}
