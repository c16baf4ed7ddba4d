//! A packet: a spawned closure and the place for its outcome in one allocation, shared by the fiber and its handle.
//!
//! ```text
//!  Box ─▶ Packet { calls, header │ done: Completion<Result<T>> │ body: Option<F> }   freed by whichever of the two leaves last
//!         ◀──── Front ────▶                                      Job: knows it, may run the body; unique
//!         ◀──────────── Middle<T> ─────────────▶                 Handle<T>: knows it, joins and cancels; unique
//! ```
//!
//! # Safety
//!
//! This file may use `unsafe` for the packet's memory and body, and to send jobs and handles between threads.
//! [`Completion`] decides who frees the packet: the job, if it finishes after the handle has gone; else the handle.
//! Only the packet's one [`Job`] touches the body, and leaves it empty when it ends, so a body is dropped where its job
//! is. Only [`packet_local`] makes a job with a body that is not `Send`; its caller keeps the job on its worker's own
//! queue.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};
use std::{fmt, thread};

use osier_queue::Completion;

use crate::wait::cancel::{self, Cancelled};
use crate::wait::{self, budget};
use crate::worker::core::Header;
use crate::worker::isolate::isolate;
use crate::worker::waker::Word;

type Payload = Box<dyn Any + Send>;

/// The part of a packet whose type is the same for all.
#[repr(C)]
struct Front {
    calls: &'static Calls,
    header: Header,
}

/// The part that the handle knows.
#[repr(C)]
struct Middle<T> {
    front: Front,
    done: Completion<thread::Result<T>>,
}

#[repr(C)]
struct Packet<F, T> {
    middle: Middle<T>,
    /// Touched only through the one [`Job`].
    body: UnsafeCell<Option<F>>,
}

/// The calls of a job on a packet whose type it does not know. Each takes the job's own packet.
struct Calls {
    run: unsafe fn(NonNull<Front>),
    empty: unsafe fn(NonNull<Front>),
    fail: unsafe fn(NonNull<Front>, Payload),
    finish: unsafe fn(NonNull<Front>) -> bool,
    free: unsafe fn(NonNull<Front>),
}

// Compiled once for each type of a value. All that the type of the body does not need is here, not in `Packet`.
impl<T> Middle<T> {
    /// The middle of the packet that begins with `front`.
    ///
    /// # Safety
    ///
    /// As for [`Packet::of`].
    unsafe fn of<'p>(front: NonNull<Front>) -> &'p Self {
        // SAFETY: the caller's promise; `repr(C)` puts the front at the middle's own address, and that at the packet's, and the
        // pointer was made from one to the whole packet.
        unsafe { front.cast::<Self>().as_ref() }
    }

    /// Leaves the outcome of the body, which is not shown yet.
    ///
    /// # Safety
    ///
    /// Only from the packet's one job, on the fiber, and this or `fail` only once.
    unsafe fn leave(&self, outcome: thread::Result<T>) {
        let outcome = outcome.map_err(for_handle);
        self.note_panic(&outcome);
        // SAFETY: the one producer, once.
        unsafe { self.done.set(outcome) };
        if self.done.is_detached() {
            // The value ends where its fiber does, so its destructor may block.
            // SAFETY: the one producer, between `set` and `finish`.
            isolate(|| unsafe { self.done.discard() });
        }
    }

    /// Leaves `payload` as the outcome of a body that never ran.
    ///
    /// # Safety
    ///
    /// Only from the packet's one job, and this or `leave` only once.
    unsafe fn fail(front: NonNull<Front>, payload: Payload) {
        // SAFETY: a job's packet is alive until it has finished, and these calls are of its type.
        let middle = unsafe { Self::of(front) };
        let outcome = Err(payload);
        middle.note_panic(&outcome);
        // SAFETY: the one producer, once.
        unsafe { middle.done.set(outcome) };
    }

    /// Counts a panic in the scope. A handle that takes the panic uncounts it.
    fn note_panic(&self, outcome: &thread::Result<T>) {
        if let Err(payload) = outcome
            && let Some(scope) = self.front.header.scope()
            && !payload.is::<Cancelled>()
        {
            scope.child_panicked();
        }
    }

    /// Shows the outcome to the handle. Returns true if there is no handle: then the packet is the job's to free.
    ///
    /// # Safety
    ///
    /// Only from the packet's one job, after `leave` or `fail`; after `false` the packet may be gone.
    unsafe fn finish(front: NonNull<Front>) -> bool {
        // SAFETY: the caller is the one producer, after it has set the value; its packet is alive until this call.
        unsafe { Self::of(front).done.finish() }
    }
}

