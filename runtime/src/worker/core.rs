//! The core of a fiber: what it knows of itself, and how it suspends.
//!
//! The `Core` lives in the first frame of the fiber's own stack, a page that is touched anyway. The worker's slot keeps only
//! the coroutine. Only the fiber itself looks into its core. Other threads reach a fiber through its `Header`, to cancel it, and
//! through its word, to wake it.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
#[cfg(feature = "inspect")]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fmt, io, mem, thread};

use osier_coro::{Yielder, panic_count, stack};
use osier_queue::Cancellation;

use crate::wait::alarm::Alarm;
use crate::wait::cancel::Frames;
use crate::wait::socket::Waiting;
use crate::wait::{Stop, Waits};
use crate::worker::children::{Children, Ticket};
use crate::worker::context;
use crate::worker::hook::Hooks;
use crate::worker::isolate::isolate;
use crate::worker::meter::{Activity, Meter};
use crate::worker::remote::RemoteSlot;
use crate::worker::slots::Resume;
use crate::worker::stamp::Stamp;
use crate::worker::stderr::say;
use crate::worker::waker::Word;
use crate::worker::{Worker, remote};

/// The part of a fiber that all threads may read, from before its start until its handle is gone.
pub(crate) struct Header {
    pub(crate) place: &'static Location<'static>,
    /// The particulars that most fibers do without.
    particulars: Option<Box<Particulars>>,
    cancellation: Cancellation,
}

#[derive(Default)]
struct Particulars {
    name: Option<Arc<str>>,
    stack_bytes: Option<usize>,
    scope: Option<Arc<Children>>,
}

impl Header {
    pub(crate) fn new(place: &'static Location<'static>) -> Header {
        Header {
            place,
            particulars: None,
            cancellation: Cancellation::new(),
        }
    }

    pub(crate) fn named(
        place: &'static Location<'static>,
        name: Option<Arc<str>>,
        stack_bytes: Option<usize>,
    ) -> Header {
        let mut header = Header::new(place);
        if name.is_some() || stack_bytes.is_some() {
            header.particulars = Some(Box::new(Particulars {
                name,
                stack_bytes,
                scope: None,
            }));
        }
        header
    }

    /// Asks the fiber to end. Any thread.
    pub(crate) fn cancel(&self) {
        if let Some(word) = self.cancellation.request() {
            remote::wake(Word::from_bits(word));
        }
    }

    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancellation.is_requested() || self.scope().is_some_and(Children::is_cancelled)
    }

    /// Notes that the fiber starts as `word`. Returns false if it was cancelled before.
    pub(crate) fn start(&self, word: Word) -> bool {
        // Both have to learn the word.
        let scope_goes_on = self.scope().is_none_or(|scope| scope.start(word));
        self.cancellation.start(word.to_bits()) && scope_goes_on
    }

    pub(crate) fn in_scope(mut self, scope: Arc<Children>) -> Header {
        scope.add_child();
        self.particulars.get_or_insert_default().scope = Some(scope);
        self
    }

    #[inline]
    pub(crate) fn scope(&self) -> Option<&Children> {
        self.particulars.as_ref()?.scope.as_deref()
    }

    /// The fiber's place in the scope that the header was put [in](Header::in_scope). Taken once.
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

/// A fiber's own state; lives in the first frame of its stack.
pub(crate) struct Core<'a> {
    yielder: &'a Yielder<Resume, ()>,
    header: &'a Header,
    pub(crate) word: Word,
    id: u64,
    /// Bytes of the fiber's stack without its guard.
    stack_bytes: usize,
    /// The stack pointer at the last suspension, for the watchdog, and 0 before. The fiber's [`RemoteSlot`] says where it lies. It is
    /// here, beside what each suspension touches anyway.
    #[cfg(feature = "inspect")]
    suspended_at: AtomicUsize,
    /// Here and not in `Extra`: a burst of a server has hooks, and needs nothing else of that box.
    pub(crate) hooks: Hooks,
    /// The timer for waits with a deadline.
    pub(crate) alarm: Alarm,
    /// Whether leaves that are polled on this fiber have a [budget](crate::wait::budget).
    pub(crate) has_budget: Cell<bool>,
    /// Set by each suspension, for the wait of this fiber that polls a future.
    pub(crate) has_suspended: Cell<bool>,
    /// The part that most fibers never need. It is made at the first need, so a fiber starts and ends without looking
    /// at it.
    extra: OnceCell<Box<Extra>>,
}

