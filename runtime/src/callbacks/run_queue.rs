//! The run queue: callbacks in the order of arrival, and the threads that run them.
//!
//! # Protocol
//! One lock guards everything. Nobody holds it while a callback runs. A push wakes a waiting thread of the pool. If
//! more tasks are queued than threads wait, the push also wakes the thread that iterates the
//! [`IoQueue`](super::IoQueue). Any other thread that has run a callback notifies the iterating thread, which may be
//! waiting for the callback's effect. The notification is kept if that thread does not sleep yet, and stops it from
//! sleeping. The flag `closed` refuses new calls. The flag `quit` also ends the threads.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use super::{Reason, Refused, Status};
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

pub(super) enum Task {
    Call(Box<dyn FnOnce(Status) + Send>),
    Request(Arc<dyn Run>),
}

impl Task {
    fn run(self) {
        match self {
            // The panic hook has reported a panic.
            Task::Call(call) => drop(isolate(|| call(Status::Done))),
            Task::Request(request) => request.run(),
        }
    }

    pub(super) fn shut_down(self) {
        match self {
            Task::Call(call) => drop(isolate(|| call(Status::Shutdown))),
            Task::Request(request) => request.shut_down(),
        }
    }
}

/// The queue itself.
pub(super) struct Tasks {
    state: Mutex<State>,
    arrived: Condvar,
    /// The driver whose thread also runs tasks, and waits for their effects.
    remote: Option<&'static Remote>,
    /// The iterating thread must not sleep: something it may wait for has happened since its last iteration.
    pub(super) notified: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Task>,
    /// The number of pool threads that wait for a task.
    waiting: usize,
    /// The number of tasks that are running.
    running: usize,
    /// New calls are refused. Outstanding requests still pass.
    closed: bool,
    /// Nothing is pushed or taken any more.
    quit: bool,
}

impl Tasks {
    fn new(remote: Option<&'static Remote>) -> Tasks {
        Tasks {
            state: Mutex::default(),
            arrived: Condvar::new(),
            remote,
            notified: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Appends a task. Gives the task back if the queue is closed for it.
    pub(super) fn push(&self, task: Task) -> Result<(), Task> {
        let mut state = self.lock();
        if state.quit || state.closed && matches!(task, Task::Call(_)) {
            return Err(task);
        }
        state.queue.push_back(task);
        let (waiting, queued) = (state.waiting, state.queue.len());
        drop(state);
        if waiting > 0 {
            self.arrived.notify_one();
        }
        // A notified thread counts as waiting until it runs and takes a task.
        if queued > waiting {
            self.ring();
        }
        Ok(())
    }

    pub(super) fn submit(&self, call: impl FnOnce(Status) + Send + 'static) -> Result<(), Refused> {
        self.push(Task::Call(Box::new(call))).map_err(|_| Refused {
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

    fn pop(&self) -> Option<Task> {
        let mut state = self.lock();
        let task = state.queue.pop_front()?;
        state.running += 1;
        Some(task)
    }

    fn run(&self, task: Task) {
        struct Running<'a>(&'a Tasks);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.lock().running -= 1;
            }
        }
        let _running = Running(self);
        task.run();
    }

    /// Runs at most `limit` tasks on a thread that does not iterate. 0 means: until none is left.
    pub(super) fn dispatch(&self, limit: usize) -> usize {
        let mut count = 0;
        while limit == 0 || count < limit {
            let Some(task) = self.pop() else { break };
            self.run(task);
            self.notify();
            count += 1;
        }
        count
    }

    /// Runs as many tasks as are queued now, on the iterating thread. Tasks that these push wait for the next turn.
    pub(super) fn dispatch_round(&self) {
        for _ in 0..self.len() {
            let Some(task) = self.pop() else { return };
            self.run(task);
        }
    }

    /// The loop of a pool thread.
    fn work(&self) {
        let mut state = self.lock();
        while !state.quit {
            match state.queue.pop_front() {
                Some(task) => {
                    state.running += 1;
                    drop(state);
                    self.run(task);
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

    /// The number of tasks that are queued or running.
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
    tasks: Arc<Tasks>,
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
        mut spawn: impl FnMut(usize, Arc<Tasks>) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<RunQueue> {
        let mut queue = RunQueue {
            tasks: Arc::new(Tasks::new(remote)),
            threads: Vec::new(),
        };
        for index in 0..threads {
            // After an error, dropping the queue ends the threads that run already.
            queue.threads.push(spawn(index, Arc::clone(&queue.tasks))?);
        }
        Ok(queue)
    }

    pub(super) fn tasks(&self) -> &Arc<Tasks> {
        &self.tasks
    }

    /// Runs `call` as soon as possible, after all calls that were submitted before. Any thread may submit. The call
    /// gets [`Status::Done`], or [`Status::Shutdown`] if the queue was dropped first.
    ///
    /// # Errors
    ///
    /// [`Refused`] once the queue is shut down.
    pub fn submit(&self, call: impl FnOnce(Status) + Send + 'static) -> Result<(), Refused> {
        self.tasks.submit(call)
    }

    /// Runs at most `limit` queued callbacks on the calling thread, and returns their number. With `limit` 0 it runs
    /// until none is left. The queue's own threads keep running callbacks meanwhile.
    pub fn dispatch(&self, limit: usize) -> usize {
        self.tasks.dispatch(limit)
    }

    /// Ends the threads. Returns the tasks that they have not taken.
    pub(super) fn stop(&mut self) -> VecDeque<Task> {
        self.tasks.lock().quit = true;
        self.tasks.arrived.notify_all();
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
        std::mem::take(&mut self.tasks.lock().queue)
    }
}

impl Drop for RunQueue {
    fn drop(&mut self) {
        self.stop().into_iter().for_each(Task::shut_down);
    }
}

osier_queue::impl_debug!(RunQueue, self => { threads: self.threads.len(), queued: self.tasks.len() });

fn spawn(index: usize, tasks: Arc<Tasks>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new()
        .name(format!("osier-queue-{index}"))
        .spawn(move || tasks.work())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_ends_those_that_were() {
        let mut kept = None;
        let error = RunQueue::start(None, 4, |index, tasks| {
            kept = Some(Arc::clone(&tasks));
            match index {
                2 => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
                _ => spawn(index, tasks),
            }
        });
        assert_eq!(error.map(drop).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        let kept = kept.expect("two were started");
        assert_eq!(Arc::strong_count(&kept), 1, "both have ended, and been waited for");
        assert!(kept.lock().quit);
    }
}
