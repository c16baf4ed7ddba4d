//! Fibers: a coroutine that a worker resumes, what it knows of itself, and how to make one.
//!
//! The `Core` of a fiber lives in the first frame of its own stack, the page that is touched anyway; the worker's slot
//! keeps only the coroutine. Only the fiber itself looks into its core; other threads reach a fiber through its
//! `Header` (cancel) and its word (wake).

pub(crate) mod cancel;
pub(crate) mod hook;
pub(crate) mod local;
pub(crate) mod packet;
pub(crate) mod scope;

use std::cell::{OnceCell, RefCell};
use std::panic::Location;
use std::sync::Arc;
use std::{fmt, io, thread};

use osier_coro::{Yielder, panic_count};
use osier_queue::Cancellation;

pub use crate::fiber::hook::before_suspend;
pub use crate::fiber::local::LocalKey;

use crate::fiber::cancel::{Frames, Waiting};
use crate::fiber::hook::Hooks;
use crate::fiber::packet::JoinHandle;
use crate::fiber::scope::Ticket;
use crate::inspect::{self, Waits};
use crate::wait::{NOT_HERE, Stop};
use crate::worker::Worker;
use crate::worker::context::{self, Caller, Frame};
use crate::worker::slots::Resume;
use crate::worker::waker::Word;

/// What everybody may know of a fiber, from before its start until its handle is gone.
pub(crate) struct Header {
    pub(crate) place: &'static Location<'static>,
    /// What most fibers do without.
    particulars: Option<Box<Particulars>>,
    cancellation: Cancellation,
}

#[derive(Default)]
struct Particulars {
    name: Option<Arc<str>>,
    stack_bytes: Option<usize>,
    scope: Option<Arc<scope::Shared>>,
}

impl Header {
    pub(crate) fn new(place: &'static Location<'static>) -> Header {
        Header {
            place,
            particulars: None,
            cancellation: Cancellation::new(),
        }
    }

    /// Asks the fiber to end. Any thread.
    pub(crate) fn cancel(&self) {
        if let Some(word) = self.cancellation.request() {
            crate::worker::remote::wake(Word::from_bits(word));
        }
    }

    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancellation.is_requested() || self.scope().is_some_and(scope::Shared::is_cancelled)
    }

    /// The fiber starts as `word`; false if it was cancelled before.
    pub(crate) fn start(&self, word: Word) -> bool {
        // Both: each has to learn the word.
        let scope_goes_on = self.scope().is_none_or(|scope| scope.start(word));
        self.cancellation.start(word.to_bits()) && scope_goes_on
    }

    pub(crate) fn in_scope(mut self, scope: Arc<scope::Shared>) -> Header {
        scope.add_child();
        self.particulars.get_or_insert_default().scope = Some(scope);
        self
    }

    #[inline]
    pub(crate) fn scope(&self) -> Option<&scope::Shared> {
        self.particulars.as_ref()?.scope.as_deref()
    }

    /// The place in the scope that the header was put [in](Header::in_scope): to be taken once.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        let scope = self.particulars.as_ref()?.scope.clone()?;
        Some(Ticket::of(scope, self.cancellation.started()))
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.particulars.as_ref()?.name.as_ref()
    }

    pub(crate) fn stack_bytes(&self) -> Option<usize> {
        self.particulars.as_ref()?.stack_bytes
    }
}

/// What a fiber knows of itself; lives in the first frame of its stack.
pub(crate) struct Core<'a> {
    yielder: &'a Yielder<Resume, ()>,
    header: &'a Header,
    pub(crate) word: Word,
    id: u64,
    /// What most fibers never need; made at the first need, so that a fiber starts and ends without looking at it.
    extra: OnceCell<Box<Extra>>,
}

#[derive(Default)]
pub(crate) struct Extra {
    pub(crate) frames: Frames,
    pub(crate) hooks: Hooks,
    pub(crate) locals: RefCell<local::Locals>,
}