/// Turns the payload of a body that has unwound into the one that its handle returns.
fn for_handle(payload: Payload) -> Payload {
    match cancel::is_unwind(&*payload) {
        true => Box::new(Cancelled),
        false => payload,
    }
}

impl<F: FnOnce() -> T, T> Packet<F, T> {
    const CALLS: Calls = Calls {
        run: Self::run,
        empty: Self::empty,
        fail: Middle::<T>::fail,
        finish: Middle::<T>::finish,
        free: Self::free,
    };

    /// The packet that begins with `front`.
    ///
    /// # Safety
    ///
    /// `front` is of a packet of this very type, which is alive for as long as the reference is used.
    unsafe fn of<'p>(front: NonNull<Front>) -> &'p Self {
        // SAFETY: the caller's promise; `repr(C)` puts the front at the packet's own address, and the pointer was made from
        // one to the whole packet.
        unsafe { front.cast::<Self>().as_ref() }
    }

    /// Runs the body and leaves its outcome. The outcome is not shown yet.
    ///
    /// # Safety
    ///
    /// Only from the packet's one job, and this or `empty` only once.
    unsafe fn run(front: NonNull<Front>) {
        // SAFETY: a job's packet is alive until it has finished, and these calls are of its type.
        let packet = unsafe { Self::of(front) };
        // SAFETY: the caller is the packet's one job, so nobody else touches the body.
        let Some(body) = unsafe { &mut *packet.body.get() }.take() else {
            unreachable!("a job runs once")
        };
        let outcome = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: the caller's promise.
        unsafe { packet.middle.leave(outcome) };
    }

    /// Drops the body, which never ran.
    ///
    /// # Safety
    ///
    /// Only from the packet's one job, and this or `run` only once.
    unsafe fn empty(front: NonNull<Front>) {
        // SAFETY: a job's packet is alive until it has finished, and these calls are of its type.
        let packet = unsafe { Self::of(front) };
        // SAFETY: the caller is the packet's one job, so nobody else touches the body.
        drop(unsafe { &mut *packet.body.get() }.take());
    }

    /// Frees the packet.
    ///
    /// # Safety
    ///
    /// Only the side that the completion has named may call it, once.
    unsafe fn free(front: NonNull<Front>) {
        // SAFETY: the packet came from a box of this type, and the other side will not touch it again.
        drop(unsafe { Box::from_raw(front.cast::<Self>().as_ptr()) });
    }
}

/// A spawned closure that has not run yet. Dropping it cancels it. One word.
pub(crate) type Job = ScopedJob<'static>;

/// A [`Job`] whose closure may borrow. Only `fiber/scope.rs` makes one that does, and answers for the lifetime.
pub(crate) struct ScopedJob<'a> {
    /// `None` when the job has ended.
    packet: Option<NonNull<Front>>,
    body: PhantomData<&'a ()>,
}

// SAFETY: a job made by `packet` has a body and an outcome that are Send; one made by `packet_local` stays on its thread
// (the keeper is its caller, which is `unsafe` to get wrong only inside this crate: `Worker::spawn_local`).
unsafe impl Send for ScopedJob<'_> {}

