//! What is spawned: a closure and the place for its outcome in one allocation, shared by the fiber and its handle.
//!
//! ```text
//!  Box ─▶ Packet { header │ body: Option<F> │ done: Completion<Result<T>> } ◀─ freed by whichever of the two leaves last
//!           ▲ Job (unique: whoever holds it may run it)      ▲ Handle<T> (unique: joins, cancels)
//! ```
//!
//! # Safety
//!
//! This file may use `unsafe` for the packet's memory and body, and to send jobs and handles between threads.
//! [`Completion`] says who frees the packet: the job, when it finishes and the handle has gone before; else the handle. The
//! body is touched only through the packet's one [`Job`], which leaves it empty when it ends, so a body is dropped where
//! its job is. A job with a body that is not `Send` is made only by [`packet_local`], whose caller keeps it on its worker's own
//! queue.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::task::{Context, Poll};
use std::{fmt, thread};

use osier_queue::Completion;

use crate::cancel::{self, Cancelled};
use crate::fiber::Header;
use crate::scope::Ticket;
use crate::wait;
use crate::waker::Word;

type Payload = Box<dyn Any + Send>;

struct Packet<F, T> {
    header: Header,
    /// Only touched through the one [`Job`].
    body: UnsafeCell<Option<F>>,
    done: Completion<thread::Result<T>>,
}

/// A packet as its job sees it.
trait Run {
    fn header(&self) -> &Header;

    /// Runs the body and leaves its outcome, not shown yet.
    ///
    /// # Safety
    ///
    /// Only from the packet's one job, and this or `fail` only once.
    unsafe fn run(&self);

    /// Leaves `payload` as the outcome of a body that never ran.
    ///
    /// # Safety
    ///
    /// As [`run`](Run::run).
    unsafe fn fail(&self, payload: Payload);

    /// Shows the outcome to the handle. `true`: there is none, the packet is the job's to free.
    ///
    /// # Safety
    ///
    /// Only from the packet's one job, after `run` or `fail`; after `false` the packet may be gone.
    unsafe fn finish(&self) -> bool;
}

/// A packet as its handle sees it.
trait Outcome<T> {
    fn header(&self) -> &Header;
    fn done(&self) -> &Completion<thread::Result<T>>;
}

impl<F: FnOnce() -> T, T> Run for Packet<F, T> {
    fn header(&self) -> &Header {
        &self.header
    }

    unsafe fn run(&self) {
        // SAFETY: the caller is the packet's one job, so nobody else touches the body.
        let Some(body) = unsafe { &mut *self.body.get() }.take() else {
            unreachable!("a job runs once")
        };
        let outcome = catch_unwind(AssertUnwindSafe(body)).map_err(|payload| match cancel::is_unwind(&*payload) {
            true => Box::new(Cancelled) as Payload,
            false => payload,
        });
        self.note_panic(&outcome);
        // SAFETY: the one producer, once. A detached value ends where its fiber does, so that its destructor may block; a
        // panic of that was reported by the hook and concerns nobody else.
        let _ = unsafe {
            self.done.set(outcome);
            catch_unwind(AssertUnwindSafe(|| self.done.discard()))
        };
    }

    unsafe fn fail(&self, payload: Payload) {
        // SAFETY: the caller is the packet's one job, so nobody else touches the body.
        let body = unsafe { &mut *self.body.get() }.take();
        // Nothing of the body has run; what it captured may still panic when dropped, which concerns nobody else.
        let dropped = catch_unwind(AssertUnwindSafe(move || drop(body)));
        // SAFETY: the one producer, once.
        unsafe { self.done.set(Err(dropped.err().unwrap_or(payload))) };
    }

    unsafe fn finish(&self) -> bool {
        // SAFETY: the caller is the one producer, after it has set the value.
        unsafe { self.done.finish() }
    }
}

impl<F, T> Packet<F, T> {
    /// Tells the scope, if there is one, of a panic: it is the scope's to report unless a handle takes it.
    fn note_panic(&self, outcome: &thread::Result<T>) {
        if let Some(scope) = self.header.scope()
            && let Err(payload) = outcome
            && !payload.is::<Cancelled>()
        {
            scope.child_panicked();
        }
    }
}

impl<F, T> Outcome<T> for Packet<F, T> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn done(&self) -> &Completion<thread::Result<T>> {
        &self.done
    }
}

/// A spawned closure that has not run yet. Dropping it cancels it.
pub(crate) type Job = ScopedJob<'static>;

/// A [`Job`] whose closure may borrow. Only `scope.rs` makes one that does, and vouches for it.
pub(crate) struct ScopedJob<'a> {
    /// None when the job has ended.
    packet: Option<NonNull<dyn Run + 'a>>,
    /// The last field, so dropped after the packet.
    ticket: Option<Ticket>,
}

// SAFETY: a job made by `packet` has a body and an outcome that are Send; one made by `packet_local` stays on its thread
// (the keeper is its caller, which is `unsafe` to get wrong only inside this crate: `Worker::spawn_local`).
unsafe impl Send for ScopedJob<'_> {}

