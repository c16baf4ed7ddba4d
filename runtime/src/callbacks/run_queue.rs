//! The run queue: callbacks in the order of arrival, and the threads that run them.
//!
//! # Protocol
//! One lock guards everything. Nobody holds it while a callback runs. A push wakes a waiting thread of the pool. If
//! more calls and requests are queued than threads wait, the push also wakes the thread that iterates the
//! [`IoQueue`](super::IoQueue). Any other thread that has run a callback notifies the iterating thread, which may be
//! waiting for the callback's effect. The notification is kept if that thread does not sleep yet, and stops it from
//! sleeping. The flag `closed` refuses new calls. The flag `quit` also ends the threads.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use super::{Reason, Refused, Status};
use crate::worker::affinity::start_thread;
use crate::worker::context::{self, Caller};
use crate::worker::isolate::isolate;
use crate::worker::remote::Remote;

/// A request in the run queue.
pub(super) trait Run: Send + Sync {
    /// Polls its leaf, and calls the callback if that ended the request.
    fn run(self: Arc<Self>);
    /// Calls the callback with [`Status::Shutdown`], unless the request has ended.
    fn shut_down(self: Arc<Self>);
    /// Requests the end with [`Status::Shutdown`], unless the request's event has happened.
    fn close(self: Arc<Self>);
}

pub(super) enum Queued {
    Call(Box<dyn FnOnce(Status) + Send>),
    Request(Arc<dyn Run>),
}

impl Queued {
    fn run(self) {
        match self {
            // The panic hook has reported a panic.
            Queued::Call(call) => drop(isolate(|| call(Status::Done))),
            Queued::Request(request) => request.run(),
        }
    }

    pub(super) fn shut_down(self) {
        match self {
            Queued::Call(call) => drop(isolate(|| call(Status::Shutdown))),
            Queued::Request(request) => request.shut_down(),
        }
    }
}

/// The queued calls and requests, and the threads that wait for work.
pub(super) struct WorkQueue {
    state: Mutex<State>,
    arrived: Condvar,
    /// The driver whose thread also runs this work, and waits for its effects.
    remote: Option<&'static Remote>,
    /// The iterating thread must not sleep: something it may wait for has happened since its last iteration.
    pub(super) notified: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    /// The number of pool threads that wait for work.
    waiting: usize,
    /// The number of calls and requests that are running.
    running: usize,
    /// New calls are refused. Outstanding requests still pass.
    closed: bool,
    /// Nothing is pushed or taken any more.
    quit: bool,
}

impl WorkQueue {
    fn new(remote: Option<&'static Remote>) -> WorkQueue {
        WorkQueue {
            state: Mutex::default(),
            arrived: Condvar::new(),
            remote,
            notified: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Appends a call or a request. Gives it back if the queue is closed for it.
    pub(super) fn push(&self, work: Queued) -> Result<(), Queued> {
        let mut state = self.lock();
        if state.quit || state.closed && matches!(work, Queued::Call(_)) {
            return Err(work);
        }
        state.queue.push_back(work);
        let (waiting, queued) = (state.waiting, state.queue.len());
        drop(state);
        if waiting > 0 {
            self.arrived.notify_one();
        }
        // A notified thread counts as waiting until it runs and takes work.
        if queued > waiting {
            self.ring();
        }
        Ok(())
    }

    pub(super) fn submit(&self, call: impl FnOnce(Status) + Send + 'static) -> Result<(), Refused> {
        self.push(Queued::Call(Box::new(call))).map_err(|_| Refused {
            reason: Reason::Closed,
            object: (),
        })
    }

    /// Makes the iterating thread return, or not sleep the next time.
    pub(super) fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.ring();
        }
    }

    fn ring(&self) {
        if let Some(remote) = self.remote {
            remote.ring();
        }
    }

    fn pop(&self) -> Option<Queued> {
        let mut state = self.lock();
        let work = state.queue.pop_front()?;
        state.running += 1;
        Some(work)
    }