/// Notes where a suspended fiber is. Runs on the stack of that fiber.
pub(crate) type Show = fn(&Core<'_>, Waits<'_>);

thread_local! {
    static SHOW: Cell<Option<Show>> = const { Cell::new(None) };
}

/// Sets what the fibers of this thread run when they are resumed to show where they are.
pub(crate) fn show_with(show: Show) {
    SHOW.set(Some(show));
}

/// The values of fiber-locals, by the address of their key.
pub(crate) type Locals = Vec<(usize, Rc<dyn Any>)>;

#[derive(Default)]
pub(crate) struct Extra {
    pub(crate) frames: Frames,
    pub(crate) meter: RefCell<Option<Rc<Meter>>>,
    /// The activity for waits whose kind is unknown.
    pub(crate) label: Cell<Option<Activity>>,
    pub(crate) locals: RefCell<Locals>,
}

/// Locals whose destructors make each other anew end after this many rounds, as `PTHREAD_DESTRUCTOR_ITERATIONS` does for a thread's.
const ROUNDS: usize = 4;

/// The most boxes that a thread keeps for fibers to come.
const SPARES: usize = 16;

thread_local! {
    /// Boxes of fibers that have ended: a gateway's fibers need one for each request.
    #[expect(clippy::vec_box, reason = "what is kept are the boxes")]
    static SPARE: RefCell<Vec<Box<Extra>>> = const { RefCell::new(Vec::new()) };
}

impl Extra {
    fn take() -> Box<Extra> {
        SPARE
            .try_with(|spare| spare.borrow_mut().pop())
            .ok()
            .flatten()
            .unwrap_or_default()
    }

    fn recycle(mut self: Box<Self>) {
        *self = Extra::default();
        // An error means that the thread ends.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARES {
                spare.push(self);
            }
        });
    }

    #[inline]
    fn is_metered(&self) -> bool {
        self.meter.borrow().is_some()
    }
}

/// Drops locals, the youngest first. A destructor may block, as any code of the fiber may. Values that destructors make are dropped in
/// the next round, and leaked after the last one.
pub(crate) fn end_locals(locals: &RefCell<Locals>) {
    for _ in 0..ROUNDS {
        let round = locals.borrow().len();
        for at in (0..round).rev() {
            // The older ones stay in the list meanwhile: the destructor may use them.
            let value = locals.borrow_mut().remove(at);
            // A panic of one destructor does not keep the others from being dropped.
            isolate(move || drop(value));
        }
    }
    // Frees the list, too.
    locals.take().into_iter().for_each(mem::forget);
}

impl<'a> Core<'a> {
    /// Runs `body` as the fiber `word`, on the stack of `yielder`, which has `stack_bytes`, its guard included.
    pub(crate) fn enter<T>(
        yielder: &'a Yielder<Resume, ()>,
        stack_bytes: usize,
        header: &'a Header,
        (word, id): (Word, u64),
        slot: &'static RemoteSlot,
        body: impl FnOnce() -> T,
    ) -> T {
        #[cfg(not(feature = "inspect"))]
        let _ = slot;
        let core = Core {
            yielder,
            header,
            word,
            id,
            stack_bytes: stack_bytes - stack::GUARD_BYTES,
            #[cfg(feature = "inspect")]
            suspended_at: AtomicUsize::new(0),
            hooks: Hooks::default(),
            alarm: Alarm::default(),
            has_budget: Cell::new(false),
            has_suspended: Cell::new(false),
            extra: OnceCell::new(),
        };
        #[cfg(feature = "inspect")]
        slot.set_place(&core.suspended_at);
        context::enter_fiber(&core);
        let value = __rust_begin_short_backtrace(body);
        // Locals end as the fiber's last code: their destructors may block.
        if let Some(extra) = core.extra.get()
            && !extra.locals.borrow().is_empty()
        {
            end_locals(&extra.locals);
        }
        if core.alarm.is_set() {
            context::worker(|worker| core.alarm.remove(worker));
        }
        context::leave_fiber();
        if let Some(extra) = core.extra.into_inner() {
            extra.recycle();
        }
        value
    }