impl<'a> Core<'a> {
    /// Runs `body` as the fiber `word`, on the stack of `yielder`.
    pub(crate) fn enter<T>(
        yielder: &'a Yielder<Resume, ()>,
        header: &'a Header,
        word: Word,
        id: u64,
        body: impl FnOnce() -> T,
    ) -> T {
        let core = Core {
            yielder,
            header,
            word,
            id,
            extra: OnceCell::new(),
        };
        context::enter_fiber(&core);
        let value = body();
        // Locals end as the fiber's last code: their destructors may block like any other.
        if let Some(extra) = core.extra.get() {
            local::end(extra);
        }
        context::leave_fiber();
        value
    }

    /// Switches to the worker's loop until somebody wakes this fiber. May return for no reason.
    ///
    /// `waits`: what for; asked if the fiber is to be shown meanwhile. That must leave its waiting as it is.
    //
    // Inlined, as is all that leads to a switch: each frame between the two sides of one returns to where the processor's
    // return predictor does not expect it, at some 6 ns a frame (measured: a yield took 30 ns with three of them).
    #[inline(always)]
    pub(crate) fn suspend<'w>(&self, waits: impl Fn() -> Waits<'w>) {
        // std counts panics per thread: a fiber that suspends while it unwinds takes its share out, or its neighbours
        // would believe that they panic.
        let panics = if thread::panicking() { panic_count::take() } else { 0 };
        while self.yielder.suspend(()) == Resume::Show {
            self.show(waits());
        }
        context::enter_fiber(self);
        if panics > 0 {
            panic_count::put(panics);
        }
    }

    #[cold]
    #[inline(never)]
    fn show(&self, waits: Waits<'_>) {
        inspect::dump::show(self.fiber(), self.header.place, waits);
    }

    /// What others may know of it.
    pub(crate) fn fiber(&self) -> Fiber {
        Fiber {
            id: self.id,
            name: self.header.name().cloned(),
        }
    }

    #[inline]
    pub(crate) fn root_requested(&self, worker: &Worker) -> bool {
        self.header.is_cancelled() || worker.is_stopping()
    }

    /// Delivers a cancellation, if one is requested.
    #[inline]
    pub(crate) fn check(&self, worker: &Worker, waiting: Waiting) -> Result<(), Stop> {
        match self.is_plain(worker) {
            true => Ok(()),
            false => self.check_slowly(worker, waiting),
        }
    }

    /// Whether nobody has asked for anything: no cancellation, no frame, no hook.
    #[inline]
    fn is_plain(&self, worker: &Worker) -> bool {
        self.extra.get().is_none() && !self.root_requested(worker)
    }

    #[inline(never)]
    fn check_slowly(&self, worker: &Worker, waiting: Waiting) -> Result<(), Stop> {
        self.extra()
            .frames
            .check(self.root_requested(worker), waiting, worker)
            .map_err(|_| Stop::Cancelled)
    }

    #[cold]
    fn prepare_to_yield(&self, worker: &Worker) {
        if !thread::panicking() && self.check(worker, Waiting::NotYet).is_err() {
            self.unwind(worker);
        }
        self.run_hooks();
    }

    /// Runs the hooks of [`before_suspend`]; false if there is none.
    #[inline]
    pub(crate) fn run_hooks(&self) -> bool {
        self.extra.get().is_some_and(|extra| extra.hooks.run())
    }

    /// The rest of the core, if the fiber has needed it.
    #[inline]
    pub(crate) fn extra_if_any(&self) -> Option<&Extra> {
        self.extra.get().map(|extra| &**extra)
    }

    pub(crate) fn extra(&self) -> &Extra {
        self.extra.get_or_init(Box::default)
    }

    /// Unwinds after a delivery, for a call that has no error to return.
    #[cold]
    pub(crate) fn unwind(&self, worker: &Worker) -> ! {
        self.extra().frames.unwind(self.root_requested(worker), worker)
    }
}

/// What is known of a running fiber: its id and its name.
#[derive(Clone, PartialEq, Eq)]
pub struct Fiber {
    id: u64,
    name: Option<Arc<str>>,
}

impl Fiber {
    /// A number that no other fiber of this process has or had.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name given by [`Builder::name`].
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl fmt::Debug for Fiber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fiber")
            .field("id", &self.id)
            .field("name", &self.name())
            .finish()
    }
}

/// The fiber that calls, or `None` outside of one.
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
    context::core(|core| core.fiber())
}

/// The number of the worker that this code runs on, from 0; `None` outside of a runtime.
pub fn worker() -> Option<usize> {
    context::worker(|worker| worker.index)
}

