//! An embedded runtime: one worker without a thread, inside somebody else's loop.
//!
//! A [`Local`] is a worker that its host turns when its descriptor is readable. Within a turn the thread is that worker; between turns
//! it is a plain thread again. Code on a worker cannot turn another.
//!
//! ```
//! use osier::embed::Local;
//! use osier::poll::{Events, Interest, Mode, Poller, Token};
//! use std::time::Duration;
//!
//! // The host's loop: any one that polls descriptors.
//! let (host, mut events) = (Poller::new()?, Events::with_capacity(8));
//! let local = Local::new()?;
//! host.add(&local, Token(1), Interest::READABLE, Mode::Oneshot)?;
//!
//! let fiber = local.spawn(|| osier::sleep(Duration::from_millis(5)));
//! while !fiber.is_finished() {
//!     host.wait(&mut events, None)?;
//!     if events.iter().any(|event| event.token == Token(1)) {
//!         local.turn(Some(Duration::ZERO))?; // runs what is ready, and does not wait
//!         host.modify(&local, Token(1), Interest::READABLE, Mode::Oneshot)?;
//!     }
//! }
//! # std::io::Result::Ok(())
//! ```

// Between two turns the worker is *parked*:
//
//   host's loop ──▶ turn: poll ─▶ inbox ─▶ timers ─▶ ready fibers ─▶ park ──▶ host's loop
//                                                                     │
//     park = the parker says asleep, so that a wake-up rings the poller; the timer is set for the next deadline;
//            if there is work left, the worker rings itself. Each of them makes the poller's descriptor readable,
//            which is the descriptor of the Local.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osier_coro::panic_count;
use osier_poll::{Events, Interest, Mode, Poller, Token};

#[cfg(feature = "inspect")]
use crate::inspect::{Dump, Metrics, dump, metrics, panics};
use crate::runtime::Builder;
use crate::runtime::alarm::Alarm;
use crate::runtime::handle::Handle;
use crate::wait::descriptor::FOREIGN;
use crate::worker::Worker;
use crate::worker::clock::Clock;
use crate::worker::context;
use crate::worker::core::Header;
use crate::worker::packet::{self, JoinHandle};
use crate::worker::threads::{self, Claim};
use crate::worker::waker::Word;

/// One turn takes at most this many events.
const EVENTS: usize = 256;
/// The error of a turn or a call of [`Local::enter`] on a worker.
const ON_A_WORKER: &str =
    "an embedded runtime cannot be turned or entered on a worker, which would stop: do it in the loop of its host";
/// The timer's token: that of a descriptor number that nobody has.
const TIMER: Token = Token(FOREIGN | u32::MAX as u64);

/// A runtime that runs inside its host's loop, on its host's thread.
///
/// It is a [`Runtime`](crate::Runtime) of one worker that runs only while its host [turns](Local::turn) it, or resumes
/// its [ready](Local::ready) fibers one by one. Its descriptor ([`AsFd`]) is readable when there is something to do.
/// Between turns the thread is a plain one: blocking calls block it, and [`join`](JoinHandle::join) would wait for a
/// fiber that nobody runs (use [`run_until`](Local::run_until)). One thread may have several embedded runtimes.
///
/// Dropping it cancels its fibers and runs them until they have ended, at most for the
/// [`shutdown_timeout`](Builder::shutdown_timeout). So do not keep it in a thread-local: its fibers would run when other thread-locals, to
/// which they may hold references, are gone.
///
/// ```
/// use osier::embed::Local;
/// use osier::sync::Event;
/// use std::{cell::Cell, rc::Rc};
///
/// let local = Local::new()?;
/// let (event, flag) = (Rc::new(Event::new()), Rc::new(Cell::new(false)));
/// let (theirs, raised) = (Rc::clone(&event), Rc::clone(&flag));
/// local.spawn(move || {
///     theirs.wait();
///     raised.set(true);
/// });
/// local.turn(Some(std::time::Duration::ZERO))?;
/// assert!(!flag.get());
///
/// event.set();
/// for fiber in local.ready()? {
///     fiber.resume();
/// }
/// assert!(flag.get());
/// # std::io::Result::Ok(())
/// ```
///
/// It stays on its thread:
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<osier::embed::Local>();
/// ```
pub struct Local {
    /// Suspended fibers hold references to the worker, so it stays where it is when this value moves.
    worker: Rc<Worker>,
    events: RefCell<Events>,
    timer: Alarm,
    /// The time that the timer is set for.
    armed: Cell<Option<Instant>>,
    _watch: Box<dyn Any>,
    _claim: Claim,
}

