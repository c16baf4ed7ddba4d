//! The caller's place: a thread, a worker between fibers, or a fiber. These are the thread-locals behind every blocking
//! call.
//!
//! ```text
//!  thread-local HERE ── worker ──▶ Worker   set by the loop for as long as it runs on this thread
//!                   ├── fiber ───▶ Core     set by a fiber whenever it runs, null while the loop does
//!                   └── driver ──▶ Remote   set while leaves are polled for another driver than this thread's worker
//! ```
//!
//! A fiber sets the pointer to its own core when it starts and each time its suspension returns. The loop clears the
//! pointer when the switch comes back, and `Core::enter` when the fiber ends. `enter_worker` puts it aside and restores it.
//! Nothing else writes it.
//!
//! A fiber may resume a coroutine of `osier_coro`. The frames of that coroutine lie on a stack of its own. They may suspend and go
//! on under another fiber, after the first one has ended. So a fiber is found from its own stack alone ([`here`], [`core`]): what a
//! frame keeps of the fiber, or links into it, is given up in the order of that stack. On the stack of the coroutine a call that must wait fails.
//!
//! # Safety
//!
//! This file may use `unsafe` to follow the pointers to the worker and to the core. The core lives in the first frame of the
//! fiber's own stack, so it is alive whenever code of that fiber runs, and only then is the pointer set. A frame that keeps a reference
//! to the core while foreign code runs is on that same stack, and the core outlives it. The caller of [`enter_worker`] keeps the
//! worker alive until that call has returned and put the former pointer back. Such calls return in the order in which they were
//! made, or the process ends.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;
use std::time::{Instant, SystemTime};

use osier_coro::stack;

use crate::wait::{budget, simulated};
use crate::worker::Worker;
use crate::worker::clock::Hold;
use crate::worker::core::Core;
#[cfg(all(feature = "inspect", feature = "sync"))]
use crate::worker::desk::TASK;
use crate::worker::remote::Remote;
#[cfg(all(feature = "inspect", feature = "sync"))]
use crate::worker::running::RUNNING;
use crate::worker::stamp::Stamp;
use crate::worker::stderr::say;
use crate::worker::waker::Word;

struct Here {
    worker: Cell<*const Worker>,
    fiber: Cell<*const Core<'static>>,
    suspended: Cell<usize>,
    panic_hook: Cell<bool>,
    driver: Cell<Option<&'static Remote>>,
}

thread_local! {
    static HERE: Here = const {
        Here { worker: Cell::new(ptr::null()), fiber: Cell::new(ptr::null()), suspended: Cell::new(0), panic_hook: Cell::new(false), driver: Cell::new(None) }
    };
}

/// The kind of the caller.
pub(crate) enum Caller<'a> {
    /// A fiber: a call that must wait suspends it.
    Fiber(&'a Core<'a>, &'a Worker),
    /// A worker between fibers (a waker's code, a dormant hook); the stack of a coroutine that a fiber has resumed; or a fiber that
    /// polls leaves for another driver: suspending would leave that driver set for other fibers. A call that must wait fails.
    Worker,
    /// Any other thread, and a panic hook wherever it runs. A call that must wait blocks the thread.
    Thread,
}

/// A local variable of the frame that calls [`here`]. The answer cannot outlive it.
pub(crate) struct Anchor(());

impl Anchor {
    /// Makes one. It is a call, because a reference to a constant would live for ever.
    #[inline(always)]
    pub(crate) fn new() -> Anchor {
        Anchor(())
    }
}

/// Tells the caller's kind.
///
/// The function is inlined and takes no closure: a closure would be one more frame between a caller and its suspension
/// ([`Core::suspend`] says what a frame costs).
#[inline(always)]
pub(crate) fn here(_anchor: &Anchor) -> Caller<'_> {
    let (worker, fiber, hook, driver) = HERE.with(|here| {
        (
            here.worker.get(),
            here.fiber.get(),
            here.panic_hook.get(),
            here.driver.get(),
        )
    });
    if worker.is_null() || hook {
        return Caller::Thread;
    }
    if fiber.is_null() || driver.is_some() {
        return Caller::Worker;
    }
    // SAFETY: both pointers are non-null, so a loop runs on this thread (which keeps its worker alive until it returns,
    // and it cannot return while a frame of a fiber is on the CPU), and the fiber has not ended.
    let (core, worker) = unsafe { (&*fiber, &*worker) };
    // On the fiber's own stack neither reference outlives `_anchor`, a variable of a deeper frame than the one that owns the core.
    match core.is_own_stack(stack::pointer()) {
        true => Caller::Fiber(core, worker),
        false => Caller::Worker,
    }
}

