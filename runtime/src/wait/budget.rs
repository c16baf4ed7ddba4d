//! The budget of a poll: how many calls a future may complete before it lets others run.
//!
//! A future gives its worker back only where it is pending. One whose calls are always ready, such as the reads of a socket that always has
//! bytes, would keep the worker for ever. So a leaf asks here before it is polled ([`poll`]). Once the future has completed many calls in this
//! poll, or has computed for long between them, the leaf *refuses*: it wakes its waker and is pending. It has done nothing, so no message is
//! lost, and the next poll goes on where this one was. A leaf that is refused at its first poll is in no queue yet: it takes its place at
//! the next one. [`poll_if`] is for leaves that can tell without an effect whether they are ready; those of tokio's `sync` cannot.
//!
//! ```text
//!   a poll begins ─▶ LEFT = CHUNK
//!   leaf ─▶ LEFT > 0 ─▶ poll it; if it is ready, LEFT -= 1               (one thread-local, no clock)
//!         └▶ LEFT = 0 ─▶ Worker::spend ─▶ LEFT = CHUNK and poll it, or refuse
//! ```
//!
//! | polled | budget |
//! |---|---|
//! | by a worker, for a task | [one for each poll](task_begins) |
//! | on a fiber, in `block_on`, `select!`, `join!` and the like | [one for each stretch](on_fiber) between two suspensions |
//! | where pending would be taken for "not ready" | none ([`without`]): `select!` with `default`, calls that never wait, calls that may not wait here |
//! | anywhere else: by another executor, a callback queue, a connection at rest | none: nobody knows here when they yield |
//!
//! `LEFT` says only when to look. The look itself finds out whether this place has a budget, so a number that somebody else has left there
//! does no harm.

use std::cell::Cell;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::worker::Worker;
use crate::worker::context::{self, Anchor, Caller};
use crate::worker::core::Core;

/// The calls between two looks at the budget.
const CHUNK: u8 = 8;
/// The same where there is no budget.
const CHUNK_WITHOUT: u8 = 128;

struct Budget {
    /// The calls until the next look; none if it is not positive.
    left: Cell<i32>,
    /// Whether the worker of this thread polls a task.
    in_task: Cell<bool>,
}

thread_local! {
    static BUDGET: Budget = const { Budget { left: Cell::new(0), in_task: Cell::new(false) } };
}

/// Polls a leaf, unless the budget of this poll is used up. Counts it if it is ready.
#[inline(always)]
pub(crate) fn poll<T>(cx: &mut Context<'_>, leaf: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    poll_if(cx, || true, leaf)
}

/// Polls as [`poll`] does. It refuses only what `is_ready`, so that a leaf which has to wait does so from its first poll on.
#[inline(always)]
pub(crate) fn poll_if<T>(
    cx: &mut Context<'_>,
    is_ready: impl FnOnce() -> bool,
    leaf: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    if BUDGET.with(|budget| budget.left.get() <= 0) && is_ready() && refuses(cx) {
        return Poll::Pending;
    }
    let polled = leaf(cx);
    if polled.is_ready() {
        BUDGET.with(|budget| budget.left.set(budget.left.get().wrapping_sub(1)));
    }
    polled
}

pin_project! {
    /// A leaf of other code that is polled as [`poll`] does.
    #[must_use = "a future does nothing until it is polled"]
    pub(crate) struct Counted<F> {
        #[pin]
        leaf: F,
    }
}

/// Makes a leaf of `leaf` that counts.
#[inline]
pub(crate) fn counted<F: Future>(leaf: F) -> Counted<F> {
    Counted { leaf }
}

/// A call that is ready, for code that has none of its own.
pub(crate) fn call() -> Counted<Ready<()>> {
    counted(ready(()))
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let leaf = self.project().leaf;
        poll(cx, |cx| leaf.poll(cx))
    }
}

/// Whether a leaf must be pending. Then its waker is woken: the next poll goes on.
#[cold]
#[inline(never)]
fn refuses(cx: &Context<'_>) -> bool {
    if wakes_nobody(cx) || goes_on() {
        return false;
    }
    cx.waker().wake_by_ref();
    true
}

