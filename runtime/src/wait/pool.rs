//! The pool of threads for work that blocks: lookups of names, files, whatever [`unblock`](crate::unblock) is given.
//!
//! # Protocol
//! All jobs wait in one queue, under one lock with the number of threads. A thread takes one job after the other, and ends
//! when none has come for [`IDLE`]. Each push and each take starts another thread if more than [`BACKLOG`] jobs wait for each
//! idle thread. So a burst of short jobs starts few threads, and jobs that block keep no other job waiting until there are
//! [`THREADS_MAX`]. The lock is not held while a job runs.
//!
//! A task that is woken after the end of its runtime is dropped here, and all threads may wait for that drop. So the job that
//! drops such tasks gets a thread beyond [`THREADS_MAX`] if the threads might all be taken.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use async_task::{Builder, Runnable, Task};

use crate::wait::simulated;
use crate::worker::affinity::start_thread;
use crate::worker::isolate::isolate;

/// The most threads of the pool.
const THREADS_MAX: usize = 500;
/// The jobs that may wait for each idle thread.
const BACKLOG: usize = 5;
/// A thread ends after this time without a job.
const IDLE: Duration = Duration::from_millis(500);

static POOL: Pool = Pool::new(THREADS_MAX);

struct Pool {
    threads_max: usize,
    state: Mutex<State>,
    /// Wakes one idle thread for each job.
    changed: Condvar,
}

struct State {
    jobs: VecDeque<Runnable>,
    threads: usize,
    /// Threads that wait for a job or have just been started.
    idle: usize,
}

/// Runs `work` on a thread of the pool. Dropping the task cancels work that has not begun.
///
/// # Errors
///
/// The system's, if the pool has no thread and the system starts none. `work` is dropped then.
pub(crate) fn try_spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Task<T>> {
    let (job, task) = job(work);
    queue(job, Pool::push)?;
    Ok(task)
}

/// Runs `work` as [`try_spawn`] does, although all threads of the pool may wait for it.
///
/// # Errors
///
/// The system's, if it starts no thread that is needed. `work` is dropped then.
pub(crate) fn try_spawn_awaited(work: impl FnOnce() + Send + 'static) -> io::Result<Task<()>> {
    let (job, task) = job(work);
    queue(job, Pool::push_awaited)?;
    Ok(task)
}

fn job<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Runnable, Task<T>) {
    // The work is ready at its first poll, so nobody wakes it.
    let schedule = |job| drop(queue(job, Pool::push));
    Builder::new()
        .propagate_panic(true)
        .spawn(|()| async move { work() }, schedule)
}

