//! A callback request: a leaf, its callback, and the atomic state that decides how it ends.
//!
//! The leaf's waker pushes the request to the run queue. The thread that takes it from there holds it: it polls the
//! leaf with the queue as driver, and calls the callback if that ended the request. `osier_queue::request` has the
//! rules of the atomic state, `word`.
//!
//! # Protocol
//! - `held` is locked to put work in and to take it out, never while a leaf is polled or a callback runs.
//! - `parameter` stays locked from before `word` is set to "changed" until the new value is stored. A holder that
//!   finds the change in `word` therefore waits for the value.
//! - The queue's registry keeps an outstanding request. After its end, only its callback has the object.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use osier_queue::request as word;
use osier_queue::request::{Asked, Decision, Ended, Generation};
use pin_project_lite::pin_project;

use super::registry::QueueState;
use super::run_queue::{Queued, Run};
use super::{Reason, Refused, Status};
use crate::worker::context;
use crate::worker::isolate::{discard, isolate};

/// The work of a request: its leaf and its callback. `P` is the parameter that can be changed while it waits.
pub(super) trait Work<P>: Send {
    /// Takes a new parameter, which holds from the next poll on.
    fn change(self: Pin<&mut Self>, parameter: P);
    /// Polls the leaf and keeps its output. Does not panic.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()>;
    /// Drops the leaf and calls the callback.
    fn finish(self: Pin<Box<Self>>, status: Status);
}

type Held<P> = (usize, Pin<Box<dyn Work<P>>>);

pub(super) struct Request<P> {
    word: word::Request,
    queue: Arc<QueueState>,
    parameter: Mutex<Option<P>>,
    /// The work and its key in the registry. `Some` while the request is outstanding and nobody holds it.
    held: Mutex<Option<Held<P>>>,
}

impl<P: Send + 'static> Request<P> {
    pub(super) fn new(queue: &Arc<QueueState>) -> Arc<Request<P>> {
        Arc::new(Request {
            word: word::Request::new(),
            queue: Arc::clone(queue),
            parameter: Mutex::new(None),
            held: Mutex::new(None),
        })
    }

    /// Begins the request and polls its leaf for the first time.
    pub(super) fn begin<W: Work<P> + 'static>(
        self: &Arc<Self>,
        work: Pin<Box<W>>,
    ) -> Result<CancelHandle<P>, Refused<Pin<Box<W>>>> {
        let refused = |reason, object| Err(Refused { reason, object });
        let Some(generation) = self.word.arm() else {
            return refused(Reason::Busy, work);
        };
        let Some(key) = self.queue.enter(Arc::clone(self) as Arc<dyn Run>) else {
            self.word.disarm();
            return refused(Reason::Closed, work);
        };
        lock(&self.parameter).take();
        let mut work: Pin<Box<dyn Work<P>>> = work;
        let ready = self.poll(work.as_mut());
        self.rest((key, work), ready);
        Ok(CancelHandle {
            request: Arc::clone(self),
            generation,
        })
    }

    /// Cancels the outstanding request, whichever it is.
    pub(super) fn cancel_any(self: &Arc<Self>) {
        self.asked(self.word.cancel_any());
    }

    fn poll(self: &Arc<Self>, mut work: Pin<&mut (dyn Work<P> + 'static)>) -> bool {
        let parameter = lock(&self.parameter).take();
        if let Some(parameter) = parameter {
            let _ = isolate(|| work.as_mut().change(parameter));
        }
        let waker = Waker::from(Arc::clone(self));
        let mut cx = Context::from_waker(&waker);
        // A leaf that panics counts as ready: held for ever, it would keep the queue from ending. The panic hook has
        // reported it.
        isolate(|| context::with_driver(self.queue.remote, || work.poll(&mut cx)))
            .is_none_or(|polled| polled.is_ready())
    }

    fn rest(self: &Arc<Self>, held: Held<P>, again: bool) {
        *lock(&self.held) = Some(held);
        if self.word.rest(again) {
            Arc::clone(self).enqueue();
        }
    }

    fn enqueue(self: Arc<Self>) {
        // The queue refuses the request while it is dropped. The dropping thread then ends the request itself, unless it
        // could not and has marked it as closing.
        if let Err(work) = self.queue.work.push(Queued::Request(Arc::clone(&self) as Arc<dyn Run>))
            && self.word.is_closing()
        {
            work.shut_down();
        }
    }

    fn asked(self: &Arc<Self>, asked: Asked) -> bool {
        if asked == Asked::Enqueue {
            Arc::clone(self).enqueue();
        }
        asked != Asked::Late
    }

    fn take(&self) -> Held<P> {
        lock(&self.held).take().expect("put there before the word said so")
    }

    fn end(&self, (key, work): Held<P>, status: Status) {
        self.queue.leave(key);
        // The panic hook has reported a panic.
        let _ = isolate(|| work.finish(status));
    }
}