/// Nobody waits behind a waker that wakes nobody, such as `Waker::noop`: pending would be a wrong answer. It has no data. Its table is not
/// the same everywhere in a program.
fn wakes_nobody(cx: &Context<'_>) -> bool {
    cx.waker().data().is_null()
}

fn goes_on() -> bool {
    let left = match with_budget(|worker| worker.spend(CHUNK)) {
        Some(true) => CHUNK,
        Some(false) => return false,
        None => CHUNK_WITHOUT,
    };
    BUDGET.with(|budget| budget.left.set(left.into()));
    true
}

/// Runs `with` on the worker if the poll in which this is has a budget.
fn with_budget<T>(with: impl FnOnce(&Worker) -> T) -> Option<T> {
    match context::here(&Anchor::new()) {
        Caller::Fiber(core, worker) => core.has_budget.get().then(|| with(worker)),
        Caller::Worker if BUDGET.with(|budget| budget.in_task.get()) => context::worker(with),
        Caller::Worker | Caller::Thread => None,
    }
}

/// Whether a leaf was refused since the turn began: what is pending may be ready.
pub(crate) fn has_refused(cx: &Context<'_>) -> bool {
    !wakes_nobody(cx) && with_budget(Worker::has_refused) == Some(true)
}

/// The poll that begins is the last one of a future whose time is over, and whose calls were refused: they may be ready.
#[cold]
pub(crate) fn last_poll() {
    with_budget(Worker::allow_more_calls);
}

/// The worker polls a task from here on.
#[inline]
pub(crate) fn task_begins() {
    BUDGET.with(|budget| {
        budget.left.set(CHUNK.into());
        budget.in_task.set(true);
    });
}

/// The poll of the task is over.
#[inline]
pub(crate) fn task_ends() {
    BUDGET.with(|budget| budget.in_task.set(false));
}

/// Whether a place has a budget, changed until this is dropped.
pub(crate) struct Changed<'a> {
    place: &'a Cell<bool>,
    outer: bool,
}

impl<'a> Changed<'a> {
    #[inline(always)]
    fn to(has_budget: bool, place: &'a Cell<bool>) -> Changed<'a> {
        let outer = place.replace(has_budget);
        Changed { place, outer }
    }
}

impl Drop for Changed<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.place.set(self.outer);
    }
}

/// The fiber polls with a budget until the guard is dropped: it waits for a future that may make many calls.
#[inline(always)]
pub(crate) fn on_fiber<'a>(core: &'a Core<'a>) -> Changed<'a> {
    BUDGET.with(|budget| budget.left.set(CHUNK.into()));
    Changed::to(true, &core.has_budget)
}

/// Runs `polls` without a budget: there, pending means that the leaf is not ready.
pub(crate) fn without<T>(polls: impl FnOnce() -> T) -> T {
    // Without it, the calls that follow would not be looked at if each look fell into such polls.
    struct Restore(i32);
    impl Drop for Restore {
        fn drop(&mut self) {
            BUDGET.with(|budget| budget.left.set(self.0));
        }
    }
    let _restore = Restore(BUDGET.with(|budget| budget.left.replace(CHUNK_WITHOUT.into())));
    let anchor = Anchor::new();
    BUDGET.with(|budget| {
        // A fiber may suspend in these polls, and others run on this thread then. So it is the fiber that has none.
        let place = match context::here(&anchor) {
            Caller::Fiber(core, _) => &core.has_budget,
            Caller::Worker | Caller::Thread => &budget.in_task,
        };
        let _without = Changed::to(false, place);
        polls()
    })
}

/// Runs `worker`, the loop of another worker, as outside of the task whose poll this may be.
pub(crate) fn outside_of_task<T>(worker: impl FnOnce() -> T) -> T {
    struct Restore(i32, bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            BUDGET.with(|budget| {
                budget.left.set(self.0);
                budget.in_task.set(self.1);
            });
        }
    }
    let _restore = BUDGET.with(|budget| Restore(budget.left.get(), budget.in_task.replace(false)));
    worker()
}