/// Queues a job: for a thread of the pool by `push`, or for the simulation that runs here.
fn queue(job: Runnable, push: fn(&'static Pool, Runnable) -> io::Result<()>) -> io::Result<()> {
    match simulated::defer(job) {
        Ok(()) => Ok(()),
        Err(job) => push(&POOL, job),
    }
}

fn start(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let started = start_thread("osier-pool", body);
    let explained = |error: io::Error| {
        let text = format!("cannot start a thread for blocking work: {error}");
        io::Error::new(error.kind(), text)
    };
    started.map(drop).map_err(explained)
}

impl Pool {
    const fn new(threads_max: usize) -> Pool {
        let state = State {
            jobs: VecDeque::new(),
            threads: 0,
            idle: 0,
        };
        Pool {
            threads_max,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn push(&'static self, job: Runnable) -> io::Result<()> {
        let mut state = self.state();
        state.jobs.push_back(job);
        if let Err(error) = self.grow(&mut state)
            && state.threads == 0
        {
            let lost = state.jobs.pop_back();
            // Its destructors may want the pool.
            drop(state);
            drop(lost);
            return Err(error);
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Queues a job that other jobs may wait for. It gets a thread of its own if those in front of it may take all threads
    /// that there are: no other may start.
    fn push_awaited(&'static self, job: Runnable) -> io::Result<()> {
        let mut state = self.state();
        if state.jobs.len() < state.idle {
            state.jobs.push_back(job);
            drop(state);
            self.changed.notify_one();
            return Ok(());
        }
        drop(state);
        start(|| _ = isolate(|| job.run()))
    }

    /// Starts another thread if too many jobs wait.
    fn grow(&'static self, state: &mut State) -> io::Result<()> {
        if state.jobs.len() > state.idle * BACKLOG && state.threads < self.threads_max {
            start(|| self.run())?;
            state.threads += 1;
            state.idle += 1;
        }
        Ok(())
    }

    /// The life of a thread.
    fn run(&'static self) {
        let mut state = self.state();
        loop {
            while let Some(job) = state.jobs.pop_front() {
                state.idle -= 1;
                // A thread less than wanted delays jobs and loses none: this thread goes on.
                let _ = self.grow(&mut state);
                drop(state);
                // The task has the outcome of the work. Only a waker or a value that is dropped panics here.
                isolate(|| job.run());
                state = self.state();
                state.idle += 1;
            }
            let waited = self.changed.wait_timeout(state, IDLE);
            let timeout;
            (state, timeout) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
            if timeout.timed_out() && state.jobs.is_empty() {
                state.idle -= 1;
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    #[test]
    fn jobs_that_block_keep_no_other_job_waiting() {
        let all = Arc::new(Barrier::new(40));
        let tasks: Vec<_> = (0..40)
            .map(|number| {
                let all = Arc::clone(&all);
                let job = move || {
                    all.wait();
                    number
                };
                try_spawn(job).unwrap()
            })
            .collect();
        let values: Vec<_> = tasks.into_iter().map(crate::block_on).collect();
        assert_eq!(values, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn work_that_panics_ends_no_thread_and_its_task_panics() {
        let panicking = try_spawn(|| panic!("on purpose")).unwrap();
        let panicked = std::panic::catch_unwind(|| crate::block_on(panicking));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"on purpose"));
        assert_eq!(crate::block_on(try_spawn(|| 7).unwrap()), 7);
    }

    /// Gives each thread of the pool a job that waits for the barrier.
    fn take_all_threads(pool: &'static Pool, released: &Arc<Barrier>, threads: usize) {
        for _ in 0..threads {
            let released = Arc::clone(released);
            let (job, task) = job(move || _ = released.wait());
            pool.push(job).unwrap();
            task.detach();
        }
        let all_wait = || {
            let state = pool.state();
            (state.threads, state.idle, state.jobs.len()) == (threads, 0, 0)
        };
        testkit::eventually("all threads wait", all_wait);
    }

    #[test]
    fn a_job_that_all_threads_wait_for_runs() {
        // A pool of its own: other tests use the common one.
        static POOL: Pool = Pool::new(3);
        let released = Arc::new(Barrier::new(4));
        take_all_threads(&POOL, &released, 3);
        let (job, task) = job(move || _ = released.wait());
        POOL.push_awaited(job).unwrap();
        testkit::eventually("it runs", || task.is_finished());
    }

    /// A test of its own process: it takes away the address space for the stacks of threads.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_job_that_all_threads_wait_for_is_an_error_if_no_thread_starts() {
        static POOL: Pool = Pool::new(3);
        let test = "wait::pool::tests::a_job_that_all_threads_wait_for_is_an_error_if_no_thread_starts";
        let child = testkit::in_a_child(test, || {
            let released = Arc::new(Barrier::new(2));
            take_all_threads(&POOL, &released, 1);
            let (job, task) = job(|| ());
            let pushed = testkit::without_room_for_a_thread(|| POOL.push_awaited(job));
            let error = pushed.unwrap_err().to_string();
            assert!(error.contains("cannot start a thread"), "{error}");
            assert!(task.is_finished(), "its work is dropped");
            released.wait();
        });
        if let Some(child) = child {
            assert!(child.status.success(), "{child:?}");
        }
    }

    #[test]
    fn idle_threads_end() {
        // A pool of its own: other tests use the common one.
        static POOL: Pool = Pool::new(3);
        let (job, task) = async_task::spawn(async {}, |job| drop(POOL.push(job)));
        job.schedule();
        crate::block_on(task);
        assert_eq!(POOL.state().threads, 1);
        let gone = || {
            let state = POOL.state();
            (state.threads, state.idle) == (0, 0)
        };
        testkit::eventually("the thread ends", gone);
    }
}