    /// Switches to the worker's loop until somebody wakes this fiber. May return for no reason.
    ///
    /// A fiber that is to be shown meanwhile calls `waits` to say what it waits for. That call must leave the wait as
    /// it is.
    //
    // Inlined, as is everything that leads to a switch. Each frame between the two sides of a switch returns to where
    // the processor's return predictor does not expect it, which costs some 6 ns (measured: a yield took 30 ns with
    // three frames).
    #[inline(always)]
    pub(crate) fn suspend<'w>(&self, waits: impl Fn() -> Waits<'w>) {
        self.switch(waits);
        self.hooks.run_after();
    }

    /// Suspends as [`suspend`](Core::suspend) does, and runs no hook when the fiber is resumed: it is about to suspend again.
    #[inline(always)]
    pub(crate) fn switch<'w>(&self, waits: impl Fn() -> Waits<'w>) {
        self.hooks.leave();
        // std counts panics per thread. A fiber that suspends while it unwinds takes its share out: otherwise its
        // neighbours would believe that they panic.
        let panics = if thread::panicking() { panic_count::take() } else { 0 };
        context::suspend_at(osier_coro::stack::pointer());
        self.has_suspended.set(true);
        // The watchdog searches the part of the stack above it.
        #[cfg(feature = "inspect")]
        self.suspended_at.store(osier_coro::stack::pointer(), Ordering::Relaxed);
        if self.is_metered() {
            self.meter_waits(&waits());
        }
        while self.yielder.suspend(()) == Resume::Show {
            self.show(waits());
        }
        context::enter_fiber(self);
        if panics > 0 {
            panic_count::put(panics);
        }
        if self.is_metered() {
            self.meter_runs();
        }
    }

    #[inline]
    fn is_metered(&self) -> bool {
        self.extra.get().is_some_and(|extra| extra.is_metered())
    }

    /// The fiber suspends: its meter counts the wait from now on.
    #[cold]
    #[inline(never)]
    fn meter_waits(&self, waits: &Waits<'_>) {
        let Some(extra) = self.extra_if_any() else { return };
        let activity = match (waits.activity(), extra.label.get()) {
            (Activity::Network | Activity::Other, Some(label)) => label,
            (activity, _) => activity,
        };
        // The fiber may be woken already.
        let is_queued = context::worker(|worker| worker.note_next_wake(self.word)) == Some(false);
        let activity = if is_queued { Activity::Ready } else { activity };
        if let Some(meter) = &*extra.meter.borrow() {
            meter.enter_at(activity, Stamp::now());
        }
    }

    /// The fiber was resumed: its meter counts the time since its wake-up as waiting for the worker.
    #[cold]
    #[inline(never)]
    fn meter_runs(&self) {
        let Some(extra) = self.extra_if_any() else { return };
        let woken = context::worker(|worker| worker.woken(self.word)).flatten();
        if let Some(meter) = &*extra.meter.borrow() {
            if let Some(woken) = woken {
                meter.enter_at(Activity::Ready, woken.max(meter.current().1));
            }
            meter.enter_at(Activity::Running, Stamp::now());
        }
    }

    #[cold]
    #[inline(never)]
    fn show(&self, waits: Waits<'_>) {
        if let Some(show) = SHOW.get() {
            show(self, waits);
        }
    }

    /// Whether `pointer`, the caller's stack pointer, is in the fiber's own stack. The core lies at its top.
    #[inline(always)]
    pub(crate) fn is_own_stack(&self, pointer: usize) -> bool {
        std::ptr::from_ref(self).addr().wrapping_sub(pointer) < self.stack_bytes
    }

    /// Where the fiber was spawned.
    pub(crate) fn place(&self) -> &'static Location<'static> {
        self.header.place
    }

    /// The fiber's work in the words of the innermost [`describe`](crate::fiber::describe).
    #[cold]
    pub(crate) fn doing(&self) -> Option<String> {
        Some(self.hooks.description()?.to_string())
    }

    /// Writes a line about this fiber, which catches its cancellation and goes on.
    #[cold]
    pub(crate) fn report_swallowed(&self) {
        let name = self.header.name().map(|name| format!(" '{name}'")).unwrap_or_default();
        let doing = self.doing().map(|doing| format!(" ({doing})")).unwrap_or_default();
        let (id, place) = (ShortId(self.id), self.header.place);
        say(format_args!(
            "osier: fiber {id}{name}{doing} spawned at {place} is cancelled and goes on: it catches the cancellation; pass \
             payloads for which osier::Cancelled::is_payload returns true to std::panic::resume_unwind"
        ));
    }

    /// The number of the fiber's [identity](Core::fiber).
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The fiber's identity.
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

    /// Whether there is nothing to do at a checkpoint: no cancellation and no frame.
    #[inline]
    pub(crate) fn is_plain(&self, worker: &Worker) -> bool {
        self.extra.get().is_none() && !self.root_requested(worker)
    }

    #[inline(never)]
    fn check_slowly(&self, worker: &Worker, waiting: Waiting) -> Result<(), Stop> {
        self.extra()
            .frames
            .check(self.root_requested(worker), waiting, worker)
            .map_err(|_| Stop::Cancelled)
    }

    /// Whether the next checkpoint would cancel the fiber.
    pub(crate) fn is_requested(&self, worker: &Worker) -> bool {
        let root = self.root_requested(worker);
        self.extra_if_any()
            .map_or(root, |extra| extra.frames.is_requested(root, worker))
    }

    #[cold]
    pub(crate) fn prepare_to_yield(&self, worker: &Worker) {
        if !thread::panicking() && self.check(worker, Waiting::NotYet).is_err() {
            self.unwind(worker);
        }
        self.run_hooks();
    }

    /// Runs the hooks of [`before_suspend`](crate::worker::hook::before_suspend). Returns whether one of them
    /// has suspended.
    #[inline]
    pub(crate) fn run_hooks(&self) -> bool {
        self.hooks.run(&self.has_suspended)
    }

    /// Runs the hooks of [`after_resume`](crate::worker::hook::after_resume) for a fiber that was about to suspend and does not.
    #[cold]
    #[inline(never)]
    pub(crate) fn goes_on(&self) {
        self.hooks.run_after();
    }

    /// The rest of the core, if the fiber has needed it.
    #[inline]
    pub(crate) fn extra_if_any(&self) -> Option<&Extra> {
        self.extra.get().map(|extra| &**extra)
    }

    pub(crate) fn extra(&self) -> &Extra {
        self.extra.get_or_init(Extra::take)
    }

    /// Unwinds after a delivery, for a call that has no error to return.
    #[cold]
    pub(crate) fn unwind(&self, worker: &Worker) -> ! {
        self.extra().frames.unwind(self.root_requested(worker), worker)
    }
}