/// Runs `with` on the caller's kind.
#[inline]
pub(crate) fn caller<T>(with: impl FnOnce(Caller<'_>) -> T) -> T {
    with(here(&Anchor::new()))
}

// The three pointers, each in a function of its own: an access to a thread-local is compiled again in each instance of a
// generic function.

#[inline]
fn here_worker() -> *const Worker {
    HERE.with(|here| here.worker.get())
}

#[inline]
fn here_fiber() -> *const Core<'static> {
    HERE.with(|here| here.fiber.get())
}

#[inline]
fn here_driver() -> Option<&'static Remote> {
    HERE.with(|here| here.driver.get())
}

/// Runs `with` on the worker of this thread, on a fiber or between fibers.
#[inline]
pub(crate) fn worker<T>(with: impl FnOnce(&Worker) -> T) -> Option<T> {
    let worker = here_worker();
    if worker.is_null() {
        return None;
    }
    // SAFETY: set by the loop that runs on this thread, which keeps the worker alive until after it has cleared it.
    Some(with(unsafe { &*worker }))
}

/// Runs `with` on the worker whose time is the caller's: this thread's worker, unless leaves are polled for another driver.
#[inline]
pub(crate) fn timekeeper<T>(with: impl FnOnce(&Worker) -> T) -> Option<T> {
    match here_driver() {
        None => worker(with),
        Some(_) => None,
    }
}

/// Runs `with` on the core of the fiber on whose own stack this is, also inside the panic hook.
#[inline]
pub(crate) fn core<T>(with: impl FnOnce(&Core<'_>) -> T) -> Option<T> {
    let here = stack::pointer();
    running(|core| core.is_own_stack(here).then(|| with(core))).flatten()
}

/// Runs `with` on the core of the fiber that runs, also on the stack of a coroutine that it has resumed, and on a signal stack. `with`
/// must not run code that could suspend that coroutine.
#[inline]
pub(crate) fn running<T>(with: impl FnOnce(&Core<'_>) -> T) -> Option<T> {
    let fiber = here_fiber();
    if fiber.is_null() {
        return None;
    }
    // SAFETY: non-null only while that fiber's code runs on this thread, and the core is in its first frame. It runs until `with`
    // has returned.
    Some(with(unsafe { &*fiber }))
}

/// Wakes the slot if it belongs to this thread's worker. Returns false if it belongs to another.
#[inline]
pub(crate) fn wake_here(word: Word) -> bool {
    worker(|worker| {
        let ours = worker.remote.id == word.worker();
        if ours {
            worker.wake(word);
        }
        ours
    })
    .unwrap_or(false)
}

/// Runs `run` with `worker` set as this thread's. It may be called on a fiber of another worker: that fiber, that
/// worker and the driver that it polls for are put aside meanwhile.
///
/// A coroutine may suspend inside of `run` and leave the worker set. Where another worker is entered before it goes on, and left
/// after that, the thread would end with a worker that may be gone. Then the process is aborted.
pub(crate) fn enter_worker<T>(worker: &Worker, run: impl FnOnce() -> T) -> T {
    struct Reset {
        entered: *const Worker,
        before: (*const Worker, *const Core<'static>, Option<&'static Remote>),
    }
    impl Drop for Reset {
        fn drop(&mut self) {
            let (worker, fiber, driver) = self.before;
            let left = HERE.with(|here| {
                here.fiber.set(fiber);
                here.driver.set(driver);
                here.worker.replace(worker)
            });
            if left != self.entered {
                say(format_args!(
                    "osier: a coroutine has left a worker that it had entered before another one, which is still entered"
                ));
                std::process::abort();
            }
        }
    }
    let before = HERE.with(|here| {
        (
            here.worker.replace(worker),
            here.fiber.replace(ptr::null()),
            here.driver.take(),
        )
    });
    let _reset = Reset {
        entered: worker,
        before,
    };
    budget::outside_of_task(run)
}

/// Notes that the fiber of `core` runs from here on.
#[inline]
pub(crate) fn enter_fiber(core: &Core<'_>) {
    HERE.with(|here| here.fiber.set(ptr::from_ref(core).cast()));
}

/// Notes the stack pointer of the fiber that is about to suspend.
#[inline(always)]
pub(crate) fn suspend_at(pointer: usize) {
    HERE.with(|here| here.suspended.set(pointer));
}

/// The stack pointer and the core of the fiber that suspended last. Called before [`leave_fiber`].
#[inline(always)]
pub(crate) fn suspended() -> (usize, usize) {
    HERE.with(|here| (here.suspended.get(), here.fiber.get().addr()))
}

/// The stack pointer that was noted last.
#[inline(always)]
pub(crate) fn suspended_at() -> usize {
    HERE.with(|here| here.suspended.get())
}

/// Notes that no fiber runs: the switch came back to the loop.
#[inline]
pub(crate) fn leave_fiber() {
    HERE.with(|here| here.fiber.set(ptr::null()));
}

/// The driver that leaves polled here register with; `None` outside of everything.
#[inline]
pub(crate) fn driver() -> Option<&'static Remote> {
    HERE.with(|here| here.driver.get())
        .or_else(|| worker(|worker| worker.remote))
}

/// The worker of this thread, unless leaves are polled for another driver.
#[inline]
pub(crate) fn driver_is_worker() -> Option<&'static Remote> {
    match HERE.with(|here| here.driver.get()) {
        None => worker(|worker| worker.remote),
        Some(_) => None,
    }
}