impl Local {
    /// Makes one with the settings of [`Builder::default`].
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::build_local`].
    pub fn new() -> io::Result<Local> {
        Builder::default().build_local()
    }

    fn with(claim: Claim, worker: Worker, watch: Box<dyn Any>) -> io::Result<Local> {
        let timer = Alarm::new()?;
        worker.poller.add(&timer, TIMER, Interest::READABLE, Mode::Oneshot)?;
        let local = Local {
            _watch: watch,
            worker: Rc::new(worker),
            events: RefCell::new(Events::with_capacity(EVENTS)),
            timer,
            armed: Cell::new(None),
            _claim: claim,
        };
        local.park();
        Ok(local)
    }

    /// Runs `body` on a new fiber, in a turn to come.
    #[track_caller]
    pub fn spawn<F, T>(&self, body: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + 'static,
        T: 'static,
    {
        let (job, handle) = packet::packet_local(Header::new(Location::caller()), body);
        self.worker.spawn_local(job);
        self.worker.remote.ring();
        handle
    }

    /// A handle for other threads. A fiber or task that one of them spawns makes the descriptor readable, and runs in a turn to come. The
    /// runtime ends when this value is dropped.
    ///
    /// ```
    /// let local = osier::embed::Local::new()?;
    /// let handle = local.handle();
    /// let fiber = std::thread::spawn(move || handle.spawn(|| 42)).join().unwrap()?;
    /// local.run_until(|| fiber.is_finished())?;
    /// assert_eq!(fiber.join().unwrap(), 42);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn handle(&self) -> Handle {
        Handle::new(&self.worker.scheduler)
    }

    /// Runs `body` as the code of a worker between two fibers: [`spawn_local`](crate::spawn_local) and
    /// [`fiber::Builder`](crate::fiber::Builder) start fibers here, and [`spawn_future`](crate::spawn_future) starts tasks. Calls that
    /// need a runtime work, such as `osier_web::Server::bind`. A call that would have to wait fails.
    ///
    /// A [coroutine](crate::coro::Coroutine) that suspends in `body` leaves the thread on this worker until it goes on. If other workers
    /// are entered and left meanwhile in another order, the process is aborted.
    ///
    /// # Errors
    ///
    /// `WouldBlock` on a worker, as for [`turn`](Local::turn).
    pub fn enter<T>(&self, body: impl FnOnce() -> T) -> io::Result<T> {
        self.work(|_| body())
    }

    /// Waits until there is something to do, at most for `timeout`, and does it. It runs the ready fibers,
    /// and the fibers that become ready meanwhile, until some hundred have run or a millisecond has passed. The others
    /// stay ready for the next turn. Returns how many were run.
    ///
    /// # Blocks the thread
    ///
    /// At most for `timeout` (`None`: for ever, `ZERO`: not at all) if there is nothing to do, and while the fibers run.
    ///
    /// # Errors
    ///
    /// - `WouldBlock` on a worker, its own or another, which it would stop.
    /// - The poller's error.
    pub fn turn(&self, timeout: Option<Duration>) -> io::Result<usize> {
        self.work(|worker| {
            self.look(worker, timeout)?;
            let before = worker.resumed();
            worker.run_ready();
            Ok((worker.resumed() - before) as usize)
        })?
    }

    /// Looks for fibers that have become ready, and gives them one by one to be [resumed](Ready::resume). Does not
    /// block.
    ///
    /// The fibers that become ready later come with the next call. A fiber that is not resumed stays ready. Futures
    /// that were spawned here are no fibers: [`turn`](Local::turn) polls them.
    ///
    /// # Errors
    ///
    /// The errors of [`turn`](Local::turn).
    pub fn ready(&self) -> io::Result<ReadyFibers<'_>> {
        let left = self.work(|worker| {
            self.look(worker, Some(Duration::ZERO))?;
            worker.prepare_all();
            io::Result::Ok(worker.ready())
        })??;
        Ok(ReadyFibers { local: self, left })
    }

    /// The time at which a timer needs a turn, on the runtime's [clock](Builder::clock).
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.worker.clock() {
            Clock::Real => self.worker.next_deadline(),
            Clock::Virtual(_) => self.worker.next_timer(),
        }
    }

    /// Turns until `condition` holds. The condition is asked before each turn.
    ///
    /// ```
    /// let local = osier::embed::Local::new()?;
    /// let fiber = local.spawn(|| {
    ///     osier::sleep(std::time::Duration::from_millis(5));
    ///     42
    /// });
    /// local.run_until(|| fiber.is_finished())?;
    /// assert_eq!(fiber.join().unwrap(), 42);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Blocks the thread
    ///
    /// Until then.
    ///
    /// # Errors
    ///
    /// The errors of [`turn`](Local::turn).
    pub fn run_until(&self, mut condition: impl FnMut() -> bool) -> io::Result<()> {
        while !condition() {
            self.turn(None)?;
        }
        Ok(())
    }

    /// The numbers of the worker, as [`Runtime::metrics`](crate::Runtime::metrics) gives them.
    #[cfg(feature = "inspect")]
    pub fn metrics(&self) -> Metrics {
        metrics::of([self.worker.remote].into_iter())
    }

    /// Shows its fibers and tasks, as [`Runtime::dump`](crate::Runtime::dump) does.
    #[cfg(feature = "inspect")]
    pub fn dump(&self) -> Dump {
        match context::worker(|_| ()) {
            None => dump::collect(
                &[self.worker.remote],
                None,
                Some((self.worker.remote.id, dump::answer(&self.worker, None))),
            ),
            Some(()) => dump::gather(vec![self.worker.remote], None),
        }
    }

    /// Makes this thread the worker for as long as `run` takes, then parks it.
    fn work<T>(&self, run: impl FnOnce(&Worker) -> T) -> io::Result<T> {
        if context::worker(|_| ()).is_some() {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, ON_A_WORKER));
        }
        struct Parks<'a>(&'a Local);
        impl Drop for Parks<'_> {
            fn drop(&mut self) {
                self.0.park();
            }
        }
        let _parks = Parks(self);
        self.worker.wake_up();
        Ok(context::enter_worker(&self.worker, || run(&self.worker)))
    }

    /// Takes in the events, wake-ups and timers that have come.
    fn look(&self, worker: &Worker, timeout: Option<Duration>) -> io::Result<()> {
        worker.poll(&mut self.events.borrow_mut(), timeout)?;
        worker.take_inbox();
        worker.fire_timers();
        Ok(())
    }

    /// Makes the descriptor readable for every event from now on.
    fn park(&self) {
        if self.worker.lie_down() {
            // An eventfd write fails only when its counter is full, and then it is readable.
            let _ = self.worker.poller.notify();
        }
        // A failure leaves out a timer that the host then sees only by `next_deadline`. The kernel gives no reason for
        // one.
        let _ = self.arm();
    }

    fn arm(&self) -> io::Result<()> {
        let next = match self.worker.clock() {
            Clock::Real => self.worker.next_deadline(),
            // The clock rings when it has moved there.
            Clock::Virtual(seat) => {
                seat.publish(self.worker.next_timer());
                self.worker.next_chore()
            }
        };
        let now = Instant::now();
        if next.is_none() || self.armed.get() == next && next.is_some_and(|next| next > now) {
            return Ok(());
        }
        // A timer of zero would be stopped.
        let left = next.map_or(Duration::ZERO, |next| {
            next.saturating_duration_since(now).max(Duration::from_nanos(1))
        });
        self.timer.set(left)?;
        self.worker
            .poller
            .modify(&self.timer, TIMER, Interest::READABLE, Mode::Oneshot)?;
        self.armed.set(next);
        Ok(())
    }
}

