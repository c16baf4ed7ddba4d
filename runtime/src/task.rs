//! What is spawned: a closure and the place for its outcome in one allocation, shared by the fiber and its handle.
//!
//! ```text
//!  Arc ─▶ Packet { header │ body: Option<F> │ done: Completion<Result<T>> }
//!           Job (unique: whoever holds it may run it)      JoinHandle<T> (unique: joins, cancels)
//! ```
//!
//! # Safety
//!
//! This file may use `unsafe` for the packet's body, and to send jobs and handles between threads. The body is touched
//! only through the packet's one [`Job`], which is consumed or dropped exactly once and leaves it empty, so a body is
//! dropped where its job is. A job with a body that is not `Send` is made only by [`packet_local`], whose caller keeps it on
//! its worker's own queue.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
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

trait Run {
    fn header(&self) -> &Header;

    /// # Safety
    ///
    /// Only from the packet's one job.
    unsafe fn run(&self);

    /// # Safety
    ///
    /// Only when there is no handle.
    unsafe fn discard(&self);

    /// # Safety
    ///
    /// Only from the packet's one job.
    unsafe fn fail(&self, payload: Payload);
}

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
        let body = unsafe { &mut *self.body.get() }.take();
        let Some(body) = body else { return };
        let outcome = catch_unwind(AssertUnwindSafe(body)).map_err(|payload| match cancel::is_unwind(&*payload) {
            true => Box::new(Cancelled) as Payload,
            false => payload,
        });
        // SAFETY: a job runs or fails once, and only the packet's one job completes.
        unsafe { self.done.complete(outcome) };
    }

    unsafe fn discard(&self) {
        // SAFETY: the caller says that there is no handle.
        let outcome = unsafe { self.take_unjoined() };
        // A panic of the value's destructor was reported by the hook and concerns nobody else.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(outcome)));
    }

    unsafe fn fail(&self, payload: Payload) {
        // SAFETY: the caller is the packet's one job, so nobody else touches the body.
        let body = unsafe { &mut *self.body.get() }.take();
        if body.is_some() {
            // Nothing of the body has run; what it captured may still panic when dropped, which concerns nobody else.
            let dropped = catch_unwind(AssertUnwindSafe(move || drop(body)));
            // SAFETY: a job runs or fails once, and only the packet's one job completes.
            unsafe { self.done.complete(Err(dropped.err().unwrap_or(payload))) };
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
    packet: Arc<dyn Run + 'a>,
    /// The last field, so dropped after the packet.
    ticket: Option<Ticket>,
}

// SAFETY: a job made by `packet` has a body and an outcome that are Send; one made by `packet_local` stays on its thread
// (the keeper is its caller, which is `unsafe` to get wrong only inside this crate: `Worker::spawn_local`).
unsafe impl Send for ScopedJob<'_> {}

impl ScopedJob<'_> {
    pub(crate) fn header(&self) -> &Header {
        self.packet.header()
    }

    /// The fiber starts as `word`; false if it was cancelled before.
    pub(crate) fn start(&mut self, word: Word) -> bool {
        if let Some(ticket) = &mut self.ticket {
            ticket.started(word);
        }
        self.packet.header().start(word)
    }

    /// Runs the closure and stores how it ended. Never unwinds.
    pub(crate) fn run(&self) {
        // SAFETY: this is the packet's one job; a second call, and `drop`, find the body gone and do nothing.
        unsafe { self.packet.run() };
        if Arc::strong_count(&self.packet) == 1 {
            // Detached: the value ends where its fiber does, so that its destructor may block like the fiber.
            // SAFETY: the handle is gone and nobody can make another, so nobody else takes.
            unsafe { self.packet.discard() };
        }
    }

    /// Ends the fiber before it began, with `payload` for its handle.
    pub(crate) fn fail(&self, payload: Payload) {
        // SAFETY: this is the packet's one job; a second call, and `drop`, find the body gone and do nothing.
        unsafe { self.packet.fail(payload) }
    }
}

impl Drop for ScopedJob<'_> {
    fn drop(&mut self) {
        // SAFETY: this is the packet's one job; after `run` or `fail` the body is gone and this does nothing.
        unsafe { self.packet.fail(Box::new(Cancelled)) }
    }
}

impl<F, T> Packet<F, T> {
    /// Takes the outcome that nobody will join; a panic among them is the scope's to report.
    ///
    /// # Safety
    ///
    /// Only when there is no handle.
    unsafe fn take_unjoined(&self) -> Option<thread::Result<T>> {
        // SAFETY: without a handle nobody else takes.
        let outcome = unsafe { self.done.take() };
        if let Some(scope) = self.header.scope()
            && let Some(Err(payload)) = &outcome
            && !payload.is::<Cancelled>()
        {
            scope.child_panicked();
        }
        outcome
    }
}

impl<F, T> Drop for Packet<F, T> {
    fn drop(&mut self) {
        // SAFETY: exclusive access: the handle is gone.
        drop(unsafe { self.take_unjoined() });
    }
}

/// A packet as seen by whoever waits for its outcome. Unique.
pub(crate) struct Handle<'a, T>(Arc<dyn Outcome<T> + 'a>);

// SAFETY: a handle reaches the header, which is Sync, and the outcome, which it may take or drop where it is: T is Send.
// The body is not reachable from here, and is gone before the last job is (see the header of this file).
unsafe impl<T: Send> Send for Handle<'_, T> {}
// SAFETY: as above; by shared reference it only cancels and asks whether it is finished.
unsafe impl<T: Send> Sync for Handle<'_, T> {}

impl<T> Handle<'_, T> {
    pub(crate) fn join(mut self) -> thread::Result<T> {
        wait::wait_or_unwind(None, |cx| self.poll_join(cx)).expect("no deadline was set")
    }

    fn poll_join(&mut self, cx: &mut Context<'_>) -> Poll<thread::Result<T>> {
        // SAFETY: a packet has one handle, and it is borrowed exclusively.
        unsafe { self.0.done().poll(cx) }
    }

    pub(crate) fn cancel(&self) {
        self.0.header().cancel();
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.done().is_complete()
    }
}

impl<T> fmt::Debug for Handle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("name", &self.0.header().name)
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
    let packet = Arc::new(Packet {
        header,
        body: UnsafeCell::new(Some(body)),
        done: Completion::new(),
    });
    let job = ScopedJob {
        packet: Arc::clone(&packet) as Arc<dyn Run + 'a>,
        ticket,
    };
    (job, Handle(packet))
}
