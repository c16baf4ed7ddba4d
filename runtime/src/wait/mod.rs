//! Waiting, in one place: polls a leaf until it is ready, and between polls suspends the fiber or blocks the thread.
//!
//! Every blocking call of the runtime ends in [`wait`]. The leaf registers the waker that it is given and nothing else.
//! Its effect happens in the poll that returns `Ready`. A call on a fiber takes this way:
//!
//! ```text
//!   checkpoint ─▶ poll ─▶ Ready ─▶ count the call ─▶ return              (no clock, no lock, no allocation)
//!                  │
//!               Pending ─▶ hooks, checkpoint, arm timers ─▶ suspend ─▶ poll ─▶ checkpoint ─▶ deadline ─▶ again
//! ```
//!
//! A checkpoint looks whether the fiber is cancelled. Calls that are ready at once are counted, and after many in a row the fiber
//! yields: otherwise a fiber whose calls never wait would keep the worker from all others.

pub(crate) mod block_on;
pub(crate) mod cancel;
pub(crate) mod descriptor;
pub(crate) mod driver;
pub(crate) mod flag;
pub(crate) mod leaf;
pub(crate) mod sleep;
pub(crate) mod socket;

use std::future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use crate::wait::cancel::Cancelled;
use crate::wait::socket::{Direction, Entry, Waiting};
use crate::worker::Worker;
use crate::worker::context::{self, Anchor, Caller};
use crate::worker::core::Core;

/// The description of a suspended fiber's wait, for a dump.
pub(crate) struct Waits<'a> {
    /// The name of the closure that polls, and so of the function that waits. Empty when the fiber has yielded.
    pub(crate) leaf: &'static str,
    pub(crate) on: Option<Socket<'a>>,
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
}

/// A socket that a fiber waits for.
#[derive(Clone, Copy)]
pub(crate) struct Socket<'a> {
    pub(crate) entry: &'static Entry,
    pub(crate) fd: BorrowedFd<'a>,
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
pub(crate) const NOT_HERE: &str = "blocking call inside a future or callback: use spawn or unblock";

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
    match context::here(&Anchor) {
        Caller::Fiber(core, worker) => on_fiber(core, worker, deadline, Grace::Ends, on, poll),
        Caller::Worker => between_fibers(poll),
        Caller::Thread => on_thread(deadline, poll),
    }
}

/// Waits as [`wait`] does, also for longer than the grace period. This is for calls that have no error to end with, and
/// must not panic in the destructor of a fiber that unwinds.
#[inline(always)]
pub(crate) fn wait_without_grace<T>(
    deadline: Option<Instant>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, Stop> {
    match context::here(&Anchor) {
        Caller::Fiber(core, worker) => on_fiber(core, worker, deadline, Grace::GoesOn, None, poll),
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

/// Waits for a leaf whose call has no error. A cancellation unwinds, and a wrong place panics.
#[inline(always)]
pub(crate) fn wait_or_unwind<T>(deadline: Option<Instant>, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    match wait_without_grace(deadline, poll) {
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

#[inline(always)]
fn on_fiber<T>(
    core: &Core<'_>,
    worker: &Worker,
    deadline: Option<Instant>,
    grace: Grace,
    on: Option<Socket<'_>>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, Stop> {
    // A call without an error cannot report a request while a destructor makes the call.
    let deaf = || grace == Grace::GoesOn && thread::panicking();
    if !deaf() {
        core.check(worker, Waiting::NotYet)?;
    }
    let waker = core.word.waker();
    let mut cx = Context::from_waker(&waker);
    if let Poll::Ready(value) = poll(&mut cx) {
        worker.count_ready_call(core);
        return Ok(value);
    }
    let since = worker.now();
    let entry = on.map(|on| on.entry);
    let mut timer: Option<FiberTimer<'_>> = None;
    let mut armed_for = None;
    let mut armed = false;
    loop {
        // The hooks run before every suspension, not only the first: a hook may wait for wake-ups of its own, which
        // this one used up. A hook may suspend, and then the registered wake-up may have come meanwhile.
        if core.run_hooks()
            && let Poll::Ready(value) = poll(&mut cx)
        {
            return Ok(value);
        }
        if !deaf() {
            core.check(worker, Waiting::For(entry))?;
        }
        if !armed {
            armed = true;
            if let Some(extra) = core.extra_if_any() {
                extra.frames.arm(core.word, worker);
            }
        }
        // Asked each time: the request may come while a destructor waits.
        let end_of_grace = match grace == Grace::Ends && thread::panicking() {
            true => core.extra().frames.grace(core.root_requested(worker), worker),
            false => None,
        };
        let due = [deadline, end_of_grace].into_iter().flatten().min();
        if due != armed_for {
            armed_for = due;
            timer = due.map(|due| FiberTimer {
                worker,
                key: worker.arm(due, core.word),
            });
        }
        core.suspend(|| Waits {
            leaf: std::any::type_name_of_val(&poll),
            on,
            deadline,
            since: Some(since),
        });
        if let Poll::Ready(value) = poll(&mut cx) {
            return Ok(value);
        }
        if timer.as_ref().is_some_and(|timer| worker.has_fired(timer.key)) {
            if !deaf() {
                core.check(worker, Waiting::For(entry))?;
            }
            return Err(Stop::Elapsed);
        }
    }
}

/// A timer of a wait. It is disarmed however the wait ends.
struct FiberTimer<'a> {
    worker: &'a Worker,
    key: osier_queue::Key,
}

impl Drop for FiberTimer<'_> {
    fn drop(&mut self) {
        self.worker.disarm(self.key);
    }
}

#[cold]
fn between_fibers<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T, Stop> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err(Stop::NotHere),
    }
}

#[cold]
fn on_thread<T>(deadline: Option<Instant>, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T, Stop> {
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
    // Inside tokio's `block_on` the thread has a budget that only tokio refills. Once it is spent, tokio's leaves would
    // never be ready.
    let mut leaf = pin!(tokio::task::unconstrained(future::poll_fn(poll)));
    loop {
        if let Poll::Ready(value) = leaf.as_mut().poll(&mut cx) {
            return Ok(value);
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(left) if left.is_zero() => return Err(Stop::Elapsed),
            Some(left) => thread::park_timeout(left),
        }
    }
}
