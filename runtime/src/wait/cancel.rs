//! Cancellation: requests, the frames that they aim at, and their delivery.
//!
//! A fiber has a stack of *frames*. The outermost frame is the fiber itself: [`crate::JoinHandle::cancel`], a failing
//! scope or the runtime's shutdown request it. Inside it are [`timeout`]s, [`crate::io::while_connected`]s, [`crate::sync::Interrupt`]s and
//! [`shield`]s. Each blocking call asks when it begins, and before each suspension, whether a frame is requested. A shield
//! hides the frames outside it. A fiber that unwinds is shielded as a whole, for at most the grace period. The
//! outermost requested frame wins.
//!
//! The first delivery to a frame is an error where the call has an `io::Error`, with [`Cancelled`] in it. Every later
//! delivery, and every delivery to another call, unwinds with a private payload that carries the frame's depth
//! and stops there. A request is a condition, not an event: it is asked anew each time, so it stays until its frame is
//! left.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io, ptr, thread};

use osier_queue::{self as queue, Key};
use smallvec::SmallVec;

use crate::wait::entry::Entry;
use crate::wait::socket::Waiting;
use crate::worker::Worker;
use crate::worker::context::{self, Caller, now};

/// The blocking calls of a cancelled fiber go on working for this long while it unwinds.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// After this many unwindings of one fiber that did not leave their frame, a line is written.
const SWALLOWED: u32 = 16;

/// The fiber was cancelled. `io::Error::get_ref` gives this value for an error that a blocking call returned for that
/// reason.
///
/// The error's kind is [`io::ErrorKind::Other`], never `Interrupted`, which `read_exact` and friends would retry for ever.
///
/// ```
/// use std::io;
/// let error = io::Error::from(osier::Cancelled);
/// assert!(osier::Cancelled::is(&error));
/// assert!(!osier::Cancelled::is(&io::Error::other("something else")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl Cancelled {
    /// Whether `error` says that the fiber was cancelled.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Cancelled>())
    }

    /// Whether `error` or one of its [sources](std::error::Error::source) says that the fiber was cancelled. Log lines
    /// about such an error would blame the application for nothing.
    ///
    /// ```
    /// use std::io;
    /// let inner = io::Error::from(osier::Cancelled);
    /// let outer = io::Error::other(inner);
    /// assert!(osier::Cancelled::is_cause_of(&outer));
    /// assert!(!osier::Cancelled::is_cause_of(&io::Error::other("something else")));
    /// ```
    pub fn is_cause_of(error: &(dyn std::error::Error + 'static)) -> bool {
        std::iter::successors(Some(error), |error| error.source()).any(|error| {
            match error.downcast_ref::<io::Error>() {
                // `source` of an `io::Error` is the source of the error inside it.
                Some(error) => {
                    Cancelled::is(error) || error.get_ref().is_some_and(|inner| Cancelled::is_cause_of(inner))
                }
                None => error.is::<Cancelled>(),
            }
        })
    }

    /// Whether `payload`, from a join that failed, comes from a cancellation and not from a panic.
    pub fn is_payload(payload: &(dyn Any + Send)) -> bool {
        payload.is::<Cancelled>() || payload.is::<Unwind>()
    }
}

osier_queue::impl_error!(Cancelled, self => "the fiber was cancelled");

impl From<Cancelled> for io::Error {
    fn from(cancelled: Cancelled) -> io::Error {
        io::Error::other(cancelled)
    }
}

/// A [`timeout`] passed before its closure was done. As an [`io::Error`] it is of the kind [`TimedOut`](io::ErrorKind::TimedOut).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "DeadlineExceeded")]
pub struct Elapsed(());

osier_queue::impl_error!(Elapsed, self => "the time limit passed");

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, elapsed)
    }
}

/// The payload that a cancelled fiber unwinds with: private, silent, on its way to the frame at this depth.
struct Unwind {
    depth: usize,
}

/// Whether a fiber that ended by `payload` was cancelled as a whole.
pub(crate) fn is_unwind(payload: &(dyn Any + Send)) -> bool {
    payload.is::<Unwind>()
}

pub(crate) enum Kind {
    Shield,
    Timeout {
        deadline: Instant,
        timer: Option<Key>,
    },
    Gone {
        entry: &'static Entry,
        half_close_is_gone: bool,
    },
    /// Requested once the event, a manual one, is set.
    Interrupt(Arc<queue::Event>),
}