/// Lets the other fibers of this worker run, then goes on.
///
/// Outside of a fiber it is [`std::thread::yield_now`].
///
/// # Suspends
///
/// Always.
///
/// # Cancellation
///
/// Unwinds: there is no error to return.
#[inline(always)]
pub fn yield_now() {
    match context::here(&Frame) {
        Caller::Fiber(core, worker) => {
            if !core.is_plain(worker) {
                core.prepare_to_yield(worker);
            }
            worker.yield_fiber(core);
        }
        Caller::Worker => panic!("{NOT_HERE}"),
        Caller::Thread => thread::yield_now(),
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
    /// A fiber like those of [`spawn`].
    pub fn new() -> Builder {
        Builder::default()
    }

    /// The fiber's name, for overflow reports and for [`current`].
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Builder {
        self.name = Some(name.into());
        self
    }

    /// Bytes of stack instead of the runtime's default; rounded up to a size class of the pool.
    pub fn stack_bytes(mut self, bytes: usize) -> Builder {
        self.stack_bytes = Some(bytes);
        self
    }

    /// Starts the fiber on the worker of this number instead of wherever there is time for it.
    ///
    /// # Panics
    ///
    /// `spawn` panics if the runtime has no such worker.
    pub fn worker(mut self, index: usize) -> Builder {
        self.worker = Some(index);
        self
    }

    /// As [`spawn`].
    #[track_caller]
    pub fn spawn<F, T>(self, body: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let worker = self.worker;
        let (job, handle) = packet::packet(self.header(), body);
        let index = context::worker(|here| match worker {
            None => here.spawn(job),
            Some(index) => here.shared.spawn_on(index, job),
        });
        index.unwrap_or_else(|| no_runtime("osier::spawn"));
        handle
    }

    /// As [`spawn_local`].
    ///
    /// # Panics
    ///
    /// Also if [`worker`](Builder::worker) named another worker than this one.
    #[track_caller]
    pub fn spawn_local<F, T>(self, body: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + 'static,
        T: 'static,
    {
        let worker = self.worker;
        let (job, handle) = packet::packet_local(self.header(), body);
        let spawned = context::worker(|here| {
            assert!(
                worker.is_none_or(|index| index == here.index),
                "spawn_local starts on the worker that calls it"
            );
            here.spawn_local(job);
        });
        spawned.unwrap_or_else(|| no_runtime("osier::spawn_local"));
        handle
    }

    #[track_caller]
    fn header(self) -> Header {
        let mut header = Header::new(Location::caller());
        if self.name.is_some() || self.stack_bytes.is_some() {
            let Builder { name, stack_bytes, .. } = self;
            header.particulars = Some(Box::new(Particulars {
                name,
                stack_bytes,
                scope: None,
            }));
        }
        header
    }
}

/// Runs `body` on a new fiber, on whichever worker has time first; once started it never leaves that thread.
///
/// The handle's [`join`](JoinHandle::join) gives the body's value; dropping the handle lets the fiber run on.
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
/// Outside of a runtime. From a plain thread use [`Runtime::spawn`](crate::Runtime::spawn).
#[track_caller]
pub fn spawn<F, T>(body: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().spawn(body)
}

/// Runs `body` on a new fiber of this worker: what it captures need not be `Send`.
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
pub fn spawn_local<F, T>(body: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + 'static,
    T: 'static,
{
    Builder::new().spawn_local(body)
}

/// How many workers the runtime of this thread has.
///
/// # Panics
///
/// Outside of a runtime.
pub fn workers() -> usize {
    context::worker(|worker| worker.shared.workers()).unwrap_or_else(|| no_runtime("osier::workers"))
}

#[cold]
#[track_caller]
pub(crate) fn no_runtime(what: &str) -> ! {
    panic!("{what} outside of a runtime: call it inside osier::run, or use a method of osier::Runtime")
}

/// The payload of a fiber that could not be started.
pub(crate) fn cannot_start(header: &Header, error: io::Error) -> io::Error {
    let name = header.name().map(|name| &**name).unwrap_or("unnamed");
    io::Error::new(
        error.kind(),
        format!("fiber '{name}' spawned at {} cannot start: {error}", header.place),
    )
}