impl ScopedJob<'_> {
    fn packet(&self) -> &dyn Run {
        let packet = self.packet.expect("a job that has ended is not used any more");
        // SAFETY: the packet lives at least until its job has finished it, which takes the pointer out of the job.
        unsafe { &*packet.as_ptr() }
    }

    pub(crate) fn header(&self) -> &Header {
        self.packet().header()
    }

    /// The fiber starts as `word`; false if it was cancelled before.
    pub(crate) fn start(&mut self, word: Word) -> bool {
        if let Some(ticket) = &mut self.ticket {
            ticket.started(word);
        }
        self.header().start(word)
    }

    /// Runs the closure and leaves its outcome, which [`end`](Self::end) will show. Never unwinds. To be called once.
    pub(crate) fn run(&self) {
        // SAFETY: this is the packet's one job; the caller, `Worker::start`, runs or abandons it once and then ends it.
        unsafe { self.packet().run() }
    }

    /// As [`run`](Self::run) for a closure that is not to run.
    pub(crate) fn abandon(&self, payload: Payload) {
        // SAFETY: as in `run`.
        unsafe { self.packet().fail(payload) }
    }

    /// Shows the outcome, after everything else of the fiber has ended.
    pub(crate) fn end(mut self) {
        if let Some(packet) = self.packet.take() {
            finish(packet);
        }
    }

    /// Ends the fiber before it began, with `payload` for its handle.
    pub(crate) fn fail(self, payload: Payload) {
        self.abandon(payload);
        self.end();
    }
}

/// Shows a packet's outcome and frees it if nobody is there to see.
fn finish(packet: NonNull<dyn Run + '_>) {
    // SAFETY: the packet lives until the job has finished it, which is here, once.
    if unsafe { packet.as_ref().finish() } {
        // SAFETY: it came from a box, and the handle has gone. A panic of a value's destructor was reported by the hook and
        // concerns nobody else.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(packet.as_ptr()) })));
    }
}

impl Drop for ScopedJob<'_> {
    fn drop(&mut self) {
        if let Some(packet) = self.packet {
            self.abandon(Box::new(Cancelled));
            self.packet = None;
            finish(packet);
        }
    }
}

/// A packet as seen by whoever waits for its outcome. Unique.
pub(crate) struct Handle<'a, T>(NonNull<dyn Outcome<T> + 'a>, PhantomData<T>);

// SAFETY: a handle reaches the header, which is Sync, and the outcome, which it may take or drop where it is: T is Send.
// The body is not reachable from here, and is gone before the packet is the handle's to free.
unsafe impl<T: Send> Send for Handle<'_, T> {}
// SAFETY: as above; by shared reference it only cancels and asks whether it is finished.
unsafe impl<T: Send> Sync for Handle<'_, T> {}

impl<T> Handle<'_, T> {
    fn packet(&self) -> &dyn Outcome<T> {
        // SAFETY: the packet lives at least until its handle has detached, which is in `drop`.
        unsafe { &*self.0.as_ptr() }
    }

    #[inline(always)]
    pub(crate) fn join(mut self) -> thread::Result<T> {
        let outcome = wait::wait_or_unwind(None, |cx| self.poll_join(cx)).expect("no deadline was set");
        if let Err(payload) = &outcome
            && !payload.is::<Cancelled>()
            && let Some(scope) = self.packet().header().scope()
        {
            scope.panic_was_joined();
        }
        outcome
    }

    fn poll_join(&mut self, cx: &mut Context<'_>) -> Poll<thread::Result<T>> {
        // SAFETY: a packet has one handle, and it is borrowed exclusively.
        unsafe { self.packet().done().poll(cx) }
    }

    pub(crate) fn cancel(&self) {
        self.packet().header().cancel();
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.packet().done().is_complete()
    }
}

impl<T> Drop for Handle<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the packet's one handle, which calls nothing of it after this.
        if unsafe { self.packet().done().detach() } {
            // SAFETY: it came from a box, and the job will not touch it again.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

impl<T> fmt::Debug for Handle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("name", &self.packet().header().name())
            .field("finished", &self.is_finished())
            .finish()
    }
}

/// The handle of a fiber: waits for its value, or asks it to end. Dropping it lets the fiber run on.
pub struct JoinHandle<T>(Handle<'static, T>);

impl<T> JoinHandle<T> {
    /// Waits for the fiber to end and gives its value, or what it panicked with.
    ///
    /// The payload of a fiber that was cancelled is a [`Cancelled`].
    ///
    /// # Suspends
    ///
    /// Until the fiber has ended, if it has not. # Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; the joined fiber runs on.
    ///
    /// # Errors
    ///
    /// What the fiber panicked with; [`Cancelled`]; an [`std::io::Error`] if there was no memory for its stack.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, where nothing may wait.
    #[inline]
    pub fn join(self) -> thread::Result<T> {
        self.0.join()
    }

    /// Asks the fiber to end: its blocking calls fail with [`Cancelled`], then unwind it. Never waits.
    ///
    /// A fiber that has not started never will.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether the fiber has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A closure that may run on any thread, with its handle.
pub(crate) fn packet<F, T>(header: Header, body: F) -> (Job, JoinHandle<T>)
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let (job, handle) = packet_unbounded(header, body, None);
    (job, JoinHandle(handle))
}

/// A closure that must stay on this thread: the job may only go into the own queue of this thread's worker.
pub(crate) fn packet_local<F, T>(header: Header, body: F) -> (Job, JoinHandle<T>)
where
    F: FnOnce() -> T + 'static,
    T: 'static,
{
    let (job, handle) = packet_unbounded(header, body, None);
    (job, JoinHandle(handle))
}

/// A closure that may borrow: for `scope.rs`, which sees to it that the job is gone in time.
pub(crate) fn packet_unbounded<'a, F, T>(
    header: Header,
    body: F,
    ticket: Option<Ticket>,
) -> (ScopedJob<'a>, Handle<'a, T>)
where
    F: FnOnce() -> T + 'a,
    T: 'a,
{
    let packet = Box::new(Packet {
        header,
        body: UnsafeCell::new(Some(body)),
        done: Completion::new(),
    });
    // Both are the same address; which of them frees it is the completion's to say.
    let packet = NonNull::from(Box::leak(packet));
    let job = ScopedJob {
        packet: Some(packet as NonNull<dyn Run + 'a>),
        ticket,
    };
    (job, Handle(packet, PhantomData))
}