    fn run(&self, work: Queued) {
        struct Running<'a>(&'a WorkQueue);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.lock().running -= 1;
            }
        }
        let _running = Running(self);
        work.run();
    }

    /// Runs at most `limit` calls and requests on a thread that does not iterate. 0 means: until none is left.
    pub(super) fn dispatch(&self, limit: usize) -> usize {
        let mut count = 0;
        while limit == 0 || count < limit {
            let Some(work) = self.pop() else { break };
            self.run(work);
            self.notify();
            count += 1;
        }
        count
    }

    /// Runs as much as is queued now, on the iterating thread. Work that it pushes waits for the next turn.
    pub(super) fn dispatch_round(&self) {
        for _ in 0..self.len() {
            let Some(work) = self.pop() else { return };
            self.run(work);
        }
    }

    /// The loop of a pool thread.
    fn run_thread(&self) {
        let mut state = self.lock();
        while !state.quit {
            match state.queue.pop_front() {
                Some(work) => {
                    state.running += 1;
                    drop(state);
                    self.run(work);
                    self.notify();
                    state = self.lock();
                }
                None => {
                    state.waiting += 1;
                    state = self
                        .arrived
                        .wait(state)
                        .unwrap_or_else(|poisoned| poisoned.into_inner());
                    state.waiting -= 1;
                }
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// The number of calls and requests that are queued or running.
    pub(super) fn busy(&self) -> usize {
        let state = self.lock();
        state.queue.len() + state.running
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
    }
}

/// A first-in, first-out queue of calls and the threads that run them.
///
/// ```
/// use osier::callbacks::RunQueue;
/// use std::sync::mpsc;
///
/// let queue = RunQueue::new(0)?; // no threads: a thread that dispatches runs the callbacks
/// let (done, results) = mpsc::channel();
/// for n in 1..=3 {
///     let done = done.clone();
///     queue.submit(move |_| done.send(n * n).unwrap())?;
/// }
/// assert_eq!(queue.dispatch(2), 2);
/// assert_eq!(results.try_iter().collect::<Vec<_>>(), [1, 4]);
/// assert_eq!(queue.dispatch(0), 1);
/// # std::io::Result::Ok(())
/// ```
///
/// Dropping it waits for the callbacks that run on its threads. Callbacks that are still queued then run with
/// [`Status::Shutdown`] on the dropping thread.
pub struct RunQueue {
    work: Arc<WorkQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl RunQueue {
    /// Makes a queue with this many threads, which may be 0.
    ///
    /// # Errors
    ///
    /// The system's error for a thread that cannot start. Threads that did start are ended.
    pub fn new(background_threads: usize) -> io::Result<RunQueue> {
        RunQueue::start(None, background_threads, spawn)
    }

    pub(super) fn of(remote: &'static Remote, background_threads: usize) -> io::Result<RunQueue> {
        RunQueue::start(Some(remote), background_threads, spawn)
    }

    fn start(
        remote: Option<&'static Remote>,
        threads: usize,
        mut spawn: impl FnMut(usize, Arc<WorkQueue>) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<RunQueue> {
        let mut queue = RunQueue {
            work: Arc::new(WorkQueue::new(remote)),
            threads: Vec::new(),
        };
        for index in 0..threads {
            // After an error, dropping the queue ends the threads that run already.
            queue.threads.push(spawn(index, Arc::clone(&queue.work))?);
        }
        Ok(queue)
    }

    pub(super) fn work(&self) -> &Arc<WorkQueue> {
        &self.work
    }

    /// Runs `call` as soon as possible, after all calls that were submitted before. Any thread may submit. The call
    /// gets [`Status::Done`], or [`Status::Shutdown`] if the queue was dropped first.
    ///
    /// # Errors
    ///
    /// [`Refused`] once the queue is shut down.
    pub fn submit(&self, call: impl FnOnce(Status) + Send + 'static) -> Result<(), Refused> {
        self.work.submit(call)
    }

    /// Runs at most `limit` queued callbacks on the calling thread, and returns their number. With `limit` 0 it runs
    /// until none is left. The queue's own threads keep running callbacks meanwhile.
    pub fn dispatch(&self, limit: usize) -> usize {
        self.work.dispatch(limit)
    }

    /// Ends the threads. Returns the work that they have not taken.
    pub(super) fn stop(&mut self) -> VecDeque<Queued> {
        self.work.lock().quit = true;
        self.work.arrived.notify_all();
        let here = thread::current().id();
        // A callback may drop the last owner, on one of the queue's own threads, which cannot join itself.
        let others = self.threads.drain(..).filter(|thread| thread.thread().id() != here);
        let others: Vec<_> = others.collect();
        let join = || others.into_iter().for_each(|thread| drop(thread.join()));
        if context::caller(|caller| matches!(caller, Caller::Fiber(..))) {
            crate::shield(|| crate::unblock(join));
        } else {
            join();
        }
        std::mem::take(&mut self.work.lock().queue)
    }
}

impl Drop for RunQueue {
    fn drop(&mut self) {
        self.stop().into_iter().for_each(Queued::shut_down);
    }
}

osier_queue::impl_debug!(RunQueue, self => { threads: self.threads.len(), queued: self.work.len() });

fn spawn(index: usize, work: Arc<WorkQueue>) -> io::Result<JoinHandle<()>> {
    start_thread(format!("osier-queue-{index}"), move || work.run_thread())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_ends_those_that_were() {
        let mut kept = None;
        let error = RunQueue::start(None, 4, |index, work| {
            kept = Some(Arc::clone(&work));
            match index {
                2 => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
                _ => spawn(index, work),
            }
        });
        assert_eq!(error.map(drop).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        let kept = kept.expect("two were started");
        assert_eq!(Arc::strong_count(&kept), 1, "both have ended, and been waited for");
        assert!(kept.lock().quit);
    }
}