impl ScopedJob<'_> {
    /// The pointer to the whole packet. A pointer made from [`front`](Self::front) would reach its front alone.
    #[inline]
    fn packet(&self) -> NonNull<Front> {
        self.packet.expect("a job that has ended is not used any more")
    }

    #[inline]
    fn front(&self) -> &Front {
        // SAFETY: the packet lives at least until its job has finished it, which takes the pointer out of the job.
        unsafe { &*self.packet().as_ptr() }
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        &self.front().header
    }

    /// Notes that the fiber starts as `word`. Returns false if it was cancelled before.
    pub(crate) fn start(&mut self, word: Word) -> bool {
        self.header().start(word)
    }

    /// Runs the closure and leaves its outcome, which [`end`](Self::end) shows. Never unwinds. Called once.
    #[inline]
    pub(crate) fn run(&self) {
        // SAFETY: this is the packet's one job; the caller, `Worker::start`, runs or abandons it once and then ends it.
        unsafe { (self.front().calls.run)(self.packet()) }
    }

    /// Leaves `payload` as the outcome of a closure that is not to run.
    pub(crate) fn abandon(&self, payload: Payload) {
        // Nothing of the body has run. Its captures may still panic when they are dropped, which concerns nobody else.
        // SAFETY: as in `run`.
        let dropped = catch_unwind(AssertUnwindSafe(|| unsafe {
            (self.front().calls.empty)(self.packet())
        }));
        // SAFETY: the one job, once, in place of `run`.
        unsafe { (self.front().calls.fail)(self.packet(), dropped.err().unwrap_or(payload)) }
    }

    /// Shows the outcome, after everything else of the fiber has ended.
    pub(crate) fn end(mut self) {
        self.finish();
    }

    /// Ends the fiber before it begins, with `payload` for its handle.
    pub(crate) fn fail(self, payload: Payload) {
        self.abandon(payload);
        self.end();
    }

    /// Shows the outcome, and frees the packet if there is no handle.
    #[inline]
    fn finish(&mut self) {
        let Some(packet) = self.packet.take() else { return };
        // SAFETY: the packet lives until the job has finished it, which is below.
        let Front { calls, header } = unsafe { packet.as_ref() };
        // The ticket is given up last: the scope may end then, and with it everything that the packet borrows.
        let ticket = header.ticket();
        // A joiner's waker may panic. The packet is then the handle's, as after any wake-up.
        // SAFETY: the one job, once, after its outcome was left.
        let is_ours = isolate(|| unsafe { (calls.finish)(packet) }).unwrap_or(false);
        if is_ours {
            // A handle that left after `run` had looked leaves its value to this call, which is off the fiber. A destructor that
            // waits then gets an error or panics, as in a callback. A second look would not end the race, and a state that does
            // would cost each fiber an atomic operation.
            // SAFETY: the completion has said that the packet is the job's.
            isolate(|| unsafe { (calls.free)(packet) });
        }
        drop(ticket);
    }
}

impl Drop for ScopedJob<'_> {
    fn drop(&mut self) {
        if self.packet.is_some() {
            self.abandon(Box::new(Cancelled));
            self.finish();
        }
    }
}

/// A packet as its handle sees it. Unique. One word.
pub(crate) struct Handle<'a, T>(NonNull<Middle<T>>, PhantomData<(T, &'a ())>);

// SAFETY: a handle reaches the header, which is Sync, and the outcome, which it may take or drop where it is: T is Send.
// The body is not reachable from here, and is gone before the packet is the handle's to free.
unsafe impl<T: Send> Send for Handle<'_, T> {}
// SAFETY: as above; by shared reference it only cancels and asks whether it is finished.
unsafe impl<T: Send> Sync for Handle<'_, T> {}

// The value is in the packet, not in the handle, so moving a handle moves no value.
impl<T> Unpin for Handle<'_, T> {}

impl<T> Handle<'_, T> {
    #[inline]
    fn packet(&self) -> &Middle<T> {
        // SAFETY: the packet lives at least until its handle has detached, which is in `drop`.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn join(mut self) -> thread::Result<T> {
        wait::wait_or_unwind(None, |cx| self.poll_join(cx)).expect("no deadline was set")
    }

    /// # Panics
    ///
    /// After it was ready.
    #[inline]
    pub(crate) fn poll_join(&mut self, cx: &mut Context<'_>) -> Poll<thread::Result<T>> {
        let done = &self.packet().done;
        // SAFETY: a packet has one handle, and it is borrowed exclusively.
        let polled = unsafe { done.poll(cx) };
        if let Poll::Ready(Err(payload)) = &polled
            && !payload.is::<Cancelled>()
            && let Some(scope) = self.packet().front.header.scope()
        {
            scope.panic_was_joined();
        }
        polled
    }

    pub(crate) fn cancel(&self) {
        self.packet().front.header.cancel();
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.packet().done.is_complete()
    }
}

impl<T> Drop for Handle<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the packet's one handle, which calls nothing of it after this.
        if unsafe { self.packet().done.detach() } {
            let calls = self.packet().front.calls;
            // SAFETY: the completion has said that the packet is the handle's.
            unsafe { (calls.free)(self.0.cast()) };
        }
    }
}

impl<T> fmt::Debug for Handle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("name", &self.packet().front.header.name())
            .field("finished", &self.is_finished())
            .finish()
    }
}