impl<P: Send + 'static> Run for Request<P> {
    fn run(self: Arc<Self>) {
        if !self.word.claim() {
            return;
        }
        let (key, mut work) = self.take();
        loop {
            let ready = self.poll(work.as_mut());
            match self.word.decide(ready) {
                Decision::Again => {}
                Decision::End(status) => return self.end((key, work), status),
                Decision::Rest => return self.rest((key, work), false),
            }
        }
    }

    fn shut_down(self: Arc<Self>) {
        loop {
            match self.word.end() {
                Ended::Idle => return,
                Ended::Here => return self.end(self.take(), Status::Shutdown),
                // The request's own leaf drops the queue. The holder ends the request when the poll returns.
                Ended::Held if context::driver().is_some_and(|here| ptr::eq(here, self.queue.remote)) => {
                    let _held = self.word.close();
                    return;
                }
                // Another thread polls the leaf: wait until it is done.
                Ended::Held => thread::sleep(Duration::from_micros(20)),
            }
        }
    }

    fn close(self: Arc<Self>) {
        self.asked(self.word.close());
    }
}

impl<P: Send + 'static> Wake for Request<P> {
    fn wake(self: Arc<Self>) {
        if self.word.wake() {
            self.enqueue();
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.word.wake() {
            Arc::clone(self).enqueue();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A handle that ends one request early, from any thread.
///
/// Dropping it does nothing.
pub struct CancelHandle<P: Send + 'static = ()> {
    request: Arc<Request<P>>,
    generation: Generation,
}

impl<P: Send + 'static> CancelHandle<P> {
    /// Asks for the callback now, with [`Status::Cancelled`] unless the event has happened by then. Returns false,
    /// and does nothing, if the request has ended or was cancelled before. A later request of the same object is
    /// never affected.
    pub fn cancel(&self) -> bool {
        self.request.asked(self.request.word.cancel(self.generation))
    }

    /// Whether the request is outstanding. Its callback may be about to begin.
    pub fn is_pending(&self) -> bool {
        self.request.word.is_armed(self.generation)
    }

    /// Changes the parameter. Returns false if the request has ended or is ending.
    pub(super) fn change(&self, parameter: P) -> bool {
        let mut slot = lock(&self.request.parameter);
        let asked = self.request.word.change(self.generation);
        if asked != Asked::Late {
            *slot = Some(parameter);
        }
        drop(slot);
        self.request.asked(asked)
    }
}

impl<P: Send + 'static> Clone for CancelHandle<P> {
    fn clone(&self) -> Self {
        CancelHandle {
            request: Arc::clone(&self.request),
            generation: self.generation,
        }
    }
}

impl<P: Send + 'static> fmt::Debug for CancelHandle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHandle")
            .field("pending", &self.is_pending())
            .finish()
    }
}

pin_project! {
    /// A future and a callback that gets its output.
    pub(super) struct Awaiting<F: Future, C> {
        #[pin]
        future: Option<F>,
        output: Option<F::Output>,
        callback: Option<C>,
    }
}

impl<F: Future, C> Awaiting<F, C> {
    pub(super) fn new(future: F, callback: C) -> Pin<Box<Awaiting<F, C>>> {
        Box::pin(Awaiting {
            future: Some(future),
            output: None,
            callback: Some(callback),
        })
    }
}

impl<F, C> Work<()> for Awaiting<F, C>
where
    F: Future<Output: Send> + Send,
    C: FnOnce(Status, Option<F::Output>) + Send,
{
    fn change(self: Pin<&mut Self>, (): ()) {}

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            return Poll::Ready(());
        };
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => *this.output = Some(output),
            Err(payload) => discard(payload),
        }
        // The future's destructor may panic as well; its remaining parts are leaked then.
        let _ = isolate(|| this.future.set(None));
        Poll::Ready(())
    }

    fn finish(mut self: Pin<Box<Self>>, status: Status) {
        let mut this = self.as_mut().project();
        let _ = isolate(|| this.future.set(None));
        let output = this.output.take();
        let callback = this.callback.take().expect("called once");
        drop(self);
        match (status, output) {
            (Status::Done, None) => callback(Status::Cancelled, None),
            (Status::Done, output) => callback(Status::Done, output),
            (status, _) => callback(status, None),
        }
    }
}