impl Builder {
    /// Makes a runtime without threads, to be run inside this thread's own loop. It has one worker, whatever
    /// [`workers`](Builder::workers) says.
    ///
    /// # Errors
    ///
    /// - `WouldBlock` on a worker, which it would stop.
    /// - `Unsupported` if no driver has a descriptor of its own here, or the system no timer in a descriptor.
    /// - The system's errors for descriptors and memory.
    #[doc(alias = "new_current_thread")]
    pub fn build_local(self) -> io::Result<Local> {
        if context::worker(|_| ()).is_some() {
            let text =
                "an embedded runtime cannot be made on a worker, which it would stop: make it on a thread that is none";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
        }
        let mut poller = Poller::new()?;
        if poller.fd().is_none() {
            poller = Poller::with_driver(osier_poll::Driver::default())?;
        }
        if poller.fd().is_none() {
            let text = "an embedded runtime needs a poller with a descriptor, which there is none of here";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        #[cfg(feature = "inspect")]
        panics::name_the_fiber();
        let watch = self.watch()?;
        let (scheduler, vacancies) = threads::prepare(&self.settings, std::iter::once(Ok(Arc::new(poller))))?;
        let vacancy = vacancies.into_iter().next().expect("one poller, one worker");
        let (claim, worker) = vacancy.fill(0, scheduler)?;
        let watch = Box::new(watch(worker.remote));
        Local::with(claim, worker, watch)
    }
}

/// Readable whenever `turn(Some(Duration::ZERO))` has something to do: events, wake-ups from other threads, timers,
/// ready fibers. It may be readable for nothing now and then.
///
/// It suits level-triggered waiting: it stays readable until a turn.
impl AsFd for Local {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.worker
            .poller
            .fd()
            .expect("Builder::build_local refuses a poller without one")
    }
}