impl Kind {
    fn is_requested(&self, waiting: Waiting, worker: &Worker) -> bool {
        match self {
            Kind::Shield => false,
            Kind::Timeout { deadline, .. } => worker.now() >= *deadline,
            Kind::Interrupt(event) => event.is_set(),
            Kind::Gone {
                entry,
                half_close_is_gone,
            } => {
                let fin_counts = match waiting {
                    Waiting::NotYet => false,
                    Waiting::For(on) => *half_close_is_gone && !on.is_some_and(|on| ptr::eq(on, *entry)),
                };
                entry.is_gone(fin_counts)
            }
        }
    }
}

/// Why a fiber is being cancelled, in words.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    Root,
    Timeout,
    Gone,
    Interrupt,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Root => "its handle, its scope or its runtime ended it",
            Reason::Timeout => "its time limit passed",
            Reason::Gone => "the client left",
            // For a client that is not a socket it means the same.
            Reason::Interrupt => "its interrupt was set, as when a client leaves",
        })
    }
}

struct Frame {
    kind: Kind,
    delivered: bool,
    /// Set if a destructor entered the frame while the fiber unwound.
    unwinding: bool,
}

impl Frame {
    fn reason(&self) -> Reason {
        match self.kind {
            Kind::Timeout { .. } => Reason::Timeout,
            Kind::Gone { .. } => Reason::Gone,
            Kind::Interrupt(_) => Reason::Interrupt,
            Kind::Shield => Reason::Root,
        }
    }
}

/// The frames of one fiber. Only the fiber itself touches them.
#[derive(Default)]
pub(crate) struct Frames {
    /// Two frames need no allocation: most fibers serve a connection, in `while_connected` and perhaps a `timeout`.
    inner: RefCell<SmallVec<[Frame; 2]>>,
    /// The length of `inner`, which every call asks for.
    depth: Cell<usize>,
    root_delivered: Cell<bool>,
    /// How often the fiber was unwound and went on.
    unwindings: Cell<u32>,
    grace: Cell<Option<Instant>>,
    /// The depth of the frame to which a request was last delivered, by an error or by unwinding.
    last: Cell<usize>,
}

/// A frame of the current fiber. Dropping it pops it.
pub(crate) struct Entered {
    depth: usize,
}

impl Entered {
    pub(crate) fn push(kind: Kind) -> Entered {
        let depth = context::core(|core| {
            let mut frames = core.extra().frames.inner.borrow_mut();
            frames.push(Frame {
                kind,
                delivered: false,
                unwinding: thread::panicking(),
            });
            core.extra().frames.depth.set(frames.len());
            frames.len()
        });
        Entered {
            depth: depth.expect("a frame is entered on a fiber: the caller has looked"),
        }
    }