/// Runs the function of a fiber. std's short backtraces end at a function of this name, so that of a panic has the frames
/// of the program and not those of the worker.
#[inline(never)]
fn __rust_begin_short_backtrace<T>(body: impl FnOnce() -> T) -> T {
    let value = body();
    // Not a tail call: this frame is to be found.
    std::hint::black_box(());
    value
}

/// Writes what the fiber of this thread is doing, after its stack has overflowed.
pub(crate) fn describe_overflow(out: &mut dyn fmt::Write) -> fmt::Result {
    let write = |core: &Core<'_>| match core.hooks.description() {
        Some(work) => writeln!(out, "it was at work for: {work}"),
        None => Ok(()),
    };
    context::running(write).unwrap_or(Ok(()))
}

/// A running fiber's identity: its id and its name.
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

    /// The name given by [`Builder::name`](crate::fiber::Builder::name).
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// A fiber's id as people read it: the number of its first worker's place, a dot, and a count there.
pub(crate) struct ShortId(pub(crate) u64);

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 48, self.0 & ((1 << 48) - 1))
    }
}

osier_queue::impl_debug!(Fiber, self => { id: self.id, name: self.name() });

#[cold]
#[track_caller]
pub(crate) fn no_runtime(what: &str) -> ! {
    panic!("{what} outside of a runtime: call it inside osier::run, or use an osier::Handle or Runtime")
}

/// The error of a fiber that could not be started.
pub(crate) fn cannot_start(header: &Header, error: io::Error) -> io::Error {
    let name = header.name().map(|name| &**name).unwrap_or("unnamed");
    io::Error::new(
        error.kind(),
        format!("fiber '{name}' spawned at {} cannot start: {error}", header.place),
    )
}