impl Drop for Local {
    /// # Blocks the thread
    ///
    /// Until its fibers have ended, at most for the shutdown timeout.
    fn drop(&mut self) {
        self.worker.scheduler.stop();
        self.worker.wake_up();
        // The code that drops it may be unwinding, or be a fiber of another worker. Its fibers are neither.
        let panics = panic_count::take();
        context::enter_worker(&self.worker, || self.worker.run());
        panic_count::put(panics);
    }
}

osier_queue::impl_debug!(Local, self => { next_deadline: self.next_deadline(), .. });

/// The fibers that were ready when [`Local::ready`] was called, in the order in which they became ready.
#[derive(Debug)]
pub struct ReadyFibers<'a> {
    local: &'a Local,
    left: u32,
}

impl<'a> Iterator for ReadyFibers<'a> {
    type Item = Ready<'a>;

    fn next(&mut self) -> Option<Ready<'a>> {
        self.left = self.left.checked_sub(1)?;
        let word = self.local.worker.pop_ready()?;
        Some(Ready {
            local: self.local,
            word,
            resumed: false,
        })
    }
}

/// A ready fiber, for its host to resume. A fiber that is dropped instead is ready the next time.
pub struct Ready<'a> {
    local: &'a Local,
    word: Word,
    resumed: bool,
}

impl Ready<'_> {
    /// Runs the fiber until it suspends or ends.
    ///
    /// # Panics
    ///
    /// On a worker, which it would stop. The fiber is then ready the next time. A panic of the fiber goes to its handle.
    pub fn resume(mut self) {
        let resumed = self.local.work(|worker| worker.resume_word(self.word));
        self.resumed = resumed.is_ok();
        resumed.unwrap_or_else(|error| panic!("Ready::resume: {error}"));
    }

    /// The fiber's [id](crate::fiber::Fiber::id). A [connection at rest](crate::dormant), which is to become a fiber,
    /// has none.
    pub fn id(&self) -> Option<u64> {
        self.local.worker.tenant(self.word).map(|(id, _)| id)
    }

    /// The fiber's [name](crate::fiber::Fiber::name), at most its first 48 bytes.
    pub fn name(&self) -> Option<String> {
        let (_, label) = self.local.worker.tenant(self.word)?;
        let mut name = [0; 48];
        let name = String::from_utf8_lossy(label.name(&mut name)).into_owned();
        Some(name).filter(|name| !name.is_empty())
    }

    /// The place where the fiber was spawned.
    pub fn place(&self) -> Option<&'static Location<'static>> {
        self.local.worker.tenant(self.word)?.1.place()
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        if !self.resumed {
            self.local.worker.wake(self.word);
            self.local.worker.remote.ring();
        }
    }
}

osier_queue::impl_debug!(Ready<'a>, self => { id: self.id(), name: self.name() });