/// Runs `run` with another driver for the leaves that it polls.
pub(crate) fn with_driver<T>(driver: &'static Remote, run: impl FnOnce() -> T) -> T {
    struct Reset(Option<&'static Remote>);
    impl Drop for Reset {
        fn drop(&mut self) {
            HERE.with(|here| here.driver.set(self.0));
        }
    }
    let _reset = Reset(HERE.with(|here| here.driver.replace(Some(driver))));
    budget::without(run)
}

/// The id that [`running_id`] gives for a plain thread.
#[cfg(feature = "inspect")]
pub(crate) const THREAD: u64 = u64::MAX;

/// The id of the running fiber; the id of the running task with [`TASK`]; or [`THREAD`].
#[cfg(all(feature = "inspect", feature = "sync"))]
#[inline]
pub(crate) fn running_id() -> u64 {
    running(|core| core.id()).unwrap_or_else(running_task_id)
}

#[cfg(all(feature = "inspect", feature = "sync"))]
#[inline(never)]
fn running_task_id() -> u64 {
    match RUNNING.try_with(|running| running.id.get()) {
        Ok(0) | Err(_) => THREAD,
        Ok(id) => id | TASK,
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether panics on this thread print no message. Returns the former setting.
#[cfg(feature = "sim")]
pub(crate) fn set_quiet(quiet: bool) -> bool {
    QUIET.replace(quiet)
}

pub(crate) fn is_quiet() -> bool {
    QUIET.get()
}

/// Marks this thread as being inside the panic hook, or not. Returns the former mark, to be set back.
pub(crate) fn set_panic_hook(inside: bool) -> bool {
    HERE.with(|here| here.panic_hook.replace(inside))
}

/// The present as the caller has it: on a fiber, and wherever else a worker runs, that of its [runtime's
/// clock](crate::Builder::clock); on a plain thread, and inside a callback queue, that of the machine.
///
/// ```
/// use osier::time::VirtualClock;
/// use std::time::Duration;
///
/// let runtime = osier::Runtime::builder().clock(VirtualClock::new()).build()?;
/// runtime.run(|| {
///     let start = osier::time::now();
///     osier::sleep(Duration::from_secs(3600));
///     assert_eq!(osier::time::now() - start, Duration::from_secs(3600));
/// });
/// # std::io::Result::Ok(())
/// ```
///
/// # Suspends
///
/// Never.
#[inline]
#[doc(alias = "Instant")]
pub fn now() -> Instant {
    timekeeper(|worker| worker.clock().now())
        .or_else(simulated::pooled_now)
        .unwrap_or_else(Instant::now)
}

/// The time of day: on a simulated host that of the simulation, elsewhere `SystemTime::now()`. A
/// [virtual clock](crate::time::VirtualClock) does not move it.
///
/// # Suspends
///
/// Never.
#[inline]
pub fn system_now() -> SystemTime {
    simulated::system_now().unwrap_or_else(SystemTime::now)
}

/// When the current turn of this worker's loop began: a clock that costs nothing to read and is late by as long as the
/// fibers of this turn have run. On a plain thread, the present.
pub fn coarse_now() -> Instant {
    timekeeper(|worker| worker.now())
        .or_else(simulated::pooled_now)
        .unwrap_or_else(Instant::now)
}

impl Stamp {
    /// The stamp of [`now`].
    #[inline]
    pub fn now() -> Stamp {
        timekeeper(|worker| worker.clock().stamp()).unwrap_or_else(Stamp::of_machine)
    }

    /// The stamp of [`coarse_now`].
    #[inline]
    pub fn coarse() -> Stamp {
        timekeeper(Worker::stamp).unwrap_or_else(Stamp::of_machine)
    }
}

/// Keeps the caller's clock from moving by itself, if it is one that could.
pub(crate) fn hold() -> Option<Hold> {
    worker(|worker| worker.clock().hold()).flatten()
}