/// The handle of a fiber: waits for its value, or asks it to end. Dropping it lets the fiber run on.
///
/// The handle is also a future with the outcome of [`join`](JoinHandle::join). `&mut handle` is an arm of
/// [`select!`](crate::select!) that leaves the handle usable when another arm wins. Polling it again after it was ready
/// panics.
///
/// ```
/// osier::run(|| {
///     let mut slow = osier::spawn(|| osier::sleep(std::time::Duration::from_secs(60)));
///     let quick = osier::spawn(|| 7);
///     let number = osier::select! {
///         number = quick => number.unwrap(),
///         _ = &mut slow => 0,
///     };
///     assert_eq!(number, 7);
///     slow.cancel();
///     assert!(slow.join().is_err());
/// });
/// ```
#[doc(alias = "AbortHandle")]
pub struct JoinHandle<T>(Handle<'static, T>);

impl<T> JoinHandle<T> {
    /// Waits for the fiber to end and gives its value, or the payload of its panic.
    ///
    /// The payload of a fiber that was cancelled is a [`Cancelled`].
    ///
    /// # Suspends
    ///
    /// Until the fiber has ended, if it has not. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds; the joined fiber runs on.
    ///
    /// # Errors
    ///
    /// The payload of the fiber's panic; [`Cancelled`]; an [`std::io::Error`] if there was no memory for its stack.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, where nothing may wait.
    #[inline]
    pub fn join(self) -> thread::Result<T> {
        self.0.join()
    }

    /// Asks the fiber to end. Its next blocking call, even one that need not wait, fails with [`Cancelled`], or unwinds the
    /// fiber if it returns no [`std::io::Error`]. Every later one unwinds the fiber. Never waits.
    ///
    /// A fiber that has not started never will.
    #[doc(alias = "abort")]
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether the fiber has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = thread::Result<T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<thread::Result<T>> {
        budget::poll(cx, |cx| self.0.poll_join(cx))
    }
}

osier_queue::impl_debug!(JoinHandle<T>, self => self.0);

/// Makes a packet whose job may run on any thread.
pub(crate) fn packet<F, T>(header: Header, body: F) -> (Job, JoinHandle<T>)
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let (job, handle) = packet_unbounded(header, body);
    (job, JoinHandle(handle))
}

/// Makes a packet whose job must stay on this thread: it may only go into the own queue of this thread's worker.
pub(crate) fn packet_local<F, T>(header: Header, body: F) -> (Job, JoinHandle<T>)
where
    F: FnOnce() -> T + 'static,
    T: 'static,
{
    let (job, handle) = packet_unbounded(header, body);
    (job, JoinHandle(handle))
}

/// Makes a packet whose closure may borrow, for `fiber/scope.rs`, which keeps the borrowed values until the job is
/// gone.
pub(crate) fn packet_unbounded<'a, F, T>(header: Header, body: F) -> (ScopedJob<'a>, Handle<'a, T>)
where
    F: FnOnce() -> T + 'a,
    T: 'a,
{
    let packet: Box<Packet<F, T>> = Box::new(Packet {
        middle: Middle {
            front: Front {
                calls: &Packet::<F, T>::CALLS,
                header,
            },
            done: Completion::new(),
        },
        body: UnsafeCell::new(Some(body)),
    });
    // Both pointers are the same address. The completion decides which side frees it.
    let packet = NonNull::from(Box::leak(packet));
    let job = ScopedJob {
        packet: Some(packet.cast()),
        body: PhantomData,
    };
    (job, Handle(packet.cast(), PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::Location;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Count(Arc<AtomicUsize>);

    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn whichever_side_leaves_last_frees_what_is_left_once() {
        let dropped = Arc::new(AtomicUsize::new(0));
        for round in 0..5 {
            let captured = Count(Arc::clone(&dropped));
            let (job, handle) = packet(Header::new(Location::caller()), move || captured);
            match round {
                0 => {
                    job.run();
                    job.end();
                    assert!(handle.is_finished());
                    drop(handle.join().unwrap());
                }
                1 => {
                    drop(handle);
                    job.run();
                    job.end();
                }
                2 => {
                    job.run();
                    drop(handle);
                    job.end();
                }
                3 => {
                    drop(job);
                    assert!(handle.join().err().unwrap().is::<Cancelled>());
                }
                _ => {
                    let joining = thread::spawn(move || handle.join().map(drop));
                    job.run();
                    job.end();
                    joining.join().unwrap().unwrap();
                }
            }
            assert_eq!(dropped.load(Ordering::SeqCst), round + 1);
        }
    }
}