    /// Runs `body`. Returns `Err` if a request aimed at this frame ended it.
    pub(crate) fn run<T>(self, body: impl FnOnce() -> T) -> Result<T, ()> {
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(value) => match self.ended(None) {
                true => Err(()),
                false => Ok(value),
            },
            Err(payload) => {
                self.ended(Some(payload));
                Err(())
            }
        }
    }

    /// Whether a request aimed at this frame ended its body, which returned or unwound with `payload`. Any other payload
    /// unwinds on.
    fn ended(self, payload: Option<Box<dyn Any + Send>>) -> bool {
        let is_ours = |payload: &(dyn Any + Send)| {
            let unwind: Option<&Unwind> = payload.downcast_ref();
            unwind.is_some_and(|unwind| unwind.depth == self.depth)
        };
        let unwound = payload.as_deref().is_none_or(is_ours);
        let delivered = context::core(|core| {
            if unwound && !thread::panicking() {
                // The next unwinding has the full grace period again.
                core.extra().frames.grace.set(None);
                core.extra().frames.unwindings.set(0);
            }
            core.extra()
                .frames
                .inner
                .borrow()
                .get(self.depth - 1)
                .is_some_and(|frame| frame.delivered)
        });
        match payload {
            None => delivered == Some(true),
            Some(_) if unwound => true,
            Some(payload) => {
                drop(self);
                resume_unwind(payload)
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let popped = context::core(|core| {
            let mut frames = core.extra().frames.inner.borrow_mut();
            debug_assert_eq!(
                frames.len(),
                self.depth,
                "frames are left in the order they were entered"
            );
            core.extra().frames.depth.set(frames.len() - 1);
            frames.pop()
        });
        if let Some(Some(Frame {
            kind: Kind::Timeout { timer: Some(timer), .. },
            ..
        })) = popped
        {
            context::worker(|worker| worker.disarm(timer));
        }
    }
}

impl Frames {
    /// The depth of the outermost requested frame that no shield hides.
    #[inline]
    fn requested(&self, root: bool, waiting: Waiting, worker: &Worker) -> Option<usize> {
        let frames = self.inner.borrow();
        if frames.is_empty() {
            return root.then_some(0);
        }
        let mut found = None;
        for (index, frame) in frames.iter().enumerate().rev() {
            if matches!(frame.kind, Kind::Shield) {
                return found;
            }
            if frame.kind.is_requested(waiting, worker) {
                found = Some(index + 1);
            }
        }
        if root { Some(0) } else { found }
    }

    /// Asks for a request and delivers it: by `Err` the first time, by unwinding afterwards.
    #[inline]
    pub(crate) fn check(&self, root: bool, waiting: Waiting, worker: &Worker) -> Result<(), Cancelled> {
        if !root && self.depth.get() == 0 {
            return Ok(());
        }
        if thread::panicking() {
            return self.check_unwinding(waiting, worker);
        }
        match self.requested(root, waiting, worker) {
            None => Ok(()),
            Some(depth) => self.deliver(depth, worker),
        }
    }

    /// Asks while the fiber unwinds. Only the frames that its destructors have entered count, and a request is always
    /// an error: unwinding might leave a destructor, which aborts. So calls without an error must not ask.
    #[cold]
    fn check_unwinding(&self, waiting: Waiting, worker: &Worker) -> Result<(), Cancelled> {
        for frame in self.inner.borrow_mut().iter_mut().rev() {
            if !frame.unwinding || matches!(frame.kind, Kind::Shield) {
                break;
            }
            if frame.kind.is_requested(waiting, worker) {
                frame.delivered = true;
                return Err(Cancelled);
            }
        }
        Ok(())
    }

    #[cold]
    fn deliver(&self, depth: usize, worker: &Worker) -> Result<(), Cancelled> {
        context::core(|core| worker.count_ready_call(core));
        if self.mark_delivered(depth) {
            // A fiber that swallows cancellations for ever must not keep the worker: an unwinding takes as long as many
            // calls.
            context::core(|core| {
                core.run_hooks();
                worker.yield_fiber(core);
            });
            self.begin_unwinding(depth);
        }
        Err(Cancelled)
    }

    /// Returns whether a request was delivered to that frame before.
    fn mark_delivered(&self, depth: usize) -> bool {
        self.last.set(depth);
        match depth {
            0 => self.root_delivered.replace(true),
            _ => std::mem::replace(&mut self.inner.borrow_mut()[depth - 1].delivered, true),
        }
    }

    /// Unwinds to the frame that [`check`](Frames::check) has just reported, for a call that has no error to return.
    #[cold]
    pub(crate) fn unwind(&self, root: bool, worker: &Worker) -> ! {
        let depth = self.requested(root, Waiting::For(None), worker).unwrap_or(0);
        self.mark_delivered(depth);
        self.begin_unwinding(depth)
    }

    fn begin_unwinding(&self, depth: usize) -> ! {
        self.unwindings.set(self.unwindings.get().saturating_add(1));
        if self.unwindings.get() == SWALLOWED {
            context::core(|core| core.report_swallowed());
        }
        resume_unwind(Box::new(Unwind { depth }))
    }

    /// Why the fiber that panics was cancelled: it unwinds, or a call has returned [`Cancelled`] to code that it is in. The last delivery
    /// counts, and the outermost once the frame of the last is left.
    pub(crate) fn panics_because(&self) -> Option<Reason> {
        let frames = self.inner.try_borrow().ok()?;
        let delivered = |depth: usize| match depth.checked_sub(1) {
            None => self.root_delivered.get().then_some(Reason::Root),
            Some(index) => frames.get(index).filter(|frame| frame.delivered).map(Frame::reason),
        };
        std::iter::once(self.last.get())
            .chain(0..=frames.len())
            .find_map(delivered)
    }

    /// Whether the next blocking call would be cancelled.
    pub(crate) fn is_requested(&self, root: bool, worker: &Worker) -> bool {
        self.requested(root, Waiting::For(None), worker).is_some()
    }

    /// The time at which the calls of a fiber that unwinds stop working; `None` if it is not to be cancelled.
    pub(crate) fn grace(&self, root: bool, worker: &Worker) -> Option<Instant> {
        if self.grace.get().is_none() && self.requested(root, Waiting::For(None), worker).is_some() {
            self.grace.set(Some(worker.clock().now() + GRACE));
        }
        self.grace.get()
    }

    /// Arms the timers of the frames. It is called before the fiber suspends, so a body that never waits pays nothing.
    pub(crate) fn arm(&self, word: crate::worker::waker::Word, worker: &Worker) {
        for frame in self.inner.borrow_mut().iter_mut() {
            if let Kind::Timeout {
                deadline,
                timer: timer @ None,
            } = &mut frame.kind
            {
                *timer = Some(worker.arm(*deadline, word));
            }
        }
    }
}

/// Runs `body` and cancels it when it takes longer than `limit`.
///
/// The body meets the end of its time as a cancellation ([`Cancelled`]): first as an error from a call that returns an
/// `io::Error`, then as an unwinding out of the next blocking call, up to this function. Timeouts nest, and each cancels only the
/// code inside it.
///
/// ```
/// use std::time::Duration;
/// osier::run(|| {
///     let slow = osier::timeout(Duration::from_millis(5), || osier::sleep(Duration::from_secs(60)));
///     assert!(slow.is_err());
///     let quick = osier::timeout(Duration::from_secs(60), || 7);
///     assert_eq!(quick, Ok(7));
/// });
/// ```
///
/// It bounds any number of calls together. The timeouts of a socket bound each call alone. Where the body returns an [`io::Result`], two `?`
/// give the value: [`Elapsed`] becomes an [`io::Error`] of the kind [`TimedOut`](io::ErrorKind::TimedOut).
///
/// ```
/// use osier::net::{TcpListener, TcpStream};
/// use std::io::{self, Read, Write};
/// use std::time::Duration;
///
/// fn ask(mut server: &TcpStream) -> io::Result<[u8; 4]> {
///     let mut reply = [0; 4];
///     osier::timeout(Duration::from_millis(20), || {
///         server.write_all(b"ping")?;
///         server.read_exact(&mut reply)
///     })??;
///     Ok(reply)
/// }
///
/// osier::run(|| {
///     let silent = TcpListener::bind("127.0.0.1:0")?;
///     let error = ask(&TcpStream::connect(silent.local_addr()?)?).unwrap_err();
///     assert_eq!(error.kind(), io::ErrorKind::TimedOut);
///     io::Result::Ok(())
/// }).unwrap();
/// ```
///
/// # Suspends
///
/// Only where `body` does.
///
/// # Errors
///
/// [`Elapsed`] when the limit passed and a blocking call of the body met it. A body that finishes without meeting a
/// blocking call after the limit returns its value.
///
/// In a destructor of a fiber that unwinds, only calls that have errors meet the limit, with an error each time.
///
/// # Panics
///
/// Outside of a fiber, where nothing could end the body. [`select!`](crate::select!) limits a future on a plain thread, too.
#[track_caller]
#[doc(alias("timeout_at", "WithTimeout", "deadline"))]
pub fn timeout<T>(limit: Duration, body: impl FnOnce() -> T) -> Result<T, Elapsed> {
    let on_fiber = context::caller(|caller| matches!(caller, Caller::Fiber(..)));
    assert!(
        on_fiber,
        "osier::timeout outside of a fiber: call it inside osier::run or osier::spawn, or limit a future by osier::select!"
    );
    let Some(deadline) = now().checked_add(limit) else {
        return Ok(body());
    };
    Entered::push(Kind::Timeout { deadline, timer: None })
        .run(body)
        .map_err(|()| Elapsed(()))
}

/// Runs `body` and defers cancellation: requests from outside wait until the shield is left.
///
/// A [`timeout`] inside the body still works. On a plain thread the body just runs.
///
/// ```
/// osier::run(|| {
///     let handle = osier::spawn_local(|| {
///         osier::shield(|| osier::sleep(std::time::Duration::from_millis(20)));
///         "written to disk"
///     });
///     osier::yield_now();
///     handle.cancel();
///     assert_eq!(handle.join().ok(), Some("written to disk"));
/// });
/// ```
///
/// # Suspends
///
/// Only where `body` does.
#[doc(alias = "mask")]
pub fn shield<T>(body: impl FnOnce() -> T) -> T {
    if context::core(|_| ()).is_none() {
        return body();
    }
    let _shield = Entered::push(Kind::Shield);
    body()
}
